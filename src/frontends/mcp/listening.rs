//! Streams that belong to no call: an agent hears that what it may see has changed, and nothing of what it may not.
//! Changes are gathered for a moment, so that one reload is one notification.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::calls::{asker, side};
use super::channel::{Out, is_wanted};
use super::methods::finished;
use super::sessions::Session;
use super::wire::RpcError;
use super::{Asking, Mcp, lists, meta};
use crate::call::AgentId;
use crate::call::side::{ServerEvent, Side};
use crate::engine::{Asker, Engine};
use crate::mcp::jsonrpc::{self, INVALID_PARAMS, Id, Request};
use crate::mcp::meta::{SUBSCRIPTION_ID, put};

/// Streams of one agent that listen.
pub(super) const MAX_LISTENING: usize = 512;
/// URIs one stream names.
pub(super) const MAX_URIS: usize = 256;
/// How long changes are gathered.
const GATHER: Duration = Duration::from_secs(1);
/// When an agent whose stream ends with the gateway is to try the next one.
const COME_AGAIN: Duration = Duration::from_secs(1);
/// For servers to take what a listen subscribes to; what is not taken by then is not promised.
const PROMISE: Duration = Duration::from_secs(5);
/// Nothing is gathered: far beyond any stream's life.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

const TOOLS: &str = "notifications/tools/list_changed";
const PROMPTS: &str = "notifications/prompts/list_changed";
const RESOURCES: &str = "notifications/resources/list_changed";

/// Who listens, by agent.
#[derive(Debug, Default)]
pub(super) struct Places(Mutex<HashMap<AgentId, usize>>);

/// A stream's place; free when dropped.
#[derive(Debug)]
pub(super) struct Place {
    of: Arc<Places>,
    agent: AgentId,
}

impl Places {
    pub(super) fn take(self: &Arc<Self>, agent: &AgentId) -> Option<Place> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.entry(agent.clone()).or_default();
        if *own >= MAX_LISTENING {
            return None;
        }
        *own += 1;
        Some(Place { of: self.clone(), agent: agent.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = taken.get_mut(&self.agent) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.agent);
            }
        }
    }
}

/// What a stream is told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Wants {
    tools: bool,
    prompts: bool,
    resources: bool,
    uris: BTreeSet<String>,
}

impl Wants {
    /// The `notifications` of `subscriptions/listen`.
    pub(super) fn of(params: Option<&Value>) -> Result<Self, RpcError> {
        let wrong =
            |at: &str| RpcError::new(INVALID_PARAMS, format!("/notifications{at}")).status(400);
        let filter = params.and_then(|params| params.get("notifications"));
        let Some(Value::Object(filter)) = filter else { return Err(wrong(": must be an object")) };
        let flag = |name: &str| match filter.get(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(wrong(&format!("/{name}: must be true or false"))),
        };
        let uris = match filter.get("resourceSubscriptions") {
            None => Some(BTreeSet::new()),
            Some(Value::Array(uris)) if uris.len() <= MAX_URIS => {
                uris.iter().map(|uri| uri.as_str().map(str::to_owned)).collect()
            }
            Some(_) => None,
        };
        let uris = uris.ok_or_else(|| {
            wrong(&format!(
                "/resourceSubscriptions: must be an array of at most {MAX_URIS} strings"
            ))
        })?;
        Ok(Self {
            tools: flag("toolsListChanged")?,
            prompts: flag("promptsListChanged")?,
            resources: flag("resourcesListChanged")?,
            uris,
        })
    }

    fn shown(&self) -> Value {
        let mut shown = Map::new();
        for (name, flag) in [
            ("toolsListChanged", self.tools),
            ("promptsListChanged", self.prompts),
            ("resourcesListChanged", self.resources),
        ] {
            if flag {
                shown.insert(name.to_owned(), true.into());
            }
        }
        if !self.uris.is_empty() {
            shown.insert("resourceSubscriptions".to_owned(), self.uris.iter().cloned().collect());
        }
        Value::Object(shown)
    }
}

/// One stream that listens.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) agent: AgentId,
    /// Of a session; else it was opened by `subscriptions/listen`.
    pub(super) by: By,
    pub(super) out: Out,
    /// Ends it from the agent's side.
    pub(super) over: CancellationToken,
    #[expect(dead_code, reason = "held, not read: dropping it is its use")]
    pub(super) place: Place,
}

