//! The policy as the gateway obeys it: immutable, compiled, complete. Data only; live state is `layers/state.rs`.

mod approval;
mod cache;
mod http_version;
mod mcp;
mod proofs;
mod proxy;
mod remedies;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method};
use ipnet::IpNet;
use serde_json::Value;

pub use self::approval::{Allowed, ApprovalPolicy, When};
pub use self::cache::CachePolicy;
pub use self::http_version::HttpVersion;
pub use self::mcp::{
    Child, EnvValue, IsError, MayAsk, McpServer, McpTool, OnDrift, Pass, Pin, Reach, Share,
};
pub use self::proofs::{Proofs, SecretText};
pub use self::proxy::{BadPath, ProxyRoute, RoutePiece, RouteTable, Routed, decoded};
pub use self::remedies::{Idempotency, Probe, QueryArgument, SentAs, StatusQuery};
use super::bind::Remark;
use super::schema::Schema;
use crate::call::Named;
use crate::call::pointer::{Path, Pointer};
use crate::call::{AgentId, Digest, Effect, PolicyName, ToolName, UpstreamName};

/// First 12 hexadecimal digits of SHA-256 over the policy file and every file it includes.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Revision(pub Arc<str>);

impl fmt::Debug for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where in the policy a rule stands, for records and refusals: `agents.default.allow :31`.
#[derive(Debug, Clone)]
pub struct Rule {
    pub path: Arc<str>,
    pub line: u32,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} :{}", self.path, self.line)
    }
}

/// One policy, in force as a whole. A batch is governed by the one it began with.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub name: Arc<str>,
    pub revision: Revision,
    pub tools: Named<ToolName, Arc<Tool>>,
    pub agents: Named<AgentId, Arc<Agent>>,
    pub proofs: Arc<Proofs>,
    pub upstreams: HashMap<UpstreamName, Arc<Upstream>>,
    /// Of plain HTTP clients, by upstream.
    pub routes: Arc<Named<UpstreamName, RouteTable>>,
    pub limits: ProcessLimits,
    pub on_unlisted: OnUnlisted,
    pub egress: Egress,
    /// Metrics carry `agent`; else every value of that label is `_all`.
    pub agent_label: bool,
    /// Tools whose own definition is broken: left out alone, answered like unknown ones, counted as hidden.
    pub broken_tools: Vec<BrokenTool>,
    pub mcp_servers: HashMap<UpstreamName, Arc<McpServer>>,
    /// Tools whose definition is not the one that was pinned, and why: hidden, and answered `tool_quarantined`.
    pub quarantined: HashMap<ToolName, Arc<str>>,
    /// What a person should hear of the servers' tools: names that cannot be, hints that made a write of a read.
    pub remarks: Vec<Remark>,
}

#[derive(Debug, Clone)]
pub struct BrokenTool {
    pub name: ToolName,
    pub why: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnUnlisted {
    /// A tool the agent may not use answers like one that does not exist.
    Silent,
    /// `tool_not_allowed`, with the rule.
    Explain,
}

/// `limits:` of the whole process.
#[derive(Debug, Clone)]
pub struct ProcessLimits {
    pub rate_limit: Option<RateLimit>,
    pub bulkhead: u32,
    pub batch_calls: usize,
    pub batch_parallel: usize,
    pub request_bytes: usize,
    pub argument_bytes: usize,
    pub argument_depth: usize,
    pub response_bytes: usize,
}

/// One agent: who it is, what it may do, how far.
#[derive(Debug, Clone)]
pub struct Agent {
    pub id: AgentId,
    pub rule: Rule,
    /// Bearer tokens that prove it, as they stood in their files when the policy was loaded.
    pub tokens: Vec<SecretText>,
    /// Every tool it may call (allow less deny, globs resolved), with the rule that allows it.
    pub allowed: Named<ToolName, Rule>,
    /// For `tool_not_allowed` under `explain`: the deny rule of a tool, where one names it.
    pub denied: HashMap<ToolName, Rule>,
    /// `allow` and `deny` as written, for tools that are known only when their servers have been asked.
    pub grants: Arc<Grants>,
    pub run: Arc<RunPolicy>,
    /// Names of `runs:` this agent may choose by `POST /v1/runs {"budget": NAME}`; its own `run` is one of them.
    pub choosable_runs: HashMap<Arc<str>, Arc<RunPolicy>>,
    pub dry_run: bool,
    /// JSON Schemas that narrow a tool's own, by tool.
    pub constraints: Named<ToolName, Schema>,
    pub rate_limit: Option<RateLimit>,
    pub bulkhead: Option<u32>,
}

/// Names and patterns of `allow` and `deny`, each with its rule, in the order of the file.
#[derive(Debug, Default)]
pub struct Grants {
    pub allow: Vec<(String, Rule)>,
    pub deny: Vec<(String, Rule)>,
}

/// `runs.X`. `None` in a budget = unlimited.
#[derive(Debug, Clone, PartialEq)]
pub struct RunPolicy {
    pub name: Arc<str>,
    /// `open: explicit`: only `POST /v1/runs` opens one.
    pub explicit: bool,
    pub max_live: usize,
    pub wall_clock: Duration,
    pub rounds: Option<u64>,
    pub calls: Option<u64>,
    pub calls_per_round: Option<u64>,
    pub failures: Option<u64>,
    pub argument_bytes: Option<u64>,
    pub result_bytes: Option<u64>,
    /// Millionths of the policy's one currency.
    pub cost: Option<u64>,
    pub idle: Duration,
    pub stall_turns: u32,
    pub rate_limit: Option<RateLimit>,
    pub fuse: FusePolicy,
}

/// Repeat fuse: after how many failures, or successes with the same result. `None` = off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FusePolicy {
    pub same_failures: Option<u32>,
    pub same_results: Option<u32>,
}

