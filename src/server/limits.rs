//! Bounds of what comes in before there is a request: connections, head size, head time.
//! A head over our bounds gets 431 with a body that names both; hyper's own, wider bounds stand above.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode, Uri};
use tokio::sync::Semaphore;

use super::io::Watching;
use crate::telemetry::metrics::Metrics;

/// Most header fields of a request.
pub const HEAD_FIELDS: usize = 64;
/// Most bytes of a request's target and header fields together.
pub const HEAD_BYTES: usize = 32 * 1024;
/// hyper's read buffer. A head that does not fit gets hyper's own 431, with an empty body; so does one of more
/// than 100 fields, hyper's default.
pub(super) const PARSER_BYTES: usize = 128 * 1024;

/// Bounds of one `Server`.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Open connections, over all listeners.
    pub connections: Arc<Semaphore>,
    /// From the first byte awaited to the last byte of a head; so also how long a connection may be quiet.
    pub head_timeout: Duration,
}

impl Limits {
    /// `connections` places, 30 s for a head.
    pub fn new(connections: usize) -> Self {
        Self {
            connections: Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS))),
            head_timeout: Duration::from_secs(30),
        }
    }
}

/// 431 (RFC 6585 §5) for a head over our bounds. The connection closes: nobody sends such heads by chance.
pub(super) fn refuse_head(headers: &HeaderMap, uri: &Uri) -> Option<Response<Bytes>> {
    // `Name: value\r\n`, as on the wire but for optional white space.
    let fields: usize =
        headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    let target = uri.path().len() + uri.query().map_or(0, |query| query.len() + 1);
    if headers.len() <= HEAD_FIELDS && fields + target <= HEAD_BYTES {
        return None;
    }
    let detail = format!(
        "the request's head has {} fields and {} bytes; at most {HEAD_FIELDS} fields and {HEAD_BYTES} bytes are taken",
        headers.len(),
        fields + target
    );
    Some(problem(
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        "invalid_request",
        &detail,
        "changed",
    ))
}

/// A refusal that belongs to no call (RFC 9457). `detail` holds no character that JSON escapes.
pub(super) fn problem(
    status: StatusCode,
    code: &str,
    detail: &str,
    retry: &str,
) -> Response<Bytes> {
    let title = status.canonical_reason().unwrap_or("Refused");
    let body = format!(
        r#"{{"type":"about:blank","title":"{title}","status":{},"detail":"{detail}","ok":false,"error":"{code}","message":"{detail}","executed":"no","retry":"{retry}"}}"#,
        status.as_u16()
    );
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// What a connection past the bound is told, as far as its socket takes it at once.
pub(super) const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    content-type: application/problem+json\r\n\
    retry-after: 1\r\n\
    connection: close\r\n\
    content-length: 193\r\n\r\n\
    {\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503,\
    \"ok\":false,\"error\":\"concurrency_limited\",\"message\":\"too many connections\",\
    \"executed\":\"no\",\"retry\":\"after\",\"retry_after_ms\":1000}";

/// Counts why hyper ended a connection before a request of it reached us. An agent that goes away is no rejection.
pub(super) fn count(metrics: &Metrics, error: &(dyn Error + 'static), watching: &Watching) {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<hyper::Error>() {
            if error.is_parse_too_large() {
                metrics.request_rejected("head");
            } else if error.is_parse() {
                metrics.request_rejected("bad_request");
            } else if error.is_timeout() && watching.bytes_came() {
                metrics.request_rejected("header_timeout");
            }
            return;
        }
        next = error.source();
    }
}
