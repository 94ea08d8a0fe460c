//! The answer to one POST: one JSON message, or a stream of events in which ours is found by its id. A stream that
//! breaks off is gone on with where it names its events; nothing is ever sent again for it.

use std::borrow::Cow;
use std::time::Duration;

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use tokio::sync::Semaphore;

use super::HttpLink;
use super::session::Generation;
use crate::backends::body::{self, BodyEnd};
use crate::backends::classify;
use crate::backends::mcp::link::{Inbound, Lost, Reply};
use crate::backends::room::Place;
use crate::egress::{Answer, AnswerBody};
use crate::mcp::jsonrpc::{self, Id, METHOD_NOT_FOUND, Message};
use crate::mcp::sse::Decoder;
use crate::strict_json::{Limits, MAX_DEPTH, shallow};
use crate::telemetry::record::wall_clock;
use std::sync::Arc;

/// Of an answer that is no success this much is read, for its text.
const MAX_ERROR_BODY: usize = 64 * 1024;
/// Longest event that is not an answer, bytes; over all exchanges there is the room of `backends::room`.
pub(super) const MAX_EVENT: usize = 16 * 1024 * 1024;
/// Requests of a server that one exchange has open at once; more are not answered.
const MAX_ASKED: usize = 16;
/// Events of one piece of a stream that are handed on in a row: far fewer than may wait for an agent.
const IN_A_ROW: usize = 16;
/// How often a stream that broke off is gone on with while nothing comes of it.
const MAX_RESUMES: u32 = 5;
/// Before that, where the server names no time of its own.
const RESUME_AFTER: Duration = Duration::from_millis(500);
/// Longest wait that a server may name.
const MAX_RETRY: Duration = Duration::from_secs(30);
/// Why a stream is read no further, that is not the server's doing.
const NO_ROOM: &str = "it brought a message for which there was no room";
/// After our answer, so much of a stream is read to keep its connection, for so long.
const MAX_REST: usize = 64 * 1024;
const REST: Duration = Duration::from_secs(1);

/// What the answer is read against.
pub(super) struct Expected<'a> {
    pub(super) id: Id,
    pub(super) generation: &'a Arc<Generation>,
    pub(super) inbound: &'a Arc<dyn Inbound>,
    pub(super) modern: bool,
    /// A list is asked for: what is nested too deep in it costs itself alone.
    pub(super) list: bool,
    pub(super) resumable: bool,
    /// The request named a session of ours.
    pub(super) in_session: bool,
}

impl Expected<'_> {
    fn readable<'b>(&self, bytes: &'b [u8]) -> Cow<'b, [u8]> {
        if self.list { shallow(bytes, MAX_DEPTH) } else { Cow::Borrowed(bytes) }
    }
}

/// What kind of body a head announces.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Media {
    Json,
    Stream,
    Other(String),
}

pub(super) fn media(headers: &HeaderMap) -> Media {
    let text = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let text = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match text.as_str() {
        "application/json" => Media::Json,
        "text/event-stream" => Media::Stream,
        _ => Media::Other(text.chars().take(80).collect()),
    }
}

impl HttpLink {
    /// Reads until our answer is there, or cannot come any more.
    pub(super) async fn read(
        &self,
        answer: Answer,
        expected: &Expected<'_>,
    ) -> Result<Reply, Lost> {
        let Answer { head, body } = answer;
        let status = head.status.as_u16();
        match classify::kind(status) {
            classify::Kind::Success => {}
            classify::Kind::Redirect | classify::Kind::Failure => {
                return Box::pin(self.refused(status, &head.headers, body, expected)).await;
            }
        }
        match media(&head.headers) {
            Media::Json => self.whole(&head.headers, body, expected).await,
            Media::Stream if head.headers.contains_key(http::header::CONTENT_ENCODING) => Err(
                Lost::NotMcp("an event stream in a content coding that was not asked for".into()),
            ),
            Media::Stream => Box::pin(self.stream(body, expected)).await,
            Media::Other(media) => {
                let got = if media.is_empty() { "no content type" } else { media.as_str() };
                Err(Lost::NotMcp(format!(
                    "HTTP status {status} with {got}, where JSON or an event stream was due"
                )))
            }
        }
    }

