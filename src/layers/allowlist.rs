//! Which tools an agent may call. A tool it may not use answers exactly like one that does not exist, before
//! anything could reveal its schema or its limits.

use std::collections::HashSet;
use std::sync::Arc;

use super::gate::Gate;
use crate::call::code::DenyCode;
use crate::call::suggest::nearest;
use crate::call::{AgentId, Denied, Detail, Named, Payload, ToolCall, ToolName, UpstreamName};
use crate::policy::snapshot::{Agent, OnUnlisted, Snapshot, Target};

/// Characters of a path that a refusal shows.
const MAX_SHOWN: usize = 200;

#[derive(Debug)]
pub struct Allowlist {
    snapshot: Arc<Snapshot>,
    /// Of the one tool of this stack: who may call it, and the rule as the record tells it.
    granted: Named<AgentId, Arc<str>>,
}

impl Allowlist {
    /// `tool`: the one that all calls of the stack go to; `None` in the stack of calls that have none.
    pub fn new(snapshot: &Arc<Snapshot>, tool: Option<&ToolName>) -> Self {
        let granted = tool.into_iter().flat_map(|tool| {
            let agents = snapshot.agents.values();
            agents.filter_map(move |agent| {
                let rule = agent.allowed.get(tool)?;
                let usable = usable(snapshot, agent, tool) && !waits(snapshot, tool);
                usable.then(|| (agent.id.clone(), format!("allowlist {rule}").into()))
            })
        });
        Self { granted: granted.collect(), snapshot: snapshot.clone() }
    }
}

impl Gate for Allowlist {
    type Permit = ();

    fn admit(&self, call: &ToolCall) -> Result<(), Denied> {
        if let Some(rule) = self.granted.get(&call.agent) {
            call.trace.note().rule = Some(rule.clone());
            return Ok(());
        }
        let agent = self.snapshot.agents.get(&call.agent);
        match agent {
            Some(agent)
                if agent.allowed.contains_key(&call.tool) && waits(&self.snapshot, &call.tool) =>
            {
                call.trace.note().rule = Some("allowlist: quarantined".into());
                Err(quarantined(&call.tool))
            }
            Some(agent) if usable(&self.snapshot, agent, &call.tool) => {
                if let Some(rule) = agent.allowed.get(&call.tool) {
                    call.trace.note().rule = Some(format!("allowlist {rule}").into());
                }
                Ok(())
            }
            // Not a function call at all: the answer below names no tool, so it reveals none.
            Some(_) if matches!(call.payload, Payload::Unsupported { .. }) => Ok(()),
            Some(_) | None => Err(self.unlisted(agent.map(Arc::as_ref), call)),
        }
    }
}

/// Allowed, and there: a tool whose own definition is broken is not there.
fn usable(snapshot: &Snapshot, agent: &Agent, tool: &ToolName) -> bool {
    agent.allowed.contains_key(tool) && snapshot.tools.contains_key(tool)
}

/// Its definition is not the one that was trusted, and waits for a person. Known to those alone who may call it.
fn waits(snapshot: &Snapshot, tool: &ToolName) -> bool {
    snapshot.quarantined.contains_key(tool)
}

impl Allowlist {
    fn unlisted(&self, agent: Option<&Agent>, call: &ToolCall) -> Denied {
        let names = agent.into_iter().flat_map(|agent| {
            agent.allowed.keys().filter(|name| usable(&self.snapshot, agent, name))
        });
        // A client of routes has no use for functions, nor a model for routes.
        let by_path = matches!(call.payload, Payload::Request(_));
        let callable = |name: &&ToolName| {
            !by_path && self.snapshot.tools.get(*name).is_some_and(|tool| tool.route().is_none())
        };
        let tools = nearest(call.tool.as_str(), names.filter(callable));
        let known = self.snapshot.tools.contains_key(&call.tool);
        let deny = agent.and_then(|agent| agent.denied.get(&call.tool));
        call.trace.note().rule = Some(match (deny, known) {
            (Some(rule), _) => format!("allowlist {rule}").into(),
            (None, true) => "allowlist: not in allow".into(),
            (None, false) => "allowlist: no such tool".into(),
        });
        let (code, message) = match self.snapshot.on_unlisted {
            OnUnlisted::Explain if known => (
                DenyCode::ToolNotAllowed,
                format!("tool `{}` is not permitted to this agent", call.tool),
            ),
            OnUnlisted::Explain | OnUnlisted::Silent if by_path => {
                (DenyCode::UnknownTool, no_route(call))
            }
            OnUnlisted::Explain | OnUnlisted::Silent => (
                DenyCode::UnknownTool,
                format!("there is no tool `{}`; choose from the list", call.tool),
            ),
        };
        Denied::new(code, message).detail(Detail::Tools(tools))
    }
}

/// By what the client asked for; a tool's name would tell that there is one.
fn no_route(call: &ToolCall) -> String {
    let Payload::Request(request) = &call.payload else { return String::new() };
    let path: String = request.path.chars().take(MAX_SHOWN).collect();
    format!("no route of this agent takes {} of {path}", request.method)
}

/// What a server offers besides tools is for agents that may call at least one of its tools.
#[derive(Debug)]
pub struct MayPass {
    agents: HashSet<AgentId>,
}

impl MayPass {
    pub fn new(snapshot: &Snapshot, server: &UpstreamName) -> Self {
        let may = |agent: &&Arc<Agent>| {
            let mut tools = agent.allowed.keys().filter_map(|name| snapshot.tools.get(name));
            tools.any(|tool| matches!(&tool.target, Target::Mcp(mcp) if mcp.server.name == *server))
        };
        let agents = snapshot.agents.values().filter(may).map(|agent| agent.id.clone()).collect();
        Self { agents }
    }
}

impl Gate for MayPass {
    type Permit = ();

    fn admit(&self, call: &ToolCall) -> Result<(), Denied> {
        if self.agents.contains(&call.agent) {
            return Ok(());
        }
        call.trace.note().rule = Some("allowlist: no tool of this server".into());
        Err(Denied::new(DenyCode::UnknownTool, "no server of the policy offers this"))
    }
}

fn quarantined(tool: &ToolName) -> Denied {
    let message = format!(
        "the definition of tool `{tool}` has changed since it was trusted; a person must look at it first"
    );
    Denied::new(DenyCode::ToolQuarantined, message)
}
