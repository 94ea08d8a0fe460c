//! Retries, timeouts, deadlines and the fuse, at the level of the stack.

use std::time::Duration;

use checkrein::call::{CallError, Detail, Effect, ErrorClass, TimedOutBy};
use checkrein::policy::snapshot::{BackoffMode, RetryBudgetPolicy, Timeouts, Tool};
use tokio::time::Instant;

use super::rig::{
    Does, MS, Rig, S, advance, breaker, code, denied, failed, never_ran, retries, settle, start,
    status, tool,
};

fn retried(max_retries: u32) -> Tool {
    Tool { retry: Some(retries(max_retries)), ..tool("look", Effect::Read) }
}

#[tokio::test(start_paused = true)]
async fn bb_r03_a_back_off_that_does_not_fit_is_not_slept_and_the_cause_is_told() {
    let mut slow = retried(3);
    slow.timeout.total = S;
    let retry = slow.retry.as_mut().expect("reads retry");
    retry.deadline = 1200 * MS;
    retry.backoff.base = 2 * S;
    let rig = Rig::one(slow);
    rig.backend.always(Does::Fail(50 * MS, status(503)));
    let began = Instant::now();
    let call = rig.call("look", "{}");
    let trace = call.trace.clone();
    let outcome = rig.send(call).await;
    assert_eq!(failed(&outcome).message, "the tool said 503");
    assert_eq!(began.elapsed(), 50 * MS);
    let noted = trace.note();
    assert_eq!(noted.retry_stopped_by, Some("deadline"));
    assert_eq!(noted.attempts.len(), 1);
    assert_eq!(noted.attempts[0].error_class, ErrorClass::Http5xx);
}

#[tokio::test(start_paused = true)]
async fn bb_r04_attempts_at_the_tool_are_attempts_counted_and_stay_under_the_cap() {
    let mut capped = retried(2);
    capped.breaker = breaker(1_000_000, S);
    let mut server = super::rig::upstream();
    server.retry_budget =
        RetryBudgetPolicy { max_milli: 50_000, ratio_milli: 100, floor_milli_per_s: 0 };
    capped.upstream = std::sync::Arc::new(server);
    let rig = Rig::one(capped);
    rig.backend.always(Does::Fail(Duration::ZERO, status(503)));
    let mut tasks = Vec::new();
    for _ in 0..100 {
        tasks.push(tokio::spawn(rig.ask("look")));
    }
    for task in tasks {
        assert_eq!(code(&task.await.expect("no panic")), "tool_unavailable");
    }
    assert_eq!(rig.backend.hits(), 150, "100 calls and a budget of 50 retries");
    assert_eq!(rig.metric("checkrein_attempts_total", &["look"]), 150.0);
    assert_eq!(rig.metric("checkrein_retries_total", &["look"]), 50.0);
}

#[tokio::test(start_paused = true)]
async fn bb_r06_a_drip_does_not_extend_the_total() {
    let mut dripping = tool("look", Effect::Read);
    dripping.timeout = Timeouts { connect: S, first_byte: S, idle: S, total: S };
    let rig = Rig::one(dripping);
    rig.backend.then(Does::Drip);
    let began = Instant::now();
    let outcome = rig.ask("look").await;
    assert_eq!(began.elapsed(), S);
    assert_eq!(failed(&outcome).timed_out_by, Some(TimedOutBy::Total));
    let said = "the tool did not answer within its limit of 1s (total)";
    assert_eq!(failed(&outcome).message, said);
    assert_eq!(rig.backend.running(), 0, "the exchange is cut");
}