    async fn whole(
        &self,
        headers: &HeaderMap,
        body: AnswerBody,
        expected: &Expected<'_>,
    ) -> Result<Reply, Lost> {
        let limit = self.door().response_bytes();
        let bytes = match body::read(body, headers, limit).await {
            BodyEnd::Whole(bytes) => self.door().blots().over(bytes),
            BodyEnd::TooLarge => return Err(Lost::TooLarge(limit)),
            BodyEnd::Cut(why) => return Err(Lost::StreamEnded(why)),
            BodyEnd::Coded(name) => {
                return Err(Lost::NotMcp(format!("the content coding `{name}` was not asked for")));
            }
        };
        match self.message(&expected.readable(&bytes), expected.list)? {
            Message::Response(response) if response.id == expected.id => {
                Ok(Reply::Result(response.result))
            }
            Message::Error(error) if error.id.as_ref().is_none_or(|id| *id == expected.id) => {
                Ok(Reply::Error(error))
            }
            Message::Response(_)
            | Message::Error(_)
            | Message::Request(_)
            | Message::Notification(_) => {
                Err(Lost::NotMcp("the answer is not to this request".into()))
            }
        }
    }

    /// A status that is no success. Where its body is an answer to this very request, it is that.
    async fn refused(
        &self,
        status: u16,
        headers: &HeaderMap,
        body: AnswerBody,
        expected: &Expected<'_>,
    ) -> Result<Reply, Lost> {
        let limit = self.door().response_bytes().min(MAX_ERROR_BODY);
        let bytes = match body::read(body, headers, limit).await {
            BodyEnd::Whole(bytes) => self.door().blots().over(bytes),
            BodyEnd::TooLarge | BodyEnd::Cut(_) | BodyEnd::Coded(_) => bytes::Bytes::new(),
        };
        let error = match jsonrpc::parse(&bytes, Limits::answer(limit)) {
            Ok(Message::Error(error)) => Some(error),
            Ok(Message::Request(_) | Message::Notification(_) | Message::Response(_)) | Err(_) => {
                None
            }
        };
        if matches!(status, 400 | 404)
            && let Some(error) = &error
        {
            // Some servers repeat the request's id in what says that its session is over; a fault of the message itself
            // has a code of its own.
            let of_message = matches!(
                error.code,
                METHOD_NOT_FOUND | jsonrpc::INVALID_PARAMS | jsonrpc::INTERNAL_ERROR
            );
            let ours =
                error.id.as_ref() == Some(&expected.id) && (of_message || !expected.in_session);
            let modern = expected.modern
                && (jsonrpc::is_modern_code(error.code)
                    || (status == 404 && error.code == METHOD_NOT_FOUND)
                    || error.code == jsonrpc::INVALID_PARAMS);
            if ours || modern {
                if status == 404 && error.code == jsonrpc::INTERNAL_ERROR {
                    // It may have been the session all the same.
                    self.lost_session(expected.generation);
                }
                return Ok(Reply::Error(error.clone()));
            }
        }
        if matches!(status, 400 | 404) && expected.in_session {
            self.lost_session(expected.generation);
            return Err(Lost::SessionGone(status));
        }
        let text = match error {
            Some(error) if !error.message.is_empty() => error.message,
            Some(_) | None => String::from_utf8_lossy(&bytes).into_owned(),
        };
        let retry_after = classify::retry_after(headers, wall_clock());
        Err(Lost::Status { status, retry_after, text })
    }

