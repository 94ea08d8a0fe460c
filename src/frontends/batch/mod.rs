//! Batches: the model's assistant message in, the messages to append and a loop state out.
//! Three wire forms, each only read and written here; what happens between is the engine's.

mod anthropic_messages;
mod openai_chat;
mod openai_responses;
mod place;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::render::{self, Problem, Reply};
use super::request::Head;
use crate::call::batch::Turn;
use crate::call::canonical::canonical;
use crate::call::code::DenyCode;
use crate::call::turn::LoopState;
use crate::call::{AgentId, Arguments, Denied, Digest, FrontEnd, Payload};
use crate::engine::{Answer, Asker, BodyLimits, Engine, TurnAnswer, TurnAsk};
use crate::strict_json::object::Object;
use crate::strict_json::{self, JsonFault, Limits};
use crate::telemetry::metrics::Metrics;
use place::{BadShape, Place};

/// Who asks, and in which form.
#[derive(Debug)]
pub(super) struct Asking {
    pub(super) agent: AgentId,
    pub(super) head: Head,
    pub(super) form: FrontEnd,
}

/// `POST /v1/batches/{form}`.
pub(super) async fn turn(
    engine: &Arc<Engine>,
    metrics: &Metrics,
    asking: Asking,
    body: &Bytes,
) -> Result<Reply, Problem> {
    let Asking { agent, head, form } = asking;
    if head.caller_key.is_some() || head.call_id.is_some() {
        return Err(Problem::invalid(
            "a batch takes no Idempotency-Key or Checkrein-Call-Id: its calls have ids of their own",
        ));
    }
    let (turn, digest) = match read(form, body, engine.body_limits()) {
        Ok(read) => read,
        Err(refused) => {
            metrics.batch_rejected(refused.reason);
            metrics.batch(LoopState::ProtocolError.as_str());
            return Ok(Reply::protocol_error(protocol_error(&refused.denied)));
        }
    };
    let asker = Asker { agent, run: head.run, timeout: head.timeout, front_end: form, side: None };
    let ask = TurnAsk { asker, turn, digest, unfinished: head.unfinished };
    let answer = engine.turn(ask).await.map_err(Problem::denied)?;
    metrics.batch(answer.state.as_str());
    if let Some(reason) = answer.error.as_ref().and_then(|denied| rejection(denied.code)) {
        metrics.batch_rejected(reason);
    }
    let run = answer.run.clone();
    Ok(shown(form, &answer).run(run))
}

/// Counts a body that never became a message.
pub(super) fn count_body(metrics: &Metrics, problem: &Problem) {
    if problem.is_too_large() {
        metrics.batch_rejected("too_large");
    }
}

/// Why a message was refused whole, as the label of `batch_rejected_total`.
fn rejection(code: DenyCode) -> Option<&'static str> {
    if code == DenyCode::MissingCallId {
        Some("missing_id")
    } else if code == DenyCode::DuplicateCallId {
        Some("duplicate_id")
    } else if code == DenyCode::CallIdReused {
        Some("reused_id")
    } else {
        None
    }
}

/// A message refused whole before the engine saw it.
#[derive(Debug)]
struct Refused {
    reason: &'static str,
    denied: Box<Denied>,
}

impl Refused {
    fn new(reason: &'static str, message: String) -> Self {
        Self { reason, denied: Box::new(Denied::new(DenyCode::InvalidRequest, message)) }
    }
}

impl From<BadShape> for Refused {
    fn from(bad: BadShape) -> Self {
        Self::new("bad_json", format!("{bad}; nothing was run"))
    }
}

impl From<JsonFault> for Refused {
    fn from(fault: JsonFault) -> Self {
        let place = if fault.at.is_empty() { String::new() } else { format!(" (`{}`)", fault.at) };
        Self::new("bad_json", format!("the body is not sound: {fault}{place}; nothing was run"))
    }
}

