//! Makes a write's intent durable before its first byte, and its end durable before the answer.
//!
//! Innermost, so that a refused call never pays for it and `denied` proves "not sent". Holds the other half of the
//! send gate: the back end connects, asks, and writes only once the intent is on record. [`settle`] is the one place
//! that decides what is known of a write; whatever it cannot prove is unknown.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tower::{Layer, Service};

use super::gate::Answering;
use crate::call::code::{DenyCode, FailCode};
use crate::call::{
    CallError, Class, Consent, Delivery, Denied, EntryOf, Evidence, Failed, IdempotencyKey, Keeper,
    Notes, Outcome, Sending, ToolCall, ToolResult, Trace, Unknown, Verdict, send_gate,
};
use crate::ledger::approvals::Yes;
use crate::ledger::{End, Ledger, LedgerError, Ticket};
use crate::telemetry::metrics::ToolMetrics;

/// When to come back to a ledger that could not be written.
const LEDGER_BACK: Duration = Duration::from_secs(1);
/// Label of an end that nobody knows.
const UNKNOWN: &str = "unknown";

#[derive(Debug, Clone)]
pub struct JournalLayer {
    pub ledger: Arc<Ledger>,
    pub metrics: Arc<ToolMetrics>,
}

impl<S> Layer<S> for JournalLayer {
    type Service = Journal<S>;
    fn layer(&self, inner: S) -> Journal<S> {
        Journal { with: self.clone(), inner }
    }
}

#[derive(Debug, Clone)]
pub struct Journal<S> {
    with: JournalLayer,
    inner: S,
}

impl<S> Service<ToolCall> for Journal<S>
where
    S: Service<ToolCall, Response = ToolResult, Error = Failed>,
    S::Future: Future<Output = Result<ToolResult, Failed>> + Send + 'static,
{
    type Response = ToolResult;
    type Error = CallError;
    type Future = Answering;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut call: ToolCall) -> Answering {
        // Only a ticket may send. `replay` made it; without one there is nothing to record the write under.
        let Some(ticket) = call.handoff.take().and_then(|handoff| handoff.take::<Ticket>()) else {
            let mut failed = Failed::internal("a write came to the journal without a claim");
            failed.delivery = Delivery::NotSent;
            return Box::pin(std::future::ready(Err(failed.into())));
        };
        let trace = call.trace.clone();
        let (gate, keeper) = send_gate();
        let ended = CancellationToken::new();
        call.send_gate = Some(gate);
        call.sent_key = Some(self.with.ledger.derived_key(&ticket.key(), ticket.occurrence()));
        call.entry = Some(EntryOf {
            sending: ticket.sending(),
            ended: ended.clone(),
            under_way: self.with.ledger.exchange(&ticket),
            task: self.with.ledger.task_keeper(&ticket),
        });
        let consent = call.consent.take();
        let attempt = self.inner.call(call);
        let with = self.with.clone();
        Box::pin(async move {
            // Told also when this future is dropped: a late answer then finds whatever the ledger made of that.
            let _ended = ended.drop_guard();
            with.write(ticket, &keeper, &trace, consent, attempt).await
        })
    }
}

/// What became of the gate.
enum Gate {
    /// Nobody asked, or it was withdrawn: nothing was sent.
    NeverOpened,
    /// The intent is on record; bytes may be out.
    Opened,
    /// The intent could not be recorded, so it stayed shut.
    Unrecorded(LedgerError),
}

impl JournalLayer {
    async fn write(
        &self,
        ticket: Ticket,
        keeper: &Keeper,
        trace: &Trace,
        consent: Option<Consent>,
        attempt: impl Future<Output = Result<ToolResult, Failed>>,
    ) -> Outcome {
        let lost = LostSight { metrics: &self.metrics, trace, known: false };
        let (gate, ended) = {
            let mut attempt = pin!(attempt);
            let mut keeping = pin!(self.keep(&ticket, keeper, trace, consent.as_ref()));
            // The attempt goes on while the intent is being recorded: its timer must not stand still. The gate is
            // looked at first, so that an end is never read without knowing whether it had opened.
            let mut gate = Gate::NeverOpened;
            let mut asked = false;
            let ended = loop {
                tokio::select! {
                    biased;
                    kept = &mut keeping, if !asked => { gate = kept; asked = true; }
                    ended = &mut attempt => break ended,
                }
            };
            (gate, ended)
        };
        let sent = match gate {
            Gate::NeverOpened => false,
            Gate::Opened => true,
            Gate::Unrecorded(error) => {
                trace.note().rule = Some("ledger".into());
                return Err(unavailable(&error).into());
            }
        };
        crash_point!("journal: the attempt has ended");
        lost.end_is_known();
        self.finish(ticket, sent, trace, ended).await
    }

