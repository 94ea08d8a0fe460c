//! The repeat fuse: the same call that failed, was refused, or changed nothing N times is stopped before it is paid.
//!
//! Only reads the run's memory; `observe` writes it, because it alone hears every end.

use std::sync::Arc;

use super::gate::Gate;
use crate::call::code::DenyCode;
use crate::call::{Denied, Detail, MAX_ROUNDS, ToolCall};
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

/// Label of a call that was asked for input once too often.
const ROUNDS: &str = "rounds";

impl Fuse {
    /// A continuation is the same call: no repeat, however often, up to a bound of its own.
    fn goes_on(&self, call: &ToolCall, round: u32) -> Result<(), Denied> {
        if round <= MAX_ROUNDS {
            return Ok(());
        }
        self.metrics.tool(call.tool.as_str()).fuse_trip(ROUNDS);
        call.trace.note().rule = Some(format!("fuse {ROUNDS}").into());
        let words = format!(
            "`{}` has asked for input {MAX_ROUNDS} times in one call; it was not called again",
            call.tool
        );
        Err(Denied::new(DenyCode::RepeatBlocked, words).detail(Detail::Fuse { times: MAX_ROUNDS }))
    }
}

impl Gate for Fuse {
    type Permit = ();

    fn admit(&self, call: &ToolCall) -> Result<(), Denied> {
        // A run that is not open was refused by `budget`.
        let Some(run) = self.runs.of(call) else { return Ok(()) };
        if let Some(continuation) = call.continuation() {
            return self.goes_on(call, continuation.round);
        }
        let volatile = self.tool.as_ref().map_or(&[][..], |tool| &tool.volatile);
        let policy = {
            let inherited = run.policy().fuse;
            let own = self.tool.as_ref().and_then(|tool| tool.fuse);
            own.map_or(inherited, |own| own.over(inherited))
        };
        run.fuse(&call.tool, call.payload.likeness(volatile), policy).map_err(|(kind, denied)| {
            self.metrics.tool(call.tool.as_str()).fuse_trip(kind);
            call.trace.note().rule = Some(format!("fuse {kind}").into());
            denied
        })
    }
}
