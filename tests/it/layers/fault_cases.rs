//! Faults that others have had in public, each with the test that would find it here; named after what must hold.

use std::time::Duration;

use checkrein::call::code::FailCode;
use checkrein::call::{
    Class, Delivery, Effect, Evidence, Failed, Payload, Source, TimedOutBy, Verdict,
};
use checkrein::policy::snapshot::{BreakerMode, RetryBudgetPolicy, Tool};
use tokio::time::Instant;

use super::rig::{
    Does, MS, Rig, S, advance, breaker, code, denied, failed, rate, retries, settle, start, status,
    tool,
};

fn read(threshold: u32) -> Tool {
    Tool { breaker: breaker(threshold, 5 * S), ..tool("look", Effect::Read) }
}

fn circuit(rig: &Rig) -> &'static str {
    rig.gates.state.view().tools[0].breaker
}

/// As the classifier judges a success of a write whose body does not come.
fn lost() -> Failed {
    Failed::new(
        FailCode::ResultLost,
        Class::Permanent,
        Delivery::Done,
        Verdict::Bad,
        "the tool's answer (HTTP status 200) was cut",
    )
}

#[tokio::test(start_paused = true)]
async fn refusal_is_never_retried() {
    let mut small = Tool { bulkhead: 1, retry: Some(retries(3)), ..read(1) };
    small.rate_limit = Some(rate("tool:look", 100 * S, 2));
    let rig = Rig::one(small);
    rig.backend.then(Does::Answer(S, "{}"));
    let first = start(rig.ask("look")).await;
    let began = Instant::now();
    assert_eq!(code(&rig.ask("look").await), "concurrency_limited");
    assert_eq!(began.elapsed(), Duration::ZERO, "no back-off is slept for it");
    advance(S).await;
    assert_eq!(code(&first.await.expect("no panic")), "ok");
    let mut permanent = status(500);
    permanent.class = Class::Permanent;
    rig.backend.then(Does::Fail(Duration::ZERO, permanent));
    assert_eq!(code(&rig.ask("look").await), "tool_unavailable");
    let began = Instant::now();
    assert_eq!(code(&rig.ask("look").await), "circuit_open");
    advance(5 * S).await;
    let refused = began.elapsed();
    assert_eq!(code(&rig.ask("look").await), "rate_limited");
    assert_eq!(began.elapsed(), refused);
    assert_eq!(rig.backend.hits(), 2);
    assert_eq!(rig.metric("checkrein_retries_total", &["look"]), 0.0);
}

#[tokio::test(start_paused = true)]
async fn panic_in_probe_frees_slot() {
    let rig = Rig::one(read(1));
    rig.backend.then(Does::Fail(Duration::ZERO, status(503)));
    assert_eq!(code(&rig.ask("look").await), "tool_unavailable");
    for planted in [Does::PanicBeforeSend, Does::Panic] {
        advance(5 * S).await;
        rig.backend.then(planted);
        assert!(tokio::spawn(rig.ask("look")).await.is_err(), "the planted panic");
        assert_eq!(circuit(&rig), "half_open");
    }
    assert_eq!(code(&rig.ask("look").await), "ok", "the slot was free at once");
    assert_eq!(circuit(&rig), "closed");
}

#[tokio::test(start_paused = true)]
async fn agent_gone_is_neutral() {
    let rig = Rig::one(Tool { retry: Some(retries(3)), ..read(1) });
    for _ in 0..5 {
        rig.backend.then(Does::Silent);
        let gone = start(rig.ask("look")).await;
        gone.abort();
        settle().await;
        rig.backend.then(Does::Fail(Duration::ZERO, status(404)));
        assert_eq!(code(&rig.ask("look").await), "tool_error");
    }
    let tool = &rig.gates.state.view().tools[0];
    assert_eq!((tool.breaker, tool.consecutive_failures, tool.inflight), ("closed", 0, 0));
    assert_eq!(rig.metric("checkrein_tool_calls_total", &["\"abandoned\""]), 5.0);
}

