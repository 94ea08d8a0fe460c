//! What an agent that speaks MCP brings with a call: its session, what it can be asked, and the way back to it while
//! the call is open. Plain facts and one narrow channel; who carries the messages is the front end's affair.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::names::{AgentId, UpstreamName};

/// The agent's side of one call.
#[derive(Debug, Clone)]
pub struct Side {
    /// The agent's session, in the revisions that have them. Inner sessions hang on it.
    pub session: Option<Arc<str>>,
    /// The agent's listening stream that this is asked for, in the revisions without sessions.
    pub stream: Option<Arc<str>>,
    /// Revision 2026-07-28 or later: no session, metadata on every request.
    pub modern: bool,
    /// `capabilities` as the agent declared them, for this session or this request.
    pub capabilities: Arc<Value>,
    /// Members of `_meta` that may go on to a server; ours and the protocol's own are taken out.
    pub meta: Arc<Map<String, Value>>,
    /// `params` as the agent shaped them, where it wrote more than a call needs, or in another order: `null` stands for
    /// what is written anew.
    pub params: Option<Arc<Map<String, Value>>>,
    /// `Mcp-Param-*` fields of the request that no schema of ours knows: name without prefix, value as sent.
    pub param_headers: Arc<[(String, String)]>,
    /// The level from which on the agent wants a server's log messages. `None` = none.
    pub log_level: Option<Arc<str>>,
    /// The agent named a progress token, so it wants to hear.
    pub progress: bool,
    /// The call goes on with one that asked for input.
    pub continuation: Option<Arc<Continuation>>,
    /// The agent took its call back in so many words (`notifications/cancelled`), or, in modern revisions, closed the
    /// stream of a read.
    pub cancelled: CancellationToken,
    /// The way back to the agent while this call is open. `None` = it listens to the answer only.
    pub channel: Option<Arc<dyn Channel>>,
    /// The way to the agent's session, for what belongs to no call.
    pub aside: Option<Arc<dyn Channel>>,
}

impl Default for Side {
    fn default() -> Self {
        Self {
            session: None,
            stream: None,
            modern: false,
            capabilities: Arc::new(Value::Object(Map::new())),
            meta: Arc::default(),
            params: None,
            param_headers: Arc::from([]),
            log_level: None,
            progress: false,
            continuation: None,
            cancelled: CancellationToken::new(),
            channel: None,
            aside: None,
        }
    }
}

/// Continuations of one operation; the next one is refused.
pub const MAX_ROUNDS: u32 = 10;

/// The answers to what a server asked for, and its own state, restored to the byte.
#[derive(Debug, Clone)]
pub struct Continuation {
    pub responses: Value,
    pub state: Option<Arc<str>>,
    /// From 1; the first continuation of a call. 0: answers that came without a state of ours, as servers that keep
    /// none take them; in everything else that is a new call.
    pub round: u32,
    /// Of the write that goes on; 0 of a read. It is sent as this occurrence or not at all.
    pub occurrence: u32,
    /// A call that waits inside the gateway for these answers (its server speaks a legacy revision).
    pub parked: Option<Arc<str>>,
}

/// Why a question got no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoAnswer {
    /// The agent did not declare that it can be asked this.
    NotDeclared,
    /// It answered with an error: code, message.
    Refused(i64, String),
    /// It has gone, or the call has ended.
    Gone,
}

/// What becomes known while nobody asks.
#[derive(Debug, Clone)]
pub enum ServerEvent {
    /// Some agent's tools may have changed: a catalog, or the policy.
    ToolsChanged,
    ResourcesChanged {
        server: UpstreamName,
    },
    PromptsChanged {
        server: UpstreamName,
    },
    /// `params` of `notifications/resources/updated`, for the session or the listening stream that subscribed.
    ResourceUpdated {
        agent: AgentId,
        stream: Arc<str>,
        params: Value,
    },
    /// `params` of `notifications/message`, of no call.
    Log {
        agent: AgentId,
        session: Option<Arc<str>>,
        params: Value,
    },
}

/// Messages to the agent about an open call. Never blocks: what does not fit is dropped and counted.
pub trait Channel: fmt::Debug + Send + Sync {
    /// A notification on the call's own stream: `method` and `params` as the agent is to see them, but for the
    /// progress token, which the front end puts in.
    fn notify(&self, method: &str, params: Value);
    /// A request to the agent (elicitation, sampling, roots), answered once or never.
    fn ask(
        &self,
        method: &str,
        params: Value,
    ) -> Pin<Box<dyn Future<Output = Result<Value, NoAnswer>> + Send>>;
    /// The server holds no connection for this call any more: it is asked again after `wait`, and so may the agent ask.
    fn let_go(&self, _wait: Duration) {}
}
