//! An outcome as agents are told it: the answer object, its status, its header fields.
//! The only place that knows HTTP statuses for agents; every match names its arms.

mod reply;

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::call::code::{
    Again, DenyCode, Executed, FailCode, OUTCOME_UNKNOWN, OUTCOME_UNKNOWN_HINT,
    OUTCOME_UNKNOWN_HTTP,
};
use crate::call::{
    CallError, CallId, Class, Delivery, Denied, Detail, Failed, Fault, Form, Known, LimitedBy,
    Rate, Source, ToolName, ToolResult, Unknown, judge,
};
use crate::engine::Answer;
use crate::strict_json::object::{Object, push_number};
pub(super) use reply::{Problem, Reply};

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// When a refusal that passes by itself names no time.
const A_WHILE: Duration = Duration::from_secs(1);

/// Status of an answer at the tools API.
pub(super) fn status(error: &CallError) -> StatusCode {
    let number = match error {
        CallError::Denied(denied) => denied.code.http(),
        CallError::Failed(failed) => failed.code.http(),
        CallError::Unknown(_) => OUTCOME_UNKNOWN_HTTP,
    };
    status_of(number)
}

pub(super) fn status_of(number: u16) -> StatusCode {
    StatusCode::from_u16(number).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// The answer object of one call, as JSON text. The same bytes whatever front end carries them.
pub(super) fn answer(answer: &Answer) -> Vec<u8> {
    match &answer.outcome {
        Ok(result) => success(answer, result),
        Err(error) => refusal(error, Some(answer)).finish(),
    }
}

fn success(answer: &Answer, result: &ToolResult) -> Vec<u8> {
    let mut object = Object::with_capacity(result.content.bytes.len() + 128);
    object.bool("ok", true);
    match (result.content.form, std::str::from_utf8(&result.content.bytes)) {
        // A result's own text: its digits and the order of its members stay as the tool sent them.
        (Form::Json, Ok(text)) if !text.is_empty() => object.raw("value", text),
        (Form::Json, Ok(_)) => object.raw("value", "null"),
        (Form::Text, Ok(text)) => object.string("value", text),
        (Form::Mcp, Ok(_)) => {
            let value = result.content.value().unwrap_or(serde_json::Value::Null);
            object.raw("value", &value.to_string());
        }
        (Form::Json | Form::Text | Form::Mcp, Err(_)) => {
            object.string("value", &String::from_utf8_lossy(&result.content.bytes));
        }
    }
    success_facts(&mut object, answer, result);
    object.finish()
}

/// What is told of a success whose value stands elsewhere (an MCP result passes as it is).
pub(super) fn beside_value(answer: &Answer, result: &ToolResult) -> Vec<u8> {
    let mut object = Object::with_capacity(128);
    object.bool("ok", true);
    success_facts(&mut object, answer, result);
    object.finish()
}

fn success_facts(object: &mut Object, answer: &Answer, result: &ToolResult) {
    object.string("call", answer.id.as_str());
    object.number("attempts", u64::from(answer.attempts));
    match result.source {
        Source::Tool | Source::Cache => {}
        Source::Ledger => object.bool("replayed", true),
        Source::StaleCache => object.bool("stale", true),
    }
    let notes = &result.notes;
    if let Some(age) = notes.age {
        object.number("age_ms", millis(age));
    }
    if let Some(cut) = notes.truncated {
        object.nested("truncated", |o| {
            o.number("bytes", cut.total);
            o.number("kept", cut.kept);
        });
    }
    if notes.accepted {
        object.bool("accepted", true);
    }
    if let Some(earlier) = &notes.identical_to {
        object.string("identical_to", &earlier.to_string());
    }
}

/// The facts of a refusal or failure, in one shape.
struct Told<'a> {
    code: &'static str,
    message: &'a str,
    executed: Executed,
    again: Again,
    hint: &'static str,
    retry_after: Option<Duration>,
    detail: &'a Detail,
}

fn told(error: &CallError, is_write: bool) -> Told<'_> {
    match error {
        CallError::Denied(denied) => told_denied(denied),
        CallError::Failed(failed) => told_failed(failed, error, is_write),
        CallError::Unknown(unknown) => told_unknown(unknown, error),
    }
}

