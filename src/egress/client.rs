//! One exchange with an upstream: on an idle connection, a shared one or a fresh one; sent once, never again.
//!
//! Nothing here ends an exchange by time: phases are marked on `Progress`, and whoever owns the timer drops the
//! future. Dropping an exchange closes its socket.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{Request, response};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;
use tokio_util::task::TaskTracker;

use super::idle::Idle;
use super::io::{Counted, Meter};
use super::outgoing::{Outgoing, Sending};
use super::shared::{self, Lease, Pool};
use super::tls::{self, Tls};
use super::{Blocked, Resolver, SendError, connect};
use crate::call::{Phase, Progress, SendGate};
use crate::policy::snapshot::{HttpVersion, Upstream};

/// Most fields in the head of an answer.
pub const MAX_HEAD_FIELDS: usize = 100;
/// Most bytes in the head of an answer.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;

/// The way to one upstream.
#[derive(Debug)]
pub struct Way {
    pub(super) upstream: Arc<Upstream>,
    /// The host is among the allowed ones.
    pub(super) allowed: bool,
    /// `None`: plain HTTP. `Err`: no handshake can succeed, and why.
    pub(super) tls: Option<Result<Tls, String>>,
    pub(super) idle: Arc<Idle>,
    /// Connections of HTTP/2.
    pub(super) pool: Arc<Pool>,
    pub(super) resolver: Resolver,
    /// Every connection's driver.
    pub(super) drivers: TaskTracker,
    pub(super) metrics: Arc<crate::telemetry::metrics::Metrics>,
}

/// How one exchange is to be had.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ask<'a> {
    /// Not on a connection that was used before: only there does "zero bytes written" come with a live socket.
    pub fresh: bool,
    /// Opened between connect and first byte.
    pub gate: Option<&'a SendGate>,
    pub progress: Option<&'a Progress>,
}

/// The head of an answer, and its body still to be read.
#[derive(Debug)]
pub struct Answer {
    pub head: response::Parts,
    pub body: AnswerBody,
}

impl Way {
    pub fn upstream(&self) -> &Arc<Upstream> {
        &self.upstream
    }

    /// Idle and shared connections now held.
    pub fn idle_connections(&self) -> usize {
        self.idle.len() + self.pool.len()
    }

    /// Sends once. The request's target is in origin form and its `Host` is set by the caller.
    pub async fn send(
        &self,
        request: Request<impl Into<Sending>>,
        ask: Ask<'_>,
    ) -> Result<Answer, SendError> {
        let request = request.map(Into::into);
        if !self.allowed {
            return Err(self.blocked(Blocked::Host));
        }
        let kept = if ask.fresh { None } else { self.kept() };
        let reused = kept.is_some();
        let carrier = match kept {
            Some(carrier) => carrier,
            None => {
                crash_point!("egress: before connect");
                // Boxed: a handshake is large, and there is seldom one.
                Box::pin(self.open(ask.fresh)).await?
            }
        };
        mark(ask.progress, Phase::Connected);
        crash_point!("egress: connected");
        if let Some(gate) = ask.gate {
            // Refused: the unused connection is closed.
            gate.open().await.map_err(|why| SendError::GateShut(Box::new(why)))?;
        }
        mark(ask.progress, Phase::Sending);
        crash_point!("egress: before the request");
        let sent = match carrier {
            Carrier::Own(connection) => connection.exchange(request, ask.progress).await,
            Carrier::Shared(lease) => {
                let exchanged = lease.exchange(request, self.tls.is_some(), ask.progress).await;
                exchanged.map(|(head, incoming, lease)| (head, incoming, Carrier::Shared(lease)))
            }
        };
        crash_point!("egress: after the head of the answer");
        let (head, incoming, carrier) = match sent {
            Ok(answered) => answered,
            Err(Unanswered { zero_bytes, error }) => {
                if reused {
                    // The others are likely as dead; the next exchange gets a fresh one.
                    self.idle.clear();
                }
                return Err(if zero_bytes { SendError::ZeroBytes { reused } } else { error });
            }
        };
        // Two lengths that may say two things: what follows on that connection is nobody's (RFC 9112 §6.3).
        let framed_twice = head.headers.contains_key(TRANSFER_ENCODING)
            && head.headers.contains_key(CONTENT_LENGTH);
        let idle = (!framed_twice).then(|| self.idle.clone());
        Ok(Answer { head, body: AnswerBody { incoming, carrier: Some(carrier), idle } })
    }