    /// The keeper's part: waits for the back end's question, records the intent, opens.
    async fn keep(
        &self,
        ticket: &Ticket,
        keeper: &Keeper,
        trace: &Trace,
        consent: Option<&Consent>,
    ) -> Gate {
        if !keeper.asked().await {
            return Gate::NeverOpened;
        }
        crash_point!("journal: asked");
        let yes = consent.and_then(Consent::get::<Yes>);
        if let Err(error) = self.ledger.intend(ticket, yes).await {
            keeper.shut(not_sent("the write could not be recorded"));
            return Gate::Unrecorded(error);
        }
        // Noted before the gate opens: whoever reads it later never takes a sent write for an unsent one.
        trace.note().sent = true;
        crash_point!("journal: before the gate opens");
        if keeper.open() {
            crash_point!("journal: the gate is open");
            Gate::Opened
        } else {
            trace.note().sent = false;
            Gate::NeverOpened
        }
    }

    async fn finish(
        &self,
        ticket: Ticket,
        sent: bool,
        trace: &Trace,
        mut ended: Result<ToolResult, Failed>,
    ) -> Outcome {
        let key = ticket.key();
        if let Ok(ToolResult { notes: Notes { asks: Some(asks), .. }, .. }) = &mut ended {
            asks.occurrence = ticket.occurrence();
        }
        let (end, mut outcome) = settle(key, sent, ended);
        let mut known = true;
        if let End::NotExecuted(failed, _) = &end
            && ticket.may_have_happened()
        {
            // It did not go on; what the tool had done when it asked nobody knows.
            outcome = Err(unknown(key, failed).into());
            known = false;
        }
        let evidence = match &end {
            End::NotExecuted(_, evidence) => Some(evidence.to_string()),
            End::Asked { after_acting: false, .. } => Some(Evidence::InputRequired.to_string()),
            End::Executed(_)
            | End::ExecutedWithError(_)
            | End::Unknown(_)
            | End::Asked { after_acting: true, .. } => None,
        };
        let (ended, evidence) = match known {
            true => (name(&end), evidence),
            false => (UNKNOWN, None),
        };
        match self.ledger.finish(ticket, end).await {
            // Fail closed at the end as at the start. The entry stays an intent without an end; what the tool said
            // is told to the log alone, for whoever checks.
            Err(error) if sent => {
                tracing::error!(operation = %key.id(), %ended, %error, "the end of a write is not on record");
                self.metrics.write_end(UNKNOWN);
                Err(unknown(key, &Failed::internal(format!("sent, but {error}"))).into())
            }
            // Not sent is not sent, whether or not it is written down: no intent means as much.
            Ok(()) | Err(_) => {
                self.metrics.write_end(ended);
                trace.note().evidence = evidence;
                outcome
            }
        }
    }
}

/// What is known of a write that ended so: its entry, and what the agent is told. Never `Denied`.
///
/// `sent` is whether the send gate opened. Where it did not, nothing was sent, whatever the failure calls itself;
/// where it did, only named evidence makes a write "not executed".
pub fn settle(
    key: IdempotencyKey,
    sent: bool,
    ended: Result<ToolResult, Failed>,
) -> (End, Outcome) {
    let failed = match ended {
        Ok(result) => {
            let end = match result.notes.asks {
                Some(asks) => asked_for_input(&result, asks.after_acting),
                None => End::Executed(Some(result.clone())),
            };
            return (end, Ok(result));
        }
        Err(failed) => failed,
    };
    if !sent {
        let evidence = failed.evidence.unwrap_or(Evidence::ConnectFailed);
        let failed = Failed { delivery: Delivery::NotSent, evidence: Some(evidence), ..failed };
        return (End::NotExecuted(failed.clone(), evidence), Err(failed.into()));
    }
    match (failed.delivery, failed.evidence) {
        (Delivery::NotSent | Delivery::Refused, Some(evidence)) => {
            (End::NotExecuted(failed.clone(), evidence), Err(failed.into()))
        }
        (Delivery::Done, _) => (executed(&failed), Err(failed.into())),
        (Delivery::NotSent | Delivery::Refused, None) | (Delivery::Unknown, _) => {
            let unknown = unknown(key, &failed);
            (End::Unknown(failed), Err(unknown.into()))
        }
    }
}

