//! What a server answered to `tools/call` → the result, or how it failed. A result passes as the server gave it, equal
//! as JSON; only what the policy takes out of it, and what is not for agents, is missing.

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::backends::answer;
use crate::backends::classify::{self, clean, mcp as judge};
use crate::call::code::FailCode;
use crate::call::{
    Asks, Class, Content, Delivery, ErrorClass, Evidence, Failed, Form, Notes, Side, Source,
    ToolResult, Truncated, Verdict,
};
use crate::mcp::messages::{self, InputRequired, ResultKind};
use crate::mcp::meta::{TRACEPARENT, TRACESTATE, is_traceparent};
use crate::mcp::visible;
use crate::policy::snapshot::{IsError, McpTool, ResultPolicy, Tool};
use crate::strict_json::{self, Limits, write};

/// Members of an agent's `_meta` that go on, bytes of their JSON together.
const MAX_META: usize = 8 * 1024;

/// What an answer is.
#[derive(Debug)]
pub(super) enum Judged {
    Ended(Result<ToolResult, Box<Failed>>),
    /// A modern server wants input before it goes on.
    Asks(Value),
    /// It answered with a task, which the policy takes.
    Task(Value),
}

/// Judges a result. `modern`: the server is of an era that has `resultType`.
pub(super) fn judge(tool: &Tool, mcp: &McpTool, modern: bool, mut result: Value) -> Judged {
    let kind = if modern { ResultKind::of(&result) } else { ResultKind::Complete };
    match kind {
        ResultKind::Complete => {}
        ResultKind::InputRequired => {
            return match InputRequired::of(&result) {
                Ok(_) => Judged::Asks(result),
                Err(wrong) => broken(&format!("`input_required`: {wrong}")),
            };
        }
        ResultKind::Task if mcp.tasks => return Judged::Task(result),
        ResultKind::Task => return broken("a task that was not asked for"),
        ResultKind::Other => return broken("a `resultType` that was not agreed on"),
    }
    if !result.is_object() {
        return broken("a result that is no object");
    }
    strip_meta(&mut result);
    let is_error = messages::is_error(&result);
    if !is_error && let Err(why) = promised(&tool.result, mcp, &result) {
        return broken(&why);
    }
    reduce(&tool.result, &mut result);
    if is_error {
        return Judged::Ended(Err(Box::new(tool_error(tool, mcp, &result))));
    }
    Judged::Ended(fitted(&tool.result, mcp.output_schema, result).map_err(Box::new))
}

/// What the policy promises of a success, where it does: JSON, and what `expect` says of it. Structured content is
/// meant, else the text. Without a promise a result passes as its server gave it.
fn promised(policy: &ResultPolicy, mcp: &McpTool, result: &Value) -> Result<(), String> {
    if policy.expect.is_none() && !(mcp.format_written && policy.json) {
        return Ok(());
    }
    let of_text = || {
        let value = content(result).value()?;
        let text = value.as_str()?;
        strict_json::parse(text.as_bytes(), Limits::answer(text.len())).ok()
    };
    let value = result.get("structuredContent").cloned().or_else(of_text);
    let value = value.ok_or("no JSON where JSON was promised")?;
    answer::unexpected(policy, &value).map_or(Ok(()), Err)
}

fn broken(why: &str) -> Judged {
    Judged::Ended(Err(Box::new(not_due(why))))
}

/// Of an answer that is of another form than it has to be.
pub(super) fn not_due(why: &str) -> Failed {
    classify::protocol(None, &format!("the server's answer is not what was due: {why}"))
}

/// A result that asks for input, for an agent that can give it.
pub(super) fn asking(mcp: &McpTool, result: &Value) -> ToolResult {
    let asks = Asks { after_acting: mcp.asks_after_acting, ..Asks::default() };
    let mut result = result.clone();
    shown_questions(&mut result);
    ToolResult {
        head: None,
        content: content(&result),
        source: Source::Tool,
        notes: Notes { asks: Some(asks), ..Notes::default() },
    }
}

/// What a server asks a person or a model holds nothing hidden; its state is not read and stays what it is.
pub(super) fn shown_questions(result: &mut Value) {
    let requests = result.get_mut("inputRequests").and_then(Value::as_object_mut);
    for params in requests.into_iter().flatten().filter_map(|(_, ask)| ask.get_mut("params")) {
        visible::texts(params);
    }
}

/// A result of a request that is no call, as it came.
pub(super) fn whole(result: &Value) -> ToolResult {
    ToolResult {
        head: None,
        content: content(result),
        source: Source::Tool,
        notes: Notes::default(),
    }
}

/// The same for one that cannot.
pub(super) fn cannot_be_asked(mcp: &McpTool) -> Failed {
    let (delivery, evidence) = match mcp.asks_after_acting {
        true => (Delivery::Unknown, None),
        false => (Delivery::Refused, Some(Evidence::InputRequired)),
    };
    let words = "the tool needs a person's input, which this client cannot give";
    let failed =
        Failed::new(FailCode::ToolError, Class::Permanent, delivery, Verdict::Neutral, words);
    Failed { evidence, ..failed }
}

/// `isError`: the tool has ended, and this is its answer.
fn tool_error(tool: &Tool, mcp: &McpTool, result: &Value) -> Failed {
    let (delivery, evidence) = match mcp.is_error {
        IsError::Executed => (Delivery::Done, None),
        IsError::NotExecuted => (Delivery::Refused, Some(Evidence::PolicyIsError)),
        IsError::Unknown => (Delivery::Unknown, None),
    };
    let value = content(result).value();
    let text = value.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    let told = match text.as_deref().map(str::trim) {
        Some(text) if !text.is_empty() => clean(text),
        Some(_) | None => "the tool answered with an error and no text".to_owned(),
    };
    let whole = content(result);
    let answer = (whole.bytes.len() <= tool.result.max).then_some(whole);
    let health = if tool.breaker.is_error_bad { Verdict::Bad } else { Verdict::Neutral };
    let failed = Failed::new(FailCode::ToolError, Class::Permanent, delivery, health, told);
    Failed { evidence, answer, error_class: ErrorClass::None, ..failed }
}

