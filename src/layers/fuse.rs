//! The repeat fuse: the same call that failed, was refused, or changed nothing N times is stopped before it is paid.
//!
//! Only reads the run's memory; `observe` writes it, because it alone hears every end.

use std::sync::Arc;

use super::gate::Gate;
use crate::call::{Denied, ToolCall};
use crate::policy::snapshot::Tool;
use crate::run::Runs;
use crate::telemetry::metrics::Metrics;

#[derive(Debug)]
pub struct Fuse {
    pub runs: Arc<Runs>,
    pub metrics: Arc<Metrics>,
    /// `None` in the stack of calls that have no tool to go to.
    pub tool: Option<Arc<Tool>>,
}

impl Gate for Fuse {
    type Permit = ();

    fn admit(&self, call: &ToolCall) -> Result<(), Denied> {
        // A run that is not open was refused by `budget`.
        let Some(run) = self.runs.get(&call.run) else { return Ok(()) };
        let volatile = self.tool.as_ref().map_or(&[][..], |tool| &tool.volatile);
        let policy = {
            let inherited = run.policy().fuse;
            let own = self.tool.as_ref().and_then(|tool| tool.fuse);
            own.map_or(inherited, |own| own.over(inherited))
        };
        run.fuse(&call.tool, call.payload.digest(volatile), policy).map_err(|(kind, denied)| {
            self.metrics.tool(call.tool.as_str()).fuse_trip(kind);
            call.trace.note().rule = Some(format!("fuse {kind}").into());
            denied
        })
    }
}
