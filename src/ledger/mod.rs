//! Durable memory of writes: at most once per operation, whatever asks again. In memory in this build.
//! STUB of the contract: signatures fixed, bodies the ledger part's.
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::call::operation::Operation;
use crate::call::{
    AgentId, CallId, Denied, Evidence, Failed, IdempotencyKey, OperationId, RunId, ToolName,
    ToolResult,
};

/// What `replay` asks about.
#[derive(Debug, Clone)]
pub struct Intent {
    pub operation: Operation,
    pub tool: ToolName,
    pub agent: AgentId,
    pub run: RunId,
    pub call: CallId,
    pub arguments: crate::call::Arguments,
    /// An identical later write of a tool without fingerprint: refuse instead of a new occurrence.
    pub refuse_identical: bool,
    pub global_scope: bool,
    /// How long a finished entry answers.
    pub ttl: Duration,
}

/// Answer to a claim.
#[derive(Debug)]
pub enum Begin {
    /// Claimed by this caller: only a ticket may send.
    Fresh(Ticket),
    /// Finished: the stored answer (a tool's error answer is one too).
    Replay(Result<ToolResult, crate::call::CallError>),
    /// In flight: wait on it, up to the caller's own deadline.
    InProgress(Join),
    /// Unknown: `review_required`, whatever the call id. Also `idempotency_conflict`, identical refused,
    /// ledger full (`ledger_unavailable`).
    Refused(Denied),
}

/// The right to send one write. Dropped before `intend` = nothing sent, the claim is free again.
/// Dropped after it = the entry is unknown.
#[derive(Debug)]
#[must_use = "a write that is begun must be finished"]
pub struct Ticket {}
impl Ticket {
    pub fn key(&self) -> IdempotencyKey {
        unimplemented!()
    }
    pub fn occurrence(&self) -> u32 {
        unimplemented!()
    }
    /// An identical earlier write had finished.
    pub fn identical_to(&self) -> Option<OperationId> {
        unimplemented!()
    }
}

/// Waits for another caller's write.
#[derive(Debug)]
pub struct Join {}
impl Join {
    /// The shared end; `Err` = `in_progress` after `until`.
    pub async fn wait(
        self,
        _until: tokio::time::Instant,
    ) -> Result<ToolResult, crate::call::CallError> {
        unimplemented!()
    }
}

/// How a write ended, as far as is known.
#[derive(Debug, Clone)]
pub enum End {
    /// The tool's answer; `None` = executed, the result is lost (or not kept).
    Executed(Option<ToolResult>),
    /// The tool answered with an error of its own, and has ended.
    ExecutedWithError(Failed),
    NotExecuted(Failed, Evidence),
    Unknown(Failed),
}

#[derive(Debug, Clone, thiserror::Error)]
#[error("the ledger could not {doing}")]
pub struct LedgerError {
    pub doing: &'static str,
}

#[derive(Debug)]
pub struct Ledger {}
impl Ledger {
    pub fn in_memory() -> Arc<Self> {
        Arc::new(Self {})
    }
    /// One atomic claim of the identity, before connect.
    pub async fn begin(&self, _intent: Intent) -> Result<Begin, LedgerError> {
        unimplemented!()
    }
    /// At the send gate: the intent is durable from here on.
    pub async fn intend(&self, _ticket: &Ticket) -> Result<(), LedgerError> {
        unimplemented!()
    }
    /// Durable before the answer. Joiners are told.
    pub async fn finish(&self, _ticket: Ticket, _end: End) -> Result<(), LedgerError> {
        unimplemented!()
    }
    /// unknown → executed | not_executed, nothing else. True when it changed an entry.
    pub fn late(&self, _key: &IdempotencyKey, _end: End) -> bool {
        unimplemented!()
    }
    /// (tool, open reviews) and when the oldest began.
    pub fn reviews_open(&self) -> (Vec<(ToolName, u64)>, Option<SystemTime>) {
        unimplemented!()
    }
    pub fn writable(&self) -> bool {
        true
    }
    /// Forgets finished entries past their `ttl`; called on a timer.
    pub fn sweep(&self) {}
}
