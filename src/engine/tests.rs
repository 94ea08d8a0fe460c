//! The engine over the real stacks; only the tools are scripted.

mod storm;

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::Service;

use super::*;
use crate::call::batch::Asked;
use crate::call::code::FailCode;
use crate::call::{
    Arguments, CallError, Class, Content, Delivery, Detail, ErrorClass, Evidence, Failed, Known,
    Notes, Phase, Source, ToolCall, ToolResult, Verdict,
};
use crate::policy::{LoadOptions, examine_text};
use crate::strict_json::Limits;

/// What a scripted tool does with a call.
#[derive(Clone)]
enum Act {
    Say(String),
    SayAfter(Duration, String),
    Fail(FailCode),
    FailAfter(Duration, FailCode),
    Refuse,
    Hang,
    Panic,
}

type Script = Arc<dyn Fn(&ToolCall) -> Act + Send + Sync>;

#[derive(Clone)]
struct Tools {
    script: Script,
    /// (tool, order) of every call that got to a tool.
    hits: Arc<Mutex<Vec<(String, String)>>>,
    running: Arc<AtomicUsize>,
    highest: Arc<AtomicUsize>,
}

impl Tools {
    fn new(script: impl Fn(&ToolCall) -> Act + Send + Sync + 'static) -> Self {
        Self {
            script: Arc::new(script),
            hits: Arc::default(),
            running: Arc::default(),
            highest: Arc::default(),
        }
    }

    /// Every call is answered with its own order.
    fn echo() -> Self {
        Self::new(|call| Act::Say(order(call)))
    }

    fn hits(&self) -> usize {
        self.hits.lock().expect("no panic").len()
    }

    fn seen(&self) -> Vec<String> {
        self.hits.lock().expect("no panic").iter().map(|(_, order)| order.clone()).collect()
    }
}

fn order(call: &ToolCall) -> String {
    let arguments = call.arguments().expect("validated");
    arguments.tree()["order"].as_str().expect("a text").to_owned()
}

impl Service<ToolCall> for Tools {
    type Response = ToolResult;
    type Error = Failed;
    type Future = Pin<Box<dyn Future<Output = Result<ToolResult, Failed>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        let tools = self.clone();
        Box::pin(async move {
            let mark = |phase| call.progress.iter().for_each(|progress| progress.mark(phase));
            mark(Phase::Connected);
            if let Some(gate) = &call.send_gate {
                gate.open().await?;
            }
            mark(Phase::Sending);
            mark(Phase::Written);
            let hit = (call.tool.as_str().to_owned(), order(&call));
            tools.hits.lock().expect("no panic").push(hit);
            let now = tools.running.fetch_add(1, Ordering::SeqCst) + 1;
            tools.highest.fetch_max(now, Ordering::SeqCst);
            let act = (tools.script)(&call);
            let end = perform(act).await;
            tools.running.fetch_sub(1, Ordering::SeqCst);
            mark(Phase::FirstByte);
            mark(Phase::Ended);
            end
        })
    }
}

async fn pause(time: Duration) {
    drop(tokio::time::timeout(time, std::future::pending::<()>()).await);
}

async fn perform(act: Act) -> Result<ToolResult, Failed> {
    let say = |text: String| ToolResult {
        head: None,
        content: Content { bytes: text.into(), form: crate::call::Form::Text },
        source: Source::Tool,
        notes: Notes::default(),
    };
    match act {
        Act::Say(text) => Ok(say(text)),
        Act::SayAfter(time, text) => {
            pause(time).await;
            Ok(say(text))
        }
        Act::Fail(code) => Err(broken(code)),
        Act::FailAfter(time, code) => {
            pause(time).await;
            Err(broken(code))
        }
        Act::Refuse => {
            let (class, delivery) = (Class::Permanent, Delivery::Refused);
            let mut failed = Failed::new(
                FailCode::ToolError,
                class,
                delivery,
                Verdict::Neutral,
                "no such order",
            );
            failed.status = Some(404);
            failed.evidence = Some(Evidence::Status(404));
            Err(failed)
        }
        Act::Hang => std::future::pending().await,
        Act::Panic => panic!("on purpose"),
    }
}

fn broken(code: FailCode) -> Failed {
    let mut failed =
        Failed::new(code, Class::Permanent, Delivery::Unknown, Verdict::Bad, "it failed");
    failed.error_class = ErrorClass::Http5xx;
    failed
}

const ORDER: &str = "{ type: object, required: [order], properties: \
                     { order: { type: string, maxLength: 80 }, qty: { type: integer } } }";

