//! Writes at the level of the stack: sent once, never cut, never forgotten.

use std::time::Duration;

use checkrein::call::pointer::Pointer;
use checkrein::call::{CallError, CallerKey, Delivery, Effect, Evidence, Failed, Source};
use checkrein::ledger::{Resolution, Verdict};
use checkrein::policy::snapshot::Tool;
use tokio::time::Instant;

use super::rig::{
    Does, MS, Rig, S, advance, answer, breaker, code, failed, settle, start, status, tool,
    unreachable_tool,
};

fn pay() -> Tool {
    tool("pay", Effect::Write)
}

fn by_id() -> Tool {
    let mut tool = pay();
    let write = tool.write.as_mut().expect("a write");
    write.fingerprint = vec![Pointer::parse("/id").expect("a pointer")];
    tool
}

#[tokio::test(start_paused = true)]
async fn bb_w07_an_agent_that_hangs_up_does_not_cut_a_write_in_half() {
    let rig = Rig::one(by_id());
    rig.backend.then(Does::Answer(400 * MS, r#"{"order":7}"#));
    let hung_up = start(rig.ask_same("pay")).await;
    advance(100 * MS).await;
    hung_up.abort();
    advance(900 * MS).await;
    let again = rig.ask_same("pay").await.expect("the first answer");
    assert_eq!(again.source, Source::Ledger);
    assert_eq!(again.content.bytes, r#"{"order":7}"#);
    assert_eq!(rig.backend.hits(), 1);
    assert_eq!(rig.metric("checkrein_tool_calls_total", &["\"abandoned\""]), 0.0);
    assert_eq!(rig.metric("checkrein_write_ends_total", &["\"executed\""]), 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_timed_out_is_unknown_and_is_never_sent_twice() {
    let rig = Rig::one(pay());
    rig.backend.then(Does::Silent);
    let began = Instant::now();
    assert_eq!(code(&rig.ask_same("pay").await), "outcome_unknown");
    assert_eq!(began.elapsed(), 5 * S, "the first-byte limit");
    for _ in 0..3 {
        assert_eq!(code(&rig.ask_same("pay").await), "review_required");
    }
    advance(100 * S).await;
    assert_eq!(code(&rig.ask_same("pay").await), "review_required", "no time makes it free");
    assert_eq!(rig.backend.hits(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_late_settles_the_write() {
    let rig = Rig::one(by_id());
    rig.backend.then(Does::Answer(20 * S, r#"{"paid":1}"#));
    assert_eq!(code(&rig.ask_same("pay").await), "outcome_unknown");
    assert_eq!(rig.gates.state.view().tools[0].inflight, 1, "the drain holds its place");
    advance(15 * S).await;
    assert_eq!(rig.gates.state.view().tools[0].inflight, 0);
    let told = rig.ask_same("pay").await.expect("the late answer");
    assert_eq!(told.source, Source::Ledger);
    assert_eq!(rig.backend.hits(), 1);
    assert_eq!(rig.metric("checkrein_write_upgrades_total", &["late_answer"]), 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_late_refusal_frees_the_write_and_a_drain_that_ends_leaves_it_unknown() {
    let rig = Rig::one(pay());
    rig.backend.then(Does::Fail(20 * S, status(422)));
    assert_eq!(code(&rig.ask_same("pay").await), "outcome_unknown");
    advance(15 * S).await;
    assert_eq!(code(&rig.ask_same("pay").await), "ok", "it did not happen");
    assert_eq!(rig.backend.hits(), 2);
    let rig = Rig::one(pay());
    rig.backend.then(Does::Answer(100 * S, "{}"));
    assert_eq!(code(&rig.ask_same("pay").await), "outcome_unknown");
    advance(31 * S).await;
    assert_eq!(rig.backend.running(), 0, "listened to for the tool's drain time, no longer");
    assert_eq!(rig.gates.state.view().tools[0].inflight, 0);
    assert_eq!(code(&rig.ask_same("pay").await), "review_required");
    rig.gates.tasks.close();
    rig.gates.tasks.wait().await;
}

/// A person freed the first sending while the tool still worked on it, and the operation was sent anew.
#[tokio::test(start_paused = true)]
async fn a_late_answer_speaks_of_its_own_sending_alone() {
    let words = [
        (Resolution::DidNotHappen, Does::Fail(12 * S, status(404))),
        (Resolution::DidNotHappen, Does::Answer(12 * S, r#"{"n":1}"#)),
        (Resolution::Compensated, Does::Answer(12 * S, r#"{"n":1}"#)),
    ];
    for (word, late) in words {
        let rig = Rig::one(by_id());
        rig.backend.then(late).then(Does::Silent);
        assert_eq!(code(&rig.ask_same("pay").await), "outcome_unknown");
        let operation = rig.gates.ledger.reviews(1).pop().expect("a review").operation;
        let verdict = Verdict { who: "ada".into(), why: String::new(), evidence: "seen".into() };
        let decided = rig.gates.ledger.resolve(&operation.key(), None, word, verdict).await;
        assert_eq!(decided, Ok(()));
        assert_eq!(code(&rig.ask_same("pay").await), "outcome_unknown", "sent anew");
        advance(10 * S).await;
        assert_eq!(code(&rig.ask_same("pay").await), "review_required");
        assert_eq!(rig.backend.hits(), 2, "the second may have happened");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_before_the_send_gate_leaves_no_doubt() {
    let rig = Rig::one(pay());
    rig.backend.then(Does::Unreachable).then(Does::ConnectStalls);
    for expected in [0, 3] {
        let began = Instant::now();
        let outcome = rig.ask_same("pay").await;
        assert_eq!(began.elapsed().as_secs(), expected);
        let failed = failed(&outcome);
        assert_eq!(failed.delivery, Delivery::NotSent);
        assert_eq!(failed.evidence, Some(Evidence::ConnectFailed));
    }
    assert_eq!(code(&rig.ask_same("pay").await), "ok", "the operation is free");
    assert_eq!(rig.backend.hits(), 1);
    assert_eq!(rig.metric("checkrein_write_ends_total", &["\"not_executed\""]), 2.0);
}

#[tokio::test(start_paused = true)]
async fn a_write_is_never_retried_whatever_its_failure() {
    for failure in [status(503), status(500), status(429), unreachable_tool()] {
        let mut stubborn = pay();
        stubborn.retry = Some(super::rig::retries(5));
        let rig = Rig::one(stubborn);
        rig.backend.always(Does::Fail(Duration::ZERO, failure));
        assert!(rig.ask_same("pay").await.is_err());
        assert_eq!(rig.backend.hits(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn fifty_at_once_are_one_write_and_fifty_answers() {
    let rig = Rig::one(by_id());
    rig.backend.then(Does::Answer(300 * MS, r#"{"n":1}"#));
    let mut tasks = Vec::new();
    for _ in 0..50 {
        tasks.push(tokio::spawn(rig.ask_same("pay")));
    }
    settle().await;
    advance(300 * MS).await;
    for task in tasks {
        let result = task.await.expect("no panic").expect("an answer");
        assert_eq!(result.content.bytes, r#"{"n":1}"#);
    }
    assert_eq!(rig.backend.hits(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_joins_waits_no_longer_than_its_own_deadline() {
    let rig = Rig::one(by_id());
    rig.backend.then(Does::Answer(4 * S, "{}"));
    let first = start(rig.ask_same("pay")).await;
    let mut call = rig.call("pay", r#"{"id":"A17"}"#);
    call.deadline = Instant::now() + S;
    let began = Instant::now();
    assert_eq!(code(&rig.send(call).await), "in_progress");
    assert_eq!(began.elapsed(), S);
    advance(3 * S).await;
    assert!(first.await.expect("no panic").is_ok(), "a joiner that leaves changes nothing");
}

#[tokio::test(start_paused = true)]
async fn who_waited_for_a_write_that_was_never_sent_sends_it_itself() {
    let mut limited = by_id();
    limited.bulkhead = 1;
    let rig = Rig::one(limited);
    // Takes the only place, so that the next operation is refused after its claim.
    rig.backend.then(Does::Answer(400 * MS, "{}"));
    let other = start(rig.send(rig.call("pay", r#"{"id":"other"}"#))).await;
    assert_eq!(code(&rig.ask_same("pay").await), "concurrency_limited");
    advance(400 * MS).await;
    assert!(other.await.expect("no panic").is_ok());
    assert_eq!(code(&rig.ask_same("pay").await), "ok", "a refused claim is free at once");
    assert_eq!(rig.backend.hits(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_replay_needs_no_closed_circuit_no_token_and_no_place() {
    let mut strict = by_id();
    strict.breaker = breaker(1, 100 * S);
    strict.bulkhead = 1;
    strict.rate_limit = Some(super::rig::rate("tool:pay", 1000 * S, 2));
    let rig = Rig::one(strict);
    assert_eq!(code(&rig.ask_same("pay").await), "ok");
    rig.backend.then(Does::Fail(Duration::ZERO, status(500)));
    assert_eq!(code(&rig.send(rig.call("pay", r#"{"id":"B"}"#)).await), "outcome_unknown");
    assert_eq!(code(&rig.send(rig.call("pay", r#"{"id":"C"}"#)).await), "circuit_open");
    let told = rig.ask_same("pay").await.expect("told again");
    assert_eq!(told.source, Source::Ledger);
    assert_eq!(rig.backend.hits(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_panic_after_the_gate_is_unknown_and_before_it_is_free() {
    let rig = Rig::one(pay());
    rig.backend.then(Does::Panic);
    let outcome = rig.ask_same("pay").await;
    assert_eq!(code(&outcome), "outcome_unknown");
    assert_eq!(code(&rig.ask_same("pay").await), "review_required");
    let rig = Rig::one(pay());
    rig.backend.then(Does::PanicBeforeSend);
    let outcome = rig.ask_same("pay").await;
    assert_eq!(failed(&outcome).delivery, Delivery::NotSent);
    assert_eq!(code(&rig.ask_same("pay").await), "ok");
    assert_eq!(rig.backend.hits(), 1);
    assert_eq!(rig.gates.state.view().tools[0].inflight, 0);
    assert_eq!(rig.metric("checkrein_tool_calls_total", &["\"internal\""]), 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_required_callers_key_that_is_missing_is_an_invalid_request() {
    let mut keyed = pay();
    keyed.write.as_mut().expect("a write").caller_key_required = true;
    let rig = Rig::one(keyed);
    assert_eq!(code(&rig.ask_same("pay").await), "invalid_request");
    let with_key = |id: &str| {
        let mut call = rig.call("pay", &format!(r#"{{"id":"{id}"}}"#));
        call.caller_key = Some(CallerKey::new("k-1").expect("a sound key"));
        rig.send(call)
    };
    assert_eq!(code(&with_key("A").await), "ok");
    assert_eq!(with_key("A").await.expect("again").source, Source::Ledger);
    assert_eq!(code(&with_key("B").await), "idempotency_conflict");
    assert_eq!(rig.backend.hits(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_identical_later_write_is_a_new_occurrence_and_says_so() {
    let rig = Rig::one(pay());
    let first = rig.ask_same("pay").await.expect("paid");
    let second = rig.ask_same("pay").await.expect("paid again");
    assert_eq!(first.notes.identical_to, None);
    assert!(second.notes.identical_to.is_some());
    assert_eq!(rig.backend.hits(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_cannot_be_recorded_is_not_sent() {
    use checkrein::call::operation::{OperationKey, OperationScope, operation};
    use checkrein::ledger::{Begin, Intent, Ledger};
    use tower::{Layer, ServiceExt};
    let rig = Rig::one(pay());
    let mut call = rig.call("pay", "{}");
    let arguments = call.arguments().expect("sound").clone();
    let scope = OperationScope::Agent(&call.agent);
    let intent = Intent {
        operation: operation(scope, &call.tool, OperationKey::Arguments, &arguments, &[]),
        tool: call.tool.clone(),
        agent: call.agent.clone(),
        run: call.run.clone(),
        call: call.id.clone(),
        arguments,
        refuse_identical: false,
        global_scope: false,
        ttl: S,
        continues: None,
    };
    // The claim is of another ledger: this one cannot record it.
    let begun = Ledger::in_memory().begin(intent).await.expect("a claim");
    let Begin::Fresh(ticket) = begun else { panic!("{begun:?}") };
    call.handoff = Some(checkrein::call::Handoff::new(ticket));
    call.progress = Some(checkrein::call::Progress::start());
    let journal = checkrein::layers::journal::JournalLayer {
        ledger: rig.gates.ledger.clone(),
        metrics: rig.gates.metrics.tool("pay"),
    };
    let outcome = journal.layer(rig.backend.clone()).oneshot(call).await;
    assert_eq!(code(&outcome), "ledger_unavailable");
    assert_eq!(rig.backend.hits(), 0);
}

#[test]
fn settle_proves_or_does_not_know() {
    use checkrein::call::operation::{OperationKey, OperationScope, operation};
    use checkrein::layers::journal::settle;
    use checkrein::ledger::End;
    let call = checkrein::call::Arguments::parse(
        b"{}",
        checkrein::strict_json::Limits::arguments(1 << 10, 8),
    )
    .expect("sound");
    let name = super::rig::tool_name("pay");
    let key = operation(OperationScope::Global, &name, OperationKey::Arguments, &call, &[]).key;
    let deliveries = [Delivery::NotSent, Delivery::Refused, Delivery::Done, Delivery::Unknown];
    for delivery in deliveries {
        for evidence in [None, Some(Evidence::ZeroBytes), Some(Evidence::Status(422))] {
            for sent in [false, true] {
                let failed = Failed { delivery, evidence, ..status(500) };
                let (end, outcome) = settle(key, sent, Err(failed));
                assert!(!matches!(outcome, Err(CallError::Denied(_))));
                let expected = match (sent, delivery, evidence) {
                    (false, _, _) => "not executed",
                    (true, Delivery::NotSent | Delivery::Refused, Some(_)) => "not executed",
                    (true, Delivery::Done, _) => "executed",
                    (true, _, _) => "unknown",
                };
                let (ended, told) = match (&end, &outcome) {
                    (End::NotExecuted(..), Err(CallError::Failed(failed))) => (
                        "not executed",
                        matches!(failed.delivery, Delivery::NotSent | Delivery::Refused),
                    ),
                    (
                        End::Executed(None) | End::ExecutedWithError(_),
                        Err(CallError::Failed(f)),
                    ) => ("executed", f.delivery == Delivery::Done),
                    (End::Unknown(_), Err(CallError::Unknown(_))) => ("unknown", true),
                    other => panic!("{sent} {delivery:?} {evidence:?}: {other:?}"),
                };
                assert_eq!((ended, told), (expected, true), "{sent} {delivery:?} {evidence:?}");
            }
        }
    }
    let (end, outcome) = settle(key, true, Ok(answer("{}")));
    assert!(matches!(end, End::Executed(Some(_))) && outcome.is_ok());
}

/// Whatever the tool does, who asked for a write has its answer by the deadline, to the millisecond; what goes on
/// after it holds its place until the drain is over and no longer.
#[tokio::test(start_paused = true)]
async fn wall_within_deadline_for_writes_too_and_every_place_comes_back() {
    let mut rng = fastrand::Rng::with_seed(11);
    for round in 0..200 {
        let mut any = pay();
        any.timeout = checkrein::policy::snapshot::Timeouts {
            connect: rng.u32(1..4000) * MS,
            first_byte: rng.u32(1..4000) * MS,
            idle: rng.u32(1..4000) * MS,
            total: rng.u32(1..8000) * MS,
        };
        let rig = Rig::one(any);
        let after = rng.u32(0..20_000) * MS;
        rig.backend.then(match rng.u8(0..7) {
            0 => Does::Silent,
            1 => Does::Drip,
            2 => Does::ConnectStalls,
            3 => Does::Unreachable,
            4 => Does::Stall(status(422), after, Box::new(Err(status(422)))),
            5 => Does::Answer(after, "{}"),
            _ => Does::Fail(after, status(503)),
        });
        let left = rng.u32(250..15_000) * MS;
        let began = Instant::now();
        let [first, joiner] = [(); 2].map(|()| {
            let mut call = rig.call("pay", r#"{"id":"A17"}"#);
            call.deadline = began + left;
            tokio::spawn(rig.send(call))
        });
        for asked in [first, joiner] {
            let told = code(&asked.await.expect("no panic"));
            assert!(began.elapsed() <= left, "round {round}: {told} after {:?}", began.elapsed());
        }
        assert!(rig.backend.hits() <= 2, "round {round}: a joiner sends only what was never sent");
        advance(31 * S).await;
        assert_eq!(rig.gates.state.view().tools[0].inflight, 0, "round {round}");
        assert_eq!(rig.backend.running(), 0, "round {round}: nothing goes on after the drain");
    }
}
