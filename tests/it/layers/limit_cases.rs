//! Buckets, places and cooldowns at the level of the stack.

use std::time::Duration;

use checkrein::call::code::DenyCode;
use checkrein::call::{Detail, Effect, LimitedBy};
use checkrein::policy::snapshot::{Per, Tool};
use tokio::time::Instant;

use super::rig::{
    Does, MS, Rig, S, advance, agent, breaker, code, denied, rate, retries, settle, snapshot,
    start, status, tool,
};

fn limited(interval: Duration, burst: u32) -> Tool {
    Tool { rate_limit: Some(rate("tool:look", interval, burst)), ..tool("look", Effect::Read) }
}

#[tokio::test(start_paused = true)]
async fn bb_q01_a_burst_of_one_lets_one_of_a_hundred_through_at_once() {
    let rig = Rig::one(limited(S, 1));
    let mut passed = 0;
    for _ in 0..100 {
        passed += u32::from(rig.ask("look").await.is_ok());
    }
    assert_eq!(passed, 1);
    assert_eq!(rig.backend.hits(), 1);
}

#[tokio::test(start_paused = true)]
async fn bb_n13_ten_places_run_ten_of_a_hundred_and_refuse_ninety_at_once() {
    let rig = Rig::one(Tool { bulkhead: 10, ..tool("look", Effect::Read) });
    rig.backend.always(Does::Answer(500 * MS, "{}"));
    let mut tasks = Vec::new();
    for _ in 0..100 {
        tasks.push(tokio::spawn(rig.ask("look")));
    }
    settle().await;
    assert_eq!(tasks.iter().filter(|task| task.is_finished()).count(), 90, "at 0 ms");
    assert_eq!(rig.gates.state.view().tools[0].inflight, 10);
    advance(500 * MS).await;
    let mut codes = Vec::new();
    for task in tasks {
        let outcome = task.await.expect("no panic");
        if let Err(error) = &outcome {
            assert_eq!(error.code(), "concurrency_limited");
            let wait = denied(&outcome).retry_after.expect("a time");
            assert!((100 * MS..=5 * S).contains(&wait));
        }
        codes.push(code(&outcome));
    }
    assert_eq!(codes.iter().filter(|code| **code == "ok").count(), 10);
    let again = start(rig.ask("look")).await;
    assert_eq!(rig.gates.state.view().tools[0].inflight, 1, "all ten are back");
    drop(again);
}

