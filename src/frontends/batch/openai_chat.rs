//! OpenAI Chat Completions: `choices[0].message` in, `role: tool` messages out.
//! Arguments are JSON in a string, parsed a second time, strictly.

use serde_json::Value;

use super::place::{BadShape, Place};
use super::{payload, text_of};
use crate::call::arguments::kind_of;
use crate::call::batch::{Asked, Turn};
use crate::call::{Digest, Fault, Malformed, Payload};
use crate::engine::Answer;
use crate::strict_json::Limits;
use crate::strict_json::object::Object;

pub(super) fn turn(body: &Place<'_>, limits: Limits) -> Result<Turn, BadShape> {
    if body.member("choices")?.is_some() {
        return Err(body.bad("is a whole completion; send its `choices[0].message`"));
    }
    if let Some(role) = body.member("role")?
        && role.text()? != "assistant"
    {
        return Err(role.bad("must be \"assistant\""));
    }
    if let Some(legacy) = body.member("function_call")? {
        return Err(
            legacy.bad("is a call without an id; let the model use `tools`, not `functions`")
        );
    }
    let mut turn = Turn { text: text(body)?, calls: Vec::new() };
    if let Some(calls) = body.member("tool_calls")? {
        for call in calls.items()? {
            turn.calls.push(asked(&call, limits)?);
        }
    }
    Ok(turn)
}

/// `content` as a string or as parts. A refusal is words too: the model has answered.
fn text(body: &Place<'_>) -> Result<String, BadShape> {
    let mut text = String::new();
    if let Some(content) = body.member("content")? {
        match content.value {
            Value::String(whole) => text.push_str(whole),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_) => {
                for part in content.items()? {
                    for name in ["text", "refusal"] {
                        text.push_str(part.text_of(name)?.unwrap_or_default());
                    }
                }
            }
        }
    }
    text.push_str(body.text_of("refusal")?.unwrap_or_default());
    Ok(text)
}

fn asked(call: &Place<'_>, limits: Limits) -> Result<Asked, BadShape> {
    let id = call.id("id")?;
    match call.text_of("type")? {
        None | Some("function") => {
            let function = call.required("function")?;
            let tool = function.required("name")?.text()?.to_owned();
            let payload = arguments(function.member("arguments")?.as_ref(), limits);
            Ok(Asked { id, tool, payload })
        }
        Some(kind) => {
            let named = call.member(kind).ok().flatten();
            let tool = named.and_then(|named| named.text_of("name").ok().flatten());
            let tool = tool.unwrap_or(kind).to_owned();
            Ok(Asked { id, tool, payload: Payload::Unsupported { kind: kind.into() } })
        }
    }
}

/// `arguments` of a function call, absent = none. An object in the place of its text is refused: which of its two
/// spellings was validated would be a guess.
pub(super) fn arguments(member: Option<&Place<'_>>, limits: Limits) -> Payload {
    match member.map(|member| member.value) {
        None => payload(b"", limits),
        Some(Value::String(text)) => payload(text.as_bytes(), limits),
        Some(other) => {
            let text = other.to_string();
            Payload::Malformed(Malformed {
                faults: vec![Fault {
                    at: String::new(),
                    expected: "a JSON object written as a string".into(),
                    got: kind_of(other).into(),
                }],
                digest: Digest::of(text.as_bytes()),
                too_large: None,
                bytes: text.len() as u64,
            })
        }
    }
}

pub(super) fn message(object: &mut Object, answer: &Answer) {
    object.string("role", "tool");
    object.string("tool_call_id", answer.id.as_str());
    object.string("content", &text_of(answer));
}
