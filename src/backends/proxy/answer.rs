//! What comes back of a tool's answer: its fields without those of the hop, its body as it is.

use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, LOCATION, SET_COOKIE, TRANSFER_ENCODING,
};
use http::{HeaderMap, HeaderValue};

use super::blot::Blotter;
use crate::backends::classify;
use crate::backends::room::Place;
use crate::call::{ByteSource, Effect, Failed, Verdict};
use crate::egress::AnswerBody;
use crate::policy::snapshot::Upstream;
use crate::policy::template::hop_by_hop;

/// Tells a client to go round the gateway.
const ALT_SVC: HeaderName = HeaderName::from_static("alt-svc");
/// Fields that only the gateway says.
const OURS: &str = "checkrein-";

/// A body as far as it can be had without waiting.
pub(super) enum Now {
    /// All of it, in one piece.
    Whole(Bytes),
    /// The first piece, if there is one yet.
    Later(Option<Bytes>),
}

/// Small answers come with their head: those need no stream.
pub(super) async fn now(body: &mut AnswerBody) -> Result<Now, String> {
    let first = match poll_fn(|cx| Poll::Ready(body.poll_next(cx))).await {
        Poll::Pending => return Ok(Now::Later(None)),
        Poll::Ready(None) => return Ok(Now::Whole(Bytes::new())),
        Poll::Ready(Some(first)) => first?,
    };
    if body.is_over() {
        return Ok(Now::Whole(first));
    }
    if body.length_is_known() {
        return Ok(Now::Later(Some(first)));
    }
    // What ends a body of unknown length may be here too; what follows the first piece may not be dropped.
    match poll_fn(|cx| Poll::Ready(body.poll_next(cx))).await {
        Poll::Ready(None) => Ok(Now::Whole(first)),
        Poll::Ready(Some(Ok(second))) => {
            let mut both = BytesMut::with_capacity(first.len() + second.len());
            both.extend_from_slice(&first);
            both.extend_from_slice(&second);
            Ok(Now::Later(Some(both.freeze())))
        }
        Poll::Ready(Some(Err(why))) => Err(why),
        Poll::Pending => Ok(Now::Later(Some(first))),
    }
}

/// Whole, up to a bound; `None` = it has more. Nothing is decoded: the client asked for it as it is.
pub(super) async fn read(mut body: AnswerBody, limit: usize) -> Result<Option<Bytes>, String> {
    if body.expected() > limit as u64 {
        return Ok(None);
    }
    let most = body.at_most(limit);
    let mut place = Place::default();
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    while let Some(chunk) = body.next().await {
        let chunk = chunk?;
        if first.len() + whole.len() + chunk.len() > limit {
            return Ok(None);
        }
        place.wait(first.len() + whole.len() + chunk.len(), most).await;
        if first.is_empty() && whole.is_empty() {
            first = chunk;
            continue;
        }
        if whole.is_empty() {
            whole.extend_from_slice(&std::mem::take(&mut first));
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(Some(if whole.is_empty() { first } else { whole.freeze() }))
}

/// The rest of a read's answer.
pub(super) struct Passing {
    first: Option<Bytes>,
    body: AnswerBody,
    blotter: Blotter<'static>,
    status: u16,
    read: u64,
    most: u64,
    length_is_known: bool,
    over: bool,
}

impl Passing {
    pub(super) fn new(
        first: Option<Bytes>,
        body: AnswerBody,
        blotter: Blotter<'_>,
        (status, most): (u16, u64),
    ) -> Self {
        let length_is_known = body.length_is_known();
        let blotter = blotter.owned();
        Self { first, body, blotter, status, read: 0, most, length_is_known, over: false }
    }

    fn took(&mut self, bytes: Bytes) -> Result<Bytes, Failed> {
        self.read = self.read.saturating_add(bytes.len() as u64);
        if self.read > self.most {
            self.over = true;
            let why = format!("the tool's answer went over the limit of {} bytes", self.most);
            return Err(classify::too_large(self.status, &why, Verdict::Neutral));
        }
        Ok(self.blotter.more(bytes, self.body.is_over()))
    }
}

impl ByteSource<Failed> for Passing {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Failed>>> {
        if self.over {
            return Poll::Ready(None);
        }
        let polled = match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(first))),
            None => self.body.poll_next(cx),
        };
        match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(bytes))) => Poll::Ready(Some(self.took(bytes))),
            Poll::Ready(Some(Err(why))) => {
                self.over = true;
                Poll::Ready(Some(Err(classify::cut(self.status, Effect::Read, &why))))
            }
            Poll::Ready(None) => {
                self.over = true;
                Poll::Ready(self.blotter.rest().map(Ok))
            }
        }
    }

    fn left(&self) -> Option<u64> {
        let first = self.first.as_ref().map_or(0, Bytes::len) + self.blotter.held();
        self.length_is_known.then(|| self.body.expected() + first as u64)
    }
}

