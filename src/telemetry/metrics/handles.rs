//! Handles of one tool, one agent: every child is made when the policy is loaded, marking one is a search in a
//! closed list and an atomic add.

use std::time::Duration;

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec};

use super::families::Families;
use super::table::{self, Series};
use crate::call::{Dimension, ErrorClass};

/// Every child of one counter family that belongs to one owner.
#[derive(Debug)]
pub(super) struct Counters {
    children: Vec<(Vec<&'static str>, IntCounter)>,
    /// Where a mark goes that has no series: a value outside the closed set.
    dropped: IntCounter,
}

impl Counters {
    pub(super) fn new(
        family: &IntCounterVec,
        series: &Series,
        owner: Option<&str>,
        dropped: &IntCounter,
    ) -> Self {
        let children = series
            .label_sets(None)
            .into_iter()
            .map(|set| {
                let values: Vec<&str> = owner.into_iter().chain(set.iter().copied()).collect();
                (set, family.with_label_values(&values))
            })
            .collect();
        Self { children, dropped: dropped.clone() }
    }

    fn detached(dropped: &IntCounter) -> Self {
        Self { children: Vec::new(), dropped: dropped.clone() }
    }

    pub(super) fn inc(&self, values: &[&'static str]) {
        self.inc_by(values, 1);
    }

    fn inc_by(&self, values: &[&'static str], by: u64) {
        match self.find(values) {
            Some(child) => child.inc_by(by),
            None => self.dropped.inc(),
        }
    }

    fn find(&self, values: &[&'static str]) -> Option<&IntCounter> {
        self.children.iter().find(|(set, _)| same(set, values)).map(|(_, child)| child)
    }
}

/// One counter, found beforehand.
#[derive(Debug, Clone)]
pub struct Mark(IntCounter);

impl Mark {
    pub fn inc(&self) {
        self.0.inc();
    }
}

/// Label values are words of the program: the same word mostly lies at the same place, and needs no look at its letters.
fn same(set: &[&'static str], values: &[&'static str]) -> bool {
    let alike = |(a, b): (&&str, &&str)| {
        a.len() == b.len() && (std::ptr::eq(a.as_ptr(), b.as_ptr()) || a == b)
    };
    set.len() == values.len() && set.iter().zip(values).all(alike)
}

/// Marks of one tool.
#[derive(Debug)]
pub struct ToolMetrics {
    pub(super) write: bool,
    calls: Counters,
    duration: Histogram,
    attempts: Counters,
    connect: Histogram,
    first_byte: Histogram,
    total: Histogram,
    retries: Counters,
    retry_successes: Counters,
    retries_suppressed: Counters,
    transitions: Counters,
    rejected: Counters,
    late: Counters,
    probes: Counters,
    ratelimit: Counters,
    cooldowns: Counters,
    idempotency: Counters,
    write_ends: Counters,
    write_upgrades: Counters,
    approvals: Counters,
    reviews_resolved: Counters,
    fuse_trips: Counters,
    cache_lookups: Counters,
    result_bytes: Counters,
    truncated: Counters,
}

impl ToolMetrics {
    pub(super) fn new(families: &Families, tool: &str, write: bool, dropped: &IntCounter) -> Self {
        let counters = |series: &Series| match series.writes_only && !write {
            true => Counters::detached(dropped),
            false => families.counters(series, Some(tool), dropped),
        };
        let phase = |phase| families.histogram(&table::ATTEMPT_PHASE, &[tool, phase]);
        let duration = families.histogram(&table::CALL_DURATION, &[tool]);
        Self::from(
            write,
            counters,
            [duration, phase("connect"), phase("first_byte"), phase("total")],
        )
    }

    /// Handles that lead nowhere but to the count of marks without a series.
    pub(super) fn detached(dropped: &IntCounter) -> Self {
        let nowhere = || {
            let opts = HistogramOpts::new("detached", "leads nowhere");
            Histogram::with_opts(opts).expect("the name is sound")
        };
        let histograms = [nowhere(), nowhere(), nowhere(), nowhere()];
        Self::from(false, |_| Counters::detached(dropped), histograms)
    }

    fn from(
        write: bool,
        counters: impl Fn(&Series) -> Counters,
        [duration, connect, first_byte, total]: [Histogram; 4],
    ) -> Self {
        Self {
            write,
            duration,
            connect,
            first_byte,
            total,
            calls: counters(&table::TOOL_CALLS),
            attempts: counters(&table::ATTEMPTS),
            retries: counters(&table::RETRIES),
            retry_successes: counters(&table::RETRY_SUCCESSES),
            retries_suppressed: counters(&table::RETRIES_SUPPRESSED),
            transitions: counters(&table::BREAKER_TRANSITIONS),
            rejected: counters(&table::BREAKER_REJECTED),
            late: counters(&table::BREAKER_LATE),
            probes: counters(&table::BREAKER_PROBES),
            ratelimit: counters(&table::RATELIMIT),
            cooldowns: counters(&table::COOLDOWNS),
            idempotency: counters(&table::IDEMPOTENCY),
            write_ends: counters(&table::WRITE_ENDS),
            write_upgrades: counters(&table::WRITE_UPGRADES),
            approvals: counters(&table::APPROVALS),
            reviews_resolved: counters(&table::REVIEWS_RESOLVED),
            fuse_trips: counters(&table::FUSE_TRIPS),
            cache_lookups: counters(&table::CACHE_LOOKUPS),
            result_bytes: counters(&table::RESULT_BYTES),
            truncated: counters(&table::RESULTS_TRUNCATED),
        }
    }

    /// `outcome`: `call::ended::outcome_label`, or `abandoned`.
    pub fn call(&self, outcome: &'static str, duration: Duration) {
        self.calls.inc(&[outcome]);
        self.duration.observe(duration.as_secs_f64());
    }
    pub fn attempt(&self, class: ErrorClass) {
        self.attempts.inc(&[class.as_str()]);
    }
    /// connect, first_byte, total
    pub fn phase(&self, phase: &'static str, time: Duration) {
        let seconds = time.as_secs_f64();
        match phase {
            "connect" => self.connect.observe(seconds),
            "first_byte" => self.first_byte.observe(seconds),
            "total" => self.total.observe(seconds),
            _ => self.calls.dropped.inc(),
        }
    }
    pub fn retry(&self) {
        self.retries.inc(&[]);
    }
    pub fn retry_success(&self) {
        self.retry_successes.inc(&[]);
    }
    /// class, effect, attempts, deadline, not_replayable, circuit_open, retry_budget, rate_limited, draining
    pub fn retry_suppressed(&self, reason: &'static str) {
        self.retries_suppressed.inc(&[reason]);
    }
    pub fn transition(&self, from: &'static str, to: &'static str) {
        self.transitions.inc(&[from, to]);
    }
    /// enforce, shadow
    pub fn breaker_rejected(&self, mode: &'static str) {
        self.rejected.inc(&[mode]);
    }
    pub fn late_result(&self) {
        self.late.inc(&[]);
    }
    /// good, bad, neutral, abandoned
    pub fn probe(&self, verdict: &'static str) {
        self.probes.inc(&[verdict]);
    }
    /// scope: run, agent, tool, upstream, global; decision: allowed, rejected, would_reject
    pub fn ratelimit(&self, scope: &'static str, decision: &'static str) {
        self.ratelimit.inc(&[scope, decision]);
    }
    /// The mark of one scope's `allowed`, for whoever makes it at every call.
    pub fn ratelimit_allowed(&self, scope: &'static str) -> Mark {
        let child = self.ratelimit.find(&[scope, "allowed"]);
        Mark(child.unwrap_or(&self.ratelimit.dropped).clone())
    }
    pub fn cooldown(&self) {
        self.cooldowns.inc(&[]);
    }
    /// miss, replay, join, conflict, unknown, repeated_occurrence
    pub fn idempotency(&self, result: &'static str) {
        self.idempotency.inc(&[result]);
    }
    /// executed, not_executed, unknown
    pub fn write_end(&self, end: &'static str) {
        self.write_ends.inc(&[end]);
    }
    /// `late_answer`, `resend`, `status_query`
    pub fn write_upgrade(&self, by: &'static str) {
        self.write_upgrades.inc(&[by]);
    }
    /// approve, edit, reject, expire
    pub fn approval(&self, decision: &'static str) {
        self.approvals.inc(&[decision]);
    }
    /// (happened, did_not_happen, compensated), (person, late_answer)
    pub fn review_resolved(&self, resolution: &'static str, by: &'static str) {
        self.reviews_resolved.inc(&[resolution, by]);
    }
    /// same_failures, same_results, rounds
    pub fn fuse_trip(&self, kind: &'static str) {
        self.fuse_trips.inc(&[kind]);
    }
    /// hit, stale, miss
    pub fn cache_lookup(&self, result: &'static str) {
        self.cache_lookups.inc(&[result]);
    }
    pub fn result_bytes(&self, bytes: u64) {
        self.result_bytes.inc_by(&[], bytes);
    }
    pub fn truncated(&self) {
        self.truncated.inc(&[]);
    }
}

/// Marks of one agent.
#[derive(Debug)]
pub struct AgentMetrics {
    calls: Counters,
    runs: Counters,
    budgets: Counters,
}

impl AgentMetrics {
    pub(super) fn new(families: &Families, agent: &str, dropped: &IntCounter) -> Self {
        let counters = |series| families.counters(series, Some(agent), dropped);
        Self {
            calls: counters(&table::AGENT_CALLS),
            runs: counters(&table::RUNS),
            budgets: counters(&table::RUN_BUDGETS),
        }
    }

    pub(super) fn detached(dropped: &IntCounter) -> Self {
        let nowhere = || Counters::detached(dropped);
        Self { calls: nowhere(), runs: nowhere(), budgets: nowhere() }
    }

    pub fn call(&self, outcome: &'static str) {
        self.calls.inc(&[outcome]);
    }
    /// completed, stopped, interrupted, budget, deadline, handoff, idle
    pub fn run_ended(&self, end: &'static str) {
        self.runs.inc(&[end]);
    }
    pub fn budget_exhausted(&self, dimension: Dimension) {
        self.budgets.inc(&[dimension.as_str()]);
    }
}
