//! Every series in one registry, made from the table in [`table`]. Handles are looked up when a policy is loaded,
//! never on the data path; what is not a name of the policy or a member of a closed set never becomes a label.

mod collector;
mod families;
mod handles;
mod process;
pub mod table;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use prometheus::{Gauge, Histogram, IntCounter, Registry, TextEncoder};

use self::collector::{Known, StateCollector};
use self::families::{Families, Owner, Room};
use self::handles::Counters;
pub use self::handles::{AgentMetrics, Mark, ToolMetrics};
use self::process::ProcessCollector;
use super::record::wall_clock;

/// Most samples of one scrape unless the process's settings say otherwise.
pub const MAX_SERIES: usize = 20_000;

/// Tool of calls whose name no tool has.
pub const UNKNOWN: &str = "_unknown";
/// The one agent under `telemetry.agent_label: false`.
pub const ALL_AGENTS: &str = "_all";
/// Who no longer fits under the bound of series.
pub const OVERFLOW: &str = "_overflow";

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
    /// (tool, calls that wait for a person)
    pub approvals_pending: Vec<(String, u64)>,
    /// (tool, entries unknown and not resolved)
    pub reviews_open: Vec<(String, u64)>,
    pub review_oldest: Option<SystemTime>,
    pub store_writable: bool,
    pub store_bytes: u64,
    pub mcp_servers: Vec<McpServerView>,
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

#[derive(Debug, Clone)]
pub struct McpServerView {
    pub server: String,
    pub up: bool,
    pub tools: u64,
    pub left_out: u64,
    pub drifted: u64,
    pub sessions: u64,
}

/// Handles of the names in force.
#[derive(Debug, Default)]
struct Loaded {
    tools: HashMap<String, Arc<ToolMetrics>>,
    agents: HashMap<String, Arc<AgentMetrics>>,
    /// Tools of the policy that did not fit under the bound of series.
    shared: HashSet<String>,
    agent_label: bool,
}

pub struct Metrics {
    registry: Registry,
    families: Families,
    max_series: usize,
    loaded: RwLock<Loaded>,
    known: Arc<RwLock<Known>>,
    overhead: Histogram,
    journal_fsync: Histogram,
    journal_group: Histogram,
    approval_wait: Histogram,
    batches: Counters,
    batches_rejected: Counters,
    egress_blocked: Counters,
    mcp_dropped: Counters,
    unauthenticated: Counters,
    requests_rejected: Counters,
    reloads: Counters,
    reload_successful: Gauge,
    reload_success_at: Gauge,
    watch_degraded: Gauge,
    draining: Gauge,
    records: IntCounter,
    records_dropped: IntCounter,
    record_errors: IntCounter,
    series_dropped: IntCounter,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("max_series", &self.max_series).finish_non_exhaustive()
    }
}

impl Metrics {
    pub fn new() -> Arc<Self> {
        Self::with_max_series(MAX_SERIES)
    }

    /// `max_series` bounds the samples of one scrape; who does not fit shares `_overflow`.
    pub fn with_max_series(max_series: usize) -> Arc<Self> {
        let registry = Registry::new();
        let families = Families::register(&registry);
        let known = Arc::new(RwLock::new(Known::default()));
        let taken = "every series is registered once";
        registry.register(Box::new(StateCollector::new(known.clone()))).expect(taken);
        registry.register(Box::new(ProcessCollector::new())).expect(taken);
        let dropped = families.counter(&table::SERIES_DROPPED);
        let counters = |series| families.counters(series, None, &dropped);
        let metrics = Self {
            overhead: families.histogram(&table::OVERHEAD, &[]),
            journal_fsync: families.histogram(&table::JOURNAL_FSYNC, &[]),
            approval_wait: families.histogram(&table::APPROVAL_WAIT, &[]),
            journal_group: families.histogram(&table::JOURNAL_GROUP, &[]),
            batches: counters(&table::BATCHES),
            batches_rejected: counters(&table::BATCHES_REJECTED),
            egress_blocked: counters(&table::EGRESS_BLOCKED),
            mcp_dropped: counters(&table::MCP_DROPPED),
            unauthenticated: counters(&table::UNAUTHENTICATED),
            requests_rejected: counters(&table::REQUESTS_REJECTED),
            reloads: counters(&table::RELOADS),
            reload_successful: families.gauge(&table::RELOAD_SUCCESSFUL, &[]),
            reload_success_at: families.gauge(&table::RELOAD_SUCCESS_AT, &[]),
            watch_degraded: families.gauge(&table::WATCH_DEGRADED, &[]),
            draining: families.gauge(&table::DRAINING, &[]),
            records: families.counter(&table::AUDIT_RECORDS),
            records_dropped: families.counter(&table::AUDIT_DROPPED),
            record_errors: families.counter(&table::AUDIT_WRITE_ERRORS),
            series_dropped: dropped.clone(),
            loaded: RwLock::default(),
            registry,
            max_series,
            known,
            families,
        };
        let source = option_env!("CHECKREIN_SOURCE_REVISION").unwrap_or("unknown");
        metrics.families.gauge(&table::BUILD_INFO, &[env!("CARGO_PKG_VERSION"), source]).set(1.0);
        metrics.load(&Labels { agent_label: true, ..Labels::default() });
        metrics.reload_success_at.set(0.0);
        metrics.reload_successful.set(0.0);
        Arc::new(metrics)
    }

