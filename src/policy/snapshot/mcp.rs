//! Servers of tools that speak MCP, and the rules for what they offer. What a server really offers is known only when
//! it has been asked; [`super::super::bind`] makes tools of both.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use super::{Rule, Secret, Tool, Upstream};
use crate::call::{Digest, UpstreamName};

/// `mcp_servers.X`.
#[derive(Debug)]
pub struct McpServer {
    pub name: UpstreamName,
    pub rule: Rule,
    pub reach: Reach,
    /// Limits and circuit of the server; for a child the fields about a network are empty.
    pub upstream: Arc<Upstream>,
    /// Revisions offered to it (`2025-11-25`, …), newest first.
    pub protocol: Vec<Arc<str>>,
    pub share: Share,
    pub may_ask: MayAsk,
    pub pass: Pass,
    /// The limits that `pass` is under: those of a read under the server's profile. `None` = nothing is passed.
    pub passed: Option<Arc<Tool>>,
    pub prefix: Arc<str>,
    pub pin: Pin,
    pub on_drift: OnDrift,
    /// Rules for its tools; exactly one applies to a tool: the exact name, else the longest literal prefix.
    pub entries: Vec<Arc<crate::policy::bind::Entry>>,
    /// Hash of everything that a connection to it hangs on: another one is another server.
    pub section: Digest,
}

/// How a server is reached.
#[derive(Debug, Clone)]
pub enum Reach {
    /// Streamable HTTP at `upstream.base_path` of the server's upstream.
    Http,
    /// A child process that speaks on its standard streams.
    Child(Child),
}

#[derive(Debug, Clone)]
pub struct Child {
    /// Program and arguments; never a shell.
    pub argv: Vec<String>,
    /// The whole environment. A missing secret keeps the child from starting.
    pub env: BTreeMap<String, EnvValue>,
    pub cwd: PathBuf,
    /// Most children at once.
    pub children: u32,
}

#[derive(Debug, Clone)]
pub enum EnvValue {
    Text(String),
    Secret(Secret),
}

/// Who shares an inner session or a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Share {
    Run,
    Agent,
    /// Only a child whose server keeps no state.
    All,
}

/// What a server may ask the agent's side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MayAsk {
    pub elicitation: bool,
    pub sampling: bool,
    pub roots: bool,
}

/// What is passed on besides tools, for agents that may call at least one of the server's tools.
#[derive(Debug, Clone, Default)]
pub struct Pass {
    /// Globs over URIs; empty = no resources.
    pub resources: Vec<String>,
    /// Globs over the server's own names of prompts.
    pub prompts: Vec<String>,
    pub completion: bool,
    pub logging: bool,
}

impl Pass {
    pub fn is_empty(&self) -> bool {
        self.resources.is_empty() && self.prompts.is_empty() && !self.completion && !self.logging
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pin {
    /// Reviewed hashes, by the server's own tool names.
    File(BTreeMap<String, String>),
    /// What was seen first is kept, in the store.
    FirstSeen,
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDrift {
    Warn,
    /// The tool is hidden, and answers `tool_quarantined`.
    Quarantine,
    /// All tools of the server are.
    Block,
}

/// Where a tool's calls go, of a tool that an MCP server offers.
#[derive(Clone)]
pub struct McpTool {
    pub server: Arc<McpServer>,
    /// The server's own name of it.
    pub own_name: Arc<str>,
    /// The rule that made a tool of it.
    pub entry: Arc<crate::policy::bind::Entry>,
    /// Its definition as the server listed it.
    pub definition: Arc<Value>,
    /// It declares one that is listed to agents: a result without conforming structured content breaks clients.
    pub output_schema: bool,
    /// What the compiled schema was made of.
    pub judged_by: Digest,
    /// `result.format` is written, so `result.json` holds; else a result passes as the server gave it.
    pub format_written: bool,
    /// Arguments that modern servers want repeated in fields: pointer, field without `Mcp-Param-`.
    pub param_headers: Arc<[(String, String)]>,
    pub is_error: IsError,
    /// `write.on_input_required: unknown`.
    pub asks_after_acting: bool,
    /// `tasks: use`: the server may answer a call with a task, which is followed.
    pub tasks: bool,
    /// `write.idempotency: { mode: meta, name }`.
    pub meta_key: Option<Arc<str>>,
}

/// Not the whole server, which knows every rule.
impl fmt::Debug for McpTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "McpTool({} of {})", self.own_name, self.server.name)
    }
}

/// What `isError: true` proves of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IsError {
    Executed,
    NotExecuted,
    Unknown,
}
