//! Pages of the four lists a server may have. A page ends the list only when it names no next cursor.

use serde_json::Value;

use super::Wrong;

/// A list of a server that comes in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum List {
    Tools,
    Resources,
    ResourceTemplates,
    Prompts,
}

impl List {
    pub const ALL: [Self; 4] =
        [Self::Tools, Self::Resources, Self::ResourceTemplates, Self::Prompts];

    pub const fn method(self) -> &'static str {
        match self {
            Self::Tools => "tools/list",
            Self::Resources => "resources/list",
            Self::ResourceTemplates => "resources/templates/list",
            Self::Prompts => "prompts/list",
        }
    }

    /// The member of the result that holds the items.
    pub const fn member(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Resources => "resources",
            Self::ResourceTemplates => "resourceTemplates",
            Self::Prompts => "prompts",
        }
    }

    pub fn of_method(method: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|list| list.method() == method)
    }
}

/// One page of a list.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ListPage<'r> {
    /// As they came; each is judged alone.
    pub items: &'r [Value],
    /// Where the list goes on; the empty string is a cursor like any other.
    pub next_cursor: Option<&'r str>,
    /// How long the page may be kept, milliseconds (2026-07-28).
    pub ttl_ms: Option<u64>,
}

impl<'r> ListPage<'r> {
    /// Reads a result of [`List::method`].
    pub fn of(list: List, result: &'r Value) -> Result<Self, Wrong> {
        let member = list.member();
        let items = match result.get(member) {
            Some(Value::Array(items)) => items,
            None
            | Some(
                Value::Null
                | Value::Bool(_)
                | Value::Number(_)
                | Value::String(_)
                | Value::Object(_),
            ) => return Err(Wrong::new(format!("/{member}"), "must be an array")),
        };
        let next_cursor = match result.get("nextCursor") {
            None | Some(Value::Null) => None,
            Some(Value::String(cursor)) => Some(cursor.as_str()),
            Some(Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                return Err(Wrong::new("/nextCursor", "must be a string"));
            }
        };
        Ok(Self { items, next_cursor, ttl_ms: result.get("ttlMs").and_then(Value::as_u64) })
    }
}