    /// Creates every series of these names at zero, drops those of names that are gone. The policy they come
    /// from is in force from here on. Names past the bound of series share `_overflow`, in the order given.
    pub fn load(&self, labels: &Labels) {
        self.relabel(labels);
        self.note_success();
    }

    /// The same for a policy that was in force already and meets other tools: no reload, so none is noted.
    pub fn relabel(&self, labels: &Labels) {
        let mut room = Room::new(self.max_series, labels);
        let mut agents: Vec<&str> = labels.agents.iter().map(String::as_str).collect();
        if !labels.agent_label {
            agents = vec![ALL_AGENTS];
        }
        let mut agents_overflow = false;
        agents.retain(|_| room.take(Owner::Agent) || note(&mut agents_overflow));
        let mut tools: Vec<(&str, bool)> = vec![(UNKNOWN, false)];
        let mut tools_overflow = false;
        tools.extend(labels.tools.iter().filter_map(|tool| {
            let fits = room.take(Owner::Tool { write: tool.write }) || note(&mut tools_overflow);
            fits.then_some((tool.name.as_str(), tool.write))
        }));
        if agents_overflow {
            agents.push(OVERFLOW);
        }
        if tools_overflow {
            tools.push((OVERFLOW, true));
        }
        let mut upstreams = labels.upstreams.clone();
        upstreams.retain(|_| room.take(Owner::Upstream));
        self.series_dropped.inc_by(room.dropped);
        self.swap(&tools, &agents, labels);
        let known = Known {
            tools: tools
                .iter()
                .filter(|(name, _)| !name.starts_with('_'))
                .map(|(name, write)| ((*name).to_owned(), *write))
                .collect(),
            agents: agents.iter().map(|name| (*name).to_owned()).collect(),
            upstreams,
            source: self.known.read().unwrap_or_else(PoisonError::into_inner).source.clone(),
        };
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
        if let Some(info) = self.families.gauge_family(&table::POLICY_INFO) {
            info.reset();
            info.with_label_values(&[&labels.policy, &labels.revision]).set(1.0);
        }
    }

    /// Puts the handles of these names in force and removes the series of the others.
    fn swap(&self, tools: &[(&str, bool)], agents: &[&str], labels: &Labels) {
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::take(&mut *loaded);
        for (name, handles) in &old.tools {
            if !tools.iter().any(|(tool, write)| tool == name && *write == handles.write) {
                self.families.remove(Owner::Tool { write: handles.write }, name);
            }
        }
        for name in old.agents.keys().filter(|name| !agents.contains(&name.as_str())) {
            self.families.remove(Owner::Agent, name);
        }
        loaded.agent_label = labels.agent_label;
        for &(name, write) in tools {
            let kept = old.tools.get(name).filter(|handles| handles.write == write).cloned();
            let made =
                || Arc::new(ToolMetrics::new(&self.families, name, write, &self.series_dropped));
            loaded.tools.insert(name.to_owned(), kept.unwrap_or_else(made));
        }
        for &name in agents {
            let made = || Arc::new(AgentMetrics::new(&self.families, name, &self.series_dropped));
            let kept = old.agents.get(name).cloned();
            loaded.agents.insert(name.to_owned(), kept.unwrap_or_else(made));
        }
        let without = |name: &&String| !loaded.tools.contains_key(*name);
        loaded.shared =
            labels.tools.iter().map(|tool| &tool.name).filter(without).cloned().collect();
    }

