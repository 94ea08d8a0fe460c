//! Servers of tools that speak MCP: inner sessions, catalogs, calls. One dead server never touches another.
//!
//! [`Servers`] outlives every policy. It connects and lists in the background; the policy's rules make tools of what is
//! listed, and a call of such a tool goes through the very same layers as any other.

mod call;
mod caller;
mod catalog;
mod child;
mod door;
mod drops;
mod feed;
mod handshake;
mod http;
mod link;
mod listening;
mod pass;
mod pins;
mod result;
mod server;
mod sessions;
mod silent;
mod subscriptions;
mod tasks;
mod watcher;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{broadcast, watch};
use tokio_util::task::TaskTracker;

pub use self::call::McpBackend;
pub use self::catalog::Drift;
pub use self::child::own_program;
use self::child::{Grounds, Nursery};
use self::door::Door;
use self::drops::Drops;
pub(in crate::backends) use self::link::Lost;
pub use self::pass::{Offered, PassBackend};
pub use self::pins::{FilePins, MemoryPins, NotApproved, Pinned, Pins, Seen};
pub use self::server::ServerView;
use self::server::{Reached, Server, Shared};
use self::subscriptions::{Subscriber, Subscriptions};
use crate::call::side::ServerEvent;
use crate::call::{AgentId, UpstreamName, Verdict};
use crate::egress::Egress;
use crate::policy::bind::Catalog;
use crate::policy::snapshot::{McpServer, Reach, Snapshot, Target, Tool};
use crate::telemetry::metrics::Metrics;

/// Events that wait for one listener; one that falls behind hears that it has.
pub const MAX_EVENTS: usize = 1024;
/// For farewells to servers at the end of the process.
const FAREWELLS: Duration = Duration::from_secs(2);
/// The same where children have to end; what stands between goes on with it even without us.
const LAST_CHILD: Duration = Duration::from_secs(12);

/// What [`Servers`] are made of.
#[derive(Debug)]
pub struct Parts {
    pub metrics: Arc<Metrics>,
    /// Where connections live that outlast a call.
    pub runtime: tokio::runtime::Handle,
    pub pins: Arc<dyn Pins>,
    /// The gateway's own program ([`own_program`]), which stands between it and its children.
    pub program: PathBuf,
}

/// All MCP servers of the policy in force.
#[derive(Debug)]
pub struct Servers {
    servers: Mutex<HashMap<UpstreamName, Arc<Server>>>,
    shared: Shared,
}

impl Servers {
    pub fn new(parts: Parts) -> Arc<Self> {
        let Parts { metrics, runtime, pins, program } = parts;
        let shared = Shared {
            pins,
            program,
            drops: Arc::new(Drops::new(metrics)),
            events: broadcast::Sender::new(MAX_EVENTS),
            changed: watch::Sender::new(0),
            runtime,
            tasks: TaskTracker::new(),
        };
        Arc::new(Self { servers: Mutex::default(), shared })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<UpstreamName, Arc<Server>>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> Vec<Arc<Server>> {
        self.lock().values().cloned().collect()
    }

    fn named(&self, name: &UpstreamName) -> Option<Arc<Server>> {
        self.lock().get(name).cloned()
    }

    /// Takes over a policy: servers whose section is unchanged stay connected, the others begin anew or end. Never
    /// waits: listing goes on in the background.
    pub fn adopt(&self, base: &Arc<Snapshot>, egress: &Arc<Egress>) {
        let response_bytes = base.limits.response_bytes;
        let mut servers = self.lock();
        let mut old = std::mem::take(&mut *servers);
        for (name, rules) in &base.mcp_servers {
            let unchanged = |one: &Arc<Server>| one.rules().section == rules.section;
            let kept = old.get(name).is_some_and(unchanged).then(|| old.remove(name)).flatten();
            let server = match kept {
                Some(server) => {
                    server.adopt(rules);
                    match server.reached() {
                        Reached::Http(door) => {
                            door.renew(egress.way(&rules.upstream), response_bytes);
                        }
                        Reached::Child(nursery) => nursery.renew(response_bytes),
                    }
                    server
                }
                None => self.begin(rules, egress, response_bytes),
            };
            servers.insert(name.clone(), server);
        }
        drop(servers);
        let new = self.lock();
        for (name, server) in &old {
            if let Some(new) = new.get(name) {
                Subscriptions::inherit(new, server);
            }
            server.leave();
        }
    }

    fn begin(
        &self,
        rules: &Arc<McpServer>,
        egress: &Arc<Egress>,
        response_bytes: usize,
    ) -> Arc<Server> {
        let Shared { tasks, runtime, drops, program, .. } = &self.shared;
        let reached = match &rules.reach {
            Reach::Http => {
                let way = egress.way(&rules.upstream);
                Reached::Http(Door::new(rules, way, response_bytes, tasks, runtime))
            }
            Reach::Child(child) => {
                let grounds = Grounds {
                    program: program.clone(),
                    response_bytes,
                    drops: drops.clone(),
                    tasks: tasks.clone(),
                    runtime: runtime.clone(),
                };
                Reached::Child(Nursery::new(&rules.name, &rules.protocol, child, grounds))
            }
        };
        Server::new(rules, reached, self.shared.clone())
    }

    /// What each server offers, as last heard; one that was never heard of is missing.
    pub fn catalogs(&self) -> HashMap<UpstreamName, Arc<Catalog>> {
        let servers = self.all();
        servers.iter().filter_map(|one| Some((one.name().clone(), one.catalog()?))).collect()
    }

    /// Rises with every change of a catalog.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changed.subscribe()
    }

