//! The composition root: settings → policy → engine → health → data → ready; reload and drain after that.
//!
//! [`start`] runs a whole gateway on the current runtime, as tests want it; [`run`] is the process: one thread for
//! probes, policy and signals, and a single-threaded runtime a worker for calls.

mod admin;
mod doors;
mod drain;
mod health;
mod policy;
mod process;
mod records;
mod stdio;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::doors::{Door, Doors as Bind};
use crate::backends;
use crate::backends::mcp::{FilePins, MemoryPins, Pins, Servers};
use crate::call::UpstreamName;
use crate::config::{Config, Keeps, Listen};
use crate::engine::{Engine, Parts};
use crate::frontends::{Body, Doors, FrontEnds};
use crate::health::Health;
use crate::identity::Peer;
use crate::layers::state::State;
use crate::ledger::Ledger;
use crate::policy::snapshot::Snapshot;
use crate::run::Runs;
use crate::server::{Incoming, Limits, Listener, Server};
use crate::store::{OpenError, Place, Store};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::redact::Secrets;

pub use self::process::run;
use self::records::Records;
pub use self::stdio::{Pipes, run_stdio};

/// Agents' connections at once, over all workers. One agent needs a handful; past it a connection is refused.
const MAX_CONNECTIONS: usize = 1024;
/// How often each worker says that it turns.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How often what has run out is forgotten.
const SWEEP: Duration = Duration::from_secs(1);

