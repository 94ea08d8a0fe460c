//! A yes in the hands of a call: used up on record before anything is sent, or given back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Approvals;
use crate::call::ApprovalId;
use crate::ledger::LedgerError;
use crate::store::{Change, StoreError};

/// Dropped unused, it may be used by another call of the same operation, as long as its time lasts.
#[derive(Debug)]
pub struct Yes {
    of: Arc<Approvals>,
    id: ApprovalId,
    /// On record as used up, or about to be: nobody uses it after that.
    used: AtomicBool,
}

impl Yes {
    pub(super) fn new(of: Arc<Approvals>, id: ApprovalId) -> Self {
        Self { of, id, used: AtomicBool::new(false) }
    }

    pub fn id(&self) -> &ApprovalId {
        &self.id
    }

    /// Used up once this returns `Ok`, for good; again: nothing. `Err`: nothing may be sent.
    pub async fn spend(&self) -> Result<(), LedgerError> {
        if self.begin() {
            return Ok(());
        }
        crash_point!("approvals: before a yes is used up");
        let done = self.of.book.store.commit(Change::Spend(self.id.clone())).await;
        crash_point!("approvals: after a yes is used up");
        self.end(done.as_ref().err());
        done.map_err(|error| {
            tracing::error!(%error, id = %self.id, "a yes cannot be used up on record");
            LedgerError { doing: "record that an approval is used up" }
        })
    }

    /// To be told before it is used up on record: who is cut off in the middle has used it. True: it is used up already.
    pub(in crate::ledger) fn begin(&self) -> bool {
        self.used.swap(true, Ordering::AcqRel)
    }

    /// What became of it on record.
    pub(in crate::ledger) fn end(&self, error: Option<&StoreError>) {
        match error {
            // It did not happen: another call may try.
            Some(StoreError::Full | StoreError::Unavailable(_)) => {
                self.used.store(false, Ordering::Release);
            }
            // The store knows no such yes.
            None | Some(StoreError::Refused) => {}
        }
    }
}

impl Drop for Yes {
    fn drop(&mut self) {
        match *self.used.get_mut() {
            true => self.of.spent(&self.id),
            false => self.of.give_back(&self.id),
        }
    }
}
