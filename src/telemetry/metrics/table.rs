//! THE table of series: name, kind, labels, meaning. The registry, docs/metrics.md and the tests come from it.
//!
//! A label's values are names of the policy or a closed set; never an id, an argument, a URL or a text.

use crate::call::code::outcome_labels;
use crate::call::turn::LoopState;
use crate::call::{Dimension, ErrorClass};

/// What kind of number a series is, and who keeps it.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Counter,
    /// Set when something happens.
    Gauge,
    Histogram(&'static [f64]),
    /// A gauge computed at the scrape from live state, so that it cannot drift.
    State,
    /// Read from `/proc/self` at the scrape.
    ProcessCounter,
    ProcessGauge,
}

/// Where the values of a label come from.
#[derive(Debug, Clone, Copy)]
pub enum Values {
    Tools,
    Agents,
    Upstreams,
    /// One value at a time, from the program or the policy in force.
    Info,
    Closed(fn() -> Vec<&'static str>),
}

#[derive(Debug, Clone, Copy)]
pub struct Label {
    pub name: &'static str,
    pub values: Values,
}

/// One row of the table.
#[derive(Debug)]
pub struct Series {
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [Label],
    /// Only tools declared `effect: write` have it.
    pub writes_only: bool,
    pub help: &'static str,
}

impl Series {
    /// Samples one owner (a tool, an agent, or the process) adds to the scrape.
    pub fn cost(&self) -> usize {
        let sets = self.label_sets(None).len();
        match self.kind {
            Kind::Histogram(buckets) => sets * (buckets.len() + 3), // +Inf, _sum, _count
            Kind::Counter
            | Kind::Gauge
            | Kind::State
            | Kind::ProcessCounter
            | Kind::ProcessGauge => sets,
        }
    }

    /// Every combination of the closed labels, after the owner's name where there is one.
    pub fn label_sets<'a>(&self, owner: Option<&'a str>) -> Vec<Vec<&'a str>> {
        let mut sets: Vec<Vec<&'a str>> = vec![owner.into_iter().collect()];
        for label in self.labels {
            let Values::Closed(values) = label.values else { continue };
            let values = values();
            sets = sets
                .into_iter()
                .flat_map(|set| values.iter().map(move |v| [set.as_slice(), &[*v]].concat()))
                .collect();
        }
        // A circuit does not change from a state to itself.
        if self.name == BREAKER_TRANSITIONS.name {
            sets.retain(|set| set.iter().rev().nth(1) != set.last());
        }
        sets
    }

    pub fn label_names(&self) -> Vec<&'static str> {
        self.labels.iter().map(|label| label.name).collect()
    }
}

/// What the next call of a tool would meet. Exactly one is true at every scrape.
pub const BREAKER_STATES: &[&str] = &["closed", "open", "half_open", "isolated", "shadow"];

const TOOL: Label = Label { name: "tool", values: Values::Tools };
const AGENT: Label = Label { name: "agent", values: Values::Agents };
const UPSTREAM: Label = Label { name: "upstream", values: Values::Upstreams };
const SERVER: Label = Label { name: "server", values: Values::Upstreams };
const OUTCOME: Label = Label { name: "outcome", values: Values::Closed(outcome_labels) };

macro_rules! closed {
    ($name:literal, $($value:literal)*) => {
        Label { name: $name, values: Values::Closed(|| vec![$($value),*]) }
    };
}

const STATE: Label = Label { name: "state", values: Values::Closed(|| BREAKER_STATES.to_vec()) };
const FROM: Label = closed!("from", "closed" "open" "half_open" "isolated");
const TO: Label = closed!("to", "closed" "open" "half_open" "isolated");
const SCOPE: Label = closed!("scope", "run" "agent" "tool" "upstream" "global");
/// Every store of this build lives in its own process: sum over gateways.
const STORE: Label = closed!("store", "local");

/// Calls and attempts: every built-in total (15, 60, 120, 300 s) is an edge.
const CALL_BUCKETS: &[f64] =
    &[0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0];
/// A sync takes from a tenth of a millisecond (a good local disk) to seconds (a bad one).
const SYNC_BUCKETS: &[f64] =
    &[0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0];
