//! The only door outwards: which hosts and addresses may be reached, over which connection, and what was sent.
//!
//! An exchange is sent once. Nothing here retries, follows, decompresses or gives up by time.

pub mod client;
pub mod connect;
pub mod guard;
mod idle;
mod io;
mod outgoing;
mod shared;
mod tls;

use std::collections::HashMap;
use std::sync::Arc;

use tokio_util::task::TaskTracker;

pub use client::{Answer, AnswerBody, Ask, MAX_HEAD_BYTES, MAX_HEAD_FIELDS, Way};
pub use connect::{Names, Resolver};
pub use guard::{AddressClass, Blocked};
pub use idle::{MAX_IDLE, MAX_IDLE_TIME};
pub use outgoing::Sending;

use crate::call::{Failed, UpstreamName};
use crate::policy::snapshot::{self, Snapshot, Upstream};
use crate::telemetry::metrics::Metrics;

/// How an exchange ended when no head of an answer came.
#[derive(Debug)]
pub enum SendError {
    /// Our own rules; nothing was dialled.
    Blocked(Blocked),
    Dns(String),
    Connect(String),
    /// Certificate, host name, protocol: trying again does not help.
    Untrusted(String),
    /// The handshake broke off.
    TlsCut(String),
    /// `journal` kept the gate shut, and why; nothing was sent.
    GateShut(Box<Failed>),
    /// Not one byte of the request was written.
    ZeroBytes {
        reused: bool,
    },
    /// HTTP/2: the peer did not process this stream (REFUSED_STREAM, RFC 9113 §8.7).
    RefusedStream,
    /// HTTP/2: the peer is closing, and this stream is above the last it processed (GOAWAY, RFC 9113 §6.8).
    GoneAway,
    /// HTTP/2: the peer wants less (ENHANCE_YOUR_CALM).
    Calm,
    /// The connection broke after at least one byte, before a head came.
    Reset(String),
    /// What came is not HTTP; its first bytes, escaped.
    NotHttp {
        first: String,
    },
    /// The answer's head is over [`MAX_HEAD_FIELDS`] or [`MAX_HEAD_BYTES`].
    HeadTooLarge,
}

impl std::fmt::Display for SendError {
    /// For people: in logs, and where a verb says why a server is not to be had.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SendError::Blocked(why) => f.write_str(why.message()),
            SendError::Dns(why) => write!(f, "its host name could not be resolved: {why}"),
            SendError::Connect(why) => f.write_str(why),
            SendError::Untrusted(why) => write!(f, "it is not trusted: {why}"),
            SendError::TlsCut(why) => write!(f, "the TLS handshake broke off: {why}"),
            SendError::GateShut(why) => f.write_str(&why.message),
            SendError::ZeroBytes { .. } => {
                f.write_str("the connection was closed before anything was sent")
            }
            SendError::RefusedStream | SendError::GoneAway => {
                f.write_str("it did not process the request (HTTP/2)")
            }
            SendError::Calm => f.write_str("it wants fewer requests (HTTP/2 ENHANCE_YOUR_CALM)"),
            SendError::Reset(why) => write!(f, "the connection broke before it answered: {why}"),
            SendError::NotHttp { first } => {
                write!(f, "what it answers is not HTTP; it begins with: {first}")
            }
            SendError::HeadTooLarge => f.write_str("the head of its answer is too large"),
        }
    }
}

/// The ways of one policy snapshot. Idle connections survive a reload where the upstream is unchanged.
#[derive(Debug)]
pub struct Egress {
    ways: HashMap<UpstreamName, Arc<Way>>,
    rules: Rules,
    resolver: Resolver,
    drivers: TaskTracker,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rules {
    hosts: Vec<snapshot::HostRule>,
    min_tls13: bool,
}

impl Egress {
    pub fn new(snapshot: &Snapshot, previous: Option<&Egress>, metrics: Arc<Metrics>) -> Arc<Self> {
        let resolver = previous.map_or(Resolver::System, |egress| egress.resolver.clone());
        Self::with_resolver(snapshot, previous, metrics, resolver)
    }

    /// As [`Egress::new`], with another source of addresses.
    pub fn with_resolver(
        snapshot: &Snapshot,
        previous: Option<&Egress>,
        metrics: Arc<Metrics>,
        resolver: Resolver,
    ) -> Arc<Self> {
        let mut egress = Self {
            ways: HashMap::new(),
            rules: Rules {
                hosts: snapshot.egress.allow_hosts.clone(),
                min_tls13: snapshot.egress.min_tls13,
            },
            resolver,
            drivers: previous.map(|egress| egress.drivers.clone()).unwrap_or_default(),
            metrics,
        };
        let of_tools = snapshot.tools.values().map(|tool| &tool.upstream);
        let of_servers = snapshot.mcp_servers.values().map(|server| &server.upstream);
        for upstream in snapshot.upstreams.values().chain(of_servers).chain(of_tools) {
            if egress.ways.contains_key(&upstream.name) {
                continue;
            }
            let way = egress.make(upstream, previous);
            egress.ways.insert(upstream.name.clone(), way);
        }
        Arc::new(egress)
    }

    /// The way to an upstream of this snapshot.
    pub fn way(&self, upstream: &Arc<Upstream>) -> Arc<Way> {
        match self.ways.get(&upstream.name) {
            Some(way) if way.upstream.section == upstream.section => way.clone(),
            Some(_) | None => self.make(upstream, None),
        }
    }

    /// Closes idle connections that are too old to be used; called on a timer.
    pub fn sweep(&self) {
        for way in self.ways.values() {
            way.idle.sweep();
            way.pool.sweep();
        }
    }

    /// Connections to tools now open, idle ones too, of all snapshots in force.
    pub fn open_connections(&self) -> usize {
        self.drivers.len()
    }

    fn make(&self, upstream: &Arc<Upstream>, previous: Option<&Egress>) -> Arc<Way> {
        let before = previous
            .filter(|egress| egress.rules.min_tls13 == self.rules.min_tls13)
            .and_then(|egress| egress.ways.get(&upstream.name))
            .filter(|way| way.upstream.section == upstream.section);
        let (tls, idle, pool) = match before {
            Some(way) => (way.tls.clone(), way.idle.clone(), way.pool.clone()),
            None => {
                let tls = upstream.tls.then(|| {
                    let (host, ca) = (&upstream.host, upstream.ca.as_deref());
                    tls::Tls::new(host, ca, self.rules.min_tls13, upstream.http_version)
                });
                (tls, Arc::default(), Arc::default())
            }
        };
        Arc::new(Way {
            upstream: upstream.clone(),
            allowed: guard::host_allowed(&self.rules.hosts, &upstream.host, upstream.port),
            tls,
            idle,
            pool,
            resolver: self.resolver.clone(),
            drivers: self.drivers.clone(),
            metrics: self.metrics.clone(),
        })
    }
}
