//! Outcomes on the MCP wire. A `tools/call` that was parsed is answered with a result, whatever became of it; JSON-RPC
//! errors are for what is wrong with the message, HTTP statuses for what is wrong with the connection.

use serde_json::{Value, json};

use crate::call::code::{DenyCode, FailCode};
use crate::call::{CallError, Denied, Failed, Form, ToolResult};
use crate::engine::{Answer, ToolInfo};
use crate::frontends::render;
use crate::mcp::jsonrpc::{INVALID_PARAMS, INVALID_REQUEST, MISSING_CLIENT_CAPABILITY};
use crate::mcp::messages::ClientCapabilities;
use crate::mcp::{meta, translate};
use crate::strict_json::object::Object;
use crate::strict_json::{self, Limits, top, write};

pub(super) use crate::mcp::meta::OUTCOME;

/// A JSON-RPC error in the making.
#[derive(Debug)]
pub(super) struct RpcError {
    pub(super) code: i64,
    pub(super) message: String,
    pub(super) data: Option<Value>,
    /// HTTP status in revisions without sessions; with sessions it is 200, which no client takes for their end.
    pub(super) status: u16,
}

impl RpcError {
    pub(super) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None, status: 200 }
    }
    #[must_use]
    pub(super) fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }
    #[must_use]
    pub(super) fn data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }
    /// A refusal, with the same object that a result would carry.
    pub(super) fn refused(code: i64, denied: &Denied) -> Self {
        let data = json!({ OUTCOME: outcome_of(denied) });
        Self::new(code, denied.message.to_string()).data(data)
    }
}

/// What a refusal comes to on this wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    /// A result with `isError`.
    Result,
    /// A JSON-RPC error, with its HTTP status in revisions without sessions.
    Error(i64, u16),
    /// HTTP alone.
    Status(u16),
}

/// A row for every code.
pub(super) fn wire_of(code: DenyCode) -> Wire {
    match code {
        DenyCode::Unauthenticated => Wire::Status(401),
        // Not 404: a client with a session reads it as the session's end.
        DenyCode::RunUnknown => Wire::Error(INVALID_PARAMS, 400),
        DenyCode::InvalidRequest => Wire::Error(INVALID_PARAMS, 400),
        DenyCode::MissingCallId | DenyCode::DuplicateCallId | DenyCode::CallIdReused => {
            Wire::Error(INVALID_REQUEST, 400)
        }
        DenyCode::UnsupportedCall
        | DenyCode::UnknownTool
        | DenyCode::ToolNotAllowed
        | DenyCode::ToolQuarantined
        | DenyCode::InvalidArguments
        | DenyCode::ArgumentsTooLarge
        | DenyCode::BudgetExhausted
        | DenyCode::RunInterrupted
        | DenyCode::RepeatBlocked
        | DenyCode::DeadlineExceeded
        | DenyCode::ApprovalRequired
        | DenyCode::ApprovalEdited
        | DenyCode::ApprovalRejected
        | DenyCode::ApprovalExpired
        | DenyCode::HookDenied
        | DenyCode::DryRun
        | DenyCode::RateLimited
        | DenyCode::CircuitOpen
        | DenyCode::ConcurrencyLimited
        | DenyCode::IdempotencyConflict
        | DenyCode::InProgress
        | DenyCode::ReviewRequired
        | DenyCode::SkippedPendingReview
        | DenyCode::SkippedInProgress
        | DenyCode::LedgerUnavailable
        | DenyCode::Draining => Wire::Result,
    }
}

/// A row for every failure: whatever a tool did, a model is answered.
pub(super) fn wire_of_failure(code: FailCode) -> Wire {
    match code {
        FailCode::UpstreamUnreachable
        | FailCode::UpstreamUntrusted
        | FailCode::EgressBlocked
        | FailCode::CredentialUnavailable
        | FailCode::UpstreamRefusedStream
        | FailCode::ToolError
        | FailCode::RateLimited
        | FailCode::ToolUnavailable
        | FailCode::UpstreamRedirect
        | FailCode::UpstreamTimeout
        | FailCode::UpstreamReset
        | FailCode::UpstreamProtocolError
        | FailCode::ResultLost
        | FailCode::ResultTooLarge
        | FailCode::ResultWithheld
        | FailCode::Internal => Wire::Result,
    }
}

