//! What is passed on to servers besides calls: whose resource or prompt it is, by the policy's globs and prefixes and,
//! where several could own it, by their lists. Ambiguous or unknown is not found.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::asking::Asking;
use super::mcp::{PassError, PassMethod, not_offered};
use super::together::together;
use crate::backends::mcp::Servers;
use crate::call::code::DenyCode;
use crate::call::{CallError, Content, Failed, UpstreamName};
use crate::mcp::messages::List;
use crate::policy::glob::{glob_matches, uri_matches};
use crate::policy::snapshot::McpServer;
use crate::strict_json::{self, Limits};

/// Servers that are listed at once.
pub(super) const AT_ONCE: usize = 16;

/// One agent's request, and the servers that may answer it.
pub(super) struct Passed<'a> {
    pub(super) servers: &'a Arc<Servers>,
    pub(super) asking: &'a Asking<'a>,
    pub(super) passing: Vec<Arc<McpServer>>,
}

impl Passed<'_> {
    pub(super) async fn on(&self, method: PassMethod, params: Value) -> Result<Value, PassError> {
        match method {
            PassMethod::ResourcesList => self.list(List::Resources).await,
            PassMethod::ResourceTemplatesList => self.list(List::ResourceTemplates).await,
            PassMethod::PromptsList => self.list(List::Prompts).await,
            PassMethod::ResourcesRead => self.resource("resources/read", params).await,
            PassMethod::ResourcesSubscribe => self.resource("resources/subscribe", params).await,
            PassMethod::ResourcesUnsubscribe => {
                self.resource("resources/unsubscribe", params).await
            }
            PassMethod::PromptsGet => self.prompt(params).await,
            PassMethod::Complete => self.complete(params).await,
            PassMethod::SetLevel => self.level(params).await,
        }
    }

    /// Merged over the servers that answer; one that does not is missing, never the list.
    async fn list(&self, list: List) -> Result<Value, PassError> {
        let concerned: Vec<&Arc<McpServer>> =
            self.passing.iter().filter(|server| !globs(server, list).is_empty()).collect();
        let up: Vec<_> = self.servers.views().into_iter().filter(|view| view.up).collect();
        let heard = |server: &&&Arc<McpServer>| up.iter().any(|view| view.server == server.name);
        let asked: Vec<&Arc<McpServer>> =
            concerned.iter().filter(heard).copied().filter(|s| self.has(s, list)).collect();
        let asking = asked.iter().map(|server| self.listed(&server.name, list)).collect();
        let mut items = Vec::new();
        for (server, listed) in asked.iter().zip(together(asking, AT_ONCE).await) {
            let all = listed?.into_iter();
            items.extend(all.filter_map(|item| shown(server, list, item)));
        }
        let mut members = Map::new();
        members.insert(list.member().into(), Value::Array(items));
        Ok(Value::Object(members))
    }

    /// What one server lists; nothing where it cannot be had. What is refused for the agent's own doing is an error: a
    /// list must not grow shorter by what was asked before.
    async fn listed(&self, server: &UpstreamName, list: List) -> Result<Vec<Value>, PassError> {
        let params = Value::Object(Map::new());
        let mut whole = match self.ask(server, list.method(), params).await {
            Ok(whole) => whole,
            Err(PassError::Denied(denied)) if denied.code != DenyCode::CircuitOpen => {
                return Err(PassError::Denied(denied));
            }
            Err(why) => {
                tracing::warn!(%server, %why, "a list could not be had");
                return Ok(Vec::new());
            }
        };
        match whole.get_mut(list.member()).map(Value::take) {
            Some(Value::Array(items)) => Ok(items),
            Some(_) | None => Ok(Vec::new()),
        }
    }

    fn has(&self, server: &McpServer, list: List) -> bool {
        self.servers.offered(&server.name).is_none_or(|offered| match list {
            List::Resources | List::ResourceTemplates => offered.resources,
            List::Prompts => offered.prompts,
            List::Tools => true,
        })
    }

    async fn resource(&self, method: &str, params: Value) -> Result<Value, PassError> {
        let uri = text(&params, "uri")?;
        let owner = self.owner_of(uri).await?;
        self.pass(&owner, method, params).await
    }

    /// The one server whose globs reach the URI; where several do, the one that lists it.
    async fn owner_of(&self, uri: &str) -> Result<Arc<McpServer>, PassError> {
        let reach = |server: &&Arc<McpServer>| {
            globs(server, List::Resources).iter().any(|glob| uri_matches(glob, uri))
                && self.has(server, List::Resources)
        };
        let candidates: Vec<&Arc<McpServer>> = self.passing.iter().filter(reach).collect();
        if let [only] = candidates.as_slice() {
            return Ok(Arc::clone(only));
        }
        let asking =
            candidates.iter().map(|server| self.listed(&server.name, List::Resources)).collect();
        let listed = together(asking, AT_ONCE).await;
        let listed = listed.into_iter().collect::<Result<Vec<_>, _>>()?;
        let lists = |items: &Vec<Value>| {
            items.iter().any(|item| item.get("uri").is_some_and(|one| one == uri))
        };
        let mut owners = candidates
            .iter()
            .zip(listed)
            .filter(|(_, items)| lists(items))
            .map(|(server, _)| Arc::clone(server));
        match (owners.next(), owners.next()) {
            (Some(owner), None) => Ok(owner),
            (Some(_) | None, _) => Err(PassError::NotFound(format!("resource `{uri}`"))),
        }
    }

    async fn prompt(&self, params: Value) -> Result<Value, PassError> {
        let (server, own_name) = self.prompt_of(text(&params, "name")?)?;
        let mut params = params;
        put(&mut params, "name", own_name);
        self.pass(&server, "prompts/get", params).await
    }

    /// The server of a prompt and its own name for it: of several prefixes that fit, the longest.
    fn prompt_of(&self, name: &str) -> Result<(Arc<McpServer>, String), PassError> {
        self.passing
            .iter()
            .filter_map(|server| {
                let own = name.strip_prefix(&*server.prefix)?;
                let passes = server.pass.prompts.iter().any(|glob| glob_matches(glob, own));
                passes.then(|| (server, own.to_owned()))
            })
            .max_by_key(|(server, _)| server.prefix.len())
            .map(|(server, own)| (server.clone(), own))
            .ok_or_else(|| PassError::NotFound(format!("prompt `{name}`")))
    }

    async fn complete(&self, params: Value) -> Result<Value, PassError> {
        let mut params = params;
        let about = params.get("ref").cloned().unwrap_or_default();
        let server = match about.get("type").and_then(Value::as_str) {
            Some("ref/prompt") => {
                let (server, own_name) = self.prompt_of(text(&about, "name")?)?;
                if let Some(about) = params.get_mut("ref") {
                    put(about, "name", own_name);
                }
                server
            }
            Some("ref/resource") => self.owner_of(text(&about, "uri")?).await?,
            Some(_) | None => {
                return Err(invalid("`ref/type` must be `ref/prompt` or `ref/resource`"));
            }
        };
        if !server.pass.completion {
            return Err(not_offered());
        }
        self.pass(&server, "completion/complete", params).await
    }

    /// Told to every server that passes logs; what one of them says to it changes nothing for the others.
    async fn level(&self, params: Value) -> Result<Value, PassError> {
        let told = self.passing.iter().filter(|server| {
            let has = self.servers.offered(&server.name).is_some_and(|offered| offered.logging);
            server.pass.logging && has
        });
        let telling =
            told.map(|server| self.ask(&server.name, "logging/setLevel", params.clone())).collect();
        for answer in together(telling, AT_ONCE).await {
            if let Err(why) = answer {
                tracing::debug!(?why, "a server did not take a level of logs");
            }
        }
        Ok(Value::Object(Map::new()))
    }

    async fn pass(
        &self,
        server: &McpServer,
        method: &str,
        params: Value,
    ) -> Result<Value, PassError> {
        self.ask(&server.name, method, params).await
    }

    /// Through the stack of the server.
    async fn ask(
        &self,
        server: &UpstreamName,
        method: &str,
        params: Value,
    ) -> Result<Value, PassError> {
        // To list again, or to listen again after a break, is no repetition.
        let repeats = method.ends_with("/list") || method.ends_with("subscribe");
        let outcome = self.asking.pass(server, method, params, repeats).await?;
        let broken =
            || PassError::Failed(Failed::internal("an answer that was passed on is broken"));
        match outcome {
            Ok(result) => parsed(&result.content).ok_or_else(broken),
            Err(CallError::Denied(denied)) => Err(PassError::Denied(denied)),
            Err(CallError::Failed(failed)) => Err(match failed.answer.as_ref().map(rpc) {
                Some(Some(told)) => told,
                Some(None) | None => PassError::Failed(failed),
            }),
            // Nothing that is passed on is a write.
            Err(CallError::Unknown(_)) => Err(broken()),
        }
    }
}

