//! Servers that answer a call with a task: taken where the policy says so, followed to its end whoever waits, and never
//! begun twice.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::peer::ask_modern;
use super::rig::{Rig, Stands, ended, evidence, parsed, policy, stands, text};
use crate::front_ends::kit::House;
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};
use crate::support::process::filled;
use crate::support::{Gateway, Process, http, wait_for};

const S: Duration = Duration::from_secs(1);
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const USE: &str =
    "timeout: { connect: 1s, first_byte: 2s, idle: 500ms, total: 4s }\n    tasks: use";
/// Of a call whose time is soon over, and whose exchange is soon given up.
const SHORT: &str = "timeout: { connect: 500ms, first_byte: 500ms, total: 600ms }\n    tasks: use\n    write: { drain: 300ms, fingerprint: [/n] }";

async fn server() -> ScriptedServer {
    let mut make = tool("make", json!({"n": {"type": "integer"}}));
    make["inputSchema"]["required"] = json!(["n"]);
    ScriptedServer::modern(vec![tool("look", json!({"n": {}})), make]).await
}

fn writes(server: &ScriptedServer, keys: &'static str) -> Stands {
    Stands { reads: Vec::new(), keys, ..stands("srv", server) }
}

/// As the extension writes a task: flat, with its times.
fn task(status: &str, more: &Value) -> Value {
    let mut task = json!({
        "resultType": "complete", "taskId": "t-1", "status": status, "ttlMs": 60_000, "pollIntervalMs": 50,
        "createdAt": "2026-07-28T00:00:00Z", "lastUpdatedAt": "2026-07-28T00:00:00Z",
    });
    for (name, value) in more.as_object().expect("members") {
        task[name] = value.clone();
    }
    task
}

fn working() -> Does {
    Does::Result(task("working", &json!({})))
}

fn completed(is_error: bool) -> Does {
    let content = json!([{"type": "text", "text": "made at last"}]);
    let result = json!({"content": content, "isError": is_error});
    Does::Result(task("completed", &json!({ "result": result })))
}

/// The tool runs, and is answered with a handle.
fn begins() -> Does {
    let handle = task("working", &json!({"resultType": "task"}));
    Does::Stream(vec![Piece::Run, Piece::Answer(handle)])
}

/// `make` of a server whose task comes to these.
async fn made(states: impl IntoIterator<Item = Does>) -> (ScriptedServer, Rig) {
    let server = server().await;
    server.script("make", [begins()]);
    server.script("tasks/get", states);
    let rig = Rig::ready(&[writes(&server, USE)]).await;
    (server, rig)
}

fn declared(server: &ScriptedServer, method: &str) -> Value {
    let seen = server.of(method);
    seen.last().expect("one was sent").body["params"]["_meta"][CAPABILITIES].clone()
}

