//! The real engine with its real MCP back end in front of scripted servers; the front end is the test.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use checkrein::backends::mcp::{self as back, MemoryPins, Pins, Servers};
use checkrein::call::{
    AgentId, Arguments, CallError, CallId, Channel, FrontEnd, NoAnswer, Outcome, Payload, RunId,
    Side, ToolName,
};
use checkrein::engine::{Answer, Asker, Engine, Parts, Single};
use checkrein::layers::state::State;
use checkrein::ledger::Ledger;
use checkrein::policy::snapshot::{MayAsk, OnDrift, Pass, Share, Snapshot};
use checkrein::policy::{LoadOptions, load};
use checkrein::run::Runs;
use checkrein::strict_json::Limits;
use checkrein::telemetry::metrics::Metrics;
use checkrein::telemetry::record::Recorder;
use serde_json::Value;
use tokio_util::task::TaskTracker;

use crate::support::mcp::ScriptedServer;

/// How a server and its tools stand in the policy.
#[derive(Debug, Clone)]
pub(crate) struct Stands {
    pub(crate) name: &'static str,
    pub(crate) port: u16,
    pub(crate) protocol: Vec<&'static str>,
    pub(crate) reads: Vec<&'static str>,
    pub(crate) writes: Vec<&'static str>,
    pub(crate) may_ask: MayAsk,
    pub(crate) pass: Pass,
    pub(crate) on_drift: OnDrift,
    pub(crate) share: Share,
    /// YAML of each tool.
    pub(crate) keys: &'static str,
    /// YAML of the server itself, a line.
    pub(crate) own: &'static str,
}

pub(crate) fn stands(name: &'static str, server: &ScriptedServer) -> Stands {
    Stands {
        name,
        port: server.port(),
        protocol: vec!["2026-07-28", "2025-11-25", "2025-06-18"],
        reads: vec!["look"],
        writes: vec!["make"],
        may_ask: MayAsk::default(),
        pass: Pass::default(),
        on_drift: OnDrift::Quarantine,
        share: Share::Agent,
        keys: "timeout: { connect: 1s, first_byte: 2s, total: 3s }",
        own: "",
    }
}

pub(crate) struct Rig {
    pub(crate) engine: Arc<Engine>,
    pub(crate) servers: Arc<Servers>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) ledger: Arc<Ledger>,
    _folder: tempfile::TempDir,
}

impl Rig {
    pub(crate) async fn new(stand: &[Stands]) -> Self {
        Self::with_pins(stand, Arc::new(MemoryPins::default())).await
    }

    pub(crate) async fn with_pins(stand: &[Stands], pins: Arc<dyn Pins>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let metrics = Metrics::new();
        let runtime = tokio::runtime::Handle::current();
        let parts = back::Parts {
            metrics: metrics.clone(),
            runtime,
            pins,
            program: crate::support::process::PROGRAM.into(),
        };
        let servers = Servers::new(parts);
        let ledger = Ledger::in_memory();
        let parts = Parts {
            snapshot: snapshot(folder.path(), stand),
            state: State::new(metrics.clone()),
            runs: Runs::new(metrics.clone()),
            ledger: ledger.clone(),
            metrics: metrics.clone(),
            recorder: Recorder::none(),
            tasks: TaskTracker::new(),
        };
        let engine = Engine::new(parts, servers.clone());
        Self { engine, servers, metrics, ledger, _folder: folder }
    }

    /// With every tool of the policy there.
    pub(crate) async fn ready(stand: &[Stands]) -> Self {
        let rig = Self::new(stand).await;
        let names: Vec<String> = stand
            .iter()
            .flat_map(|one| one.reads.iter().chain(&one.writes).map(|tool| (*tool).to_owned()))
            .collect();
        rig.until(|snapshot| {
            names.iter().all(|name| snapshot.tools.keys().any(|tool| tool.as_str() == name))
        })
        .await;
        rig
    }

    pub(crate) fn install(&self, stand: &[Stands]) {
        self.engine.install(snapshot(self._folder.path(), stand));
    }

