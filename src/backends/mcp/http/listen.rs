//! The stream that belongs to no request (GET, legacy revisions): what a server says when nobody has asked. Opened
//! again when it ends; a server without one is no fault.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::HttpLink;
use super::read::{MAX_EVENT, Media, media};
use super::session::Generation;
use crate::backends::classify;
use crate::backends::mcp::link::{Ends, Inbound, Lost};
use crate::backends::room::{FREE, Place};
use crate::egress::AnswerBody;
use crate::mcp::jsonrpc::Message;
use crate::mcp::sse::Decoder;

/// Between the end of a stream and the next one.
const AGAIN: Duration = Duration::from_secs(1);
/// Before a server that offers none is asked for one again in the same session.
const NOT_OFFERED: Duration = Duration::from_secs(300);
const AGAIN_AT_MOST: Duration = Duration::from_secs(30);
/// Requests of a server that are open at once on such a stream.
const MAX_ASKED: usize = 4;

impl HttpLink {
    /// Cancelled when the session that is open now is closed or lost.
    pub(in crate::backends::mcp) fn life(&self) -> Option<CancellationToken> {
        let generation = self.current();
        generation.opened.get().map(|_| generation.closed.clone())
    }

    /// Listens until the session is closed or lost, or the server says that it has no such stream. `gone` hears of
    /// every stream that ended: what it would have told may be missing.
    pub(in crate::backends::mcp) async fn listen(
        &self,
        inbound: Arc<dyn Inbound>,
        gone: impl Fn(Ends) + Send,
    ) {
        let generation = self.current();
        self.listen_to(&generation, inbound.clone(), &gone).await;
        if !generation.closed.is_cancelled() {
            inbound.listening();
            drop(tokio::time::timeout(NOT_OFFERED, generation.closed.cancelled()).await);
        }
        if generation.closed.is_cancelled() {
            // Another session has taken its place, and nobody listens on that yet.
            gone(Ends::Lost);
        }
    }

    async fn listen_to(
        &self,
        generation: &Arc<Generation>,
        inbound: Arc<dyn Inbound>,
        gone: &(impl Fn(Ends) + Send),
    ) {
        if generation.opened.get().is_none_or(|opened| !opened.met.revision.features().get_stream) {
            return;
        }
        let mut last = String::new();
        let mut wait = AGAIN;
        loop {
            let ended = tokio::select! {
                () = generation.closed.cancelled() => return,
                ended = self.one_stream(generation, &inbound, &mut last) => ended,
            };
            match ended {
                Ok(Some(retry)) => wait = retry.clamp(AGAIN, AGAIN_AT_MOST),
                Ok(None) => return,
                Err(_) => wait = (wait * 2).min(AGAIN_AT_MOST),
            }
            gone(if last.is_empty() { Ends::Lost } else { Ends::Resumable });
            #[expect(
                clippy::disallowed_methods,
                reason = "back-off of a stream that no call waits for"
            )]
            let pause = tokio::time::sleep(wait);
            tokio::select! {
                () = generation.closed.cancelled() => return,
                () = pause => {}
            }
        }
    }

    /// `Ok(None)`: the server offers none, or knows the session no more. `Ok(Some)`: when to come again.
    async fn one_stream(
        &self,
        generation: &Arc<Generation>,
        inbound: &Arc<dyn Inbound>,
        last: &mut String,
    ) -> Result<Option<Duration>, Lost> {
        let answer = self.door().get(last, &generation.says()).await?;
        let status = answer.head.status.as_u16();
        if status == 404 && generation.opened.get().is_some_and(|opened| opened.session.is_some()) {
            self.lost_session(generation);
            return Ok(None);
        }
        if classify::kind(status) != classify::Kind::Success {
            return match status {
                400..=499 => Ok(None),
                _ => Err(Lost::Status { status, retry_after: None, text: String::new() }),
            };
        }
        if media(&answer.head.headers) != Media::Stream {
            return Ok(None);
        }
        inbound.listening();
        let mut decoder = Decoder::new(MAX_EVENT);
        self.follow(answer.body, &mut decoder, generation, inbound).await;
        if !decoder.last_event_id().is_empty() {
            decoder.last_event_id().clone_into(last);
        }
        Ok(Some(decoder.retry_ms().map_or(AGAIN, Duration::from_millis)))
    }

    async fn follow(
        &self,
        mut body: AnswerBody,
        decoder: &mut Decoder,
        generation: &Arc<Generation>,
        inbound: &Arc<dyn Inbound>,
    ) {
        let asked = Arc::new(Semaphore::new(MAX_ASKED));
        let mut place = Place::default();
        while let Some(Some(Ok(piece))) = place.patiently(body.next()).await {
            // What is long and has to wait is read again when the stream is opened anew.
            if !place.try_more(decoder.held() + piece.len(), MAX_EVENT) {
                return;
            }
            let Ok(events) = decoder.push(&piece) else { return };
            if decoder.held() <= FREE {
                place.leave();
            }
            for event in events.into_iter().filter(|event| !event.data.is_empty()) {
                let bytes = self.door().blots().over(event.data.into());
                match self.message(&bytes, false) {
                    Ok(Message::Notification(notification)) => inbound.notification(notification),
                    Ok(Message::Request(request)) => match asked.clone().try_acquire_owned() {
                        Ok(place) => self.answer(request, inbound, generation, place),
                        Err(_) => self.dropped("too_many_requests"),
                    },
                    Ok(Message::Response(_) | Message::Error(_)) | Err(_) => {
                        self.dropped("unknown_id");
                    }
                }
            }
        }
    }
}
