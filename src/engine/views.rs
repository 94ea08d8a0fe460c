//! What can be asked beside calls: tools, runs, and the state of the whole for the scrape.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Engine, RunSummary, RunView, ToolInfo, draining};
use crate::backends::mcp::ServerView;
use crate::call::code::DenyCode;
use crate::call::turn::LoopState;
use crate::call::{AgentId, Denied, RunId, ToolName};
use crate::policy::snapshot::{Agent, RunPolicy, Snapshot, Target, Tool};
use crate::run::Run;
use crate::telemetry::metrics::{McpServerView, StateSource, StateView};

impl Engine {
    /// In order of name, and how many are hidden (their own definition is broken). An open circuit hides nothing.
    pub fn tools_for(&self, agent: &AgentId) -> (Vec<ToolInfo>, usize) {
        let snapshot = self.snapshot();
        let Some(agent) = snapshot.agents.get(agent) else { return (Vec::new(), 0) };
        // A route is no function that a model could call.
        let mut tools: Vec<ToolInfo> = agent
            .allowed
            .keys()
            .filter_map(|name| snapshot.tools.get(name))
            .filter(|tool| tool.route().is_none())
            .map(info)
            .collect();
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        (tools, snapshot.broken_tools.len())
    }

    /// A new run, with a budget this agent may choose, else its own.
    pub fn open_run(
        &self,
        agent: &AgentId,
        goal: Option<String>,
        budget: Option<&str>,
    ) -> Result<RunView, Denied> {
        if self.draining() {
            return Err(draining());
        }
        let snapshot = self.snapshot();
        let agent = known(&snapshot, agent)?;
        let policy = chosen(agent, budget)?;
        self.runs.create(agent, policy, goal, Instant::now()).map(|run| view(&run))
    }

    pub fn run_view(&self, agent: &AgentId, run: &RunId) -> Result<RunView, Denied> {
        self.runs.owned(run, agent).map(|run| view(&run))
    }

    pub fn run_summary(&self, agent: &AgentId, run: &RunId) -> Result<RunSummary, Denied> {
        let run = self.runs.owned(run, agent)?;
        let text = run.summary().unwrap_or_default();
        Ok(RunSummary { text, failures: run.failures() })
    }

    /// Ends a run; its later calls are `run_unknown`.
    pub fn finish_run(&self, agent: &AgentId, run: &RunId) -> Result<RunView, Denied> {
        let run = self.runs.owned(run, agent)?;
        run.set_state(LoopState::Done);
        self.runs.finish(&run, "completed");
        Ok(view(&run))
    }
}

/// A tool as it is listed.
pub(super) fn info(tool: &Arc<Tool>) -> ToolInfo {
    let definition = match &tool.target {
        Target::Http(_) | Target::Proxy(_) | Target::Passed => None,
        Target::Mcp(mcp) => Some(mcp.definition.clone()),
    };
    let title = definition.as_deref().and_then(|definition| definition.get("title"));
    ToolInfo {
        name: tool.name.clone(),
        description: tool.description.clone(),
        schema: tool.schema.source().clone(),
        effect: tool.effect,
        title: title.and_then(serde_json::Value::as_str).map(Arc::from),
        definition,
    }
}

impl StateSource for Engine {
    fn read(&self) -> StateView {
        let (reviews, review_oldest) = self.ledger.reviews_open();
        let text = |name: ToolName| name.as_str().to_owned();
        StateView {
            runs_active: self
                .runs
                .live()
                .into_iter()
                .map(|(agent, live)| (agent.as_str().to_owned(), live))
                .collect(),
            approvals_pending: {
                let waiting = self.ledger.approvals().pending();
                waiting.into_iter().map(|(tool, n)| (text(tool), n)).collect()
            },
            reviews_open: reviews.into_iter().map(|(tool, open)| (text(tool), open)).collect(),
            review_oldest,
            store_writable: self.ledger.writable(),
            store_bytes: self.ledger.store_bytes(),
            mcp_servers: self
                .servers
                .iter()
                .flat_map(|servers| servers.views())
                .map(|view| seen(&view))
                .collect(),
            ..self.state.view()
        }
    }
}

fn known<'s>(snapshot: &'s Snapshot, agent: &AgentId) -> Result<&'s Arc<Agent>, Denied> {
    snapshot.agents.get(agent).ok_or_else(|| {
        Denied::new(DenyCode::Unauthenticated, "the policy in force does not know this agent")
    })
}

fn chosen<'a>(agent: &'a Agent, budget: Option<&str>) -> Result<&'a Arc<RunPolicy>, Denied> {
    let Some(name) = budget else { return Ok(&agent.run) };
    agent.choosable_runs.get(name).ok_or_else(|| {
        let mut names: Vec<&str> = agent.choosable_runs.keys().map(|name| &**name).collect();
        names.sort_unstable();
        let message = format!("`/budget` must be one of: {}", names.join(", "));
        Denied::new(DenyCode::InvalidRequest, message)
    })
}

fn view(run: &Run) -> RunView {
    RunView { run: run.id().clone(), state: run.state(), budgets: run.budgets(Instant::now()) }
}

fn seen(server: &ServerView) -> McpServerView {
    McpServerView {
        up: server.up,
        tools: server.tools as u64,
        left_out: server.left_out.len() as u64,
        drifted: server.drifts.len() as u64,
        sessions: server.sessions as u64,
        server: server.server.as_str().to_owned(),
    }
}