fn content(result: &Value) -> Content {
    Content { bytes: write::text(result).into(), form: Form::Mcp }
}

/// Members of `_meta` that belong to a hop, or that only we may say.
pub(super) fn strip_meta(result: &mut Value) {
    let Some(members) = result.as_object_mut() else { return };
    let Some(meta) = members.get_mut("_meta").and_then(Value::as_object_mut) else { return };
    let before = meta.len();
    meta.retain(|name, _| !of_the_hop(name));
    if meta.is_empty() && before > 0 {
        members.shift_remove("_meta");
    }
}

/// What goes on of an agent's `_meta`.
pub(super) fn meta_of(side: &Side) -> Map<String, Value> {
    let mut meta = Map::new();
    let mut left = MAX_META;
    for (name, value) in side.meta.iter() {
        let size = name.len() + write::text(value).len();
        if of_the_hop(name) || size > left {
            continue;
        }
        left -= size;
        meta.insert(name.clone(), value.clone());
    }
    traced(side, &mut meta);
    meta
}

/// The agent's trace goes on, by a span of ours (W3C Trace Context, 3.2; SEP-414).
fn traced(side: &Side, meta: &mut Map<String, Value>) {
    let text = |name: &str| side.meta.get(name).and_then(Value::as_str);
    let Some(parent) = text(TRACEPARENT).filter(|parent| is_traceparent(parent)) else { return };
    let mut parts = parent.split('-').skip(1);
    let (Some(trace), Some(flags)) = (parts.next(), parts.nth(1)) else { return };
    let (_, span) = uuid::Uuid::now_v7().as_u64_pair();
    meta.insert(TRACEPARENT.into(), format!("00-{trace}-{span:016x}-{flags}").into());
    if let Some(state) = text(TRACESTATE) {
        meta.insert(TRACESTATE.into(), state.into());
    }
}

fn of_the_hop(name: &str) -> bool {
    matches!(name, "traceparent" | "tracestate" | "baggage" | "progressToken")
        || name.starts_with("io.modelcontextprotocol/")
        || name.starts_with("io.checkrein/")
}

/// `select` and `redact` over the structure, and over text blocks that hold JSON: servers give the same value twice.
fn reduce(policy: &ResultPolicy, result: &mut Value) {
    if policy.select.is_empty() && policy.redact.is_empty() {
        return;
    }
    if let Some(structure) = result.get_mut("structuredContent") {
        *structure = answer::reduced(policy, structure.take());
    }
    let blocks = result.get_mut("content").and_then(Value::as_array_mut);
    for text in blocks.into_iter().flatten().filter_map(|block| block.get_mut("text")) {
        let Some(words) = text.as_str() else { continue };
        let limits = Limits::answer(words.len());
        if let Ok(value) = strict_json::parse(words.as_bytes(), limits) {
            *text = Value::String(answer::reduced(policy, value).to_string());
        }
    }
}

/// Within the tool's limit, or its texts cut, or refused as the policy says. Structure is never cut: clients check it.
fn fitted(
    policy: &ResultPolicy,
    output_schema: bool,
    mut result: Value,
) -> Result<ToolResult, Failed> {
    let whole = content(&result);
    let total = whole.bytes.len();
    let done = |content, truncated| ToolResult {
        head: None,
        content,
        source: Source::Tool,
        notes: Notes { truncated, ..Notes::default() },
    };
    if total <= policy.max {
        return Ok(done(whole, None));
    }
    let over = total - policy.max;
    let may_cut = !policy.fail_on_oversize && !output_schema;
    if may_cut && result.get("structuredContent").is_none() && cut_texts(&mut result, over) {
        let cut = content(&result);
        let kept = cut.bytes.len();
        let bytes = Bytes::copy_from_slice(&cut.bytes);
        let truncated = Truncated { total: total as u64, kept: kept as u64 };
        return Ok(done(Content { bytes, form: Form::Mcp }, Some(truncated)));
    }
    let why = format!("the tool's result has {total} bytes, the limit is {}", policy.max);
    Err(classify::too_large(200, &why, Verdict::Good))
}

/// Takes `over` bytes off the text blocks, the last ones first; `false` = there is not so much text.
fn cut_texts(result: &mut Value, over: usize) -> bool {
    let mut over = over;
    let blocks = result.get_mut("content").and_then(Value::as_array_mut);
    for block in blocks.into_iter().flatten().rev() {
        let is_text = block.get("type").and_then(Value::as_str) == Some("text");
        let members: Option<&mut Map<String, Value>> = block.as_object_mut().filter(|_| is_text);
        let Some(Value::String(text)) = members.and_then(|members| members.get_mut("text")) else {
            continue;
        };
        // A byte of text is at least one of JSON.
        let kept = text.floor_char_boundary(text.len().saturating_sub(over));
        over = over.saturating_sub(text.len() - kept);
        text.truncate(kept);
        if over == 0 {
            return true;
        }
    }
    false
}

/// A JSON-RPC error in answer to the call.
pub(super) fn refused(error: &crate::mcp::jsonrpc::ErrorReply, had_spoken: bool) -> Failed {
    judge::error(error, had_spoken)
}
