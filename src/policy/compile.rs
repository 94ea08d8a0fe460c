//! A checked document → the snapshot that is obeyed. Cannot fail: what could has been checked.

mod remedies;
mod route;
mod servers;
mod upstreams;

use std::collections::HashMap;
use std::sync::Arc;

use http::Method;

use super::bind::listed_http;
use super::check::Checked;
use super::document::kinds::{Part, Target as Url};
use super::document::{self as written, At, Document, Maybe};
use super::material::resolve;
use super::merge::{self, get, in_memory, narrow};
use super::schema::Schema;
use super::snapshot::{
    Agent, Allowed, ApprovalPolicy, BodyEncoding, CachePolicy, Egress, FusePolicy, Grants,
    HostRule, HttpTemplate, Identical, OnUnlisted, ProcessLimits, Proofs, Rest, ResultPolicy, Rule,
    RunPolicy, SecretText, Snapshot, Target, Tool, Upstream, When, WritePolicy,
};
use crate::call::Named;
use crate::call::canonical::canonical;
use crate::call::{AgentId, Digest, Effect, ToolName, UpstreamName};

/// Compiles a policy. Every reference in it is sound, or it is left out.
pub fn compile(checked: &Checked<'_>) -> Arc<Snapshot> {
    let document = checked.document;
    let mut upstreams = upstreams::upstreams(checked);
    let mcp_servers = servers::servers(checked);
    let of_servers = mcp_servers.iter();
    upstreams.extend(of_servers.map(|(name, server)| (name.clone(), Arc::clone(&server.upstream))));
    let tools: Named<ToolName, Arc<Tool>> = document
        .tools
        .iter()
        .filter_map(|(name, section)| tool(checked, name, section, &upstreams))
        .map(|tool| (tool.name.clone(), Arc::new(tool)))
        .collect();
    let agents: Named<AgentId, Arc<Agent>> = document
        .agents
        .iter()
        .filter_map(|(name, section)| agent(checked, name, section, &tools))
        .map(|agent| (agent.id.clone(), Arc::new(agent)))
        .collect();
    let defaults = document.defaults.as_ref().map(|at| &at.value);
    let telemetry = document.telemetry.as_ref().map(|at| &at.value);
    Arc::new(Snapshot {
        name: name(document),
        revision: checked.revision.clone(),
        egress: egress(document),
        routes: Arc::new(route::tables(&tools)),
        tools,
        proofs: Arc::new(Proofs::of(agents.values())),
        agents,
        upstreams,
        limits: limits(document),
        on_unlisted: defaults
            .and_then(|defaults| get(&defaults.on_unlisted_tool))
            .unwrap_or(OnUnlisted::Silent),
        agent_label: telemetry.and_then(|t| get(&t.agent_label)).unwrap_or(true),
        broken_tools: checked.broken.clone(),
        mcp_servers,
        quarantined: HashMap::new(),
        remarks: Vec::new(),
    })
}

/// `name`, else the file's name without its directory.
fn name(document: &Document) -> Arc<str> {
    match &document.name {
        Some(name) => name.value.as_str().into(),
        None => document.file.rsplit('/').next().unwrap_or_default().into(),
    }
}

fn limits(document: &Document) -> ProcessLimits {
    let written = document.limits.as_ref().map(|at| &at.value);
    let count = |pick: fn(&written::Limits) -> &Maybe<u64>, default: u64| {
        in_memory(written.and_then(|limits| get(pick(limits))).unwrap_or(default))
    };
    ProcessLimits {
        rate_limit: written.and_then(|limits| merge::rate_limit(&limits.rate_limit, "global")),
        bulkhead: narrow(count(|l| &l.bulkhead, 256) as u64),
        batch_calls: count(|l| &l.batch_calls, 32),
        batch_parallel: count(|l| &l.batch_parallel, 8),
        request_bytes: count(|l| &l.request_bytes, 1 << 20),
        argument_bytes: count(|l| &l.argument_bytes, 64 << 10),
        argument_depth: count(|l| &l.argument_depth, 32),
        response_bytes: count(|l| &l.response_bytes, 4 << 20),
    }
}

