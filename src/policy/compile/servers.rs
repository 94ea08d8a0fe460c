//! Servers that speak MCP, and the rules for what they offer.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use serde_json::{Value, json};

use super::upstreams::{exact_path, upstream, upstream_section};
use super::{approval, cache, fuse, remedies, result_of, tool_section, values, write};
use crate::call::{Digest, Effect, ToolName, UpstreamName};
use crate::mcp::version::{Revision, SUPPORTED};
use crate::policy::bind::Entry;
use crate::policy::check::Checked;
use crate::policy::document::mcp::{Ask, EnvValue as WrittenValue, Pin as WrittenPin};
use crate::policy::document::{self as written, At, Maybe, McpEntry, McpServer as Written};
use crate::policy::merge::{self, get, narrow};
use crate::policy::profiles;
use crate::policy::schema::Schema;
use crate::policy::snapshot::{
    Addresses, Child, EnvValue, HttpVersion, IsError, MayAsk, McpServer, OnDrift, Pass, Pin, Reach,
    Rule, Share, Target, Tool, Upstream,
};

/// Most children of one server at once, where the policy says nothing.
const DEFAULT_CHILDREN: u64 = 8;

pub(super) fn servers(checked: &Checked<'_>) -> HashMap<UpstreamName, Arc<McpServer>> {
    let all = checked.document.mcp_servers.iter();
    all.filter_map(|(text, section)| {
        let name = UpstreamName::new(text).ok()?;
        Some((name.clone(), Arc::new(server(checked, name, section)?)))
    })
    .collect()
}

fn server(checked: &Checked<'_>, name: UpstreamName, section: &At<Written>) -> Option<McpServer> {
    let written = &section.value;
    let rule = || Rule { path: format!("mcp_servers.{name}").into(), line: section.key.line };
    let entries: Vec<Arc<Entry>> = written
        .tools
        .iter()
        .map(|(pattern, at)| Arc::new(entry(checked, name.as_str(), written, pattern, at)))
        .collect();
    let longest = entries.iter().map(|entry| entry.timeout.total).max();
    let longest = longest.unwrap_or(profiles::EXTERNAL_HTTP.total);
    let reach = match (&written.command, &written.upstream.base_url) {
        (Some(argv), _) => Reach::Child(child(checked, written, argv.value.clone())),
        (None, Some(_)) => Reach::Http,
        (None, None) => return None,
    };
    let upstream = match &written.upstream.base_url {
        Some(url) => {
            let section = Some(&written.upstream);
            let mut upstream =
                upstream(checked, name.clone(), rule(), &url.value, section, longest);
            // Unlike a prefix of paths this is the whole path, and its last slash counts.
            upstream.base_path = exact_path(&url.value).into();
            upstream.section = upstream_section(&upstream);
            upstream
        }
        None => offline(&name, rule(), written, longest),
    };
    let upstream = Arc::new(upstream);
    let pass = pass(written);
    let passed = if pass.is_empty() { None } else { passed(checked, written, rule(), &upstream) };
    let mut server = McpServer {
        rule: rule(),
        reach,
        upstream,
        protocol: protocol(written),
        share: get(&written.share).unwrap_or(Share::Agent),
        may_ask: may_ask(written),
        pass,
        passed: passed.map(Arc::new),
        prefix: written.prefix().into(),
        pin: pin(checked, written),
        on_drift: get(&written.on_drift).unwrap_or(OnDrift::Quarantine),
        entries,
        section: Digest::of(b""),
        name,
    };
    server.section = server_section(&server);
    Some(server)
}

