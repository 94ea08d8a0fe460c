//! The entries and what may happen to them: one short lock a step, never held across a wait.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;

use super::ends::Owed;
use super::entry::{self, Before, Decision, Entry, MAX_CALLS, MAX_OCCURRENCES, State, Stored};
use super::recent::Recent;
use super::resolver::{Left, Unsettled};
use super::ticket::{Join, Ticket};
use super::{Begin, Intent, rows, tasks};
use crate::call::code::DenyCode;
use crate::call::{Arguments, Denied, IdempotencyKey, ToolName};
use crate::store::{Change, Row, Store, StoreError, Which};
use crate::telemetry::record::wall_clock;

/// Maps the entries are spread over, so that a sweep holds up few callers for long.
const SHARDS: usize = 16;
/// Longest arguments whose first form is kept to name what changed, and all of them together.
const MAX_ARGUMENTS: u64 = 16 << 10;
const MAX_ALL_ARGUMENTS: u64 = 16 << 20;
/// Rows one change of the store forgets.
const FORGET_AT_ONCE: usize = 512;
/// When a caller that met a full ledger may ask again.
const FULL_AGAIN: Duration = Duration::from_secs(60);

/// When a caller that met a store which cannot be written may ask again: as often as the store tries.
const STORE_AGAIN: Duration = Duration::from_secs(1);

pub(super) type Shard = HashMap<IdempotencyKey, Vec<Entry>>;

/// What a claim came to.
#[derive(Debug)]
pub(super) enum Begun {
    Now(Begin),
    /// It has ended, and its result is in the store.
    Stored {
        key: IdempotencyKey,
        occurrence: u32,
    },
}

#[derive(Debug)]
pub(super) struct Book {
    shards: [Mutex<Shard>; SHARDS],
    pub(super) recent: Recent,
    pub(super) store: Store,
    /// Ends that the store did not take yet.
    pub(super) owed: Mutex<Vec<Owed>>,
    /// Rows that answer no more and are still in the store.
    forgotten: Mutex<Vec<Which>>,
    max_entries: usize,
    entries: AtomicUsize,
    argument_bytes: AtomicU64,
    claims: AtomicU64,
}

