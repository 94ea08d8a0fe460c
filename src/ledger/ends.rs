//! From the claim to the end, and on to the store: what is said of a write is said once it is on record.
//!
//! A change of the store reports on the store's thread; it takes the entry's lock there and no other.

use std::sync::Arc;

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::book::{Book, held, lock};
use super::entry::{self, Before, Ended, Entry, MAX_FAILURES, State, Stored};
use super::review::{self, Opened, Resolution, ResolveError, Settled, Verdict, Version};
use super::ticket::Ticket;
use super::{End, LedgerError, rows};
use crate::call::{Delivery, Failed, IdempotencyKey, Sending};
use crate::store::{Caller, Change, Resolved, Standing, StoreError, Which};
use crate::telemetry::record::wall_clock;

/// Ends the store may owe at once: far more than the calls in flight. Past it one stays unknown.
const MAX_OWED: usize = 1024;

/// An end that is known and not on record.
#[derive(Debug)]
pub(super) struct Owed {
    which: Which,
    change: Change,
    became: Became,
    /// Who settles it, where it was told as unknown before.
    by: Option<Resolved>,
}

/// What an entry becomes.
#[derive(Debug, Clone)]
pub(super) enum Became {
    End(End),
    /// A person says that it did not happen: nobody is bound by it.
    Freed,
    Compensated,
}

type Tell = oneshot::Sender<Result<(), LedgerError>>;

impl Book {
    /// Marks the intent and gives the row to make lasting; `None` where it is already.
    pub(super) fn intending(&self, ticket: &Ticket) -> Result<Option<Change>, LedgerError> {
        let mut shard = self.shard(ticket.key);
        let entry = held(&mut shard, ticket).ok_or(LedgerError { doing: "record an intent" })?;
        let State::Claimed { tell, before } = &entry.state else { return Ok(None) };
        // On record as unknown, which binds as an intent does.
        let on_record = matches!(before, Some(Before::Asked { .. }));
        entry.state = State::Intent { tell: tell.clone(), before: before.clone() };
        if on_record {
            return Ok(None);
        }
        let row = Box::new(rows::row(ticket.key, entry, Standing::Intent));
        Ok(Some(Change::Put { row, result: None }))
    }

    /// The intent is not on record, so the gate stays shut and nothing is sent.
    pub(super) fn not_intended(&self, ticket: &Ticket) {
        let mut shard = self.shard(ticket.key);
        let Some(entry) = held(&mut shard, ticket) else { return };
        if let State::Intent { tell, before } = &entry.state {
            entry.state = State::Claimed { tell: tell.clone(), before: before.clone() };
        }
    }

    /// Records the end, then settles the entry and tells who waits. It goes on when nobody listens any more.
    pub(super) fn finish(self: &Arc<Self>, ticket: Ticket, end: End, tell: Tell) {
        let mut shard = self.shard(ticket.key);
        let Some(entry) = held(&mut shard, &ticket) else {
            drop(shard);
            return answer(tell, Err(LedgerError { doing: "record an end" }));
        };
        let nothing = matches!(end, End::NotExecuted(..) | End::Asked { after_acting: false, .. });
        if nothing && as_asked(entry) {
            drop(shard);
            return answer(tell, Ok(()));
        }
        let (row, result) = rows::ended(ticket.key, entry, &end, None);
        let recorded = entry.calls.len();
        let change = match (&entry.state, &end) {
            (State::Claimed { .. }, End::NotExecuted(..)) => {
                // Nothing on record means as much, so nobody waits for this.
                self.settle_and_tell(entry, ticket.key, &end);
                drop(shard);
                self.store.append(Change::Put { row, result });
                return answer(tell, Ok(()));
            }
            // The row of one that goes on is there already.
            (State::Claimed { before: Some(Before::Asked { .. }), .. }, _) => {
                Change::End { row, result }
            }
            (State::Claimed { .. }, _) => Change::Put { row, result },
            (_, _) => Change::End { row, result },
        };
        drop(shard);
        let book = self.clone();
        let again = change.clone();
        self.store.submit(
            change,
            Box::new(move |done| match done {
                Ok(()) => book.recorded(ticket, &end, recorded, tell),
                Err(error) => {
                    tracing::error!(%error, operation = %ticket.key.id(), "an end is not on record");
                    book.unrecorded(&ticket, end, again, &error);
                    answer(tell, Err(LedgerError { doing: "record an end" }));
                }
            }),
        );
    }

