//! Lines to HTTP and back: each message is one exchange with the gateway, several at once. A stream that breaks is gone
//! on with where it named its events. A session that the gateway no longer knows (it was restarted) is begun again, and
//! what met its end is asked once more: it was not run.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::client::{self, Client};
use crate::frontends::{Read, Writer};
use crate::mcp::headers::{LAST_EVENT_ID, PROTOCOL_VERSION, SESSION_ID, standard};
use crate::mcp::jsonrpc::{
    self, INTERNAL_ERROR, INVALID_REQUEST, Id, Message, Notification, Request, write_error,
};
use crate::mcp::meta;
use crate::mcp::sse::Decoder;
use crate::mcp::version::{Revision, is_modern};
use crate::strict_json::Limits;

/// Longest message taken from the gateway.
const MAX_MESSAGE: usize = 64 << 20;
/// Before a stream that broke is opened again, where the gateway names no time.
const AGAIN: Duration = Duration::from_secs(1);
/// How often a stream that broke is gone on with while nothing comes of it.
const MAX_RESUMES: u32 = 5;
/// Longest wait that is obeyed.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Bridges until the input ends and what was asked is answered, `patience` at most.
pub(super) fn run(
    place: client::Place,
    token: Option<String>,
    lines: mpsc::Receiver<Read>,
    writer: Writer,
    patience: Duration,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let bridge = Arc::new(Bridge {
        client: Client { place, token },
        writer,
        session: Mutex::default(),
        begins: tokio::sync::Mutex::default(),
        open: Mutex::default(),
        tasks: TaskTracker::new(),
        ended: CancellationToken::new(),
    });
    runtime.block_on(bridge.serve(lines, patience));
    runtime.shutdown_background();
    Ok(())
}

/// How far a stream was heard.
#[derive(Debug, Default)]
struct Place {
    /// The last event's name; empty = none was named.
    last: String,
    retry_ms: Option<u64>,
    /// Messages heard on the last connection.
    messages: usize,
}

impl Place {
    fn wait(&self) -> Duration {
        self.retry_ms.map_or(AGAIN, Duration::from_millis).min(MAX_WAIT)
    }
}

/// What is known of the agent's session with the gateway.
#[derive(Debug, Clone, Default)]
struct Session {
    id: Option<String>,
    version: Option<String>,
    /// How it was begun, to begin it again.
    initialize: Option<Bytes>,
}

#[derive(Debug)]
struct Bridge {
    client: Client,
    writer: Writer,
    session: Mutex<Session>,
    /// One at a time begins a session.
    begins: tokio::sync::Mutex<()>,
    /// Requests without a session: closing their exchange takes them back.
    open: Mutex<HashMap<Id, CancellationToken>>,
    tasks: TaskTracker,
    ended: CancellationToken,
}

impl Bridge {
    async fn serve(self: Arc<Self>, mut lines: mpsc::Receiver<Read>, patience: Duration) {
        let gone = self.writer.gone().clone();
        loop {
            let read = tokio::select! {
                () = gone.cancelled() => break,
                read = lines.recv() => read,
            };
            match read {
                Some(Read::Line(line)) => self.take(line.into()).await,
                Some(Read::TooLong) => self.refuse(None, INVALID_REQUEST, "the line is too long"),
                None => break,
            }
        }
        self.ended.cancel();
        self.tasks.close();
        let all = tokio::time::timeout(patience, self.tasks.wait());
        let waited = tokio::select! {
            () = gone.cancelled() => false,
            waited = all => waited.is_ok(),
        };
        tracing::debug!(waited, "the input has ended");
        let session = self.session().clone();
        if session.id.is_some() {
            let over = self.client.send("DELETE", &fields_of(&session), Bytes::new()).await;
            tracing::debug!(ended = over.is_ok(), "the session was ended");
        }
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Id, CancellationToken>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, message: &[u8]) {
        if !self.writer.send(message) {
            tracing::warn!("nobody reads the answers any more");
        }
    }

    fn refuse(&self, id: Option<&Id>, code: i64, why: &str) {
        self.say(&write_error(id, code, why, None));
    }

    async fn take(self: &Arc<Self>, line: Bytes) {
        match jsonrpc::parse(&line, Limits::list(line.len())) {
            Err(fault) => self.refuse(fault.id.as_ref(), fault.code, &fault.message),
            Ok(Message::Request(request)) if request.method == "initialize" => {
                self.initialize(&request, line).await;
            }
            Ok(Message::Request(request)) => {
                let (bridge, token) = (self.clone(), CancellationToken::new());
                let modern = modern_fields(&request).is_some();
                if modern {
                    self.open().insert(request.id.clone(), token.clone());
                }
                self.tasks.spawn(async move {
                    let listens = request.method == "subscriptions/listen";
                    tokio::select! {
                        () = bridge.asked(&request, line) => {}
                        () = token.cancelled() => {}
                        () = bridge.ended.cancelled(), if listens => {}
                    }
                    bridge.open().remove(&request.id);
                });
            }
            Ok(Message::Notification(note)) => self.noted(&note, line).await,
            Ok(Message::Response(_) | Message::Error(_)) => self.told(line).await,
        }
    }