    /// What [`Servers::changes`] says now.
    pub fn edition(&self) -> u64 {
        *self.shared.changed.borrow()
    }

    /// Whether every server has been asked for its tools once, or has had its time. At once but after a start and after
    /// a policy that brings servers.
    pub fn are_settled(&self) -> bool {
        self.all().iter().all(|server| server.is_settled())
    }

    /// Until [`Servers::are_settled`], which is within seconds.
    pub async fn settled(&self) {
        for server in self.all() {
            server.settled().await;
        }
    }

    /// What becomes known while nobody asks.
    pub fn events(&self) -> broadcast::Sender<ServerEvent> {
        self.shared.events.clone()
    }

    /// Whether a server answers, for whoever tests its tools. An error in an answer says that it is ill; one that the
    /// policy has left says nothing.
    pub async fn answers(&self, name: &UpstreamName) -> Verdict {
        match self.named(name) {
            Some(server) => match server.answers().await {
                Ok(()) => Verdict::Good,
                Err(why) => {
                    tracing::debug!(server = %name, %why, "a probe was not answered");
                    Verdict::Bad
                }
            },
            None => Verdict::Neutral,
        }
    }

    /// The way to a tool. Its calls end with the server they began with.
    pub fn tool(&self, tool: &Arc<Tool>) -> McpBackend {
        let server = match &tool.target {
            Target::Mcp(mcp) => self.named(&mcp.server.name),
            Target::Http(_) | Target::Proxy(_) | Target::Passed => None,
        };
        McpBackend::new(tool, server)
    }

    /// The way to everything a server offers besides tools.
    pub fn passed(&self, server: &UpstreamName) -> PassBackend {
        PassBackend::new(self.named(server))
    }

    /// Closes what hung on an agent's session, or on a stream of it that listened.
    pub fn session_over(&self, agent: &AgentId, session: &str) {
        let subscriber = Subscriber { agent: agent.clone(), stream: session.into() };
        for server in self.all() {
            Subscriptions::over(&server, &subscriber);
            server.sessions.over(agent, session);
        }
    }

    /// Every server, for people and metrics, by name.
    pub fn views(&self) -> Vec<ServerView> {
        let mut views: Vec<ServerView> = self.all().iter().map(|one| one.view()).collect();
        views.sort_by(|a, b| a.server.cmp(&b.server));
        views
    }

    /// A person takes a changed definition, of which `pin` is the hash, for what is trusted from here on.
    pub async fn approve(
        &self,
        server: &UpstreamName,
        tool: &str,
        pin: &str,
    ) -> Result<(), NotApproved> {
        let server = self.named(server).ok_or(NotApproved::NoDrift)?;
        let (tool, pin) = (tool.to_owned(), pin.to_owned());
        let writing = self.shared.runtime.spawn_blocking(move || server.approve(&tool, &pin));
        writing.await.unwrap_or(Err(NotApproved::NotKept))
    }

    /// Ends everything: sessions are told farewell, and every child is ended with its group.
    pub async fn shutdown(&self) {
        let servers: Vec<_> = self.lock().drain().map(|(_, server)| server).collect();
        for server in &servers {
            server.leave();
        }
        self.shared.tasks.close();
        let child = |server: &Arc<Server>| matches!(server.reached(), Reached::Child(_));
        let most = if servers.iter().any(child) { LAST_CHILD } else { FAREWELLS };
        if tokio::time::timeout(most, self.shared.tasks.wait()).await.is_err() {
            tracing::debug!("farewells to MCP servers were cut short");
        }
    }
}
