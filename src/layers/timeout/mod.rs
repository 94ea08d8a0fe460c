//! One timer an attempt, the only layer that ends one early. A read is cancelled; a write is no longer waited for.
//!
//! The back end marks phases, the timer is armed anew from them: connect, first byte, idle, and the total always.
//! Nothing extends the total: no progress note, no drip, no interim answer.

mod attempt;
mod body;

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tower::{Layer, Service};

pub use attempt::Attempts;
use attempt::Begun;

use crate::call::code::FailCode;
use crate::call::{
    Class, Delivery, ErrorClass, Evidence, Failed, Payload, Phase, Place, Progress, Sending,
    TimedOutBy, ToolCall, ToolResult, Turn, Verdict,
};
use crate::policy::quantity::spell;
use crate::policy::snapshot::Timeouts;

/// An attempt at the tool.
type Exchange = Pin<Box<dyn Future<Output = Result<ToolResult, Failed>> + Send>>;
/// Who is told when the answer of a write comes after all.
pub type LateAnswer = Arc<dyn Fn(&Sending, Result<ToolResult, Failed>) + Send + Sync>;

/// What happens to an attempt whose time is over.
#[derive(Clone)]
pub enum Then {
    /// Reads: dropped; the back end's guard tells the tool as its protocol allows.
    Cancel,
    /// Writes that may be under way: listened to for a while longer, in a task that shutdown waits for.
    Drain { limit: Duration, tasks: TaskTracker, late: LateAnswer },
}

impl fmt::Debug for Then {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Then::Cancel => "Cancel",
            Then::Drain { .. } => "Drain",
        })
    }
}

#[derive(Debug, Clone)]
pub struct TimeoutLayer {
    pub limits: Timeouts,
    pub then: Then,
    pub attempts: Arc<Attempts>,
}

impl<S> Layer<S> for TimeoutLayer {
    type Service = Timeout<S>;
    fn layer(&self, inner: S) -> Timeout<S> {
        Timeout { with: Arc::new(self.clone()), inner }
    }
}

#[derive(Debug, Clone)]
pub struct Timeout<S> {
    with: Arc<TimeoutLayer>,
    inner: S,
}

impl<S> Service<ToolCall> for Timeout<S>
where
    S: Service<ToolCall, Response = ToolResult, Error = Failed>,
    S::Future: Future<Output = Result<ToolResult, Failed>> + Send + 'static,
{
    type Response = ToolResult;
    type Error = Failed;
    type Future = Exchange;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut call: ToolCall) -> Exchange {
        let progress = Progress::start();
        call.progress = Some(progress.clone());
        let begun = self.with.attempts.begin(&call, progress);
        let place = call.place.clone();
        let exchange: Exchange = Box::pin(self.inner.call(call));
        let with = self.with.clone();
        Box::pin(async move {
            let ended = with.wait(&begun, place, exchange).await;
            match &ended {
                Ok(result) if result.arriving().is_some() => {
                    body::limited(&with, begun, result);
                }
                Ok(_) | Err(_) => begun.end(&ended),
            }
            ended
        })
    }
}

impl TimeoutLayer {
    /// Waits for the exchange, at most until a limit fires.
    async fn wait(
        &self,
        begun: &Begun,
        place: Option<Place>,
        mut exchange: Exchange,
    ) -> Result<ToolResult, Failed> {
        let (call, progress) = (begun.call(), begun.progress());
        let outer = outer_limit(call);
        let (mut at, mut by) = next_limit(&self.limits, progress, outer);
        #[expect(clippy::disallowed_methods, reason = "the one timer of an attempt")]
        let mut timer = pin!(tokio::time::sleep_until(at));
        loop {
            tokio::select! {
                biased;
                ended = &mut exchange => return ended,
                () = progress.marked() => {}
                () = &mut timer => {
                    // A mark and the timer may come in one instant: the mark counts.
                    if next_limit(&self.limits, progress, outer).0 <= at {
                        break;
                    }
                }
            }
            (at, by) = next_limit(&self.limits, progress, outer);
            timer.as_mut().reset(at);
        }
        // Without a sending that may be under way nothing holds the place any more.
        let call = ToolCall { place, ..call.clone() };
        self.expired(call, progress, by, exchange)
    }