fn egress(document: &Document) -> Egress {
    let written = document.egress.as_ref().map(|at| &at.value);
    let named = written.and_then(|egress| egress.allow_hosts.as_ref());
    let mut allow_hosts: Vec<HostRule> = Vec::new();
    match named {
        Some(hosts) => {
            for host in hosts.value.iter().map(|at| &at.value) {
                let bare = host.host.trim_start_matches('[').trim_end_matches(']');
                let host_text = if host.wildcard { format!(".{bare}") } else { bare.to_owned() };
                // Without a port: the scheme's own, whichever scheme it is.
                let ports = host.port.map_or(vec![443, 80], |port| vec![port]);
                let wildcard = host.wildcard;
                allow_hosts.extend(ports.into_iter().map(|port| HostRule {
                    host: host_text.clone(),
                    wildcard,
                    port,
                }));
            }
        }
        None => {
            for target in targets(document) {
                let host = target.bare_host().to_owned();
                let rule = HostRule { host, wildcard: false, port: target.port };
                if !allow_hosts.contains(&rule) {
                    allow_hosts.push(rule);
                }
            }
        }
    }
    allow_hosts.sort_by(|a, b| (&a.host, a.port).cmp(&(&b.host, b.port)));
    let min_tls13 = written.and_then(|egress| get(&egress.min_tls13)).unwrap_or(false);
    Egress { allow_hosts, min_tls13 }
}

/// Every URL that calls may go to.
pub fn targets(document: &Document) -> impl Iterator<Item = &Url> {
    let named = document.all_upstreams().filter_map(|(_, upstream)| upstream.base_url.as_ref());
    let unnamed = document.tools.values().filter_map(|t| t.value.http.as_ref()?.value.url.as_ref());
    named.chain(unnamed).map(|at| &at.value)
}

/// The upstream a tool's calls go to.
pub fn upstream_name(http: &written::Http) -> Option<UpstreamName> {
    match (&http.upstream, &http.url) {
        (Some(name), _) => UpstreamName::new(&name.value).ok(),
        (None, Some(url)) => Some(UpstreamName::origin(&url.value.origin())),
        (None, None) => None,
    }
}

/// Where each argument goes. What is named nowhere: GET, HEAD, DELETE → query; POST, PUT, PATCH → body.
pub fn template(http: &written::Http) -> Option<HttpTemplate> {
    let method = get(&http.method)?;
    let path = match (&http.path, &http.url) {
        (Some(path), _) => path.value.clone(),
        (None, Some(url)) => url.value.path.clone(),
        (None, None) => return None,
    };
    let in_query = matches!(method, Method::GET | Method::HEAD | Method::DELETE);
    let (query, body) = (get(&http.query), get(&http.body));
    let rest = match (&query, &body) {
        (Some(Part::Rest), _) => Rest::Query,
        (_, Some(Part::Rest)) => Rest::Body,
        (None, _) if in_query => Rest::Query,
        (_, None) if !in_query => Rest::Body,
        _both_said => Rest::None,
    };
    let named = |part: Option<Part>| match part {
        Some(Part::Named(names)) => names,
        Some(Part::Rest | Part::None) | None => Vec::new(),
    };
    let mut headers: Vec<_> = http
        .headers
        .iter()
        .flat_map(|headers| &headers.value)
        .map(|(header, argument)| (header.clone(), argument.value.clone()))
        .collect();
    headers.sort_by(|a, b| a.0.as_str().cmp(b.0.as_str()));
    Some(HttpTemplate {
        method,
        path,
        query: named(query),
        body: named(body),
        rest,
        headers,
        encoding: get(&http.encoding).unwrap_or(BodyEncoding::Json),
    })
}

fn tool(
    checked: &Checked<'_>,
    name: &str,
    section: &At<written::Tool>,
    upstreams: &HashMap<UpstreamName, Arc<Upstream>>,
) -> Option<Tool> {
    let tool = &section.value;
    if checked.broken.iter().any(|broken| broken.name.as_str() == name) {
        return None;
    }
    let (target, upstream) = match (&tool.http, &tool.proxy) {
        (Some(http), _) => (Target::Http(template(&http.value)?), upstream_name(&http.value)?),
        (None, Some(proxy)) => {
            let upstream = UpstreamName::new(&proxy.value.upstream.as_ref()?.value).ok()?;
            (Target::Proxy(route::route(checked.document, tool, &proxy.value)?), upstream)
        }
        (None, None) => return None,
    };
    let upstream = Arc::clone(upstreams.get(&upstream)?);
    let settings = merge::tool(checked.document, tool);
    let effect = tool.effect();
    let read = effect == Effect::Read;
    let description: Arc<str> = get(&tool.description)?.into();
    let schema = checked.shown.get(name).or_else(|| checked.schemas.get(name)).cloned();
    let schema = schema.or_else(|| route::open_schema(&target))?;
    let name_of = ToolName::new(name).ok()?;
    let listed = listed_http(&name_of, &description, &schema, effect);
    let mut compiled = Tool {
        name: name_of,
        rule: Rule { path: format!("tools.{name}").into(), line: section.key.line },
        description,
        effect,
        upstream,
        target,
        schema,
        timeout: settings.timeout,
        retry: read.then_some(settings.retry),
        breaker: settings.breaker,
        rate_limit: merge::rate_limit(&tool.rate_limit, &format!("tool:{name}")),
        bulkhead: narrow(get(&tool.bulkhead).unwrap_or(merge::DEFAULT_TOOL_BULKHEAD)),
        weight: narrow(get(&tool.weight).unwrap_or(1)),
        fuse: fuse(tool),
        volatile: values(&tool.volatile),
        alternatives: servers::alternatives(tool),
        cost: get(&tool.cost).map(|money| money.millionths),
        approval: approval(tool),
        cache: cache(tool).filter(|_| read),
        result: result_of(&tool.result, checked.expects.get(name).cloned()),
        write: (!read).then(|| write(&tool.write)),
        listed: Arc::new(listed),
        section: Digest::of(b""),
    };
    compiled.section = tool_section(&compiled);
    Some(compiled)
}

