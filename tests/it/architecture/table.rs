//! The law of the house: who may import whom, and where a crate or a dangerous word lives.
//! A new module gets a row here first; a row may stand for a module that is not built yet.

/// Bottom first. A row may name only rows above it, so the modules cannot form a cycle.
pub(crate) const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("strict_json", &[]),
    ("call", &["strict_json"]),
    ("telemetry", &["strict_json", "call"]),
    ("audit", &["call", "telemetry"]),
    ("secrets", &["telemetry"]),
    ("mcp", &["strict_json"]),
    ("policy", &["strict_json", "call", "mcp"]),
    ("egress", &["call", "telemetry", "policy"]),
    ("store", &["call", "telemetry"]),
    ("ledger", &["call", "telemetry", "store"]),
    ("run", &["call", "telemetry", "policy", "store"]),
    ("people", &["call", "telemetry", "policy", "store", "ledger"]),
    ("notify", &["call", "telemetry", "egress", "run", "people"]),
    ("fleet", &["call", "telemetry", "policy"]),
    ("identity", &["call", "telemetry", "secrets", "policy", "egress"]),
    ("backends", &["strict_json", "call", "telemetry", "secrets", "policy", "mcp", "egress"]),
    // generic over the innermost service, so not backends; never a front end
    (
        "layers",
        &[
            "strict_json",
            "call",
            "telemetry",
            "audit",
            "policy",
            "egress",
            "ledger",
            "run",
            "people",
            "fleet",
        ],
    ),
    // engine/build.rs is the one place where layers meet back ends
    (
        "engine",
        &[
            "strict_json",
            "call",
            "telemetry",
            "policy",
            "mcp",
            "egress",
            "ledger",
            "run",
            "people",
            "fleet",
            "backends",
            "layers",
        ],
    ),
    // knows HTTP, not tools
    ("server", &["telemetry", "identity"]),
    // not layers, ledger, backends, policy: a front end parses and renders, it decides nothing
    ("frontends", &["strict_json", "call", "telemetry", "mcp", "run", "identity", "engine"]),
    ("health", &["telemetry", "engine"]),
    (
        "admin",
        &[
            "strict_json",
            "call",
            "telemetry",
            "audit",
            "policy",
            "ledger",
            "run",
            "people",
            "identity",
            "engine",
        ],
    ),
    (
        "rehearse",
        &[
            "strict_json",
            "call",
            "telemetry",
            "audit",
            "policy",
            "store",
            "ledger",
            "run",
            "people",
            "backends",
            "layers",
            "engine",
        ],
    ),
    ("config", &[]),
];

/// The composition root and what stands on it: may name everything, and nothing below may name them.
pub(crate) const ROOTS: &[&str] = &["app", "cli", "main", "lib"];

/// A third-party crate, or a dangerous word, lives in these files or folders and nowhere else.
/// A home without an extension is `home.rs` or the folder `home/`.
pub(crate) const HOMES: &[(&str, &[&str])] = &[
    ("governor::", &["layers/rate_limit"]),
    ("moka::", &["layers/cache", "ledger/recent"]),
    ("prometheus::", &["telemetry/metrics"]),
    ("tracing_subscriber::", &["telemetry/mod.rs", "telemetry/logs"]),
    ("opentelemetry", &["telemetry/otlp"]),
    ("hyper::", &["server", "frontends", "egress", "backends", "health", "admin", "cli"]),
    ("hyper_util::", &["server", "egress", "health", "cli"]), // auto, graceful, TokioIo
    ("client::legacy", &[]), // it sends again by itself: not even a write is safe there
    ("h2::", &["egress", "backends/classify"]), // error downcasts: REFUSED_STREAM, GOAWAY
    ("tower::", &["layers", "engine", "backends", "rehearse", "egress"]),
    ("axum::", &["admin"]),
    ("ring::", &["egress/tls", "frontends/mcp/seal"]),
    ("rustls", &["egress/tls", "server/tls", "store/postgres"]),
    ("tokio_rustls", &["egress/tls", "server/tls", "store/postgres"]),
    ("rustls_native_certs", &["egress/tls"]),
    ("jsonwebtoken::", &["identity/jwt"]),
    ("ipnet::", &["egress/guard", "policy"]),
    ("socket2::", &["server"]),
    ("granit_parser::", &["policy/document"]),
    ("schemars::", &["policy/document", "policy/json_schema"]),
    ("jsonschema::", &["policy/schema"]),
    ("rusqlite::", &["store/sqlite"]),
    ("tokio_postgres::", &["store/postgres"]),
    ("deadpool_postgres::", &["store/postgres"]),
    ("redis::", &["fleet"]),
    ("serde_json_canonicalizer", &["call/canonical"]),
    ("subtle::", &["identity/token"]),
    ("secrecy::", &["secrets"]),
    ("arc_swap::", &["engine/routes"]),
    ("clap::", &["cli"]),
    (
        "sha2::",
        &[
            "call/arguments",
            "call/operation",
            "audit/chain",
            "policy/snapshot",
            "backends/catalog",
            "ledger/secret",
        ],
    ),
    ("tokio::spawn", &["app", "server", "backends/mcp", "egress/client", "cli"]), // egress: hyper's connection driver
    (
        ".spawn(",
        &[
            "store/writer",
            "admin/approvals",
            "admin/reviews",
            "layers/detach",
            "layers/probe",
            "layers/timeout",
            "backends",
            "frontends/mcp", // a session's call outlives its connection; streams that listen
            "egress/client",
            "egress/shared", // and of HTTP/2
            "app",
            "server",
            "cli",
        ],
    ),
    ("thread::spawn", &["store/writer", "telemetry/record", "app"]), // a writer that blocks; one runtime a core
    (
        "tokio::time::sleep", // sleep_until too: back-off, the one timer of an attempt, settle, poll, EMFILE, demo
        &[
            "layers/probe",
            "layers/retry",
            "layers/timeout",
            "ledger/resolver",
            "policy/watch",
            "backends/mcp", // a server's own `retry`, back-off of its stream; restarts of a child
            "server/accept",
            "cli",
        ],
    ),
    ("tokio::process::", &["backends/mcp", "cli/run"]),
    (
        "StatusCode::",
        &[
            "frontends/render",
            "frontends/reverse_proxy",
            "frontends/mcp",
            "backends/classify",
            "server",
            "health",
            "admin",
        ],
    ),
];

/// Types here are never serialised: each edge owns its wire types.
pub(crate) const NO_SERDE: &[&str] = &["call", "layers", "engine", "ledger"];

/// In `layers/`, what every layer may lean on; otherwise no layer knows another.
pub(crate) const SHARED_BY_LAYERS: &[&str] =
    &["gate", "meaning", "state", "circuit", "probe", "backoff", "retry_budget"];

/// Files of `layers/` that put layers together.
pub(crate) const LAYERS_TOGETHER: &[&str] = &["mod", "stack", "state"];

/// (layer, the one sibling it may name): the check after a hook, the peek before a further attempt.
pub(crate) const LAYER_EXCEPTIONS: &[(&str, &str)] =
    &[("hooks", "arguments"), ("retry", "breaker")];

/// Lines a file of `src/` may have; files named `tests.rs` are free.
pub(crate) const MAX_LINES: usize = 500;