    /// Whether the upstream can be reached: one connection, made and closed. Not a byte of HTTP is sent.
    pub async fn probe(&self) -> Result<(), SendError> {
        self.connect(false).await.map(drop)
    }

    /// A connection that is open and may carry one exchange more.
    fn kept(&self) -> Option<Carrier> {
        if self.upstream.http_version != HttpVersion::Http1
            && let Some(lease) = self.pool.take()
        {
            return Some(Carrier::Shared(lease));
        }
        self.idle.take().map(Carrier::Own)
    }

    /// A new connection. Where it can be shared, one opens and the others wait for what it opened.
    async fn open(&self, own: bool) -> Result<Carrier, SendError> {
        if own || self.upstream.http_version != HttpVersion::Http2 {
            return self.connect(own).await;
        }
        let _opening = self.pool.opening.lock().await;
        match self.pool.take() {
            Some(lease) => Ok(Carrier::Shared(lease)),
            None => self.connect(own).await,
        }
    }

    /// `own`: for an exchange that wants a connection that no other has used.
    async fn connect(&self, own: bool) -> Result<Carrier, SendError> {
        let tls = match &self.tls {
            None => None,
            Some(Ok(tls)) => Some(tls),
            Some(Err(why)) => return Err(SendError::Untrusted(why.clone())),
        };
        let stream = match connect::connect(&self.resolver, &self.upstream).await {
            Err(SendError::Blocked(why)) => return Err(self.blocked(why)),
            other => other?,
        };
        match tls {
            None if self.upstream.http_version == HttpVersion::Http2 => self.share(stream).await,
            None => Connection::start(stream, &self.drivers).await.map(Carrier::Own),
            Some(tls) => {
                let stream = tls.handshake(stream, own).await?;
                match tls::is_h2(&stream) {
                    true => self.share(stream).await,
                    false => Connection::start(stream, &self.drivers).await.map(Carrier::Own),
                }
            }
        }
    }

    async fn share<S>(&self, stream: S) -> Result<Carrier, SendError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let lease = shared::start(stream, &self.drivers).await?;
        self.pool.share(&lease);
        Ok(Carrier::Shared(lease))
    }

    /// A redirect that would have left the origin was not followed.
    pub fn refuse_redirect(&self) {
        self.metrics.egress_blocked("redirect");
    }

    fn blocked(&self, why: Blocked) -> SendError {
        self.metrics.egress_blocked(why.reason());
        SendError::Blocked(why)
    }
}

fn mark(progress: Option<&Progress>, phase: Phase) {
    if let Some(progress) = progress {
        progress.mark(phase);
    }
}

/// What an exchange goes over.
#[derive(Debug)]
enum Carrier {
    Own(Connection),
    Shared(Lease),
}

