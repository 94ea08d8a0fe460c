//! The verbs of people against the whole program: over TCP with a token and over the Unix socket.

use serde_json::{Value, json};

use super::kit::TOKENS;
use crate::support::process::verb;
use crate::support::{Fixture, Form, Process, Reply, ScriptedTool};

const R1: &str = r#"{"order_ref":"R1","sku":"A","qty":1}"#;

/// A gateway with an admin listener, and how its people reach it.
async fn started(tool: &ScriptedTool, unix: bool) -> (Process, Vec<String>) {
    started_with(&Fixture::new(), tool, unix).await
}

async fn started_with(
    fixture: &Fixture,
    tool: &ScriptedTool,
    unix: bool,
) -> (Process, Vec<String>) {
    let folder = tempfile::tempdir().expect("a folder");
    let policy = folder.path().join("policy.yaml");
    let text = crate::support::process::filled(folder.path(), &fixture.text(&tool.url()));
    std::fs::write(&policy, text).expect("written");
    let socket = format!("unix:{}", folder.path().join("admin.sock").display());
    let people = folder.path().join("people").display().to_string();
    std::fs::write(&people, TOKENS).expect("written");
    let mut more = vec!["--admin", if unix { &socket } else { "127.0.0.1:0" }];
    if !unix {
        more.extend(["--admin-token-file", &people]);
    }
    let ready = folder.path().join("ready");
    let process = Process::start_at(folder, &policy, &more, &[]).await;
    let ready = std::fs::read_to_string(ready).expect("it is ready");
    let admin = ready.lines().find_map(|line| line.strip_prefix("admin=")).expect("told where");
    let mut reach = vec!["--admin".to_owned(), admin.to_owned()];
    if !unix {
        reach.extend(["--admin-token-file".to_owned(), people, "--as".into(), "ada".into()]);
    }
    (process, reach)
}

fn run(words: &[&str], reach: &[String]) -> (i32, String, String) {
    let mut all = words.to_vec();
    all.extend(reach.iter().map(String::as_str));
    verb(&all)
}

async fn lost(tool: &ScriptedTool, process: &Process) -> String {
    tool.script("/create", [Reply::ApplyThenReset]);
    let answer = process.agent(Form::OpenaiChat, "r").call("create_order", "c1", R1).await.json();
    assert_eq!(answer["error"], "outcome_unknown", "{answer}");
    tool.script("/create", [Reply::Ok]);
    answer["operation"].as_str().expect("an operation").to_owned()
}

#[tokio::test]
async fn a_person_finds_and_settles_a_write_by_command() {
    for unix in [false, true] {
        let tool = ScriptedTool::start().await;
        let (process, reach) = started(&tool, unix).await;
        let (code, out, err) = run(&["reviews", "list"], &reach);
        assert_eq!((code, out.as_str()), (0, "no reviews\n"), "{err}");
        let operation = lost(&tool, &process).await;
        let (code, out, _) = run(&["reviews", "list"], &reach);
        assert!(code == 0 && out.contains(&operation) && out.contains("create_order"), "{out}");
        let (code, out, _) = run(&["reviews", "show", &operation], &reach);
        assert!(code == 0 && out.contains("R1") && out.contains("open"), "{out}");
        let (code, out, _) = run(&["reviews", "list", "-o", "json"], &reach);
        let listed: Value = serde_json::from_str(&out).expect("JSON");
        let version = listed["reviews"][0]["version"].as_str().expect("a version").to_owned();
        assert_eq!((code, &listed["reviews"][0]["operation"]), (0, &json!(operation)));
        let words = [
            "reviews",
            "resolve",
            &operation,
            "did_not_happen",
            "--evidence",
            "not in the shop's list",
            "--version",
            &version,
        ];
        let (code, out, err) = run(&words, &reach);
        assert!(code == 0 && out.contains("sent: the operation is free"), "{out} {err}");
        let (code, out, err) = run(&words, &reach);
        assert_eq!(code, 1, "somebody was first: {out} {err}");
        let again =
            process.agent(Form::OpenaiChat, "r").call("create_order", "c2", R1).await.json();
        assert_eq!(again["ok"], true, "{again}");
        assert_eq!(tool.hits("/create"), 2);
    }
}

