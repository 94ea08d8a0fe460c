use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;
use crate::call::code::{DenyCode, FailCode};
use crate::call::operation::{OperationKey, OperationScope, operation};
use crate::call::pointer::Pointer;
use crate::call::{Asks, Class, Content, Delivery, Detail, Known, Notes, Source, Verdict};
use crate::store::{Place, Store};
use crate::strict_json::Limits;
use crate::telemetry::metrics::Metrics;

const DAY: Duration = Duration::from_secs(24 * 3600);

#[derive(Clone)]
struct Ask {
    agent: &'static str,
    run: &'static str,
    call: String,
    arguments: &'static str,
    fingerprint: bool,
    refuse_identical: bool,
    global: bool,
    /// It goes on with this occurrence.
    continues: Option<u32>,
}

/// A call of `create_order`, whose order_ref is its fingerprint.
fn ask(call: &str) -> Ask {
    Ask {
        agent: "a",
        run: "r1",
        call: call.to_owned(),
        arguments: r#"{"order_ref":"R1","qty":1}"#,
        fingerprint: true,
        refuse_identical: false,
        global: false,
        continues: None,
    }
}

/// The same tool without a fingerprint.
fn plain(call: &str) -> Ask {
    Ask { fingerprint: false, ..ask(call) }
}

fn intent(ask: &Ask) -> Intent {
    let tool = ToolName::new("create_order").expect("name");
    let agent = AgentId::new(ask.agent).expect("name");
    let limits = Limits::arguments(1 << 16, 32);
    let arguments = Arguments::parse(ask.arguments.as_bytes(), limits).expect("sound");
    let pointers = [Pointer::parse("/order_ref").expect("pointer")];
    let key = match ask.fingerprint {
        true => OperationKey::Fingerprint(&pointers),
        false => OperationKey::Arguments,
    };
    let scope = match ask.global {
        true => OperationScope::Global,
        false => OperationScope::Agent(&agent),
    };
    Intent {
        operation: operation(scope, &tool, key, &arguments, &[]),
        tool,
        run: RunId::new(ask.run).expect("id"),
        call: CallId::new(&ask.call).expect("id"),
        arguments,
        refuse_identical: ask.refuse_identical,
        global_scope: ask.global,
        ttl: DAY,
        continues: ask.continues,
        agent,
    }
}

fn result(text: &str) -> ToolResult {
    ToolResult {
        head: None,
        content: Content { bytes: text.to_owned().into(), form: crate::call::Form::Json },
        source: Source::Tool,
        notes: Notes::default(),
    }
}

fn failed(code: FailCode, delivery: Delivery) -> Failed {
    Failed::new(code, Class::Transient, delivery, Verdict::Bad, "it failed")
}

fn not_executed() -> End {
    let why = failed(FailCode::UpstreamUnreachable, Delivery::NotSent);
    End::NotExecuted(why, Evidence::ConnectFailed)
}

fn unknown() -> End {
    End::Unknown(failed(FailCode::UpstreamTimeout, Delivery::Unknown))
}

/// The tool wants input before it goes on.
fn asked(after_acting: bool) -> End {
    let mut question = result("?");
    question.notes.asks = Some(Asks { after_acting, ..Asks::default() });
    let why = failed(FailCode::ToolError, Delivery::Refused);
    End::Asked { result: Box::new(question), why, after_acting }
}

/// The same operation, as a call that goes on with an occurrence of it.
fn going_on(ask: Ask, occurrence: u32) -> Ask {
    Ask { continues: Some(occurrence), ..ask }
}

async fn begin(ledger: &Ledger, ask: &Ask) -> Begin {
    ledger.begin(intent(ask)).await.expect("memory does not fail")
}

async fn fresh(ledger: &Ledger, ask: &Ask) -> Ticket {
    let Begin::Fresh(ticket) = begin(ledger, ask).await else { panic!("not fresh") };
    ticket
}

async fn send(ledger: &Ledger, ask: &Ask, end: End) {
    let ticket = fresh(ledger, ask).await;
    ledger.intend(&ticket, None).await.expect("held");
    ledger.finish(ticket, end).await.expect("held");
}

async fn replayed(ledger: &Ledger, ask: &Ask) -> Result<ToolResult, CallError> {
    let Begin::Replay(answer) = begin(ledger, ask).await else { panic!("not replayed") };
    answer
}

async fn refused(ledger: &Ledger, ask: &Ask) -> Denied {
    let Begin::Refused(denied) = begin(ledger, ask).await else { panic!("not refused") };
    denied
}

/// The newest sending of an operation.
fn sent(ledger: &Ledger, key: &IdempotencyKey) -> Sending {
    let shard = ledger.book.shard(*key);
    let newest = shard.get(key).and_then(|history| history.last());
    newest
        .map_or(Sending { key: *key, occurrence: 0, claim: 0 }, |entry| rows::sending(*key, entry))
}

fn text(answer: Result<ToolResult, CallError>) -> String {
    let result = answer.expect("a result");
    assert_eq!(result.source, Source::Ledger);
    String::from_utf8(result.content.bytes.to_vec()).expect("text")
}

#[tokio::test(start_paused = true)]
async fn bb_w24_a_finished_write_with_a_fingerprint_is_replayed_in_another_run() {
    let ledger = Ledger::in_memory();
    send(&ledger, &ask("c1"), End::Executed(Some(result("7")))).await;
    let later = Ask { run: "r2", ..ask("c1") };
    assert_eq!(text(replayed(&ledger, &later).await), "7");
    assert_eq!(text(replayed(&ledger, &ask("c2")).await), "7");
}

#[tokio::test(start_paused = true)]
async fn without_a_fingerprint_the_same_call_replays_and_another_is_a_flagged_occurrence() {
    let ledger = Ledger::in_memory();
    send(&ledger, &plain("c1"), End::Executed(Some(result("1")))).await;
    assert_eq!(text(replayed(&ledger, &plain("c1")).await), "1");
    let second = fresh(&ledger, &plain("c2")).await;
    assert_eq!((second.occurrence(), second.identical_to()), (1, Some(second.key().id())));
    ledger.finish(second, End::Executed(Some(result("2")))).await.expect("held");
    assert_eq!(text(replayed(&ledger, &plain("c1")).await), "1", "each call its own end");
    assert_eq!(text(replayed(&ledger, &plain("c2")).await), "2");
    // A call id means nothing beyond its run.
    let other_run = fresh(&ledger, &Ask { run: "r2", ..plain("c1") }).await;
    assert_eq!(other_run.occurrence(), 2);
    drop(other_run);
    let strict = refused(&ledger, &Ask { refuse_identical: true, ..plain("c4") }).await;
    assert_eq!(strict.code, DenyCode::IdempotencyConflict);
}

