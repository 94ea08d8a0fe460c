//! A result that was lost and is fetched after all: the write stays executed, and answers with it from then on.

use std::sync::Arc;

use super::book::Book;
use super::entry::{Entry, State, Stored};
use super::rows;
use crate::call::{Digest, IdempotencyKey, ToolResult};
use crate::store::{Change, Which};

/// An executed occurrence without its result.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lost {
    which: Which,
    pub(super) occurrence: u32,
    pub(super) digest: Digest,
}

fn is_lost(entry: &Entry) -> bool {
    matches!(entry.state, State::Executed { stored: Stored::Lost, .. })
}

impl Book {
    /// The newest occurrence of an operation, where it was executed and its result is lost.
    pub(super) fn lost(&self, key: IdempotencyKey) -> Option<Lost> {
        let shard = self.shard(key);
        let entry = shard.get(&key)?.last().filter(|entry| is_lost(entry))?;
        let which = rows::which(key, entry);
        Some(Lost { which, occurrence: entry.occurrence, digest: entry.digest })
    }

    /// Keeps it for replays, once it is on record. Where it cannot be, it stays lost to everybody but the caller.
    pub(super) async fn found(self: &Arc<Self>, lost: Lost, result: &ToolResult) {
        let Lost { which, .. } = lost;
        let change = Change::Found { which, result: Box::new(result.clone()) };
        if let Err(error) = self.store.commit(change).await {
            tracing::warn!(%error, operation = %which.key.id(), "a fetched result is not on record");
            return;
        }
        let mut shard = self.shard(which.key);
        let found = shard.get_mut(&which.key).and_then(|history| {
            history.iter_mut().find(|entry| rows::which(which.key, entry) == which)
        });
        let Some(entry) = found.filter(|entry| is_lost(entry)) else { return };
        if let State::Executed { stored, .. } = &mut entry.state {
            *stored = Stored::Result;
            self.recent.put(which.key, which.occurrence, result);
        }
    }
}
