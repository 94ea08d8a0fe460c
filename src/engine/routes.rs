//! Snapshot and stacks, swapped as one: no request sees a rule of one policy and a tool of another.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::call::Named;
use crate::call::{Payload, ToolName, UpstreamName};
use crate::egress::Egress;
use crate::layers::stack::CallService;
use crate::ledger::resolver::Hands;
use crate::policy::snapshot::{Agent, Snapshot, Tool};

#[derive(Debug)]
pub(super) struct Routes {
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) stacks: Named<ToolName, CallService>,
    /// What helps with unknown writes, by the tool that writes.
    pub(super) hands: HashMap<ToolName, Arc<Hands>>,
    /// What servers offer besides tools.
    pub(super) passed: HashMap<UpstreamName, Passes>,
    pub(super) refusal: CallService,
    /// Handed to the next policy, so that idle connections survive it.
    pub(super) egress: Option<Arc<Egress>>,
}

/// The ways of what one server offers besides tools.
#[derive(Debug)]
pub(super) struct Passes {
    pub(super) lists: CallService,
    pub(super) asks: CallService,
}

impl Routes {
    /// The tool a call can go to. `None`: no such tool, not for this agent, or nothing that could be validated.
    pub(super) fn tool(
        &self,
        agent: &Agent,
        name: &ToolName,
        payload: &Payload,
    ) -> Option<&Arc<Tool>> {
        match payload {
            Payload::Arguments(_) | Payload::Request(_) => {
                let tool = self.snapshot.tools.get(name)?;
                // A route takes requests and nothing else, and nothing else takes requests.
                let fits = tool.route().is_some() == matches!(payload, Payload::Request(_));
                (fits && agent.allowed.contains_key(name)).then_some(tool)
            }
            Payload::Malformed(_) | Payload::Unsupported { .. } => None,
        }
    }

    /// The stack of a tool found by [`Routes::tool`].
    pub(super) fn stack(&self, tool: Option<&Arc<Tool>>) -> CallService {
        tool.and_then(|tool| self.stacks.get(&tool.name)).unwrap_or(&self.refusal).clone()
    }
}

/// The routes in force.
#[derive(Debug)]
pub(super) struct Current(ArcSwap<Routes>);

impl Current {
    pub(super) fn new(routes: Routes) -> Self {
        Self(ArcSwap::from_pointee(routes))
    }

    pub(super) fn load(&self) -> Arc<Routes> {
        self.0.load_full()
    }

    pub(super) fn store(&self, routes: Routes) {
        self.0.store(Arc::new(routes));
    }
}
