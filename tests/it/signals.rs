//! Signals, on the whole program: the first one drains, a second one ends the waiting.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Sound arguments of the write.
const NOTICE: &str = r#"{"order_id":"A17","text":"on its way"}"#;
/// The limit of a wait; it only ends a test that has failed.
const SOON: Duration = Duration::from_secs(30);

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = tokio::time::Instant::now() + SOON;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(tokio::time::Instant::now() < end, "{what}: not within {SOON:?}");
        std::thread::sleep(Duration::from_millis(20)); // between two looks at a level
    }
}

/// Ended with the test, whatever became of it.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    let sent = Command::new("kill").args([&format!("-{name}"), &pid]).status();
    assert!(sent.expect("kill runs").success());
}

fn ask(address: &str, head: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let length = body.len();
    let request = format!(
        "{head} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).expect("sent");
    stream
}

fn answer(mut stream: TcpStream) -> String {
    let mut text = String::new();
    // A connection that is cut has no answer: that is what some of these tests want.
    let _cut = stream.read_to_string(&mut text);
    text
}

#[test]
fn a_second_signal_ends_the_waiting_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let tool = TcpListener::bind("127.0.0.1:0").expect("a port"); // takes connections, never answers
    let address = tool.local_addr().expect("bound").to_string();
    let quickstart = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies/quickstart.yaml");
    let policy = std::fs::read_to_string(quickstart).expect("there");
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, policy.replace("127.0.0.1:9090", &address)).expect("written");
    let ready = folder.path().join("ready");
    let child = Command::new(env!("CARGO_BIN_EXE_checkrein"))
        .args(["run", "--listen", "127.0.0.1:0", "--health", "127.0.0.1:0", "--audit", "none"])
        .args(["--store", "memory"])
        .args(["--drain-timeout", "10m", "--policy"])
        .arg(&file)
        .arg("--ready-file")
        .arg(&ready)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let mut child = Ended(child);
    let text = wait_for("the ready file", || std::fs::read_to_string(&ready).ok());
    let at = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)).expect("an address a line").to_owned()
    };
    let (data, health) = (at("data="), at("health="));

    let call = ask(&data, "POST /v1/tools/check_order", r#"{"order_id":"A17"}"#);
    let held = tool.accept().expect("the call is at the tool");
    signal(&child.0, "TERM");
    wait_for("readiness is red", || {
        answer(ask(&health, "GET /ready", "")).starts_with("HTTP/1.1 503").then_some(())
    });
    let late = answer(ask(&data, "POST /v1/tools/check_order", r#"{"order_id":"A18"}"#));
    assert!(late.starts_with("HTTP/1.1 503") && late.contains("draining"), "{late}");
    assert!(child.0.try_wait().expect("our child").is_none(), "it waits for the call in flight");

    signal(&child.0, "TERM");
    let status = wait_for("the end", || child.0.try_wait().expect("our child"));
    assert_eq!(status.code(), Some(0));
    assert!(!answer(call).contains("200 OK"));
    drop(held);
}

/// What the end of the grace finds unfinished is written down: a write that is at the tool as unknown.
#[test]
fn what_a_drain_leaves_unfinished_is_in_the_records() {
    let folder = tempfile::tempdir().expect("a folder");
    let tool = TcpListener::bind("127.0.0.1:0").expect("a port"); // takes connections, never answers
    let address = tool.local_addr().expect("bound").to_string();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies/quickstart.yaml");
    let policy = std::fs::read_to_string(demo).expect("there");
    let policy = policy.replace("127.0.0.1:9090", &address);
    let policy = policy.replace("allow: [check_order]", "allow: [check_order, send_notice]");
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, policy).expect("written");
    let (ready, audit) = (folder.path().join("ready"), folder.path().join("audit"));
    let child = Command::new(env!("CARGO_BIN_EXE_checkrein"))
        .args(["run", "--listen", "127.0.0.1:0", "--health", "127.0.0.1:0"])
        .args(["--store", "memory"]) // no write of an earlier run may stand in the way
        .args(["--drain-timeout", "1ms", "--audit", &format!("file:{}", audit.display())])
        .args(["--workers", "2", "--policy"])
        .arg(&file)
        .arg("--ready-file")
        .arg(&ready)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let mut child = Ended(child);
    let text = wait_for("the ready file", || std::fs::read_to_string(&ready).ok());
    let data = text.lines().find_map(|line| line.strip_prefix("data=")).expect("an address");
    let mut held = Vec::new();
    for (name, body) in [("check_order", r#"{"order_id":"A17"}"#), ("send_notice", NOTICE)] {
        let asked = ask(data, &format!("POST /v1/tools/{name}"), body);
        let (mut at_tool, _) = tool.accept().expect("the call is at the tool");
        let mut first = [0; 1];
        at_tool.read_exact(&mut first).expect("its request");
        held.push((asked, at_tool));
    }
    signal(&child.0, "TERM");
    let status = wait_for("the end", || child.0.try_wait().expect("our child"));
    assert_eq!(status.code(), Some(0));
    let records = std::fs::read_to_string(&audit).expect("written");
    let record = |kind: &str, tool: &str| -> serde_json::Value {
        let mut parsed = records.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        parsed
            .rfind(|one: &serde_json::Value| one["kind"] == kind && one["tool_name"] == tool)
            .unwrap_or_else(|| panic!("no {kind} of {tool} in {records}"))
    };
    for (tool, outcome) in [("check_order", "abandoned"), ("send_notice", "outcome_unknown")] {
        let call = record("call", tool);
        assert_eq!((&call["outcome"], &call["executed"]), (&outcome.into(), &"unknown".into()));
        assert_eq!(call["attempts"], 1, "{call}");
        assert_eq!(record("attempt", tool)["attempt"], 1);
    }
    drop(held);
}
