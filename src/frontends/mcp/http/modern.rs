//! Revision 2026-07-28 over HTTP: every request stands for itself, and whoever closes its stream takes it back.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use http::{HeaderMap, Response};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::Came;
use super::legacy::{FAULT, progress_token};
use super::reply::{line, rpc_error, stream, whole};
use crate::call::code::DenyCode;
use crate::call::{CallId, Denied, Effect, FrontEnd, ToolName};
use crate::frontends::body::{Body, EventSender, events};
use crate::frontends::mcp::channel::{Line, Out};
use crate::frontends::mcp::listening::Listener;
use crate::frontends::mcp::methods::{Method, unknown_method};
use crate::frontends::mcp::modern::{Sender, mismatch, sender};
use crate::frontends::mcp::wire::RpcError;
use crate::frontends::mcp::{Asking, Mcp};
use crate::mcp::headers::{
    self, MAX_FORWARDED, METHOD, NAME, PARAM_PREFIX, PROTOCOL_VERSION, Standard, is_forwardable,
    param_headers,
};
use crate::mcp::jsonrpc::{INTERNAL_ERROR, Request};
use crate::mcp::version::Era;

impl Mcp {
    pub(super) async fn modern(
        self: &Arc<Self>,
        came: &Came<'_>,
        request: Request,
    ) -> Response<Body> {
        let (who, method, params) = match self.judged(came, &request) {
            Ok(judged) => judged,
            Err(error) => return rpc_error(error.status, Some(&request.id), &error),
        };
        if method == Method::Listen {
            let asking = asking(came, who, params, None, &request);
            return self.subscribed(&asking, request);
        }
        let token = progress_token(request.params.as_ref()).is_some();
        let streamed = method.may_stream() && (token || who.log_level.is_some());
        let (sender, body) = streamed.then(events).unzip();
        let asking = asking(came, who, params, sender.as_ref(), &request);
        // Closing the stream takes a read back; a write goes on, and its end is kept.
        let taken_back = self.is_read(&asking, method, &request).then(|| asking.cancelled.clone());
        let (Some(sender), Some(body)) = (sender, body) else {
            let taken_back = taken_back.map(CancellationToken::drop_guard);
            let answered = self.answer(&asking, method, request.params.as_ref()).await;
            if let Some(answered_in_time) = taken_back {
                drop(answered_in_time.disarm());
            }
            return whole(&request.id, &answered, true);
        };
        let mcp = self.clone();
        self.engine.tasks().spawn(async move {
            let out = Out::Events(sender.clone());
            let answered = tokio::select! {
                biased;
                () = sender.gone().cancelled() => {
                    if let Some(taken_back) = taken_back {
                        taken_back.cancel();
                    }
                    return;
                }
                answered = mcp.unless_cancelled(&asking, method, request.params.as_ref()) => answered,
            };
            let fault = Err(RpcError::new(INTERNAL_ERROR, FAULT));
            let told = out.send(&line(&request.id, answered.as_ref().unwrap_or(&fault)));
            tracing::debug!(told, "a call was answered on its stream");
        });
        stream(body)
    }

    /// Who speaks, what is asked, and the headers that go on; all of it before anything is done.
    fn judged(&self, came: &Came<'_>, request: &Request) -> Result<Judged, RpcError> {
        let headers = came.headers;
        let value = |name: &'static str| headers.get(name).map(http::HeaderValue::as_bytes);
        let doubled = [PROTOCOL_VERSION, METHOD, NAME]
            .into_iter()
            .find(|name| headers.get_all(*name).iter().nth(1).is_some());
        let standard = Standard {
            protocol_version: value(PROTOCOL_VERSION),
            method: value(METHOD),
            name: value(NAME),
        };
        let params = request.params.as_ref();
        let who = sender(Some(standard), &request.method, params)?;
        if let Some(name) = doubled {
            let words = format!("header mismatch: `{name}` stands twice");
            return Err(RpcError::new(crate::mcp::jsonrpc::HEADER_MISMATCH, words).status(400));
        }
        let method = Method::of(&request.method, Era::Modern)
            .ok_or_else(|| unknown_method(&request.method))?;
        let passed = match method {
            Method::CallTool => self.param_headers(came, params)?,
            Method::Ping
            | Method::SetLevel
            | Method::Discover
            | Method::Listen
            | Method::ListTools
            | Method::List(_)
            | Method::Pass(_) => Arc::from([]),
        };
        Ok((who, method, passed))
    }

