//! What people see and decide: the entries as views, and the three ways out of unknown that a person has.

use std::time::SystemTime;

use super::book::Book;
use super::entry::{Entry, State};
use crate::call::{AgentId, CallId, IdempotencyKey, OperationId, RunId, ToolName, ToolResult};

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

/// One entry, for people. Without its arguments: who may see those is not the ledger's to say.
#[derive(Debug, Clone)]
pub struct EntryView {
    pub operation: OperationId,
    pub occurrence: u32,
    pub tool: ToolName,
    pub agent: AgentId,
    pub standing: Standing,
    /// Of an unknown one: since when.
    pub since: Option<SystemTime>,
    /// Of an unknown one: what ended the waiting.
    pub why: Option<String>,
    pub calls: Vec<(RunId, CallId)>,
}

fn view(key: IdempotencyKey, entry: &Entry) -> EntryView {
    let (standing, unknown) = match &entry.state {
        State::Claimed { .. } => (Standing::Claimed, None),
        State::Intent { .. } => (Standing::Intent, None),
        State::Executed { .. } => (Standing::Executed, None),
        State::NotExecuted { .. } => (Standing::NotExecuted, None),
        State::Unknown { since, why } => (Standing::Unknown, Some((*since, why.clone()))),
        State::Compensated { .. } => (Standing::Compensated, None),
    };
    let (since, why) = unknown.unzip();
    EntryView {
        operation: key.id(),
        occurrence: entry.occurrence,
        tool: entry.tool.clone(),
        agent: entry.agent.clone(),
        standing,
        since,
        why,
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
