//! HTTP/2 to one upstream: few connections, each shared by many exchanges. An exchange is sent once, as on any other
//! connection; only the proofs that it was not taken are others (RFC 9113 §6.8, §8.7).
//!
//! The driver of a connection and its frames run on one thread, so between "may a stream be opened" and "it is open"
//! no GOAWAY can be read: one that ends an exchange names it as not processed.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header::{CONNECTION, HOST, TE, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, Scheme};
use http::{HeaderName, Request, Uri, Version, response};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::rt::Executor;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::SendError;
use super::client::{MAX_HEAD_BYTES, MAX_HEAD_FIELDS, Unanswered, cause};
use super::idle::MAX_IDLE_TIME;
use super::io::Meter;
use super::outgoing::{Outgoing, Sending};
use crate::call::Progress;

/// Connections of one upstream that are kept to be shared; another is closed with its exchange.
const MAX_SHARED: usize = 4;
/// Exchanges of one connection, whatever its peer allows; also until the peer has said so.
const MAX_STREAMS: usize = 100;
/// Unread bytes that one stream, and all streams of a connection, may bring.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Bytes of one stream that wait to be written.
const SEND_BUFFER: usize = 64 * 1024;
/// A connection in use whose peer says nothing for this long is asked whether it lives, and given up after the second.
const PING_AFTER: Duration = Duration::from_secs(15);
const PING_WITHIN: Duration = Duration::from_secs(10);

/// The connections of one upstream, and who opens the next.
#[derive(Debug, Default)]
pub(super) struct Pool {
    wires: Mutex<Vec<Arc<Wire>>>,
    /// One opens, the others wait for what it opened.
    pub(super) opening: tokio::sync::Mutex<()>,
}

/// One connection. Dropped with its last exchange it is closed.
struct Wire {
    sender: SendRequest<Outgoing>,
    /// Exchanges now on it.
    open: AtomicUsize,
    peer: Arc<Told>,
    driver: AbortHandle,
    /// When the last exchange ended.
    since: Mutex<Instant>,
    retired: std::sync::atomic::AtomicBool,
}

/// What a connection's peer allows.
#[derive(Debug)]
struct Told {
    /// Streams at once.
    most: AtomicUsize,
    /// hyper reads it, and nobody tells us when: its driver is asked to look again.
    look: Notify,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("open", &self.open).finish()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Wire {
    fn serves(&self) -> bool {
        !self.sender.is_closed() && !self.retired.load(Ordering::Acquire)
    }

    fn is_old(&self) -> bool {
        let since = *self.since.lock().unwrap_or_else(PoisonError::into_inner);
        self.open.load(Ordering::Acquire) == 0 && since.elapsed() >= MAX_IDLE_TIME
    }

    /// One more exchange, if there is room. Called under the pool's lock, or before anybody else knows it.
    fn lease(self: &Arc<Self>) -> Option<Lease> {
        let most = self.peer.most.load(Ordering::Acquire).min(MAX_STREAMS);
        if self.open.load(Ordering::Acquire) >= most {
            return None;
        }
        self.open.fetch_add(1, Ordering::AcqRel);
        Some(Lease { wire: self.clone(), meter: None })
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Wire>>> {
        self.wires.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room on a connection that is open.
    pub(super) fn take(&self) -> Option<Lease> {
        let mut wires = self.lock();
        prune(&mut wires);
        wires.iter().find_map(Wire::lease)
    }

    /// A new connection's first exchange; others may share it from now on, where there are not too many.
    pub(super) fn share(&self, lease: &Lease) {
        let mut wires = self.lock();
        prune(&mut wires);
        if wires.len() < MAX_SHARED {
            wires.push(lease.wire.clone());
        }
    }

    pub(super) fn sweep(&self) {
        prune(&mut self.lock());
    }

    /// Connections that are kept.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }
}

fn prune(wires: &mut Vec<Arc<Wire>>) {
    wires.retain(|wire| wire.serves() && !wire.is_old());
}

/// One exchange's place on a connection, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Lease {
    wire: Arc<Wire>,
    meter: Option<Arc<Meter>>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        *self.wire.since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.wire.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// hyper's own tasks run under the tracker of all connections.
#[derive(Clone)]
struct Tracked(TaskTracker);

impl<F> Executor<F> for Tracked
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, task: F) {
        drop(self.0.spawn(task));
    }
}

/// Speaks HTTP/2 from the first byte on: by ALPN, or because the policy says so (RFC 9113 §3.3).
pub(super) async fn start<S>(stream: S, drivers: &TaskTracker) -> Result<Lease, SendError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http2::Builder::new(Tracked(drivers.clone()))
        .timer(TokioTimer::new())
        .initial_max_send_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        // Twice what is taken, so that ours is the limit that answers, by name.
        .max_header_list_size(2 * u32::try_from(MAX_HEAD_BYTES).unwrap_or(u32::MAX))
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PING_WITHIN)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| SendError::Connect(error.to_string()))?;
    let peer = Arc::new(Told { most: AtomicUsize::new(MAX_STREAMS), look: Notify::new() });
    let told = peer.clone();
    let driver = drivers.spawn(async move {
        let mut connection = pin!(connection);
        let ended = loop {
            let driven = std::future::poll_fn(|cx| {
                let polled = connection.as_mut().poll(cx);
                told.most.store(connection.current_max_send_streams(), Ordering::Release);
                polled
            });
            tokio::select! {
                biased;
                ended = driven => break ended,
                () = told.look.notified() => {}
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a shared connection to a tool ended");
        }
    });
    let wire = Arc::new(Wire {
        sender,
        open: AtomicUsize::new(1),
        peer,
        driver: driver.abort_handle(),
        since: Mutex::new(Instant::now()),
        retired: std::sync::atomic::AtomicBool::new(false),
    });
    Ok(Lease { wire, meter: None })
}

