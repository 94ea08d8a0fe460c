//! The run's budgets: every call costs something, also one that is then refused. A looping agent runs out.
//! And its brake: of a run that a person has stopped, nothing more starts.

use std::sync::Arc;

use tokio::time::Instant;

use super::gate::Gate;
use crate::call::Named;
use crate::call::code::DenyCode;
use crate::call::{AgentId, Denied, Detail, ToolCall};
use crate::run::Runs;
use crate::telemetry::metrics::AgentMetrics;

#[derive(Debug)]
pub struct Budget {
    pub runs: Arc<Runs>,
    pub agents: Named<AgentId, Arc<AgentMetrics>>,
}

impl Gate for Budget {
    type Permit = ();

    fn admit(&self, call: &ToolCall) -> Result<(), Denied> {
        let Some(run) = self.runs.of(call) else {
            return Err(Denied::new(DenyCode::RunUnknown, "this run is not open"));
        };
        if let Some(denied) = run.refusal() {
            call.trace.note().rule = Some("interrupted by a person".into());
            return Err(denied);
        }
        let now = Instant::now();
        let taken = match call.continuation() {
            // The same call, which was counted when it began.
            Some(_) => run.go_on(now),
            None => run.take_call(call.payload.bytes(), now),
        };
        taken.inspect_err(|denied| {
            if let Detail::Budget { dimension, .. } = &denied.detail {
                call.trace.note().rule =
                    Some(format!("runs.{} {}", run.policy().name, dimension.as_str()).into());
                if let Some(agent) = self.agents.get(&call.agent) {
                    agent.budget_exhausted(*dimension);
                }
            }
        })
    }
}
