//! What a tool offers against not knowing: a key it recognises, a read that tells, a probe in place of a real call.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::Maybe;
use super::kinds::{ARGUMENT, Count, DURATION, KEY_NAME, NAME, POINTER};
use super::read::{At, Entries, Fields, Kind, List, Record, Report, Words};
use super::tree::{Node, NodeKind, Scalar};
use crate::call::pointer::Pointer;
use crate::policy::diagnostic::Problem;
use crate::policy::predicate::{Predicate, Test};

/// Where the key that the tool recognises goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyMode {
    Header,
    Argument,
    /// A key of `_meta`; tools of MCP servers.
    Meta,
    /// Repeating the same request changes nothing: no key.
    Natural,
}

/// `write.idempotency`.
#[derive(Debug, Clone)]
pub struct Idempotency {
    pub mode: Maybe<KeyMode>,
    /// A header's name, or a pointer to one member of the arguments.
    pub name: Maybe<String>,
    pub quoted: Maybe<bool>,
    pub window: Maybe<Duration>,
}

pub(super) const IDEMPOTENCY: Record<Idempotency> =
    Record { name: "idempotency", fields: Idempotency::fields };

impl Idempotency {
    fn fields(f: &mut Fields<'_>) -> Self {
        let idempotency = Self {
            mode: f.required(
                "mode",
                Words(&[
                    ("header", Some(KeyMode::Header)),
                    ("argument", Some(KeyMode::Argument)),
                    ("natural", Some(KeyMode::Natural)),
                    ("meta", Some(KeyMode::Meta)),
                ]),
            ),
            name: f.optional("name", KEY_NAME),
            quoted: f.optional("quoted", super::kinds::Bool),
            window: f.optional("window", DURATION),
        };
        f.check(key_name);
        idempotency
    }

    /// The member of the arguments that the key takes; `None` = it goes elsewhere, or nowhere.
    pub fn argument(&self) -> Option<String> {
        let mode = self.mode.as_ref()?.value;
        let name = self.name.as_ref().filter(|_| mode == KeyMode::Argument)?;
        one_member(&name.value)
    }
}

/// The member that a pointer of one step names.
fn one_member(text: &str) -> Option<String> {
    match Pointer::parse(text)?.tokens() {
        [member] => Some(member.clone()),
        [] | [_, _, ..] => None,
    }
}

/// A prefix and a name as MCP spells keys of `_meta` (2025-11-25, basic, `_meta`), not of those that are reserved.
fn is_meta_key(text: &str) -> bool {
    let (prefix, name) = text.rsplit_once('/').unwrap_or(("", text));
    let edge = |c: char| c.is_ascii_alphanumeric();
    let sound = |part: &str| {
        part.starts_with(edge)
            && part.ends_with(edge)
            && part.chars().all(|c| edge(c) || matches!(c, '-' | '_' | '.'))
    };
    let mut labels = prefix.split('.').filter(|label| !label.is_empty());
    let reserved = labels.nth(1).is_some_and(|label| {
        label.eq_ignore_ascii_case("modelcontextprotocol") || label.eq_ignore_ascii_case("mcp")
    });
    let ours = prefix.eq_ignore_ascii_case("io.checkrein");
    text.len() <= 256
        && sound(name)
        && (prefix.is_empty() || sound(prefix))
        && !reserved
        && !ours
        && !matches!(text, "progressToken" | "traceparent" | "tracestate" | "baggage")
}

