//! Validated arguments → one HTTP request. What goes out is written from the tree: order and digits kept, the
//! agent's bytes never.

use std::fmt::Write as _;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request};
use serde_json::{Map, Value};

use super::classify;
use crate::call::{Failed, Fault};
use crate::policy::snapshot::{BodyEncoding, HttpTemplate, PathPiece, Rest, Tool, Upstream};
use crate::policy::template::{self, Place, header_text, is_unreserved, pairs, place, segment};
use crate::strict_json::write;

const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("checkrein/", env!("CARGO_PKG_VERSION")));
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const FORM: HeaderValue = HeaderValue::from_static("application/x-www-form-urlencoded");
const ANY: HeaderValue = HeaderValue::from_static("*/*");

/// A request without its credential. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Outline {
    pub(super) method: Method,
    /// Path and query.
    pub(super) target: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Outline {
    /// All of it but its fields.
    pub(super) fn without_headers(&self) -> Self {
        let (method, target) = (self.method.clone(), self.target.clone());
        Self { method, target, headers: HeaderMap::new(), body: self.body.clone() }
    }

    /// As hyper takes it.
    pub(super) fn into_http(self) -> Result<Request<Bytes>, Failed> {
        let Self { method, target, headers, body } = self;
        let request = Request::builder().method(method).uri(target).body(body);
        let mut request = request.map_err(|error| {
            classify::not_sent(&format!("the request cannot be written: {error}"))
        })?;
        *request.headers_mut() = headers;
        Ok(request)
    }
}

/// Writes the request of a call. `Err` names the first argument that has no spelling in its place; the `arguments`
/// gate has asked the same rules before.
pub(super) fn outline(tool: &Tool, http: &HttpTemplate, tree: &Value) -> Result<Outline, Fault> {
    if let Some(fault) = template::faults(http, tree).into_iter().next() {
        return Err(fault);
    }
    let none = Map::new();
    let arguments = tree.as_object().unwrap_or(&none);
    let mut headers = standing(&tool.upstream, tool.result.json);
    let free = |name: &http::HeaderName| !template::reserved_header(name);
    for (name, argument) in http.headers.iter().filter(|(name, _)| free(name)) {
        let text = arguments.get(argument).map(header_text);
        if let Some(Ok(Some(text))) = text
            && let Ok(value) = HeaderValue::from_str(&text)
        {
            headers.insert(name, value);
        }
    }
    // Nothing may stand in the place of these.
    headers.insert(ACCEPT_ENCODING, IDENTITY);
    headers.insert(HOST, tool.upstream.authority.clone());
    let (body, media) = body(http, arguments);
    if let Some(media) = media {
        headers.insert(CONTENT_TYPE, media);
    }
    let target = target(http, &tool.upstream.base_path, arguments);
    Ok(Outline { method: http.method.clone(), target, headers, body })
}

/// What every request to this upstream says. Fixed headers may replace `Accept` and `User-Agent`.
fn standing(upstream: &Upstream, json: bool) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(USER_AGENT, AGENT);
    headers.insert(ACCEPT, if json { JSON } else { ANY });
    for (name, value) in &upstream.headers {
        headers.insert(name, value.clone());
    }
    headers
}

fn target(http: &HttpTemplate, base_path: &str, arguments: &Map<String, Value>) -> String {
    let mut target = String::with_capacity(base_path.len() + 64);
    target.push_str(base_path);
    for piece in &http.path {
        match piece {
            PathPiece::Literal(text) => target.push_str(text),
            PathPiece::Argument(name) => {
                if let Some(Ok(text)) = arguments.get(name).map(segment) {
                    percent(&mut target, &text);
                }
            }
        }
    }
    let mut first = true;
    for (name, value) in members(http, arguments, Place::Query) {
        for text in pairs(value).unwrap_or_default() {
            target.push(if first { '?' } else { '&' });
            first = false;
            percent(&mut target, name);
            target.push('=');
            percent(&mut target, &text);
        }
    }
    target
}

/// The members that go to one place, in the agent's order.
fn members<'a>(
    http: &'a HttpTemplate,
    arguments: &'a Map<String, Value>,
    to: Place,
) -> impl Iterator<Item = (&'a String, &'a Value)> {
    arguments.iter().filter(move |(name, _)| place(http, name) == Some(to))
}

/// The body and its media type; none where the template sends nothing in it.
fn body(http: &HttpTemplate, arguments: &Map<String, Value>) -> (Bytes, Option<HeaderValue>) {
    if http.rest != Rest::Body && http.body.is_empty() {
        return (Bytes::new(), None);
    }
    match http.encoding {
        BodyEncoding::Json => {
            let mut text = Vec::with_capacity(256);
            write::push_members(&mut text, members(http, arguments, Place::Body));
            (text.into(), Some(JSON))
        }
        BodyEncoding::Form => {
            let mut text = String::new();
            for (name, value) in members(http, arguments, Place::Body) {
                for value in pairs(value).unwrap_or_default() {
                    if !text.is_empty() {
                        text.push('&');
                    }
                    percent(&mut text, name);
                    text.push('=');
                    percent(&mut text, &value);
                }
            }
            (text.into(), Some(FORM))
        }
    }
}

/// Everything but unreserved characters as `%XX` (RFC 3986 §2.1): no value can end its segment, key or value. Also
/// right for forms, where `%20` stands for a blank as `+` does.
fn percent(out: &mut String, text: &str) {
    for byte in text.bytes() {
        if is_unreserved(byte) {
            out.push(char::from(byte));
        } else if write!(out, "%{byte:02X}").is_err() {
            // Writing to a String cannot fail.
            return;
        }
    }
}

#[cfg(test)]
mod tests;
