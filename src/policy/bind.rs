//! Policy and what servers offer become the snapshot that is obeyed: rules meet definitions, tool by tool.
//!
//! Pure: same base and same catalogs, same snapshot. Whatever is wrong with one definition costs that tool alone, and
//! who connected first never decides who owns a name.

mod agents;
mod definition;
mod entry;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

pub(super) use self::definition::listed_http;
pub use self::definition::repeated;
use self::entry::Choice;
pub use self::entry::Entry;
pub(super) use self::entry::{literal, rank};
use super::snapshot::{BrokenTool, McpServer, Snapshot, Target, Tool};
use crate::call::{Effect, ToolName, UpstreamName};

/// What one server offers, as last heard.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    pub tools: Vec<Offered>,
}

/// A definition that was judged sound by itself.
#[derive(Debug, Clone)]
pub struct Offered {
    pub own_name: Arc<str>,
    pub definition: Arc<Value>,
    /// Set: it is not what was pinned, and why a person has to look.
    pub quarantined: Option<Arc<str>>,
}

/// What a person should hear of when rules met definitions; nothing of it stops a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    pub server: UpstreamName,
    /// The server's own name of the tool.
    pub own_name: Arc<str>,
    pub text: String,
}

/// The snapshot with the tools of all servers in it. A server without a catalog has none yet.
pub fn bind(base: &Arc<Snapshot>, catalogs: &HashMap<UpstreamName, Arc<Catalog>>) -> Arc<Snapshot> {
    rebind(base, catalogs, None)
}

/// As [`bind()`], taking over from the snapshot `before` what did not change: an unchanged tool stays the same `Arc`.
pub fn rebind(
    base: &Arc<Snapshot>,
    catalogs: &HashMap<UpstreamName, Arc<Catalog>>,
    before: Option<&Snapshot>,
) -> Arc<Snapshot> {
    if base.mcp_servers.is_empty() {
        return Arc::clone(base);
    }
    let mut bound = Snapshot::clone(base);
    for (name, candidates) in meet(base, catalogs, &mut bound) {
        match candidates.as_slice() {
            [one] => one.settle(name, before, &mut bound),
            several => clash(name, several, &mut bound),
        }
    }
    bound.agents = agents::resolve(base, &bound);
    Arc::new(bound)
}

/// A definition and the one rule that applies to it.
struct Candidate<'a> {
    server: &'a Arc<McpServer>,
    entry: &'a Arc<Entry>,
    offered: &'a Offered,
    effect: Effect,
}

/// Every offered tool that a rule exposes, by its exposed name.
fn meet<'a>(
    base: &'a Snapshot,
    catalogs: &'a HashMap<UpstreamName, Arc<Catalog>>,
    bound: &mut Snapshot,
) -> BTreeMap<ToolName, Vec<Candidate<'a>>> {
    let owners = owners(base);
    let mut met: BTreeMap<ToolName, Vec<Candidate<'a>>> = BTreeMap::new();
    let mut servers: Vec<&Arc<McpServer>> = base.mcp_servers.values().collect();
    servers.sort_by(|a, b| a.name.cmp(&b.name));
    for server in servers {
        let choice = Choice::among(&server.entries);
        if let Some(catalog) = catalogs.get(&server.name) {
            bound.remarks.extend(not_offered(server, catalog));
        }
        for offered in catalogs.get(&server.name).iter().flat_map(|catalog| &catalog.tools) {
            let Some(entry) = choice.of(&offered.own_name) else { continue };
            if !entry.expose {
                continue;
            }
            let mut say = |text: String| {
                let own_name = Arc::clone(&offered.own_name);
                bound.remarks.push(Remark { server: server.name.clone(), own_name, text });
            };
            let name = match entry.exposed_name(&server.prefix, &offered.own_name) {
                Ok(name) => name,
                Err(text) => {
                    say(format!("is not exposed: `{text}` cannot be a name; give it a `rename`"));
                    continue;
                }
            };
            match owners.get(&name) {
                Some(owner) if *owner != (Some(&server.name), entry.pattern.as_ref()) => {
                    let whose = owner.0.map_or("a tool of the policy".to_owned(), |server| {
                        format!("`{}` of the server `{server}`", owner.1)
                    });
                    say(format!("is not exposed: the name `{name}` belongs to {whose}"));
                    continue;
                }
                Some(_) | None => {}
            }
            let effect = entry.effect_of(&offered.definition);
            if effect != entry.effect {
                say(format!(
                    "is a write: the server says that it changes something, and only the pattern `{}` calls it a read",
                    entry.pattern
                ));
            }
            met.entry(name).or_default().push(Candidate { server, entry, offered, effect });
        }
    }
    met
}