fn policy(run: &str) -> Arc<Snapshot> {
    let tool = |name: &str, effect: &str, more: &str| {
        let method = if effect == "read" { "GET" } else { "POST" };
        format!(
            "  {name}:\n    description: A tool.\n    effect: {effect}\n    profile: internal_rpc\n    \
             timeout: {{ total: 1s, first_byte: 1s, connect: 1s }}\n    http: {{ upstream: shop, \
             method: {method}, path: /{name} }}\n    schema: {ORDER}\n{more}"
        )
    };
    let text = format!(
        "apiVersion: checkrein/v1\nkind: Policy\nname: test\nlimits: {{ batch_calls: 20, \
         batch_parallel: 4 }}\nruns:\n  default: {{ {run} }}\nagents:\n  default: {{ allow: [lookup_order, \
         flaky, other, create_order, add_note] }}\nupstreams:\n  shop: {{ base_url: \
         \"http://127.0.0.1:9090\", addresses: [loopback] }}\ntools:\n{}{}{}{}{}{}",
        tool(
            "lookup_order",
            "read",
            "    retry: { max_retries: 0 }\n    breaker: { mode: disabled }\n    cost: 2 EUR\n"
        ),
        tool(
            "flaky",
            "read",
            "    retry: { max_retries: 0 }\n    breaker: { consecutive_failures: 2, open_for: 30s }\n    \
             alternatives: [other, lookup_order, hidden]\n",
        ),
        tool("other", "read", "    retry: { max_retries: 0 }\n    bulkhead: 20\n"),
        tool("hidden", "read", ""),
        tool(
            "create_order",
            "write",
            "    write: { fingerprint: [/order], drain: 5s }\n    breaker: { mode: disabled }\n",
        ),
        tool("add_note", "write", "    write: { identical: allow }\n"),
    );
    let examined = examine_text(
        text.as_bytes(),
        "test.yaml",
        std::path::Path::new("."),
        LoadOptions::default(),
    );
    examined.snapshot.unwrap_or_else(|| panic!("{text}\n{:#?}", examined.problems))
}

struct Bench {
    engine: Arc<Engine>,
    tools: Tools,
}

/// An engine with a run policy (`{}` = the defaults) over scripted tools.
fn bench(run: &str, tools: Tools) -> Bench {
    let metrics = Metrics::new();
    let parts = Parts {
        snapshot: policy(run),
        state: State::new(metrics.clone()),
        runs: Runs::new(metrics.clone()),
        ledger: Ledger::in_memory(),
        recorder: Recorder::none(),
        tasks: TaskTracker::new(),
        metrics,
    };
    let inner = tools.clone();
    Bench { engine: Engine::with_inner(parts, move |_| inner.clone()), tools }
}

fn asker(run: &str) -> Asker {
    Asker {
        agent: AgentId::new("default").expect("name"),
        run: Some(RunId::new(run).expect("id")),
        timeout: None,
        front_end: FrontEnd::OpenaiChat,
        side: None,
    }
}

fn payload(text: &str) -> Payload {
    match Arguments::parse(text.as_bytes(), Limits::arguments(1 << 16, 32)) {
        Ok(arguments) => Payload::Arguments(arguments),
        Err(malformed) => Payload::Malformed(malformed),
    }
}

/// `id tool order`; an order in braces is the arguments' text as it stands.
fn calls(lines: &[&str]) -> Vec<Asked> {
    let one = |line: &&str| {
        let mut words = line.splitn(3, ' ');
        let mut word = || words.next().expect("three words").to_owned();
        let (id, tool, what) = (word(), word(), word());
        let text = if what.starts_with('{') { what } else { format!("{{\"order\":\"{what}\"}}") };
        Asked { id: (id != "-").then_some(id), tool, payload: payload(&text) }
    };
    lines.iter().map(one).collect()
}

fn message(run: &str, text: &str, lines: &[&str]) -> TurnAsk {
    TurnAsk {
        asker: asker(run),
        digest: Digest::of(format!("{text}{lines:?}").as_bytes()),
        turn: Turn { text: text.to_owned(), calls: calls(lines) },
        unfinished: false,
    }
}

impl Bench {
    async fn turn(&self, run: &str, lines: &[&str]) -> TurnAnswer {
        self.engine.turn(message(run, "", lines)).await.expect("a run")
    }

    async fn text(&self, run: &str, text: &str, unfinished: bool) -> LoopState {
        let ask = TurnAsk { unfinished, ..message(run, text, &[]) };
        self.engine.turn(ask).await.expect("a run").state
    }
}

fn shown(answer: &Answer) -> String {
    match &answer.outcome {
        Ok(result) => {
            let text = String::from_utf8_lossy(&result.content.bytes);
            let replayed = if result.source == Source::Ledger { " again" } else { "" };
            format!("{} = {text}{replayed}", answer.id)
        }
        Err(error) => format!("{} {}", answer.id, error.code()),
    }
}

fn all(answer: &TurnAnswer) -> Vec<String> {
    answer.answers.iter().map(shown).collect()
}

