//! Times and numbers that contradict each other once everything is laid over everything (CR2013, CR2014, CR2016,
//! CR4001 to CR4007).

use std::time::Duration;

use super::{View, merge, place_of, run_of, spelt};
use crate::call::Effect;
use crate::policy::diagnostic::{Place, Problem};
use crate::policy::document::{At, Bucket, Maybe, Profile, Tool};
use crate::policy::merge::Settings;
use crate::policy::snapshot::{BackoffMode, BackoffPolicy, RetryPolicy};

/// A timed-out write is listened to for at most so long.
const MAX_DRAIN: Duration = Duration::from_secs(600);

pub(super) fn find(view: &View<'_>, problems: &mut Vec<Problem>) {
    for (name, tool) in view.tools() {
        let settings = merge::tool(view.document, &tool.value);
        timeouts(view, name, tool, &settings, problems);
        breaker(view, name, tool, &settings, problems);
        weight(view, name, tool, problems);
        match tool.value.effect() {
            Effect::Read => {
                backoff(view, name, tool, &settings, problems);
                loops(view, name, tool, &settings, problems);
            }
            Effect::Write => ledger(view, name, tool, &settings, problems),
        }
    }
    upstream_breakers(view, problems);
    bursts(view, problems);
}

/// Where numbers of a tool are written: in the tool, in its profile, or nowhere but in the language.
struct Written<'d, T> {
    /// The tool's name, or the profile that several tools may share; as messages say it.
    whose: String,
    key: Option<&'d At<T>>,
    place: Place,
}

fn written<'d, T>(
    view: &View<'d>,
    name: &str,
    tool: &'d At<Tool>,
    of_tool: &'d Maybe<T>,
    of_profile: impl Fn(&'d Profile) -> &'d Maybe<T>,
) -> Written<'d, T> {
    let profile = merge::profile_name(view.document, &tool.value);
    let shared = view.document.profiles.get(profile).and_then(|at| of_profile(&at.value).as_ref());
    match (of_tool, shared) {
        (Some(at), _) => Written { whose: format!("`{name}`"), key: Some(at), place: at.place },
        (None, Some(at)) => {
            let whose = format!("the profile `{profile}`");
            Written { whose, key: Some(at), place: at.place }
        }
        (None, None) => Written { whose: format!("`{name}`"), key: None, place: tool.key },
    }
}

/// A profile's fault is told once, not once a tool.
fn once(problems: &mut Vec<Problem>, problem: Problem) {
    let is_told = |told: &Problem| told.place == problem.place && told.message == problem.message;
    if !problems.iter().any(is_told) {
        problems.push(problem);
    }
}

fn timeouts(
    view: &View<'_>,
    name: &str,
    tool: &At<Tool>,
    settings: &Settings,
    problems: &mut Vec<Problem>,
) {
    let timeout = settings.timeout;
    let written = written(view, name, tool, &tool.value.timeout, |profile| &profile.timeout);
    let keys = written.key.map(|at| &at.value);
    for (word, limit, key) in [
        ("connect", timeout.connect, keys.and_then(|keys| keys.connect.as_ref())),
        ("first_byte", timeout.first_byte, keys.and_then(|keys| keys.first_byte.as_ref())),
    ] {
        if limit > timeout.total {
            let total = keys.and_then(|keys| keys.total.as_ref());
            let place = key.or(total).map_or(written.place, |at| at.place);
            let message = format!(
                "`{word}` of {} is {}, longer than its `total` of {}",
                written.whose,
                spelt(limit),
                spelt(timeout.total)
            );
            once(problems, Problem::new("CR4002", place, message));
        }
    }
    let drain = tool.value.write.as_ref().and_then(|write| write.value.drain.as_ref());
    if let Some(drain) = drain.filter(|drain| drain.value > MAX_DRAIN) {
        let message = format!(
            "`drain` of `{name}` is {}, longer than {}",
            spelt(drain.value),
            spelt(MAX_DRAIN)
        );
        problems.push(Problem::new("CR4002", drain.place, message));
    }
}

fn backoff(
    view: &View<'_>,
    name: &str,
    tool: &At<Tool>,
    settings: &Settings,
    problems: &mut Vec<Problem>,
) {
    let written = written(view, name, tool, &tool.value.retry, |profile| &profile.retry);
    let whose = &written.whose;
    let keys = written.key.and_then(|retry| retry.value.backoff.as_ref());
    let place = keys.map_or(written.place, |backoff| backoff.place);
    let BackoffPolicy { base, max, mode, .. } = settings.retry.backoff;
    if base > max {
        let message = format!(
            "the back-off of {whose} begins with {}, more than its `max` of {}",
            spelt(base),
            spelt(max)
        );
        once(problems, Problem::new("CR2013", place, message));
    }
    let Some(jitter) = keys.and_then(|backoff| backoff.value.jitter.as_ref()) else { return };
    if mode != BackoffMode::Additive {
        let message =
            format!("`jitter` of {whose} means nothing in this `mode`: only `additive` adds it");
        once(problems, Problem::new("CR2013", jitter.place, message));
    } else if jitter.value > max {
        let message = format!(
            "`jitter` of {whose} is {}, more than the `max` of {}",
            spelt(jitter.value),
            spelt(max)
        );
        once(problems, Problem::new("CR2013", jitter.place, message));
    }
}