    /// The end is on record. Calls that joined meanwhile get there too, before they are answered.
    fn recorded(self: &Arc<Self>, ticket: Ticket, end: &End, calls: usize, tell: Tell) {
        crash_point!("ledger: end recorded");
        let mut shard = self.shard(ticket.key);
        let Some(entry) = held(&mut shard, &ticket) else { return answer(tell, Ok(())) };
        let more = match end {
            End::Executed(_) | End::ExecutedWithError(_) => entry.calls.len() > calls,
            End::NotExecuted(..) | End::Unknown(_) | End::Asked { .. } => false,
        };
        if !more {
            self.settle_and_tell(entry, ticket.key, end);
            drop(shard);
            return answer(tell, Ok(()));
        }
        let shared: Vec<Caller> = entry.calls.clone();
        let (which, recorded) = (rows::which(ticket.key, entry), shared.len());
        drop(shard);
        let (book, end) = (self.clone(), end.clone());
        let change = Change::Calls { which, calls: shared };
        // Whether or not the joiners are on record, the end is.
        self.store.submit(
            change,
            Box::new(move |done| {
                let recorded = if done.is_ok() { recorded } else { usize::MAX };
                book.recorded(ticket, &end, recorded, tell);
            }),
        );
    }

    /// The end is known here and not on record: told as unknown, unless it is sure that nothing was sent.
    fn unrecorded(&self, ticket: &Ticket, end: End, change: Change, error: &StoreError) {
        let mut shard = self.shard(ticket.key);
        let Some(entry) = held(&mut shard, ticket) else { return };
        let which = rows::which(ticket.key, entry);
        let unsent = matches!(&end, End::NotExecuted(why, _) if why.delivery == Delivery::NotSent);
        if unsent {
            self.settle_and_tell(entry, ticket.key, &end);
        } else {
            let why = Failed::internal("the end of the write could not be recorded");
            self.settle_and_tell(entry, ticket.key, &End::Unknown(why));
        }
        drop(shard);
        match (end, error) {
            (End::Unknown(_) | End::Asked { after_acting: true, .. }, _)
            | (_, StoreError::Refused) => {}
            (end, StoreError::Full | StoreError::Unavailable(_)) => {
                let by = Some(nobody("late_answer"));
                self.owe(Owed { which, change, became: Became::End(end), by });
            }
        }
    }

    fn owe(&self, owed: Owed) {
        let mut all = lock(&self.owed);
        if all.len() < MAX_OWED {
            all.push(owed);
        } else {
            tracing::error!(operation = %owed.which.key.id(), "an end is given up; a person must check");
        }
    }

    /// Hands in what the store would not take before; each then counts as a late answer.
    pub(super) fn pay_owed(self: &Arc<Self>) {
        if !self.store.writable() {
            return;
        }
        let owed = std::mem::take(&mut *lock(&self.owed));
        for one in owed {
            self.settle_later(one, None);
        }
    }

    /// Settles an unknown entry once the store has it; `tell` hears then.
    fn settle_later(self: &Arc<Self>, owed: Owed, tell: Option<Tell>) {
        let book = self.clone();
        self.store.submit(
            owed.change.clone(),
            Box::new(move |done| {
                let told =
                    done.as_ref().map_or(Err(LedgerError { doing: "record an end" }), |()| Ok(()));
                crash_point!("ledger: a later end recorded");
                match done {
                    Ok(()) => book.became(&owed),
                    Err(StoreError::Refused) => {}
                    Err(StoreError::Full | StoreError::Unavailable(_)) => book.owe(owed),
                }
                if let Some(tell) = tell {
                    answer(tell, told);
                }
            }),
        );
    }

    fn became(&self, owed: &Owed) {
        let (which, became) = (owed.which, &owed.became);
        let mut shard = self.shard(which.key);
        let unknown = shard.get_mut(&which.key).and_then(|history| {
            history.iter_mut().find(|entry| {
                rows::which(which.key, entry) == which
                    && matches!(entry.state, State::Unknown { .. })
            })
        });
        let Some(entry) = unknown else { return };
        let until = Instant::now() + entry.ttl;
        match became {
            Became::End(end) => {
                let waiting = self.settle(entry, which.key, end);
                debug_assert!(waiting.is_none(), "nobody waits for an unknown entry");
            }
            Became::Freed => {
                entry.calls.clear();
                entry.state = State::NotExecuted { until };
            }
            Became::Compensated => entry.state = State::Compensated { until },
        }
        if let (Some(review), Some(by)) = (&mut entry.review, &owed.by) {
            review.settled = Some(Settled { at: wall_clock(), by: by.clone() });
        }
    }

