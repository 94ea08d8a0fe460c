use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;
use crate::call::code::{DenyCode, FailCode};
use crate::call::operation::{OperationKey, OperationScope, operation};
use crate::call::pointer::Pointer;
use crate::call::{Class, Content, Delivery, Detail, Notes, Source, Verdict};
use crate::strict_json::Limits;

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
        agent,
    }
}

fn result(text: &str) -> ToolResult {
    ToolResult {
        head: None,
        content: Content { bytes: text.to_owned().into(), json: true },
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

async fn begin(ledger: &Ledger, ask: &Ask) -> Begin {
    ledger.begin(intent(ask)).await.expect("memory does not fail")
}

async fn fresh(ledger: &Ledger, ask: &Ask) -> Ticket {
    let Begin::Fresh(ticket) = begin(ledger, ask).await else { panic!("not fresh") };
    ticket
}

async fn send(ledger: &Ledger, ask: &Ask, end: End) {
    let ticket = fresh(ledger, ask).await;
    ledger.intend(&ticket).await.expect("held");
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
async fn bb_w28_a_late_answer_settles_an_unknown_write_once_and_is_then_replayed() {
    let ledger = Ledger::in_memory();
    let key = intent(&ask("c1")).operation.key;
    assert!(!ledger.late(&key, not_executed()), "nothing is known of it");
    send(&ledger, &ask("c1"), unknown()).await;
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
    assert!(ledger.late(&intent(&ask("c1")).operation.key, not_executed()));
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
    ledger.intend(&ticket).await.expect("held");
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
    ledger.intend(&ticket).await.expect("held");
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

/// What may happen to two operations, one with a fingerprint and one without.
#[derive(Debug, Clone)]
enum Step {
    Ask { plain: bool, call: u8 },
    Intend { nth: u8 },
    Finish { nth: u8, end: u8 },
    Drop { nth: u8 },
    Late { plain: bool, end: u8 },
    Sweep,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (any::<bool>(), 0..6_u8).prop_map(|(plain, call)| Step::Ask { plain, call }),
        3 => any::<u8>().prop_map(|nth| Step::Intend { nth }),
        3 => (any::<u8>(), 0..5_u8).prop_map(|(nth, end)| Step::Finish { nth, end }),
        1 => any::<u8>().prop_map(|nth| Step::Drop { nth }),
        1 => (any::<bool>(), 0..5_u8).prop_map(|(plain, end)| Step::Late { plain, end }),
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
        _ => unknown(),
    }
}

/// All that is worth knowing about one operation.
#[derive(Debug, Default)]
struct Model {
    active: bool,
    unknown: bool,
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
}

impl Model {
    fn ended(&mut self, occurrence: u32, end: &End) {
        self.active = false;
        let ended = std::mem::take(&mut self.waiting);
        match end {
            End::NotExecuted(..) => {}
            End::Executed(_) | End::ExecutedWithError(_) => {
                assert!(self.effects.insert(occurrence), "two effects of one occurrence");
                self.executed = true;
                self.done.extend(ended);
            }
            End::Unknown(_) => {
                assert!(self.effects.insert(occurrence), "two effects of one occurrence");
                self.unknown = true;
                self.waiting = ended;
            }
        }
    }
}

async fn play(steps: Vec<Step>) {
    let ledger = Ledger::in_memory();
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
                        held.push(Held { ticket, plain, intended: false });
                    }
                    Begin::InProgress(_) => {
                        assert!(model.active && !model.done.contains(&call));
                        model.waiting.insert(call);
                    }
                    Begin::Replay(_) => assert!(!model.active || model.done.contains(&call)),
                    Begin::Refused(denied) => {
                        assert_eq!(denied.code, DenyCode::ReviewRequired);
                        assert!(model.unknown && !model.done.contains(&call));
                    }
                }
            }
            Step::Intend { nth } => {
                let count = held.len();
                if let Some(one) = held.get_mut(usize::from(nth) % count.max(1)) {
                    ledger.intend(&one.ticket).await.expect("held");
                    one.intended = true;
                }
            }
            Step::Finish { nth, end } if !held.is_empty() => {
                let Held { ticket, plain, .. } = held.swap_remove(usize::from(nth) % held.len());
                let end = end_of(end);
                let model = models.get_mut(&plain).expect("both are there");
                model.ended(ticket.occurrence(), &end);
                ledger.finish(ticket, end).await.expect("held");
            }
            Step::Drop { nth } if !held.is_empty() => {
                let Held { ticket, plain, intended } =
                    held.swap_remove(usize::from(nth) % held.len());
                let model = models.get_mut(&plain).expect("both are there");
                if intended {
                    model.ended(ticket.occurrence(), &unknown());
                } else {
                    model.active = false;
                    model.waiting.clear();
                }
            }
            Step::Finish { .. } | Step::Drop { .. } => {}
            Step::Late { plain, end } => {
                let model = models.get_mut(&plain).expect("both are there");
                let end = end_of(end);
                let settles = model.unknown && !matches!(end, End::Unknown(_));
                let key = intent(&make(plain, 0)).operation.key;
                assert_eq!(ledger.late(&key, end.clone()), settles);
                if settles {
                    model.unknown = false;
                    let ended = std::mem::take(&mut model.waiting);
                    if matches!(end, End::NotExecuted(..)) {
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
        runtime.block_on(play(steps));
    }
}
