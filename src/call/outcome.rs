//! How a call ended. Three arms, three questions answered: was it sent, did it run, may it do better later.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use serde_json::Value;
use tokio::time::Instant;

use super::approval::ApprovalId;
use super::code::{DenyCode, FailCode};
use super::ended::Asks;
use super::evidence::Evidence;
use super::known::Known;
use super::names::{PolicyName, ToolName};
use super::operation::{IdempotencyKey, OperationId};
use super::stream::Arriving;

/// May the same request do better later?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    Transient,
    Permanent,
}

/// What is known of the effect of what was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// Provably nothing went out.
    NotSent,
    /// The tool answered that it did nothing.
    Refused,
    /// Executed; the result is here, lost or withheld.
    Done,
    /// Sent, and nothing settles it.
    Unknown,
}

/// What one end says about the tool's health; heard by the breaker alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    Good,
    Bad,
    /// Says nothing: not counted, resets nothing, gives a probe's place back.
    Neutral,
}

/// Where a result came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Tool,
    Ledger,
    /// Kept from an earlier call, or come of one at the same time; within its time.
    Cache,
    /// The same past its time, for a tool that is broken.
    StaleCache,
}

/// Which limit ended an attempt, or kept it from starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TimedOutBy {
    Connect,
    FirstByte,
    Idle,
    Total,
    Loop,
    Call,
    Run,
}

impl TimedOutBy {
    pub fn as_str(self) -> &'static str {
        match self {
            TimedOutBy::Connect => "connect",
            TimedOutBy::FirstByte => "first_byte",
            TimedOutBy::Idle => "idle",
            TimedOutBy::Total => "total",
            TimedOutBy::Loop => "loop",
            TimedOutBy::Call => "call",
            TimedOutBy::Run => "run",
        }
    }
}

/// What an attempt ended as, for the label `error_class`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    None,
    Connect,
    Tls,
    ResetBeforeSend,
    ResetAfterSend,
    TimeoutConnect,
    TimeoutFirstByte,
    TimeoutTotal,
    HttpAuth,
    Http4xx,
    Http429,
    Http5xx,
    Protocol,
    /// Refused by our own egress rules or for want of a credential: nothing was on the wire.
    Blocked,
}

impl ErrorClass {
    pub const ALL: &'static [ErrorClass] = &[
        ErrorClass::None,
        ErrorClass::Connect,
        ErrorClass::Tls,
        ErrorClass::ResetBeforeSend,
        ErrorClass::ResetAfterSend,
        ErrorClass::TimeoutConnect,
        ErrorClass::TimeoutFirstByte,
        ErrorClass::TimeoutTotal,
        ErrorClass::HttpAuth,
        ErrorClass::Http4xx,
        ErrorClass::Http429,
        ErrorClass::Http5xx,
        ErrorClass::Protocol,
        ErrorClass::Blocked,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            ErrorClass::None => "none",
            ErrorClass::Connect => "connect",
            ErrorClass::Tls => "tls",
            ErrorClass::ResetBeforeSend => "reset_before_send",
            ErrorClass::ResetAfterSend => "reset_after_send",
            ErrorClass::TimeoutConnect => "timeout_connect",
            ErrorClass::TimeoutFirstByte => "timeout_first_byte",
            ErrorClass::TimeoutTotal => "timeout_total",
            ErrorClass::HttpAuth => "http_auth",
            ErrorClass::Http4xx => "http_4xx",
            ErrorClass::Http429 => "http_429",
            ErrorClass::Http5xx => "http_5xx",
            ErrorClass::Protocol => "protocol",
            ErrorClass::Blocked => "blocked",
        }
    }
}

/// Status and headers of the tool's answer, hop-by-hop fields gone.
#[derive(Debug, Clone)]
pub struct Head {
    pub status: u16,
    pub headers: HeaderMap,
    /// Its body, where that is not here yet and goes to the agent as it comes.
    pub arriving: Option<Arriving>,
}

/// Bytes the whole result had, and how many of them the model gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncated {
    pub total: u64,
    pub kept: u64,
}

/// State of the deciding bucket, for `RateLimit` and `RateLimit-Policy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rate {
    pub name: PolicyName,
    /// Burst of the bucket.
    pub limit: u32,
    /// Time in which an empty bucket fills.
    pub window: Duration,
    pub remaining: u32,
    /// Until the bucket is full again, or, on a refusal, until the same check passes.
    pub reset: Duration,
}