fn dimension(answer: &Answer) -> Option<Dimension> {
    match &answer.outcome {
        Err(CallError::Denied(Denied { detail: Detail::Budget { dimension, .. }, .. })) => {
            Some(*dimension)
        }
        Ok(_) | Err(_) => None,
    }
}

/// Failing orders fail, hanging ones hang; the rest is answered with the order.
fn by_name(call: &ToolCall) -> Act {
    let order = order(call);
    match order.split('-').next().unwrap_or_default() {
        "fail" => Act::Fail(FailCode::ToolUnavailable),
        "refuse" => Act::Refuse,
        "hang" => Act::Hang,
        "panic" => Act::Panic,
        "slow" => Act::SayAfter(Duration::from_millis(500), order),
        "late" => Act::SayAfter(Duration::from_millis(1020), order),
        _ => Act::Say(order),
    }
}

#[tokio::test(start_paused = true)]
async fn bb_p01_five_calls_get_five_answers_each_under_its_own_id() {
    let bench = bench("", Tools::new(by_name));
    let opening = bench.turn("r0", &["a flaky fail-1", "b flaky fail-2"]).await;
    assert_eq!(all(&opening), ["a tool_unavailable", "b tool_unavailable"]);
    let answer = bench
        .turn(
            "r1",
            &[
                "c1 lookup_order 1",
                "c2 lookup_order hang",
                "c3 no_such_tool 1",
                "c4 lookup_order {\"order\":7}",
                "c5 flaky 1",
            ],
        )
        .await;
    let expected = [
        "c1 = 1",
        "c2 upstream_timeout",
        "c3 unknown_tool",
        "c4 invalid_arguments",
        "c5 circuit_open",
    ];
    assert_eq!(all(&answer), expected);
    assert_eq!(answer.state, LoopState::Continue);
    let others: Vec<&str> = answer.answers[4].alternatives.iter().map(ToolName::as_str).collect();
    assert_eq!(others, ["other", "lookup_order"], "only what this agent may use");
}

#[tokio::test(start_paused = true)]
async fn bb_p01_a_panic_in_a_tool_is_that_calls_answer_and_nobody_elses() {
    let bench = bench("", Tools::new(by_name));
    let reads = bench.turn("r1", &["c1 other 1", "c2 other panic", "c3 other 3"]).await;
    assert_eq!(all(&reads), ["c1 = 1", "c2 internal", "c3 = 3"]);
    let write = bench.turn("r1", &["c4 create_order panic", "c5 lookup_order 1"]).await;
    assert_eq!(all(&write), ["c4 outcome_unknown", "c5 skipped_pending_review"]);
    assert_eq!(write.state, LoopState::ReviewRequired);
}

#[tokio::test(start_paused = true)]
async fn bb_p02_a_repeated_missing_or_reused_id_refuses_the_whole_message() {
    let bench = bench("", Tools::echo());
    let twice = bench.turn("r1", &["c1 create_order P2a", "c1 create_order P2b"]).await;
    let missing = bench.turn("r1", &["c1 lookup_order 1", "- lookup_order 2"]).await;
    let too_many: Vec<String> = (0..21).map(|n| format!("c{n} lookup_order {n}")).collect();
    let too_many: Vec<&str> = too_many.iter().map(String::as_str).collect();
    let too_many = bench.turn("r1", &too_many).await;
    assert_eq!(bench.tools.hits(), 0);
    bench.turn("r1", &["c1 lookup_order 1"]).await;
    let reused = bench.turn("r1", &["c2 lookup_order 2", "c1 lookup_order 9"]).await;
    assert_eq!(bench.tools.hits(), 1);
    for (answer, code) in [
        (&twice, "duplicate_call_id"),
        (&missing, "missing_call_id"),
        (&too_many, "invalid_request"),
        (&reused, "call_id_reused"),
    ] {
        assert_eq!(answer.state, LoopState::ProtocolError);
        assert!(answer.answers.is_empty());
        assert_eq!(answer.error.as_ref().expect("why").code.as_str(), code);
    }
    assert!(twice.error.expect("why").message.contains("`c1`"));
    // Nothing of it was taken: no round, no id.
    assert_eq!((too_many.round, reused.round), (0, 1));
    assert_eq!(all(&bench.turn("r1", &["c2 lookup_order 7"]).await), ["c2 = 7"]);
}