/// A read that stands for everything the server passes besides tools. It is not retried, and has no bucket of its own:
/// the server's, the agent's and the run's hold.
fn passed(
    checked: &Checked<'_>,
    written: &Written,
    rule: Rule,
    upstream: &Arc<Upstream>,
) -> Option<Tool> {
    let settings = merge::passed(checked.document, written);
    let mut tool = Tool {
        name: ToolName::of_passed(&upstream.name),
        rule,
        description: "".into(),
        effect: Effect::Read,
        upstream: Arc::clone(upstream),
        target: Target::Passed,
        schema: Schema::compile(&json!({"type": "object"}), false).ok()?,
        timeout: settings.timeout,
        retry: None,
        breaker: settings.breaker,
        rate_limit: None,
        bulkhead: narrow(merge::DEFAULT_TOOL_BULKHEAD),
        weight: 1,
        fuse: None,
        volatile: Vec::new(),
        alternatives: Vec::new(),
        cost: None,
        approval: None,
        cache: None,
        result: result_of(&None, None),
        write: None,
        listed: Arc::new(Value::Null),
        section: Digest::of(b""),
    };
    tool.section = tool_section(&tool);
    Some(tool)
}

/// Limits of a server that no network leads to.
fn offline(name: &UpstreamName, rule: Rule, server: &Written, longest: Duration) -> Upstream {
    let written = &server.upstream;
    let mut upstream = Upstream {
        name: name.clone(),
        rule,
        tls: false,
        host: "".into(),
        port: 0,
        authority: HeaderValue::from_static(""),
        base_path: "".into(),
        auth: None,
        headers: Vec::new(),
        ca: None,
        addresses: Addresses::default(),
        http_version: HttpVersion::Auto,
        timeout_header: None,
        follow_same_origin: false,
        bulkhead: narrow(get(&written.bulkhead).unwrap_or(merge::DEFAULT_UPSTREAM_BULKHEAD)),
        rate_limit: merge::rate_limit(&written.rate_limit, &format!("upstream:{name}")),
        breaker: merge::upstream_breaker(Some(written), longest),
        retry_budget: merge::retry_budget(Some(written)),
        section: Digest::of(b""),
    };
    upstream.section = upstream_section(&upstream);
    upstream
}

fn child(checked: &Checked<'_>, written: &Written, argv: Vec<String>) -> Child {
    let env: BTreeMap<String, EnvValue> = written
        .env
        .iter()
        .flat_map(|env| &env.value)
        .map(|(name, at)| {
            let value = match &at.value {
                WrittenValue::Text(text) => EnvValue::Text(text.clone()),
                WrittenValue::Secret(secret) => {
                    EnvValue::Secret(checked.material.secret_of(secret))
                }
            };
            (name.clone(), value)
        })
        .collect();
    Child {
        argv,
        env,
        cwd: get(&written.cwd).unwrap_or_else(|| PathBuf::from("/")),
        children: narrow(get(&written.children).unwrap_or(DEFAULT_CHILDREN)),
    }
}

/// Newest first, whatever the order of the file.
fn protocol(written: &Written) -> Vec<Arc<str>> {
    let mut revisions: Vec<Revision> = values(&written.protocol);
    if revisions.is_empty() {
        revisions = SUPPORTED.to_vec();
    }
    revisions.sort_unstable_by(|a, b| b.cmp(a));
    revisions.into_iter().map(|revision| revision.as_str().into()).collect()
}

fn may_ask(written: &Written) -> MayAsk {
    let asks = values(&written.may_ask);
    MayAsk {
        elicitation: asks.contains(&Ask::Elicitation),
        sampling: asks.contains(&Ask::Sampling),
        roots: asks.contains(&Ask::Roots),
    }
}

fn pass(written: &Written) -> Pass {
    let Some(pass) = written.pass.as_ref().map(|at| &at.value) else { return Pass::default() };
    Pass {
        resources: values(&pass.resources),
        prompts: values(&pass.prompts),
        completion: get(&pass.completion).unwrap_or(false),
        logging: get(&pass.logging).unwrap_or(false),
    }
}

