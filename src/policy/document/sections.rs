//! The keys of every section, one function each: what is not asked for here is no key of the language.

use http::Method;

use super::kinds::{
    ADDRESS, ARGUMENT, BASE_URL, Bool, CREDENTIAL_HEADER, DEEP_PATH, DESCRIPTION, DURATION,
    DURATION_OR_ZERO, FLAT_PATH, GLOB, HEADER_VALUE, HOST, Headers, OrUnlimited, PATH,
    PLAIN_HEADER, POINTER, PREFIX, PartKind, SchemaKind, SecretKind, URL,
};
use super::*;

const TIMEOUT: Record<Timeout> = Record { name: "timeout", fields: Timeout::fields };
const RETRY: Record<Retry> = Record { name: "retry", fields: Retry::fields };
pub(super) const BREAKER: Record<Breaker> = Record { name: "breaker", fields: Breaker::fields };
const FUSE: Record<Fuse> = Record { name: "fuse", fields: Fuse::fields };
pub(super) const BUCKET: Record<Bucket> = Record { name: "rate_limit", fields: Bucket::fields };
const TOOL_BUCKET: Record<Bucket> = Record { name: "tool_rate_limit", fields: Bucket::tool_fields };
const SCHEMA: SchemaKind = SchemaKind;
pub(super) const AUTH: Record<Auth> = Record { name: "auth", fields: Auth::fields };
pub(super) const RETRY_BUDGET: Record<RetryBudget> =
    Record { name: "", fields: RetryBudget::fields };
pub(super) const HTTP_VERSION: Words<HttpVersion> = Words(&[
    ("auto", Some(HttpVersion::Auto)),
    ("h1", Some(HttpVersion::Http1)),
    ("h2", Some(HttpVersion::Http2)),
]);

/// The words of a two-way choice; the second means `true`.
macro_rules! choice {
    ($no:literal, $yes:literal) => {
        Words(&[($no, Some(false)), ($yes, Some(true))])
    };
}

impl Profile {
    pub(super) fn fields(f: &mut Fields<'_>) -> Self {
        Self {
            extends: f.optional("extends", NAME),
            timeout: f.optional("timeout", TIMEOUT),
            retry: f.optional("retry", RETRY),
            breaker: f.optional("breaker", BREAKER),
        }
    }
}

impl Timeout {
    fn fields(f: &mut Fields<'_>) -> Self {
        Self {
            connect: f.optional("connect", DURATION),
            first_byte: f.optional("first_byte", DURATION),
            idle: f.optional("idle", DURATION),
            total: f.optional("total", DURATION),
        }
    }
}

impl Retry {
    fn fields(f: &mut Fields<'_>) -> Self {
        Self {
            max_retries: f.optional("max_retries", Count { least: 0, most: 10 }),
            backoff: f.optional("backoff", Record { name: "backoff", fields: Backoff::fields }),
            deadline: f.optional("deadline", DURATION),
        }
    }
}

impl Backoff {
    fn fields(f: &mut Fields<'_>) -> Self {
        Self {
            base: f.optional("base", DURATION_OR_ZERO),
            max: f.optional("max", DURATION_OR_ZERO),
            mode: f.optional(
                "mode",
                Words(&[
                    ("additive", Some(BackoffMode::Additive)),
                    ("full", Some(BackoffMode::Full)),
                    ("equal", Some(BackoffMode::Equal)),
                    ("decorrelated", Some(BackoffMode::Decorrelated)),
                    ("none", Some(BackoffMode::None)),
                ]),
            ),
            jitter: f.optional("jitter", DURATION_OR_ZERO),
        }
    }
}

impl Breaker {
    fn fields(f: &mut Fields<'_>) -> Self {
        Self {
            mode: f.optional(
                "mode",
                Words(&[
                    ("enforce", Some(BreakerMode::Enforce)),
                    ("shadow", Some(BreakerMode::Shadow)),
                    ("isolated", Some(BreakerMode::Isolated)),
                    ("disabled", Some(BreakerMode::Disabled)),
                ]),
            ),
            count_by_attempt: f.optional("count_by", choice!("call", "attempt")),
            consecutive_failures: f.optional("consecutive_failures", COUNT),
            failure_ratio: f
                .optional("failure_ratio", Record { name: "", fields: Ratio::failure_fields }),
            slow_ratio: f.optional("slow_ratio", Record { name: "", fields: Ratio::slow_fields }),
            open_for: f.optional("open_for", DURATION),
            open_max: f.optional("open_max", DURATION),
            probe: f.optional("probe", remedies::ProbeKind),
            probe_every: f.optional("probe_every", DURATION),
            is_error_bad: f.optional("is_error", choice!("neutral", "bad")),
        }
    }
}

