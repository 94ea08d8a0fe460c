//! Makes the layers of one tool from its policy and its live state, so that the page of their order stays a page.

use std::collections::HashSet;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use tower::Service;

use super::{CallService, Gates, remedies};
use crate::call::Named;
use crate::call::code::DenyCode;
use crate::call::{AgentId, CallError, Denied, Effect, Payload, TaskWay, ToolCall, ToolResult};
use crate::layers::allowlist::Allowlist;
use crate::layers::approval::{ApprovalLayer, SpendLayer};
use crate::layers::arguments::{self, ArgumentsCheck};
use crate::layers::breaker::Breaker;
use crate::layers::budget::Budget;
use crate::layers::bulkhead::Bulkhead;
use crate::layers::cache::{self, CacheLayer, SpoilLayer};
use crate::layers::fuse::Fuse;
use crate::layers::gate::{Gate, GateLayer};
use crate::layers::journal::{JournalLayer, late_answer};
use crate::layers::known::Knowing;
use crate::layers::observe::ObserveLayer;
use crate::layers::rate_limit::{Buckets, Limit, RateLimiting};
use crate::layers::replay::ReplayLayer;
use crate::layers::retry;
use crate::layers::state::{ToolBucket, ToolState};
use crate::layers::timeout::{Attempts, Then};
use crate::ledger::resolver::Hands;
use crate::policy::snapshot::{Per, RateLimit, Tool};
use crate::telemetry::metrics::ToolMetrics;

/// One tool's parts.
pub(super) struct Maker<'a> {
    tool: &'a Arc<Tool>,
    gates: &'a Gates,
    state: Arc<ToolState>,
    metrics: Arc<ToolMetrics>,
    pub(super) breaker: Breaker,
}

impl<'a> Maker<'a> {
    pub(super) fn new(tool: &'a Arc<Tool>, gates: &'a Gates) -> Self {
        let state = gates.state.tool(tool);
        let metrics = gates.metrics.tool(tool.name.as_str());
        let breaker = Breaker::new(tool, &state, metrics.clone(), &gates.tasks, &gates.draining);
        Self { tool, gates, state, metrics, breaker }
    }

    pub(super) fn observe(&self) -> ObserveLayer {
        observe(self.gates, Some(self.tool))
    }

    pub(super) fn budget(&self) -> Budget {
        budget(self.gates)
    }

    pub(super) fn fuse(&self) -> Fuse {
        fuse(self.gates, Some(self.tool))
    }

    pub(super) fn allowlist(&self) -> Allowlist {
        Allowlist::new(&self.gates.snapshot, Some(&self.tool.name))
    }

    pub(super) fn arguments(&self) -> ArgumentsCheck {
        ArgumentsCheck { tool: self.tool.clone(), snapshot: self.gates.snapshot.clone() }
    }

    /// A gate above the ledger, whose refusals tell what the ledger knows.
    pub(super) fn knowing<G: Gate>(&self, gate: G) -> GateLayer<Knowing<G>> {
        let (tool, ledger) = (self.tool.clone(), self.gates.ledger.clone());
        GateLayer::new(Knowing { gate, tool, ledger })
    }

    /// What helps with this tool's unknown writes; `None` = nothing but a person.
    pub(super) fn hands(
        &self,
        resend: CallService,
        query: Option<CallService>,
        tasks: Option<TaskWay>,
    ) -> Option<Arc<Hands>> {
        let (state, draining) = (self.gates.state.clone(), self.gates.draining.clone());
        let name = self.tool.name.clone();
        let spoils = self.spoils().map(|layer| layer.mark);
        let tasks = tasks.map(|way| match spoils {
            Some(mark) => cache::spoiling(way, mark),
            None => way,
        });
        let may_send = move || !draining.is_cancelled() && state.is_closed(&name);
        remedies::hands(self.tool, self.metrics.clone(), resend, query, tasks, may_send)
            .map(Arc::new)
    }

    /// Agents that only rehearse.
    fn rehearsing(&self) -> Arc<HashSet<AgentId>> {
        let agents = self.gates.snapshot.agents.values().filter(|agent| agent.dry_run);
        Arc::new(agents.map(|agent| agent.id.clone()).collect())
    }

