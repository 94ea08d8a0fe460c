//! The counting IO between hyper and the socket (or TLS): what "sent", "written" and "first byte" are known by.
//!
//! It stands above TLS, so it counts request bytes alone: a `close_notify` does not move the counter, and a flush
//! that is done has been taken by the kernel through TLS. What was never handed over was never sent.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::call::{Phase, Progress};

/// Kept of an answer that turns out not to be HTTP, as evidence.
const FIRST_BYTES: usize = 64;

/// Most bytes taken before the head of an answer is whole: room for the largest head and what comes with it, and for
/// some interim answers (RFC 9110 §15.2), which hyper passes over without an end, and without giving others a turn.
const MAX_BEFORE_HEAD: usize = 512 * 1024;

/// Counts of one connection, and the marks of the exchange it now carries.
#[derive(Debug, Default)]
pub(super) struct Meter {
    written: AtomicU64,
    of_a_stream: bool,
    exchange: Mutex<Exchange>,
}

#[derive(Debug)]
struct Exchange {
    progress: Option<Progress>,
    /// An exchange is on; bytes outside of one mark nothing.
    on: bool,
    /// `written` when it began.
    began_at: u64,
    body_handed_over: bool,
    written: bool,
    answered: bool,
    /// The head of the answer is whole.
    headed: bool,
    /// Bytes read before it was.
    before_head: usize,
    first: [u8; FIRST_BYTES],
    /// Of `first`, so many are there.
    first_len: usize,
}

impl Default for Exchange {
    fn default() -> Self {
        Self {
            progress: None,
            on: false,
            began_at: 0,
            body_handed_over: false,
            written: false,
            answered: false,
            headed: false,
            before_head: 0,
            first: [0; FIRST_BYTES],
            first_len: 0,
        }
    }
}

impl Meter {
    /// Of an exchange that shares its connection: nobody can tell its bytes from those of others, so what is handed over
    /// counts as written.
    pub(super) fn of_a_stream() -> Self {
        Self { of_a_stream: true, ..Self::default() }
    }

    /// hyper has taken all of the request's body.
    pub(super) fn handed_over(&self) {
        let mut exchange = self.lock();
        exchange.body_handed_over = true;
        if self.of_a_stream
            && exchange.on
            && !exchange.written
            && let Some(progress) = &exchange.progress
        {
            progress.mark(Phase::Written);
            exchange.written = true;
        }
    }

    /// hyper has taken a piece of the request's body.
    pub(super) fn taken(&self) {
        if self.of_a_stream {
            self.wrote(1);
        }
    }