/// One HTTP/1.1 connection. Dropping it closes the socket, whatever it was doing.
pub(super) struct Connection {
    sender: SendRequest<Outgoing>,
    meter: Arc<Meter>,
    driver: AbortHandle,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("ready", &self.sender.is_ready()).finish()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// No head came.
pub(super) struct Unanswered {
    /// Nothing was sent: hyper gave the request back, and on an HTTP/1.1 connection no byte was handed to the socket.
    pub(super) zero_bytes: bool,
    pub(super) error: SendError,
}

impl Connection {
    async fn start<S>(stream: S, drivers: &TaskTracker) -> Result<Self, SendError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let meter = Arc::new(Meter::default());
        let io = TokioIo::new(Counted::new(stream, meter.clone()));
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(MAX_HEAD_BYTES)
            .handshake(io)
            .await
            .map_err(|error| SendError::Connect(error.to_string()))?;
        let driver = drivers.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to a tool ended");
            }
        });
        Ok(Self { sender, meter, driver: driver.abort_handle() })
    }

    pub(super) fn is_ready(&self) -> bool {
        self.sender.is_ready()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    async fn exchange(
        mut self,
        request: Request<Sending>,
        progress: Option<&Progress>,
    ) -> Result<(response::Parts, Incoming, Carrier), Unanswered> {
        self.meter.begin(progress);
        let meter = self.meter.clone();
        let request = request.map(|body| Outgoing::new(body, meter));
        match self.sender.try_send_request(request).await {
            Ok(response) => {
                self.meter.headed();
                let (head, incoming) = response.into_parts();
                Ok((head, incoming, Carrier::Own(self)))
            }
            Err(mut failed) => {
                let zero_bytes = failed.take_message().is_some() && self.meter.sent() == 0;
                let error = failed.into_error();
                let error = if error.is_parse_too_large() || self.meter.flooded() {
                    SendError::HeadTooLarge
                } else if error.is_parse() {
                    SendError::NotHttp { first: self.meter.first_bytes() }
                } else {
                    SendError::Reset(cause(&error))
                };
                Err(Unanswered { zero_bytes, error })
            }
        }
    }
}

/// The innermost cause: hyper's own words say less than the socket's.
pub(super) fn cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = inner.to_string();
        source = inner.source();
    }
    text
}

/// The body of an answer. Read to its end, its connection goes back to the idle ones; else it is closed.
#[derive(Debug)]
pub struct AnswerBody {
    incoming: Incoming,
    carrier: Option<Carrier>,
    /// Where its connection goes at its end; `None` = that is closed.
    idle: Option<Arc<Idle>>,
}

impl AnswerBody {
    /// Length as far as the head tells it.
    pub fn expected(&self) -> u64 {
        self.incoming.size_hint().lower()
    }

    /// Whether the head tells its length, so that [`AnswerBody::expected`] is what is left of it.
    pub fn length_is_known(&self) -> bool {
        self.incoming.size_hint().exact().is_some()
    }

    /// The longest that it may become, as far as the head tells and up to `limit`, bytes as they are sent.
    pub fn at_most(&self, limit: usize) -> usize {
        let told = self.incoming.size_hint().exact().unwrap_or(u64::MAX);
        usize::try_from(told).unwrap_or(usize::MAX).min(limit)
    }

    /// Read to its end.
    pub fn is_over(&self) -> bool {
        self.carrier.is_none() && self.incoming.is_end_stream()
    }

    /// The next bytes; `None` at the end; `Err` when the body was cut, with the reason.
    pub async fn next(&mut self) -> Option<Result<Bytes, String>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`AnswerBody::next`]. At the last byte of a body of known length its connection is free already.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, String>>> {
        loop {
            match ready!(Pin::new(&mut self.incoming).poll_frame(cx)) {
                None => {
                    self.over();
                    return Poll::Ready(None);
                }
                // Trailers say nothing to us.
                Some(Ok(frame)) => {
                    if let Some(Carrier::Shared(lease)) = &self.carrier {
                        lease.arrived();
                    }
                    if let Ok(bytes) = frame.into_data() {
                        if self.incoming.is_end_stream() {
                            self.over();
                        }
                        return Poll::Ready(Some(Ok(bytes)));
                    }
                }
                Some(Err(error)) => {
                    self.carrier = None;
                    return Poll::Ready(Some(Err(cause(&error))));
                }
            }
        }
    }

    fn over(&mut self) {
        match self.carrier.take() {
            Some(Carrier::Own(connection)) => {
                connection.meter.end();
                if let Some(idle) = self.idle.as_ref().filter(|_| !connection.is_closed()) {
                    idle.give(connection);
                }
            }
            // Its place is free; the connection was never anybody's alone.
            Some(Carrier::Shared(_)) | None => {}
        }
    }
}
