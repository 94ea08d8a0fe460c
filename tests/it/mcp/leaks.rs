//! A thousand sessions opened, used and dropped without care while their server crashes: nothing of them is left behind.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use checkrein::frontends::{Doors, FrontEnds};
use checkrein::identity::Peer;
use checkrein::server::{Limits, Listener, Server, bind_tcp};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::peer::initialize;
use super::rig::{Rig, stands};
use crate::support::http::{bytes_of, parse};
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};
use crate::support::wait_for;

const S: Duration = Duration::from_secs(1);
const ACCEPT: (&str, &str) = ("accept", "application/json, text/event-stream");
/// Sessions of one round; there are two, and the second must find what the first found.
const SESSIONS: usize = 500;
/// How often the server crashes in a round.
const CRASHES: usize = 5;
/// Agents at once.
const AT_ONCE: usize = 20;
/// Longer than anything idle is kept: a session of an agent for eight hours.
const FOR_EVER: Duration = Duration::from_secs(10 * 3600);

struct House {
    rig: Rig,
    server: ScriptedServer,
    front_ends: FrontEnds,
    address: SocketAddr,
    connections: TaskTracker,
}

/// What is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    tasks: usize,
    connections: usize,
    inner_sessions: usize,
    runs: u64,
}

impl House {
    async fn new() -> Self {
        let tools = vec![tool("look", json!({"n": {}})), tool("make", json!({"n": {}}))];
        let server = ScriptedServer::legacy("2025-11-25", tools).await;
        server.set_get(vec![Piece::Comment, Piece::Held]);
        let mut stand = stands("srv", &server);
        stand.keys = "timeout: { connect: 1s, first_byte: 1s, total: 2s }\n    \
                      fuse: { same_failures: 1000000, same_results: 1000000 }";
        let rig = Rig::ready(&[stand]).await;
        let front_ends = FrontEnds::new(rig.engine.clone(), rig.metrics.clone(), Doors::default());
        let connections = TaskTracker::new();
        let front = Server {
            http2: true,
            limits: Limits::new(1024),
            metrics: rig.metrics.clone(),
            shutdown: CancellationToken::new(),
            tasks: connections.clone(),
        };
        let bound = bind_tcp("127.0.0.1:0".parse().expect("an address"), false).expect("bound");
        let listener = Listener::tcp(bound).expect("registered");
        let address = listener.local_addr().expect("TCP");
        let answering = front_ends.clone();
        drop(front.serve(listener, move |_, request| {
            let front_ends = answering.clone();
            async move { front_ends.answer(Peer::Loopback, request).await }
        }));
        Self { rig, server, front_ends, address, connections }
    }

    fn held(&self) -> Held {
        Held {
            descriptors: std::fs::read_dir("/proc/self/fd").expect("Linux").count(),
            tasks: tokio::runtime::Handle::current().metrics().num_alive_tasks(),
            connections: self.connections.len(),
            inner_sessions: self.rig.servers.views().iter().map(|view| view.sessions).sum(),
            runs: self.rig.engine.runs().live().into_iter().map(|(_, live)| live).sum(),
        }
    }

    /// One agent that opens a session, does something with it and is gone, as `kind` says. What it is answered while
    /// its server is down is not looked at.
    async fn careless(&self, kind: usize) {
        let begun = self.exchange(&[], initialize("2025-11-25", &json!({})).as_bytes()).await;
        let session = begun.header("mcp-session-id").expect("a session").to_owned();
        let fields = [("mcp-session-id", session.as_str())];
        let call = |tool: &str| {
            let params = json!({"name": tool, "arguments": {"n": session}});
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string()
        };
        match kind % 6 {
            0 => drop(self.exchange(&fields, call("look").as_bytes()).await),
            1 => drop(self.exchange(&fields, call("make").as_bytes()).await),
            // a stream, and cut
            2 => {
                let mut stream = self.send("GET", &fields, b"").await;
                let mut first = [0; 16];
                drop(stream.read(&mut first).await);
            }
            // a call, and cut before its answer
            3 => drop(self.send("POST", &fields, call("look").as_bytes()).await),
            4 => drop(self.send("POST", &fields, call("make").as_bytes()).await),
            // half a request, and cut
            _ => {
                let whole =
                    bytes_of("POST", "/mcp", &self.fields(&fields), call("look").as_bytes());
                let mut stream = TcpStream::connect(self.address).await.expect("it listens");
                stream.write_all(&whole[..whole.len() - 20]).await.expect("taken");
            }
        }
    }