    /// `Mcp-Param-*`: those that the tool's listed schema names must say what the arguments say; the others go on.
    fn param_headers(
        &self,
        came: &Came<'_>,
        params: Option<&Value>,
    ) -> Result<Forwarded, RpcError> {
        let name = params.and_then(|params| params.get("name")).and_then(Value::as_str);
        let tool = name.and_then(|name| self.engine.tool_for(&came.agent, &ToolName::asked(name)));
        let named = tool.filter(|tool| tool.definition.is_some());
        let named = named.map(|tool| param_headers(&tool.schema).unwrap_or_default());
        let named = named.unwrap_or_default();
        let arguments = params.and_then(|params| params.get("arguments"));
        for header in &named {
            let told = came.headers.get(&header.header).map(http::HeaderValue::as_bytes);
            header.check(told, arguments).map_err(|bad| mismatch(&bad))?;
        }
        Ok(forwarded(came.headers, |name| named.iter().any(|header| header.header == name)))
    }

    fn is_read(&self, asking: &Asking, method: Method, request: &Request) -> bool {
        if method != Method::CallTool {
            return true;
        }
        let name = request.params.as_ref().and_then(|params| params.get("name")?.as_str());
        let tool =
            name.and_then(|name| self.engine.tool_for(&asking.agent, &ToolName::asked(name)));
        tool.is_none_or(|tool| tool.effect == Effect::Read)
    }

    fn subscribed(self: &Arc<Self>, asking: &Asking, request: Request) -> Response<Body> {
        let id = request.id.clone();
        let by = match self.by_listen(asking, request) {
            Ok(by) => by,
            Err(error) => return rpc_error(error.status, Some(&id), &error),
        };
        let Some(place) = self.listening.take(&asking.agent) else {
            let denied =
                Denied::new(DenyCode::ConcurrencyLimited, "this agent has too many streams open");
            return rpc_error(200, Some(&id), &RpcError::refused(INTERNAL_ERROR, &denied));
        };
        let (sender, body) = events();
        let over = sender.gone().clone();
        let (agent, out) = (asking.agent.clone(), Out::Events(sender));
        self.engine.tasks().spawn(self.clone().listen(Listener { agent, by, out, over, place }));
        stream(body)
    }
}

type Forwarded = Arc<[(String, String)]>;
type Judged = (Sender, Method, Forwarded);

fn forwarded(headers: &HeaderMap, named: impl Fn(&str) -> bool) -> Forwarded {
    let others = headers.iter().filter(|(name, value)| {
        let name = name.as_str();
        name.starts_with(PARAM_PREFIX) && !named(name) && is_forwardable(name, value.as_bytes())
    });
    let pair = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        let name = name.as_str().get(headers::PARAM_PREFIX.len()..)?.to_owned();
        Some((name, value.to_str().ok()?.to_owned()))
    };
    others.filter_map(pair).take(MAX_FORWARDED).collect()
}

fn asking(
    came: &Came<'_>,
    who: Sender,
    params: Forwarded,
    events: Option<&EventSender>,
    request: &Request,
) -> Asking {
    let line = events.map(|events| {
        Arc::new(Line {
            out: Out::Events(events.clone()),
            token: progress_token(request.params.as_ref()).cloned(),
            log_level: who.log_level.clone(),
            asks: None,
            capabilities: who.capabilities.clone(),
            revision: who.revision,
            said: Mutex::default(),
            closed: AtomicBool::new(false),
        })
    });
    Asking {
        agent: came.agent.clone(),
        front_end: FrontEnd::McpHttp,
        revision: who.revision,
        session: None,
        capabilities: who.capabilities,
        log_level: who.log_level,
        param_headers: params,
        run: came.head.run.clone(),
        timeout: came.head.timeout,
        caller_key: came.head.caller_key.clone(),
        trace: came.trace(),
        call: CallId::mint(),
        cancelled: CancellationToken::new(),
        line,
    }
}
