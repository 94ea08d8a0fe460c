//! Which stack a call goes through, in which order the calls of a message run, which state the loop is in. One policy
//! snapshot governs a request from its first byte to its last, whatever is installed meanwhile.

mod asking;
mod batch;
mod build;
mod left;
pub mod mcp;
mod passed;
mod people;
mod proxied;
mod routes;
mod suggest;
mod tasks;
mod together;
mod turn;
mod views;

#[cfg(test)]
mod tests;

pub use crate::backends::mcp::{Drift, NotApproved, ServerView};
pub use crate::layers::state::{CircuitView, NotMoved};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backends::mcp::Servers;
use crate::call::batch::{Paired, Turn};
use crate::call::code::DenyCode;
use crate::call::side::ServerEvent;
use crate::call::turn::LoopState;
use crate::call::{
    AgentId, CallId, CallerKey, Denied, Digest, Dimension, Effect, FrontEnd, OperationId, Outcome,
    Payload, RunId, Side, ToolName,
};
use crate::egress::Egress;
use crate::layers::stack::{Gates, Inner};
use crate::layers::state::State;
use crate::ledger::Ledger;
use crate::policy::snapshot::{Snapshot, Tool};
use crate::run::Runs;
use crate::telemetry::metrics::{Metrics, StateSource, StateView};
use crate::telemetry::record::Recorder;
use asking::Asking;
pub use proxied::{Routed, Wanted};
use routes::{Current, Routes};

/// When an agent that met a gateway on its way out may ask again: another one is there by then.
const DRAINING_AGAIN: Duration = Duration::from_secs(1);

/// Who asks, from the connection and the head; never from a body.
#[derive(Debug, Clone)]
pub struct Asker {
    pub agent: AgentId,
    /// `Checkrein-Run`; absent = ambient.
    pub run: Option<RunId>,
    /// `Checkrein-Timeout-Ms`.
    pub timeout: Option<Duration>,
    pub front_end: FrontEnd,
    /// What an agent that speaks MCP brings.
    pub side: Option<Arc<Side>>,
}

/// One call (tools API).
#[derive(Debug)]
pub struct Single {
    pub asker: Asker,
    pub id: CallId,
    pub tool: ToolName,
    pub payload: Payload,
    pub caller_key: Option<CallerKey>,
}

/// One assistant message.
#[derive(Debug)]
pub struct TurnAsk {
    pub asker: Asker,
    pub turn: Turn,
    /// Of the body's canonical form: tells a re-sent batch.
    pub digest: Digest,
    /// `Checkrein-Unfinished: true`.
    pub unfinished: bool,
}

/// One call's end, with what its rendering needs.
#[derive(Debug, Clone)]
pub struct Answer {
    pub id: CallId,
    pub tool: ToolName,
    pub outcome: Outcome,
    /// Attempts that were sent.
    pub attempts: u32,
    pub operation: Option<OperationId>,
    /// Tools to suggest: allowed to this agent, circuit closed.
    pub alternatives: Vec<ToolName>,
}

#[derive(Debug)]
pub struct TurnAnswer {
    pub state: LoopState,
    pub run: RunId,
    pub round: u64,
    pub answers: Vec<Answer>,
    pub summary: Option<String>,
    /// Set with `protocol_error`: why the whole message was refused.
    pub error: Option<Denied>,
}

/// A tool as a model is shown it.
#[derive(Debug, Clone)]
pub struct ToolInfo {
    pub name: ToolName,
    pub description: Arc<str>,
    /// Closed, as arguments are judged by it.
    pub schema: Arc<Value>,
    pub effect: Effect,
    pub title: Option<Arc<str>>,
    /// Of a tool of an MCP server: its definition as the server listed it. The members above stand over it.
    pub definition: Option<Arc<Value>>,
}

#[derive(Debug)]
pub struct RunView {
    pub run: RunId,
    pub state: LoopState,
    pub budgets: Vec<(Dimension, u64, Option<u64>)>,
}

#[derive(Debug)]
pub struct RunSummary {
    pub text: String,
    /// (tool, error, count)
    pub failures: Vec<(ToolName, &'static str, u64)>,
}

/// Bounds of a request body, from the policy in force.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    pub request_bytes: usize,
    pub argument_bytes: usize,
    pub argument_depth: usize,
    pub batch_calls: usize,
}

