//! Settles a write that may have happened, where its tool helps: by the same key sent again, or by asking a read.
//!
//! The only place from which a write is sent a second time. It acts for a call that waits for the outcome, one call at
//! a time for one operation; on its own, after a start, it only asks. Order: late answer (which may come meanwhile),
//! the key again, the question, a person.

mod step;
mod task;

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::{End, Ledger};
use crate::call::{
    Arguments, Digest, IdempotencyKey, Payload, Sending, TaskOf, ToolCall, ToolName, ToolResult,
};
use crate::telemetry::record::wall_clock;
pub use step::{
    MAX_HELD, Progress, Query, RESENDS_A_WRITE, RESENDS_AN_ASKING, Remedies, Step, next_step,
};
pub use task::{Followed, Shown};

/// Least time that makes a further sending worth starting.
const LEAST: Duration = Duration::from_millis(250);
/// Unsettled writes whose progress is kept; past it the rest is left to a person.
const MAX_RECORDS: usize = 10_000;

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
    /// Nothing went out, for want of a connection.
    NotSent,
    /// Nothing went out: a limit of the gateway's own, which lasts so long.
    Held(Option<Duration>),
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
    /// It says no, and the write's own exchange is still under way.
    TooEarly,
    /// The read itself failed.
    NoAnswer,
    /// It was not asked: a limit of the gateway's own, which lasts so long.
    Held(Option<Duration>),
}

pub type Doing<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Asks a server for the task of one write.
pub type AskTask = Box<dyn Fn(IdempotencyKey, TaskOf) -> Doing<Shown> + Send + Sync>;

/// The ways to the tool, made where stacks are.
pub struct Hands {
    pub may: Remedies,
    pub resend: Box<dyn Fn(ToolCall) -> Doing<Resent> + Send + Sync>,
    pub query: Box<dyn Fn(ToolCall) -> Doing<Asked> + Send + Sync>,
    /// Of a tool that may answer with tasks: asks once what became of one. Nothing is ever sent by it.
    pub task: Option<AskTask>,
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
#[derive(Debug, Clone)]
pub(super) struct Unsettled {
    pub(super) sending: Sending,
    pub(super) digest: Digest,
    pub(super) since: SystemTime,
    /// What was sent, unless it was too long to keep.
    pub(super) arguments: Option<Arguments>,
    pub(super) tool: ToolName,
    /// The task that the tool answered with.
    pub(super) task: Option<TaskOf>,
}

/// An unknown write that an earlier process left.
#[derive(Debug, Clone)]
pub struct Left {
    pub key: IdempotencyKey,
    pub tool: ToolName,
    pub digest: Digest,
    pub arguments: Arguments,
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
    /// Nobody waits for the outcome, so nothing is sent: the question alone.
    pub only_ask: bool,
}

impl Waiting<'_> {
    /// No try is begun past it.
    fn begin_by(&self) -> Instant {
        match self.only_ask {
            true => self.until,
            false => self.until.min(Instant::now() + MAX_HELD),
        }
    }
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
        may: &Remedies,
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
        let noted = age.and_then(|age| now.checked_sub(age.saturating_add(may.lag)));
        let first = waiting.sent.or(noted);
        let mut progress = Progress::new(first.unwrap_or(now), now);
        // A clock that was set back says nothing of the window, so it may be over.
        progress.no_more = first.is_none();
        progress.said = waiting.said.unwrap_or_default().to_owned();
        if waiting.sent.is_none() {
            // Whose exchange that was, and whether its tool still works on it, cannot be seen from here.
            let left = may.drain.saturating_sub(age.unwrap_or_default());
            progress.no_counts_from = now.checked_add(left);
        }
        let record = Arc::new(tokio::sync::Mutex::new(progress));
        records.insert(waiting.key, (unsettled.since, record.clone()));
        Some(record)
    }

    /// Does what can be done about an unknown write until it is known, nothing more helps, or time is over. An answer
    /// that was lost is fetched where the key allows.
    pub async fn settle(&self, ledger: &Ledger, hands: &Hands, waiting: Waiting<'_>) -> Settled {
        let Some(unsettled) = ledger.book.unsettled(waiting.key) else { return Settled::Elsewhere };
        let begin_by = waiting.begin_by();
        // A handle is the nearest to the truth. Whoever began the task has asked for it as long as there was time.
        if let (Some(of), Some(_), None) = (&unsettled.task, &hands.task, waiting.sent) {
            let about = (unsettled.sending, of);
            if let Some(settled) = task::settle(ledger, hands, about, begin_by).await {
                return settled;
            }
        }
        if hands.may.window.is_none() && hands.may.query.is_none() {
            return Settled::Still;
        }
        let Some(record) = self.record(&waiting, &unsettled, &hands.may) else {
            return Settled::Still;
        };
        let Ok(mut progress) = tokio::time::timeout_at(begin_by, record.lock()).await else {
            return Settled::Still;
        };
        progress.asked_again();
        let about = unsettled.sending;
        let mut settled = work(ledger, hands, (&waiting, about), (&mut progress, begin_by)).await;
        // Who asks in earnest has all tries, whatever was asked for nobody.
        if waiting.only_ask || !matches!(settled, Settled::Still) {
            self.lock().remove(&waiting.key);
        }
        let fetch = !waiting.only_ask && !progress.no_more;
        if let Settled::Known(End::Executed(None)) = settled
            && fetch
            && let Some(result) = fetch_by(ledger, hands, &waiting, (&progress, begin_by)).await
        {
            settled = Settled::Known(End::Executed(Some(result)));
        }
        settled
    }

    /// The answer of a write whose head said that it happened and whose body was cut: the same key once more, where
    /// the tool recognises it. `None`: it stays lost.
    pub async fn fetch(
        &self,
        ledger: &Ledger,
        hands: &Hands,
        waiting: Waiting<'_>,
    ) -> Option<ToolResult> {
        let now = Instant::now();
        let progress = Progress::new(waiting.sent?, now);
        fetch_by(ledger, hands, &waiting, (&progress, waiting.begin_by())).await
    }
}

