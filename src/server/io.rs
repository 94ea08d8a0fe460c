//! A connection's bytes, watched: has a head begun to arrive? Tells a slow head from a quiet connection.
//! Never reads, holds back or changes a byte of its own. A peer that takes no byte for a minute is gone.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Interval, interval_at};

/// What is known of a connection's read side.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watching(Arc<Seen>);

#[derive(Debug, Default)]
struct Seen {
    bytes: AtomicBool,
    served: AtomicBool,
    /// A head came as HTTP/2.
    http2: AtomicBool,
    /// Exchanges of HTTP/2 that are open.
    open: AtomicUsize,
    /// When the last of them ended.
    ended: Mutex<Option<Instant>>,
}

/// One exchange of HTTP/2, over when this is dropped.
#[derive(Debug)]
pub(super) struct Exchange(Watching);

impl Drop for Exchange {
    fn drop(&mut self) {
        let seen = &self.0.0;
        *seen.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        seen.open.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Watching {
    /// The bytes read so far belong to a head that has been read.
    pub(crate) fn head_is_read(&self) {
        self.0.bytes.store(false, Ordering::Relaxed);
        self.0.served.store(true, Ordering::Relaxed);
    }
    pub(super) fn begin(&self) -> Exchange {
        self.0.http2.store(true, Ordering::Relaxed);
        self.0.open.fetch_add(1, Ordering::AcqRel);
        Exchange(self.clone())
    }

    /// Until nothing was asked for in `most`: no head since the connection came, or, of HTTP/2, no exchange. Between
    /// two heads of HTTP/1.1 hyper keeps the time itself.
    pub(super) async fn quiet(&self, most: Duration) {
        let mut since = Instant::now();
        loop {
            // An interval, as the clock of one connection: nothing is queued here.
            interval_at(since + most, most).tick().await;
            let seen = &self.0;
            match (seen.served.load(Ordering::Relaxed), seen.http2.load(Ordering::Relaxed)) {
                (false, _) => return,
                (true, false) => std::future::pending().await,
                (true, true) if seen.open.load(Ordering::Acquire) > 0 => since = Instant::now(),
                (true, true) => {
                    let ended = *seen.ended.lock().unwrap_or_else(PoisonError::into_inner);
                    since = ended.unwrap_or(since);
                    if since.elapsed() >= most {
                        return;
                    }
                }
            }
        }
    }

    /// At least one whole head has been read.
    pub(crate) fn served(&self) -> bool {
        self.0.served.load(Ordering::Relaxed)
    }
    /// Bytes came since the last whole head. (Also those of its body: ask only while no exchange is in hand.)
    pub(crate) fn bytes_came(&self) -> bool {
        self.0.bytes.load(Ordering::Relaxed)
    }
}

/// A peer that takes no byte of an answer for this long is gone. Over TCP the system says so too (`accept`).
pub(super) const UNREAD_ANSWER: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Watched<I> {
    inner: I,
    watching: Watching,
    /// Runs while bytes wait that the peer does not take.
    unread: Option<Interval>,
}

impl<I> Watched<I> {
    pub(crate) fn new(inner: I, watching: Watching) -> Self {
        Self { inner, watching, unread: None }
    }

    /// Ends a write that has waited too long; any progress begins the time anew.
    fn in_time<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.unread = None;
            return written;
        }
        let begin = || interval_at(Instant::now() + UNREAD_ANSWER, UNREAD_ANSWER);
        match self.unread.get_or_insert_with(begin).poll_tick(cx) {
            Poll::Ready(_) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Watched<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        if buf.filled().len() > before {
            crash_point!("server: bytes came");
            self.watching.0.bytes.store(true, Ordering::Relaxed);
        }
        polled
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Watched<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        crash_point!("server: before the answer is written");
        let polled = Pin::new(&mut self.inner).poll_write(cx, buf);
        crash_point!("server: the answer is written");
        self.in_time(polled, cx)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        crash_point!("server: before pieces of the answer are written");
        let polled = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        crash_point!("server: pieces of the answer are written");
        self.in_time(polled, cx)
    }
    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
