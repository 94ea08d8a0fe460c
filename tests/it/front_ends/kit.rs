//! The front ends over the real engine, every layer the real one; only the innermost service is scripted.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use checkrein::call::code::FailCode;
use checkrein::call::{
    Arguments, Class, Content, Delivery, Effect, Failed, Notes, Source, ToolCall, ToolResult,
    Verdict,
};
use checkrein::engine::{Engine, Parts};
use checkrein::frontends::{Body, Doors, FrontEnds};
use checkrein::identity::Peer;
use checkrein::layers::state::State;
use checkrein::ledger::Ledger;
use checkrein::policy::{LoadOptions, load};
use checkrein::run::Runs;
use checkrein::strict_json::{self, Limits};
use checkrein::telemetry::metrics::Metrics;
use checkrein::telemetry::record::Recorder;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use tokio_util::task::TaskTracker;

const POLICY: &str = r#"
apiVersion: checkrein/v1
kind: Policy
name: front-ends
limits: { request_bytes: 16KiB, argument_bytes: 4KiB }
runs:
  default: { rounds: 3, stall_turns: 2 }
  wide: { rounds: 50, calls_per_round: 2 }
upstreams:
  shop: { base_url: "http://127.0.0.1:9090", addresses: [loopback] }
agents:
  default: { allow: [lookup_order, list_regions, search, create_order, send_notice] }
  a: { identities: [ { token: { file: "DIR/a" } } ], allow: [lookup_order, create_order], run: wide }
  b: { identities: [ { token: { file: "DIR/b" } } ], allow: [list_regions] }
  idle: { identities: [ { token: { file: "DIR/idle" } } ], allow: [] }
tools:
  lookup_order:
    description: Where an order is.
    effect: read
    profile: internal_rpc
    retry: { max_retries: 0 }
    breaker: { consecutive_failures: 50 }
    http: { upstream: shop, method: GET, path: "/orders/{order_id}" }
    schema:
      type: object
      required: [order_id]
      properties: { order_id: { type: string, minLength: 1, maxLength: 80 } }
  list_regions:
    description: All regions.
    effect: read
    profile: internal_rpc
    http: { upstream: shop, method: GET, path: /regions }
    schema: { type: object, properties: {} }
  search:
    description: Searches.
    effect: read
    profile: internal_rpc
    rate_limit: { rate: 1/s, burst: 1 }
    http: { upstream: shop, method: GET, path: /search }
    schema: { type: object, properties: {} }
  create_order:
    description: Creates an order.
    effect: write
    profile: internal_rpc
    http: { upstream: shop, method: POST, path: /orders }
    schema:
      type: object
      required: [order_ref]
      properties:
        order_ref: { type: string, minLength: 1 }
        qty: { type: integer, minimum: 1, maximum: 5 }
    write: { fingerprint: [/order_ref] }
  send_notice:
    description: Sends a notice; two alike are two notices.
    effect: write
    profile: internal_rpc
    http: { upstream: shop, method: POST, path: /notices }
    schema: { type: object, required: [text], properties: { text: { type: string } } }
"#;

/// What reached the tools, in order: `tool arguments`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hits(pub(crate) Arc<Mutex<Vec<String>>>);

impl Hits {
    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().expect("not poisoned").clone()
    }
}

pub(crate) struct House {
    pub(crate) front_ends: FrontEnds,
    pub(crate) engine: Arc<Engine>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) hits: Hits,
    folder: tempfile::TempDir,
}

/// What stands in place of the tools.
pub(crate) type Answering =
    std::pin::Pin<Box<dyn Future<Output = Result<ToolResult, Failed>> + Send>>;

/// What one request got.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Got {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("visible"))
    }
}

impl House {
    pub(crate) fn new() -> Self {
        Self::with(|hits, effect, call| {
            let hits = hits.clone();
            Box::pin(async move { scripted(&hits, effect, call).await })
        })
    }