fn told_denied(denied: &Denied) -> Told<'_> {
    let (executed, again) = match &denied.detail {
        // Isolated by hand: only a person lets calls through again.
        Detail::Circuit { isolated: true, .. } => (denied.code.executed(), Again::Person),
        Detail::Changed { executed: true, .. } => (Executed::Yes, denied.code.again()),
        Detail::None
        | Detail::Faults(_)
        | Detail::Tools(_)
        | Detail::Budget { .. }
        | Detail::Limited { .. }
        | Detail::Circuit { isolated: false, .. }
        | Detail::Fuse { .. }
        | Detail::Operation(_)
        | Detail::Approval { .. }
        | Detail::Changed { executed: false, .. }
        | Detail::Size { .. } => (denied.code.executed(), denied.code.again()),
    };
    let (executed, again) =
        denied.known.map_or((executed, again), |known| (known.executed(), known.again(again)));
    let retry_after = match again {
        Again::After => Some(denied.retry_after.unwrap_or(A_WHILE)),
        Again::Never | Again::Changed | Again::Person => None,
    };
    // "Try again later" would be a lie where no time brings the tool back.
    let by_hand = matches!(denied.detail, Detail::Circuit { isolated: true, .. });
    let hint = if by_hand { DenyCode::ToolQuarantined.hint() } else { denied.code.hint() };
    let hint = denied.known.and_then(Known::hint).unwrap_or(hint);
    Told {
        code: denied.code.as_str(),
        message: sentence(&denied.message, hint),
        executed,
        again,
        hint,
        retry_after,
        detail: &denied.detail,
    }
}

fn told_failed<'a>(failed: &'a Failed, error: &CallError, is_write: bool) -> Told<'a> {
    let (again, hint) = match (failed.code, failed.class, failed.delivery) {
        // A read may fetch a lost result again; it changes nothing.
        (FailCode::ResultLost, Class::Transient, _) => {
            (Again::After, "the result was lost on its way; try again")
        }
        // "Ask for less" would be a second write.
        (FailCode::ResultTooLarge, _, Delivery::Done) if is_write => {
            (Again::Never, FailCode::ResultLost.hint())
        }
        (code, _, _) => (code.again(), code.hint()),
    };
    let default = (failed.code == FailCode::RateLimited).then_some(A_WHILE);
    Told {
        code: failed.code.as_str(),
        message: sentence(&failed.message, failed.code.hint()),
        executed: judge::executed(error),
        again,
        hint,
        retry_after: if again == Again::After { failed.retry_after.or(default) } else { None },
        detail: &Detail::None,
    }
}

fn told_unknown<'a>(unknown: &'a Unknown, error: &CallError) -> Told<'a> {
    Told {
        code: OUTCOME_UNKNOWN,
        message: sentence(&unknown.message, OUTCOME_UNKNOWN_HINT),
        executed: judge::executed(error),
        again: Again::Person,
        hint: OUTCOME_UNKNOWN_HINT,
        retry_after: None,
        detail: &Detail::None,
    }
}

/// No answer is empty: without words of its own it says the hint's.
fn sentence<'a>(message: &'a str, hint: &'a str) -> &'a str {
    if message.trim().is_empty() { hint } else { message }
}

/// The failure object; `call` only where there is one.
fn refusal(error: &CallError, answer: Option<&Answer>) -> Object {
    let told = told(error, answer.is_some_and(|answer| answer.operation.is_some()));
    let mut object = Object::with_capacity(512);
    members(&mut object, &told, answer.map(|answer| &answer.id));
    match error {
        CallError::Denied(_) => {}
        CallError::Failed(failed) if failed.code == FailCode::RateLimited => {
            object.string("limited_by", LimitedBy::Tool.as_str());
        }
        CallError::Failed(_) => {}
        CallError::Unknown(_) => {}
    }
    detail(&mut object, told.detail);
    let operation = match (error, told.detail) {
        (CallError::Unknown(unknown), _) => Some(&unknown.operation),
        (_, Detail::Operation(operation)) => Some(operation),
        _ => answer.and_then(|answer| answer.operation.as_ref()),
    };
    if let Some(operation) = operation {
        object.string("operation", &operation.to_string());
        if matches!(error, CallError::Denied(Denied { known: Some(Known::Identical), .. })) {
            object.string("identical_to", &operation.to_string());
        }
    }
    let named: &[ToolName] = if let Detail::Tools(names) = told.detail { names } else { &[] };
    let suggested = answer.map_or(&[][..], |answer| &answer.alternatives);
    let alternatives: Vec<&str> = named
        .iter()
        .chain(suggested.iter().filter(|name| !named.contains(name)))
        .map(ToolName::as_str)
        .collect();
    // `alternatives: []` after `unknown_tool` is an answer too: there is nothing to choose.
    if !alternatives.is_empty() || matches!(told.detail, Detail::Tools(_)) {
        object.strings("alternatives", alternatives.iter().copied());
    }
    faults(&mut object, told.detail);
    object
}

fn members(object: &mut Object, told: &Told<'_>, call: Option<&CallId>) {
    object.bool("ok", false);
    object.string("error", told.code);
    object.string("message", told.message);
    object.string("executed", told.executed.as_str());
    object.string("retry", told.again.as_str());
    if let Some(wait) = told.retry_after {
        object.number("retry_after_ms", millis(wait));
    }
    object.string("hint", told.hint);
    if let Some(call) = call {
        object.string("call", call.as_str());
    }
}

