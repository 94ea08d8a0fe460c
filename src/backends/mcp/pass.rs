//! What servers offer besides tools, passed on for one agent: in its own inner session, asked once, answered as it came.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use serde_json::{Map, Value, json};
use tower::Service;

use super::Servers;
use super::caller::Caller;
use super::catalog::{self, CrawlError};
use super::link::{Inbound, Link, Lost, Reply};
use super::result;
use super::server::Server;
use super::sessions::Key;
use super::subscriptions::{MAX_URI, Subscriber, Subscriptions};
use crate::backends::classify::{self, Promises, clean, mcp as judge};
use crate::call::{Content, Effect, Failed, Form, Phase, Side, ToolCall, ToolResult, UpstreamName};
use crate::mcp::jsonrpc::{ErrorReply, INVALID_PARAMS};
use crate::mcp::messages::{List, ServerCapabilities};
use crate::mcp::version::Era;
use crate::mcp::visible;

/// Lists that are passed on, read whole.
const LISTS: [List; 3] = [List::Resources, List::ResourceTemplates, List::Prompts];

/// The way to everything one server offers besides tools: a call whose arguments are `method` and `params`. Cheap to
/// clone.
#[derive(Debug, Clone)]
pub struct PassBackend(Option<Arc<Server>>);

impl PassBackend {
    /// `None`: the policy has left the server between two steps of an install.
    pub(super) fn new(server: Option<Arc<Server>>) -> Self {
        Self(server)
    }
}

impl Service<ToolCall> for PassBackend {
    type Response = ToolResult;
    type Error = Failed;
    type Future = Pin<Box<dyn Future<Output = Result<ToolResult, Failed>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        let server = self.0.clone();
        Box::pin(async move {
            let passed = match &server {
                Some(server) => pass(server, &call).await,
                None => Err(classify::not_sent("the server has left the policy")),
            };
            if let Some(progress) = &call.progress {
                progress.mark(Phase::Ended);
            }
            let mut passed = passed.map(|passed| result::whole(&passed));
            if let (Err(failed), Some(server)) = (&mut passed, &server) {
                server.blot(&mut failed.message);
            }
            passed
        })
    }
}

/// Who asks for something besides a call.
struct Passing<'a> {
    call: &'a ToolCall,
    side: &'a Arc<Side>,
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
}

async fn pass(server: &Arc<Server>, call: &ToolCall) -> Result<Value, Failed> {
    let none = || classify::not_sent("a passed request without a method");
    let mut asked = call.arguments().ok_or_else(none)?.tree().clone();
    let params = asked.get_mut("params").map(Value::take).unwrap_or_default();
    let method = asked.get("method").and_then(Value::as_str).ok_or_else(none)?;
    let side = call.side.clone().unwrap_or_default();
    let who = Passing { call, side: &side };
    let key = who.owner(server);
    let held = server.hold(key.clone()).map_err(lost)?;
    if let Some(list) = LISTS.into_iter().find(|list| list.method() == method) {
        let listed = catalog::crawl(&held.link, list, call.progress.as_ref()).await;
        let listed = listed.map_err(|error| match error {
            CrawlError::Lost(error) => lost(error),
            CrawlError::Told(why) => classify::protocol(None, &clean(&why)),
        })?;
        for one in &listed.dropped {
            tracing::warn!(server = %server.name(), item = one.name, reason = one.reason, "an item of a list was left out");
        }
        let items = readable(server, list, listed.items);
        return Ok(json!({ list.member(): items }));
    }
    server.attend(&key, &held, &side).await.map_err(lost)?;
    let to = To { server, key: &key, link: &held.link };
    let passed = async {
        match method {
            "resources/subscribe" => to.subscribe(&who, params).await,
            "resources/unsubscribe" => to.unsubscribe(&who, params).await,
            _ => to.once(&who, method, params).await,
        }
    };
    held.waiting.beside(passed, call.progress.as_ref()).await
}

/// Items as people and models may read them. What has a hidden character in the very name it is asked for by is left out:
/// a name that reads like another one is no mistake, and spelt it would be another name.
fn readable(server: &Server, list: List, items: Vec<Value>) -> Vec<Value> {
    let named = match list {
        List::Tools | List::Prompts => "name",
        List::Resources => "uri",
        List::ResourceTemplates => "uriTemplate",
    };
    let hides = |item: &Value| {
        let name = item.get(named).and_then(Value::as_str).unwrap_or_default();
        name.chars().any(visible::is_hidden)
    };
    let (hidden, mut items): (Vec<Value>, Vec<Value>) = items.into_iter().partition(hides);
    for item in hidden {
        let name = item.get(named).and_then(Value::as_str).unwrap_or_default();
        let name = visible::visible(name);
        tracing::warn!(server = %server.name(), item = %name, "an item of a list was left out: hidden characters in its name");
    }
    for item in &mut items {
        visible::descriptions(item);
        // A resource's `name` is words, not what it is asked for by.
        if named != "name"
            && let Some(Value::String(name)) = item.get_mut("name")
        {
            *name = visible::visible(name).into_owned();
        }
    }
    items
}

