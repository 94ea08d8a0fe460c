//! One definition and its rule become one tool: the schema that judges, the definition that agents are shown.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::Candidate;
use crate::call::canonical::canonical;
use crate::call::pointer::push_token;
use crate::call::{Digest, Effect, ToolName};
use crate::mcp::headers::{PARAM_PREFIX, param_headers};
use crate::policy::compile::tool_section;
use crate::policy::lint::shape::{Shape, Standing, standing};
use crate::policy::schema::Schema;
use crate::policy::snapshot::{
    IsError, McpTool, RateLimit, Reach, Rule, SentAs, Target, Tool, WritePolicy,
};

/// The tool, or why there is none. `earlier` is the tool of that name in the snapshot before: its compiled schema is
/// taken over where it was made of the same parts.
pub(super) fn tool(
    name: &ToolName,
    from: &Candidate<'_>,
    earlier: Option<&Tool>,
) -> Result<Tool, String> {
    let Candidate { server, entry, offered, effect } = from;
    let definition = &offered.definition;
    let input = definition.get("inputSchema").unwrap_or(&Value::Null);
    let write = (*effect == Effect::Write).then(|| match entry.effect {
        Effect::Write => entry.write.clone(),
        Effect::Read => WritePolicy::default(),
    });
    let hidden = write.as_ref().and_then(hidden_argument);
    let parts = judged_by(from, input, hidden);
    let known =
        earlier.filter(|tool| matches!(&tool.target, Target::Mcp(mcp) if mcp.judged_by == parts));
    let schema = match known {
        Some(tool) => tool.schema.clone(),
        None => schema(from, input, hidden)?,
    };
    if let Some(write) = &write {
        names_its_operation(&schema, write)?;
    }
    let param_headers = match server.reach {
        Reach::Http => repeated(input)?,
        Reach::Child(_) => Arc::from([]),
    };
    let shapes = !entry.result.select.is_empty() || !entry.result.redact.is_empty();
    let output_schema = definition.get("outputSchema").is_some_and(Value::is_object) && !shapes;
    let (listed, description) = listed(name, from, &schema, output_schema);
    let mut tool = Tool {
        name: name.clone(),
        rule: Rule { path: Arc::clone(&entry.rule.path), line: entry.rule.line },
        description,
        effect: *effect,
        upstream: Arc::clone(&server.upstream),
        target: Target::Mcp(McpTool {
            server: Arc::clone(server),
            entry: Arc::clone(entry),
            own_name: Arc::clone(&offered.own_name),
            definition: Arc::clone(definition),
            judged_by: parts,
            output_schema,
            format_written: entry.format_written,
            param_headers,
            is_error: if entry.effect == *effect { entry.is_error } else { IsError::Executed },
            asks_after_acting: entry.asks_after_acting,
            tasks: entry.tasks,
            meta_key: entry.meta_key.clone(),
        }),
        schema,
        timeout: entry.timeout,
        retry: (*effect == Effect::Read).then(|| entry.retry.clone()),
        breaker: entry.breaker.clone(),
        rate_limit: entry.rate_limit.as_ref().map(|limit| RateLimit {
            name: crate::call::PolicyName::new(&format!("tool:{name}")),
            ..limit.clone()
        }),
        bulkhead: entry.bulkhead,
        weight: entry.weight,
        fuse: entry.fuse,
        volatile: entry.volatile.clone(),
        alternatives: entry.alternatives.clone(),
        cost: entry.cost,
        approval: entry.approval.clone(),
        cache: entry.cache.filter(|_| *effect == Effect::Read),
        result: entry.result.clone(),
        write,
        listed: Arc::new(listed),
        section: Digest::of(b""),
    };
    tool.section = tool_section(&tool);
    Ok(tool)
}

/// Arguments that a modern server wants repeated in fields of the request: each one's pointer, and its field without
/// `Mcp-Param-`.
pub fn repeated(input: &Value) -> Result<Arc<[(String, String)]>, String> {
    let found =
        param_headers(input).map_err(|why| format!("its `inputSchema` breaks a rule: {why}"))?;
    let named = found.into_iter().map(|one| {
        let mut pointer = String::new();
        for token in &one.path {
            push_token(&mut pointer, token);
        }
        (pointer, one.header.trim_start_matches(PARAM_PREFIX).to_owned())
    });
    Ok(named.collect())
}

/// The argument that takes the key, which models neither see nor send.
fn hidden_argument(write: &WritePolicy) -> Option<&str> {
    match &write.idempotency.as_ref()?.sent_as {
        SentAs::Argument(member) => Some(member),
        SentAs::Header { .. } | SentAs::Meta(_) | SentAs::Natural => None,
    }
}

/// Everything the compiled schema hangs on.
fn judged_by(from: &Candidate<'_>, input: &Value, hidden: Option<&str>) -> Digest {
    let entry = from.entry;
    let source = match &entry.schema {
        Some(schema) => canonical(schema.source()),
        None => canonical(input),
    };
    let dialect = input.get("$schema").and_then(Value::as_str).unwrap_or_default();
    let constraints = entry.constraints.as_ref().map(|constraints| canonical(constraints));
    Digest::of_parts(&[
        &[u8::from(entry.schema.is_some())],
        dialect.as_bytes(),
        &source,
        &constraints.unwrap_or_default(),
        hidden.unwrap_or_default().as_bytes(),
    ])
}

