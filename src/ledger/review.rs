//! What people see and decide: the entries as views, and the three ways out of unknown that a person has.

use std::fmt;
use std::time::SystemTime;

use super::book::Book;
use super::entry::{Caller, Entry, State};
use crate::call::{
    AgentId, Arguments, CallId, IdempotencyKey, OperationId, RunId, ToolName, ToolResult,
};
use crate::store::Resolved;

/// What a person found out about an unknown write.
#[derive(Debug, Clone)]
pub enum Resolution {
    /// It happened; with a result, where one can be told. From then on it is replayed.
    Happened(Option<ToolResult>),
    /// It did not: the operation may be asked for again, under any call id.
    DidNotHappen,
    /// It happened and was undone: another call may do it anew.
    Compensated,
}

impl Resolution {
    /// The word in answers, records and metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Resolution::Happened(_) => "happened",
            Resolution::DidNotHappen => "did_not_happen",
            Resolution::Compensated => "compensated",
        }
    }
}

/// Who says so. Kept with the entry.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// Never the identity of the run itself.
    pub who: String,
    pub why: String,
    pub evidence: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    #[error("no such operation")]
    NotFound,
    /// It is in flight, or has an end already.
    #[error("the operation is not waiting for a person")]
    NotUnknown,
    /// It is not as whoever decided saw it.
    #[error("the review has changed since it was read")]
    Changed,
    #[error("the ledger could not record it: {0}")]
    Unavailable(String),
}

/// Where an entry stands, in words of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Claimed,
    Intent,
    Executed,
    NotExecuted,
    Unknown,
    Compensated,
}

impl Standing {
    pub fn as_str(self) -> &'static str {
        match self {
            Standing::Claimed => "claimed",
            Standing::Intent => "intent",
            Standing::Executed => "executed",
            Standing::NotExecuted => "not_executed",
            Standing::Unknown => "unknown",
            Standing::Compensated => "compensated",
        }
    }
}

/// Tells one state of an entry from the next, so that a decision on an older sight of it changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    occurrence: u32,
    claim: u64,
    open: bool,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.open { "open" } else { "settled" };
        write!(f, "{}-{}-{state}", self.occurrence, self.claim)
    }
}

pub(super) fn version(entry: &Entry) -> Version {
    let open = matches!(entry.state, State::Unknown { .. });
    Version { occurrence: entry.occurrence, claim: entry.holder, open }
}

/// How an unknown write became known.
#[derive(Debug, Clone)]
pub struct Settled {
    pub at: SystemTime,
    pub by: Resolved,
}

/// What an entry remembers of its having been unknown.
#[derive(Debug, Clone)]
pub(super) struct Opened {
    pub(super) since: SystemTime,
    pub(super) why: String,
    /// Whose call it was; a person's word frees the operation of its calls.
    pub(super) caller: Option<Caller>,
    pub(super) settled: Option<Settled>,
}

/// One entry, for people. Who may see its arguments is not the ledger's to say.
#[derive(Debug, Clone)]
pub struct EntryView {
    pub operation: OperationId,
    pub occurrence: u32,
    pub tool: ToolName,
    pub agent: AgentId,
    pub standing: Standing,
    pub version: Version,
    /// Of one that is or was unknown: since when.
    pub since: Option<SystemTime>,
    /// Of one that is or was unknown: what ended the waiting.
    pub why: Option<String>,
    /// Of one that was unknown: how it became known.
    pub settled: Option<Settled>,
    /// Whose call was sent.
    pub caller: Option<(RunId, CallId)>,
    /// Where they are still kept.
    pub arguments: Option<Arguments>,
    pub calls: Vec<(RunId, CallId)>,
}

impl EntryView {
    /// It waits for a person.
    pub fn is_open(&self) -> bool {
        self.standing == Standing::Unknown
    }
}

fn view(key: IdempotencyKey, entry: &Entry) -> EntryView {
    let standing = match &entry.state {
        State::Claimed { .. } => Standing::Claimed,
        State::Intent { .. } => Standing::Intent,
        State::Executed { .. } => Standing::Executed,
        State::NotExecuted { .. } => Standing::NotExecuted,
        State::Unknown { .. } => Standing::Unknown,
        State::Compensated { .. } => Standing::Compensated,
    };
    let review = entry.review.as_ref();
    EntryView {
        operation: key.id(),
        occurrence: entry.occurrence,
        tool: entry.tool.clone(),
        agent: entry.agent.clone(),
        standing,
        version: version(entry),
        since: review.map(|review| review.since),
        why: review.map(|review| review.why.clone()),
        settled: review.and_then(|review| review.settled.clone()),
        caller: review.and_then(|review| review.caller.clone()),
        arguments: entry.arguments.clone(),
        calls: entry.calls.clone(),
    }
}

impl Book {
    /// Open reviews, oldest first, at most `most`.
    pub(super) fn reviews(&self, most: usize) -> Vec<EntryView> {
        let mut open = Vec::new();
        self.each(|key, entry| {
            if let State::Unknown { .. } = entry.state {
                open.push(view(key, entry));
            }
        });
        open.sort_by_key(|review| review.since);
        open.truncate(most);
        open
    }

    /// All that wait for a person, and all that did, as long as they are kept.
    pub(super) fn reviewed(&self) -> Vec<EntryView> {
        let mut found = Vec::new();
        self.each(|key, entry| {
            if entry.review.is_some() {
                found.push(view(key, entry));
            }
        });
        found
    }

    /// Every occurrence of an operation, by its short name (`op_…`).
    pub(super) fn find(&self, operation: &str) -> Vec<EntryView> {
        let mut found = Vec::new();
        self.each(|key, entry| {
            if key.id().to_string() == operation {
                found.push(view(key, entry));
            }
        });
        found
    }
}
