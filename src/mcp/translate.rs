//! The old shape and the new one: what an agent of one era is shown of an upstream of the other.
//!
//! Every function changes the members it names and no other. What has no image on the other side says so.

use serde_json::{Map, Value, json};

use super::jsonrpc;
use super::messages::{AskKind, ClientCapabilities};
use super::meta;
use super::version::{Era, Revision};

/// How long a modern agent may keep our `server/discover`, milliseconds.
pub const DISCOVER_TTL_MS: u64 = 60_000;

/// `ttlMs` of a result of ours that must carry cache hints; `None` where a method has none. The scope is always
/// `private`: what is listed depends on who asks.
pub fn cache_ttl_ms(method: &str) -> Option<u64> {
    match method {
        "server/discover" => Some(DISCOVER_TTL_MS),
        "tools/list"
        | "resources/list"
        | "resources/templates/list"
        | "prompts/list"
        | "resources/read" => Some(0),
        _ => None,
    }
}

/// Shapes a result for a modern agent: `resultType`, and the cache hints of `method`. What the result says of them
/// already stands, but for the hints, which are ours to give.
pub fn result_to_modern(method: &str, result: &mut Value) {
    let Value::Object(members) = result else { return };
    if !members.contains_key("resultType") {
        members.insert("resultType".to_owned(), "complete".into());
    }
    if let Some(ttl_ms) = cache_ttl_ms(method) {
        members.insert("ttlMs".to_owned(), ttl_ms.into());
        members.insert("cacheScope".to_owned(), "private".into());
    }
}

/// Shapes a result for a legacy agent: no `resultType`, no cache hints; structured content that is no object becomes a
/// text block, unless a block says it already.
pub fn result_to_legacy(method: &str, result: &mut Value) {
    let Value::Object(members) = result else { return };
    members.shift_remove("resultType");
    if cache_ttl_ms(method).is_some() {
        members.shift_remove("ttlMs");
        members.shift_remove("cacheScope");
    }
    if method == "tools/call" {
        structure_to_legacy(members);
    }
}

fn structure_to_legacy(members: &mut Map<String, Value>) {
    if members.get("structuredContent").is_none_or(Value::is_object) {
        return;
    }
    let Some(structure) = members.shift_remove("structuredContent") else { return };
    let text = structure.to_string();
    let content = members.entry("content").or_insert_with(|| Value::Array(Vec::new()));
    let Value::Array(blocks) = content else { return };
    let said = blocks.iter().any(|block| {
        block.get("type") == Some(&Value::from("text"))
            && block.get("text").and_then(Value::as_str) == Some(&text)
    });
    if !said {
        blocks.push(json!({"type": "text", "text": text}));
    }
}

/// Shapes a tool's definition for an agent of `era`. Legacy: an `outputSchema` whose root is no object goes, because
/// legacy says it is one. Both: `execution.taskSupport` goes, because tasks are not offered to agents.
pub fn tool_for(era: Era, tool: &mut Value) {
    let Value::Object(members) = tool else { return };
    let is_object = |schema: &Value| schema.get("type").and_then(Value::as_str) == Some("object");
    let goes = match era {
        Era::Legacy => members.get("outputSchema").is_some_and(|schema| !is_object(schema)),
        Era::Modern => false,
    };
    if goes {
        members.shift_remove("outputSchema");
    }
    let Some(Value::Object(execution)) = members.get_mut("execution") else { return };
    if execution.shift_remove("taskSupport").is_some() && execution.is_empty() {
        members.shift_remove("execution");
    }
}

/// What an upstream's error code becomes for an agent of the other era.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorImage {
    Code(i64),
    /// The fault of our own hop; an agent never sees it.
    OurHop,
    /// To be asked of a person: [`elicitations`] has the questions.
    InputRequired,
}

/// The image of an upstream's error code, answering `method`, for an agent of `era`.
pub fn error_for(era: Era, method: &str, code: i64) -> ErrorImage {
    if jsonrpc::is_modern_code(code) {
        return ErrorImage::OurHop;
    }
    match (era, code) {
        (Era::Legacy, jsonrpc::INVALID_PARAMS) if method == "resources/read" => {
            ErrorImage::Code(jsonrpc::RESOURCE_NOT_FOUND)
        }
        (Era::Modern, jsonrpc::RESOURCE_NOT_FOUND) => ErrorImage::Code(jsonrpc::INVALID_PARAMS),
        (Era::Modern, jsonrpc::URL_ELICITATION_REQUIRED) => ErrorImage::InputRequired,
        (Era::Legacy | Era::Modern, code) => ErrorImage::Code(code),
    }
}

/// The `inputRequests` of the questions in the `data` of -32042 (2025-11-25); `None` where it names none by URL.
pub fn elicitations(data: Option<&Value>) -> Option<Map<String, Value>> {
    let asked = data?.get("elicitations")?.as_array()?;
    let requests: Map<String, Value> = asked
        .iter()
        .filter(|params| params.get("mode").and_then(Value::as_str) == Some("url"))
        .take(super::messages::MAX_ASKS)
        .enumerate()
        .map(|(at, params)| (format!("url-{at}"), ask_to_modern(AskKind::ElicitUrl, Some(params))))
        .collect();
    (!requests.is_empty()).then_some(requests)
}

