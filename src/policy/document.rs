//! The policy as it is written: every key of the language, its value, and where it stands. Nothing is merged here.
//!
//! Each record is one function over `read::Fields`: the list of its keys, their kinds, and which must be there.
//! A document may hold less than the file says: what was wrong has been reported and is absent.

mod approval;
mod cache;
pub mod kinds;
pub mod mcp;
mod proxy;
pub mod read;
mod reference;
mod remedies;
mod report;
mod target;
pub mod tree;

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method};

pub use self::approval::Approval;
pub use self::cache::Cache;
use self::kinds::{
    Address, COUNT, Count, Host, MONEY, NAME, Part, RATE, SHARE, SIZE, SchemaSource, Target,
};
pub use self::mcp::{McpEntry, McpServer};
pub use self::proxy::Proxy;
pub use self::read::{At, Entries};
use self::read::{Fields, List, Named, Record, Report, Sensitive, Words};
pub use self::reference::SecretRef;
pub use self::remedies::{Idempotency, KeyMode, Probe, QueryArgument, StatusQuery};
use super::diagnostic::{Mask, Place, Problem};
use super::quantity::{Money, Rate};
use super::snapshot::{
    BackoffMode, BodyEncoding, BreakerMode, HttpVersion, Identical, IsError, OnUnlisted, PathPiece,
    Per,
};
use crate::call::Effect;
use crate::call::pointer::{Path, Pointer};

/// A key that may be absent.
pub type Maybe<T> = Option<At<T>>;

/// The whole file.
#[derive(Debug, Default, Clone)]
pub struct Document {
    /// As it was named.
    pub file: Arc<str>,
    pub name: Maybe<String>,
    pub owner: Maybe<String>,
    pub defaults: Maybe<Defaults>,
    pub profiles: Entries<Profile>,
    pub limits: Maybe<Limits>,
    pub runs: Entries<Run>,
    pub agents: Entries<Agent>,
    pub upstreams: Entries<Upstream>,
    pub tools: Entries<Tool>,
    pub mcp_servers: Entries<McpServer>,
    /// Where `mcp_servers` is written.
    pub mcp_servers_at: Option<Place>,
    pub egress: Maybe<Egress>,
    pub telemetry: Maybe<Telemetry>,
}

#[derive(Debug, Clone)]
pub struct Defaults {
    pub profile: Maybe<String>,
    pub on_unlisted_tool: Maybe<OnUnlisted>,
}

#[derive(Debug, Clone)]
pub struct Profile {
    pub extends: Maybe<String>,
    pub timeout: Maybe<Timeout>,
    pub retry: Maybe<Retry>,
    pub breaker: Maybe<Breaker>,
}

#[derive(Debug, Clone)]
pub struct Timeout {
    pub connect: Maybe<Duration>,
    pub first_byte: Maybe<Duration>,
    pub idle: Maybe<Duration>,
    pub total: Maybe<Duration>,
}

#[derive(Debug, Clone)]
pub struct Retry {
    pub max_retries: Maybe<u64>,
    pub backoff: Maybe<Backoff>,
    pub deadline: Maybe<Duration>,
}

#[derive(Debug, Clone)]
pub struct Backoff {
    pub base: Maybe<Duration>,
    pub max: Maybe<Duration>,
    pub mode: Maybe<BackoffMode>,
    pub jitter: Maybe<Duration>,
}

#[derive(Debug, Clone)]
pub struct Breaker {
    pub mode: Maybe<BreakerMode>,
    /// True = `attempt`.
    pub count_by_attempt: Maybe<bool>,
    pub consecutive_failures: Maybe<u64>,
    pub failure_ratio: Maybe<Ratio>,
    pub slow_ratio: Maybe<Ratio>,
    pub open_for: Maybe<Duration>,
    pub open_max: Maybe<Duration>,
    pub probe: Maybe<Probe>,
    pub probe_every: Maybe<Duration>,
    /// True = `bad`.
    pub is_error_bad: Maybe<bool>,
}

#[derive(Debug, Clone)]
pub struct Ratio {
    /// Thousandths.
    pub above: Maybe<u32>,
    pub min_calls: Maybe<u64>,
    pub window: Maybe<Duration>,
    /// `slow_ratio` only.
    pub slower_than: Maybe<Duration>,
}

