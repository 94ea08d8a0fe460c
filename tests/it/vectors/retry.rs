//! Retries, back-off, budgets and times to come back.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use checkrein::backends::classify::{self, Promises};
use checkrein::call::{Effect, TimedOutBy};
use checkrein::layers::backoff::delay;
use checkrein::layers::retry_budget::RetryBudget;
use checkrein::policy::snapshot::{BackoffMode, BackoffPolicy, RetryBudgetPolicy, Tool};
use checkrein::policy::{LoadOptions, examine_text};
use http::HeaderMap;
use tokio::time::Instant;

use super::Vector;
use crate::layers::rig::{
    Does, MS, Rig, S, code, failed, never_ran, retries, start, status, tool, upstream,
};

/// The epoch the vectors' dates are measured from.
fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000)
}

/// What the tool's answer tells to wait, as the retry sees it.
fn told(answer: u16, header: Option<&str>) -> Option<Duration> {
    let mut headers = HeaderMap::new();
    if let Some(text) = header {
        headers.insert("retry-after", text.parse().expect("a header"));
    }
    let promises = Promises { effect: Effect::Read, not_executed_on: &[], unknown_on: &[] };
    classify::status(answer, &headers, "", promises, now()).retry_after
}

/// Parsing is the same; the cap is ours: the local cooldown's is 60 s, the model is told the tool's own number. Zero
/// and the past mean the computed back-off.
pub(super) async fn retry_after(vector: Vector) {
    let cap = vector.number("cap_s");
    for step in vector.steps(&["status", "header", "expect_s", "why"]) {
        let answer = u16::try_from(step.number("status")).expect("a status");
        if answer == 200 {
            assert!(step.value("expect_s").is_null(), "a success is no failure to wait for");
            continue;
        }
        let (header, own) = match step.value("header").as_str() {
            None => (None, None),
            Some("now+60s as IMF-fixdate") => (Some(date(60)), Some(60)),
            Some("now+600s as IMF-fixdate") => (Some(date(600)), Some(600)),
            Some("3600") => (Some("3600".to_owned()), Some(3600)),
            Some(text) => (Some(text.to_owned()), step.value("expect_s").as_u64()),
        };
        // Theirs caps what it tells; ours does not.
        if let (Some(theirs), Some(own)) = (step.value("expect_s").as_u64(), own) {
            assert_eq!(theirs, own.min(cap));
        }
        let expected = own.filter(|wait| *wait > 0).map(Duration::from_secs);
        let wait = if step.has("why") { None } else { expected };
        // The past is zero for them; a date of 2020 is still to come where the clock says 2017.
        if step.has("why") {
            let mut headers = HeaderMap::new();
            headers.insert("retry-after", step.text("header").parse().expect("a header"));
            headers.insert("date", httpdate_of(1_900_000_000).parse().expect("a header"));
            assert_eq!(classify::retry_after(&headers, now()), Some(Duration::ZERO));
            continue;
        }
        assert_eq!(told(answer, header.as_deref()), wait, "{}", step.0);
    }
    cooldown_is_capped_and_told_whole().await;
}

async fn cooldown_is_capped_and_told_whole() {
    let rig = Rig::one(tool("look", Effect::Read));
    let mut hour = status(429);
    hour.retry_after = Some(3600 * S);
    rig.backend.then(Does::Fail(Duration::ZERO, hour));
    assert_eq!(failed(&rig.ask("look").await).retry_after, Some(3600 * S));
    tokio::time::advance(60 * S).await;
    assert_eq!(code(&rig.ask("look").await), "ok");
}

fn date(from_now: u64) -> String {
    httpdate_of(1_500_000_000 + from_now)
}

fn httpdate_of(unix: u64) -> String {
    httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(unix))
}

pub(super) async fn retry_after_formats(vector: Vector) {
    for step in vector.steps(&["header", "unix", "form", "seconds", "result"]) {
        let mut headers = HeaderMap::new();
        headers.insert("retry-after", step.text("header").parse().expect("a header"));
        let wait = |now: u64| {
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now);
            classify::retry_after(&headers, now)
        };
        if step.has("unix") {
            let then = step.number("unix");
            assert_eq!(wait(then - 90), Some(90 * S), "{}", step.0);
        } else if step.has("seconds") {
            assert_eq!(wait(0), Some(Duration::from_secs(step.number("seconds"))));
        } else {
            assert_eq!(step.text("result"), "ignored -> computed back-off");
            assert_eq!(wait(0), None, "{}", step.0);
        }
    }
}

fn budget(max_milli: u64, ratio_milli: u64) -> RetryBudget {
    let policy = RetryBudgetPolicy { max_milli, ratio_milli, floor_milli_per_s: 0 };
    RetryBudget::new(policy, Instant::now())
}

