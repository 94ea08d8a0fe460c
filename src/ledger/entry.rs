//! One occurrence of an operation: its states, and what a call that means it again is told. Pure: time is an
//! argument, nothing here waits.

use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;

use super::review::Opened;
use super::{End, Intent};
use crate::call::code::{DenyCode, FailCode};
use crate::call::operation::changed;
use crate::call::{
    AgentId, Arguments, CallError, CallId, Class, Delivery, Denied, Detail, Digest, Failed,
    IdempotencyKey, OperationId, RunId, Source, TaskId, ToolName, ToolResult, Unknown, Verdict,
};

/// Calls that share one occurrence; past it a further one is told to ask again later.
pub(super) const MAX_CALLS: usize = 256;
/// Failures of attempts that provably did nothing, kept for the calls that met them; the oldest goes first.
pub(super) const MAX_FAILURES: usize = 64;
/// Finished occurrences kept of one operation without a fingerprint that is meant again and again. All but the last
/// are executed; a call of one that is forgotten would have to be sent again this many occurrences later.
pub(super) const MAX_OCCURRENCES: usize = 1024;
/// Changed members that a refusal names.
const MAX_CHANGED: usize = 8;
/// When a joiner whose time is over may ask again.
const IN_PROGRESS_AGAIN: Duration = Duration::from_secs(1);

/// Whose call: ids of calls are unique within their run only.
pub(super) type Caller = (RunId, CallId);
/// What joiners hear; `None` while it runs. A sender dropped without a word: nothing was sent.
pub(super) type Ended = Option<Result<ToolResult, CallError>>;

/// The answer of a write that ended.
#[derive(Debug, Clone)]
pub(super) enum Stored {
    /// In `recent`, if it is still there.
    Result,
    Lost,
    Error(Failed),
}

/// What the entry is again when nothing comes of this claim.
#[derive(Debug, Clone)]
pub(super) enum Before {
    /// An earlier attempt had provably done nothing.
    NotExecuted { until: Instant, claim: u64 },
    /// The tool asked for input, and may have acted before. Its row stays unknown under the same claim; `calls` of
    /// the entry were there.
    Asked { since: SystemTime, why: String, calls: usize },
}

#[derive(Debug)]
pub(super) enum State {
    /// A caller has the right to send; nothing is sent.
    Claimed {
        tell: watch::Sender<Ended>,
        before: Option<Before>,
    },
    /// The intent is, or is about to be, on record; the send gate may be open.
    Intent {
        tell: watch::Sender<Ended>,
        before: Option<Before>,
    },
    /// Answers until then.
    Executed {
        until: Instant,
        stored: Stored,
    },
    NotExecuted {
        until: Instant,
    },
    /// May have happened. Left by a late answer or a person only; time, leases and full memory never end it.
    Unknown {
        since: SystemTime,
        why: String,
        /// Its tool waits for input: who goes on with that very question may.
        asked: bool,
    },
    /// It happened, and a person undid it.
    Compensated {
        until: Instant,
    },
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) occurrence: u32,
    /// Names its row in the store.
    pub(super) claim: u64,
    /// The newest right to send it; a ticket with another one decides nothing.
    pub(super) holder: u64,
    pub(super) tool: ToolName,
    pub(super) agent: AgentId,
    pub(super) digest: Digest,
    pub(super) arguments: Option<Arguments>,
    /// All arguments together are its name: they cannot differ under it.
    pub(super) by_arguments: bool,
    pub(super) calls: Vec<Caller>,
    /// Which calls of `agent` asked with which arguments, and what became of it.
    pub(super) failures: Vec<(Caller, Digest, Failed)>,
    /// Since it was unknown; gone when the occurrence is claimed anew.
    pub(super) review: Option<Opened>,
    /// It was unknown, and its agent has been told since how it ended. Of this process: after a restart it is told once
    /// more.
    pub(super) told: bool,
    pub(super) state: State,
    pub(super) ttl: Duration,
    /// What its tool calls the task that this sending was answered with.
    pub(super) task: Option<TaskId>,
}

/// What a call that means an operation may do.
#[derive(Debug)]
pub(super) enum Decision {
    /// Send, as this occurrence.
    Claim {
        occurrence: u32,
        identical: bool,
    },
    /// Wait for the entry of this occurrence.
    Join {
        occurrence: u32,
    },
    /// The entry of this occurrence has the answer.
    Answer {
        occurrence: u32,
    },
    Failure(Failed),
    Refuse(Denied),
}

impl Entry {
    pub(super) fn expired(&self, now: Instant) -> bool {
        match &self.state {
            State::Executed { until, .. }
            | State::NotExecuted { until }
            | State::Compensated { until } => now >= *until,
            State::Claimed { .. } | State::Intent { .. } | State::Unknown { .. } => false,
        }
    }

