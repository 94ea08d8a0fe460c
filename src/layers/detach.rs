//! Runs a whole write in a task of its own: an agent that hangs up stops waiting, and cuts nothing in half.
//!
//! Outermost, because a server drops the future of a request when its client goes away. Shutdown waits for the task.

use std::task::{Context, Poll};

use tokio_util::task::TaskTracker;
use tower::{Layer, Service, ServiceExt};

use super::gate::{Answering, take_ready};
use crate::call::{
    CallError, Delivery, Failed, Outcome, ToolCall, ToolResult, Trace, Unknown, Verdict,
};

#[derive(Debug, Clone)]
pub struct DetachLayer {
    pub tasks: TaskTracker,
}

impl<S> Layer<S> for DetachLayer {
    type Service = Detach<S>;
    fn layer(&self, inner: S) -> Detach<S> {
        Detach { tasks: self.tasks.clone(), inner }
    }
}

#[derive(Debug, Clone)]
pub struct Detach<S> {
    tasks: TaskTracker,
    inner: S,
}

impl<S> Service<ToolCall> for Detach<S>
where
    S: Service<ToolCall, Response = ToolResult, Error = CallError, Future = Answering>
        + Clone
        + Send
        + Sync
        + 'static,
{
    type Response = ToolResult;
    type Error = CallError;
    type Future = Answering;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, call: ToolCall) -> Answering {
        let trace = call.trace.clone();
        let inner = take_ready(&mut self.inner);
        // Gates decide inside the task: a panic in one of them ends the task, not the connection.
        let task = self.tasks.spawn(inner.oneshot(call));
        Box::pin(async move {
            match task.await {
                Ok(outcome) => outcome,
                Err(_) => died(&trace),
            }
        })
    }
}

/// The task panicked, or the runtime went away under it. Past the send gate the write may have happened; before it,
/// nothing was sent.
fn died(trace: &Trace) -> Outcome {
    let noted = trace.note();
    match noted.operation {
        Some(operation) if noted.sent => Err(CallError::Unknown(Unknown {
            key: operation.key(),
            operation,
            health: Verdict::Neutral,
            message: "the gateway failed while the write was under way".into(),
        })),
        Some(_) | None => {
            let mut failed = Failed::internal("the gateway failed before anything was sent");
            failed.delivery = Delivery::NotSent;
            Err(CallError::Failed(failed))
        }
    }
}