impl Ratio {
    fn failure_fields(f: &mut Fields<'_>) -> Self {
        Self {
            above: f.required("above", SHARE),
            min_calls: f.optional("min_calls", COUNT),
            window: f.optional("window", DURATION),
            slower_than: None,
        }
    }

    fn slow_fields(f: &mut Fields<'_>) -> Self {
        let slower_than = f.required("slower_than", DURATION);
        Self { slower_than, ..Self::failure_fields(f) }
    }
}

impl Limits {
    pub(super) fn fields(f: &mut Fields<'_>) -> Self {
        Self {
            rate_limit: f.optional("rate_limit", BUCKET),
            bulkhead: f.optional("bulkhead", Count { least: 1, most: 1_000_000 }),
            batch_calls: f.optional("batch_calls", Count { least: 1, most: 1000 }),
            batch_parallel: f.optional("batch_parallel", Count { least: 1, most: 1000 }),
            request_bytes: f.optional("request_bytes", SIZE),
            argument_bytes: f.optional("argument_bytes", SIZE),
            argument_depth: f.optional("argument_depth", Count { least: 1, most: 64 }),
            response_bytes: f.optional("response_bytes", SIZE),
        }
    }
}

impl Bucket {
    fn fields(f: &mut Fields<'_>) -> Self {
        Self {
            rate: f.required("rate", RATE),
            burst: f.required("burst", COUNT),
            shadow: f.optional("mode", choice!("enforce", "shadow")),
            per: None,
        }
    }

    fn tool_fields(f: &mut Fields<'_>) -> Self {
        let per = f.optional(
            "per",
            Words(&[
                ("tool", Some(Per::Tool)),
                ("agent", Some(Per::Agent)),
                ("run", Some(Per::Run)),
            ]),
        );
        Self { per, ..Self::fields(f) }
    }
}

impl Run {
    pub(super) fn fields(f: &mut Fields<'_>) -> Self {
        Self {
            explicit: f.optional("open", choice!("implicit", "explicit")),
            max_live: f.optional("max_live", Count { least: 1, most: 100_000 }),
            wall_clock: f.optional("wall_clock", DURATION),
            rounds: f.optional("rounds", OrUnlimited(COUNT)),
            calls: f.optional("calls", OrUnlimited(COUNT)),
            calls_per_round: f.optional("calls_per_round", OrUnlimited(COUNT)),
            failures: f.optional("failures", OrUnlimited(COUNT)),
            argument_bytes: f.optional("argument_bytes", OrUnlimited(SIZE)),
            result_bytes: f.optional("result_bytes", OrUnlimited(SIZE)),
            cost: f.optional("cost", OrUnlimited(MONEY)),
            idle: f.optional("idle", DURATION),
            stall_turns: f.optional("stall_turns", COUNT),
            rate_limit: f.optional("rate_limit", BUCKET),
            fuse: f.optional("fuse", FUSE),
        }
    }
}

impl Fuse {
    fn fields(f: &mut Fields<'_>) -> Self {
        Self {
            same_failures: f.optional("same_failures", Count { least: 2, most: COUNT.most }),
            same_results: f.optional("same_results", Count { least: 2, most: COUNT.most }),
        }
    }
}

impl Agent {
    pub(super) fn fields(f: &mut Fields<'_>) -> Self {
        let identity = Record { name: "identity", fields: Identity::fields };
        Self {
            identities: f.optional("identities", Sensitive(List { of: identity, least: 1 })),
            allow: f.required("allow", List { of: GLOB, least: 0 }),
            deny: f.optional("deny", List { of: GLOB, least: 0 }),
            run: f.optional("run", NAME),
            dry_run: f.optional("mode", choice!("enforce", "dry_run")),
            constraints: f.optional("constraints", Named(SCHEMA)),
            rate_limit: f.optional("rate_limit", BUCKET),
            bulkhead: f.optional("bulkhead", COUNT),
        }
    }
}

impl Identity {
    fn fields(f: &mut Fields<'_>) -> Self {
        let token = f.optional("token", SecretKind);
        f.absent("uds_uid");
        f.absent("jwt");
        f.absent("mtls_san");
        f.exactly_one(&["token", "uds_uid", "jwt", "mtls_san"]);
        Self { token }
    }
}