    /// True when the ticket with this claim may still decide.
    pub(super) fn held_by(&self, ticket: u64) -> bool {
        match &self.state {
            State::Claimed { .. } | State::Intent { .. } => self.holder == ticket,
            State::Executed { .. }
            | State::NotExecuted { .. }
            | State::Compensated { .. }
            | State::Unknown { .. } => false,
        }
    }

    /// What stands in the way of other arguments under the same name.
    fn conflict(&self, intent: &Intent) -> Denied {
        let pointers = self.changed(intent);
        let message = match pointers.is_empty() {
            true => {
                "this operation is known with other arguments, and those stand; nothing was sent"
                    .to_owned()
            }
            false => format!(
                "this operation is known with other arguments, and those stand ({} differ); nothing was sent",
                pointers.join(", ")
            ),
        };
        Denied::new(DenyCode::IdempotencyConflict, message)
            .detail(Detail::Changed { pointers, executed: false })
    }

    fn changed(&self, intent: &Intent) -> Vec<String> {
        let first = self.arguments.as_ref();
        first.map_or_else(Vec::new, |first| {
            changed(first.tree(), intent.arguments.tree(), MAX_CHANGED)
        })
    }

    fn review(&self, intent: &Intent) -> Denied {
        let id = intent.operation.key.id();
        let mut message = format!(
            "`{}` may already have happened (operation {id}); it was not sent again, and a person \
             must check first",
            self.tool
        );
        if self.digest != intent.operation.arguments {
            let pointers = self.changed(intent);
            message.push_str(". This call names the same operation with other arguments");
            if !pointers.is_empty() {
                message.push_str(&format!(": {} differ", pointers.join(", ")));
            }
        }
        Denied::new(DenyCode::ReviewRequired, message).detail(Detail::Operation(id))
    }

    fn join(&self, intent: &Intent) -> Decision {
        if self.agent != intent.agent {
            // The answer of another agent's call is not this agent's to see.
            return Decision::Refuse(in_progress(intent.operation.key.id()));
        }
        if self.digest != intent.operation.arguments {
            return Decision::Refuse(self.conflict(intent));
        }
        let who = (intent.run.clone(), intent.call.clone());
        if self.calls.len() >= MAX_CALLS && !self.calls.contains(&who) {
            return Decision::Refuse(in_progress(intent.operation.key.id()));
        }
        Decision::Join { occurrence: self.occurrence }
    }

    /// Its agent knows only that it may have happened: asking again is the question how it ended, and no new order.
    fn is_untold(&self, intent: &Intent) -> bool {
        let settled = self.review.as_ref().is_some_and(|review| review.settled.is_some());
        settled && !self.told && self.digest == intent.operation.arguments
    }

    fn again_after_executed(&self, intent: &Intent) -> Decision {
        if self.agent != intent.agent {
            let message = "another agent has already done this operation; nothing was sent";
            return Decision::Refuse(
                Denied::new(DenyCode::IdempotencyConflict, message)
                    .detail(Detail::Changed { pointers: Vec::new(), executed: true }),
            );
        }
        if !intent.operation.replays && self.is_untold(intent) {
            return Decision::Answer { occurrence: self.occurrence };
        }
        if intent.operation.replays {
            return match self.digest == intent.operation.arguments {
                true => Decision::Answer { occurrence: self.occurrence },
                false => Decision::Refuse(self.conflict(intent)),
            };
        }
        if intent.refuse_identical {
            let id = intent.operation.key.id();
            let message = format!(
                "an identical `{}` was done before (operation {id}) and this tool refuses to repeat \
                 one; this call was not sent",
                self.tool
            );
            return Decision::Refuse(
                Denied::new(DenyCode::IdempotencyConflict, message).detail(Detail::Operation(id)),
            );
        }
        Decision::Claim { occurrence: self.occurrence.saturating_add(1), identical: true }
    }
}

/// A call that goes on with an occurrence is that occurrence, and never another one.
fn goes_on(history: &[Entry], intent: &Intent, occurrence: u32) -> Decision {
    let found = history.iter().find(|entry| entry.occurrence == occurrence);
    let (Some(entry), Some(current)) = (found, history.last()) else {
        return Decision::Refuse(forgotten());
    };
    let same = entry.agent == intent.agent && entry.digest == intent.operation.arguments;
    match &entry.state {
        State::Claimed { .. } | State::Intent { .. } => entry.join(intent),
        State::Executed { .. } | State::Compensated { .. } => match same {
            true => Decision::Answer { occurrence },
            false if entry.agent == intent.agent => Decision::Refuse(entry.conflict(intent)),
            false => entry.again_after_executed(intent),
        },
        State::Unknown { asked: true, .. } if same => {
            Decision::Claim { occurrence, identical: false }
        }
        State::Unknown { .. } => Decision::Refuse(entry.review(intent)),
        State::NotExecuted { .. } if current.occurrence == occurrence => {
            Decision::Claim { occurrence, identical: false }
        }
        State::NotExecuted { .. } => Decision::Refuse(forgotten()),
    }
}