/// `name` is what its mode needs.
fn key_name(node: &Node, report: &mut Report) {
    let text = |key| match node.get(key).map(|node| &node.kind) {
        Some(NodeKind::Scalar { text, .. }) => Some(text.as_str()),
        Some(NodeKind::List(_) | NodeKind::Map(_) | NodeKind::Broken) | None => None,
    };
    let name = node.entry("name");
    match (text("mode"), name) {
        (Some("argument"), None) => {
            let message = format!("`{}` has no `name`", report.path());
            let label = "say which argument takes the key: `name: /idempotency_key`";
            report.push(Problem::new("CR1003", node.place, message).label(label));
        }
        (Some("argument"), Some((_, value))) => {
            if text("name").and_then(one_member).is_none() {
                report.wrong("CR1004", value, "a pointer to one argument: `/idempotency_key`");
            }
        }
        (Some("meta"), None) => {
            let message = format!("`{}` has no `name`", report.path());
            let label = "say which key of `_meta` takes it: `name: example.com/idempotency-key`";
            report.push(Problem::new("CR1003", node.place, message).label(label));
        }
        (Some("meta"), Some((_, value))) => {
            if !text("name").is_some_and(is_meta_key) {
                let expected =
                    "a key of `_meta` of your own or the tool's: `example.com/idempotency-key`";
                report.wrong("CR1004", value, expected);
            }
        }
        (Some("header"), Some((_, value))) => {
            if let Some(Err(expected)) = text("name").map(super::kinds::plain_header) {
                report.wrong("CR1004", value, expected);
            }
        }
        (Some(_) | None, Some(_) | None) => {}
    }
}

/// `write.status_query`.
#[derive(Debug, Clone)]
pub struct StatusQuery {
    pub tool: Maybe<String>,
    pub arguments: Maybe<Entries<QueryArgument>>,
    pub executed_when: Maybe<Predicate>,
    pub not_executed_when: Maybe<Predicate>,
    pub settle: Maybe<Duration>,
    pub tries: Maybe<u64>,
}

pub(super) const STATUS_QUERY: Record<StatusQuery> =
    Record { name: "status_query", fields: StatusQuery::fields };

impl StatusQuery {
    fn fields(f: &mut Fields<'_>) -> Self {
        let argument = Record { name: "query_argument", fields: QueryArgument::fields };
        Self {
            tool: f.required("tool", NAME),
            arguments: f.optional("arguments", Members(argument)),
            executed_when: f.required("executed_when", PredicateKind),
            not_executed_when: f.optional("not_executed_when", PredicateKind),
            settle: f.optional("settle", DURATION),
            tries: f.optional("tries", Count { least: 1, most: 10 }),
        }
    }
}

/// One argument of a status query; exactly one is there.
#[derive(Debug, Clone)]
pub struct QueryArgument {
    /// Of the write's own arguments.
    pub from: Maybe<Pointer>,
    pub value: Maybe<Value>,
    /// The key the write was sent with.
    pub key: bool,
}

impl QueryArgument {
    fn fields(f: &mut Fields<'_>) -> Self {
        let argument = Self {
            from: f.optional("from", POINTER),
            value: f.optional("value", Json),
            key: f.optional("key", OnlyTrue).is_some(),
        };
        f.exactly_one(&["from", "value", "key"]);
        argument
    }
}

/// Any JSON value.
pub(crate) struct Json;

impl Kind for Json {
    type Out = Value;

    fn read(&self, node: &Node, report: &mut Report) -> Option<Value> {
        match node.to_json() {
            Ok(value) => Some(value),
            Err(_) => {
                report.wrong("CR1004", node, "a JSON value");
                None
            }
        }
    }

    fn schema(&self, _defs: &mut Map<String, Value>) -> Value {
        json!({ "type": ["null", "boolean", "integer", "number", "string", "array", "object"] })
    }
}

/// A number, exact to its last digit.
struct Number;

impl Kind for Number {
    type Out = Value;

    fn read(&self, node: &Node, report: &mut Report) -> Option<Value> {
        let number = match node.scalar() {
            Some(Scalar::Integer | Scalar::Float) => node.to_json().ok(),
            Some(Scalar::Null | Scalar::Bool(_) | Scalar::Text) | None => None,
        };
        if number.is_none() {
            report.wrong("CR1004", node, "a number");
        }
        number
    }

    fn schema(&self, _defs: &mut Map<String, Value>) -> Value {
        json!({ "type": ["integer", "number"] })
    }
}

struct OnlyTrue;

impl Kind for OnlyTrue {
    type Out = ();

    fn read(&self, node: &Node, report: &mut Report) -> Option<()> {
        if node.scalar() == Some(Scalar::Bool(true)) {
            return Some(());
        }
        report.wrong("CR1004", node, "`true`");
        None
    }

