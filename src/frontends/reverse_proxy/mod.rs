//! Plain HTTP clients: a request below `/proxy/{upstream}` goes to the tool that its method and path name, through the
//! same layers as any other call, and the tool's answer comes back as it is.
//!
//! A refusal is a problem document with the code, status and `Retry-After` of every other front end.

mod document;
mod upload;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{LOCATION, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use hyper::body::Body as HttpBody;

use super::body::Body;
use super::render::{self, Problem, Reply};
use super::request::{self, Head, Room};
use crate::call::{
    AgentId, Broken, CallError, CallId, FrontEnd, HttpRequest, Payload, RequestBody, RunId,
    Standing, ToolResult, Turn, Upload,
};
use crate::engine::{Answer, Asker, Engine, Single, Wanted};
use upload::Uploading;

/// Where upstreams are found on the listener that serves all front ends.
pub(super) const PREFIX: &str = "/proxy/";
/// A body that tells its length and is no longer than this is read before anything is sent, so that the request can be
/// sent again.
const SMALL: u64 = 64 * 1024;

const OUTCOME: HeaderName = HeaderName::from_static("checkrein-outcome");
const ATTEMPTS: HeaderName = HeaderName::from_static("checkrein-attempts");
const REPLAYED: HeaderName = HeaderName::from_static("checkrein-replayed");
const IDENTICAL_TO: HeaderName = HeaderName::from_static("checkrein-identical-to");

/// A request's upstream, the rest of its path, and what stands before that rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Below<'a> {
    pub(super) upstream: &'a str,
    pub(super) path: &'a str,
    /// What a client has to put before a path of the upstream: `/proxy/{upstream}`, or nothing.
    place: &'a str,
}

/// The upstream of a path of the listener that serves all front ends; `None` = another front end's.
pub(super) fn below(path: &str) -> Option<Below<'_>> {
    let rest = path.strip_prefix(PREFIX)?;
    let end = rest.find('/').unwrap_or(rest.len());
    let (upstream, below) = rest.split_at(end);
    let place = path.get(..PREFIX.len() + end)?;
    Some(Below { upstream, path: if below.is_empty() { "/" } else { below }, place })
}

/// The same on a listener of its own: every path is the upstream's.
pub(super) fn all_of<'a>(upstream: &'a str, path: &'a str) -> Below<'a> {
    Below { upstream, path: if path.starts_with('/') { path } else { "/" }, place: "" }
}

/// Everything of one request but its body.
pub(super) struct Asked<'a> {
    pub(super) engine: &'a Arc<Engine>,
    pub(super) agent: AgentId,
    pub(super) head: Head,
    pub(super) below: Below<'a>,
    pub(super) room: &'a Room,
}

/// One request and its answer.
pub(super) async fn pass<B>(
    asked: Asked<'_>,
    mut request: HttpRequest,
    body: B,
) -> Result<Response<Body>, Problem>
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: fmt::Display,
{
    let Asked { engine, agent, head, below, room } = asked;
    refuse_upgrade(&request.headers)?;
    let routed = engine
        .route(&agent, below.upstream, &request.method, below.path)
        .map_err(Problem::denied)?;
    let id = head.call_id.unwrap_or_else(CallId::mint);
    let mut upload = Uploaded::default();
    let mut malformed = None;
    if let Some(wanted) = &routed.route {
        (request.body, upload) = taken(body, wanted, room, &id).await?;
        malformed = document::fill(&mut request, wanted)?;
    }
    let payload = match malformed {
        Some(malformed) => Payload::Malformed(malformed),
        None => Payload::Request(Arc::new(request)),
    };
    let asker = Asker {
        agent,
        run: head.run,
        timeout: head.timeout,
        front_end: FrontEnd::Proxy,
        side: None,
    };
    let (tool, caller_key) = (routed.tool.clone(), head.caller_key);
    let single = Single { asker, id: id.clone(), tool: tool.clone(), payload, caller_key };
    let (run, answer) = match engine.call_routed(routed, single).await {
        Ok((run, answer)) => (Some(run), answer),
        // Refused before there was a run: still this call's answer.
        Err(denied) => (None, refused(id, tool, denied)),
    };
    upload.fault(&answer)?;
    Ok(answered(&answer, run, below.place))
}

/// A body that was read, or is passed on, until its request is answered.
#[derive(Default)]
struct Uploaded {
    /// Its part of the room.
    _held: Option<request::Sent>,
    standing: Arc<Standing>,
    limit: usize,
}

impl Uploaded {
    /// The client's own fault is told as such, whatever the tool made of what it got.
    fn fault(&self, answer: &Answer) -> Result<(), Problem> {
        let Err(CallError::Failed(failed)) = &answer.outcome else { return Ok(()) };
        match self.standing.get() {
            Turn::Broken(Broken::Client) => Err(Problem::invalid("the body broke off")),
            Turn::Broken(Broken::TooLong) => Err(Problem::too_large(self.limit)),
            Turn::Client if failed.timed_out_by.is_some() => Err(Problem::late_body()),
            Turn::Tool | Turn::Client | Turn::Over => Ok(()),
        }
    }
}

/// Reads the body where it is to be known whole, or is small; else it is passed on as it comes.
async fn taken<B>(
    body: B,
    wanted: &Wanted,
    room: &Room,
    id: &CallId,
) -> Result<(RequestBody, Uploaded), Problem>
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: fmt::Display,
{
    let limit = wanted.body_bytes;
    let mut upload = Uploaded { limit, ..Uploaded::default() };
    if body.is_end_stream() {
        return Ok((RequestBody::None, upload));
    }
    let length = body.size_hint().exact();
    if length.is_some_and(|length| length > limit as u64) {
        return Err(Problem::too_large(limit));
    }
    if wanted.whole || length.is_some_and(|length| length <= SMALL) {
        let sent = request::read_bytes(body, limit, room).await?;
        let whole = RequestBody::Whole(Bytes::clone(&sent));
        upload._held = Some(sent);
        return Ok((whole, upload));
    }
    let source = Uploading::new(body, limit, upload.standing.clone());
    let streaming = Upload::new(Box::new(source), upload.standing.clone(), id.clone());
    Ok((RequestBody::Streaming(streaming), upload))
}

