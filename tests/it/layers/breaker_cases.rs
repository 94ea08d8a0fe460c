//! Breaker cases at the level of the stack.

use checkrein::call::Effect;
use checkrein::call::code::DenyCode;
use checkrein::policy::snapshot::{BreakerMode, RatioPolicy, SlowPolicy, Tool};
use std::time::Duration;
use tokio::time::Instant;

use super::rig::{
    Does, MS, Rig, S, advance, breaker, code, denied, failed, retries, start, status, tool,
    tool_name,
};

fn read(threshold: u32, open_for: Duration) -> Tool {
    Tool { breaker: breaker(threshold, open_for), ..tool("look", Effect::Read) }
}

async fn open(rig: &Rig, failures: u32) {
    for _ in 0..failures {
        rig.backend.then(Does::Fail(Duration::ZERO, status(503)));
    }
    for _ in 0..failures {
        assert_eq!(code(&rig.ask("look").await), "tool_unavailable");
    }
    assert_eq!(code(&rig.ask("look").await), "circuit_open");
}

#[tokio::test(start_paused = true)]
async fn bb_b01_a_probe_that_hangs_ends_by_its_total_and_the_breaker_closes_within_one_more_interval()
 {
    let rig = Rig::one(read(2, 5 * S));
    open(&rig, 2).await;
    advance(5 * S).await;
    rig.backend.then(Does::Silent);
    let probe = rig.ask("look").await;
    assert_eq!(code(&probe), "upstream_timeout");
    let again = denied(&rig.ask("look").await).retry_after.expect("a time");
    assert!(again <= 5 * S, "one interval, not {again:?}");
    advance(again).await;
    assert_eq!(code(&rig.ask("look").await), "ok");
    assert_eq!(code(&rig.ask("look").await), "ok");
}

#[tokio::test(start_paused = true)]
async fn bb_b02_dropped_probe_recovers_its_slot_at_once() {
    let rig = Rig::one(read(2, 5 * S));
    open(&rig, 2).await;
    advance(5 * S).await;
    rig.backend.then(Does::Silent);
    let probe = start(rig.ask("look")).await;
    assert_eq!(code(&rig.ask("look").await), "circuit_open", "one probe at a time");
    advance(50 * MS).await;
    probe.abort();
    super::rig::settle().await;
    assert_eq!(code(&rig.ask("look").await), "ok", "the next call may probe");
    assert_eq!(rig.metric("checkrein_breaker_probes_total", &["abandoned"]), 1.0);
    assert_eq!(rig.metric("checkrein_tool_calls_total", &["\"abandoned\""]), 1.0);
}

#[tokio::test(start_paused = true)]
async fn bb_b03_neutral_probe_frees_slot_and_neither_closes_nor_reopens() {
    let rig = Rig::one(read(2, 5 * S));
    open(&rig, 2).await;
    advance(5 * S).await;
    rig.backend.then(Does::Fail(Duration::ZERO, status(404)));
    assert_eq!(code(&rig.ask("look").await), "tool_error");
    assert_eq!(rig.gates.state.view().tools[0].breaker, "half_open");
    assert_eq!(code(&rig.ask("look").await), "ok");
    assert_eq!(rig.gates.state.view().tools[0].breaker, "closed");
}

#[tokio::test(start_paused = true)]
async fn bb_b04_one_probe_under_50_callers_and_the_rest_refused_at_once() {
    let rig = Rig::one(read(2, 5 * S));
    open(&rig, 2).await;
    advance(5 * S).await;
    let before = rig.backend.hits();
    rig.backend.always(Does::Answer(300 * MS, "{}"));
    let mut tasks = Vec::new();
    for _ in 0..50 {
        tasks.push(tokio::spawn(rig.ask("look")));
    }
    super::rig::settle().await;
    assert_eq!(rig.backend.hits() - before, 1);
    assert_eq!(tasks.iter().filter(|task| task.is_finished()).count(), 49, "no one waits");
    advance(300 * MS).await;
    let mut codes = Vec::new();
    for task in tasks {
        codes.push(code(&task.await.expect("no panic")));
    }
    assert_eq!(codes.iter().filter(|code| **code == "ok").count(), 1);
    assert_eq!(codes.iter().filter(|code| **code == "circuit_open").count(), 49);
    assert_eq!(code(&rig.ask("look").await), "ok");
}

