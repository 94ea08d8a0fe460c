//! Streamable HTTP at `/mcp`, both eras at one path. What is refused before there is a message is refused here; which
//! era a request is of is decided once, from its own words.

mod legacy;
mod modern;
mod reply;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT, ORIGIN};
use http::{HeaderMap, HeaderName, Method as Verb, Response};
use hyper::body::Body as HttpBody;

use super::modern::names_version;
use super::wire::RpcError;
use super::{MAX_DEPTH, Mcp};
use crate::call::AgentId;
use crate::frontends::body::Body;
use crate::frontends::render::Problem;
use crate::frontends::request::{self, Head, Room};
use crate::identity::{self, Peer};
use crate::mcp::headers::{PROTOCOL_VERSION, SESSION_ID};
use crate::mcp::jsonrpc::{self, INVALID_REQUEST, Message};
use crate::mcp::meta::{TRACEPARENT, TRACESTATE};
use crate::mcp::version::is_modern;
use crate::strict_json::Limits;
pub(super) use legacy::{FAULT, begun, progress_token};
use reply::{cors, empty, preflight, problem, rpc_error};
pub(super) use reply::{error_line, line};

/// What a request over HTTP brings beside its message.
#[derive(Debug)]
struct Came<'r> {
    agent: AgentId,
    headers: &'r HeaderMap,
    head: Head,
    /// `MCP-Protocol-Version`.
    version: Option<&'r str>,
}

impl Came<'_> {
    fn trace(&self) -> (Option<String>, Option<String>) {
        let field = |name: &str| Some(self.headers.get(name)?.to_str().ok()?.to_owned());
        (field(TRACEPARENT), field(TRACESTATE))
    }
}

/// An answer that ends the request early.
type Refused = Response<Body>;

impl Mcp {
    /// Answers one request at `/mcp`, whatever it is. Never a 5xx for what a tool or a method did.
    pub(in crate::frontends) async fn http<B>(
        self: &Arc<Self>,
        peer: Peer,
        parts: &http::request::Parts,
        body: B,
        room: &Room,
    ) -> Response<Body>
    where
        B: HttpBody<Data = Bytes> + Unpin,
        B::Error: fmt::Display,
    {
        if let Err(foreign) = self.doors.admit(peer, &parts.headers) {
            self.metrics.request_rejected("host_origin");
            return rpc_error(403, None, &RpcError::new(INVALID_REQUEST, foreign));
        }
        let allowed = parts.headers.get(ORIGIN).filter(|origin| self.doors.is_named(origin));
        if parts.method == Verb::OPTIONS && allowed.is_some() {
            return cors(preflight(), allowed);
        }
        let answer = self.routed(peer, parts, body, room).await;
        cors(answer.unwrap_or_else(|refused| refused), allowed)
    }

    async fn routed<B>(
        self: &Arc<Self>,
        peer: Peer,
        parts: &http::request::Parts,
        body: B,
        room: &Room,
    ) -> Result<Response<Body>, Refused>
    where
        B: HttpBody<Data = Bytes> + Unpin,
        B::Error: fmt::Display,
    {
        let headers = &parts.headers;
        let came = self.came(peer, headers)?;
        let modern = came.version.is_some_and(is_modern);
        match parts.method.as_str() {
            "POST" => {}
            "GET" if !modern && !self.doors.no_get_stream => return self.get(&came),
            "DELETE" if !modern => return self.delete(&came),
            _ => {
                let words = format!("this path does not take {} here", parts.method);
                let error = RpcError::new(INVALID_REQUEST, words);
                let allow = match (modern, self.doors.no_get_stream) {
                    (true, _) => "POST",
                    (false, true) => "POST, DELETE",
                    (false, false) => "POST, GET, DELETE",
                };
                return Err(reply::not_taken(rpc_error(405, None, &error), allow));
            }
        }
        if !accepts(headers, "application/json") || !accepts(headers, "text/event-stream") {
            let words = "`Accept` must name application/json and text/event-stream";
            return Err(rpc_error(406, None, &RpcError::new(INVALID_REQUEST, words)));
        }
        let limit = self.engine.body_limits().request_bytes;
        let sent = request::read_json(headers, body, limit, room).await;
        let sent = sent.map_err(|refused| self.refused(&refused))?;
        let limits = Limits { depth: MAX_DEPTH, ..Limits::request(limit) };
        let message = jsonrpc::parse(&sent, limits).map_err(|fault| {
            let status = if modern || fault.id.is_none() { 400 } else { 200 };
            self.metrics.request_rejected("bad_request");
            rpc_error(status, fault.id.as_ref(), &RpcError::new(fault.code, fault.message))
        })?;
        match message {
            Message::Request(request) if modern || names_version(request.params.as_ref()) => {
                Ok(self.modern(&came, request).await)
            }
            Message::Notification(note) if modern || names_version(note.params.as_ref()) => {
                tracing::debug!(method = note.method, "a notification says nothing here");
                Ok(empty(202))
            }
            Message::Response(_) | Message::Error(_) if modern => {
                let words = "nothing was asked, so nothing can be answered";
                Err(rpc_error(400, None, &RpcError::new(INVALID_REQUEST, words)))
            }
            Message::Request(_)
            | Message::Notification(_)
            | Message::Response(_)
            | Message::Error(_) => self.legacy(&came, message).await,
        }
    }

