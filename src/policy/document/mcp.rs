//! `mcp_servers`: servers that speak MCP, and the rules for what they offer.

use std::path::PathBuf;

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use super::kinds::{
    ADDRESS, BASE_URL, Bool, COUNT, Count, NAME, SchemaKind, SchemaSource, SecretKind, SecretRef,
    is_env_name,
};
use super::read::{
    At, Entries, Fields, Kind, List, Record, Report, Sensitive, Words, suggest_switch,
};
use super::sections::{AUTH, BREAKER, BUCKET, HTTP_VERSION, RETRY_BUDGET};
use super::tree::{Node, NodeKind, Scalar};
use super::{Maybe, Tool, Upstream};
use crate::mcp::version::{Revision, SUPPORTED};
use crate::policy::diagnostic::Problem;
use crate::policy::glob::is_glob;
use crate::policy::snapshot::{OnDrift, Share};

/// Longest name of a tool that a server may have (2025-11-25, tools).
pub const MAX_OWN_NAME: usize = 128;

/// `mcp_servers.X`.
#[derive(Debug, Clone)]
pub struct McpServer {
    /// `url` is its `base_url`; keys of upstreams that servers do not take are absent.
    pub upstream: Upstream,
    pub command: Maybe<Vec<String>>,
    pub protocol: Maybe<Vec<At<Revision>>>,
    pub env: Maybe<Entries<EnvValue>>,
    pub cwd: Maybe<PathBuf>,
    pub share: Maybe<Share>,
    pub children: Maybe<u64>,
    pub may_ask: Maybe<Vec<At<Ask>>>,
    pub pass: Maybe<Pass>,
    pub prefix: Maybe<String>,
    pub profile: Maybe<String>,
    pub pin: Maybe<Pin>,
    pub on_drift: Maybe<OnDrift>,
    pub tools: Entries<McpEntry>,
}

impl McpServer {
    pub fn prefix(&self) -> &str {
        self.prefix.as_ref().map_or("", |prefix| prefix.value.as_str())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    Elicitation,
    Sampling,
    Roots,
}

#[derive(Debug, Clone)]
pub enum EnvValue {
    Text(String),
    Secret(SecretRef),
}

#[derive(Debug, Clone)]
pub struct Pass {
    pub resources: Maybe<Vec<At<String>>>,
    pub prompts: Maybe<Vec<At<String>>>,
    pub completion: Maybe<bool>,
    pub logging: Maybe<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pin {
    FirstSeen,
    None,
    /// A path below the policy's directory.
    File(PathBuf),
}

/// One entry of `mcp_servers.X.tools`.
#[derive(Debug, Clone)]
pub struct McpEntry {
    /// A tool's keys, without a back end.
    pub tool: Tool,
    pub constraints: Maybe<SchemaSource>,
    pub rename: Maybe<String>,
    pub expose: Maybe<bool>,
}

impl McpEntry {
    pub fn is_exposed(&self) -> bool {
        self.expose.as_ref().is_none_or(|expose| expose.value)
    }