pub(super) async fn clamp(vector: Vector) {
    let max = vector.number("maxTokens") * 1000;
    let ratio = vector.config("tokenRatio").as_f64().expect("a share") * 1000.0;
    let mut budget = budget(max, ratio as u64);
    for step in vector.steps(&["event", "tokens"]) {
        match step.text("event") {
            "1000000 successes" => (0..1_000_000).for_each(|_| budget.deposit(Instant::now())),
            "100 failures" => (0..100).for_each(|_| {
                budget.take(Instant::now());
            }),
            other => panic!("no driver for the event {other}"),
        }
        assert_eq!(budget.balance(Instant::now()), step.number("tokens") * 1000);
    }
}

/// The habit, not the numbers: bounds are checked at load, and the bound itself is accepted.
pub(super) async fn bounds_at_load(vector: Vector) {
    let known = ["maxAttempts", "maxTokens", "tokenRatio", "valid", "effective"];
    assert_eq!(vector.steps(&known).len(), 6);
    for (retries, sound) in [("0", true), ("10", true), ("11", false), ("-1", false)] {
        let policy = format!(
            r#"
apiVersion: checkrein/v1
kind: Policy
tools:
  look:
    description: Looks.
    effect: read
    retry: {{ max_retries: {retries}, deadline: 1000s }}
    http: {{ method: GET, url: "https://look.example/v1/now" }}
    schema: {{ type: object, properties: {{ id: {{ type: string }} }} }}
agents:
  default: {{ allow: [look] }}
"#
        );
        let here = std::path::Path::new(".");
        let examined = examine_text(policy.as_bytes(), "p.yaml", here, LoadOptions::default());
        assert_eq!(examined.snapshot.is_some(), sound, "{retries}: {:?}", examined.problems);
    }
}

fn look(max_retries: u32) -> Tool {
    Tool { retry: Some(retries(max_retries)), ..tool("look", Effect::Read) }
}

/// Once for all causes together; counts neither as a retry nor in the budget. What was answered is never resent so.
pub(super) async fn transparent(vector: Vector) {
    for step in
        vector.steps(&["fail", "transparent", "counts_attempt", "counts_throttle", "committed"])
    {
        let rig = Rig::one(look(0));
        let committed = step.has("committed");
        let failure = if committed { status(503) } else { never_ran() };
        rig.backend.always(Does::Fail(Duration::ZERO, failure));
        let before = rig.gates.state.view().upstreams[0].retry_budget_milli;
        assert!(rig.ask("look").await.is_err());
        assert_eq!(rig.backend.hits(), if committed { 1 } else { 2 }, "{}", step.0);
        assert_eq!(rig.gates.state.view().upstreams[0].retry_budget_milli, before);
        for counted in ["counts_attempt", "counts_throttle"] {
            assert!(!step.has(counted) || !step.flag(counted));
        }
        let theirs = step.value("transparent");
        assert!(theirs == 1 || theirs == 0 || theirs == "unlimited until deadline");
    }
}

/// Only the habit: a sleeping retry holds its token, so a second one finds the pot empty at once.
pub(super) async fn sleeping_holds(vector: Vector) {
    assert_eq!(vector.steps(&["active", "max_active_retries"]).len(), 3);
    let mut server = upstream();
    server.retry_budget =
        RetryBudgetPolicy { max_milli: 1000, ratio_milli: 0, floor_milli_per_s: 0 };
    let rig = Rig::one(Tool { upstream: Arc::new(server), ..look(1) });
    rig.backend.always(Does::Fail(Duration::ZERO, status(503)));
    let sleeping = start(rig.ask("look")).await;
    assert!(!sleeping.is_finished());
    let began = Instant::now();
    assert_eq!(code(&rig.ask("look").await), "tool_unavailable");
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(rig.metric("checkrein_retries_suppressed_total", &["\"retry_budget\""]), 1.0);
    assert!(sleeping.await.expect("no panic").is_err());
    assert_eq!(rig.backend.hits(), 3);
}

pub(super) async fn deadline(vector: Vector) {
    let total = vector.number("total_ms") as u32 * MS;
    for step in vector.steps(&["first_attempt_ms", "left_for_retry_ms"]) {
        let mut tool = look(3);
        let retry = tool.retry.as_mut().expect("reads retry");
        retry.deadline = total;
        retry.backoff.base = Duration::ZERO;
        let rig = Rig::one(tool);
        let first = step.number("first_attempt_ms") as u32 * MS;
        rig.backend.then(Does::Fail(first, status(503))).then(Does::Silent);
        let began = Instant::now();
        let call = rig.call("look", "{}");
        let trace = call.trace.clone();
        let outcome = rig.send(call).await;
        assert_eq!(began.elapsed(), total);
        assert_eq!(failed(&outcome).timed_out_by, Some(TimedOutBy::Loop));
        let left = step.number("left_for_retry_ms") as u32 * MS;
        assert_eq!(trace.note().attempts[1].total, left);
    }
}