#[tokio::test(start_paused = true)]
async fn bb_r07_silence_after_the_request_ends_at_the_first_byte_limit() {
    let mut silent = tool("look", Effect::Read);
    silent.timeout.first_byte = 500 * MS;
    let rig = Rig::one(silent);
    rig.backend.then(Does::Silent);
    let began = Instant::now();
    let outcome = rig.ask("look").await;
    assert_eq!(began.elapsed(), 500 * MS);
    assert_eq!(failed(&outcome).timed_out_by, Some(TimedOutBy::FirstByte));
    assert_eq!(failed(&outcome).error_class, ErrorClass::TimeoutFirstByte);
    rig.backend.then(Does::Silent);
    let abandoned = start(rig.ask("look")).await;
    assert_eq!(rig.backend.running(), 1);
    abandoned.abort();
    settle().await;
    assert_eq!(rig.backend.running(), 0, "who goes away frees the exchange too");
    assert_eq!(rig.metric("checkrein_attempts_total", &["look"]), 2.0, "it was an attempt");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_never_made_ends_at_the_connect_limit_and_was_not_sent() {
    let rig = Rig::one(tool("look", Effect::Read));
    rig.backend.then(Does::ConnectStalls);
    let began = Instant::now();
    let outcome = rig.ask("look").await;
    assert_eq!(began.elapsed(), 3 * S);
    assert_eq!(code(&outcome), "upstream_unreachable");
    assert_eq!(failed(&outcome).timed_out_by, Some(TimedOutBy::Connect));
}

#[tokio::test(start_paused = true)]
async fn started_body_outlives_first_byte() {
    let mut slow = tool("look", Effect::Read);
    slow.timeout = Timeouts { connect: S, first_byte: 200 * MS, idle: 150 * MS, total: 2 * S };
    let rig = Rig::one(slow);
    rig.backend.then(Does::Drip);
    let began = Instant::now();
    let outcome = rig.ask("look").await;
    assert_eq!((began.elapsed(), failed(&outcome).timed_out_by), (2 * S, Some(TimedOutBy::Total)));
}

#[tokio::test(start_paused = true)]
async fn an_outer_deadline_is_named_and_blames_the_tool_only_when_it_left_half_its_time() {
    for (left, blamed) in [(4 * S, false), (4500 * MS, false)] {
        let mut once = tool("look", Effect::Read);
        once.breaker = breaker(1, 30 * S);
        let rig = Rig::one(once);
        rig.backend.then(Does::Silent);
        let mut call = rig.call("look", "{}");
        call.deadline = Instant::now() + left;
        let began = Instant::now();
        let outcome = rig.send(call).await;
        assert_eq!(began.elapsed(), left);
        assert_eq!(failed(&outcome).timed_out_by, Some(TimedOutBy::Call));
        assert_eq!(code(&rig.ask("look").await) == "circuit_open", blamed);
    }
    let mut once = tool("look", Effect::Read);
    once.timeout.first_byte = 10 * S;
    once.breaker = breaker(1, 30 * S);
    let rig = Rig::one(once);
    rig.backend.then(Does::Silent);
    let mut call = rig.call("look", "{}");
    call.deadline = Instant::now() + 5 * S;
    assert_eq!(failed(&rig.send(call).await).timed_out_by, Some(TimedOutBy::Call));
    assert_eq!(code(&rig.ask("look").await), "circuit_open");
}

#[tokio::test(start_paused = true)]
async fn no_call_starts_with_less_time_than_an_attempt_needs() {
    let rig = Rig::one(tool("look", Effect::Read));
    let mut call = rig.call("look", "{}");
    call.deadline = Instant::now() + 249 * MS;
    assert_eq!(code(&rig.send(call).await), "deadline_exceeded");
    assert_eq!(rig.backend.hits(), 0);
}

#[tokio::test(start_paused = true)]
async fn envoy_04_the_loop_deadline_counts_attempts_and_sleeps_together() {
    let mut looped = retried(5);
    looped.retry.as_mut().expect("reads retry").deadline = 3 * S;
    let rig = Rig::one(looped);
    rig.backend.then(Does::Fail(2700 * MS, status(503))).then(Does::Silent);
    let began = Instant::now();
    let outcome = rig.ask("look").await;
    // 2.7 s and 0.1 s are gone: 0.2 s is less than an attempt needs, so none is started.
    assert_eq!(began.elapsed(), 2700 * MS);
    assert_eq!(failed(&outcome).message, "the tool said 503");
}

#[tokio::test(start_paused = true)]
async fn a_transient_failure_is_retried_and_the_answer_counts_its_attempts() {
    let rig = Rig::one(retried(2));
    rig.backend.then(Does::Fail(Duration::ZERO, status(503)));
    let began = Instant::now();
    let result = rig.ask("look").await.expect("the second attempt answers");
    assert_eq!(result.notes.attempts, 2);
    assert_eq!(began.elapsed(), 100 * MS);
    assert_eq!(rig.metric("checkrein_retry_successes_total", &["look"]), 1.0);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_transient_is_not_retried() {
    let rig = Rig::one(retried(2));
    rig.backend.always(Does::Fail(Duration::ZERO, status(404)));
    assert_eq!(code(&rig.ask("look").await), "tool_error");
    assert_eq!(rig.backend.hits(), 1);
    assert_eq!(rig.metric("checkrein_retries_suppressed_total", &["\"class\""]), 1.0);
}

#[tokio::test(start_paused = true)]
async fn grpc_05_transparent_at_most_once_and_at_once() {
    let rig = Rig::one(retried(1));
    rig.backend.always(Does::Fail(Duration::ZERO, never_ran()));
    let began = Instant::now();
    let call = rig.call("look", "{}");
    let trace = call.trace.clone();
    assert_eq!(code(&rig.send(call).await), "upstream_refused_stream");
    assert_eq!(trace.note().attempts.len(), 3, "one transparent, one retry with its back-off");
    assert_eq!(began.elapsed(), 100 * MS);
    let rig = Rig::one(retried(0));
    rig.backend.then(Does::Fail(Duration::ZERO, never_ran()));
    assert_eq!(code(&rig.ask("look").await), "ok", "not counted among the retries");
}

#[tokio::test(start_paused = true)]
async fn never_before_retry_after_and_a_long_one_goes_to_the_model() {
    let rig = Rig::one(retried(3));
    let mut told = status(503);
    told.retry_after = Some(3 * S);
    rig.backend.then(Does::Fail(Duration::ZERO, told.clone()));
    let began = Instant::now();
    assert_eq!(code(&rig.ask("look").await), "ok");
    assert_eq!(began.elapsed(), 3 * S);
    told.retry_after = Some(6 * S);
    rig.backend.then(Does::Fail(Duration::ZERO, told));
    let outcome = rig.ask("look").await;
    assert_eq!(failed(&outcome).retry_after, Some(6 * S));
    assert_eq!(began.elapsed(), 3 * S, "not slept");
}

#[tokio::test(start_paused = true)]
async fn last_real_error_wins_over_our_own_refusals() {
    let mut limited = retried(3);
    limited.rate_limit = Some(super::rig::rate("tool:look", 100 * S, 1));
    let rig = Rig::one(limited);
    rig.backend.always(Does::Fail(Duration::ZERO, status(503)));
    let call = rig.call("look", "{}");
    let trace = call.trace.clone();
    assert_eq!(code(&rig.send(call).await), "tool_unavailable");
    assert_eq!(trace.note().retry_stopped_by, Some("rate_limited"));
    assert_eq!(code(&rig.ask("look").await), "rate_limited", "on the first attempt it is the end");
}

#[tokio::test(start_paused = true)]
async fn a_loop_ends_when_another_call_opened_the_circuit_while_it_slept() {
    let mut loops = retried(3);
    loops.breaker = breaker(1, 100 * S);
    let rig = Rig::of(vec![loops]);
    rig.backend.then(Does::Fail(Duration::ZERO, status(503)));
    let sleeping = start(rig.ask("look")).await;
    rig.backend.then(Does::Fail(Duration::ZERO, {
        let mut permanent = status(500);
        permanent.class = checkrein::call::Class::Permanent;
        permanent
    }));
    assert_eq!(code(&rig.ask("look").await), "tool_unavailable");
    advance(100 * MS).await;
    let outcome = sleeping.await.expect("no panic");
    assert_eq!(failed(&outcome).message, "the tool said 503");
    assert_eq!(rig.backend.hits(), 2);
    assert_eq!(rig.metric("checkrein_retries_suppressed_total", &["\"circuit_open\""]), 1.0);
}

#[tokio::test(start_paused = true)]
async fn draining_starts_no_further_attempt() {
    let rig = Rig::one(retried(3));
    rig.backend.always(Does::Fail(Duration::ZERO, status(503)));
    let sleeping = start(rig.ask("look")).await;
    rig.gates.draining.cancel();
    settle().await;
    assert!(sleeping.is_finished(), "the sleep is cut");
    assert_eq!(code(&sleeping.await.expect("no panic")), "tool_unavailable");
    assert_eq!(rig.backend.hits(), 1);
}

#[tokio::test(start_paused = true)]
async fn bb_l01_the_same_failing_call_is_stopped_from_the_fourth_on_with_other_words() {
    let mut fused = tool("look", Effect::Read);
    fused.fuse = None;
    let rig = Rig::one(fused);
    rig.backend.always(Does::Fail(Duration::ZERO, status(500)));
    let mut outcomes = Vec::new();
    for _ in 0..10 {
        outcomes.push(rig.ask_same("look").await);
    }
    assert_eq!(rig.backend.hits(), 3);
    for outcome in &outcomes[3..] {
        assert_eq!(code(outcome), "repeat_blocked");
    }
    assert_ne!(denied(&outcomes[3]).message, denied(&outcomes[4]).message);
    assert_eq!(code(&rig.ask("look").await), "tool_unavailable", "other arguments pass");
}

#[tokio::test(start_paused = true)]
async fn bb_a03_a_repeated_unknown_name_is_told_to_stop() {
    let rig = Rig::of(vec![tool("check_order", Effect::Read), tool("send", Effect::Read)]);
    let mut outcomes = Vec::new();
    for _ in 0..6 {
        outcomes.push(rig.ask_same("chek_order").await);
    }
    let first = denied(&outcomes[0]);
    assert_eq!(first.code.as_str(), "unknown_tool");
    let Detail::Tools(tools) = &first.detail else { panic!("the list of tools, not {first:?}") };
    assert_eq!(tools[0].as_str(), "check_order", "the nearest name first");
    for outcome in &outcomes[3..] {
        assert_eq!(code(outcome), "repeat_blocked");
    }
    assert!(denied(&outcomes[4]).message.contains("stop"), "{}", denied(&outcomes[4]).message);
    assert_eq!(rig.metric("checkrein_tool_calls_total", &["_unknown", "unknown_tool"]), 3.0);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_is_not_allowed_answers_exactly_like_one_that_does_not_exist() {
    let tools = vec![tool("look", Effect::Read), tool("hidden", Effect::Read)];
    let mut agent = super::rig::agent(&tools);
    agent.allowed.remove(&super::rig::tool_name("hidden"));
    let rig = Rig::with(super::rig::snapshot(tools, agent));
    let hidden = rig.ask("hidden").await;
    let absent = rig.ask("absent").await;
    let said = |outcome| {
        let denied = denied(outcome);
        let Detail::Tools(tools) = &denied.detail else { panic!("{denied:?}") };
        (denied.code, denied.message.replace("hidden", "X").replace("absent", "X"), tools.clone())
    };
    assert_eq!(said(&hidden), said(&absent));
    // Faults of its arguments would reveal it just as well.
    let malformed = rig.send(rig.call("hidden", "{")).await;
    assert_eq!(said(&malformed), said(&absent));
    assert_eq!(code(&rig.send(rig.call("look", "{")).await), "invalid_arguments");
}

#[tokio::test(start_paused = true)]
async fn arguments_are_judged_all_at_once_and_reach_no_tool() {
    let rig = Rig::one(tool("look", Effect::Read));
    let outcome = rig.send(rig.call("look", r#"{"id":7,"note":false,"more":1}"#)).await;
    let Detail::Faults(faults) = &denied(&outcome).detail else { panic!("{outcome:?}") };
    assert_eq!(faults.len(), 3, "{faults:?}");
    assert_eq!(rig.backend.hits(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_rehearses_passes_every_gate_and_sends_nothing() {
    let tools = vec![tool("look", Effect::Read), tool("pay", Effect::Write)];
    let mut agent = super::rig::agent(&tools);
    agent.dry_run = true;
    let rig = Rig::with(super::rig::snapshot(tools, agent));
    for name in ["look", "pay", "pay"] {
        assert_eq!(code(&rig.ask_same(name).await), "dry_run");
    }
    assert_eq!(code(&rig.send(rig.call("pay", r#"{"id":1}"#)).await), "invalid_arguments");
    assert_eq!(rig.backend.hits(), 0);
}

/// Whatever the tool does and however the back-off grows, a call ends by its deadline, to the millisecond.
#[tokio::test(start_paused = true)]
async fn wall_within_deadline_whatever_the_tool_does() {
    let mut rng = fastrand::Rng::with_seed(7);
    for round in 0..300 {
        let mut any = retried(rng.u32(0..6));
        let retry = any.retry.as_mut().expect("reads retry");
        retry.deadline = rng.u32(300..20_000) * MS;
        retry.backoff.mode =
            [BackoffMode::None, BackoffMode::Full, BackoffMode::Decorrelated][rng.usize(0..3)];
        any.timeout = Timeouts {
            connect: rng.u32(1..4000) * MS,
            first_byte: rng.u32(1..4000) * MS,
            idle: rng.u32(1..4000) * MS,
            total: rng.u32(1..8000) * MS,
        };
        let loop_deadline = retry_deadline(&any);
        let rig = Rig::one(any);
        for _ in 0..12 {
            rig.backend.then(match rng.u8(0..5) {
                0 => Does::Silent,
                1 => Does::Drip,
                2 => Does::ConnectStalls,
                3 => Does::Fail(rng.u32(0..5000) * MS, never_ran()),
                _ => Does::Fail(rng.u32(0..5000) * MS, status(503)),
            });
        }
        rig.backend.always(Does::Silent);
        let mut call = rig.call("look", "{}");
        let left = rng.u32(250..15_000) * MS;
        call.deadline = Instant::now() + left;
        let began = Instant::now();
        let outcome = rig.send(call).await;
        assert!(matches!(outcome, Err(CallError::Failed(_))), "round {round}: {outcome:?}");
        assert!(began.elapsed() <= left.min(loop_deadline), "round {round}");
        assert_eq!(rig.backend.running(), 0, "round {round}: nothing goes on");
    }
}

fn retry_deadline(tool: &Tool) -> Duration {
    tool.retry.as_ref().expect("reads retry").deadline
}
