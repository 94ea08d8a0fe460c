//! Which sendings are still under way: as long as one is, a tool that says "it did not happen" may only be slow.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::call::Sending;

/// Claims whose exchange with the tool has not ended. As many as there are places for writes.
#[derive(Debug, Clone, Default)]
pub(super) struct Exchanges(Arc<Mutex<HashSet<u64>>>);

/// One exchange under way; over when the last holder drops it.
#[derive(Debug)]
pub(super) struct UnderWay {
    among: Exchanges,
    claim: u64,
}

impl Exchanges {
    pub(super) fn begin(&self, sending: &Sending) -> UnderWay {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(sending.claim);
        UnderWay { among: self.clone(), claim: sending.claim }
    }

    pub(super) fn under_way(&self, sending: &Sending) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&sending.claim)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.among.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.claim);
    }
}