    pub(super) fn late(self: &Arc<Self>, sending: Sending, end: &End) -> bool {
        self.settle_unknown(sending, end, "late_answer", None)
    }

    /// As a late answer, by what the gateway did itself. True once it is on record; false where it is not, or where
    /// nothing was unknown.
    pub(super) async fn upgrade(
        self: &Arc<Self>,
        sending: Sending,
        end: &End,
        by: &'static str,
    ) -> bool {
        let (tell, heard) = oneshot::channel();
        self.settle_unknown(sending, end, by, Some(tell)) && matches!(heard.await, Ok(Ok(())))
    }

    /// True when that sending was unknown.
    fn settle_unknown(
        self: &Arc<Self>,
        sending: Sending,
        end: &End,
        by: &'static str,
        tell: Option<Tell>,
    ) -> bool {
        if let End::Unknown(_) | End::Asked { after_acting: true, .. } = end {
            return false;
        }
        let by = nobody(by);
        let owed = {
            let key = sending.key;
            let mut shard = self.shard(key);
            let unknown = shard
                .get_mut(&key)
                .and_then(|history| history.last_mut())
                .filter(|entry| matches!(entry.state, State::Unknown { .. }))
                .filter(|entry| rows::sending(key, entry) == sending);
            let Some(entry) = unknown else { return false };
            let (row, result) = rows::ended(key, entry, end, Some(&by));
            Owed {
                which: rows::which(key, entry),
                change: Change::End { row, result },
                became: Became::End(end.clone()),
                by: Some(by),
            }
        };
        self.settle_later(owed, tell);
        true
    }

    /// A person's word: on record first.
    pub(super) async fn resolve(
        &self,
        key: IdempotencyKey,
        seen: Option<Version>,
        resolution: Resolution,
        verdict: Verdict,
    ) -> Result<(), ResolveError> {
        let by = Resolved {
            by: "person".into(),
            who: verdict.who,
            why: verdict.why,
            evidence: verdict.evidence,
        };
        let owed = {
            let shard = self.shard(key);
            let entry = shard.get(&key).and_then(|history| history.last());
            let entry = entry.ok_or(ResolveError::NotFound)?;
            if !matches!(entry.state, State::Unknown { .. }) {
                return Err(ResolveError::NotUnknown);
            }
            if seen.is_some_and(|seen| seen != review::version(entry)) {
                return Err(ResolveError::Changed);
            }
            resolved(key, entry, resolution, by)
        };
        crash_point!("ledger: before a person's word");
        let done = self.store.commit(owed.change.clone()).await;
        crash_point!("ledger: after a person's word");
        match done {
            Ok(()) => {
                self.became(&owed);
                Ok(())
            }
            Err(StoreError::Refused) => Err(ResolveError::NotUnknown),
            Err(error @ (StoreError::Full | StoreError::Unavailable(_))) => {
                Err(ResolveError::Unavailable(error.to_string()))
            }
        }
    }

    fn settle_and_tell(&self, entry: &mut Entry, key: IdempotencyKey, end: &End) {
        if let Some(tell) = self.settle(entry, key, end) {
            tell.send_replace(Some(entry::told(key, end)));
        }
    }

