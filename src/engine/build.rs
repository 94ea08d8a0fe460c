//! A snapshot and its back ends become stacks: the one place where layers meet back ends.

use std::sync::Arc;

use super::routes::Routes;
use crate::backends::Backend;
use crate::call::Effect;
use crate::egress::Egress;
use crate::layers::stack::{
    CallService, Gates, Inner, query_stack, read_stack, refusal_stack, write_stack_asking,
};
use crate::policy::snapshot::{Snapshot, Tool};
use crate::telemetry::metrics::{Labels, ToolLabel};

/// Routes to the real tools; idle connections of unchanged upstreams come along from the routes before.
pub(super) fn real(gates: &Gates, before: Option<&Routes>) -> Routes {
    let previous = before.and_then(|routes| routes.egress.as_deref());
    let egress = Egress::new(&gates.snapshot, previous, gates.metrics.clone());
    let response_bytes = gates.snapshot.limits.response_bytes;
    let inner = |tool: &Arc<Tool>| Backend::http(tool, &egress, response_bytes);
    routes(gates, Some(egress.clone()), &inner)
}

pub(super) fn routes<S: Inner>(
    gates: &Gates,
    egress: Option<Arc<Egress>>,
    inner: &dyn Fn(&Arc<Tool>) -> S,
) -> Routes {
    let stacks = gates.snapshot.tools.iter().map(|(name, tool)| {
        let stack = match tool.effect {
            Effect::Read => read_stack(tool, gates, inner(tool)),
            Effect::Write => {
                write_stack_asking(tool, gates, inner(tool), query(tool, gates, inner))
            }
        };
        (name.clone(), stack)
    });
    Routes {
        snapshot: gates.snapshot.clone(),
        stacks: stacks.collect(),
        refusal: refusal_stack(gates),
        egress,
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

/// Names that may stand in labels.
pub(super) fn labels(snapshot: &Snapshot) -> Labels {
    let tool = |tool: &Arc<Tool>| ToolLabel {
        name: tool.name.as_str().to_owned(),
        write: tool.effect == Effect::Write,
    };
    Labels {
        policy: snapshot.name.to_string(),
        revision: snapshot.revision.to_string(),
        tools: snapshot.tools.values().map(tool).collect(),
        agents: snapshot.agents.keys().map(|agent| agent.as_str().to_owned()).collect(),
        upstreams: snapshot.upstreams.keys().map(|name| name.as_str().to_owned()).collect(),
        agent_label: snapshot.agent_label,
    }
}
