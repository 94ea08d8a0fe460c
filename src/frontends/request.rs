//! What a request says beside its call: its body, read with a limit, and the `Checkrein-*` fields of its head.
//! A field that is malformed, or stands twice where one can count, refuses the request; nothing is guessed.

use std::fmt;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName};
use http_body_util::BodyExt;
use hyper::body::Body;

use super::render::Problem;
use crate::call::{CallId, CallerKey, RunId};

pub(super) const RUN: HeaderName = HeaderName::from_static("checkrein-run");
pub(super) const CALL_ID: HeaderName = HeaderName::from_static("checkrein-call-id");
const TIMEOUT_MS: HeaderName = HeaderName::from_static("checkrein-timeout-ms");
const UNFINISHED: HeaderName = HeaderName::from_static("checkrein-unfinished");
/// How all fields of ours begin.
const OURS: &str = "checkrein-";
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// How long a body may take to arrive, all of it.
const BODY_TIME: Duration = Duration::from_secs(30);
/// Longest time an agent can ask for; it only ever shortens, so more means nothing.
pub(super) const TIMEOUT_MOST: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Most bytes of bodies held at once, over all requests: what arrives, and what waits for its answer. Connections
/// are many, and each may bring a whole body.
const BODIES: usize = 64 << 20;

/// Where bodies are held; all front ends of a process share one.
#[derive(Debug, Clone, Default)]
pub(super) struct Room(Arc<AtomicUsize>);

/// One body's part of the room, given back when it is dropped.
#[derive(Debug)]
struct Place {
    room: Room,
    bytes: usize,
}

impl Place {
    /// Takes `more` bytes, unless the room is full. A lone body always fits, however large the policy lets it be.
    fn grow(&mut self, more: usize, limit: usize) -> bool {
        let most = BODIES.max(limit);
        let fits = |held: usize| held.checked_add(more).filter(|held| *held <= most);
        let grown = self.room.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).is_ok();
        if grown {
            self.bytes += more;
        }
        grown
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.room.0.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// A body, read whole. It holds its part of the room until the request is answered.
#[derive(Debug)]
pub(super) struct Sent {
    bytes: Bytes,
    /// `None`: there was no body.
    _place: Option<Place>,
}

impl std::ops::Deref for Sent {
    type Target = Bytes;
    fn deref(&self) -> &Bytes {
        &self.bytes
    }
}

/// The fields of a head that are about a call.
#[derive(Debug, Default)]
pub(super) struct Head {
    pub(super) run: Option<RunId>,
    pub(super) call_id: Option<CallId>,
    pub(super) timeout: Option<Duration>,
    pub(super) unfinished: bool,
    pub(super) caller_key: Option<CallerKey>,
}

impl Head {
    pub(super) fn read(headers: &HeaderMap) -> Result<Self, Problem> {
        // Most requests say nothing beside their call: one look at all names is less than a search for each of ours.
        let ours = |name: &HeaderName| name.as_str().starts_with(OURS) || *name == IDEMPOTENCY_KEY;
        if !headers.keys().any(ours) {
            return Ok(Self::default());
        }
        Ok(Self {
            run: one(headers, &RUN)?
                .map(|text| RunId::new(text).map_err(|bad| malformed(&RUN, &bad)))
                .transpose()?,
            call_id: one(headers, &CALL_ID)?
                .map(|text| CallId::new(text).map_err(|bad| malformed(&CALL_ID, &bad)))
                .transpose()?,
            timeout: one(headers, &TIMEOUT_MS)?.map(milliseconds).transpose()?,
            unfinished: match one(headers, &UNFINISHED)? {
                None | Some("false") => false,
                Some("true") => true,
                Some(_) => return Err(malformed(&UNFINISHED, &"must be `true` or `false`")),
            },
            caller_key: one(headers, &IDEMPOTENCY_KEY)?.map(caller_key).transpose()?,
        })
    }

    /// The run a request names, where it names one soundly: what its answer echoes even when it is refused.
    pub(super) fn run_shown(headers: &HeaderMap) -> Option<RunId> {
        one(headers, &RUN).ok().flatten().and_then(|text| RunId::new(text).ok())
    }
}

fn malformed(name: &HeaderName, why: &dyn fmt::Display) -> Problem {
    Problem::invalid(format!("the field `{name}` is malformed: {why}"))
}

/// The field's one value. Absent = `None`; twice, or not visible ASCII = refused.
fn one<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, Problem> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(malformed(name, &"it stands more than once"));
    }
    first.to_str().map(Some).map_err(|_| malformed(name, &"must be visible ASCII characters"))
}