fn values<T: Clone>(list: &Maybe<Vec<At<T>>>) -> Vec<T> {
    list.iter().flat_map(|list| &list.value).map(|at| at.value.clone()).collect()
}

/// Hash of all that a tool obeys. Of a tool that a server offers, its whole definition is part of it.
pub(super) fn tool_section(t: &Tool) -> Digest {
    let what = match &t.target {
        Target::Proxy(route) => format!("{:?}", (&t.name, &t.description, t.effect, route)),
        Target::Http(template) => format!("{:?}", (&t.name, &t.description, t.effect, template)),
        Target::Mcp(mcp) => {
            let flags = (mcp.format_written, mcp.is_error, mcp.asks_after_acting, mcp.tasks);
            let definition = Digest::of(&canonical(&mcp.definition));
            let server = (&mcp.server.name, &mcp.own_name, mcp.server.section, definition);
            format!("{:?}", (&t.name, &t.description, t.effect, server, flags, &mcp.meta_key))
        }
        Target::Passed => format!("{:?}", &t.name),
    };
    let time = format!("{:?}", (t.timeout, &t.retry, &t.breaker));
    let limits = format!("{:?}", (&t.rate_limit, t.bulkhead, t.weight, t.fuse, t.cost));
    let result = &t.result;
    let ends = format!("{:?}", (result.json, &result.select, &result.redact, result.max));
    let more = format!("{:?}", (result.fail_on_oversize, &t.write, &t.volatile, &t.alternatives));
    let asked = t.approval.as_ref().map(|approval| format!("{approval:?}"));
    // One part more where there is such a key: without it a section is what it was.
    let cache = t.cache.as_ref().map(|cache| format!("{cache:?}").into_bytes());
    let schema = canonical(t.schema.source());
    let expect = result.expect.as_ref().map(|schema| canonical(schema.source()));
    let expect = expect.unwrap_or_default();
    let mut parts = vec![
        t.upstream.section.as_bytes(),
        what.as_bytes(),
        time.as_bytes(),
        limits.as_bytes(),
        ends.as_bytes(),
        more.as_bytes(),
        asked.as_deref().unwrap_or_default().as_bytes(),
        &schema,
        &expect,
    ];
    parts.extend(cache.as_deref());
    Digest::of_parts(&parts)
}

fn fuse(tool: &written::Tool) -> Option<FusePolicy> {
    let open = FusePolicy { same_failures: None, same_results: None };
    tool.fuse.as_ref().map(|_| merge::fuse(&tool.fuse, open))
}

fn approval(tool: &written::Tool) -> Option<ApprovalPolicy> {
    let written = &tool.approval.as_ref()?.value;
    let mut approvers: Vec<Arc<str>> =
        values(&written.approvers).iter().map(|name| name.as_str().into()).collect();
    // The order of names means nothing.
    approvers.sort();
    let mut decisions = match &written.decisions {
        Some(_) => values(&written.decisions),
        None => vec![Allowed::Approve, Allowed::Reject],
    };
    decisions.sort();
    Some(ApprovalPolicy {
        when: get(&written.when).unwrap_or(When::Always),
        approvers,
        decisions,
        expires: get(&written.expires).unwrap_or(merge::DEFAULT_EXPIRES),
    })
}

fn cache(tool: &written::Tool) -> Option<CachePolicy> {
    let written = &tool.cache.as_ref()?.value;
    Some(CachePolicy {
        ttl: get(&written.ttl)?,
        stale_if_error: get(&written.stale_if_error),
        global_scope: get(&written.global_scope).unwrap_or(false),
    })
}