#[derive(Debug, Clone)]
pub struct Limits {
    pub rate_limit: Maybe<Bucket>,
    pub bulkhead: Maybe<u64>,
    pub batch_calls: Maybe<u64>,
    pub batch_parallel: Maybe<u64>,
    pub request_bytes: Maybe<u64>,
    pub argument_bytes: Maybe<u64>,
    pub argument_depth: Maybe<u64>,
    pub response_bytes: Maybe<u64>,
}

#[derive(Debug, Clone)]
pub struct Bucket {
    pub rate: Maybe<Rate>,
    pub burst: Maybe<u64>,
    /// True = `shadow`.
    pub shadow: Maybe<bool>,
    /// Tools only.
    pub per: Maybe<Per>,
}

/// Budgets: `Some(None)` is `unlimited`.
#[derive(Debug, Clone)]
pub struct Run {
    /// True = `explicit`.
    pub explicit: Maybe<bool>,
    pub max_live: Maybe<u64>,
    pub wall_clock: Maybe<Duration>,
    pub rounds: Maybe<Option<u64>>,
    pub calls: Maybe<Option<u64>>,
    pub calls_per_round: Maybe<Option<u64>>,
    pub failures: Maybe<Option<u64>>,
    pub argument_bytes: Maybe<Option<u64>>,
    pub result_bytes: Maybe<Option<u64>>,
    pub cost: Maybe<Option<Money>>,
    pub idle: Maybe<Duration>,
    pub stall_turns: Maybe<u64>,
    pub rate_limit: Maybe<Bucket>,
    pub fuse: Maybe<Fuse>,
}

#[derive(Debug, Clone)]
pub struct Fuse {
    pub same_failures: Maybe<u64>,
    pub same_results: Maybe<u64>,
}

#[derive(Debug, Clone)]
pub struct Agent {
    pub identities: Maybe<Vec<At<Identity>>>,
    /// Names and patterns.
    pub allow: Maybe<Vec<At<String>>>,
    pub deny: Maybe<Vec<At<String>>>,
    pub run: Maybe<String>,
    /// True = `dry_run`.
    pub dry_run: Maybe<bool>,
    pub constraints: Maybe<Entries<SchemaSource>>,
    pub rate_limit: Maybe<Bucket>,
    pub bulkhead: Maybe<u64>,
}

/// Other proofs than a bearer token are not in this build.
#[derive(Debug, Clone)]
pub struct Identity {
    pub token: Maybe<SecretRef>,
}

#[derive(Debug, Clone)]
pub struct Upstream {
    pub base_url: Maybe<Target>,
    pub auth: Maybe<Auth>,
    pub headers: Maybe<Vec<(HeaderName, At<HeaderValue>)>>,
    pub ca: Maybe<SecretRef>,
    pub addresses: Maybe<Vec<At<Address>>>,
    pub http_version: Maybe<HttpVersion>,
    pub timeout_header: Maybe<HeaderName>,
    /// True = `same_origin`.
    pub follow_same_origin: Maybe<bool>,
    pub bulkhead: Maybe<u64>,
    pub rate_limit: Maybe<Bucket>,
    pub breaker: Maybe<Breaker>,
    pub retry_budget: Maybe<RetryBudget>,
}

/// Exactly one is there.
#[derive(Debug, Clone)]
pub struct Auth {
    pub bearer: Maybe<SecretRef>,
    pub basic: Maybe<Basic>,
    pub header: Maybe<HeaderAuth>,
}

#[derive(Debug, Clone)]
pub struct Basic {
    pub username: Maybe<SecretRef>,
    pub password: Maybe<SecretRef>,
}

#[derive(Debug, Clone)]
pub struct HeaderAuth {
    pub name: Maybe<HeaderName>,
    pub prefix: Maybe<String>,
    pub value: Maybe<SecretRef>,
}

#[derive(Debug, Clone)]
pub struct RetryBudget {
    pub max: Maybe<u64>,
    /// Thousandths.
    pub ratio: Maybe<u32>,
    pub floor: Maybe<Rate>,
}

#[derive(Debug, Clone)]
pub struct Egress {
    pub allow_hosts: Maybe<Vec<At<Host>>>,
    /// True = `"1.3"`.
    pub min_tls13: Maybe<bool>,
}

#[derive(Debug, Clone)]
pub struct Telemetry {
    pub agent_label: Maybe<bool>,
}

