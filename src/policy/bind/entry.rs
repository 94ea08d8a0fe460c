//! One rule of `mcp_servers.X.tools`, compiled: everything a tool obeys but what only its definition says.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use crate::call::pointer::Pointer;
use crate::call::{Effect, ToolName};
use crate::policy::glob::{glob_matches, is_glob};
use crate::policy::schema::Schema;
use crate::policy::snapshot::{
    ApprovalPolicy, BreakerPolicy, CachePolicy, FusePolicy, IsError, RateLimit, ResultPolicy,
    RetryPolicy, Rule, Timeouts, WritePolicy,
};

/// One entry of `mcp_servers.X.tools`, checked: a rule waiting for the tools it applies to.
#[derive(Debug)]
pub struct Entry {
    /// Exact name, or a glob, over the server's own names.
    pub pattern: Arc<str>,
    pub rule: Rule,
    pub expose: bool,
    /// Exact names only.
    pub rename: Option<ToolName>,
    /// As the policy says it; hints may tighten what a pattern calls a read.
    pub effect: Effect,
    /// In place of the server's.
    pub description: Option<Arc<str>>,
    /// In place of the server's; closed.
    pub schema: Option<Schema>,
    /// Joined to the server's.
    pub constraints: Option<Arc<Value>>,
    pub timeout: Timeouts,
    /// Of reads.
    pub retry: RetryPolicy,
    pub breaker: BreakerPolicy,
    /// Each tool has a bucket of its own; its name is the tool's.
    pub rate_limit: Option<RateLimit>,
    pub bulkhead: u32,
    pub weight: u32,
    pub fuse: Option<FusePolicy>,
    pub volatile: Vec<Pointer>,
    pub alternatives: Vec<ToolName>,
    pub cost: Option<u64>,
    pub approval: Option<ApprovalPolicy>,
    /// Of reads.
    pub cache: Option<CachePolicy>,
    pub result: ResultPolicy,
    /// `result.format` is written, so `result.json` holds; else a result passes as it came.
    pub format_written: bool,
    /// Of writes.
    pub write: WritePolicy,
    pub is_error: IsError,
    pub asks_after_acting: bool,
    pub tasks: bool,
    pub meta_key: Option<Arc<str>>,
}

impl Entry {
    pub fn is_exact(&self) -> bool {
        !is_glob(&self.pattern)
    }

    /// `rename`, else prefix and own name; `Err` holds the text that is no name.
    pub fn exposed_name(&self, prefix: &str, own_name: &str) -> Result<ToolName, String> {
        match &self.rename {
            Some(name) => Ok(name.clone()),
            None => {
                let text = format!("{prefix}{own_name}");
                ToolName::new(&text).map_err(|_| text)
            }
        }
    }

    /// The policy's effect. An explicit hint that a tool changes something tightens what only a pattern calls a read;
    /// nothing a server says loosens anything.
    pub fn effect_of(&self, definition: &Value) -> Effect {
        let hint = |name| definition.get("annotations").and_then(|all| all.get(name));
        let changes = hint("readOnlyHint") == Some(&Value::Bool(false))
            || hint("destructiveHint") == Some(&Value::Bool(true));
        if changes && !self.is_exact() { Effect::Write } else { self.effect }
    }
}

/// How well a pattern fits a name: an exact name before all, else the longer literal beginning. `None` = not at all.
pub(in crate::policy) fn rank(pattern: &str, own_name: &str) -> Option<usize> {
    if !is_glob(pattern) {
        return (pattern == own_name).then_some(usize::MAX);
    }
    glob_matches(pattern, own_name).then(|| literal(pattern).len())
}

/// What stands before a pattern's first `*` or `?`.
pub(in crate::policy) fn literal(pattern: &str) -> &str {
    pattern.split(['*', '?']).next().unwrap_or_default()
}

/// Entries of one server, to find the one that applies to a tool. Names are looked up: a server may offer thousands of
/// tools, and a policy may name them all.
pub(super) struct Choice<'e> {
    exact: HashMap<&'e str, &'e Arc<Entry>>,
    patterns: Vec<&'e Arc<Entry>>,
}

impl<'e> Choice<'e> {
    pub(super) fn among(entries: &'e [Arc<Entry>]) -> Self {
        let (exact, patterns): (Vec<_>, Vec<_>) =
            entries.iter().partition(|entry| entry.is_exact());
        let exact = exact.into_iter().map(|entry| (entry.pattern.as_ref(), entry)).collect();
        Self { exact, patterns }
    }

    /// The one entry that applies to a tool.
    pub(super) fn of(&self, own_name: &str) -> Option<&'e Arc<Entry>> {
        let by_pattern = || {
            self.patterns
                .iter()
                .filter_map(|entry| Some((rank(&entry.pattern, own_name)?, *entry)))
                .max_by_key(|(rank, _)| *rank)
                .map(|(_, entry)| entry)
        };
        self.exact.get(own_name).copied().or_else(by_pattern)
    }
}
