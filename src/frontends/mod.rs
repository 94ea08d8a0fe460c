//! Where calls arrive: a request is routed by its path, read by one adapter, answered by one renderer.
//! A front end parses and renders; it decides nothing about a call.

mod batch;
mod body;
mod mcp;
mod render;
mod request;
mod reverse_proxy;
mod runs;
#[cfg(test)]
mod tests;
mod tools_api;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONNECTION, HOST, ORIGIN};
use http::{HeaderValue, Method, Request, Response};
use hyper::body::Body as HttpBody;
use tokio::sync::mpsc;

pub use body::{Body, Cut, Stalled};
pub use mcp::{Cutter, Doors, Read, Writer};

use crate::call::{AgentId, FrontEnd, HttpRequest, UpstreamName};
use crate::engine::Engine;
use crate::identity::{self, Peer};
use crate::telemetry::metrics::Metrics;
use mcp::Mcp;
use render::{Problem, Reply};
use request::{Head, Room};

/// Where MCP is spoken.
const MCP: &str = "/mcp";

/// All front ends of the data listener. Cheap to clone.
#[derive(Debug, Clone)]
pub struct FrontEnds {
    engine: Arc<Engine>,
    metrics: Arc<Metrics>,
    room: Room,
    mcp: Arc<Mcp>,
    /// On a listener of its own: the one upstream that is reached there.
    only: Option<UpstreamName>,
    /// The names by which routes are reached without a credential.
    doors: Arc<Doors>,
}

