//! Responses: a request refused before there was a call, and answers with their head.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, LOCATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};

use super::{field, limit_fields, rate_of, refusal, status, status_of, told};
use crate::call::code::{DenyCode, FailCode};
use crate::call::{CallError, Denied, Failed, RunId};
use crate::engine::Answer;
use crate::frontends::body::Body;
use crate::frontends::request;
use crate::strict_json::object::Object;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// A request refused before there was a call (RFC 9457), with the same members as any refusal.
#[derive(Debug)]
pub(in crate::frontends) struct Problem {
    status: StatusCode,
    denied: Box<Denied>,
    /// Label of `requests_rejected_total`, where it is counted there.
    pub(in crate::frontends) counted: Option<&'static str>,
    allow: Option<&'static str>,
}

impl Problem {
    fn new(status: StatusCode, counted: Option<&'static str>, message: String) -> Self {
        let denied = Box::new(Denied::new(DenyCode::InvalidRequest, message));
        Self { status, denied, counted, allow: None }
    }
    /// A code of the table, with its status.
    pub(in crate::frontends) fn denied(denied: Denied) -> Self {
        let status = status_of(denied.code.http());
        Self { status, denied: Box::new(denied), counted: None, allow: None }
    }
    pub(in crate::frontends) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, Some("bad_request"), message.into())
    }
    pub(in crate::frontends) fn media_type(message: &str) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, Some("media_type"), message.to_owned())
    }
    pub(in crate::frontends) fn too_large(limit: usize) -> Self {
        let message = format!("the body is larger than the limit of {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, Some("body"), message)
    }
    pub(in crate::frontends) fn no_room() -> Self {
        let message = "too many bodies are held at once; nothing was run";
        let denied =
            Denied::new(DenyCode::ConcurrencyLimited, message).retry_after(Duration::from_secs(1));
        Self { counted: Some("body"), ..Self::denied(denied) }
    }
    pub(in crate::frontends) fn too_slow(limit: Duration) -> Self {
        let message = format!("the body did not arrive within {} s", limit.as_secs());
        Self::new(StatusCode::REQUEST_TIMEOUT, Some("body"), message)
    }
    pub(in crate::frontends) fn late_body() -> Self {
        let message = "the rest of the body did not arrive in time; what the tool made of its beginning is not known";
        Self::new(StatusCode::REQUEST_TIMEOUT, Some("body"), message.to_owned())
    }
    pub(in crate::frontends) fn of_browser() -> Self {
        let message = "a request with an Origin field comes from a web page and needs a credential";
        Self::new(StatusCode::FORBIDDEN, Some("host_origin"), message.to_owned())
    }
    pub(in crate::frontends) fn of_foreign_host() -> Self {
        let message =
            "this host is not the gateway's own name; show a credential, or see --allowed-host";
        Self::new(StatusCode::FORBIDDEN, Some("host_origin"), message.to_owned())
    }
    pub(in crate::frontends) fn no_such_path() -> Self {
        let message =
            "no such path; see /v1/tools, /v1/batches/{form}, /v1/runs, /proxy/{upstream}";
        Self::new(StatusCode::NOT_FOUND, Some("bad_request"), message.to_owned())
    }
    pub(in crate::frontends) fn method(method: &Method, allow: &'static str) -> Self {
        let message = format!("this path takes {allow}, not {method}");
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Self { allow: Some(allow), ..Self::new(status, Some("bad_request"), message) }
    }
    /// What was refused, for front ends with words of their own.
    pub(in crate::frontends) fn refusal(&self) -> &Denied {
        &self.denied
    }
    pub(in crate::frontends) fn status(&self) -> u16 {
        self.status.as_u16()
    }
    /// The body was over its limit.
    pub(in crate::frontends) fn is_too_large(&self) -> bool {
        self.status == StatusCode::PAYLOAD_TOO_LARGE
    }

    pub(super) fn body(&self) -> Vec<u8> {
        let mut object = Object::with_capacity(512);
        object.string("type", "about:blank");
        object.string("title", self.status.canonical_reason().unwrap_or("Refused"));
        object.number("status", u64::from(self.status.as_u16()));
        object.string("detail", &self.denied.message);
        object.append(&refusal(&CallError::Denied(Denied::clone(&self.denied)), None));
        object.finish()
    }
}