    /// Binds anew whenever a catalog changes, until `level` holds.
    pub(crate) async fn until(&self, level: impl Fn(&Snapshot) -> bool) {
        let mut changes = self.servers.changes();
        let waiting = async {
            loop {
                changes.mark_unchanged();
                self.engine.rebind();
                if level(&self.engine.snapshot()) {
                    return;
                }
                changes.changed().await.expect("the servers are there");
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(10), waiting).await;
        assert!(waited.is_ok(), "not so within 10 s: {:?}", self.servers.views());
    }

    pub(crate) fn has(&self, tool: &str) -> bool {
        self.engine.snapshot().tools.keys().any(|name| name.as_str() == tool)
    }

    pub(crate) async fn call(&self, tool: &str, arguments: &str) -> Answer {
        self.call_as("default", None, tool, arguments).await
    }

    pub(crate) async fn call_as(
        &self,
        agent: &str,
        side: Option<Side>,
        tool: &str,
        arguments: &str,
    ) -> Answer {
        let asker = Asker {
            agent: AgentId::new(agent).expect("a name"),
            run: Some(RunId::mint()),
            timeout: None,
            front_end: FrontEnd::McpHttp,
            side: side.map(Arc::new),
        };
        let parsed = Arguments::parse(arguments.as_bytes(), Limits::arguments(1 << 16, 32));
        let single = Single {
            asker,
            id: CallId::mint(),
            tool: ToolName::asked(tool),
            payload: Payload::Arguments(parsed.expect("sound arguments")),
            caller_key: None,
        };
        self.engine.call(single).await.expect("a run").1
    }

    /// Of an open review, if there is one.
    pub(crate) fn reviews(&self) -> u64 {
        self.ledger.reviews_open().0.into_iter().map(|(_, open)| open).sum()
    }
}

/// The JSON text of a result that passed as its server gave it.
pub(crate) fn text(outcome: &Outcome) -> String {
    let result = outcome.as_ref().unwrap_or_else(|error| panic!("no result: {error:?}"));
    String::from_utf8(result.content.bytes.to_vec()).expect("UTF-8")
}

/// Code, and whether it was executed as far as is known.
pub(crate) fn ended(outcome: &Outcome) -> (&'static str, &'static str) {
    match outcome {
        Ok(_) => ("ok", "yes"),
        Err(error) => (error.code(), checkrein::call::judge::executed(error).as_str()),
    }
}

pub(crate) fn evidence(outcome: &Outcome) -> String {
    match outcome {
        Err(CallError::Failed(failed)) => {
            failed.evidence.map(|evidence| evidence.to_string()).unwrap_or_default()
        }
        _ => String::new(),
    }
}

fn snapshot(folder: &std::path::Path, stand: &[Stands]) -> Arc<Snapshot> {
    std::fs::write(folder.join("b"), "token-b").expect("written");
    let path = folder.join("policy.yaml");
    std::fs::write(&path, policy(stand).replace("DIR", &folder.display().to_string()))
        .expect("written");
    let loaded = load(&path, LoadOptions::default());
    loaded.unwrap_or_else(|refused| panic!("{refused:?}")).snapshot
}

/// The policy's text; `DIR` stands for the folder of its secrets.
pub(crate) fn policy(stand: &[Stands]) -> String {
    let servers: String = stand.iter().map(Stands::yaml).collect();
    let servers = if servers.is_empty() { "  {}\n".to_owned() } else { servers };
    let names: Vec<&str> =
        stand.iter().flat_map(|one| one.reads.iter().chain(&one.writes).copied()).collect();
    let allow = names.join(", ");
    format!(
        "apiVersion: checkrein/v1\nkind: Policy\nname: mcp\nmcp_servers:\n{servers}agents:\n  \
         default: {{ allow: [{allow}] }}\n  \
         b: {{ identities: [ {{ token: {{ file: \"DIR/b\" }} }} ], allow: [{allow}] }}\n"
    )
}

impl Stands {
    fn yaml(&self) -> String {
        let quoted = |texts: &[String]| {
            texts.iter().map(|text| format!("\"{text}\"")).collect::<Vec<_>>().join(", ")
        };
        let listed = |key: &str, texts: &[String]| match texts {
            [] => String::new(),
            texts => format!("{key}: [{}], ", quoted(texts)),
        };
        let protocol: Vec<String> = self.protocol.iter().map(|one| (*one).to_owned()).collect();
        let MayAsk { elicitation, sampling, roots } = self.may_ask;
        let may_ask = [("elicitation", elicitation), ("sampling", sampling), ("roots", roots)];
        let may_ask: Vec<&str> =
            may_ask.into_iter().filter(|(_, yes)| *yes).map(|(name, _)| name).collect();
        let share = if self.share == Share::Run { "run" } else { "agent" };
        let on_drift = match self.on_drift {
            OnDrift::Warn => "warn",
            OnDrift::Quarantine => "quarantine",
            OnDrift::Block => "block",
        };
        let mut text = format!(
            "  {}:\n    url: \"http://127.0.0.1:{}/mcp\"\n    addresses: [loopback]\n    \
             profile: internal_rpc\n    protocol: [{}]\n    share: {share}\n    may_ask: [{}]\n    \
             on_drift: {on_drift}\n    pass: {{ {}{}completion: {}, logging: {} }}\n    {}\n    tools:\n",
            self.name,
            self.port,
            quoted(&protocol),
            may_ask.join(", "),
            listed("resources", &self.pass.resources),
            listed("prompts", &self.pass.prompts),
            self.pass.completion,
            self.pass.logging,
            self.own,
        );
        for (tools, effect) in [(&self.reads, "read"), (&self.writes, "write")] {
            for tool in tools {
                let keys = self.keys.replace("\n    ", "\n        ");
                text.push_str(&format!(
                    "      {tool}:\n        effect: {effect}\n        {keys}\n"
                ));
            }
        }
        if self.reads.is_empty() && self.writes.is_empty() {
            text.push_str(&format!("      nothing_of_{}: {{ effect: read }}\n", self.name));
        }
        text
    }
}

/// The members of a result's JSON text.
pub(crate) fn parsed(text: &str) -> Value {
    checkrein::strict_json::parse(text.as_bytes(), Limits::answer(text.len())).expect("JSON")
}

/// The agent's end of an open call: keeps what it is told, answers what it is asked.
#[derive(Debug, Default)]
pub(crate) struct Ear {
    pub(crate) told: Mutex<Vec<(String, Value)>>,
    pub(crate) asked: Mutex<Vec<(String, Value)>>,
    pub(crate) answer: Value,
}

impl Ear {
    pub(crate) fn that_answers(answer: Value) -> Arc<Self> {
        Arc::new(Self { answer, ..Self::default() })
    }
    pub(crate) fn told(&self, method: &str) -> Vec<Value> {
        let told = self.told.lock().expect("no holder panics");
        told.iter().filter(|(one, _)| one == method).map(|(_, params)| params.clone()).collect()
    }
    pub(crate) fn asked(&self) -> Vec<(String, Value)> {
        self.asked.lock().expect("no holder panics").clone()
    }
}

impl Channel for Ear {
    fn notify(&self, method: &str, params: Value) {
        self.told.lock().expect("no holder panics").push((method.to_owned(), params));
    }
    fn ask(
        &self,
        method: &str,
        params: Value,
    ) -> Pin<Box<dyn Future<Output = Result<Value, NoAnswer>> + Send>> {
        self.asked.lock().expect("no holder panics").push((method.to_owned(), params));
        Box::pin(std::future::ready(Ok(self.answer.clone())))
    }
}

/// A legacy agent in a session of its own.
pub(crate) fn side(session: &str, ear: &Arc<Ear>) -> Side {
    let channel: Arc<dyn Channel> = ear.clone();
    Side { session: Some(session.into()), channel: Some(channel), ..Side::default() }
}
