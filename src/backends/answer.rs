//! A whole answer → what the model gets: promised form, `expect`, `select`, `redact`, `max`, in this order.

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName};
use serde_json::{Map, Value};

use super::classify::{self, clean};
use crate::call::pointer::{Path, Segment};
use crate::call::{
    Content, Effect, Failed, Form, Head, Notes, Source, ToolResult, Truncated, Verdict,
};
use crate::policy::snapshot::{ResultPolicy, Tool};
use crate::strict_json::{self, Limits, write};

/// What stands where a redacted value stood.
const REDACTED: &str = "[redacted]";
/// Of a body that is not what was promised, this much is told.
const SHOWN: usize = 120;

/// A success, read whole.
pub(super) fn result(
    tool: &Tool,
    status: u16,
    headers: HeaderMap,
    body: &Bytes,
) -> Result<ToolResult, Failed> {
    let policy = &tool.result;
    let head = tool.http().is_some_and(|template| template.method == http::Method::HEAD);
    let bare = head || classify::may_be_empty(status);
    let content = if policy.json {
        let value = promised(policy, &headers, body, bare).map_err(|why| {
            classify::protocol(Some(status), &format!("HTTP status {status}, {why}"))
        })?;
        Bytes::from(write::text(&reduced(policy, value)))
    } else {
        text(policy, &headers, body).into()
    };
    let (content, truncated) = fitted(policy, status, content)?;
    let notes = Notes {
        truncated,
        accepted: tool.effect == Effect::Write && classify::is_accepted(status),
        ..Notes::default()
    };
    let head = Some(Head { status, headers: end_to_end(headers), arriving: None });
    Ok(ToolResult { head, content, source: Source::Tool, notes })
}

/// The one JSON value that was promised, or what came in its place.
fn promised(
    policy: &ResultPolicy,
    headers: &HeaderMap,
    body: &[u8],
    may_be_empty: bool,
) -> Result<Value, String> {
    let value = if body.is_empty() {
        if !may_be_empty {
            return Err("but an empty body where JSON was promised".into());
        }
        Value::Null
    } else {
        let media = media(headers);
        if !is_json(media) {
            let got = if media.is_empty() { "no content type" } else { media };
            return Err(format!("but {got} where JSON was promised: {}", shown(policy, body)));
        }
        strict_json::parse(body, Limits::answer(body.len()))
            .map_err(|fault| format!("but no sound JSON: {fault}"))?
    };
    match unexpected(policy, &value) {
        Some(why) => Err(format!("but {why}")),
        None => Ok(value),
    }
}

/// Where a value is not what `expect` says.
pub(super) fn unexpected(policy: &ResultPolicy, value: &Value) -> Option<String> {
    let fault = policy.expect.as_ref()?.faults(value).into_iter().next()?;
    let at = if fault.at.is_empty() { "the whole" } else { fault.at.as_str() };
    // Words about a value may quote it.
    let why = if policy.redact.is_empty() { fault.expected.as_ref() } else { "not shown" };
    Some(format!("not what was promised: at {at}, expected {why}"))
}

/// The first characters of a body, for a message; nothing where a redaction might have been meant for them.
fn shown(policy: &ResultPolicy, body: &[u8]) -> String {
    if policy.redact.is_empty() {
        let start: String = String::from_utf8_lossy(body).chars().take(SHOWN).collect();
        clean(&start)
    } else {
        format!("{} bytes, not shown", body.len())
    }
}

/// What the tool said beside a status that is no success: redacted, or withheld where it cannot be.
pub(super) fn error_text(policy: &ResultPolicy, body: &[u8]) -> String {
    if policy.redact.is_empty() {
        return String::from_utf8_lossy(body).into_owned();
    }
    match strict_json::parse(body, Limits::answer(body.len())) {
        Ok(mut value) => {
            redact(&mut value, &policy.redact);
            value.to_string()
        }
        Err(_) if body.iter().all(u8::is_ascii_whitespace) => String::new(),
        Err(_) => "(its text is withheld: it cannot be redacted)".into(),
    }
}

pub(super) fn reduced(policy: &ResultPolicy, value: Value) -> Value {
    let mut value = if policy.select.is_empty() {
        value
    } else {
        let paths: Vec<&[Segment]> = policy.select.iter().map(|path| path.0.as_slice()).collect();
        select(value, &paths).unwrap_or(Value::Null)
    };
    redact(&mut value, &policy.redact);
    value
}

