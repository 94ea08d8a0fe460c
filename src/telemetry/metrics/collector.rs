//! State gauges, computed at the scrape: nothing drifts, and exactly one state of a breaker is 1 by construction.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, Opts};

use super::table::{self, BREAKER_STATES, Kind, Series, TABLE};
use super::{StateSource, StateView, UNKNOWN};

/// The store of this build is the process's own memory.
const LOCAL: &str = "local";

/// Which names have state series, and who tells the state.
#[derive(Default)]
pub(super) struct Known {
    /// (tool, it is a write)
    pub(super) tools: Vec<(String, bool)>,
    pub(super) agents: Vec<String>,
    pub(super) upstreams: Vec<String>,
    pub(super) source: Option<Arc<dyn StateSource>>,
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known").field("tools", &self.tools).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(super) struct StateCollector {
    descs: Vec<Desc>,
    known: Arc<RwLock<Known>>,
}

impl StateCollector {
    pub(super) fn new(known: Arc<RwLock<Known>>) -> Self {
        let descs = TABLE
            .iter()
            .filter(|series| matches!(series.kind, Kind::State))
            .flat_map(|series| family(series).desc().into_iter().cloned().collect::<Vec<_>>())
            .collect();
        Self { descs, known }
    }
}

impl Collector for StateCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let view = known.source.as_ref().map(|source| source.read()).unwrap_or_default();
        let mut families = tools(&known, &view);
        families.extend(upstreams(&known, &view));
        families.extend(mcp_servers(&known, &view));
        families.extend(people(&known, &view));
        families.push(one(&table::CONCURRENCY_LIMIT, view.concurrency_limit as f64));
        families.push(one(&table::STORE_WRITABLE, f64::from(u8::from(view.store_writable))));
        families.push(one(&table::STORE_BYTES, view.store_bytes as f64));
        families.iter().flat_map(Collector::collect).collect()
    }
}

/// A family made for one scrape and thrown away, so that no sample of an earlier one can be in it.
fn family(series: &Series) -> GaugeVec {
    GaugeVec::new(Opts::new(series.name, series.help), &series.label_names())
        .expect("names and labels of the table are sound")
}

fn one(series: &Series, value: f64) -> GaugeVec {
    let family = family(series);
    family.with_label_values::<&str>(&[]).set(value);
    family
}

/// Every state once, the one that holds as 1. A word that is no state counts as `closed`.
fn one_hot(family: &GaugeVec, name: &str, state: &str) {
    let at = BREAKER_STATES.iter().position(|known| *known == state).unwrap_or(0);
    for (n, known) in BREAKER_STATES.iter().enumerate() {
        family.with_label_values(&[name, known]).set(f64::from(u8::from(n == at)));
    }
}

fn tools(known: &Known, view: &StateView) -> Vec<GaugeVec> {
    let state = family(&table::BREAKER_STATE);
    let failures = family(&table::BREAKER_FAILURES);
    let threshold = family(&table::BREAKER_THRESHOLD);
    let changed = family(&table::BREAKER_CHANGED);
    let inflight = family(&table::INFLIGHT);
    let tokens = family(&table::RATELIMIT_TOKENS);
    let cooldown = family(&table::COOLDOWN_UNTIL);
    let is_known = |name: &str| known.tools.iter().any(|(tool, _)| tool == name);
    for tool in view.tools.iter().filter(|tool| is_known(&tool.tool)) {
        let name = [tool.tool.as_str()];
        one_hot(&state, &tool.tool, tool.breaker);
        failures.with_label_values(&name).set(tool.consecutive_failures as f64);
        threshold.with_label_values(&name).set(tool.failure_threshold as f64);
        changed.with_label_values(&name).set(seconds(tool.last_transition));
        inflight.with_label_values(&name).set(tool.inflight as f64);
        cooldown.with_label_values(&name).set(seconds(tool.cooldown_until));
        for (scope, left) in &tool.tokens {
            tokens.with_label_values(&[tool.tool.as_str(), scope]).set(*left as f64);
        }
    }
    vec![state, failures, threshold, changed, inflight, tokens, cooldown]
}

