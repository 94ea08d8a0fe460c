//! A refusal above the ledger tells what the ledger knows: "not sent" must not sound like "it did not happen" where
//! the operation happened, or may have.
//!
//! [`Knowing`] wraps the gates that stand above `replay` in the write stack; a call that passes costs nothing. The
//! allow list is not among them: who may not use a tool learns nothing of what was done with it.

use std::sync::Arc;

use super::gate::Gate;
use super::meaning;
use crate::call::code::DenyCode;
use crate::call::{Denied, Detail, ToolCall};
use crate::ledger::Ledger;
use crate::policy::snapshot::Tool;

#[derive(Debug)]
pub struct Knowing<G> {
    pub gate: G,
    pub tool: Arc<Tool>,
    pub ledger: Arc<Ledger>,
}

impl<G: Gate> Gate for Knowing<G> {
    type Permit = G::Permit;

    fn admit(&self, call: &ToolCall) -> Result<G::Permit, Denied> {
        self.gate.admit(call).map_err(|denied| told(denied, &self.tool, &self.ledger, call))
    }
}

/// The refusal of a call that this agent may make of this tool, with what is known of its operation. Looks into
/// memory only; nothing is claimed.
pub fn told(denied: Denied, tool: &Tool, ledger: &Ledger, call: &ToolCall) -> Denied {
    let Some(intent) = meaning::intent(tool, call) else { return denied };
    let Some(peeked) = ledger.peek(&intent) else { return denied };
    // Arguments that this agent may not use ask nothing about what another agent did.
    if denied.code == DenyCode::InvalidArguments && !peeked.own {
        return denied;
    }
    let operation = intent.operation.key.id();
    call.trace.note().operation = Some(operation);
    let known = Denied { known: Some(peeked.known), ..denied };
    if matches!(known.detail, Detail::None) {
        return known.detail(Detail::Operation(operation));
    }
    known
}