    /// With other tools; they note their hits themselves.
    pub(crate) fn with(
        inner: impl Fn(&Hits, Effect, ToolCall) -> Answering + Clone + Send + Sync + 'static,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["a", "b", "idle"] {
            std::fs::write(folder.path().join(name), format!("token-{name}")).expect("written");
        }
        let path = folder.path().join("policy.yaml");
        let text = POLICY.replace("DIR", folder.path().to_str().expect("UTF-8"));
        std::fs::write(&path, text).expect("written");
        let loaded = load(&path, LoadOptions::default()).expect("a sound policy");
        let metrics = Metrics::new();
        let parts = Parts {
            snapshot: loaded.snapshot,
            state: State::new(metrics.clone()),
            runs: Runs::new(metrics.clone()),
            ledger: Ledger::in_memory(),
            metrics: metrics.clone(),
            recorder: Recorder::none(),
            tasks: TaskTracker::new(),
        };
        let hits = Hits::default();
        let seen = hits.clone();
        let engine = Engine::with_inner(parts, move |tool| {
            let (seen, effect, inner) = (seen.clone(), tool.effect, inner.clone());
            tower::service_fn(move |call: ToolCall| inner(&seen, effect, call))
        });
        let front_ends = FrontEnds::new(engine.clone(), metrics.clone(), Doors::default());
        Self { front_ends, engine, metrics, hits, folder }
    }

    /// Puts another policy in force: the same with one text in place of another. False: it is none.
    pub(crate) fn reload(&self, old: &str, new: &str) -> bool {
        let path = self.folder.path().join("policy.yaml");
        let text = POLICY.replace("DIR", self.folder.path().to_str().expect("UTF-8"));
        assert!(text.contains(old), "{old}");
        std::fs::write(&path, text.replacen(old, new, 1)).expect("written");
        let loaded = load(&path, LoadOptions::default());
        loaded.map(|loaded| self.engine.install(loaded.snapshot)).is_ok()
    }

    pub(crate) async fn ask(&self, request: Request<Full<Bytes>>) -> Got {
        self.ask_as(Peer::Loopback, request).await
    }

    pub(crate) async fn ask_as(&self, peer: Peer, request: Request<Full<Bytes>>) -> Got {
        got(self.front_ends.clone().answer(peer, request).await).await
    }

    pub(crate) async fn get(&self, path: &str, fields: &[(&str, &str)]) -> Got {
        self.ask(request("GET", path, fields, "")).await
    }

    pub(crate) async fn post(&self, path: &str, fields: &[(&str, &str)], body: &str) -> Got {
        let mut all = vec![("content-type", "application/json")];
        all.extend_from_slice(fields);
        self.ask(request("POST", path, &all, body)).await
    }
}

pub(crate) fn request(
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
    body: &str,
) -> Request<Full<Bytes>> {
    let mut builder = Request::builder().method(method).uri(path);
    for (name, value) in fields {
        builder = builder.header(*name, *value);
    }
    builder.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).expect("a request")
}

async fn got(response: Response<Body>) -> Got {
    let (parts, mut body) = response.into_parts();
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        bytes.extend_from_slice(frame.expect("whole").data_ref().expect("data"));
    }
    let body = strict_json::parse(&bytes, Limits::answer(1 << 20)).expect("every answer is JSON");
    Got { status: parts.status, headers: parts.headers, body }
}

/// Answers with its arguments; an order named `broken` fails, a write named `lost` may have happened.
pub(crate) async fn scripted(
    hits: &Hits,
    effect: Effect,
    call: ToolCall,
) -> Result<ToolResult, Failed> {
    if let Some(gate) = &call.send_gate {
        gate.open().await?;
    }
    let tree = call.arguments().map(Arguments::tree).cloned().unwrap_or_default();
    hits.0.lock().expect("not poisoned").push(format!("{} {tree}", call.tool));
    if tree["order_id"] == "broken" || tree["order_ref"] == "lost" {
        let code = match effect {
            Effect::Read => FailCode::ToolUnavailable,
            Effect::Write => FailCode::UpstreamReset,
        };
        let (class, delivery) = (Class::Transient, Delivery::Unknown);
        return Err(Failed::new(code, class, delivery, Verdict::Bad, "the tool answered 500"));
    }
    let text = format!(r#"{{"tool":"{}","n":9007199254740993,"got":{tree}}}"#, call.tool);
    Ok(ToolResult {
        head: None,
        content: Content { bytes: Bytes::from(text), form: checkrein::call::Form::Json },
        source: Source::Tool,
        notes: Notes { attempts: 1, ..Notes::default() },
    })
}
