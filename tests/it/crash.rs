//! A crash at every point of one write: the real binary, the real store, started again on what is left.
//!
//! The program of a build with debug assertions dies at the n-th point it passes when `CHECKREIN_CRASH_AT=n`. The
//! driver counts n up until a whole write passes without a crash, and prints how many points there were.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::process::{PROGRAM, filled};
use crate::support::{Fixture, Reply, ScriptedTool, http, wait_for};

const SOON: Duration = Duration::from_secs(30);
/// A way without points would prove nothing; a way without an end is a fault of the driver.
const LEAST: u32 = 20;
const MOST: u32 = 200;

/// One process on a state folder that outlives it.
struct Run {
    child: Child,
    data: Option<SocketAddr>,
}

impl Run {
    /// `None` in `data`: it died before it was ready.
    async fn start(folder: &Path, crash_at: Option<u32>) -> Self {
        let ready = folder.join("ready");
        drop(std::fs::remove_file(&ready)); // there is none before the first
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(folder.join("log"))
            .expect("a log");
        let mut command = Command::new("sh");
        command
            .args(["-c", "ulimit -c 0; exec \"$0\" \"$@\"", PROGRAM]) // thirty cores help nobody
            .args(["run", "--listen", "127.0.0.1:0", "--health", "127.0.0.1:0", "--audit", "none"])
            .args(["--workers", "1", "--policy-poll", "1h"])
            .arg("--policy")
            .arg(folder.join("policy.yaml"))
            .arg("--state")
            .arg(folder.join("state"))
            .arg("--ready-file")
            .arg(&ready)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        if let Some(at) = crash_at {
            command.env("CHECKREIN_CRASH_AT", at.to_string());
        }
        let mut child = command.spawn().expect("the program starts");
        let mut data = None;
        wait_for("a start or an end", SOON, async || {
            let text = std::fs::read_to_string(&ready).unwrap_or_default();
            data = text.lines().find_map(|line| line.strip_prefix("data=")?.parse().ok());
            data.is_some() || child.try_wait().expect("a child").is_some()
        })
        .await;
        Self { child, data }
    }

    /// `None`: the connection broke before there was an answer.
    async fn ask(&self, call: &str, arguments: &str) -> Option<Value> {
        let headers = [("checkrein-run", "run-1"), ("checkrein-call-id", call)];
        let bytes =
            http::bytes_of("POST", "/v1/tools/create_order", &headers, arguments.as_bytes());
        let mut stream = TcpStream::connect(self.data?).await.ok()?;
        stream.write_all(&bytes).await.ok()?;
        let mut answer = Vec::new();
        // Reset or closed: what counts is whether a whole answer came.
        drop(stream.read_to_end(&mut answer).await);
        let whole = answer.windows(4).any(|four| four == b"\r\n\r\n");
        whole.then(|| http::parse(&answer).json())
    }

    fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // SIGKILL, wherever it stands; gone already is as good.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The state of the one entry, as the file has it: a copy is read, so that what a crash left is left alone.
fn entry(folder: &Path) -> Option<String> {
    let copy = tempfile::tempdir().expect("a folder");
    for name in ["store.db", "store.db-wal"] {
        // There may be none yet.
        drop(std::fs::copy(folder.join("state").join(name), copy.path().join(name)));
    }
    let db = rusqlite::Connection::open(copy.path().join("store.db")).ok()?;
    db.query_row("SELECT state FROM entries", [], |row| row.get(0)).ok()
}

/// What the agent was told of the effect.
fn told(answer: &Value) -> &str {
    if answer["ok"] == true { "yes" } else { answer["executed"].as_str().unwrap_or("?") }
}

/// A truthful entry: what it says fits what the tool did. `asked`: the write may have been sent by now.
#[track_caller]
fn check_entry(state: Option<&str>, effects: usize, at: &str) {
    match state {
        None => assert_eq!(effects, 0, "{at}: nothing on record"),
        Some("executed") => assert_eq!(effects, 1, "{at}: executed"),
        Some("not_executed") => assert_eq!(effects, 0, "{at}: not executed"),
        Some("intent" | "unknown") => {}
        Some(other) => panic!("{at}: {other}"),
    }
}

/// Dies at point `at` of a write that the tool ends so. True once the whole write passed without a crash.
async fn die_at(at: u32, reply: &Reply, seen: &mut BTreeMap<String, u32>) -> bool {
    let tool = ScriptedTool::start().await;
    tool.script("/create", [reply.clone()]);
    let folder = tempfile::tempdir().expect("a folder");
    let policy = Fixture::new().text(&tool.url());
    std::fs::write(folder.path().join("policy.yaml"), filled(folder.path(), &policy))
        .expect("written");
    let write = r#"{"order_ref":"R1","sku":"A","qty":1}"#;
    let context = format!("point {at}, {reply:?}");

    let mut first = Run::start(folder.path(), Some(at)).await;
    let answer = first.ask("c1", write).await;
    let survived = answer.is_some();
    if !survived {
        wait_for("its end", SOON, async || !first.is_alive()).await;
    }
    drop(first);
    let effects = tool.effects("R1");
    assert!(effects <= 1, "{context}");
    let left = entry(folder.path());
    check_entry(left.as_deref(), effects, &context);

    let second = Run::start(folder.path(), None).await;
    let again = second.ask("c1", write).await.expect("it answers");
    let other = second.ask("c2", write).await.expect("it answers");
    let effects = tool.effects("R1");
    assert!(effects <= 1, "{context}: {again} {other}");
    if matches!(left.as_deref(), Some("intent" | "unknown" | "executed")) {
        assert_ne!(told(&again), "no", "{context}: {again}");
    }
    for told_last in [&again, &other] {
        match told(told_last) {
            "yes" => assert_eq!(effects, 1, "{context}: {told_last}"),
            "no" => assert_eq!(refusals(reply), 1, "{context}: {told_last}"),
            "unknown" => {
                let error = told_last["error"].as_str();
                let fresh = left.is_none() && std::ptr::eq(told_last, &again);
                let wanted = if fresh { "outcome_unknown" } else { "review_required" };
                assert_eq!(error, Some(wanted), "{context}");
            }
            other => panic!("{context}: {other} {told_last}"),
        }
    }
    if let Some(answer) = &answer {
        // What was told once stays so, under the same id.
        assert_eq!(told(answer), told(&again), "{context}: {answer}, then {again}");
        if answer["ok"] == true {
            assert_eq!((&again["replayed"], &again["result"]), (&true.into(), &answer["result"]));
        }
    }
    check_entry(entry(folder.path()).as_deref(), effects, &context);
    let name = format!("{} → {}", left.as_deref().unwrap_or("nothing"), told(&again));
    *seen.entry(name).or_default() += 1;
    survived
}

/// How often this tool says that it did nothing: it is then asked anew by another call.
fn refusals(reply: &Reply) -> usize {
    usize::from(matches!(reply, Reply::Status(_)))
}

#[expect(clippy::print_stdout, reason = "how many points there were is what one wants to read")]
async fn exhaust(reply: Reply) {
    if !cfg!(debug_assertions) {
        return; // a release build has no points to die at
    }
    let mut seen = BTreeMap::new();
    let mut at = 1;
    while !die_at(at, &reply, &mut seen).await {
        at += 1;
        assert!(at < MOST, "there is no end of points");
    }
    println!("{reply:?}: {} points; on disk → told after the restart: {seen:?}", at - 1);
    assert!(at > LEAST, "{} points only", at - 1);
}

#[tokio::test]
async fn a_crash_at_any_point_of_a_write_that_succeeds_is_survived() {
    exhaust(Reply::Ok).await;
}

#[tokio::test]
async fn a_crash_at_any_point_of_a_write_whose_answer_is_lost_is_survived() {
    exhaust(Reply::ApplyThenReset).await;
}

#[tokio::test]
async fn a_crash_at_any_point_of_a_write_that_is_refused_is_survived() {
    exhaust(Reply::Status(422)).await;
}
