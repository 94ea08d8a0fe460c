//! Entries as rows of the store, and back at a start. An intent without an end is unknown from there on.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::End;
use super::entry::{Entry, MAX_FAILURES, State, Stored};
use super::review::{Opened, Settled};
use crate::call::{Evidence, IdempotencyKey, Sending, ToolResult};
use crate::store::{Answer, Resolved, Row, Standing, Which};
use crate::telemetry::record::wall_clock;

pub(super) fn which(key: IdempotencyKey, entry: &Entry) -> Which {
    Which { key, occurrence: entry.occurrence, claim: entry.claim }
}

/// The sending that the entry is about.
pub(super) fn sending(key: IdempotencyKey, entry: &Entry) -> Sending {
    Sending { key, occurrence: entry.occurrence, claim: entry.holder }
}

/// The entry as it stands, under this standing.
pub(super) fn row(key: IdempotencyKey, entry: &Entry, standing: Standing) -> Row {
    Row {
        which: which(key, entry),
        tool: entry.tool.clone(),
        agent: entry.agent.clone(),
        digest: entry.digest,
        arguments: entry.arguments.clone(),
        calls: entry.calls.clone(),
        failures: entry.failures.clone(),
        ttl: entry.ttl,
        changed: wall_clock(),
        standing,
        resolved: None,
        task: entry.task.clone(),
    }
}

/// The entry as it will stand after this end, and the result to keep beside it.
pub(super) fn ended(
    key: IdempotencyKey,
    entry: &Entry,
    end: &End,
    by: Option<&Resolved>,
) -> (Box<Row>, Option<Box<ToolResult>>) {
    let (standing, result) = match end {
        End::Executed(Some(result)) => {
            (Standing::Executed(Answer::Result), Some(Box::new(result.clone())))
        }
        End::Executed(None) => (Standing::Executed(Answer::Lost), None),
        End::ExecutedWithError(failed) => (Standing::Executed(Answer::Error(failed.clone())), None),
        End::NotExecuted(_, evidence) => {
            (Standing::NotExecuted { evidence: evidence.to_string() }, None)
        }
        End::Asked { after_acting: false, .. } => {
            (Standing::NotExecuted { evidence: Evidence::InputRequired.to_string() }, None)
        }
        End::Unknown(failed) | End::Asked { why: failed, after_acting: true, .. } => {
            (Standing::Unknown { why: failed.message.clone() }, None)
        }
    };
    let mut row = row(key, entry, standing);
    if let End::NotExecuted(failed, _) | End::Asked { why: failed, after_acting: false, .. } = end {
        let calls = std::mem::take(&mut row.calls);
        let of = |caller| (caller, entry.digest, failed.clone());
        row.failures.extend(calls.into_iter().map(of));
        let over = row.failures.len().saturating_sub(MAX_FAILURES);
        row.failures.drain(..over);
    }
    row.resolved = by.cloned();
    (Box::new(row), result)
}

/// The entry of a row found at the start. `None`: its time is over.
pub(super) fn entry(row: Row, now: Instant, today: SystemTime) -> Option<Entry> {
    // A clock that was set back makes a row young, never an unknown one old.
    let age = today.duration_since(row.changed).unwrap_or(Duration::ZERO);
    let left = row.ttl.checked_sub(age).filter(|left| !left.is_zero());
    let until = left.map(|left| now + left);
    let state = match row.standing {
        Standing::Intent => {
            State::Unknown { since: row.changed, why: "crash".into(), asked: false }
        }
        // Whoever was asked had a state of a process that is gone.
        Standing::Unknown { why } => State::Unknown { since: row.changed, why, asked: false },
        Standing::Executed(answer) => {
            let stored = match answer {
                Answer::Result => Stored::Result,
                Answer::Lost => Stored::Lost,
                Answer::Error(failed) => Stored::Error(failed),
            };
            State::Executed { until: until?, stored }
        }
        Standing::NotExecuted { .. } => State::NotExecuted { until: until? },
        Standing::Compensated => State::Compensated { until: until? },
    };
    let unknown = match &state {
        State::Unknown { since, why, .. } => Some((*since, why.clone())),
        State::Claimed { .. }
        | State::Intent { .. }
        | State::Executed { .. }
        | State::NotExecuted { .. }
        | State::Compensated { .. } => None,
    };
    // Of one that is settled the row keeps how, not since when it had been open.
    let settled = row.resolved.map(|by| Settled { at: row.changed, by });
    let (since, why) = unknown.clone().unwrap_or_else(|| (row.changed, String::new()));
    let caller = row.calls.first().cloned();
    let review =
        (unknown.is_some() || settled.is_some()).then_some(Opened { since, why, caller, settled });
    Some(Entry {
        occurrence: row.which.occurrence,
        claim: row.which.claim,
        holder: row.which.claim,
        tool: row.tool,
        agent: row.agent,
        digest: row.digest,
        arguments: row.arguments,
        calls: row.calls,
        failures: row.failures,
        by_arguments: false,
        review,
        told: false,
        state,
        ttl: row.ttl,
        task: row.task,
    })
}