/// Bytes → message. The digest is of the body's canonical form, so that a re-sent batch is known by it.
fn read(form: FrontEnd, body: &[u8], limits: BodyLimits) -> Result<(Turn, Digest), Refused> {
    // Numbers out of a double's range are one call's fault, not the message's: they are refused with its arguments.
    let whole = Limits::request(limits.request_bytes);
    let tree = strict_json::parse(body, whole)?;
    let digest = Digest::of_parts(&[form.as_str().as_bytes(), &canonical(&tree)]);
    let arguments = Limits::arguments(limits.argument_bytes, limits.argument_depth);
    let body = Place::root(&tree);
    let turn = match form {
        FrontEnd::OpenaiChat => openai_chat::turn(&body, arguments)?,
        FrontEnd::OpenaiResponses => openai_responses::turn(&body, arguments)?,
        FrontEnd::AnthropicMessages => anthropic_messages::turn(&body, arguments)?,
        FrontEnd::ToolsApi | FrontEnd::McpHttp | FrontEnd::McpStdio | FrontEnd::Proxy => {
            Turn::default()
        }
    };
    if turn.calls.len() > limits.batch_calls {
        let message = format!(
            "the message holds {} calls, more than the limit of {}; nothing was run",
            turn.calls.len(),
            limits.batch_calls
        );
        return Err(Refused::new("too_many", message));
    }
    Ok((turn, digest))
}

/// Strictly parsed arguments, or what is wrong with them: that call's own answer.
fn payload(text: &[u8], limits: Limits) -> Payload {
    match Arguments::parse(text, limits) {
        Ok(arguments) => Payload::Arguments(arguments),
        Err(malformed) => Payload::Malformed(malformed),
    }
}

/// A message refused whole.
fn protocol_error(denied: &Denied) -> Vec<u8> {
    let mut object = Object::with_capacity(512);
    object.string("state", LoopState::ProtocolError.as_str());
    object.raw("messages", "[]");
    object.raw_bytes("error", &render::whole_refusal(denied));
    object.finish()
}

fn shown(form: FrontEnd, answer: &TurnAnswer) -> Reply {
    match (&answer.error, answer.state) {
        (Some(denied), _) => Reply::protocol_error(protocol_error(denied)),
        (None, LoopState::ProtocolError) => {
            let denied = Denied::new(
                DenyCode::InvalidRequest,
                "the message holds neither calls nor text; nothing was run",
            );
            Reply::protocol_error(protocol_error(&denied))
        }
        (
            None,
            LoopState::Continue
            | LoopState::Done
            | LoopState::BudgetExhausted
            | LoopState::ReviewRequired
            | LoopState::ApprovalRequired
            | LoopState::Interrupted
            | LoopState::DecisionStall,
        ) => Reply::json(body(form, answer)),
    }
}

fn body(form: FrontEnd, answer: &TurnAnswer) -> Vec<u8> {
    let mut object = Object::with_capacity(1024);
    object.string("state", answer.state.as_str());
    object.string("run", answer.run.as_str());
    object.number("round", answer.round);
    messages(&mut object, form, &answer.answers);
    if let Some(summary) = &answer.summary {
        object.string("summary", summary);
    }
    object.finish()
}

/// One answer per call, in their order, each with its own id, ready to append.
fn messages(object: &mut Object, form: FrontEnd, answers: &[Answer]) {
    match form {
        FrontEnd::OpenaiChat => object.objects("messages", answers, openai_chat::message),
        FrontEnd::OpenaiResponses => object.objects("messages", answers, openai_responses::message),
        FrontEnd::AnthropicMessages => anthropic_messages::messages(object, answers),
        FrontEnd::ToolsApi | FrontEnd::McpHttp | FrontEnd::McpStdio | FrontEnd::Proxy => {
            object.raw("messages", "[]");
        }
    }
}

/// The answer object as the text a message carries.
fn text_of(answer: &Answer) -> String {
    // Built from str pieces only, so it is UTF-8; were it not, the broken bytes show as such.
    String::from_utf8(render::answer(answer))
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Whether a value is absent: a member that is missing and one that is `null` mean the same in all three forms.
fn is_absent(value: Option<&Value>) -> bool {
    value.is_none_or(Value::is_null)
}