fn schema(from: &Candidate<'_>, input: &Value, hidden: Option<&str>) -> Result<Schema, String> {
    let whole = match &from.entry.schema {
        Some(schema) => schema.clone(),
        None => of_server(input)?,
    };
    let whole = match &from.entry.constraints {
        None => whole,
        Some(constraints) => {
            let mut source = Value::clone(whole.source());
            narrow(&mut source, constraints);
            Schema::compile(&source, false).map_err(|fault| {
                format!("its schema with the policy's `constraints` is unusable: {fault}")
            })?
        }
    };
    let Some(member) = hidden else { return Ok(whole) };
    if Shape::of(whole.source()).step(member).is_none() {
        return Err(format!("its schema has no `{member}` to take the key of a write"));
    }
    whole.without(member).map_err(|fault| format!("its schema needs its key `{member}`: {fault}"))
}

/// A server's schema, closed.
fn of_server(input: &Value) -> Result<Schema, String> {
    if input.get("type").and_then(Value::as_str) != Some("object") {
        return Err("its `inputSchema` has not the root type `object`".to_owned());
    }
    Schema::of_server(input).map_err(|fault| format!("its `inputSchema` is unusable: {fault}"))
}

fn narrow(source: &mut Value, constraints: &Value) {
    let Value::Object(members) = source else { return };
    match members.get_mut("allOf") {
        Some(Value::Array(all)) => all.push(constraints.clone()),
        Some(_) | None => {
            members.insert("allOf".to_owned(), json!([constraints]));
        }
    }
}

/// Every pointer of the fingerprint is required by the schema: an operation without a name would be another one.
fn names_its_operation(schema: &Schema, write: &WritePolicy) -> Result<(), String> {
    for pointer in &write.fingerprint {
        let what = match standing(schema.source(), pointer.tokens()) {
            Standing::Required => continue,
            Standing::Optional => "does not require",
            Standing::NotDeclared => "does not have",
        };
        return Err(format!(
            "its schema {what} `{pointer}`, which the policy's `fingerprint` names; add `constraints` that require it"
        ));
    }
    Ok(())
}

/// The definition as MCP agents are shown it, and its description: the server's own but for what the policy decides.
/// Unknown members and the order of all stay.
fn listed(
    name: &ToolName,
    from: &Candidate<'_>,
    schema: &Schema,
    output_schema: bool,
) -> (Value, Arc<str>) {
    let mut members = from.offered.definition.as_object().cloned().unwrap_or_default();
    members.insert("name".to_owned(), name.as_str().into());
    let own = members.get("description").and_then(Value::as_str).unwrap_or_default();
    let description: Arc<str> = match &from.entry.description {
        Some(written) => Arc::clone(written),
        None => own.into(),
    };
    if from.entry.description.is_some() || !own.is_empty() {
        members.insert("description".to_owned(), description.as_ref().into());
    }
    members.insert("inputSchema".to_owned(), shown_schema(from, schema));
    if !output_schema {
        members.shift_remove("outputSchema");
    }
    let annotations = members.entry("annotations").or_insert_with(|| json!({}));
    *annotations = annotated(annotations, from.effect);
    if let Some(Value::Object(execution)) = members.get_mut("execution") {
        // Tasks are not offered to agents.
        execution.shift_remove("taskSupport");
        if execution.is_empty() {
            members.shift_remove("execution");
        }
    }
    (Value::Object(members), description)
}

/// The schema that judges. Where a server wrote it in an older dialect that reads the same here, it still says so.
fn shown_schema(from: &Candidate<'_>, schema: &Schema) -> Value {
    let source = Value::clone(schema.source());
    let input = from.offered.definition.get("inputSchema");
    let (Some(Value::Object(input)), None) = (input, &from.entry.schema) else { return source };
    let (Some(dialect), Value::Object(members)) = (input.get("$schema"), &source) else {
        return source;
    };
    if members.contains_key("$schema") || !Schema::reads_the_same(&Value::Object(input.clone())) {
        return source;
    }
    let mut out = Map::new();
    let at = input.keys().position(|key| key == "$schema").unwrap_or_default();
    for (place, (key, value)) in members.iter().enumerate() {
        if place == at {
            out.insert("$schema".to_owned(), dialect.clone());
        }
        out.insert(key.clone(), value.clone());
    }
    out.entry("$schema").or_insert_with(|| dialect.clone());
    Value::Object(out)
}

/// Hints that say the policy's effect, so that the agent's side judges as the gateway does.
fn annotated(annotations: &Value, effect: Effect) -> Value {
    let mut members = annotations.as_object().cloned().unwrap_or_default();
    members.insert("readOnlyHint".to_owned(), Value::Bool(effect == Effect::Read));
    if effect == Effect::Read
        && let Some(destructive) = members.get_mut("destructiveHint")
    {
        *destructive = Value::Bool(false);
    }
    Value::Object(members)
}

/// How a tool that no MCP server offers is shown to MCP agents.
pub(in crate::policy) fn listed_http(
    name: &ToolName,
    description: &str,
    schema: &Schema,
    effect: Effect,
) -> Value {
    json!({
        "name": name.as_str(),
        "description": description,
        "inputSchema": schema.source().as_ref(),
        "annotations": { "readOnlyHint": effect == Effect::Read },
    })
}
