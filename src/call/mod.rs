//! The vocabulary of one call: what is asked, how far it got, how it ended. No I/O, nothing serialisable.

pub mod approval;
pub mod arguments;
pub mod batch;
pub mod canonical;
pub mod code;
mod content;
pub mod ended;
mod evidence;
pub mod handoff;
mod http_request;
pub mod judge;
pub mod known;
pub mod names;
pub mod operation;
pub mod outcome;
pub mod pointer;
pub mod progress;
pub mod send_gate;
pub mod side;
pub mod stream;
pub mod suggest;
mod task;
pub mod trace;
pub mod turn;

use std::any::Any;
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

pub use approval::{ApprovalId, Consent};
pub use arguments::{Arguments, Digest, Likeness, Malformed};
pub use ended::{Asks, Came, Ended};
pub use evidence::Evidence;
pub use handoff::{EntryOf, Handoff, Sending};
pub use http_request::{Broken, HttpRequest, RequestBody, Standing, Turn, Upload};
pub use known::Known;
pub use names::{AgentId, CallId, CallerKey, Named, PolicyName, RunId, ToolName, UpstreamName};
pub use operation::{IdempotencyKey, OperationId, SentKey};
pub use outcome::{
    CallError, Class, Content, Delivery, Denied, Detail, Dimension, ErrorClass, Failed, Fault,
    Form, Head, LimitedBy, Notes, Outcome, Rate, Source, TimedOutBy, ToolResult, Truncated,
    Unknown, Verdict,
};
pub use progress::{Phase, Progress};
pub use send_gate::{Keeper, SendGate, send_gate};
pub use side::{Channel, Continuation, MAX_ROUNDS, NoAnswer, ServerEvent, Side};
pub use stream::{AnswerBytes, Arriving, ByteSource, Stream};
pub use task::{Polled, TaskId, TaskKeeper, TaskOf, TaskWay};
pub use trace::{AttemptNote, Trace};

/// Read or write; declared by the policy, never by a model or a server's hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    Read,
    Write,
}

impl Effect {
    pub fn as_str(self) -> &'static str {
        match self {
            Effect::Read => "read",
            Effect::Write => "write",
        }
    }
}

/// Counts a circuit's transitions; a verdict from an older one changes nothing.
pub type Generation = u64;

/// Places of a call in every bulkhead it passed; free when the last holder drops it.
#[derive(Debug, Clone)]
pub struct Place(
    #[expect(dead_code, reason = "held, not read: dropping it is its use")]
    Arc<Vec<OwnedSemaphorePermit>>,
);

impl Place {
    pub fn new(permits: Vec<OwnedSemaphorePermit>) -> Self {
        Self(Arc::new(permits))
    }
}

/// Which front end a call came through, for records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FrontEnd {
    ToolsApi,
    OpenaiChat,
    OpenaiResponses,
    AnthropicMessages,
    McpHttp,
    McpStdio,
    Proxy,
}

impl FrontEnd {
    pub fn as_str(self) -> &'static str {
        match self {
            FrontEnd::ToolsApi => "tools_api",
            FrontEnd::OpenaiChat => "openai_chat",
            FrontEnd::OpenaiResponses => "openai_responses",
            FrontEnd::AnthropicMessages => "anthropic_messages",
            FrontEnd::McpHttp => "mcp_http",
            FrontEnd::McpStdio => "mcp_stdio",
            FrontEnd::Proxy => "proxy",
        }
    }
}

/// What is asked of the tool.
#[derive(Debug, Clone)]
pub enum Payload {
    Arguments(Arguments),
    /// A request of a plain HTTP client, for the tool that its route names.
    Request(Arc<HttpRequest>),
    /// Arguments that did not parse: only ever seen by `refusal_stack`.
    Malformed(Malformed),
    /// A kind of call that is no function call (batches); only ever seen by `refusal_stack`.
    Unsupported {
        kind: Arc<str>,
    },
}

impl Payload {
    /// What "the same arguments" means: the canonical form without `volatile` members, or the
    /// text as it came where it did not parse.
    pub fn digest(&self, volatile: &[pointer::Pointer]) -> Digest {
        match self {
            Payload::Arguments(arguments) => arguments.digest(volatile),
            Payload::Request(request) => request.digest(volatile),
            Payload::Malformed(malformed) => malformed.digest,
            Payload::Unsupported { kind } => Digest::of(kind.as_bytes()),
        }
    }

    /// As [`Payload::digest`], for memories of this process.
    pub fn likeness(&self, volatile: &[pointer::Pointer]) -> Likeness {
        match self {
            Payload::Arguments(arguments) => arguments.likeness(volatile),
            Payload::Request(request) => request.likeness(volatile),
            Payload::Malformed(malformed) => Likeness::of(malformed.digest.as_bytes()),
            Payload::Unsupported { kind } => Likeness::of(kind.as_bytes()),
        }
    }

