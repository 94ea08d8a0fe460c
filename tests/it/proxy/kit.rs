//! A gateway with routes before a scripted tool, or before a tool whose bytes the test writes itself.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::support::http::{self, Answer};
use crate::support::{Gateway, ScriptedTool};

pub(super) const SOON: Duration = Duration::from_secs(10);

/// Routes that most tests are content with: everything may be read and written below `/any`.
pub(super) const ROUTES: &str = r#"
  any_read: { description: Read anything., proxy: { upstream: shop, methods: [GET, HEAD], path: "/any/{rest*}", request_headers: [Accept, Cookie, Range, X-Kept] } }
  any_write: { description: Write anything., proxy: { upstream: shop, methods: [POST, PUT, PATCH, DELETE], path: "/any/{rest*}" } }
  search: { description: Search., effect: read, proxy: { upstream: shop, methods: [POST], path: /search, request_bytes: 256KiB } }
"#;

/// The policy with `more` after the routes; times are short, fuses off.
pub(super) fn policy(url: &str, routes: &str) -> String {
    format!(
        r#"
apiVersion: checkrein/v1
kind: Policy
name: routes
profiles:
  fast:
    extends: internal_rpc
    timeout: {{ connect: 500ms, first_byte: 1s, idle: 1s, total: 3s }}
    retry: {{ max_retries: 2, backoff: {{ base: 20ms, max: 50ms, jitter: 10ms }}, deadline: 5s }}
    breaker: {{ consecutive_failures: 5, open_for: 1s, open_max: 1s }}
defaults: {{ profile: fast }}
runs: {{ default: {{ wall_clock: 1m, fuse: {{ same_failures: 1000, same_results: 1000 }} }} }}
upstreams:
  shop: {{ base_url: "{url}", addresses: [loopback] }}
tools:{routes}
agents: {{ default: {{ allow: ["*", any_write, order_put, order_pay] }} }}
"#
    )
}

/// A gateway that answers to the names that tests call it by.
pub(super) async fn start(policy: &str) -> Gateway {
    let names = |_: &std::path::Path, config: &mut checkrein::config::Config| {
        config.allowed_hosts = vec!["g".into(), "gateway".into()];
    };
    Gateway::start_with(policy, names).await
}

pub(super) struct Shop {
    pub(super) tool: ScriptedTool,
    pub(super) gateway: Gateway,
}

impl Shop {
    pub(super) async fn start() -> Self {
        Self::with(ROUTES, |text| text).await
    }

    /// With other routes, and a policy changed as text.
    pub(super) async fn with(routes: &str, change: impl FnOnce(String) -> String) -> Self {
        let tool = ScriptedTool::start().await;
        let gateway = start(&change(policy(&tool.url(), routes))).await;
        Self { tool, gateway }
    }

    /// A request below `/proxy/shop`.
    pub(super) async fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        let path = format!("/proxy/shop{path}");
        http::request(self.gateway.data, method, &path, headers, body).await
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], b"").await
    }
}

/// A tool whose every byte the test reads and writes.
pub(super) struct Manual(TcpListener);

impl Manual {
    pub(super) async fn start() -> (Self, Gateway) {
        Self::with(ROUTES, |text| text).await
    }

    pub(super) async fn with(
        routes: &str,
        change: impl FnOnce(String) -> String,
    ) -> (Self, Gateway) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let gateway = start(&change(policy(&url, routes))).await;
        (Self(listener), gateway)
    }

    /// The next connection, its request's head read.
    pub(super) async fn next(&self) -> Peer {
        let accepted = timeout(SOON, self.0.accept()).await.expect("a connection in time");
        let mut peer = Peer::of(accepted.expect("accepted").0);
        peer.until("\r\n\r\n").await;
        peer
    }

    /// Whether anybody has connected that was not taken yet.
    pub(super) async fn is_left_alone(&self) -> bool {
        timeout(Duration::from_millis(100), self.0.accept()).await.is_err()
    }
}

/// One end of a connection, and what has come by it.
pub(super) struct Peer {
    pub(super) stream: TcpStream,
    pub(super) seen: Vec<u8>,
}

impl Peer {
    fn of(stream: TcpStream) -> Self {
        Self { stream, seen: Vec::new() }
    }

    pub(super) async fn dial(address: SocketAddr) -> Self {
        Self::of(TcpStream::connect(address).await.expect("it listens"))
    }

    pub(super) async fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.expect("it is taken");
    }

    /// Reads until `text` has come; what came so far.
    pub(super) async fn until(&mut self, text: &str) -> String {
        let read = async {
            while !self.text().contains(text) {
                let mut piece = [0; 4096];
                let count = self.stream.read(&mut piece).await.expect("open");
                assert!(count > 0, "closed before {text:?}: {}", self.text());
                self.seen.extend_from_slice(&piece[..count]);
            }
        };
        timeout(SOON, read).await.unwrap_or_else(|_| panic!("no {text:?}"));
        self.text()
    }

    /// Reads to the end of the connection; a reset is one too.
    pub(super) async fn rest(&mut self) -> String {
        let read = async {
            let mut piece = [0; 4096];
            while let Ok(count) = self.stream.read(&mut piece).await {
                if count == 0 {
                    return;
                }
                self.seen.extend_from_slice(&piece[..count]);
            }
        };
        timeout(SOON, read).await.expect("an end in time");
        self.text()
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen).into_owned()
    }
}