/// The answer object of a refusal that belongs to no call.
pub(super) fn outcome_of(denied: &Denied) -> Value {
    tree(&render::whole_refusal(denied))
}

/// Of bytes that we wrote ourselves.
fn tree(json: &[u8]) -> Value {
    strict_json::parse(json, Limits::answer(json.len())).unwrap_or(Value::Null)
}

/// Who answers, as revisions without sessions want it said in every result.
pub(super) fn server_info() -> Value {
    json!({"name": "checkrein", "title": "Checkrein", "version": env!("CARGO_PKG_VERSION")})
}

/// What a call came to: the JSON text of a result, or an error. `declared`: what this agent can be asked.
pub(super) fn answered(
    answer: &Answer,
    tool: Option<&ToolInfo>,
    modern: bool,
    declared: &Value,
) -> Result<Vec<u8>, RpcError> {
    match &answer.outcome {
        Ok(result) => Ok(success(answer, result, modern)),
        Err(CallError::Denied(denied)) => match wire_of(denied.code) {
            Wire::Result => Ok(refusal(answer, tool, modern)),
            Wire::Error(code, status) => Err(RpcError::refused(code, denied).status(status)),
            Wire::Status(status) => Err(RpcError::refused(INVALID_REQUEST, denied).status(status)),
        },
        Err(CallError::Failed(failed)) => match wire_of_failure(failed.code) {
            Wire::Result | Wire::Error(..) | Wire::Status(_) => {
                let lacks = failed
                    .requires
                    .as_deref()
                    .filter(|requires| modern && !ClientCapabilities::of(declared).cover(requires));
                match lacks {
                    Some(requires) => Err(lacking(answer, failed, requires)),
                    None => Ok(failure(answer, failed, tool, modern)),
                }
            }
        },
        Err(CallError::Unknown(_)) => Ok(refusal(answer, tool, modern)),
    }
}

/// A question of ours in place of a refusal, and the refusal beside it.
pub(super) fn question(answer: &Answer, mut result: Value) -> Vec<u8> {
    meta::put(&mut result, meta::OUTCOME, tree(&render::answer(answer)));
    for_the_hop("tools/call", &mut result, true);
    result.to_string().into_bytes()
}

/// The agent would have to declare more for this tool to work: an error that its client acts on (2026-07-28, "Missing
/// Required Client Capability"). Where it has declared it all, it is the policy that lets nobody be asked.
fn lacking(answer: &Answer, failed: &Failed, requires: &Value) -> RpcError {
    let outcome = tree(&render::answer(answer));
    let data = json!({"requiredCapabilities": requires, OUTCOME: outcome});
    RpcError::new(MISSING_CLIENT_CAPABILITY, failed.message.clone()).data(data).status(400)
}

/// Our own words. Text and structure, because clients drop the structure of errors; the structure is left out where the
/// listed tool has an `outputSchema`, by which clients judge it whenever it is there.
fn refusal(answer: &Answer, tool: Option<&ToolInfo>, modern: bool) -> Vec<u8> {
    let object = render::answer(answer);
    let text = String::from_utf8_lossy(&object);
    let promised = tool.is_some_and(promises_structure);
    result(&text, (!promised).then_some(&*object), &object, true, modern)
}

fn promises_structure(tool: &ToolInfo) -> bool {
    tool.definition.as_deref().is_some_and(|definition| definition.get("outputSchema").is_some())
}

fn result(
    text: &str,
    structure: Option<&[u8]>,
    outcome: &[u8],
    is_error: bool,
    modern: bool,
) -> Vec<u8> {
    let mut object = Object::with_capacity(2 * text.len() + 512);
    if modern {
        object.string("resultType", "complete");
    }
    object.objects("content", &[text], |block, text| {
        block.string("type", "text");
        block.string("text", text);
    });
    if let Some(structure) = structure {
        object.raw_bytes("structuredContent", structure);
    }
    object.bool("isError", is_error);
    object.nested("_meta", |own| {
        own.raw_bytes(OUTCOME, outcome);
        if modern {
            own.raw(meta::SERVER_INFO, &server_info().to_string());
        }
    });
    object.finish()
}

