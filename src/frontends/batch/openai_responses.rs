//! OpenAI Responses: `{"output":[…]}` in, `function_call_output` items out.
//! A call is paired by its `call_id`, not by its item's `id`. Other items are passed over.

use super::openai_chat::arguments;
use super::place::{BadShape, Place};
use super::text_of;
use crate::call::Payload;
use crate::call::batch::{Asked, Turn};
use crate::engine::Answer;
use crate::strict_json::Limits;
use crate::strict_json::object::Object;

pub(super) fn turn(body: &Place<'_>, limits: Limits) -> Result<Turn, BadShape> {
    let mut turn = Turn::default();
    for item in body.required("output")?.items()? {
        match item.required("type")?.text()? {
            "function_call" => turn.calls.push(Asked {
                id: item.id("call_id")?,
                tool: item.required("name")?.text()?.to_owned(),
                payload: arguments(item.member("arguments")?.as_ref(), limits),
            }),
            "message" => turn.text.push_str(&text(&item)?),
            kind if kind.ends_with("_call") => turn.calls.push(Asked {
                id: match item.id("call_id")? {
                    Some(id) => Some(id),
                    None => item.id("id")?,
                },
                tool: item.text_of("name")?.unwrap_or(kind).to_owned(),
                payload: Payload::Unsupported { kind: kind.into() },
            }),
            // Reasoning and whatever else is no call and no words.
            _ => {}
        }
    }
    Ok(turn)
}

/// `output_text` and `refusal` parts of a message.
fn text(message: &Place<'_>) -> Result<String, BadShape> {
    let mut text = String::new();
    if let Some(content) = message.member("content")? {
        for part in content.items()? {
            for name in ["text", "refusal"] {
                text.push_str(part.text_of(name)?.unwrap_or_default());
            }
        }
    }
    Ok(text)
}

pub(super) fn message(object: &mut Object, answer: &Answer) {
    object.string("type", "function_call_output");
    object.string("call_id", answer.id.as_str());
    object.string("output", &text_of(answer));
}