    pub(super) fn replay(&self, hands: Option<Arc<Hands>>) -> ReplayLayer {
        ReplayLayer {
            hands,
            rehearsing: self.rehearsing(),
            tool: self.tool.clone(),
            ledger: self.gates.ledger.clone(),
            metrics: self.metrics.clone(),
        }
    }

    /// Of a read whose policy lets answers be kept.
    pub(super) fn cache(&self) -> Option<CacheLayer> {
        let policy = self.tool.cache?;
        let cached = &self.gates.state.cached;
        Some(CacheLayer(Arc::new(cache::With {
            tool: self.tool.clone(),
            policy,
            state: self.state.clone(),
            memory: cached.memory(),
            writes: cached.of_upstream(&self.tool.upstream.name),
            by_hand: cached.of_tool(&self.tool.name),
            metrics: self.metrics.clone(),
            rehearsing: self.rehearsing(),
        })))
    }

    /// Of a write to an upstream of which answers are kept.
    pub(super) fn spoils(&self) -> Option<SpoilLayer> {
        let upstream = &self.tool.upstream.name;
        let spoils = self.tool.effect == Effect::Write && self.gates.snapshot.caches_of(upstream);
        spoils.then(|| SpoilLayer { mark: self.gates.state.cached.of_upstream(upstream) })
    }

    /// Of a tool whose policy asks people.
    pub(super) fn approval(&self) -> Option<ApprovalLayer> {
        let policy = self.tool.approval.clone()?;
        Some(ApprovalLayer {
            tool: self.tool.clone(),
            policy: Arc::new(policy),
            ledger: self.gates.ledger.clone(),
            rehearsing: self.rehearsing(),
        })
    }

    /// What uses up the yes of a read.
    pub(super) fn spend(&self) -> Option<SpendLayer> {
        self.tool.approval.as_ref().map(|_| SpendLayer { tool: self.tool.clone() })
    }

    pub(super) fn bulkhead(&self) -> Bulkhead {
        let Gates { snapshot, state, .. } = self.gates;
        let agents = snapshot.agents.keys().filter_map(|id| {
            let places = state.agent(id)?.places.clone()?;
            Some((id.clone(), places))
        });
        let process = state.process_places(snapshot.limits.bulkhead);
        Bulkhead::new(self.tool.name.clone(), self.state.clone(), agents.collect(), process)
    }

    pub(super) fn retry(&self) -> Option<retry::With> {
        Some(retry::With {
            tool: self.tool.clone(),
            policy: self.tool.retry.clone()?,
            breaker: self.breaker.clone(),
            budget: self.state.upstream.retry_budget.clone(),
            draining: self.gates.draining.clone(),
            metrics: self.metrics.clone(),
        })
    }

    /// Only limits that the policy sets: a tool without any passes with one look at its cooldown.
    pub(super) fn rate_limit(&self) -> RateLimiting {
        let Gates { snapshot, state, runs, .. } = self.gates;
        let mut of_runs = Named::default();
        let mut of_agents = Named::default();
        for (id, agent) in &snapshot.agents {
            for run in std::iter::once(&agent.run).chain(agent.choosable_runs.values()) {
                if let (Some(policy), Some(keyed)) = (&run.rate_limit, state.runs(&run.name)) {
                    let buckets = Buckets::ByRun(keyed);
                    of_runs.insert(run.name.clone(), self.limit("run", policy, buckets));
                }
            }
            let bucket = state.agent(id).and_then(|agent| agent.bucket.clone());
            if let (Some(policy), Some(bucket)) = (&agent.rate_limit, bucket) {
                let buckets = Buckets::Shared(bucket);
                of_agents.insert(id.clone(), self.limit("agent", policy, buckets));
            }
        }
        RateLimiting {
            tool: self.tool.name.clone(),
            weight: self.tool.weight,
            state: self.state.clone(),
            runs: runs.clone(),
            of_runs,
            of_agents,
            wider: self.wider(),
            metrics: self.metrics.clone(),
        }
    }