#[tokio::test(start_paused = true)]
async fn bb_p04_the_same_message_again_gets_the_same_answer_and_no_round() {
    let bench = bench("", Tools::echo());
    let lines = ["c1 lookup_order 1", "c2 create_order R1", "c3 lookup_order 2"];
    let first = bench.turn("r1", &lines).await;
    let again = bench.turn("r1", &lines).await;
    assert_eq!((all(&first), first.round, first.state), (all(&again), again.round, again.state));
    assert_eq!(bench.tools.hits(), 3);
    let next = bench.turn("r1", &["c1 lookup_order 1", "c4 lookup_order 4"]).await;
    assert_eq!((all(&next), next.round), (vec!["c1 = 1".to_owned(), "c4 = 4".to_owned()], 2));
    assert_eq!(bench.tools.hits(), 4, "the same call in another message is not run again");
    let elsewhere = bench.turn("r2", &lines).await;
    assert_eq!(all(&elsewhere), ["c1 = 1", "c2 = R1 again", "c3 = 2"]);
}

#[tokio::test(start_paused = true)]
async fn bb_p04_a_message_sent_again_while_the_first_still_runs_writes_once() {
    let bench = bench("", Tools::new(by_name));
    let lines = ["c1 create_order slow-1"];
    let first = bench.turn("r1", &lines);
    let both = tokio::time::timeout(Duration::from_millis(100), first).await;
    assert!(both.is_err(), "the agent hung up");
    let again = bench.turn("r1", &lines).await;
    assert_eq!(all(&again), ["c1 = slow-1 again"]);
    assert_eq!((again.round, bench.tools.hits()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn bb_p06_the_id_and_not_the_name_is_the_key() {
    let bench = bench("", Tools::echo());
    let answer = bench.turn("r1", &["c1 lookup_order 1", "c2 lookup_order 2"]).await;
    assert_eq!(all(&answer), ["c1 = 1", "c2 = 2"]);
    assert_eq!(bench.tools.hits(), 2);
}

#[tokio::test(start_paused = true)]
async fn bb_p07_a_failing_read_costs_its_neighbours_nothing() {
    let bench = bench("", Tools::new(by_name));
    let lines: Vec<String> = (1..=10)
        .map(|n| {
            format!("c{n} lookup_order {}", if n == 3 { "fail".to_owned() } else { n.to_string() })
        })
        .collect();
    let answer = bench.turn("r1", &lines.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for (n, text) in (1..=10).zip(all(&answer)) {
        let expected =
            if n == 3 { "c3 tool_unavailable".to_owned() } else { format!("c{n} = {n}") };
        assert_eq!(text, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn bb_p10_ids_come_back_byte_for_byte() {
    let bench = bench("", Tools::echo());
    let long = "x".repeat(64);
    let ids = ["call_A|fc_B", "toolu_1", "functions.eval:301", "идент-号", &long];
    let lines: Vec<String> = ids.iter().map(|id| format!("{id} lookup_order 1")).collect();
    let answer = bench.turn("r1", &lines.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let back: Vec<&str> = answer.answers.iter().map(|answer| answer.id.as_str()).collect();
    assert_eq!(back, ids);
}

#[tokio::test(start_paused = true)]
async fn bb_p12_a_batch_is_as_many_calls_as_it_holds() {
    let bench = bench("calls: 3", Tools::new(by_name));
    let lines = [
        "c1 other slow-1",
        "c2 other slow-2",
        "c3 other slow-3",
        "c4 other slow-4",
        "c5 other slow-5",
    ];
    let answer = bench.turn("r1", &lines).await;
    let expected =
        ["c1 = slow-1", "c2 = slow-2", "c3 = slow-3", "c4 budget_exhausted", "c5 budget_exhausted"];
    assert_eq!(all(&answer), expected);
    assert_eq!(dimension(&answer.answers[3]), Some(Dimension::Calls));
    assert_eq!((answer.state, bench.tools.hits()), (LoopState::BudgetExhausted, 3));
}

#[tokio::test(start_paused = true)]
async fn bb_l01_the_same_failing_call_is_blocked_from_the_fourth_on() {
    let bench = bench("", Tools::new(by_name));
    let mut texts = Vec::new();
    for n in 0..10 {
        let line = format!("c{n} lookup_order fail");
        let answer = bench.turn("r1", &[&line]).await;
        let code = if n < 3 { "tool_unavailable" } else { "repeat_blocked" };
        assert_eq!(all(&answer), [format!("c{n} {code}")]);
        if let Err(CallError::Denied(denied)) = &answer.answers[0].outcome {
            texts.push(denied.message.clone());
        }
        assert_eq!(answer.summary.is_some(), n >= 2);
    }
    assert_eq!(bench.tools.hits(), 3);
    let different: std::collections::HashSet<_> = texts.iter().collect();
    assert_eq!(different.len(), 7);
    let answer = bench.turn("r1", &["d lookup_order other"]).await;
    assert_eq!(all(&answer), ["d = other"], "other arguments pass");
}

#[tokio::test(start_paused = true)]
async fn bb_l01_the_same_failing_call_is_blocked_within_one_message_too() {
    let bench = bench("", Tools::new(by_name));
    let mut lines: Vec<String> = (0..10).map(|n| format!("c{n} lookup_order fail")).collect();
    lines.insert(5, "d lookup_order 5".to_owned());
    let answer = bench.turn("r1", &lines.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let expected = (0..10).map(|n| match n < 3 {
        true => format!("c{n} tool_unavailable"),
        false => format!("c{n} repeat_blocked"),
    });
    let mut expected: Vec<String> = expected.collect();
    expected.insert(5, "d = 5".to_owned());
    assert_eq!((all(&answer), bench.tools.hits()), (expected, 4));
}

#[tokio::test(start_paused = true)]
async fn a_write_that_was_still_running_is_asked_anew_when_the_message_comes_again() {
    let bench = Arc::new(bench("", Tools::new(by_name)));
    let first = tokio::spawn({
        let bench = bench.clone();
        async move { all(&bench.turn("r1", &["c1 create_order slow-1"]).await) }
    });
    while bench.tools.hits() == 0 {
        tokio::task::yield_now().await;
    }
    let hurried = || {
        let mut ask = message("r2", "", &["c1 create_order slow-1"]);
        ask.asker.timeout = Some(Duration::from_millis(300));
        bench.engine.turn(ask)
    };
    assert_eq!(all(&hurried().await.expect("a run")), ["c1 in_progress"]);
    assert_eq!(first.await.expect("no panic"), ["c1 = slow-1"]);
    assert_eq!(all(&hurried().await.expect("a run")), ["c1 = slow-1 again"]);
    assert_eq!(bench.tools.hits(), 1);
}

#[tokio::test(start_paused = true)]
async fn bb_l03_arguments_that_do_not_parse_use_up_the_failures_of_a_run() {
    let bench = bench("failures: 5", Tools::echo());
    for n in 0..5 {
        let line = format!("c{n} lookup_order {{\"order\":{n}");
        assert_eq!(all(&bench.turn("r1", &[&line]).await), [format!("c{n} invalid_arguments")]);
    }
    let last = bench.turn("r1", &["c6 lookup_order 1"]).await;
    assert_eq!(dimension(&last.answers[0]), Some(Dimension::Failures));
    assert_eq!((last.state, bench.tools.hits()), (LoopState::BudgetExhausted, 0));
    assert_eq!(last.summary.as_deref(), Some("tried: lookup_order wrong arguments (5×)"));
    let run = RunId::new("r1").expect("id");
    let summary = bench.engine.run_summary(&asker("r1").agent, &run).expect("its own run");
    assert_eq!(summary.failures.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn bb_w01_a_write_that_may_have_happened_stops_what_follows_and_is_not_repeated() {
    let bench = bench("", Tools::new(by_name));
    let lines =
        ["c0 lookup_order 0", "c1 create_order hang-1", "c2 create_order R2", "c3 lookup_order 3"];
    let first = bench.turn("r1", &lines).await;
    let expected =
        ["c0 = 0", "c1 outcome_unknown", "c2 skipped_pending_review", "c3 skipped_pending_review"];
    assert_eq!(
        (all(&first), first.state),
        (expected.map(String::from).to_vec(), LoopState::ReviewRequired)
    );
    assert!(first.answers[1].operation.is_some());
    assert!(first.answers[1].alternatives.is_empty());
    let second = bench.turn("r1", &["c9 create_order hang-1", "c10 lookup_order 4"]).await;
    assert_eq!(all(&second), ["c9 review_required", "c10 skipped_pending_review"]);
    assert_eq!(second.state, LoopState::ReviewRequired);
    assert_eq!(bench.tools.seen(), ["0", "hang-1"]);
    let view = bench.engine.run_view(&asker("r1").agent, &second.run).expect("its own run");
    let used = |wanted| view.budgets.iter().find(|b| b.0 == wanted).expect("told").1;
    // What was skipped took nothing and is nobody's failure.
    assert_eq!((used(Dimension::Calls), used(Dimension::Failures)), (3, 1));
    assert_eq!(StateSource::read(&*bench.engine).reviews_open, [("create_order".to_owned(), 1)]);
}

#[tokio::test(start_paused = true)]
async fn what_follows_a_write_that_still_runs_is_not_started() {
    let bench = bench("", Tools::new(by_name));
    let first = bench.turn("r1", &["c1 create_order slow-31"]);
    let second = async {
        pause(Duration::from_millis(100)).await;
        let lines = ["c1 create_order slow-31", "c2 lookup_order 2", "c3 create_order R3"];
        let mut ask = message("r2", "", &lines);
        ask.asker.timeout = Some(Duration::from_millis(100));
        bench.engine.turn(ask).await.expect("a run")
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!(all(&first), ["c1 = slow-31"]);
    assert_eq!(
        all(&second),
        ["c1 in_progress", "c2 skipped_in_progress", "c3 skipped_in_progress"]
    );
    assert_eq!(second.state, LoopState::Continue, "nobody has to check anything");
    assert_eq!(bench.tools.seen(), ["slow-31"]);
    // Once it has ended the same message goes on.
    let third = bench.turn("r3", &["c1 create_order slow-31", "c2 lookup_order 2"]).await;
    assert_eq!(all(&third), ["c1 = slow-31 again", "c2 = 2"]);
}

#[tokio::test(start_paused = true)]
async fn bb_w24_a_finished_write_is_replayed_in_another_run() {
    let bench = bench("", Tools::echo());
    assert_eq!(all(&bench.turn("r1", &["c1 create_order R24"]).await), ["c1 = R24"]);
    assert_eq!(all(&bench.turn("r2", &["c1 create_order R24"]).await), ["c1 = R24 again"]);
    assert_eq!(bench.tools.hits(), 1);
}

#[tokio::test(start_paused = true)]
async fn bb_w28_a_late_answer_goes_to_the_ledger_and_is_then_replayed() {
    let bench = bench("", Tools::new(by_name));
    let lines = ["c1 create_order late-28", "c2 lookup_order 2"];
    let first = bench.turn("r1", &lines).await;
    assert_eq!(all(&first), ["c1 outcome_unknown", "c2 skipped_pending_review"]);
    pause(Duration::from_secs(1)).await;
    // The same message again is the same round, and what waited for the write goes on.
    let again = bench.turn("r1", &lines).await;
    assert_eq!(all(&again), ["c1 = late-28 again", "c2 = 2"]);
    assert_eq!((again.state, again.round, bench.tools.hits()), (LoopState::Continue, 1, 2));
    assert!(StateSource::read(&*bench.engine).reviews_open.iter().all(|(_, open)| *open == 0));
}

fn known(error: &Outcome) -> (DenyCode, Option<Known>) {
    match error {
        Err(CallError::Denied(denied)) => (denied.code, denied.known),
        other => panic!("no refusal: {other:?}"),
    }
}

fn single(run: &str, id: &str, order: &str) -> Single {
    Single {
        asker: asker(run),
        id: CallId::new(id).expect("id"),
        tool: ToolName::new("create_order").expect("name"),
        payload: payload(&format!("{{\"order\":\"{order}\"}}")),
        caller_key: None,
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_turned_away_before_there_is_a_run_is_told_what_is_known_of_the_write() {
    let bench = bench("rounds: 1", Tools::new(by_name));
    bench.turn("r1", &["c1 create_order hang-1"]).await;
    bench.turn("r2", &["c1 create_order R2"]).await;
    // Beyond the last round, before any stack.
    let spent = bench.turn("r2", &["c2 create_order hang-1", "c3 create_order R2"]).await;
    assert_eq!(spent.state, LoopState::ReviewRequired);
    let told: Vec<_> = spent.answers.iter().map(|answer| known(&answer.outcome)).collect();
    let budget = DenyCode::BudgetExhausted;
    assert_eq!(told, [(budget, Some(Known::Unknown)), (budget, Some(Known::Executed))]);
    assert!(spent.answers.iter().all(|answer| answer.operation.is_some()));
    bench.engine.drain();
    for (order, expected) in
        [("hang-1", Some(Known::Unknown)), ("R2", Some(Known::Executed)), ("R3", None)]
    {
        let refused = bench.engine.call(single("r9", "c9", order)).await.expect_err("draining");
        assert_eq!((refused.code, refused.known), (DenyCode::Draining, expected));
        assert_eq!(matches!(refused.detail, Detail::Operation(_)), expected.is_some());
    }
    assert_eq!(bench.tools.seen(), ["hang-1", "R2"]);
}

#[tokio::test(start_paused = true)]
async fn bb_d01_what_has_started_ends_and_nothing_else_starts() {
    let bench = Arc::new(bench("", Tools::new(by_name)));
    let mut running = JoinSet::new();
    for n in 0..10 {
        let bench = bench.clone();
        running.spawn(async move {
            let lines = [format!("c{n} other slow-{n}"), format!("d{n} create_order W{n}")];
            let answer = bench.turn(&format!("r{n}"), &[&lines[0], &lines[1]]).await;
            (n, all(&answer))
        });
    }
    while bench.tools.hits() < 10 {
        tokio::task::yield_now().await;
    }
    bench.engine.drain();
    assert!(bench.engine.draining());
    let refused =
        bench.engine.turn(message("new", "", &["c1 other 1"])).await.expect_err("draining");
    assert_eq!((refused.code, refused.code.http()), (DenyCode::Draining, 503));
    assert!(refused.retry_after.is_some());
    assert!(bench.engine.open_run(&asker("x").agent, None, None).is_err());
    for (n, answers) in running.join_all().await {
        assert_eq!(answers, [format!("c{n} = slow-{n}"), format!("d{n} draining")]);
    }
    assert_eq!(bench.tools.hits(), 10);
}

#[tokio::test(start_paused = true)]
async fn the_last_round_is_answered_and_a_further_one_is_refused_before_it_runs() {
    let bench = bench("rounds: 2", Tools::echo());
    for n in 1..=2 {
        let line = format!("c{n} lookup_order {n}");
        let answer = bench.turn("r1", &[&line]).await;
        assert_eq!((answer.state, answer.round), (LoopState::Continue, n));
    }
    let over = bench.turn("r1", &["c3 lookup_order 3", "c4 create_order 4"]).await;
    assert_eq!(all(&over), ["c3 budget_exhausted", "c4 budget_exhausted"]);
    assert_eq!(dimension(&over.answers[1]), Some(Dimension::Rounds));
    assert_eq!((over.state, over.round, bench.tools.hits()), (LoopState::BudgetExhausted, 2, 2));
    assert_eq!(bench.text("r1", "订单 A17 正在运输中。", false).await, LoopState::Done);
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_the_width_of_a_round_are_refused_and_the_loop_goes_on() {
    let bench = bench("calls_per_round: 2", Tools::echo());
    let answer = bench.turn("r1", &["c1 other 1", "c2 other 2", "c3 other 3"]).await;
    assert_eq!(all(&answer), ["c1 = 1", "c2 = 2", "c3 budget_exhausted"]);
    assert_eq!(dimension(&answer.answers[2]), Some(Dimension::CallsPerRound));
    assert_eq!((answer.state, bench.tools.hits()), (LoopState::Continue, 2));
}

#[tokio::test(start_paused = true)]
async fn a_turn_without_calls_is_done_broken_or_stalled() {
    let bench = bench("stall_turns: 3", Tools::echo());
    assert_eq!(bench.text("r1", "it is on its way", false).await, LoopState::Done);
    assert_eq!(bench.text("r1", " \n", false).await, LoopState::ProtocolError);
    let states = [
        bench.text("r1", "thinking", true).await,
        bench.text("r1", "thinking", true).await,
        bench.text("r1", "", true).await,
        bench.text("r1", "thinking", true).await,
    ];
    let go_on = LoopState::Continue;
    // The empty turn repeats nothing, but it brings nothing either: two in a row, then "thinking" is new again.
    assert_eq!(states, [go_on, go_on, go_on, go_on]);
    bench.text("r1", "thinking", true).await;
    bench.text("r1", "thinking", true).await;
    assert_eq!(bench.text("r1", "thinking", true).await, LoopState::DecisionStall);
    assert_eq!(bench.tools.hits(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_write_waits_for_what_stands_before_it_and_what_follows_waits_for_it() {
    let bench = bench("", Tools::new(by_name));
    let began = Instant::now();
    let answer = bench
        .turn(
            "r1",
            &[
                "c1 other slow-1",
                "c2 other slow-2",
                "c3 create_order slow-3",
                "c4 add_note slow-4",
                "c5 other slow-5",
                "c6 other slow-6",
            ],
        )
        .await;
    assert_eq!(answer.answers.len(), 6);
    assert_eq!(bench.tools.seen(), ["slow-1", "slow-2", "slow-3", "slow-4", "slow-5", "slow-6"]);
    // Two reads together, a write, a write, two reads together.
    assert_eq!(began.elapsed(), Duration::from_secs(2));
    assert_eq!(bench.tools.highest.load(Ordering::SeqCst), 2);
    let lines: Vec<String> = (0..10).map(|n| format!("d{n} other slow-d{n}")).collect();
    bench.turn("r1", &lines.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(bench.tools.highest.load(Ordering::SeqCst), 4, "batch_parallel");
}

#[tokio::test(start_paused = true)]
async fn a_write_that_the_tool_refused_stops_nothing() {
    let bench = bench("", Tools::new(by_name));
    let answer = bench.turn("r1", &["c1 create_order refuse", "c2 lookup_order 2"]).await;
    assert_eq!(all(&answer), ["c1 tool_error", "c2 = 2"]);
    assert_eq!(answer.state, LoopState::Continue);
}

#[tokio::test(start_paused = true)]
async fn the_callers_time_only_shortens() {
    let bench = bench("", Tools::new(by_name));
    let began = Instant::now();
    let mut ask = message("r1", "", &["c1 other slow-1"]);
    ask.asker.timeout = Some(Duration::from_millis(300));
    let answer = bench.engine.turn(ask).await.expect("a run");
    assert_eq!(all(&answer), ["c1 upstream_timeout"]);
    assert_eq!(began.elapsed(), Duration::from_millis(300));
    let mut ask = message("r1", "", &["c2 other hang"]);
    ask.asker.timeout = Some(Duration::MAX);
    let answer = bench.engine.turn(ask).await.expect("a run");
    assert_eq!(all(&answer), ["c2 upstream_timeout"]);
    assert_eq!(began.elapsed(), Duration::from_millis(1300));
}

#[tokio::test(start_paused = true)]
async fn a_message_ends_under_the_policy_it_began_with() {
    let bench = Arc::new(bench("calls_per_round: 16", Tools::new(by_name)));
    let before = bench.engine.snapshot().revision.clone();
    let task = tokio::spawn({
        let bench = bench.clone();
        async move {
            all(&bench.turn("r1", &["c1 other slow-1", "c2 create_order R", "c3 other 3"]).await)
        }
    });
    while bench.tools.hits() == 0 {
        tokio::task::yield_now().await;
    }
    bench.engine.install(policy("calls_per_round: 1"));
    assert_ne!(bench.engine.snapshot().revision, before);
    assert_eq!(task.await.expect("no panic"), ["c1 = slow-1", "c2 = R", "c3 = 3"]);
    // The same run obeys the new policy from its next message on, and the ledger has not forgotten.
    let next = bench.turn("r1", &["c4 create_order R", "c5 other 5"]).await;
    assert_eq!(all(&next), ["c4 = R again", "c5 budget_exhausted"]);
}

#[tokio::test(start_paused = true)]
async fn single_calls_are_no_rounds_and_share_the_runs_budget() {
    let bench = bench("calls: 2, rounds: 1", Tools::echo());
    let single = |id: &str, run: Option<&str>| Single {
        asker: Asker { run: run.map(|run| RunId::new(run).expect("id")), ..asker("x") },
        id: CallId::new(id).expect("id"),
        tool: ToolName::asked("lookup_order"),
        payload: payload(r#"{"order":"1"}"#),
        caller_key: None,
    };
    let (run, first) = bench.engine.call(single("c1", Some("r1"))).await.expect("a run");
    assert_eq!((shown(&first), first.attempts, run.as_str()), ("c1 = 1".to_owned(), 1, "r1"));
    assert_eq!(bench.turn("r1", &["c2 other 2"]).await.state, LoopState::Continue);
    let (_, over) = bench.engine.call(single("c3", Some("r1"))).await.expect("a run");
    assert_eq!(dimension(&over), Some(Dimension::Calls));
    let (ambient, _) = bench.engine.call(single("c1", None)).await.expect("a run");
    let (same, _) = bench.engine.call(single("c1", None)).await.expect("a run");
    assert_eq!(ambient, same);
    let view = bench.engine.finish_run(&asker("x").agent, &run).expect("its own run");
    assert_eq!(view.state, LoopState::Done);
    let ended = bench.engine.call(single("c9", Some("r1"))).await.expect_err("finished");
    assert_eq!(ended.code, DenyCode::RunUnknown);
}

#[tokio::test(start_paused = true)]
async fn runs_are_opened_with_a_budget_that_may_be_chosen_and_tools_are_listed_by_name() {
    let bench = bench("rounds: 7", Tools::echo());
    let agent = asker("x").agent;
    let view = bench.engine.open_run(&agent, Some("a goal".into()), Some("default")).expect("may");
    assert!(view.budgets.contains(&(Dimension::Rounds, 0, Some(7))));
    assert_eq!(bench.turn(view.run.as_str(), &["c1 other 1"]).await.run, view.run);
    let refused = bench.engine.open_run(&agent, None, Some("endless")).expect_err("no such");
    assert_eq!(refused.code, DenyCode::InvalidRequest);
    assert!(refused.message.contains("default"));
    let (tools, hidden) = bench.engine.tools_for(&agent);
    let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["add_note", "create_order", "flaky", "lookup_order", "other"]);
    assert_eq!(hidden, 0);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_finished_ends_what_has_started_and_starts_nothing_more() {
    let bench = Arc::new(bench("", Tools::new(by_name)));
    let running = tokio::spawn({
        let bench = bench.clone();
        async move { bench.turn("r1", &["c1 other slow-1", "c2 create_order R", "c3 other 3"]).await }
    });
    while bench.tools.hits() == 0 {
        tokio::task::yield_now().await;
    }
    let run = RunId::new("r1").expect("id");
    bench.engine.finish_run(&asker("x").agent, &run).expect("its own run");
    let answer = running.await.expect("no panic");
    assert_eq!(all(&answer), ["c1 = slow-1", "c2 run_unknown", "c3 run_unknown"]);
    assert_eq!(bench.tools.seen(), ["slow-1"], "no write begins in a run that is over");
    let refused = bench.engine.turn(message("r1", "", &["c4 other 4"])).await.expect_err("over");
    assert_eq!(refused.code, DenyCode::RunUnknown);
}
