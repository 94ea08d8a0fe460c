//! One request: the policy it began under, its run, its deadline; and the way of one call through its stack.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::mcp::{PassError, not_offered};
use super::routes::Routes;
use super::together::unless_it_panics;
use super::{Answer, Asker, Engine, Single, suggest};
use crate::call::batch::Paired;
use crate::call::code::DenyCode;
use crate::call::ended::outcome_label;
use crate::call::{
    Arguments, CallError, CallId, CallerKey, Denied, Detail, Effect, Failed, FrontEnd, Home,
    Outcome, Payload, RunId, Side, TimedOutBy, ToolCall, ToolName, UpstreamName, judge,
};
use crate::layers::known;
use crate::policy::snapshot::{Agent, Tool};
use crate::run::{Run, Wanted};
use crate::telemetry::record::CallFacts;

/// What is said where a layer panicked.
const FAULT: &str = "a fault of the gateway ended this call; it has been reported";

/// A call that is refused before there is a run: of a write it tells what the ledger knows.
pub(super) fn turned_away(engine: &Engine, single: Single, denied: Denied) -> Denied {
    let Single { asker, id, tool, payload, caller_key } = single;
    let routes = engine.current.load();
    let agent = routes.snapshot.agents.get(&asker.agent);
    let found = agent.and_then(|agent| routes.tool(agent, &tool, &payload));
    let Some(found) = found else { return denied };
    // A call without a run repeats no call of one.
    let run = asker.run.unwrap_or_else(RunId::mint);
    let now = Instant::now();
    let call = ToolCall::new(id, asker.agent, run, tool, asker.front_end, payload, now);
    known::told(denied, found, &engine.ledger, &ToolCall { caller_key, ..call })
}

pub(super) struct Asking<'e> {
    engine: &'e Engine,
    pub(super) routes: Arc<Routes>,
    pub(super) agent: Arc<Agent>,
    pub(super) run: Arc<Run>,
    deadline: Instant,
    deadline_of: TimedOutBy,
    front_end: FrontEnd,
    side: Option<Arc<Side>>,
}

impl<'e> Asking<'e> {
    /// Enters the run. Refused: `run_unknown`, `budget_exhausted {live_runs}`, or an agent the policy in force no
    /// longer has.
    pub(super) fn new(engine: &'e Engine, asker: &Asker) -> Result<Self, Denied> {
        Self::under(engine, engine.current.load(), asker)
    }

    /// As [`Asking::new`], under the policy that was looked at before.
    pub(super) fn under(
        engine: &'e Engine,
        routes: Arc<Routes>,
        asker: &Asker,
    ) -> Result<Self, Denied> {
        let agent = routes.snapshot.agents.get(&asker.agent).cloned().ok_or_else(|| {
            Denied::new(DenyCode::Unauthenticated, "the policy in force does not know this agent")
        })?;
        let now = Instant::now();
        let wanted = asker.run.clone().map_or(Wanted::Ambient, Wanted::Named);
        let run = engine.runs.enter(&agent, &wanted, now)?;
        // The caller's time only shortens.
        let callers = asker.timeout.and_then(|timeout| now.checked_add(timeout));
        let (deadline, deadline_of) = match callers {
            Some(callers) if callers < run.deadline() => (callers, TimedOutBy::Call),
            Some(_) | None => (run.deadline(), TimedOutBy::Run),
        };
        Ok(Self {
            engine,
            routes,
            agent,
            run,
            deadline,
            deadline_of,
            front_end: asker.front_end,
            side: asker.side.clone(),
        })
    }

    /// Nothing of a message that has not begun begins any more.
    pub(super) fn draining(&self) -> bool {
        self.engine.draining()
    }

    /// The tool a call would be sent to.
    pub(super) fn tool(&self, call: &Paired) -> Option<&Arc<Tool>> {
        self.routes.tool(&self.agent, &call.tool, &call.payload)
    }

    pub(super) fn writes(&self, call: &Paired) -> bool {
        self.tool(call).is_some_and(|tool| tool.effect == Effect::Write)
    }