#[derive(Debug)]
pub(super) enum By {
    Session(Arc<Session>),
    Listen {
        id: Id,
        wants: Wants,
        /// Its name, as [`ServerEvent`] has it.
        stream: Arc<str>,
        /// Who asks for its subscriptions.
        asker: Asker,
    },
}

/// What a listen has subscribed to, which ends with it.
struct Subscribed {
    engine: Arc<Engine>,
    agent: AgentId,
    stream: Arc<str>,
}

impl Drop for Subscribed {
    fn drop(&mut self) {
        self.engine.mcp_session_over(&self.agent, &self.stream);
    }
}

/// What has been gathered.
#[derive(Debug, Default)]
struct Gathered {
    tools: bool,
    prompts: bool,
    resources: bool,
}

impl Listener {
    fn wants(&self, of: impl Fn(&Wants) -> bool) -> bool {
        match &self.by {
            By::Session(_) => true,
            By::Listen { wants, .. } => of(wants),
        }
    }

    /// Says it, tagged with the subscription. False: nobody listens.
    fn say(&self, method: &str, params: Option<Value>) -> bool {
        let params = match &self.by {
            By::Session(_) => params,
            By::Listen { id, .. } => {
                let mut params = params.unwrap_or_else(|| json!({}));
                put(&mut params, SUBSCRIPTION_ID, id.to_value());
                Some(params)
            }
        };
        self.out.send(&jsonrpc::write_notification(method, params.as_ref()))
    }

    /// Whether it is this stream of this agent.
    fn is(&self, agent: &AgentId, stream: &Arc<str>) -> bool {
        let own = match &self.by {
            By::Session(session) => &session.id,
            By::Listen { stream, .. } => stream,
        };
        self.agent == *agent && own == stream
    }

    /// The gateway goes: the listen is answered, so that its client knows that it is over and not broken.
    fn bid_farewell(&self) {
        let By::Listen { id, .. } = &self.by else { return self.out.let_go(COME_AGAIN) };
        let mut result = Map::new();
        result.insert("_meta".to_owned(), json!({ SUBSCRIPTION_ID: id.to_value() }));
        let told = self
            .out
            .send(&jsonrpc::write_result(id, &finished("subscriptions/listen", result, true)));
        let cancelled = match &self.out {
            Out::Events(_) | Out::Kept(_) => true,
            Out::Lines(lines) => {
                let params = json!({"requestId": id.to_value(), "reason": "the gateway ends"});
                lines.send(&jsonrpc::write_notification("notifications/cancelled", Some(&params)))
            }
        };
        tracing::debug!(told, cancelled, "a subscription ended with the gateway");
    }
}

impl Mcp {
    /// Of what was asked, what is there to be heard.
    fn honoured(&self, agent: &AgentId, mut wants: Wants) -> Wants {
        let offers = self.engine.mcp_offers(agent);
        wants.prompts &= offers.prompts;
        wants.resources &= offers.resources;
        if !(offers.resources && offers.subscribe) {
            wants.uris.clear();
        }
        wants
    }

    /// What a request to listen asks for, under a name of its own.
    pub(super) fn by_listen(&self, asking: &Asking, request: Request) -> Result<By, RpcError> {
        let params = request.params.as_ref();
        let wants = self.honoured(&asking.agent, Wants::of(params)?);
        let own = params.and_then(|params| params.get("_meta")).and_then(Value::as_object);
        let said = meta::read(asking, own)?;
        // No session has a name with a space in it.
        let stream: Arc<str> = format!("listen {}", asking.call).into();
        let side = Side { stream: Some(stream.clone()), ..side(asking, &said, None) };
        let asker = asker(asking, &said, Arc::new(side), said.run.clone());
        Ok(By::Listen { id: request.id, wants, stream, asker })
    }