#[tokio::test]
async fn a_person_stops_a_run_and_isolates_a_tool_by_command() {
    let tool = ScriptedTool::start().await;
    let (process, reach) = started(&tool, false).await;
    let agent = process.agent(Form::OpenaiChat, "r");
    let order = r#"{"order_id":"A17"}"#;
    assert_eq!(agent.call("lookup_order", "c1", order).await.status, 200);
    let (code, out, _) = run(&["runs", "list"], &reach);
    assert!(code == 0 && out.starts_with("RUN") && out.contains("default"), "{out}");
    assert_eq!(run(&["runs", "interrupt", "r", "--why", "it loops"], &reach).0, 0);
    assert_eq!(agent.call("lookup_order", "c2", order).await.json()["error"], "run_interrupted");
    let (code, out, _) = run(&["runs", "show", "r"], &reach);
    assert!(code == 0 && out.contains("it loops") && out.contains("ada"), "{out}");
    assert_eq!(run(&["runs", "resume", "r", "--why", "mended"], &reach).0, 0);
    assert_eq!(agent.call("lookup_order", "c3", order).await.status, 200);
    assert_eq!(run(&["breakers", "isolate", "lookup_order", "--why", "moving"], &reach).0, 0);
    assert_eq!(agent.call("lookup_order", "c4", order).await.json()["error"], "circuit_open");
    let (code, out, _) = run(&["breakers", "list"], &reach);
    assert!(code == 0 && out.contains("isolated"), "{out}");
    assert_eq!(run(&["breakers", "reset", "lookup_order", "--why", "moved"], &reach).0, 0);
    assert_eq!(agent.call("lookup_order", "c5", order).await.status, 200);
}

#[tokio::test]
async fn the_verbs_of_people_end_with_the_codes_of_the_table() {
    let tool = ScriptedTool::start().await;
    let (_process, reach) = started(&tool, false).await;
    for (words, code) in [
        (vec!["reviews", "list"], 0),
        (vec!["reviews", "list", "--limit", "201"], 1),
        (vec!["reviews", "show", "a/b"], 2),
        (vec!["reviews", "resolve", "op_1", "happened", "--evidence", "x", "--result", "{"], 2),
        (vec!["reviews", "show", "op_0000000000000000"], 3),
        (vec!["reviews", "resolve", "op_0000000000000000", "happened", "--evidence", "x"], 3),
        (vec!["runs", "interrupt", "none", "--why", "x"], 3),
        (vec!["breakers", "reset", "lookup_order", "--why", "x"], 1),
    ] {
        let (got, out, err) = run(&words, &reach);
        assert_eq!(got, code, "{words:?}: {out} {err}");
        assert!(code == 0 || (out.is_empty() && !err.is_empty()), "{words:?}: {out} {err}");
    }
    let admin = reach.get(1).expect("an address").as_str();
    let (code, _, err) = verb(&["reviews", "list", "--admin", admin]);
    assert!(code == 1 && err.contains("401"), "{err}");
    let (code, _, err) = verb(&["reviews", "list", "--admin", "127.0.0.1:1"]);
    assert!(code == 3 && err.contains("no gateway answers"), "{err}");
    let (code, _, _) = verb(&["reviews", "list", "--admin", "unix:/nowhere/admin.sock"]);
    assert_eq!(code, 3);
    let (code, _, _) =
        verb(&["reviews", "list", "--admin", admin, "--admin-token-file", "/nowhere"]);
    assert_eq!(code, 2);
}