impl Passing<'_> {
    fn owner(&self, server: &Server) -> Key {
        let (rules, call) = (server.rules(), self.call);
        // Nobody is asked anything on a stream that listens.
        let side = self.side.stream.is_none().then_some(&**self.side);
        Key::of(&call.agent, &call.run, side, rules.share, rules.may_ask)
    }

    /// Whose stream hears of what is subscribed to. `None`: nothing listens there.
    fn subscriber(&self) -> Option<Subscriber> {
        let stream = self.side.session.clone().or_else(|| self.side.stream.clone())?;
        Some(Subscriber { agent: self.call.agent.clone(), stream })
    }
}

/// The inner session in which it is asked.
struct To<'a> {
    server: &'a Arc<Server>,
    key: &'a Key,
    link: &'a Link,
}

impl To<'_> {
    /// Asked for this agent, with what it brings.
    async fn once(&self, who: &Passing<'_>, method: &str, params: Value) -> Result<Value, Failed> {
        let progress = who.call.progress.as_ref();
        let place = (self.server, self.key);
        let rules = self.server.rules();
        let caller = Caller::new(Some(who.side.clone()), &rules, place, progress);
        let inbound: Arc<dyn Inbound> = caller.clone();
        let modern = self.is_modern().await?;
        let params = whole(params, who.side, &caller, modern);
        match self.link.ask(method, params, &inbound, progress).await {
            Ok(Reply::Result(mut answer)) => {
                caller.over();
                result::strip_meta(&mut answer);
                result::shown_questions(&mut answer);
                Ok(answer)
            }
            Ok(Reply::Error(error)) => Err(told(&error)),
            Err(error) => Err(lost(error)),
        }
    }

    async fn is_modern(&self) -> Result<bool, Failed> {
        Ok(self.link.open().await.map_err(lost)?.revision.era() == Era::Modern)
    }

    /// One more who is to hear of a resource; the server is asked by the first.
    async fn subscribe(&self, who: &Passing<'_>, params: Value) -> Result<Value, Failed> {
        let uri = uri_of(&params)?;
        if uri.len() > MAX_URI {
            return Err(refused("the URI is too long to subscribe to"));
        }
        let subscriber = who.subscriber();
        let subscriber =
            subscriber.ok_or_else(|| refused("nothing listens for what is subscribed to"))?;
        let modern = self.is_modern().await?;
        let joined =
            Subscriptions::join(self.server, (self.key.clone(), who.side), subscriber, &uri);
        let joined = joined.map_err(lost)?;
        let joined = joined.ok_or_else(|| refused("too many resources are subscribed to"))?;
        let answer = match modern {
            true => match joined.taken().await {
                Ok(true) => None,
                Ok(false) => {
                    joined.refused();
                    return Err(refused("the server takes no subscription to this resource"));
                }
                Err(why) => return Err(classify::protocol(None, &clean(&why))),
            },
            false => match joined.asked(self.once(who, "resources/subscribe", params)).await {
                Ok(answer) => answer,
                Err(failed) => {
                    if failed.answer.is_some() {
                        joined.refused();
                    }
                    return Err(failed);
                }
            },
        };
        joined.kept();
        Ok(answer.unwrap_or_else(|| json!({})))
    }

    /// One less; the server hears of the last.
    async fn unsubscribe(&self, who: &Passing<'_>, params: Value) -> Result<Value, Failed> {
        let uri = uri_of(&params)?;
        let modern = self.is_modern().await?;
        let left = who.subscriber().map(|subscriber| {
            let server = self.server;
            server.subscriptions.end(server, self.key.clone(), &subscriber, &uri)
        });
        match left.unwrap_or(Some(None)) {
            Some(feed) if modern => {
                if let Some(feed) = feed {
                    self.server.subscriptions.close_if_empty(&feed);
                }
                Ok(json!({}))
            }
            Some(None) => self.once(who, "resources/unsubscribe", params).await,
            Some(Some(feed)) => {
                let turn = feed.turn().await;
                let ended = match feed.is_wanted(&uri) {
                    // Somebody came meanwhile.
                    true => Ok(json!({})),
                    false => self.once(who, "resources/unsubscribe", params).await,
                };
                drop(turn);
                self.server.subscriptions.close_if_empty(&feed);
                ended
            }
            None => Ok(json!({})),
        }
    }
}

fn uri_of(params: &Value) -> Result<String, Failed> {
    let uri = params.get("uri").and_then(Value::as_str).map(str::to_owned);
    uri.ok_or_else(|| refused("`uri` must be a string"))
}

fn refused(words: &str) -> Failed {
    told(&ErrorReply { id: None, code: INVALID_PARAMS, message: words.to_owned(), data: None })
}

/// An error of the server reaches the agent in its own words.
fn told(error: &ErrorReply) -> Failed {
    let ErrorReply { code, message, data, .. } = error;
    let whole = json!({"code": code, "message": clean(message), "data": data});
    let answer = Content { bytes: whole.to_string().into(), form: Form::Json };
    Failed { answer: Some(answer), ..judge::error(error, false) }
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

fn lost(lost: Lost) -> Failed {
    let promises = Promises { effect: Effect::Read, not_executed_on: &[], unknown_on: &[] };
    judge::lost(lost, promises)
}
