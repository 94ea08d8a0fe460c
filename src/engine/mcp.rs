//! What agents that speak MCP can ask for beside calls: what servers offer besides tools, and what becomes known while
//! nobody asks. Without servers there is nothing to pass on.

use serde_json::Value;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Asker, Engine, ToolInfo, views};
use crate::call::side::ServerEvent;
use crate::call::{AgentId, Denied, Failed, ToolName};
use crate::mcp::jsonrpc;

/// Events that wait for one listener; one that falls behind hears that it has.
pub(super) const MAX_EVENTS: usize = 1024;

/// A method that is passed on to servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassMethod {
    ResourcesList,
    ResourceTemplatesList,
    ResourcesRead,
    ResourcesSubscribe,
    ResourcesUnsubscribe,
    PromptsList,
    PromptsGet,
    Complete,
    SetLevel,
}

/// Why what was passed on came to nothing.
#[derive(Debug)]
pub enum PassError {
    Denied(Denied),
    /// No server that this agent may ask has it; what was not found.
    NotFound(String),
    Rpc {
        code: i64,
        message: String,
        data: Option<Value>,
    },
    Failed(Failed),
}

/// What this agent is offered besides tools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an offer of its own")]
pub struct Offers {
    pub resources: bool,
    pub subscribe: bool,
    pub prompts: bool,
    pub completion: bool,
    pub logging: bool,
}

impl Engine {
    pub fn mcp_offers(&self, _agent: &AgentId) -> Offers {
        Offers::default()
    }

    /// Lists come merged over servers, filtered and whole, as `{"resources": [...]}`; the front end pages them.
    pub async fn mcp_pass(
        &self,
        _asker: &Asker,
        _method: PassMethod,
        _params: Value,
    ) -> Result<Value, PassError> {
        Err(PassError::Rpc {
            code: jsonrpc::METHOD_NOT_FOUND,
            message: "no server of the policy offers this".to_owned(),
            data: None,
        })
    }

    /// What becomes known from here on: of servers, and of a policy that was put in force.
    pub fn mcp_events(&self) -> broadcast::Receiver<ServerEvent> {
        self.events.subscribe()
    }

    /// A session of an agent has ended: what hung on it ends too.
    pub fn mcp_session_over(&self, agent: &AgentId, _session: &str) {
        tracing::debug!(%agent, "a session ended");
    }

    /// A tool this agent may call, as it is listed.
    pub fn tool_for(&self, agent: &AgentId, name: &ToolName) -> Option<ToolInfo> {
        let snapshot = self.snapshot();
        let allowed = snapshot.agents.get(agent)?.allowed.contains_key(name);
        allowed.then(|| snapshot.tools.get(name)).flatten().map(views::info)
    }

    /// What a drain waits for: whatever must end by itself is spawned here.
    pub fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Cancelled when the gateway begins to drain.
    pub fn drains(&self) -> &CancellationToken {
        &self.draining
    }
}