impl FusePolicy {
    /// A tool's fuse laid over its run's: what the tool does not name is the run's.
    #[must_use]
    pub fn over(self, run: FusePolicy) -> FusePolicy {
        FusePolicy {
            same_failures: self.same_failures.or(run.same_failures),
            same_results: self.same_results.or(run.same_results),
        }
    }
}

/// `rate_limit: { rate, burst, mode, per }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimit {
    /// Name in `RateLimit` fields: `tool:check_order`, `agent:support`, `run:default`, `upstream:shop`, `global`.
    pub name: PolicyName,
    /// Time for one token.
    pub interval: Duration,
    pub burst: u32,
    pub shadow: bool,
    pub per: Per,
}

/// Who shares a tool's bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Per {
    Tool,
    Agent,
    Run,
}

#[derive(Debug, Clone)]
pub struct Egress {
    /// `host` or `*.host`, each with the ports it allows.
    pub allow_hosts: Vec<HostRule>,
    pub min_tls13: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRule {
    /// Lower case; `*.example.org` is kept as `.example.org` with `wildcard`.
    pub host: String,
    pub wildcard: bool,
    pub port: u16,
}

/// A server behind tools.
#[derive(Debug)]
pub struct Upstream {
    pub name: UpstreamName,
    pub rule: Rule,
    pub tls: bool,
    /// Host as the URL spells it, IPv6 without brackets; the TLS server name.
    pub host: Arc<str>,
    pub port: u16,
    /// `host[:port]` for the `Host` header.
    pub authority: HeaderValue,
    /// Path prefix of `base_url` without trailing slash; "" for none.
    pub base_path: Arc<str>,
    pub auth: Option<Auth>,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// PEM bundle that replaces the system's roots.
    pub ca: Option<Arc<[u8]>>,
    pub addresses: Addresses,
    pub http_version: HttpVersion,
    pub timeout_header: Option<HeaderName>,
    /// Reads follow same-origin redirects (at most 3).
    pub follow_same_origin: bool,
    pub bulkhead: u32,
    pub rate_limit: Option<RateLimit>,
    /// The connect-class circuit.
    pub breaker: BreakerPolicy,
    pub retry_budget: RetryBudgetPolicy,
    /// Hash of everything above that state hangs on.
    pub section: Digest,
}

/// Which non-public addresses an upstream may resolve to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses {
    pub loopback: bool,
    pub private: bool,
    pub link_local: bool,
    pub nets: Vec<IpNet>,
}

/// Credentials, injected last. A missing secret is told at call time as `credential_unavailable`.
#[derive(Debug, Clone)]
pub enum Auth {
    Bearer(Secret),
    Basic { username: String, password: Secret },
    Header { name: HeaderName, prefix: String, value: Secret },
}

/// A reference to a secret, with what it held at load. `None` = missing or unreadable then.
#[derive(Debug, Clone)]
pub struct Secret {
    /// `file /abs/path` or `env NAME`, for messages.
    pub origin: Arc<str>,
    pub value: Option<SecretText>,
}

/// Milli-tokens: a retry costs 1000.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryBudgetPolicy {
    pub max_milli: u64,
    /// Given by one first-attempt success.
    pub ratio_milli: u64,
    /// Given per second.
    pub floor_milli_per_s: u64,
}

/// One tool, everything resolved (language default → profile → `profiles.X` → the tool).
#[derive(Debug)]
pub struct Tool {
    pub name: ToolName,
    pub rule: Rule,
    pub description: Arc<str>,
    pub effect: Effect,
    pub upstream: Arc<Upstream>,
    pub target: Target,
    /// The closed schema, compiled; its source is what the model is shown.
    pub schema: Schema,
    pub timeout: Timeouts,
    /// Reads only.
    pub retry: Option<RetryPolicy>,
    pub breaker: BreakerPolicy,
    pub rate_limit: Option<RateLimit>,
    pub bulkhead: u32,
    pub weight: u32,
    /// `None` = the run's; what it does not name is the run's too ([`FusePolicy::over`]).
    pub fuse: Option<FusePolicy>,
    pub volatile: Vec<Pointer>,
    pub alternatives: Vec<ToolName>,
    /// Per attempt sent, millionths.
    pub cost: Option<u64>,
    pub result: ResultPolicy,
    /// `None` = nobody is asked.
    pub approval: Option<ApprovalPolicy>,
    /// Reads only.
    pub cache: Option<CachePolicy>,
    /// Writes only.
    pub write: Option<WritePolicy>,
    /// Its definition as MCP agents are shown it: `name`, `description`, `inputSchema`, `annotations`, and of a tool
    /// that an MCP server offers everything else the server said.
    pub listed: Arc<Value>,
    /// Hash of the whole section as merged; approvals and kept answers hang on it.
    pub section: Digest,
}

