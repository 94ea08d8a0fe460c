//! The right to send one write, and the wait for somebody else's.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use super::book::Book;
use super::entry::{self, Ended};
use crate::call::{CallError, IdempotencyKey, OperationId, Sending, ToolResult};

/// The right to send one write. Dropped before `intend` = nothing sent, the claim is free again.
/// Dropped after it = the entry is unknown.
#[derive(Debug)]
#[must_use = "a write that is begun must be finished"]
pub struct Ticket {
    pub(super) book: Arc<Book>,
    pub(super) key: IdempotencyKey,
    pub(super) occurrence: u32,
    pub(super) claim: u64,
    pub(super) identical: bool,
    pub(super) may_have_happened: bool,
}

impl Ticket {
    pub fn key(&self) -> IdempotencyKey {
        self.key
    }
    pub fn occurrence(&self) -> u32 {
        self.occurrence
    }
    /// What a later word about this very sending is told of.
    pub fn sending(&self) -> Sending {
        Sending { key: self.key, occurrence: self.occurrence, claim: self.claim }
    }
    /// It goes on with a write whose tool may have acted before it asked for input.
    pub fn may_have_happened(&self) -> bool {
        self.may_have_happened
    }
    /// An identical earlier write had finished.
    pub fn identical_to(&self) -> Option<OperationId> {
        self.identical.then(|| self.key.id())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.book.abandon(self);
    }
}

/// Waits for another caller's write.
#[derive(Debug)]
pub struct Join {
    pub(super) heard: watch::Receiver<Ended>,
    pub(super) operation: OperationId,
}

/// What became of the write that was waited for.
#[derive(Debug)]
pub enum Joined {
    Ended(Result<ToolResult, CallError>),
    /// It was given up before anything was sent: the operation may be claimed anew.
    Free,
    /// `until` is over, and it still runs.
    StillRunning,
}

impl Join {
    /// The shared end, or why there is none yet.
    pub async fn end(mut self, until: Instant) -> Joined {
        let ended = self.heard.wait_for(|ended| ended.is_some());
        match tokio::time::timeout_at(until, ended).await {
            Ok(Ok(ended)) => ended.clone().map_or(Joined::Free, Joined::Ended),
            Ok(Err(_)) => Joined::Free,
            Err(_) => Joined::StillRunning,
        }
    }

    /// The shared end; `Err` = `in_progress` after `until`, or at once when the write was given up unsent.
    pub async fn wait(self, until: Instant) -> Result<ToolResult, CallError> {
        let operation = self.operation;
        match self.end(until).await {
            Joined::Ended(end) => end,
            Joined::Free | Joined::StillRunning => Err(entry::in_progress(operation).into()),
        }
    }
}
