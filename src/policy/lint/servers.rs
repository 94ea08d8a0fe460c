//! Servers that speak MCP: names that two tools would have, rules of equal rank, keys that one kind of server cannot
//! honour (CR2004, CR2005, CR2007, CR2014, CR3007, CR3009).

use std::collections::HashMap;

use super::safety::is_public_url;
use super::shape::{Standing, standing};
use super::{View, entries};
use crate::call::ToolName;
use crate::policy::bind::literal;
use crate::policy::diagnostic::{Level, Place, Problem};
use crate::policy::document::mcp::Pin;
use crate::policy::document::{At, Breaker, KeyMode, Maybe, McpEntry, McpServer, Probe, Tool};
use crate::policy::glob::{globs_meet, is_glob};
use crate::policy::merge;
use crate::policy::snapshot::Share;

/// One entry, as the lints look at it.
#[derive(Debug)]
pub(super) struct Ruled<'d> {
    pub(super) server: &'d str,
    pub(super) section: &'d McpServer,
    pub(super) pattern: &'d str,
    pub(super) entry: &'d At<McpEntry>,
    /// The name, or the pattern of names, that agents know its tools by.
    pub(super) exposed: String,
    /// The entry's keys, with the server's profile.
    pub(super) tool: At<Tool>,
}

/// Every entry that exposes something.
pub(super) fn ruled(document: &crate::policy::document::Document) -> Vec<Ruled<'_>> {
    let servers = document.mcp_servers.iter();
    let all = servers.flat_map(|(server, at)| {
        at.value.tools.iter().map(move |(pattern, entry)| (server, &at.value, pattern, entry))
    });
    all.filter(|(_, _, _, entry)| entry.value.is_exposed())
        .map(|(server, section, pattern, entry)| Ruled {
            server,
            section,
            pattern,
            entry,
            exposed: entry.value.exposed(section.prefix(), pattern),
            tool: At {
                value: merge::of_server(section, &entry.value.tool),
                key: entry.key,
                place: entry.place,
                last_line: entry.last_line,
            },
        })
        .collect()
}

impl Ruled<'_> {
    pub(super) fn is_exact(&self) -> bool {
        !is_glob(self.pattern)
    }
}

pub(super) fn find(view: &View<'_>, problems: &mut Vec<Problem>) {
    for (name, at) in &view.document.mcp_servers {
        server_name(view, name, at, problems);
        kind_of_server(name, &at.value, problems);
        ties(name, &at.value, problems);
        unpinned(name, &at.value, problems);
        let breaker = &at.value.upstream.breaker;
        is_error_of_connections(breaker, &format!("server `{name}`"), problems);
    }
    for (name, at) in &view.document.upstreams {
        is_error_of_connections(&at.value.breaker, &format!("upstream `{name}`"), problems);
        only_servers_discover(&at.value.breaker, &format!("the upstream `{name}`"), problems);
    }
    for (name, at) in &view.document.tools {
        only_of_servers(name, &at.value, problems);
    }
    for one in view.ruled {
        own_name(one, problems);
        keys(one, problems);
        fingerprint(view, one, problems);
    }
    clashes(view, problems);
}

fn server_name(view: &View<'_>, name: &str, at: &At<McpServer>, problems: &mut Vec<Problem>) {
    if let Some(upstream) = view.document.upstreams.get(name) {
        let message = format!(
            "the server `{name}` has the name of the upstream in line {}",
            upstream.key.line
        );
        let hint = "give one of them another name: limits, circuits and metrics are kept by it";
        problems.push(Problem::new("CR2004", at.key, message).hint(hint));
    }
}

/// Keys that mean nothing for a server reached that way.
fn kind_of_server(name: &str, server: &McpServer, problems: &mut Vec<Problem>) {
    let upstream = &server.upstream;
    let is_child = server.command.is_some();
    let of_network = [
        ("auth", upstream.auth.as_ref().map(|at| at.key)),
        ("ca", upstream.ca.as_ref().map(|at| at.key)),
        ("addresses", upstream.addresses.as_ref().map(|at| at.key)),
        ("http_version", upstream.http_version.as_ref().map(|at| at.key)),
    ];
    let shared_by_all = server.share.as_ref().filter(|share| share.value == Share::All);
    let of_child = [
        ("env", server.env.as_ref().map(|at| at.key)),
        ("cwd", server.cwd.as_ref().map(|at| at.key)),
        ("children", server.children.as_ref().map(|at| at.key)),
        ("share: all", shared_by_all.map(|at| at.place)),
    ];
    let (refused, why) = if is_child {
        (of_network, "it is a child with `command`, which no network leads to")
    } else {
        (of_child, "it has a `url`, and only a child with `command` takes it")
    };
    for (word, place) in refused {
        let Some(place) = place else { continue };
        let message = format!("`{word}` means nothing for the server `{name}`: {why}");
        let problem = Problem::new("CR2007", place, message);
        problems.push(match word {
            "auth" => problem.hint("give a child its credential by `env: { NAME: { file: … } }`"),
            _other => problem.hint("remove the key"),
        });
    }
}

