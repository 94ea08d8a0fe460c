//! `tools.T.proxy`: the route by which a plain HTTP client reaches a tool.

use http::{HeaderName, Method};
use serde_json::json;

use super::kinds::{NAME, SIZE, Text};
use super::read::{Fields, List, Words};
use super::{At, Maybe};
use crate::policy::snapshot::RoutePiece;
use crate::policy::template::hop_by_hop;

/// Methods that may be named, by their place in [`METHODS`].
const METHOD: Words<usize> = Words(&[
    ("GET", Some(0)),
    ("HEAD", Some(1)),
    ("POST", Some(2)),
    ("PUT", Some(3)),
    ("PATCH", Some(4)),
    ("DELETE", Some(5)),
]);
const METHODS: [Method; 6] =
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

/// Segments of one route.
const MAX_SEGMENTS: usize = 64;

#[derive(Debug, Clone)]
pub struct Proxy {
    pub upstream: Maybe<String>,
    pub methods: Maybe<Vec<At<Method>>>,
    pub path: Maybe<Vec<RoutePiece>>,
    pub request_headers: Maybe<Vec<At<HeaderName>>>,
    pub request_bytes: Maybe<u64>,
    pub response_bytes: Maybe<u64>,
}

impl Proxy {
    pub(super) fn fields(f: &mut Fields<'_>) -> Self {
        let upstream = f.required("upstream", NAME);
        let methods = f.required("methods", List { of: METHOD, least: 1 });
        let methods = methods.map(|list| {
            let named = |at: &At<usize>| {
                let method = METHODS.get(at.value).cloned()?;
                Some(at.clone().map(|_| method))
            };
            let methods = list.value.iter().filter_map(named).collect();
            list.map(|_| methods)
        });
        Self {
            upstream,
            methods,
            path: f.required("path", ROUTE),
            request_headers: f.optional("request_headers", List { of: FORWARDED, least: 1 }),
            request_bytes: f.optional("request_bytes", SIZE),
            response_bytes: f.optional("response_bytes", SIZE),
        }
    }
}

/// A field that a client may send on: none that frames, routes or authenticates.
const FORWARDED: Text<HeaderName> = Text {
    expected: "a header's name",
    parse: |text| {
        let name = HeaderName::from_bytes(text.as_bytes()).map_err(|_| "a header's name")?;
        match name.as_str() {
            "authorization" => Err(
                "another header: `Authorization` tells the gateway who asks; the tool's credential belongs in `auth`",
            ),
            "host" | "content-length" | "expect" | "via" | "idempotency-key" => {
                Err("a header that the gateway does not set itself")
            }
            own if own.starts_with("checkrein-") => Err("a header that is not the gateway's own"),
            _ if hop_by_hop(&name) => Err("a header that is not hop-by-hop"),
            _ => Ok(name),
        }
    },
    schema: || json!({ "type": "string", "pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$" }),
};

const ROUTE: Text<Vec<RoutePiece>> = Text {
    expected: A_ROUTE,
    parse: route,
    schema: || json!({ "type": "string", "pattern": "^/" }),
};

const A_ROUTE: &str =
    "a path that begins with `/`, with `{name}` for a whole segment and `{name*}` for all the rest";

/// `/orders/{id}/{rest*}` in segments.
fn route(text: &str) -> Result<Vec<RoutePiece>, &'static str> {
    let segments = text.strip_prefix('/').ok_or(A_ROUTE)?;
    let mut pieces: Vec<RoutePiece> = Vec::new();
    let mut all = segments.split('/').peekable();
    while let Some(segment) = all.next() {
        let last = all.peek().is_none();
        let piece = match segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            Some(name) => captured(name, last)?,
            None if segment.is_empty() && !last => {
                return Err("a path without an empty segment but the last");
            }
            None => RoutePiece::Literal(literal(segment)?.into()),
        };
        let again = |other: &RoutePiece| other.name().is_some() && other.name() == piece.name();
        if pieces.iter().any(again) {
            return Err("a path that names each part once");
        }
        pieces.push(piece);
    }
    if pieces.len() > MAX_SEGMENTS {
        return Err("a path of at most 64 segments");
    }
    Ok(pieces)
}

fn captured(name: &str, last: bool) -> Result<RoutePiece, &'static str> {
    let (name, rest) = match name.strip_suffix('*') {
        Some(name) => (name, true),
        None => (name, false),
    };
    let sound = !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    match (sound, rest, last) {
        (false, _, _) => Err(A_ROUTE),
        (true, true, false) => Err("a path whose `{name*}` stands last: it takes all the rest"),
        (true, true, true) => Ok(RoutePiece::Rest(name.into())),
        (true, false, _) => Ok(RoutePiece::One(name.into())),
    }
}

/// As it is compared: plain characters, no escape, so that one spelling says one thing.
fn literal(segment: &str) -> Result<&str, &'static str> {
    let sound =
        segment.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,=:@".contains(&b));
    match segment {
        "." | ".." => Err("a path without `.` and `..`"),
        _ if sound => Ok(segment),
        _ => Err("segments of plain URL characters, without escapes, `;`, `?` and `#`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_segments_each_whole_and_named_once() {
        assert_eq!(route("/").expect("root"), [RoutePiece::Literal("".into())]);
        let pieces = route("/v1/orders/{id}/{rest*}").expect("sound");
        assert_eq!(pieces.len(), 4);
        assert_eq!(pieces[2], RoutePiece::One("id".into()));
        assert_eq!(pieces[3], RoutePiece::Rest("rest".into()));
        for wrong in [
            "",
            "v1",
            "/a//b",
            "/{a}/{a}",
            "/{rest*}/x",
            "/a{b}",
            "/{}",
            "/{a b}",
            "/..",
            "/a%2fb",
            "/a;b",
            "/a?b",
            "/{*}",
        ] {
            assert!(route(wrong).is_err(), "{wrong}");
        }
        assert!(route(&"/a".repeat(65)).is_err());
    }

    #[test]
    fn what_frames_routes_or_authenticates_is_never_sent_on() {
        for wrong in [
            "Authorization",
            "Host",
            "Connection",
            "TE",
            "Transfer-Encoding",
            "Upgrade",
            "Content-Length",
            "Proxy-Authorization",
            "Checkrein-Run",
            "Idempotency-Key",
            "Via",
            "a b",
        ] {
            assert!((FORWARDED.parse)(wrong).is_err(), "{wrong}");
        }
        for right in ["Accept", "Cookie", "Range", "X-Tenant", "Content-Language"] {
            assert!((FORWARDED.parse)(right).is_ok(), "{right}");
        }
    }
}
