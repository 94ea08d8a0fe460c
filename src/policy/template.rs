//! Which argument goes where in a tool's request, and which values cannot go there. Pure.
//!
//! The `arguments` gate asks [`faults`] before a call is let in; the HTTP back end writes the request by the same
//! functions, so that what passed the gate can always be written.

use std::borrow::Cow;

use http::HeaderName;
use serde_json::Value;

use super::snapshot::{BodyEncoding, HttpTemplate, PathPiece, Rest};
use crate::call::Fault;
use crate::call::arguments::kind_of;
use crate::call::pointer::push_token;

/// Longest path and query together, encoded. Far above what servers take (RFC 9110 §4.1 asks for 8000), below what
/// the `http` crate can hold (65534).
pub const MAX_TARGET: usize = 32 * 1024;

/// Where one argument stands in the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Path,
    Header,
    Query,
    Body,
}

/// The one place of an argument; `None` = the template has none for it.
pub fn place(template: &HttpTemplate, name: &str) -> Option<Place> {
    let in_path = template.path.iter().any(|piece| match piece {
        PathPiece::Argument(argument) => argument == name,
        PathPiece::Literal(_) => false,
    });
    if in_path {
        return Some(Place::Path);
    }
    if template.headers.iter().any(|(_, argument)| argument == name) {
        return Some(Place::Header);
    }
    if template.query.iter().any(|argument| argument == name) {
        return Some(Place::Query);
    }
    if template.body.iter().any(|argument| argument == name) {
        return Some(Place::Body);
    }
    match template.rest {
        Rest::None => None,
        Rest::Query => Some(Place::Query),
        Rest::Body => Some(Place::Body),
    }
}

/// What the schema cannot say: values that have no spelling in the place they go to. Every fault at once, each by
/// JSON Pointer; empty = the request can be written.
pub fn faults(template: &HttpTemplate, tree: &Value) -> Vec<Fault> {
    let Value::Object(arguments) = tree else {
        return vec![fault(String::new(), "an object", kind_of(tree))];
    };
    let mut faults = Vec::new();
    let mut target = 0_usize;
    for piece in &template.path {
        match piece {
            PathPiece::Literal(text) => target += text.len(),
            PathPiece::Argument(name) => match arguments.get(name) {
                None => {
                    faults.push(fault(pointer(name), "a value: it is part of the path", "nothing"));
                }
                Some(value) => match segment(value) {
                    Ok(text) => target += encoded_len(&text),
                    Err(expected) => faults.push(fault(pointer(name), expected, shown(value))),
                },
            },
        }
    }
    for (name, value) in arguments {
        let wrong = match place(template, name) {
            None => Err("no such argument: the tool's request has no place for it"),
            // Looked at above, once for each time the path names it.
            Some(Place::Path) => Ok(()),
            Some(Place::Header) => header_text(value).map(|_| ()),
            Some(Place::Query) => pairs(value).map(|texts| target += weight(name, &texts)),
            Some(Place::Body) => match template.encoding {
                BodyEncoding::Json => Ok(()),
                BodyEncoding::Form => pairs(value).map(|_| ()),
            },
        };
        if let Err(expected) = wrong {
            faults.push(fault(pointer(name), expected, shown(value)));
        }
    }
    if target > MAX_TARGET {
        faults.push(Fault {
            at: String::new(),
            expected: format!("arguments that fit into {MAX_TARGET} bytes of path and query")
                .into(),
            got: format!("{target} bytes, encoded").into(),
        });
    }
    faults
}

/// A value as one path segment, not yet encoded. Refused: what would be no segment (empty), what a URL reader takes
/// for a way up (`.` and `..`, RFC 3986 §5.2.4), also as a part between slashes and before a `;`, for the sake of
/// servers that decode before they split and drop a segment's parameters (RFC 3986 §3.3); control characters.
pub fn segment(value: &Value) -> Result<Cow<'_, str>, &'static str> {
    let text = scalar(value).ok_or("a string, number or boolean: it is part of the path")?;
    if text.is_empty() {
        return Err("not empty: it is part of the path");
    }
    let climbs = |part: &str| matches!(part.split(';').next(), Some("." | ".."));
    if text.split(['/', '\\']).any(climbs) {
        return Err("no `.` or `..`: it is part of the path");
    }
    if text.chars().any(char::is_control) {
        return Err("no control characters: it is part of the path");
    }
    Ok(text)
}

/// A value as a header field's value; `None` = the field is left out (`null`). RFC 9110 §5.5: visible ASCII, blanks
/// only inside.
pub fn header_text(value: &Value) -> Result<Option<Cow<'_, str>>, &'static str> {
    if value.is_null() {
        return Ok(None);
    }
    let text = scalar(value).ok_or("a string, number or boolean: it is sent as a header")?;
    if !text.bytes().all(|b| b.is_ascii_graphic() || b == b' ' || b == b'\t') {
        return Err("visible ASCII without line breaks: it is sent as a header");
    }
    if text.trim() != text.as_ref() {
        return Err("no blanks at its ends: it is sent as a header");
    }
    Ok(Some(text))
}