pub(super) fn lock<T>(shard: &Mutex<T>) -> MutexGuard<'_, T> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Book {
    pub(super) fn new(store: Store, max_entries: usize, result_bytes: u64) -> Self {
        Self {
            store,
            owed: Mutex::default(),
            forgotten: Mutex::default(),
            shards: Default::default(),
            recent: Recent::new(result_bytes),
            max_entries,
            entries: AtomicUsize::new(0),
            argument_bytes: AtomicU64::new(0),
            claims: AtomicU64::new(1),
        }
    }

    /// The rows of an earlier process, before anybody asks.
    pub(super) fn restore(&self, rows: Vec<Row>) {
        let (now, today) = (Instant::now(), wall_clock());
        for row in rows {
            let which = row.which;
            self.claims.fetch_max(which.claim.saturating_add(1), Ordering::AcqRel);
            let Some(mut entry) = rows::entry(row, now, today) else {
                lock(&self.forgotten).push(which);
                continue;
            };
            self.entries.fetch_add(1, Ordering::AcqRel);
            entry.arguments = entry.arguments.take().filter(|arguments| self.has_room(arguments));
            let mut shard = self.shard(which.key);
            let history = shard.entry(which.key).or_default();
            history.push(entry);
            history.sort_by_key(|entry| entry.occurrence);
        }
    }

    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        self.entries.load(Ordering::Acquire)
    }

    #[cfg(test)]
    pub(super) fn settle_recent(&self) {
        self.recent.settle();
    }

    pub(super) fn has_place(&self) -> bool {
        self.entries.load(Ordering::Acquire) < self.max_entries
    }

    pub(super) fn reviews_open(&self) -> (Vec<(ToolName, u64)>, Option<SystemTime>) {
        let mut open: HashMap<ToolName, u64> = HashMap::new();
        let mut oldest: Option<SystemTime> = None;
        for shard in &self.shards {
            for entry in lock(shard).values().flatten() {
                if let State::Unknown { since, .. } = entry.state {
                    *open.entry(entry.tool.clone()).or_default() += 1;
                    oldest = Some(oldest.map_or(since, |oldest| oldest.min(since)));
                }
            }
        }
        (open.into_iter().collect(), oldest)
    }

    pub(super) fn sweep(&self, now: Instant) {
        for shard in &self.shards {
            lock(shard).retain(|key, history| {
                self.forget_expired(*key, history, now);
                !history.is_empty()
            });
        }
    }

    /// Every entry, a shard at a time.
    pub(super) fn each(&self, mut look: impl FnMut(IdempotencyKey, &Entry)) {
        for shard in &self.shards {
            for (key, history) in lock(shard).iter() {
                history.iter().for_each(|entry| look(*key, entry));
            }
        }
    }

    /// Takes rows that answer no more out of the store; those it does not take now are tried again.
    pub(super) fn forget_rows(self: &Arc<Self>) {
        let mut forgotten = std::mem::take(&mut *lock(&self.forgotten));
        while !forgotten.is_empty() {
            let rest = forgotten.split_off(forgotten.len().min(FORGET_AT_ONCE));
            let rows = std::mem::replace(&mut forgotten, rest);
            let (book, again) = (self.clone(), rows.clone());
            self.store.submit(
                Change::Forget(rows),
                Box::new(move |done| match done {
                    Ok(()) | Err(StoreError::Refused) => {}
                    Err(StoreError::Full | StoreError::Unavailable(_)) => {
                        lock(&book.forgotten).extend(again);
                    }
                }),
            );
        }
    }

    pub(super) fn shard(&self, key: IdempotencyKey) -> MutexGuard<'_, Shard> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let [first, ..] = &self.shards;
        let at = usize::try_from(hasher.finish() % SHARDS as u64).unwrap_or(0);
        lock(self.shards.get(at).unwrap_or(first))
    }

    pub(super) fn begin(self: &Arc<Self>, intent: &Intent, now: Instant) -> Begun {
        let key = intent.operation.key;
        let mut shard = self.shard(key);
        let history = shard.entry(key).or_default();
        self.forget_expired(key, history, now);
        let begin = match entry::decide(history, intent) {
            // What cannot be recorded is not begun. Answers of finished writes do without the store.
            Decision::Claim { .. } if !self.store.writable() => Begun::Now(unwritable()),
            Decision::Claim { occurrence, identical } => {
                Begun::Now(self.claim(history, intent, occurrence, identical))
            }
            Decision::Join { occurrence } => Begun::Now(join(history, intent, occurrence)),
            Decision::Answer { occurrence } => {
                tell(history, intent, occurrence);
                self.answer(history, key, occurrence)
            }
            Decision::Failure(failed) => Begun::Now(Begin::Replay(Err(failed.into()))),
            Decision::Refuse(denied) => Begun::Now(Begin::Refused(denied)),
        };
        if history.is_empty() {
            shard.remove(&key);
        }
        begin
    }

    fn claim(
        self: &Arc<Self>,
        history: &mut Vec<Entry>,
        intent: &Intent,
        occurrence: u32,
        identical: bool,
    ) -> Begin {
        let claim = self.claims.fetch_add(1, Ordering::Relaxed);
        let (tell, _) = watch::channel(None);
        let who = (intent.run.clone(), intent.call.clone());
        let asked = history.iter_mut().find(|entry| entry.occurrence == occurrence);
        if let Some((entry, before)) = asked.and_then(asked_before) {
            // Its row, its review and its arguments stand: an unknown write goes on.
            if entry.calls.len() < MAX_CALLS {
                entry.calls.push(who);
            }
            entry.holder = claim;
            entry.state = State::Claimed { tell, before: Some(before) };
            let (book, key) = (self.clone(), intent.operation.key);
            let may_have_happened = true;
            return Begin::Fresh(Ticket {
                book,
                key,
                occurrence,
                claim,
                identical,
                may_have_happened,
            });
        }
        let arguments = self.keep_arguments(intent);
        match history.last_mut().filter(|entry| entry.occurrence == occurrence) {
            Some(entry) => {
                let before = match &entry.state {
                    State::NotExecuted { until } => {
                        Some(Before::NotExecuted { until: *until, claim: entry.claim })
                    }
                    State::Claimed { .. }
                    | State::Intent { .. }
                    | State::Executed { .. }
                    | State::Compensated { .. }
                    | State::Unknown { .. } => None,
                };
                self.drop_arguments(std::mem::replace(&mut entry.arguments, arguments).as_ref());
                if entry.agent != intent.agent {
                    // What another agent's calls met is told to nobody else.
                    entry.failures.clear();
                }
                entry.agent = intent.agent.clone();
                entry.digest = intent.operation.arguments;
                entry.calls.push(who);
                entry.ttl = intent.ttl;
                entry.by_arguments = !intent.operation.replays;
                entry.review = None;
                entry.task = None;
                entry.claim = claim;
                entry.holder = claim;
                entry.state = State::Claimed { tell, before };
            }
            None if !self.take_place() => {
                self.drop_arguments(arguments.as_ref());
                let message = "the gateway's memory of writes is full; writes are refused for now";
                let denied = Denied::new(DenyCode::LedgerUnavailable, message);
                return Begin::Refused(denied.retry_after(FULL_AGAIN));
            }
            None => {
                self.forget_oldest(history, intent.operation.key);
                history.push(Entry {
                    occurrence,
                    claim,
                    holder: claim,
                    tool: intent.tool.clone(),
                    agent: intent.agent.clone(),
                    digest: intent.operation.arguments,
                    arguments,
                    calls: vec![who],
                    by_arguments: !intent.operation.replays,
                    failures: Vec::new(),
                    review: None,
                    told: false,
                    state: State::Claimed { tell, before: None },
                    ttl: intent.ttl,
                    task: None,
                });
            }
        }
        let book = self.clone();
        Begin::Fresh(Ticket {
            book,
            key: intent.operation.key,
            occurrence,
            claim,
            identical,
            may_have_happened: false,
        })
    }

    fn answer(&self, history: &[Entry], key: IdempotencyKey, occurrence: u32) -> Begun {
        let found = history.iter().find(|entry| entry.occurrence == occurrence);
        let failed = match found.map(|entry| &entry.state) {
            Some(State::Executed { stored: Stored::Result, .. }) => {
                return match self.recent.get(key, occurrence) {
                    Some(result) => Begun::Now(Begin::Replay(Ok(entry::from_ledger(result)))),
                    None => Begun::Stored { key, occurrence },
                };
            }
            Some(State::Executed { stored: Stored::Error(failed), .. }) => failed.clone(),
            Some(State::Compensated { .. }) => entry::compensated(),
            Some(
                State::Executed { stored: Stored::Lost, .. }
                | State::Claimed { .. }
                | State::Intent { .. }
                | State::NotExecuted { .. }
                | State::Unknown { .. },
            )
            | None => entry::lost(),
        };
        Begun::Now(Begin::Replay(Err(failed.into())))
    }

    /// The occurrence of an operation that may have happened.
    pub(super) fn unsettled(&self, key: IdempotencyKey) -> Option<Unsettled> {
        let shard = self.shard(key);
        let entry = shard.get(&key)?.last()?;
        // Of one whose tool waits for input nobody can ask the tool anything but to go on.
        let State::Unknown { since, asked: false, .. } = &entry.state else { return None };
        Some(Unsettled {
            sending: rows::sending(key, entry),
            digest: entry.digest,
            since: *since,
            arguments: entry.arguments.clone(),
            tool: entry.tool.clone(),
            task: tasks::of(entry),
        })
    }

    /// Unknown writes whose arguments are kept, in no order.
    pub(super) fn left(&self, most: usize) -> Vec<Left> {
        let mut left = Vec::new();
        self.each(|key, entry| {
            if let (State::Unknown { .. }, Some(arguments)) = (&entry.state, &entry.arguments)
                && left.len() < most
            {
                let (tool, digest, arguments) =
                    (entry.tool.clone(), entry.digest, arguments.clone());
                left.push(Left { key, tool, digest, arguments });
            }
        });
        left
    }

    /// An operation that is meant again and again keeps its newest occurrences.
    fn forget_oldest(&self, history: &mut Vec<Entry>, key: IdempotencyKey) {
        if history.len() >= MAX_OCCURRENCES {
            let oldest = history.remove(0);
            self.forgot(key, &oldest);
        }
    }

    pub(super) fn forget_expired(
        &self,
        key: IdempotencyKey,
        history: &mut Vec<Entry>,
        now: Instant,
    ) {
        history.retain(|entry| {
            let expired = entry.expired(now);
            if expired {
                self.forgot(key, entry);
            }
            !expired
        });
    }

    fn forgot(&self, key: IdempotencyKey, entry: &Entry) {
        self.recent.forget(key, entry.occurrence);
        self.give_back(entry);
        lock(&self.forgotten).push(rows::which(key, entry));
    }

    fn take_place(&self) -> bool {
        let more = |taken: usize| (taken < self.max_entries).then_some(taken + 1);
        self.entries.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    pub(super) fn give_back(&self, entry: &Entry) {
        self.entries.fetch_sub(1, Ordering::AcqRel);
        self.drop_arguments(entry.arguments.as_ref());
    }

    /// The first form of arguments, as long as all that
    /// are kept stay small; without it a conflict names no members, and a person who reviews the write sees none.
    fn keep_arguments(&self, intent: &Intent) -> Option<Arguments> {
        self.has_room(&intent.arguments).then(|| intent.arguments.clone())
    }

    /// True once room for them is taken.
    fn has_room(&self, arguments: &Arguments) -> bool {
        let bytes = arguments.bytes();
        let room = |kept: u64| Some(kept + bytes).filter(|sum| *sum <= MAX_ALL_ARGUMENTS);
        bytes <= MAX_ARGUMENTS
            && self.argument_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, room).is_ok()
    }

    pub(super) fn drop_arguments(&self, arguments: Option<&Arguments>) {
        let bytes = arguments.map_or(0, Arguments::bytes);
        self.argument_bytes.fetch_sub(bytes, Ordering::AcqRel);
    }
}