/// Facts about a result beside its content.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notes {
    pub attempts: u32,
    pub truncated: Option<Truncated>,
    pub rate: Option<Rate>,
    pub age: Option<Duration>,
    /// An identical earlier write had finished; this one ran as a new occurrence.
    pub identical_to: Option<OperationId>,
    /// The tool answered 202: taken on, not necessarily finished.
    pub accepted: bool,
    /// The server asks for input instead of answering: no result yet, and no failure.
    pub asks: Option<Asks>,
}

/// What a tool answered, after projection and redaction.
#[derive(Debug, Clone)]
pub struct ToolResult {
    pub head: Option<Head>,
    pub content: Content,
    pub source: Source,
    pub notes: Notes,
}

impl ToolResult {
    /// The body that is still arriving.
    pub fn arriving(&self) -> Option<&Arriving> {
        self.head.as_ref()?.arriving.as_ref()
    }
}

/// The body of a result.
#[derive(Debug, Clone)]
pub struct Content {
    pub bytes: Bytes,
    pub form: Form,
}

/// What the bytes of a result are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// One complete, valid JSON value.
    Json,
    Text,
    /// The `result` object of an MCP answer, complete and as its server gave it.
    Mcp,
}

pub type Outcome = Result<ToolResult, CallError>;
#[derive(Debug, Clone)]
pub enum CallError {
    Denied(Denied),
    Failed(Failed),
    Unknown(Unknown),
}

/// This call sent nothing.
#[derive(Debug, Clone)]
pub struct Denied {
    pub code: DenyCode,
    pub message: Cow<'static, str>,
    pub retry_after: Option<Duration>,
    pub detail: Detail,
    /// Of the operation that the call repeats; `None` where the ledger knows none, or was asked itself.
    pub known: Option<Known>,
}

impl Detail {
    /// The first [`MAX_FAULTS`], each place cut to what a model can use.
    pub fn faults(mut faults: Vec<Fault>) -> Self {
        faults.truncate(MAX_FAULTS);
        for fault in &mut faults {
            cut_place(&mut fault.at);
        }
        Self::Faults(faults)
    }
}

/// Cuts a JSON Pointer to the length that is told.
pub fn cut_place(at: &mut String) {
    if let Some((end, _)) = at.char_indices().nth(MAX_PLACE) {
        at.truncate(end);
        at.push('…');
    }
}

impl Denied {
    pub fn new(code: DenyCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), retry_after: None, detail: Detail::None, known: None }
    }
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }
    #[must_use]
    pub fn detail(mut self, detail: Detail) -> Self {
        self.detail = detail;
        self
    }
}

/// The budgets of a run, and `live_runs` of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dimension {
    Rounds,
    Calls,
    CallsPerRound,
    Failures,
    ArgumentBytes,
    ResultBytes,
    Cost,
    WallClock,
    LiveRuns,
}

impl Dimension {
    pub const ALL: &'static [Dimension] = &[
        Dimension::Rounds,
        Dimension::Calls,
        Dimension::CallsPerRound,
        Dimension::Failures,
        Dimension::ArgumentBytes,
        Dimension::ResultBytes,
        Dimension::Cost,
        Dimension::WallClock,
        Dimension::LiveRuns,
    ];
    pub fn as_str(self) -> &'static str {
        match self {
            Dimension::Rounds => "rounds",
            Dimension::Calls => "calls",
            Dimension::CallsPerRound => "calls_per_round",
            Dimension::Failures => "failures",
            Dimension::ArgumentBytes => "argument_bytes",
            Dimension::ResultBytes => "result_bytes",
            Dimension::Cost => "cost",
            Dimension::WallClock => "wall_clock",
            Dimension::LiveRuns => "live_runs",
        }
    }
}

/// Whose limit it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LimitedBy {
    Gateway,
    Tool,
}

impl LimitedBy {
    pub fn as_str(self) -> &'static str {
        match self {
            LimitedBy::Gateway => "gateway",
            LimitedBy::Tool => "tool",
        }
    }
}

/// One thing wrong with arguments: where (JSON Pointer), what was wanted, what came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub at: String,
    pub expected: Cow<'static, str>,
    pub got: Cow<'static, str>,
}

