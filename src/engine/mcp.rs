//! What agents that speak MCP can ask for beside calls: what servers offer besides tools, and what becomes known while
//! nobody asks. Without servers there is nothing to pass on.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::passed::{AT_ONCE, Passed};
use super::together::together;
use super::{Asker, Engine, ToolInfo, views};
use crate::backends::mcp::Offered;
use crate::call::side::ServerEvent;
use crate::call::{AgentId, Denied, Failed, ToolName};
use crate::mcp::jsonrpc;
use crate::policy::snapshot::{McpServer, Snapshot, Target};

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

impl std::fmt::Display for PassError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PassError::Denied(denied) => f.write_str(&denied.message),
            PassError::NotFound(what) => write!(f, "no server has it: {what}"),
            PassError::Rpc { code, message, .. } => {
                write!(f, "the server refused ({code}): {message}")
            }
            PassError::Failed(failed) => f.write_str(&failed.message),
        }
    }
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
    /// What the policy passes and the servers have, for an agent that may call at least one of their tools.
    pub fn mcp_offers(&self, agent: &AgentId) -> Offers {
        let snapshot = self.snapshot();
        let mut offers = Offers::default();
        for server in self.passing(&snapshot, agent) {
            let pass = &server.pass;
            // Until a server has been heard of, the policy's word stands.
            let has = self.servers.as_ref().and_then(|servers| servers.offered(&server.name));
            let has = |of: fn(&Offered) -> bool| has.as_ref().is_none_or(of);
            offers.resources |= !pass.resources.is_empty() && has(|o| o.resources);
            offers.subscribe |= !pass.resources.is_empty() && has(|o| o.subscribe);
            offers.prompts |= !pass.prompts.is_empty() && has(|o| o.prompts);
            offers.completion |= pass.completion && has(|o| o.completion);
            offers.logging |= pass.logging && has(|o| o.logging);
        }
        offers
    }

    /// Waits until every server of the policy has been asked for its tools once, and what it said is in force: an agent
    /// that lists as it starts must not find a gateway that starts too empty. A matter of seconds at most, once.
    pub async fn mcp_settled(&self) {
        let Some(servers) = &self.servers else { return };
        if !servers.are_settled() {
            servers.settled().await;
        }
        if self.edition.load(Ordering::Acquire) < servers.edition() {
            self.rebind();
        }
    }

    /// Servers that pass anything to this agent, by name.
    fn passing(&self, snapshot: &Snapshot, agent: &AgentId) -> Vec<Arc<McpServer>> {
        let Some(agent) = snapshot.agents.get(agent) else { return Vec::new() };
        let mut servers: Vec<Arc<McpServer>> = agent
            .allowed
            .keys()
            .filter_map(|name| match &snapshot.tools.get(name)?.target {
                Target::Mcp(mcp) => Some(mcp.server.clone()),
                Target::Http(_) | Target::Proxy(_) | Target::Passed => None,
            })
            .collect();
        servers.sort_by(|a, b| a.name.cmp(&b.name));
        servers.dedup_by(|a, b| a.name == b.name);
        servers
    }

    /// Lists come merged over servers, filtered and whole, as `{"resources": [...]}`; the front end pages them.
    pub async fn mcp_pass(
        &self,
        asker: &Asker,
        method: PassMethod,
        params: Value,
    ) -> Result<Value, PassError> {
        let asking = self.asking(asker).map_err(PassError::Denied)?;
        let _busy = asking.run.busy();
        let Some(servers) = self.servers.as_ref() else { return Err(not_offered()) };
        let passing = self.passing(&asking.routes.snapshot, &asker.agent);
        let passed = Passed { servers, asking: &asking, passing };
        // Boxed: what a front end awaits stays small, to the compiler too.
        let passing: Pin<Box<dyn Future<Output = _> + Send + '_>> =
            Box::pin(passed.on(method, params));
        passing.await
    }

    /// Has servers tell of these resources on the asker's stream (`Side::stream`), until
    /// [`Engine::mcp_session_over`] of that; those that could be had by `until`.
    pub async fn mcp_subscribe(
        &self,
        asker: &Asker,
        uris: BTreeSet<String>,
        until: Instant,
    ) -> BTreeSet<String> {
        let one = |uri: String| async move {
            let params = json!({ "uri": uri });
            let asked = self.mcp_pass(asker, PassMethod::ResourcesSubscribe, params);
            match tokio::time::timeout_at(until, asked).await {
                Ok(Ok(_)) => Some(uri),
                refused => {
                    tracing::debug!(uri, ?refused, "a resource is not subscribed to");
                    None
                }
            }
        };
        let all = uris.into_iter().map(one).collect();
        together(all, AT_ONCE).await.into_iter().flatten().collect()
    }

    /// What becomes known from here on: of servers, and of a policy that was put in force.
    pub fn mcp_events(&self) -> broadcast::Receiver<ServerEvent> {
        self.events.subscribe()
    }

    /// A session of an agent has ended, or a stream that listened: what hung on it ends too.
    pub fn mcp_session_over(&self, agent: &AgentId, session: &str) {
        if let Some(servers) = &self.servers {
            servers.session_over(agent, session);
        }
    }

    /// A tool this agent may call, as it is listed.
    pub fn tool_for(&self, agent: &AgentId, name: &ToolName) -> Option<ToolInfo> {
        let snapshot = self.snapshot();
        let allowed = snapshot.agents.get(agent)?.allowed.contains_key(name);
        let tool = allowed.then(|| snapshot.tools.get(name)).flatten();
        tool.filter(|tool| tool.route().is_none()).map(views::info)
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

/// What is answered where no server of the policy offers it.
pub(super) fn not_offered() -> PassError {
    PassError::Rpc {
        code: jsonrpc::METHOD_NOT_FOUND,
        message: "no server of the policy offers this".to_owned(),
        data: None,
    }
}