    async fn noted(&self, note: &Notification, line: Bytes) {
        if note.method == "notifications/cancelled" {
            let id = note.params.as_ref().and_then(|params| Id::of(params.get("requestId")?));
            let token = id.and_then(|id| self.open().remove(&id));
            if let Some(token) = token {
                return token.cancel();
            }
        }
        self.told(line).await;
    }

    /// A message that has no answer.
    async fn told(&self, line: Bytes) {
        let fields = fields_of(&self.session());
        if let Err(why) = self.client.send("POST", &fields, line).await {
            tracing::warn!(why, "a message did not reach the gateway");
        }
    }

    async fn initialize(self: &Arc<Self>, request: &Request, line: Bytes) {
        let _one_at_a_time = self.begins.lock().await;
        match self.begin(&line).await {
            Ok((_, answer)) => self.pass(&request.id, &answer),
            Err(why) => self.refuse(Some(&request.id), INTERNAL_ERROR, &why),
        }
        if self.session().id.is_some() {
            self.tasks.spawn(self.clone().listen());
        }
    }

    /// Begins a session; the gateway's answer, whatever it is.
    async fn begin(&self, line: &Bytes) -> Result<(bool, Vec<u8>), String> {
        let response = self.client.send("POST", &[], line.clone()).await?;
        let id = text_of(response.headers(), SESSION_ID);
        let answer = whole(response).await?;
        let message = jsonrpc::parse(&answer, Limits::list(answer.len()));
        let version = match &message {
            Ok(Message::Response(response)) => response.result.get("protocolVersion"),
            Ok(Message::Request(_) | Message::Notification(_) | Message::Error(_)) | Err(_) => None,
        };
        let version = version.and_then(serde_json::Value::as_str).map(str::to_owned);
        let begun = id.is_some();
        *self.session() = Session { id, version, initialize: Some(line.clone()) };
        Ok((begun, answer))
    }

