//! THE page: the order of governance. Outermost first; each line says why it stands where it stands.
//!
//! Two stacks, not one. "Writes are never retried" is true because the layer is not there.

mod make;
mod remedies;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio_util::task::TaskTracker;
use tower::{Service, ServiceBuilder};

use super::gate::{Answering, Answers, Below, GateLayer};
use super::optional::Optional;
use super::state::State;
use super::timeout::{Then, TimeoutLayer};
use super::{allowlist, deadline, detach, dry_run, retry};
use crate::call::{CallError, Failed, TaskWay, ToolCall, ToolResult};
use crate::ledger::Ledger;
use crate::ledger::resolver::Hands;
use crate::policy::snapshot::{Snapshot, Tool};
use crate::run::Runs;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::record::Recorder;

/// A finished stack: always ready, refuses instead of waiting. Cheap to clone; one box a layer that waits, and none of
/// its own.
#[derive(Clone)]
pub struct CallService(Arc<dyn Finished>);

/// A stack whose type is nobody's affair any more.
trait Finished: Send + Sync {
    fn send(&self, call: ToolCall) -> Answering;
}

impl<S: Below> Finished for S {
    fn send(&self, call: ToolCall) -> Answering {
        self.clone().call(call).answering()
    }
}

impl CallService {
    pub(super) fn new(stack: impl Below) -> Self {
        Self(Arc::new(stack))
    }

    /// Sends one call through.
    pub fn send(&self, call: ToolCall) -> Answering {
        self.0.send(call)
    }
}

impl fmt::Debug for CallService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallService")
    }
}

impl Service<ToolCall> for CallService {
    type Response = ToolResult;
    type Error = CallError;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: ToolCall) -> Answering {
        self.send(call)
    }
}

/// The innermost service: a back end, or a test's. Its only error is `Failed`: nothing below the gates can say
/// `Denied`, so `Denied` provably means "this call sent nothing".
pub trait Inner:
    Service<
        ToolCall,
        Response = ToolResult,
        Error = Failed,
        Future: Future<Output = Result<ToolResult, Failed>> + Send + 'static,
    > + Clone
    + Send
    + Sync
    + 'static
{
}
impl<S> Inner for S where
    S: Service<
            ToolCall,
            Response = ToolResult,
            Error = Failed,
            Future: Future<Output = Result<ToolResult, Failed>> + Send + 'static,
        > + Clone
        + Send
        + Sync
        + 'static
{
}

/// What all stacks of one snapshot share.
#[derive(Debug, Clone)]
pub struct Gates {
    pub snapshot: Arc<Snapshot>,
    pub state: Arc<State>,
    pub runs: Arc<Runs>,
    pub ledger: Arc<Ledger>,
    pub metrics: Arc<Metrics>,
    pub recorder: Arc<Recorder>,
    /// Detached writes and drains; shutdown waits for it.
    pub tasks: TaskTracker,
    /// Cancelled when draining begins: no new retry attempts.
    pub draining: tokio_util::sync::CancellationToken,
}

