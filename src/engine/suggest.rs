//! What else could be used: the tools the policy names as alternatives, where this agent may use them and their
//! circuits let calls pass. Only suggested, never called.

use crate::call::code::{DenyCode, FailCode};
use crate::call::{CallError, Delivery, Known, Outcome, ToolName};
use crate::layers::state::State;
use crate::policy::snapshot::{Agent, Tool};

/// Alternatives to a tool that is down, limited or failing; none where the call may have happened, because doing it
/// by another way would do it twice.
pub(super) fn alternatives(
    tool: &Tool,
    agent: &Agent,
    state: &State,
    outcome: &Outcome,
) -> Vec<ToolName> {
    if !helps(outcome) {
        return Vec::new();
    }
    let usable = |name: &&ToolName| agent.allowed.contains_key(*name) && state.is_closed(name);
    tool.alternatives.iter().filter(usable).cloned().collect()
}

fn helps(outcome: &Outcome) -> bool {
    match outcome {
        Ok(_) | Err(CallError::Unknown(_)) => false,
        Err(CallError::Denied(denied)) => {
            let may_be_done = denied.known.is_some_and(|known| known != Known::Identical);
            !may_be_done && denied_for_the_tool(denied.code)
        }
        Err(CallError::Failed(failed)) => {
            failed.delivery != Delivery::Done && failed.code != FailCode::Internal
        }
    }
}

/// Refusals that another tool would not meet.
fn denied_for_the_tool(code: DenyCode) -> bool {
    match code {
        DenyCode::ToolQuarantined
        | DenyCode::RepeatBlocked
        | DenyCode::RateLimited
        | DenyCode::CircuitOpen
        | DenyCode::ConcurrencyLimited => true,
        DenyCode::Unauthenticated
        | DenyCode::RunUnknown
        | DenyCode::InvalidRequest
        | DenyCode::MissingCallId
        | DenyCode::DuplicateCallId
        | DenyCode::CallIdReused
        | DenyCode::UnsupportedCall
        | DenyCode::UnknownTool
        | DenyCode::ToolNotAllowed
        | DenyCode::InvalidArguments
        | DenyCode::ArgumentsTooLarge
        | DenyCode::BudgetExhausted
        | DenyCode::RunInterrupted
        | DenyCode::DeadlineExceeded
        | DenyCode::ApprovalRequired
        | DenyCode::ApprovalEdited
        | DenyCode::ApprovalRejected
        | DenyCode::ApprovalExpired
        | DenyCode::HookDenied
        | DenyCode::DryRun
        | DenyCode::IdempotencyConflict
        | DenyCode::InProgress
        | DenyCode::ReviewRequired
        | DenyCode::SkippedPendingReview
        | DenyCode::SkippedInProgress
        | DenyCode::LedgerUnavailable
        | DenyCode::Draining => false,
    }
}