/// Until that very sending is settled: one that was freed meanwhile and sent anew is not judged by what the tool
/// said of the first.
async fn work(
    ledger: &Ledger,
    hands: &Hands,
    (waiting, about): (&Waiting<'_>, Sending),
    (progress, begin_by): (&mut Progress, Instant),
) -> Settled {
    loop {
        let Some(unsettled) = still(ledger, about) else { return Settled::Elsewhere };
        let mut may = hands.may;
        let arguments = again(waiting, &unsettled, &may);
        // What began a task would begin another one.
        if arguments.is_none() || unsettled.task.is_some() {
            may.window = None;
        }
        let known = unsettled.arguments.clone().or_else(|| same(waiting, &unsettled).cloned());
        if known.is_none() {
            may.query = None;
        }
        let now = Instant::now();
        let end = match next_step(progress, &may, now) {
            Step::Person => return Settled::Still,
            Step::Wait(due) if due + LEAST > begin_by => return Settled::Still,
            Step::Wait(due) => {
                wait(due).await;
                continue;
            }
            Step::Resend | Step::Query if now + LEAST > begin_by => return Settled::Still,
            Step::Resend => {
                let call = again_as(ledger, waiting, about.occurrence, arguments);
                crash_point!("resolver: before the key is sent again");
                let sent_again = (hands.resend)(call).await;
                crash_point!("resolver: after the key was sent again");
                resent(sent_again, progress).map(|end| (end, "resend"))
            }
            Step::Query => {
                let call = again_as(ledger, waiting, about.occurrence, known);
                crash_point!("resolver: before the question");
                let asked = (hands.query)(call).await;
                crash_point!("resolver: after the question");
                answered(early(asked, ledger, about, progress), progress, hands)
                    .map(|end| (end, "status_query"))
            }
        };
        let Some((end, by)) = end else { continue };
        let on_record = ledger.book.upgrade(about, &end, by).await;
        crash_point!("resolver: what it found is on record");
        if on_record {
            (hands.upgraded)(by);
            return Settled::Known(end);
        }
        // Known here and not on record is not known.
        return if still(ledger, about).is_some() { Settled::Still } else { Settled::Elsewhere };
    }
}

/// A "no" while the write may still be at the tool is no answer yet: a slow tool would do it afterwards.
fn early(asked: Asked, ledger: &Ledger, about: Sending, progress: &Progress) -> Asked {
    let before = progress.no_counts_from.is_some_and(|from| Instant::now() < from);
    let no = asked == Asked::NotExecuted;
    if no && (before || ledger.exchanges.under_way(&about)) { Asked::TooEarly } else { asked }
}

/// The sending, as long as nobody knows what became of it.
fn still(ledger: &Ledger, about: Sending) -> Option<Unsettled> {
    ledger.book.unsettled(about.key).filter(|unsettled| unsettled.sending == about)
}

/// One sending that reaches the tool, whatever comes of it. What it brings is on record before it is told.
async fn fetch_by(
    ledger: &Ledger,
    hands: &Hands,
    waiting: &Waiting<'_>,
    (progress, begin_by): (&Progress, Instant),
) -> Option<ToolResult> {
    let lost = ledger.book.lost(waiting.key).filter(|lost| lost.digest == waiting.digest)?;
    // What differs where operations do not was sent by this very call, or is not sent again.
    if hands.may.volatile && waiting.sent.is_none() {
        return None;
    }
    let mut limits = Progress::new(progress.first_sent, Instant::now());
    loop {
        let now = Instant::now();
        let may = Remedies { query: None, ..hands.may };
        match next_step(&limits, &may, now) {
            Step::Wait(due) if due + LEAST <= begin_by => wait(due).await,
            Step::Resend if now + LEAST <= begin_by => {
                let call = again_as(ledger, waiting, lost.occurrence, None);
                match (hands.resend)(call).await {
                    Resent::Known(End::Executed(Some(result))) => {
                        ledger.book.found(lost, &result).await;
                        return Some(result);
                    }
                    Resent::Held(wait) => limits.wait_out(wait),
                    Resent::Known(_)
                    | Resent::Unknown { .. }
                    | Resent::Refused
                    | Resent::NotSent
                    | Resent::NotNow => return None,
                }
            }
            Step::Wait(_) | Step::Resend | Step::Query | Step::Person => return None,
        }
    }
}

/// For the next try, and for nothing else.
#[expect(clippy::disallowed_methods, reason = "a tool is given time before it is asked again")]
pub async fn wait(until: Instant) {
    tokio::time::sleep_until(until).await;
}

/// The arguments that may be sent under the same key: those that were, else those that mean the same to the byte.
fn again(waiting: &Waiting<'_>, unsettled: &Unsettled, may: &Remedies) -> Option<Arguments> {
    if waiting.only_ask {
        return None;
    }
    let same = same(waiting, unsettled)?;
    let own = (waiting.sent.is_some() || !may.volatile).then_some(same);
    match &waiting.call.payload {
        // What is kept of a request is what rules saw of it; only the client brings its bytes.
        Payload::Request(_) => own.cloned(),
        Payload::Arguments(_) | Payload::Malformed(_) | Payload::Unsupported { .. } => {
            unsettled.arguments.as_ref().or(own).cloned()
        }
    }
}

/// The call's own arguments, where they mean what was sent.
fn same<'a>(waiting: &Waiting<'a>, unsettled: &Unsettled) -> Option<&'a Arguments> {
    waiting.call.arguments().filter(|_| waiting.digest == unsettled.digest)
}

