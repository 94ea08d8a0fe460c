//! The tools API: what an agent may call, and one call.
//! The body of a call is its bare arguments object; its name is in the path, everything else in the head.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, Uri};

use super::render::{Problem, Reply};
use super::request::Head;
use crate::call::{AgentId, Arguments, CallError, CallId, FrontEnd, Payload, ToolName};
use crate::engine::{Answer, Asker, Engine, Single, ToolInfo};
use crate::strict_json::Limits;
use crate::strict_json::object::Object;

const TOOLS_HIDDEN: HeaderName = HeaderName::from_static("checkrein-tools-hidden");

/// The shape in which tools are listed: that of the model API they are pasted into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Mcp,
    OpenaiChat,
    OpenaiResponses,
    AnthropicMessages,
}

/// `POST /v1/tools/{tool}`.
pub(super) async fn call(
    engine: &Arc<Engine>,
    agent: AgentId,
    head: Head,
    tool: &str,
    body: &Bytes,
) -> Result<Reply, Problem> {
    let limits = engine.body_limits();
    let limits = Limits::arguments(limits.argument_bytes, limits.argument_depth);
    let payload = match Arguments::parse(body, limits) {
        Ok(arguments) => Payload::Arguments(arguments),
        Err(malformed) => Payload::Malformed(malformed),
    };
    let tool = ToolName::asked(tool);
    let id = head.call_id.unwrap_or_else(CallId::mint);
    let asker = Asker {
        agent,
        run: head.run,
        timeout: head.timeout,
        front_end: FrontEnd::ToolsApi,
        side: None,
    };
    let single =
        Single { asker, id: id.clone(), tool: tool.clone(), payload, caller_key: head.caller_key };
    Ok(match engine.call(single).await {
        Ok((run, answer)) => Reply::of_call(&answer).run(run),
        // Refused before there was a run: still this call's answer.
        Err(denied) => Reply::of_call(&Answer {
            id,
            tool,
            outcome: Err(CallError::Denied(denied)),
            attempts: 0,
            operation: None,
            alternatives: Vec::new(),
        }),
    })
}

/// `GET /v1/tools`.
pub(super) fn list(engine: &Engine, agent: &AgentId, uri: &Uri) -> Result<Reply, Problem> {
    let form = form_of(uri.query())?;
    let (tools, hidden) = engine.tools_for(agent);
    Ok(Reply::json(listed(&tools, hidden, form)).count(TOOLS_HIDDEN, hidden))
}

fn form_of(query: Option<&str>) -> Result<Form, Problem> {
    let mut form = None;
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let Some(("form", value)) = pair.split_once('=') else {
            return Err(Problem::invalid("the query may only hold `form=NAME`"));
        };
        if form.is_some() {
            return Err(Problem::invalid("the query holds `form` more than once"));
        }
        form = Some(match value {
            "mcp" => Form::Mcp,
            "openai-chat" => Form::OpenaiChat,
            "openai-responses" => Form::OpenaiResponses,
            "anthropic-messages" => Form::AnthropicMessages,
            _ => {
                return Err(Problem::invalid(
                    "`form` must be mcp, openai-chat, openai-responses or anthropic-messages",
                ));
            }
        });
    }
    Ok(form.unwrap_or(Form::Mcp))
}

/// An empty list says why it is empty: silence would look like health.
fn listed(tools: &[ToolInfo], hidden: usize, form: Form) -> Vec<u8> {
    let mut object = Object::with_capacity(256 * (tools.len() + 1));
    object.objects("tools", tools, |o, tool| match form {
        Form::Mcp => described(o, tool, "inputSchema"),
        Form::OpenaiChat => {
            o.string("type", "function");
            o.nested("function", |f| described(f, tool, "parameters"));
        }
        Form::OpenaiResponses => {
            o.string("type", "function");
            described(o, tool, "parameters");
            // Left out it means true there, and that takes only schemas whose every field is required.
            o.bool("strict", false);
        }
        Form::AnthropicMessages => described(o, tool, "input_schema"),
    });
    if tools.is_empty() {
        let note = match hidden {
            0 => "this agent may call no tool: the policy allows it none".to_owned(),
            n => format!(
                "this agent may call no tool; {n} tools of the policy are hidden, their definitions being broken"
            ),
        };
        object.string("note", &note);
    }
    object.finish()
}

fn described(object: &mut Object, tool: &ToolInfo, schema: &str) {
    object.string("name", tool.name.as_str());
    object.string("description", &tool.description);
    object.raw(schema, &tool.schema.to_string());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::call::Effect;

    fn tool() -> ToolInfo {
        ToolInfo {
            name: ToolName::new("check_order").expect("name"),
            description: "Where an order is.".into(),
            schema: Arc::new(
                json!({"type": "object", "properties": {"order_id": {"type": "string"}}}),
            ),
            effect: Effect::Read,
            title: None,
            definition: None,
        }
    }

    fn shown(tools: &[ToolInfo], hidden: usize, form: Form) -> serde_json::Value {
        crate::strict_json::parse(&listed(tools, hidden, form), Limits::answer(1 << 16))
            .expect("json")
    }

    #[test]
    fn each_form_is_the_shape_its_model_api_takes() {
        let schema = json!({"type": "object", "properties": {"order_id": {"type": "string"}}});
        let (name, words) = ("check_order", "Where an order is.");
        for (form, expected) in [
            (Form::Mcp, json!({"name": name, "description": words, "inputSchema": schema})),
            (
                Form::OpenaiChat,
                json!({"type": "function", "function": {"name": name, "description": words, "parameters": schema}}),
            ),
            (
                Form::OpenaiResponses,
                json!({"type": "function", "name": name, "description": words, "parameters": schema, "strict": false}),
            ),
            (
                Form::AnthropicMessages,
                json!({"name": name, "description": words, "input_schema": schema}),
            ),
        ] {
            assert_eq!(shown(&[tool()], 0, form), json!({"tools": [expected]}), "{form:?}");
        }
    }

    #[test]
    fn bb_a07_an_empty_list_says_why() {
        let note =
            |hidden| shown(&[], hidden, Form::Mcp)["note"].as_str().expect("note").to_owned();
        assert!(note(0).contains("allows it none"));
        assert!(note(2).contains('2'));
        assert!(shown(&[tool()], 3, Form::Mcp).get("note").is_none());
    }

    #[test]
    fn a_query_names_one_known_form_or_is_refused() {
        assert_eq!(form_of(None).expect("default"), Form::Mcp);
        assert_eq!(form_of(Some("form=openai-chat")).expect("known"), Form::OpenaiChat);
        for query in ["form=x", "form", "form=mcp&form=mcp", "shape=mcp"] {
            assert!(form_of(Some(query)).is_err(), "{query}");
        }
    }
}
