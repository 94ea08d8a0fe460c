//! What a write means, by its tool's policy: the identity that the ledger knows it by.

use crate::call::operation::{Operation, OperationKey, OperationScope, operation};
use crate::call::{Arguments, ToolCall};
use crate::ledger::Intent;
use crate::policy::snapshot::{Identical, Tool, WritePolicy};

/// The question to the ledger. `None`: no write, or no arguments to know it by.
pub fn intent(tool: &Tool, call: &ToolCall) -> Option<Intent> {
    let (write, arguments) = (tool.write.as_ref()?, call.arguments()?);
    Some(Intent {
        operation: meant(tool, write, call, arguments),
        tool: tool.name.clone(),
        agent: call.agent.clone(),
        run: call.run.clone(),
        call: call.id.clone(),
        arguments: arguments.clone(),
        refuse_identical: write.identical == Identical::Refuse,
        global_scope: write.global_scope,
        ttl: write.ttl,
        continues: call.continuation().map(|continuation| continuation.occurrence),
    })
}

/// By the policy's fingerprint, else the caller's own key, else all its arguments.
fn meant(tool: &Tool, write: &WritePolicy, call: &ToolCall, arguments: &Arguments) -> Operation {
    let scope = if write.global_scope {
        OperationScope::Global
    } else {
        OperationScope::Agent(&call.agent)
    };
    let key = match &call.caller_key {
        _ if !write.fingerprint.is_empty() => OperationKey::Fingerprint(&write.fingerprint),
        Some(key) => OperationKey::Caller(key),
        None => OperationKey::Arguments,
    };
    operation(scope, &tool.name, key, arguments, &tool.volatile)
}
