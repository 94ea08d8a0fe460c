//! What is wrong with a policy although every key of it is well formed: names that lead nowhere, arguments without a
//! place, promises that contradict each other, protections that are missing.
//!
//! Everything is found in one go and nothing is changed. Form is document.rs's business, places come from there.

mod references;
mod remedies;
mod requests;
mod safety;
pub(super) mod shape;
mod timing;

use std::collections::BTreeMap;

use serde_json::Value;

use super::check::Facts;
use super::diagnostic::{Place, Problem};
use super::document::{Agent, At, Document, Tool};
use super::glob::{allows, glob_matches, is_glob};
use super::merge;
use crate::call::Effect;

/// Every finding of the lints, unsorted, each with its file.
pub fn lint(facts: Facts<'_>) -> Vec<Problem> {
    let document = facts.document;
    let view = View { facts, document, callers: callers(document) };
    let mut problems = Vec::new();
    references::find(&view, &mut problems);
    requests::find(&view, &mut problems);
    remedies::find(&view, &mut problems);
    safety::find(&view, &mut problems);
    timing::find(&view, &mut problems);
    problems.into_iter().map(|problem| problem.file(&document.file)).collect()
}

/// The document with what follows from it for every lint.
struct View<'d> {
    facts: Facts<'d>,
    document: &'d Document,
    /// Agents by the tools they may call.
    callers: BTreeMap<&'d str, Vec<(&'d str, &'d Agent)>>,
}

impl<'d> View<'d> {
    /// A tool's closed argument schema; `None` where it is broken.
    fn schema(&self, tool: &str) -> Option<&'d Value> {
        self.facts.schemas.get(tool).map(|schema| schema.source().as_ref())
    }

    fn tools(&self) -> impl Iterator<Item = (&'d str, &'d At<Tool>)> {
        self.document.tools.iter().map(|(name, tool)| (name.as_str(), tool))
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

fn callers(document: &Document) -> BTreeMap<&str, Vec<(&str, &Agent)>> {
    let mut callers: BTreeMap<&str, Vec<(&str, &Agent)>> = BTreeMap::new();
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