    fn fields<'a>(&self, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let mut all = vec![ACCEPT];
        all.extend_from_slice(more);
        all
    }

    async fn send(&self, method: &str, fields: &[(&str, &str)], body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.expect("it listens");
        let host = format!("localhost:{}", self.address.port());
        let text = bytes_of(method, "/mcp", &self.fields(fields), body);
        let text = String::from_utf8(text)
            .expect("UTF-8")
            .replace("host: gateway", &format!("host: {host}"));
        stream.write_all(text.as_bytes()).await.expect("taken");
        stream
    }

    async fn exchange(&self, fields: &[(&str, &str)], body: &[u8]) -> crate::support::http::Answer {
        let mut stream = self.send("POST", fields, body).await;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.expect("answered");
        parse(&bytes)
    }

    /// A round of agents, the server crashing meanwhile.
    async fn round(self: &Arc<Self>) {
        self.server.script(
            "look",
            [
                Does::Result(json!({"content": []})),
                Does::Stream(vec![Piece::Comment, Piece::Answer(json!({"content": []}))]),
                Does::RunThenClose,
            ]
            .into_iter()
            .cycle()
            .take(SESSIONS),
        );
        let crash_every = SESSIONS / CRASHES;
        for (number, kinds) in (0..SESSIONS).collect::<Vec<_>>().chunks(AT_ONCE).enumerate() {
            let agents: Vec<_> = kinds
                .iter()
                .map(|kind| {
                    let (house, kind) = (self.clone(), *kind);
                    tokio::spawn(async move { house.careless(kind).await })
                })
                .collect();
            if number % (crash_every / AT_ONCE) == 1 {
                self.server.restart().await;
            }
            for agent in agents {
                agent.await.expect("no agent panics");
            }
            self.server.forget_seen();
        }
    }

    /// Until nothing is under way, then far into the future, until all that is idle has been let go.
    async fn settle(&self) {
        wait_for("the end of what is under way", 20 * S, async || self.connections.is_empty())
            .await;
        tokio::time::pause();
        // In steps: what is let go of in one may be what holds the next.
        for _ in 0..4 {
            tokio::time::advance(FOR_EVER / 4).await;
            self.rig.engine.sweep();
            self.front_ends.sweep();
        }
        tokio::time::resume();
        // The server's own session may have been met anew.
        self.rig.until(|snapshot| snapshot.tools.len() == 2).await;
    }
}

/// Resident memory, bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = text.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a number");
    pages * 4096
}

#[tokio::test]
async fn a_thousand_sessions_dropped_without_care_leave_nothing_behind() {
    let house = Arc::new(House::new().await);
    // Everything has happened once before anything is counted.
    for kind in 0..6 {
        house.careless(kind).await;
    }
    house.settle().await;
    let before = house.held();
    house.round().await;
    let full = house.held();
    assert!(full.inner_sessions > 100 && full.runs > 100, "they were there: {full:?}");
    house.settle().await;
    let first = resident();
    house.round().await;
    house.settle().await;
    let mut after = house.held();
    let again = wait_for("what was held before", 20 * S, async || {
        after = house.held();
        after.descriptors <= before.descriptors && after.tasks <= before.tasks
    });
    if tokio::time::timeout(10 * S, again).await.is_err() {
        panic!("{before:?} became {after:?}");
    }
    assert_eq!((after.inner_sessions, after.runs), (before.inner_sessions, before.runs));
    let grown = resident().saturating_sub(first);
    assert!(grown < 8 << 20, "{grown} bytes more after the second round");
}
