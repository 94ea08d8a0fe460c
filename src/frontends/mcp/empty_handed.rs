//! Agents that have no tools, told of once under each policy: whoever runs the gateway has to hear of it, and a client
//! that asks again and again must not fill the log with it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::call::AgentId;

/// Agents that were told of under one policy; past it the others are not told of.
const MAX_AGENTS: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct EmptyHanded(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    /// The policy's.
    revision: Arc<str>,
    agents: HashSet<AgentId>,
}

impl EmptyHanded {
    /// Whether nobody was told of it yet, under this policy; somebody is, from here on.
    pub(super) fn is_new(&self, agent: &AgentId, revision: &Arc<str>) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.revision != *revision {
            *told = Told { revision: revision.clone(), agents: HashSet::new() };
        }
        told.agents.len() < MAX_AGENTS && told.agents.insert(agent.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_without_tools_is_told_of_once_under_each_policy() {
        let told = EmptyHanded::default();
        let agent = |name: &str| AgentId::new(name).expect("name");
        let (one, other) = (Arc::from("1"), Arc::from("2"));
        let asked = [("a", &one), ("a", &one), ("b", &one), ("a", &other), ("a", &other)];
        let new = asked.map(|(name, revision)| told.is_new(&agent(name), revision));
        assert_eq!(new, [true, false, true, true, false]);
        for n in 0..MAX_AGENTS + 9 {
            told.is_new(&agent(&format!("n{n}")), &other);
        }
        assert_eq!(told.0.lock().expect("lock").agents.len(), MAX_AGENTS);
    }
}