    /// Writes the end; gives back who is to be told.
    fn settle(
        &self,
        entry: &mut Entry,
        key: IdempotencyKey,
        end: &End,
    ) -> Option<watch::Sender<Ended>> {
        let until = Instant::now() + entry.ttl;
        let next = match end {
            End::Executed(Some(result)) => {
                self.recent.put(key, entry.occurrence, result);
                State::Executed { until, stored: Stored::Result }
            }
            End::Executed(None) => State::Executed { until, stored: Stored::Lost },
            End::ExecutedWithError(failed) => {
                State::Executed { until, stored: Stored::Error(failed.clone()) }
            }
            End::NotExecuted(failed, _) | End::Asked { why: failed, after_acting: false, .. } => {
                let calls = std::mem::take(&mut entry.calls);
                let of = |caller| (caller, entry.digest, failed.clone());
                entry.failures.extend(calls.into_iter().map(of));
                let over = entry.failures.len().saturating_sub(MAX_FAILURES);
                entry.failures.drain(..over);
                State::NotExecuted { until }
            }
            End::Unknown(failed) | End::Asked { why: failed, after_acting: true, .. } => {
                let (since, why) = (wall_clock(), failed.message.clone());
                let caller = entry.calls.first().cloned();
                entry.review = Some(Opened { since, why: why.clone(), caller, settled: None });
                State::Unknown { since, why, asked: matches!(end, End::Asked { .. }) }
            }
        };
        if entry.by_arguments && !matches!(next, State::Unknown { .. }) {
            // Nobody has to be told what differs, and no person has to look for it.
            self.drop_arguments(entry.arguments.take().as_ref());
        }
        match std::mem::replace(&mut entry.state, next) {
            State::Claimed { tell, .. } | State::Intent { tell, .. } => Some(tell),
            State::Executed { .. }
            | State::NotExecuted { .. }
            | State::Compensated { .. }
            | State::Unknown { .. } => None,
        }
    }

    /// A ticket went away. Finished: nothing to do. Nothing sent: the claim is free, joiners are woken. Else nobody
    /// knows what became of the write.
    pub(super) fn abandon(&self, ticket: &Ticket) {
        let mut shard = self.shard(ticket.key);
        let Some(entry) = held(&mut shard, ticket) else { return };
        if let State::Intent { .. } = entry.state {
            let end = End::Unknown(Failed::internal("the gateway lost sight of the write"));
            let (row, result) = rows::ended(ticket.key, entry, &end, None);
            self.settle_and_tell(entry, ticket.key, &end);
            drop(shard);
            // Without this the row stays an intent without an end, which means the same.
            self.store.append(Change::End { row, result });
            return;
        }
        if as_asked(entry) {
            return;
        }
        entry.calls.clear();
        if let State::Claimed { before: Some(Before::NotExecuted { until, claim }), .. } =
            entry.state
        {
            // Replacing the state drops the sender: who waits hears that the operation is free.
            entry.claim = claim;
            entry.state = State::NotExecuted { until };
            return;
        }
        if let Some(history) = shard.get_mut(&ticket.key) {
            let mut freed = None;
            if history.last().is_some_and(|entry| entry.occurrence == ticket.occurrence) {
                freed = history.pop();
            }
            let empty = history.is_empty();
            if let Some(entry) = freed {
                self.give_back(&entry);
            }
            if empty {
                shard.remove(&ticket.key);
            }
        }
    }
}

/// Back to the question: what was to go on did not. False: it had not been asked, or nothing is known of it there.
fn as_asked(entry: &mut Entry) -> bool {
    let (State::Claimed { before, .. } | State::Intent { before, .. }) = &mut entry.state else {
        return false;
    };
    match before.take() {
        Some(Before::Asked { since, why, calls }) => {
            entry.calls.truncate(calls);
            entry.state = State::Unknown { since, why, asked: true };
            true
        }
        other => {
            *before = other;
            false
        }
    }
}

/// The row that a person's word makes of an unknown entry.
fn resolved(key: IdempotencyKey, entry: &Entry, resolution: Resolution, by: Resolved) -> Owed {
    let which = rows::which(key, entry);
    let (mut row, result, became) = match resolution {
        Resolution::Happened(result) => {
            let end = End::Executed(result);
            let (row, result) = rows::ended(key, entry, &end, None);
            (row, result, Became::End(end))
        }
        Resolution::DidNotHappen => {
            let standing = Standing::NotExecuted { evidence: "person".into() };
            let mut row = Box::new(rows::row(key, entry, standing));
            row.calls.clear();
            (row, None, Became::Freed)
        }
        Resolution::Compensated => {
            let row = Box::new(rows::row(key, entry, Standing::Compensated));
            (row, None, Became::Compensated)
        }
    };
    row.resolved = Some(by.clone());
    Owed { which, change: Change::End { row, result }, became, by: Some(by) }
}

/// Settled without a person.
fn nobody(by: &str) -> Resolved {
    let (who, why, evidence) = (String::new(), String::new(), String::new());
    Resolved { by: by.into(), who, why, evidence }
}

fn answer(tell: Tell, done: Result<(), LedgerError>) {
    // Nobody listens where the caller's future was dropped; the entry says it.
    drop(tell.send(done));
}
