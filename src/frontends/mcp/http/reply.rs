//! Answers over HTTP: a message as JSON, a stream of them, or nothing. Refusals are JSON-RPC errors, so that a client
//! that reads bodies is told why; no field names a time, because clients take 429 for a broken transport.

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ALLOW, CACHE_CONTROL, CONTENT_TYPE, VARY, WWW_AUTHENTICATE,
};
use http::{HeaderName, HeaderValue, Response, StatusCode};

use crate::call::RunId;
use crate::frontends::body::Body;
use crate::frontends::mcp::methods::Answered;
use crate::frontends::mcp::wire::{OUTCOME, RpcError, outcome_of};
use crate::frontends::render::Problem;
use crate::frontends::request;
use crate::mcp::headers::SESSION_ID;
use crate::mcp::jsonrpc::{self, INVALID_REQUEST, Id};

/// JSON as the body of an answer.
pub(super) fn json(status: u16, body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(Bytes::from(body)));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A stream of messages, never buffered or compressed on its way.
pub(super) fn stream(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// No body at all.
pub(super) fn empty(status: u16) -> Response<Body> {
    let mut response = Response::new(Body::from(Bytes::new()));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

pub(super) fn rpc_error(status: u16, id: Option<&Id>, error: &RpcError) -> Response<Body> {
    json(status, error_line(id, error))
}

/// An error as a message.
pub(in crate::frontends::mcp) fn error_line(id: Option<&Id>, error: &RpcError) -> Vec<u8> {
    jsonrpc::write_error(id, error.code, &error.message, error.data.as_ref())
}

/// What came of a request, as a message.
pub(in crate::frontends::mcp) fn line(id: &Id, came: &Result<Answered, RpcError>) -> Vec<u8> {
    match came {
        Ok(answered) => jsonrpc::write_result_raw(id, &answered.result),
        Err(error) => error_line(Some(id), error),
    }
}

/// What came of a request, as the whole answer.
pub(super) fn whole(id: &Id, came: &Result<Answered, RpcError>, modern: bool) -> Response<Body> {
    let status = match came {
        Ok(_) => 200,
        Err(error) if modern || error.status == 401 => error.status,
        Err(_) => 200,
    };
    let mut response = json(status, line(id, came));
    if let Ok(Answered { run: Some(run), .. }) = came {
        with_run(&mut response, run);
    }
    response
}

fn with_run(response: &mut Response<Body>, run: &RunId) {
    if let Ok(value) = HeaderValue::from_str(run.as_str()) {
        response.headers_mut().insert(request::RUN, value);
    }
}

pub(super) fn with_session(mut response: Response<Body>, session: &str) -> Response<Body> {
    if let Ok(value) = HeaderValue::from_str(session) {
        response.headers_mut().insert(HeaderName::from_static(SESSION_ID), value);
    }
    response
}

/// A request refused before there was a message.
pub(super) fn problem(problem: &Problem) -> Response<Body> {
    let denied = problem.refusal();
    let data = serde_json::json!({ OUTCOME: outcome_of(denied) });
    let error = RpcError::new(INVALID_REQUEST, denied.message.to_string()).data(data);
    let mut response = rpc_error(problem.status(), None, &error);
    if response.status() == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// 405 names what is taken.
pub(super) fn not_taken(mut response: Response<Body>, allow: &'static str) -> Response<Body> {
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    response
}

/// What a web page of an allowed origin may do.
pub(super) fn preflight() -> Response<Body> {
    let mut response = empty(204);
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("POST, GET, DELETE"));
    headers.insert(
        ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static(
            "authorization, content-type, accept, mcp-protocol-version, mcp-session-id, mcp-method, mcp-name, \
             last-event-id, checkrein-run, checkrein-timeout-ms, idempotency-key",
        ),
    );
    response
}

/// Lets a page of an allowed origin read the answer. Nobody else gets such a field.
pub(super) fn cors(mut response: Response<Body>, origin: Option<&HeaderValue>) -> Response<Body> {
    if let Some(origin) = origin {
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.insert(
            ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static("mcp-session-id, checkrein-run"),
        );
        headers.insert(VARY, HeaderValue::from_static("origin"));
    }
    response
}
