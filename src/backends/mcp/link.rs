//! One wire to one server: an inner session, whatever carries it. What goes in, what comes back, and how an exchange
//! ends that gets no answer. Nothing here judges: [`super::super::classify`] does.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::call::{Progress, SendGate};
use crate::egress::SendError;
use crate::mcp::jsonrpc::{ErrorReply, Notification, Request};
use crate::mcp::version::Revision;

/// One request to a server.
#[derive(Debug)]
pub(super) struct Wire<'a> {
    pub(super) method: &'a str,
    /// An object; `_meta` holds what is to go on, the protocol's own members are put in by the link.
    pub(super) params: Value,
    /// For `Mcp-Name`: the server's own name of the tool or prompt, the URI of a resource.
    pub(super) name: Option<&'a str>,
    /// For `Mcp-Param-*`: name without the prefix, and value, ready to be sent.
    pub(super) param_headers: Vec<(String, String)>,
    /// On a connection that was not used before (HTTP).
    pub(super) fresh: bool,
    /// Of a write: opened between connect and first byte. A request with a gate is never taken back by us: when its
    /// future is dropped, the server is told nothing.
    pub(super) gate: Option<&'a SendGate>,
    pub(super) progress: Option<&'a Progress>,
    pub(super) inbound: &'a Arc<dyn Inbound>,
    /// The agent took the call back in so many words: the server is told, and the answer is waited for all the same.
    pub(super) cancelled: &'a CancellationToken,
}

/// What a server answered.
#[derive(Debug)]
pub(super) enum Reply {
    Result(Value),
    Error(ErrorReply),
}

/// How an exchange ended without an answer.
#[derive(Debug)]
pub(super) enum Lost {
    Send(SendError),
    /// An HTTP status that is no success, with a bounded piece of its text.
    Status {
        status: u16,
        retry_after: Option<Duration>,
        text: String,
    },
    /// The stream, or the connection under it, ended after its head and before the answer; why.
    StreamEnded(String),
    /// A success that is not MCP: no JSON, no event stream, no message, not our answer.
    NotMcp(String),
    /// The answer is over the limit of so many bytes.
    TooLarge(usize),
    /// The server does not know the inner session (any more); the next request opens another. It did nothing.
    SessionGone(u16),
    /// The child has ended; `written` = at least one byte of the request's line had gone out.
    ChildGone {
        written: bool,
    },
    /// As many sessions or children as there may be, all in use.
    Busy,
    /// No session could be opened: nothing of this request was sent.
    Down(Box<Lost>),
    /// The same in words, where there is no exchange to tell of (a child that does not start).
    Unusable(String),
}

/// What comes from a server beside the answer. Never blocks.
pub(super) trait Inbound: Send + Sync + Debug {
    fn notification(&self, notification: Notification);
    /// A request of the server; it is always answered.
    fn request(
        &self,
        request: Request,
    ) -> Pin<Box<dyn Future<Output = Result<Value, ErrorReply>> + Send>>;
}

/// What was agreed on when the session began.
#[derive(Debug, Clone)]
pub(super) struct Met {
    pub(super) revision: Revision,
    /// `capabilities` as the server declared them.
    pub(super) capabilities: Value,
    pub(super) instructions: Option<Arc<str>>,
}
