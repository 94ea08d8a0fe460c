//! The hands of the ledger's resolver for one tool: how its key is sent again, how its read is asked.
//!
//! Both go through stacks of their own. What a second sending may prove is less than what a first may: the tool has
//! seen the key before, or has not, and a refusal of the second says nothing of the first.

use std::future::Future;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tower::ServiceExt;

use super::CallService;
use crate::call::code::FailCode;
use crate::call::{
    Arguments, CallError, Class, Delivery, Evidence, Failed, IdempotencyKey, Outcome, Payload,
    Polled, TaskWay, ToolCall, Trace, Verdict,
};
use crate::layers::journal::settle;
use crate::ledger::End;
use crate::ledger::resolver::{Asked, Doing, Hands, Query, Remedies, Resent, Shown};
use crate::policy::snapshot::{QueryArgument, StatusQuery, Tool};
use crate::telemetry::metrics::ToolMetrics;

/// `None`: nothing helps but a person.
pub(super) fn hands(
    tool: &Arc<Tool>,
    metrics: Arc<ToolMetrics>,
    resend: CallService,
    query: Option<CallService>,
    tasks: Option<TaskWay>,
    may_send: impl Fn() -> bool + Send + Sync + 'static,
) -> Option<Hands> {
    let write = tool.write.as_ref()?;
    let window = write.idempotency.as_ref().and_then(|idempotency| idempotency.window);
    let question = write.status_query.clone().zip(query);
    if window.is_none() && question.is_none() && tasks.is_none() {
        return None;
    }
    let times =
        question.as_ref().map(|(query, _)| Query { settle: query.settle, tries: query.tries });
    let may = Remedies {
        window,
        query: times,
        volatile: !tool.volatile.is_empty(),
        lag: tool.timeout.total,
        drain: write.drain,
    };
    Some(Hands {
        may,
        // An outage is not for second sendings either, and who leaves begins nothing.
        resend: Box::new(move |call| match may_send() {
            true => again(resend.clone(), call),
            false => Box::pin(std::future::ready(Resent::NotNow)),
        }),
        query: Box::new(move |call| match &question {
            Some((query, way)) => asked(Arc::new(query.clone()), way.clone(), call),
            None => Box::pin(std::future::ready(Asked::NoAnswer)),
        }),
        task: tasks.map(|way| -> Box<dyn Fn(_, _) -> Doing<Shown> + Send + Sync> {
            Box::new(move |key, of| polled(key, way.poll(of)))
        }),
        not_executed,
        upgraded: Box::new(move |by| metrics.write_upgrade(by)),
    })
}

fn again(way: CallService, call: ToolCall) -> Doing<Resent> {
    Box::pin(async move {
        match way.oneshot(call).await {
            // What a second sending is asked says nothing of what the first one did.
            Ok(result) if result.notes.asks.is_some() => Resent::Refused,
            Ok(result) => Resent::Known(End::Executed(Some(result))),
            Err(CallError::Denied(denied)) => Resent::Held(denied.retry_after),
            Err(CallError::Unknown(unknown)) => {
                Resent::Unknown { message: unknown.message, stored: false }
            }
            Err(CallError::Failed(failed)) => resent(failed),
        }
    })
}

/// What a second sending that failed shows of the operation.
fn resent(failed: Failed) -> Resent {
    let tool_error = failed.code == FailCode::ToolError;
    match failed.delivery {
        Delivery::NotSent => Resent::NotSent,
        Delivery::Done if tool_error => Resent::Known(End::ExecutedWithError(failed)),
        Delivery::Done => Resent::Known(End::Executed(None)),
        // Still at work on the first, too early, or too much at once: the same key may do better later. Any other
        // refusal is of this request: the first one may have changed what it is judged by.
        Delivery::Refused if matches!(failed.status, Some(409 | 425 | 429)) => {
            Resent::Unknown { message: failed.message, stored: false }
        }
        Delivery::Refused => Resent::Refused,
        // A stored 500 is answered for ever, and so is an answer that nobody can read.
        Delivery::Unknown => {
            let unreadable = failed.code == FailCode::UpstreamProtocolError;
            let stored = failed.status == Some(500) || unreadable;
            Resent::Unknown { message: failed.message, stored }
        }
    }
}

/// A task that has ended says what the call itself would have said.
fn polled(
    key: IdempotencyKey,
    polling: impl Future<Output = Polled> + Send + 'static,
) -> Doing<Shown> {
    Box::pin(async move {
        let ended = match polling.await {
            Polled::Working(wait) => return Shown::Again(wait),
            Polled::NoAnswer => return Shown::NoAnswer,
            Polled::Over(why) => return Shown::Over(why),
            Polled::Ended(ended) => ended,
        };
        match settle(key, true, *ended).0 {
            End::Unknown(failed) | End::Asked { why: failed, .. } => Shown::Over(failed.message),
            end @ (End::Executed(_) | End::ExecutedWithError(_) | End::NotExecuted(..)) => {
                Shown::Known(end)
            }
        }
    })
}

fn not_executed() -> End {
    let message = "the tool was asked afterwards and says that it did not happen";
    let mut failed = Failed::new(
        FailCode::ToolUnavailable,
        Class::Transient,
        Delivery::Refused,
        Verdict::Neutral,
        message,
    );
    failed.evidence = Some(Evidence::Query);
    End::NotExecuted(failed, Evidence::Query)
}

fn asked(query: Arc<StatusQuery>, way: CallService, call: ToolCall) -> Doing<Asked> {
    Box::pin(async move {
        let Some(call) = question(&query, call) else { return Asked::NoAnswer };
        let outcome = way.oneshot(call).await;
        if let Err(CallError::Denied(denied)) = &outcome {
            return Asked::Held(denied.retry_after);
        }
        let Some(document) = document(&outcome) else { return Asked::NoAnswer };
        let executed = query.executed_when.holds(&document);
        let not = query.not_executed_when.as_ref().is_some_and(|when| when.holds(&document));
        match (executed, not) {
            (true, true) => Asked::Both,
            (true, false) => Asked::Executed,
            (false, true) => Asked::NotExecuted,
            (false, false) => Asked::Neither,
        }
    })
}

/// The write's call as a call of the read.
fn question(query: &StatusQuery, call: ToolCall) -> Option<ToolCall> {
    let written = call.arguments()?.tree().clone();
    let mut members = Map::new();
    for (name, from) in &query.arguments {
        let value = match from {
            QueryArgument::From(pointer) => pointer.get(&written).cloned(),
            QueryArgument::Value(value) => Some(value.clone()),
            QueryArgument::Key => call.sent_key.as_ref().map(|key| key.as_str().into()),
        };
        members.extend(value.map(|value| (name.clone(), value)));
    }
    let arguments = Arguments::from_tree(Value::Object(members), 0)?;
    Some(ToolCall {
        tool: query.tool.clone(),
        payload: Payload::Arguments(arguments),
        caller_key: None,
        sent_key: None,
        // Its attempts are not the write's.
        trace: Trace::default(),
        ..call
    })
}

/// `{ok, error, status, value}`; `None` where the read itself got no answer.
fn document(outcome: &Outcome) -> Option<Value> {
    match outcome {
        Ok(result) => {
            let value = result.content.value()?;
            let status = result.head.as_ref().map(|head| head.status);
            Some(json!({ "ok": true, "status": status, "value": value }))
        }
        Err(CallError::Failed(failed)) => {
            let status = failed.status?;
            Some(json!({ "ok": false, "error": failed.code.as_str(), "status": status }))
        }
        Err(CallError::Denied(_) | CallError::Unknown(_)) => None,
    }
}