#[tokio::test(start_paused = true)]
async fn what_was_unknown_is_told_before_the_same_may_be_asked_for_once_more() {
    for by_person in [false, true] {
        let ledger = Ledger::in_memory();
        send(&ledger, &plain("c1"), unknown()).await;
        let key = intent(&plain("c1")).operation.key;
        assert_eq!(refused(&ledger, &plain("c2")).await.code, DenyCode::ReviewRequired);
        match by_person {
            false => {
                let sending = sent(&ledger, &key);
                assert!(ledger.late(&sending, End::Executed(Some(result("late")))));
                let behind = ledger.book.store.commit(Change::Forget(Vec::new()));
                behind.await.expect("the store works");
                assert_eq!(text(replayed(&ledger, &plain("c3")).await), "late");
            }
            true => {
                let how = Resolution::Happened(None);
                ledger.resolve(&key, None, how, person()).await.expect("unknown");
                let lost = replayed(&ledger, &plain("c3")).await.expect_err("no answer is kept");
                let CallError::Failed(lost) = lost else { panic!("{lost:?}") };
                assert_eq!(lost.delivery, Delivery::Done);
            }
        }
        // Told: asked once more it is another order, and the calls that know are answered as before.
        let again = fresh(&ledger, &plain("c4")).await;
        assert_eq!((again.occurrence(), again.identical_to()), (1, Some(again.key().id())));
        drop(again);
        drop(replayed(&ledger, &plain("c3")).await);
    }
}

