//! Memory of writes: at most once per operation, whatever asks again. Held in this process; never lets a write that
//! may have happened run again, and never forgets one.

mod book;
mod entry;
mod recent;
mod ticket;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::call::operation::Operation;
use crate::call::{
    AgentId, Arguments, CallError, CallId, Denied, Evidence, Failed, IdempotencyKey, RunId,
    ToolName, ToolResult,
};
use book::Book;
pub use ticket::{Join, Joined, Ticket};

/// Entries kept at once, of whatever state; past it new operations are refused, none is forgotten for them.
pub const MAX_ENTRIES: usize = 250_000;
/// What `replay` asks about.
#[derive(Debug, Clone)]
pub struct Intent {
    pub operation: Operation,
    pub tool: ToolName,
    pub agent: AgentId,
    pub run: RunId,
    pub call: CallId,
    pub arguments: Arguments,
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
    Replay(Result<ToolResult, CallError>),
    /// In flight: wait on it, up to the caller's own deadline.
    InProgress(Join),
    /// Unknown: `review_required`, whatever the call id. Also `idempotency_conflict`, identical refused,
    /// ledger full (`ledger_unavailable`).
    Refused(Denied),
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
pub struct Ledger {
    book: Arc<Book>,
}

impl Ledger {
    pub fn in_memory() -> Arc<Self> {
        Self::bounded(MAX_ENTRIES, recent::MAX_RESULT_BYTES)
    }

    fn bounded(max_entries: usize, result_bytes: u64) -> Arc<Self> {
        Arc::new(Self { book: Arc::new(Book::new(max_entries, result_bytes)) })
    }

    /// One atomic claim of the identity, before connect. In memory it neither waits nor fails.
    pub async fn begin(&self, intent: Intent) -> Result<Begin, LedgerError> {
        Ok(self.book.begin(&intent, Instant::now()))
    }

    /// At the send gate: the intent is on record from here on. `Err`: the claim is no longer this ticket's.
    pub async fn intend(&self, ticket: &Ticket) -> Result<(), LedgerError> {
        self.book.intend(ticket)
    }

    /// On record before the answer. Joiners are told.
    pub async fn finish(&self, ticket: Ticket, end: End) -> Result<(), LedgerError> {
        self.book.finish(&ticket, &end)
    }

    /// unknown → executed | not_executed, nothing else. True when it changed an entry.
    #[expect(clippy::needless_pass_by_value, reason = "an end is told once")]
    pub fn late(&self, key: &IdempotencyKey, end: End) -> bool {
        self.book.late(*key, &end)
    }

    /// (tool, open reviews) and when the oldest began.
    pub fn reviews_open(&self) -> (Vec<(ToolName, u64)>, Option<SystemTime>) {
        self.book.reviews_open()
    }

    /// False: new operations are refused, because every place is taken.
    pub fn writable(&self) -> bool {
        self.book.has_place()
    }

    /// Forgets finished entries past their `ttl`; called on a timer.
    pub fn sweep(&self) {
        self.book.sweep(Instant::now());
    }
}