    /// Size of the text the arguments came in.
    pub fn bytes(&self) -> u64 {
        match self {
            Payload::Arguments(arguments) => arguments.bytes(),
            Payload::Request(request) => request.bytes(),
            Payload::Malformed(malformed) => malformed.bytes,
            Payload::Unsupported { .. } => 0,
        }
    }

    /// Whether it can be sent a second time.
    pub fn replayable(&self) -> bool {
        match self {
            Payload::Request(request) => request.replayable(),
            Payload::Arguments(_) | Payload::Malformed(_) | Payload::Unsupported { .. } => true,
        }
    }
}

/// A run, as far as this module may know one: a thing that the layers which know runs find again.
#[derive(Debug, Clone)]
pub struct Home(Arc<dyn Any + Send + Sync>);

impl Home {
    pub fn new<T: Any + Send + Sync>(run: Arc<T>) -> Self {
        Self(run)
    }
    /// `None`: it is a thing of another kind.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.0.clone().downcast().ok()
    }
}

/// One call on its way through its stack.
#[derive(Debug, Clone)]
pub struct ToolCall {
    pub id: CallId,
    pub agent: AgentId,
    pub run: RunId,
    /// The run itself, where the call was made in one: what layers would else look up by its id.
    pub home: Option<Home>,
    pub tool: ToolName,
    pub front_end: FrontEnd,
    pub payload: Payload,
    /// `Idempotency-Key` of the agent's code.
    pub caller_key: Option<CallerKey>,
    /// What an agent that speaks MCP brings.
    pub side: Option<Arc<Side>>,
    /// When the call came in.
    pub began: Instant,
    /// min(run's, caller's); layers only shorten it.
    pub deadline: Instant,
    /// Stamped by `breaker`; what `retry` peeks with.
    pub admitted: Option<Generation>,
    /// Stamped by `breaker` on a half-open probe: no second attempt.
    pub single_attempt: bool,
    /// Stamped by `bulkhead`.
    pub place: Option<Place>,
    /// Stamped by `replay` for `journal`: the claim on the operation.
    pub handoff: Option<Handoff>,
    /// Stamped by `replay`: an identical write was done before, and the policy lets it be repeated with a yes only.
    pub identical: bool,
    /// Stamped by `approval`: the yes that is used up before the call is sent.
    pub consent: Option<Consent>,
    /// Stamped by `journal` for the drain of a timed-out write.
    pub entry: Option<EntryOf>,
    /// Stamped by `journal`; a back end that finds one opens it between connect and first byte.
    pub send_gate: Option<SendGate>,
    /// Stamped by `journal`: what a tool that takes a key is to recognise this write by.
    pub sent_key: Option<SentKey>,
    /// Stamped by `timeout`; the back end marks phases on it.
    pub progress: Option<Progress>,
    pub trace: Trace,
}

impl ToolCall {
    /// A call that nothing has happened to yet, beginning now.
    pub fn new(
        id: CallId,
        agent: AgentId,
        run: RunId,
        tool: ToolName,
        front_end: FrontEnd,
        payload: Payload,
        deadline: Instant,
    ) -> Self {
        Self {
            id,
            agent,
            run,
            home: None,
            tool,
            front_end,
            payload,
            caller_key: None,
            side: None,
            began: Instant::now(),
            deadline,
            admitted: None,
            single_attempt: false,
            place: None,
            handoff: None,
            identical: false,
            consent: None,
            entry: None,
            send_gate: None,
            sent_key: None,
            progress: None,
            trace: Trace::default(),
        }
    }

    /// A call of a read that no agent asked for: a probe. It belongs to no run. `None`: names that cannot be.
    pub fn of_the_gateway(
        tool: &ToolName,
        arguments: serde_json::Map<String, serde_json::Value>,
        time: std::time::Duration,
    ) -> Option<Self> {
        let call = Self::new(
            CallId::new("probe").ok()?,
            AgentId::new("checkrein").ok()?,
            RunId::new("checkrein-probe").ok()?,
            tool.clone(),
            FrontEnd::ToolsApi,
            Payload::Arguments(Arguments::from_tree(arguments.into(), 0)?),
            Instant::now() + time,
        );
        Some(Self { single_attempt: true, ..call })
    }

    /// What it goes on with, where it is no call of its own: checked by the front end that gave the question out.
    /// Answers that came without a state of ours go with a call that is new in all else.
    pub fn continuation(&self) -> Option<&Continuation> {
        let brought = self.side.as_ref().and_then(|side| side.continuation.as_deref());
        brought.filter(|continuation| continuation.round > 0)
    }

    /// What rules look at, where there is any such thing.
    pub fn arguments(&self) -> Option<&Arguments> {
        match &self.payload {
            Payload::Arguments(arguments) => Some(arguments),
            Payload::Request(request) => Some(request.document()),
            Payload::Malformed(_) | Payload::Unsupported { .. } => None,
        }
    }
}
