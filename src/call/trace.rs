//! The pad a call carries through its stack: what each layer did, for the record and the answer.
//!
//! Written by layers, read once by `observe`. Bounded: a call makes at most eleven attempts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::operation::OperationId;
use super::outcome::{ErrorClass, TimedOutBy};

/// One try at the tool.
#[derive(Debug, Clone)]
pub struct AttemptNote {
    /// From 1.
    pub number: u32,
    /// Back-off waited before it.
    pub delay: Duration,
    pub error_class: ErrorClass,
    pub status: Option<u16>,
    pub timed_out_by: Option<TimedOutBy>,
    pub connect: Option<Duration>,
    pub first_byte: Option<Duration>,
    pub total: Duration,
    /// State of the tool's circuit when the attempt ended.
    pub circuit: &'static str,
}

/// Everything noted about one call.
#[derive(Debug, Clone, Default)]
pub struct Noted {
    pub attempts: Vec<AttemptNote>,
    /// Why there was no further attempt, as the record says it: `retry_stopped_by`.
    pub retry_stopped_by: Option<&'static str>,
    /// The layer or rule that decided, with its place in the policy: `allowlist agents.default.allow :31`.
    pub rule: Option<Arc<str>>,
    pub operation: Option<OperationId>,
    pub occurrence: u32,
    pub circuit: Option<&'static str>,
    /// Attempts whose verdict the circuit has heard on their own (`count_by: attempt`), the first ones.
    pub told_circuit: usize,
    /// Back-off slept before the attempt about to start.
    pub next_delay: Duration,
    /// Whose deadline `call.deadline` is: the run's, the caller's or the loop's; `None` counts as the caller's.
    pub deadline_of: Option<TimedOutBy>,
    /// The send gate of a write has opened: bytes may be at the tool.
    pub sent: bool,
    /// Time slept in back-off, all together.
    pub backoff: Duration,
    /// Time spent at the tool, all attempts together.
    pub at_tool: Duration,
    /// The write was found in the ledger, or sent anew under a known identity: `replay`, `join`, …
    pub ledger: Option<&'static str>,
    /// What a look into the cache came to: `hit`, `joined` (the answer of a call that asked the same at once), `stale`,
    /// `miss`.
    pub cache: Option<&'static str>,
    /// What proves that a write did not happen, as its entry keeps it: `connect_failed`, `status_404`, …
    pub evidence: Option<String>,
    /// Bytes of an answer that went to the agent as they came; nothing of it was kept.
    pub streamed: Option<u64>,
}

/// Cheap to clone: a retried call and its attempts write on one pad.
#[derive(Debug, Clone, Default)]
pub struct Trace(Arc<Mutex<Noted>>);

impl Trace {
    /// The pad, locked for a moment. Never hold it across an await.
    pub fn note(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
