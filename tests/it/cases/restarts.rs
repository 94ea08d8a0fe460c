//! What is known of writes, over `kill -9` and a start on what is left: the whole program, its store on disk.

use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncWriteExt;

use super::{create, order};
use crate::mcp::remote::Remote;
use crate::support::process::{filled, verb};
use crate::support::{Agent, Fixture, Form, Process, Reply, ScriptedTool, http, wait_for};

const SOON: Duration = Duration::from_secs(30);

/// A tool, and a state folder that outlives every gateway before it.
struct House {
    tool: ScriptedTool,
    state: tempfile::TempDir,
    fixture: Fixture,
}

impl House {
    async fn new(fixture: Fixture) -> Self {
        let state = tempfile::tempdir().expect("a folder");
        Self { tool: ScriptedTool::start().await, state, fixture }
    }

    async fn start(&self) -> Process {
        let folder = tempfile::tempdir().expect("a folder");
        let policy = folder.path().join("policy.yaml");
        let text = self.fixture.text(&self.tool.url());
        std::fs::write(&policy, filled(folder.path(), &text)).expect("written");
        let state = self.state.path().join("state").display().to_string();
        let admin = self.admin();
        Process::start_at(folder, &policy, &["--state", &state, "--admin", &admin], &[]).await
    }

    fn admin(&self) -> String {
        format!("unix:{}", self.state.path().join("admin.sock").display())
    }

    /// Ends it where it stands, and starts another on what is left.
    async fn restart(&self, mut process: Process) -> Process {
        process.signal("KILL");
        process.exit().await;
        drop(process);
        self.start().await
    }

    /// A statement by hand, while no gateway runs.
    fn by_hand(&self, statement: &str) -> usize {
        let file = self.state.path().join("state/store.db");
        let store = rusqlite::Connection::open(file).expect("it opens");
        store.execute(statement, []).expect("sound")
    }
}

fn agent(process: &Process, run: &str) -> Agent {
    process.agent(Form::OpenaiChat, run)
}

async fn write(process: &Process, run: &str, id: &str, reference: &str) -> Value {
    agent(process, run).call("create_order", id, &create(reference)).await.json()
}

#[track_caller]
fn replayed(answer: &Value) {
    assert_eq!((&answer["ok"], &answer["replayed"]), (&true.into(), &true.into()), "{answer}");
}

#[tokio::test]
async fn bb_w01_a_lost_reply_is_not_asked_for_twice_after_a_restart() {
    for form in Form::ALL {
        let house = House::new(Fixture::new()).await;
        let process = house.start().await;
        house.tool.script("/create", [Reply::ApplyThenHang]);
        let (r1, r2, a17) = (create("R1"), create("R2"), order("A17"));
        let first = process
            .agent(form, "r1")
            .ask(&[
                ("c1", "create_order", &r1),
                ("c2", "create_order", &r2),
                ("c3", "lookup_order", &a17),
            ])
            .await;
        assert_eq!(first.error("c1"), "outcome_unknown", "{form:?}");
        assert_eq!(first.error("c2"), "skipped_pending_review");
        let process = house.restart(process).await;
        let second = process.agent(form, "r1").ask(&[("c9", "create_order", &r1)]).await;
        assert_eq!(second.error("c9"), "review_required", "{form:?}");
        assert_eq!(second.answer("c9")["operation"], first.answer("c1")["operation"]);
        let tool = &house.tool;
        assert_eq!((tool.effects("R1"), tool.hits("/create"), tool.hits("/orders")), (1, 1, 0));
    }
}