fn again_as(
    ledger: &Ledger,
    waiting: &Waiting<'_>,
    occurrence: u32,
    arguments: Option<Arguments>,
) -> ToolCall {
    let mut call = waiting.call.clone();
    if let (Some(arguments), Payload::Arguments(_)) = (arguments, &call.payload) {
        call.payload = Payload::Arguments(arguments);
    }
    call.deadline = waiting.until;
    call.sent_key = Some(ledger.derived_key(&waiting.key, occurrence));
    call
}

/// Notes what a further sending showed; the end where it is known.
fn resent(resent: Resent, progress: &mut Progress) -> Option<End> {
    match resent {
        Resent::Held(wait) => {
            progress.wait_out(wait);
            return None;
        }
        Resent::NotNow => {
            progress.not_now = true;
            return None;
        }
        Resent::Known(end) => return Some(end),
        Resent::Unknown { message, stored } => {
            progress.resends += 1;
            if stored {
                progress.no_more = message == progress.said;
                progress.said = message;
            }
        }
        Resent::Refused => {
            progress.resends += 1;
            progress.no_more = true;
        }
        Resent::NotSent => {}
    }
    progress.sent_at = Instant::now();
    progress.tried();
    None
}

/// Notes what the read showed; the end where it is known.
fn answered(asked: Asked, progress: &mut Progress, hands: &Hands) -> Option<End> {
    let now = Instant::now();
    if let Asked::Held(wait) = asked {
        progress.wait_out(wait);
        return None;
    }
    progress.asked_at = Some(now);
    if asked == Asked::TooEarly {
        progress.absent_since = None;
        progress.early = progress.early.saturating_add(1).min(8);
        return None;
    }
    progress.queries += 1;
    match asked {
        Asked::Executed => return Some(End::Executed(None)),
        Asked::NotExecuted if progress.absent_since.is_some() => {
            return Some((hands.not_executed)());
        }
        Asked::NotExecuted => progress.absent_since = Some(now),
        Asked::Both => progress.contradiction = true,
        Asked::Neither | Asked::NoAnswer | Asked::TooEarly | Asked::Held(_) => {
            progress.absent_since = None
        }
    }
    None
}

#[cfg(test)]
mod tests;
