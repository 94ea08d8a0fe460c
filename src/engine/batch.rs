//! Who runs when: neighbouring reads at once, a write after all that stands before it and before all that stands
//! after it. A write that may have happened stops what follows.

use super::asking::Asking;
use super::together::together;
use super::{Answer, draining};
use crate::call::batch::Paired;
use crate::call::code::DenyCode;
use crate::call::{CallError, Delivery, Denied, Outcome};
use crate::run::answers::Kept;

/// One answer a call, in their order.
pub(super) async fn run(asking: &Asking, calls: Vec<Paired>) -> Vec<Answer> {
    let parallel = asking.routes.snapshot.limits.batch_parallel;
    let mut answers = Vec::with_capacity(calls.len());
    let mut calls = calls.into_iter().peekable();
    let mut stopped = false;
    while let Some(first) = calls.next() {
        if stopped {
            answers.push(asking.unsent(first, skipped()));
        } else if asking.writes(&first) {
            let answer = one(asking, first).await;
            stopped = may_have_happened(&answer.outcome);
            answers.push(answer);
        } else {
            let mut reads = vec![one(asking, first)];
            while let Some(read) = calls.next_if(|call| !asking.writes(call)) {
                reads.push(one(asking, read));
            }
            answers.extend(together(reads, parallel).await);
        }
    }
    answers
}

/// Asked when its turn comes: a gateway on its way out starts nothing more.
async fn one(asking: &Asking, call: Paired) -> Answer {
    if asking.draining.is_cancelled() {
        return asking.unsent(call, draining());
    }
    match asking.run.answered_call(&call.id) {
        // The same call in an earlier message of the run: its result stands.
        Some(kept) => answer(kept),
        None => asking.send(call, None).await,
    }
}

pub(super) fn answer(kept: Kept) -> Answer {
    let Kept { id, tool, outcome, attempts, operation, alternatives } = kept;
    Answer { id, tool, outcome, attempts, operation, alternatives }
}

pub(super) fn kept(answer: &Answer) -> Kept {
    let Answer { id, tool, outcome, attempts, operation, alternatives } = answer.clone();
    Kept { id, tool, outcome, attempts, operation, alternatives }
}

fn skipped() -> Denied {
    let message = "not started: an earlier write of this message may have happened, and a person \
                   must check it first";
    Denied::new(DenyCode::SkippedPendingReview, message)
}

/// A write whose end needs a person: unknown now, or unknown since before.
pub(super) fn may_have_happened(write: &Outcome) -> bool {
    match write {
        Ok(_) => false,
        Err(CallError::Unknown(_)) => true,
        Err(CallError::Denied(denied)) => denied.code == DenyCode::ReviewRequired,
        // A fault of ours in the middle of a write.
        Err(CallError::Failed(failed)) => failed.delivery == Delivery::Unknown,
    }
}