#[tokio::test]
async fn bb_w07_a_write_whose_agent_hung_up_is_on_record_after_a_restart() {
    let house = House::new(Fixture::new()).await;
    let process = house.start().await;
    house.tool.script("/create", [Reply::ApplyAfter(Duration::from_millis(400))]);
    let mut stream = tokio::net::TcpStream::connect(process.data).await.expect("connected");
    let (fields, body) = ([("checkrein-run", "r"), ("checkrein-call-id", "c1")], create("R7"));
    let request = http::bytes_of("POST", "/v1/tools/create_order", &fields, body.as_bytes());
    stream.write_all(&request).await.expect("sent");
    wait_for("the write at the tool", SOON, async || house.tool.hits("/create") == 1).await;
    drop(stream);
    let ended = async || {
        let labels = [("tool", "create_order"), ("end", "executed")];
        process.metrics().await.sum("checkrein_write_ends_total", &labels) == 1.0
    };
    wait_for("the end of the write", SOON, ended).await;
    let process = house.restart(process).await;
    let again = write(&process, "r", "c2", "R7").await;
    replayed(&again);
    assert_eq!(again["value"]["done"], true);
    assert_eq!((house.tool.hits("/create"), house.tool.effects("R7")), (1, 1));
}

#[tokio::test]
async fn bb_w09_a_write_under_way_at_kill_9_is_unknown_until_a_person_or_the_tool_settles_it() {
    let house = House::new(Fixture::new()).await;
    let process = house.start().await;
    house.tool.script("/create", [Reply::ApplyThenHang]);
    let asking = agent(&process, "r");
    let asking = tokio::spawn(async move {
        // The connection breaks under it.
        let asked = async move { asking.call("create_order", "c1", &create("R9")).await };
        drop(tokio::spawn(asked).await);
    });
    wait_for("the effect", SOON, async || house.tool.effects("R9") == 1).await;
    let process = house.restart(process).await;
    asking.await.expect("it ended");
    // Neither in progress for ever nor free.
    let again = write(&process, "r", "c2", "R9").await;
    assert_eq!(
        (&again["error"], &again["executed"]),
        (&"review_required".into(), &"unknown".into())
    );
    let operation = again["operation"].as_str().expect("an operation");
    let admin = house.admin();
    let found = ["--evidence", "order 7 in the shop's list", "--result", r#"{"id":7}"#];
    let words = [&["reviews", "resolve", operation, "happened", "--admin", &admin], &found[..]];
    let (code, _, said) = verb(&words.concat());
    assert_eq!(code, 0, "{said}");
    let told = write(&process, "r2", "c3", "R9").await;
    replayed(&told);
    let process = house.restart(process).await;
    let still = write(&process, "r2", "c4", "R9").await;
    replayed(&still);
    assert_eq!((&told["value"]["id"], &still["value"]["id"]), (&7.into(), &7.into()));
    assert_eq!((house.tool.hits("/create"), house.tool.effects("R9")), (1, 1));
}

#[tokio::test]
async fn bb_w09_where_the_tool_can_be_asked_no_person_is_needed_after_a_restart() {
    let asked = "write: { status_query: { tool: lookup_order, arguments: { order_id: { from: /order_ref } }, executed_when: { pointer: /value/status, equals: in_transit }, not_executed_when: { pointer: /value/status, equals: none }, settle: 100ms }, fingerprint: [/order_ref]";
    let fixture = Fixture::new().with("write: { fingerprint: [/order_ref]", asked);
    let house = House::new(fixture).await;
    let process = house.start().await;
    house.tool.script("/create", [Reply::ApplyThenHang]);
    let asking = agent(&process, "r");
    let asking = tokio::spawn(async move {
        let asked = async move { asking.call("create_order", "c1", &create("R9")).await };
        drop(tokio::spawn(asked).await);
    });
    wait_for("the effect", SOON, async || house.tool.effects("R9") == 1).await;
    let process = house.restart(process).await;
    asking.await.expect("it ended");
    let again = write(&process, "r", "c2", "R9").await;
    assert_eq!(
        (&again["error"], &again["executed"]),
        (&"result_lost".into(), &"yes".into()),
        "{again}"
    );
    assert_eq!((house.tool.hits("/create"), house.tool.effects("R9")), (1, 1));
}

#[tokio::test]
async fn bb_w10_fifty_at_once_through_all_front_ends_are_one_write_before_and_after_a_restart() {
    let house = House::new(Fixture::new()).await;
    let process = house.start().await;
    house.tool.script("/create", [Reply::ApplyAfter(Duration::from_millis(200))]);
    let round = async |process: &Process, round: &str| {
        let calls = (0..50).map(|n| {
            let form = Form::ALL.get(n % 6).copied();
            let run = format!("{round}-{n}");
            let (agent, data) =
                (process.agent(form.unwrap_or(Form::OpenaiChat), &run), process.data);
            tokio::spawn(async move {
                let (id, arguments) = (format!("c{n}"), create("R10"));
                match (form, n % 6) {
                    (Some(_), _) => {
                        agent.ask(&[(&id, "create_order", &arguments)]).await.answer(&id).clone()
                    }
                    (None, 3) => agent.call("create_order", &id, &arguments).await.json(),
                    (None, of) => {
                        let revision = if of == 4 { "2025-11-25" } else { "2026-07-28" };
                        let fields = [("checkrein-run", &*run)];
                        let none = serde_json::json!({});
                        let agent = Remote::open_with(data, revision, &none, &fields).await;
                        let arguments = serde_json::from_str(&arguments).expect("JSON");
                        let told = agent.call("create_order", &arguments).await;
                        match told["isError"].as_bool() {
                            Some(true) => told["structuredContent"].clone(),
                            _ => serde_json::json!({"value": told["structuredContent"]}),
                        }
                    }
                }
            })
        });
        for call in calls.collect::<Vec<_>>() {
            let answer = call.await.expect("no panic");
            let waits = answer["error"] == "in_progress";
            assert!(waits || answer["value"]["done"] == true, "{answer}");
        }
    };
    round(&process, "first").await;
    let process = house.restart(process).await;
    round(&process, "second").await;
    assert_eq!((house.tool.hits("/create"), house.tool.effects("R10")), (1, 1));
}

#[tokio::test]
async fn bb_w13_a_memory_shorter_than_the_run_is_refused_and_a_doubt_outlives_every_memory() {
    let short = Fixture::new().with(
        "write: { fingerprint: [/order_ref], drain",
        "write: { ttl: 5s, fingerprint: [/order_ref], drain",
    );
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, filled(folder.path(), &short.text("http://127.0.0.1:1")))
        .expect("written");
    let (code, out, err) = verb(&["check", &file.display().to_string()]);
    let said = out + &err;
    assert_eq!(code, 1, "{said}");
    // The memory; and wall clock, total and drain together.
    assert!(said.contains("CR4003") && said.contains("5s") && said.contains("14s"), "{said}");

    let house = House::new(Fixture::new()).await;
    let mut process = house.start().await;
    house.tool.script("/create", [Reply::Ok, Reply::ApplyThenReset, Reply::Ok]);
    assert_eq!(write(&process, "r", "c1", "DONE").await["ok"], true);
    assert_eq!(write(&process, "r", "c2", "LOST").await["error"], "outcome_unknown");
    process.signal("KILL");
    process.exit().await;
    // Years go by.
    assert_eq!(house.by_hand("UPDATE entries SET changed_ms = 1000"), 2);
    let process = house.start().await;
    assert_eq!(write(&process, "r", "c3", "LOST").await["error"], "review_required");
    let anew = write(&process, "r", "c4", "DONE").await;
    assert_eq!((&anew["ok"], &anew["replayed"]), (&true.into(), &Value::Null), "{anew}");
    assert_eq!((house.tool.effects("LOST"), house.tool.effects("DONE")), (1, 2));
}

