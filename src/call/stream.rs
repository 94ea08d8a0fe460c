//! A body that is still arriving while its call has an answer already: what reads it, and who hears how it ended.
//!
//! Layers that settle at the end of a call wait for the end of its body. Dropped early = whoever read it went away:
//! nobody is told, and what was held is given back.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;

use super::ended::{Came, Ended, ended};
use super::outcome::{CallError, Failed, Outcome, ToolResult};

/// Where the bytes of a body come from, piece by piece; it is asked only when somebody wants more.
pub trait ByteSource<E>: Send {
    /// `None` at the end; after it, or after an error, it is not asked again.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, E>>>;
    /// Bytes still to come, where that is known.
    fn left(&self) -> Option<u64>;
}

/// The body of an answer.
pub type AnswerBytes = Box<dyn ByteSource<Failed>>;
/// Hears how the call ended, and how many bytes had been read.
type Hear = Box<dyn FnOnce(&Ended, u64) + Send>;

/// The body of an answer, read once, by whoever takes it.
pub struct Stream {
    source: AnswerBytes,
    hear: Vec<Hear>,
    /// Kept until the end, for its drop.
    held: Vec<Box<dyn Send>>,
    read: u64,
    over: bool,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("read", &self.read).finish_non_exhaustive()
    }
}

impl Stream {
    /// The next bytes. The end, or what broke it off, is told to all that listen before it is told here.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Failed>>> {
        if self.over {
            return Poll::Ready(None);
        }
        let polled = self.source.poll_next(cx);
        match &polled {
            Poll::Pending => {}
            Poll::Ready(Some(Ok(bytes))) => {
                self.read += bytes.len() as u64;
                // All of it: nobody has to ask once more to know.
                if self.source.left() == Some(0) {
                    self.ended(&Ok(Came::Answer));
                }
            }
            Poll::Ready(None) => self.ended(&Ok(Came::Answer)),
            Poll::Ready(Some(Err(failed))) => self.ended(&Err(failed.clone().into())),
        }
        polled
    }

    /// Keeps `thing` until the body has ended or nobody reads it any more.
    pub fn hold(&mut self, thing: impl Send + 'static) {
        if !self.over {
            self.held.push(Box::new(thing));
        }
    }

    /// Bytes still to come, where that is known.
    pub fn left(&self) -> Option<u64> {
        if self.over { Some(0) } else { self.source.left() }
    }

    fn ended(&mut self, how: &Ended) {
        self.over = true;
        for hear in self.hear.drain(..) {
            hear(how, self.read);
        }
        self.held.clear();
    }
}

/// The stream of a result on its way up: layers add to it, the front end takes it.
#[derive(Debug, Clone)]
pub struct Arriving(Arc<Mutex<Option<Stream>>>);

