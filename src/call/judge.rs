//! Pure judgements over outcomes: may it be retried, what does it say of health, did it run.

use super::Effect;
use super::code::{Executed, FailCode};
use super::ended::{Came, Ended};
use super::outcome::{
    CallError, Class, Delivery, Denied, Detail, Failed, Outcome, ToolResult, Verdict,
};

/// Only a read whose failure was transient; the further questions are `retry`'s.
pub fn retryable(effect: Effect, failed: &Failed) -> bool {
    effect == Effect::Read && failed.class == Class::Transient
}

/// What the breaker hears. Our own refusals say nothing about the tool.
pub fn verdict(ended: &Ended) -> Verdict {
    match ended {
        Ok(Came::Answer) => Verdict::Good,
        // Neither an answer nor a failure: the tool has not said yet how it is.
        Ok(Came::Question) => Verdict::Neutral,
        Err(CallError::Denied(_)) => Verdict::Neutral,
        Err(CallError::Failed(failed)) => failed.health,
        Err(CallError::Unknown(unknown)) => unknown.health,
    }
}

/// What is known of the effect of a call that ended so.
pub fn executed_of(outcome: &Outcome) -> Executed {
    match outcome {
        Ok(ToolResult { notes, .. }) => match notes.asks {
            Some(asks) if asks.after_acting => Executed::Unknown,
            Some(_) => Executed::No,
            None => Executed::Yes,
        },
        Err(error) => executed(error),
    }
}

/// What an answer says under `executed`.
pub fn executed(error: &CallError) -> Executed {
    match error {
        // This call sent nothing; of its operation more is known.
        CallError::Denied(Denied { known: Some(known), .. }) => known.executed(),
        // This call sent nothing, but the operation it names was done.
        CallError::Denied(Denied { detail: Detail::Changed { executed: true, .. }, .. }) => {
            Executed::Yes
        }
        CallError::Denied(denied) => denied.code.executed(),
        CallError::Unknown(_) => Executed::Unknown,
        CallError::Failed(failed) => match failed.delivery {
            Delivery::NotSent | Delivery::Refused => Executed::No,
            Delivery::Done => Executed::Yes,
            Delivery::Unknown => Executed::Unknown,
        },
    }
}

/// Which ends the run's repeat fuse counts as failed.
pub fn fuse_counts(error: &CallError) -> bool {
    use super::code::DenyCode as D;
    match error {
        CallError::Failed(failed) => failed.code != FailCode::RateLimited,
        CallError::Unknown(_) => true,
        CallError::Denied(denied) => {
            matches!(
                denied.code,
                D::UnknownTool | D::ToolNotAllowed | D::InvalidArguments | D::CircuitOpen
            )
        }
    }
}

/// Which ends the run's budget of failures counts.
pub fn budget_counts(error: &CallError) -> bool {
    use super::code::DenyCode as D;
    match error {
        CallError::Failed(_) | CallError::Unknown(_) => true,
        CallError::Denied(denied) => {
            matches!(
                denied.code,
                D::UnknownTool | D::ToolNotAllowed | D::InvalidArguments | D::ArgumentsTooLarge
            )
        }
    }
}