    /// Through the stack of its tool, whatever comes of it.
    pub(super) async fn send(&self, paired: Paired, caller_key: Option<CallerKey>) -> Answer {
        let tool = self.tool(&paired).cloned();
        let stack = self.routes.stack(tool.as_ref());
        let call = self.call(paired, caller_key);
        let (id, name, trace) = (call.id.clone(), call.tool.clone(), call.trace.clone());
        let outcome = unless_it_panics(async { stack.send(call).await })
            .await
            .unwrap_or_else(|| Err(Failed::internal(FAULT).into()));
        let alternatives = tool.map_or_else(Vec::new, |tool| {
            suggest::alternatives(&tool, &self.agent, &self.engine.state, &outcome)
        });
        let noted = trace.note();
        Answer {
            id,
            tool: name,
            outcome,
            attempts: u32::try_from(noted.attempts.len()).unwrap_or(u32::MAX),
            operation: noted.operation,
            alternatives,
        }
    }

    /// A request for something besides tools, through the stack of its server.
    pub(super) async fn pass(
        &self,
        server: &UpstreamName,
        method: &str,
        params: Value,
        is_list: bool,
    ) -> Result<Outcome, PassError> {
        let passes = self.routes.passed.get(server).ok_or_else(not_offered)?;
        let stack = if is_list { passes.lists.clone() } else { passes.asks.clone() };
        let bytes = params.to_string().len() as u64;
        let asked = json!({"method": method, "params": params});
        let payload = Arguments::from_tree(asked, bytes).map(Payload::Arguments);
        let paired = Paired {
            id: CallId::mint(),
            tool: ToolName::of_passed(server),
            payload: payload.ok_or_else(not_offered)?,
        };
        let outcome = unless_it_panics(async { stack.send(self.call(paired, None)).await }).await;
        Ok(outcome.unwrap_or_else(|| Err(Failed::internal(FAULT).into())))
    }

    /// A call that never gets to a stack: no budget is taken, the tool is not touched; counted and recorded all the
    /// same. Of a write it tells what the ledger knows.
    pub(super) fn unsent(&self, paired: Paired, denied: Denied) -> Answer {
        let tool = self.tool(&paired).cloned();
        if let Detail::Budget { dimension, .. } = &denied.detail {
            self.engine.metrics.agent(self.agent.id.as_str()).budget_exhausted(*dimension);
        }
        let call = self.call(paired, None);
        let denied = match &tool {
            Some(tool) => known::told(denied, tool, &self.engine.ledger, &call),
            None => denied,
        };
        let error = CallError::Denied(denied);
        let executed = judge::executed(&error);
        let outcome: Outcome = Err(error);
        let label = outcome_label(&outcome);
        self.engine.metrics.tool(call.tool.as_str()).call(label, Duration::ZERO);
        self.engine.metrics.agent(self.agent.id.as_str()).call(label);
        let noted = call.trace.note().clone();
        let known = self.routes.snapshot.tools.get(&call.tool);
        self.engine.recorder.call(&CallFacts {
            call: &call,
            effect: known.map_or("", |tool| tool.effect.as_str()),
            revision: &self.routes.snapshot.revision.0,
            outcome: label,
            executed: executed.as_str(),
            result: Some(&outcome),
            duration: Duration::ZERO,
            noted: &noted,
        });
        self.run.note_end(&call, None, &outcome, Duration::ZERO);
        Answer {
            id: call.id,
            tool: call.tool,
            outcome,
            attempts: 0,
            operation: noted.operation,
            alternatives: Vec::new(),
        }
    }

    fn call(&self, paired: Paired, caller_key: Option<CallerKey>) -> ToolCall {
        let call = ToolCall::new(
            paired.id,
            self.agent.id.clone(),
            self.run.id().clone(),
            paired.tool,
            self.front_end,
            paired.payload,
            self.deadline,
        );
        call.trace.note().deadline_of = Some(self.deadline_of);
        let home = Some(Home::new(self.run.clone()));
        ToolCall { caller_key, home, side: self.side.clone(), ..call }
    }
}