/// A path that is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route<'a> {
    Tools,
    Tool(&'a str),
    Batch(FrontEnd),
    OpenRun,
    Run(&'a str),
    RunSummary(&'a str),
    FinishRun(&'a str),
}

/// What a path comes to.
#[derive(Debug, PartialEq, Eq)]
enum Found<'a> {
    Route(Route<'a>),
    /// The path exists for these methods.
    Methods(&'static str),
    Nothing,
}

impl FrontEnds {
    /// `doors`: by which names and origins MCP may be reached here.
    pub fn new(engine: Arc<Engine>, metrics: Arc<Metrics>, doors: Doors) -> Self {
        let own = Arc::new(doors.clone());
        let mcp = Arc::new(Mcp::new(engine.clone(), metrics.clone(), doors));
        Self { engine, metrics, room: Room::default(), mcp, only: None, doors: own }
    }

    /// The same for a listener where every path is the upstream's, and nothing else is served.
    #[must_use]
    pub fn of_upstream(&self, upstream: UpstreamName, port: Option<u16>) -> Self {
        let doors = Arc::new(self.doors.at_port(port));
        Self { only: Some(upstream), doors, ..self.clone() }
    }

    /// Ends what was idle too long; called on a timer.
    pub fn sweep(&self) {
        self.mcp.sweep();
    }

    /// Serves one agent over standard streams, until its input ends and what it asked is answered.
    pub async fn stdio(&self, agent: AgentId, lines: mpsc::Receiver<Read>, writer: Writer) {
        self.mcp.stdio(agent, lines, writer).await;
    }

    /// Answers one request, whatever it is. Every answer but those of MCP carries `Checkrein-Run`.
    pub async fn answer<B>(&self, peer: Peer, request: Request<B>) -> Response<Body>
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: fmt::Display,
    {
        let (parts, body) = request.into_parts();
        if self.only.is_some() || parts.uri.path().starts_with(reverse_proxy::PREFIX) {
            let mut response = self.pass(peer, parts, body).await;
            self.close_if_draining(&mut response);
            return response;
        }
        if parts.uri.path() == MCP {
            // Boxed, as below: each way takes what room it needs, and no more is moved for the others.
            let mut response = Box::pin(self.mcp.http(peer, &parts, body, &self.room)).await;
            self.close_if_draining(&mut response);
            return response;
        }
        let asked = Head::run_shown(&parts.headers);
        let reply = match Box::pin(self.route(peer, &parts, body)).await {
            Ok(reply) => reply,
            Err(problem) => self.told(&problem),
        };
        let mut response = reply.into_response(asked);
        self.close_if_draining(&mut response);
        response
    }

    fn told(&self, problem: &Problem) -> Reply {
        if let Some(reason) = problem.counted {
            self.metrics.request_rejected(reason);
        }
        Reply::problem(problem)
    }

    /// A request of a plain HTTP client.
    async fn pass<B>(&self, peer: Peer, parts: http::request::Parts, body: B) -> Response<Body>
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: fmt::Display,
    {
        let run = Head::run_shown(&parts.headers);
        match self.passed(peer, parts, body).await {
            Ok(response) => response,
            Err(problem) => self.told(&problem).into_response(run),
        }
    }

    async fn passed<B>(
        &self,
        peer: Peer,
        parts: http::request::Parts,
        body: B,
    ) -> Result<Response<Body>, Problem>
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: fmt::Display,
    {
        self.by_own_name(peer, &parts)?;
        let agent = self.asker(peer, &parts.headers)?;
        let head = Head::read(&parts.headers)?;
        let http::request::Parts { method, uri, headers, .. } = parts;
        let below = match &self.only {
            Some(upstream) => Some(reverse_proxy::all_of(upstream.as_str(), uri.path())),
            None => reverse_proxy::below(uri.path()),
        };
        let below = below.ok_or_else(Problem::no_such_path)?;
        let request = HttpRequest::new(method, below.path, uri.query(), headers);
        let (engine, room) = (&self.engine, &self.room);
        let asked = reverse_proxy::Asked { engine, agent, head, below, room };
        reverse_proxy::pass(asked, request, body).await
    }

    /// A web page can read what it gets by a name of its own that was made to point here (DNS rebinding); it has no
    /// credential.
    fn by_own_name(&self, peer: Peer, parts: &http::request::Parts) -> Result<(), Problem> {
        if parts.headers.contains_key(AUTHORIZATION) {
            return Ok(());
        }
        let named = parts.headers.get(HOST).and_then(|host| host.to_str().ok());
        let host = named.or_else(|| parts.uri.authority().map(|authority| authority.as_str()));
        let own = self.doors.admits_host(peer, host.unwrap_or_default());
        own.then_some(()).ok_or_else(Problem::of_foreign_host)
    }

    /// Who asks. A web page of the machine's user reaches loopback too, with an Origin of its own and no credential.
    fn asker(&self, peer: Peer, headers: &http::HeaderMap) -> Result<AgentId, Problem> {
        if headers.contains_key(ORIGIN) && !headers.contains_key(AUTHORIZATION) {
            return Err(Problem::of_browser());
        }
        identity::identify(peer, headers, &self.engine.snapshot()).map_err(|denied| {
            self.metrics.unauthenticated("data");
            Problem::denied(denied)
        })
    }

    fn close_if_draining(&self, response: &mut Response<Body>) {
        if self.engine.draining() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }

    async fn route<B>(
        &self,
        peer: Peer,
        parts: &http::request::Parts,
        body: B,
    ) -> Result<Reply, Problem>
    where
        B: HttpBody<Data = Bytes> + Unpin,
        B::Error: fmt::Display,
    {
        let agent = self.asker(peer, &parts.headers)?;
        let route = match find(&parts.method, parts.uri.path()) {
            Found::Route(route) => route,
            Found::Methods(allow) => return Err(Problem::method(&parts.method, allow)),
            Found::Nothing => return Err(Problem::no_such_path()),
        };
        let head = Head::read(&parts.headers)?;
        let engine = &self.engine;
        match route {
            Route::Tools => tools_api::list(engine, &agent, &parts.uri),
            Route::Tool(tool) => {
                let limit = engine.body_limits().request_bytes;
                let body = request::read_json(&parts.headers, body, limit, &self.room).await?;
                tools_api::call(engine, agent, head, tool, &body).await
            }
            Route::Batch(form) => {
                let limit = engine.body_limits().request_bytes;
                let body = request::read_json(&parts.headers, body, limit, &self.room).await;
                let body = body.inspect_err(|problem| batch::count_body(&self.metrics, problem))?;
                batch::turn(engine, &self.metrics, batch::Asking { agent, head, form }, &body).await
            }
            Route::OpenRun => {
                let body =
                    request::read_json(&parts.headers, body, runs::BODY_BYTES, &self.room).await?;
                runs::open(engine, &agent, &body)
            }
            Route::Run(run) => runs::view(engine, &agent, run),
            Route::RunSummary(run) => runs::summary(engine, &agent, run),
            Route::FinishRun(run) => {
                let body =
                    request::read_json(&parts.headers, body, runs::BODY_BYTES, &self.room).await?;
                runs::finish(engine, &agent, run, &body)
            }
        }
    }
}

/// Routes by the path as it is spelt: no escape, no trailing slash, no `..` means anything here.
fn find<'a>(method: &Method, path: &'a str) -> Found<'a> {
    let mut pieces = [""; 5];
    let mut count = 0;
    for piece in path.split('/').skip(1) {
        let Some(place) = pieces.get_mut(count) else { return Found::Nothing };
        *place = piece;
        count += 1;
    }
    let (want, route) = match (count, pieces) {
        (2, ["v1", "tools", ..]) => ("GET", Route::Tools),
        (3, ["v1", "tools", tool, ..]) if !tool.is_empty() => ("POST", Route::Tool(tool)),
        (3, ["v1", "batches", form, ..]) => match form {
            "openai-chat" => ("POST", Route::Batch(FrontEnd::OpenaiChat)),
            "openai-responses" => ("POST", Route::Batch(FrontEnd::OpenaiResponses)),
            "anthropic-messages" => ("POST", Route::Batch(FrontEnd::AnthropicMessages)),
            _ => return Found::Nothing,
        },
        (2, ["v1", "runs", ..]) => ("POST", Route::OpenRun),
        (3, ["v1", "runs", run, ..]) if !run.is_empty() => ("GET", Route::Run(run)),
        (4, ["v1", "runs", run, "summary", ..]) if !run.is_empty() => {
            ("GET", Route::RunSummary(run))
        }
        (4, ["v1", "runs", run, "finish", ..]) if !run.is_empty() => {
            ("POST", Route::FinishRun(run))
        }
        _ => return Found::Nothing,
    };
    if method.as_str() == want { Found::Route(route) } else { Found::Methods(want) }
}
