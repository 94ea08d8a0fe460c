//! What one layer hands to a layer further in, past layers that must not know of it.
//!
//! `replay` claims an operation and `journal` acts on the claim; the gates between them see only a sealed parcel.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

use super::operation::IdempotencyKey;
use super::task::TaskKeeper;

/// A parcel that can be opened once. Dropped unopened with its call, its content is dropped too: a claim that no
/// layer acted on is free again.
#[derive(Clone)]
pub struct Handoff(Arc<Mutex<Option<Box<dyn Any + Send>>>>);

impl fmt::Debug for Handoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handoff")
    }
}

impl Handoff {
    pub fn new<T: Any + Send>(content: T) -> Self {
        Self(Arc::new(Mutex::new(Some(Box::new(content)))))
    }

    /// The content, to the first who asks for it by its type.
    pub fn take<T: Any + Send>(&self) -> Option<T> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match slot.take()?.downcast::<T>() {
            Ok(content) => Some(*content),
            Err(other) => {
                *slot = Some(other);
                None
            }
        }
    }
}

/// One sending of a write. An operation that was freed may be sent anew under the same key, so what became of a
/// sending is told of that sending alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sending {
    pub key: IdempotencyKey,
    pub occurrence: u32,
    /// The ledger's number of the right to send it, never given twice.
    pub claim: u64,
}

/// Stamped by `journal`: which entry of the ledger a late answer of this call belongs to.
#[derive(Clone)]
pub struct EntryOf {
    pub sending: Sending,
    /// Cancelled once the entry has its first end on record: a late answer is told only after it, because it may
    /// change nothing but an entry that is already unknown.
    pub ended: CancellationToken,
    /// Held as long as the exchange with the tool is under way: by whoever carries it, and by nobody who only knows of it.
    pub under_way: Arc<dyn Any + Send + Sync>,
    /// Keeps the handle of a task that the tool answers with.
    pub task: TaskKeeper,
}

impl fmt::Debug for EntryOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EntryOf").field("sending", &self.sending).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parcel_opens_once_and_only_for_its_type() {
        let parcel = Handoff::new(7_u32);
        assert_eq!(parcel.take::<String>(), None);
        assert_eq!(parcel.clone().take::<u32>(), Some(7));
        assert_eq!(parcel.take::<u32>(), None);
    }
}