#[tokio::test]
async fn bb_w14_other_arguments_under_one_key_conflict_before_and_after_a_restart() {
    let house = House::new(Fixture::new()).await;
    let process = house.start().await;
    let first = write(&process, "r", "c1", "R14").await;
    let other = r#"{"order_ref":"R14","sku":"A","qty":2}"#;
    let conflict = async |process: &Process, id: &str| {
        let answer = agent(process, "r").call("create_order", id, other).await;
        assert_eq!((answer.status, &answer.json()["error"]), (422, &"idempotency_conflict".into()));
        assert_eq!(answer.json()["faults"][0]["at"], "/qty", "{}", answer.text());
    };
    conflict(&process, "c2").await;
    let process = house.restart(process).await;
    conflict(&process, "c3").await;
    let again = write(&process, "r", "c4", "R14").await;
    replayed(&again);
    assert_eq!(again["value"], first["value"]);
    assert_eq!((house.tool.hits("/create"), house.tool.effects("R14")), (1, 1));
}

#[tokio::test]
async fn bb_w16_no_agent_is_told_what_another_ones_write_came_to() {
    let global = Fixture::new().with(
        "write: { fingerprint: [/order_ref]",
        "write: { scope: global, fingerprint: [/order_ref]",
    );
    for (fixture, shared) in [(Fixture::new(), false), (global, true)] {
        let house = House::new(fixture).await;
        let process = house.start().await;
        house.tool.script(
            "/create",
            [
                Reply::Json(r#"{"for":"for the first"}"#.into()),
                Reply::Json(r#"{"for":"the second"}"#.into()),
            ],
        );
        let first = write(&process, "r", "c1", "R16").await;
        assert_eq!(first["value"]["for"], "for the first");
        let process = house.restart(process).await;
        let other = agent(&process, "r2").with_token(crate::support::fixture::TOKEN_A);
        let answer = other.call("create_order", "c1", &create("R16")).await;
        assert!(!answer.text().contains("for the first"), "{}", answer.text());
        if shared {
            assert_eq!((answer.status, &answer.json()["executed"]), (422, &"yes".into()));
        } else {
            assert_eq!(answer.json()["value"]["for"], "the second", "{}", answer.text());
        }
        let effects = if shared { 1 } else { 2 };
        assert_eq!(house.tool.effects("R16"), effects);
        replayed(&write(&process, "r", "c2", "R16").await);
    }
}

/// Ids of runs and calls are chosen by whoever asks, and a start forgets whose run was whose.
#[tokio::test]
async fn bb_w16_the_ids_of_another_agent_s_call_answer_nothing_after_a_restart() {
    let global = Fixture::new().with(
        "write: { fingerprint: [/order_ref]",
        "write: { scope: global, fingerprint: [/order_ref]",
    );
    let house = House::new(global).await;
    let process = house.start().await;
    let refusal = Reply::Full {
        apply: false,
        status: 422,
        headers: vec![],
        body: b"for the first, refused".to_vec(),
    };
    house.tool.script("/create", [Reply::Json(r#"{"for":"for the first"}"#.into()), refusal]);
    assert_eq!(write(&process, "r", "c1", "R16").await["value"]["for"], "for the first");
    let refused = write(&process, "r", "c2", "R17").await;
    assert!(refused["message"].to_string().contains("for the first"), "{refused}");
    let process = house.restart(process).await;
    house.tool.script("/create", [Reply::Ok]);
    let other = agent(&process, "r").with_token(crate::support::fixture::TOKEN_A);
    let done = other.call("create_order", "c1", &create("R16")).await;
    assert!(!done.text().contains("for the first"), "{}", done.text());
    assert_eq!(done.json()["executed"], "yes", "{}", done.text());
    let free = other.call("create_order", "c2", &create("R17")).await;
    assert_eq!(free.json()["ok"], true, "what did not happen binds nobody: {}", free.text());
    assert_eq!((house.tool.effects("R16"), house.tool.effects("R17")), (1, 1));
    replayed(&other.call("create_order", "c3", &create("R17")).await.json());
}

#[tokio::test]
async fn bb_w16_the_record_names_both_agents() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    let first = gateway.agent(Form::OpenaiChat, "r");
    let second = gateway.agent(Form::OpenaiChat, "r2").with_token(crate::support::fixture::TOKEN_A);
    for agent in [first, second] {
        assert_eq!(agent.call("create_order", "c1", &create("R16")).await.json()["ok"], true);
    }
    let both = async || {
        let of = |agent: &str| {
            let records = gateway.records();
            let found = records.iter().find(|r| r["kind"] == "call" && r["agent"] == agent);
            found.map(|record| record["operation"].clone())
        };
        of("default").is_some() && of("agent-a").is_some() && of("default") != of("agent-a")
    };
    wait_for("both records, of two operations", SOON, both).await;
}

#[tokio::test]
async fn bb_w18_one_operation_has_one_key_on_every_attempt_and_after_a_restart() {
    let keyed = "write: { not_executed_on: [503], idempotency: { mode: header, window: 1h }, fingerprint: [/order_ref]";
    let house = House::new(Fixture::new().with("write: { fingerprint: [/order_ref]", keyed)).await;
    let process = house.start().await;
    house.tool.script("/create", [Reply::Status(503), Reply::Status(503), Reply::Ok]);
    for id in ["c1", "c2"] {
        assert_eq!(write(&process, "r", id, "R18").await["executed"], "no");
    }
    let process = house.restart(process).await;
    assert_eq!(write(&process, "r3", "c3", "R18").await["ok"], true);
    let requests = house.tool.requests();
    let keys: Vec<_> = requests.iter().map(|request| request.header("idempotency-key")).collect();
    assert!(keys.len() == 3 && keys[0].is_some_and(|key| key.len() == 43), "{keys:?}");
    assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
}

#[tokio::test]
async fn bb_w19_a_definite_refusal_stays_a_failure_and_binds_nobody_after_a_restart() {
    let house = House::new(Fixture::new()).await;
    let process = house.start().await;
    let unknown_sku = Reply::Full {
        apply: false,
        status: 422,
        headers: vec![("content-type", "application/json".into())],
        body: br#"{"error":"sku unknown"}"#.to_vec(),
    };
    house.tool.script("/create", [unknown_sku.clone(), unknown_sku, Reply::Ok]);
    let failure = |answer: &Value| {
        assert_eq!((&answer["ok"], &answer["executed"]), (&false.into(), &"no".into()), "{answer}");
        assert!(
            answer["message"].as_str().is_some_and(|text| text.contains("sku unknown")),
            "{answer}"
        );
    };
    failure(&write(&process, "r", "c1", "R19").await);
    // The same call is told the same; another one is a fresh attempt.
    failure(&write(&process, "r", "c1", "R19").await);
    assert_eq!(house.tool.hits("/create"), 1);
    failure(&write(&process, "r2", "c2", "R19").await);
    let process = house.restart(process).await;
    failure(&write(&process, "r", "c1", "R19").await);
    assert_eq!(house.tool.hits("/create"), 2);
    let mended = r#"{"order_ref":"R19","sku":"B","qty":1}"#;
    let answer = agent(&process, "r").call("create_order", "c3", mended).await.json();
    assert_eq!(answer["ok"], true, "{answer}");
    assert_eq!(house.tool.effects("R19"), 1);
}

/// A finished row whose result is gone, and one that makes no sense: neither runs again, neither is "in progress".
#[tokio::test]
async fn bb_w23_a_damaged_record_is_told_as_such_and_sends_nothing() {
    let house = House::new(Fixture::new()).await;
    let mut process = house.start().await;
    for reference in ["GONE", "TORN"] {
        assert_eq!(write(&process, "r", reference, reference).await["ok"], true);
    }
    process.signal("KILL");
    process.exit().await;
    assert_eq!(house.by_hand("DELETE FROM results WHERE rowid IN (SELECT r.rowid FROM results r JOIN entries e USING (identity, occurrence) WHERE e.arguments LIKE '%GONE%')"), 1);
    assert_eq!(
        house.by_hand("UPDATE entries SET answer = 'what' WHERE arguments LIKE '%TORN%'"),
        1
    );
    let process = house.start().await;
    let gone = agent(&process, "r2").call("create_order", "c1", &create("GONE")).await;
    assert_eq!(
        (gone.status, &gone.json()["error"], &gone.json()["executed"]),
        (502, &"result_lost".into(), &"yes".into())
    );
    let torn = agent(&process, "r2").call("create_order", "c2", &create("TORN")).await;
    assert_eq!((torn.status, &torn.json()["error"]), (409, &"review_required".into()));
    let (_, shown, _) = verb(&["reviews", "list", "--admin", &house.admin()]);
    assert!(shown.contains("damaged"), "{shown}");
    assert_eq!(house.tool.hits("/create"), 2);
}

#[tokio::test]
async fn bb_w24_a_business_key_outlives_its_run_and_its_gateway() {
    let house = House::new(Fixture::new()).await;
    let process = house.start().await;
    let first = write(&process, "run-1", "c1", "R24").await;
    assert_eq!(first["ok"], true);
    let process = house.restart(process).await;
    let second = write(&process, "run-2", "c1", "R24").await;
    replayed(&second);
    assert_eq!((&second["value"], house.tool.effects("R24")), (&first["value"], 1));
}

#[tokio::test]
async fn bb_w28_a_late_answer_is_still_known_after_a_restart() {
    let slow =
        Fixture::new().with("first_byte: 500ms, total: 1s", "first_byte: 300ms, total: 300ms");
    let house = House::new(slow).await;
    let process = house.start().await;
    house.tool.script("/create", [Reply::ApplyAfter(Duration::from_millis(600))]);
    let first = write(&process, "r", "c1", "R28").await;
    assert_eq!(first["error"], "outcome_unknown", "{first}");
    let settled = async || {
        let labels = [("tool", "create_order"), ("by", "late_answer")];
        process.metrics().await.sum("checkrein_write_upgrades_total", &labels) == 1.0
    };
    wait_for("the late answer in the ledger", SOON, settled).await;
    let process = house.restart(process).await;
    let again = write(&process, "r", "c2", "R28").await;
    replayed(&again);
    assert_eq!(again["value"]["done"], true);
    assert_eq!((house.tool.hits("/create"), house.tool.effects("R28")), (1, 1));
}

/// The part that every front end has: agents that are gone in the middle of their answer.
#[tokio::test]
async fn bb_m25_a_hundred_agents_that_reset_in_the_middle_of_an_answer_harm_nobody() {
    let house = House::new(Fixture::new().budgets("calls: 10000")).await;
    let process = house.start().await;
    house.tool.script("/orders", [Reply::After(Duration::from_millis(20))]);
    let files = process.open_files();
    for n in 0..100 {
        let mut stream = tokio::net::TcpStream::connect(process.data).await.expect("connected");
        let (run, body) = (format!("r{n}"), order("A17"));
        let fields = [("checkrein-run", run.as_str())];
        let request = http::bytes_of("POST", "/v1/tools/lookup_order", &fields, body.as_bytes());
        stream.write_all(&request).await.expect("sent");
        if n % 2 == 0 {
            stream.readable().await.expect("its answer begins");
        }
        // Closing with linger 0 sends RST.
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a socket option");
    }
    let answer = agent(&process, "last").call("lookup_order", "c", &order("A17")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    // A few idle connections to the tool stay; nothing of the agents does.
    let gone = async || process.open_files() <= files + 34;
    wait_for("the end of all connections", SOON, gone).await;
    let quiet = async || process.metrics().await.sum("checkrein_inflight_calls", &[]) == 0.0;
    wait_for("the end of all calls", SOON, quiet).await;
}