fn upstreams(known: &Known, view: &StateView) -> Vec<GaugeVec> {
    let state = family(&table::UPSTREAM_BREAKER_STATE);
    let budget = family(&table::RETRY_BUDGET);
    for upstream in view.upstreams.iter().filter(|u| known.upstreams.contains(&u.upstream)) {
        one_hot(&state, &upstream.upstream, upstream.breaker);
        let tokens = upstream.retry_budget_milli as f64 / 1000.0;
        budget.with_label_values(&[&upstream.upstream]).set(tokens);
    }
    vec![state, budget]
}

fn mcp_servers(known: &Known, view: &StateView) -> Vec<GaugeVec> {
    let up = family(&table::MCP_SERVER_UP);
    let tools = family(&table::MCP_TOOLS);
    let left_out = family(&table::MCP_LEFT_OUT);
    let drifted = family(&table::MCP_DRIFTED);
    let sessions = family(&table::MCP_SESSIONS);
    for server in view.mcp_servers.iter().filter(|s| known.upstreams.contains(&s.server)) {
        let name = [server.server.as_str()];
        up.with_label_values(&name).set(f64::from(u8::from(server.up)));
        tools.with_label_values(&name).set(server.tools as f64);
        left_out.with_label_values(&name).set(server.left_out as f64);
        drifted.with_label_values(&name).set(server.drifted as f64);
        sessions.with_label_values(&name).set(server.sessions as f64);
    }
    vec![up, tools, left_out, drifted, sessions]
}

/// Runs, approvals and reviews: every known name is there, at 0 where nothing is open. A review of a tool that has left the
/// policy still waits for a person: it counts under `_unknown`.
fn people(known: &Known, view: &StateView) -> Vec<GaugeVec> {
    let runs = family(&table::RUNS_ACTIVE);
    for agent in &known.agents {
        runs.with_label_values(&[agent]).set(0.0);
    }
    for (agent, live) in &view.runs_active {
        let shown = if known.agents.contains(agent) { Some(agent) } else { known.agents.first() };
        if let Some(shown) = shown.filter(|shown| *shown == agent || shown.starts_with('_')) {
            runs.with_label_values(&[shown]).add(*live as f64);
        }
    }
    let reviews = family(&table::REVIEWS_OPEN);
    for (tool, _) in known.tools.iter().filter(|(_, write)| *write) {
        reviews.with_label_values(&[tool.as_str(), LOCAL]).set(0.0);
    }
    for (tool, open) in view.reviews_open.iter().filter(|(_, open)| *open > 0) {
        let is_known = known.tools.iter().any(|(name, _)| name == tool);
        let shown = if is_known { tool.as_str() } else { UNKNOWN };
        reviews.with_label_values(&[shown, LOCAL]).add(*open as f64);
    }
    let approvals = family(&table::APPROVALS_PENDING);
    for (tool, _) in &known.tools {
        approvals.with_label_values(&[tool.as_str(), LOCAL]).set(0.0);
    }
    for (tool, waiting) in &view.approvals_pending {
        let is_known = known.tools.iter().any(|(name, _)| name == tool);
        let shown = if is_known { tool.as_str() } else { UNKNOWN };
        approvals.with_label_values(&[shown, LOCAL]).add(*waiting as f64);
    }
    let oldest = family(&table::REVIEW_OLDEST);
    oldest.with_label_values(&[LOCAL]).set(seconds(view.review_oldest));
    vec![runs, approvals, reviews, oldest]
}

/// Seconds since the epoch; 0 for never, and for clocks set before it.
pub(super) fn seconds(time: Option<SystemTime>) -> f64 {
    time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0.0, |d| d.as_secs_f64())
}
