//! One assistant message: refused whole, answered as before, out of rounds, or run; then the state of the loop.

use super::asking::Asking;
use super::{Answer, TurnAnswer, TurnAsk, batch};
use crate::call::batch::{Batch, Paired};
use crate::call::code::DenyCode;
use crate::call::turn::LoopState;
use crate::call::{CallError, CallId, Denied, Detail, Digest, Dimension};
use crate::run::answers::KeptTurn;
use crate::run::exhausted;

/// What holds after a message. Several may at once; [`decide`] says which of them is told.
#[derive(Debug, Clone, Copy, Default)]
struct Facts {
    /// The message breaks the protocol.
    broken: bool,
    interrupted: bool,
    /// A write may have happened.
    review: bool,
    /// A call waits for a person.
    approval: bool,
    /// A budget of the run is used up.
    exhausted: bool,
    stalled: bool,
    /// A write is not settled: asked again, the message may have a better answer. No state of its own.
    unsettled: bool,
    /// No calls, an answer, and the agent does not call it unfinished.
    finished: bool,
}

/// The state of the loop: the first that holds, the gravest first.
fn decide(facts: Facts) -> LoopState {
    let Facts { broken, interrupted, review, approval, exhausted, stalled, finished, unsettled: _ } =
        facts;
    let order = [
        (broken, LoopState::ProtocolError),
        (interrupted, LoopState::Interrupted),
        (review, LoopState::ReviewRequired),
        (approval, LoopState::ApprovalRequired),
        (exhausted, LoopState::BudgetExhausted),
        (stalled, LoopState::DecisionStall),
        (finished, LoopState::Done),
    ];
    order.into_iter().find(|(holds, _)| *holds).map_or(LoopState::Continue, |(_, state)| state)
}

impl Facts {
    /// What the end of one call adds. `write`: it went to a tool that writes.
    fn hear(&mut self, answer: &Answer, write: bool) {
        self.review |= write && batch::may_have_happened(&answer.outcome);
        self.unsettled |= write && batch::unsettled(&answer.outcome);
        let Err(CallError::Denied(denied)) = &answer.outcome else { return };
        match &denied.detail {
            // A round that is too wide says nothing of the next one.
            Detail::Budget { dimension: Dimension::CallsPerRound, .. } => {}
            Detail::Budget { .. } => self.exhausted = true,
            Detail::None
            | Detail::Faults(_)
            | Detail::Tools(_)
            | Detail::Limited { .. }
            | Detail::Circuit { .. }
            | Detail::Fuse { .. }
            | Detail::Operation(_)
            | Detail::Approval { .. }
            | Detail::Changed { .. }
            | Detail::Size { .. } => {}
        }
        self.review |= denied.code == DenyCode::SkippedPendingReview;
        self.approval |= denied.code == DenyCode::ApprovalRequired;
    }
}