    /// The name, or the pattern of names, under which its tools are exposed.
    pub fn exposed(&self, prefix: &str, pattern: &str) -> String {
        match &self.rename {
            Some(name) if !is_glob(pattern) => name.value.clone(),
            Some(_) | None => format!("{prefix}{pattern}"),
        }
    }
}

const PASS: Record<Pass> = Record { name: "pass", fields: Pass::fields };
const ENTRY: Record<McpEntry> = Record { name: "mcp_tool", fields: McpEntry::fields };

impl McpServer {
    pub(super) fn fields(f: &mut Fields<'_>) -> Self {
        let server = Self {
            upstream: Upstream {
                base_url: f.optional("url", BASE_URL),
                auth: f.optional("auth", Sensitive(AUTH)),
                headers: None,
                ca: f.optional("ca", Sensitive(SecretKind)),
                addresses: f.optional("addresses", List { of: ADDRESS, least: 1 }),
                http_version: f.optional("http_version", HTTP_VERSION),
                timeout_header: None,
                follow_same_origin: None,
                bulkhead: f.optional("bulkhead", COUNT),
                rate_limit: f.optional("rate_limit", BUCKET),
                breaker: f.optional("breaker", BREAKER),
                retry_budget: f.optional("retry_budget", RETRY_BUDGET),
            },
            command: f.optional("command", Argv),
            protocol: f.optional("protocol", List { of: RevisionKind, least: 1 }),
            env: f.optional("env", Sensitive(Environment)),
            cwd: f.optional("cwd", Directory),
            share: f.optional(
                "share",
                Words(&[
                    ("run", Some(Share::Run)),
                    ("agent", Some(Share::Agent)),
                    ("all", Some(Share::All)),
                ]),
            ),
            children: f.optional("children", Count { least: 1, most: 1000 }),
            may_ask: f.optional("may_ask", List { of: ASK, least: 0 }),
            pass: f.optional("pass", PASS),
            prefix: f.optional("prefix", PREFIX),
            profile: f.optional("profile", NAME),
            pin: f.optional("pin", PinKind),
            on_drift: f.optional(
                "on_drift",
                Words(&[
                    ("warn", Some(OnDrift::Warn)),
                    ("quarantine", Some(OnDrift::Quarantine)),
                    ("block", Some(OnDrift::Block)),
                ]),
            ),
            tools: f.required("tools", OwnNames(ENTRY)).map(|at| at.value).unwrap_or_default(),
        };
        f.exactly_one(&["url", "command"]);
        server
    }
}

const ASK: Words<Ask> = Words(&[
    ("elicitation", Some(Ask::Elicitation)),
    ("sampling", Some(Ask::Sampling)),
    ("roots", Some(Ask::Roots)),
]);

impl Pass {
    fn fields(f: &mut Fields<'_>) -> Self {
        Self {
            resources: f.optional("resources", List { of: TEXT_GLOB, least: 1 }),
            prompts: f.optional("prompts", List { of: TEXT_GLOB, least: 1 }),
            completion: f.optional("completion", Bool),
            logging: f.optional("logging", Bool),
        }
    }
}

impl McpEntry {
    fn fields(f: &mut Fields<'_>) -> Self {
        let entry = Self {
            tool: Tool::of_server(f),
            constraints: f.optional("constraints", SchemaKind),
            rename: f.optional("rename", NAME),
            expose: f.optional("expose", Bool),
        };
        f.at_most_one(&["constraints", "schema"]);
        entry
    }
}

const PREFIX: super::kinds::Text<String> = super::kinds::Text {
    expected: "a prefix",
    parse: |text| {
        let sound = text.len() < 64 && (text.is_empty() || crate::call::names::is_plain_name(text));
        sound.then(|| text.to_owned()).ok_or("at most 63 of the characters A-Z a-z 0-9 _ -")
    },
    schema: || json!({ "type": "string", "pattern": "^[A-Za-z0-9_-]{0,63}$" }),
};

/// A pattern over URIs, or over names of a server's own.
const TEXT_GLOB: super::kinds::Text<String> = super::kinds::Text {
    expected: "a text or a pattern",
    parse: |text| {
        let sound = !text.is_empty() && text.len() <= 1024 && !text.contains(char::is_control);
        sound.then(|| text.to_owned()).ok_or("a text, or a pattern with `*` and `?`")
    },
    schema: || json!({ "type": "string", "minLength": 1, "maxLength": 1024 }),
};

/// A revision that is offered to servers.
struct RevisionKind;

impl Kind for RevisionKind {
    type Out = Revision;