/// Fields of the answer, not of its connection (RFC 9110 §7.6.1), and none that only the gateway may say.
pub(super) fn end_to_end(mut headers: HeaderMap, cookies: bool) -> HeaderMap {
    // Two lengths: the framing was by chunks, so the other one is not to be believed (RFC 9112 §6.3).
    if headers.contains_key(TRANSFER_ENCODING) {
        drop(headers.remove(CONTENT_LENGTH));
    }
    let of_hop: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .collect();
    let foreign = |name: &&HeaderName| {
        hop_by_hop(name)
            || name.as_str().starts_with(OURS)
            || **name == ALT_SVC
            || (**name == SET_COOKIE && !cookies)
    };
    let all: Vec<HeaderName> = headers.keys().filter(foreign).cloned().collect();
    for name in of_hop.iter().chain(&all) {
        drop(headers.remove(name));
    }
    headers
}

/// A `Location` within the upstream becomes a path below it, which the front end puts its own place before; any other
/// one stays what it means: an absolute URL.
pub(super) fn locate(headers: &mut HeaderMap, upstream: &Upstream) {
    let Some(location) = headers.get(LOCATION) else { return };
    let Some(located) = location.to_str().ok().and_then(|text| located(text, upstream)) else {
        return;
    };
    if let Ok(value) = HeaderValue::from_str(&located) {
        headers.insert(LOCATION, value);
    }
}

/// `None` = it stays as it is.
fn located(text: &str, upstream: &Upstream) -> Option<String> {
    let scheme = if upstream.tls { "https" } else { "http" };
    let authority = upstream.authority.to_str().ok()?;
    let origin = format!("{scheme}://{authority}");
    let path = match text.get(..origin.len()) {
        Some(start) if start.eq_ignore_ascii_case(&origin) => text.get(origin.len()..)?,
        _ if text.starts_with("//") => return None,
        _ => text,
    };
    if path.is_empty() {
        return below("/", upstream, &origin);
    }
    // Relative to the request's own path, which the client knows as well as the tool.
    if !path.starts_with('/') {
        return None;
    }
    below(path, upstream, &origin)
}

fn below(path: &str, upstream: &Upstream, origin: &str) -> Option<String> {
    let rest = path.strip_prefix(upstream.base_path.as_ref());
    match rest.filter(|rest| rest.is_empty() || rest.starts_with(['/', '?', '#'])) {
        Some(rest) if rest.starts_with('/') => Some(rest.to_owned()),
        Some(rest) => Some(format!("/{rest}")),
        None => Some(format!("{origin}{path}")),
    }
}

/// Whether its bytes can be told in words.
pub(super) fn is_text(headers: &HeaderMap) -> bool {
    let coded = headers.contains_key(http::header::CONTENT_ENCODING);
    let media = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media = media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    !coded && (media.starts_with("text/") || media.ends_with("json") || media.ends_with("+xml"))
}