#[tokio::test(start_paused = true)]
async fn places_conserved_under_drops_refusals_and_panics() {
    let mut crowded = Tool { bulkhead: 4, ..limited(10 * MS, 3) };
    crowded.retry = Some(retries(2));
    crowded.breaker = breaker(3, 100 * MS);
    let rig = Rig::one(crowded);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut running = Vec::new();
    for _ in 0..2_000 {
        match rng.u8(0..4) {
            0 => running.push(tokio::spawn(rig.ask("look"))),
            1 if !running.is_empty() => {
                running.swap_remove(rng.usize(0..running.len())).abort();
            }
            2 => {
                rig.backend.then(match rng.u8(0..4) {
                    0 => Does::Silent,
                    1 => Does::Fail(rng.u32(0..50) * MS, status(503)),
                    2 => Does::Panic,
                    _ => Does::Answer(rng.u32(0..50) * MS, "{}"),
                });
            }
            _ => advance(rng.u32(0..80) * MS).await,
        }
        settle().await;
        assert!(rig.gates.state.view().tools[0].inflight <= 4);
    }
    for task in running.drain(..) {
        task.abort();
    }
    settle().await;
    assert_eq!(rig.gates.state.view().tools[0].inflight, 0);
    assert_eq!(rig.gates.state.view().tools[0].inflight, u64::from(rig.backend.running()));
    advance(60 * S).await;
    rig.backend.forget();
    rig.backend.always(Does::Answer(Duration::ZERO, "{}"));
    while rig.ask("look").await.is_err() {
        advance(S).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_tools_429_sets_a_cooldown_and_the_tools_own_number_is_told() {
    let rig = Rig::one(tool("look", Effect::Read));
    let mut told = status(429);
    told.retry_after = Some(90 * S);
    rig.backend.then(Does::Fail(Duration::ZERO, told));
    assert_eq!(code(&rig.ask("look").await), "rate_limited");
    let outcome = rig.ask("look").await;
    let Detail::Limited { by, .. } = denied(&outcome).detail else { panic!("{outcome:?}") };
    assert_eq!((by, denied(&outcome).retry_after), (LimitedBy::Tool, Some(90 * S)));
    advance(59 * S).await;
    assert_eq!(code(&rig.ask("look").await), "rate_limited");
    advance(S).await;
    assert_eq!(code(&rig.ask("look").await), "ok", "the local cooldown is a minute at most");
    assert_eq!(rig.backend.hits(), 2);
}

#[tokio::test(start_paused = true)]
async fn retries_do_not_go_round_the_bucket_and_the_answer_shows_what_is_left() {
    let mut retried = limited(100 * S, 5);
    retried.retry = Some(retries(1));
    let rig = Rig::one(retried);
    rig.backend.then(Does::Fail(Duration::ZERO, status(503)));
    let result = rig.ask("look").await.expect("the retry answers");
    let left = result.notes.rate.expect("a bucket decided");
    assert_eq!((left.name.as_str(), left.limit, left.remaining), ("tool:look", 5, 3));
    assert_eq!(left.window, 500 * S);
}

#[tokio::test(start_paused = true)]
async fn the_narrowest_bucket_refuses_first_and_no_wider_one_loses_a_token() {
    let mut look = limited(100 * S, 50);
    let mut server = super::rig::upstream();
    server.rate_limit = Some(rate("upstream:shop", 100 * S, 50));
    look.upstream = std::sync::Arc::new(server);
    let tools = vec![look];
    let mut agent = agent(&tools);
    agent.rate_limit = Some(rate("agent:support", 100 * S, 2));
    let mut run = (*agent.run).clone();
    run.rate_limit = Some(rate("run:default", 100 * S, 40));
    agent.run = std::sync::Arc::new(run);
    let mut snapshot = snapshot(tools, agent);
    snapshot.limits.rate_limit = Some(rate("global", 100 * S, 50));
    let rig = Rig::with(snapshot);
    for _ in 0..2 {
        assert!(rig.ask("look").await.is_ok());
    }
    for _ in 0..10 {
        let outcome = rig.ask("look").await;
        let Detail::Limited { rate: Some(rate), .. } = &denied(&outcome).detail else {
            panic!("{outcome:?}")
        };
        assert_eq!(rate.name.as_str(), "agent:support");
    }
    let tokens = &rig.gates.state.view().tools[0].tokens;
    let expected = [("tool", 48), ("upstream", 48), ("run", 37), ("agent", 0), ("global", 48)];
    assert_eq!(tokens, &expected);
    for (scope, allowed) in [("run", 3.0), ("agent", 2.0), ("tool", 2.0), ("global", 2.0)] {
        let scope = format!("\"{scope}\"");
        let labels = [scope.as_str(), "\"allowed\""];
        assert_eq!(
            rig.metric("checkrein_ratelimit_decisions_total", &labels),
            allowed,
            "{scope}: only the first refusal of a closed spell costs a narrower token"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_shadow_bucket_counts_and_refuses_nothing() {
    let mut watched = limited(100 * S, 1);
    watched.rate_limit.as_mut().expect("set").shadow = true;
    let rig = Rig::one(watched);
    for _ in 0..3 {
        assert_eq!(code(&rig.ask("look").await), "ok");
    }
    assert_eq!(rig.metric("checkrein_ratelimit_decisions_total", &["would_reject"]), 2.0);
}

#[tokio::test(start_paused = true)]
async fn a_reload_keeps_a_bucket_whose_rate_and_burst_stay_and_renews_one_that_changed() {
    let rig = Rig::one(limited(100 * S, 2));
    for expected in ["ok", "ok", "rate_limited"] {
        assert_eq!(code(&rig.ask("look").await), expected);
    }
    let with = |tool: Tool| {
        let tools = vec![tool];
        let agent = agent(&tools);
        snapshot(tools, agent)
    };
    let mut other = limited(100 * S, 2);
    other.bulkhead = 3;
    let rig = rig.reload(with(other));
    assert_eq!(code(&rig.ask("look").await), "rate_limited");
    let rig = rig.reload(with(limited(100 * S, 3)));
    assert_eq!(code(&rig.ask("look").await), "ok");
}

#[tokio::test(start_paused = true)]
async fn a_bucket_by_run_is_one_a_run() {
    let mut by_run = limited(100 * S, 1);
    by_run.rate_limit.as_mut().expect("set").per = Per::Run;
    let rig = Rig::one(by_run);
    assert_eq!(code(&rig.ask("look").await), "ok");
    assert_eq!(code(&rig.ask("look").await), "rate_limited");
    let other = checkrein::call::RunId::new("run-2").expect("a sound id");
    let agent = rig.gates.snapshot.agents.values().next().expect("one agent");
    let wanted = checkrein::run::Wanted::Named(other.clone());
    rig.gates.runs.enter(agent, &wanted, Instant::now()).expect("opens");
    let mut call = rig.call("look", "{}");
    call.run = other;
    assert_eq!(code(&rig.send(call).await), "ok");
}

#[tokio::test(start_paused = true)]
async fn who_comes_back_when_told_passes_and_asking_meanwhile_never_makes_it_later() {
    let rig = Rig::one(limited(Duration::from_micros(333_333), 3));
    for _ in 0..3 {
        assert!(rig.ask("look").await.is_ok());
    }
    let mut told = denied(&rig.ask("look").await).retry_after.expect("a time");
    let due = Instant::now() + told;
    while Instant::now() + MS < due {
        advance(7 * MS).await;
        match rig.ask("look").await {
            Ok(_) => break,
            outcome => {
                let now = denied(&outcome).retry_after.expect("a time");
                assert!(!now.is_zero() && now <= told, "{now:?} after {told:?}");
                told = now;
            }
        }
    }
    assert_eq!(denied(&rig.ask("look").await).code, DenyCode::RateLimited);
}
