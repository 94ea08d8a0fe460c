//! Writes that may have happened, at tools that help: the key again, the question, and what is left to a person.

use std::time::Duration;

use checkrein::call::code::FailCode;
use checkrein::call::pointer::Pointer;
use checkrein::call::{CallError, Class, Delivery, Effect, Failed, Source, Verdict};
use checkrein::policy::predicate::{Predicate, Test};
use checkrein::policy::snapshot::{Idempotency, QueryArgument, SentAs, StatusQuery, Tool};
use serde_json::json;
use tokio::time::Instant;

use super::rig::{
    Does, MS, Rig, S, advance, code, failed, start, status, tool, tool_name, unreachable_tool,
};

const HOUR: Duration = Duration::from_secs(3600);

/// A write whose tool recognises a key for an hour.
fn keyed() -> Tool {
    let mut tool = tool("pay", Effect::Write);
    let write = tool.write.as_mut().expect("a write");
    write.fingerprint = vec![Pointer::parse("/id").expect("a pointer")];
    let name = http::HeaderName::from_static("idempotency-key");
    let sent_as = SentAs::Header { name, quoted: false };
    write.idempotency = Some(Idempotency { sent_as, window: Some(HOUR) });
    tool
}

fn state_is(value: &str) -> Predicate {
    Predicate::Test {
        pointer: Pointer::parse("/value/state").expect("a pointer"),
        test: Test::is(&json!({ "const": value })).expect("a schema"),
    }
}

/// A write whose effect a read can see.
fn asked() -> Vec<Tool> {
    let mut tool = keyed();
    let write = tool.write.as_mut().expect("a write");
    write.idempotency = None;
    write.status_query = Some(StatusQuery {
        tool: tool_name("look"),
        arguments: vec![("id".into(), QueryArgument::From(Pointer::parse("/id").expect("one")))],
        executed_when: state_is("paid"),
        not_executed_when: Some(state_is("open")),
        settle: 2 * S,
        tries: 3,
    });
    vec![tool, super::rig::tool("look", Effect::Read)]
}

fn reset() -> Failed {
    Failed { status: None, message: "the connection was reset".into(), ..status(502) }
}