fn milliseconds(text: &str) -> Result<Duration, Problem> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse::<u64>() {
        Ok(ms) if digits && ms > 0 => Ok(Duration::from_millis(ms).min(TIMEOUT_MOST)),
        Ok(_) | Err(_) => {
            Err(malformed(&TIMEOUT_MS, &"must be a whole number of milliseconds, 1 or more"))
        }
    }
}

/// The key as it stands, or as the string that the field's draft makes it (draft-ietf-httpapi-idempotency-key-header,
/// RFC 8941 §3.3.3). `"k"` and `k` are the same key.
fn caller_key(text: &str) -> Result<CallerKey, Problem> {
    let key = match text.strip_prefix('"') {
        None => Some(text.to_owned()),
        Some(rest) => unquote(rest),
    };
    let key = key.ok_or_else(|| malformed(&IDEMPOTENCY_KEY, &"its quotes do not match"))?;
    CallerKey::new(&key).map_err(|bad| malformed(&IDEMPOTENCY_KEY, &bad))
}

/// The rest of a quoted string, its closing quote last.
fn unquote(rest: &str) -> Option<String> {
    let mut key = String::with_capacity(rest.len());
    let mut chars = rest.chars();
    loop {
        match chars.next()? {
            '"' => return chars.as_str().trim_end().is_empty().then_some(key),
            '\\' => match chars.next()? {
                escaped @ ('"' | '\\') => key.push(escaped),
                _ => return None,
            },
            other => key.push(other),
        }
    }
}

/// Reads a JSON body of at most `limit` bytes, into the room that is left. A longer one is refused before it is read whole: by its announced
/// length, else at the first byte too many. A request without any body needs no media type.
pub(super) async fn read_json<B>(
    headers: &HeaderMap,
    body: B,
    limit: usize,
    room: &Room,
) -> Result<Sent, Problem>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: fmt::Display,
{
    if body.is_end_stream() && !headers.contains_key(CONTENT_TYPE) {
        return Ok(Sent { bytes: Bytes::new(), _place: None });
    }
    if !is_json(headers) {
        return Err(Problem::media_type(
            "the body must be `Content-Type: application/json` in UTF-8",
        ));
    }
    if headers
        .get_all(CONTENT_ENCODING)
        .iter()
        .any(|v| !v.as_bytes().eq_ignore_ascii_case(b"identity"))
    {
        return Err(Problem::media_type("the body must be sent without Content-Encoding"));
    }
    let announced = headers
        .get(CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok())
        .and_then(|t| t.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(Problem::too_large(limit));
    }
    read_bytes(body, limit, room).await
}

/// Reads any body of at most `limit` bytes, into the room that is left, within the time that a body may take.
pub(super) async fn read_bytes<B>(body: B, limit: usize, room: &Room) -> Result<Sent, Problem>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: fmt::Display,
{
    let mut read = pin!(collect(body, limit, room));
    // Most bodies came with their head.
    if let Poll::Ready(read) = poll_fn(|cx| Poll::Ready(read.as_mut().poll(cx))).await {
        return read;
    }
    match tokio::time::timeout(BODY_TIME, read).await {
        Ok(read) => read,
        Err(_) => Err(Problem::too_slow(BODY_TIME)),
    }
}

async fn collect<B>(body: B, limit: usize, room: &Room) -> Result<Sent, Problem>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: fmt::Display,
{
    let mut body = pin!(body);
    let (mut first, mut whole) = (Bytes::new(), BytesMut::new());
    let mut place = Place { room: room.clone(), bytes: 0 };
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| Problem::invalid(format!("the body broke off: {error}")))?;
        // Trailers say nothing here.
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + whole.len() + data.len() > limit {
            return Err(Problem::too_large(limit));
        }
        if !place.grow(data.len(), limit) {
            return Err(Problem::no_room());
        }
        if first.is_empty() && whole.is_empty() {
            first = data;
            continue;
        }
        if whole.is_empty() {
            whole.extend_from_slice(&std::mem::take(&mut first));
        }
        whole.extend_from_slice(&data);
    }
    let bytes = if whole.is_empty() { first } else { whole.freeze() };
    Ok(Sent { bytes, _place: Some(place) })
}

/// `application/json`, with no parameter but `charset=utf-8` (RFC 8259 §11 defines none; that one is common).
fn is_json(headers: &HeaderMap) -> bool {
    let Ok(Some(text)) = one(headers, &CONTENT_TYPE) else { return false };
    let mut parts = text.split(';').map(str::trim);
    parts.next().is_some_and(|essence| essence.eq_ignore_ascii_case("application/json"))
        && parts.all(|parameter| {
            parameter.is_empty()
                || parameter.split_once('=').is_some_and(|(name, value)| {
                    name.eq_ignore_ascii_case("charset")
                        && value.trim_matches('"').eq_ignore_ascii_case("utf-8")
                })
        })
}

#[cfg(test)]
mod tests;