fn parsed(content: &Content) -> Option<Value> {
    strict_json::parse(&content.bytes, Limits::answer(content.bytes.len())).ok()
}

/// The server's own error.
fn rpc(content: &Content) -> Option<PassError> {
    let mut whole = parsed(content)?;
    Some(PassError::Rpc {
        code: whole.get("code")?.as_i64()?,
        message: whole.get("message")?.as_str()?.to_owned(),
        data: whole.get_mut("data").map(Value::take).filter(|data| !data.is_null()),
    })
}

fn globs(server: &McpServer, list: List) -> &[String] {
    match list {
        List::Resources | List::ResourceTemplates => &server.pass.resources,
        List::Prompts => &server.pass.prompts,
        List::Tools => &[],
    }
}

/// An item as this agent is shown it; `None` = not at all.
fn shown(server: &McpServer, list: List, mut item: Value) -> Option<Value> {
    let member = match list {
        List::Resources => "uri",
        List::ResourceTemplates => "uriTemplate",
        List::Prompts => "name",
        List::Tools => return None,
    };
    let name = item.get(member)?.as_str()?;
    let matches = if list == List::Prompts { glob_matches } else { uri_matches };
    if !globs(server, list).iter().any(|glob| matches(glob, name)) {
        return None;
    }
    if list == List::Prompts && !server.prefix.is_empty() {
        let prefixed = format!("{}{name}", server.prefix);
        put(&mut item, member, prefixed);
    }
    Some(item)
}

fn put(value: &mut Value, member: &str, text: String) {
    if let Some(members) = value.as_object_mut() {
        members.insert(member.to_owned(), Value::String(text));
    }
}

fn text<'v>(value: &'v Value, member: &str) -> Result<&'v str, PassError> {
    value
        .get(member)
        .and_then(Value::as_str)
        .ok_or_else(|| invalid(&format!("`{member}` must be a string")))
}

fn invalid(message: &str) -> PassError {
    PassError::Rpc {
        code: crate::mcp::jsonrpc::INVALID_PARAMS,
        message: message.to_owned(),
        data: None,
    }
}
