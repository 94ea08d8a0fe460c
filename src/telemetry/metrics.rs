//! Every series in one registry (operations.md §6). Handles are looked up at policy load, never on the data path.
//! STUB of the contract: signatures are fixed, bodies and private fields are the telemetry part's.
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::call::{Dimension, ErrorClass};

/// Names that may stand in labels, all from the policy.
#[derive(Debug, Clone, Default)]
pub struct Labels {
    pub policy: String,
    pub revision: String,
    pub tools: Vec<ToolLabel>,
    pub agents: Vec<String>,
    pub upstreams: Vec<String>,
    /// `telemetry.agent_label: false` makes every value of `agent` `_all`.
    pub agent_label: bool,
}
#[derive(Debug, Clone)]
pub struct ToolLabel {
    pub name: String,
    pub write: bool,
}

/// Live state, read at scrape time; implemented by the engine's state. Takes no lock across an await.
pub trait StateSource: Send + Sync {
    fn read(&self) -> StateView;
}
#[derive(Debug, Clone, Default)]
pub struct StateView {
    pub tools: Vec<ToolStateView>,
    pub upstreams: Vec<UpstreamStateView>,
    pub concurrency_limit: u64,
    /// (agent, live runs)
    pub runs_active: Vec<(String, u64)>,
    /// (tool, entries unknown and not resolved)
    pub reviews_open: Vec<(String, u64)>,
    pub review_oldest: Option<SystemTime>,
    pub store_writable: bool,
}
#[derive(Debug, Clone)]
pub struct ToolStateView {
    pub tool: String,
    /// closed, open, half_open, isolated, shadow: what the next call would meet.
    pub breaker: &'static str,
    pub consecutive_failures: u64,
    pub failure_threshold: u64,
    pub last_transition: Option<SystemTime>,
    pub inflight: u64,
    /// (scope, tokens left)
    pub tokens: Vec<(&'static str, u64)>,
    pub cooldown_until: Option<SystemTime>,
}
#[derive(Debug, Clone)]
pub struct UpstreamStateView {
    pub upstream: String,
    pub breaker: &'static str,
    pub retry_budget_milli: u64,
}

#[derive(Debug)]
pub struct Metrics {}
impl Metrics {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {})
    }
    /// Creates every series of these names at zero, drops those of names that are gone.
    pub fn load(&self, _labels: &Labels) {}
    /// Handles of one tool; a name the policy does not have gets the handles of `_unknown`.
    pub fn tool(&self, _name: &str) -> Arc<ToolMetrics> {
        unimplemented!()
    }
    pub fn agent(&self, _name: &str) -> Arc<AgentMetrics> {
        unimplemented!()
    }
    pub fn set_state_source(&self, _source: Arc<dyn StateSource>) {}
    /// Text format 0.0.4.
    pub fn encode(&self) -> String {
        unimplemented!()
    }
    pub fn overhead(&self, _time: Duration) {}
    /// A `LoopState`'s name.
    pub fn batch(&self, _state: &'static str) {}
    /// missing_id, duplicate_id, reused_id, too_many, too_large, bad_json
    pub fn batch_rejected(&self, _reason: &'static str) {}
    /// private, link_local, loopback, host, redirect, dns
    pub fn egress_blocked(&self, _reason: &'static str) {}
    /// data, admin
    pub fn unauthenticated(&self, _listener: &'static str) {}
    /// head, body, header_timeout, host_origin, media_type, bad_request, connections
    pub fn request_rejected(&self, _reason: &'static str) {}
    /// applied, unchanged, rejected, unreadable
    pub fn reload(&self, _result: &'static str) {}
    pub fn watch_degraded(&self, _yes: bool) {}
    pub fn draining(&self, _yes: bool) {}
    pub fn record_written(&self) {}
    pub fn record_dropped(&self) {}
    pub fn record_write_error(&self) {}
}

#[derive(Debug)]
pub struct ToolMetrics {}
impl ToolMetrics {
    /// `outcome`: `call::outcome::outcome_label`, or `abandoned`.
    pub fn call(&self, _outcome: &'static str, _duration: Duration) {}
    pub fn attempt(&self, _class: ErrorClass) {}
    /// connect, first_byte, total
    pub fn phase(&self, _phase: &'static str, _time: Duration) {}
    pub fn retry(&self) {}
    pub fn retry_success(&self) {}
    /// `retry_stopped_by` of semantics.md §3.2, and `draining`
    pub fn retry_suppressed(&self, _reason: &'static str) {}
    pub fn transition(&self, _from: &'static str, _to: &'static str) {}
    /// enforce, shadow
    pub fn breaker_rejected(&self, _mode: &'static str) {}
    pub fn late_result(&self) {}
    /// good, bad, neutral, abandoned
    pub fn probe(&self, _verdict: &'static str) {}
    /// scope: run, agent, tool, upstream, global; decision: allowed, rejected, would_reject
    pub fn ratelimit(&self, _scope: &'static str, _decision: &'static str) {}
    pub fn cooldown(&self) {}
    /// miss, replay, join, conflict, unknown, repeated_occurrence
    pub fn idempotency(&self, _result: &'static str) {}
    /// executed, not_executed, unknown
    pub fn write_end(&self, _end: &'static str) {}
    /// late_answer
    pub fn write_upgrade(&self, _by: &'static str) {}
    /// same_failures, same_results
    pub fn fuse_trip(&self, _kind: &'static str) {}
    pub fn result_bytes(&self, _bytes: u64) {}
    pub fn truncated(&self) {}
}

#[derive(Debug)]
pub struct AgentMetrics {}
impl AgentMetrics {
    pub fn call(&self, _outcome: &'static str) {}
    /// completed, stopped, interrupted, budget, deadline, handoff, idle
    pub fn run_ended(&self, _end: &'static str) {}
    pub fn budget_exhausted(&self, _dimension: Dimension) {}
}
