//! One wire to one server: an inner session, whatever carries it. What goes in, what comes back, and how an exchange
//! ends that gets no answer. Nothing here judges: [`crate::backends::classify`] does.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::child::ChildLink;
use super::http::HttpLink;
use crate::call::{Progress, SendGate};
use crate::egress::SendError;
use crate::mcp::headers;
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
    /// The server may answer with a task, or is asked for one: the extension is declared.
    pub(super) tasks: bool,
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
pub(in crate::backends) enum Lost {
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

/// How a stream that belongs to no request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    /// Its events have names: the next one goes on where it ended.
    Resumable,
    /// What the server says until the next one is open is not heard.
    Lost,
}

/// What comes from a server beside the answer. Never blocks.
pub(super) trait Inbound: Send + Sync + Debug {
    fn notification(&self, notification: Notification);
    /// The stream that belongs to no request is open, or the server has none.
    fn listening(&self) {}
    /// The server closed the stream of an open request, to be asked again after `wait`.
    fn let_go(&self, _wait: Duration) {}
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
}

/// The wire of one inner session. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) enum Link {
    Http(HttpLink),
    Child(ChildLink),
}

impl Link {
    /// Opens what is not open, and tells what was agreed on.
    pub(super) async fn open(&self) -> Result<Arc<Met>, Lost> {
        match self {
            Link::Http(link) => link.open().await,
            Link::Child(link) => Box::pin(link.open()).await,
        }
    }

    /// One request, sent once. Opens what is not open.
    pub(super) async fn request(&self, wire: Wire<'_>) -> Result<Reply, Lost> {
        match self {
            Link::Http(link) => link.request(wire).await,
            Link::Child(link) => Box::pin(link.request(wire)).await,
        }
    }

    /// One request that is no call of a tool; once more only where the session had been forgotten, which means that
    /// nothing was done.
    pub(super) async fn ask(
        &self,
        method: &str,
        params: Value,
        inbound: &Arc<dyn Inbound>,
        progress: Option<&Progress>,
    ) -> Result<Reply, Lost> {
        self.ask_of(method, params, (inbound, progress), false).await
    }

    /// As [`Link::ask`], of a task.
    pub(super) async fn ask_of_task(
        &self,
        method: &str,
        id: &str,
        inbound: &Arc<dyn Inbound>,
    ) -> Result<Reply, Lost> {
        self.ask_of(method, json!({ "taskId": id }), (inbound, None), true).await
    }

    async fn ask_of(
        &self,
        method: &str,
        params: Value,
        (inbound, progress): (&Arc<dyn Inbound>, Option<&Progress>),
        tasks: bool,
    ) -> Result<Reply, Lost> {
        let never = CancellationToken::new();
        let named = headers::name_member(method).and_then(|member| params.get(member));
        let wire = || Wire {
            method,
            params: params.clone(),
            name: named.and_then(Value::as_str),
            param_headers: Vec::new(),
            fresh: false,
            gate: None,
            progress,
            inbound,
            tasks,
            cancelled: &never,
        };
        match self.request(wire()).await {
            Err(Lost::SessionGone(_)) => self.request(wire()).await,
            answered => answered,
        }
    }

    /// Hears what the server says when nobody asks, until the session is over; a link whose one stream carries all
    /// of it returns at once. `gone`: a stream broke off, and what it told may be missing.
    pub(super) async fn listen(&self, inbound: Arc<dyn Inbound>, gone: impl Fn(Ends) + Send) {
        match self {
            Link::Http(link) => link.listen(inbound, gone).await,
            Link::Child(link) => link.listen(inbound, gone).await,
        }
    }

    /// Cancelled when the session that is open now is over. `None`: none is open.
    pub(super) fn life(&self) -> Option<CancellationToken> {
        match self {
            Link::Http(link) => link.life(),
            Link::Child(link) => link.life(),
        }
    }

    /// Ends the session; never waits.
    pub(super) fn close(&self) {
        match self {
            Link::Http(link) => link.close(),
            Link::Child(link) => link.close(),
        }
    }
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Lost::Send(error) => write!(f, "the server could not be reached: {error}"),
            Lost::Status { status, text, .. } => {
                let text: String = text.chars().take(120).collect();
                write!(f, "HTTP status {status}: {text}")
            }
            Lost::StreamEnded(why) => write!(f, "its answer broke off: {why}"),
            Lost::NotMcp(why) | Lost::Unusable(why) => f.write_str(why),
            Lost::TooLarge(limit) => write!(f, "its answer is over {limit} bytes"),
            Lost::SessionGone(status) => write!(f, "the session was forgotten (HTTP {status})"),
            Lost::ChildGone { .. } => f.write_str("its process ended"),
            Lost::Busy => f.write_str("all sessions are in use"),
            Lost::Down(inner) => write!(f, "no session: {inner}"),
        }
    }
}