/// Keeps what the paths name, in place; `None` = nothing of it. Objects and lists on the way stay.
fn select(value: Value, paths: &[&[Segment]]) -> Option<Value> {
    if paths.iter().any(|path| path.is_empty()) {
        return Some(value);
    }
    let below = |is: &dyn Fn(&str) -> bool| -> Vec<&[Segment]> {
        paths
            .iter()
            .filter_map(|path| match path.split_first() {
                Some((Segment::Name(name), rest)) if is(name) => Some(rest),
                Some((Segment::Any, rest)) => Some(rest),
                // The policy refuses `**` in `select`; it keeps nothing.
                Some((Segment::Name(_) | Segment::Deep, _)) | None => None,
            })
            .collect()
    };
    match value {
        Value::Object(map) => {
            let mut kept = Map::new();
            for (name, value) in map {
                let rest = below(&|wanted| wanted == name);
                if !rest.is_empty()
                    && let Some(value) = select(value, &rest)
                {
                    kept.insert(name, value);
                }
            }
            Some(Value::Object(kept))
        }
        Value::Array(items) => {
            let keep = items.into_iter().enumerate().filter_map(|(at, item)| {
                let rest = below(&|wanted| wanted.parse() == Ok(at));
                if rest.is_empty() { None } else { select(item, &rest) }
            });
            Some(Value::Array(keep.collect()))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

fn redact(value: &mut Value, paths: &[Path]) {
    for path in paths {
        blot(value, &path.0);
    }
}

fn blot(value: &mut Value, path: &[Segment]) {
    let Some((first, rest)) = path.split_first() else {
        *value = Value::String(REDACTED.into());
        return;
    };
    match first {
        Segment::Name(name) => match value {
            Value::Object(map) => {
                if let Some(value) = map.get_mut(name.as_str()) {
                    blot(value, rest);
                }
            }
            Value::Array(items) => {
                if let Some(value) = name.parse().ok().and_then(|at: usize| items.get_mut(at)) {
                    blot(value, rest);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        },
        Segment::Any => children(value, |child| blot(child, rest)),
        Segment::Deep => {
            children(value, |child| blot(child, path));
            blot(value, rest);
        }
    }
}

fn children(value: &mut Value, mut each: impl FnMut(&mut Value)) {
    match value {
        Value::Object(map) => map.values_mut().for_each(&mut each),
        Value::Array(items) => items.iter_mut().for_each(&mut each),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A text result. Bytes that are no text of their charset become U+FFFD; JSON in it is redacted as JSON.
fn text(policy: &ResultPolicy, headers: &HeaderMap, body: &[u8]) -> String {
    if !policy.redact.is_empty()
        && let Ok(mut value) = strict_json::parse(body, Limits::answer(body.len()))
    {
        redact(&mut value, &policy.redact);
        return value.to_string();
    }
    if is_latin1(headers) {
        return body.iter().copied().map(char::from).collect();
    }
    String::from_utf8_lossy(body).into_owned()
}

/// Within `max`, or a cut text, or a failure, as the policy says.
fn fitted(
    policy: &ResultPolicy,
    status: u16,
    whole: Bytes,
) -> Result<(Content, Option<Truncated>), Failed> {
    if whole.len() <= policy.max {
        return Ok((
            Content { bytes: whole, form: if policy.json { Form::Json } else { Form::Text } },
            None,
        ));
    }
    if policy.fail_on_oversize {
        let why =
            format!("the tool's result has {} bytes, the limit is {}", whole.len(), policy.max);
        return Err(classify::too_large(status, &why, Verdict::Good));
    }
    let text = String::from_utf8_lossy(&whole);
    let kept = text.floor_char_boundary(policy.max);
    let truncated = Truncated { total: whole.len() as u64, kept: kept as u64 };
    // A copy: a slice would hold on to the whole answer as long as what was kept of it is remembered.
    let bytes = Bytes::copy_from_slice(whole.get(..kept).unwrap_or_default());
    // A cut JSON text is no JSON any more.
    Ok((Content { bytes, form: Form::Text }, Some(truncated)))
}

/// Fields of the connection, not of the answer, and those that no longer fit the content (RFC 9110 §7.6.1).
fn end_to_end(mut headers: HeaderMap) -> HeaderMap {
    const GONE: [HeaderName; 11] = [
        CONNECTION,
        CONTENT_ENCODING,
        CONTENT_LENGTH,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
    ];
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        // A list element that is no field name names nothing.
        .flat_map(|list| list.split(',').filter_map(|name| name.trim().parse().ok()))
        .collect();
    let there =
        |name: &HeaderName| GONE.contains(name) || named.contains(name) || name == "http2-settings";
    let gone: Vec<HeaderName> = headers.keys().filter(|name| there(name)).cloned().collect();
    for name in gone {
        drop(headers.remove(name));
    }
    headers
}

/// Type and subtype; "" when there is none.
fn media(headers: &HeaderMap) -> &str {
    let text = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim()
}

fn is_json(media: &str) -> bool {
    let suffix = media.len().checked_sub("+json".len()).and_then(|at| media.get(at..));
    ["application/json", "text/json"].iter().any(|known| media.eq_ignore_ascii_case(known))
        || suffix.is_some_and(|suffix| suffix.eq_ignore_ascii_case("+json"))
}

fn is_latin1(headers: &HeaderMap) -> bool {
    let text = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(';').skip(1).any(|parameter| {
        let parameter = parameter.trim().to_ascii_lowercase();
        matches!(
            parameter.strip_prefix("charset=").map(|name| name.trim_matches('"')),
            Some("iso-8859-1" | "latin1")
        )
    })
}

#[cfg(test)]
mod tests;
