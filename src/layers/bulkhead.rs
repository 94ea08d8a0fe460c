//! Places: so many calls in flight and no more. Refuses at once, never queues.
//!
//! The place travels with the call, so that a write that is still listened to after its timeout goes on holding it.

use std::sync::Arc;

use tokio::time::Instant;

use super::gate::{Gate, Permit, come_back};
use super::state::{CallTime, Places, ToolState};
use crate::call::code::DenyCode;
use crate::call::{AgentId, CallError, Denied, Ended, Place, ToolCall, ToolName};

/// Places of a tool and of everything wider that its calls share.
#[derive(Debug)]
pub struct Bulkhead {
    tool: ToolName,
    state: Arc<ToolState>,
    agents: Vec<(AgentId, Arc<Places>)>,
    process: Arc<Places>,
}

impl Bulkhead {
    /// `agents`: those that have a bound of their own.
    pub fn new(
        tool: ToolName,
        state: Arc<ToolState>,
        agents: Vec<(AgentId, Arc<Places>)>,
        process: Arc<Places>,
    ) -> Self {
        Self { tool, state, agents, process }
    }
}

impl Gate for Bulkhead {
    type Permit = BulkheadPermit;

    fn admit(&self, call: &ToolCall) -> Result<BulkheadPermit, Denied> {
        let agent = self.agents.iter().find(|(agent, _)| *agent == call.agent);
        // Narrowest first: a refusal names the bound that is really short, and touches no wider one.
        let asked = [
            Some((&self.state.places, "bulkhead of the tool")),
            Some((&self.state.upstream.places, "bulkhead of the upstream")),
            agent.map(|(_, places)| (places, "bulkhead of the agent")),
            Some((&self.process, "bulkhead of the process")),
        ];
        let mut permits = Vec::with_capacity(asked.len());
        for (places, whose) in asked.into_iter().flatten() {
            match places.try_take() {
                Some(permit) => permits.push(permit),
                None => {
                    call.trace.note().rule = Some(whose.into());
                    let message = format!("too many calls of tool {} are running", self.tool);
                    return Err(Denied::new(DenyCode::ConcurrencyLimited, message)
                        .retry_after(come_back(self.state.call_time.smoothed())));
                }
            }
        }
        Ok(BulkheadPermit {
            place: Place::new(permits),
            began: Instant::now(),
            state: self.state.clone(),
        })
    }
}

#[derive(Debug)]
pub struct BulkheadPermit {
    place: Place,
    began: Instant,
    state: Arc<ToolState>,
}

impl Permit for BulkheadPermit {
    fn stamp(&self, call: &mut ToolCall) {
        call.place = Some(self.place.clone());
    }

    fn settle(self, ended: &Ended) {
        let time: &CallTime = &self.state.call_time;
        match ended {
            Ok(_) | Err(CallError::Failed(_) | CallError::Unknown(_)) => {
                time.observe(self.began.elapsed());
            }
            // Refused below: says nothing about how long a call takes.
            Err(CallError::Denied(_)) => {}
        }
    }
}