impl Upstream {
    pub(super) fn fields(f: &mut Fields<'_>) -> Self {
        Self {
            base_url: f.required("base_url", BASE_URL),
            auth: f.optional("auth", Sensitive(AUTH)),
            headers: f.optional("headers", Sensitive(Headers(HEADER_VALUE))),
            ca: f.optional("ca", Sensitive(SecretKind)),
            addresses: f.optional("addresses", List { of: ADDRESS, least: 1 }),
            http_version: f.optional("http_version", HTTP_VERSION),
            timeout_header: f.optional("timeout_header", PLAIN_HEADER),
            follow_same_origin: f.optional("redirects", choice!("none", "same_origin")),
            bulkhead: f.optional("bulkhead", COUNT),
            rate_limit: f.optional("rate_limit", BUCKET),
            breaker: f.optional("breaker", BREAKER),
            retry_budget: f.optional("retry_budget", RETRY_BUDGET),
        }
    }
}

impl Auth {
    fn fields(f: &mut Fields<'_>) -> Self {
        let auth = Self {
            bearer: f.optional("bearer", SecretKind),
            basic: f.optional("basic", Record { name: "", fields: Basic::fields }),
            header: f.optional("header", Record { name: "", fields: HeaderAuth::fields }),
        };
        f.absent("mtls");
        f.exactly_one(&["bearer", "basic", "header", "mtls"]);
        auth
    }
}

impl Basic {
    fn fields(f: &mut Fields<'_>) -> Self {
        Self {
            username: f.required("username", SecretKind),
            password: f.required("password", SecretKind),
        }
    }
}

impl HeaderAuth {
    fn fields(f: &mut Fields<'_>) -> Self {
        Self {
            name: f.required("name", CREDENTIAL_HEADER),
            prefix: f.optional("prefix", PREFIX),
            value: f.required("value", SecretKind),
        }
    }
}

impl RetryBudget {
    fn fields(f: &mut Fields<'_>) -> Self {
        Self {
            max: f.optional("max", Count { least: 1, most: 1_000_000 }),
            ratio: f.optional("ratio", SHARE),
            floor: f.optional("floor", RATE),
        }
    }
}

impl Egress {
    pub(super) fn fields(f: &mut Fields<'_>) -> Self {
        Self {
            allow_hosts: f.optional("allow_hosts", List { of: HOST, least: 1 }),
            min_tls13: f.optional("min_tls", choice!("1.2", "1.3")),
        }
    }
}

impl Telemetry {
    pub(super) fn fields(f: &mut Fields<'_>) -> Self {
        let agent_label = f.optional("agent_label", Bool);
        f.absent("audit");
        Self { agent_label }
    }
}

impl Tool {
    pub(super) fn fields(f: &mut Fields<'_>) -> Self {
        let description = f.required("description", DESCRIPTION);
        let http = f.optional("http", Record { name: "http", fields: Http::fields });
        let proxy = f.optional("proxy", Record { name: "proxy", fields: Proxy::fields });
        let tool = Self { description, http, proxy, ..Self::rules(f) };
        f.unfit("tasks", "only tools of MCP servers have tasks");
        f.exactly_one(&["http", "proxy"]);
        f.check(needs_a_schema);
        f.describe("required", serde_json::json!(["description"]));
        f.describe("dependentRequired", serde_json::json!({ "http": ["schema"] }));
        tool
    }

    /// As an entry of a server, which has no back end of its own, and a description where it wants another.
    pub(super) fn of_server(f: &mut Fields<'_>) -> Self {
        let description = f.optional("description", DESCRIPTION);
        let entry = Self { description, ..Self::rules(f) };
        Self { tasks: f.optional("tasks", choice!("ignore", "use")), ..entry }
    }

    /// What a tool obeys wherever its calls go.
    fn rules(f: &mut Fields<'_>) -> Self {
        Self {
            description: None,
            effect: f.optional(
                "effect",
                Words(&[("read", Some(Effect::Read)), ("write", Some(Effect::Write))]),
            ),
            profile: f.optional("profile", NAME),
            timeout: f.optional("timeout", TIMEOUT),
            retry: f.optional("retry", RETRY),
            breaker: f.optional("breaker", BREAKER),
            rate_limit: f.optional("rate_limit", TOOL_BUCKET),
            bulkhead: f.optional("bulkhead", COUNT),
            weight: f.optional("weight", COUNT),
            schema: f.optional("schema", SCHEMA),
            fuse: f.optional("fuse", FUSE),
            volatile: f.optional("volatile", List { of: POINTER, least: 1 }),
            alternatives: f.optional("alternatives", List { of: NAME, least: 1 }),
            cost: f.optional("cost", MONEY),
            approval: f.optional("approval", super::approval::APPROVAL),
            cache: f.optional("cache", super::cache::CACHE),
            http: None,
            proxy: None,
            result: f.optional("result", Record { name: "result", fields: ToolResult::fields }),
            write: f.optional("write", Record { name: "write", fields: Write::fields }),
            tasks: None,
        }
    }
}