    /// Something of the answer came.
    pub(super) fn arrived(&self) {
        let mut exchange = self.lock();
        if exchange.on {
            exchange.came();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Exchange> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new exchange begins: from here on bytes are its own.
    pub(super) fn begin(&self, progress: Option<&Progress>) {
        *self.lock() = Exchange {
            progress: progress.cloned(),
            on: true,
            began_at: self.written.load(Ordering::Acquire),
            ..Exchange::default()
        };
    }

    /// The exchange is over; the connection may lie idle.
    pub(super) fn end(&self) {
        *self.lock() = Exchange::default();
    }

    /// Bytes of the request that were handed to the socket or to TLS.
    pub(super) fn sent(&self) -> u64 {
        self.written.load(Ordering::Acquire).saturating_sub(self.lock().began_at)
    }

    /// The first bytes of the answer, readable.
    pub(super) fn first_bytes(&self) -> String {
        let exchange = self.lock();
        let first = exchange.first.get(..exchange.first_len).unwrap_or_default();
        first.escape_ascii().to_string()
    }

    /// The head of the answer is whole; what follows is its body, bounded by who reads it.
    pub(super) fn headed(&self) {
        self.lock().headed = true;
    }

    /// More came than a head has, and no head.
    pub(super) fn flooded(&self) -> bool {
        self.lock().before_head > MAX_BEFORE_HEAD
    }

    fn wrote(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.written.fetch_add(bytes as u64, Ordering::AcqRel);
        let exchange = self.lock();
        if exchange.on
            && !exchange.answered
            && let Some(progress) = &exchange.progress
        {
            progress.mark(Phase::Sending);
        }
    }

    fn flushed(&self) {
        let mut exchange = self.lock();
        let sent = self.written.load(Ordering::Acquire).saturating_sub(exchange.began_at);
        if exchange.on && exchange.body_handed_over && !exchange.written && sent > 0 {
            exchange.written = true;
            if let Some(progress) = &exchange.progress {
                progress.mark(Phase::Written);
            }
        }
    }

    fn read(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut exchange = self.lock();
        if !exchange.on {
            return;
        }
        if !exchange.headed {
            exchange.before_head = exchange.before_head.saturating_add(bytes.len());
        }
        exchange.keep_first(bytes);
        exchange.came();
    }
}

impl Exchange {
    fn came(&mut self) {
        let phase = if self.answered { Phase::Progress } else { Phase::FirstByte };
        self.answered = true;
        if let Some(progress) = &self.progress {
            progress.mark(phase);
        }
    }
}

impl Exchange {
    fn keep_first(&mut self, bytes: &[u8]) {
        let Some(room) = self.first.get_mut(self.first_len..) else { return };
        let taken = room.len().min(bytes.len());
        if let (Some(room), Some(bytes)) = (room.get_mut(..taken), bytes.get(..taken)) {
            room.copy_from_slice(bytes);
            self.first_len += taken;
        }
    }
}

/// A stream whose bytes are counted.
#[derive(Debug)]
pub(super) struct Counted<S> {
    stream: S,
    meter: Arc<Meter>,
}

impl<S> Counted<S> {
    pub(super) fn new(stream: S, meter: Arc<Meter>) -> Self {
        Self { stream, meter }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, buf);
        if let Poll::Ready(Ok(())) = polled {
            crash_point!("egress: bytes are read");
            this.meter.read(buf.filled().get(before..).unwrap_or_default());
            if this.meter.flooded() {
                return Poll::Ready(Err(io::ErrorKind::FileTooLarge.into()));
            }
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        crash_point!("egress: before bytes are written");
        let polled = Pin::new(&mut this.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(bytes)) = polled {
            this.meter.wrote(bytes);
            crash_point!("egress: bytes are written");
        }
        polled
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        crash_point!("egress: before pieces are written");
        let polled = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        if let Poll::Ready(Ok(bytes)) = polled {
            this.meter.wrote(bytes);
            crash_point!("egress: pieces are written");
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_flush(cx);
        if let Poll::Ready(Ok(())) = polled {
            this.meter.flushed();
        }
        polled
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use hyper::body::Body as _;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::outgoing::Outgoing;
    use super::*;

    #[tokio::test]
    async fn written_is_the_first_flush_after_the_body_was_handed_over() {
        let meter = Arc::new(Meter::default());
        let progress = Progress::start();
        let (near, mut far) = tokio::io::duplex(1024);
        let mut io = Counted::new(near, meter.clone());
        meter.begin(Some(&progress));
        io.write_all(b"head").await.expect("room");
        io.flush().await.expect("open");
        assert_eq!(progress.phase(), Phase::Sending);
        let body = Outgoing::new(Bytes::new().into(), meter.clone());
        assert!(body.is_end_stream());
        io.flush().await.expect("open");
        assert_eq!(progress.phase(), Phase::Written);
        assert_eq!(meter.sent(), 4);
        far.write_all(b"\x01answer").await.expect("room");
        let mut buf = [0; 16];
        assert_eq!(io.read(&mut buf).await.expect("open"), 7);
        assert_eq!(progress.phase(), Phase::FirstByte);
        assert_eq!(meter.first_bytes(), "\\x01answer");
    }

    #[tokio::test]
    async fn a_new_exchange_counts_from_nothing_and_an_idle_connection_marks_nothing() {
        let meter = Arc::new(Meter::default());
        let (near, mut far) = tokio::io::duplex(1024);
        let mut io = Counted::new(near, meter.clone());
        meter.begin(None);
        io.write_all(b"first").await.expect("room");
        meter.end();
        let progress = Progress::start();
        meter.begin(Some(&progress));
        assert_eq!(meter.sent(), 0);
        meter.end();
        far.write_all(b"late").await.expect("room");
        let mut buf = [0; 16];
        assert_eq!(io.read(&mut buf).await.expect("open"), 4);
        assert_eq!(progress.phase(), Phase::Connecting);
        assert_eq!(meter.first_bytes(), "");
    }
}