/// What an engine is made of; all of it outlives every policy.
#[derive(Debug)]
pub struct Parts {
    pub snapshot: Arc<Snapshot>,
    pub state: Arc<State>,
    pub runs: Arc<Runs>,
    pub ledger: Arc<Ledger>,
    pub metrics: Arc<Metrics>,
    pub recorder: Arc<Recorder>,
    /// Detached writes and drains; shutdown waits for it.
    pub tasks: TaskTracker,
}

/// Makes the routes of a snapshot; the second argument is the door outwards, where there are real back ends.
type Build = Box<dyn Fn(&Gates, Option<&Arc<Egress>>) -> Routes + Send + Sync>;

pub struct Engine {
    current: Current,
    state: Arc<State>,
    runs: Arc<Runs>,
    ledger: Arc<Ledger>,
    metrics: Arc<Metrics>,
    recorder: Arc<Recorder>,
    tasks: TaskTracker,
    draining: CancellationToken,
    /// What becomes known while nobody asks; whoever learns something of a server says it here.
    events: broadcast::Sender<ServerEvent>,
    build: Build,
    /// MCP servers, where there are real back ends.
    servers: Option<Arc<Servers>>,
    /// The policy in force as it was written, without the tools that servers offer. One at a time is put in force.
    base: Mutex<Arc<Snapshot>>,
    /// Which edition of the servers' catalogs is in force, or a later one.
    edition: AtomicU64,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("revision", &self.snapshot().revision)
            .finish_non_exhaustive()
    }
}

/// What the scrape reads. Weak: the metrics must not keep the engine, which keeps them, alive.
struct Source(Weak<Engine>);

impl StateSource for Source {
    fn read(&self) -> StateView {
        self.0.upgrade().map(|engine| engine.read()).unwrap_or_default()
    }
}

impl Engine {
    /// An engine whose tools are the real back ends. The first policy is in force when it returns; tools of MCP servers
    /// come as they are heard of, by [`Engine::rebind`].
    pub fn new(parts: Parts, servers: Arc<Servers>) -> Arc<Self> {
        let real = servers.clone();
        let build: Build = Box::new(move |gates, egress| build::real(gates, egress, &real));
        Self::with_build(parts, build, Some(servers))
    }

    /// An engine with other innermost services in place of the back ends; every layer above them is the real one.
    pub fn with_inner<S: Inner>(
        parts: Parts,
        inner: impl Fn(&Arc<Tool>) -> S + Send + Sync + 'static,
    ) -> Arc<Self> {
        let build: Build = Box::new(move |gates, _| build::routes(gates, None, &inner));
        Self::with_build(parts, build, None)
    }

    fn with_build(parts: Parts, build: Build, servers: Option<Arc<Servers>>) -> Arc<Self> {
        let Parts { snapshot: base, state, runs, ledger, metrics, recorder, tasks } = parts;
        let draining = CancellationToken::new();
        let egress = build::egress(&base, None, &metrics, servers.as_ref());
        let snapshot = build::bound(&base, None, servers.as_ref());
        state.adopt(&snapshot);
        metrics.load(&build::labels(&snapshot));
        let gates = Gates {
            snapshot,
            state: state.clone(),
            runs: runs.clone(),
            ledger: ledger.clone(),
            metrics: metrics.clone(),
            recorder: recorder.clone(),
            tasks: tasks.clone(),
            draining: draining.clone(),
        };
        let current = Current::new(build(&gates, egress.as_ref()));
        let engine = Arc::new(Self {
            current,
            state,
            runs,
            ledger,
            metrics,
            recorder,
            tasks,
            draining,
            events: events_of(servers.as_ref()),
            build,
            servers,
            base: Mutex::new(base),
            edition: AtomicU64::new(0),
        });
        engine.metrics.set_state_source(Arc::new(Source(Arc::downgrade(&engine))));
        engine
    }

    /// Puts a policy in force, as a whole. Requests that have begun end under the one they began with.
    pub fn install(&self, base: Arc<Snapshot>) {
        let mut in_force = self.base.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.current.load();
        let previous = before.egress.as_deref();
        let egress = build::egress(&base, previous, &self.metrics, self.servers.as_ref());
        let snapshot = build::bound(&base, Some(&before.snapshot), self.servers.as_ref());
        self.metrics.load(&build::labels(&snapshot));
        self.put_in_force(snapshot, egress.as_ref());
        *in_force = base;
    }

