//! What rules look at of a request: the named parts of its path, its query, its body where that is JSON.

use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use serde_json::{Map, Value};

use crate::call::arguments::Digest;
use crate::call::{Fault, HttpRequest, Malformed, RequestBody};
use crate::engine::Wanted;
use crate::frontends::render::Problem;
use crate::strict_json::{self, Limits};

/// Fills in what the route wants to know. `Some`: a rule looks into the request, and its body cannot be read.
pub(super) fn fill(
    request: &mut HttpRequest,
    wanted: &Wanted,
) -> Result<Option<Malformed>, Problem> {
    request.tells_method = wanted.tells_method;
    if !wanted.document {
        return Ok(None);
    }
    request.captures.clone_from(&wanted.captures);
    request.pairs = pairs(request.query.as_deref().unwrap_or_default())?;
    let malformed = read(request, wanted);
    request.conclude();
    Ok(malformed)
}

/// The body, where it is JSON.
fn read(request: &mut HttpRequest, wanted: &Wanted) -> Option<Malformed> {
    let RequestBody::Whole(bytes) = &request.body else { return None };
    if !is_json(&request.headers) {
        return None;
    }
    match strict_json::parse(bytes, Limits::arguments(wanted.body_bytes, wanted.depth)) {
        Ok(json) => request.json = Some(json),
        // What nobody looks into is told apart by its bytes.
        Err(_) if !wanted.judged => {}
        Err(fault) => return Some(malformed(bytes, &fault)),
    }
    None
}

fn malformed(bytes: &Bytes, fault: &strict_json::JsonFault) -> Malformed {
    Malformed {
        faults: vec![Fault {
            at: format!("/body{}", fault.at),
            expected: "one JSON value, as its media type says".into(),
            got: fault.to_string().into(),
        }],
        digest: Digest::of(bytes),
        too_large: None,
        bytes: bytes.len() as u64,
    }
}

/// `a=1&b=2&a=3` → `{"a": ["1", "3"], "b": "2"}`, decoded as forms are: `+` is a blank.
fn pairs(query: &str) -> Result<Map<String, Value>, Problem> {
    let mut pairs = Map::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (text(name)?, text(value)?);
        match pairs.get_mut(&name) {
            None => drop(pairs.insert(name, value.into())),
            Some(Value::Array(values)) => values.push(value.into()),
            Some(one) => *one = Value::Array(vec![one.take(), value.into()]),
        }
    }
    Ok(pairs)
}

fn text(text: &str) -> Result<String, Problem> {
    let text = text.replace('+', " ");
    let decoded = percent_encoding::percent_decode_str(&text).decode_utf8();
    let bad = |_| Problem::invalid("the query is no UTF-8 text once decoded; nothing was sent");
    decoded.map(|text| text.into_owned()).map_err(bad)
}

/// JSON by its media type (RFC 8259, RFC 6839 §3.1), in no coding that hides it.
fn is_json(headers: &HeaderMap) -> bool {
    let plain = |value: &http::HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    let media = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media = media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    (media == "application/json" || media.ends_with("+json"))
        && headers.get_all(CONTENT_ENCODING).iter().all(plain)
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Method};
    use serde_json::json;

    use super::*;

    fn wanted(judged: bool) -> Wanted {
        Wanted {
            captures: vec![("id".into(), "7".into())],
            body_bytes: 1 << 10,
            whole: true,
            judged,
            document: true,
            depth: 8,
            tells_method: false,
        }
    }

    fn filled(
        query: &str,
        media: &'static str,
        body: &'static str,
        judged: bool,
    ) -> Result<Value, u64> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
        let mut request = HttpRequest::new(Method::POST, "/7", Some(query), headers);
        request.body = RequestBody::Whole(body.into());
        match fill(&mut request, &wanted(judged)) {
            Ok(None) => Ok(request.document().tree().clone()),
            Ok(Some(malformed)) => Err(malformed.bytes),
            Err(problem) => Err(u64::from(problem.status())),
        }
    }

    #[test]
    fn a_request_is_told_by_its_parts() {
        let document =
            filled("a=1&b=x%20y&a=2&c=x+y&d", "application/json; charset=utf-8", "{\"n\":1}", true);
        assert_eq!(
            document,
            Ok(
                json!({"path": {"id": "7"}, "query": {"a": ["1", "2"], "b": "x y", "c": "x y", "d": ""}, "body": {"n": 1}})
            )
        );
        assert_eq!(filled("a=%ff", "text/plain", "", true), Err(400));
    }

    #[test]
    fn a_body_that_is_no_sound_json_is_refused_where_a_rule_looks_into_it_and_told_by_its_bytes_elsewhere()
     {
        for broken in ["{\"a\":1,\"a\":2}", "{", "[[[[[[[[[[1]]]]]]]]]]", ""] {
            assert_eq!(
                filled("", "application/json", broken, true),
                Err(broken.len() as u64),
                "{broken}"
            );
            let document = filled("", "application/json", broken, false).expect("opaque");
            assert!(document.get("body").is_none() && document.get("body_sha256").is_some());
        }
        assert!(filled("", "text/plain", "{", true).expect("no JSON").get("body_sha256").is_some());
    }
}
