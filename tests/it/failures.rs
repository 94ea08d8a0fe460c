//! docs/failures.md against the program: each row of its first table is played with the real binary, its store read
//! with the ordinary library; every other row names tests that exist. And the limits that README tells, shown.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::support::process::filled;
use crate::support::{Fixture, Form, Process, Reply, ScriptedTool, wait_for};

const SOON: Duration = Duration::from_secs(30);

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The cells of every row, by table.
fn tables() -> Vec<Vec<Vec<String>>> {
    let text = fs::read_to_string(root().join("docs/failures.md")).expect("docs/failures.md");
    let mut tables = Vec::new();
    let mut rows = Vec::new();
    for line in text.lines() {
        if let Some(cells) = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) {
            rows.push(cells.split(" | ").map(str::to_owned).collect::<Vec<_>>());
        } else if !line.starts_with('|') && !rows.is_empty() {
            rows.remove(0);
            tables.push(std::mem::take(&mut rows));
        }
    }
    if !rows.is_empty() {
        rows.remove(0);
        tables.push(rows);
    }
    tables
}

/// What is in backticks.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

fn create(reference: &str) -> String {
    format!(r#"{{"order_ref":"{reference}","sku":"A","qty":1}}"#)
}

fn fixture() -> Fixture {
    Fixture::new()
        .with(
            "write: { fingerprint: [/order_ref]",
            "write: { not_executed_on: [507], fingerprint: [/order_ref]",
        )
        .budgets("failures: unlimited")
        .tool("create_order", "breaker: { mode: disabled }")
}

async fn start(tool: &ScriptedTool, state: &Path) -> Process {
    let folder = tempfile::tempdir().expect("a folder");
    let policy = folder.path().join("policy.yaml");
    fs::write(&policy, filled(folder.path(), &fixture().text(&tool.url()))).expect("written");
    let state = state.display().to_string();
    Process::start_at(folder, &policy, &["--state", &state], &[]).await
}

/// The entry of an order, as an operator reads it: `state`, or `state (answer or why)`.
fn entry(state: &Path, reference: &str) -> String {
    let store = rusqlite::Connection::open(state.join("store.db")).expect("it opens");
    let statement = "SELECT state, CASE state WHEN 'executed' THEN answer WHEN 'not_executed' THEN why ELSE '' END \
                     FROM entries WHERE arguments LIKE ?1";
    let found = store.query_row(statement, [format!("%\"{reference}\"%")], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
    });
    match found {
        Ok((state, more)) if more.is_empty() => state,
        Ok((state, more)) => format!("{state} ({more})"),
        Err(rusqlite::Error::QueryReturnedNoRows) => "nothing".into(),
        Err(error) => panic!("{error}"),
    }
}

fn full(status: u16, headers: Vec<(&'static str, String)>, body: &str) -> Reply {
    Reply::Full { apply: true, status, headers, body: body.as_bytes().to_vec() }
}

/// The rows of the first table, by what stands first in them.
fn played() -> HashMap<&'static str, Reply> {
    let json = || vec![("content-type", "application/json".to_owned())];
    let elsewhere = vec![("location", "http://127.0.0.1:1/".to_owned())];
    HashMap::from([
        ("refuses with a 4xx", Reply::Status(422)),
        ("is busy (429)", Reply::Status(429)),
        (
            "sends elsewhere (307, 308)",
            Reply::Full { apply: false, status: 307, headers: elsewhere.clone(), body: Vec::new() },
        ),
        (
            "sends to look elsewhere (303, or another 3xx)",
            Reply::Full { apply: true, status: 303, headers: elsewhere, body: Vec::new() },
        ),
        ("answers 5xx", Reply::ApplyThenStatus(503)),
        ("answers a 5xx that the policy lists in `not_executed_on`", Reply::Status(507)),
        ("resets the connection", Reply::ApplyThenReset),
        ("closes it without an answer", Reply::ApplyThenClose),
        ("never answers", Reply::ApplyThenHang),
        ("breaks off in the middle of a 200", Reply::Cut { apply: true }),
        (
            "answers 200 with something that is not what it promised",
            full(200, json(), "<html>log in</html>"),
        ),
        ("answers something that is no HTTP", Reply::Raw(b"what?\r\n\r\n".to_vec())),
        ("answers 200", Reply::Ok),
    ])
}

/// The same write again under another call id, in another run.
async fn ask(process: &Process, run: &str, reference: &str) -> Value {
    let agent = process.agent(Form::OpenaiChat, run);
    agent.call("create_order", run, &create(reference)).await.json()
}

fn told(answer: &Value) -> String {
    match answer["ok"] == true {
        true if answer["replayed"] == true => "the same answer".into(),
        true => "its answer".into(),
        false => format!(
            "{}, {}",
            answer["error"].as_str().expect("a code"),
            answer["executed"].as_str().expect("a word")
        ),
    }
}