fn result_of(section: &Maybe<written::ToolResult>, expect: Option<Schema>) -> ResultPolicy {
    let written = section.as_ref().map(|at| &at.value);
    ResultPolicy {
        json: written.and_then(|result| get(&result.json)).unwrap_or(true),
        expect,
        select: written.map(|result| values(&result.select)).unwrap_or_default(),
        redact: written.map(|result| values(&result.redact)).unwrap_or_default(),
        max: in_memory(
            written.and_then(|result| get(&result.max)).unwrap_or(merge::DEFAULT_RESULT_MAX),
        ),
        fail_on_oversize: written.and_then(|r| get(&r.fail_on_oversize)).unwrap_or(false),
    }
}

fn write(section: &Maybe<written::Write>) -> WritePolicy {
    let written = section.as_ref().map(|at| &at.value);
    let status = |pick: fn(&written::Write) -> &Maybe<Vec<At<u64>>>| -> Vec<u16> {
        let list = written.map(|write| values(pick(write))).unwrap_or_default();
        list.iter().filter_map(|status| u16::try_from(*status).ok()).collect()
    };
    WritePolicy {
        fingerprint: written.map(|write| values(&write.fingerprint)).unwrap_or_default(),
        global_scope: written.and_then(|write| get(&write.global_scope)).unwrap_or(false),
        ttl: written.and_then(|write| get(&write.ttl)).unwrap_or(merge::DEFAULT_TTL),
        identical: written.and_then(|write| get(&write.identical)).unwrap_or(Identical::Allow),
        not_executed_on: status(|write| &write.not_executed_on),
        unknown_on: status(|write| &write.unknown_on),
        caller_key_required: written.and_then(|w| get(&w.caller_key_required)).unwrap_or(false),
        pooled: written.and_then(|write| get(&write.pooled)).unwrap_or(false),
        drain: written.and_then(|write| get(&write.drain)).unwrap_or(merge::DEFAULT_DRAIN),
        idempotency: written.and_then(|write| remedies::idempotency(&write.idempotency)),
        status_query: written.and_then(|write| remedies::status_query(&write.status_query)),
    }
}

fn agent(
    checked: &Checked<'_>,
    name: &str,
    section: &At<written::Agent>,
    tools: &Named<ToolName, Arc<Tool>>,
) -> Option<Agent> {
    let agent = &section.value;
    let rule = |list: &str, at: &At<String>| Rule {
        path: format!("agents.{name}.{list}").into(),
        line: at.place.line,
    };
    let granted = |name: &str, list: &Maybe<Vec<At<String>>>| {
        let all = list.iter().flat_map(|list| &list.value);
        all.map(|at| (at.value.clone(), rule(name, at))).collect::<Vec<_>>()
    };
    let grants =
        Grants { allow: granted("allow", &agent.allow), deny: granted("deny", &agent.deny) };
    let (mut allowed, mut denied) = (Named::default(), HashMap::new());
    for (tool_name, tool) in tools {
        if let Some(rule) = grants.denies(tool_name.as_str()) {
            denied.insert(tool_name.clone(), rule.clone());
        } else if let Some(rule) = grants.allows(tool_name.as_str(), tool.effect) {
            allowed.insert(tool_name.clone(), rule.clone());
        }
    }
    let run_name = agent.run.as_ref().map_or(merge::DEFAULT_RUN, |at| at.value.as_str());
    let run: Arc<RunPolicy> = Arc::new(merge::run(checked.document, run_name));
    let constraints = checked
        .constraints
        .iter()
        .filter(|((agent, _), _)| agent == name)
        .filter_map(|((_, tool), schema)| Some((ToolName::new(tool).ok()?, schema.clone())))
        .collect();
    Some(Agent {
        id: AgentId::new(name).ok()?,
        rule: Rule { path: format!("agents.{name}").into(), line: section.key.line },
        tokens: tokens(checked, agent),
        allowed,
        denied,
        grants: Arc::new(grants),
        choosable_runs: HashMap::from([(Arc::clone(&run.name), Arc::clone(&run))]),
        run,
        dry_run: get(&agent.dry_run).unwrap_or(false),
        constraints,
        rate_limit: merge::rate_limit(&agent.rate_limit, &format!("agent:{name}")),
        bulkhead: get(&agent.bulkhead).map(narrow),
    })
}

/// A token that is missing or empty proves nothing.
fn tokens(checked: &Checked<'_>, agent: &written::Agent) -> Vec<SecretText> {
    let identities = agent.identities.iter().flat_map(|list| &list.value);
    identities
        .filter_map(|identity| resolve(checked.material, &identity.value.token)?.value)
        .collect()
}
