//! Tools as a policy would compile them, and servers that do exactly what a test says, byte by byte.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderValue, Method};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tower::Service;

use crate::backends::Backend;
use crate::call::{
    AgentId, Arguments, CallId, Digest, Effect, Failed, FrontEnd, Payload, Progress, RunId,
    ToolCall, ToolName, ToolResult, Trace, UpstreamName,
};
use crate::egress::{Egress, Resolver};
use crate::policy::schema::Schema;
use crate::policy::snapshot::{
    self, Addresses, BodyEncoding, BreakerMode, BreakerPolicy, HostRule, HttpTemplate, HttpVersion,
    Identical, OnUnlisted, PathPiece, ProcessLimits, Rest, ResultPolicy, RetryBudgetPolicy,
    Revision, Rule, Snapshot, Target, Timeouts, Tool, Upstream, WritePolicy,
};
use crate::strict_json::Limits;
use crate::telemetry::metrics::Metrics;

pub(crate) const RESPONSE_BYTES: usize = 1 << 20;

fn rule() -> Rule {
    Rule { path: Arc::from("tools.test"), line: 1 }
}

fn breaker() -> BreakerPolicy {
    BreakerPolicy {
        mode: BreakerMode::Disabled,
        count_by_attempt: false,
        consecutive_failures: 3,
        failure_ratio: None,
        slow_ratio: None,
        open_for: Duration::from_secs(30),
        open_max: Duration::from_secs(60),
        open_jitter_permille: 0,
        probe_deadline: Duration::from_secs(61),
        probe: None,
        probe_every: None,
        is_error_bad: false,
    }
}

pub(crate) fn upstream(host: &str, port: u16) -> Upstream {
    Upstream {
        name: UpstreamName::new("shop").expect("a name"),
        rule: rule(),
        tls: false,
        host: Arc::from(host),
        port,
        authority: HeaderValue::from_str(&format!("{host}:{port}")).expect("an authority"),
        base_path: Arc::from(""),
        auth: None,
        headers: Vec::new(),
        ca: None,
        addresses: Addresses { loopback: true, ..Addresses::default() },
        http_version: HttpVersion::Auto,
        timeout_header: None,
        follow_same_origin: false,
        bulkhead: 8,
        rate_limit: None,
        breaker: breaker(),
        retry_budget: RetryBudgetPolicy {
            max_milli: 10_000,
            ratio_milli: 100,
            floor_milli_per_s: 200,
        },
        section: Digest::of(format!("{host}:{port}").as_bytes()),
    }
}

/// `GET /orders/{order_id}` for a read, `POST /orders` for a write; a whole JSON result.
pub(crate) fn tool(effect: Effect, upstream: Upstream) -> Tool {
    let read = effect == Effect::Read;
    Tool {
        name: ToolName::new("order").expect("a name"),
        rule: rule(),
        description: Arc::from("orders"),
        effect,
        upstream: Arc::new(upstream),
        target: Target::Http(HttpTemplate {
            method: if read { Method::GET } else { Method::POST },
            path: if read {
                vec![PathPiece::Literal("/orders/".into()), PathPiece::Argument("order_id".into())]
            } else {
                vec![PathPiece::Literal("/orders".into())]
            },
            query: Vec::new(),
            body: Vec::new(),
            rest: if read { Rest::Query } else { Rest::Body },
            headers: Vec::new(),
            encoding: BodyEncoding::Json,
        }),
        schema: Schema::compile(&json!({"type": "object"}), false).expect("a schema"),
        timeout: Timeouts {
            connect: Duration::from_secs(5),
            first_byte: Duration::from_secs(30),
            idle: Duration::from_secs(30),
            total: Duration::from_secs(60),
        },
        retry: None,
        breaker: breaker(),
        rate_limit: None,
        bulkhead: 8,
        weight: 1,
        fuse: None,
        volatile: Vec::new(),
        alternatives: Vec::new(),
        cost: None,
        approval: None,
        cache: None,
        result: ResultPolicy {
            json: true,
            expect: None,
            select: Vec::new(),
            redact: Vec::new(),
            max: 64 * 1024,
            fail_on_oversize: false,
        },
        write: (!read).then(|| WritePolicy {
            fingerprint: Vec::new(),
            global_scope: false,
            ttl: Duration::from_secs(24 * 3600),
            identical: Identical::Allow,
            not_executed_on: Vec::new(),
            unknown_on: Vec::new(),
            caller_key_required: false,
            pooled: false,
            drain: Duration::from_secs(30),
            idempotency: None,
            status_query: None,
        }),
        listed: Arc::default(),
        section: Digest::of(b"tool"),
    }
}

pub(crate) fn read_at(server: &Server) -> Tool {
    tool(Effect::Read, upstream("127.0.0.1", server.address.port()))
}

pub(crate) fn write_at(server: &Server) -> Tool {
    tool(Effect::Write, upstream("127.0.0.1", server.address.port()))
}

pub(crate) fn snapshot(tool: &Arc<Tool>) -> Snapshot {
    Snapshot {
        routes: Arc::default(),
        name: Arc::from("test"),
        revision: Revision(Arc::from("0")),
        tools: [(tool.name.clone(), tool.clone())].into_iter().collect(),
        agents: Default::default(),
        proofs: Arc::default(),
        upstreams: [(tool.upstream.name.clone(), tool.upstream.clone())].into(),
        limits: ProcessLimits {
            rate_limit: None,
            bulkhead: 256,
            batch_calls: 32,
            batch_parallel: 8,
            request_bytes: 1 << 20,
            argument_bytes: 64 * 1024,
            argument_depth: 32,
            response_bytes: RESPONSE_BYTES,
        },
        on_unlisted: OnUnlisted::Silent,
        egress: snapshot::Egress {
            allow_hosts: vec![HostRule {
                host: tool.upstream.host.to_string(),
                wildcard: false,
                port: tool.upstream.port,
            }],
            min_tls13: false,
        },
        agent_label: false,
        broken_tools: Vec::new(),
        mcp_servers: Default::default(),
        quarantined: Default::default(),
        remarks: Vec::new(),
    }
}