/// A response in the making; `Checkrein-Run` is set last.
#[derive(Debug)]
pub(in crate::frontends) struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
    /// The run that was used; absent = the one asked for, or a fresh id.
    run: Option<RunId>,
}

impl Reply {
    pub(in crate::frontends) fn json(body: Vec<u8>) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, JSON);
        Self { status: StatusCode::OK, headers, body, run: None }
    }
    /// 201 with the place of what was made.
    pub(in crate::frontends) fn created(body: Vec<u8>, location: &str) -> Self {
        let mut reply = Self::json(body);
        reply.status = StatusCode::CREATED;
        field(&mut reply.headers, LOCATION, location);
        reply
    }
    /// A whole batch refused: 400 with the batch's own shape.
    pub(in crate::frontends) fn protocol_error(body: Vec<u8>) -> Self {
        let mut reply = Self::json(body);
        reply.status = StatusCode::BAD_REQUEST;
        reply
    }
    /// One call's answer at the tools API.
    pub(in crate::frontends) fn of_call(answer: &Answer) -> Self {
        let mut reply = Self::json(super::answer(answer));
        let retry_after = match &answer.outcome {
            Ok(_) => None,
            Err(error) => {
                reply.status = status(error);
                told(error, answer.operation.is_some()).retry_after
            }
        };
        // 200 with `ok: false` is not the gateway being unready, so it names no time in the head.
        let retry_after = retry_after.filter(|_| reply.status != StatusCode::OK);
        limit_fields(&mut reply.headers, retry_after, rate_of(&answer.outcome));
        field(&mut reply.headers, request::CALL_ID, answer.id.as_str());
        reply
    }
    /// A refused or failed call of a plain HTTP client: the same, as a problem document (RFC 9457).
    pub(in crate::frontends) fn of_passed(answer: &Answer) -> Self {
        let mut reply = Self::of_call(answer);
        let Err(error) = &answer.outcome else { return reply };
        // The tool's own status, where it said more than could be passed on.
        if let CallError::Failed(Failed { code: FailCode::ToolError, status, .. }) = error {
            reply.status = status.map_or(StatusCode::BAD_GATEWAY, status_of);
        }
        let mut object = Object::with_capacity(512);
        object.string("type", "about:blank");
        object.string("title", reply.status.canonical_reason().unwrap_or("Refused"));
        object.number("status", u64::from(reply.status.as_u16()));
        object.string("detail", told(error, answer.operation.is_some()).message);
        object.append(&refusal(error, Some(answer)));
        reply.body = object.finish();
        reply.headers.insert(CONTENT_TYPE, PROBLEM_JSON);
        reply
    }
    pub(in crate::frontends) fn with_run(mut self, run: Option<RunId>) -> Self {
        self.run = run;
        self
    }
    pub(in crate::frontends) fn problem(problem: &Problem) -> Self {
        let mut reply = Self::json(problem.body());
        reply.status = problem.status;
        reply.headers.insert(CONTENT_TYPE, PROBLEM_JSON);
        if problem.status == StatusCode::UNAUTHORIZED {
            reply.headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(allow) = problem.allow {
            reply.headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        let error = CallError::Denied(Denied::clone(&problem.denied));
        limit_fields(&mut reply.headers, told(&error, false).retry_after, None);
        reply
    }
    #[must_use]
    pub(in crate::frontends) fn run(mut self, run: RunId) -> Self {
        self.run = Some(run);
        self
    }
    pub(in crate::frontends) fn count(mut self, name: HeaderName, number: usize) -> Self {
        self.headers.insert(name, HeaderValue::from(number));
        self
    }

    pub(in crate::frontends) fn into_response(self, asked: Option<RunId>) -> Response<Body> {
        let mut response = Response::new(Body::from(Bytes::from(self.body)));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        let run = self.run.or(asked).unwrap_or_else(RunId::mint);
        field(response.headers_mut(), request::RUN, run.as_str());
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}
