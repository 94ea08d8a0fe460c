//! The arguments against the tool's schema, the agent's constraints and the places they go to: every fault at once.

use std::sync::Arc;

use super::gate::Gate;
use crate::call::code::DenyCode;
use crate::call::{Arguments, Denied, Detail, Fault, Malformed, Payload, ToolCall};
use crate::policy::snapshot::{SentAs, Snapshot, Tool};
use crate::policy::template;

#[derive(Debug)]
pub struct ArgumentsCheck {
    pub tool: Arc<Tool>,
    pub snapshot: Arc<Snapshot>,
}

impl Gate for ArgumentsCheck {
    type Permit = ();

    fn admit(&self, call: &ToolCall) -> Result<(), Denied> {
        let judged = match &call.payload {
            Payload::Arguments(arguments) => self.check(call, arguments, arguments.bytes()),
            Payload::Request(request) => match self.looks_into(call) {
                // Its bytes are bounded where they are read.
                true => self.check(call, request.document(), 0),
                false => Ok(()),
            },
            Payload::Malformed(malformed) => Err(refuse_malformed(malformed)),
            Payload::Unsupported { kind } => Err(refuse_unsupported(kind)),
        };
        judged.inspect_err(|_| call.trace.note().rule = Some("arguments".into()))
    }
}

impl ArgumentsCheck {
    /// The key by which the tool recognises a write is the gateway's to fill in, also where the schema is open.
    fn own_key(&self, tree: &serde_json::Value, known: &[Fault]) -> Option<Fault> {
        let SentAs::Argument(name) = &self.tool.write.as_ref()?.idempotency.as_ref()?.sent_as
        else {
            return None;
        };
        let got = crate::call::arguments::kind_of(tree.get(name)?);
        let mut at = String::new();
        crate::call::pointer::push_token(&mut at, name);
        let expected = "nothing: the gateway fills this in".into();
        (!known.iter().any(|fault| fault.at == at)).then(|| Fault { at, expected, got: got.into() })
    }

    /// Whether any rule says what a request of a route may hold.
    fn looks_into(&self, call: &ToolCall) -> bool {
        let agent = self.snapshot.agents.get(&call.agent);
        let narrowed = agent.is_some_and(|agent| agent.constraints.contains_key(&self.tool.name));
        narrowed || self.tool.route().is_none_or(|route| route.has_schema)
    }

    fn check(&self, call: &ToolCall, arguments: &Arguments, bytes: u64) -> Result<(), Denied> {
        let limit = self.snapshot.limits.argument_bytes as u64;
        if bytes > limit {
            return Err(too_large(bytes, limit));
        }
        let tree = arguments.tree();
        let mut faults = self.tool.schema.faults(tree);
        let constraints = self
            .snapshot
            .agents
            .get(&call.agent)
            .and_then(|agent| agent.constraints.get(&self.tool.name));
        if let Some(constraints) = constraints {
            let mut narrower = constraints.faults(tree);
            narrower.retain(|fault| !faults.contains(fault));
            faults.extend(narrower);
        }
        // A value that is wrong already is not told again in the words of the place it would go to.
        let mut places =
            self.tool.http().map(|http| template::faults(http, tree)).unwrap_or_default();
        places.retain(|fault| faults.iter().all(|known| known.at != fault.at));
        faults.extend(places);
        faults.extend(self.own_key(tree, &faults));
        if faults.is_empty() {
            return Ok(());
        }
        let message = format!("the arguments of tool {} are not what it takes", self.tool.name);
        Err(Denied::new(DenyCode::InvalidArguments, message).detail(Detail::faults(faults)))
    }
}

/// Arguments that did not parse.
pub fn refuse_malformed(malformed: &Malformed) -> Denied {
    if let Some((is, limit)) = malformed.too_large {
        return too_large(is, limit);
    }
    Denied::new(DenyCode::InvalidArguments, "the arguments could not be read")
        .detail(Detail::faults(malformed.faults.clone()))
}

/// A kind of call that is no function call.
pub fn refuse_unsupported(kind: &str) -> Denied {
    Denied::new(DenyCode::UnsupportedCall, format!("calls of type `{kind}` are not supported"))
}

fn too_large(is: u64, limit: u64) -> Denied {
    let message = format!("the arguments have {is} bytes; at most {limit} are taken");
    Denied::new(DenyCode::ArgumentsTooLarge, message).detail(Detail::Size { is, limit })
}