/// The server wants to be asked again with what it asks for: until then it has done nothing, unless the policy says that
/// it may have, and a call that never goes on has not happened.
fn asked_for_input(result: &ToolResult, after_acting: bool) -> End {
    let (delivery, evidence) = match after_acting {
        true => (Delivery::Unknown, None),
        false => (Delivery::Refused, Some(Evidence::InputRequired)),
    };
    let words = "the tool asked for input, and the call did not go on";
    let (code, class) = (FailCode::ToolError, Class::Permanent);
    let why = Failed { evidence, ..Failed::new(code, class, delivery, Verdict::Neutral, words) };
    End::Asked { result: Box::new(result.clone()), why, after_acting }
}

/// It happened. A tool's own error is its answer and is kept; a result that was lost, too large or withheld is not.
fn executed(failed: &Failed) -> End {
    if failed.code == FailCode::ToolError {
        End::ExecutedWithError(failed.clone())
    } else {
        End::Executed(None)
    }
}

fn unknown(key: IdempotencyKey, failed: &Failed) -> Unknown {
    Unknown { key, operation: key.id(), health: failed.health, message: failed.message.clone() }
}

/// The answer of a write that was no longer waited for: unknown → executed or not executed, nothing else. It speaks
/// of its own sending: one that was freed meanwhile and sent anew is another.
pub fn late_answer(
    ledger: Arc<Ledger>,
    metrics: Arc<ToolMetrics>,
) -> impl Fn(&Sending, Result<ToolResult, Failed>) + Send + Sync + 'static {
    move |sending, ended| {
        let key = &sending.key;
        // It was drained because its gate had opened.
        let (end, _) = settle(*key, true, ended);
        let resolution = match &end {
            End::Executed(_) | End::ExecutedWithError(_) => "happened",
            End::NotExecuted(..) | End::Asked { after_acting: false, .. } => "did_not_happen",
            End::Unknown(_) | End::Asked { after_acting: true, .. } => return,
        };
        let ended = name(&end);
        let changed = ledger.late(sending, end);
        crash_point!("journal: the late answer is handed in");
        if changed {
            metrics.write_upgrade("late_answer");
            metrics.review_resolved(resolution, "late_answer");
            tracing::info!(operation = %key.id(), ended, "an unknown write became known: the tool answered late");
        }
    }
}

fn name(end: &End) -> &'static str {
    match end {
        End::Executed(_) | End::ExecutedWithError(_) => "executed",
        End::NotExecuted(..) | End::Asked { after_acting: false, .. } => "not_executed",
        End::Unknown(_) | End::Asked { after_acting: true, .. } => UNKNOWN,
    }
}

/// Counts the end of a write that was sent and then lost from sight: a panic of ours, or the runtime went away. Its
/// entry is unknown by then, because its ticket was dropped after the intent.
struct LostSight<'a> {
    metrics: &'a ToolMetrics,
    trace: &'a Trace,
    known: bool,
}

impl LostSight<'_> {
    fn end_is_known(mut self) {
        self.known = true;
    }
}

impl Drop for LostSight<'_> {
    fn drop(&mut self) {
        if !self.known && self.trace.note().sent {
            self.metrics.write_end(UNKNOWN);
        }
    }
}

fn not_sent(message: &'static str) -> Failed {
    Failed { delivery: Delivery::NotSent, ..Failed::internal(message) }
}

fn unavailable(error: &LedgerError) -> Denied {
    let message = format!("writes are refused for now: {error}");
    Denied::new(DenyCode::LedgerUnavailable, message).retry_after(LEDGER_BACK)
}

#[cfg(test)]
mod tests;
