//! Answers of the admin listener: JSON, or a problem (RFC 9457). Neither is kept by any cache.

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, ETAG, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};

/// Why a request is not answered as it was asked.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    header: Option<(HeaderName, &'static str)>,
    /// What stands in the way, as it is now.
    now: Option<(&'static str, Value)>,
}

impl Problem {
    fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), header: None, now: None }
    }

    pub(super) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", detail)
    }
    pub(super) fn too_large(limit: usize) -> Self {
        let detail = format!("the body has more than {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request", detail)
    }
    pub(super) fn too_slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request", "the body did not come in time")
    }
    pub(super) fn media_type() -> Self {
        let detail = "a change is sent as application/json";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request", detail)
    }
    pub(super) fn no_such_path() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "there is nothing at this path")
    }
    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", detail)
    }
    pub(super) fn method(allow: &'static str) -> Self {
        let mut problem = Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "invalid_request",
            "GET reads, POST changes; this path takes one of them",
        );
        problem.header = Some((ALLOW, allow));
        problem
    }
    /// RFC 9110 §15.5.20: not a host of this listener.
    pub(super) fn wrong_host() -> Self {
        let detail = "`Host` does not name this listener";
        Self::new(StatusCode::MISDIRECTED_REQUEST, "wrong_host", detail)
    }
    pub(super) fn of_browser() -> Self {
        let detail = "requests of web pages are not taken here";
        Self::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }
    pub(super) fn unauthenticated() -> Self {
        let detail = "show the credential of a person: `Authorization: Bearer TOKEN`";
        let mut problem = Self::new(StatusCode::UNAUTHORIZED, "unauthenticated", detail);
        problem.header = Some((WWW_AUTHENTICATE, "Bearer"));
        problem
    }
    pub(super) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }
    pub(super) fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", detail)
    }
    /// RFC 6585 §3: a change that could overwrite another person's must name what it was decided on.
    pub(super) fn precondition_required() -> Self {
        let detail = "send `If-Match` with the ETag of what you decided on";
        Self::new(StatusCode::PRECONDITION_REQUIRED, "precondition_required", detail)
    }
    pub(super) fn changed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PRECONDITION_FAILED, "changed", detail)
    }
    pub(super) fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
    }

    #[must_use]
    pub(super) fn with(mut self, name: &'static str, now: Value) -> Self {
        self.now = Some((name, now));
        self
    }

    pub(super) fn is_unauthenticated(&self) -> bool {
        self.status == StatusCode::UNAUTHORIZED
    }

    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
        let mut body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("Refused"),
            "status": self.status.as_u16(),
            "detail": self.detail,
            "error": self.code,
        });
        if let (Some((name, now)), Value::Object(members)) = (self.now, &mut body) {
            members.insert(name.to_owned(), now);
        }
        let mut response = response(&body);
        *response.status_mut() = self.status;
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        if let Some((name, value)) = self.header {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

pub(super) fn response(body: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// With the version the body has, so that a change can name it.
pub(super) fn versioned(body: &Value, version: &str) -> Response<Full<Bytes>> {
    let mut response = response(body);
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{version}\"")) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

/// It was begun and goes on.
pub(super) fn accepted(body: &Value) -> Response<Full<Bytes>> {
    let mut response = response(body);
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}