    /// Handles of one tool; a name the policy does not have gets the handles of `_unknown`.
    pub fn tool(&self, name: &str) -> Arc<ToolMetrics> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        let other = if loaded.shared.contains(name) { OVERFLOW } else { UNKNOWN };
        match loaded.tools.get(name).or_else(|| loaded.tools.get(other)) {
            Some(handles) => handles.clone(),
            None => Arc::new(ToolMetrics::detached(&self.series_dropped)),
        }
    }

    /// Handles of one agent. An agent that just left the policy counts nowhere but in the series dropped.
    pub fn agent(&self, name: &str) -> Arc<AgentMetrics> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        let name = if loaded.agent_label { name } else { ALL_AGENTS };
        match loaded.agents.get(name).or_else(|| loaded.agents.get(OVERFLOW)) {
            Some(handles) => handles.clone(),
            None => Arc::new(AgentMetrics::detached(&self.series_dropped)),
        }
    }

    /// Who tells the live state at every scrape.
    pub fn set_state_source(&self, source: Arc<dyn StateSource>) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).source = Some(source);
    }

    /// Text format 0.0.4.
    pub fn encode(&self) -> String {
        // An encoder fails on families without samples only, and `gather` leaves those out.
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
    }

    pub fn overhead(&self, time: Duration) {
        self.overhead.observe(time.as_secs_f64());
    }
    /// A group of records became lasting.
    /// From a question to a person's word.
    pub fn approval_wait(&self, time: Duration) {
        self.approval_wait.observe(time.as_secs_f64());
    }
    pub fn journal(&self, time: Duration, records: usize) {
        self.journal_fsync.observe(time.as_secs_f64());
        self.journal_group.observe(records as f64);
    }
    /// A `LoopState`'s name.
    pub fn batch(&self, state: &'static str) {
        self.batches.inc(&[state]);
    }
    /// missing_id, duplicate_id, reused_id, too_many, too_large, bad_json
    pub fn batch_rejected(&self, reason: &'static str) {
        self.batches_rejected.inc(&[reason]);
    }
    /// private, link_local, loopback, host, redirect, dns
    pub fn egress_blocked(&self, reason: &'static str) {
        self.egress_blocked.inc(&[reason]);
    }
    /// unknown_id, too_many_requests, not_wanted, stale_progress, malformed, noise, queue_full
    pub fn mcp_message_dropped(&self, reason: &'static str) {
        self.mcp_dropped.inc(&[reason]);
    }
    /// data, admin
    pub fn unauthenticated(&self, listener: &'static str) {
        self.unauthenticated.inc(&[listener]);
    }
    /// head, body, header_timeout, host_origin, media_type, bad_request, connections
    pub fn request_rejected(&self, reason: &'static str) {
        self.requests_rejected.inc(&[reason]);
    }
    /// applied, unchanged, rejected, unreadable
    pub fn reload(&self, result: &'static str) {
        self.reloads.inc(&[result]);
        if matches!(result, "applied" | "unchanged") {
            self.note_success();
        } else {
            self.reload_successful.set(0.0);
        }
    }
    pub fn watch_degraded(&self, yes: bool) {
        self.watch_degraded.set(f64::from(u8::from(yes)));
    }
    pub fn draining(&self, yes: bool) {
        self.draining.set(f64::from(u8::from(yes)));
    }
    pub fn record_written(&self) {
        self.records.inc();
    }
    pub fn record_dropped(&self) {
        self.records_dropped.inc();
    }
    pub fn record_write_error(&self) {
        self.record_errors.inc();
    }

    fn note_success(&self) {
        self.reload_successful.set(1.0);
        self.reload_success_at.set(collector::seconds(Some(wall_clock())));
    }
}

/// Marks a bound as crossed; always false, so that it reads as "does not fit".
fn note(crossed: &mut bool) -> bool {
    *crossed = true;
    false
}