fn failure(answer: &Answer, failed: &Failed, tool: Option<&ToolInfo>, modern: bool) -> Vec<u8> {
    let own = failed.answer.as_ref().filter(|own| own.form == Form::Mcp);
    match own.and_then(|own| passed(&own.bytes, &render::answer(answer), modern)) {
        Some(own) => own,
        None => refusal(answer, tool, modern),
    }
}

fn success(answer: &Answer, result: &ToolResult, modern: bool) -> Vec<u8> {
    let beside = render::beside_value(answer, result);
    let bytes = &result.content.bytes;
    if result.content.form == Form::Mcp
        && let Some(passed) = passed(bytes, &beside, modern)
    {
        return passed;
    }
    let text = String::from_utf8_lossy(bytes);
    match result.content.form {
        Form::Mcp => self::result(&text, None, &beside, false, modern),
        Form::Text => self::result(&text, None, &beside, false, modern),
        Form::Json if bytes.is_empty() => self::result("null", None, &beside, false, modern),
        Form::Json => {
            let is_object = text.trim_start().starts_with('{');
            let structure = (is_object || modern).then_some(&**bytes);
            self::result(&text, structure, &beside, false, modern)
        }
    }
}

/// A server's own result, unchanged but for what belongs to the hop. `None`: it is no object.
fn passed(bytes: &[u8], outcome: &[u8], modern: bool) -> Option<Vec<u8>> {
    if !modern && let Some(text) = beside(bytes, outcome) {
        return Some(text);
    }
    let mut result = strict_json::parse(bytes, Limits::answer(bytes.len())).ok()?;
    if !result.is_object() {
        return None;
    }
    meta::to_agent(&mut result);
    meta::put(&mut result, meta::OUTCOME, tree(outcome));
    for_the_hop("tools/call", &mut result, modern);
    Some(write::text(&result))
}

/// The same for most results of agents with sessions, without reading them again: nothing of the hop is in them, and they
/// have no `_meta` yet. `None`: it has to be looked at.
fn beside(result: &[u8], outcome: &[u8]) -> Option<Vec<u8>> {
    let members = top::members(result)?;
    let as_it_is = |member: &top::Member<'_>| match member.name {
        b"_meta" | b"resultType" => false,
        b"structuredContent" => member.begins == b'{',
        name => !name.contains(&b'\\'),
    };
    if !members.iter().all(as_it_is) {
        return None;
    }
    let mut text = Vec::with_capacity(result.len() + outcome.len() + 64);
    text.extend_from_slice(result.get(..result.len() - 1)?);
    if !members.is_empty() {
        text.push(b',');
    }
    text.extend_from_slice(b"\"_meta\":{\"");
    text.extend_from_slice(OUTCOME.as_bytes());
    text.extend_from_slice(b"\":");
    text.extend_from_slice(outcome);
    text.extend_from_slice(b"}}");
    Some(text)
}

