//! Hears every end once, refusals too: metrics, the record, the run's memory.
//!
//! An agent that goes away before the end leaves a guard: its call is counted and recorded as `abandoned`.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tower::{Layer, Service};

use super::gate::{Answering, Below};
use crate::call::Named;
use crate::call::ended::outcome_label;
use crate::call::stream::{arriving, at_end, outcome_of};
use crate::call::trace::Noted;
use crate::call::{
    AgentId, CallError, Effect, Likeness, Outcome, Source, ToolCall, ToolName, ToolResult, code,
    judge,
};
use crate::policy::snapshot::{Snapshot, Tool};
use crate::run::Runs;
use crate::telemetry::metrics::{AgentMetrics, Metrics, ToolMetrics};
use crate::telemetry::record::{CallFacts, Recorder};

/// What an agent that did not wait is counted as; a record value, not a code.
const ABANDONED: &str = "abandoned";

#[derive(Debug, Clone)]
pub struct ObserveLayer(Arc<Observer>);

#[derive(Debug)]
struct Observer {
    snapshot: Arc<Snapshot>,
    runs: Arc<Runs>,
    metrics: Arc<Metrics>,
    recorder: Arc<Recorder>,
    /// `None` in the stack of calls that have no tool to go to.
    tool: Option<(Arc<Tool>, Arc<ToolMetrics>)>,
    agents: Named<AgentId, Arc<AgentMetrics>>,
}

impl ObserveLayer {
    pub fn new(
        snapshot: Arc<Snapshot>,
        runs: Arc<Runs>,
        metrics: Arc<Metrics>,
        recorder: Arc<Recorder>,
        tool: Option<Arc<Tool>>,
    ) -> Self {
        // Handles are looked up here, at load, not per call.
        let tool = tool.map(|tool| {
            let handles = metrics.tool(tool.name.as_str());
            (tool, handles)
        });
        let agents =
            snapshot.agents.keys().map(|id| (id.clone(), metrics.agent(id.as_str()))).collect();
        Self(Arc::new(Observer { snapshot, runs, metrics, recorder, tool, agents }))
    }
}

impl<S> Layer<S> for ObserveLayer {
    type Service = Observe<S>;
    fn layer(&self, inner: S) -> Observe<S> {
        Observe { observer: self.0.clone(), inner }
    }
}

#[derive(Debug, Clone)]
pub struct Observe<S> {
    observer: Arc<Observer>,
    inner: S,
}

impl<S: Below> Service<ToolCall> for Observe<S> {
    type Response = ToolResult;
    type Error = CallError;
    type Future = Answering;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, call: ToolCall) -> Answering {
        // Before anything below runs, so that a panic there is counted too.
        let guard = Guard { observer: self.observer.clone(), call: call.clone(), ended: false };
        let answer = self.inner.call(call);
        Box::pin(async move {
            let outcome = answer.await.map_err(Into::into);
            match arriving(&outcome) {
                Some(_) => guard.end_later(outcome),
                None => guard.end(outcome),
            }
        })
    }
}

/// Counts the call when nobody waits for its end.
struct Guard {
    observer: Arc<Observer>,
    call: ToolCall,
    ended: bool,
}

impl Guard {
    fn end(mut self, outcome: Outcome) -> Outcome {
        self.ended = true;
        self.observer.ended(&self.call, outcome)
    }
}

impl Guard {
    /// Its body is still to come: the end is the end of that.
    fn end_later(self, mut outcome: Outcome) -> Outcome {
        if let Ok(result) = &mut outcome {
            let attempts = self.call.trace.note().attempts.len() + 1;
            result.notes.attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
            // Without its body, which is read by somebody else.
            let told = ToolResult { head: None, ..result.clone() };
            at_end(&outcome, move |ended, read| {
                self.call.trace.note().streamed = Some(read);
                drop(self.end(outcome_of(ended, &told)));
            });
        }
        outcome
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let noted = self.call.trace.note().clone();
        let label = match (std::thread::panicking(), noted.sent) {
            // Not by a panic alone: a runtime may end under a write.
            (_, true) => code::OUTCOME_UNKNOWN,
            (true, false) => code::FailCode::Internal.as_str(),
            (false, false) => ABANDONED,
        };
        self.observer.lost(&self.call, label, &noted);
    }
}