    fn read(&self, node: &Node, report: &mut Report) -> Option<Revision> {
        let text = match (&node.kind, node.scalar()) {
            (NodeKind::Scalar { text, .. }, Some(Scalar::Text)) => text.as_str(),
            _other => "",
        };
        let found = Revision::parse(text).filter(|revision| SUPPORTED.contains(revision));
        if found.is_none() {
            let all: Vec<String> =
                SUPPORTED.iter().map(|revision| format!("`\"{}\"`", revision.as_str())).collect();
            report.wrong("CR1004", node, &format!("one of {}", all.join(", ")));
        }
        found
    }

    fn schema(&self, _defs: &mut Map<String, Value>) -> Value {
        json!({ "enum": SUPPORTED.map(Revision::as_str) })
    }
}

/// A program and its arguments, which may repeat.
struct Argv;

impl Kind for Argv {
    type Out = Vec<String>;

    fn read(&self, node: &Node, report: &mut Report) -> Option<Vec<String>> {
        let NodeKind::List(items) = &node.kind else {
            report.wrong("CR1004", node, "a list: the program and its arguments");
            return None;
        };
        let mut argv = Vec::new();
        for item in items {
            match (&item.kind, item.scalar()) {
                (NodeKind::Scalar { text, .. }, Some(Scalar::Text)) if !text.contains('\0') => {
                    argv.push(text.clone());
                }
                _other => {
                    report.wrong("CR1004", item, "a text (numbers in quotes)");
                    return None;
                }
            }
        }
        if argv.first().is_none_or(|program| program.trim().is_empty()) {
            report.wrong("CR1004", node, "a list that begins with the program");
            return None;
        }
        Some(argv)
    }

    fn schema(&self, _defs: &mut Map<String, Value>) -> Value {
        json!({ "type": "array", "items": { "type": "string" }, "minItems": 1 })
    }
}

/// An absolute path.
struct Directory;

impl Kind for Directory {
    type Out = PathBuf;

    fn read(&self, node: &Node, report: &mut Report) -> Option<PathBuf> {
        match &node.kind {
            NodeKind::Scalar { text, .. } if text.starts_with('/') => Some(text.into()),
            NodeKind::Scalar { .. } | NodeKind::List(_) | NodeKind::Map(_) | NodeKind::Broken => {
                report.wrong("CR1004", node, "an absolute path");
                None
            }
        }
    }

    fn schema(&self, _defs: &mut Map<String, Value>) -> Value {
        json!({ "type": "string", "pattern": "^/" })
    }
}

/// A child's variables: texts, or references to secrets.
struct Environment;

impl Kind for Environment {
    type Out = Entries<EnvValue>;

    fn read(&self, node: &Node, report: &mut Report) -> Option<Self::Out> {
        let NodeKind::Map(entries) = &node.kind else {
            report.wrong("CR1004", node, "a map from variables' names");
            return None;
        };
        let mut out = IndexMap::new();
        for (key, value) in entries {
            if !is_variable(&key.text) {
                let name = super::tree::short(&key.text);
                let message = format!("`{name}` is no name of a variable");
                let label = "a variable's name has letters, digits and _, and begins with no digit";
                report.push(Problem::new("CR1004", key.place, message).label(label));
            }
            report.path.push(key.text.clone());
            let read = match (&value.kind, value.scalar()) {
                (NodeKind::Map(_), _) => SecretKind.read(value, report).map(EnvValue::Secret),
                (NodeKind::Scalar { text, .. }, Some(Scalar::Text)) if !text.contains('\0') => {
                    Some(EnvValue::Text(text.clone()))
                }
                _other => {
                    let expected = "a text (numbers in quotes) or a reference to a secret";
                    report.wrong("CR1004", value, expected);
                    None
                }
            };
            report.path.pop();
            if let Some(read) = read {
                let (place, last_line) = (value.place, value.end.0);
                out.insert(key.text.clone(), At { value: read, key: key.place, place, last_line });
            }
        }
        Some(out)
    }