/// What a revision wants in every result, or does not know.
pub(super) fn for_the_hop(method: &str, result: &mut Value, modern: bool) {
    if modern {
        translate::result_to_modern(method, result);
        meta::put(result, meta::SERVER_INFO, server_info());
    } else {
        translate::result_to_legacy(method, result);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::call::{
        CallId, Class, Content, Delivery, Effect, IdempotencyKey, Notes, Source, ToolName, Unknown,
        Verdict,
    };

    fn answer(outcome: crate::call::Outcome) -> Answer {
        Answer {
            id: CallId::new("c1").expect("id"),
            tool: ToolName::new("t").expect("name"),
            outcome,
            attempts: 1,
            operation: None,
            alternatives: Vec::new(),
        }
    }

    fn tool(definition: Value) -> ToolInfo {
        ToolInfo {
            name: ToolName::new("t").expect("name"),
            description: "".into(),
            schema: Arc::new(json!({"type": "object"})),
            effect: Effect::Read,
            title: None,
            definition: Some(Arc::new(definition)),
        }
    }

    /// A refusal says itself three times over: as text, as structure, beside both.
    fn says(answer: &Answer, code: &str) {
        let own = tree(&render::answer(answer));
        let result = tree(&answered(answer, None, false, &Value::Null).expect(code));
        let text = result["content"][0]["text"].as_str().expect("text");
        assert_eq!(tree(text.as_bytes()), own, "{code}");
        assert_eq!((&result["structuredContent"], &result["_meta"][OUTCOME]), (&own, &own));
        assert_eq!((&result["isError"], &own["error"]), (&json!(true), &json!(code)));
        assert!(result.get("resultType").is_none(), "{code}");
        let promised = tool(json!({"outputSchema": {"type": "object"}}));
        let result = tree(&answered(answer, Some(&promised), true, &Value::Null).expect(code));
        assert!(result.get("structuredContent").is_none(), "{code}: by it a client would judge");
        assert_eq!(result["resultType"], "complete");
    }

    #[test]
    fn every_code_has_its_form() {
        let unknown = Unknown {
            key: IdempotencyKey::restored([7; 32]),
            operation: IdempotencyKey::restored([7; 32]).id(),
            health: Verdict::Bad,
            message: "no answer".into(),
        };
        says(&answer(Err(unknown.into())), "outcome_unknown");
        for code in FailCode::ALL {
            let (class, delivery) = (Class::Permanent, Delivery::Done);
            let failed = Failed::new(*code, class, delivery, Verdict::Neutral, "why");
            says(&answer(Err(failed.into())), code.as_str());
        }
        for code in DenyCode::ALL {
            let answer = answer(Err(Denied::new(*code, "why").into()));
            match wire_of(*code) {
                Wire::Result => says(&answer, code.as_str()),
                Wire::Error(rpc, status) => {
                    let error =
                        answered(&answer, None, true, &Value::Null).expect_err(code.as_str());
                    assert_eq!((error.code, error.status), (rpc, status));
                    assert_eq!(error.data.expect("data")[OUTCOME]["error"], code.as_str());
                }
                Wire::Status(status) => {
                    assert_eq!(
                        answered(&answer, None, true, &Value::Null).expect_err("no result").status,
                        status
                    );
                }
            }
        }
    }

    #[test]
    fn a_result_of_an_http_tool_is_a_text_block_and_structure_where_the_revision_takes_it() {
        let of = |text: &str, form, modern| {
            let content = Content { bytes: text.to_owned().into(), form };
            let (source, notes) = (Source::Tool, Notes::default());
            let result = ToolResult { head: None, content, source, notes };
            tree(&answered(&answer(Ok(result)), None, modern, &Value::Null).expect("a result"))
        };
        let object = of(r#"{"n": 1.50}"#, Form::Json, false);
        assert_eq!(object["content"][0]["text"], r#"{"n": 1.50}"#, "as it came");
        assert_eq!(object["structuredContent"].to_string(), r#"{"n":1.50}"#);
        assert!(of("[1]", Form::Json, false).get("structuredContent").is_none());
        assert_eq!(of("[1]", Form::Json, true)["structuredContent"], json!([1]));
        assert_eq!(of("", Form::Json, false)["content"][0]["text"], "null");
        let text = of("plain\n", Form::Text, true);
        assert_eq!(text["content"][0]["text"], "plain\n");
        assert!(text.get("structuredContent").is_none());
    }

    #[test]
    fn what_an_agent_lacks_is_an_error_that_its_client_acts_on() {
        let of = |declared: Value, modern| {
            let (class, delivery) = (Class::Permanent, Delivery::Refused);
            let mut failed = Failed::new(
                FailCode::ToolError,
                class,
                delivery,
                Verdict::Neutral,
                "needs a model",
            );
            failed.requires = Some(Box::new(json!({"sampling": {}})));
            answered(&answer(Err(failed.into())), None, modern, &declared)
        };
        let error = of(json!({"elicitation": {}}), true).expect_err("an error");
        assert_eq!((error.code, error.status), (MISSING_CLIENT_CAPABILITY, 400));
        let data = error.data.expect("data");
        assert_eq!(data["requiredCapabilities"], json!({"sampling": {}}));
        assert_eq!(data[OUTCOME]["executed"], "no");
        for (declared, modern) in [(json!({"sampling": {}}), true), (json!({}), false)] {
            let result = tree(&of(declared, modern).expect("a result"));
            assert_eq!(result["isError"], true, "words for a model: declaring more would not help");
        }
    }
}
