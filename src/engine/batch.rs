//! Who runs when: neighbouring reads at once, a write after all that stands before it and before all that stands
//! after it. A write that may have happened stops what follows.

use std::time::Duration;

use bytes::Bytes;

use super::asking::Asking;
use super::together::together;
use super::{Answer, draining};
use crate::call::batch::Paired;
use crate::call::code::{DenyCode, Executed};
use crate::call::{CallError, Delivery, Denied, Digest, Known, Outcome, ToolName, judge};
use crate::run::answers::Kept;

/// When what waits for a write that still runs may be asked for again.
const IN_PROGRESS_AGAIN: Duration = Duration::from_secs(1);

/// One answer a call, in their order.
pub(super) async fn run(asking: &Asking<'_>, calls: Vec<Paired>) -> Vec<Answer> {
    let parallel = asking.routes.snapshot.limits.batch_parallel;
    let mut answers = Vec::with_capacity(calls.len());
    let mut calls = calls.into_iter().peekable();
    let mut stopped = None;
    while let Some(first) = calls.next() {
        if let Some(skipped) = &stopped {
            answers.push(asking.unsent(first, Denied::clone(skipped)));
        } else if asking.writes(&first) {
            let answer = one(asking, first).await;
            stopped = stops(&answer.outcome);
            answers.push(answer);
        } else {
            let mut neighbours = vec![first];
            while let Some(read) = calls.next_if(|call| !asking.writes(call)) {
                neighbours.push(read);
            }
            answers.extend(reads(asking, neighbours, parallel).await);
        }
    }
    answers
}

/// What makes two reads the same to the fuse.
type Same = (ToolName, Digest);
/// A call and its place among its neighbours.
type Placed = (usize, Paired);

/// Side by side; but what asks the same thing twice is asked in turn, so that the run's fuse has heard of the first.
async fn reads(asking: &Asking<'_>, calls: Vec<Paired>, parallel: usize) -> Vec<Answer> {
    let mut groups: Vec<(Same, Vec<Placed>)> = Vec::new();
    for (at, call) in calls.into_iter().enumerate() {
        let volatile = asking.tool(&call).map_or(&[][..], |tool| &tool.volatile);
        let key = (call.tool.clone(), call.payload.digest(volatile));
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, same)) => same.push((at, call)),
            None => groups.push((key, vec![(at, call)])),
        }
    }
    let in_turn = |(_, same): (Same, Vec<Placed>)| async move {
        let mut answers = Vec::with_capacity(same.len());
        for (at, call) in same {
            answers.push((at, one(asking, call).await));
        }
        answers
    };
    let ended = together(groups.into_iter().map(in_turn).collect(), parallel).await;
    let mut answers: Vec<(usize, Answer)> = ended.into_iter().flatten().collect();
    answers.sort_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// Asked when its turn comes: a gateway on its way out starts nothing more.
async fn one(asking: &Asking<'_>, call: Paired) -> Answer {
    if asking.draining() {
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
    let Answer { id, tool, mut outcome, attempts, operation, alternatives } = answer.clone();
    if let Ok(result) = &mut outcome {
        // A copy of its own, without the tool's head, which no message shows: what is kept is what was weighed.
        result.content.bytes = Bytes::copy_from_slice(&result.content.bytes);
        result.head = None;
    }
    Kept { id, tool, outcome, attempts, operation, alternatives }
}

/// What follows a write that has not ended is not started: what it would be built on is not known.
fn stops(write: &Outcome) -> Option<Denied> {
    if may_have_happened(write) {
        let message = "not started: an earlier write of this message may have happened, and a \
                       person must check it first";
        return Some(Denied::new(DenyCode::SkippedPendingReview, message));
    }
    let message = "not started: an earlier write of this message is still running";
    unsettled(write)
        .then(|| Denied::new(DenyCode::SkippedInProgress, message).retry_after(IN_PROGRESS_AGAIN))
}

/// A write whose end needs a person: unknown now, or unknown since before.
pub(super) fn may_have_happened(write: &Outcome) -> bool {
    match write {
        Ok(_) => false,
        Err(CallError::Unknown(_)) => true,
        Err(CallError::Denied(denied)) => {
            denied.code == DenyCode::ReviewRequired || denied.known == Some(Known::Unknown)
        }
        // A fault of ours in the middle of a write.
        Err(CallError::Failed(failed)) => failed.delivery == Delivery::Unknown,
    }
}

/// Nobody can say yet whether it was done: unknown, waiting for a person, or still running.
pub(super) fn unsettled(write: &Outcome) -> bool {
    write.as_ref().is_err_and(|error| judge::executed(error) == Executed::Unknown)
}
