//! Tool definitions, judged one by one: a bad one costs itself and never its neighbours.
//!
//! The rules here need no policy and no JSON Schema engine; whoever compiles the schema drops more.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use crate::mcp::headers::{ParamHeader, param_headers};

/// Deepest nesting of a schema's arrays and objects.
pub const MAX_SCHEMA_DEPTH: usize = 64;
/// Most objects within a schema: no fewer than it has subschemas with a keyword in them.
pub const MAX_SUBSCHEMAS: usize = 10_000;
/// Longest schema, bytes of its JSON.
pub const MAX_SCHEMA_BYTES: usize = 256 * 1024;

/// What a server says of its tool; a hint that is absent, or not a boolean, says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hints {
    pub read_only: Option<bool>,
    pub destructive: Option<bool>,
    pub idempotent: Option<bool>,
    pub open_world: Option<bool>,
}

impl Hints {
    /// Reads the hints of an `annotations` member.
    pub fn of(annotations: &Value) -> Self {
        let hint = |name| annotations.get(name).and_then(Value::as_bool);
        Self {
            read_only: hint("readOnlyHint"),
            destructive: hint("destructiveHint"),
            idempotent: hint("idempotentHint"),
            open_world: hint("openWorldHint"),
        }
    }
}

/// A tool as its server defines it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolDef {
    /// The server's own name.
    pub name: String,
    pub title: Option<String>,
    pub description: Option<String>,
    /// An object whose root type is `object`.
    pub input_schema: Arc<Value>,
    pub output_schema: Option<Arc<Value>>,
    /// Parameters mirrored into headers; none where the server is not reached over HTTP.
    pub headers: Vec<ParamHeader>,
    pub annotations: Hints,
    /// The whole definition as it came.
    pub raw: Arc<Value>,
}

/// A definition that was not taken, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// The tool's name, or its place in the list where it has none.
    pub name: String,
    pub reason: String,
}

/// What became of a list of definitions; both in the server's order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Judged {
    pub tools: Vec<ToolDef>,
    pub dropped: Vec<Dropped>,
}

/// How a server is reached. Only over HTTP are parameters mirrored into headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    Http,
    Stdio,
}

/// Judges every definition of a server, all pages together: of a name that stands twice no definition is taken,
/// because order must never decide.
pub fn judge_tools(items: Vec<Value>, transport: Transport) -> Judged {
    let mut uses: HashMap<String, usize> = HashMap::new();
    for name in items.iter().filter_map(name_of) {
        *uses.entry(name.to_owned()).or_default() += 1;
    }
    let mut judged = Judged::default();
    for (at, item) in items.into_iter().enumerate() {
        let name = name_of(&item).map_or_else(|| format!("#{at}"), str::to_owned);
        let verdict = match uses.get(&name) {
            Some(count) if *count > 1 => Err("the name stands more than once".to_owned()),
            Some(_) | None => tool(item, transport),
        };
        match verdict {
            Ok(tool) => judged.tools.push(tool),
            Err(reason) => judged.dropped.push(Dropped { name, reason }),
        }
    }
    judged
}

fn name_of(item: &Value) -> Option<&str> {
    item.get("name").and_then(Value::as_str).filter(|name| !name.is_empty())
}

fn tool(item: Value, transport: Transport) -> Result<ToolDef, String> {
    if !item.is_object() {
        return Err("the definition is not an object".to_owned());
    }
    let name = name_of(&item).ok_or("no name")?.to_owned();
    let input_schema = item.get("inputSchema").ok_or("`inputSchema` is missing")?;
    if !input_schema.is_object() {
        return Err("`inputSchema` is not an object".to_owned());
    }
    if input_schema.get("type").and_then(Value::as_str) != Some("object") {
        return Err("`inputSchema` must have the root type `object`".to_owned());
    }
    bounded(input_schema, "inputSchema")?;
    let headers = match transport {
        Transport::Http => param_headers(input_schema)?,
        Transport::Stdio => Vec::new(),
    };
    let output_schema = match item.get("outputSchema") {
        None | Some(Value::Null) => None,
        Some(schema @ Value::Object(_)) => {
            bounded(schema, "outputSchema")?;
            Some(Arc::new(schema.clone()))
        }
        Some(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
            return Err("`outputSchema` is not an object".to_owned());
        }
    };
    let text = |name| item.get(name).and_then(Value::as_str).map(str::to_owned);
    Ok(ToolDef {
        name,
        title: text("title"),
        description: text("description"),
        input_schema: Arc::new(input_schema.clone()),
        output_schema,
        headers,
        annotations: item.get("annotations").map(Hints::of).unwrap_or_default(),
        raw: Arc::new(item),
    })
}

/// Refuses a schema that is too deep, too wide or too long for anyone to judge by.
fn bounded(schema: &Value, member: &str) -> Result<(), String> {
    let mut open = vec![(1, schema)];
    let mut objects = 0;
    while let Some((depth, value)) = open.pop() {
        let below: Box<dyn Iterator<Item = &Value>> = match value {
            Value::Object(members) => {
                objects += 1;
                Box::new(members.values())
            }
            Value::Array(items) => Box::new(items.iter()),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => continue,
        };
        if depth > MAX_SCHEMA_DEPTH {
            return Err(format!("`{member}` is nested deeper than {MAX_SCHEMA_DEPTH} levels"));
        }
        if objects > MAX_SUBSCHEMAS {
            return Err(format!("`{member}` has more than {MAX_SUBSCHEMAS} subschemas"));
        }
        open.extend(below.map(|value| (depth + 1, value)));
    }
    let length = schema.to_string().len();
    if length > MAX_SCHEMA_BYTES {
        return Err(format!("`{member}` has {length} bytes, more than {MAX_SCHEMA_BYTES}"));
    }
    Ok(())
}