impl Lease {
    pub(super) async fn exchange(
        mut self,
        request: Request<Sending>,
        tls: bool,
        progress: Option<&Progress>,
    ) -> Result<(response::Parts, Incoming, Self), Unanswered> {
        let meter = Arc::new(Meter::of_a_stream());
        meter.begin(progress);
        let request = absolute(request, tls)
            .map_err(|why| Unanswered { zero_bytes: true, error: SendError::Connect(why) })?;
        let request = request.map(|body| Outgoing::new(body, meter.clone()));
        self.meter = Some(meter.clone());
        match self.wire.sender.clone().try_send_request(request).await {
            Ok(response) => {
                meter.arrived();
                // Its settings came before its first answer (RFC 9113 §3.4).
                self.wire.peer.look.notify_one();
                let (head, incoming) = response.into_parts();
                let fields = &head.headers;
                let bytes: usize =
                    fields.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
                if fields.len() > MAX_HEAD_FIELDS || bytes > MAX_HEAD_BYTES {
                    return Err(Unanswered { zero_bytes: false, error: SendError::HeadTooLarge });
                }
                Ok((head, incoming, self))
            }
            Err(mut failed) => {
                // Given back whole: not a frame of it was made.
                let zero_bytes = failed.take_message().is_some();
                let error = judged(&failed.into_error());
                if zero_bytes || !matches!(error, SendError::RefusedStream | SendError::Reset(_)) {
                    self.wire.retired.store(true, Ordering::Release);
                }
                Err(Unanswered { zero_bytes, error })
            }
        }
    }

    /// Bytes of its body came.
    pub(super) fn arrived(&self) {
        if let Some(meter) = &self.meter {
            meter.arrived();
        }
    }
}

/// What HTTP/2 itself says of an exchange that has no answer.
fn judged(error: &hyper::Error) -> SendError {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(told) = error.downcast_ref::<h2::Error>() {
            return of_peer(told).unwrap_or_else(|| SendError::Reset(told.to_string()));
        }
        next = error.source();
    }
    SendError::Reset(cause(error))
}

fn of_peer(error: &h2::Error) -> Option<SendError> {
    let reason = error.reason()?;
    if error.is_library() {
        // Ours is the side that gave up: what came is not what the protocol allows, or has no end.
        return Some(SendError::NotHttp { first: format!("HTTP/2 {reason}") });
    }
    match reason {
        _ if !error.is_remote() => None,
        h2::Reason::ENHANCE_YOUR_CALM => Some(SendError::Calm),
        _ if error.is_go_away() => Some(SendError::GoneAway),
        h2::Reason::REFUSED_STREAM => Some(SendError::RefusedStream),
        _ => None,
    }
}

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// `Host` becomes `:authority`, and what belongs to an HTTP/1.1 connection goes (RFC 9113 §8.2.2, §8.3.1).
fn absolute(request: Request<Sending>, tls: bool) -> Result<Request<Sending>, String> {
    let (mut parts, body) = request.into_parts();
    let host = parts.headers.remove(HOST).ok_or("a request without a host")?;
    let mut uri = std::mem::take(&mut parts.uri).into_parts();
    uri.scheme = Some(if tls { Scheme::HTTPS } else { Scheme::HTTP });
    uri.authority = Some(Authority::try_from(host.as_bytes()).map_err(|bad| bad.to_string())?);
    parts.uri = Uri::from_parts(uri).map_err(|bad| bad.to_string())?;
    parts.version = Version::HTTP_2;
    for name in [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, TRANSFER_ENCODING, UPGRADE] {
        parts.headers.remove(name);
    }
    if parts.headers.get(TE).is_some_and(|te| te != "trailers") {
        parts.headers.remove(TE);
    }
    Ok(Request::from_parts(parts, body))
}
