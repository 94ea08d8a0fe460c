//! A snapshot and its back ends become stacks: the one place where layers meet back ends.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use tower::ServiceExt;

use super::routes::{Passes, Routes};
use crate::backends::Backend;
use crate::backends::mcp::Servers;
use crate::call::ended::ended;
use crate::call::{Effect, ToolCall, Verdict, judge};
use crate::egress::{Egress, SendError};
use crate::layers::stack::{
    CallService, Gates, Inner, attempt_stack, hands, pass_stack, query_stack, read_stack,
    refusal_stack, write_stack_with,
};
use crate::layers::state::ProbeWay;
use crate::policy::bind;
use crate::policy::snapshot::{Probe, Reach, Snapshot, Target, Tool};
use crate::telemetry::metrics::{Labels, Metrics, ToolLabel};

/// The door outwards of a policy, told to the MCP servers; idle connections of unchanged upstreams come along from the
/// one before. `None`: no real back ends.
pub(super) fn egress(
    base: &Arc<Snapshot>,
    previous: Option<&Egress>,
    metrics: &Arc<Metrics>,
    servers: Option<&Arc<Servers>>,
) -> Option<Arc<Egress>> {
    let servers = servers?;
    let egress = Egress::new(base, previous, metrics.clone());
    servers.adopt(base, &egress);
    Some(egress)
}

/// The policy with the tools that its servers offer, as last heard.
pub(super) fn bound(
    base: &Arc<Snapshot>,
    before: Option<&Snapshot>,
    servers: Option<&Arc<Servers>>,
) -> Arc<Snapshot> {
    let Some(servers) = servers else { return base.clone() };
    let bound = bind::rebind(base, &servers.catalogs(), before);
    let known = before.map_or(&[][..], |before| &before.remarks);
    for remark in bound.remarks.iter().filter(|remark| !known.contains(remark)) {
        // The name is the server's own: quoted, so that no line or colour of its making gets into the log.
        let (server, tool) = (&remark.server, remark.own_name.escape_debug());
        tracing::warn!(%server, %tool, "a tool of an MCP server {}", remark.text.escape_debug());
    }
    bound
}

/// Routes to the real tools.
pub(super) fn real(gates: &Gates, egress: Option<&Arc<Egress>>, servers: &Arc<Servers>) -> Routes {
    let made;
    let egress = match egress {
        Some(egress) => egress,
        None => {
            made = Egress::new(&gates.snapshot, None, gates.metrics.clone());
            &made
        }
    };
    let response_bytes = gates.snapshot.limits.response_bytes;
    let inner = |tool: &Arc<Tool>| match &tool.target {
        Target::Http(_) => Backend::http(tool, egress, response_bytes),
        Target::Proxy(_) => Backend::proxy(tool, egress, response_bytes),
        Target::Mcp(_) => Backend::Mcp(servers.tool(tool)),
        Target::Passed => Backend::Passed(servers.passed(&tool.upstream.name)),
    };
    routes(gates, Some((egress, servers)), &inner)
}

pub(super) fn routes<S: Inner>(
    gates: &Gates,
    ways: Option<(&Arc<Egress>, &Arc<Servers>)>,
    inner: &dyn Fn(&Arc<Tool>) -> S,
) -> Routes {
    let passed = || gates.snapshot.mcp_servers.values().filter_map(|one| one.passed.as_ref());
    for tool in gates.snapshot.tools.values().chain(passed()) {
        probes(tool, gates, ways, inner);
    }
    let writes = gates.snapshot.tools.iter().filter(|(_, tool)| tool.effect == Effect::Write);
    let hands: HashMap<_, _> = writes
        .filter_map(|(name, tool)| {
            let tasks = ways.and_then(|(_, servers)| servers.tasks(tool));
            let hands = hands(tool, gates, inner(tool), query(tool, gates, inner), tasks)?;
            Some((name.clone(), hands))
        })
        .collect();
    let stacks = gates.snapshot.tools.iter().map(|(name, tool)| {
        let stack = match tool.effect {
            Effect::Read => read_stack(tool, gates, inner(tool)),
            Effect::Write => write_stack_with(tool, gates, inner(tool), hands.get(name).cloned()),
        };
        (name.clone(), stack)
    });
    let passed = passed().map(|tool| {
        let stack = |fused| pass_stack(tool, gates, inner(tool), fused);
        (tool.upstream.name.clone(), Passes { lists: stack(false), asks: stack(true) })
    });
    Routes {
        snapshot: gates.snapshot.clone(),
        stacks: stacks.collect(),
        passed: passed.collect(),
        hands,
        refusal: refusal_stack(gates),
        egress: ways.map(|(egress, _)| egress.clone()),
    }
}