#[derive(Debug, Clone)]
pub struct Tool {
    pub description: Maybe<String>,
    pub effect: Maybe<Effect>,
    pub profile: Maybe<String>,
    pub timeout: Maybe<Timeout>,
    pub retry: Maybe<Retry>,
    pub breaker: Maybe<Breaker>,
    pub rate_limit: Maybe<Bucket>,
    pub bulkhead: Maybe<u64>,
    pub weight: Maybe<u64>,
    pub schema: Maybe<SchemaSource>,
    pub fuse: Maybe<Fuse>,
    pub volatile: Maybe<Vec<At<Pointer>>>,
    pub alternatives: Maybe<Vec<At<String>>>,
    pub cost: Maybe<Money>,
    pub approval: Maybe<Approval>,
    pub cache: Maybe<Cache>,
    pub http: Maybe<Http>,
    pub proxy: Maybe<Proxy>,
    pub result: Maybe<ToolResult>,
    pub write: Maybe<Write>,
    /// `use`: a server's task is taken and followed. Tools of MCP servers only.
    pub tasks: Maybe<bool>,
}

impl Tool {
    /// `effect` missing = write; of a route that takes nothing but GET and HEAD = read.
    pub fn effect(&self) -> Effect {
        let safe = |at: &At<Method>| matches!(at.value, Method::GET | Method::HEAD);
        let methods = self.proxy.as_ref().and_then(|proxy| proxy.value.methods.as_ref());
        let default = match methods {
            Some(methods) if methods.value.iter().all(safe) => Effect::Read,
            Some(_) | None => Effect::Write,
        };
        self.effect.as_ref().map_or(default, |effect| effect.value)
    }

    /// The named upstream its calls go to.
    pub fn upstream(&self) -> Option<&At<String>> {
        let of_http = self.http.as_ref().and_then(|http| http.value.upstream.as_ref());
        of_http.or_else(|| self.proxy.as_ref()?.value.upstream.as_ref())
    }

    /// What it sends.
    pub fn methods(&self) -> impl Iterator<Item = &At<Method>> {
        let of_http = self.http.iter().filter_map(|http| http.value.method.as_ref());
        let of_proxy = self.proxy.iter().filter_map(|proxy| proxy.value.methods.as_ref());
        of_http.chain(of_proxy.flat_map(|methods| &methods.value))
    }
}

/// `url`, or `upstream` and `path`.
#[derive(Debug, Clone)]
pub struct Http {
    pub method: Maybe<Method>,
    pub url: Maybe<Target>,
    pub upstream: Maybe<String>,
    pub path: Maybe<Vec<PathPiece>>,
    pub query: Maybe<Part>,
    pub body: Maybe<Part>,
    /// Header → argument.
    pub headers: Maybe<Vec<(HeaderName, At<String>)>>,
    pub encoding: Maybe<BodyEncoding>,
}

#[derive(Debug, Clone)]
pub struct ToolResult {
    /// False = `text`.
    pub json: Maybe<bool>,
    pub expect: Maybe<SchemaSource>,
    pub select: Maybe<Vec<At<Path>>>,
    pub redact: Maybe<Vec<At<Path>>>,
    pub max: Maybe<u64>,
    /// False = `truncate`.
    pub fail_on_oversize: Maybe<bool>,
}

#[derive(Debug, Clone)]
pub struct Write {
    pub fingerprint: Maybe<Vec<At<Pointer>>>,
    /// True = `global`.
    pub global_scope: Maybe<bool>,
    pub ttl: Maybe<Duration>,
    pub identical: Maybe<Identical>,
    pub not_executed_on: Maybe<Vec<At<u64>>>,
    pub unknown_on: Maybe<Vec<At<u64>>>,
    /// True = `required`.
    pub caller_key_required: Maybe<bool>,
    /// True = `pooled`.
    pub pooled: Maybe<bool>,
    pub drain: Maybe<Duration>,
    pub idempotency: Maybe<Idempotency>,
    pub status_query: Maybe<StatusQuery>,
    /// Tools of MCP servers.
    pub is_error: Maybe<IsError>,
    /// True = `unknown`; tools of MCP servers.
    pub unknown_on_input: Maybe<bool>,
}

/// What a file gave: as much of a document as could be read, and everything that is wrong with its form.
#[derive(Debug, Default)]
pub struct Reading {
    /// `None` when the text is not YAML to its end.
    pub document: Option<Document>,
    pub problems: Vec<Problem>,
    /// What must not be shown of the text.
    pub masks: Vec<Mask>,
}