pub(crate) fn egress(tool: &Arc<Tool>) -> Arc<Egress> {
    Egress::new(&snapshot(tool), None, Metrics::new())
}

pub(crate) fn egress_with(tool: &Arc<Tool>, resolver: Resolver) -> Arc<Egress> {
    Egress::with_resolver(&snapshot(tool), None, Metrics::new(), resolver)
}

pub(crate) fn backend(tool: Tool) -> Backend {
    let tool = Arc::new(tool);
    Backend::http(&tool, &egress(&tool), RESPONSE_BYTES)
}

/// A call with these arguments, as text.
pub(crate) fn call(arguments: &str) -> ToolCall {
    let limits = Limits::arguments(64 * 1024, 32);
    ToolCall {
        home: None,
        id: CallId::new("call_1").expect("an id"),
        agent: AgentId::new("default").expect("a name"),
        run: RunId::new("run-1").expect("an id"),
        tool: ToolName::new("order").expect("a name"),
        front_end: FrontEnd::ToolsApi,
        payload: Payload::Arguments(
            Arguments::parse(arguments.as_bytes(), limits).expect("sound arguments"),
        ),
        caller_key: None,
        side: None,
        began: Instant::now(),
        deadline: Instant::now() + Duration::from_secs(60),
        admitted: None,
        single_attempt: false,
        place: None,
        handoff: None,
        identical: false,
        consent: None,
        entry: None,
        send_gate: None,
        sent_key: None,
        progress: Some(Progress::start()),
        trace: Trace::default(),
    }
}

pub(crate) async fn ask(backend: &Backend, arguments: &str) -> Result<ToolResult, Failed> {
    send(backend, call(arguments)).await
}

pub(crate) async fn send(backend: &Backend, call: ToolCall) -> Result<ToolResult, Failed> {
    backend.clone().call(call).await
}

/// The text of a result.
pub(crate) fn text(result: &ToolResult) -> String {
    String::from_utf8(result.content.bytes.to_vec()).expect("a result is UTF-8")
}

/// A server on loopback; ends with its test's runtime.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    heard: Arc<Mutex<Vec<String>>>,
    connections: Arc<AtomicUsize>,
}

/// One connection of a [`Server`].
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Peer {
    /// One whole request: head and body; `None` when the connection ended instead.
    pub(crate) async fn request(&mut self) -> Option<String> {
        let mut bytes = Vec::new();
        loop {
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
                let length = head
                    .lines()
                    .filter_map(|line| line.split_once(':'))
                    .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
                    .map_or(0, |(_, length)| length.trim().parse().expect("a length"));
                if bytes.len() >= end + 4 + length {
                    let whole = String::from_utf8_lossy(&bytes).into_owned();
                    self.heard.lock().expect("not poisoned").push(whole.clone());
                    return Some(whole);
                }
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            }
        }
    }

    pub(crate) async fn say(&mut self, bytes: impl AsRef<[u8]>) {
        // The other side may have gone; what it makes of that is the test's question.
        drop(self.stream.write_all(bytes.as_ref()).await);
    }

    /// Closes hard: a reset instead of an orderly end.
    pub(crate) fn reset(self) {
        socket2::SockRef::from(&self.stream)
            .set_linger(Some(Duration::ZERO))
            .expect("a socket option");
    }
}

impl Server {
    /// Every connection is served by `each`.
    pub(crate) async fn start<F, W>(each: F) -> Self
    where
        F: Fn(Peer) -> W + Send + Sync + 'static,
        W: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        Self::on(listener, each)
    }

    pub(crate) fn on<F, W>(listener: TcpListener, each: F) -> Self
    where
        F: Fn(Peer) -> W + Send + Sync + 'static,
        W: Future<Output = ()> + Send + 'static,
    {
        let server = Self {
            address: listener.local_addr().expect("bound"),
            heard: Arc::default(),
            connections: Arc::default(),
        };
        let (heard, connections) = (server.heard.clone(), server.connections.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(each(Peer { stream, heard: heard.clone() }));
            }
        });
        server
    }

    /// Answers every request with these bytes, on connections kept open.
    pub(crate) async fn saying(answer: impl Into<Vec<u8>>) -> Self {
        let answer: Arc<[u8]> = answer.into().into();
        Self::start(move |mut peer| {
            let answer = answer.clone();
            async move {
                while peer.request().await.is_some() {
                    peer.say(&answer).await;
                }
            }
        })
        .await
    }

    /// Answers every first request of a connection with these bytes, then closes.
    pub(crate) async fn saying_once(answer: impl Into<Vec<u8>>) -> Self {
        let answer: Arc<[u8]> = answer.into().into();
        Self::start(move |mut peer| {
            let answer = answer.clone();
            async move {
                if peer.request().await.is_some() {
                    peer.say(&answer).await;
                }
            }
        })
        .await
    }

    /// Whole requests, in the order they came.
    pub(crate) fn heard(&self) -> Vec<String> {
        self.heard.lock().expect("not poisoned").clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// An answer with a status and a body of a type.
pub(crate) fn answer(status: &str, media: &str, body: &str) -> String {
    let media = if media.is_empty() { String::new() } else { format!("Content-Type: {media}\r\n") };
    format!("HTTP/1.1 {status}\r\n{media}Content-Length: {}\r\n\r\n{body}", body.len())
}

pub(crate) fn ok_json(body: &str) -> String {
    answer("200 OK", "application/json", body)
}