/// Whichever way a half-open call goes, the circuit has heard of it: nothing is left held.
#[tokio::test(start_paused = true)]
async fn every_exit_settles() {
    let mut neutral = status(500);
    neutral.health = Verdict::Neutral;
    let exits = [
        Does::Answer(Duration::ZERO, "{}"),
        Does::Answer(2 * S, "{}"),
        Does::Fail(Duration::ZERO, status(503)),
        Does::Fail(Duration::ZERO, status(404)),
        Does::Fail(Duration::ZERO, status(429)),
        Does::Fail(Duration::ZERO, neutral),
        Does::Fail(Duration::ZERO, super::rig::never_ran()),
        Does::Unreachable,
        Does::ConnectStalls,
        Does::Silent,
        Does::Drip,
        Does::Stall(lost(), 100 * S, Box::new(Ok("{}"))),
        Does::Panic,
        Does::PanicBeforeSend,
    ];
    for effect in [Effect::Read, Effect::Write] {
        for exit in &exits {
            let probed = Tool { breaker: breaker(1, 5 * S), ..tool("look", effect) };
            let rig = Rig::one(probed);
            rig.backend.then(Does::Fail(Duration::ZERO, status(503)));
            assert!(rig.ask("look").await.is_err());
            advance(5 * S).await;
            rig.backend.then(exit.clone());
            drop(tokio::spawn(rig.ask("look")).await);
            // Past the open time, a cooldown and the drain; far before the slot's own deadline would have freed it
            // if nobody had: that one ends with the probe's verdict at the latest.
            rig.backend.forget();
            let state = circuit(&rig);
            if state == "half_open" {
                advance(S).await;
            } else {
                advance(6 * S).await;
            }
            assert_eq!(code(&rig.ask("look").await), "ok", "{effect:?} after {exit:?} ({state})");
            advance(100 * S).await;
            assert_eq!(rig.gates.state.view().tools[0].inflight, 0, "{effect:?} {exit:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn sleeping_retry_holds_token() {
    let mut server = super::rig::upstream();
    server.retry_budget =
        RetryBudgetPolicy { max_milli: 3_000, ratio_milli: 0, floor_milli_per_s: 0 };
    let mut slow = Tool { retry: Some(retries(1)), ..tool("look", Effect::Read) };
    slow.retry.as_mut().expect("set").backoff.base = 10 * S;
    slow.upstream = std::sync::Arc::new(server);
    let rig = Rig::one(slow);
    rig.backend.always(Does::Fail(Duration::ZERO, status(503)));
    let mut calls = Vec::new();
    for _ in 0..10 {
        calls.push(start(rig.ask("look")).await);
    }
    assert_eq!(calls.iter().filter(|call| call.is_finished()).count(), 7, "three tokens, asleep");
    let budget = rig.gates.state.view().upstreams[0].retry_budget_milli;
    assert_eq!(budget, 0, "taken before the sleep");
    advance(10 * S).await;
    assert!(calls.iter().all(tokio::task::JoinHandle::is_finished));
    assert_eq!(rig.backend.hits(), 13);
}

#[tokio::test(start_paused = true)]
async fn a_first_attempt_that_succeeds_pays_into_the_retry_budget_and_a_retried_one_does_not() {
    let mut server = super::rig::upstream();
    server.retry_budget =
        RetryBudgetPolicy { max_milli: 5_000, ratio_milli: 100, floor_milli_per_s: 0 };
    let mut tool = Tool { retry: Some(retries(1)), ..tool("look", Effect::Read) };
    tool.upstream = std::sync::Arc::new(server);
    let rig = Rig::one(tool);
    let budget = || rig.gates.state.view().upstreams[0].retry_budget_milli;
    rig.backend.then(Does::Fail(Duration::ZERO, status(503)));
    assert_eq!(code(&rig.ask("look").await), "ok");
    assert_eq!(budget(), 4_000, "one token, and nothing back for a second attempt");
    assert_eq!(code(&rig.ask("look").await), "ok");
    assert_eq!(budget(), 4_100);
}

#[tokio::test(start_paused = true)]
async fn token_taken_before_send() {
    let mut limited = tool("look", Effect::Read);
    limited.rate_limit = Some(rate("tool:look", 100 * S, 1));
    let rig = Rig::one(limited);
    rig.backend.then(Does::ConnectStalls);
    let connecting = start(rig.ask("look")).await;
    assert_eq!(rig.backend.hits(), 0);
    assert_eq!(code(&rig.ask("look").await), "rate_limited");
    drop(connecting);
}

/// Stacks are cloned for each call: a bound that a clone had for itself would bound nothing.
#[tokio::test(start_paused = true)]
async fn clones_share_state() {
    let mut bound = Tool { bulkhead: 3, ..read(2) };
    bound.rate_limit = Some(rate("tool:look", 100 * S, 5));
    let rig = Rig::one(bound);
    rig.backend.always(Does::Fail(S, status(503)));
    let mut calls = Vec::new();
    for _ in 0..10 {
        calls.push(start(rig.ask("look")).await);
    }
    assert_eq!(rig.backend.running(), 3, "places");
    advance(S).await;
    assert!(calls.iter().all(tokio::task::JoinHandle::is_finished));
    assert_eq!(code(&rig.ask("look").await), "circuit_open", "one circuit");
    assert_eq!(rig.gates.state.view().tools[0].tokens, [("tool", 2)], "one bucket");
}

// ── the head of an answer settles what its body cannot take back ─────────────────────────────────────────────────

#[tokio::test(start_paused = true)]
async fn a_write_whose_success_never_ends_is_executed_and_its_result_lost() {
    let rig = Rig::one(tool("pay", Effect::Write));
    rig.backend.then(Does::Stall(lost(), 20 * S, Box::new(Ok("{}"))));
    let began = Instant::now();
    let same = rig.call("pay", r#"{"id":"A17"}"#);
    let outcome = rig.send(same.clone()).await;
    assert_eq!(began.elapsed(), 5 * S, "the idle limit");
    let told = failed(&outcome);
    assert_eq!((told.code, told.delivery), (FailCode::ResultLost, Delivery::Done));
    assert_eq!(told.timed_out_by, Some(TimedOutBy::Idle));
    assert_eq!(rig.metric("checkrein_write_ends_total", &["\"executed\""]), 1.0);
    assert_eq!(rig.backend.running(), 1, "it is not cut");
    assert_eq!(rig.gates.state.view().tools[0].inflight, 1, "and holds its place");
    // The same call is never sent again; it is told what is known.
    let again = rig.send(same).await;
    assert_eq!((code(&again), rig.backend.hits()), ("result_lost", 1));
    advance(30 * S).await;
    assert_eq!(rig.gates.state.view().tools[0].inflight, 0);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_whose_text_never_ends_stands_as_its_status() {
    let rig = Rig::one(tool("pay", Effect::Write));
    rig.backend.then(Does::Stall(status(422), 100 * S, Box::new(Ok("{}"))));
    let outcome = rig.ask_same("pay").await;
    assert_eq!(failed(&outcome).evidence, Some(Evidence::Status(422)));
    assert_eq!(rig.metric("checkrein_write_ends_total", &["not_executed"]), 1.0);
    let rig = Rig::one(Tool { retry: Some(retries(3)), ..tool("look", Effect::Read) });
    rig.backend.then(Does::Stall(status(404), 100 * S, Box::new(Ok("{}"))));
    assert_eq!(code(&rig.ask("look").await), "tool_error");
    assert_eq!(rig.backend.hits(), 1, "a 404 is not asked again, however slow its text");
    assert_eq!(rig.backend.running(), 0, "a read is cut");
}

#[tokio::test(start_paused = true)]
async fn a_read_whose_success_never_ends_has_run_out_of_time_and_may_be_asked_again() {
    let rig = Rig::one(Tool { retry: Some(retries(1)), ..tool("look", Effect::Read) });
    rig.backend.then(Does::Stall(lost(), 100 * S, Box::new(Ok("{}"))));
    assert_eq!(code(&rig.ask("look").await), "ok");
    assert_eq!(rig.backend.hits(), 2);
}

/// The late end of an attempt that is settled says nothing of the attempt that came after it.
#[tokio::test(start_paused = true)]
async fn a_late_end_of_a_settled_write_does_not_settle_the_next_attempt() {
    let rig = Rig::one(tool("pay", Effect::Write));
    rig.backend.then(Does::Stall(status(422), 20 * S, Box::new(Err(status(422)))));
    assert_eq!(code(&rig.ask_same("pay").await), "tool_error");
    rig.backend.then(Does::Silent);
    assert_eq!(code(&rig.ask_same("pay").await), "outcome_unknown", "sent anew");
    advance(20 * S).await;
    assert_eq!(code(&rig.ask_same("pay").await), "review_required");
    assert_eq!(rig.backend.hits(), 2);
}

// ── counted once, said truly ─────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(start_paused = true)]
async fn counted_by_attempt_an_attempt_counts_once_whatever_stops_the_loop() {
    let mut server = super::rig::upstream();
    server.retry_budget = RetryBudgetPolicy { max_milli: 0, ratio_milli: 0, floor_milli_per_s: 0 };
    let mut counted = Tool { retry: Some(retries(3)), ..read(2) };
    counted.breaker.count_by_attempt = true;
    counted.upstream = std::sync::Arc::new(server);
    let rig = Rig::one(counted);
    rig.backend.always(Does::Fail(Duration::ZERO, status(503)));
    assert_eq!(code(&rig.ask("look").await), "tool_unavailable");
    assert_eq!((rig.backend.hits(), circuit(&rig)), (1, "closed"), "one attempt, one verdict");
    assert_eq!(rig.gates.state.view().tools[0].consecutive_failures, 1);
    assert_eq!(code(&rig.ask("look").await), "tool_unavailable");
    assert_eq!(circuit(&rig), "open");
    assert_eq!(rig.metric("checkrein_breaker_late_results_total", &["look"]), 0.0);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_is_only_watched_still_makes_one_attempt_at_an_upstream_that_is_probed() {
    let mut server = super::rig::upstream();
    server.breaker = breaker(1, 5 * S);
    let mut watched = Tool { retry: Some(retries(3)), ..read(1) };
    watched.breaker.mode = BreakerMode::Shadow;
    watched.upstream = std::sync::Arc::new(server);
    let rig = Rig::one(watched);
    for _ in 0..4 {
        rig.backend.then(Does::Unreachable);
    }
    assert_eq!(code(&rig.ask("look").await), "upstream_unreachable");
    assert_eq!(rig.gates.state.view().upstreams[0].breaker, "open");
    advance(5 * S).await;
    let before = rig.backend.hits();
    rig.backend.always(Does::Fail(Duration::ZERO, status(503)));
    assert_eq!(code(&rig.ask("look").await), "tool_unavailable");
    assert_eq!(rig.backend.hits() - before, 1, "a probe makes one attempt");
}

#[tokio::test(start_paused = true)]
async fn a_write_ends_once_in_the_metric_also_when_our_own_code_fails() {
    let rig = Rig::one(tool("pay", Effect::Write));
    let ends = |end: &str| rig.metric("checkrein_write_ends_total", &[end]);
    rig.backend.then(Does::PanicBeforeSend);
    assert_eq!(code(&rig.ask_same("pay").await), "internal");
    assert_eq!(ends("pay"), 0.0, "nothing was sent, so no entry ended");
    rig.backend.then(Does::Panic);
    assert_eq!(code(&rig.ask_same("pay").await), "outcome_unknown");
    assert_eq!((ends("\"unknown\""), ends("pay")), (1.0, 1.0));
    assert_eq!(code(&rig.ask_same("pay").await), "review_required");
    assert_eq!(code(&rig.ask("pay").await), "ok");
    assert_eq!((ends("\"executed\""), ends("pay")), (1.0, 2.0));
}

/// A worker's runtime may end while its writes are still at the tool: they are unknown, and counted so.
#[test]
fn a_write_whose_runtime_ends_is_unknown_to_the_ledger_and_in_the_metrics() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().expect("a runtime")
    };
    let worker = runtime();
    let rig = worker.block_on(async {
        let rig = Rig::one(tool("pay", Effect::Write));
        rig.backend.then(Does::Silent);
        drop(start(rig.ask_same("pay")).await);
        rig
    });
    assert_eq!(rig.backend.running(), 1);
    drop(worker);
    assert_eq!(rig.backend.running(), 0);
    assert_eq!(rig.metric("checkrein_write_ends_total", &["\"unknown\""]), 1.0);
    assert_eq!(rig.metric("checkrein_tool_calls_total", &["\"outcome_unknown\""]), 1.0);
    assert_eq!(rig.metric("checkrein_attempts_total", &["pay"]), 1.0);
    assert_eq!(rig.gates.state.view().tools[0].inflight, 0, "its place is free");
    let (reviews, _) = rig.gates.ledger.reviews_open();
    assert_eq!(reviews.len(), 1);
    runtime().block_on(async {
        assert_eq!(code(&rig.ask_same("pay").await), "review_required");
    });
}

/// Another agent that is told "it was done" is told so in the record too.
#[test]
fn the_record_says_executed_as_the_answer_does() {
    use checkrein::call::code::{DenyCode, Executed};
    use checkrein::call::{CallError, Denied, Detail, judge};
    for (executed, said) in [(true, Executed::Yes), (false, Executed::No)] {
        let detail = Detail::Changed { pointers: Vec::new(), executed };
        let conflict = Denied::new(DenyCode::IdempotencyConflict, "known").detail(detail);
        assert_eq!(judge::executed(&CallError::Denied(conflict)), said);
    }
}

/// What did not happen binds no arguments, not even those of the same call.
#[tokio::test(start_paused = true)]
async fn bb_w19_the_same_call_with_mended_arguments_is_not_told_the_old_failure() {
    use checkrein::call::pointer::Pointer;
    let mut by_id = tool("pay", Effect::Write);
    by_id.write.as_mut().expect("a write").fingerprint =
        vec![Pointer::parse("/id").expect("a pointer")];
    let rig = Rig::one(by_id);
    rig.backend.then(Does::Fail(Duration::ZERO, status(422)));
    let first = rig.call("pay", r#"{"id":"A17","note":"x"}"#);
    assert_eq!(code(&rig.send(first.clone()).await), "tool_error");
    assert_eq!(code(&rig.send(first.clone()).await), "tool_error", "the same call: its own end");
    assert_eq!(rig.backend.hits(), 1);
    let mut mended = first;
    let other = rig.call("pay", r#"{"id":"A17","note":"y"}"#).payload;
    assert!(matches!(other, Payload::Arguments(_)));
    mended.payload = other;
    let result = rig.send(mended).await.expect("sent");
    assert_eq!((result.source, rig.backend.hits()), (Source::Tool, 2));
}

#[tokio::test(start_paused = true)]
async fn who_joins_a_write_that_ends_unknown_is_told_that_and_asks_in_vain() {
    let rig = Rig::one(tool("pay", Effect::Write));
    rig.backend.then(Does::Silent);
    let first = start(rig.ask_same("pay")).await;
    let joiner = start(rig.ask_same("pay")).await;
    advance(5 * S).await;
    for asked in [first, joiner] {
        assert_eq!(code(&asked.await.expect("no panic")), "outcome_unknown");
    }
    assert_eq!(denied(&rig.ask_same("pay").await).code.as_str(), "review_required");
    assert_eq!(rig.metric("checkrein_write_ends_total", &["pay"]), 1.0, "once per write");
    assert_eq!(rig.backend.hits(), 1);
    advance(100 * MS).await;
}