/// The way of a read.
pub fn read_stack<S: Inner>(tool: &Arc<Tool>, gates: &Gates, inner: S) -> CallService {
    let with = make::Maker::new(tool, gates);
    let stack = ServiceBuilder::new()
        // Every outcome once, refusals too: so it stands outside everything that can refuse.
        .layer(with.observe())
        // An agent that loops on unknown tools or bad arguments must run out too.
        .layer(GateLayer::new(with.budget()))
        // Stops a repeat before anything is paid for it; hears of repeats through `observe`, which hears them all.
        .layer(GateLayer::new(with.fuse()))
        // Before anything that would reveal schema or limits of a tool the agent may not know.
        .layer(GateLayer::new(with.allowlist()))
        // What passes here is what is sent; everything below may trust it.
        .layer(GateLayer::new(with.arguments()))
        // (place kept for `hooks`: they replace arguments, so before anything that identifies a call by them)
        // A fresh answer touches no tool, so it needs none of what follows; an old one may stand in for a tool that all of
        // what follows could not reach. Only of tools whose policy lets answers be kept.
        .layer(Optional(with.cache()))
        // A person's yes. Below what answers without the tool: nobody is asked about what is not sent. Waits for nobody:
        // without a yes the call is refused.
        .layer(Optional(with.approval()))
        // Bounds all waiting below: back-off and attempts together. Cuts nothing itself.
        .layer(GateLayer::new(deadline::Deadline(tool.clone())))
        // One verdict a call, after its retries: counted per attempt, one failing call would open its own circuit.
        // Before bulkhead and tokens: an open circuit must cost nobody's quota.
        .layer(GateLayer::new(with.breaker.clone()))
        // A place is given back, a token is not: so the place is asked for first. Held through the back-off.
        .layer(GateLayer::new(with.bulkhead()))
        // Reads only. Below the breaker, which it peeks at; above the bucket, which every attempt must pass.
        .layer(Optional(with.retry().map(retry::RetryLayer::new)))
        // Per attempt: retries must not go round the bucket.
        .layer(GateLayer::new(with.rate_limit()))
        // The yes is used up, on record, once nothing but the wire is left; a write's is by `journal`.
        .layer(Optional(with.spend()))
        // An agent that only rehearses has passed everything but the wire.
        .layer(GateLayer::new(dry_run::DryRun(gates.snapshot.clone())))
        // The only layer that ends an attempt early. A read is cut and cancelled at the tool.
        .layer(TimeoutLayer { limits: tool.timeout, then: Then::Cancel, attempts: with.attempts() })
        .service(inner);
    CallService::new(stack)
}

/// The way of a write. No `retry`: no layer of this stack sends twice.
pub fn write_stack<S: Inner>(tool: &Arc<Tool>, gates: &Gates, inner: S) -> CallService {
    write_stack_asking(tool, gates, inner, None)
}

/// As [`write_stack`]; `query`: the way of the read that tells what became of this tool's writes.
pub fn write_stack_asking<S: Inner>(
    tool: &Arc<Tool>,
    gates: &Gates,
    inner: S,
    query: Option<CallService>,
) -> CallService {
    let hands = hands(tool, gates, inner.clone(), query, None);
    write_stack_with(tool, gates, inner, hands)
}

/// What helps with a tool's unknown writes; `None` = nothing but a person. `tasks`: the way to ask for tasks that it
/// answers with.
pub fn hands<S: Inner>(
    tool: &Arc<Tool>,
    gates: &Gates,
    inner: S,
    query: Option<CallService>,
    tasks: Option<TaskWay>,
) -> Option<Arc<Hands>> {
    let resend = resend_stack(tool, gates, inner);
    make::Maker::new(tool, gates).hands(resend, query, tasks)
}

/// As [`write_stack`], with what helps.
pub fn write_stack_with<S: Inner>(
    tool: &Arc<Tool>,
    gates: &Gates,
    inner: S,
    hands: Option<Arc<Hands>>,
) -> CallService {
    let with = make::Maker::new(tool, gates);
    let stack = ServiceBuilder::new()
        // Outermost: who hangs up drops neither the write in the middle nor its permits, and it is still observed.
        .layer(detach::DetachLayer { tasks: gates.tasks.clone() })
        // As for reads, down to `arguments`. But a gate that refuses before the ledger is asked tells what the ledger
        // knows of the operation: an agent must not take "not sent" for "did not happen".
        .layer(with.observe())
        .layer(with.knowing(with.budget()))
        .layer(with.knowing(with.fuse()))
        // The one that tells nothing: who may not use a tool learns nothing of what was done with it.
        .layer(GateLayer::new(with.allowlist()))
        .layer(with.knowing(with.arguments()))
        // (place kept for `hooks`: replaced arguments make another operation, so above `replay`)
        // A finished write is told again, an unknown one blocks, one in flight is joined: no tool is touched for it,
        // so it needs no person, no closed circuit, no place and no token.
        .layer(with.replay(hands))
        // As for reads. Below `replay`: what was done already needs no yes, and it has told an identical write apart.
        .layer(Optional(with.approval()))
        .layer(GateLayer::new(deadline::Deadline(tool.clone())))
        .layer(GateLayer::new(with.breaker.clone()))
        .layer(GateLayer::new(with.bulkhead()))
        .layer(GateLayer::new(with.rate_limit()))
        .layer(GateLayer::new(dry_run::DryRun(gates.snapshot.clone())))
        // Inside everything that refuses: a refused call never pays for a sync, and "denied" proves "not sent".
        .layer(with.journal())
        // Below `journal`, so that what it ends is settled. A write is not cut: only the waiting stops, and the
        // exchange is drained.
        .layer(TimeoutLayer { limits: tool.timeout, then: with.drain(), attempts: with.attempts() })
        // Around the exchange itself, however it ends: what was read from the same upstream is told no more.
        .option_layer(with.spoils())
        .service(inner);
    CallService::new(stack)
}

