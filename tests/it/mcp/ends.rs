//! The ends of `checkrein mcp`: a last line without its end is a line, and what is ended as asked ends without a warning.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::peer::{initialize, parse};
use crate::support::process::{PROGRAM, filled};
use crate::support::{Fixture, Process, ScriptedTool};

/// Runs the program on exactly these bytes to its end: messages, stderr.
async fn fed(words: Vec<String>, input: String) -> (Vec<Value>, String) {
    let talk = move || {
        let mut child = Command::new(PROGRAM)
            .args(&words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(input.as_bytes()).expect("taken");
        drop(stdin);
        let output = child.wait_with_output().expect("ended");
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{err}");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        (text.lines().map(|line| parse(line.as_bytes())).collect(), err)
    };
    tokio::task::spawn_blocking(talk).await.expect("talked")
}

/// One session: begun, and this last line without its end.
fn session(last: &str) -> String {
    let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    format!("{}\n{initialized}\n{last}", initialize("2025-11-25", &json!({})))
}

fn own(policy: &Path) -> Vec<String> {
    let words = ["mcp", "--store", "memory", "--policy"].map(str::to_owned);
    words.into_iter().chain([policy.display().to_string()]).collect()
}

const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}"#;

#[tokio::test]
async fn a_last_line_without_its_end_is_answered_and_one_that_is_cut_off_is_told_so() {
    let tool = ScriptedTool::start().await;
    let policy = Fixture::new().text(&tool.url());
    let gateway = Process::start(&policy, &[]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, filled(folder.path(), &policy)).expect("written");
    let bridge = ["mcp".to_owned(), "--gateway".into(), format!("http://{}/mcp", gateway.data)];
    for words in [own(&file), bridge.to_vec()] {
        let (said, err) = fed(words.clone(), session(LIST)).await;
        assert_eq!(said.len(), 2, "{said:?} {err}");
        assert!(said[1]["result"]["tools"].is_array() && said[1]["id"] == 1, "{said:?}");
        let (said, err) = fed(words.clone(), session(&LIST[..40])).await;
        assert_eq!((said.len(), &said[1]["error"]["code"]), (2, &json!(-32700)), "{said:?} {err}");
        let (said, err) = fed(words, session(" \t")).await;
        assert_eq!(said.len(), 1, "blanks are no line: {said:?} {err}");
    }
}

/// A policy with a server that is a child process, whose `echo` the agent may call, or not.
fn with_a_child(folder: &Path, allow: &str) -> std::path::PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/support/mcp_child.py");
    let text = format!(
        "apiVersion: checkrein/v1\nkind: Policy\nmcp_servers:\n  kid:\n    command: [\"python3\", \"-S\", \"-E\", {script:?}]\n    env: {{ PATH: {{ env: PATH }} }}\n    tools: {{ echo: {{ effect: read }} }}\nagents:\n  default: {{ allow: [{allow}] }}\n"
    );
    let file = folder.join("policy.yaml");
    std::fs::write(&file, text).expect("written");
    file
}

#[tokio::test]
async fn an_ordinary_end_warns_of_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = with_a_child(folder.path(), "echo");
    // What is cut short by the end depends on the moment.
    for _ in 0..8 {
        let (said, err) = fed(own(&file), session(LIST)).await;
        assert_eq!(said.len(), 2, "{said:?}");
        assert_eq!(err, "", "nothing is wrong");
    }
}

#[tokio::test]
async fn an_agent_without_tools_is_warned_of_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = with_a_child(folder.path(), "");
    let hello = initialize("2025-11-25", &json!({}));
    let (said, err) = fed(own(&file), format!("{hello}\n{hello}\n{hello}\n")).await;
    assert_eq!(said.len(), 3);
    let told = |said: &Value| said["result"]["instructions"].as_str().map(str::to_owned);
    for said in &said {
        assert!(told(said).is_some_and(|told| told.contains("may call no tool")), "{said}");
    }
    assert_eq!(err.matches("an agent that speaks MCP has no tools").count(), 1, "{err}");
}
