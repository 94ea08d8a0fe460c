//! What servers offer besides tools, passed on for one agent: in its own inner session, asked once, answered as it came.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Servers;
use super::caller::Caller;
use super::catalog::{self, CrawlError};
use super::link::{Inbound, Link, Lost, Reply, Wire};
use super::result;
use super::server::Server;
use super::sessions::Key;
use super::watcher::Watcher;
use crate::backends::classify::{Promises, clean, mcp as judge};
use crate::call::code::FailCode;
use crate::call::{
    AgentId, Class, Delivery, Effect, Failed, RunId, Side, TimedOutBy, UpstreamName, Verdict,
};
use crate::mcp::headers;
use crate::mcp::jsonrpc::ErrorReply;
use crate::mcp::messages::{List, ServerCapabilities};
use crate::mcp::version::Era;

/// One passed request, opening its session included.
const LIMIT: Duration = Duration::from_secs(30);
/// One server's share of a list that is merged of several.
const LIST_LIMIT: Duration = Duration::from_secs(10);

/// Why what was passed on came to nothing.
#[derive(Debug)]
pub enum PassFailure {
    /// The server's own words.
    Rpc {
        code: i64,
        message: String,
        data: Option<Value>,
    },
    Failed(Box<Failed>),
}

/// Who asks for something besides a call.
#[derive(Debug, Clone, Copy)]
pub struct Passing<'a> {
    pub agent: &'a AgentId,
    pub run: &'a RunId,
    pub side: &'a Arc<Side>,
    pub deadline: Instant,
}

/// What a server offers besides tools, as far as it has said.
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an offer of its own")]
pub struct Offered {
    pub resources: bool,
    pub subscribe: bool,
    pub prompts: bool,
    pub completion: bool,
    pub logging: bool,
}

impl Servers {
    /// `None`: the server has not been heard of yet.
    pub fn offered(&self, server: &UpstreamName) -> Option<Offered> {
        let met = self.named(server)?.met()?;
        let can = ServerCapabilities::of(&met.capabilities);
        Some(Offered {
            resources: can.resources,
            subscribe: can.resources_subscribe,
            prompts: can.prompts,
            completion: can.completions,
            logging: can.logging || met.revision.era() == Era::Modern,
        })
    }

    /// All items of a list, in the agent's own session.
    pub async fn list(
        &self,
        who: Passing<'_>,
        server: &UpstreamName,
        list: List,
    ) -> Result<Vec<Value>, PassFailure> {
        let server = self.named(server).ok_or_else(gone)?;
        let limit = who.deadline.min(Instant::now() + LIST_LIMIT);
        let crawling = async {
            let held = server.hold(owner(&server, who)).map_err(lost)?;
            catalog::crawl(&held.link, list).await.map_err(|error| match error {
                CrawlError::Lost(error) => lost(error),
                CrawlError::Told(why) => broken(&why),
            })
        };
        let listed = tokio::time::timeout_at(limit, crawling).await.map_err(|_| late())??;
        Ok(listed.items)
    }

    /// One request, passed on as it is but for `_meta`.
    pub async fn pass(
        &self,
        who: Passing<'_>,
        server: &UpstreamName,
        method: &str,
        params: Value,
    ) -> Result<Value, PassFailure> {
        let server = self.named(server).ok_or_else(gone)?;
        let limit = who.deadline.min(Instant::now() + LIMIT);
        let asked = async {
            let key = owner(&server, who);
            let held = server.hold(key.clone()).map_err(lost)?;
            if method == "resources/subscribe" {
                server.listen_for(&key, &held.link, who).await.map_err(lost)?;
            }
            once(&server, &held.link, who, method, params).await
        };
        tokio::time::timeout_at(limit, asked).await.map_err(|_| late())?
    }
}

fn owner(server: &Server, who: Passing<'_>) -> Key {
    let rules = server.rules();
    Key::of(who.agent, who.run, Some(who.side), rules.share, rules.may_ask)
}

