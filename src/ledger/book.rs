//! The entries and what may happen to them: one short lock a step, never held across a wait.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;

use super::entry::{self, Decision, Ended, Entry, MAX_FAILURES, MAX_OCCURRENCES, State, Stored};
use super::recent::Recent;
use super::ticket::{Join, Ticket};
use super::{Begin, End, Intent, LedgerError};
use crate::call::code::DenyCode;
use crate::call::{Arguments, Denied, Failed, IdempotencyKey, ToolName};
use crate::telemetry::record::wall_clock;

/// Maps the entries are spread over, so that a sweep holds up few callers for long.
const SHARDS: usize = 16;
/// Longest arguments whose first form is kept to name what changed, and all of them together.
const MAX_ARGUMENTS: u64 = 16 << 10;
const MAX_ALL_ARGUMENTS: u64 = 16 << 20;
/// When a caller that met a full ledger may ask again.
const FULL_AGAIN: Duration = Duration::from_secs(60);

type Shard = HashMap<IdempotencyKey, Vec<Entry>>;

#[derive(Debug)]
pub(super) struct Book {
    shards: [Mutex<Shard>; SHARDS],
    recent: Recent,
    max_entries: usize,
    entries: AtomicUsize,
    argument_bytes: AtomicU64,
    claims: AtomicU64,
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Book {
    pub(super) fn new(max_entries: usize, result_bytes: u64) -> Self {
        Self {
            shards: Default::default(),
            recent: Recent::new(result_bytes),
            max_entries,
            entries: AtomicUsize::new(0),
            argument_bytes: AtomicU64::new(0),
            claims: AtomicU64::new(0),
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
                if let State::Unknown { since } = entry.state {
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

    fn shard(&self, key: IdempotencyKey) -> MutexGuard<'_, Shard> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let [first, ..] = &self.shards;
        let at = usize::try_from(hasher.finish() % SHARDS as u64).unwrap_or(0);
        lock(self.shards.get(at).unwrap_or(first))
    }

    pub(super) fn begin(self: &Arc<Self>, intent: &Intent, now: Instant) -> Begin {
        let key = intent.operation.key;
        let mut shard = self.shard(key);
        let history = shard.entry(key).or_default();
        self.forget_expired(key, history, now);
        let begin = match entry::decide(history, intent) {
            Decision::Claim { occurrence, identical } => {
                self.claim(history, intent, occurrence, identical)
            }
            Decision::Join { occurrence } => join(history, intent, occurrence),
            Decision::Answer { occurrence } => self.answer(history, key, occurrence),
            Decision::Failure(failed) => Begin::Replay(Err(failed.into())),
            Decision::Refuse(denied) => Begin::Refused(denied),
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
        let arguments = self.keep_arguments(intent);
        match history.last_mut().filter(|entry| entry.occurrence == occurrence) {
            Some(entry) => {
                let before = match &entry.state {
                    State::NotExecuted { at } => Some(*at),
                    State::Claimed { .. }
                    | State::Intent { .. }
                    | State::Executed { .. }
                    | State::Unknown { .. } => None,
                };
                self.drop_arguments(std::mem::replace(&mut entry.arguments, arguments).as_ref());
                entry.agent = intent.agent.clone();
                entry.digest = intent.operation.arguments;
                entry.calls.push(who);
                entry.ttl = intent.ttl;
                entry.state = State::Claimed { claim, tell, before };
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
                    tool: intent.tool.clone(),
                    agent: intent.agent.clone(),
                    digest: intent.operation.arguments,
                    arguments,
                    calls: vec![who],
                    failures: Vec::new(),
                    state: State::Claimed { claim, tell, before: None },
                    ttl: intent.ttl,
                });
            }
        }
        let book = self.clone();
        Begin::Fresh(Ticket { book, key: intent.operation.key, occurrence, claim, identical })
    }

    fn answer(&self, history: &[Entry], key: IdempotencyKey, occurrence: u32) -> Begin {
        let found = history.iter().find(|entry| entry.occurrence == occurrence);
        let stored = found.and_then(|entry| match &entry.state {
            State::Executed { stored, .. } => Some(stored),
            State::Claimed { .. }
            | State::Intent { .. }
            | State::NotExecuted { .. }
            | State::Unknown { .. } => None,
        });
        Begin::Replay(match stored {
            Some(Stored::Result) => self
                .recent
                .get(key, occurrence)
                .map(entry::from_ledger)
                .ok_or_else(|| entry::lost().into()),
            Some(Stored::Error(failed)) => Err(failed.clone().into()),
            Some(Stored::Lost) | None => Err(entry::lost().into()),
        })
    }

    pub(super) fn intend(&self, ticket: &Ticket) -> Result<(), LedgerError> {
        let mut shard = self.shard(ticket.key);
        let entry = held(&mut shard, ticket).ok_or(LedgerError { doing: "record an intent" })?;
        let (tell, _) = watch::channel(None);
        let claimed = std::mem::replace(&mut entry.state, State::Intent { claim: 0, tell });
        entry.state = match claimed {
            State::Claimed { claim, tell, .. } | State::Intent { claim, tell } => {
                State::Intent { claim, tell }
            }
            ended
            @ (State::Executed { .. } | State::NotExecuted { .. } | State::Unknown { .. }) => ended,
        };
        Ok(())
    }

    pub(super) fn finish(&self, ticket: &Ticket, end: &End) -> Result<(), LedgerError> {
        let mut shard = self.shard(ticket.key);
        let entry = held(&mut shard, ticket).ok_or(LedgerError { doing: "record an end" })?;
        if let Some(tell) = self.settle(entry, ticket.key, end) {
            tell.send_replace(Some(entry::told(ticket.key, end)));
        }
        Ok(())
    }

    pub(super) fn late(&self, key: IdempotencyKey, end: &End) -> bool {
        if let End::Unknown(_) = end {
            return false;
        }
        let mut shard = self.shard(key);
        let unknown = shard
            .get_mut(&key)
            .and_then(|history| history.last_mut())
            .filter(|entry| matches!(entry.state, State::Unknown { .. }));
        let Some(entry) = unknown else { return false };
        let waiting = self.settle(entry, key, end);
        debug_assert!(waiting.is_none(), "nobody waits for an unknown entry");
        true
    }

    /// Writes the end; gives back who is to be told.
    fn settle(
        &self,
        entry: &mut Entry,
        key: IdempotencyKey,
        end: &End,
    ) -> Option<watch::Sender<Ended>> {
        let at = Instant::now();
        let next = match end {
            End::Executed(Some(result)) => {
                self.recent.put(key, entry.occurrence, result);
                State::Executed { at, stored: Stored::Result }
            }
            End::Executed(None) => State::Executed { at, stored: Stored::Lost },
            End::ExecutedWithError(failed) => {
                State::Executed { at, stored: Stored::Error(failed.clone()) }
            }
            End::NotExecuted(failed, _) => {
                let calls = std::mem::take(&mut entry.calls);
                let of = |caller| (caller, entry.digest, failed.clone());
                entry.failures.extend(calls.into_iter().map(of));
                let over = entry.failures.len().saturating_sub(MAX_FAILURES);
                entry.failures.drain(..over);
                State::NotExecuted { at }
            }
            End::Unknown(_) => State::Unknown { since: wall_clock() },
        };
        match std::mem::replace(&mut entry.state, next) {
            State::Claimed { tell, .. } | State::Intent { tell, .. } => Some(tell),
            State::Executed { .. } | State::NotExecuted { .. } | State::Unknown { .. } => None,
        }
    }

    /// A ticket went away. Finished: nothing to do. Nothing sent: the claim is free, joiners are woken. Else nobody
    /// knows what became of the write.
    pub(super) fn abandon(&self, ticket: &Ticket) {
        let mut shard = self.shard(ticket.key);
        let Some(entry) = held(&mut shard, ticket) else { return };
        if let State::Intent { .. } = entry.state {
            let end = End::Unknown(Failed::internal("the gateway lost sight of the write"));
            if let Some(tell) = self.settle(entry, ticket.key, &end) {
                tell.send_replace(Some(entry::told(ticket.key, &end)));
            }
            return;
        }
        entry.calls.clear();
        if let State::Claimed { before: Some(at), .. } = entry.state {
            // Replacing the state drops the sender: who waits hears that the operation is free.
            entry.state = State::NotExecuted { at };
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

    /// An operation that is meant again and again keeps its newest occurrences.
    fn forget_oldest(&self, history: &mut Vec<Entry>, key: IdempotencyKey) {
        if history.len() >= MAX_OCCURRENCES {
            let oldest = history.remove(0);
            self.recent.forget(key, oldest.occurrence);
            self.give_back(&oldest);
        }
    }

    fn forget_expired(&self, key: IdempotencyKey, history: &mut Vec<Entry>, now: Instant) {
        history.retain(|entry| {
            let expired = entry.expired(now);
            if expired {
                self.recent.forget(key, entry.occurrence);
                self.give_back(entry);
            }
            !expired
        });
    }

    fn take_place(&self) -> bool {
        let more = |taken: usize| (taken < self.max_entries).then_some(taken + 1);
        self.entries.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    fn give_back(&self, entry: &Entry) {
        self.entries.fetch_sub(1, Ordering::AcqRel);
        self.drop_arguments(entry.arguments.as_ref());
    }

    /// The first form of arguments, where other arguments could come under the same name, and as long as all that
    /// are kept stay small; without it a conflict names no members.
    fn keep_arguments(&self, intent: &Intent) -> Option<Arguments> {
        let bytes = intent.arguments.bytes();
        let room = |kept: u64| Some(kept + bytes).filter(|sum| *sum <= MAX_ALL_ARGUMENTS);
        let keep = intent.operation.replays
            && bytes <= MAX_ARGUMENTS
            && self.argument_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, room).is_ok();
        keep.then(|| intent.arguments.clone())
    }

    fn drop_arguments(&self, arguments: Option<&Arguments>) {
        let bytes = arguments.map_or(0, Arguments::bytes);
        self.argument_bytes.fetch_sub(bytes, Ordering::AcqRel);
    }
}

fn held<'s>(shard: &'s mut Shard, ticket: &Ticket) -> Option<&'s mut Entry> {
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
        State::Executed { .. } | State::NotExecuted { .. } | State::Unknown { .. } => None,
    });
    match tell {
        Some(heard) => Begin::InProgress(Join { heard, operation }),
        None => Begin::Refused(entry::in_progress(operation)),
    }
}