/// The way of the read that tells what became of a tool's writes.
fn query<S: Inner>(
    tool: &Tool,
    gates: &Gates,
    inner: &dyn Fn(&Arc<Tool>) -> S,
) -> Option<CallService> {
    let query = tool.write.as_ref()?.status_query.as_ref()?;
    let read = gates.snapshot.tools.get(&query.tool)?;
    (read.effect == Effect::Read).then(|| query_stack(read, gates, inner(read)))
}

/// How the circuits of a tool and of its upstream are tested, before any stack looks for it.
fn probes<S: Inner>(
    tool: &Arc<Tool>,
    gates: &Gates,
    ways: Option<(&Arc<Egress>, &Arc<Servers>)>,
    inner: &dyn Fn(&Arc<Tool>) -> S,
) {
    let state = gates.state.tool(tool);
    let server = gates.snapshot.mcp_servers.get(&tool.upstream.name);
    let child = server.is_some_and(|server| matches!(server.reach, Reach::Child(_)));
    // A child has no address: whether it can be reached is whether it answers.
    let reached = || match ways? {
        (_, servers) if child => Some(answers(tool, servers)),
        (egress, _) => Some(reach(tool, egress)),
    };
    let both = [
        (&tool.breaker.probe, &state.probe),
        (&tool.upstream.breaker.probe, &state.upstream.probe),
    ];
    for (named, place) in both {
        let way = match named {
            None => continue,
            Some(Probe::Connect) => reached(),
            Some(Probe::Discover) => ways.map(|(_, servers)| answers(tool, servers)),
            Some(Probe::Call { tool, arguments }) => {
                gates.snapshot.tools.get(tool).filter(|read| read.effect == Effect::Read).map(
                    |read| ask(read, attempt_stack(read, gates, inner(read)), arguments.clone()),
                )
            }
        };
        // A read that was left out of the policy in force must not keep a circuit open for ever.
        if let Some(way) = way.or_else(reached) {
            // Of several tools of one upstream the first one's is as good as any.
            place.get_or_init(|| way);
        }
    }
}

/// A connection, made and closed.
fn reach(tool: &Arc<Tool>, egress: &Egress) -> ProbeWay {
    let way = egress.way(&tool.upstream);
    let limit = tool.timeout.connect;
    ProbeWay(Arc::new(move || {
        let way = way.clone();
        Box::pin(async move {
            match tokio::time::timeout(limit, way.probe()).await {
                Ok(Ok(())) => Verdict::Good,
                // Our own rules: nothing was dialled.
                Ok(Err(SendError::Blocked(_))) => Verdict::Neutral,
                Ok(Err(_)) | Err(_) => Verdict::Bad,
            }
        })
    }))
}

/// The server of the tool, asked for its description or its list.
fn answers(tool: &Arc<Tool>, servers: &Arc<Servers>) -> ProbeWay {
    let (servers, name, limit) = (servers.clone(), tool.upstream.name.clone(), tool.timeout.total);
    ProbeWay(Arc::new(move || {
        let (servers, name) = (servers.clone(), name.clone());
        Box::pin(async move {
            tokio::time::timeout(limit, servers.answers(&name)).await.unwrap_or(Verdict::Bad)
        })
    }))
}

/// One attempt of a read.
fn ask(read: &Arc<Tool>, stack: CallService, arguments: Map<String, Value>) -> ProbeWay {
    let (name, total) = (read.name.clone(), read.timeout.total);
    ProbeWay(Arc::new(move || {
        let call = ToolCall::of_the_gateway(&name, arguments.clone(), total);
        let answer = call.map(|call| stack.clone().oneshot(call));
        Box::pin(async move {
            match answer {
                Some(answer) => judge::verdict(&ended(&answer.await)),
                None => Verdict::Neutral,
            }
        })
    }))
}

/// Names that may stand in labels.
pub(super) fn labels(snapshot: &Snapshot) -> Labels {
    let tool = |tool: &Arc<Tool>| ToolLabel {
        name: tool.name.as_str().to_owned(),
        write: tool.effect == Effect::Write,
    };
    let passed = snapshot.mcp_servers.values().filter_map(|server| server.passed.as_ref());
    Labels {
        policy: snapshot.name.to_string(),
        revision: snapshot.revision.to_string(),
        tools: snapshot.tools.values().chain(passed).map(tool).collect(),
        agents: snapshot.agents.keys().map(|agent| agent.as_str().to_owned()).collect(),
        upstreams: snapshot
            .upstreams
            .keys()
            .chain(snapshot.mcp_servers.keys())
            .map(|name| name.as_str().to_owned())
            .collect(),
        agent_label: snapshot.agent_label,
    }
}