/// A file that could not be read has refused the policy.
fn pin(checked: &Checked<'_>, written: &Written) -> Pin {
    match written.pin.as_ref().map(|at| &at.value) {
        None | Some(WrittenPin::FirstSeen) => Pin::FirstSeen,
        Some(WrittenPin::None) => Pin::None,
        Some(WrittenPin::File(path)) => {
            let pins = checked.material.pins.get(path).and_then(|pins| pins.as_ref().ok());
            Pin::File(pins.cloned().unwrap_or_default())
        }
    }
}

/// A secret prints as nothing; of a child's it is hashed, because only another child has another one.
fn server_section(server: &McpServer) -> Digest {
    let what = format!("{:?}", (&server.name, &server.protocol, server.share, server.may_ask));
    let mut parts: Vec<Vec<u8>> =
        vec![what.into_bytes(), server.upstream.section.as_bytes().to_vec()];
    if let Reach::Child(child) = &server.reach {
        parts.push(format!("{:?}", (&child.argv, &child.cwd, child.children)).into_bytes());
        for (name, value) in &child.env {
            parts.push(name.clone().into_bytes());
            parts.push(match value {
                EnvValue::Text(text) => text.clone().into_bytes(),
                EnvValue::Secret(secret) => {
                    let value = secret.value.as_ref().map(|text| text.0.as_bytes());
                    Digest::of(value.unwrap_or_default()).as_bytes().to_vec()
                }
            });
        }
    }
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    Digest::of_parts(&parts)
}

fn entry(
    checked: &Checked<'_>,
    server: &str,
    section: &Written,
    pattern: &str,
    at: &At<McpEntry>,
) -> Entry {
    let tool = merge::of_server(section, &at.value.tool);
    let settings = merge::tool(checked.document, &tool);
    let key = (server.to_owned(), pattern.to_owned());
    let parts = checked.entries.get(&key);
    let written = tool.write.as_ref().map(|at| &at.value);
    let text = |text: &Maybe<String>| get(text).map(Arc::from);
    Entry {
        pattern: pattern.into(),
        rule: Rule {
            path: format!("mcp_servers.{server}.tools.{pattern}").into(),
            line: at.key.line,
        },
        expose: at.value.is_exposed(),
        rename: at.value.rename.as_ref().and_then(|at| ToolName::new(&at.value).ok()),
        effect: tool.effect(),
        description: text(&tool.description),
        schema: parts.and_then(|parts| parts.schema.clone()),
        constraints: parts.and_then(|parts| parts.constraints.clone()),
        timeout: settings.timeout,
        retry: settings.retry,
        breaker: settings.breaker,
        rate_limit: merge::rate_limit(&tool.rate_limit, "tool"),
        bulkhead: narrow(get(&tool.bulkhead).unwrap_or(merge::DEFAULT_TOOL_BULKHEAD)),
        weight: narrow(get(&tool.weight).unwrap_or(1)),
        fuse: fuse(&tool),
        volatile: values(&tool.volatile),
        alternatives: alternatives(&tool),
        cost: get(&tool.cost).map(|money| money.millionths),
        approval: approval(&tool),
        cache: cache(&tool),
        result: result_of(&tool.result, parts.and_then(|parts| parts.expect.clone())),
        format_written: tool.result.as_ref().is_some_and(|result| result.value.json.is_some()),
        write: if tool.effect() == Effect::Write { write(&tool.write) } else { write(&None) },
        is_error: written.and_then(|w| get(&w.is_error)).unwrap_or(IsError::Executed),
        asks_after_acting: written.and_then(|w| get(&w.unknown_on_input)).unwrap_or(false),
        tasks: get(&tool.tasks).unwrap_or(false),
        meta_key: written.and_then(|write| remedies::meta_key(&write.idempotency)),
    }
}

pub(super) fn alternatives(tool: &written::Tool) -> Vec<ToolName> {
    values(&tool.alternatives).iter().filter_map(|name| ToolName::new(name).ok()).collect()
}