    /// Time is over: what is known of the exchange, and what becomes of it.
    fn expired(
        &self,
        call: ToolCall,
        progress: &Progress,
        by: TimedOutBy,
        exchange: Exchange,
    ) -> Result<ToolResult, Failed> {
        let sent = match &call.send_gate {
            // True = it never opened and never will: provably not sent, whatever the phase says.
            Some(gate) => !gate.withdraw(),
            None => progress.phase() >= Phase::Sending,
        };
        let health = self.health(&call, progress, by);
        let limit = self.limit(by, call.deadline.saturating_duration_since(progress.started()));
        let failed = failure(progress, by, &limit, sent, health);
        let settled = progress.if_cut().filter(|_| sent).and_then(|cut| self.settled(cut, &failed));
        if sent {
            // Only an end that nobody knows may be changed by a late answer: what the head settled frees or ends
            // the operation, and the entry may be another attempt's by then.
            let open = settled.as_ref().is_none_or(|cut| cut.delivery == Delivery::Unknown);
            self.part(call, exchange, open);
        }
        Err(settled.unwrap_or(failed))
    }

    /// The head came and the body did not: the status stands, and a write that succeeded has lost its result. A
    /// read whose success never ended has simply run out of time.
    fn settled(&self, cut: Failed, late: &Failed) -> Option<Failed> {
        match (&self.then, cut.delivery) {
            (Then::Cancel, Delivery::Done) => None,
            (Then::Drain { .. }, Delivery::Done) => Some(Failed {
                health: late.health,
                error_class: late.error_class,
                timed_out_by: late.timed_out_by,
                ..cut
            }),
            (
                Then::Cancel | Then::Drain { .. },
                Delivery::NotSent | Delivery::Refused | Delivery::Unknown,
            ) => Some(Failed { timed_out_by: late.timed_out_by, ..cut }),
        }
    }

    /// A read is cut here; a write that may be under way goes on, its place with it. `open`: its end is not known.
    fn part(&self, call: ToolCall, exchange: Exchange, open: bool) {
        let Then::Drain { limit, tasks, late } = &self.then else { return };
        let Some(entry) = call.entry else { return };
        let (limit, late, place) = (*limit, late.clone(), call.place);
        crash_point!("timeout: nobody waits any more");
        tasks.spawn(async move {
            let answered = tokio::time::timeout(limit, exchange).await;
            drop(place);
            crash_point!("timeout: the drain has ended");
            if let (Ok(ended), true) = (answered, open) {
                // A late answer changes an unknown entry and no other, so the entry's first end comes first.
                entry.ended.cancelled().await;
                crash_point!("timeout: before the late answer is told");
                late(&entry.sending, ended);
            }
        });
    }

    /// The tool's own limits say that it is ill. An outer deadline says so only when it left at least half of what
    /// the tool may take; time spent waiting for our own ledger never does.
    fn health(&self, call: &ToolCall, progress: &Progress, by: TimedOutBy) -> Verdict {
        // The client's turn to send: it is no fault of the tool's that there was nothing to answer.
        let at_the_client = matches!(&call.payload, Payload::Request(request) if request.turn() == Some(Turn::Client));
        let at_our_gate = call.send_gate.is_some() && progress.phase() == Phase::Connected;
        let allowed = call.deadline.saturating_duration_since(progress.started());
        match by {
            _ if at_our_gate || at_the_client => Verdict::Neutral,
            TimedOutBy::Connect | TimedOutBy::FirstByte | TimedOutBy::Idle | TimedOutBy::Total => {
                Verdict::Bad
            }
            TimedOutBy::Loop | TimedOutBy::Call | TimedOutBy::Run
                if allowed < self.limits.total / 2 =>
            {
                Verdict::Neutral
            }
            TimedOutBy::Loop | TimedOutBy::Call | TimedOutBy::Run => Verdict::Bad,
        }
    }