/// A legacy server's request as a value of `inputRequests`: without its `_meta` and its `elicitationId`, which belong
/// to its own hop.
pub fn ask_to_modern(kind: AskKind, params: Option<&Value>) -> Value {
    let mut ask = Map::new();
    ask.insert("method".to_owned(), kind.method().into());
    let mut params = params.and_then(Value::as_object).cloned().unwrap_or_default();
    params.shift_remove("_meta");
    params.shift_remove("elicitationId");
    // `params` of `roots/list` are optional, of the others not
    if !params.is_empty() || kind != AskKind::Roots {
        ask.insert("params".to_owned(), Value::Object(params));
    }
    Value::Object(ask)
}

/// The `params` of the request that asks a legacy agent of `revision`; `None` where that revision cannot be asked so.
/// `elicitation_id` names a question by URL and is used by no other.
pub fn ask_to_legacy(
    revision: Revision,
    kind: AskKind,
    params: Option<&Value>,
    elicitation_id: &str,
) -> Option<Value> {
    let features = revision.features();
    let mut params = params.and_then(Value::as_object).cloned().unwrap_or_default();
    params.shift_remove("_meta");
    match kind {
        _ if !features.server_requests => return None,
        AskKind::ElicitForm if !features.elicitation => return None,
        AskKind::ElicitUrl if !features.url_elicitation => return None,
        AskKind::ElicitForm => {
            if !features.url_elicitation {
                params.shift_remove("mode");
            }
        }
        AskKind::ElicitUrl => {
            params.insert("elicitationId".to_owned(), elicitation_id.into());
        }
        AskKind::Sampling | AskKind::Roots => {}
    }
    Some(Value::Object(params))
}

/// What becomes of an upstream's notification on its way to an agent of the other era.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotificationImage {
    /// The same, without the keys of its hop.
    Same,
    /// To be dropped and counted.
    None,
}

/// The image of a notification for an agent of `era`. Only the ones named here have one: nothing is guessed.
pub fn notification_for(era: Era, method: &str) -> NotificationImage {
    match (era, method) {
        (
            _,
            "notifications/progress"
            | "notifications/message"
            | "notifications/tools/list_changed"
            | "notifications/resources/list_changed"
            | "notifications/resources/updated"
            | "notifications/prompts/list_changed",
        )
        | (Era::Legacy, "notifications/elicitation/complete") => NotificationImage::Same,
        (Era::Legacy | Era::Modern, _) => NotificationImage::None,
    }
}

/// The capabilities to declare to an upstream of `revision` for what an agent declared: elicitation, sampling and roots
/// as far as that revision has them, nothing else. What the policy lets a server ask is for the caller to cut.
pub fn capabilities_for(
    revision: Revision,
    declared: &ClientCapabilities<'_>,
) -> Map<String, Value> {
    let features = revision.features();
    let mut out = Map::new();
    let mut elicitation = Map::new();
    if declared.elicitation_form && features.elicitation {
        elicitation.insert("form".to_owned(), json!({}));
    }
    if declared.elicitation_url && features.url_elicitation {
        elicitation.insert("url".to_owned(), json!({}));
    }
    if !elicitation.is_empty() {
        // before there were modes, the member itself was the declaration
        let modes = if features.url_elicitation { elicitation } else { Map::new() };
        out.insert("elicitation".to_owned(), Value::Object(modes));
    }
    if declared.sampling {
        let mut sampling = Map::new();
        if declared.sampling_tools && features.url_elicitation {
            sampling.insert("tools".to_owned(), json!({}));
        }
        if declared.sampling_context && features.url_elicitation {
            sampling.insert("context".to_owned(), json!({}));
        }
        out.insert("sampling".to_owned(), Value::Object(sampling));
    }
    if declared.roots {
        let changes = declared.roots_list_changed && revision.era() == Era::Legacy;
        let roots = if changes { json!({"listChanged": true}) } else { json!({}) };
        out.insert("roots".to_owned(), roots);
    }
    out
}

/// Writes what every request to a modern upstream carries into its `params`; `log_level` where the agent wants logs.
pub fn request_to_modern(
    params: &mut Value,
    revision: Revision,
    client_info: Value,
    capabilities: Map<String, Value>,
    log_level: Option<&str>,
) {
    meta::put(params, meta::PROTOCOL_VERSION, revision.as_str().into());
    meta::put(params, meta::CLIENT_INFO, client_info);
    meta::put(params, meta::CLIENT_CAPABILITIES, Value::Object(capabilities));
    if let Some(level) = log_level {
        meta::put(params, meta::LOG_LEVEL, level.into());
    }
}

#[cfg(test)]
mod tests;