#[tokio::test]
async fn a_write_that_is_answered_with_a_task_has_its_result_by_asking_for_it() {
    // Slower than the idle limit: what does not come between questions is no sign of a dead tool.
    let slow = Does::Result(task("working", &json!({"pollIntervalMs": 700})));
    let (server, rig) = made([working(), slow, completed(false)]).await;
    let answer = rig.call("make", r#"{"n":1}"#).await;
    let result = parsed(&text(&answer.outcome));
    assert_eq!(result["content"][0]["text"], "made at last");
    assert_eq!(result.get("taskId"), None, "the result is the call's, not the task's: {result}");
    let extension = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    for method in ["tools/call", "tasks/get"] {
        assert_eq!(declared(&server, method), extension, "{method}");
    }
    assert_eq!(declared(&server, "server/discover"), json!({}), "of calls alone");
    let polls = server.of("tasks/get");
    assert_eq!(polls.len(), 3);
    for poll in polls {
        assert_eq!(
            (&poll.body["params"]["taskId"], poll.header("mcp-name")),
            (&json!("t-1"), Some("t-1"))
        );
    }
    assert_eq!((server.of("tools/call").len(), server.runs("make"), rig.reviews()), (1, 1, 0));
}

#[tokio::test]
async fn a_completed_task_may_hold_an_error_of_its_tool() {
    let (server, rig) = made([completed(true)]).await;
    let answer = rig.call("make", r#"{"n":1}"#).await;
    assert_eq!(ended(&answer.outcome), ("tool_error", "yes"));
    assert_eq!((server.of("tools/call").len(), rig.reviews()), (1, 0));
}

#[tokio::test]
async fn a_failed_task_proves_what_its_json_rpc_error_proves() {
    let failed = |code: i64| {
        let error = json!({"code": code, "message": "it went wrong"});
        Does::Result(task("failed", &json!({ "error": error })))
    };
    for (code, known, proof, open) in [
        (-32602, ("tool_error", "no"), "jsonrpc_-32602", 0),
        (-32603, ("outcome_unknown", "unknown"), "", 1),
    ] {
        let (server, rig) = made([failed(code)]).await;
        let answer = rig.call("make", r#"{"n":1}"#).await;
        assert_eq!((ended(&answer.outcome), evidence(&answer.outcome).as_str()), (known, proof));
        assert_eq!((server.of("tools/call").len(), rig.reviews()), (1, open), "{code}");
    }
}

#[tokio::test]
async fn a_task_that_is_cancelled_forgotten_or_wants_input_leaves_a_write_unknown() {
    let needs = task("input_required", &json!({"inputRequests": {}}));
    for (last, words) in [
        (Does::Result(task("cancelled", &json!({"statusMessage": "by a person"}))), "by a person"),
        (Does::Error(-32602, "no such task"), "no such task"),
        (Does::Result(needs), "needs input"),
        (
            Does::Result(json!({"taskId": "t-2", "status": "completed", "result": {}})),
            "another task",
        ),
        (Does::Result(json!({"taskId": "t-1", "status": "done"})), "makes no sense"),
    ] {
        let (server, rig) = made([working(), last]).await;
        let answer = rig.call("make", r#"{"n":1}"#).await;
        assert_eq!(ended(&answer.outcome), ("outcome_unknown", "unknown"), "{words}");
        let told = format!("{:?}", answer.outcome);
        assert!(told.contains(words), "{told}");
        assert_eq!((server.of("tools/call").len(), rig.reviews()), (1, 1), "{words}");
        assert!(server.of("tasks/cancel").is_empty(), "a write is not taken back");
    }
}

#[tokio::test]
async fn a_read_whose_task_outlasts_it_is_cancelled() {
    let server = server().await;
    server.script("look", [begins()]);
    server.script("tasks/get", [working()]);
    server.script("tasks/cancel", [Does::Result(json!({"resultType": "complete"}))]);
    let keys = "timeout: { connect: 500ms, first_byte: 500ms, total: 700ms }\n    tasks: use\n    retry: { max_retries: 0 }";
    let rig = Rig::ready(&[Stands { writes: Vec::new(), keys, ..stands("srv", &server) }]).await;
    let answer = rig.call("look", "{}").await;
    assert_eq!(ended(&answer.outcome).0, "upstream_timeout");
    wait_for("the cancellation", 5 * S, async || !server.of("tasks/cancel").is_empty()).await;
    assert_eq!(server.of("tasks/cancel")[0].body["params"]["taskId"], "t-1");
    assert_eq!(server.of("tools/call").len(), 1);
    let asked = server.of("tasks/get").len();
    assert!(asked > 0);
    // It has its result where there is time.
    server.script("tasks/get", [completed(false)]);
    let answer = rig.call("look", r#"{"n":2}"#).await;
    assert_eq!(parsed(&text(&answer.outcome))["content"][0]["text"], "made at last");
    assert_eq!(server.of("tasks/cancel").len(), 1, "what has ended is not cancelled");
}

#[tokio::test]
async fn where_tasks_are_ignored_nothing_is_declared_and_a_task_is_no_answer() {
    let server = server().await;
    server.script("make", [begins()]);
    let rig = Rig::ready(&[writes(&server, "tasks: ignore")]).await;
    let answer = rig.call("make", r#"{"n":1}"#).await;
    assert_eq!(ended(&answer.outcome), ("outcome_unknown", "unknown"));
    assert_eq!(declared(&server, "tools/call"), json!({}));
    assert!(server.of("tasks/get").is_empty());
}

#[tokio::test]
async fn an_older_server_is_called_as_if_nothing_had_been_said_of_tasks() {
    let server = ScriptedServer::legacy("2025-11-25", vec![tool("make", json!({}))]).await;
    let rig = Rig::ready(&[writes(&server, USE)]).await;
    let answer = rig.call("make", "{}").await;
    assert_eq!(ended(&answer.outcome), ("ok", "yes"));
    let seen = server.seen();
    let said = |seen: &crate::support::mcp::Seen| seen.body.to_string().contains("task");
    assert!(!seen.iter().any(said), "{seen:?}");
}

/// The same write again, as whoever asks for it.
async fn make(data: std::net::SocketAddr, run: &str) -> Value {
    let fields = [("content-type", "application/json"), ("checkrein-run", run)];
    http::request(data, "POST", "/v1/tools/make", &fields, br#"{"n":1}"#).await.json()
}

#[tokio::test]
async fn a_task_is_asked_for_when_nobody_waits_any_more() {
    let server = server().await;
    server.script("make", [begins()]);
    server.script("tasks/get", [working()]);
    let text = policy(&[writes(&server, SHORT)]).replace("DIR/b", "TOKEN_B");
    let gateway = Gateway::start(&text).await;
    let listed = async || http::get(gateway.data, "/v1/tools").await.text().contains("make");
    wait_for("the tool", 5 * S, listed).await;
    let told = make(gateway.data, "one").await;
    assert_eq!(
        (&told["error"], &told["executed"]),
        (&json!("outcome_unknown"), &json!("unknown")),
        "{told}"
    );
    let open = async || gateway.metrics().await.sum("checkrein_reviews_open", &[]);
    assert_eq!(open().await, 1.0);
    let blocked = make(gateway.data, "two").await;
    assert_eq!(blocked["error"], "review_required", "{blocked}");
    let asked = server.of("tasks/get").len();
    wait_for("more questions", 5 * S, async || server.of("tasks/get").len() > asked + 2).await;
    server.script("tasks/get", [completed(false)]);
    wait_for("the review to be settled", 5 * S, async || open().await == 0.0).await;
    let settled = server.of("tasks/get").len();
    let again = make(gateway.data, "three").await;
    assert!(again.to_string().contains("made at last"), "{again}");
    assert_eq!((server.of("tools/call").len(), server.runs("make")), (1, 1));
    assert_eq!(server.of("tasks/get").len(), settled, "what is known is not asked for");
    let metrics = gateway.metrics().await;
    let upgrades = ["late_answer", "status_query"]
        .map(|by| metrics.sum("checkrein_write_upgrades_total", &[("by", by)]));
    assert_eq!(upgrades.iter().sum::<f64>(), 1.0, "{upgrades:?}");
}

async fn start(server: &ScriptedServer, state: &Path) -> Process {
    start_with(writes(server, SHORT), state, &[]).await
}

async fn start_with(stand: Stands, state: &Path, wrap: &[&str]) -> Process {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.yaml");
    let text = policy(&[stand]).replace("DIR/b", "TOKEN_B");
    std::fs::write(&file, filled(folder.path(), &text)).expect("written");
    let state = state.display().to_string();
    let process = Process::start_at(folder, &file, &["--state", &state], wrap).await;
    let listed = async || http::get(process.data, "/v1/tools").await.text().contains("make");
    wait_for("the tool", 10 * S, listed).await;
    process
}

/// The one row of the store: its state, and its task.
fn row(state: &Path) -> (String, Option<String>) {
    let store = rusqlite::Connection::open(state.join("store.db")).expect("it opens");
    let got = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    store.query_row("SELECT state, task FROM entries", [], got).expect("one row")
}

#[tokio::test]
async fn a_task_handle_settles_an_unknown() {
    let server = server().await;
    let state = tempfile::tempdir().expect("a folder");
    server.script("make", [begins()]);
    // The first question is not answered: meanwhile the store is looked at.
    server.script("tasks/get", [Does::Hang, working()]);
    let process = start(&server, state.path()).await;
    let first = make(process.data, "one");
    let looking = async {
        wait_for("a question", 5 * S, async || !server.of("tasks/get").is_empty()).await;
        row(state.path())
    };
    let (told, kept) = tokio::join!(first, looking);
    assert_eq!(kept, ("intent".into(), Some("t-1".into())), "on record before the first question");
    assert_eq!(
        (&told["error"], &told["executed"]),
        (&json!("outcome_unknown"), &json!("unknown")),
        "{told}"
    );
    process.signal("KILL");
    drop(process);
    server.script("tasks/get", [working(), working(), completed(false)]);
    let before = server.of("tasks/get").len();
    let process = start(&server, state.path()).await;
    let open = async || process.metrics().await.sum("checkrein_reviews_open", &[]);
    wait_for("the review to be settled", 10 * S, async || open().await == 0.0).await;
    assert!(server.of("tasks/get").len() >= before + 3, "the handle outlived the process");
    let again = make(process.data, "two").await;
    assert!(again.to_string().contains("made at last"), "{again}");
    assert_eq!(again["replayed"], true, "{again}");
    assert_eq!(row(state.path()).0, "executed");
    assert_eq!((server.of("tools/call").len(), server.runs("make")), (1, 1), "begun once");
}

/// The crash matrix of a task: before its handle is on record, and after. What began it is never sent again.
#[tokio::test]
async fn a_crash_at_either_side_of_a_handle_s_record_is_survived() {
    if !cfg!(debug_assertions) {
        return; // a release build has no points to die at
    }
    for (point, kept) in [
        ("ledger: before a task is on record", None),
        ("ledger: after a task is on record", Some("t-1".to_owned())),
    ] {
        let server = server().await;
        let state = tempfile::tempdir().expect("a folder");
        server.script("make", [begins()]);
        server.script("tasks/get", [completed(false)]);
        let plan = format!("CHECKREIN_CRASH_AT=1 {point}");
        let process = start_with(writes(&server, SHORT), state.path(), &["env", &plan]).await;
        let reached = async {
            wait_for("the point", 10 * S, async || {
                server.runs("make") == 1 && row(state.path()) == ("intent".into(), kept.clone())
            })
            .await;
            process.signal("KILL");
        };
        tokio::select! {
            () = reached => {}
            told = make(process.data, "one") => panic!("{point}: {told}"),
        }
        drop(process);
        assert!(server.of("tasks/get").is_empty(), "{point}: nothing before it is on record");
        let process = start(&server, state.path()).await;
        let open = async || process.metrics().await.sum("checkrein_reviews_open", &[]);
        if kept.is_some() {
            wait_for("the review to be settled", 10 * S, async || open().await == 0.0).await;
            let again = make(process.data, "two").await;
            assert!(again.to_string().contains("made at last"), "{point}: {again}");
        } else {
            let again = make(process.data, "two").await;
            assert_eq!(again["error"], "review_required", "{point}: {again}");
            assert_eq!(open().await, 1.0, "{point}: a person looks");
        }
        assert_eq!((server.of("tools/call").len(), server.runs("make")), (1, 1), "{point}");
    }
}

#[tokio::test]
async fn whoever_asks_again_has_the_task_asked_for_at_once() {
    let server = server().await;
    server.script("make", [begins()]);
    server.script("tasks/get", [working()]);
    let rig = Rig::ready(&[writes(&server, SHORT)]).await;
    let answer = rig.call("make", r#"{"n":1}"#).await;
    assert_eq!(ended(&answer.outcome).0, "outcome_unknown");
    server.script("tasks/get", [completed(false)]);
    let again = rig.call("make", r#"{"n":1}"#).await;
    assert_eq!(parsed(&text(&again.outcome))["content"][0]["text"], "made at last");
    assert_eq!((server.of("tools/call").len(), rig.reviews()), (1, 0));
}

/// Facing agents tasks are not offered: nothing is advertised, and their methods are unknown.
#[tokio::test(start_paused = true)]
async fn agents_are_offered_no_tasks() {
    let house = House::new();
    let got = ask_modern(&house, None, "1", "server/discover", &json!({})).await;
    assert!(!got.result()["capabilities"].to_string().contains("tasks"), "{got:?}");
    for method in ["tasks/get", "tasks/update", "tasks/cancel", "tasks/result", "tasks/list"] {
        let got = ask_modern(&house, None, "1", method, &json!({"taskId": "t-1"})).await;
        assert_eq!((got.status, got.code()), (404, -32601), "{method}: {got:?}");
    }
    let asked =
        json!({"name": "lookup_order", "arguments": {"order_id": "A17"}, "task": {"ttl": 1}});
    let got = ask_modern(&house, None, "2", "tools/call", &asked).await;
    assert_eq!(got.result()["structuredContent"]["got"]["order_id"], "A17", "answered as any call");
}