    /// The same policy over what servers offer now. Called when [`Servers::changes`] has risen.
    pub fn rebind(&self) {
        let base = self.base.lock().unwrap_or_else(PoisonError::into_inner);
        // Read first: what changes meanwhile is bound again.
        let edition = self.servers.as_ref().map_or(0, |servers| servers.edition());
        let before = self.current.load();
        let snapshot = build::bound(&base, Some(&before.snapshot), self.servers.as_ref());
        self.metrics.relabel(&build::labels(&snapshot));
        self.put_in_force(snapshot, before.egress.as_ref());
        self.edition.store(edition, Ordering::Release);
    }

    /// Metrics know the names by now; state comes before the stacks: they look up both while they are built.
    fn put_in_force(&self, snapshot: Arc<Snapshot>, egress: Option<&Arc<Egress>>) {
        self.state.adopt(&snapshot);
        let gates = Gates {
            snapshot,
            state: self.state.clone(),
            runs: self.runs.clone(),
            ledger: self.ledger.clone(),
            metrics: self.metrics.clone(),
            recorder: self.recorder.clone(),
            tasks: self.tasks.clone(),
            draining: self.draining.clone(),
        };
        self.current.store((self.build)(&gates, egress));
        // Nobody listening is no fault.
        drop(self.events.send(ServerEvent::ToolsChanged));
    }

    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load().snapshot.clone()
    }

    pub fn body_limits(&self) -> BodyLimits {
        let routes = self.current.load();
        let limits = &routes.snapshot.limits;
        BodyLimits {
            request_bytes: limits.request_bytes,
            argument_bytes: limits.argument_bytes,
            argument_depth: limits.argument_depth,
            batch_calls: limits.batch_calls,
        }
    }

    /// From here on nothing new begins: requests are refused `draining`, calls that have started end, calls of a
    /// message that have not are answered `draining`.
    pub fn drain(&self) {
        self.draining.cancel();
        self.metrics.draining(true);
    }

    pub fn draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Ends idle and timed-out runs, forgets what is past its time, closes connections that lay idle too long; called
    /// on a timer.
    pub fn sweep(&self) {
        self.runs.sweep(tokio::time::Instant::now());
        self.ledger.sweep();
        for tool in self.ledger.approvals().sweep() {
            self.metrics.tool(tool.as_str()).approval("expire");
        }
        self.state.sweep();
        if let Some(egress) = &self.current.load().egress {
            egress.sweep();
        }
    }

    /// The run it went to and how it ended; `Err` = refused before there was a run (`run_unknown`, draining, …).
    pub async fn call(&self, single: Single) -> Result<(RunId, Answer), Denied> {
        self.call_told(single, |_| ()).await
    }

    /// As [`Engine::call`]; `entered` hears the run before anything is done in it.
    pub async fn call_told(
        &self,
        single: Single,
        entered: impl FnOnce(&RunId) + Send,
    ) -> Result<(RunId, Answer), Denied> {
        let asking = match self.asking(&single.asker) {
            Ok(asking) => asking,
            Err(denied) => return Err(asking::turned_away(self, single, denied)),
        };
        entered(asking.run.id());
        let Single { id, tool, payload, caller_key, .. } = single;
        let _busy = asking.run.busy();
        let answer = asking.send(Paired { id, tool, payload }, caller_key).await;
        Ok((asking.run.id().clone(), answer))
    }

    /// One assistant message. `Err` = refused before there was a run; a message refused whole is an answer whose
    /// state is `protocol_error`.
    pub async fn turn(&self, ask: TurnAsk) -> Result<TurnAnswer, Denied> {
        let asking = self.asking(&ask.asker)?;
        let _busy = asking.run.busy();
        Ok(asking.turn(ask).await)
    }

    fn asking(&self, asker: &Asker) -> Result<Asking<'_>, Denied> {
        if self.draining() {
            return Err(draining());
        }
        Asking::new(self, asker)
    }
}

fn events_of(servers: Option<&Arc<Servers>>) -> broadcast::Sender<ServerEvent> {
    servers.map_or_else(|| broadcast::Sender::new(mcp::MAX_EVENTS), |servers| servers.events())
}

fn draining() -> Denied {
    Denied::new(DenyCode::Draining, "the gateway is restarting; nothing was sent")
        .retry_after(DRAINING_AGAIN)
}
