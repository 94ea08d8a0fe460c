//! Settles a write that may have happened, where its tool helps: by the same key sent again, or by asking a read.
//!
//! The only place from which a write is sent a second time. It acts for a call that waits for the outcome, never on
//! its own, and one call at a time for one operation. Order: late answer (which may come meanwhile), the key again,
//! the question, a person.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::{End, Ledger};
use crate::call::{Arguments, Digest, IdempotencyKey, ToolCall};
use crate::telemetry::record::wall_clock;

/// Times one write is sent again, in its life.
pub const MAX_RESENDS: u32 = 2;
/// Tries of one settling that never reached the tool.
const MAX_UNSENT: u32 = 3;
/// Waits before the key is sent again, by how often it has been tried.
const RESEND_WAIT: Duration = Duration::from_millis(200);
/// Least time that makes a further sending worth starting.
const LEAST: Duration = Duration::from_millis(250);
/// Unsettled writes whose progress is kept; past it the rest is left to a person.
const MAX_RECORDS: usize = 10_000;
/// Longest arguments kept for a later sending.
const MAX_ARGUMENTS: u64 = 16 << 10;

/// What helps with a tool's unknown writes: plain values of its policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remedies {
    /// How long the tool recognises a key. `None` = nothing is sent again.
    pub window: Option<Duration>,
    pub query: Option<Query>,
    /// Arguments may differ where operations do not: only what was sent first is sent again.
    pub volatile: bool,
    /// Longest from a sending until it is called unknown: as much less of the window is left where only the latter
    /// is on record.
    pub lag: Duration,
}

/// When a tool's read is asked what became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query {
    /// After the last sending, and between two answers that it did not happen.
    pub settle: Duration,
    pub tries: u32,
}

/// What a further sending showed.
#[derive(Debug, Clone)]
pub enum Resent {
    /// Executed, and this is its answer.
    Known(End),
    /// Went out, and nothing is known all the same. `stored`: an answer that a tool which remembers keys would give
    /// for ever: the same once more is the end of trying.
    Unknown { message: String, stored: bool },
    /// The tool took it for something it will not answer: no further sending will do better.
    Refused,
    /// Nothing went out.
    NotSent,
    /// Nothing was tried: the tool is down, or the gateway is on its way out.
    NotNow,
}

/// What the read showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    Executed,
    NotExecuted,
    /// The policy's two questions both hold.
    Both,
    Neither,
    /// The read itself failed.
    NoAnswer,
}

pub type Doing<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The ways to the tool, made where stacks are.
pub struct Hands {
    pub may: Remedies,
    pub resend: Box<dyn Fn(ToolCall) -> Doing<Resent> + Send + Sync>,
    pub query: Box<dyn Fn(ToolCall) -> Doing<Asked> + Send + Sync>,
    /// The end of a write that the read says did not happen.
    pub not_executed: fn() -> End,
    /// Counts: resend, `status_query`.
    pub upgraded: Box<dyn Fn(&'static str) + Send + Sync>,
}

impl std::fmt::Debug for Hands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hands").field("may", &self.may).finish_non_exhaustive()
    }
}

/// What has been done about one unknown write.
#[derive(Debug, Clone)]
pub struct Progress {
    /// When it, or its key, was last sent.
    pub sent_at: Instant,
    /// When the key was first sent: the window counts from there.
    pub first_sent: Instant,
    pub resends: u32,
    pub unsent: u32,
    /// No sending will tell more.
    pub no_more: bool,
    pub queries: u32,
    pub asked_at: Option<Instant>,
    /// The read said that it did not happen; first when.
    pub absent_since: Option<Instant>,
    pub contradiction: bool,
    last: String,
    arguments: Option<Arguments>,
}