    /// Subscribes to the resources that a listen names; those that can be had are what it is promised.
    async fn subscribe(&self, listener: &mut Listener) -> Option<Subscribed> {
        let By::Listen { wants, stream, asker, .. } = &mut listener.by else { return None };
        if wants.uris.is_empty() {
            return None;
        }
        let (engine, agent, stream) = (self.engine.clone(), asker.agent.clone(), stream.clone());
        let subscribed = Subscribed { engine, agent, stream };
        let uris = std::mem::take(&mut wants.uris);
        wants.uris = self.engine.mcp_subscribe(asker, uris, Instant::now() + PROMISE).await;
        Some(subscribed)
    }

    /// Listens until nobody hears, the session or request is over, or the gateway drains.
    pub(super) async fn listen(self: Arc<Self>, mut listener: Listener) {
        let mut events = self.engine.mcp_events();
        let mut seen = self.seen(&listener.agent);
        let gone = listener.out.gone().clone();
        let over = listener.over.clone();
        let _subscribed = tokio::select! {
            biased;
            () = gone.cancelled() => return,
            () = over.cancelled() => return,
            subscribed = self.subscribe(&mut listener) => subscribed,
        };
        if let By::Listen { wants, .. } = &listener.by {
            let shown = json!({"notifications": wants.shown()});
            if !listener.say("notifications/subscriptions/acknowledged", Some(shown)) {
                return;
            }
        }
        let (mut gathered, mut due) = (Gathered::default(), Instant::now() + NEVER);
        loop {
            let heard = tokio::select! {
                biased;
                () = gone.cancelled() => return,
                () = listener.over.cancelled() => return,
                () = self.engine.drains().cancelled() => return listener.bid_farewell(),
                heard = timeout_at(due, events.recv()) => heard,
            };
            let still = match heard {
                Err(_) => {
                    due = Instant::now() + NEVER;
                    self.tell(&listener, &std::mem::take(&mut gathered), &mut seen)
                }
                Ok(Ok(event)) => self.heard(&listener, event, &mut gathered, &mut due),
                // It fell behind: whatever it may see may have changed.
                Ok(Err(RecvError::Lagged(_))) => {
                    gathered = Gathered { tools: true, prompts: true, resources: true };
                    due = due.min(Instant::now() + GATHER);
                    true
                }
                Ok(Err(RecvError::Closed)) => return,
            };
            if !still {
                return;
            }
        }
    }

    fn seen(&self, agent: &AgentId) -> crate::call::Digest {
        lists::fingerprint(&self.engine.tools_for(agent).0)
    }

    fn heard(
        &self,
        listener: &Listener,
        event: ServerEvent,
        gathered: &mut Gathered,
        due: &mut Instant,
    ) -> bool {
        match event {
            ServerEvent::ToolsChanged => gathered.tools = true,
            ServerEvent::ResourcesChanged { .. } => gathered.resources = true,
            ServerEvent::PromptsChanged { .. } => gathered.prompts = true,
            ServerEvent::ResourceUpdated { agent, stream, params } => {
                return !listener.is(&agent, &stream)
                    || listener.say("notifications/resources/updated", Some(params));
            }
            ServerEvent::Log { agent, session, params } => {
                let By::Session(own) = &listener.by else { return true };
                let level = params.get("level").and_then(Value::as_str);
                let wanted = is_wanted(level, own.log_level().as_deref());
                let own = session.is_some_and(|session| listener.is(&agent, &session));
                return !(wanted && own) || listener.say("notifications/message", Some(params));
            }
        }
        *due = (*due).min(Instant::now() + GATHER);
        true
    }

    /// Says what was gathered, where it concerns this agent.
    fn tell(
        &self,
        listener: &Listener,
        gathered: &Gathered,
        seen: &mut crate::call::Digest,
    ) -> bool {
        let offers = self.engine.mcp_offers(&listener.agent);
        if gathered.tools && listener.wants(|wants| wants.tools) {
            let now = self.seen(&listener.agent);
            if now != *seen {
                *seen = now;
                if !listener.say(TOOLS, None) {
                    return false;
                }
            }
        }
        let prompts = gathered.prompts && offers.prompts && listener.wants(|wants| wants.prompts);
        if prompts && !listener.say(PROMPTS, None) {
            return false;
        }
        let resources =
            gathered.resources && offers.resources && listener.wants(|wants| wants.resources);
        !resources || listener.say(RESOURCES, None)
    }
}
