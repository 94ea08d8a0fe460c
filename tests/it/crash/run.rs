//! One process on a state folder that outlives it, stopped at a crash point and killed there by SIGKILL.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::support::process::PROGRAM;
use crate::support::{http, wait_for};

pub(super) const SOON: Duration = Duration::from_secs(30);
/// How the program says where it stopped, and what it passed when asked for a list.
const STOPPED: &str = "stopped at crash point: ";
const PASSED: &str = "passed crash point: ";
pub(super) const TOKEN: &str = "token-of-ada-0123456789";

/// Where to stop: at the point of this name, when it is come to for this time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Stop {
    pub(super) turn: usize,
    pub(super) name: String,
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.turn, self.name)
    }
}

pub(super) struct Run {
    child: Mutex<Child>,
    /// `None`: it stopped before it was ready.
    data: Option<SocketAddr>,
    admin: Option<SocketAddr>,
    /// The point it stopped at.
    stopped: watch::Receiver<Option<String>>,
}

impl Run {
    /// `at`: `list`, or a [`Stop`].
    pub(super) async fn start(folder: &Path, at: Option<&str>) -> Self {
        let ready = folder.join("ready");
        drop(std::fs::remove_file(&ready)); // there is none before the first
        let mut command = Command::new(PROGRAM);
        command
            .args(["run", "--listen", "127.0.0.1:0", "--health", "127.0.0.1:0", "--audit", "none"])
            .args(["--workers", "1", "--policy-poll", "1h", "--drain-delay", "0s"])
            .args(["--admin", "127.0.0.1:0", "--admin-token-file"])
            .arg(folder.join("people"))
            .arg("--policy")
            .arg(folder.join("policy.yaml"))
            .arg("--state")
            .arg(folder.join("state"))
            .arg("--ready-file")
            .arg(&ready)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        if let Some(at) = at {
            command.env("CHECKREIN_CRASH_AT", at);
        }
        let mut child = command.spawn().expect("the program starts");
        let stopped = listen(&mut child, folder);
        let mut run = Self { child: Mutex::new(child), data: None, admin: None, stopped };
        let address = |text: &str, name: &str| -> Option<SocketAddr> {
            text.lines().find_map(|line| line.strip_prefix(name)?.parse().ok())
        };
        wait_for("a start or a stop", SOON, async || {
            let text = std::fs::read_to_string(&ready).unwrap_or_default();
            run.data = address(&text, "data=");
            run.admin = address(&text, "admin=");
            run.admin.is_some() || run.has_stopped()
        })
        .await;
        run
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.stopped.borrow().is_some()
    }

    /// Kills it where it stops. Waits for ever where it does not stop.
    pub(super) async fn kill_where_it_stops(&self) {
        let mut stopped = self.stopped.clone();
        let name = match stopped.wait_for(Option::is_some).await {
            Ok(name) => name.clone().expect("some"),
            Err(_) => std::future::pending().await, // it ended by itself
        };
        let mut child = self.child.lock().expect("no other holds it");
        child.kill().expect("it is there");
        let status = child.wait().expect("a child");
        assert_eq!(status.signal(), Some(9), "{name}: ended by SIGKILL");
    }

    pub(super) fn terminate(&self) {
        if self.has_stopped() {
            return; // killed, and its id may be another's by now
        }
        let id = self.child.lock().expect("no other holds it").id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill runs").success());
    }

    /// True once it has ended by itself, well.
    pub(super) fn has_ended(&self) -> bool {
        let ended = self.child.lock().expect("no other holds it").try_wait().expect("a child");
        ended.is_some_and(|status| status.success())
    }

    /// `None`: the connection broke before there was a whole answer.
    pub(super) async fn ask(&self, call: &str, arguments: &str) -> Option<Value> {
        self.call("create_order", call, arguments).await
    }

    /// `None`: the connection broke before there was a whole answer.
    pub(super) async fn call(&self, tool: &str, call: &str, arguments: &str) -> Option<Value> {
        let headers = [("checkrein-run", "run-1"), ("checkrein-call-id", call)];
        let path = format!("/v1/tools/{tool}");
        exchange(self.data?, &http::bytes_of("POST", &path, &headers, arguments.as_bytes())).await
    }

    /// A person settles an operation, whatever version it has.
    pub(super) async fn resolve(&self, operation: &str, word: &str) -> Option<Value> {
        self.say(&format!("reviews/{operation}/resolve"), word).await
    }

    /// A person changes something, whatever version it has.
    pub(super) async fn say(&self, path: &str, word: &str) -> Option<Value> {
        let bearer = format!("Bearer {TOKEN}");
        let headers = [("authorization", &*bearer), ("if-match", "*")];
        let path = format!("/admin/v1/{path}");
        let bytes = http::bytes_of("POST", &path, &headers, word.as_bytes());
        let address = self.admin?;
        // The admin listener takes no other name than its own.
        let text = String::from_utf8(bytes).expect("text");
        let text = text.replacen("host: gateway", &format!("host: {address}"), 1);
        exchange(address, text.as_bytes()).await
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let child = self.child.get_mut().expect("no other holds it");
        // SIGKILL, wherever it stands; gone already is as good.
        drop(child.kill());
        drop(child.wait());
    }
}

/// The points that a process passed which was asked for a list, in order.
pub(super) fn passed(folder: &Path) -> Vec<Stop> {
    let log = std::fs::read_to_string(folder.join("log")).expect("a log");
    let names: Vec<&str> = log.lines().filter_map(|line| line.strip_prefix(PASSED)).collect();
    let turn = |at: usize| names[..=at].iter().filter(|name| **name == names[at]).count();
    (0..names.len()).map(|at| Stop { turn: turn(at), name: names[at].to_owned() }).collect()
}

/// Follows the program's stderr to its end: into the folder's log, and the point it stops at.
fn listen(child: &mut Child, folder: &Path) -> watch::Receiver<Option<String>> {
    let (tell, heard) = watch::channel(None);
    let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let mut log =
        std::fs::File::options().create(true).append(true).open(folder.join("log")).expect("a log");
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            drop(writeln!(log, "{line}")); // read by nobody but a person
            if let Some(name) = line.strip_prefix(STOPPED) {
                tell.send_replace(Some(name.to_owned()));
            }
        }
    });
    heard
}

async fn exchange(address: SocketAddr, request: &[u8]) -> Option<Value> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(request).await.ok()?;
    let mut answer = Vec::new();
    // Reset or closed: what counts is whether a whole answer came.
    drop(stream.read_to_end(&mut answer).await);
    let head = answer.windows(4).any(|four| four == b"\r\n\r\n");
    head.then(|| serde_json::from_slice(&http::parse(&answer).body).ok())?
}