    /// The limit that fired, in words: how long, and which.
    fn limit(&self, by: TimedOutBy, left: Duration) -> String {
        let left = || spell_up(left);
        match by {
            TimedOutBy::Connect => format!("its limit of {} (connect)", spell(self.limits.connect)),
            TimedOutBy::FirstByte => {
                format!("its limit of {} (first byte)", spell(self.limits.first_byte))
            }
            TimedOutBy::Idle => format!("its limit of {} (idle)", spell(self.limits.idle)),
            TimedOutBy::Total => format!("its limit of {} (total)", spell(self.limits.total)),
            TimedOutBy::Loop => format!("the {} left for all its attempts", left()),
            TimedOutBy::Call => format!("the {} left of the call's time", left()),
            TimedOutBy::Run => format!("the {} left of the run's time", left()),
        }
    }
}

fn failure(
    progress: &Progress,
    by: TimedOutBy,
    limit: &str,
    sent: bool,
    health: Verdict,
) -> Failed {
    let (code, delivery, evidence, message) = if sent {
        let message = format!("the tool did not answer within {limit}");
        (FailCode::UpstreamTimeout, Delivery::Unknown, None, message)
    } else {
        let message = format!("the tool could not be reached within {limit}");
        (FailCode::UpstreamUnreachable, Delivery::NotSent, Some(Evidence::ConnectFailed), message)
    };
    let mut failed = Failed::new(code, Class::Transient, delivery, health, message);
    failed.evidence = evidence;
    failed.timed_out_by = Some(by);
    failed.error_class = match by {
        _ if progress.phase() < Phase::Connected => ErrorClass::TimeoutConnect,
        TimedOutBy::Connect => ErrorClass::TimeoutConnect,
        TimedOutBy::FirstByte => ErrorClass::TimeoutFirstByte,
        TimedOutBy::Idle
        | TimedOutBy::Total
        | TimedOutBy::Loop
        | TimedOutBy::Call
        | TimedOutBy::Run => ErrorClass::TimeoutTotal,
    };
    failed
}

/// To the next whole millisecond: "0s left" would be no limit at all.
fn spell_up(time: Duration) -> String {
    spell(time.saturating_add(Duration::from_nanos(999_999)))
}

/// The deadline outside of the attempt, and whose it is.
fn outer_limit(call: &ToolCall) -> (Instant, TimedOutBy) {
    (call.deadline, call.trace.note().deadline_of.unwrap_or(TimedOutBy::Call))
}

/// The limit that fires first of a body whose next bytes are awaited since then, and its name.
fn of_body(
    limits: &Timeouts,
    (started, since): (Instant, Instant),
    outer: (Instant, TimedOutBy),
) -> (Instant, TimedOutBy) {
    let idle = (since + limits.idle, TimedOutBy::Idle);
    let total = (started + limits.total, TimedOutBy::Total);
    [idle, total, outer].into_iter().min_by_key(|(at, _)| *at).unwrap_or(total)
}

/// The limit that fires first from where the attempt stands, and its name; on a tie the tool's own.
fn next_limit(
    limits: &Timeouts,
    progress: &Progress,
    outer: (Instant, TimedOutBy),
) -> (Instant, TimedOutBy) {
    let started = progress.started();
    let since = |phase| started + progress.reached(phase).unwrap_or_default();
    let phase = progress.phase();
    let of_phase = match phase {
        Phase::Connecting => Some((started + limits.connect, TimedOutBy::Connect)),
        // Between connect and send stands the send gate: its time counts in the total only.
        Phase::Connected | Phase::Ended => None,
        Phase::Sending | Phase::FirstByte | Phase::Progress => {
            Some((since(phase) + limits.idle, TimedOutBy::Idle))
        }
        Phase::Written => Some((since(phase) + limits.first_byte, TimedOutBy::FirstByte)),
    };
    let total = (started + limits.total, TimedOutBy::Total);
    [of_phase, Some(total), Some(outer)]
        .into_iter()
        .flatten()
        .min_by_key(|(at, _)| *at)
        .unwrap_or(total)
}
