//! Which stack a call goes through, in which order calls of a batch run, which state the loop is in.
//! STUB of the contract for front ends: signatures fixed, bodies the engine part's.
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::call::batch::Turn;
use crate::call::turn::LoopState;
use crate::call::{
    AgentId, CallId, CallerKey, Denied, Digest, Dimension, Effect, FrontEnd, OperationId, Outcome,
    Payload, RunId, ToolName,
};
use crate::policy::snapshot::Snapshot;

/// Who asks, from the connection and the head; never from a body.
#[derive(Debug, Clone)]
pub struct Asker {
    pub agent: AgentId,
    /// `Checkrein-Run`; absent = ambient.
    pub run: Option<RunId>,
    /// `Checkrein-Timeout-Ms`.
    pub timeout: Option<Duration>,
    pub front_end: FrontEnd,
}

/// One call (tools API).
#[derive(Debug)]
pub struct Single {
    pub asker: Asker,
    pub id: CallId,
    pub tool: ToolName,
    pub payload: Payload,
    pub caller_key: Option<CallerKey>,
}

/// One assistant message.
#[derive(Debug)]
pub struct TurnAsk {
    pub asker: Asker,
    pub turn: Turn,
    /// Of the body's canonical form: tells a re-sent batch.
    pub digest: Digest,
    /// `Checkrein-Unfinished: true`.
    pub unfinished: bool,
}

/// One call's end, with what its rendering needs.
#[derive(Debug, Clone)]
pub struct Answer {
    pub id: CallId,
    pub tool: ToolName,
    pub outcome: Outcome,
    /// Attempts that were sent.
    pub attempts: u32,
    pub operation: Option<OperationId>,
    /// Tools to suggest: allowed to this agent, circuit closed.
    pub alternatives: Vec<ToolName>,
}

#[derive(Debug)]
pub struct TurnAnswer {
    pub state: LoopState,
    pub run: RunId,
    pub round: u64,
    pub answers: Vec<Answer>,
    pub summary: Option<String>,
    /// Set with `protocol_error`: why the whole message was refused.
    pub error: Option<Denied>,
}

/// A tool as a model is shown it.
#[derive(Debug, Clone)]
pub struct ToolInfo {
    pub name: ToolName,
    pub description: Arc<str>,
    pub schema: Arc<Value>,
    pub effect: Effect,
}

#[derive(Debug)]
pub struct RunView {
    pub run: RunId,
    pub state: LoopState,
    pub budgets: Vec<(Dimension, u64, Option<u64>)>,
}

#[derive(Debug)]
pub struct RunSummary {
    pub text: String,
    /// (tool, error, count)
    pub failures: Vec<(ToolName, &'static str, u64)>,
}

/// Bounds of a request body, from the policy in force.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    pub request_bytes: usize,
    pub argument_bytes: usize,
    pub argument_depth: usize,
    pub batch_calls: usize,
}

#[derive(Debug)]
pub struct Engine {}
impl Engine {
    pub fn snapshot(&self) -> Arc<Snapshot> {
        unimplemented!()
    }
    pub fn body_limits(&self) -> BodyLimits {
        unimplemented!()
    }
    pub fn draining(&self) -> bool {
        unimplemented!()
    }
    /// The run it went to and how it ended; `Err` = refused before there was a run (`run_unknown`, draining, …).
    pub async fn call(&self, _single: Single) -> Result<(RunId, Answer), Denied> {
        unimplemented!()
    }
    pub async fn turn(&self, _ask: TurnAsk) -> Result<TurnAnswer, Denied> {
        unimplemented!()
    }
    /// In order of name, and how many are hidden (broken, quarantined).
    pub fn tools_for(&self, _agent: &AgentId) -> (Vec<ToolInfo>, usize) {
        unimplemented!()
    }
    pub fn open_run(
        &self,
        _agent: &AgentId,
        _goal: Option<String>,
        _budget: Option<&str>,
    ) -> Result<RunView, Denied> {
        unimplemented!()
    }
    pub fn run_view(&self, _agent: &AgentId, _run: &RunId) -> Result<RunView, Denied> {
        unimplemented!()
    }
    pub fn run_summary(&self, _agent: &AgentId, _run: &RunId) -> Result<RunSummary, Denied> {
        unimplemented!()
    }
    pub fn finish_run(&self, _agent: &AgentId, _run: &RunId) -> Result<RunView, Denied> {
        unimplemented!()
    }
}