/// Reads a policy's bytes. Never fails: every problem is in the reading, each with `file` filled in.
pub fn read(bytes: &[u8], file: &str) -> Reading {
    let file: Arc<str> = file.into();
    let parsed = tree::parse(bytes);
    let mut report = Report::new(parsed.problems, parsed.masks);
    let document = match parsed.root {
        Some(root) if !parsed.cut => {
            let kind = Record { name: "", fields: Document::fields };
            read::Kind::read(&kind, &root, &mut report)
                .map(|document| Document { file: Arc::clone(&file), ..document })
        }
        _cut_or_empty => None,
    };
    let problems = report.problems.into_iter().map(|problem| problem.file(&file)).collect();
    Reading { document, problems, masks: report.masks }
}

/// An optional map of named records; absent = empty.
fn entries<T>(f: &mut Fields<'_>, key: &'static str, record: Record<T>) -> Entries<T> {
    f.optional(key, Named(record)).map(|entries| entries.value).unwrap_or_default()
}

impl Document {
    /// Everything calls may go to: upstreams, and servers of tools with theirs.
    pub fn all_upstreams(&self) -> impl Iterator<Item = (&str, &Upstream)> {
        let named = self.upstreams.iter().map(|(name, at)| (name.as_str(), &at.value));
        let servers = self.mcp_servers.iter();
        named.chain(servers.map(|(name, at)| (name.as_str(), &at.value.upstream)))
    }

    pub(crate) fn fields(f: &mut Fields<'_>) -> Self {
        kinds::identity(f);
        let mut document = Self {
            file: "".into(),
            name: f.optional("name", NAME),
            owner: f.optional("owner", kinds::LINE),
            defaults: f.optional("defaults", Record { name: "", fields: Defaults::fields }),
            profiles: entries(f, "profiles", Record { name: "profile", fields: Profile::fields }),
            limits: f.optional("limits", Record { name: "limits", fields: Limits::fields }),
            runs: entries(f, "runs", Record { name: "run", fields: Run::fields }),
            agents: f
                .required("agents", Named(Record { name: "agent", fields: Agent::fields }))
                .map(|agents| agents.value)
                .unwrap_or_default(),
            upstreams: entries(
                f,
                "upstreams",
                Record { name: "upstream", fields: Upstream::fields },
            ),
            tools: entries(f, "tools", Record { name: "tool", fields: Tool::fields }),
            mcp_servers: Entries::new(),
            mcp_servers_at: None,
            egress: f.optional("egress", Record { name: "", fields: Egress::fields }),
            telemetry: f.optional("telemetry", Record { name: "", fields: Telemetry::fields }),
        };
        let server = Record { name: "mcp_server", fields: McpServer::fields };
        if let Some(servers) = f.optional("mcp_servers", Named(server)) {
            document.mcp_servers_at = Some(servers.key);
            document.mcp_servers = servers.value;
        }
        f.absent("hooks");
        f.check(|node, report| {
            let map = matches!(node.kind, tree::NodeKind::Map(_));
            if map && node.get("tools").is_none() && node.get("mcp_servers").is_none() {
                let problem = Problem::new(
                    "CR1003",
                    Place::START,
                    "the policy has neither `tools` nor `mcp_servers`",
                );
                report.push(problem.label("add `tools:` or `mcp_servers:`"));
            }
            if let Some((key, agents)) = node.entry("agents")
                && matches!(&agents.kind, tree::NodeKind::Map(agents) if agents.is_empty())
            {
                let problem = Problem::new("CR1003", key.place, "`agents` names no agent");
                report.push(problem.label("name at least one, such as `default: { allow: [] }`"));
            }
        });
        f.describe("required", serde_json::json!(["apiVersion", "kind", "agents"]));
        let either = [["tools"], ["mcp_servers"]].map(|one| serde_json::json!({ "required": one }));
        f.describe("anyOf", serde_json::json!(either));
        document
    }
}

impl Defaults {
    fn fields(f: &mut Fields<'_>) -> Self {
        Self {
            profile: f.optional("profile", NAME),
            on_unlisted_tool: f.optional(
                "on_unlisted_tool",
                Words(&[
                    ("silent", Some(OnUnlisted::Silent)),
                    ("explain", Some(OnUnlisted::Explain)),
                ]),
            ),
        }
    }
}

mod sections;

#[cfg(test)]
mod tests;
