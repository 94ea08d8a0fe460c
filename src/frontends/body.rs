//! What is sent back: whole bytes, or events as they come. A reader that does not take its events is cut, never
//! buffered for.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Interval, interval_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::call::Stream;

/// Events that wait for one reader.
pub(super) const MAX_EVENTS: usize = 256;
/// Bytes of events that wait for one reader; past it nothing is added. The event that passes it always fits, its size
/// being bounded where it is made: a large answer is no fault of whoever was to read a word before it.
pub(super) const MAX_EVENT_BYTES: usize = 4 << 20;
/// A quiet stream says that it is alive this often, with a comment that means nothing.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The body of an answer.
#[derive(Debug)]
pub struct Body(Kind);

#[derive(Debug)]
enum Kind {
    Whole(Option<Bytes>),
    Events(Events),
    /// A tool's answer, read as fast as its reader takes it.
    Passed(Box<Stream>),
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self(Kind::Whole(Some(bytes).filter(|bytes| !bytes.is_empty())))
    }
}

impl Body {
    /// Keeps `thing` until the last byte of an answer that goes on as it comes; of any other body it is dropped here.
    pub fn hold(&mut self, thing: impl Send + 'static) {
        if let Kind::Passed(stream) = &mut self.0 {
            stream.hold(thing);
        }
    }
}

impl From<Stream> for Body {
    fn from(stream: Stream) -> Self {
        Self(Kind::Passed(Box::new(stream)))
    }
}

/// Why a body ends before its end: its connection is cut, so that nobody takes a part for the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    Stalled(Stalled),
    /// What was passed on broke off at the tool, or over a limit.
    BrokenOff,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cut::Stalled(stalled) => stalled.fmt(f),
            Cut::BrokenOff => f.write_str("the answer that was passed on broke off"),
        }
    }
}
impl std::error::Error for Cut {}

/// The reader of a stream fell too far behind, so its connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stalled;

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader of a stream of events does not keep up")
    }
}
impl std::error::Error for Stalled {}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match &mut self.get_mut().0 {
            Kind::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Kind::Events(events) => {
                let next = events.poll_next(cx);
                next.map(|event| event.map(|event| event.map(Frame::data).map_err(Cut::Stalled)))
            }
            Kind::Passed(stream) => stream
                .poll_next(cx)
                .map(|next| next.map(|next| next.map(Frame::data).map_err(|_| Cut::BrokenOff))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(bytes) => bytes.is_none(),
            Kind::Events(_) => false,
            Kind::Passed(stream) => stream.left() == Some(0),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Kind::Events(_) => SizeHint::default(),
            Kind::Passed(stream) => {
                stream.left().map_or_else(SizeHint::default, SizeHint::with_exact)
            }
        }
    }
}

#[derive(Debug)]
struct Events {
    queue: Arc<Queue>,
    keep_alive: Interval,
    /// Tells the other side that nobody reads any more.
    _gone: DropGuard,
}

#[derive(Debug, Default)]
struct Queue(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<Bytes>,
    bytes: usize,
    /// The last writer has gone, or said that it was the last event.
    over: bool,
    stalled: bool,
    reader: Option<Waker>,
}

impl Queue {
    fn with<T>(&self, act: impl FnOnce(&mut Waiting) -> T) -> T {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let done = act(&mut waiting);
        let reader = waiting.reader.take();
        drop(waiting);
        if let Some(reader) = reader {
            reader.wake();
        }
        done
    }
}