impl Progress {
    fn new(first_sent: Instant, now: Instant) -> Self {
        Self {
            sent_at: now,
            first_sent,
            resends: 0,
            unsent: 0,
            no_more: false,
            queries: 0,
            asked_at: None,
            absent_since: None,
            contradiction: false,
            last: String::new(),
            arguments: None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Wait(Instant),
    Resend,
    Query,
    /// Nobody but a person can settle it.
    Person,
}

/// What to do next about an unknown write. Pure.
pub fn next_step(done: &Progress, may: &Remedies, now: Instant) -> Step {
    // A tenth early: its clock and ours may differ, and the way there takes time.
    let usable = may.window.map(|window| window - window / 10);
    let in_window =
        usable.is_some_and(|usable| now.saturating_duration_since(done.first_sent) < usable);
    if in_window && !done.no_more && done.resends < MAX_RESENDS && done.unsent < MAX_UNSENT {
        let tries = done.resends + done.unsent;
        let due = done.sent_at + RESEND_WAIT * 4_u32.saturating_pow(tries);
        return if now < due { Step::Wait(due) } else { Step::Resend };
    }
    let Some(query) = may.query.filter(|_| !done.contradiction) else { return Step::Person };
    if done.queries >= query.tries {
        return Step::Person;
    }
    // After an answer of "neither" the tool is given more time each time.
    let due = match (done.asked_at, done.absent_since) {
        (None, _) => done.sent_at + query.settle,
        (Some(asked), Some(_)) => asked + query.settle,
        (Some(asked), None) => asked + query.settle * 2_u32.saturating_pow(done.queries.min(4) - 1),
    };
    if now < due { Step::Wait(due) } else { Step::Query }
}

/// How far a settling came.
#[derive(Debug, Clone)]
pub enum Settled {
    /// It is known, and in the ledger.
    Known(End),
    /// Somebody else settled it meanwhile, or it never was unknown: the ledger tells.
    Elsewhere,
    /// Not within the time there was, or only by a person.
    Still,
}

/// By operation: when it became unknown (another time is another write), and what has been done since.
type Records = HashMap<IdempotencyKey, (SystemTime, Arc<tokio::sync::Mutex<Progress>>)>;

/// What is being done about unknown writes.
#[derive(Debug, Default)]
pub struct Resolver {
    records: Mutex<Records>,
}

/// An unknown write, as the ledger has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unsettled {
    pub(super) occurrence: u32,
    pub(super) digest: Digest,
    pub(super) since: SystemTime,
}

/// A call that waits for the outcome of its operation.
#[derive(Debug)]
pub struct Waiting<'a> {
    pub key: IdempotencyKey,
    /// Of all arguments that are not volatile.
    pub digest: Digest,
    pub call: &'a ToolCall,
    /// This very call sent it, then; else it only asks for the same.
    pub sent: Option<Instant>,
    /// What ended the waiting for it.
    pub said: Option<&'a str>,
    pub until: Instant,
}