const STATE: fn(&'static str) -> Does = |body| Does::Answer(Duration::ZERO, body);
const PAID: &str = r#"{"state":"paid"}"#;
const OPEN: &str = r#"{"state":"open"}"#;

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_fetched_with_the_same_key_within_the_call() {
    let rig = Rig::one(keyed());
    rig.backend.then(Does::Fail(Duration::ZERO, reset())).then(STATE(r#"{"refund":7}"#));
    let began = Instant::now();
    let told = rig.ask_same("pay").await.expect("the answer");
    assert_eq!((told.source, &told.content.bytes[..]), (Source::Tool, &br#"{"refund":7}"#[..]));
    assert!(began.elapsed() < S);
    let keys = rig.backend.keys();
    assert_eq!(keys.len(), 2);
    assert_eq!((keys[0].len(), &keys[0]), (43, &keys[1]), "one key for both");
    assert_eq!(rig.metric("checkrein_write_upgrades_total", &["\"resend\""]), 1.0);
    assert_eq!(rig.ask_same("pay").await.expect("replayed").source, Source::Ledger);
    assert_eq!(rig.backend.hits(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_a_window_nothing_is_ever_sent_twice() {
    let mut tool = keyed();
    let write = tool.write.as_mut().expect("a write");
    write.idempotency.as_mut().expect("keyed").window = None;
    let rig = Rig::one(tool);
    rig.backend.then(Does::Fail(Duration::ZERO, reset()));
    assert_eq!(code(&rig.ask_same("pay").await), "outcome_unknown");
    assert_eq!(code(&rig.ask_same("pay").await), "review_required");
    assert_eq!(rig.backend.hits(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_write_is_sent_again_six_times_an_asking_and_24_times_in_its_life() {
    let rig = Rig::one(keyed());
    rig.backend.always(Does::Fail(Duration::ZERO, reset()));
    let began = Instant::now();
    assert_eq!(code(&rig.ask_same("pay").await), "outcome_unknown");
    assert_eq!(rig.backend.hits(), 7);
    assert!(began.elapsed() < 5 * S, "{:?}", began.elapsed());
    for asked in 2..=5 {
        assert_eq!(code(&rig.ask_same("pay").await), "review_required");
        assert_eq!(rig.backend.hits(), (1 + 6 * asked).min(25));
    }
    let keys = rig.backend.keys();
    assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
}

/// A try that is begun may take what the tool is given; none is begun after ten seconds.
#[tokio::test(start_paused = true)]
async fn a_call_is_not_held_for_longer_than_ten_seconds_and_the_try_under_way() {
    let rig = Rig::one(keyed());
    rig.backend.always(Does::Silent);
    let began = Instant::now();
    assert_eq!(code(&rig.ask_same("pay").await), "outcome_unknown");
    // Five seconds to the first byte of the first, then of two more.
    assert!((15 * S..16 * S).contains(&began.elapsed()), "{:?}", began.elapsed());
    assert_eq!(rig.backend.hits(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_stored_500_is_known_again_behind_other_failures() {
    let rig = Rig::one(keyed());
    for does in [status(500), reset(), status(503), status(500)] {
        rig.backend.then(Does::Fail(Duration::ZERO, does));
    }
    assert_eq!(code(&rig.ask_same("pay").await), "outcome_unknown");
    assert_eq!(rig.backend.hits(), 4);
    assert_eq!(code(&rig.ask_same("pay").await), "review_required");
    assert_eq!(rig.backend.hits(), 4);
}

fn limited(retry_after: Option<Duration>, cooldown: bool) -> Failed {
    Failed { retry_after, cooldown, ..status(429) }
}

#[tokio::test(start_paused = true)]
async fn a_cooldown_is_waited_out_where_it_fits_and_costs_no_try() {
    let rig = Rig::one(keyed());
    rig.backend.then(Does::Fail(Duration::ZERO, reset()));
    rig.backend.then(Does::Fail(Duration::ZERO, limited(Some(4 * S), true)));
    rig.backend.then(STATE(r#"{"refund":7}"#));
    let began = Instant::now();
    assert_eq!(code(&rig.ask_same("pay").await), "ok");
    assert!((4 * S..5 * S).contains(&began.elapsed()), "never earlier: {:?}", began.elapsed());
    assert_eq!(rig.backend.hits(), 3);
    // Where it does not fit nothing is waited for.
    let rig = Rig::one(keyed());
    rig.backend.then(Does::Fail(Duration::ZERO, reset()));
    rig.backend.then(Does::Fail(Duration::ZERO, limited(Some(30 * S), true)));
    let began = Instant::now();
    assert_eq!(code(&rig.ask_same("pay").await), "outcome_unknown");
    assert!(began.elapsed() < S, "{:?}", began.elapsed());
    // Told to come back at once, it is back at once.
    let rig = Rig::one(keyed());
    rig.backend.then(Does::Fail(Duration::ZERO, reset()));
    rig.backend.then(Does::Fail(Duration::ZERO, limited(None, false))).then(STATE("{}"));
    let began = Instant::now();
    assert_eq!(code(&rig.ask_same("pay").await), "ok");
    assert!(began.elapsed() < S, "{:?}", began.elapsed());
}

/// A 2xx whose body was cut.
fn cut() -> Failed {
    let message = "the answer was cut";
    Failed::new(FailCode::ResultLost, Class::Transient, Delivery::Done, Verdict::Bad, message)
}

#[tokio::test(start_paused = true)]
async fn a_cut_answer_is_fetched_once_with_the_same_key_and_kept() {
    let rig = Rig::one(keyed());
    rig.backend.then(Does::Fail(Duration::ZERO, cut())).then(STATE(r#"{"refund":7}"#));
    let told = rig.ask_same("pay").await.expect("the answer");
    assert_eq!(&told.content.bytes[..], &br#"{"refund":7}"#[..]);
    let keys = rig.backend.keys();
    assert_eq!((keys.len(), &keys[0]), (2, &keys[1]));
    let again = rig.ask_same("pay").await.expect("replayed");
    assert_eq!((again.source, again.content.bytes), (Source::Ledger, told.content.bytes));
    assert_eq!(rig.backend.hits(), 2);
    // Cut again, or refused: what is known stays, and it is not tried a third time.
    for second in [cut(), reset(), status(500), status(422), unreachable_tool()] {
        let rig = Rig::one(keyed());
        rig.backend.then(Does::Fail(Duration::ZERO, cut()));
        rig.backend.then(Does::Fail(Duration::ZERO, second));
        for _ in 0..2 {
            let outcome = rig.ask_same("pay").await;
            let lost = failed(&outcome);
            assert_eq!((lost.code, lost.delivery), (FailCode::ResultLost, Delivery::Done));
        }
        assert!(rig.backend.keys().len() <= 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_sending_whose_answer_is_cut_settles_it_and_the_third_fetches_it() {
    let rig = Rig::one(keyed());
    rig.backend.then(Does::Fail(Duration::ZERO, reset())).then(Does::Fail(Duration::ZERO, cut()));
    rig.backend.then(STATE(r#"{"refund":7}"#));
    let told = rig.ask_same("pay").await.expect("the answer");
    assert_eq!(&told.content.bytes[..], &br#"{"refund":7}"#[..]);
    assert_eq!(rig.ask_same("pay").await.expect("replayed").source, Source::Ledger);
    assert_eq!(rig.backend.hits(), 3);
    assert_eq!(rig.metric("checkrein_write_upgrades_total", &["\"resend\""]), 1.0);
}

#[tokio::test(start_paused = true)]
async fn without_a_key_a_cut_answer_is_never_fetched() {
    let rig = Rig::of(asked());
    rig.backend.then(Does::Fail(Duration::ZERO, cut()));
    assert_eq!(code(&rig.ask_same("pay").await), "result_lost");
    assert_eq!(rig.backend.hits(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_read_that_its_own_limits_hold_back_has_not_been_asked() {
    let mut tools = asked();
    tools[1].rate_limit = Some(super::rig::rate("slow", 5 * S, 1));
    let rig = Rig::of(tools);
    assert_eq!(code(&rig.ask("look").await), "ok", "the token is spent");
    rig.backend.then(Does::Fail(Duration::ZERO, reset())).then(STATE(PAID));
    let began = Instant::now();
    assert_eq!(code(&rig.ask_same("pay").await), "result_lost");
    assert!((5 * S..6 * S).contains(&began.elapsed()), "{:?}", began.elapsed());
    assert_eq!(rig.backend.hits(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_same_500_twice_is_a_stored_answer_and_a_person_s_business() {
    let rig = Rig::one(keyed());
    rig.backend.always(Does::Fail(Duration::ZERO, status(500)));
    assert_eq!(code(&rig.ask_same("pay").await), "outcome_unknown");
    assert_eq!(rig.backend.hits(), 2);
    assert_eq!(code(&rig.ask_same("pay").await), "review_required");
    assert_eq!(rig.backend.hits(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_the_second_sending_is_refused_says_nothing_of_the_first() {
    for refusal in [404, 422, 401] {
        let rig = Rig::one(keyed());
        rig.backend.then(Does::Fail(Duration::ZERO, reset()));
        rig.backend.always(Does::Fail(Duration::ZERO, status(refusal)));
        assert_eq!(code(&rig.ask_same("pay").await), "outcome_unknown", "{refusal}");
        assert_eq!(code(&rig.ask_same("pay").await), "review_required");
        assert_eq!(rig.backend.hits(), 2);
    }
    // Nor does a connection that cannot be made.
    let rig = Rig::one(keyed());
    rig.backend.then(Does::Fail(Duration::ZERO, reset()));
    rig.backend.always(Does::Fail(Duration::ZERO, unreachable_tool()));
    assert_eq!(code(&rig.ask_same("pay").await), "outcome_unknown");
}

#[tokio::test(start_paused = true)]
async fn a_call_without_time_is_answered_and_the_next_one_fetches_the_outcome() {
    let rig = Rig::one(keyed());
    rig.backend.then(Does::Silent).then(STATE(r#"{"refund":7}"#));
    let mut call = rig.call("pay", r#"{"id":"A17"}"#);
    call.deadline = Instant::now() + S;
    assert_eq!(code(&rig.send(call).await), "outcome_unknown");
    assert_eq!(rig.backend.hits(), 1);
    // Not the same content under the same key.
    let other = rig.call("pay", r#"{"id":"A17","note":"x"}"#);
    assert_eq!(code(&rig.send(other).await), "review_required");
    assert_eq!(rig.backend.hits(), 1);
    assert_eq!(code(&rig.ask_same("pay").await), "ok");
    let keys = rig.backend.keys();
    assert_eq!((keys.len(), &keys[0]), (2, &keys[1]));
}

#[tokio::test(start_paused = true)]
async fn past_nine_tenths_of_the_window_nothing_is_sent_again() {
    for (age, hits) in [(53 * 60, 2), (55 * 60, 1)] {
        let rig = Rig::one(keyed());
        rig.backend.then(Does::Silent).then(STATE("{}"));
        let mut call = rig.call("pay", r#"{"id":"A17"}"#);
        call.deadline = Instant::now() + S;
        assert_eq!(code(&rig.send(call).await), "outcome_unknown");
        advance(Duration::from_secs(age)).await;
        let expected = if hits == 2 { "ok" } else { "review_required" };
        assert_eq!(code(&rig.ask_same("pay").await), expected, "after {age} s");
        assert_eq!(rig.backend.hits(), hits);
    }
}

#[tokio::test(start_paused = true)]
async fn many_that_ask_at_once_send_it_again_once() {
    let rig = Rig::one(keyed());
    rig.backend.then(Does::Silent).then(Does::Answer(300 * MS, "{}"));
    let mut call = rig.call("pay", r#"{"id":"A17"}"#);
    call.deadline = Instant::now() + S;
    assert_eq!(code(&rig.send(call).await), "outcome_unknown");
    let mut asking = Vec::new();
    for _ in 0..20 {
        asking.push(start(rig.ask_same("pay")).await);
    }
    for one in asking {
        assert_eq!(code(&one.await.expect("no panic")), "ok");
    }
    assert_eq!(rig.backend.hits(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_read_that_says_so_once_settles_what_was_executed() {
    let rig = Rig::of(asked());
    rig.backend.then(Does::Fail(Duration::ZERO, reset())).then(STATE(PAID));
    let began = Instant::now();
    let outcome = rig.ask_same("pay").await;
    assert_eq!(failed(&outcome).code.as_str(), "result_lost", "executed, and only that is known");
    assert_eq!(began.elapsed(), 2 * S, "after the tool had time");
    assert_eq!(rig.metric("checkrein_write_upgrades_total", &["\"status_query\""]), 1.0);
    assert_eq!(rig.backend.hits(), 2);
}

#[tokio::test(start_paused = true)]
async fn that_nothing_happened_counts_only_twice_and_apart() {
    let rig = Rig::of(asked());
    rig.backend.then(Does::Fail(Duration::ZERO, reset())).then(STATE(OPEN)).then(STATE(OPEN));
    let began = Instant::now();
    let outcome = rig.ask_same("pay").await;
    assert_eq!(began.elapsed(), 4 * S);
    let why = failed(&outcome);
    assert_eq!(why.evidence.map(|evidence| evidence.to_string()), Some("query".to_owned()));
    assert_eq!(code(&rig.ask_same("pay").await), "ok", "the operation is free");
    // The effect comes between the two looks.
    let rig = Rig::of(asked());
    rig.backend.then(Does::Fail(Duration::ZERO, reset())).then(STATE(OPEN)).then(STATE(PAID));
    assert_eq!(code(&rig.ask_same("pay").await), "result_lost");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_says_neither_or_a_read_that_fails_leaves_it_to_a_person() {
    for says in [STATE(r#"{"state":"working"}"#), Does::Unreachable] {
        let rig = Rig::of(asked());
        rig.backend.then(Does::Fail(Duration::ZERO, reset()));
        rig.backend.always(says);
        let outcome = rig.ask_same("pay").await;
        assert!(matches!(outcome, Err(CallError::Unknown(_))), "{outcome:?}");
        let hits = rig.backend.hits();
        assert_eq!(code(&rig.ask_same("pay").await), "review_required");
        assert_eq!(rig.backend.hits(), hits, "three tries and no more");
    }
}

#[tokio::test(start_paused = true)]
async fn a_contradiction_is_a_person_s_business_at_once() {
    let mut tools = asked();
    let write = tools[0].write.as_mut().expect("a write");
    write.status_query.as_mut().expect("asked").not_executed_when = Some(state_is("paid"));
    let rig = Rig::of(tools);
    rig.backend.then(Does::Fail(Duration::ZERO, reset()));
    rig.backend.always(STATE(PAID));
    assert_eq!(code(&rig.ask_same("pay").await), "outcome_unknown");
    assert_eq!(rig.backend.hits(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_key_comes_before_the_question() {
    let mut tools = asked();
    tools[0].write.as_mut().expect("a write").idempotency =
        keyed().write.expect("a write").idempotency;
    let rig = Rig::of(tools);
    rig.backend.then(Does::Fail(Duration::ZERO, status(500)));
    rig.backend.then(Does::Fail(Duration::ZERO, status(500))).then(STATE(PAID));
    assert_eq!(code(&rig.ask_same("pay").await), "result_lost");
    assert_eq!(rig.backend.hits(), 3);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_again_into_an_outage_nor_by_a_gateway_that_leaves_nor_for_a_rehearsal() {
    let mut tool = keyed();
    tool.breaker = super::rig::breaker(1, 30 * S);
    let rig = Rig::one(tool);
    rig.backend.then(Does::Fail(Duration::ZERO, reset()));
    assert_eq!(code(&rig.ask_same("pay").await), "outcome_unknown", "that failure opened it");
    assert_eq!(code(&rig.ask_same("pay").await), "review_required");
    assert_eq!(rig.backend.hits(), 1);
    let rig = Rig::one(keyed());
    rig.backend.then(Does::Silent);
    let mut call = rig.call("pay", r#"{"id":"A17"}"#);
    call.deadline = Instant::now() + S;
    assert_eq!(code(&rig.send(call).await), "outcome_unknown");
    rig.gates.draining.cancel();
    assert_eq!(code(&rig.ask_same("pay").await), "review_required");
    assert_eq!(rig.backend.hits(), 1);
    let tools = vec![keyed()];
    let mut rehearsing = super::rig::agent(&tools);
    rehearsing.dry_run = true;
    let rig = rig.reload(super::rig::snapshot(tools, rehearsing));
    assert_eq!(code(&rig.ask_same("pay").await), "review_required");
    assert_eq!(rig.backend.hits(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_read_said_of_an_earlier_sending_does_not_count_for_a_later_one() {
    let rig = Rig::of(asked());
    // The first answer comes late, after the read has said once that nothing happened.
    rig.backend.then(Does::Fail(9 * S, status(422))).then(STATE(OPEN));
    let mut call = rig.call("pay", r#"{"id":"A17"}"#);
    call.deadline = Instant::now() + 8 * S;
    assert_eq!(code(&rig.send(call).await), "outcome_unknown", "no time to look twice");
    assert_eq!(rig.backend.hits(), 2);
    advance(5 * S).await;
    // It did not happen, and is sent anew: one look is again not enough.
    rig.backend.then(Does::Fail(Duration::ZERO, reset())).then(STATE(OPEN)).then(STATE(PAID));
    assert_eq!(code(&rig.ask_same("pay").await), "result_lost");
    assert_eq!(rig.backend.hits(), 5);
}
