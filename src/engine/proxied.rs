//! Requests of plain HTTP clients: which tool a method and a path name, for whom, and what has to be known of the
//! request before it is passed on.

use std::sync::Arc;

use super::asking::Asking;
use super::routes::Routes;
use super::{Answer, Engine, Single, asking, draining};
use crate::call::batch::Paired;
use crate::call::code::DenyCode;
use crate::call::stream::arriving;
use crate::call::{AgentId, Denied, Effect, RunId, ToolName, UpstreamName};
use crate::policy::snapshot::{OnUnlisted, Tool};

/// Where a request goes, under the policy that governs it to its end.
#[derive(Debug)]
pub struct Routed {
    routes: Arc<Routes>,
    /// The tool, or, where there is none for this agent, what was asked for in words.
    pub tool: ToolName,
    /// `None`: no route of this agent takes the request; its body is not looked at.
    pub route: Option<Wanted>,
}

/// What has to be known of a request.
#[derive(Debug)]
pub struct Wanted {
    /// Named parts of the path, decoded.
    pub captures: Vec<(Arc<str>, String)>,
    /// Most bytes of its body.
    pub body_bytes: usize,
    /// The body is part of what is asked, so it is read whole before anything is sent.
    pub whole: bool,
    /// A rule looks into the request: what cannot be read is refused.
    pub judged: bool,
    /// The document is wanted: a JSON body is parsed.
    pub document: bool,
    /// Deepest nesting of a JSON body.
    pub depth: usize,
    pub tells_method: bool,
}

impl Engine {
    /// The route of a request below an upstream. `Err`: its path is none that could be matched and sent.
    pub fn route(
        &self,
        agent: &AgentId,
        upstream: &str,
        method: &http::Method,
        path: &str,
    ) -> Result<Routed, Denied> {
        let routes = self.current.load();
        let snapshot = &routes.snapshot;
        let bad = |bad: crate::policy::snapshot::BadPath| {
            Denied::new(DenyCode::InvalidRequest, format!("{}; nothing was sent", bad.why()))
        };
        let table = snapshot.routes.get(upstream);
        let found = table.map(|table| table.find(method, path).map_err(bad)).transpose()?.flatten();
        let agent = snapshot.agents.get(agent);
        let known = found.and_then(|found| Some((snapshot.tools.get(&found.tool)?.clone(), found)));
        let allowed = |tool: &Tool| {
            let named = agent.is_some_and(|agent| agent.allowed.contains_key(&tool.name));
            named || snapshot.on_unlisted == OnUnlisted::Explain
        };
        let Some((tool, found)) = known.filter(|(tool, _)| allowed(tool)) else {
            // One name for all of them: a tool that this agent may not use is like one that is not there.
            let asked = ToolName::asked(&format!("{method} /{upstream}{path}"));
            return Ok(Routed { routes, tool: asked, route: None });
        };
        let narrowed = agent.is_some_and(|agent| agent.constraints.contains_key(&tool.name));
        let (schema, methods, body_bytes) = match tool.route() {
            Some(route) => (route.has_schema, route.methods.len(), route.request_bytes),
            None => (false, 1, 0),
        };
        // A person's yes is for what was asked, all of it.
        let judged = schema || narrowed || tool.approval.is_some();
        let writes = tool.effect == Effect::Write;
        let wanted = Wanted {
            captures: found.captures,
            body_bytes,
            whole: judged || writes,
            judged,
            document: judged || writes || !tool.volatile.is_empty(),
            depth: snapshot.limits.argument_depth,
            tells_method: methods > 1,
        };
        Ok(Routed { tool: tool.name.clone(), route: Some(wanted), routes })
    }

    /// Whether the policy in force has such an upstream with routes.
    pub fn has_routes(&self, upstream: &UpstreamName) -> bool {
        self.snapshot().routes.contains_key(upstream)
    }

    /// As [`Engine::call`], under the policy by which the request was routed. Its run stays busy until the last byte of
    /// an answer that goes on as it comes.
    pub async fn call_routed(
        &self,
        routed: Routed,
        single: Single,
    ) -> Result<(RunId, Answer), Denied> {
        let asking = if self.draining() {
            Err(draining())
        } else {
            Asking::under(self, routed.routes, &single.asker)
        };
        let asking = match asking {
            Ok(asking) => asking,
            Err(denied) => return Err(asking::turned_away(self, single, denied)),
        };
        let Single { id, tool, payload, caller_key, .. } = single;
        let busy = asking.run.busy();
        let answer = asking.send(Paired { id, tool, payload }, caller_key).await;
        if let Some(arriving) = arriving(&answer.outcome) {
            arriving.hold(busy);
        }
        Ok((asking.run.id().clone(), answer))
    }
}
