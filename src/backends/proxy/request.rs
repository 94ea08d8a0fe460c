//! What goes to the tool of a client's request: the target as it was spelt, the fields that the policy names, the body.
//!
//! Nothing that frames, routes or authenticates is the client's.

use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_TYPE, COOKIE, HOST,
    USER_AGENT, VIA,
};
use http::{HeaderMap, HeaderName, HeaderValue, Request};

use crate::backends::key::Key;
use crate::backends::{classify, credentials};
use crate::call::{Failed, HttpRequest, RequestBody, ToolCall};
use crate::egress::Sending;
use crate::policy::snapshot::{ProxyRoute, Tool};

const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("checkrein/", env!("CARGO_PKG_VERSION")));
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");
/// RFC 9110 §7.6.3: the hop that the request came by.
const VIA_US: HeaderValue = HeaderValue::from_static("1.1 checkrein");

/// What says of a body what it is: without these it would be another one.
const OF_BODY: [HeaderName; 3] = [CONTENT_TYPE, CONTENT_ENCODING, CONTENT_LANGUAGE];

/// The policy lets cookies through, both ways.
pub(super) fn takes_cookies(route: &ProxyRoute) -> bool {
    route.request_headers.contains(&COOKIE)
}

/// The whole request, credential included. A body that can be sent once is taken here.
pub(super) fn outgoing(
    tool: &Tool,
    route: &ProxyRoute,
    request: &HttpRequest,
    call: &ToolCall,
) -> Result<Request<Sending>, Failed> {
    let mut headers = passed_fields(route, request);
    headers.insert(USER_AGENT, user_agent(route, request));
    for (name, value) in &tool.upstream.headers {
        headers.insert(name, value.clone());
    }
    if !headers.contains_key(ACCEPT_ENCODING) {
        headers.insert(ACCEPT_ENCODING, IDENTITY);
    }
    headers.insert(HOST, tool.upstream.authority.clone());
    headers.insert(VIA, VIA_US);
    if let Some(name) = &tool.upstream.timeout_header {
        let left = call.deadline.saturating_duration_since(tokio::time::Instant::now());
        let left = left.min(tool.timeout.total).as_millis().max(1);
        headers.insert(name, HeaderValue::from(u64::try_from(left).unwrap_or(u64::MAX)));
    }
    if let Some(key) = Key::of(tool, call)? {
        key.in_headers(&mut headers)?;
    }
    credentials::inject(&mut headers, tool.upstream.auth.as_ref())?;
    let body = match &request.body {
        RequestBody::None => Sending::Whole(bytes::Bytes::new()),
        RequestBody::Whole(bytes) => Sending::Whole(bytes.clone()),
        RequestBody::Streaming(upload) => {
            let again = || classify::not_sent("a body that can be sent once was sent before");
            Sending::Streaming(upload.take().ok_or_else(again)?)
        }
    };
    let mut outgoing = Request::builder()
        .method(request.method.clone())
        .uri(target(&tool.upstream.base_path, request))
        .body(body)
        .map_err(|error| classify::not_sent(&format!("the request cannot be written: {error}")))?;
    *outgoing.headers_mut() = headers;
    Ok(outgoing)
}

/// As the client spelt it, below the upstream's own path.
fn target(base_path: &str, request: &HttpRequest) -> String {
    let query = request.query.as_deref();
    let room = base_path.len() + request.path.len() + query.map_or(0, |query| query.len() + 1);
    let mut target = String::with_capacity(room);
    target.push_str(base_path);
    target.push_str(&request.path);
    if let Some(query) = query {
        target.push('?');
        target.push_str(query);
    }
    target
}

/// Fields of the client that go on: those the policy names, and those of its body. None that the client itself meant
/// for this hop (RFC 9110 §7.6.1).
fn passed_fields(route: &ProxyRoute, request: &HttpRequest) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(16);
    let has_body = !request.body.is_empty();
    let hop = request.headers.contains_key(CONNECTION);
    for (name, value) in &request.headers {
        let named = route.request_headers.contains(name);
        let passes = named || (has_body && OF_BODY.contains(name));
        if passes && !(hop && of_this_hop(&request.headers, name)) {
            headers.append(name, value.clone());
        }
    }
    headers
}

fn of_this_hop(headers: &HeaderMap, name: &HeaderName) -> bool {
    let lists = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    lists
        .flat_map(|list| list.split(','))
        .any(|named| named.trim().eq_ignore_ascii_case(name.as_str()))
}

fn user_agent(route: &ProxyRoute, request: &HttpRequest) -> HeaderValue {
    let own = request.headers.get(USER_AGENT);
    own.filter(|_| route.request_headers.contains(&USER_AGENT)).cloned().unwrap_or(AGENT)
}
