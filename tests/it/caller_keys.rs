//! `Idempotency-Key` from the agent's code, as draft-ietf-httpapi-idempotency-key-header has it: 400 where it is
//! missing or malformed, 422 for another payload, 409 while the first one runs. For tools with and without fingerprint.

use std::time::Duration;

use serde_json::Value;

use crate::support::process::filled;
use crate::support::{Agent, Fixture, Form, Gateway, Process, Reply, ScriptedTool, http, wait_for};

const SOON: Duration = Duration::from_secs(30);

/// A tool by its name, its path, a call of it, and another payload under the same fingerprint, where it has one.
struct Case {
    tool: &'static str,
    path: &'static str,
    first: &'static str,
    other: &'static str,
}

const CASES: [Case; 2] = [
    Case {
        tool: "create_order",
        path: "/create",
        first: r#"{"order_ref":"K1","sku":"A","qty":1}"#,
        other: r#"{"order_ref":"K1","sku":"A","qty":2}"#,
    },
    Case { tool: "pay", path: "/pay", first: r#"{"account_id":1}"#, other: r#"{"account_id":2}"# },
];

fn required() -> Fixture {
    Fixture::new()
        .with(
            "write: { fingerprint: [/order_ref]",
            "write: { caller_key: required, fingerprint: [/order_ref]",
        )
        .with(
            "write: { drain: 3s }\n  delete",
            "write: { caller_key: required, drain: 3s }\n  delete",
        )
}

async fn ask(agent: &Agent, case: &Case, key: Option<&str>, body: &str) -> (u16, Value) {
    let fields: Vec<_> = key.iter().map(|key| ("idempotency-key", *key)).collect();
    let answer = agent.post(&format!("/v1/tools/{}", case.tool), &fields, body.as_bytes()).await;
    (answer.status, answer.json())
}

#[tokio::test]
async fn a_malformed_key_refuses_the_request_with_and_without_a_fingerprint() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    let long = "k".repeat(256);
    let longest = "k".repeat(255);
    let quoted = format!("\"{long}\"");
    for case in &CASES {
        let path = format!("/v1/tools/{}", case.tool);
        let ask = async |values: &[&str]| {
            let fields: Vec<_> = values.iter().map(|value| ("idempotency-key", *value)).collect();
            http::request(gateway.data, "POST", &path, &fields, case.first.as_bytes()).await
        };
        for value in [
            "",
            "\"\"",
            &long,
            &quoted,
            "a\tb",
            "\"a\tb\"",
            "a\u{1}b",
            "a\u{7f}b",
            "schlüssel",
            "\"open",
            "open\u{0}",
            "\"a\" b",
            "\"a\"b",
            "\"a\\b\"",
            "\"a\\",
            "\"a\";p=1",
            "\"a\", \"b\"",
        ] {
            let answer = ask(&[value]).await;
            assert_eq!(answer.status, 400, "{} {value:?}: {}", case.tool, answer.text());
        }
        for twice in [["k1", "k2"], ["k1", "k1"], ["k1", ""]] {
            let answer = ask(&twice).await;
            assert_eq!((answer.status, &answer.json()["error"]), (400, &"invalid_request".into()));
        }
        assert_eq!(tool.hits(case.path), 0, "{}", case.tool);
        let answer = ask(&[&longest]).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

#[tokio::test]
async fn a_required_key_that_is_missing_is_400_with_and_without_a_fingerprint() {
    let tool = ScriptedTool::start().await;
    let gateway = required().start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    for case in &CASES {
        let (status, answer) = ask(&agent, case, None, case.first).await;
        assert_eq!((status, &answer["executed"]), (400, &"no".into()), "{answer}");
        assert!(answer["message"].as_str().is_some_and(|text| text.contains("Idempotency-Key")));
        // A batch has no place for one: its calls of such a tool are refused.
        let turned = agent.ask(&[(case.tool, case.tool, case.first)]).await;
        assert_eq!(turned.error(case.tool), "invalid_request");
        assert_eq!(tool.hits(case.path), 0);
        assert_eq!(ask(&agent, case, Some("k"), case.first).await.0, 200);
    }
    // What the fingerprint says was done is not called undone for want of a key.
    let (status, answer) = ask(&agent, &CASES[0], None, CASES[0].first).await;
    assert_eq!((status, &answer["error"]), (400, &"invalid_request".into()), "{answer}");
    assert_eq!((&answer["executed"], &answer["retry"]), (&"yes".into(), &"never".into()));
}

async fn original_and_other(agent: &Agent, tool: &ScriptedTool, hits: usize) {
    for case in &CASES {
        let (status, first) = ask(agent, case, Some("k1"), case.first).await;
        assert_eq!((status, tool.hits(case.path)), (200, hits), "{first}");
        let (status, other) = ask(agent, case, Some("k1"), case.other).await;
        assert_eq!((status, &other["error"]), (422, &"idempotency_conflict".into()), "{other}");
        assert!(!other["faults"].as_array().expect("what changed").is_empty(), "{other}");
        let (status, again) = ask(agent, case, Some("\"k1\""), case.first).await;
        assert_eq!((status, &again["value"]), (200, &first["value"]), "{again}");
        assert_eq!(tool.hits(case.path), hits, "{}", case.tool);
    }
}

async fn start(tool: &ScriptedTool, state: &std::path::Path) -> Process {
    let folder = tempfile::tempdir().expect("a folder");
    let policy = folder.path().join("policy.yaml");
    std::fs::write(&policy, filled(folder.path(), &required().text(&tool.url()))).expect("written");
    let state = state.display().to_string();
    Process::start_at(folder, &policy, &["--state", &state], &[]).await
}

#[tokio::test]
async fn idem_01_another_payload_is_422_and_the_first_answer_stands_also_after_kill_9() {
    let tool = ScriptedTool::start().await;
    let state = tempfile::tempdir().expect("a folder");
    let process = start(&tool, state.path()).await;
    original_and_other(&process.agent(Form::OpenaiChat, "r1"), &tool, 1).await;
    for case in &CASES {
        tool.script(case.path, [Reply::Status(422), Reply::ApplyThenHang]);
        let fields = [("idempotency-key", "k4"), ("checkrein-call-id", case.tool)];
        let body = case.first.replace("K1", "K4");
        let path = format!("/v1/tools/{}", case.tool);
        let agent = process.agent(Form::OpenaiChat, "r1");
        assert_eq!(agent.post(&path, &fields, body.as_bytes()).await.json()["executed"], "no");
        // Outstanding when the gateway dies.
        let fields = [("idempotency-key", "k5"), ("checkrein-timeout-ms", "400")];
        let body = case.first.replace("K1", "K5");
        let lost = agent.post(&path, &fields, body.as_bytes()).await.json();
        assert_eq!(lost["error"], "outcome_unknown", "{lost}");
    }
    let hits: Vec<_> = CASES.iter().map(|case| tool.hits(case.path)).collect();
    assert_eq!(hits, [3, 3]);
    process.signal("KILL");
    drop(process);
    let process = start(&tool, state.path()).await;
    original_and_other(&process.agent(Form::OpenaiChat, "r2"), &tool, 3).await;
    let agent = process.agent(Form::OpenaiChat, "r1");
    for case in &CASES {
        assert_eq!(ask(&agent, case, None, case.first).await.0, 400);
        // The error of a call that ended is told to that call again; nothing is sent.
        let fields = [("idempotency-key", "k4"), ("checkrein-call-id", case.tool)];
        let body = case.first.replace("K1", "K4");
        let path = format!("/v1/tools/{}", case.tool);
        let again = agent.post(&path, &fields, body.as_bytes()).await.json();
        assert_eq!((&again["error"], &again["executed"]), (&"tool_error".into(), &"no".into()));
        let (status, unknown) =
            ask(&agent, case, Some("k5"), &case.first.replace("K1", "K5")).await;
        assert_eq!((status, &unknown["error"]), (409, &"review_required".into()));
        assert_eq!(tool.hits(case.path), 3);
    }
}

#[tokio::test]
async fn a_key_names_the_operation_only_where_no_fingerprint_does() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    let [keyed, plain] = &CASES;
    let second = keyed.first.replace("K1", "K2");
    for body in [keyed.first, &second] {
        assert_eq!(ask(&agent, keyed, Some("k1"), body).await.0, 200);
    }
    // Under another key it is still the same order.
    assert_eq!(ask(&agent, keyed, Some("k2"), keyed.first).await.1["replayed"], true);
    assert_eq!((tool.effects("K1"), tool.effects("K2"), tool.hits("/create")), (1, 1, 2));
    tool.script("/pay", [Reply::ApplyThenReset, Reply::Ok]);
    assert_eq!(ask(&agent, plain, Some("k1"), plain.first).await.1["error"], "outcome_unknown");
    assert_eq!(ask(&agent, plain, Some("k1"), plain.first).await.1["error"], "review_required");
    // A new key is a new wish of the agent's code.
    assert_eq!(ask(&agent, plain, Some("k2"), plain.first).await.0, 200);
    assert_eq!(tool.hits("/pay"), 2);
}

#[tokio::test]
async fn while_the_first_one_runs_its_key_is_409_with_and_without_a_fingerprint() {
    let tool = ScriptedTool::start().await;
    let gateway = required().start(&tool).await;
    for case in &CASES {
        tool.script(case.path, [Reply::ApplyAfter(Duration::from_millis(400)), Reply::Ok]);
        let first = gateway.agent(Form::OpenaiChat, "r1");
        let running = tokio::spawn(async move { ask(&first, case, Some("k2"), case.first).await });
        wait_for("the first request", SOON, async || tool.hits(case.path) == 1).await;
        let outstanding = async |body: &str| -> (u16, Value) {
            let fields = [("idempotency-key", "k2"), ("checkrein-timeout-ms", "50")];
            let agent = Gateway::agent(&gateway, Form::OpenaiChat, "r2");
            let answer =
                agent.post(&format!("/v1/tools/{}", case.tool), &fields, body.as_bytes()).await;
            assert!(answer.status == 422 || answer.header("retry-after").is_some());
            (answer.status, answer.json())
        };
        let (status, answer) = outstanding(case.first).await;
        assert_eq!((status, &answer["error"]), (409, &"in_progress".into()), "{answer}");
        assert_eq!(answer["executed"], "unknown");
        assert_eq!(outstanding(case.other).await.0, 422, "another payload is no wait");
        assert_eq!(running.await.expect("no panic").0, 200);
        assert_eq!(tool.hits(case.path), 1, "{}", case.tool);
    }
}