/// A connection that becomes another protocol's is out of every layer's sight. An offer of HTTP/2 may be passed over
/// (RFC 9110 §7.8).
fn refuse_upgrade(headers: &HeaderMap) -> Result<(), Problem> {
    let lists = headers.get_all(UPGRADE).iter().filter_map(|value| value.to_str().ok());
    for protocol in lists.flat_map(|list| list.split(',')).map(str::trim) {
        let other =
            !["h2c", "h2", "HTTP/2.0"].iter().any(|http| protocol.eq_ignore_ascii_case(http));
        if other && !protocol.is_empty() {
            let why = format!("a connection cannot become `{}` here", protocol.escape_debug());
            return Err(Problem::invalid(why));
        }
    }
    Ok(())
}

fn refused(id: CallId, tool: crate::call::ToolName, denied: crate::call::Denied) -> Answer {
    Answer {
        id,
        tool,
        outcome: Err(CallError::Denied(denied)),
        attempts: 0,
        operation: None,
        alternatives: Vec::new(),
    }
}

/// The tool's own answer where there is one that says what became of the request; else a problem document.
fn answered(answer: &Answer, run: Option<RunId>, place: &str) -> Response<Body> {
    let outcome = match &answer.outcome {
        Ok(result) => return passed_result(answer, result, run, place),
        Err(error) => error,
    };
    let own = match outcome {
        CallError::Failed(failed) => failed.head.as_deref().zip(failed.answer.as_ref()),
        CallError::Denied(_) | CallError::Unknown(_) => None,
    };
    let mut response = match own {
        Some((head, content)) => {
            let body = Body::from(content.bytes.clone());
            let mut response = with_head(head.status, head.headers.clone(), body, place);
            ours(response.headers_mut(), answer, run);
            response
        }
        None => Reply::of_passed(answer).with_run(run).into_response(None),
    };
    render::field(response.headers_mut(), OUTCOME, outcome.code());
    response
}

fn passed_result(
    answer: &Answer,
    result: &ToolResult,
    run: Option<RunId>,
    place: &str,
) -> Response<Body> {
    let stream = result.arriving().and_then(crate::call::Arriving::take);
    let body = match stream {
        Some(stream) => Body::from(stream),
        None => Body::from(result.content.bytes.clone()),
    };
    let mut response = match &result.head {
        Some(head) => with_head(head.status, head.headers.clone(), body, place),
        // What a person wrote down in the tool's place, or what outlived its head.
        None => Response::new(body),
    };
    let headers = response.headers_mut();
    ours(headers, answer, run);
    if result.source == crate::call::Source::Ledger {
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
    }
    if let Some(earlier) = &result.notes.identical_to {
        render::field(headers, IDENTICAL_TO, &earlier.to_string());
    }
    if !headers.contains_key("ratelimit") {
        render::rate_fields(headers, &answer.outcome);
    }
    response
}

fn with_head(status: u16, headers: HeaderMap, body: Body, place: &str) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = render::status_of(status);
    *response.headers_mut() = headers;
    let headers = response.headers_mut();
    // The back end has made it a path of the upstream, where it is one.
    let below = headers.get(LOCATION).and_then(|value| value.to_str().ok());
    let below = below.filter(|path| path.starts_with('/') && !path.starts_with("//"));
    if let Some(located) = below.map(|path| format!("{place}{path}")) {
        render::field(headers, LOCATION, &located);
    }
    response
}

/// What the gateway says beside the tool.
fn ours(headers: &mut HeaderMap, answer: &Answer, run: Option<RunId>) {
    if let Some(run) = run {
        render::field(headers, request::RUN, run.as_str());
    }
    render::field(headers, request::CALL_ID, answer.id.as_str());
    if answer.attempts > 1 {
        headers.insert(ATTEMPTS, HeaderValue::from(answer.attempts));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_below_the_prefix_is_an_upstream_and_the_rest_as_it_was_spelt() {
        let found = |path| below(path).map(|b: Below<'_>| (b.upstream, b.path, b.place));
        assert_eq!(found("/proxy/shop/v1/a%2Fb"), Some(("shop", "/v1/a%2Fb", "/proxy/shop")));
        assert_eq!(found("/proxy/shop/"), Some(("shop", "/", "/proxy/shop")));
        assert_eq!(found("/proxy/shop"), Some(("shop", "/", "/proxy/shop")));
        assert_eq!(found("/proxy/"), Some(("", "/", "/proxy/")));
        assert_eq!(found("/proxy"), None);
        assert_eq!(found("/proxyshop/x"), None);
        let own = all_of("shop", "/proxy/shop/x");
        assert_eq!((own.upstream, own.path, own.place), ("shop", "/proxy/shop/x", ""));
    }

    #[test]
    fn an_upgrade_is_refused_and_an_offer_of_http_2_passed_over() {
        let upgrade = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(UPGRADE, HeaderValue::from_static(text));
            refuse_upgrade(&headers)
        };
        assert!(upgrade("h2c").is_ok() && upgrade("").is_ok());
        for refused in ["websocket", "h2c, websocket", "TLS/1.0"] {
            assert_eq!(upgrade(refused).expect_err(refused).status(), 400);
        }
    }
}
