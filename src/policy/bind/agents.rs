//! Who may call what, told anew when the tools are known.

use std::sync::Arc;

use crate::call::Named;
use crate::call::{AgentId, Effect, ToolName};
use crate::policy::glob::{allows, glob_matches};
use crate::policy::snapshot::{Agent, Grants, Rule, Snapshot};

impl Grants {
    /// The rule that denies a tool.
    pub(in crate::policy) fn denies(&self, tool: &str) -> Option<&Rule> {
        let found = self.deny.iter().find(|(pattern, _)| glob_matches(pattern, tool));
        found.map(|(_, rule)| rule)
    }

    /// The rule that allows a tool, were it not denied: a pattern reaches reads only.
    pub(in crate::policy) fn allows(&self, tool: &str, effect: Effect) -> Option<&Rule> {
        let found = self.allow.iter().find(|(entry, _)| allows(entry, tool, effect));
        found.map(|(_, rule)| rule)
    }
}

/// Agents of `base` with their rules resolved over the tools of `bound`. A quarantined tool is among what an agent may
/// call where its exact name is allowed, or a pattern and its last effect is not known to be a write: it answers
/// `tool_quarantined` to those alone.
pub(super) fn resolve(base: &Snapshot, bound: &Snapshot) -> Named<AgentId, Arc<Agent>> {
    let new: Vec<(&ToolName, Effect)> = bound
        .tools
        .iter()
        .filter(|(name, _)| !base.tools.contains_key(*name))
        .map(|(name, tool)| (name, tool.effect))
        .chain(bound.quarantined.keys().map(|name| (name, Effect::Read)))
        .collect();
    let resolved = |agent: &Arc<Agent>| {
        let mut agent = Agent::clone(agent);
        for (name, effect) in &new {
            if let Some(rule) = agent.grants.denies(name.as_str()) {
                agent.denied.insert((*name).clone(), rule.clone());
            } else if let Some(rule) = agent.grants.allows(name.as_str(), *effect) {
                agent.allowed.insert((*name).clone(), rule.clone());
            }
        }
        Arc::new(agent)
    };
    base.agents.iter().map(|(id, agent)| (id.clone(), resolved(agent))).collect()
}