#[tokio::test]
async fn a_person_ends_the_process_by_the_drain_route() {
    let tool = ScriptedTool::start().await;
    let (mut process, reach) = started(&tool, true).await;
    let path = reach.get(1).and_then(|admin| admin.strip_prefix("unix:")).expect("a socket");
    let stream = tokio::net::UnixStream::connect(path).await.expect("it listens");
    let body = br#"{"why":"maintenance"}"#;
    let answer =
        super::kit::exchange(stream, "localhost", "POST", "/admin/v1/drain", &[], body).await;
    assert_eq!(answer.status, 202, "{}", answer.text());
    assert_eq!(process.exit().await.code(), Some(0), "{}", process.log());
}

#[tokio::test]
async fn a_person_decides_about_calls_by_command() {
    let rules = "approval: { when: always, decisions: [approve, edit, reject] }";
    let fixture = Fixture::new().with("wall_clock: 10s", "wall_clock: 30m").tool("pay", rules);
    for unix in [false, true] {
        let tool = ScriptedTool::start().await;
        let (process, reach) = started_with(&fixture, &tool, unix).await;
        let (code, out, err) = run(&["approvals", "list"], &reach);
        assert_eq!((code, out.as_str()), (0, "nothing waits\n"), "{err}");
        let agent = process.agent(Form::OpenaiChat, "r");
        let ask = async |call: &str, account: u32| {
            agent.call("pay", call, &format!(r#"{{"account_id":{account}}}"#)).await.json()
        };
        let mut ids = Vec::new();
        for account in 1..=3 {
            let waits = ask(&format!("c{account}"), account).await;
            ids.push(waits["approval"].as_str().expect("it waits").to_owned());
        }
        let (code, out, _) = run(&["approvals", "list", "--tool", "pay"], &reach);
        assert!(
            code == 0 && ids.iter().all(|id| out.contains(id)) && out.contains("pending"),
            "{out}"
        );
        let (code, out, _) = run(&["approvals", "show", &ids[0]], &reach);
        assert!(
            code == 0 && out.starts_with("Pay into an account (tool pay), for agent default"),
            "{out}"
        );
        assert!(out.contains("  /account_id = 1\n") && out.contains("expires"), "{out}");
        let (code, out, err) =
            run(&["approvals", "approve", &ids[0], "--version", "pending"], &reach);
        assert!(code == 0 && out.starts_with("approved"), "{out}{err}");
        let edit = [
            "approvals",
            "edit",
            &ids[1],
            "--arguments",
            r#"{"account_id":20}"#,
            "--comment",
            "typo",
        ];
        let (code, out, err) = run(&edit, &reach);
        assert!(code == 0 && out.starts_with("approved"), "{out}{err}");
        let (code, out, err) =
            run(&["approvals", "reject", &ids[2], "--comment", "no such account"], &reach);
        assert_eq!((code, out.as_str()), (0, "rejected\n"), "{err}");
        // Once; and what is not there is not there.
        let (code, _, err) = run(&["approvals", "approve", &ids[2]], &reach);
        assert!(code == 1 && err.contains("rejected already"), "{err}");
        assert_eq!(run(&["approvals", "show", "apr_0000000000000000"], &reach).0, 3);
        assert_eq!(
            run(&["approvals", "edit", &ids[2], "--arguments", "{", "--comment", "x"], &reach).0,
            2
        );
        assert_eq!(ask("d1", 1).await["ok"], true);
        assert_eq!(ask("d2", 2).await["error"], "approval_edited");
        assert_eq!(ask("d20", 20).await["ok"], true);
        assert_eq!(ask("d3", 3).await["error"], "approval_rejected");
        assert_eq!(tool.hits("/pay"), 2);
        let (code, out, _) = run(&["approvals", "list", "--state", "over", "-o", "json"], &reach);
        let listed: Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!((code, listed["approvals"].as_array().map(Vec::len)), (0, Some(3)), "{out}");
    }
}