/// Nothing is known of what a call goes on with: sent, it might happen twice.
fn forgotten() -> Denied {
    let message =
        "the call that this one goes on with is no longer known; nothing was sent, begin it anew";
    Denied::new(DenyCode::InvalidRequest, message)
}

/// The one place that says what the same operation again means. `history`: its live occurrences, the current last.
pub(super) fn decide(history: &[Entry], intent: &Intent) -> Decision {
    if let Some(occurrence) = intent.continues {
        return goes_on(history, intent, occurrence);
    }
    let who = (intent.run.clone(), intent.call.clone());
    // The same call is answered as it was, even when the operation was meant again since.
    // Ids of calls are their agent's own words: those of another agent answer nobody (`write.scope: global`).
    let own = history
        .iter()
        .rev()
        .find(|entry| entry.agent == intent.agent && entry.calls.contains(&who));
    if let Some(own) = own {
        return match &own.state {
            State::Claimed { .. } | State::Intent { .. } => own.join(intent),
            State::Unknown { .. } => Decision::Refuse(own.review(intent)),
            State::Executed { .. } | State::NotExecuted { .. } | State::Compensated { .. } => {
                match own.digest == intent.operation.arguments {
                    true => Decision::Answer { occurrence: own.occurrence },
                    false => Decision::Refuse(own.conflict(intent)),
                }
            }
        };
    }
    let Some(current) = history.last() else {
        return Decision::Claim { occurrence: 0, identical: false };
    };
    // The newest, and of these very arguments: what did not happen binds nobody to it.
    let met = |(caller, digest, _): &&(Caller, Digest, Failed)| {
        *caller == who && *digest == intent.operation.arguments
    };
    let failures = (current.agent == intent.agent).then_some(current.failures.as_slice());
    let failure = failures.into_iter().flatten().rev().find(met).map(|(_, _, why)| why);
    match (&current.state, failure) {
        (State::Claimed { .. } | State::Intent { .. }, _) => current.join(intent),
        (State::Unknown { .. }, _) => Decision::Refuse(current.review(intent)),
        (State::NotExecuted { .. }, Some(why)) => Decision::Failure(why.clone()),
        // What did not happen binds nobody: neither its arguments nor its agent.
        (State::NotExecuted { .. }, None) => {
            Decision::Claim { occurrence: current.occurrence, identical: false }
        }
        (State::Executed { .. }, Some(why)) if !intent.operation.replays => {
            Decision::Failure(why.clone())
        }
        (State::Compensated { .. }, Some(_) | None) => {
            Decision::Claim { occurrence: current.occurrence.saturating_add(1), identical: false }
        }
        (State::Executed { .. }, Some(_) | None) => current.again_after_executed(intent),
    }
}

pub(super) fn in_progress(id: OperationId) -> Denied {
    Denied::new(DenyCode::InProgress, "the same operation is still running")
        .retry_after(IN_PROGRESS_AGAIN)
        .detail(Detail::Operation(id))
}

/// What those who wait are told.
pub(super) fn told(key: IdempotencyKey, end: &End) -> Result<ToolResult, CallError> {
    match end {
        End::Executed(Some(result)) => Ok(from_ledger(result.clone())),
        End::Asked { result, .. } => Ok((**result).clone()),
        End::Executed(None) => Err(lost().into()),
        End::ExecutedWithError(failed) | End::NotExecuted(failed, _) => Err(failed.clone().into()),
        End::Unknown(failed) => Err(Unknown {
            key,
            operation: key.id(),
            health: Verdict::Neutral,
            message: failed.message.clone(),
        }
        .into()),
    }
}

pub(super) fn from_ledger(mut result: ToolResult) -> ToolResult {
    result.source = Source::Ledger;
    result
}

/// It happened and was undone: the call that did it is not sent again, another one may do it anew.
pub(super) fn compensated() -> Failed {
    Failed::new(
        FailCode::ResultLost,
        Class::Permanent,
        Delivery::Done,
        Verdict::Neutral,
        "the operation was executed, and a person has undone it since",
    )
}

/// Executed, and the result is gone.
pub(super) fn lost() -> Failed {
    Failed::new(
        FailCode::ResultLost,
        Class::Permanent,
        Delivery::Done,
        Verdict::Neutral,
        "the operation was executed, but its result is no longer kept",
    )
}
