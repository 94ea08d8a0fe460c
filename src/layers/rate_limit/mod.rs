//! Tokens per attempt, narrowest bucket first: run, agent, tool, upstream, global. Refused at once, never queued.
//!
//! A cooldown the tool itself asked for is read before any bucket. Tokens cannot be given back, so every memo of a
//! closed bucket is read before the first token is taken.

mod bucket;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

pub use bucket::{Bucket, Keyed, Taken};

use super::gate::{Gate, Permit, come_back};
use super::state::ToolState;
use crate::call::Named;
use crate::call::code::DenyCode;
use crate::call::{
    AgentId, Denied, Detail, Ended, LimitedBy, PolicyName, Rate, ToolCall, ToolName, ToolResult,
};
use crate::run::Runs;
use crate::telemetry::metrics::{Mark, ToolMetrics};

/// One place in the order, with what fills it for a call.
#[derive(Debug, Clone)]
pub struct Limit {
    /// Label: run, agent, tool, upstream, global.
    pub scope: &'static str,
    pub name: PolicyName,
    pub shadow: bool,
    pub buckets: Buckets,
    pub allowed: Mark,
}

/// One bucket for all, or one for each run or agent.
#[derive(Debug, Clone)]
pub enum Buckets {
    Shared(Arc<Bucket>),
    ByAgent(Arc<Keyed>),
    ByRun(Arc<Keyed>),
}

impl Buckets {
    fn of(&self, call: &ToolCall) -> Arc<Bucket> {
        match self {
            Buckets::Shared(bucket) => bucket.clone(),
            Buckets::ByAgent(keyed) => keyed.of(call.agent.as_str()),
            Buckets::ByRun(keyed) => keyed.of(call.run.as_str()),
        }
    }
}

/// All limits an attempt of one tool passes.
#[derive(Debug)]
pub struct RateLimiting {
    pub tool: ToolName,
    pub weight: u32,
    pub state: Arc<ToolState>,
    pub runs: Arc<Runs>,
    /// By the name of the run's policy.
    pub of_runs: Named<Arc<str>, Limit>,
    pub of_agents: Named<AgentId, Limit>,
    /// Tool, upstream, global: in this order.
    pub wider: Vec<Limit>,
    pub metrics: Arc<ToolMetrics>,
}

impl RateLimiting {
    /// The call's limits, narrowest first.
    fn limits<'a>(&'a self, call: &ToolCall) -> Vec<(&'a Limit, Arc<Bucket>)> {
        let run = if self.of_runs.is_empty() {
            None
        } else {
            self.runs.of(call).and_then(|run| self.of_runs.get(&run.policy().name))
        };
        let agent = self.of_agents.get(&call.agent);
        run.into_iter()
            .chain(agent)
            .chain(&self.wider)
            .map(|limit| (limit, limit.buckets.of(call)))
            .collect()
    }

    fn refuse(&self, limit: &Limit, bucket: &Bucket, wait: Duration, call: &ToolCall) -> Denied {
        self.metrics.ratelimit(limit.scope, "rejected");
        call.trace.note().rule = Some(format!("rate_limit {}", limit.name).into());
        let wait = come_back(wait);
        let message = format!("tool {} is called too often", self.tool);
        let rate = rate(limit, bucket, 0, wait);
        Denied::new(DenyCode::RateLimited, message)
            .retry_after(wait)
            .detail(Detail::Limited { by: LimitedBy::Gateway, rate: Some(rate) })
    }

    fn cooling(&self, call: &ToolCall, now: Instant) -> Result<(), Denied> {
        let Some(wait) = self.state.cooldown.left_at(now) else { return Ok(()) };
        call.trace.note().rule = Some("cooldown asked for by the tool".into());
        let message = format!("tool {} asked to be called less often", self.tool);
        Err(Denied::new(DenyCode::RateLimited, message)
            .retry_after(come_back(wait))
            .detail(Detail::Limited { by: LimitedBy::Tool, rate: None }))
    }
}

fn rate(limit: &Limit, bucket: &Bucket, remaining: u32, reset: Duration) -> Rate {
    Rate {
        name: limit.name.clone(),
        limit: bucket.burst(),
        window: bucket.window(),
        remaining,
        reset,
    }
}

impl Gate for RateLimiting {
    type Permit = RatePermit;

    fn admit(&self, call: &ToolCall) -> Result<RatePermit, Denied> {
        let now = Instant::now();
        self.cooling(call, now)?;
        let limits = self.limits(call);
        for (limit, bucket) in limits.iter().filter(|(limit, _)| !limit.shadow) {
            if let Some(wait) = bucket.closed_for(self.weight) {
                return Err(self.refuse(limit, bucket, wait, call));
            }
        }
        let mut lowest: Option<(u32, &Limit, &Bucket)> = None;
        for (limit, bucket) in &limits {
            match bucket.take(self.weight, now) {
                Taken::Yes { remaining } => {
                    limit.allowed.inc();
                    if !limit.shadow && lowest.is_none_or(|(least, ..)| remaining < least) {
                        lowest = Some((remaining, limit, bucket));
                    }
                }
                Taken::No { .. } if limit.shadow => {
                    self.metrics.ratelimit(limit.scope, "would_reject");
                }
                Taken::No { wait } => return Err(self.refuse(limit, bucket, wait, call)),
            }
        }
        let rate = lowest.map(|(remaining, limit, bucket)| {
            let full = bucket.interval().saturating_mul(bucket.burst() - remaining);
            rate(limit, bucket, remaining, full)
        });
        Ok(RatePermit { rate })
    }
}

/// Nothing to give back: tokens are spent. Carries what the answer's `RateLimit` fields say.
#[derive(Debug)]
pub struct RatePermit {
    rate: Option<Rate>,
}

impl Permit for RatePermit {
    fn mark(&self, result: &mut ToolResult) {
        result.notes.rate.clone_from(&self.rate);
    }

    fn settle(self, _ended: &Ended) {}
}