#[tokio::test(start_paused = true)]
async fn bb_b07_four_xx_is_neutral_and_never_opens_the_breaker() {
    let rig = Rig::one(read(5, 5 * S));
    for _ in 0..5 {
        for answer in [400, 401, 404, 422] {
            rig.backend.then(Does::Fail(Duration::ZERO, status(answer)));
            let outcome = rig.ask("look").await;
            assert_eq!(failed(&outcome).message, format!("the tool said {answer}"));
        }
    }
    assert_eq!(rig.gates.state.view().tools[0].breaker, "closed");
    assert_eq!(code(&rig.ask("look").await), "ok");
}

#[tokio::test(start_paused = true)]
async fn bb_b11_window_counts_bounded_over_ten_thousand_calls() {
    let window = RatioPolicy { above_permille: 500, min_calls: 10, window: 10 * S };
    let mut policy = breaker(1_000_000, S);
    policy.failure_ratio = Some(window);
    policy.slow_ratio = Some(SlowPolicy { ratio: window, slower_than: 50 * MS });
    let rig = Rig::one(Tool { breaker: policy, ..tool("look", Effect::Read) });
    let state = rig.gates.state.tool(&rig.gates.snapshot.tools[&super::rig::tool_name("look")]);
    let mut rng = fastrand::Rng::with_seed(11);
    for n in 0..10_000 {
        rig.backend.then(match rng.u8(0..4) {
            0 => Does::Fail(Duration::ZERO, status(503)),
            1 => Does::Answer(100 * MS, "{}"),
            _ => Does::Answer(Duration::ZERO, "{}"),
        });
        let outcome = rig.ask("look").await;
        assert!(["ok", "tool_unavailable", "circuit_open"].contains(&code(&outcome)));
        advance(rng.u32(0..200) * MS).await;
        if n % 100 == 0 {
            let (calls, failures) = state.circuit.lock().window(Instant::now());
            assert!(failures <= calls && calls <= 10_000, "{failures} of {calls}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bb_b13_a_slow_tool_does_not_shut_its_servers_other_tools() {
    let slow = Tool { breaker: breaker(2, 30 * S), ..tool("slow", Effect::Read) };
    let rig = Rig::of(vec![slow, tool("fast", Effect::Read)]);
    for _ in 0..2 {
        rig.backend.then(Does::Silent);
        assert_eq!(code(&rig.ask("slow").await), "upstream_timeout");
    }
    assert_eq!(code(&rig.ask("slow").await), "circuit_open");
    assert_eq!(code(&rig.ask("fast").await), "ok");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_be_reached_shuts_all_its_tools_and_one_probe_opens_them_again() {
    let mut server = super::rig::upstream();
    server.breaker = breaker(3, 5 * S);
    let server = std::sync::Arc::new(server);
    let on = |name| Tool { upstream: server.clone(), ..tool(name, Effect::Read) };
    let rig = Rig::of(vec![on("a"), on("b")]);
    rig.backend.always(Does::Unreachable);
    for name in ["a", "b", "a"] {
        assert_eq!(code(&rig.ask(name).await), "upstream_unreachable");
    }
    for name in ["a", "b"] {
        assert_eq!(code(&rig.ask(name).await), "circuit_open");
    }
    advance(5 * S).await;
    // A tool that answers with an error was reached.
    rig.backend.always(Does::Fail(Duration::ZERO, status(500)));
    assert_eq!(code(&rig.ask("a").await), "tool_unavailable");
    assert_eq!(code(&rig.ask("b").await), "tool_unavailable");
}

#[tokio::test(start_paused = true)]
async fn own_refusals_are_neutral_and_order_01_a_later_refusal_gives_the_permit_back() {
    let mut limited = read(2, 5 * S);
    limited.rate_limit = Some(super::rig::rate("tool:look", 100 * S, 3));
    let rig = Rig::one(limited);
    open(&rig, 2).await;
    advance(5 * S).await;
    assert_eq!(code(&rig.ask("look").await), "ok", "the third token; the probe closes");
    for _ in 0..10 {
        assert_eq!(code(&rig.ask("look").await), "rate_limited");
    }
    assert_eq!(rig.gates.state.view().tools[0].breaker, "closed");
}

#[tokio::test(start_paused = true)]
async fn order_01_later_refusal_returns_permit_of_a_probe() {
    let mut limited = read(2, 5 * S);
    limited.rate_limit = Some(super::rig::rate("tool:look", 20 * S, 2));
    let rig = Rig::one(limited);
    open(&rig, 2).await;
    advance(5 * S).await;
    assert_eq!(code(&rig.ask("look").await), "rate_limited");
    assert_eq!(rig.gates.state.view().tools[0].breaker, "half_open");
    advance(15 * S).await;
    assert_eq!(code(&rig.ask("look").await), "ok");
}

#[tokio::test(start_paused = true)]
async fn one_failing_call_makes_all_its_attempts_and_counts_once_and_a_probe_makes_one() {
    let mut twice = read(2, 5 * S);
    twice.retry = Some(retries(2));
    let rig = Rig::one(twice);
    rig.backend.always(Does::Fail(Duration::ZERO, status(503)));
    assert_eq!(code(&rig.ask("look").await), "tool_unavailable");
    assert_eq!(rig.backend.hits(), 3);
    assert_eq!(code(&rig.ask("look").await), "tool_unavailable");
    assert_eq!(rig.backend.hits(), 6, "the second call opens it, after its own attempts");
    assert_eq!(code(&rig.ask("look").await), "circuit_open");
    advance(5 * S).await;
    assert_eq!(code(&rig.ask("look").await), "tool_unavailable");
    assert_eq!(rig.backend.hits(), 7, "a probe makes one attempt");
}

#[tokio::test(start_paused = true)]
async fn counted_by_attempt_one_call_opens_its_circuit_and_still_tells_the_real_error() {
    let mut twice = read(2, 5 * S);
    twice.retry = Some(retries(5));
    twice.breaker.count_by_attempt = true;
    let rig = Rig::one(twice);
    rig.backend.always(Does::Fail(Duration::ZERO, status(503)));
    assert_eq!(code(&rig.ask("look").await), "tool_unavailable");
    assert_eq!(rig.backend.hits(), 2);
    assert_eq!(code(&rig.ask("look").await), "circuit_open");
}

#[tokio::test(start_paused = true)]
async fn a_shadow_breaker_counts_and_refuses_nothing_and_an_isolated_one_refuses_without_a_time() {
    let mut watched = read(2, 50 * S);
    watched.breaker.mode = BreakerMode::Shadow;
    let rig = Rig::one(watched);
    rig.backend.always(Does::Fail(Duration::ZERO, status(503)));
    for _ in 0..5 {
        assert_eq!(code(&rig.ask("look").await), "tool_unavailable");
    }
    assert_eq!(rig.metric("checkrein_breaker_rejected_total", &["shadow"]), 3.0);
    let mut shut = read(2, 50 * S);
    shut.breaker.mode = BreakerMode::Isolated;
    let rig = Rig::one(shut);
    advance(500 * S).await;
    let outcome = rig.ask("look").await;
    assert_eq!(denied(&outcome).code, DenyCode::CircuitOpen);
    assert_eq!(denied(&outcome).retry_after, None);
    assert_eq!(denied(&outcome).message, "tool look was switched off by a person");
    assert_eq!(rig.backend.hits(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_open_circuit_survives_a_reload_that_leaves_its_section_alone() {
    let rig = Rig::one(read(2, 50 * S));
    open(&rig, 2).await;
    let with = |tool: Tool| {
        let tools = vec![tool];
        let agent = super::rig::agent(&tools);
        super::rig::snapshot(tools, agent)
    };
    let mut other = read(2, 50 * S);
    other.timeout.total = 9 * S;
    let rig = rig.reload(with(other));
    assert_eq!(code(&rig.ask("look").await), "circuit_open");
    let rig = rig.reload(with(read(3, 50 * S)));
    assert_eq!(code(&rig.ask("look").await), "ok", "its own numbers changed");
}

#[tokio::test(start_paused = true)]
async fn the_upstreams_probe_is_given_back_when_the_tools_own_circuit_refuses() {
    let mut server = super::rig::upstream();
    server.breaker = breaker(2, 5 * S);
    let server = std::sync::Arc::new(server);
    let on = |name, open_for| Tool {
        upstream: server.clone(),
        breaker: breaker(1, open_for),
        ..tool(name, Effect::Read)
    };
    let rig = Rig::of(vec![on("a", 100 * S), on("b", 5 * S)]);
    rig.backend.always(Does::Unreachable);
    for name in ["a", "b"] {
        assert_eq!(code(&rig.ask(name).await), "upstream_unreachable");
    }
    advance(5 * S).await;
    rig.backend.always(Does::Answer(Duration::ZERO, "{}"));
    assert_eq!(rig.gates.state.view().upstreams[0].breaker, "half_open");
    for _ in 0..3 {
        assert_eq!(code(&rig.ask("a").await), "circuit_open", "its own is still open");
    }
    assert_eq!(code(&rig.ask("b").await), "ok", "the upstream's one place was free");
    assert_eq!(rig.gates.state.view().upstreams[0].breaker, "closed");
}

#[tokio::test(start_paused = true)]
async fn one_attempt_that_got_through_is_good_for_the_upstream() {
    let mut server = super::rig::upstream();
    server.breaker = breaker(1, 5 * S);
    let mut look = Tool { retry: Some(retries(1)), ..tool("look", Effect::Read) };
    look.upstream = std::sync::Arc::new(server);
    let rig = Rig::one(look);
    rig.backend.then(Does::Fail(Duration::ZERO, status(503))).then(Does::Unreachable);
    assert_eq!(code(&rig.ask("look").await), "upstream_unreachable");
    assert_eq!(rig.gates.state.view().upstreams[0].breaker, "closed");
    rig.backend.then(Does::Unreachable).then(Does::Unreachable);
    assert_eq!(code(&rig.ask("look").await), "upstream_unreachable");
    assert_eq!(rig.gates.state.view().upstreams[0].breaker, "open");
}

#[tokio::test(start_paused = true)]
async fn a_reload_follows_names_a_changed_mode_starts_anew_and_an_upstream_keeps_its_own_state() {
    let with = |tools: Vec<Tool>| {
        let agent = super::rig::agent(&tools);
        super::rig::snapshot(tools, agent)
    };
    let rig = Rig::one(read(2, 50 * S));
    open(&rig, 2).await;
    // Moved to another upstream: its own circuit comes along, the new server's state is its own.
    let mut other = super::rig::upstream();
    other.name = checkrein::call::UpstreamName::new("depot").expect("a sound name");
    let moved = Tool { upstream: std::sync::Arc::new(other), ..read(2, 50 * S) };
    let rig = rig.reload(with(vec![moved]));
    assert_eq!(code(&rig.ask("look").await), "circuit_open");
    assert_eq!(rig.gates.state.view().upstreams.len(), 1);
    assert_eq!(rig.gates.state.view().upstreams[0].upstream, "depot");
    // Another mode is another section; and back again it starts closed.
    let mut watched = read(2, 50 * S);
    watched.breaker.mode = BreakerMode::Shadow;
    let rig = rig.reload(with(vec![watched]));
    assert_eq!(code(&rig.ask("look").await), "ok");
    let rig = rig.reload(with(vec![read(2, 50 * S)]));
    open(&rig, 2).await;
    // Under another name it is another tool; the old name comes back without its past.
    let renamed = Tool { name: super::rig::tool_name("watch"), ..read(2, 50 * S) };
    let rig = rig.reload(with(vec![renamed]));
    assert_eq!(code(&rig.ask("watch").await), "ok");
    let rig = rig.reload(with(vec![read(2, 50 * S)]));
    assert_eq!(code(&rig.ask("look").await), "ok");
}

/// A verdict of before the reload is heard by the circuit that admitted it, not by the one in force.
#[tokio::test(start_paused = true)]
async fn a_call_that_outlives_a_reload_says_nothing_to_the_new_circuit() {
    let rig = Rig::one(read(1, 50 * S));
    rig.backend.then(Does::Fail(S, status(503)));
    let before = start(rig.ask("look")).await;
    let tools = vec![read(1, 60 * S)];
    let agent = super::rig::agent(&tools);
    let rig = rig.reload(super::rig::snapshot(tools, agent));
    advance(S).await;
    assert_eq!(code(&before.await.expect("no panic")), "tool_unavailable");
    assert_eq!(rig.gates.state.view().tools[0].breaker, "closed");
    assert_eq!(code(&rig.ask("look").await), "ok");
}

/// A write whose circuit is tested by a read, and the way there.
fn probed_rig() -> Rig {
    use checkrein::policy::snapshot::Probe;
    let look = tool_name("look");
    let mut pay = tool("pay", Effect::Write);
    let probe = Some(Probe::Call { tool: look, arguments: serde_json::Map::new() });
    pay.breaker = checkrein::policy::snapshot::BreakerPolicy { probe, ..breaker(3, 30 * S) };
    Rig::of(vec![pay, tool("look", Effect::Read)])
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_twenty_seconds_costs_few_requests_and_ends_within_seconds() {
    let rig = probed_rig();
    rig.backend.always(Does::Fail(Duration::ZERO, status(503)));
    let mut refused = 0;
    for _ in 0..1800 {
        let outcome = rig.ask("pay").await;
        refused += u32::from(code(&outcome) == "circuit_open");
        advance(Duration::from_micros(11_111)).await;
    }
    assert_eq!(refused, 1797, "no call, read or write, is spent as a probe");
    assert!(rig.backend.hits() <= 60, "{} requests", rig.backend.hits());
    assert!(rig.backend.hits() >= 20);
    rig.backend.always(Does::Answer(MS, "{}"));
    let back = Instant::now();
    while code(&rig.ask("pay").await) != "ok" {
        assert!(back.elapsed() < 2 * S, "back within seconds");
        advance(11 * MS).await;
    }
    let probes = rig.metric("checkrein_breaker_probes_total", &["\"pay\""]);
    assert_eq!(rig.metric("checkrein_breaker_probes_total", &["\"pay\"", "\"good\""]), 1.0);
    assert!((19.0..25.0).contains(&probes), "{probes}");
    advance(60 * S).await;
    assert_eq!(
        rig.metric("checkrein_breaker_probes_total", &["\"pay\""]),
        probes,
        "none while closed"
    );
}

#[tokio::test(start_paused = true)]
async fn probes_end_with_the_drain() {
    let rig = probed_rig();
    rig.backend.always(Does::Fail(Duration::ZERO, status(503)));
    for _ in 0..3 {
        assert_eq!(code(&rig.ask("pay").await), "outcome_unknown");
    }
    advance(5 * S).await;
    let hits = rig.backend.hits();
    assert!(hits > 3);
    rig.gates.draining.cancel();
    rig.gates.tasks.close();
    rig.gates.tasks.wait().await;
    advance(60 * S).await;
    assert_eq!(rig.backend.hits(), hits);
}