impl Tool {
    /// The template of an HTTP tool.
    pub fn http(&self) -> Option<&HttpTemplate> {
        match &self.target {
            Target::Http(template) => Some(template),
            Target::Proxy(_) | Target::Mcp(_) | Target::Passed => None,
        }
    }
}

/// Per attempt; none extends another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    pub connect: Duration,
    pub first_byte: Duration,
    pub idle: Duration,
    pub total: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Extra attempts, 0 to 10.
    pub max_retries: u32,
    pub backoff: BackoffPolicy,
    /// Whole loop, sleeps included.
    pub deadline: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackoffPolicy {
    pub base: Duration,
    pub max: Duration,
    pub mode: BackoffMode,
    /// Only with `additive`.
    pub jitter: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackoffMode {
    Additive,
    Full,
    Equal,
    Decorrelated,
    None,
}

#[derive(Debug, Clone, PartialEq)]
pub struct BreakerPolicy {
    pub mode: BreakerMode,
    pub count_by_attempt: bool,
    pub consecutive_failures: u32,
    pub failure_ratio: Option<RatioPolicy>,
    pub slow_ratio: Option<SlowPolicy>,
    pub open_for: Duration,
    pub open_max: Duration,
    /// Share added at random to the open time: 0.2 in production; the vectors set 0.
    pub open_jitter_permille: u32,
    /// How long one probe may hold the half-open slot: the attempt's total + 1 s.
    pub probe_deadline: Duration,
    /// With one, no real call is spent on testing.
    pub probe: Option<Probe>,
    /// Between two probes; `None` = 1 s in the first 30 s of an outage, then 5 s.
    pub probe_every: Option<Duration>,
    /// `is_error: bad`: an MCP result with `isError: true` counts as ill health.
    pub is_error_bad: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerMode {
    Enforce,
    Shadow,
    Isolated,
    Disabled,
}

/// Trips at `>=`: `above_permille` of at least `min_calls` verdicts in `window` (ten exact slots).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RatioPolicy {
    pub above_permille: u32,
    pub min_calls: u32,
    pub window: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowPolicy {
    pub ratio: RatioPolicy,
    /// Strictly slower is slow.
    pub slower_than: Duration,
}

/// Where a tool's calls go. A tool has exactly one back end.
#[derive(Debug, Clone)]
pub enum Target {
    Http(HttpTemplate),
    Proxy(ProxyRoute),
    Mcp(McpTool),
    /// What a server offers besides tools; the tool's upstream is the server.
    Passed,
}

/// How arguments become a request.
#[derive(Debug, Clone)]
pub struct HttpTemplate {
    pub method: Method,
    /// Path after the upstream's `base_path`, in pieces; always begins with `/`.
    pub path: Vec<PathPiece>,
    pub query: Vec<String>,
    pub body: Vec<String>,
    /// Where arguments that are named nowhere go.
    pub rest: Rest,
    /// Header name → argument.
    pub headers: Vec<(HeaderName, String)>,
    pub encoding: BodyEncoding,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathPiece {
    /// Sent as it stands (already a valid path text).
    Literal(String),
    /// Percent-encoded as one segment; empty, `.` and `..` refused.
    Argument(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// Every argument is named somewhere.
    None,
    Query,
    Body,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyEncoding {
    Json,
    Form,
}

#[derive(Debug, Clone)]
pub struct ResultPolicy {
    pub json: bool,
    pub expect: Option<Schema>,
    /// Empty = all.
    pub select: Vec<Path>,
    pub redact: Vec<Path>,
    pub max: usize,
    /// `on_oversize: fail` instead of a cut text.
    pub fail_on_oversize: bool,
}

#[derive(Debug, Clone)]
pub struct WritePolicy {
    pub fingerprint: Vec<Pointer>,
    pub global_scope: bool,
    pub ttl: Duration,
    pub identical: Identical,
    pub not_executed_on: Vec<u16>,
    pub unknown_on: Vec<u16>,
    pub caller_key_required: bool,
    pub pooled: bool,
    pub drain: Duration,
    /// The key the tool recognises a write by; `None` = none is sent, and a write is never sent twice.
    pub idempotency: Option<Idempotency>,
    pub status_query: Option<StatusQuery>,
}

/// An identical later write of a tool without fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identical {
    Allow,
    /// Only with a person's yes.
    Approve,
    Refuse,
}
