//! What holds for one tool, run or upstream once everything is laid over everything else. Pure.
//!
//! Later wins: language default → built-in profile → `profiles.X` → the tool. Maps merge by key, lists and single
//! values replace. There is no other inheritance: `extends` names a built-in as it is built in.

use std::sync::Arc;
use std::time::Duration;

use super::document as written;
use super::document::{
    Backoff, Breaker, Bucket, Document, Fuse, Maybe, Ratio, Retry, Run, Timeout, Tool, Upstream,
};
use super::profiles::{self, Builtin, EXTERNAL_HTTP};
use super::snapshot::{
    BackoffMode, BackoffPolicy, BreakerMode, BreakerPolicy, FusePolicy, Per, Probe, RateLimit,
    RatioPolicy, RetryBudgetPolicy, RetryPolicy, RunPolicy, SlowPolicy, Timeouts,
};
use crate::call::{PolicyName, ToolName};

/// The run of agents that name none, and its name.
pub const DEFAULT_RUN: &str = "default";
/// A write whose outcome is unknown is still listened to for so long.
pub const DEFAULT_DRAIN: Duration = Duration::from_secs(30);
/// A finished write answers for so long.
pub const DEFAULT_TTL: Duration = Duration::from_secs(86_400);
/// A question to a person stands for so long, and then its answer.
pub const DEFAULT_EXPIRES: Duration = Duration::from_secs(15 * 60);
/// Calls of one tool in flight at once.
pub const DEFAULT_TOOL_BULKHEAD: u64 = 8;
/// Calls of one upstream in flight at once.
pub const DEFAULT_UPSTREAM_BULKHEAD: u64 = 32;
/// What the model gets of one result.
pub const DEFAULT_RESULT_MAX: u64 = 64 * 1024;
/// A circuit's random share of its open time, thousandths: a fleet must not come back all at once.
const OPEN_JITTER_PERMILLE: u32 = 200;
/// A probe is held to the attempt's total and this.
const PROBE_GRACE: Duration = Duration::from_secs(1);

/// Time, retries and circuit of one tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub timeout: Timeouts,
    /// What a read obeys; a write never retries.
    pub retry: RetryPolicy,
    pub breaker: BreakerPolicy,
}

pub(crate) fn get<T: Clone>(value: &Maybe<T>) -> Option<T> {
    value.as_ref().map(|at| at.value.clone())
}