    fn wider(&self) -> Vec<Limit> {
        let Gates { snapshot, state, .. } = self.gates;
        let own = self.tool.rate_limit.as_ref().zip(self.state.bucket.clone());
        let own = own.map(|(policy, bucket)| {
            let buckets = match (bucket, policy.per) {
                (ToolBucket::Shared(bucket), Per::Tool | Per::Agent | Per::Run) => {
                    Buckets::Shared(bucket)
                }
                (ToolBucket::Keyed(keyed), Per::Run) => Buckets::ByRun(keyed),
                (ToolBucket::Keyed(keyed), Per::Agent | Per::Tool) => Buckets::ByAgent(keyed),
            };
            self.limit("tool", policy, buckets)
        });
        let shared = |scope, policy: Option<&RateLimit>, bucket| {
            policy
                .zip(bucket)
                .map(|(policy, bucket)| self.limit(scope, policy, Buckets::Shared(bucket)))
        };
        let upstream = &self.tool.upstream;
        [
            own,
            shared("upstream", upstream.rate_limit.as_ref(), self.state.upstream.bucket.clone()),
            shared("global", snapshot.limits.rate_limit.as_ref(), state.global_bucket()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn limit(&self, scope: &'static str, policy: &RateLimit, buckets: Buckets) -> Limit {
        let allowed = self.metrics.ratelimit_allowed(scope);
        Limit { scope, name: policy.name.clone(), shadow: policy.shadow, buckets, allowed }
    }

    pub(super) fn journal(&self) -> JournalLayer {
        JournalLayer { ledger: self.gates.ledger.clone(), metrics: self.metrics.clone() }
    }

    pub(super) fn attempts(&self) -> Arc<Attempts> {
        Arc::new(Attempts {
            tool: self.tool.clone(),
            state: self.state.clone(),
            runs: self.gates.runs.clone(),
            metrics: self.metrics.clone(),
            recorder: self.gates.recorder.clone(),
        })
    }

    /// A tool that is no write has nothing to drain.
    pub(super) fn drain(&self) -> Then {
        let Some(write) = &self.tool.write else { return Then::Cancel };
        let late = late_answer(self.gates.ledger.clone(), self.metrics.clone());
        Then::Drain { limit: write.drain, tasks: self.gates.tasks.clone(), late: Arc::new(late) }
    }
}

pub(super) fn observe(gates: &Gates, tool: Option<&Arc<Tool>>) -> ObserveLayer {
    ObserveLayer::new(
        gates.snapshot.clone(),
        gates.runs.clone(),
        gates.metrics.clone(),
        gates.recorder.clone(),
        tool.cloned(),
    )
}

pub(super) fn budget(gates: &Gates) -> Budget {
    let agents = gates.snapshot.agents.keys();
    let agents = agents.map(|id| (id.clone(), gates.metrics.agent(id.as_str()))).collect();
    Budget { runs: gates.runs.clone(), agents }
}

pub(super) fn fuse(gates: &Gates, tool: Option<&Arc<Tool>>) -> Fuse {
    Fuse { runs: gates.runs.clone(), metrics: gates.metrics.clone(), tool: tool.cloned() }
}

/// The end of `refusal_stack`: says what is wrong with a call that no tool can take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refuse;

impl Service<ToolCall> for Refuse {
    type Response = ToolResult;
    type Error = CallError;
    type Future = Ready<Result<ToolResult, CallError>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        let (rule, denied) = match &call.payload {
            Payload::Malformed(malformed) => ("arguments", arguments::refuse_malformed(malformed)),
            Payload::Unsupported { kind } => ("arguments", arguments::refuse_unsupported(kind)),
            // The allowlist let it pass, yet it was sent here: it is reached by another front end, or the policy
            // changed between the two looks.
            Payload::Arguments(_) | Payload::Request(_) => {
                let message = format!("there is no tool `{}`; choose from the list", call.tool);
                ("allowlist: no such tool", Denied::new(DenyCode::UnknownTool, message))
            }
        };
        call.trace.note().rule = Some(rule.into());
        ready(Err(denied.into()))
    }
}
