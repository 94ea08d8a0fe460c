//! One call of a tool that an MCP server offers: arguments → `tools/call` in the caller's inner session → result, or how
//! it failed. Sent once; a server's wish to be asked again is the retry layer's affair, and for a write nobody's.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use serde_json::{Map, Value, json};
use tower::Service;

use super::caller::Caller;
use super::link::{Inbound, Lost, Reply, Wire};
use super::result::{self, Judged};
use super::server::Server;
use super::sessions::{Held, Key as Owner};
use super::tasks::Begun;
use crate::backends::classify::{self, Promises, mcp as judge};
use crate::backends::key::Key;
use crate::call::{Effect, Failed, Payload, Phase, Side, ToolCall, ToolResult};
use crate::mcp::headers;
use crate::mcp::jsonrpc::HEADER_MISMATCH;
use crate::mcp::version::Era;
use crate::policy::snapshot::{McpTool, Target, Tool};

/// The level of logs that a modern server is told on every request.
const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";

/// The way to one tool of an MCP server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct McpBackend(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    tool: Arc<Tool>,
    /// `None`: the policy has left the server between two steps of an install.
    server: Option<Arc<Server>>,
}

impl McpBackend {
    pub(super) fn new(tool: &Arc<Tool>, server: Option<Arc<Server>>) -> Self {
        Self(Arc::new(Inner { tool: tool.clone(), server }))
    }
}

impl Service<ToolCall> for McpBackend {
    type Response = ToolResult;
    type Error = Failed;
    type Future = Pin<Box<dyn Future<Output = Result<ToolResult, Failed>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        let inner = self.0.clone();
        Box::pin(async move {
            let outcome = inner.attempt(&call).await;
            if let Some(progress) = &call.progress {
                progress.mark(Phase::Ended);
            }
            outcome
        })
    }
}

impl Inner {
    async fn attempt(&self, call: &ToolCall) -> Result<ToolResult, Failed> {
        let (Some(server), Target::Mcp(mcp)) = (&self.server, &self.tool.target) else {
            return Err(classify::not_sent("a tool whose server is not in the policy"));
        };
        let side = call.side.as_ref();
        let never = Side::default().cancelled;
        let cancelled = side.map_or(&never, |side| &side.cancelled);
        if cancelled.is_cancelled() {
            return Err(judge::taken_back(self.tool.effect, false));
        }
        let mut outcome = match self.tool.effect {
            // Whoever takes a read back ends it; dropping the exchange tells the server.
            Effect::Read => tokio::select! {
                biased;
                outcome = self.exchange(call, server, mcp) => outcome,
                () = cancelled.cancelled() => Err(judge::taken_back(Effect::Read, true)),
            },
            Effect::Write => Box::pin(self.write(call, server, mcp, cancelled)).await,
        };
        if let Err(failed) = &mut outcome {
            server.blot(&mut failed.message);
        }
        outcome
    }

    /// A write that is taken back before its gate has opened is not sent; after that its answer is waited for.
    async fn write(
        &self,
        call: &ToolCall,
        server: &Arc<Server>,
        mcp: &McpTool,
        cancelled: &tokio_util::sync::CancellationToken,
    ) -> Result<ToolResult, Failed> {
        let mut exchange = std::pin::pin!(self.exchange(call, server, mcp));
        tokio::select! {
            biased;
            outcome = &mut exchange => return outcome,
            () = cancelled.cancelled() => {}
        }
        if call.send_gate.as_ref().is_some_and(|gate| gate.withdraw()) {
            return Err(judge::taken_back(Effect::Write, false));
        }
        exchange.await
    }

    async fn exchange(
        &self,
        call: &ToolCall,
        server: &Arc<Server>,
        mcp: &McpTool,
    ) -> Result<ToolResult, Failed> {
        let promises = Promises::of(&self.tool);
        let lost = |lost| judge::lost(lost, promises);
        let side = call.side.as_deref();
        let owner = Owner::of(&call.agent, &call.run, side, mcp.server.share, mcp.server.may_ask);
        let held = server.hold(owner.clone()).map_err(lost)?;
        let modern = match side {
            Some(side) => server.attend(&owner, &held, side).await,
            None => held.link.open().await,
        };
        let modern = modern.map_err(lost)?.revision.era() == Era::Modern;
        let place = (server, &owner);
        let caller = Caller::new(call.side.clone(), &mcp.server, place, call.progress.as_ref());
        let mut params = self.params(call, mcp, &caller)?;
        if modern && let Some(level) = caller.log_level() {
            let meta = params.entry("_meta").or_insert_with(|| json!({}));
            if let Some(meta) = meta.as_object_mut() {
                meta.insert(LOG_LEVEL.into(), Value::String(level.to_owned()));
            }
        }
        let continued = side.and_then(|side| side.continuation.as_deref());
        if let Some(continued) = continued.filter(|_| modern) {
            params.insert("inputResponses".into(), continued.responses.clone());
            if let Some(state) = &continued.state {
                params.insert("requestState".into(), Value::String(state.to_string()));
            }
        }
        let resends = modern && self.tool.effect == Effect::Read;
        let again = resends.then(|| params.clone());
        let fields = &*mcp.param_headers;
        let mut reply = self.send(call, mcp, &held, &caller, (params, modern, fields)).await;
        if let (Ok(Reply::Error(error)), Some(params)) = (&reply, again)
            && error.code == HEADER_MISMATCH
            && let Some(fields) = Box::pin(server.fields_of(&mcp.own_name)).await
        {
            // What its schema wants in fields is not what it was; nothing was done.
            let again = self.send(call, mcp, &held, &caller, (params, modern, &*fields));
            reply = Box::pin(again).await;
        }
        let result = match reply.map_err(lost)? {
            Reply::Result(result) => result,
            Reply::Error(error) => {
                if judge::is_unknown_tool(&error) || error.code == HEADER_MISMATCH {
                    server.nudge();
                }
                return Err(result::refused(&error, caller.has_heard()));
            }
        };
        match result::judge(&self.tool, mcp, modern, result) {
            Judged::Ended(ended) => {
                caller.over();
                ended.map_err(|failed| *failed)
            }
            // The answers come with a call that goes on with this one, through all layers.
            Judged::Asks(result) if caller.can_answer(&result) => Ok(result::asking(mcp, &result)),
            Judged::Asks(_) => Err(result::cannot_be_asked(mcp)),
            Judged::Task(handle) => {
                let inbound: Arc<dyn Inbound> = caller.clone();
                let held = &held;
                let begun = Begun { tool: &self.tool, mcp, server, held, call, inbound };
                let ended = Box::pin(begun.follow(&handle)).await;
                caller.over();
                ended
            }
        }
    }

