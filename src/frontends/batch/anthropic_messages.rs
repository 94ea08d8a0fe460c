//! Anthropic Messages: an assistant message in, one user message of `tool_result` blocks out.
//! Arguments arrive as an object; they pass the same strict parse as a text would.

use serde_json::Value;

use super::place::{BadShape, Place};
use super::{payload, text_of};
use crate::call::Payload;
use crate::call::batch::{Asked, Turn};
use crate::engine::Answer;
use crate::strict_json::Limits;
use crate::strict_json::object::Object;

pub(super) fn turn(body: &Place<'_>, limits: Limits) -> Result<Turn, BadShape> {
    if let Some(role) = body.member("role")?
        && role.text()? != "assistant"
    {
        return Err(role.bad("must be \"assistant\""));
    }
    let content = body.required("content")?;
    if let Value::String(text) = content.value {
        return Ok(Turn { text: text.clone(), calls: Vec::new() });
    }
    let mut turn = Turn::default();
    for block in content.items()? {
        match block.required("type")?.text()? {
            "text" => turn.text.push_str(block.required("text")?.text()?),
            "tool_use" => turn.calls.push(Asked {
                id: block.id("id")?,
                tool: block.required("name")?.text()?.to_owned(),
                payload: input(block.member("input")?.as_ref(), limits),
            }),
            kind if kind.ends_with("tool_use") => turn.calls.push(Asked {
                id: block.id("id")?,
                tool: block.text_of("name")?.unwrap_or(kind).to_owned(),
                payload: Payload::Unsupported { kind: kind.into() },
            }),
            // Thinking, results of the provider's own tools, and whatever else is no call and no words.
            _ => {}
        }
    }
    Ok(turn)
}

/// Written out and parsed again, so that depth, size and numbers meet the bounds of arguments, not of the body.
fn input(member: Option<&Place<'_>>, limits: Limits) -> Payload {
    match member {
        None => payload(b"", limits),
        Some(member) => payload(member.value.to_string().as_bytes(), limits),
    }
}

pub(super) fn messages(object: &mut Object, answers: &[Answer]) {
    if answers.is_empty() {
        // A user message without content is refused by the API.
        return object.raw("messages", "[]");
    }
    object.objects("messages", &[answers], |message, answers| {
        message.string("role", "user");
        message.objects("content", answers, |block, answer| {
            block.string("type", "tool_result");
            block.string("tool_use_id", answer.id.as_str());
            block.string("content", &text_of(answer));
            block.bool("is_error", answer.outcome.is_err());
        });
    });
}