impl Asking<'_> {
    pub(super) async fn turn(&self, ask: TurnAsk) -> TurnAnswer {
        let TurnAsk { turn, digest, unfinished, .. } = ask;
        if turn.calls.is_empty() {
            return self.without_calls(&turn.text, unfinished);
        }
        if let Some(kept) = self.run.answered(digest) {
            return self.answered(&kept);
        }
        let limit = self.routes.snapshot.limits.batch_calls;
        if turn.calls.len() > limit {
            let message = format!(
                "the message holds {} calls, more than the limit of {limit}; nothing was run",
                turn.calls.len()
            );
            return self.refused(Denied::new(DenyCode::InvalidRequest, message));
        }
        let calls = match Batch::pair(turn.calls) {
            Ok(batch) => batch.into_calls(),
            Err(denied) => return self.refused(denied),
        };
        let ids: Vec<_> = calls.iter().map(|call| (call.id.clone(), content(call))).collect();
        if let Err(id) = self.run.claim_ids(&ids) {
            return self.refused(reused(&id));
        }
        self.with_calls(digest, calls).await
    }

    async fn with_calls(&self, digest: Digest, mut calls: Vec<Paired>) -> TurnAnswer {
        if let Some(denied) = self.run.refusal() {
            return self.interrupted(calls, &denied);
        }
        let asked = calls.len() as u64;
        let writes: Vec<bool> = calls.iter().map(|call| self.writes(call)).collect();
        let (round, answers) = match self.run.take_round(digest, asked) {
            Err(denied) => {
                let answers: Vec<Answer> =
                    calls.into_iter().map(|call| self.unsent(call, denied.clone())).collect();
                (self.run.rounds(), answers)
            }
            Ok(round) => {
                let most = self.run.policy().calls_per_round.unwrap_or(u64::MAX);
                let most_here = usize::try_from(most).unwrap_or(usize::MAX).min(calls.len());
                let beyond = calls.split_off(most_here);
                let mut answers = batch::run(self, calls).await;
                let too_wide = exhausted(Dimension::CallsPerRound, asked, most);
                answers.extend(beyond.into_iter().map(|c| self.unsent(c, too_wide.clone())));
                (round, answers)
            }
        };
        let mut facts = Facts { interrupted: self.run.interrupted(), ..Facts::default() };
        for (answer, write) in answers.iter().zip(writes) {
            facts.hear(answer, write);
        }
        let state = decide(facts);
        self.run.set_state(state);
        let summary = self.run.summary();
        if !facts.review && !facts.approval && !facts.unsettled && !facts.interrupted {
            // Else the message is asked anew when it comes again: by then the write may be settled, the call approved,
            // the run let go on.
            let answers = answers.iter().map(batch::kept).collect();
            self.run.keep(KeptTurn { digest, round, state, summary: summary.clone(), answers });
        }
        TurnAnswer { state, run: self.run.id().clone(), round, answers, summary, error: None }
    }

    /// A person stopped the run before this message came: nothing of it runs, and it takes no round.
    fn interrupted(&self, calls: Vec<Paired>, denied: &Denied) -> TurnAnswer {
        let facts = Facts { interrupted: true, ..Facts::default() };
        let answers = calls.into_iter().map(|call| self.unsent(call, denied.clone())).collect();
        TurnAnswer { answers, ..self.ended(decide(facts), None) }
    }

    fn without_calls(&self, text: &str, unfinished: bool) -> TurnAnswer {
        let empty = text.trim().is_empty();
        if empty && !unfinished {
            let message = "the message has neither text nor calls";
            return self.refused(Denied::new(DenyCode::InvalidRequest, message));
        }
        let state = decide(Facts {
            interrupted: self.run.interrupted(),
            stalled: unfinished && self.run.stalls(text),
            finished: !unfinished,
            ..Facts::default()
        });
        self.run.set_state(state);
        self.ended(state, None)
    }

    /// The same message again: the same answer, and no new round.
    fn answered(&self, kept: &KeptTurn) -> TurnAnswer {
        let interrupted = self.run.interrupted();
        TurnAnswer {
            state: if interrupted { LoopState::Interrupted } else { kept.state },
            run: self.run.id().clone(),
            round: kept.round,
            answers: kept.answers.iter().cloned().map(batch::answer).collect(),
            summary: kept.summary.clone(),
            error: None,
        }
    }

    /// The whole message is refused: nothing ran, no round is taken.
    fn refused(&self, denied: Denied) -> TurnAnswer {
        let state = decide(Facts { broken: true, ..Facts::default() });
        self.run.set_state(state);
        self.ended(state, Some(denied))
    }

    fn ended(&self, state: LoopState, error: Option<Denied>) -> TurnAnswer {
        TurnAnswer {
            state,
            run: self.run.id().clone(),
            round: self.run.rounds(),
            answers: Vec::new(),
            summary: self.run.summary(),
            error,
        }
    }
}

/// What a call asks, whatever its id.
fn content(call: &Paired) -> Digest {
    let payload = call.payload.digest(&[]);
    Digest::of_parts(&[call.tool.as_str().as_bytes(), payload.as_bytes()])
}

fn reused(id: &CallId) -> Denied {
    let message = format!("this run used the call id `{id}` for another call; nothing was run");
    Denied::new(DenyCode::CallIdReused, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_several_states_hold_the_gravest_is_told() {
        let all = Facts {
            broken: true,
            interrupted: true,
            review: true,
            approval: true,
            exhausted: true,
            stalled: true,
            finished: true,
            unsettled: true,
        };
        type Clear = fn(&mut Facts);
        let steps: [(Clear, LoopState); 7] = [
            (|f| f.broken = false, LoopState::ProtocolError),
            (|f| f.interrupted = false, LoopState::Interrupted),
            (|f| f.review = false, LoopState::ReviewRequired),
            (|f| f.approval = false, LoopState::ApprovalRequired),
            (|f| f.exhausted = false, LoopState::BudgetExhausted),
            (|f| f.stalled = false, LoopState::DecisionStall),
            (|f| f.finished = false, LoopState::Done),
        ];
        let mut facts = all;
        for (clear, state) in steps {
            assert_eq!(decide(facts), state);
            clear(&mut facts);
        }
        assert_eq!(decide(facts), LoopState::Continue);
    }
}
