//! Asks the ledger before anything is paid: a finished write answers from it, an unknown one blocks, one in flight
//! is joined. No tool is touched for that, so no token, breaker or place is needed.

use std::collections::HashSet;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt};

use super::gate::{Answering, Below, take_ready};
use super::meaning;
use crate::call::code::{DenyCode, FailCode};
use crate::call::{
    AgentId, CallError, Denied, Detail, Failed, Handoff, Known, Outcome, Source, ToolCall,
    ToolResult,
};
use crate::ledger::resolver::{Hands, Settled, Waiting};
use crate::ledger::{Begin, Intent, Join, Joined, Ledger, Ticket};
use crate::policy::snapshot::{Identical, Tool};
use crate::telemetry::metrics::ToolMetrics;

/// When to come back to a ledger that could not be asked.
const LEDGER_BACK: Duration = Duration::from_secs(1);
/// When to ask again for a write that is still running.
const JOIN_BACK: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct ReplayLayer {
    pub tool: Arc<Tool>,
    pub ledger: Arc<Ledger>,
    pub metrics: Arc<ToolMetrics>,
    /// What helps with this tool's unknown writes.
    pub hands: Option<Arc<Hands>>,
    /// Agents that only rehearse: nothing is sent for them, not even a second time.
    pub rehearsing: Arc<HashSet<AgentId>>,
}

impl<S> Layer<S> for ReplayLayer {
    type Service = Replay<S>;
    fn layer(&self, inner: S) -> Replay<S> {
        Replay { with: self.clone(), inner }
    }
}

fn waiting<'a>(call: &'a ToolCall, intent: &Intent) -> Waiting<'a> {
    Waiting {
        key: intent.operation.key,
        digest: intent.operation.arguments,
        call,
        sent: None,
        said: None,
        until: call.deadline,
        only_ask: false,
    }
}

#[derive(Debug, Clone)]
pub struct Replay<S> {
    with: ReplayLayer,
    inner: S,
}

impl<S: Below> Service<ToolCall> for Replay<S> {
    type Response = ToolResult;
    type Error = CallError;
    type Future = Answering;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, call: ToolCall) -> Answering {
        let inner = take_ready(&mut self.inner);
        let with = self.with.clone();
        Box::pin(async move {
            let intent = with.intent(&call)?;
            call.trace.note().operation = Some(intent.operation.key.id());
            let mut tried = false;
            loop {
                match with.begin(&intent).await? {
                    Begin::Fresh(ticket) => {
                        crash_point!("replay: claimed");
                        return with.fresh(ticket, call, inner, &intent).await;
                    }
                    Begin::Replay(outcome) => return with.replayed(&call, "replay", outcome),
                    Begin::Refused(denied) => match with.settled(&call, &intent, &denied).await {
                        true if !tried => tried = true,
                        true | false => return Err(with.refused(&call, denied).into()),
                    },
                    // Given up before anything was sent: whoever waited may claim it now.
                    Begin::InProgress(join) => match with.joined(&call, join).await {
                        Some(outcome) => return outcome,
                        None => continue,
                    },
                }
            }
        })
    }
}

impl ReplayLayer {
    fn intent(&self, call: &ToolCall) -> Result<Intent, CallError> {
        let Some(intent) = meaning::intent(&self.tool, call) else {
            return Err(Failed::internal("a write without its policy or arguments").into());
        };
        let required = self.tool.write.as_ref().is_some_and(|write| write.caller_key_required);
        if required && call.caller_key.is_none() {
            let message =
                format!("tool {} needs an Idempotency-Key with every call", self.tool.name);
            call.trace.note().rule = Some("write.caller_key".into());
            let denied = Denied::new(DenyCode::InvalidRequest, message);
            // By its fingerprint the operation may be known all the same.
            return Err(match self.ledger.peek(&intent) {
                Some(peeked) => Denied { known: Some(peeked.known), ..denied }
                    .detail(Detail::Operation(intent.operation.key.id())),
                None => denied,
            }
            .into());
        }
        Ok(intent)
    }