/// Tools that the policy names and the server does not offer. A pattern promises nothing.
fn not_offered<'a>(
    server: &'a McpServer,
    catalog: &Catalog,
) -> impl Iterator<Item = Remark> + use<'a> {
    let offered: HashSet<Arc<str>> =
        catalog.tools.iter().map(|one| Arc::clone(&one.own_name)).collect();
    let named = server.entries.iter().filter(|entry| entry.expose && entry.is_exact());
    named.filter(move |entry| !offered.contains(&entry.pattern)).map(|entry| Remark {
        server: server.name.clone(),
        own_name: Arc::clone(&entry.pattern),
        text: "is not there: the policy names it, and the server offers no such tool".to_owned(),
    })
}

/// Names that the policy itself gives away, whether or not their owners are there: to its own tools, and to exact
/// entries. So a name never changes hands because another server came first.
fn owners(base: &Snapshot) -> HashMap<ToolName, (Option<&UpstreamName>, &str)> {
    let mut owners: HashMap<ToolName, (Option<&UpstreamName>, &str)> =
        base.tools.keys().map(|name| (name.clone(), (None, name.as_str()))).collect();
    owners.extend(base.broken_tools.iter().map(|b| (b.name.clone(), (None, b.name.as_str()))));
    for server in base.mcp_servers.values() {
        for entry in server.entries.iter().filter(|entry| entry.expose && entry.is_exact()) {
            if let Ok(name) = entry.exposed_name(&server.prefix, &entry.pattern) {
                owners.entry(name).or_insert((Some(&server.name), &entry.pattern));
            }
        }
    }
    owners
}

/// Two owners of one name: neither has it.
fn clash(name: ToolName, candidates: &[Candidate<'_>], bound: &mut Snapshot) {
    let all: Vec<String> = candidates
        .iter()
        .map(|one| format!("`{}` of the server `{}`", one.offered.own_name, one.server.name))
        .collect();
    let why = format!(
        "the name is claimed by {}; none of them has it until a `prefix` or a `rename` tells them apart",
        all.join(" and ")
    );
    bound.broken_tools.push(BrokenTool { name, why });
}

impl Candidate<'_> {
    fn settle(&self, name: ToolName, before: Option<&Snapshot>, bound: &mut Snapshot) {
        if let Some(why) = &self.offered.quarantined {
            bound.quarantined.insert(name, Arc::clone(why));
            return;
        }
        let earlier = before.and_then(|before| before.tools.get(&name));
        if let Some(same) = earlier.filter(|tool| self.made(tool)) {
            bound.tools.insert(name, Arc::clone(same));
            return;
        }
        match definition::tool(&name, self, earlier.map(Arc::as_ref)) {
            Ok(tool) => {
                bound.tools.insert(name, Arc::new(tool));
            }
            Err(why) => bound.broken_tools.push(BrokenTool { name, why }),
        }
    }

    /// Whether a tool was made of these very parts.
    fn made(&self, tool: &Tool) -> bool {
        let Target::Mcp(mcp) = &tool.target else { return false };
        Arc::ptr_eq(&mcp.server, self.server)
            && Arc::ptr_eq(&mcp.entry, self.entry)
            && Arc::ptr_eq(&mcp.definition, &self.offered.definition)
    }
}

#[cfg(test)]
mod tests;
