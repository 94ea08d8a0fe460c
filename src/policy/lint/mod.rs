//! What is wrong with a policy although every key of it is well formed: names that lead nowhere, arguments without a
//! place, promises that contradict each other, protections that are missing.
//!
//! Everything is found in one go and nothing is changed. Form is document.rs's business, places come from there.

mod approvals;
mod references;
mod remedies;
mod requests;
mod routes;
mod safety;
mod servers;
pub(super) mod shape;
mod timing;

use std::collections::BTreeMap;

use serde_json::Value;

use self::servers::Ruled;
use super::bind::rank;
use super::check::Facts;
use super::diagnostic::{Place, Problem};
use super::document::{Agent, At, Document, Tool};
use super::glob::{allows, glob_matches, globs_meet, is_glob};
use super::merge;
use crate::call::Effect;

/// Every finding of the lints, unsorted, each with its file.
pub fn lint(facts: Facts<'_>) -> Vec<Problem> {
    let document = facts.document;
    let ruled = servers::ruled(document);
    let view = View { facts, document, ruled: &ruled, callers: callers(document, &ruled) };
    let mut problems = Vec::new();
    references::find(&view, &mut problems);
    requests::find(&view, &mut problems);
    routes::find(&view, &mut problems);
    remedies::find(&view, &mut problems);
    safety::find(&view, &mut problems);
    timing::find(&view, &mut problems);
    servers::find(&view, &mut problems);
    approvals::find(&view, &mut problems);
    problems.into_iter().map(|problem| problem.file(&document.file)).collect()
}

/// The document with what follows from it for every lint.
struct View<'d> {
    facts: Facts<'d>,
    document: &'d Document,
    /// Rules of servers that expose something.
    ruled: &'d [Ruled<'d>],
    /// Agents by the tools they may call, or by the patterns under which servers offer some.
    callers: BTreeMap<&'d str, Vec<(&'d str, &'d Agent)>>,
}

impl<'d> View<'d> {
    /// A tool's closed argument schema; `None` where it is broken.
    fn schema(&self, tool: &str) -> Option<&'d Value> {
        self.facts.schemas.get(tool).map(|schema| schema.source().as_ref())
    }

    /// Every tool, and every rule of a server under the name or the pattern of names that agents know.
    fn tools(&self) -> impl Iterator<Item = (&'d str, &'d At<Tool>)> {
        let own = self.document.tools.iter().map(|(name, tool)| (name.as_str(), tool));
        own.chain(self.ruled.iter().map(|one| (one.exposed.as_str(), &one.tool)))
    }

    /// The rule of a server under which a tool of that name would be.
    fn offered(&self, name: &str) -> Option<&'d Ruled<'d>> {
        let fits = |one: &&Ruled<'_>| match one.is_exact() {
            true => one.exposed == name,
            false => {
                let own = name.strip_prefix(one.section.prefix());
                own.is_some_and(|own| {
                    let all = one.section.tools.iter();
                    let best = all
                        .filter_map(|(pattern, entry)| Some((rank(pattern, own)?, entry.key)))
                        .max_by_key(|(rank, _)| *rank);
                    best.is_some_and(|(_, key)| key == one.entry.key)
                })
            }
        };
        self.ruled.iter().find(fits)
    }

    /// A tool of the policy, or the rule of one that a server may offer.
    fn find(&self, name: &str) -> Option<&'d At<Tool>> {
        let own = self.document.tools.get(name);
        own.or_else(|| self.offered(name).map(|one| &one.tool))
    }

    fn callers(&self, tool: &str) -> &[(&'d str, &'d Agent)] {
        self.callers.get(tool).map_or(&[], Vec::as_slice)
    }

    /// Names of the runs in which a tool may be called.
    fn runs(&self, tool: &str) -> Vec<&'d str> {
        let mut runs: Vec<&str> =
            self.callers(tool).iter().map(|(_, agent)| run_of(agent)).collect();
        runs.sort_unstable();
        runs.dedup();
        runs
    }
}

/// The name of an agent's run.
fn run_of(agent: &Agent) -> &str {
    agent.run.as_ref().map_or(merge::DEFAULT_RUN, |run| run.value.as_str())
}

fn callers<'d>(
    document: &'d Document,
    ruled: &'d [Ruled<'d>],
) -> BTreeMap<&'d str, Vec<(&'d str, &'d Agent)>> {
    let mut callers: BTreeMap<&str, Vec<(&str, &Agent)>> = BTreeMap::new();
    for one in ruled {
        for (name, agent) in &document.agents {
            if may_reach(&agent.value, one) {
                callers.entry(&one.exposed).or_default().push((name, &agent.value));
            }
        }
    }
    for (tool_name, tool) in &document.tools {
        for (agent_name, agent) in &document.agents {
            if may_call(&agent.value, tool_name, tool.value.effect()) {
                callers.entry(tool_name).or_default().push((agent_name, &agent.value));
            }
        }
    }
    callers
}

/// `deny` beats `allow`; a pattern in `allow` covers reads only, one in `deny` everything.
fn may_call(agent: &Agent, tool: &str, effect: Effect) -> bool {
    entries(&agent.allow).any(|entry| allows(&entry.value, tool, effect)) && !is_denied(agent, tool)
}

/// Whether an agent may call some tool of a rule.
fn may_reach(agent: &Agent, one: &Ruled<'_>) -> bool {
    let effect = one.tool.value.effect();
    if one.is_exact() {
        return may_call(agent, &one.exposed, effect);
    }
    entries(&agent.allow).any(|entry| match is_glob(&entry.value) {
        true => effect == Effect::Read && globs_meet(&entry.value, &one.exposed),
        false => glob_matches(&one.exposed, &entry.value) && !is_denied(agent, &entry.value),
    })
}

fn is_denied(agent: &Agent, tool: &str) -> bool {
    entries(&agent.deny).any(|entry| glob_matches(&entry.value, tool))
}

/// Items of a list that may be absent.
fn entries<T>(list: &Option<At<Vec<At<T>>>>) -> impl Iterator<Item = &At<T>> {
    list.iter().flat_map(|list| &list.value)
}

/// Where a tool's key is written; else the tool's own name.
fn place_of<T>(key: &Option<At<T>>, tool: &At<Tool>) -> Place {
    key.as_ref().map_or(tool.key, |at| at.place)
}

/// A duration as the language writes it: `2m`, `1m30s`, `500ms`.
fn spelt(time: std::time::Duration) -> String {
    let mut text = String::new();
    let mut millis = time.as_millis();
    for (unit, size) in
        [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)]
    {
        if millis >= size {
            text.push_str(&format!("{}{unit}", millis / size));
            millis %= size;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn durations_are_spelt_as_the_language_writes_them() {
        for (millis, text) in
            [(0, "0s"), (500, "500ms"), (90_000, "1m30s"), (90_061_001, "1d1h1m1s1ms")]
        {
            assert_eq!(spelt(Duration::from_millis(millis)), text);
        }
    }
}