/// Two patterns that fit one tool equally well: neither can be said to apply.
fn ties(name: &str, server: &McpServer, problems: &mut Vec<Problem>) {
    let globs: Vec<(&str, &At<McpEntry>)> = server
        .tools
        .iter()
        .filter(|(pattern, _)| is_glob(pattern))
        .map(|(pattern, at)| (pattern.as_str(), at))
        .collect();
    for (index, (pattern, at)) in globs.iter().enumerate() {
        let before = globs.iter().take(index);
        let equal = before
            .into_iter()
            .find(|(other, _)| literal(other) == literal(pattern) && globs_meet(other, pattern));
        if let Some((other, first)) = equal {
            let message = format!(
                "`{pattern}` and `{other}` (line {}) of the server `{name}` may both fit a tool, and begin alike",
                first.key.line
            );
            let hint = "the longer literal beginning wins: make one of them longer, or name the tools exactly";
            problems.push(Problem::new("CR2005", at.key, message).hint(hint));
        }
    }
}

fn unpinned(name: &str, server: &McpServer, problems: &mut Vec<Problem>) {
    let Some(pin) = server.pin.as_ref().filter(|pin| pin.value == Pin::None) else { return };
    let upstream = &server.upstream;
    let public = upstream.base_url.as_ref().is_some_and(|url| is_public_url(&url.value));
    if public && upstream.addresses.is_none() {
        let message = format!("definitions of the public server `{name}` are not pinned");
        let hint = "a server that is taken over could tell models anything: `pin: first_seen`";
        problems.push(Problem::new("CR3009", pin.place, message).hint(hint));
    }
}

fn is_error_of_connections(breaker: &Maybe<Breaker>, whose: &str, problems: &mut Vec<Problem>) {
    let key = breaker.as_ref().and_then(|at| at.value.is_error_bad.as_ref());
    if let Some(key) = key {
        let message = format!(
            "`is_error` in the breaker of the {whose}, which counts failed connections alone"
        );
        let hint = "write it in the tools' own `breaker`";
        problems.push(Problem::new("CR2014", key.key, message).hint(hint));
    }
}

fn only_servers_discover(breaker: &Maybe<Breaker>, whose: &str, problems: &mut Vec<Problem>) {
    let probe = breaker.as_ref().and_then(|at| at.value.probe.as_ref());
    if let Some(probe) = probe.filter(|probe| probe.value == Probe::Discover) {
        let message = format!("`probe: discover` of {whose}, which does not speak MCP");
        let hint = "probe by `connect`, or by a read: `{ tool, arguments }`";
        problems.push(Problem::new("CR2014", probe.place, message).hint(hint));
    }
}

/// Keys of `tools:` that only tools of MCP servers can honour.
fn only_of_servers(name: &str, tool: &Tool, problems: &mut Vec<Problem>) {
    let write = tool.write.as_ref().map(|write| &write.value);
    let breaker = tool.breaker.as_ref().map(|breaker| &breaker.value);
    let words = [
        ("write.is_error", write.and_then(|w| w.is_error.as_ref()).map(|at| at.key)),
        (
            "write.on_input_required",
            write.and_then(|w| w.unknown_on_input.as_ref()).map(|at| at.key),
        ),
    ];
    for (word, place) in words {
        if let Some(place) = place {
            let message = format!("`{word}` of `{name}`: only tools of MCP servers have it");
            problems.push(Problem::new("CR2007", place, message).hint("remove the key"));
        }
    }
    if let Some(key) = breaker.and_then(|breaker| breaker.is_error_bad.as_ref()) {
        let message = format!("`is_error` of `{name}`: only tools of MCP servers answer with it");
        problems.push(Problem::new("CR2014", key.key, message).hint("remove the key"));
    }
    only_servers_discover(&tool.breaker, &format!("`{name}`"), problems);
    let idempotency = write.and_then(|write| write.idempotency.as_ref());
    let mode = idempotency.and_then(|at| at.value.mode.as_ref());
    if let Some(mode) = mode.filter(|mode| mode.value == KeyMode::Meta) {
        let message = format!("`mode: meta` of `{name}`: only tools of MCP servers have a `_meta`");
        let hint = "say `header` or `argument`";
        problems.push(Problem::new("CR2007", mode.place, message).hint(hint));
    }
}

