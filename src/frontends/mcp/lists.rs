//! Lists: filtered by identity and policy alone, in the order of their names, in pages of ours. A cursor is sealed to its
//! agent and names the last item of a page, so that a list that changes meanwhile loses and repeats nothing.

use serde_json::{Map, Value, json};

use super::seal::{Seal, Use};
use super::wire::RpcError;
use crate::call::{AgentId, Digest, Effect};
use crate::engine::ToolInfo;
use crate::mcp::jsonrpc::INVALID_PARAMS;
use crate::mcp::messages::List;
use crate::mcp::version::Era;
use crate::mcp::{meta, translate, visible};
use crate::strict_json::{self, Limits};

/// Items of one page, and bytes of its items; the first item always fits.
pub(super) const PAGE_ITEMS: usize = 500;
pub(super) const PAGE_BYTES: usize = 1 << 20;

/// A tool as agents are shown it: a server's definition with the policy's words, schema and effect laid over it, or one
/// of ours.
pub(super) fn definition(tool: &ToolInfo, modern: bool) -> Value {
    let mut listed = match tool.definition.as_deref() {
        Some(Value::Object(own)) => own.clone(),
        Some(_) | None => Map::new(),
    };
    listed.insert("name".to_owned(), tool.name.as_str().into());
    if let Some(title) = &tool.title {
        listed.insert("title".to_owned(), (**title).into());
    }
    listed.insert("description".to_owned(), (*tool.description).into());
    listed.insert("inputSchema".to_owned(), (*tool.schema).clone());
    let mut hints = match listed.shift_remove("annotations") {
        Some(Value::Object(hints)) => hints,
        Some(_) | None => Map::new(),
    };
    match tool.effect {
        Effect::Read => {
            hints.insert("readOnlyHint".to_owned(), true.into());
            hints.shift_remove("destructiveHint");
        }
        Effect::Write => {
            hints.insert("readOnlyHint".to_owned(), false.into());
        }
    }
    listed.insert("annotations".to_owned(), Value::Object(hints));
    let mut listed = Value::Object(listed);
    visible::descriptions(&mut listed);
    meta::to_agent(&mut listed);
    translate::tool_for(if modern { Era::Modern } else { Era::Legacy }, &mut listed);
    listed
}

/// What an agent would see of its tools: it is told of a change when this changes.
pub(super) fn fingerprint(tools: &[ToolInfo]) -> Digest {
    let all: Vec<String> = tools.iter().map(|tool| definition(tool, true).to_string()).collect();
    let parts: Vec<&[u8]> = all.iter().map(String::as_bytes).collect();
    Digest::of_parts(&parts)
}

/// One page of `items`, which are all of the list.
pub(super) fn page(
    seal: &Seal,
    agent: &AgentId,
    list: List,
    items: Vec<Value>,
    params: Option<&Value>,
) -> Result<Map<String, Value>, RpcError> {
    let after = match params.and_then(|params| params.get("cursor")) {
        None | Some(Value::Null) => None,
        Some(cursor) => {
            let sealed = cursor.as_str().unwrap_or_default();
            Some(open(seal, agent, list, sealed).ok_or_else(bad_cursor)?)
        }
    };
    let mut keyed: Vec<(String, Value)> =
        items.into_iter().map(|item| (key_of(list, &item), item)).collect();
    keyed.sort_by(|(one, _), (other, _)| one.cmp(other));
    let (mut taken, mut bytes, mut last) = (Vec::new(), 0, None);
    let mut more = false;
    for (key, item) in keyed {
        if after.as_ref().is_some_and(|after| key <= *after) {
            continue;
        }
        let length = item.to_string().len();
        let full = taken.len() >= PAGE_ITEMS || (!taken.is_empty() && bytes + length > PAGE_BYTES);
        // Items of one key stay together: the next page begins after the key.
        if full && last.as_ref() != Some(&key) {
            more = true;
            break;
        }
        bytes += length;
        taken.push(item);
        last = Some(key);
    }
    let mut result = Map::new();
    result.insert(list.member().to_owned(), Value::Array(taken));
    if let Some(last) = last.filter(|_| more) {
        let cursor = json!({"list": list.method(), "agent": agent.as_str(), "after": last});
        let sealed = seal.seal(Use::Cursor, &cursor.to_string());
        let sealed = sealed.ok_or_else(|| {
            RpcError::new(crate::mcp::jsonrpc::INTERNAL_ERROR, "no cursor could be made")
        })?;
        result.insert("nextCursor".to_owned(), sealed.into());
    }
    Ok(result)
}