    async fn send(
        &self,
        call: &ToolCall,
        mcp: &McpTool,
        held: &Held,
        caller: &Arc<Caller>,
        (params, modern, fields): (Map<String, Value>, bool, &[(String, String)]),
    ) -> Result<Reply, Lost> {
        let inbound: Arc<dyn Inbound> = caller.clone();
        let never = Side::default().cancelled;
        let pooled = self.tool.write.as_ref().is_none_or(|write| write.pooled);
        let param_headers = match modern {
            true => param_headers(call, fields, params.get("arguments")),
            false => Vec::new(),
        };
        let wire = Wire {
            method: "tools/call",
            params: Value::Object(params),
            name: Some(&mcp.own_name),
            param_headers,
            fresh: self.tool.effect == Effect::Write && !pooled,
            gate: call.send_gate.as_ref(),
            progress: call.progress.as_ref(),
            inbound: &inbound,
            tasks: mcp.tasks,
            cancelled: match self.tool.effect {
                Effect::Write => call.side.as_ref().map_or(&never, |side| &side.cancelled),
                Effect::Read => &never,
            },
        };
        held.waiting.beside(held.link.request(wire), call.progress.as_ref()).await
    }

    /// `arguments` as validated (an empty object where there are none: some servers fail on absence), and `_meta`.
    fn params(
        &self,
        call: &ToolCall,
        mcp: &McpTool,
        caller: &Caller,
    ) -> Result<Map<String, Value>, Failed> {
        let arguments = match &call.payload {
            Payload::Arguments(arguments) => arguments,
            Payload::Request(_) | Payload::Malformed(_) | Payload::Unsupported { .. } => {
                return Err(classify::not_sent(
                    "arguments that did not parse reached the back end",
                ));
            }
        };
        let key = Key::of(&self.tool, call)?;
        let keyed = key.and_then(|key| key.in_arguments(arguments.tree()));
        let tree = keyed.as_ref().unwrap_or(arguments.tree());
        let tree = if tree.is_null() { json!({}) } else { tree.clone() };
        let meta = self.meta(call, mcp, caller)?;
        // Shaped as the agent shaped it; what is new to that comes last.
        let shape = call.side.as_deref().and_then(|side| side.params.as_deref());
        let mut params = shape.cloned().unwrap_or_default();
        params.insert("name".into(), Value::String(mcp.own_name.to_string()));
        params.insert("arguments".into(), tree);
        if meta.is_empty() {
            params.shift_remove("_meta");
        } else {
            params.insert("_meta".into(), Value::Object(meta));
        }
        Ok(params)
    }

    fn meta(
        &self,
        call: &ToolCall,
        mcp: &McpTool,
        caller: &Caller,
    ) -> Result<Map<String, Value>, Failed> {
        let mut meta = call.side.as_deref().map(result::meta_of).unwrap_or_default();
        if let Some(name) = &mcp.meta_key {
            let Some(key) = &call.sent_key else {
                return Err(classify::not_sent("a write came to the back end without its key"));
            };
            meta.insert(name.to_string(), Value::String(key.as_str().to_owned()));
        }
        if let Some(token) = caller.progress_token() {
            meta.insert("progressToken".into(), token.into());
        }
        Ok(meta)
    }
}

/// Arguments that the server's schema wants in fields, then what the agent sent of fields that no schema of ours
/// knows.
fn param_headers(
    call: &ToolCall,
    named: &[(String, String)],
    arguments: Option<&Value>,
) -> Vec<(String, String)> {
    let mut fields: Vec<(String, String)> = Vec::new();
    for (pointer, name) in named {
        let text = match arguments.and_then(|arguments| arguments.pointer(pointer)) {
            Some(Value::String(text)) => headers::encode(text).into_owned(),
            Some(value @ (Value::Bool(_) | Value::Number(_))) => value.to_string(),
            Some(Value::Null | Value::Array(_) | Value::Object(_)) | None => continue,
        };
        fields.push((name.clone(), text));
    }
    let given = call.side.iter().flat_map(|side| side.param_headers.iter());
    for (name, value) in given.take(headers::MAX_FORWARDED) {
        let known = fields.iter().any(|(one, _)| one.eq_ignore_ascii_case(name));
        let whole = format!("{}{name}", headers::PARAM_PREFIX);
        if !known && headers::is_forwardable(&whole, value.as_bytes()) {
            fields.push((name.clone(), value.clone()));
        }
    }
    fields
}