/// Asked once; once more only where the session had been forgotten, which means that nothing was done.
async fn once(
    server: &Arc<Server>,
    link: &Link,
    who: Passing<'_>,
    method: &str,
    params: Value,
) -> Result<Value, PassFailure> {
    let caller = Caller::new(Some(who.side.clone()), &server.rules(), server);
    let inbound: Arc<dyn Inbound> = caller.clone();
    let modern = link.open().await.map_err(lost)?.revision.era() == Era::Modern;
    let params = whole(params, who.side, &caller, modern);
    let never = CancellationToken::new();
    let mut again = true;
    loop {
        let wire = Wire {
            method,
            params: params.clone(),
            name: headers::name_member(method)
                .and_then(|member| params.get(member).and_then(Value::as_str)),
            param_headers: Vec::new(),
            fresh: false,
            gate: None,
            progress: None,
            inbound: &inbound,
            cancelled: &never,
        };
        match link.request(wire).await {
            Ok(Reply::Result(mut answer)) => {
                caller.over();
                result::strip_meta(&mut answer);
                return Ok(answer);
            }
            Ok(Reply::Error(ErrorReply { code, message, data, .. })) => {
                return Err(PassFailure::Rpc { code, message: clean(&message), data });
            }
            Err(Lost::SessionGone(_)) if again => again = false,
            Err(error) => return Err(lost(error)),
        }
    }
}

/// As it goes to the server: with our `_meta`, and with what a continuation brings.
fn whole(params: Value, side: &Side, caller: &Caller, modern: bool) -> Value {
    let mut params = match params {
        Value::Object(params) => params,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    };
    params.shift_remove("_meta");
    if modern && let Some(continued) = &side.continuation {
        params.insert("inputResponses".into(), continued.responses.clone());
        if let Some(state) = &continued.state {
            params.insert("requestState".into(), Value::String(state.to_string()));
        }
    }
    let mut meta = result::meta_of(side);
    if let Some(token) = caller.progress_token() {
        meta.insert("progressToken".into(), token.into());
    }
    if !meta.is_empty() {
        params.insert("_meta".into(), Value::Object(meta));
    }
    Value::Object(params)
}

impl Server {
    /// Hears on an agent's session what changes, once a session.
    async fn listen_for(
        self: &Arc<Self>,
        key: &Key,
        link: &Link,
        who: Passing<'_>,
    ) -> Result<(), Lost> {
        let met = link.open().await?;
        let over = CancellationToken::new();
        if !self.sessions.begin_listening(key, &over) {
            return Ok(());
        }
        let session = who.side.session.clone();
        let watcher = Watcher::of(self.clone(), who.agent.clone(), session);
        let (inbound, link): (Arc<dyn Inbound>, Link) = (Arc::new(watcher), link.clone());
        let modern = met.revision.era() == Era::Modern;
        self.beside(async move {
            let _over = over.drop_guard();
            if modern {
                let params = json!({"notifications": {"resourcesListChanged": true}});
                drop(catalog::ask(&link, "subscriptions/listen", params, &inbound).await);
            } else {
                link.listen(inbound, || ()).await;
            }
        });
        Ok(())
    }
}

fn lost(lost: Lost) -> PassFailure {
    let promises = Promises { effect: Effect::Read, not_executed_on: &[], unknown_on: &[] };
    PassFailure::Failed(Box::new(judge::lost(lost, promises)))
}

fn failed(code: FailCode, delivery: Delivery, why: &str) -> PassFailure {
    let failed = Failed::new(code, Class::Transient, delivery, Verdict::Neutral, clean(why));
    PassFailure::Failed(Box::new(failed))
}

fn broken(why: &str) -> PassFailure {
    failed(FailCode::UpstreamProtocolError, Delivery::Unknown, why)
}

fn gone() -> PassFailure {
    failed(FailCode::UpstreamUnreachable, Delivery::NotSent, "the server has left the policy")
}

fn late() -> PassFailure {
    match failed(FailCode::UpstreamTimeout, Delivery::Unknown, "the server did not answer in time")
    {
        PassFailure::Failed(failed) => PassFailure::Failed(Box::new(Failed {
            timed_out_by: Some(TimedOutBy::Total),
            ..*failed
        })),
        other @ PassFailure::Rpc { .. } => other,
    }
}