    fn schema(&self, _defs: &mut Map<String, Value>) -> Value {
        json!({ "const": true })
    }
}

/// A map from arguments' names.
struct Members<K>(K);

impl<K: Kind> Kind for Members<K> {
    type Out = Entries<K::Out>;

    fn read(&self, node: &Node, report: &mut Report) -> Option<Self::Out> {
        let NodeKind::Map(entries) = &node.kind else {
            report.wrong("CR1004", node, "a map from arguments' names");
            return None;
        };
        let mut out = Entries::new();
        for (key, value) in entries {
            if let Err(expected) = (ARGUMENT.parse)(&key.text) {
                let message = format!("`{}` is not {expected}", super::tree::short(&key.text));
                report.push(Problem::new("CR1004", key.place, message));
            }
            report.path.push(key.text.clone());
            if let Some(read) = self.0.read(value, report) {
                let (place, last_line) = (value.place, value.end.0);
                out.insert(key.text.clone(), At { value: read, key: key.place, place, last_line });
            }
            report.path.pop();
        }
        Some(out)
    }

    fn schema(&self, defs: &mut Map<String, Value>) -> Value {
        json!({ "type": "object", "additionalProperties": self.0.schema(defs) })
    }
}

/// A predicate, compiled as it is read: what does not compile is told at its place.
pub(crate) struct PredicateKind;

/// A predicate as its record reads it.
const PREDICATE: Record<Option<Predicate>> = Record { name: "predicate", fields: predicate };

impl Kind for PredicateKind {
    type Out = Predicate;

    fn read(&self, node: &Node, report: &mut Report) -> Option<Predicate> {
        PREDICATE.read(node, report).flatten()
    }

    fn schema(&self, defs: &mut Map<String, Value>) -> Value {
        PREDICATE.schema(defs)
    }
}

const TESTS: &[&str] = &["equals", "in", "gt", "gte", "lt", "lte", "matches", "exists"];

fn predicate(f: &mut Fields<'_>) -> Option<Predicate> {
    let parts = |list: Vec<At<Predicate>>| list.into_iter().map(|at| at.value).collect();
    let any = f.optional("any", List { of: PredicateKind, least: 1 });
    let all = f.optional("all", List { of: PredicateKind, least: 1 });
    let not = f.optional("not", PredicateKind);
    let pointer = f.optional("pointer", POINTER);
    let tests = [
        f.optional("equals", Json).map(|at| at.map(|value| json!({ "const": value }))),
        f.optional("in", List { of: Json, least: 1 }).map(|at| {
            let values = |list: Vec<At<Value>>| list.into_iter().map(|at| at.value).collect();
            at.map(|list| json!({ "enum": Value::Array(values(list)) }))
        }),
        bound(f, "gt", "exclusiveMinimum"),
        bound(f, "gte", "minimum"),
        bound(f, "lt", "exclusiveMaximum"),
        bound(f, "lte", "maximum"),
        f.optional("matches", super::kinds::PATTERN)
            .map(|at| at.map(|text| json!({ "type": "string", "pattern": text }))),
    ];
    let exists = f.optional("exists", super::kinds::Bool);
    f.exactly_one(&["pointer", "any", "all", "not"]);
    let mut named = pointer.is_some();
    f.check(|node, report| named |= one_test(node, report));
    let test = tests.into_iter().flatten().next();
    if let (Some(pointer), Some(test)) = (&pointer, test) {
        let pointer = pointer.value.clone();
        let mut compiled = None;
        f.check(|_, report| match Test::is(&test.value) {
            Ok(test) => compiled = Some(Predicate::Test { pointer, test }),
            Err(fault) => {
                let message = format!("the test of `{}` is unusable: {fault}", report.path());
                report.push(Problem::new("CR1007", test.place, message));
            }
        });
        return compiled;
    }
    match (pointer, exists, any, all, not) {
        (Some(pointer), Some(exists), ..) => {
            Some(Predicate::Test { pointer: pointer.value, test: Test::Exists(exists.value) })
        }
        (_, _, Some(any), ..) => Some(Predicate::Any(parts(any.value))),
        (_, _, _, Some(all), _) => Some(Predicate::All(parts(all.value))),
        (_, _, _, _, Some(not)) => Some(Predicate::Not(Box::new(not.value))),
        (_, _, None, None, None) => None,
    }
}