    /// The session `known` is over: a new one in its place, unless somebody has begun it already.
    async fn again(&self, known: &Session) -> Option<Session> {
        let _one_at_a_time = self.begins.lock().await;
        let now = self.session().clone();
        if now.id != known.id {
            return Some(now);
        }
        let (begun, _) = self.begin(known.initialize.as_ref()?).await.ok()?;
        if !begun {
            return None;
        }
        tracing::info!("the gateway had forgotten the session; a new one was begun");
        self.told(Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#))
            .await;
        Some(self.session().clone())
    }

    /// One request and all that comes of it.
    async fn asked(&self, request: &Request, line: Bytes) {
        let modern = modern_fields(request);
        let session = self.session().clone();
        let mut fields = modern.clone().unwrap_or_else(|| fields_of(&session));
        let sent = self.client.send("POST", &fields, line.clone()).await;
        let over = modern.is_none()
            && session.id.is_some()
            && sent.as_ref().is_ok_and(|response| response.status() == 404);
        let sent = match over {
            false => sent,
            // Nothing was run: the gateway looks for the session before it looks at the message.
            true => match self.again(&session).await {
                Some(session) => {
                    fields = fields_of(&session);
                    self.client.send("POST", &fields, line).await
                }
                None => sent,
            },
        };
        let came = match sent {
            Ok(response) => self.heard(&request.id, &fields, response).await,
            Err(why) => Err(why),
        };
        if let Err(why) = came {
            self.refuse(Some(&request.id), INTERNAL_ERROR, &why);
        }
    }

    /// Passes an answer on, message by message. `Err`: it ended without one.
    async fn heard(
        &self,
        id: &Id,
        fields: &[(&'static str, String)],
        response: Response<Incoming>,
    ) -> Result<(), String> {
        if response.status() == 202 {
            return Ok(()); // taken back: nothing is answered
        }
        if !is_stream(response.headers()) {
            let status = response.status();
            let answer = whole(response).await?;
            if answer.is_empty() {
                return Err(format!("the gateway answered {status} and nothing else"));
            }
            self.pass(id, &answer);
            return Ok(());
        }
        let (mut answered, mut place, mut resumes) = (false, Place::default(), 0);
        let mut next = Ok(response);
        loop {
            place.messages = 0;
            let ended = match next {
                Ok(response) => {
                    let seen = |message: &[u8]| answered |= is_answer_to(id, message);
                    self.stream(response, &mut place, seen).await
                }
                Err(why) => Err(why),
            };
            if answered {
                return Ok(());
            }
            let why = ended.err().unwrap_or_else(|| "the gateway's stream ended too early".into());
            resumes = if place.messages > 0 { 0 } else { resumes + 1 };
            if place.last.is_empty() || resumes > MAX_RESUMES {
                return Err(why);
            }
            // This asks for what was missed; the request is not sent again.
            pause(place.wait()).await;
            next = self.resumed(fields, &place).await;
            if next.as_ref().is_ok_and(|response| !is_stream(response.headers())) {
                return Err(why);
            }
        }
    }

    /// A stream where it broke off, or the session's own from its beginning.
    async fn resumed(
        &self,
        fields: &[(&'static str, String)],
        place: &Place,
    ) -> Result<Response<Incoming>, String> {
        let mut fields = fields.to_vec();
        if !place.last.is_empty() {
            fields.push((LAST_EVENT_ID, place.last.clone()));
        }
        self.client.send("GET", &fields, Bytes::new()).await
    }

    /// Passes on what comes, and keeps the place.
    async fn stream(
        &self,
        response: Response<Incoming>,
        place: &mut Place,
        mut seen: impl FnMut(&[u8]),
    ) -> Result<(), String> {
        let mut decoder = Decoder::new(MAX_MESSAGE);
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| format!("the gateway's stream broke: {error}"))?;
            let Ok(data) = frame.into_data() else { continue };
            let events = decoder.push(&data).map_err(|error| error.to_string())?;
            if !decoder.last_event_id().is_empty() {
                decoder.last_event_id().clone_into(&mut place.last);
            }
            place.retry_ms = decoder.retry_ms().or(place.retry_ms);
            // One without data only names itself.
            for event in events.into_iter().filter(|event| !event.data.is_empty()) {
                place.messages += 1;
                seen(&event.data);
                self.say(&one_line(event.data));
            }
        }
        Ok(())
    }

    /// An answer as it is; an error that names no request is this request's.
    fn pass(&self, id: &Id, answer: &[u8]) {
        match jsonrpc::parse(answer, Limits::list(answer.len())) {
            Ok(Message::Error(error)) if error.id.is_none() => {
                let data = error.data.as_ref();
                self.say(&write_error(Some(id), error.code, &error.message, data));
            }
            Ok(_) => self.say(&one_line(answer.to_vec())),
            Err(_) => self.refuse(Some(id), INTERNAL_ERROR, "what answers is no gateway of MCP"),
        }
    }

    /// The session's own stream, opened again whenever it breaks.
    async fn listen(self: Arc<Self>) {
        let (mut place, mut of) = (Place::default(), None);
        loop {
            let fields = fields_of(&self.session());
            let session = self.session().id.clone();
            if of != session {
                (place, of) = (Place::default(), session.clone());
            }
            let heard = async {
                match self.resumed(&fields, &place).await {
                    Ok(response) if is_stream(response.headers()) => {
                        let heard = self.stream(response, &mut place, |_| {}).await;
                        heard.is_ok() || !place.last.is_empty() || self.session().id != session
                    }
                    // What followed is kept no more: from the beginning.
                    Ok(response) if response.status() == 400 && !place.last.is_empty() => {
                        place.last.clear();
                        true
                    }
                    // Not offered, or the session is over: a later request begins it again.
                    Ok(response) => response.status() == 404,
                    Err(_) => true,
                }
            };
            let go_on = tokio::select! {
                () = self.ended.cancelled() => return,
                go_on = heard => go_on,
            };
            if !go_on {
                return;
            }
            tokio::select! {
                () = self.ended.cancelled() => return,
                () = pause(place.wait()) => {}
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a stream that broke is not opened again at once")]
async fn pause(wait: Duration) {
    tokio::time::sleep(wait).await;
}

/// The fields of a message of a session.
fn fields_of(session: &Session) -> Vec<(&'static str, String)> {
    let id = session.id.clone().map(|id| (SESSION_ID, id));
    let version = session.version.clone().map(|version| (PROTOCOL_VERSION, version));
    id.into_iter().chain(version).collect()
}

/// The fields of a request that says by itself who speaks; `None`: it is of a session.
fn modern_fields(request: &Request) -> Option<Vec<(&'static str, String)>> {
    let params = request.params.as_ref();
    let version = params?.get("_meta")?.get(meta::PROTOCOL_VERSION)?.as_str()?;
    let known = Revision::parse(version).unwrap_or(Revision::V2026_07_28);
    let mut fields = standard(known, &request.method, params);
    if let Some((_, value)) = fields.first_mut().filter(|_| is_modern(version)) {
        version.clone_into(value);
    }
    Some(fields)
}

fn text_of(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("text/event-stream"))
}

fn is_answer_to(id: &Id, message: &[u8]) -> bool {
    match jsonrpc::parse(message, Limits::list(message.len())) {
        Ok(Message::Response(response)) => response.id == *id,
        Ok(Message::Error(error)) => error.id.as_ref() == Some(id),
        Ok(Message::Request(_) | Message::Notification(_)) | Err(_) => false,
    }
}

/// A line end stands only between tokens of JSON, where a space means the same.
fn one_line(mut message: Vec<u8>) -> Vec<u8> {
    for byte in &mut message {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    message
}

async fn whole(response: Response<Incoming>) -> Result<Vec<u8>, String> {
    let (mut body, mut all) = (response.into_body(), Vec::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| format!("the gateway's answer broke off: {error}"))?;
        let Ok(data) = frame.into_data() else { continue };
        if all.len() + data.len() > MAX_MESSAGE {
            return Err(format!("the gateway's answer is longer than {MAX_MESSAGE} bytes"));
        }
        all.extend_from_slice(&data);
    }
    Ok(all)
}
