//! What one agent task has done so far. STUB of the contract: signatures fixed, bodies the run part's.
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::call::{AgentId, Denied, Digest, Dimension, Outcome, RunId, ToolCall, ToolName};
use crate::policy::snapshot::{Agent, FusePolicy, RunPolicy};
use crate::telemetry::metrics::Metrics;

/// Which run a request means.
#[derive(Debug, Clone)]
pub enum Wanted {
    /// Named by the agent (`Checkrein-Run`).
    Named(RunId),
    /// No name: the agent's ambient run.
    Ambient,
}

/// Live runs: bounded per agent, never evicted.
#[derive(Debug)]
pub struct Runs {}
impl Runs {
    pub fn new(_metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {})
    }
    /// Finds or opens. `run_unknown`: finished, another agent's, or never opened under `open: explicit`;
    /// `budget_exhausted {live_runs}`: past `max_live`. The run adopts the agent's run policy of this snapshot.
    pub fn enter(
        &self,
        _agent: &Agent,
        _wanted: &Wanted,
        _now: Instant,
    ) -> Result<Arc<Run>, Denied> {
        unimplemented!()
    }
    /// `POST /v1/runs`: a new run with a policy this agent may choose.
    pub fn create(
        &self,
        _agent: &Agent,
        _policy: &Arc<RunPolicy>,
        _goal: Option<String>,
        _now: Instant,
    ) -> Result<Arc<Run>, Denied> {
        unimplemented!()
    }
    /// Only the owner sees a run.
    pub fn owned(&self, _id: &RunId, _agent: &AgentId) -> Result<Arc<Run>, Denied> {
        unimplemented!()
    }
    /// For gates: the run a call carries; it was entered by the engine.
    pub fn get(&self, _id: &RunId) -> Option<Arc<Run>> {
        unimplemented!()
    }
    pub fn finish(&self, _run: &Run, _end: &'static str) {}
    /// Ends idle and timed-out runs, forgets finished ones; called on a timer.
    pub fn sweep(&self, _now: Instant) {}
    pub fn live(&self) -> Vec<(AgentId, u64)> {
        unimplemented!()
    }
}

#[derive(Debug)]
pub struct Run {}
impl Run {
    pub fn id(&self) -> &RunId {
        unimplemented!()
    }
    pub fn agent(&self) -> &AgentId {
        unimplemented!()
    }
    pub fn policy(&self) -> Arc<RunPolicy> {
        unimplemented!()
    }
    /// Start + wall clock.
    pub fn deadline(&self) -> Instant {
        unimplemented!()
    }
    /// One more call: calls and argument bytes exactly (one atomic add each that gives back when over);
    /// failures, result bytes, cost and wall clock by what is known. Refuses with `budget_exhausted {dimension}`.
    pub fn take_call(&self, _argument_bytes: u64, _now: Instant) -> Result<(), Denied> {
        unimplemented!()
    }
    /// One attempt of a tool with a cost is about to be sent.
    pub fn spend(&self, _cost: u64) {}
    /// Fuse: same tool + same digest failed or succeeded unchanged too often → `repeat_blocked`.
    /// Returns the kind (`same_failures`, `same_results`) with the refusal.
    pub fn fuse(
        &self,
        _tool: &ToolName,
        _digest: Digest,
        _policy: FusePolicy,
    ) -> Result<(), (&'static str, Denied)> {
        unimplemented!()
    }
    /// Every end, once, from `observe`: budgets of failures and result bytes, fuse memory, failure summary, trajectory.
    /// `result_digest` is of a success's content.
    pub fn note_end(
        &self,
        _call: &ToolCall,
        _digest: Option<Digest>,
        _outcome: &Outcome,
        _duration: Duration,
    ) {
    }
    /// (dimension, used, limit; `None` = unlimited)
    pub fn budgets(&self, _now: Instant) -> Vec<(Dimension, u64, Option<u64>)> {
        unimplemented!()
    }
}
