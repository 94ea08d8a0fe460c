//! What a write means, whatever its call id: the operation's identity.
//!
//! The only maker of [`IdempotencyKey`]. Pure.

use std::fmt;
use std::sync::Arc;

use super::arguments::{Arguments, Digest};
use super::canonical::canonical;
use super::names::{AgentId, CallerKey, ToolName};
use super::outcome::cut_place;
use super::pointer::Pointer;

/// Who shares an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationScope<'a> {
    Agent(&'a AgentId),
    /// All agents of the policy (`write.scope: global`).
    Global,
}

/// What names an operation within its scope and tool.
#[derive(Debug, Clone, Copy)]
pub enum OperationKey<'a> {
    /// The members the policy names; all are required by the tool's schema.
    Fingerprint(&'a [Pointer]),
    /// The caller's `Idempotency-Key`.
    Caller(&'a CallerKey),
    /// The canonical arguments.
    Arguments,
}

/// Identity of an operation, without its occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(Digest);

/// The key a tool is told to recognise one write by. Shown to nobody: who knows it could speak for the write.
#[derive(Clone, PartialEq, Eq)]
pub struct SentKey(Arc<str>);

impl SentKey {
    /// `text`: characters that any header and any argument can hold.
    pub(crate) fn new(text: String) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<key>")
    }
}

impl IdempotencyKey {
    /// The identity itself, for what is derived from it.
    pub fn as_bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }

    pub fn id(&self) -> OperationId {
        OperationId(*self)
    }

    /// An identity that [`operation`] made before and a store kept.
    pub fn restored(bytes: [u8; 32]) -> Self {
        Self(Digest::restored(bytes))
    }
}

/// The short name of an operation, for people, answers and records: `op_` and 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OperationId(IdempotencyKey);

impl OperationId {
    /// The whole identity behind the short name.
    pub fn key(&self) -> IdempotencyKey {
        self.0
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "op_{}", self.0.0.short_hex(8))
    }
}

/// One wish of an agent to change the world.
#[derive(Debug, Clone)]
pub struct Operation {
    pub key: IdempotencyKey,
    /// Over all arguments that are not volatile: tells "same operation" from "same name, other content".
    pub arguments: Digest,
    /// A finished write answers again under any call id: the policy has a fingerprint, or the caller sent a key.
    pub replays: bool,
}

/// The identity of a call to a write tool.
pub fn operation(
    scope: OperationScope<'_>,
    tool: &ToolName,
    key: OperationKey<'_>,
    arguments: &Arguments,
    volatile: &[Pointer],
) -> Operation {
    let all = arguments.digest(volatile);
    let (kind, named) = match key {
        OperationKey::Fingerprint(pointers) => ("fingerprint", fingerprint(arguments, pointers)),
        OperationKey::Caller(key) => ("caller", Digest::of(key.as_str().as_bytes())),
        OperationKey::Arguments => ("arguments", all),
    };
    let (scope, agent) = match scope {
        OperationScope::Agent(agent) => ("agent", agent.as_str()),
        OperationScope::Global => ("global", ""),
    };
    let identity = Digest::of_parts(&[
        b"checkrein/op/v1",
        scope.as_bytes(),
        agent.as_bytes(),
        tool.as_str().as_bytes(),
        kind.as_bytes(),
        named.as_bytes(),
    ]);
    Operation { key: IdempotencyKey(identity), arguments: all, replays: kind != "arguments" }
}

fn fingerprint(arguments: &Arguments, pointers: &[Pointer]) -> Digest {
    let values: Vec<Vec<u8>> = pointers
        .iter()
        .flat_map(|pointer| {
            let value = pointer.get(arguments.tree()).map(canonical).unwrap_or_default();
            [pointer.as_str().as_bytes().to_vec(), value]
        })
        .collect();
    let parts: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
    Digest::of_parts(&parts)
}

/// Pointers of members that differ between two argument trees, at most `most` of them, in the order met.
pub fn changed(first: &serde_json::Value, second: &serde_json::Value, most: usize) -> Vec<String> {
    let mut found = Vec::new();
    compare(first, second, &mut String::new(), &mut found, most);
    found.iter_mut().for_each(cut_place);
    found
}

fn compare(
    a: &serde_json::Value,
    b: &serde_json::Value,
    path: &mut String,
    found: &mut Vec<String>,
    most: usize,
) {
    if found.len() >= most || a == b {
        return;
    }
    let start = path.len();
    if let (serde_json::Value::Object(a), serde_json::Value::Object(b)) = (a, b) {
        let names = a.keys().chain(b.keys().filter(|name| !a.contains_key(*name)));
        for name in names {
            super::pointer::push_token(path, name);
            match (a.get(name), b.get(name)) {
                (Some(x), Some(y)) => compare(x, y, path, found, most),
                (Some(_), None) | (None, Some(_)) if found.len() < most => found.push(path.clone()),
                (Some(_) | None, None) | (None, Some(_)) => {}
            }
            path.truncate(start);
        }
    } else if canonical(a) != canonical(b) {
        found.push(path.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strict_json::Limits;

    fn arguments(text: &str) -> Arguments {
        Arguments::parse(text.as_bytes(), Limits::arguments(1 << 16, 32)).expect(text)
    }

    fn key(agent: &str, tool: &str, key: OperationKey<'_>, text: &str) -> IdempotencyKey {
        let agent = AgentId::new(agent).expect("name");
        operation(OperationScope::Agent(&agent), &ToolName::asked(tool), key, &arguments(text), &[])
            .key
    }

    #[test]
    fn identity_is_scope_tool_and_key_and_nothing_else() {
        let by_arguments = OperationKey::Arguments;
        let first = key("a", "pay", by_arguments, r#"{"x":1,"y":2}"#);
        assert_eq!(first, key("a", "pay", by_arguments, r#"{"y":2.0,"x":1}"#));
        assert_ne!(first, key("b", "pay", by_arguments, r#"{"x":1,"y":2}"#));
        assert_ne!(first, key("a", "pay2", by_arguments, r#"{"x":1,"y":2}"#));
        assert_ne!(first, key("a", "pay", by_arguments, r#"{"x":1,"y":3}"#));
        let pointers = [Pointer::parse("/x").expect("pointer")];
        let by_x = OperationKey::Fingerprint(&pointers);
        assert_eq!(
            key("a", "pay", by_x, r#"{"x":1,"y":2}"#),
            key("a", "pay", by_x, r#"{"x":1,"y":3}"#)
        );
        assert_ne!(
            key("a", "pay", by_x, r#"{"x":9007199254740993}"#),
            key("a", "pay", by_x, r#"{"x":9007199254740992}"#)
        );
    }

    #[test]
    fn changed_members_are_named() {
        let a = arguments(r#"{"x":1,"y":{"z":1},"same":1.0}"#);
        let b = arguments(r#"{"x":2,"y":{"z":1,"w":0},"same":1}"#);
        assert_eq!(changed(a.tree(), b.tree(), 8), ["/x", "/y/w"]);
    }
}