/// A value as the values of one key of a query or form: a list repeats the key, `null` leaves it out.
pub fn pairs(value: &Value) -> Result<Vec<Cow<'_, str>>, &'static str> {
    const EXPECTED: &str = "a string, number, boolean or a list of these: it is sent as key=value";
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(items) => {
            items.iter().map(|item| scalar(item).ok_or(EXPECTED)).collect::<Result<Vec<_>, _>>()
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            scalar(value).map(|text| vec![text]).ok_or(EXPECTED)
        }
        Value::Object(_) => Err(EXPECTED),
    }
}

/// Fields that no argument and no fixed header may set: those that frame, route or authenticate the request
/// (RFC 9110 §7.6.1 for the hop-by-hop ones).
pub fn reserved_header(name: &HeaderName) -> bool {
    const RESERVED: &[&str] = &["authorization", "cookie", "expect", "host"];
    hop_by_hop(name) || name.as_str().starts_with("content-") || RESERVED.contains(&name.as_str())
}

/// Fields of one connection, not of a message (RFC 9110 §7.6.1), known by their name alone.
pub fn hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "http2-settings"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Bytes that stand for themselves in a URL (RFC 3986 §2.3); every other one is written as `%XX`.
pub fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

fn encoded_len(text: &str) -> usize {
    text.bytes().map(|byte| if is_unreserved(byte) { 1 } else { 3 }).sum()
}

fn weight(name: &str, texts: &[Cow<'_, str>]) -> usize {
    texts.iter().map(|text| encoded_len(name) + encoded_len(text) + 2).sum()
}

/// Text of a scalar, numbers by their exact digits; `None` for what is none.
fn scalar(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Number(number) => Some(Cow::Owned(number.to_string())),
        Value::Bool(yes) => Some(Cow::Borrowed(if *yes { "true" } else { "false" })),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// What a fault says it got: the kind, and of a short string its text.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) if text.len() <= 40 => format!("{text:?}"),
        Value::String(_)
        | Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::Array(_)
        | Value::Object(_) => kind_of(value).to_owned(),
    }
}

fn pointer(name: &str) -> String {
    let mut text = String::new();
    push_token(&mut text, name);
    text
}

fn fault(at: String, expected: &'static str, got: impl Into<Cow<'static, str>>) -> Fault {
    Fault { at, expected: expected.into(), got: got.into() }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::json;

    use super::*;

    fn template() -> HttpTemplate {
        HttpTemplate {
            method: Method::GET,
            path: vec![
                PathPiece::Literal("/orders/".into()),
                PathPiece::Argument("order_id".into()),
            ],
            query: Vec::new(),
            body: Vec::new(),
            rest: Rest::Query,
            headers: vec![(HeaderName::from_static("x-region"), "region".into())],
            encoding: BodyEncoding::Json,
        }
    }

    fn at(tree: &Value) -> Vec<String> {
        faults(&template(), tree).into_iter().map(|fault| fault.at).collect()
    }

    #[test]
    fn an_argument_that_would_leave_its_path_segment_is_refused() {
        for bad in
            ["", ".", "..", "../admin", "a/../b", "..\\x", "..;/x", "a/.;v=1", "a\u{0}b", "a\nb"]
        {
            assert_eq!(at(&json!({"order_id": bad})), ["/order_id"], "{bad:?}");
        }
        for good in ["A17", "a/b", "%2F", "?x#y", "...", "a..b", "..a;b", "订单", "a b"] {
            assert_eq!(at(&json!({"order_id": good})), [""; 0], "{good:?}");
        }
        for bad in [json!(null), json!([1]), json!({})] {
            assert_eq!(at(&json!({"order_id": bad})), ["/order_id"], "{bad}");
        }
        assert_eq!(at(&json!({})), ["/order_id"]);
        assert_eq!(at(&json!({"order_id": 7})), [""; 0]);
    }

    #[test]
    fn a_header_argument_cannot_add_a_header() {
        for bad in ["a\r\nX-Other: 1", "a\nb", " a", "a ", "é", "a\u{0}"] {
            assert_eq!(at(&json!({"order_id": "1", "region": bad})), ["/region"], "{bad:?}");
        }
        assert_eq!(at(&json!({"order_id": "1", "region": "eu west"})), [""; 0]);
        assert_eq!(at(&json!({"order_id": "1", "region": null})), [""; 0]);
    }

    #[test]
    fn a_query_takes_scalars_and_lists_of_scalars_and_names_every_fault() {
        assert_eq!(at(&json!({"order_id": "1", "tag": ["a", 2, true], "none": null})), [""; 0]);
        assert_eq!(
            at(&json!({"order_id": "..", "a/b": {}, "list": [[1]]})),
            ["/order_id", "/a~1b", "/list"]
        );
    }

    #[test]
    fn an_argument_without_a_place_is_refused_where_the_template_has_no_rest() {
        let mut template = template();
        template.rest = Rest::None;
        let found = faults(&template, &json!({"order_id": "1", "extra": 1}));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].at, "/extra");
    }

    #[test]
    fn arguments_that_do_not_fit_a_url_are_refused_with_the_limit() {
        let found = faults(&template(), &json!({"order_id": "1", "q": "é".repeat(8000)}));
        assert_eq!(found.len(), 1);
        assert!(found[0].expected.contains("32768"), "{found:?}");
    }

    #[test]
    fn framing_and_credential_headers_are_reserved() {
        for name in ["host", "authorization", "content-length", "content-type", "connection", "te"]
        {
            assert!(reserved_header(&HeaderName::from_static(name)), "{name}");
        }
        assert!(!reserved_header(&HeaderName::from_static("x-region")));
    }
}