    async fn stream(&self, mut body: AnswerBody, expected: &Expected<'_>) -> Result<Reply, Lost> {
        let answer = self.door().response_bytes();
        let limit = answer.max(MAX_EVENT);
        let asked = Arc::new(Semaphore::new(MAX_ASKED));
        let mut decoder = Decoder::new(limit);
        let mut place = Place::default();
        let mut resumes = 0;
        loop {
            match body.next().await {
                Some(Ok(piece)) => {
                    // An event that is longer than an answer may be is somebody else's, who can do without.
                    place.wait(decoder.held() + piece.len(), answer).await;
                    if !place.try_more(decoder.held(), limit) {
                        return Err(Lost::StreamEnded(NO_ROOM.to_owned()));
                    }
                    let events =
                        decoder.push(&piece).map_err(|long| Lost::NotMcp(long.to_string()))?;
                    let whole = !events.is_empty();
                    for (at, event) in events.into_iter().enumerate() {
                        resumes = 0;
                        if at % IN_A_ROW == IN_A_ROW - 1 {
                            // Whoever takes them to the agent gets its turn.
                            tokio::task::yield_now().await;
                        }
                        if event.data.is_empty() || event.name != "message" {
                            continue;
                        }
                        if let Some(reply) = self.event(event.data, expected, &asked)? {
                            self.keep_connection(body);
                            return Ok(reply);
                        }
                    }
                    if whole {
                        place.leave();
                    }
                }
                ended => {
                    // Not broken off: the server ended it, and has said when to come again.
                    let wished = ended.is_none();
                    let why = match ended {
                        Some(Err(why)) => why,
                        Some(Ok(_)) | None => "the stream ended before its answer".to_owned(),
                    };
                    let last = decoder.last_event_id().to_owned();
                    if !expected.resumable || last.is_empty() || resumes >= MAX_RESUMES {
                        return Err(Lost::StreamEnded(why));
                    }
                    resumes += 1;
                    let wait = decoder.retry_ms().map(Duration::from_millis);
                    if let Some(wait) = wait.filter(|_| wished) {
                        expected.inbound.let_go(wait.min(MAX_RETRY));
                    }
                    let wait = wait.unwrap_or(RESUME_AFTER).min(MAX_RETRY);
                    body = self.resume(&last, wait, expected, why).await?;
                }
            }
        }
    }

    /// A message of the stream; `Some` = our answer.
    fn event(
        &self,
        data: Vec<u8>,
        expected: &Expected<'_>,
        asked: &Arc<Semaphore>,
    ) -> Result<Option<Reply>, Lost> {
        let bytes = self.door().blots().over(data.into());
        let limit = self.door().response_bytes();
        match self.message(&expected.readable(&bytes), expected.list)? {
            Message::Response(response) if response.id == expected.id => {
                if bytes.len() > limit {
                    return Err(Lost::TooLarge(limit));
                }
                return Ok(Some(Reply::Result(response.result)));
            }
            Message::Error(error) if error.id.as_ref().is_none_or(|id| *id == expected.id) => {
                return Ok(Some(Reply::Error(error)));
            }
            Message::Response(_) | Message::Error(_) => self.dropped("unknown_id"),
            Message::Notification(notification) => expected.inbound.notification(notification),
            Message::Request(request) => match asked.clone().try_acquire_owned() {
                Ok(place) => self.answer(request, expected.inbound, expected.generation, place),
                Err(_) => self.dropped("too_many_requests"),
            },
        }
        Ok(None)
    }

    pub(super) fn message(&self, bytes: &[u8], list: bool) -> Result<Message, Lost> {
        let limits = if list { Limits::list(bytes.len()) } else { Limits::answer(bytes.len()) };
        jsonrpc::parse(bytes, limits).map_err(|fault| {
            let start: String = String::from_utf8_lossy(bytes).chars().take(80).collect();
            Lost::NotMcp(format!("no MCP message ({fault}); it begins with: {start}"))
        })
    }

    /// The stream goes on where it broke off. This sends nothing again.
    async fn resume(
        &self,
        last: &str,
        wait: Duration,
        expected: &Expected<'_>,
        why: String,
    ) -> Result<AnswerBody, Lost> {
        #[expect(
            clippy::disallowed_methods,
            reason = "the server's own `retry`, within the attempt"
        )]
        tokio::time::sleep(wait).await;
        let says = expected.generation.says();
        match self.door().get(last, &says).await {
            Ok(answer)
                if classify::kind(answer.head.status.as_u16()) == classify::Kind::Success
                    && media(&answer.head.headers) == Media::Stream =>
            {
                Ok(answer.body)
            }
            Ok(_) | Err(_) => Err(Lost::StreamEnded(why)),
        }
    }

    /// Reads what little follows the answer, so that the connection can be used again.
    fn keep_connection(&self, mut body: AnswerBody) {
        self.door().beside(async move {
            let rest = async {
                let mut left = MAX_REST;
                while let Some(Ok(piece)) = body.next().await {
                    left = left.saturating_sub(piece.len());
                    if left == 0 {
                        return;
                    }
                }
            };
            if tokio::time::timeout(REST, rest).await.is_err() {
                tracing::trace!("a stream was left open after its answer; closed");
            }
        });
    }
}