    fn came<'r>(&self, peer: Peer, headers: &'r HeaderMap) -> Result<Came<'r>, Refused> {
        let snapshot = self.engine.snapshot();
        let agent = identity::identify(peer, headers, &snapshot).map_err(|denied| {
            self.metrics.unauthenticated("data");
            problem(&Problem::denied(denied))
        })?;
        let head = Head::read(headers).map_err(|bad| self.refused(&bad))?;
        let version = one(headers, PROTOCOL_VERSION).map_err(|()| twice(PROTOCOL_VERSION))?;
        Ok(Came { agent, headers, head, version })
    }

    fn refused(&self, refused: &Problem) -> Refused {
        if let Some(reason) = refused.counted {
            self.metrics.request_rejected(reason);
        }
        problem(refused)
    }
}

/// The one value of a field; `Err`: it stands twice, or is no visible ASCII.
fn one<'h>(headers: &'h HeaderMap, name: &'static str) -> Result<Option<&'h str>, ()> {
    let mut values = headers.get_all(HeaderName::from_static(name)).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| ()),
        (Some(_), Some(_)) => Err(()),
    }
}

fn twice(name: &str) -> Refused {
    let words = format!("the field `{name}` is malformed, or stands twice");
    rpc_error(400, None, &RpcError::new(INVALID_REQUEST, words))
}

/// The session a request names.
fn session_id(headers: &HeaderMap) -> Result<Option<&str>, Refused> {
    one(headers, SESSION_ID).map_err(|()| twice(SESSION_ID))
}

/// Whether an answer of this type may be sent. Without the field anything may (RFC 9110 §12.5.1).
fn accepts(headers: &HeaderMap, wanted: &str) -> bool {
    let mut any = false;
    for value in headers.get_all(ACCEPT) {
        any = true;
        let Ok(text) = value.to_str() else { continue };
        for range in text.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let range = parts.next().unwrap_or_default();
            let refused = parts.any(|part| {
                matches!(part.split_once('='), Some((q, value)) if q.trim().eq_ignore_ascii_case("q")
                    && value.trim().parse::<f32>().is_ok_and(|weight| weight <= 0.0))
            });
            let matches = range == "*/*"
                || range.eq_ignore_ascii_case(wanted)
                || range.strip_suffix("/*").is_some_and(|kind| {
                    wanted.split_once('/').is_some_and(|(own, _)| own.eq_ignore_ascii_case(kind))
                });
            if matches && !refused {
                return true;
            }
        }
    }
    !any
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_type_is_accepted_where_a_range_takes_it_with_any_weight() {
        let takes = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.append(ACCEPT, HeaderValue::from_str(accept).expect("value"));
            (accepts(&headers, "application/json"), accepts(&headers, "text/event-stream"))
        };
        assert_eq!(takes("application/json, text/event-stream"), (true, true));
        assert_eq!(takes("Application/JSON;q=0.1,*/*;q=0"), (true, false));
        assert_eq!(takes("*/*"), (true, true));
        assert_eq!(takes("text/*"), (false, true));
        assert_eq!(takes("text/html"), (false, false));
        assert!(accepts(&HeaderMap::new(), "application/json"));
    }
}