fn bound(f: &mut Fields<'_>, key: &'static str, keyword: &'static str) -> Maybe<Value> {
    let number = f.optional(key, Number)?;
    Some(number.map(|number| {
        let mut schema = Map::from_iter([("type".to_owned(), json!("number"))]);
        schema.insert(keyword.to_owned(), number);
        Value::Object(schema)
    }))
}

/// A pointer has exactly one test, and no test stands without a pointer. True where one stands.
fn one_test(node: &Node, report: &mut Report) -> bool {
    let NodeKind::Map(entries) = &node.kind else { return false };
    let given: Vec<_> =
        entries.iter().filter(|(key, _)| TESTS.contains(&key.text.as_str())).collect();
    let list = TESTS.iter().map(|test| format!("`{test}`")).collect::<Vec<_>>().join(", ");
    match (node.entry("pointer"), given.as_slice()) {
        (Some((pointer, _)), []) => {
            let message = format!("`{}` has no test", report.path());
            let label = format!("add one of {list}");
            report.push(Problem::new("CR1008", pointer.place, message).label(label));
        }
        (Some(_), [_, (second, _), ..]) => {
            let message = format!("`{}` takes only one of {list}", report.path());
            report.push(Problem::new("CR1008", second.place, message));
        }
        (None, [(test, _), ..]) => {
            let message = format!("`{}` has a test and no `pointer`", report.path());
            report.push(Problem::new("CR1003", test.place, message).label("add `pointer:`"));
        }
        (Some(_), [_]) | (None, []) => {}
    }
    !given.is_empty()
}

/// `breaker.probe`.
#[derive(Debug, Clone, PartialEq)]
pub enum Probe {
    /// TCP, and TLS where the upstream has it.
    Connect,
    /// `server/discover` or `tools/list`; servers that speak MCP.
    Discover,
    /// A read of the policy.
    Call { tool: At<String>, arguments: Map<String, Value> },
}

/// `connect`, or a read with its arguments.
pub(crate) struct ProbeKind;

impl Kind for ProbeKind {
    type Out = Probe;

    fn read(&self, node: &Node, report: &mut Report) -> Option<Probe> {
        match &node.kind {
            NodeKind::Scalar { text, .. } if text == "connect" => Some(Probe::Connect),
            NodeKind::Scalar { text, .. } if text == "discover" => Some(Probe::Discover),
            NodeKind::Map(_) => PROBE_CALL.read(node, report).flatten(),
            NodeKind::Scalar { .. } | NodeKind::List(_) | NodeKind::Broken => {
                report.wrong(
                    "CR1004",
                    node,
                    "`connect`, `discover`, or `{ tool, arguments }` naming a read",
                );
                None
            }
        }
    }

    fn schema(&self, defs: &mut Map<String, Value>) -> Value {
        json!({ "anyOf": [{ "enum": ["connect", "discover"] }, PROBE_CALL.schema(defs)] })
    }
}

const PROBE_CALL: Record<Option<Probe>> = Record { name: "", fields: probe_call };

fn probe_call(f: &mut Fields<'_>) -> Option<Probe> {
    let tool = f.required("tool", NAME);
    let arguments = f.optional("arguments", Object);
    Some(Probe::Call { tool: tool?, arguments: arguments.map(|at| at.value).unwrap_or_default() })
}

/// A JSON object.
struct Object;

impl Kind for Object {
    type Out = Map<String, Value>;

    fn read(&self, node: &Node, report: &mut Report) -> Option<Self::Out> {
        match (&node.kind, node.to_json()) {
            (NodeKind::Map(_), Ok(Value::Object(members))) => Some(members),
            _other => {
                report.wrong("CR1004", node, "a map of arguments");
                None
            }
        }
    }

    fn schema(&self, _defs: &mut Map<String, Value>) -> Value {
        json!({ "type": "object" })
    }
}