fn key_of(list: List, item: &Value) -> String {
    let member = match list {
        List::Tools | List::Prompts => "name",
        List::Resources => "uri",
        List::ResourceTemplates => "uriTemplate",
    };
    item.get(member).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn open(seal: &Seal, agent: &AgentId, list: List, sealed: &str) -> Option<String> {
    let text = seal.open(Use::Cursor, sealed)?;
    let cursor = strict_json::parse(text.as_bytes(), Limits::answer(text.len())).ok()?;
    let text = |name: &str| cursor.get(name).and_then(Value::as_str);
    let own = text("list") == Some(list.method()) && text("agent") == Some(agent.as_str());
    text("after").filter(|_| own).map(str::to_owned)
}

fn bad_cursor() -> RpcError {
    RpcError::new(
        INVALID_PARAMS,
        "/cursor: is none of this agent and list; begin again without one",
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::call::ToolName;

    fn agent(name: &str) -> AgentId {
        AgentId::new(name).expect("name")
    }

    fn prompts(count: usize) -> Vec<Value> {
        (0..count).rev().map(|n| json!({"name": format!("p{n:05}"), "n": n})).collect()
    }

    fn walk(seal: &Seal, items: &[Value], most: usize) -> Vec<Value> {
        let (mut all, mut params) = (Vec::new(), None);
        for _ in 0..most {
            let mut page = page(seal, &agent("a"), List::Prompts, items.to_vec(), params.as_ref())
                .expect("page");
            let Some(Value::Array(taken)) = page.get_mut("prompts").map(Value::take) else {
                panic!("no items")
            };
            all.extend(taken);
            match page.get("nextCursor") {
                Some(cursor) => params = Some(json!({"cursor": cursor})),
                None => return all,
            }
        }
        panic!("no end")
    }

    #[test]
    fn pages_lose_and_repeat_nothing() {
        let seal = Seal::new();
        for count in [0, 1, PAGE_ITEMS, PAGE_ITEMS + 1, 3 * PAGE_ITEMS] {
            let mut want = prompts(count);
            want.reverse();
            assert_eq!(walk(&seal, &prompts(count), 5), want, "{count}");
        }
        let large: Vec<Value> = (0..5)
            .map(|n| json!({"name": format!("p{n}"), "x": "x".repeat(PAGE_BYTES / 2)}))
            .collect();
        assert_eq!(walk(&seal, &large, 5), large);
        let alike = vec![json!({"name": "p"}); PAGE_ITEMS + 3];
        assert_eq!(walk(&seal, &alike, 2).len(), PAGE_ITEMS + 3);
    }

    #[test]
    fn a_cursor_is_its_agents_and_its_lists() {
        let seal = Seal::new();
        let many = prompts(PAGE_ITEMS + 1);
        let first = page(&seal, &agent("a"), List::Prompts, many.clone(), None).expect("page");
        let params = json!({"cursor": first["nextCursor"]});
        let with = |agent: &AgentId, list, params: &Value| {
            page(&seal, agent, list, many.clone(), Some(params)).map(|page| page.len())
        };
        assert!(with(&agent("a"), List::Prompts, &params).is_ok());
        for refused in [
            with(&agent("b"), List::Prompts, &params),
            with(&agent("a"), List::Tools, &params),
            with(&agent("a"), List::Prompts, &json!({"cursor": ""})),
            with(&agent("a"), List::Prompts, &json!({"cursor": 7})),
        ] {
            assert_eq!(refused.expect_err("refused").code, INVALID_PARAMS);
        }
        assert!(with(&agent("a"), List::Prompts, &json!({"cursor": null})).is_ok());
    }

    #[test]
    fn a_servers_definition_keeps_what_the_policy_does_not_name() {
        let own = json!({
            "name": "own", "description": "its words", "x-new": {"b": 1.5, "a": 2},
            "inputSchema": {"type": "object"}, "outputSchema": {"type": "array"},
            "execution": {"taskSupport": "required"},
            "annotations": {"destructiveHint": true, "openWorldHint": true},
            "_meta": {"io.checkrein/run": "r", "example.com/k": 1},
        });
        let mut tool = ToolInfo {
            name: ToolName::new("srv_own").expect("name"),
            description: "the policy's words".into(),
            schema: Arc::new(json!({"type": "object", "additionalProperties": false})),
            effect: Effect::Read,
            title: None,
            definition: Some(Arc::new(own)),
        };
        assert_eq!(
            definition(&tool, true).to_string(),
            r#"{"name":"srv_own","description":"the policy's words","x-new":{"b":1.5,"a":2},"inputSchema":{"type":"object","additionalProperties":false},"outputSchema":{"type":"array"},"_meta":{"example.com/k":1},"annotations":{"openWorldHint":true,"readOnlyHint":true}}"#
        );
        assert_eq!(definition(&tool, false).get("outputSchema"), None);
        tool.effect = Effect::Write;
        let hints = definition(&tool, true)["annotations"].to_string();
        assert_eq!(hints, r#"{"destructiveHint":true,"openWorldHint":true,"readOnlyHint":false}"#);
    }
}