/// A count of the language always fits: its kinds bound it.
pub(crate) fn narrow(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// As [`narrow`], for sizes in memory.
pub(crate) fn in_memory(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn lay<T: Clone>(over: &Maybe<T>, under: &mut T) {
    if let Some(value) = get(over) {
        *under = value;
    }
}

/// A profile's numbers while they are laid over each other; `None` = follows from another number.
struct Draft {
    timeout: Timeouts,
    idle: Option<Duration>,
    max_retries: u32,
    deadline: Duration,
    backoff: BackoffPolicy,
    jitter: Option<Duration>,
    breaker: BreakerPolicy,
}

impl Draft {
    fn of(builtin: &Builtin) -> Self {
        Self {
            timeout: Timeouts {
                connect: builtin.connect,
                first_byte: builtin.first_byte,
                idle: builtin.first_byte,
                total: builtin.total,
            },
            idle: None,
            max_retries: builtin.max_retries,
            deadline: builtin.retry_deadline,
            backoff: BackoffPolicy {
                base: builtin.backoff_base,
                max: builtin.backoff_max,
                mode: BackoffMode::Additive,
                jitter: builtin.backoff_base,
            },
            jitter: None,
            breaker: breaker_default(builtin.consecutive_failures),
        }
    }

    fn lay(&mut self, timeout: &Maybe<Timeout>, retry: &Maybe<Retry>, breaker: &Maybe<Breaker>) {
        if let Some(timeout) = timeout.as_ref().map(|at| &at.value) {
            lay(&timeout.connect, &mut self.timeout.connect);
            lay(&timeout.first_byte, &mut self.timeout.first_byte);
            lay(&timeout.total, &mut self.timeout.total);
            self.idle = get(&timeout.idle).or(self.idle);
        }
        if let Some(retry) = retry.as_ref().map(|at| &at.value) {
            self.max_retries = get(&retry.max_retries).map_or(self.max_retries, narrow);
            lay(&retry.deadline, &mut self.deadline);
            self.lay_backoff(&retry.backoff);
        }
        lay_breaker(breaker, &mut self.breaker);
    }

    fn lay_backoff(&mut self, backoff: &Maybe<Backoff>) {
        let Some(backoff) = backoff.as_ref().map(|at| &at.value) else { return };
        lay(&backoff.base, &mut self.backoff.base);
        lay(&backoff.max, &mut self.backoff.max);
        lay(&backoff.mode, &mut self.backoff.mode);
        self.jitter = get(&backoff.jitter).or(self.jitter);
    }

    fn settled(mut self) -> Settings {
        self.timeout.idle = self.idle.unwrap_or(self.timeout.first_byte);
        self.backoff.jitter = self.jitter.unwrap_or(self.backoff.base);
        self.breaker.probe_deadline = self.timeout.total + PROBE_GRACE;
        Settings {
            timeout: self.timeout,
            retry: RetryPolicy {
                max_retries: self.max_retries,
                backoff: self.backoff,
                deadline: self.deadline,
            },
            breaker: self.breaker,
        }
    }
}

fn breaker_default(consecutive_failures: u32) -> BreakerPolicy {
    BreakerPolicy {
        mode: BreakerMode::Enforce,
        count_by_attempt: false,
        consecutive_failures,
        failure_ratio: None,
        slow_ratio: None,
        open_for: Duration::from_secs(30),
        open_max: Duration::from_secs(60),
        open_jitter_permille: OPEN_JITTER_PERMILLE,
        probe_deadline: EXTERNAL_HTTP.total + PROBE_GRACE,
        probe: None,
        probe_every: None,
        is_error_bad: false,
    }
}

fn lay_breaker(over: &Maybe<Breaker>, under: &mut BreakerPolicy) {
    let Some(over) = over.as_ref().map(|at| &at.value) else { return };
    lay(&over.mode, &mut under.mode);
    lay(&over.count_by_attempt, &mut under.count_by_attempt);
    lay(&over.open_for, &mut under.open_for);
    lay(&over.open_max, &mut under.open_max);
    lay(&over.is_error_bad, &mut under.is_error_bad);
    if let Some(probe) = over.probe.as_ref().and_then(|probe| compiled(&probe.value)) {
        under.probe = Some(probe);
    }
    under.probe_every = get(&over.probe_every).or(under.probe_every);
    under.consecutive_failures =
        get(&over.consecutive_failures).map_or(under.consecutive_failures, narrow);
    if let Some(written) = &over.failure_ratio {
        under.failure_ratio = Some(ratio(&written.value, under.failure_ratio));
    }
    if let Some(written) = &over.slow_ratio {
        let before = under.slow_ratio;
        let slower_than = get(&written.value.slower_than)
            .or(before.map(|slow| slow.slower_than))
            .unwrap_or(Duration::MAX);
        let ratio = ratio(&written.value, before.map(|slow| slow.ratio));
        under.slow_ratio = Some(SlowPolicy { ratio, slower_than });
    }
}

/// `None`: it names what cannot be a tool, which is told elsewhere.
fn compiled(probe: &written::Probe) -> Option<Probe> {
    Some(match probe {
        written::Probe::Connect => Probe::Connect,
        written::Probe::Discover => Probe::Discover,
        written::Probe::Call { tool, arguments } => {
            let tool = ToolName::new(&tool.value).ok()?;
            Probe::Call { tool, arguments: arguments.clone() }
        }
    })
}

fn ratio(written: &Ratio, before: Option<RatioPolicy>) -> RatioPolicy {
    let before = before.unwrap_or(RatioPolicy {
        above_permille: 1000,
        min_calls: 10,
        window: Duration::from_secs(30),
    });
    RatioPolicy {
        above_permille: get(&written.above).unwrap_or(before.above_permille),
        min_calls: get(&written.min_calls).map_or(before.min_calls, narrow),
        window: get(&written.window).unwrap_or(before.window),
    }
}

/// The name of the profile a tool has.
pub fn profile_name<'d>(document: &'d Document, tool: &'d Tool) -> &'d str {
    let default = document.defaults.as_ref().and_then(|at| at.value.profile.as_ref());
    tool.profile.as_ref().or(default).map_or(profiles::DEFAULT, |at| at.value.as_str())
}

/// An entry of a server with the server's profile, where it names none.
pub fn of_server(server: &written::McpServer, entry: &Tool) -> Tool {
    let mut tool = entry.clone();
    tool.profile = tool.profile.or_else(|| server.profile.clone());
    tool
}

/// What holds for a tool. An unknown profile (CR2001) counts as `external_http`.
pub fn tool(document: &Document, tool: &Tool) -> Settings {
    let mut draft = of_profile(document, profile_name(document, tool));
    draft.lay(&tool.timeout, &tool.retry, &tool.breaker);
    draft.settled()
}

/// What holds for all that a server offers besides tools: its profile's numbers.
pub fn passed(document: &Document, server: &written::McpServer) -> Settings {
    let default = document.defaults.as_ref().and_then(|at| at.value.profile.as_ref());
    let named = server.profile.as_ref().or(default);
    of_profile(document, named.map_or(profiles::DEFAULT, |at| at.value.as_str())).settled()
}

fn of_profile(document: &Document, name: &str) -> Draft {
    let written = document.profiles.get(name).map(|at| &at.value);
    let base = written.and_then(|profile| profile.extends.as_ref()).map(|at| at.value.as_str());
    let builtin = profiles::find(name).or_else(|| profiles::find(base.unwrap_or_default()));
    let mut draft = Draft::of(builtin.unwrap_or(&EXTERNAL_HTTP));
    if let Some(profile) = written {
        draft.lay(&profile.timeout, &profile.retry, &profile.breaker);
    }
    draft
}

/// The connect-class circuit of an upstream; `longest` = the longest total of its tools.
pub fn upstream_breaker(upstream: Option<&Upstream>, longest: Duration) -> BreakerPolicy {
    let mut breaker = breaker_default(5);
    if let Some(upstream) = upstream {
        lay_breaker(&upstream.breaker, &mut breaker);
    }
    breaker.probe_deadline = longest + PROBE_GRACE;
    breaker
}

/// The retry budget of an upstream.
pub fn retry_budget(upstream: Option<&Upstream>) -> RetryBudgetPolicy {
    let written = upstream.and_then(|upstream| upstream.retry_budget.as_ref()).map(|at| &at.value);
    RetryBudgetPolicy {
        max_milli: written.and_then(|budget| get(&budget.max)).unwrap_or(10) * 1000,
        ratio_milli: u64::from(written.and_then(|budget| get(&budget.ratio)).unwrap_or(100)),
        floor_milli_per_s: written
            .and_then(|budget| get(&budget.floor))
            .map_or(200, |floor| floor.milli_per_second()),
    }
}

/// A bucket; `name` is what `RateLimit` fields call it.
pub fn rate_limit(bucket: &Maybe<Bucket>, name: &str) -> Option<RateLimit> {
    let bucket = &bucket.as_ref()?.value;
    Some(RateLimit {
        name: PolicyName::new(name),
        interval: get(&bucket.rate)?.interval(),
        burst: narrow(get(&bucket.burst)?),
        shadow: get(&bucket.shadow).unwrap_or(false),
        per: get(&bucket.per).unwrap_or(Per::Tool),
    })
}

/// A fuse laid over another.
pub fn fuse(over: &Maybe<Fuse>, under: FusePolicy) -> FusePolicy {
    let over = over.as_ref().map(|at| &at.value);
    FusePolicy {
        same_failures: over
            .and_then(|fuse| get(&fuse.same_failures))
            .map(narrow)
            .or(under.same_failures),
        same_results: over
            .and_then(|fuse| get(&fuse.same_results))
            .map(narrow)
            .or(under.same_results),
    }
}

/// The run of that name; the defaults where nothing is written.
pub fn run(document: &Document, name: &str) -> RunPolicy {
    let defaults = RunPolicy {
        name: Arc::from(name),
        explicit: false,
        max_live: 1000,
        wall_clock: Duration::from_secs(30 * 60),
        rounds: Some(50),
        calls: Some(200),
        calls_per_round: Some(16),
        failures: Some(30),
        argument_bytes: Some(1 << 20),
        result_bytes: Some(4 << 20),
        cost: None,
        idle: Duration::from_secs(15 * 60),
        stall_turns: 3,
        rate_limit: None,
        fuse: FusePolicy { same_failures: Some(3), same_results: Some(5) },
    };
    match document.runs.get(name) {
        None => defaults,
        Some(written) => run_over(&written.value, defaults),
    }
}

fn run_over(written: &Run, mut run: RunPolicy) -> RunPolicy {
    lay(&written.explicit, &mut run.explicit);
    lay(&written.wall_clock, &mut run.wall_clock);
    lay(&written.rounds, &mut run.rounds);
    lay(&written.calls, &mut run.calls);
    lay(&written.calls_per_round, &mut run.calls_per_round);
    lay(&written.failures, &mut run.failures);
    lay(&written.argument_bytes, &mut run.argument_bytes);
    lay(&written.result_bytes, &mut run.result_bytes);
    lay(&written.idle, &mut run.idle);
    if let Some(cost) = get(&written.cost) {
        run.cost = cost.map(|money| money.millionths);
    }
    run.max_live = get(&written.max_live).map_or(run.max_live, in_memory);
    run.stall_turns = get(&written.stall_turns).map_or(run.stall_turns, narrow);
    run.rate_limit = rate_limit(&written.rate_limit, &format!("run:{}", run.name));
    run.fuse = fuse(&written.fuse, run.fuse);
    run
}