#[tokio::test]
async fn each_row_of_the_table_of_lost_answers_is_what_the_program_does() {
    let tool = ScriptedTool::start().await;
    let state = tempfile::tempdir().expect("a folder");
    let folder = state.path().join("state");
    let mut process = start(&tool, &folder).await;
    let mut replies = played();
    let tables = tables();
    let table = tables.first().expect("the first table");
    let mut rows = Vec::new();
    for (n, row) in table.iter().enumerate() {
        let [failure, first, kept, again] = row.as_slice() else { panic!("four cells: {row:?}") };
        let (reference, before) = (format!("F{n}"), tool.hits("/create"));
        let unreachable = failure == "cannot be reached";
        if unreachable {
            tool.stop();
        } else {
            let reply = replies.remove(failure.as_str());
            tool.script("/create", [reply.unwrap_or_else(|| panic!("not played: {failure}"))]);
        }
        let answer = ask(&process, &format!("a{n}"), &reference).await;
        if unreachable {
            tool.start_again().await;
        }
        assert_eq!(quoted(first).join(", "), told(&answer), "{failure}: {answer}");
        // What was not sent is noted, and nobody waits for the note.
        let noted = async || quoted(kept).join("") == entry(&folder, &reference);
        wait_for(&format!("the entry: {failure}"), SOON, noted).await;
        let sent = tool.hits("/create") - before;
        assert_eq!(sent, usize::from(!unreachable), "{failure}: sent once or not at all");
        if failure == "is busy (429)" {
            let cool = async || {
                let name = "checkrein_tool_cooldown_until_timestamp_seconds";
                process.metrics().await.sum(name, &[("tool", "create_order")]) == 0.0
            };
            wait_for("the end of the cooldown", SOON, cool).await;
        }
        rows.push((failure.clone(), again.clone(), reference));
    }
    assert!(replies.is_empty(), "no row for {:?}", replies.keys());
    // Asked again after a kill, under another id in another run.
    process.signal("KILL");
    process.exit().await;
    drop(process);
    let process = start(&tool, &folder).await;
    tool.script("/create", [Reply::Ok]);
    for (n, (failure, again, reference)) in rows.iter().enumerate() {
        let before = tool.hits("/create");
        let answer = ask(&process, &format!("b{n}"), reference).await;
        let sent = tool.hits("/create") > before;
        let is = if sent { "sent".to_owned() } else { told(&answer) };
        assert_eq!(quoted(again).join(", "), is, "{failure}: {answer}");
    }
}

fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path: PathBuf = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|end| end == "rs") {
            text.push_str(&fs::read_to_string(&path).expect("a source"));
        }
    }
}

#[test]
fn every_row_of_the_failure_tables_names_tests_that_exist() {
    let mut code = String::new();
    for folder in ["src", "tests/it"] {
        sources(&root().join(folder), &mut code);
    }
    let tables = tables();
    assert!(tables.len() >= 4, "the tables were not found");
    let mut named = 0;
    for row in tables.iter().skip(1).flatten() {
        assert_eq!(row.len(), 5, "five cells: {row:?}");
        let tests = quoted(row.last().expect("five"));
        assert!(!tests.is_empty(), "no test: {row:?}");
        for test in tests {
            assert!(code.contains(&format!("fn {test}(")), "{test} is gone: {row:?}");
            named += 1;
        }
    }
    assert!(named > 20, "{named}");
}

/// Why README says: never put an old copy of the folder back.
#[tokio::test]
async fn an_old_copy_of_the_store_forgets_what_came_after_it_and_sends_it_again() {
    let tool = ScriptedTool::start().await;
    let state = tempfile::tempdir().expect("a folder");
    let (folder, copy) = (state.path().join("state"), state.path().join("copy"));
    let mut process = start(&tool, &folder).await;
    assert_eq!(ask(&process, "a", "BEFORE").await["ok"], true);
    process.signal("TERM");
    process.exit().await;
    drop(process);
    fs::create_dir(&copy).expect("made");
    for name in ["store.db", "secret"] {
        fs::copy(folder.join(name), copy.join(name)).expect("copied");
    }
    let mut process = start(&tool, &folder).await;
    assert_eq!(ask(&process, "b", "AFTER").await["ok"], true);
    process.signal("TERM");
    process.exit().await;
    drop(process);
    let process = start(&tool, &copy).await;
    assert_eq!(ask(&process, "c", "BEFORE").await["replayed"], true);
    assert_eq!(ask(&process, "d", "AFTER").await["replayed"], Value::Null);
    assert_eq!((tool.effects("BEFORE"), tool.effects("AFTER")), (1, 2));
}

/// Why README says: one ledger for one tool.
#[tokio::test]
async fn two_gateways_with_two_ledgers_send_the_same_write_twice() {
    let tool = ScriptedTool::start().await;
    let states = [tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder")];
    for state in &states {
        let process = start(&tool, &state.path().join("state")).await;
        assert_eq!(ask(&process, "r", "TWICE").await["replayed"], Value::Null);
    }
    assert_eq!(tool.effects("TWICE"), 2);
}

/// Why README says: a tool that lies cannot be helped. It says 422 and acts all the same.
#[tokio::test]
async fn a_tool_that_says_no_and_acts_is_believed() {
    let tool = ScriptedTool::start().await;
    let state = tempfile::tempdir().expect("a folder");
    let process = start(&tool, &state.path().join("state")).await;
    tool.script("/create", [Reply::ApplyThenStatus(422), Reply::Ok]);
    let lied = ask(&process, "a", "LIE").await;
    assert_eq!(told(&lied), "tool_error, no");
    assert_eq!(ask(&process, "b", "LIE").await["ok"], true);
    assert_eq!(tool.effects("LIE"), 2);
}