fn detail(object: &mut Object, detail: &Detail) {
    match detail {
        Detail::Budget { dimension, .. } => object.string("dimension", dimension.as_str()),
        Detail::Limited { by, .. } => object.string("limited_by", by.as_str()),
        Detail::Approval { id, left } => {
            object.string("approval", id.as_str());
            if let Some(left) = left {
                object.number("expires_in_ms", millis(*left));
            }
        }
        Detail::None
        | Detail::Faults(_)
        | Detail::Tools(_)
        | Detail::Circuit { .. }
        | Detail::Fuse { .. }
        | Detail::Operation(_)
        | Detail::Changed { .. }
        | Detail::Size { .. } => {}
    }
}

fn faults(object: &mut Object, detail: &Detail) {
    let list = match detail {
        Detail::Faults(faults) => faults.clone(),
        Detail::Changed { pointers, .. } => pointers
            .iter()
            .map(|at| Fault {
                at: at.clone(),
                expected: "the value this operation began with".into(),
                got: "another value".into(),
            })
            .collect(),
        Detail::Size { is, limit } => vec![Fault {
            at: String::new(),
            expected: format!("at most {limit} bytes").into(),
            got: format!("{is} bytes").into(),
        }],
        Detail::None
        | Detail::Tools(_)
        | Detail::Budget { .. }
        | Detail::Limited { .. }
        | Detail::Circuit { .. }
        | Detail::Fuse { .. }
        | Detail::Operation(_)
        | Detail::Approval { .. } => return,
    };
    object.objects("faults", &list, |o, fault| {
        o.string("at", &fault.at);
        o.string("expected", &fault.expected);
        o.string("got", &fault.got);
    });
}

/// The answer object of a refusal that belongs to no call: of a whole batch.
pub(super) fn whole_refusal(denied: &Denied) -> Vec<u8> {
    whole(&CallError::Denied(denied.clone()))
}

/// The answer object of what failed without being a call.
pub(super) fn whole(error: &CallError) -> Vec<u8> {
    refusal(error, None).finish()
}

/// Rounded up: never back too early. 0.3 ms is 1.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

/// `Retry-After` (RFC 9110 §10.2.3) in whole seconds, at least 1; `RateLimit` and `RateLimit-Policy`
/// (draft-ietf-httpapi-ratelimit-headers).
fn limit_fields(headers: &mut HeaderMap, retry_after: Option<Duration>, rate: Option<&Rate>) {
    let mut wait = retry_after.map(|wait| seconds(wait).max(1));
    if let Some(rate) = rate {
        let reset = seconds(rate.reset);
        let (left, most) = (u64::from(rate.remaining), u64::from(rate.limit));
        limit_field(headers, RATE_LIMIT, rate, (";r=", left), (";t=", reset));
        limit_field(
            headers,
            RATE_LIMIT_POLICY,
            rate,
            (";q=", most),
            (";w=", seconds(rate.window).max(1)),
        );
        wait = wait.map(|wait| wait.max(reset));
    }
    if let Some(wait) = wait {
        headers.insert(RETRY_AFTER, HeaderValue::from(wait));
    }
}

/// A limiter's name as a string of RFC 8941, and two parameters.
fn limit_field(
    headers: &mut HeaderMap,
    name: HeaderName,
    rate: &Rate,
    first: (&str, u64),
    second: (&str, u64),
) {
    let mut text = Vec::with_capacity(64);
    text.push(b'"');
    for byte in rate.name.as_str().bytes() {
        if matches!(byte, b'"' | b'\\') {
            text.push(b'\\');
        }
        text.push(byte);
    }
    text.push(b'"');
    for (parameter, value) in [first, second] {
        text.extend_from_slice(parameter.as_bytes());
        push_number(&mut text, value);
    }
    if let Ok(value) = HeaderValue::from_bytes(&text) {
        headers.insert(name, value);
    }
}

pub(super) fn field(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    // Names of limiters are of the policy's alphabet; one that is not is left out rather than sent broken.
    if let Ok(value) = HeaderValue::from_str(text) {
        headers.insert(name, value);
    }
}

/// `RateLimit` and `RateLimit-Policy` of an answer that a bucket has passed.
pub(super) fn rate_fields(headers: &mut HeaderMap, outcome: &crate::call::Outcome) {
    if let Some(rate) = rate_of(outcome) {
        limit_fields(headers, None, Some(rate));
    }
}

fn rate_of(outcome: &crate::call::Outcome) -> Option<&Rate> {
    match outcome {
        Ok(result) => result.notes.rate.as_ref(),
        Err(CallError::Denied(denied)) => match &denied.detail {
            Detail::Limited { rate, .. } => rate.as_ref(),
            Detail::None
            | Detail::Faults(_)
            | Detail::Tools(_)
            | Detail::Budget { .. }
            | Detail::Circuit { .. }
            | Detail::Fuse { .. }
            | Detail::Operation(_)
            | Detail::Approval { .. }
            | Detail::Changed { .. }
            | Detail::Size { .. } => None,
        },
        Err(CallError::Failed(_) | CallError::Unknown(_)) => None,
    }
}

#[cfg(test)]
mod tests;