/// Retries never exceed the ratio times the deposits, whatever the ratio.
pub(super) async fn never_over_ratio(vector: Vector) {
    let known = ["percent", "peer_allows", "correct_max", "deposits", "max_withdrawals"];
    for step in vector.steps(&known) {
        let percent = if step.has("percent") {
            step.float("percent")
        } else {
            vector.config("percent").as_f64().expect("a ratio")
        };
        let deposits =
            if step.has("deposits") { step.number("deposits") } else { vector.number("deposits") };
        let max = if step.has("correct_max") { "correct_max" } else { "max_withdrawals" };
        let mut budget = budget(1_000_000, (percent * 1000.0).round() as u64);
        // Theirs starts empty.
        while budget.take(Instant::now()) {}
        (0..deposits).for_each(|_| budget.deposit(Instant::now()));
        let mut taken = 0;
        while budget.take(Instant::now()) {
            taken += 1;
        }
        assert_eq!(taken, step.number(max), "{}", step.0);
    }
}

/// The delays alone; capacity and costs are theirs.
pub(super) async fn plain_backoff(vector: Vector) {
    let config = &vector.value["config"];
    let ms = |names: [&str; 2], unit: u64| {
        names.iter().find_map(|name| config[name].as_u64()).map(|value| value * unit)
    };
    let base = ms(["static_base", "initial_s"], 1000).or(ms(["base_ms", ""], 1)).expect("a base");
    let max = ms(["max_s", ""], 1000).or(ms(["max_ms", ""], 1)).unwrap_or(u64::MAX / 1_000_000);
    let policy = BackoffPolicy {
        base: Duration::from_millis(base),
        max: Duration::from_millis(max),
        mode: BackoffMode::None,
        jitter: Duration::ZERO,
    };
    let mut rng = fastrand::Rng::with_seed(1);
    for step in vector.steps(&["attempt", "delay_s", "delay_ms", "available", "retry"]) {
        if step.has("retry") {
            continue;
        }
        let expected = if step.has("delay_s") {
            step.number("delay_s") * 1000
        } else {
            step.number("delay_ms")
        };
        let k = u32::try_from(step.number("attempt") - 1).expect("small");
        assert_eq!(delay(&policy, k, None, &mut rng), Duration::from_millis(expected));
    }
}

pub(super) async fn overflow(vector: Vector) {
    let day = Duration::from_secs(86_400);
    let steps =
        vector.steps(&["attempt", "base_days", "max_days", "delay_days", "jitter", "delay"]);
    let days = |name: &str| steps[0].number(name) as u32 * day;
    let (base, max) = (days("base_days"), days("max_days"));
    let mut rng = fastrand::Rng::with_seed(6);
    let plain = BackoffPolicy { base, max, mode: BackoffMode::None, jitter: Duration::ZERO };
    let attempt = u32::try_from(steps[0].number("attempt")).expect("small");
    assert_eq!(delay(&plain, attempt, None, &mut rng), days("delay_days"));
    assert_eq!(steps[1].text("delay"), ">=0 and <=max");
    assert!(steps[1].flag("jitter"));
    for attempt in steps[1].value("attempt").as_array().expect("attempts") {
        let k = u32::try_from(attempt.as_u64().expect("a number")).expect("small");
        for mode in [BackoffMode::Full, BackoffMode::Equal, BackoffMode::Decorrelated] {
            let policy = BackoffPolicy { mode, ..plain };
            let waited = delay(&policy, k, Some(Duration::MAX), &mut rng);
            assert!(waited <= max, "{mode:?} {k}: {waited:?}");
        }
        let additive = BackoffPolicy { mode: BackoffMode::Additive, jitter: S, ..plain };
        assert!((max..=max + S).contains(&delay(&additive, k, None, &mut rng)));
    }
}

/// Theirs counts attempts from 1 with base · 2^k; ours counts from 0, so its k is the same exponent.
pub(super) async fn jitter_formula(vector: Vector) {
    let of = |mode| BackoffPolicy {
        base: Duration::from_millis(vector.number("base_ms")),
        max: Duration::from_millis(vector.number("cap_ms")),
        mode,
        jitter: Duration::ZERO,
    };
    let mut rng = fastrand::Rng::with_seed(2);
    for step in vector.steps(&["attempt", "expo_ms", "full_ms", "equal_ms"]) {
        let k = u32::try_from(step.number("attempt")).expect("small");
        let plain = delay(&of(BackoffMode::None), k, None, &mut rng);
        assert_eq!(plain, Duration::from_millis(step.number("expo_ms")));
        for (mode, name) in [(BackoffMode::Full, "full_ms"), (BackoffMode::Equal, "equal_ms")] {
            let bounds = step.value(name).as_array().expect("two bounds");
            let bounds: Vec<f64> = bounds.iter().filter_map(serde_json::Value::as_f64).collect();
            let (mut low, mut high) = (f64::MAX, 0.0_f64);
            for _ in 0..2000 {
                let waited = delay(&of(mode), k, None, &mut rng).as_secs_f64() * 1000.0;
                assert!((bounds[0]..=bounds[1]).contains(&waited), "{mode:?} {k}: {waited}");
                (low, high) = (low.min(waited), high.max(waited));
            }
            // The whole range is used, not a part of it.
            let width = bounds[1] - bounds[0];
            assert!(low < bounds[0] + width / 50.0 && high > bounds[1] - width / 50.0);
        }
    }
}