/// What its tools would be called.
fn own_name(one: &Ruled<'_>, problems: &mut Vec<Problem>) {
    if let Some(rename) = &one.entry.value.rename
        && !one.is_exact()
    {
        let message =
            format!("`rename` of the pattern `{}`, which many tools may fit", one.pattern);
        let hint = "name one tool exactly to rename it";
        problems.push(Problem::new("CR2004", rename.key, message).hint(hint));
    }
    if one.is_exact() && ToolName::new(&one.exposed).is_err() {
        let message = format!("`{}` cannot be the name of a tool", one.exposed);
        let label = "a name has 1 to 64 of the characters A-Z a-z 0-9 _ -: add `rename:`";
        problems.push(Problem::new("CR1004", one.entry.key, message).label(label));
    }
}

/// Keys of entries that no tool of an MCP server can honour.
fn keys(one: &Ruled<'_>, problems: &mut Vec<Problem>) {
    let write = one.tool.value.write.as_ref().map(|write| &write.value);
    let idempotency = write.and_then(|write| write.idempotency.as_ref());
    let mode = idempotency.and_then(|at| at.value.mode.as_ref());
    if let Some(mode) = mode.filter(|mode| mode.value == KeyMode::Header) {
        let message =
            format!("`mode: header` of `{}`: a call of MCP has no header of its own", one.exposed);
        let hint = "say `mode: meta` with the key of `_meta` that the tool reads, or `argument`";
        problems.push(Problem::new("CR2007", mode.place, message).hint(hint));
    }
}

/// Where the policy writes the schema, its fingerprint can be judged before a server is asked.
fn fingerprint(view: &View<'_>, one: &Ruled<'_>, problems: &mut Vec<Problem>) {
    let key = (one.server.to_owned(), one.pattern.to_owned());
    let parts = view.facts.entries.get(&key);
    let Some(schema) = parts.and_then(|parts| parts.schema.as_ref()) else { return };
    for pointer in one.tool.value.write.iter().flat_map(|write| entries(&write.value.fingerprint)) {
        if standing(schema.source(), pointer.value.tokens()) != Standing::Required {
            let message = format!(
                "`{}`, of the fingerprint of `{}`, is not required",
                pointer.value, one.exposed
            );
            problems.push(Problem::new("CR3007", pointer.place, message));
        }
    }
}

/// Two tools of one name. Between exact names it is sure; where a pattern is one of them, servers decide.
fn clashes(view: &View<'_>, problems: &mut Vec<Problem>) {
    let tools = view.document.tools.iter().map(|(name, at)| (name.as_str(), None, at.key));
    let ruled = view.ruled.iter().map(|one| (one.exposed.as_str(), Some(one), one.entry.key));
    let all: Vec<(&str, Option<&Ruled<'_>>, Place)> = tools.chain(ruled).collect();
    // A server may offer thousands of tools, and a policy may name them all.
    let mut known: HashMap<&str, usize> = HashMap::with_capacity(all.len());
    for (index, (name, one, place)) in all.iter().enumerate() {
        let same = *known.entry(name).or_insert(index);
        let Some(one) = one else { continue };
        let exact = |name: &str| !is_glob(name);
        if exact(name) {
            let same = all.get(same).filter(|_| same != index);
            if let Some((_, other, first)) = same {
                let of = other
                    .map_or("`tools`".to_owned(), |other| format!("the server `{}`", other.server));
                let message = format!(
                    "two tools are called `{name}`: one of the server `{}`, one of {of} in line {}",
                    one.server, first.line
                );
                let hint = "tell them apart by a `prefix` of the server, or a `rename`";
                problems.push(Problem::new("CR2004", *place, message).hint(hint));
            }
            continue;
        }
        // A name that is given away exactly stays with its owner; two patterns have no owner.
        let rival = all.iter().take(index).find(|(other, rival, _)| {
            rival.is_some_and(|rival| rival.server != one.server)
                && !exact(other)
                && globs_meet(other, name)
        });
        if let Some((other, Some(rival), first)) = rival {
            let message = format!(
                "tools of the servers `{}` and `{}` may get one name by `{other}` (line {}) and `{name}`; then neither is exposed",
                rival.server, one.server, first.line
            );
            let hint = "give each server a `prefix` of its own";
            problems.push(Problem::new("CR2004", *place, message).level(Level::Warning).hint(hint));
        }
    }
}