    fn schema(&self, defs: &mut Map<String, Value>) -> Value {
        json!({
            "type": "object",
            "propertyNames": { "pattern": "^[A-Za-z_][A-Za-z0-9_]*$" },
            "additionalProperties": { "anyOf": [{ "type": "string" }, SecretKind.schema(defs)] },
        })
    }
}

fn is_variable(text: &str) -> bool {
    is_env_name(&text.to_ascii_uppercase())
}

/// `first_seen`, `none`, or a file beside the policy.
struct PinKind;

impl Kind for PinKind {
    type Out = Pin;

    fn read(&self, node: &Node, report: &mut Report) -> Option<Pin> {
        match &node.kind {
            NodeKind::Scalar { text, .. } if text == "first_seen" => Some(Pin::FirstSeen),
            NodeKind::Scalar { text, .. } if text == "none" => Some(Pin::None),
            NodeKind::Map(_) => PIN_FILE.read(node, report).flatten().map(Pin::File),
            NodeKind::Scalar { .. } | NodeKind::List(_) | NodeKind::Broken => {
                report.wrong("CR1004", node, "`first_seen`, `none` or `{ file: path }`");
                suggest_switch(node, &["none"], report);
                None
            }
        }
    }

    fn schema(&self, defs: &mut Map<String, Value>) -> Value {
        json!({ "anyOf": [{ "enum": ["first_seen", "none"] }, PIN_FILE.schema(defs)] })
    }
}

const PIN_FILE: Record<Option<PathBuf>> =
    Record { name: "", fields: |f| f.required("file", Beside).map(|at| at.value) };

/// A path below the policy's directory.
struct Beside;

impl Kind for Beside {
    type Out = PathBuf;

    fn read(&self, node: &Node, report: &mut Report) -> Option<PathBuf> {
        let path = match &node.kind {
            NodeKind::Scalar { text, .. } if !text.is_empty() => Some(PathBuf::from(text)),
            NodeKind::Scalar { .. } | NodeKind::List(_) | NodeKind::Map(_) | NodeKind::Broken => {
                None
            }
        };
        let inside = path.filter(|path| {
            path.components().all(|part| matches!(part, std::path::Component::Normal(_)))
        });
        if inside.is_none() {
            report.wrong("CR1004", node, "a path below the policy's directory");
        }
        inside
    }

    fn schema(&self, _defs: &mut Map<String, Value>) -> Value {
        json!({ "type": "string", "minLength": 1, "pattern": "^[^/]" })
    }
}

/// A map from names that a server chose, or patterns of them.
struct OwnNames<K>(K);

impl<K: Kind> Kind for OwnNames<K> {
    type Out = Entries<K::Out>;

    fn read(&self, node: &Node, report: &mut Report) -> Option<Self::Out> {
        let NodeKind::Map(entries) = &node.kind else {
            report.wrong("CR1004", node, "a map from names or patterns of the server's tools");
            return None;
        };
        let mut out = IndexMap::new();
        for (key, value) in entries {
            let name = &key.text;
            let sound = !name.is_empty()
                && name.len() <= MAX_OWN_NAME
                && !name.contains(|c: char| c.is_control() || c.is_whitespace());
            if !sound {
                let message = format!("`{}` is no tool's name", super::tree::short(name));
                let label = "name a tool as its server does, or a pattern with `*` and `?`";
                report.push(Problem::new("CR1004", key.place, message).label(label));
            }
            report.path.push(name.clone());
            if let Some(read) = self.0.read(value, report) {
                let (place, last_line) = (value.place, value.end.0);
                out.insert(name.clone(), At { value: read, key: key.place, place, last_line });
            }
            report.path.pop();
        }
        Some(out)
    }

    fn schema(&self, defs: &mut Map<String, Value>) -> Value {
        json!({
            "type": "object",
            "propertyNames": { "minLength": 1, "maxLength": MAX_OWN_NAME },
            "additionalProperties": self.0.schema(defs),
        })
    }
}