fn breaker(
    view: &View<'_>,
    name: &str,
    tool: &At<Tool>,
    settings: &Settings,
    problems: &mut Vec<Problem>,
) {
    let breaker = &settings.breaker;
    let place = place_of(&tool.value.breaker, tool);
    if breaker.open_for > breaker.open_max {
        let written = written(view, name, tool, &tool.value.breaker, |profile| &profile.breaker);
        let keys = written.key.map(|at| &at.value);
        let key = keys.and_then(|keys| keys.open_for.as_ref().or(keys.open_max.as_ref()));
        let message = format!(
            "`open_for` of {} is {}, more than its `open_max` of {}",
            written.whose,
            spelt(breaker.open_for),
            spelt(breaker.open_max)
        );
        once(problems, Problem::new("CR2014", key.map_or(written.place, |at| at.place), message));
    }
    let attempts = settings.retry.max_retries.saturating_add(1);
    if breaker.count_by_attempt
        && tool.value.effect() == Effect::Read
        && attempts >= breaker.consecutive_failures
        && !view.callers(name).is_empty()
    {
        let message = format!(
            "one failing call of `{name}` makes {attempts} attempts and opens its own circuit at {}",
            breaker.consecutive_failures
        );
        problems.push(
            Problem::new("CR4006", place, message)
                .hint("say `count_by: call`, or raise `consecutive_failures`"),
        );
    }
}

fn upstream_breakers(view: &View<'_>, problems: &mut Vec<Problem>) {
    for (name, upstream) in view.document.all_upstreams() {
        let Some(breaker) = &upstream.breaker else { continue };
        let written = &breaker.value;
        let refused = [
            ("slow_ratio", written.slow_ratio.as_ref().map(|at| at.key)),
            ("failure_ratio", written.failure_ratio.as_ref().map(|at| at.key)),
            ("count_by", written.count_by_attempt.as_ref().map(|at| at.key)),
        ];
        for (word, place) in refused {
            if let Some(place) = place {
                let message = format!(
                    "`{word}` in the breaker of the upstream `{name}`, which counts failed connections alone"
                );
                problems.push(
                    Problem::new("CR2014", place, message)
                        .hint("write it in the tools' own `breaker`"),
                );
            }
        }
        let policy = merge::upstream_breaker(Some(upstream), Duration::ZERO);
        if policy.open_for > policy.open_max {
            let message = format!(
                "`open_for` of the upstream `{name}` is {}, more than its `open_max` of {}",
                spelt(policy.open_for),
                spelt(policy.open_max)
            );
            problems.push(Problem::new("CR2014", breaker.place, message));
        }
    }
}

/// The longest a loop can take: every attempt to its end, every pause at its longest.
fn worst_loop(total: Duration, retry: &RetryPolicy) -> Duration {
    let mut sum = total;
    let mut step = retry.backoff.base;
    for _ in 0..retry.max_retries {
        let pause = match retry.backoff.mode {
            BackoffMode::Additive => step.min(retry.backoff.max) + retry.backoff.jitter,
            BackoffMode::Full | BackoffMode::Equal | BackoffMode::None => {
                step.min(retry.backoff.max)
            }
            BackoffMode::Decorrelated => retry.backoff.max,
        };
        sum = sum.saturating_add(total).saturating_add(pause);
        step = step.saturating_mul(2);
    }
    sum.min(retry.deadline)
}

fn loops(
    view: &View<'_>,
    name: &str,
    tool: &At<Tool>,
    settings: &Settings,
    problems: &mut Vec<Problem>,
) {
    let worst = worst_loop(settings.timeout.total, &settings.retry);
    for run in view.runs(name) {
        let wall_clock = merge::run(view.document, run).wall_clock;
        if worst > wall_clock {
            let message = format!(
                "the retry loop of `{name}` may take {}, but run `{run}` ends after {}",
                spelt(worst),
                spelt(wall_clock)
            );
            let place = tool
                .value
                .retry
                .as_ref()
                .or(None)
                .map_or(place_of(&tool.value.timeout, tool), |retry| retry.place);
            problems.push(Problem::new("CR4001", place, message));
        }
    }
}

