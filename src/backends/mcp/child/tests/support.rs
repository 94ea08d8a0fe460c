//! A nursery around the scripted server, and what a test looks at.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::super::{ChildLink, Grounds, Nursery, Owner};
use crate::backends::mcp::drops::Drops;
use crate::backends::mcp::link::{Inbound, Lost, Reply, Wire};
use crate::backends::mcp::sessions::Declares;
use crate::call::{SendGate, UpstreamName};
use crate::mcp::jsonrpc::{ErrorReply, Notification, Request};
use crate::policy::snapshot::{Child, EnvValue};
use crate::telemetry::metrics::Metrics;

/// For what must happen but has no set time.
pub(super) const SOON: Duration = Duration::from_secs(30);

/// The program of this build, beside the tests'.
fn program() -> PathBuf {
    let tests = std::env::current_exe().expect("this program");
    let folder = tests.parent().and_then(Path::parent).expect("target/<profile>/deps");
    let program = folder.join("checkrein");
    assert!(program.is_file(), "{} is built along with the tests", program.display());
    program
}

pub(super) struct Lab {
    pub(super) nursery: Nursery,
    pub(super) tasks: TaskTracker,
    pub(super) metrics: Arc<Metrics>,
    pub(super) folder: tempfile::TempDir,
}

/// The interpreter itself: what stands in the path may be a script that sets variables.
fn python() -> String {
    let asked = std::process::Command::new("python3")
        .args(["-c", "import sys;print(sys.executable)"])
        .output();
    let told = asked.expect("Python is there").stdout;
    String::from_utf8(told).expect("a path").trim().to_owned()
}

/// `words`: what the scripted server is told; `started`, `effects` and `heard` are files of the lab.
pub(super) fn lab(words: &[&str]) -> Lab {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| format!("{name}={}", folder.path().join(name).display());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/support/mcp_child.py");
    let mut argv = vec![python(), "-S".into(), "-E".into()];
    argv.extend([script.display().to_string(), at("started"), at("effects"), at("heard")]);
    argv.extend(words.iter().map(|word| (*word).to_owned()));
    let env = BTreeMap::from([("KID".to_owned(), EnvValue::Text("of the policy".into()))]);
    let child = Child { argv, env, cwd: folder.path().to_owned(), children: 4 };
    lab_of(&child, folder)
}

pub(super) fn lab_of(child: &Child, folder: tempfile::TempDir) -> Lab {
    let (metrics, tasks) = (Metrics::new(), TaskTracker::new());
    let grounds = Grounds {
        program: program(),
        response_bytes: 1024 * 1024,
        drops: Arc::new(Drops::new(metrics.clone())),
        tasks: tasks.clone(),
        runtime: tokio::runtime::Handle::current(),
    };
    let protocol = ["2026-07-28".into(), "2025-11-25".into()];
    let name = UpstreamName::new("kid").expect("a name");
    Lab { nursery: Nursery::new(&name, &protocol, child, grounds), tasks, metrics, folder }
}

impl Lab {
    pub(super) fn link(&self) -> ChildLink {
        self.link_heard_by(Arc::new(Ear::default()))
    }

    pub(super) fn link_heard_by(&self, ear: Arc<Ear>) -> ChildLink {
        let owner = Owner { declares: Declares::default(), fallback: ear, of_one: true };
        ChildLink::new(&self.nursery, owner)
    }

    /// The lines of one of its files.
    pub(super) fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Everybody the server ever started, itself included, who is still there.
    pub(super) fn alive(&self) -> Vec<String> {
        let mut pids = self.lines("started");
        pids.retain(|pid| pid != "bye" && is_alive(pid));
        pids
    }

    /// Every child has ended and been reaped, and no task is left.
    pub(super) async fn rest(&self) {
        self.tasks.close();
        let ended = tokio::time::timeout(SOON, self.tasks.wait()).await;
        assert!(ended.is_ok(), "{} tasks are left; alive: {:?}", self.tasks.len(), self.alive());
        assert_eq!(self.alive(), Vec::<String>::new());
    }
}

/// A zombie is not alive: only its parent has not looked yet.
pub(super) fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// Between two looks at a process, which tells nobody how it fares.
#[expect(clippy::disallowed_methods, reason = "the pace of polling itself")]
pub(super) async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

pub(super) async fn until(what: &str, level: impl Fn() -> bool) {
    let waiting = async {
        while !level() {
            pause(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Who stands behind a call.
#[derive(Debug, Default)]
pub(super) struct Ear {
    pub(super) told: Mutex<Vec<String>>,
    /// What a question is answered.
    pub(super) answer: Option<Value>,
}

impl Ear {
    pub(super) fn told(&self) -> Vec<String> {
        self.told.lock().expect("no panic").clone()
    }
}

impl Inbound for Ear {
    fn notification(&self, notification: Notification) {
        self.told.lock().expect("no panic").push(notification.method);
    }

    fn request(
        &self,
        request: Request,
    ) -> Pin<Box<dyn Future<Output = Result<Value, ErrorReply>> + Send>> {
        let answer = self.answer.clone();
        Box::pin(async move {
            answer.ok_or(ErrorReply {
                id: Some(request.id),
                code: -32601,
                message: "nobody to ask".into(),
                data: None,
            })
        })
    }
}

/// One call and how it is made.
pub(super) struct Call {
    pub(super) gate: Option<SendGate>,
    pub(super) ear: Arc<dyn Inbound>,
    pub(super) cancelled: CancellationToken,
    pub(super) token: Option<u64>,
}

impl Default for Call {
    fn default() -> Self {
        let (ear, cancelled) = (Arc::new(Ear::default()), CancellationToken::new());
        Self { gate: None, ear, cancelled, token: None }
    }
}

impl Call {
    pub(super) async fn of(self, link: &ChildLink, tool: &str, text: &str) -> Result<Reply, Lost> {
        let mut params = json!({"name": tool, "arguments": {"text": text}});
        if let Some(token) = self.token {
            params["_meta"] = json!({"progressToken": token});
        }
        let wire = Wire {
            method: "tools/call",
            params,
            name: Some(tool),
            param_headers: Vec::new(),
            fresh: false,
            gate: self.gate.as_ref(),
            progress: None,
            inbound: &self.ear,
            tasks: false,
            cancelled: &self.cancelled,
        };
        link.request(wire).await
    }
}

/// The text that a tool answered.
pub(super) async fn call(link: &ChildLink, tool: &str, text: &str) -> Result<String, Lost> {
    Call::default().of(link, tool, text).await.map(|reply| text_of(&reply))
}

pub(super) fn text_of(reply: &Reply) -> String {
    match reply {
        Reply::Result(result) => {
            let text = result.pointer("/content/0/text").and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        }
        Reply::Error(error) => panic!("an error: {error:?}"),
    }
}