impl Events {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Stalled>>> {
        let mut waiting = self.queue.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.stalled {
            return Poll::Ready(Some(Err(Stalled)));
        }
        if let Some(event) = waiting.events.pop_front() {
            waiting.bytes -= event.len();
            drop(waiting);
            self.keep_alive.reset();
            return Poll::Ready(Some(Ok(event)));
        }
        if waiting.over {
            return Poll::Ready(None);
        }
        waiting.reader = Some(cx.waker().clone());
        drop(waiting);
        match self.keep_alive.poll_tick(cx) {
            Poll::Ready(_) => Poll::Ready(Some(Ok(Bytes::from_static(b": \n\n")))),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Writes events to one body. The stream ends when the last clone is dropped, or at [`EventSender::end`].
#[derive(Debug, Clone)]
pub(super) struct EventSender {
    queue: Arc<Queue>,
    _last: Arc<Last>,
    gone: CancellationToken,
}

/// Ends the stream when the last writer is dropped.
#[derive(Debug)]
struct Last(Arc<Queue>);

impl Drop for Last {
    fn drop(&mut self) {
        self.0.with(|waiting| waiting.over = true);
    }
}

/// A stream of events and its writer.
pub(super) fn events() -> (EventSender, Body) {
    let queue = Arc::new(Queue::default());
    let gone = CancellationToken::new();
    let body = Body(Kind::Events(Events {
        queue: queue.clone(),
        keep_alive: interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE),
        _gone: gone.clone().drop_guard(),
    }));
    (EventSender { queue: queue.clone(), _last: Arc::new(Last(queue)), gone }, body)
}

impl EventSender {
    /// Queues one event. False: nobody reads any more, the stream is over, or its reader has fallen so far behind
    /// that it is cut here.
    pub(super) fn send(&self, event: impl Into<Bytes>) -> bool {
        let event = event.into();
        if self.gone.is_cancelled() {
            return false;
        }
        let stalled = self.queue.with(|waiting| {
            if waiting.over || waiting.stalled {
                return true;
            }
            let full = waiting.events.len() >= MAX_EVENTS || waiting.bytes >= MAX_EVENT_BYTES;
            if full {
                waiting.stalled = true;
                waiting.events.clear();
                waiting.bytes = 0;
            } else {
                waiting.bytes += event.len();
                waiting.events.push_back(event);
            }
            full
        });
        if stalled {
            self.gone.cancel();
        }
        !stalled
    }

    /// Ends the stream after what is queued.
    pub(super) fn end(&self) {
        self.queue.with(|waiting| waiting.over = true);
    }

    /// Ends the stream at once: what is queued is said elsewhere.
    pub(super) fn cut(&self) {
        self.queue.with(|waiting| {
            waiting.events.clear();
            waiting.bytes = 0;
            waiting.over = true;
        });
    }

    /// Cancelled once nobody reads: the connection is gone, or was cut.
    pub(super) fn gone(&self) -> &CancellationToken {
        &self.gone
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn next(body: &mut Body) -> Option<Result<Bytes, Cut>> {
        body.frame().await.map(|frame| frame.map(|frame| frame.into_data().expect("data")))
    }

    #[tokio::test(start_paused = true)]
    async fn whole_bytes_have_their_exact_length_and_end() {
        let mut body = Body::from(Bytes::from_static(b"abc"));
        assert_eq!(body.size_hint().exact(), Some(3));
        assert!(!body.is_end_stream());
        assert_eq!(next(&mut body).await, Some(Ok(Bytes::from_static(b"abc"))));
        assert!(body.is_end_stream() && next(&mut body).await.is_none());
        assert!(Body::from(Bytes::new()).is_end_stream());
    }

    #[tokio::test(start_paused = true)]
    async fn events_come_in_order_and_a_quiet_stream_says_that_it_is_alive() {
        let (sender, mut body) = events();
        assert!(sender.send(b"a".to_vec()) && sender.send(b"b".to_vec()));
        assert_eq!(next(&mut body).await, Some(Ok(Bytes::from_static(b"a"))));
        assert_eq!(next(&mut body).await, Some(Ok(Bytes::from_static(b"b"))));
        let began = Instant::now();
        assert_eq!(next(&mut body).await, Some(Ok(Bytes::from_static(b": \n\n"))));
        assert_eq!(began.elapsed(), KEEP_ALIVE);
        assert!(sender.clone().send(b"c".to_vec()));
        drop(sender);
        assert_eq!(next(&mut body).await, Some(Ok(Bytes::from_static(b"c"))));
        assert_eq!(next(&mut body).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_nothing_is_cut_and_nothing_is_kept_for_it() {
        let (sender, mut body) = events();
        for _ in 0..MAX_EVENTS {
            assert!(sender.send(vec![b'x'; 10]));
        }
        assert!(!sender.gone().is_cancelled());
        assert!(!sender.send(b"one more".to_vec()));
        assert!(sender.gone().is_cancelled() && !sender.send(b"later".to_vec()));
        assert_eq!(sender.queue.0.lock().expect("sound").events.len(), 0);
        assert_eq!(next(&mut body).await, Some(Err(Cut::Stalled(Stalled))));
        let (sender, _body) = events();
        assert!(sender.send(b"a word before it".to_vec()));
        assert!(sender.send(vec![b'x'; MAX_EVENT_BYTES + 1]), "a large answer always fits");
        assert!(!sender.send(b"y".to_vec()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_goes_away_is_noticed() {
        let (sender, body) = events();
        drop(body);
        assert!(sender.gone().is_cancelled() && !sender.send(b"a".to_vec()));
    }
}
