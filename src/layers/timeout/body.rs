//! The rest of an attempt whose answer goes to the agent as it comes: the same limits, until its last byte.
//!
//! The idle clock runs only while the tool owes bytes: a client that reads slowly is no silence of the tool's. The total
//! runs always.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::time::{Instant, Sleep};

use super::attempt::Begun;
use super::{TimeoutLayer, failure, of_body, outer_limit};
use crate::call::{AnswerBytes, ByteSource, Failed, Phase, TimedOutBy, ToolCall, ToolResult};

/// A body under the limits of its attempt.
struct Limited {
    source: AnswerBytes,
    with: Arc<TimeoutLayer>,
    call: ToolCall,
    outer: (Instant, TimedOutBy),
    timer: Pin<Box<Sleep>>,
    /// Since when the tool owes the next bytes.
    waiting: Option<Instant>,
    /// The account of the attempt, closed at its end; dropped open, it counts as left.
    begun: Option<(Begun, ToolResult)>,
}

/// Puts the limits around what is still arriving of `result`.
pub(super) fn limited(with: &Arc<TimeoutLayer>, begun: Begun, result: &ToolResult) {
    let Some(arriving) = result.arriving() else { return };
    // Its place is held by the gate above, its body by who reads it.
    let head = result.head.as_ref().map(|head| crate::call::Head {
        status: head.status,
        headers: http::HeaderMap::new(),
        arriving: None,
    });
    let told = ToolResult { head, ..result.clone() };
    let call = begun.call().clone();
    let outer = outer_limit(&call);
    #[expect(clippy::disallowed_methods, reason = "the one timer of an attempt goes on")]
    let timer = Box::pin(tokio::time::sleep_until(outer.0));
    arriving.wrap(|source| {
        let (with, waiting) = (with.clone(), None);
        Box::new(Limited { source, with, call, outer, timer, waiting, begun: Some((begun, told)) })
    });
}

impl Limited {
    fn close(&mut self, ended: Result<(), &Failed>) {
        if let Some((begun, told)) = self.begun.take() {
            begun.progress().mark(Phase::Ended);
            begun.end(&ended.map(|()| told).map_err(Failed::clone));
        }
    }

    /// The limit that fires first from here, and its name.
    fn next_limit(&self, since: Instant) -> (Instant, TimedOutBy) {
        let started = self.begun.as_ref().map_or(since, |(begun, _)| begun.progress().started());
        of_body(&self.with.limits, (started, since), self.outer)
    }

    fn expired(&mut self, by: TimedOutBy) -> Failed {
        let Some((begun, _)) = &self.begun else { return Failed::internal("a body without end") };
        let progress = begun.progress();
        let health = self.with.health(&self.call, progress, by);
        let left = self.call.deadline.saturating_duration_since(progress.started());
        failure(progress, by, &self.with.limit(by, left), true, health)
    }
}

impl ByteSource<Failed> for Limited {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Failed>>> {
        let polled = self.source.poll_next(cx);
        match &polled {
            Poll::Ready(Some(Ok(_))) => {
                self.waiting = None;
                if self.source.left() == Some(0) {
                    self.close(Ok(()));
                    return polled;
                }
                // Bytes that never cease do not extend the total.
                let (at, by) = self.next_limit(Instant::now());
                if at > Instant::now() || by == TimedOutBy::Idle {
                    return polled;
                }
                let failed = self.expired(by);
                self.close(Err(&failed));
                Poll::Ready(Some(Err(failed)))
            }
            Poll::Ready(None) => {
                self.close(Ok(()));
                polled
            }
            Poll::Ready(Some(Err(failed))) => {
                let failed = failed.clone();
                self.close(Err(&failed));
                polled
            }
            Poll::Pending => {
                let since = *self.waiting.get_or_insert_with(Instant::now);
                let (at, by) = self.next_limit(since);
                if self.timer.deadline() != at {
                    self.timer.as_mut().reset(at);
                }
                if self.timer.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                let failed = self.expired(by);
                self.close(Err(&failed));
                Poll::Ready(Some(Err(failed)))
            }
        }
    }

    fn left(&self) -> Option<u64> {
        self.source.left()
    }
}