impl Observer {
    fn handles(&self, tool: &ToolName) -> Arc<ToolMetrics> {
        match &self.tool {
            Some((_, handles)) => handles.clone(),
            // A name the policy does not have gets the handles of `_unknown`.
            None => self.metrics.tool(tool.as_str()),
        }
    }

    fn count(&self, call: &ToolCall, label: &'static str, duration: Duration) {
        self.handles(&call.tool).call(label, duration);
        if let Some(agent) = self.agents.get(&call.agent) {
            agent.call(label);
        }
    }

    /// Nobody hears the end of this call: what is known of it is written down all the same.
    fn lost(&self, call: &ToolCall, label: &'static str, noted: &Noted) {
        let duration = call.began.elapsed();
        self.count(call, label, duration);
        let effect = self.effect(&call.tool);
        // A write is out once its gate has opened; a read perhaps as soon as there is an attempt.
        let sent = noted.sent || (effect != Effect::Write.as_str() && !noted.attempts.is_empty());
        let executed = if sent { code::Executed::Unknown } else { code::Executed::No };
        self.recorder.call(&CallFacts {
            call,
            effect,
            revision: &self.snapshot.revision.0,
            outcome: label,
            executed: executed.as_str(),
            result: None,
            duration,
            noted,
        });
    }

    fn ended(&self, call: &ToolCall, mut outcome: Outcome) -> Outcome {
        let duration = call.began.elapsed();
        // Held to the end of the account: whoever could write on the pad is done.
        let noted = call.trace.note();
        if let Ok(result) = &mut outcome {
            result.notes.attempts = u32::try_from(noted.attempts.len()).unwrap_or(u32::MAX);
            self.count_bytes(call, result, noted.streamed);
        }
        let label = outcome_label(&outcome);
        if let Err(CallError::Failed(failed)) = &outcome
            && failed.code == code::FailCode::Internal
        {
            // The words of such a failure are always ours: no argument and no answer is in them.
            tracing::error!(tool = %call.tool, call = %call.id, why = %failed.message, "a call failed by the gateway's own fault");
        }
        self.count(call, label, duration);
        self.metrics.overhead(duration.saturating_sub(noted.at_tool + noted.backoff));
        let executed = judge::executed_of(&outcome);
        self.recorder.call(&CallFacts {
            call,
            effect: self.effect(&call.tool),
            revision: &self.snapshot.revision.0,
            outcome: label,
            executed: executed.as_str(),
            result: Some(&outcome),
            duration,
            noted: &noted,
        });
        drop(noted);
        if let Some(run) = self.runs.of(call) {
            run.note_end(call, Some(self.likeness(call)), &outcome, duration);
        }
        outcome
    }

    fn count_bytes(&self, call: &ToolCall, result: &ToolResult, streamed: Option<u64>) {
        let handles = self.handles(&call.tool);
        handles.result_bytes(streamed.unwrap_or(result.content.bytes.len() as u64));
        if result.notes.truncated.is_some() && result.source == Source::Tool {
            handles.truncated();
        }
    }

    fn likeness(&self, call: &ToolCall) -> Likeness {
        let volatile = self.tool.as_ref().map_or(&[][..], |(tool, _)| &tool.volatile);
        call.payload.likeness(volatile)
    }

    fn effect(&self, tool: &ToolName) -> &'static str {
        match &self.tool {
            Some((tool, _)) => tool.effect.as_str(),
            None => self.snapshot.tools.get(tool).map_or("", |tool| tool.effect.as_str()),
        }
    }
}