const GROUP_BUCKETS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];
/// People answer in seconds where they sit beside it, and the next morning where they do not.
const APPROVAL_BUCKETS: &[f64] = &[1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0];
const OVERHEAD_BUCKETS: &[f64] =
    &[0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25];

macro_rules! series {
    ($($(#[$writes:ident])? $id:ident $name:literal $kind:expr, [$($label:expr),*], $help:literal;)*) => {
        $(pub const $id: Series = Series {
            name: $name,
            kind: $kind,
            labels: &[$($label),*],
            writes_only: series!(@writes $($writes)?),
            help: $help,
        };)*
        /// Every series, in the order of docs/metrics.md.
        pub const TABLE: &[&Series] = &[$(&$id),*];
    };
    (@writes writes) => { true };
    (@writes) => { false };
}

series! {
    BUILD_INFO "checkrein_build_info" Kind::Gauge,
        [Label { name: "version", values: Values::Info }, Label { name: "revision", values: Values::Info }],
        "Always 1; the version and the source revision of the program.";
    DRAINING "checkrein_draining" Kind::Gauge, [], "1 from the first step of a drain, else 0.";
    POLICY_INFO "checkrein_policy_info" Kind::Gauge,
        [Label { name: "policy", values: Values::Info }, Label { name: "revision", values: Values::Info }],
        "Always 1; the name and the revision of the policy in force.";
    RELOAD_SUCCESSFUL "checkrein_policy_last_reload_successful" Kind::Gauge, [],
        "1 when the last reading of the policy was good, 0 when it was refused and the old one stays in force.";
    RELOAD_SUCCESS_AT "checkrein_policy_last_reload_success_timestamp_seconds" Kind::Gauge, [],
        "When a policy was last read and found good.";
    RELOADS "checkrein_policy_reloads_total" Kind::Counter,
        [closed!("result", "applied" "unchanged" "rejected" "unreadable")],
        "Readings of the policy after the start, by what came of them.";
    WATCH_DEGRADED "checkrein_policy_watch_degraded" Kind::Gauge, [],
        "1 when the policy file is itself a mount point (subPath), which never sees an update.";
    TOOL_CALLS "checkrein_tool_calls_total" Kind::Counter, [TOOL, OUTCOME],
        "Calls, each once: ok, replayed, stale (an old answer of the cache for a broken tool), input_required (the tool asks before it goes on), or the code of the refusal or failure. Names no tool has count as _unknown.";
    AGENT_CALLS "checkrein_agent_calls_total" Kind::Counter, [AGENT, OUTCOME],
        "The same calls, by agent.";
    CALL_DURATION "checkrein_tool_call_duration_seconds" Kind::Histogram(CALL_BUCKETS), [TOOL],
        "Time of a call as the agent sees it.";
    OVERHEAD "checkrein_gateway_overhead_seconds" Kind::Histogram(OVERHEAD_BUCKETS), [],
        "Time of a call less the time at its tool and the waits between attempts.";
    ATTEMPTS "checkrein_attempts_total" Kind::Counter,
        [TOOL, Label { name: "error_class", values: Values::Closed(|| ErrorClass::ALL.iter().map(|c| c.as_str()).collect()) }],
        "Tries at the tool, by how they ended; none = it answered.";
    ATTEMPT_PHASE "checkrein_attempt_phase_seconds" Kind::Histogram(CALL_BUCKETS),
        [TOOL, closed!("phase", "connect" "first_byte" "total")],
        "Time to connect, to the first byte of the answer, and of the whole attempt.";
    RETRIES "checkrein_retries_total" Kind::Counter, [TOOL], "Attempts after the first of a call.";
    RETRY_SUCCESSES "checkrein_retry_successes_total" Kind::Counter, [TOOL],
        "Calls that succeeded after more than one attempt.";
    RETRIES_SUPPRESSED "checkrein_retries_suppressed_total" Kind::Counter,
        [TOOL, closed!("reason", "class" "effect" "attempts" "deadline" "not_replayable" "circuit_open" "retry_budget" "rate_limited" "draining")],
        "Failed attempts after which no further one was sent, by the first reason that held.";
    RETRY_BUDGET "checkrein_retry_budget_tokens" Kind::State, [UPSTREAM],
        "Retries this upstream may still be sent before its budget is spent.";
    BREAKER_STATE "checkrein_breaker_state" Kind::State, [TOOL, STATE],
        "State set: 1 for what the next call of the tool would meet, 0 for the others.";
    UPSTREAM_BREAKER_STATE "checkrein_upstream_breaker_state" Kind::State, [UPSTREAM, STATE],
        "State set of the upstream's circuit for failures to connect.";
    BREAKER_TRANSITIONS "checkrein_breaker_transitions_total" Kind::Counter, [TOOL, FROM, TO],
        "Changes of a circuit's state.";
    BREAKER_REJECTED "checkrein_breaker_rejected_total" Kind::Counter, [TOOL, closed!("mode", "enforce" "shadow")],
        "Calls an open circuit refused; shadow = would have refused.";
    BREAKER_PROBES "checkrein_breaker_probes_total" Kind::Counter,
        [TOOL, closed!("verdict", "good" "bad" "neutral" "abandoned")],
        "Calls let through a half-open circuit, by what they showed.";
    BREAKER_LATE "checkrein_breaker_late_results_total" Kind::Counter, [TOOL],
        "Verdicts of an older generation of the circuit; they changed nothing.";
    BREAKER_FAILURES "checkrein_breaker_consecutive_failures" Kind::State, [TOOL],
        "Failed calls in a row, as the circuit counts them.";
    BREAKER_THRESHOLD "checkrein_breaker_failure_threshold" Kind::State, [TOOL],
        "Failed calls in a row that open the circuit.";
    BREAKER_CHANGED "checkrein_breaker_last_transition_timestamp_seconds" Kind::State, [TOOL],
        "When the circuit last changed its state; 0 = never.";
    RATELIMIT "checkrein_ratelimit_decisions_total" Kind::Counter,
        [TOOL, SCOPE, closed!("decision", "allowed" "rejected" "would_reject")],
        "Attempts judged by a token bucket; would_reject = a bucket in shadow mode.";
    RATELIMIT_TOKENS "checkrein_ratelimit_tokens_available" Kind::State, [TOOL, SCOPE],
        "Tokens left in the emptiest bucket of the scope.";
    COOLDOWNS "checkrein_cooldowns_total" Kind::Counter, [TOOL],
        "Times the tool itself asked to be left alone (429, or 503 with Retry-After).";
    COOLDOWN_UNTIL "checkrein_tool_cooldown_until_timestamp_seconds" Kind::State, [TOOL],
        "End of the tool's cooldown; 0 = none.";
    INFLIGHT "checkrein_inflight_calls" Kind::State, [TOOL], "Calls that hold a place of the tool's bulkhead.";
    CONCURRENCY_LIMIT "checkrein_concurrency_limit" Kind::State, [], "Calls the whole gateway carries at once.";
    BATCHES "checkrein_batches_total" Kind::Counter,
        [Label { name: "state", values: Values::Closed(|| LoopState::ALL.iter().map(|s| s.as_str()).collect()) }],
        "Assistant messages answered, by the state of the loop.";
    BATCHES_REJECTED "checkrein_batches_rejected_total" Kind::Counter,
        [closed!("reason", "missing_id" "duplicate_id" "reused_id" "too_many" "too_large" "bad_json")],
        "Assistant messages refused whole; nothing of them was run.";
    #[writes] IDEMPOTENCY "checkrein_idempotency_lookups_total" Kind::Counter,
        [TOOL, closed!("result", "miss" "replay" "join" "conflict" "unknown" "repeated_occurrence" "continuation")],
        "Writes looked up in the ledger, by what was found.";
    #[writes] WRITE_ENDS "checkrein_write_ends_total" Kind::Counter,
        [TOOL, closed!("end", "executed" "not_executed" "unknown")],
        "Writes that were begun, by what is known of their effect.";
    #[writes] WRITE_UPGRADES "checkrein_write_upgrades_total" Kind::Counter, [TOOL, closed!("by", "late_answer" "resend" "status_query")],
        "Unknown writes that became known.";
    STORE_WRITABLE "checkrein_store_writable" Kind::State, [],
        "1 while the ledger takes new writes, else 0: writes are refused, reads go on.";
    STORE_BYTES "checkrein_store_bytes" Kind::State, [],
        "Bytes of the store on disk, its log included; 0 with --store memory.";
    JOURNAL_FSYNC "checkrein_journal_fsync_seconds" Kind::Histogram(SYNC_BUCKETS), [],
        "Time to make a group of the ledger's records lasting.";
    JOURNAL_GROUP "checkrein_journal_group_size" Kind::Histogram(GROUP_BUCKETS), [],
        "Records that shared one sync.";
    APPROVALS_PENDING "checkrein_approvals_pending" Kind::State, [TOOL, STORE],
        "Calls that wait for a person's yes; nothing of them was sent.";
    APPROVALS "checkrein_approvals_total" Kind::Counter, [TOOL, closed!("decision", "approve" "edit" "reject" "expire")],
        "Questions about calls that ended: what a person said, or expire where nobody did in time.";
    APPROVAL_WAIT "checkrein_approval_wait_seconds" Kind::Histogram(APPROVAL_BUCKETS), [],
        "Time from a question to a person's word.";
    #[writes] REVIEWS_OPEN "checkrein_reviews_open" Kind::State, [TOOL, STORE],
        "Writes that may have happened and wait for a person.";
    #[writes] REVIEWS_RESOLVED "checkrein_reviews_resolved_total" Kind::Counter,
        [TOOL, closed!("resolution", "happened" "did_not_happen" "compensated"), closed!("by", "person" "late_answer")],
        "Writes that may have happened and are settled: as what, and by whom.";
    REVIEW_OLDEST "checkrein_review_oldest_timestamp_seconds" Kind::State, [STORE],
        "When the oldest open review began; 0 = none.";
    RUNS_ACTIVE "checkrein_runs_active" Kind::State, [AGENT], "Live runs.";
    RUNS "checkrein_runs_total" Kind::Counter,
        [AGENT, closed!("end", "completed" "stopped" "interrupted" "budget" "deadline" "handoff" "idle")],
        "Runs that ended, by how.";
    RUN_BUDGETS "checkrein_run_budget_exhausted_total" Kind::Counter,
        [AGENT, Label { name: "budget", values: Values::Closed(|| Dimension::ALL.iter().map(|d| d.as_str()).collect()) }],
        "Refusals because a budget of the run was spent.";
    FUSE_TRIPS "checkrein_repeat_fuse_trips_total" Kind::Counter,
        [TOOL, closed!("kind", "same_failures" "same_results" "rounds")],
        "Calls refused because the same call had failed, or changed nothing, too often in its run.";
    CACHE_LOOKUPS "checkrein_cache_lookups_total" Kind::Counter, [TOOL, closed!("result", "hit" "stale" "miss")],
        "Reads looked up in the cache: hit = answered without the tool, also by a call that asked the same at once; stale = an old answer for a broken tool.";
    RESULT_BYTES "checkrein_result_bytes_total" Kind::Counter, [TOOL], "Bytes of results handed to agents.";
    RESULTS_TRUNCATED "checkrein_results_truncated_total" Kind::Counter, [TOOL], "Results cut to the tool's limit.";
    EGRESS_BLOCKED "checkrein_egress_blocked_total" Kind::Counter,
        [closed!("reason", "private" "link_local" "loopback" "host" "redirect" "dns")],
        "Connections the egress guard did not make.";
    MCP_SERVER_UP "checkrein_mcp_server_up" Kind::State, [SERVER],
        "1 = the MCP server could be listed when it was last asked; 0 = what it offered last stands, or nothing.";
    MCP_TOOLS "checkrein_mcp_tools" Kind::State, [SERVER], "Tools that the MCP server offers and that are sound by themselves.";
    MCP_LEFT_OUT "checkrein_mcp_tools_left_out" Kind::State, [SERVER],
        "Tools of the MCP server that are left out because their definition is broken.";
    MCP_DRIFTED "checkrein_mcp_tools_drifted" Kind::State, [SERVER],
        "Tools of the MCP server whose definition is not the one that was pinned.";
    MCP_SESSIONS "checkrein_mcp_sessions" Kind::State, [SERVER], "Inner sessions with the MCP server, used or kept for use.";
    MCP_DROPPED "checkrein_mcp_messages_dropped_total" Kind::Counter,
        [closed!("reason", "unknown_id" "too_many_requests" "not_wanted" "stale_progress" "malformed" "noise" "queue_full")],
        "Messages of MCP servers that nobody waited for.";
    UNAUTHENTICATED "checkrein_unauthenticated_total" Kind::Counter, [closed!("listener", "data" "admin")],
        "Requests without, or with a wrong, credential.";
    REQUESTS_REJECTED "checkrein_requests_rejected_total" Kind::Counter,
        [closed!("reason", "head" "body" "header_timeout" "host_origin" "media_type" "bad_request" "connections")],
        "Requests refused before there was a call.";
    AUDIT_RECORDS "checkrein_audit_records_total" Kind::Counter, [], "Records written.";
    AUDIT_DROPPED "checkrein_audit_dropped_total" Kind::Counter, [],
        "Records lost because the buffer was full; must stay 0.";
    AUDIT_WRITE_ERRORS "checkrein_audit_write_errors_total" Kind::Counter, [],
        "Failed writes to the records' destination.";
    SERIES_DROPPED "checkrein_metrics_series_dropped_total" Kind::Counter, [],
        "Series not created because of --metrics-max-series (their counts are under _overflow), and marks without a series.";
    CPU "process_cpu_seconds_total" Kind::ProcessCounter, [], "User and system CPU time of the process.";
    RESIDENT "process_resident_memory_bytes" Kind::ProcessGauge, [], "Resident memory.";
    VIRTUAL "process_virtual_memory_bytes" Kind::ProcessGauge, [], "Virtual memory.";
    OPEN_FDS "process_open_fds" Kind::ProcessGauge, [], "Open file descriptors.";
    MAX_FDS "process_max_fds" Kind::ProcessGauge, [], "Most file descriptors the process may open.";
    START_TIME "process_start_time_seconds" Kind::ProcessGauge, [], "Start of the process since the epoch.";
    THREADS "process_threads" Kind::ProcessGauge, [], "Threads of the process.";
}

/// docs/metrics.md, as the table gives it.
pub fn document() -> String {
    let mut text = String::from(
        "# Metrics\n\n\
         `GET /metrics` on the health listener, Prometheus text format 0.0.4 (no exemplars, no OpenMetrics).\n\
         Label values are names of the policy or come from the closed sets below; calls of names no tool has count under\n\
         `tool=\"_unknown\"`. With `telemetry.agent_label: false` every `agent` is `_all`; past `--metrics-max-series` further\n\
         names share `_overflow`. Every series of a known name exists at 0 from the start, and goes when its name leaves the\n\
         policy. *State* gauges are computed at the scrape. This page is made from the program's own table.\n\n\
         | name | type | labels | meaning |\n|---|---|---|---|\n",
    );
    for series in TABLE {
        let kind = match series.kind {
            Kind::Counter | Kind::ProcessCounter => "counter",
            Kind::Gauge | Kind::ProcessGauge => "gauge",
            Kind::State => "gauge (state)",
            Kind::Histogram(_) => "histogram",
        };
        let labels = series.label_names().join(", ");
        let only = if series.writes_only { " Writes only." } else { "" };
        text.push_str(&format!(
            "| `{}` | {kind} | {labels} | {}{only} |\n",
            series.name, series.help
        ));
    }
    text.push_str("\n## Label values\n\n| label | of | values |\n|---|---|---|\n");
    for series in TABLE {
        for label in series.labels {
            let Values::Closed(values) = label.values else { continue };
            text.push_str(&format!(
                "| `{}` | `{}` | {} |\n",
                label.name,
                series.name,
                values().join(" ")
            ));
        }
    }
    text.push_str("\n## Buckets\n\n| histogram | upper bounds, seconds |\n|---|---|\n");
    for series in TABLE {
        if let Kind::Histogram(buckets) = series.kind {
            let bounds: Vec<String> = buckets.iter().map(f64::to_string).collect();
            text.push_str(&format!("| `{}` | {} |\n", series.name, bounds.join(" ")));
        }
    }
    text
}
