//! What the ledger knows of an operation, without claiming it: for calls that are refused before they get to it.
//! Memory only; the answer is the one that a claim would have met.

use tokio::time::Instant;

use super::Intent;
use super::book::Book;
use super::entry::{self, Decision, Entry, State};
use crate::call::code::DenyCode;
use crate::call::{Denied, Detail, Known};

/// What is known of an operation that was asked for before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peeked {
    pub known: Known,
    /// No other agent has a part in it.
    pub own: bool,
}

impl Book {
    pub(super) fn peek(&self, intent: &Intent, now: Instant) -> Option<Peeked> {
        let key = intent.operation.key;
        let mut shard = self.shard(key);
        let history = shard.get_mut(&key)?;
        self.forget_expired(key, history, now);
        let known = match entry::decide(history, intent) {
            Decision::Claim { occurrence, .. } if is_unknown(history, occurrence) => {
                Some(Known::Unknown)
            }
            Decision::Claim { identical, .. } => identical.then_some(Known::Identical),
            Decision::Join { .. } => Some(Known::Running),
            Decision::Answer { occurrence } => answered(history, occurrence),
            // Of an attempt that provably did nothing.
            Decision::Failure(_) => None,
            Decision::Refuse(denied) => refused(&denied),
        };
        let own = history.iter().all(|entry| entry.agent == intent.agent);
        if history.is_empty() {
            shard.remove(&key);
        }
        known.map(|known| Peeked { known, own })
    }
}

/// Its tool asked for input and may have acted before: going on is allowed, and it may have happened.
fn is_unknown(history: &[Entry], occurrence: u32) -> bool {
    let found = history.iter().find(|entry| entry.occurrence == occurrence);
    found.is_some_and(|entry| matches!(entry.state, State::Unknown { .. }))
}

fn answered(history: &[Entry], occurrence: u32) -> Option<Known> {
    let found = history.iter().find(|entry| entry.occurrence == occurrence)?;
    match &found.state {
        State::Executed { .. } | State::Compensated { .. } => Some(Known::Executed),
        State::NotExecuted { .. } => None,
        State::Claimed { .. } | State::Intent { .. } => Some(Known::Running),
        State::Unknown { .. } => Some(Known::Unknown),
    }
}

/// A refusal of the ledger, as what it says of the operation.
fn refused(denied: &Denied) -> Option<Known> {
    match (denied.code, &denied.detail) {
        (DenyCode::ReviewRequired, _) => Some(Known::Unknown),
        (DenyCode::InProgress, _) => Some(Known::Running),
        (_, Detail::Changed { executed: true, .. }) => Some(Known::Executed),
        // An identical one was done, and the policy would refuse this one.
        (DenyCode::IdempotencyConflict, Detail::Operation(_)) => Some(Known::Identical),
        // Done, or being done, with other arguments: what this call asks for was not.
        _ => None,
    }
}