    /// Sends it; where it may have happened and the tool helps, settles that before the answer.
    async fn fresh<S: Below>(
        &self,
        ticket: Ticket,
        call: ToolCall,
        inner: S,
        intent: &Intent,
    ) -> Outcome {
        let Some(hands) = self.hands.clone() else { return self.send(ticket, call, inner).await };
        let sent = Instant::now();
        let outcome = self.send(ticket, call.clone(), inner).await;
        let resolver = self.ledger.resolver();
        let waiting = Waiting { sent: Some(sent), ..waiting(&call, intent) };
        let unknown = match &outcome {
            Err(CallError::Unknown(unknown)) => unknown,
            // It happened, and the body was cut: a tool that recognises the key has it still.
            Err(CallError::Failed(failed)) if failed.code == FailCode::ResultLost => {
                let fetched = resolver.fetch(&self.ledger, &hands, waiting).await;
                return fetched.map_or(outcome, Ok);
            }
            Ok(_) | Err(CallError::Failed(_) | CallError::Denied(_)) => return outcome,
        };
        let waiting = Waiting { said: Some(unknown.message.as_str()), ..waiting };
        match resolver.settle(&self.ledger, &hands, waiting).await {
            Settled::Known(end) => end.told(unknown.key),
            // Its own answer came late: the ledger has it.
            Settled::Elsewhere => match self.begin(intent).await? {
                Begin::Replay(outcome) => self.replayed(&call, "replay", outcome),
                Begin::Fresh(_) | Begin::InProgress(_) | Begin::Refused(_) => outcome,
            },
            Settled::Still => outcome,
        }
    }

    /// Tries to settle what stands in the way of this call. True: ask the ledger again.
    async fn settled(&self, call: &ToolCall, intent: &Intent, denied: &Denied) -> bool {
        let may = denied.code == DenyCode::ReviewRequired && !self.rehearsing.contains(&call.agent);
        let Some(hands) = self.hands.as_ref().filter(|_| may) else { return false };
        let waiting = waiting(call, intent);
        match self.ledger.resolver().settle(&self.ledger, hands, waiting).await {
            Settled::Known(_) | Settled::Elsewhere => true,
            Settled::Still => false,
        }
    }

    async fn send<S: Below>(&self, ticket: Ticket, mut call: ToolCall, inner: S) -> Outcome {
        let identical_to = ticket.identical_to();
        call.trace.note().occurrence = ticket.occurrence();
        self.metrics.idempotency(match identical_to {
            Some(_) => "repeated_occurrence",
            None if call.continuation().is_some() => "continuation",
            None => "miss",
        });
        // The claim goes to `journal`; a gate that refuses on the way drops it, and the operation is free again.
        call.identical = identical_to.is_some() && self.approves_identical();
        call.handoff = Some(Handoff::new(ticket));
        let mut outcome = inner.oneshot(call).await.map_err(Into::into);
        match (&mut outcome, identical_to) {
            (Ok(result), _) => result.notes.identical_to = identical_to,
            // Not sent; but an identical one was done, and "no" alone would hide that.
            (Err(CallError::Denied(denied)), Some(_)) if denied.known.is_none() => {
                denied.known = Some(Known::Identical);
            }
            (Err(_), _) => {}
        }
        outcome
    }

    fn approves_identical(&self) -> bool {
        let write = self.tool.write.as_ref();
        write.is_some_and(|write| write.identical == Identical::Approve)
    }

    fn replayed(&self, call: &ToolCall, how: &'static str, outcome: Outcome) -> Outcome {
        self.metrics.idempotency(how);
        call.trace.note().ledger = Some(how);
        outcome.map(|result| ToolResult { source: Source::Ledger, ..result })
    }

    async fn begin(&self, intent: &Intent) -> Result<Begin, Denied> {
        self.ledger.begin(intent.clone()).await.map_err(|error| {
            // Only an answer is ever fetched: the write was done, its result cannot be read now.
            let message =
                format!("it was executed before, but its result cannot be told now: {error}");
            let denied = Denied::new(DenyCode::LedgerUnavailable, message).retry_after(LEDGER_BACK);
            Denied { known: Some(Known::Executed), ..denied }
        })
    }

    /// Shares the end of a write in flight, at most to this call's own deadline. `None`: it was never sent.
    async fn joined(&self, call: &ToolCall, join: Join) -> Option<Outcome> {
        let began = Instant::now();
        let joined = join.end(call.deadline).await;
        // Waiting for the tool by way of another call.
        call.trace.note().at_tool += began.elapsed();
        match joined {
            Joined::Ended(outcome) => Some(self.replayed(call, "join", outcome)),
            Joined::Free if Instant::now() < call.deadline => None,
            Joined::Free | Joined::StillRunning => {
                let message = format!("the same call of tool {} is still running", call.tool);
                let denied = Denied::new(DenyCode::InProgress, message).retry_after(JOIN_BACK);
                call.trace.note().rule = Some("ledger".into());
                let operation = call.trace.note().operation;
                let detail = operation.map_or(Detail::None, Detail::Operation);
                Some(self.replayed(call, "join", Err(denied.detail(detail).into())))
            }
        }
    }

    fn refused(&self, call: &ToolCall, denied: Denied) -> Denied {
        if denied.code == DenyCode::ReviewRequired {
            self.metrics.idempotency("unknown");
        } else if denied.code == DenyCode::IdempotencyConflict {
            self.metrics.idempotency("conflict");
        }
        call.trace.note().rule = Some("ledger".into());
        denied
    }
}