fn ledger(
    view: &View<'_>,
    name: &str,
    tool: &At<Tool>,
    settings: &Settings,
    problems: &mut Vec<Problem>,
) {
    let write = tool.value.write.as_ref().map(|write| &write.value);
    let ttl_at = write.and_then(|write| write.ttl.as_ref());
    let ttl = ttl_at.map_or(merge::DEFAULT_TTL, |ttl| ttl.value);
    let drain = write.and_then(|write| merge::get(&write.drain)).unwrap_or(merge::DEFAULT_DRAIN);
    let longest = view
        .runs(name)
        .into_iter()
        .map(|run| (merge::run(view.document, run).wall_clock, run))
        .max();
    let Some((wall_clock, run)) = longest else { return };
    let needed = wall_clock.saturating_add(settings.timeout.total).saturating_add(drain);
    if ttl < needed {
        let message = format!(
            "a finished `{name}` answers for {}, but run `{run}` may ask again for {} (its `wall_clock`, and `total` and `drain` of the tool)",
            spelt(ttl),
            spelt(needed)
        );
        let place = ttl_at.map_or(place_of(&tool.value.write, tool), |ttl| ttl.place);
        let problem = Problem::new("CR4003", place, message);
        problems.push(
            problem.hint(format!("say `ttl: {}` or more, or shorten the run", spelt(needed))),
        );
    }
}

fn burst(bucket: &Maybe<Bucket>) -> Option<&At<u64>> {
    bucket.as_ref()?.value.burst.as_ref()
}

/// A tool that takes more at once than a bucket ever holds could never be called.
fn weight(view: &View<'_>, name: &str, tool: &At<Tool>, problems: &mut Vec<Problem>) {
    let weight = tool.value.weight.as_ref();
    let (takes, place) = weight.map_or((1, tool.key), |weight| (weight.value, weight.place));
    let document = view.document;
    let mut met: Vec<(String, &At<u64>)> = Vec::new();
    met.extend(burst(&tool.value.rate_limit).map(|burst| ("its own bucket".to_owned(), burst)));
    if let Some(upstream) = tool.value.upstream()
        && let Some(at) = document.upstreams.get(&upstream.value)
    {
        met.extend(
            burst(&at.value.rate_limit)
                .map(|burst| (format!("upstream `{}`", upstream.value), burst)),
        );
    }
    for one in view.ruled.iter().filter(|one| one.exposed == name) {
        let bucket = burst(&one.section.upstream.rate_limit);
        met.extend(bucket.map(|burst| (format!("server `{}`", one.server), burst)));
    }
    for (agent_name, agent) in view.callers(name) {
        met.extend(burst(&agent.rate_limit).map(|burst| (format!("agent `{agent_name}`"), burst)));
    }
    for run in view.runs(name) {
        if let Some(at) = document.runs.get(run) {
            met.extend(burst(&at.value.rate_limit).map(|burst| (format!("run `{run}`"), burst)));
        }
    }
    let limits = document.limits.as_ref().and_then(|limits| burst(&limits.value.rate_limit));
    met.extend(limits.map(|burst| ("`limits`".to_owned(), burst)));
    for (whose, burst) in met.into_iter().filter(|(_, burst)| takes > burst.value) {
        let message =
            format!("`{name}` takes {takes} at once, but the burst of {whose} is {}", burst.value);
        problems.push(
            Problem::new("CR2016", place, message)
                .hint("it could never be called; raise `burst` or lower `weight`"),
        );
    }
}

/// A bucket that one permitted round empties.
fn bursts(view: &View<'_>, problems: &mut Vec<Problem>) {
    let document = view.document;
    let mut check = |whose: &str, bucket: &Maybe<Bucket>, run: &str| {
        let calls = merge::run(document, run).calls_per_round;
        if let (Some(burst), Some(calls)) = (burst(bucket), calls)
            && burst.value < calls
        {
            let message = format!(
                "a round of run `{run}` may hold {calls} calls, but {whose} lets {} pass at once",
                burst.value
            );
            problems.push(Problem::new("CR4007", burst.place, message));
        }
    };
    for (name, run) in &document.runs {
        check(&format!("run `{name}`"), &run.value.rate_limit, name);
    }
    for (name, agent) in &document.agents {
        check(&format!("agent `{name}`"), &agent.value.rate_limit, run_of(&agent.value));
    }
    let mut runs: Vec<&str> = document.agents.values().map(|agent| run_of(&agent.value)).collect();
    runs.sort_by_key(|run| std::cmp::Reverse(merge::run(document, run).calls_per_round));
    if let (Some(limits), Some(run)) = (&document.limits, runs.first()) {
        check("the process", &limits.value.rate_limit, run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_loop_of_the_built_in_profiles_is_the_documented_one() {
        let seconds = Duration::from_secs;
        let document = crate::policy::document::Document::default();
        let retry = |deadline| {
            let mut retry = crate::policy::merge::tool(&document, &blank()).retry;
            retry.deadline = deadline;
            retry
        };
        // external_http: 4·60 + 7 + 3·1 = 250 s, cut by its deadline of 120 s.
        assert_eq!(worst_loop(seconds(60), &retry(seconds(1_000))), seconds(250));
        assert_eq!(worst_loop(seconds(60), &retry(seconds(120))), seconds(120));
    }

    fn blank() -> Tool {
        let text = b"apiVersion: checkrein/v1\nkind: Policy\nagents: {}\ntools: { t: { description: d } }\n";
        let document = crate::policy::document::read(text, "p").document.expect("a document");
        document.tools.get("t").expect("a tool").value.clone()
    }
}
