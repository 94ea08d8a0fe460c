//! HTTP/2 of agents, in clear text with prior knowledge (RFC 9113 §3.3): its bounds, and a request as the front ends know
//! it. Streams of one connection are exchanges like those of many; all other bounds hold for each of them.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Request, Response, StatusCode, Uri, Version};
use hyper::body::{Body, Frame, SizeHint};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto::Builder;

use super::io::Exchange;
use super::limits;

/// Exchanges that one connection has open at once.
pub const STREAMS: u32 = 100;
/// Bytes of bodies that were not read yet, of one stream and of all streams of a connection.
const STREAM_WINDOW: u32 = 128 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Bytes of an answer that wait for its peer's window.
const SEND_BUFFER: usize = 64 * 1024;
/// Streams that a peer opens and resets before they were looked at (CVE-2023-44487); one more and it is sent away.
const RESETS: usize = 20;
/// Streams that we reset because of a peer's faults; one more and it is sent away.
const FAULTS: usize = 100;
/// A peer that says nothing for so long is asked whether it lives, and closed after the second.
const PING_AFTER: Duration = Duration::from_secs(30);
const PING_WITHIN: Duration = Duration::from_secs(20);

pub(super) fn bound(builder: &mut Builder<TokioExecutor>) {
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(u32::try_from(limits::PARSER_BYTES).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(RESETS)
        .max_local_error_reset_streams(FAULTS)
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PING_WITHIN);
}

/// `:authority` as `Host`, and a target without it, so that all that follows sees one kind of request. Two that differ
/// are refused (RFC 9113 §8.3.1).
pub(super) fn as_http1<B>(request: &mut Request<B>) -> Result<(), Response<Bytes>> {
    let Some(authority) = request.uri().authority() else { return Ok(()) };
    let wanted = HeaderValue::from_str(authority.as_str());
    let wanted = wanted.map_err(|_| refused("`:authority` is malformed"))?;
    let mut given = request.headers().get_all(HOST).iter();
    if given.any(|host| !host.as_bytes().eq_ignore_ascii_case(wanted.as_bytes())) {
        return Err(refused("`:authority` and `host` name two hosts"));
    }
    request.headers_mut().insert(HOST, wanted);
    let target = request.uri().path_and_query().cloned();
    let target = target.ok_or_else(|| refused("the request names no path"))?;
    *request.uri_mut() = Uri::from(target);
    Ok(())
}

fn refused(detail: &str) -> Response<Bytes> {
    limits::problem(StatusCode::BAD_REQUEST, "invalid_request", detail, "changed")
}

pub(super) fn is_http2<B>(request: &Request<B>) -> bool {
    request.version() == Version::HTTP_2
}

/// An answer's body, and its exchange: open until the body has ended.
#[derive(Debug)]
pub(super) struct Held<B> {
    body: B,
    _exchange: Option<Exchange>,
}

impl<B> Held<B> {
    pub(super) fn new(body: B, exchange: Option<Exchange>) -> Self {
        Self { body, _exchange: exchange }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Held<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }
    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