/// Why a gateway cannot start. Shown as it is, on stderr.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The findings about the policy, as people read them.
    #[error("{0}error: the policy cannot be obeyed, so nothing was started")]
    Policy(String),
    #[error("error: cannot listen on {address} ({what}): {source}")]
    Listen { what: &'static str, address: String, source: io::Error },
    /// Another process has it, its secret is not the one it was written under, or the folder cannot be written.
    #[error("error: the store cannot be opened: {0}")]
    Store(String),
    /// Who could come in is not said, or anybody could.
    #[error("error: the admin listener: {0}")]
    Admin(String),
    /// A listener for an upstream that is not there would answer nobody.
    #[error("error: --proxy-listen names the upstream `{0}`, which the policy does not have")]
    Upstream(String),
    /// Who asks over standard streams is none of the policy's agents.
    #[error("error: the policy has no agent `{0}`")]
    Agent(String),
    #[error("error: records cannot be written to {path}: {source}")]
    Records { path: PathBuf, source: io::Error },
    #[error("error: the ready file {path} cannot be written: {source}")]
    ReadyFile { path: PathBuf, source: io::Error },
    #[error("error: the system refused {what}: {source}")]
    System { what: &'static str, source: io::Error },
}

/// A gateway on the current runtime.
#[derive(Debug)]
pub struct Running {
    /// Where agents connect, with the port that was really bound.
    pub data: Listen,
    /// Where clients of one upstream connect.
    pub proxies: Vec<(UpstreamName, Listen)>,
    pub health: SocketAddr,
    /// Where people connect, if anywhere.
    pub admin: Option<Listen>,
    pub engine: Arc<Engine>,
    pub metrics: Arc<Metrics>,
    gateway: Gateway,
}

/// Everything the gateway's tasks share.
#[derive(Debug, Clone)]
struct Gateway {
    config: Arc<Config>,
    engine: Arc<Engine>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    records: Records,
    ledger: Arc<Ledger>,
    servers: Arc<Servers>,
    secrets: Secrets,
    server: Server,
    front_ends: FrontEnds,
    /// Exchanges in hand: a drain waits for them.
    exchanges: TaskTracker,
    /// Writes whose agent may be gone, and late answers: a drain waits for them too.
    tasks: TaskTracker,
    /// Ends everything but the data listeners, which `server.shutdown` ends.
    stop: CancellationToken,
    /// A word on it reads the policy at once.
    reload: mpsc::Sender<()>,
    /// What the last look at the policy came to.
    heard: watch::Sender<policy::Heard>,
    /// A person wants it to drain.
    drain_asked: CancellationToken,
}

/// A gateway that is loaded and answers probes; its data listeners are bound but not served yet.
struct Prepared {
    gateway: Gateway,
    /// For each worker.
    listeners: Vec<Vec<Door>>,
    data: Listen,
    proxies: Vec<(UpstreamName, Listen)>,
    health: SocketAddr,
    admin: Option<Listen>,
}

/// A bound socket that belongs to no runtime yet.
#[derive(Debug)]
enum Bound {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

/// Starts a gateway on the current runtime. Port 0 = any free one; see [`Running`].
pub async fn start(config: Config) -> Result<Running, StartError> {
    let prepared = prepare(config, 1, Secrets::default()).await?;
    let gateway = prepared.gateway;
    for doors in prepared.listeners {
        gateway.serve(doors, 0)?; // it ends with the server's shutdown
    }
    gateway.health.listeners_bound();
    tokio::spawn(gateway.clone().drain_when_asked());
    Ok(Running {
        data: prepared.data,
        proxies: prepared.proxies,
        health: prepared.health,
        admin: prepared.admin,
        engine: gateway.engine.clone(),
        metrics: gateway.metrics.clone(),
        gateway,
    })
}

impl Running {
    /// Drains as SIGTERM does and ends every task. True = all that was in flight has ended by itself.
    pub async fn shutdown(self) -> bool {
        let ended = self.gateway.drain(std::future::pending()).await;
        self.gateway.records.close();
        ended
    }

    /// Reads the policy at once, as SIGHUP does.
    pub fn reload(&self) {
        self.gateway.read_policy();
    }
}

/// Everything up to the bound data listeners, `listeners` of them; with none, no listener of any kind.
async fn prepare(
    config: Config,
    listeners: usize,
    secrets: Secrets,
) -> Result<Prepared, StartError> {
    let access = admin::guard(&config)?;
    let metrics = Metrics::with_max_series(config.max_series);
    let (watcher, snapshot) = policy::first(&config, &metrics, &secrets).await?;
    let records = Records::start(&config.audit, metrics.clone()).await?;
    let tasks = TaskTracker::new();
    let health = Health::new(metrics.clone(), listeners);
    health.policy_loaded();
    // Before anybody can ask: what an earlier process left open is unknown by then.
    let ledger = ledger(&config, &metrics, &health).await?;
    let servers = servers(&config, &metrics).await?;
    if config.admin.is_none() && asks_people(&snapshot) {
        tracing::warn!(
            "tools of the policy wait for people, and there is no --admin where people decide"
        );
    }
    let engine = engine(snapshot, &metrics, &records, (&ledger, &tasks), &servers);
    let stop = CancellationToken::new();
    let unless_done = stop.clone().drop_guard(); // a start that fails leaves no listener behind
    // Over standard streams there is no listener at all, so that several may run beside each other.
    let health_address = match listeners {
        0 => config.health,
        _ => health::serve(config.health, health.clone(), stop.clone()).await?,
    };
    let admin = access.map(admin::bind).transpose()?;
    let bound = match listeners {
        0 => Bind { data: config.listen.clone(), proxies: Vec::new(), of_workers: Vec::new() },
        _ => doors::bind(&config, listeners, &engine.snapshot())?,
    };
    let Bind { data, proxies, of_workers: listeners } = bound;
    let (reload, force) = mpsc::channel(1); // several words that wait are one
    let gateway = Gateway {
        server: server(&metrics),
        front_ends: FrontEnds::new(engine.clone(), metrics.clone(), names(&config, &data)),
        exchanges: TaskTracker::new(),
        tasks,
        config: Arc::new(config),
        engine,
        metrics,
        health,
        records,
        ledger,
        servers,
        secrets,
        stop,
        reload,
        heard: watch::Sender::new(policy::Heard::first()),
        drain_asked: CancellationToken::new(),
    };
    let admin = admin.map(|bound| gateway.serve_people(bound));
    tokio::spawn(policy::follow(gateway.clone(), watcher, force));
    tokio::spawn(gateway.clone().sweep());
    gateway.tasks.spawn(gateway.engine.clone().ask_about_left());
    gateway.tasks.spawn(gateway.engine.clone().follow_tasks());
    tokio::spawn(gateway.clone().follow_servers());
    unless_done.disarm();
    Ok(Prepared { gateway, listeners, data, proxies, health: health_address, admin })
}

/// Some tool is called only with a person's yes.
fn asks_people(snapshot: &Snapshot) -> bool {
    let entries = snapshot.mcp_servers.values().flat_map(|server| &server.entries);
    snapshot.tools.values().any(|tool| tool.approval.is_some())
        || entries.into_iter().any(|entry| entry.approval.is_some())
}

fn engine(
    snapshot: Arc<Snapshot>,
    metrics: &Arc<Metrics>,
    records: &Records,
    (ledger, tasks): (&Arc<Ledger>, &TaskTracker),
    servers: &Arc<Servers>,
) -> Arc<Engine> {
    let parts = Parts {
        snapshot,
        state: State::new(metrics.clone()),
        runs: Runs::new(metrics.clone()),
        ledger: ledger.clone(),
        metrics: metrics.clone(),
        recorder: records.recorder(),
        tasks: tasks.clone(),
    };
    Engine::new(parts, servers.clone())
}

/// MCP servers live on this runtime, whatever worker their calls come from.
async fn servers(config: &Config, metrics: &Arc<Metrics>) -> Result<Arc<Servers>, StartError> {
    let pins: Arc<dyn Pins> = match config.store {
        Keeps::Memory => Arc::new(MemoryPins::default()),
        Keeps::Sqlite => {
            let folder = config.state.clone();
            let opened = tokio::task::spawn_blocking(move || FilePins::open(&folder)).await;
            let failed = |why: String| StartError::Store(format!("pinned definitions: {why}"));
            let opened = opened.map_err(|error| failed(error.to_string()))?;
            Arc::new(opened.map_err(|error| failed(error.to_string()))?)
        }
    };
    let runtime = tokio::runtime::Handle::current();
    Ok(Servers::new(backends::mcp::Parts {
        metrics: metrics.clone(),
        runtime,
        pins,
        program: backends::mcp::own_program(),
    }))
}

/// A store that is damaged ends nothing: reads go on, and no write is taken for new.
async fn ledger(
    config: &Config,
    metrics: &Arc<Metrics>,
    health: &Health,
) -> Result<Arc<Ledger>, StartError> {
    let place = match config.store {
        Keeps::Memory => return Ok(Ledger::in_memory()),
        Keeps::Sqlite => Place { folder: config.state.clone(), max_bytes: config.state_max },
    };
    match Store::open(&place, metrics.clone()) {
        Ok((store, rows)) => Ok(Ledger::over(store, rows).await),
        Err(OpenError::Refused(why)) => Err(StartError::Store(why)),
        Err(OpenError::Damaged(why)) => {
            tracing::error!(why, "THE STORE IS DAMAGED: every write is refused until it is mended");
            health.degraded("store", Some(format!("damaged, writes are refused: {why}")));
            Ok(Ledger::over(Store::Unreadable(why), Vec::new()).await)
        }
    }
}

/// By which names and origins a listener may be reached.
fn names(config: &Config, data: &Listen) -> Doors {
    let mut doors = Doors {
        port: None,
        hosts: config.allowed_hosts.clone(),
        origins: config.allowed_origins.clone(),
        console: config.console_url.clone(),
        no_get_stream: !config.mcp_get_stream,
    };
    if let Listen::Tcp(address) = data {
        doors.port = Some(address.port());
        if !address.ip().is_unspecified() {
            doors.hosts.push(address.to_string());
        }
    }
    doors
}

fn server(metrics: &Arc<Metrics>) -> Server {
    Server {
        limits: Limits::new(MAX_CONNECTIONS),
        http2: true,
        metrics: metrics.clone(),
        shutdown: CancellationToken::new(),
        tasks: TaskTracker::new(),
    }
}

impl Gateway {
    /// Serves a worker's data listeners on the current runtime, and says that this runtime turns.
    fn serve(&self, doors: Vec<Door>, worker: usize) -> Result<(), StartError> {
        for Door { bound, upstream } in doors {
            let port = match &bound {
                Bound::Tcp(socket) => socket.local_addr().ok().map(|at| at.port()),
                Bound::Unix(_) => None,
            };
            let listener = match bound {
                Bound::Tcp(socket) => Listener::tcp(socket),
                Bound::Unix(socket) => Listener::unix(socket),
            };
            let listener =
                listener.map_err(|source| StartError::System { what: "a listener", source })?;
            let front_ends = match upstream {
                Some(upstream) => self.front_ends.of_upstream(upstream, port),
                None => self.front_ends.clone(),
            };
            // It ends with the server's shutdown.
            drop(self.server.serve(listener, self.service(front_ends)));
        }
        tokio::spawn(self.clone().beat(worker));
        Ok(())
    }

    fn service(
        &self,
        front_ends: FrontEnds,
    ) -> impl Fn(Peer, Request<Incoming>) -> Answering + Clone + Send + Sync + 'static {
        let (exchanges, front_ends) = (self.exchanges.clone(), Arc::new(front_ends));
        move |peer, request| {
            let (front_ends, in_hand) = (front_ends.clone(), exchanges.token());
            Box::pin(async move {
                let mut answer = front_ends.answer(peer, request).await;
                crash_point!("app: the answer is made");
                // Until the last byte, where it goes on as it comes.
                answer.body_mut().hold(in_hand);
                answer
            })
        }
    }

    async fn beat(self, worker: usize) {
        let mut ticks = tokio::time::interval(HEARTBEAT);
        loop {
            tokio::select! {
                _ = ticks.tick() => self.health.beat(worker),
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// What MCP servers offer meets the policy in force anew whenever it changes.
    async fn follow_servers(self) {
        let mut changes = self.servers.changes();
        // Heard of before anybody listened.
        changes.mark_changed();
        loop {
            tokio::select! {
                changed = changes.changed() => match changed {
                    Ok(()) => self.engine.rebind(),
                    Err(_) => return,
                },
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Forgets what has run out: idle runs, full buckets, old results.
    async fn sweep(self) {
        let mut ticks = tokio::time::interval(SWEEP);
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    self.engine.sweep();
                    self.front_ends.sweep();
                    let refuses = "writes are refused: they cannot be recorded".to_owned();
                    self.health.degraded("ledger", (!self.ledger.writable()).then_some(refuses));
                }
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Reads the policy at once. A word that waits already is enough.
    fn read_policy(&self) {
        if self.reload.try_send(()).is_err() {
            tracing::debug!("the policy is about to be read already");
        }
    }
}

type Answering = std::pin::Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").field("data", &self.data).finish_non_exhaustive()
    }
}