impl Arriving {
    pub fn new(source: AnswerBytes) -> Self {
        let stream = Stream { source, hear: Vec::new(), held: Vec::new(), read: 0, over: false };
        Self(Arc::new(Mutex::new(Some(stream))))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Stream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the one who reads it; `None` = taken before.
    pub fn take(&self) -> Option<Stream> {
        self.lock().take()
    }

    /// Puts something between the source and its reader.
    pub fn wrap(&self, wrapped: impl FnOnce(AnswerBytes) -> AnswerBytes) {
        let mut slot = self.lock();
        if let Some(stream) = slot.take() {
            *slot = Some(Stream { source: wrapped(stream.source), ..stream });
        }
    }

    /// Keeps `thing` until the body has ended or nobody reads it any more.
    pub fn hold(&self, thing: impl Send + 'static) {
        if let Some(stream) = self.lock().as_mut() {
            stream.hold(thing);
        }
    }

    fn hear(&self, hear: Hear) {
        if let Some(stream) = self.lock().as_mut() {
            stream.hear.push(hear);
        }
    }
}

/// The body of a result that is still arriving.
pub fn arriving(outcome: &Outcome) -> Option<&Arriving> {
    outcome.as_ref().ok().and_then(ToolResult::arriving)
}

/// Tells `hear` how a call ended: now, or at the end of a body that is still arriving, innermost layer first.
pub fn at_end(outcome: &Outcome, hear: impl FnOnce(&Ended, u64) + Send + 'static) {
    match arriving(outcome) {
        Some(arriving) => arriving.hear(Box::new(hear)),
        None => hear(&ended(outcome), 0),
    }
}

/// An end as the outcome that it would have been.
pub fn outcome_of(ended: &Ended, result: &ToolResult) -> Outcome {
    match ended {
        Ok(Came::Answer | Came::Question) => Ok(result.clone()),
        Err(error) => Err(CallError::clone(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{Content, Form, Head, Notes, Source};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::Waker;

    struct Pieces(Vec<Result<Bytes, Failed>>, Option<u64>);

    impl ByteSource<Failed> for Pieces {
        fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, Failed>>> {
            let next = if self.0.is_empty() { None } else { Some(self.0.remove(0)) };
            if let (Some(Ok(bytes)), Some(left)) = (&next, &mut self.1) {
                *left -= bytes.len() as u64;
            }
            Poll::Ready(next)
        }
        fn left(&self) -> Option<u64> {
            self.1
        }
    }

    fn streamed(pieces: Pieces) -> (Outcome, Arriving) {
        let arriving = Arriving::new(Box::new(pieces));
        let head =
            Head { status: 200, headers: http::HeaderMap::new(), arriving: Some(arriving.clone()) };
        let content = Content { bytes: Bytes::new(), form: Form::Text };
        let (source, notes) = (Source::Tool, Notes::default());
        (Ok(ToolResult { head: Some(head), content, source, notes }), arriving)
    }

    fn read(stream: &mut Stream) -> Option<Result<Bytes, Failed>> {
        match stream.poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(next) => next,
            Poll::Pending => unreachable!("always ready"),
        }
    }

    #[test]
    fn whoever_listens_hears_the_end_once_and_the_inner_layer_first() {
        let pieces = vec![Ok(Bytes::from_static(b"ab")), Ok(Bytes::from_static(b"c"))];
        let (outcome, arriving) = streamed(Pieces(pieces, None));
        let heard = Arc::new(Mutex::new(Vec::new()));
        for name in ["inner", "outer"] {
            let heard = heard.clone();
            at_end(&outcome, move |ended, read| {
                heard.lock().expect("sound").push((name, ended.is_ok(), read));
            });
        }
        let mut stream = arriving.take().expect("first");
        assert!(arriving.take().is_none());
        assert!(read(&mut stream).is_some() && read(&mut stream).is_some());
        assert!(heard.lock().expect("sound").is_empty());
        assert!(read(&mut stream).is_none() && read(&mut stream).is_none());
        assert_eq!(*heard.lock().expect("sound"), [("inner", true, 3), ("outer", true, 3)]);
    }

    #[test]
    fn a_body_of_known_length_has_ended_with_its_last_byte() {
        let pieces = vec![Ok(Bytes::from_static(b"ab"))];
        let (outcome, arriving) = streamed(Pieces(pieces, Some(2)));
        let told = Arc::new(AtomicU64::new(0));
        let hears = told.clone();
        at_end(&outcome, move |_, read| hears.store(read, Ordering::Relaxed));
        let mut stream = arriving.take().expect("first");
        assert!(read(&mut stream).is_some());
        assert_eq!(told.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_reader_that_goes_away_tells_nobody_and_gives_back_what_was_held() {
        let (outcome, arriving) = streamed(Pieces(vec![Ok(Bytes::from_static(b"ab"))], None));
        at_end(&outcome, |_, _| unreachable!("nobody is told"));
        let place = Arc::new(());
        arriving.hold(place.clone());
        drop(arriving.take());
        assert_eq!(Arc::strong_count(&place), 1);
    }
}
