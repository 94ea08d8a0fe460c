//! What a tool offers against not knowing, compiled: the key it recognises a write by, a read that tells, a probe.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use serde_json::{Map, Value};

use super::{Identical, WritePolicy};
use crate::call::ToolName;
use crate::call::pointer::Pointer;
use crate::policy::predicate::Predicate;

/// `write.idempotency`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    pub sent_as: SentAs,
    /// How long the tool promises to recognise the key; `None` = nothing is ever sent again.
    pub window: Option<Duration>,
}

/// How the tool is told which write it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SentAs {
    Header {
        name: HeaderName,
        /// As a string of RFC 8941, in quotes.
        quoted: bool,
    },
    /// A member of the arguments that models neither see nor send.
    Argument(String),
    /// A key of `_meta`, to tools of MCP servers.
    Meta(Arc<str>),
    /// Not at all: repeating the same request changes nothing.
    Natural,
}

/// `write.status_query`.
#[derive(Debug, Clone)]
pub struct StatusQuery {
    /// A read.
    pub tool: ToolName,
    pub arguments: Vec<(String, QueryArgument)>,
    /// Both over `{ok, error, status, value}` of the read's answer.
    pub executed_when: Predicate,
    pub not_executed_when: Option<Predicate>,
    /// Between the last sending and the first question, and between two answers that nothing happened.
    pub settle: Duration,
    pub tries: u32,
}

/// Where one argument of the read comes from.
#[derive(Debug, Clone)]
pub enum QueryArgument {
    /// The write's own arguments.
    From(Pointer),
    Value(Value),
    /// The key the write was sent with.
    Key,
}

/// `breaker.probe`: what tests a broken tool in place of a real call.
#[derive(Debug, Clone, PartialEq)]
pub enum Probe {
    /// TCP, and TLS where the upstream has it.
    Connect,
    /// `server/discover` or `tools/list`, of MCP servers.
    Discover,
    /// One attempt of a read.
    Call { tool: ToolName, arguments: Map<String, Value> },
}

impl Default for WritePolicy {
    /// What the language says of a write of which nothing is written.
    fn default() -> Self {
        Self {
            fingerprint: Vec::new(),
            global_scope: false,
            ttl: crate::policy::merge::DEFAULT_TTL,
            identical: Identical::Allow,
            not_executed_on: Vec::new(),
            unknown_on: Vec::new(),
            caller_key_required: false,
            pooled: false,
            drain: crate::policy::merge::DEFAULT_DRAIN,
            idempotency: None,
            status_query: None,
        }
    }
}