/// An `http` tool has a schema; a route of the reverse proxy may go without.
fn needs_a_schema(node: &tree::Node, report: &mut Report) {
    if let (Some((key, _)), None) = (node.entry("http"), node.get("schema")) {
        let message = format!("`{}` has no `schema`", report.path());
        let label = "a tool with `http` says what its arguments are: add `schema:`";
        report.push(Problem::new("CR1003", key.place, message).label(label));
    }
}

impl Http {
    fn fields(f: &mut Fields<'_>) -> Self {
        let methods = Words(&[
            ("GET", Some(0_usize)),
            ("HEAD", Some(1)),
            ("POST", Some(2)),
            ("PUT", Some(3)),
            ("PATCH", Some(4)),
            ("DELETE", Some(5)),
        ]);
        const METHODS: [Method; 6] =
            [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
        let method = f.required("method", methods);
        let http = Self {
            method: method.and_then(|at| {
                let method = METHODS.get(at.value).cloned()?;
                Some(at.map(|_| method))
            }),
            url: f.optional("url", URL),
            upstream: f.optional("upstream", NAME),
            path: f.optional("path", PATH),
            query: f.optional("query", PartKind),
            body: f.optional("body", PartKind),
            headers: f.optional("headers", Headers(ARGUMENT)),
            encoding: f.optional(
                "encoding",
                Words(&[("json", Some(BodyEncoding::Json)), ("form", Some(BodyEncoding::Form))]),
            ),
        };
        f.exactly_one(&["url", "upstream"]);
        f.at_most_one(&["url", "path"]);
        f.describe("dependentRequired", serde_json::json!({ "upstream": ["path"] }));
        f.check(|node, report| {
            let rest = |key| {
                let part = node.entry(key)?;
                matches!(&part.1.kind, tree::NodeKind::Scalar { text, .. } if text == "rest")
                    .then_some(part.1.place)
            };
            if let (Some(query), Some(body)) = (rest("query"), rest("body")) {
                let message =
                    format!("`{}` sends the rest of the arguments two ways", report.path());
                report.push(Problem::new("CR1008", query.max(body), message));
            }
            if let (Some((key, _)), None) = (node.entry("upstream"), node.get("path")) {
                let message = format!("`{}` has no `path`", report.path());
                let label = "add the path below the upstream's `base_url`";
                report.push(Problem::new("CR1003", key.place, message).label(label));
            }
        });
        http
    }
}

impl ToolResult {
    fn fields(f: &mut Fields<'_>) -> Self {
        Self {
            json: f.optional("format", choice!("text", "json")),
            expect: f.optional("expect", SCHEMA),
            select: f.optional("select", List { of: FLAT_PATH, least: 1 }),
            redact: f.optional("redact", List { of: DEEP_PATH, least: 1 }),
            max: f.optional("max", SIZE),
            fail_on_oversize: f.optional("on_oversize", choice!("truncate", "fail")),
        }
    }
}

impl Write {
    fn fields(f: &mut Fields<'_>) -> Self {
        // Redirects too: to a page for logging in, say, which is no sign that anything was done.
        let status = Count { least: 300, most: 599 };
        let write = Self {
            fingerprint: f.optional("fingerprint", List { of: POINTER, least: 1 }),
            global_scope: f.optional("scope", choice!("agent", "global")),
            ttl: f.optional("ttl", DURATION),
            identical: f.optional(
                "identical",
                Words(&[
                    ("allow", Some(Identical::Allow)),
                    ("refuse", Some(Identical::Refuse)),
                    ("approve", Some(Identical::Approve)),
                ]),
            ),
            not_executed_on: f.optional("not_executed_on", List { of: status, least: 1 }),
            unknown_on: f
                .optional("unknown_on", List { of: Count { least: 300, most: 599 }, least: 1 }),
            caller_key_required: f.optional("caller_key", choice!("optional", "required")),
            pooled: f.optional("connection", choice!("fresh", "pooled")),
            drain: f.optional("drain", DURATION_OR_ZERO),
            idempotency: f.optional("idempotency", remedies::IDEMPOTENCY),
            status_query: f.optional("status_query", remedies::STATUS_QUERY),
            is_error: f.optional(
                "is_error",
                Words(&[
                    ("executed", Some(IsError::Executed)),
                    ("not_executed", Some(IsError::NotExecuted)),
                    ("unknown", Some(IsError::Unknown)),
                ]),
            ),
            unknown_on_input: f.optional("on_input_required", choice!("not_executed", "unknown")),
        };
        f.at_most_one(&["fingerprint", "identical"]);
        write
    }
}