/// Faults that one refusal names; a model mends the first ones first.
pub const MAX_FAULTS: usize = 16;
/// Characters of a place that a refusal tells: an agent's own member names may be as long as its text.
const MAX_PLACE: usize = 200;

/// What a refusal carries beside its words; closed, so that rendering matches it whole.
#[derive(Debug, Clone)]
pub enum Detail {
    None,
    Faults(Vec<Fault>),
    /// Tools this agent may use, nearest name first.
    Tools(Vec<ToolName>),
    Budget {
        dimension: Dimension,
        used: u64,
        limit: u64,
    },
    Limited {
        by: LimitedBy,
        rate: Option<Rate>,
    },
    Circuit {
        since: Instant,
        isolated: bool,
    },
    Fuse {
        times: u32,
    },
    Operation(OperationId),
    /// `left`: how long it stands, where it waits or may be used.
    Approval {
        id: ApprovalId,
        left: Option<Duration>,
    },
    /// Pointers of the arguments that differ from the operation's first ones; `executed` when another agent's
    /// finished operation stands in the way (`write.scope: global`).
    Changed {
        pointers: Vec<String>,
        executed: bool,
    },
    Size {
        is: u64,
        limit: u64,
    },
}

/// Ended, and we know how.
#[derive(Debug, Clone)]
pub struct Failed {
    pub code: FailCode,
    pub class: Class,
    pub delivery: Delivery,
    pub health: Verdict,
    pub error_class: ErrorClass,
    /// One sentence for the model; never empty, never a stack trace.
    pub message: String,
    pub evidence: Option<Evidence>,
    pub status: Option<u16>,
    pub timed_out_by: Option<TimedOutBy>,
    pub retry_after: Option<Duration>,
    /// What the tool itself said, where that is to reach the agent unchanged (an MCP result with `isError`).
    pub answer: Option<Content>,
    /// The head of that answer, where it goes to an HTTP client as the tool sent it.
    pub head: Option<Box<Head>>,
    /// What an agent would have to declare for the tool to work, in the server's words (`requiredCapabilities`, -32021).
    pub requires: Option<Box<Value>>,
    /// Sets the tool's cooldown: 429, or 503 with `Retry-After`.
    pub cooldown: bool,
    /// The attempt provably never ran at the tool (zero bytes written): a read may be resent once, transparently.
    pub never_ran: bool,
}

impl Failed {
    /// A failure with the axes given and everything else empty.
    pub fn new(
        code: FailCode,
        class: Class,
        delivery: Delivery,
        health: Verdict,
        message: impl Into<String>,
    ) -> Self {
        Self {
            code,
            class,
            delivery,
            health,
            error_class: ErrorClass::Protocol,
            message: message.into(),
            evidence: None,
            status: None,
            timed_out_by: None,
            retry_after: None,
            answer: None,
            head: None,
            requires: None,
            cooldown: false,
            never_ran: false,
        }
    }

    /// A fault of ours: bad for nobody's health, told as it is.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(
            FailCode::Internal,
            Class::Permanent,
            Delivery::Unknown,
            Verdict::Neutral,
            message,
        )
    }
}

/// A write that may have happened.
#[derive(Debug, Clone)]
pub struct Unknown {
    pub key: IdempotencyKey,
    /// Short name of the operation, shown to people and models.
    pub operation: OperationId,
    /// Of the attempt it came from (a 408 is neutral).
    pub health: Verdict,
    /// What ended the waiting, in one sentence.
    pub message: String,
}

impl From<Denied> for CallError {
    fn from(denied: Denied) -> Self {
        CallError::Denied(denied)
    }
}
impl From<Failed> for CallError {
    fn from(failed: Failed) -> Self {
        CallError::Failed(failed)
    }
}
impl From<Unknown> for CallError {
    fn from(unknown: Unknown) -> Self {
        CallError::Unknown(unknown)
    }
}

impl CallError {
    /// The code's name, as answers, labels and records spell it.
    pub fn code(&self) -> &'static str {
        match self {
            CallError::Denied(denied) => denied.code.as_str(),
            CallError::Failed(failed) => failed.code.as_str(),
            CallError::Unknown(_) => super::code::OUTCOME_UNKNOWN,
        }
    }
}