/// The way of a write's second sending, under the key its tool recognises: for the ledger's resolver alone. Its call
/// has passed every gate of `write_stack` before.
pub fn resend_stack<S: Inner>(tool: &Arc<Tool>, gates: &Gates, inner: S) -> CallService {
    // What is known of the write stays unknown, so there is nothing to drain for.
    attempt_stack(tool, gates, inner)
}

/// One attempt and its limits: of a second sending, or of a probe.
pub fn attempt_stack<S: Inner>(tool: &Arc<Tool>, gates: &Gates, inner: S) -> CallService {
    let with = make::Maker::new(tool, gates);
    let stack = ServiceBuilder::new()
        .layer(GateLayer::new(with.bulkhead()))
        .layer(GateLayer::new(with.rate_limit()))
        .layer(TimeoutLayer { limits: tool.timeout, then: Then::Cancel, attempts: with.attempts() })
        .option_layer(with.spoils())
        .service(inner);
    CallService::new(stack)
}

/// The way of a read that the gateway asks itself: no agent's budget, fuse or permission is touched by it.
pub fn query_stack<S: Inner>(tool: &Arc<Tool>, gates: &Gates, inner: S) -> CallService {
    let with = make::Maker::new(tool, gates);
    let stack = ServiceBuilder::new()
        .layer(GateLayer::new(deadline::Deadline(tool.clone())))
        .layer(GateLayer::new(with.breaker.clone()))
        .layer(GateLayer::new(with.bulkhead()))
        .layer(Optional(with.retry().map(retry::RetryLayer::new)))
        .layer(GateLayer::new(with.rate_limit()))
        .layer(TimeoutLayer { limits: tool.timeout, then: Then::Cancel, attempts: with.attempts() })
        .service(inner);
    CallService::new(stack)
}

/// The way of what a server offers besides tools. `fused`: a list that is asked for again is no loop.
pub fn pass_stack<S: Inner>(tool: &Arc<Tool>, gates: &Gates, inner: S, fused: bool) -> CallService {
    let with = make::Maker::new(tool, gates);
    let server = &tool.upstream.name;
    let stack = ServiceBuilder::new()
        // As for a read, but for what such a request has not: a schema, retries, a rehearsal.
        .layer(with.observe())
        .layer(GateLayer::new(with.budget()))
        .layer(Optional(fused.then(|| GateLayer::new(with.fuse()))))
        .layer(GateLayer::new(allowlist::MayPass::new(&gates.snapshot, server)))
        .layer(GateLayer::new(deadline::Deadline(tool.clone())))
        .layer(GateLayer::new(with.breaker.clone()))
        .layer(GateLayer::new(with.bulkhead()))
        .layer(GateLayer::new(with.rate_limit()))
        .layer(TimeoutLayer { limits: tool.timeout, then: Then::Cancel, attempts: with.attempts() })
        .service(inner);
    CallService::new(stack)
}

/// For names no tool has, tools this agent may not know, and arguments that did not parse: counted, budgeted and
/// fused like every other call, then answered.
pub fn refusal_stack(gates: &Gates) -> CallService {
    let stack = ServiceBuilder::new()
        .layer(make::observe(gates, None))
        .layer(GateLayer::new(make::budget(gates)))
        .layer(GateLayer::new(make::fuse(gates, None)))
        // Before the faults are told: they would reveal that the tool exists.
        .layer(GateLayer::new(allowlist::Allowlist::new(&gates.snapshot, None)))
        .service(make::Refuse);
    CallService::new(stack)
}