/// Who asks how a write ended that was unknown is told, and is of it from now on: asking the same once more is another.
fn tell(history: &mut [Entry], intent: &Intent, occurrence: u32) {
    let entry = history.iter_mut().find(|entry| entry.occurrence == occurrence);
    let Some(entry) = entry.filter(|entry| entry.review.is_some()) else { return };
    entry.told = true;
    let who = (intent.run.clone(), intent.call.clone());
    if entry.calls.len() < MAX_CALLS && !entry.calls.contains(&who) {
        entry.calls.push(who);
    }
}

/// An unknown write whose tool waits for input, and what it is again if it does not go on.
fn asked_before(entry: &mut Entry) -> Option<(&mut Entry, Before)> {
    let State::Unknown { since, why, asked: true } = &entry.state else { return None };
    let before = Before::Asked { since: *since, why: why.clone(), calls: entry.calls.len() };
    Some((entry, before))
}

fn unwritable() -> Begin {
    let message = "writes are refused for now: they cannot be recorded";
    let denied = Denied::new(DenyCode::LedgerUnavailable, message);
    Begin::Refused(denied.retry_after(STORE_AGAIN))
}

pub(super) fn held<'s>(shard: &'s mut Shard, ticket: &Ticket) -> Option<&'s mut Entry> {
    let history = shard.get_mut(&ticket.key)?;
    history
        .iter_mut()
        .find(|entry| entry.occurrence == ticket.occurrence && entry.held_by(ticket.claim))
}

fn join(history: &mut [Entry], intent: &Intent, occurrence: u32) -> Begin {
    let operation = intent.operation.key.id();
    let who = (intent.run.clone(), intent.call.clone());
    let found = history.iter_mut().find(|entry| entry.occurrence == occurrence);
    let tell = found.and_then(|entry| match &entry.state {
        State::Claimed { tell, .. } | State::Intent { tell, .. } => {
            if !entry.calls.contains(&who) {
                entry.calls.push(who);
            }
            Some(tell.subscribe())
        }
        State::Executed { .. }
        | State::NotExecuted { .. }
        | State::Compensated { .. }
        | State::Unknown { .. } => None,
    });
    match tell {
        Some(heard) => Begin::InProgress(Join { heard, operation }),
        None => Begin::Refused(entry::in_progress(operation)),
    }
}
