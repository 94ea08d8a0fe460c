//! One request, one method, one answer. A method that is unknown here is never forwarded: it may be a write.

use serde_json::{Map, Value, json};

use super::wire::{RpcError, for_the_hop, server_info};
use super::{Asking, Mcp, channel, lists, modern};
use crate::call::{AgentId, RunId};
use crate::engine::mcp::PassMethod;
use crate::mcp::jsonrpc::{INVALID_PARAMS, METHOD_NOT_FOUND};
use crate::mcp::messages::List;
use crate::mcp::version::{Era, Revision};
use crate::strict_json::write;

/// A result as it is sent.
#[derive(Debug)]
pub(super) struct Answered {
    /// JSON text.
    pub(super) result: Vec<u8>,
    /// The run that was used.
    pub(super) run: Option<RunId>,
}

impl From<Value> for Answered {
    fn from(result: Value) -> Self {
        Self { result: write::text(&result), run: None }
    }
}

/// The methods served; which of them a revision has is said beside each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// Sessions only.
    Ping,
    SetLevel,
    /// Without sessions only.
    Discover,
    Listen,
    ListTools,
    CallTool,
    List(List),
    Pass(PassMethod),
}

impl Method {
    /// `None`: not in this era.
    pub(super) fn of(name: &str, era: Era) -> Option<Self> {
        let legacy = era == Era::Legacy;
        let method = match name {
            "ping" if legacy => Self::Ping,
            "logging/setLevel" if legacy => Self::SetLevel,
            "resources/subscribe" if legacy => Self::Pass(PassMethod::ResourcesSubscribe),
            "resources/unsubscribe" if legacy => Self::Pass(PassMethod::ResourcesUnsubscribe),
            "server/discover" if !legacy => Self::Discover,
            "subscriptions/listen" if !legacy => Self::Listen,
            "tools/list" => Self::ListTools,
            "tools/call" => Self::CallTool,
            "resources/list" => Self::List(List::Resources),
            "resources/templates/list" => Self::List(List::ResourceTemplates),
            "prompts/list" => Self::List(List::Prompts),
            "resources/read" => Self::Pass(PassMethod::ResourcesRead),
            "prompts/get" => Self::Pass(PassMethod::PromptsGet),
            "completion/complete" => Self::Pass(PassMethod::Complete),
            _ => return None,
        };
        Some(method)
    }

    /// Whether it may be answered on a stream: what servers have a part in.
    pub(super) fn may_stream(self) -> bool {
        match self {
            Self::CallTool | Self::Pass(_) | Self::ListTools | Self::List(_) => true,
            Self::Ping | Self::SetLevel | Self::Discover | Self::Listen => false,
        }
    }
}

/// -32601, which is a 404 only where no session could be taken for dead by it.
pub(super) fn unknown_method(name: &str) -> RpcError {
    RpcError::new(METHOD_NOT_FOUND, format!("no such method: {name}")).status(404)
}

impl Mcp {
    /// Answers a request, but for `initialize` and `subscriptions/listen`, which their transports answer.
    pub(super) async fn answer(
        &self,
        asking: &Asking,
        method: Method,
        params: Option<&Value>,
    ) -> Result<Answered, RpcError> {
        self.engine.mcp_settled().await;
        match method {
            Method::Ping => Ok(json!({}).into()),
            Method::SetLevel => self.set_level(asking, params).await,
            Method::Discover => Ok(self.discover(asking).into()),
            Method::Listen => Err(unknown_method("subscriptions/listen")),
            Method::ListTools => self.list_tools(asking, params),
            Method::CallTool => self.call_tool(asking, params).await,
            Method::List(list) => self.list(asking, list, params).await,
            Method::Pass(method) => self.pass(asking, method, params).await,
        }
    }

    fn list_tools(&self, asking: &Asking, params: Option<&Value>) -> Result<Answered, RpcError> {
        let (tools, _) = self.engine.tools_for(&asking.agent);
        let modern = asking.modern();
        let items = tools.iter().map(|tool| lists::definition(tool, modern)).collect();
        let page = lists::page(&self.seal, &asking.agent, List::Tools, items, params)?;
        Ok(finished(List::Tools.method(), page, modern).into())
    }

    async fn set_level(
        &self,
        asking: &Asking,
        params: Option<&Value>,
    ) -> Result<Answered, RpcError> {
        let level = params.and_then(|params| params.get("level")).and_then(Value::as_str);
        let known = level.filter(|level| channel::LEVELS.contains(level));
        let Some(level) = known else {
            let words = format!("/level: must be one of {}", channel::LEVELS.join(", "));
            return Err(RpcError::new(INVALID_PARAMS, words));
        };
        if let Some(session) = &asking.session {
            session.set_log_level(level);
        }
        if self.engine.mcp_offers(&asking.agent).logging {
            return self.pass(asking, PassMethod::SetLevel, params).await;
        }
        Ok(json!({}).into())
    }

    /// The result of `initialize`.
    pub(super) fn initialized(&self, agent: &AgentId, revision: Revision) -> Value {
        json!({
            "protocolVersion": revision.as_str(),
            "capabilities": self.capabilities(agent, Era::Legacy),
            "serverInfo": server_info(),
            "instructions": self.instructions(agent),
        })
    }

    fn discover(&self, asking: &Asking) -> Value {
        let mut result = Map::new();
        result.insert("supportedVersions".to_owned(), modern::supported());
        result.insert("capabilities".to_owned(), self.capabilities(&asking.agent, Era::Modern));
        result.insert("serverInfo".to_owned(), server_info());
        result.insert("instructions".to_owned(), self.instructions(&asking.agent).into());
        finished("server/discover", result, true)
    }

    fn capabilities(&self, agent: &AgentId, era: Era) -> Value {
        let offers = self.engine.mcp_offers(agent);
        let mut all = Map::new();
        all.insert("tools".to_owned(), json!({"listChanged": true}));
        if offers.resources {
            let subscribe = offers.subscribe;
            let resources = json!({"listChanged": true, "subscribe": subscribe});
            all.insert("resources".to_owned(), resources);
        }
        if offers.prompts {
            all.insert("prompts".to_owned(), json!({"listChanged": true}));
        }
        if offers.completion {
            all.insert("completions".to_owned(), json!({}));
        }
        if offers.logging && era == Era::Legacy {
            all.insert("logging".to_owned(), json!({}));
        }
        Value::Object(all)
    }

    /// An empty list is loud: silence would look like health.
    fn instructions(&self, agent: &AgentId) -> String {
        let (tools, hidden) = self.engine.tools_for(agent);
        if !tools.is_empty() {
            return "Tools are reached through a gateway. A call that is refused or fails answers with a JSON object: \
                    `executed` says whether it happened, `retry` whether the same call may be made again, `hint` what \
                    to do next."
                .to_owned();
        }
        let revision = self.engine.snapshot().revision.clone();
        if self.empty_handed.is_new(agent, &revision.0) {
            tracing::warn!(%agent, hidden, %revision, "an agent that speaks MCP has no tools");
        }
        match hidden {
            0 => format!(
                "The agent `{agent}` may call no tool: the policy allows it none that is there."
            ),
            n => format!(
                "The agent `{agent}` may call no tool; {n} tools of the policy are hidden, their definitions being broken."
            ),
        }
    }
}

/// A result of ours, with what its revision wants in it.
pub(super) fn finished(method: &str, result: Map<String, Value>, modern: bool) -> Value {
    let mut result = Value::Object(result);
    for_the_hop(method, &mut result, modern);
    result
}
