//! Thin views over parsed messages: the few members the gateway touches, each borrowed from the tree.
//!
//! Nothing here is a closed type: what a view does not name stays in the tree and goes out as it came.

mod answers;
mod input;
mod lifecycle;
mod lists;
mod task;
mod tools;

use std::fmt;

use serde_json::{Map, Value};

pub use answers::check_answer;
pub use input::{Ask, AskKind, InputRequired, MAX_ASKS};
pub use lifecycle::{
    ClientCapabilities, DiscoverResult, InitializeParams, InitializeResult, ServerCapabilities,
};
pub use lists::{List, ListPage};
pub use task::{MAX_TASK_ID, TASKS, TaskState, TaskStatus};
pub use tools::{
    Dropped, Hints, Judged, MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, MAX_SUBSCHEMAS, ToolDef, Transport,
    judge_tools,
};

/// What is wrong with a member of a message: its JSON Pointer within `params` or `result`, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    pub at: String,
    pub message: String,
}

impl Wrong {
    pub(in crate::mcp) fn new(at: impl Into<String>, message: impl Into<String>) -> Self {
        Self { at: at.into(), message: message.into() }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.at.is_empty() {
            return f.write_str(&self.message);
        }
        write!(f, "{}: {}", self.at, self.message)
    }
}
impl std::error::Error for Wrong {}

/// The `params` of `tools/call`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CallParams<'p> {
    pub name: &'p str,
    /// As sent, of any type: whether they are good arguments is judged with the tool's schema.
    pub arguments: Option<&'p Value>,
    /// A continuation's answers, by the key of the question (2026-07-28).
    pub input_responses: Option<&'p Map<String, Value>>,
    /// A continuation's state, to be given back exactly (2026-07-28).
    pub request_state: Option<&'p str>,
    /// `_meta.progressToken` where it is a string or a number; anything else asks for no progress.
    pub progress_token: Option<&'p Value>,
    pub meta: Option<&'p Map<String, Value>>,
    /// All of it.
    pub params: &'p Map<String, Value>,
}

/// Members that every hop writes itself, in the order in which it does so.
const OF_EVERY_HOP: [&str; 3] = ["name", "arguments", "_meta"];
/// Members that only some calls have, and whose meaning ends here (2026-07-28, `CallToolRequestParams`; `task` is of
/// 2025-11-25).
const OF_THIS_HOP: [&str; 3] = ["inputResponses", "requestState", "task"];

impl CallParams<'_> {
    /// What was sent, as far as it is to be sent on: all members in their order, those that no revision knows with their
    /// values, and `null` where every hop writes its own. `None`: it is what every hop writes, and no more.
    pub fn shape(&self) -> Option<Map<String, Value>> {
        let kept = || self.params.iter().filter(|(name, _)| !OF_THIS_HOP.contains(&name.as_str()));
        let place = |name: &str| OF_EVERY_HOP.iter().position(|known| *known == name);
        let mut last = None;
        let usual = kept().all(|(name, _)| {
            let here = place(name);
            let rises = here.is_some() && here > last;
            last = here;
            rises
        });
        let of = |(name, value): (&String, &Value)| {
            let value = if place(name).is_some() { Value::Null } else { value.clone() };
            (name.clone(), value)
        };
        (!usual).then(|| kept().map(of).collect())
    }
}

impl<'p> CallParams<'p> {
    /// Reads the `params` of a `tools/call`. An error is -32602.
    pub fn of(params: Option<&'p Value>) -> Result<Self, Wrong> {
        let params = object(params, "")?.ok_or_else(|| Wrong::new("", "`params` are missing"))?;
        let name = string(params, "name")?
            .ok_or_else(|| Wrong::new("/name", "the name of a tool is missing"))?;
        if name.is_empty() {
            return Err(Wrong::new("/name", "the name of a tool is empty"));
        }
        let meta = object(params.get("_meta"), "/_meta")?;
        Ok(Self {
            name,
            arguments: params.get("arguments"),
            input_responses: object(params.get("inputResponses"), "/inputResponses")?,
            request_state: string(params, "requestState")?,
            progress_token: meta.and_then(|meta| progress_token(meta.get("progressToken")?)),
            meta,
            params,
        })
    }
}

/// The `params` of the other requests that may be continued: `resources/read` (`uri`), `prompts/get` (`name`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReadParams<'p> {
    /// The URI of a resource or the name of a prompt.
    pub name: &'p str,
    pub input_responses: Option<&'p Map<String, Value>>,
    pub request_state: Option<&'p str>,
    pub progress_token: Option<&'p Value>,
    pub meta: Option<&'p Map<String, Value>>,
}

impl<'p> ReadParams<'p> {
    /// Reads the `params` of a request whose target stands in `member`. An error is -32602.
    pub fn of(params: Option<&'p Value>, member: &'static str) -> Result<Self, Wrong> {
        let params = object(params, "")?.ok_or_else(|| Wrong::new("", "`params` are missing"))?;
        let name = string(params, member)?
            .ok_or_else(|| Wrong::new(format!("/{member}"), format!("`{member}` is missing")))?;
        let meta = object(params.get("_meta"), "/_meta")?;
        Ok(Self {
            name,
            input_responses: object(params.get("inputResponses"), "/inputResponses")?,
            request_state: string(params, "requestState")?,
            progress_token: meta.and_then(|meta| progress_token(meta.get("progressToken")?)),
            meta,
        })
    }
}

/// What a result says it is, by `resultType` (2026-07-28, basic). How to read it is decided by the request it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultKind {
    /// Also a result without `resultType`: that is how legacy servers write.
    Complete,
    InputRequired,
    /// Of the extension `io.modelcontextprotocol/tasks`.
    Task,
    /// Not negotiated, so invalid.
    Other,
}

impl ResultKind {
    pub fn of(result: &Value) -> Self {
        match result.get("resultType") {
            None => Self::Complete,
            Some(Value::String(kind)) => match kind.as_str() {
                "complete" => Self::Complete,
                "input_required" => Self::InputRequired,
                "task" => Self::Task,
                _ => Self::Other,
            },
            Some(
                Value::Null
                | Value::Bool(_)
                | Value::Number(_)
                | Value::Array(_)
                | Value::Object(_),
            ) => Self::Other,
        }
    }
}

/// `isError` of a tool's result: true only where the server wrote `true`.
pub fn is_error(result: &Value) -> bool {
    result.get("isError") == Some(&Value::Bool(true))
}

fn progress_token(token: &Value) -> Option<&Value> {
    (token.is_string() || token.is_number()).then_some(token)
}

/// An object, or nothing where the member is absent.
fn object<'v>(value: Option<&'v Value>, at: &str) -> Result<Option<&'v Map<String, Value>>, Wrong> {
    match value {
        None => Ok(None),
        Some(Value::Object(members)) => Ok(Some(members)),
        Some(
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_),
        ) => Err(Wrong::new(at, "must be an object")),
    }
}

/// A string, or nothing where the member is absent.
fn string<'v>(members: &'v Map<String, Value>, name: &str) -> Result<Option<&'v str>, Wrong> {
    match members.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_),
        ) => Err(Wrong::new(format!("/{name}"), "must be a string")),
    }
}

#[cfg(test)]
mod tests;
