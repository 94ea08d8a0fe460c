//! One exchange with an upstream over HTTP/1.1: an idle connection or a fresh one, sent once, never again.
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
use super::tls::Tls;
use super::{Blocked, Resolver, SendError, connect};
use crate::call::{Phase, Progress, SendGate};
use crate::policy::snapshot::Upstream;

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

    /// Idle connections now held.
    pub fn idle_connections(&self) -> usize {
        self.idle.len()
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
        let kept = if ask.fresh { None } else { self.idle.take() };
        let reused = kept.is_some();
        let connection = match kept {
            Some(connection) => connection,
            None => {
                crash_point!("egress: before connect");
                // Boxed: a handshake is large, and there is seldom one.
                Box::pin(self.connect()).await?
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
        let sent = connection.exchange(request, ask.progress).await;
        crash_point!("egress: after the head of the answer");
        let (head, incoming, connection) = match sent {
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
        Ok(Answer { head, body: AnswerBody { incoming, connection: Some(connection), idle } })
    }

    /// Whether the upstream can be reached: one connection, made and closed. Not a byte of HTTP is sent.
    pub async fn probe(&self) -> Result<(), SendError> {
        self.connect().await.map(drop)
    }

    async fn connect(&self) -> Result<Connection, SendError> {
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
            None => Connection::start(stream, &self.drivers).await,
            Some(tls) => Connection::start(tls.handshake(stream).await?, &self.drivers).await,
        }
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
struct Unanswered {
    /// Both proofs hold: hyper gave the request back, and no byte of it was handed to the socket.
    zero_bytes: bool,
    error: SendError,
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
    ) -> Result<(response::Parts, Incoming, Self), Unanswered> {
        self.meter.begin(progress);
        let meter = self.meter.clone();
        let request = request.map(|body| Outgoing::new(body, meter));
        match self.sender.try_send_request(request).await {
            Ok(response) => {
                self.meter.headed();
                let (head, incoming) = response.into_parts();
                Ok((head, incoming, self))
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
fn cause(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
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
    connection: Option<Connection>,
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

    /// Read to its end.
    pub fn is_over(&self) -> bool {
        self.connection.is_none() && self.incoming.is_end_stream()
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
                    if let Ok(bytes) = frame.into_data() {
                        if self.incoming.is_end_stream() {
                            self.over();
                        }
                        return Poll::Ready(Some(Ok(bytes)));
                    }
                }
                Some(Err(error)) => {
                    self.connection = None;
                    return Poll::Ready(Some(Err(cause(&error))));
                }
            }
        }
    }

    fn over(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.meter.end();
            if let Some(idle) = self.idle.as_ref().filter(|_| !connection.is_closed()) {
                idle.give(connection);
            }
        }
    }
}