#[tokio::test(start_paused = true)]
async fn bb_w01_an_unknown_write_blocks_under_every_call_id_until_it_is_settled() {
    for make in [ask, plain] {
        let ledger = Ledger::in_memory();
        send(&ledger, &make("c1"), unknown()).await;
        tokio::time::advance(DAY * 365).await;
        ledger.sweep();
        for call in ["c1", "c9"] {
            let denied = refused(&ledger, &make(call)).await;
            assert_eq!(denied.code, DenyCode::ReviewRequired);
            assert!(matches!(denied.detail, Detail::Operation(_)));
        }
        let (open, oldest) = ledger.reviews_open();
        assert_eq!(open, [(intent(&make("c1")).tool, 1)]);
        assert!(oldest.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_look_claims_nothing_and_says_what_a_claim_would_have_met() {
    let ledger = Ledger::in_memory();
    let look = |ask: &Ask| ledger.peek(&intent(ask)).map(|peeked| (peeked.known, peeked.own));
    assert_eq!(look(&ask("c1")), None);
    let ticket = fresh(&ledger, &ask("c1")).await;
    assert_eq!(look(&ask("c1")), Some((Known::Running, true)), "claimed, nothing sent");
    ledger.intend(&ticket, None).await.expect("held");
    assert_eq!(look(&ask("c2")), Some((Known::Running, true)), "in flight");
    ledger.finish(ticket, not_executed()).await.expect("held");
    assert_eq!(look(&ask("c1")), None, "it provably did nothing");
    send(&ledger, &ask("c3"), unknown()).await;
    let changed = Ask { arguments: r#"{"order_ref":"R1","qty":2}"#, ..ask("c4") };
    for other in [ask("c4"), changed.clone(), Ask { run: "r2", ..ask("c1") }] {
        assert_eq!(look(&other), Some((Known::Unknown, true)));
    }
    let key = intent(&ask("c1")).operation.key;
    assert!(ledger.late(&sent(&ledger, &key), End::Executed(Some(result("7")))));
    assert_eq!(look(&ask("c5")), Some((Known::Executed, true)));
    assert_eq!(look(&changed), None, "what it asks for was not done");
    assert_eq!(text(replayed(&ledger, &ask("c6")).await), "7", "as the look said");
    // Without a fingerprint: the call itself was done, another one is one of its own.
    send(&ledger, &plain("p1"), End::Executed(Some(result("8")))).await;
    assert_eq!(look(&plain("p1")), Some((Known::Executed, true)));
    let refusing = Ask { refuse_identical: true, ..plain("p2") };
    assert_eq!(look(&plain("p2")), Some((Known::Identical, true)));
    assert_eq!(look(&refusing), Some((Known::Identical, true)));
    // Shared by all agents: done, or in doubt, by another one.
    let shared = |agent, call: &str| Ask { agent, global: true, ..ask(call) };
    send(&ledger, &shared("a", "g1"), End::Executed(Some(result("9")))).await;
    assert_eq!(look(&shared("b", "g2")), Some((Known::Executed, false)));
    tokio::time::advance(DAY + Duration::from_secs(1)).await;
    assert_eq!(look(&ask("c7")), None, "past its time");
    drop(fresh(&ledger, &ask("c7")).await);
}

#[tokio::test(start_paused = true)]
async fn bb_w28_a_late_answer_settles_an_unknown_write_once_and_is_then_replayed() {
    let ledger = Ledger::in_memory();
    let key = intent(&ask("c1")).operation.key;
    assert!(!ledger.late(&sent(&ledger, &key), not_executed()), "nothing is known of it");
    send(&ledger, &ask("c1"), unknown()).await;
    let key = sent(&ledger, &key);
    assert!(!ledger.late(&key, unknown()), "unknown settles nothing");
    assert!(ledger.late(&key, End::Executed(Some(result("201")))));
    assert!(!ledger.late(&key, not_executed()), "it has ended");
    assert_eq!(text(replayed(&ledger, &ask("c1")).await), "201");
    assert!(ledger.reviews_open().0.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_late_refusal_frees_the_operation_and_replays_to_its_own_call() {
    let ledger = Ledger::in_memory();
    send(&ledger, &ask("c1"), unknown()).await;
    let sent = sent(&ledger, &intent(&ask("c1")).operation.key);
    assert!(ledger.late(&sent, not_executed()));
    let own = replayed(&ledger, &ask("c1")).await.expect_err("its failure");
    assert_eq!(own.code(), "upstream_unreachable");
    let again = fresh(&ledger, &ask("c2")).await;
    assert_eq!((again.occurrence(), again.identical_to()), (0, None));
}

#[tokio::test(start_paused = true)]
async fn bb_w14_other_arguments_under_one_fingerprint_conflict_and_name_what_changed() {
    let ledger = Ledger::in_memory();
    let other = Ask { arguments: r#"{"order_ref":"R1","qty":2,"note":"x"}"#, ..ask("c2") };
    let ticket = fresh(&ledger, &ask("c1")).await;
    let in_flight = refused(&ledger, &other).await;
    ledger.finish(ticket, End::Executed(Some(result("7")))).await.expect("held");
    let done = refused(&ledger, &other).await;
    let same_call = refused(&ledger, &Ask { call: "c1".to_owned(), ..other }).await;
    for denied in [in_flight, done, same_call] {
        assert_eq!(denied.code, DenyCode::IdempotencyConflict);
        let Detail::Changed { pointers, executed: false } = denied.detail else {
            panic!("no pointers")
        };
        assert_eq!(pointers, ["/qty", "/note"]);
    }
    assert_eq!(text(replayed(&ledger, &ask("c3")).await), "7", "the first result stays");
}

#[tokio::test(start_paused = true)]
async fn bb_w19_what_did_not_happen_binds_no_arguments() {
    let ledger = Ledger::in_memory();
    send(&ledger, &ask("c1"), not_executed()).await;
    let other = Ask { arguments: r#"{"order_ref":"R1","qty":2}"#, ..ask("c2") };
    send(&ledger, &other, End::Executed(Some(result("2")))).await;
    assert_eq!(text(replayed(&ledger, &Ask { call: "c3".to_owned(), ..other }).await), "2");
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_attempt_failed_is_not_told_so_once_another_attempt_is_unknown() {
    let ledger = Ledger::in_memory();
    send(&ledger, &ask("c1"), not_executed()).await;
    send(&ledger, &ask("c2"), unknown()).await;
    assert_eq!(refused(&ledger, &ask("c1")).await.code, DenyCode::ReviewRequired);
}

#[tokio::test(start_paused = true)]
async fn bb_w10_fifty_at_once_share_one_end() {
    let ledger = Ledger::in_memory();
    let ticket = fresh(&ledger, &ask("c0")).await;
    let until = Instant::now() + Duration::from_secs(5);
    let mut waiting = tokio::task::JoinSet::new();
    for n in 1..50 {
        let Begin::InProgress(join) = begin(&ledger, &ask(&format!("c{n}"))).await else {
            panic!("does not join")
        };
        waiting.spawn(join.wait(until));
    }
    ledger.intend(&ticket, None).await.expect("held");
    ledger.finish(ticket, End::Executed(Some(result("7")))).await.expect("held");
    let answers = waiting.join_all().await;
    assert_eq!(answers.len(), 49);
    for answer in answers {
        assert_eq!(text(answer), "7");
    }
    // Those who joined have that end under their own ids.
    assert_eq!(text(replayed(&ledger, &ask("c17")).await), "7");
}

#[tokio::test(start_paused = true)]
async fn a_joiner_waits_to_its_own_deadline_and_no_longer() {
    let ledger = Ledger::in_memory();
    let _ticket = fresh(&ledger, &ask("c1")).await;
    let began = Instant::now();
    let Begin::InProgress(join) = begin(&ledger, &ask("c2")).await else { panic!("joins") };
    let late = join.wait(began + Duration::from_secs(2)).await.expect_err("still running");
    assert_eq!((late.code(), began.elapsed()), ("in_progress", Duration::from_secs(2)));
}

#[tokio::test(start_paused = true)]
async fn a_ticket_dropped_unsent_frees_the_operation_and_wakes_who_waits() {
    let ledger = Ledger::in_memory();
    let until = Instant::now() + Duration::from_secs(60);
    let ticket = fresh(&ledger, &ask("c1")).await;
    let Begin::InProgress(join) = begin(&ledger, &ask("c2")).await else { panic!("joins") };
    drop(ticket);
    assert!(matches!(join.end(until).await, Joined::Free));
    assert_eq!(ledger.book.entries(), 0, "nothing of it is left");
    drop(fresh(&ledger, &ask("c2")).await);
}

#[tokio::test(start_paused = true)]
async fn a_ticket_dropped_after_its_intent_leaves_an_unknown_write() {
    let ledger = Ledger::in_memory();
    let until = Instant::now() + Duration::from_secs(60);
    let ticket = fresh(&ledger, &ask("c1")).await;
    ledger.intend(&ticket, None).await.expect("held");
    let Begin::InProgress(join) = begin(&ledger, &ask("c2")).await else { panic!("joins") };
    drop(ticket);
    assert_eq!(join.wait(until).await.expect_err("unknown").code(), "outcome_unknown");
    assert_eq!(refused(&ledger, &ask("c3")).await.code, DenyCode::ReviewRequired);
}

#[tokio::test(start_paused = true)]
async fn an_error_the_tool_answered_with_is_an_end_like_any_other() {
    let ledger = Ledger::in_memory();
    let why = failed(FailCode::ToolError, Delivery::Done);
    send(&ledger, &ask("c1"), End::ExecutedWithError(why)).await;
    assert_eq!(replayed(&ledger, &ask("c2")).await.expect_err("it").code(), "tool_error");
}

#[tokio::test(start_paused = true)]
async fn an_evicted_result_is_lost_and_its_write_is_not_sent_again() {
    let ledger = Ledger::bounded(100, 2000);
    let big = "x".repeat(1500);
    send(&ledger, &ask("c1"), End::Executed(Some(result(&big)))).await;
    let other = Ask { arguments: r#"{"order_ref":"R2"}"#, ..ask("c2") };
    send(&ledger, &other, End::Executed(Some(result(&big)))).await;
    ledger.book.settle_recent();
    assert_eq!(text(replayed(&ledger, &other).await), big, "the newest is kept");
    let lost = replayed(&ledger, &ask("c1")).await.expect_err("lost");
    assert_eq!(lost.code(), "result_lost");
    assert_eq!(crate::call::judge::executed(&lost), crate::call::code::Executed::Yes);
}

#[tokio::test(start_paused = true)]
async fn finished_entries_end_with_their_ttl_by_the_paused_clock() {
    let ledger = Ledger::in_memory();
    send(&ledger, &ask("c1"), End::Executed(Some(result("7")))).await;
    tokio::time::advance(DAY - Duration::from_secs(1)).await;
    ledger.sweep();
    assert_eq!(text(replayed(&ledger, &ask("c1")).await), "7");
    tokio::time::advance(Duration::from_secs(1)).await;
    // Past its time it does not answer, swept or not.
    drop(fresh(&ledger, &ask("c1")).await);
    ledger.sweep();
    assert_eq!(ledger.book.entries(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_full_ledger_refuses_new_writes_and_forgets_none() {
    let ledger = Ledger::bounded(2, 1 << 20);
    send(&ledger, &ask("c1"), unknown()).await;
    let second = Ask { arguments: r#"{"order_ref":"R2"}"#, ..ask("c2") };
    let third = Ask { arguments: r#"{"order_ref":"R3"}"#, ..ask("c3") };
    send(&ledger, &second, End::Executed(None)).await;
    assert!(!ledger.writable());
    let denied = refused(&ledger, &third).await;
    assert_eq!(denied.code, DenyCode::LedgerUnavailable);
    assert!(denied.retry_after.is_some());
    assert_eq!(refused(&ledger, &ask("c9")).await.code, DenyCode::ReviewRequired);
    tokio::time::advance(DAY).await;
    ledger.sweep();
    drop(fresh(&ledger, &third).await);
    assert_eq!(ledger.book.entries(), 1, "the unknown one stays");
}

#[tokio::test(start_paused = true)]
async fn bb_w16_another_agent_learns_that_it_was_done_and_not_what_came_of_it() {
    let ledger = Ledger::in_memory();
    let first = Ask { global: true, ..ask("c1") };
    let second = Ask { agent: "b", run: "r2", ..first.clone() };
    let ticket = fresh(&ledger, &first).await;
    assert_eq!(refused(&ledger, &second).await.code, DenyCode::InProgress);
    ledger.finish(ticket, End::Executed(Some(result("secret")))).await.expect("held");
    let denied = refused(&ledger, &second).await;
    assert_eq!(denied.code, DenyCode::IdempotencyConflict);
    assert!(matches!(denied.detail, Detail::Changed { executed: true, .. }));
    assert!(!format!("{denied:?}").contains("secret"));
    // Without the scope they are two operations.
    drop(fresh(&ledger, &Ask { global: false, ..second }).await);
}

#[tokio::test(start_paused = true)]
async fn an_operation_meant_again_and_again_keeps_a_bounded_history() {
    let ledger = Ledger::in_memory();
    for n in 0..entry::MAX_OCCURRENCES + 5 {
        send(&ledger, &plain(&format!("c{n}")), End::Executed(None)).await;
    }
    assert_eq!(ledger.book.entries(), entry::MAX_OCCURRENCES);
}

#[tokio::test(start_paused = true)]
async fn bb_w18_a_key_is_of_the_operation_and_its_occurrence_and_of_nothing_else() {
    let secret = Secret::from_bytes(&[7; 32]);
    let first = intent(&ask("c1")).operation.key;
    let again = intent(&Ask { run: "r2", ..ask("c9") }).operation.key;
    let other = intent(&Ask { arguments: r#"{"order_ref":"R2"}"#, ..ask("c1") }).operation.key;
    let key = secret.key(&first, 0);
    assert_eq!(key, secret.key(&again, 0), "whatever call and run");
    assert_eq!(key, Secret::from_bytes(&[7; 32]).key(&first, 0), "after a restart with its secret");
    assert_ne!(key, secret.key(&first, 1));
    assert_ne!(key, secret.key(&other, 0));
    assert_ne!(key, Secret::from_bytes(&[8; 32]).key(&first, 0));
    assert_eq!(key.as_str().len(), 43);
    assert!(key.as_str().bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)));
    assert!(!format!("{key:?}").contains(key.as_str()));
    let ledger = Ledger::in_memory();
    assert_eq!(ledger.derived_key(&first, 3), ledger.derived_key(&first, 3));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_goes_on_is_the_same_occurrence_and_is_answered_once_it_is_done() {
    for make in [ask, plain] {
        let ledger = Ledger::in_memory();
        send(&ledger, &make("c1"), asked(false)).await;
        assert_eq!(ledger.reviews_open().0.len(), 0);
        assert!(ledger.peek(&intent(&make("c9"))).is_none(), "it has not happened");
        let goes_on = going_on(make("c2"), 0);
        let ticket = fresh(&ledger, &goes_on).await;
        assert_eq!((ticket.occurrence(), ticket.identical_to()), (0, None));
        drop(ticket);
        send(&ledger, &going_on(make("c3"), 0), asked(false)).await;
        send(&ledger, &going_on(make("c4"), 0), End::Executed(Some(result("7")))).await;
        // Given back again, from whatever round: the answer, and nothing is sent.
        for call in ["c5", "c2", "c4"] {
            assert_eq!(text(replayed(&ledger, &going_on(make(call), 0)).await), "7");
        }
        let other = refused(&ledger, &going_on(make("c6"), 1)).await;
        assert_eq!(other.code, DenyCode::InvalidRequest, "there is no such occurrence");
    }
}

#[tokio::test(start_paused = true)]
async fn a_fresh_call_may_start_over_and_then_the_old_question_is_answered_from_the_ledger() {
    let ledger = Ledger::in_memory();
    send(&ledger, &plain("c1"), asked(false)).await;
    send(&ledger, &plain("c2"), End::Executed(Some(result("1")))).await;
    assert_eq!(text(replayed(&ledger, &going_on(plain("c3"), 0)).await), "1");
    // An identical one later is another occurrence, with a question of its own.
    send(&ledger, &plain("c4"), asked(false)).await;
    send(&ledger, &going_on(plain("c5"), 1), End::Executed(Some(result("2")))).await;
    assert_eq!(text(replayed(&ledger, &going_on(plain("c6"), 0)).await), "1");
    assert_eq!(text(replayed(&ledger, &going_on(plain("c7"), 1)).await), "2");
}

#[tokio::test(start_paused = true)]
async fn two_that_go_on_at_once_are_one_and_a_lost_one_blocks_the_next() {
    let ledger = Ledger::in_memory();
    send(&ledger, &ask("c1"), asked(false)).await;
    let ticket = fresh(&ledger, &going_on(ask("c2"), 0)).await;
    let begun = begin(&ledger, &going_on(ask("c3"), 0)).await;
    let Begin::InProgress(join) = begun else { panic!("{begun:?}") };
    ledger.intend(&ticket, None).await.expect("held");
    ledger.finish(ticket, unknown()).await.expect("held");
    let joined = join.wait(Instant::now() + DAY).await;
    assert!(matches!(joined, Err(CallError::Unknown(_))), "{joined:?}");
    for call in ["c2", "c3", "c4"] {
        let denied = refused(&ledger, &going_on(ask(call), 0)).await;
        assert_eq!(denied.code, DenyCode::ReviewRequired);
    }
}

#[tokio::test(start_paused = true)]
async fn where_a_tool_acts_before_it_asks_only_the_call_that_goes_on_gets_through() {
    let ledger = Ledger::in_memory();
    send(&ledger, &ask("c1"), asked(true)).await;
    assert_eq!(ledger.reviews_open().0.len(), 1);
    for call in ["c1", "c2"] {
        assert_eq!(refused(&ledger, &ask(call)).await.code, DenyCode::ReviewRequired);
    }
    let other = Ask { agent: "b", global: true, ..ask("c2") };
    assert!(!matches!(begin(&ledger, &going_on(other, 0)).await, Begin::Replay(_)));
    let goes_on = going_on(ask("c3"), 0);
    let known = ledger.peek(&intent(&goes_on)).map(|peeked| peeked.known);
    assert_eq!(known, Some(Known::Unknown));
    let seen = ledger.reviews(1).remove(0).version;
    // Refused on its way, or provably not sent: as unknown as before, and it may go on again.
    drop(fresh(&ledger, &goes_on).await);
    send(&ledger, &going_on(ask("c4"), 0), not_executed()).await;
    assert_eq!(refused(&ledger, &ask("c5")).await.code, DenyCode::ReviewRequired);
    send(&ledger, &going_on(ask("c6"), 0), asked(true)).await;
    let now = ledger.reviews(1).remove(0).version;
    assert_ne!(seen, now, "a person who saw it before has not seen this");
    send(&ledger, &going_on(ask("c7"), 0), End::Executed(Some(result("7")))).await;
    assert_eq!(ledger.reviews_open().0.len(), 0);
    assert_eq!(text(replayed(&ledger, &ask("c8")).await), "7");
    assert_eq!(text(replayed(&ledger, &going_on(ask("c9"), 0)).await), "7");
}

/// What may happen to two operations, one with a fingerprint and one without.
#[derive(Debug, Clone)]
enum Step {
    Ask { plain: bool, call: u8 },
    GoOn { plain: bool, call: u8, occurrence: u8 },
    Intend { nth: u8 },
    Finish { nth: u8, end: u8 },
    Drop { nth: u8 },
    Late { plain: bool, end: u8 },
    Sweep,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (any::<bool>(), 0..6_u8).prop_map(|(plain, call)| Step::Ask { plain, call }),
        3 => (any::<bool>(), 6..9_u8, 0..3_u8).prop_map(|(plain, call, occurrence)| {
            Step::GoOn { plain, call, occurrence }
        }),
        3 => any::<u8>().prop_map(|nth| Step::Intend { nth }),
        4 => (any::<u8>(), 0..7_u8).prop_map(|(nth, end)| Step::Finish { nth, end }),
        1 => any::<u8>().prop_map(|nth| Step::Drop { nth }),
        1 => (any::<bool>(), 0..7_u8).prop_map(|(plain, end)| Step::Late { plain, end }),
        1 => Just(Step::Sweep),
    ];
    proptest::collection::vec(step, 1..60)
}

fn end_of(number: u8) -> End {
    match number {
        0 => End::Executed(Some(result("7"))),
        1 => End::Executed(None),
        2 => End::ExecutedWithError(failed(FailCode::ToolError, Delivery::Done)),
        3 => not_executed(),
        5 => asked(false),
        6 => asked(true),
        _ => unknown(),
    }
}

/// All that is worth knowing about one operation.
#[derive(Debug, Default)]
struct Model {
    active: bool,
    unknown: bool,
    /// The occurrence that may have happened waits for input.
    asked: bool,
    executed: bool,
    /// Calls that have an end of their own.
    done: HashSet<u8>,
    /// Calls that wait on the active one.
    waiting: HashSet<u8>,
    /// Occurrences that may have had an effect.
    effects: HashSet<u32>,
}

struct Held {
    ticket: Ticket,
    plain: bool,
    intended: bool,
    /// What it goes on with may have happened before it was asked: the calls that waited then.
    was_asked: Option<HashSet<u8>>,
}

impl Model {
    /// What was to go on did not: it is as unknown as it was.
    fn asked_again(&mut self, occurrence: u32, waiting: HashSet<u8>) {
        self.ended(occurrence, &asked(true));
        self.waiting = waiting;
    }

    fn ended(&mut self, occurrence: u32, end: &End) {
        self.active = false;
        let ended = std::mem::take(&mut self.waiting);
        match end {
            End::NotExecuted(..) | End::Asked { after_acting: false, .. } => {}
            End::Executed(_) | End::ExecutedWithError(_) => {
                assert!(self.effects.insert(occurrence), "two effects of one occurrence");
                self.executed = true;
                self.done.extend(ended);
            }
            End::Unknown(_) | End::Asked { after_acting: true, .. } => {
                assert!(self.effects.insert(occurrence), "two effects of one occurrence");
                self.unknown = true;
                self.asked = matches!(end, End::Asked { .. });
                self.waiting = ended;
            }
        }
    }
}

async fn play(ledger: Arc<Ledger>, steps: Vec<Step>) {
    let mut models: HashMap<bool, Model> =
        HashMap::from([(true, Model::default()), (false, Model::default())]);
    let mut held: Vec<Held> = Vec::new();
    let make = |is_plain: bool, call: u8| match is_plain {
        true => plain(&format!("c{call}")),
        false => ask(&format!("c{call}")),
    };
    for step in steps {
        match step {
            Step::Ask { plain, call } => {
                let model = models.get_mut(&plain).expect("both are there");
                match begin(&ledger, &make(plain, call)).await {
                    Begin::Fresh(ticket) => {
                        assert!(!model.active, "two rights to send one operation");
                        assert!(!model.unknown, "unknown became retryable");
                        assert!(plain || !model.executed, "a finished operation is sent again");
                        assert!(!model.done.contains(&call), "a finished call is sent again");
                        assert!(!model.effects.contains(&ticket.occurrence()));
                        model.active = true;
                        model.waiting.insert(call);
                        held.push(Held { ticket, plain, intended: false, was_asked: None });
                    }
                    Begin::InProgress(_) => {
                        assert!(model.active && !model.done.contains(&call));
                        model.waiting.insert(call);
                    }
                    Begin::Replay(answer) => {
                        assert!(!model.active || model.done.contains(&call));
                        let happened = match &answer {
                            Ok(_) => true,
                            Err(CallError::Failed(failed)) => failed.delivery == Delivery::Done,
                            Err(_) => false,
                        };
                        if happened {
                            // It knows now, and is answered like this from here on.
                            model.done.insert(call);
                        }
                    }
                    Begin::Refused(denied) => {
                        assert_eq!(denied.code, DenyCode::ReviewRequired);
                        assert!(model.unknown && !model.done.contains(&call));
                    }
                }
            }
            Step::GoOn { plain, call, occurrence } => {
                let model = models.get_mut(&plain).expect("both are there");
                let occurrence = u32::from(occurrence);
                match begin(&ledger, &going_on(make(plain, call), occurrence)).await {
                    Begin::Fresh(ticket) => {
                        assert!(!model.active, "two rights to send one operation");
                        assert_eq!(ticket.occurrence(), occurrence, "it is that one or none");
                        let was_asked = model.unknown;
                        assert_eq!(ticket.may_have_happened(), was_asked);
                        assert!(!was_asked || model.asked, "unknown became retryable");
                        // What may have happened is there already: it goes on, and is not another effect.
                        assert_eq!(model.effects.remove(&occurrence), was_asked);
                        (model.unknown, model.active) = (false, true);
                        let was_asked = was_asked.then(|| model.waiting.clone());
                        model.waiting.insert(call);
                        held.push(Held { ticket, plain, intended: false, was_asked });
                    }
                    Begin::InProgress(_) => {
                        assert!(model.active);
                        model.waiting.insert(call);
                    }
                    // What it goes on with has ended, under whatever call.
                    Begin::Replay(_) => assert!(model.effects.contains(&occurrence)),
                    Begin::Refused(denied) if denied.code == DenyCode::ReviewRequired => {
                        assert!(model.unknown && !model.asked);
                    }
                    Begin::Refused(denied) => assert_eq!(denied.code, DenyCode::InvalidRequest),
                }
            }
            Step::Intend { nth } => {
                let count = held.len();
                if let Some(one) = held.get_mut(usize::from(nth) % count.max(1)) {
                    ledger.intend(&one.ticket, None).await.expect("held");
                    one.intended = true;
                }
            }
            Step::Finish { nth, end } if !held.is_empty() => {
                let Held { ticket, plain, was_asked, .. } =
                    held.swap_remove(usize::from(nth) % held.len());
                let end = end_of(end);
                let model = models.get_mut(&plain).expect("both are there");
                let nothing =
                    matches!(end, End::NotExecuted(..) | End::Asked { after_acting: false, .. });
                match was_asked.filter(|_| nothing) {
                    Some(waiting) => model.asked_again(ticket.occurrence(), waiting),
                    None => model.ended(ticket.occurrence(), &end),
                }
                ledger.finish(ticket, end).await.expect("held");
            }
            Step::Drop { nth } if !held.is_empty() => {
                let Held { ticket, plain, intended, was_asked } =
                    held.swap_remove(usize::from(nth) % held.len());
                let model = models.get_mut(&plain).expect("both are there");
                if intended {
                    model.ended(ticket.occurrence(), &unknown());
                } else if let Some(waiting) = was_asked {
                    model.asked_again(ticket.occurrence(), waiting);
                } else {
                    model.active = false;
                    model.waiting.clear();
                }
            }
            Step::Finish { .. } | Step::Drop { .. } => {}
            Step::Late { plain, end } => {
                let model = models.get_mut(&plain).expect("both are there");
                let end = end_of(end);
                let settles = model.unknown
                    && !matches!(end, End::Unknown(_) | End::Asked { after_acting: true, .. });
                let key = intent(&make(plain, 0)).operation.key;
                assert_eq!(ledger.late(&sent(&ledger, &key), end.clone()), settles);
                // A late answer counts once it is on record: after all that was handed in before.
                let behind = ledger.book.store.commit(Change::Forget(Vec::new()));
                behind.await.expect("the store works");
                if settles {
                    model.unknown = false;
                    let ended = std::mem::take(&mut model.waiting);
                    if matches!(end, End::NotExecuted(..) | End::Asked { .. }) {
                        let latest = model.effects.iter().max().copied();
                        latest.map(|occurrence| model.effects.remove(&occurrence));
                    } else {
                        model.executed = true;
                        model.done.extend(ended);
                    }
                }
            }
            Step::Sweep => ledger.sweep(),
        }
    }
    let open: u64 = ledger.reviews_open().0.iter().map(|(_, count)| count).sum();
    assert_eq!(open, models.values().filter(|model| model.unknown).count() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]
    #[test]
    fn any_interleaving_has_one_effect_an_occurrence_one_end_an_entry_and_no_way_out_of_unknown(
        steps in steps()
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(play(Ledger::in_memory(), steps));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..Default::default() })]
    #[test]
    fn any_interleaving_over_the_file_keeps_the_same_promises_and_the_file_says_the_same(
        steps in steps()
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let folder = tempfile::tempdir().expect("a folder");
            let ledger = durable(folder.path()).await;
            play(ledger.clone(), steps).await;
            let before = standings(&ledger);
            let ledger = restarted(ledger, folder.path()).await;
            assert_eq!(standings(&ledger), before);
            ledger.close().await;
        });
    }
}

/// Every occurrence of both operations that is on record.
fn standings(ledger: &Ledger) -> Vec<(u32, &'static str)> {
    let mut all = Vec::new();
    for ask in [ask("c"), plain("c")] {
        let operation = intent(&ask).operation.key.id().to_string();
        let mut found: Vec<_> = ledger
            .find(&operation)
            .iter()
            .filter(|view| view.standing != Standing::Claimed)
            .map(|view| (view.occurrence, view.standing.as_str()))
            .collect();
        found.sort_unstable();
        all.extend(found);
    }
    all
}

// ── over a store that outlives the ledger ──────────────────────────────────────────────────────────────────────

fn place(folder: &std::path::Path) -> Place {
    Place { folder: folder.to_owned(), max_bytes: 64 << 20 }
}

async fn durable(folder: &std::path::Path) -> Arc<Ledger> {
    let (store, rows) = Store::open(&place(folder), Metrics::new()).expect("it opens");
    Ledger::over(store, rows).await
}

/// As after a tidy end and a new start.
async fn restarted(ledger: Arc<Ledger>, folder: &std::path::Path) -> Arc<Ledger> {
    ledger.close().await;
    durable(folder).await
}

fn person() -> super::Verdict {
    super::Verdict {
        who: "ops@example.org".into(),
        why: "seen at the bank".into(),
        evidence: "T-1".into(),
    }
}

fn order(n: &str, call: &str) -> Ask {
    let text = format!(r#"{{"order_ref":"{n}","qty":1}}"#);
    Ask { arguments: Box::leak(text.into_boxed_str()), ..ask(call) }
}

#[tokio::test]
async fn what_a_crash_leaves_of_a_call_that_was_asked_or_went_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = durable(folder.path()).await;
    send(&ledger, &order("1", "c1"), asked(false)).await;
    send(&ledger, &order("2", "c1"), asked(true)).await;
    send(&ledger, &order("3", "c1"), asked(false)).await;
    send(&ledger, &order("4", "c1"), asked(true)).await;
    let mut held = Vec::new();
    for n in ["3", "4"] {
        let ticket = fresh(&ledger, &going_on(order(n, "c2"), 0)).await;
        ledger.intend(&ticket, None).await.expect("held");
        held.push(ticket);
    }
    // The process ends here: no ticket is dropped, no end is written.
    held.into_iter().for_each(std::mem::forget);
    let ledger = restarted(ledger, folder.path()).await;
    // Asked and never gone on with: it may begin anew. Its state died with the process that sealed it.
    let ticket = fresh(&ledger, &order("1", "c3")).await;
    assert_eq!(ticket.occurrence(), 0);
    for n in ["2", "3", "4"] {
        for again in [order(n, "c3"), going_on(order(n, "c3"), 0)] {
            assert_eq!(refused(&ledger, &again).await.code, DenyCode::ReviewRequired, "{n}");
        }
    }
    let open: u64 = ledger.reviews_open().0.iter().map(|(_, count)| count).sum();
    assert_eq!(open, 3);
}

#[tokio::test]
async fn idem_01_ends_outlive_a_restart_each_with_its_own_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = durable(folder.path()).await;
    send(&ledger, &order("yes", "c1"), End::Executed(Some(result("7")))).await;
    send(&ledger, &order("no", "c1"), not_executed()).await;
    send(&ledger, &order("lost", "c1"), End::Executed(None)).await;
    let why = failed(FailCode::ToolError, Delivery::Done);
    send(&ledger, &order("error", "c1"), End::ExecutedWithError(why)).await;
    send(&ledger, &order("?", "c1"), unknown()).await;
    let ledger = restarted(ledger, folder.path()).await;
    assert_eq!(text(replayed(&ledger, &order("yes", "c9")).await), "7");
    assert_eq!(text(replayed(&ledger, &order("yes", "c9")).await), "7", "now from memory");
    let failure = async |n: &str| replayed(&ledger, &order(n, "c1")).await.expect_err("it");
    assert_eq!(failure("no").await.code(), "upstream_unreachable");
    assert_eq!(failure("lost").await.code(), "result_lost");
    assert_eq!(failure("error").await.code(), "tool_error");
    assert_eq!(refused(&ledger, &order("?", "c9")).await.code, DenyCode::ReviewRequired);
    drop(fresh(&ledger, &order("no", "c2")).await);
    let other = Ask { arguments: r#"{"order_ref":"yes","qty":2}"#, ..ask("c3") };
    let Detail::Changed { pointers, .. } = refused(&ledger, &other).await.detail else {
        panic!("no pointers")
    };
    assert_eq!(pointers, ["/qty"], "the first arguments are kept");
    ledger.close().await;
}

#[tokio::test]
async fn bb_w18_the_key_a_tool_is_sent_is_the_same_after_a_restart_and_another_in_another_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let operation = intent(&ask("c1")).operation.key;
    let ledger = durable(folder.path()).await;
    send(&ledger, &ask("c1"), unknown()).await;
    let sent = ledger.derived_key(&operation, 0);
    let ledger = restarted(ledger, folder.path()).await;
    assert_eq!(ledger.derived_key(&operation, 0), sent, "what is sent again is recognised");
    let unsettled = ledger.book.unsettled(operation).expect("still unknown");
    assert_eq!(unsettled.sending.occurrence, 0, "the key is asked for by the same occurrence");
    let other = tempfile::tempdir().expect("a folder");
    let another = durable(other.path()).await;
    assert_ne!(another.derived_key(&operation, 0), sent);
    assert_ne!(Ledger::in_memory().derived_key(&operation, 0), sent);
    let file = std::fs::read(folder.path().join("secret")).expect("the secret");
    assert_eq!(Secret::from_bytes(&file).key(&operation, 0), sent, "of what is in the file");
    another.close().await;
    ledger.close().await;
}

#[tokio::test]
async fn a_write_without_an_end_is_dated_by_its_sending_however_often_the_process_starts() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = durable(folder.path()).await;
    let key = intent(&ask("c1")).operation.key;
    let ticket = fresh(&ledger, &ask("c1")).await;
    ledger.intend(&ticket, None).await.expect("on record");
    // Its process ends before it does.
    std::mem::forget(ticket);
    let ledger = restarted(ledger, folder.path()).await;
    let first = ledger.book.unsettled(key).expect("unknown").since;
    let ledger = restarted(ledger, folder.path()).await;
    assert_eq!(ledger.book.unsettled(key).expect("unknown").since, first);
    ledger.close().await;
}

#[tokio::test]
async fn what_the_gateway_settles_itself_is_told_once_it_is_on_record() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = durable(folder.path()).await;
    let key = |n: &str| intent(&order(n, "c1")).operation.key;
    send(&ledger, &order("again", "c1"), unknown()).await;
    send(&ledger, &order("closed", "c1"), unknown()).await;
    let executed = End::Executed(Some(result("201")));
    let sending = |n: &str| sent(&ledger, &key(n));
    assert!(ledger.book.upgrade(sending("again"), &executed, "resend").await);
    assert_eq!(text(replayed(&ledger, &order("again", "c2")).await), "201", "at once");
    assert!(!ledger.book.upgrade(sending("again"), &not_executed(), "status_query").await, "ended");
    ledger.close().await;
    assert!(!ledger.book.upgrade(sending("closed"), &executed, "resend").await, "not on record");
    assert!(ledger.book.unsettled(key("closed")).is_some());
    drop(ledger);
    let ledger = durable(folder.path()).await;
    assert_eq!(text(replayed(&ledger, &order("again", "c3")).await), "201");
    let still = refused(&ledger, &order("closed", "c3")).await;
    assert_eq!(still.code, DenyCode::ReviewRequired);
    ledger.close().await;
}

#[tokio::test]
async fn occurrences_are_counted_on_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = durable(folder.path()).await;
    send(&ledger, &plain("c1"), End::Executed(Some(result("1")))).await;
    send(&ledger, &plain("c2"), End::Executed(Some(result("2")))).await;
    let ledger = restarted(ledger, folder.path()).await;
    assert_eq!(text(replayed(&ledger, &plain("c1")).await), "1");
    assert_eq!(text(replayed(&ledger, &plain("c2")).await), "2");
    let third = fresh(&ledger, &plain("c3")).await;
    assert_eq!((third.occurrence(), third.identical_to()), (2, Some(third.key().id())));
    drop(third);
    ledger.close().await;
}

#[tokio::test]
async fn an_intent_without_an_end_is_unknown_after_a_restart_and_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = durable(folder.path()).await;
    let ticket = fresh(&ledger, &ask("c1")).await;
    ledger.intend(&ticket, None).await.expect("recorded");
    let claimed = fresh(&ledger, &order("unsent", "c1")).await;
    ledger.close().await; // as far as the store hears, the process ends here
    drop((ticket, claimed));
    let ledger = durable(folder.path()).await;
    assert_eq!(refused(&ledger, &ask("c1")).await.code, DenyCode::ReviewRequired);
    let reviews = ledger.reviews(10);
    assert_eq!((reviews.len(), reviews[0].why.as_deref()), (1, Some("crash")));
    assert_eq!(ledger.find(&reviews[0].operation.to_string()).len(), 1);
    drop(fresh(&ledger, &order("unsent", "c1")).await);
    ledger.close().await;
}

#[tokio::test]
async fn who_joined_a_write_has_its_end_after_a_restart_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = durable(folder.path()).await;
    let ticket = fresh(&ledger, &plain("c1")).await;
    ledger.intend(&ticket, None).await.expect("recorded");
    let Begin::InProgress(join) = begin(&ledger, &plain("c2")).await else { panic!("joins") };
    ledger.finish(ticket, End::Executed(Some(result("7")))).await.expect("recorded");
    assert_eq!(text(join.wait(Instant::now() + DAY).await), "7");
    let ledger = restarted(ledger, folder.path()).await;
    assert_eq!(text(replayed(&ledger, &plain("c2")).await), "7");
    ledger.close().await;
}

#[tokio::test]
async fn a_persons_word_settles_an_unknown_write_for_good() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut ledger = durable(folder.path()).await;
    for n in ["happened", "told", "not", "undone"] {
        send(&ledger, &order(n, "c1"), unknown()).await;
    }
    let key = |n: &str| intent(&order(n, "c1")).operation.key;
    let settle =
        async |n: &str, how: Resolution| ledger.resolve(&key(n), None, how, person()).await;
    settle("happened", Resolution::Happened(None)).await.expect("recorded");
    settle("told", Resolution::Happened(Some(result("9")))).await.expect("recorded");
    settle("not", Resolution::DidNotHappen).await.expect("recorded");
    settle("undone", Resolution::Compensated).await.expect("recorded");
    let twice = settle("not", Resolution::Compensated).await;
    assert_eq!(twice, Err(ResolveError::NotUnknown));
    assert_eq!(settle("nothing", Resolution::DidNotHappen).await, Err(ResolveError::NotFound));
    assert!(ledger.reviews_open().0.is_empty());
    for restart in [false, true] {
        if restart {
            ledger = restarted(ledger, folder.path()).await;
        }
        let lost = replayed(&ledger, &order("happened", "c2")).await.expect_err("its result");
        assert_eq!(lost.code(), "result_lost");
        assert_eq!(text(replayed(&ledger, &order("told", "c2")).await), "9");
        for call in ["c1", "c2"] {
            let again = fresh(&ledger, &order("not", call)).await;
            assert_eq!((again.occurrence(), again.identical_to()), (0, None));
        }
        let own = replayed(&ledger, &order("undone", "c1")).await.expect_err("its end");
        assert_eq!(crate::call::judge::executed(&own), crate::call::code::Executed::Yes);
        let anew = fresh(&ledger, &order("undone", "c2")).await;
        assert_eq!((anew.occurrence(), anew.identical_to()), (1, None));
    }
    ledger.close().await;
}

#[tokio::test]
async fn a_decision_on_an_older_sight_of_a_write_changes_nothing_and_a_newer_one_is_kept_with_its_reasons()
 {
    let folder = tempfile::tempdir().expect("a folder");
    let mut ledger = durable(folder.path()).await;
    let key = intent(&ask("c1")).operation.key;
    let sight = |ledger: &Ledger| ledger.reviewed().pop().expect("a review");
    send(&ledger, &ask("c1"), unknown()).await;
    let first = sight(&ledger);
    assert!(first.is_open() && first.arguments.is_some(), "{first:?}");
    assert_eq!(first.caller, Some((RunId::new("r1").expect("id"), CallId::new("c1").expect("id"))));
    let seen = Some(first.version);
    ledger.resolve(&key, seen, Resolution::DidNotHappen, person()).await.expect("recorded");
    send(&ledger, &ask("c2"), unknown()).await;
    let stale = ledger.resolve(&key, seen, Resolution::DidNotHappen, person()).await;
    assert_eq!(stale, Err(ResolveError::Changed), "that was another unknown end");
    let seen = Some(sight(&ledger).version);
    ledger.resolve(&key, seen, Resolution::Happened(None), person()).await.expect("recorded");
    for restart in [false, true] {
        if restart {
            ledger = restarted(ledger, folder.path()).await;
        }
        let now = sight(&ledger);
        assert!(!now.is_open() && now.version.to_string().ends_with("-settled"), "{now:?}");
        let settled = now.settled.expect("by a person");
        assert_eq!((settled.by.by.as_str(), settled.by.who), ("person", person().who));
        assert_eq!(settled.by.evidence, person().evidence);
    }
    ledger.close().await;
}

#[tokio::test(start_paused = true)]
async fn arguments_of_a_write_are_kept_for_people_only_while_it_is_unknown() {
    let ledger = Ledger::in_memory();
    send(&ledger, &plain("c1"), unknown()).await;
    assert!(ledger.reviewed()[0].arguments.is_some());
    let key = intent(&plain("c1")).operation.key;
    ledger.late(&sent(&ledger, &key), End::Executed(Some(result("1"))));
    let settled = ledger.reviewed().pop().expect("a review");
    assert!(settled.arguments.is_none() && settled.settled.is_some(), "{settled:?}");
}

#[tokio::test]
async fn a_late_answer_outlives_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = durable(folder.path()).await;
    send(&ledger, &ask("c1"), unknown()).await;
    let key = intent(&ask("c1")).operation.key;
    assert!(ledger.late(&sent(&ledger, &key), End::Executed(Some(result("201")))));
    let ledger = restarted(ledger, folder.path()).await;
    assert_eq!(text(replayed(&ledger, &ask("c2")).await), "201");
    ledger.close().await;
}

#[tokio::test]
async fn after_the_close_nothing_is_sent_and_what_is_known_is_still_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = durable(folder.path()).await;
    send(&ledger, &ask("c1"), End::Executed(Some(result("7")))).await;
    let ticket = fresh(&ledger, &order("late", "c1")).await;
    let sent = fresh(&ledger, &order("sent", "c1")).await;
    ledger.intend(&sent, None).await.expect("recorded");
    ledger.close().await;
    assert!(ledger.intend(&ticket, None).await.is_err(), "the gate stays shut");
    drop(ticket);
    assert!(ledger.finish(sent, End::Executed(Some(result("8")))).await.is_err());
    assert_eq!(refused(&ledger, &order("sent", "c2")).await.code, DenyCode::ReviewRequired);
    assert_eq!(text(replayed(&ledger, &ask("c1")).await), "7");
    assert!(ledger.find(&intent(&order("late", "c1")).operation.key.id().to_string()).is_empty());
}

/// The wall clock counts only while nobody runs; it never ends what is unknown.
#[test]
fn a_clock_that_jumps_makes_no_unknown_write_old_and_no_finished_one_immortal() {
    let ask = ask("c1");
    let intent = intent(&ask);
    let now = Instant::now();
    let today = SystemTime::UNIX_EPOCH + DAY * 20_000;
    let row = |standing: crate::store::Standing, changed: SystemTime| crate::store::Row {
        which: crate::store::Which { key: intent.operation.key, occurrence: 0, claim: 1 },
        tool: intent.tool.clone(),
        agent: intent.agent.clone(),
        digest: intent.operation.arguments,
        arguments: None,
        calls: Vec::new(),
        failures: Vec::new(),
        ttl: DAY,
        changed,
        standing,
        resolved: None,
        task: None,
    };
    let done = || crate::store::Standing::Executed(crate::store::Answer::Lost);
    let open = || crate::store::Standing::Unknown { why: "x".into() };
    let years = DAY * 3650;
    for changed in [today - years, today, today + years] {
        let entry = rows::entry(row(open(), changed), now, today).expect("never forgotten");
        assert!(!entry.expired(now + years));
    }
    assert!(rows::entry(row(done(), today - years), now, today).is_none(), "its time is over");
    // Written by a clock that ran ahead: as young as now, and it ends a day from now.
    let ahead = rows::entry(row(done(), today + years), now, today).expect("kept");
    assert!(!ahead.expired(now) && ahead.expired(now + DAY));
    let half = rows::entry(row(done(), today - DAY / 2), now, today).expect("kept");
    assert!(!half.expired(now + DAY / 3) && half.expired(now + DAY / 2));
}
