//! An agent that only rehearses: every gate has said yes, nothing is sent.

use std::sync::Arc;

use super::gate::Gate;
use crate::call::code::DenyCode;
use crate::call::{Denied, ToolCall};
use crate::policy::snapshot::Snapshot;

#[derive(Debug)]
pub struct DryRun(pub Arc<Snapshot>);

impl Gate for DryRun {
    type Permit = ();

    fn admit(&self, call: &ToolCall) -> Result<(), Denied> {
        if self.0.agents.get(&call.agent).is_some_and(|agent| agent.dry_run) {
            let message = format!("tool {} would have been called; nothing was sent", call.tool);
            call.trace.note().rule = Some("dry_run".into());
            return Err(Denied::new(DenyCode::DryRun, message));
        }
        Ok(())
    }
}
