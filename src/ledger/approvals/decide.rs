//! What a person says to a question: once, while it is open, on record before it counts.

use tokio::time::Instant;

use super::table::{State, Table};
use super::{Approvals, Standing};
use crate::call::approval::binding;
use crate::call::{ApprovalId, Arguments};
use crate::ledger::book::lock;
use crate::store::{Approval, Change, Decided, Said, StoreError};
use crate::telemetry::record::wall_clock;

#[derive(Debug, Clone)]
pub enum Decision {
    Approve,
    /// The yes is for these arguments, and for no others. They are sound: who decides has had them judged.
    Edit(Arguments),
    Reject,
}

impl Decision {
    pub fn as_str(&self) -> &'static str {
        match self {
            Decision::Approve => "approve",
            Decision::Edit(_) => "edit",
            Decision::Reject => "reject",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecideError {
    #[error("there is no such approval")]
    NotFound,
    #[error("it is {} already", .0.as_str())]
    NotPending(Standing),
    #[error("these are the arguments that were asked for; approve them")]
    SameArguments,
    /// One question at a time is open about an operation.
    #[error("the call with these arguments has an approval of its own: {0}")]
    Elsewhere(ApprovalId),
    #[error("it could not be recorded: {0}")]
    Unavailable(String),
}

impl Approvals {
    pub async fn decide(
        &self,
        id: &ApprovalId,
        decision: Decision,
        who: &str,
        comment: &str,
    ) -> Result<(), DecideError> {
        let row = self.decided(id, decision, who, comment)?;
        crash_point!("approvals: before a decision");
        let done = self.book.store.commit(Change::Decide(Box::new(row.clone()))).await;
        crash_point!("approvals: after a decision");
        match done {
            Ok(()) => {
                settle(&mut lock(&self.table), row);
                Ok(())
            }
            // Somebody else was first; what they said is there by now, or about to be.
            Err(StoreError::Refused) => Err(DecideError::NotPending(self.standing(id))),
            Err(error @ (StoreError::Full | StoreError::Unavailable(_))) => {
                Err(DecideError::Unavailable(error.to_string()))
            }
        }
    }

    fn standing(&self, id: &ApprovalId) -> Standing {
        self.find(id).map_or(Standing::Used, |view| view.standing)
    }

    /// The row as it will be.
    fn decided(
        &self,
        id: &ApprovalId,
        decision: Decision,
        who: &str,
        comment: &str,
    ) -> Result<Approval, DecideError> {
        let now = Instant::now();
        let mut table = lock(&self.table);
        let kept = table.by_id(id).ok_or(DecideError::NotFound)?;
        kept.pass(now);
        if kept.state != State::Pending {
            return Err(DecideError::NotPending(kept.view(now).standing));
        }
        let mut row = kept.row.clone();
        (row.said, row.edited) = match decision {
            Decision::Approve => (Said::Approved, None),
            Decision::Edit(arguments) => (Said::Approved, Some(arguments)),
            Decision::Reject => (Said::Rejected, None),
        };
        row.changed = wall_clock();
        let (who, comment) = (who.to_owned(), comment.to_owned());
        row.decided = Some(Decided { who, comment, at: row.changed });
        if let Some(edited) = &row.edited {
            row.binding = binding(&row.agent, &row.tool, row.section, edited);
            if row.binding == row.asked_for {
                return Err(DecideError::SameArguments);
            }
            if let Some(other) = table.by_binding(row.binding) {
                other.pass(now);
                if matches!(other.state, State::Pending | State::Approved | State::InUse) {
                    return Err(DecideError::Elsewhere(other.row.id.clone()));
                }
            }
        }
        Ok(row)
    }
}

/// From here on it counts; its time begins anew.
fn settle(table: &mut Table, row: Approval) {
    let (id, binding) = (row.id.clone(), row.binding);
    let Some(kept) = table.by_id(&id) else { return };
    kept.state = match row.said {
        Said::Approved => State::Approved,
        Said::Rejected => State::Rejected,
        Said::Pending | Said::Spent => return,
    };
    kept.until = Instant::now() + row.ttl;
    kept.row = row;
    table.bind(binding, &id);
}
