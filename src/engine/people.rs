//! What people ask of a running gateway beside policies: runs to stop, circuits to open and close by hand.

use std::sync::Arc;

use super::Engine;
use crate::backends::mcp::{NotApproved, ServerView};
use crate::call::{
    AgentId, Arguments, CallId, Denied, FrontEnd, Payload, RunId, ToolCall, ToolName, UpstreamName,
};
use crate::layers::allowlist::Allowlist;
use crate::layers::arguments::ArgumentsCheck;
use crate::layers::gate::Gate;
use crate::layers::state::{CircuitView, Moves, NotMoved};
use crate::ledger::Ledger;
use crate::policy::snapshot::{Snapshot, Tool};
use crate::run::Runs;

impl Engine {
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    pub fn runs(&self) -> &Arc<Runs> {
        &self.runs
    }

    /// Stops a live run. `None`: no such run; false: it is stopped already.
    pub fn interrupt_run(&self, run: &RunId, who: &str, why: &str) -> Option<bool> {
        self.runs.get(run).map(|run| run.interrupt(who, why))
    }

    /// Lets a stopped run go on. `None`: no such run; false: nobody had stopped it.
    pub fn resume_run(&self, run: &RunId) -> Option<bool> {
        self.runs.get(run).map(|run| run.resume())
    }

    /// Every tool's circuit, by name.
    pub fn circuits(&self) -> Vec<CircuitView> {
        self.state.circuits()
    }

    /// Refuses every call of the tool until [`Engine::reset`], whatever policy comes.
    pub fn isolate(&self, tool: &ToolName, who: &str, why: &str) -> Result<(), NotMoved> {
        self.state.isolate(tool, who, why).map(|moves| self.moved(tool, moves))
    }

    /// MCP servers of the policy, by name.
    pub fn mcp_servers(&self) -> Vec<ServerView> {
        self.servers.as_ref().map(|servers| servers.views()).unwrap_or_default()
    }

    /// Takes a changed definition of a server's tool, of which `pin` is the hash, for the trusted one.
    pub async fn approve_mcp_tool(
        &self,
        server: &str,
        tool: &str,
        pin: &str,
    ) -> Result<(), NotApproved> {
        let server = UpstreamName::new(server).map_err(|_| NotApproved::NoDrift)?;
        let servers = self.servers.as_ref().ok_or(NotApproved::NoDrift)?;
        servers.approve(&server, tool, pin).await
    }

    /// Whether an agent may call the tool with these arguments: what its own call would meet, before anything is asked
    /// of a ledger, a person or the tool.
    pub fn judge(
        &self,
        snapshot: &Arc<Snapshot>,
        tool: &Arc<Tool>,
        agent: &AgentId,
        arguments: &Arguments,
    ) -> Result<(), Denied> {
        let payload = Payload::Arguments(arguments.clone());
        let (id, run, name) = (CallId::mint(), RunId::mint(), tool.name.clone());
        let now = tokio::time::Instant::now();
        let call = ToolCall::new(id, agent.clone(), run, name, FrontEnd::ToolsApi, payload, now);
        Allowlist::new(snapshot, Some(&tool.name)).admit(&call)?;
        ArgumentsCheck { tool: tool.clone(), snapshot: snapshot.clone() }.admit(&call)
    }

    /// Closes the tool's circuit on trial.
    pub fn reset(&self, tool: &ToolName) -> Result<(), NotMoved> {
        self.state.reset(tool).map(|moves| self.moved(tool, moves))
    }

    fn moved(&self, tool: &ToolName, moves: Moves) {
        let metrics = self.metrics.tool(tool.as_str());
        for (from, to) in moves {
            metrics.transition(from.as_str(), to.as_str());
        }
    }
}