impl Resolver {
    fn lock(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what has been settled by somebody else.
    pub(super) fn sweep(&self, ledger: &Ledger) {
        self.lock().retain(|key, _| ledger.book.unsettled(*key).is_some());
    }

    fn record(
        &self,
        waiting: &Waiting<'_>,
        unsettled: &Unsettled,
        lag: Duration,
    ) -> Option<Arc<tokio::sync::Mutex<Progress>>> {
        let mut records = self.lock();
        // Of a write that was sent anew nothing that was done about an earlier sending counts.
        if let Some((since, found)) = records.get(&waiting.key)
            && waiting.sent.is_none()
            && *since == unsettled.since
        {
            return Some(found.clone());
        }
        if records.len() >= MAX_RECORDS {
            return None;
        }
        let now = Instant::now();
        // Of a write that an earlier process sent only the wall clock knows when it became unknown.
        let age = wall_clock().duration_since(unsettled.since).ok();
        let noted = age.and_then(|age| now.checked_sub(age.saturating_add(lag)));
        let first = waiting.sent.or(noted);
        let mut progress = Progress::new(first.unwrap_or(now), now);
        // A clock that was set back says nothing of the window, so it may be over.
        progress.no_more = first.is_none();
        progress.last = waiting.said.unwrap_or_default().to_owned();
        if let Some(arguments) = waiting.call.arguments().filter(|_| waiting.sent.is_some()) {
            progress.arguments =
                Some(arguments.clone()).filter(|kept| kept.bytes() <= MAX_ARGUMENTS);
        }
        let record = Arc::new(tokio::sync::Mutex::new(progress));
        records.insert(waiting.key, (unsettled.since, record.clone()));
        Some(record)
    }

    /// Does what can be done about an unknown write until it is known, nothing more helps, or time is over.
    pub async fn settle(&self, ledger: &Ledger, hands: &Hands, waiting: Waiting<'_>) -> Settled {
        let Some(unsettled) = ledger.book.unsettled(waiting.key) else { return Settled::Elsewhere };
        if hands.may.window.is_none() && hands.may.query.is_none() {
            return Settled::Still;
        }
        let Some(record) = self.record(&waiting, &unsettled, hands.may.lag) else {
            return Settled::Still;
        };
        let Ok(mut progress) = tokio::time::timeout_at(waiting.until, record.lock()).await else {
            return Settled::Still;
        };
        progress.unsent = 0;
        let settled = self.work(ledger, hands, &waiting, &mut progress).await;
        if !matches!(settled, Settled::Still) {
            self.lock().remove(&waiting.key);
        }
        settled
    }

    async fn work(
        &self,
        ledger: &Ledger,
        hands: &Hands,
        waiting: &Waiting<'_>,
        progress: &mut Progress,
    ) -> Settled {
        loop {
            let Some(unsettled) = ledger.book.unsettled(waiting.key) else {
                return Settled::Elsewhere;
            };
            let now = Instant::now();
            let mut may = hands.may;
            let arguments = again(waiting, &unsettled, progress, &may);
            if arguments.is_none() {
                may.window = None;
            }
            let known = progress.arguments.clone();
            let about = known.or_else(|| same(waiting, &unsettled).cloned());
            if about.is_none() {
                may.query = None;
            }
            let end = match next_step(progress, &may, now) {
                Step::Person => return Settled::Still,
                Step::Wait(due) if due + LEAST > waiting.until => return Settled::Still,
                Step::Wait(due) => {
                    wait(due).await;
                    continue;
                }
                Step::Resend | Step::Query if now + LEAST > waiting.until => return Settled::Still,
                Step::Resend => {
                    let mut call = again_as(waiting, arguments);
                    call.sent_key = Some(ledger.derived_key(&waiting.key, unsettled.occurrence));
                    resent((hands.resend)(call).await, progress).map(|end| (end, "resend"))
                }
                Step::Query => {
                    let mut call = again_as(waiting, about);
                    call.sent_key = Some(ledger.derived_key(&waiting.key, unsettled.occurrence));
                    let asked = (hands.query)(call).await;
                    answered(asked, progress, hands).map(|end| (end, "status_query"))
                }
            };
            let Some((end, by)) = end else { continue };
            if ledger.book.upgrade(waiting.key, &end, by).await {
                (hands.upgraded)(by);
                return Settled::Known(end);
            }
            // Known here and not on record is not known.
            let unsettled = ledger.book.unsettled(waiting.key).is_some();
            return if unsettled { Settled::Still } else { Settled::Elsewhere };
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a tool is given time before it is asked again")]
async fn wait(until: Instant) {
    tokio::time::sleep_until(until).await;
}

/// The arguments that may be sent under the same key: those that were, else those that mean the same to the byte.
fn again(
    waiting: &Waiting<'_>,
    unsettled: &Unsettled,
    progress: &Progress,
    may: &Remedies,
) -> Option<Arguments> {
    let same = same(waiting, unsettled)?;
    let own = (waiting.sent.is_some() || !may.volatile).then_some(same);
    progress.arguments.as_ref().or(own).cloned()
}

/// The call's own arguments, where they mean what was sent.
fn same<'a>(waiting: &Waiting<'a>, unsettled: &Unsettled) -> Option<&'a Arguments> {
    waiting.call.arguments().filter(|_| waiting.digest == unsettled.digest)
}

fn again_as(waiting: &Waiting<'_>, arguments: Option<Arguments>) -> ToolCall {
    let mut call = waiting.call.clone();
    if let Some(arguments) = arguments {
        call.payload = crate::call::Payload::Arguments(arguments);
    }
    call.deadline = waiting.until;
    call
}

/// Notes what a further sending showed; the end where it is known.
fn resent(resent: Resent, progress: &mut Progress) -> Option<End> {
    progress.sent_at = Instant::now();
    match resent {
        Resent::Known(end) => return Some(end),
        Resent::Unknown { message, stored } => {
            progress.resends += 1;
            progress.no_more = stored && message == progress.last;
            progress.last = message;
        }
        Resent::Refused => {
            progress.resends += 1;
            progress.no_more = true;
        }
        Resent::NotSent => progress.unsent += 1,
        Resent::NotNow => progress.unsent = MAX_UNSENT,
    }
    None
}

/// Notes what the read showed; the end where it is known.
fn answered(asked: Asked, progress: &mut Progress, hands: &Hands) -> Option<End> {
    let now = Instant::now();
    progress.queries += 1;
    progress.asked_at = Some(now);
    match asked {
        Asked::Executed => return Some(End::Executed(None)),
        Asked::NotExecuted if progress.absent_since.is_some() => {
            return Some((hands.not_executed)());
        }
        Asked::NotExecuted => progress.absent_since = Some(now),
        Asked::Both => progress.contradiction = true,
        Asked::Neither | Asked::NoAnswer => progress.absent_since = None,
    }
    None
}

#[cfg(test)]
mod tests;
