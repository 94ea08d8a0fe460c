//! Retries read-only calls. Never sees a write: see stack.rs.
//!
//! After a failed attempt the questions are asked in one fixed order; the first "no" is recorded, and the answer is
//! the last real error, never `circuit_open`, `rate_limited` or a timeout of ours in its place.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::{Layer, Service};

use super::backoff::delay;
use super::breaker::Breaker;
use super::gate::{Answering, Answers, Below, min_attempt, take_ready};
use super::retry_budget::RetryBudget;
use crate::call::judge::retryable;
use crate::call::{CallError, Effect, Failed, Outcome, ToolCall, ToolResult};
use crate::policy::snapshot::{RetryPolicy, Tool};
use crate::telemetry::metrics::ToolMetrics;

/// A tool's own `Retry-After` is waited out inside the call up to here; a longer one is the model's to wait.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub struct RetryLayer(Arc<With>);

#[derive(Debug)]
pub struct With {
    pub tool: Arc<Tool>,
    pub policy: RetryPolicy,
    pub breaker: Breaker,
    pub budget: Arc<Mutex<RetryBudget>>,
    pub draining: CancellationToken,
    pub metrics: Arc<ToolMetrics>,
}

impl RetryLayer {
    pub fn new(with: With) -> Self {
        Self(Arc::new(with))
    }
}

impl<S> Layer<S> for RetryLayer {
    type Service = Retry<S>;
    fn layer(&self, inner: S) -> Retry<S> {
        Retry { with: self.0.clone(), inner }
    }
}

#[derive(Debug, Clone)]
pub struct Retry<S> {
    with: Arc<With>,
    inner: S,
}

impl<S: Below> Service<ToolCall> for Retry<S> {
    type Response = ToolResult;
    type Error = CallError;
    type Future = Answering;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, call: ToolCall) -> Answering {
        let inner = take_ready(&mut self.inner);
        let with = self.with.clone();
        Box::pin(async move { with.run(inner, call).await })
    }
}

/// Why the loop ended: `retry_stopped_by` of the record.
type StoppedBy = &'static str;

/// How far the loop got.
#[derive(Default)]
struct Loop {
    /// Retries with a back-off, the transparent resend not among them.
    retries: u32,
    resent: bool,
    previous_delay: Option<Duration>,
}

impl With {
    async fn run<S: Below>(&self, mut inner: S, call: ToolCall) -> Outcome {
        let mut so_far = Loop::default();
        let mut last: Option<Failed> = None;
        loop {
            poll_fn(|cx| inner.poll_ready(cx)).await.map_err(Into::into)?;
            let outcome = inner.call(call.clone()).answering().await;
            let further = last.is_some();
            if further && !matches!(outcome, Err(CallError::Denied(_))) {
                self.metrics.retry();
            }
            let failed = match outcome {
                Ok(result) => {
                    self.succeeded(further);
                    return Ok(result);
                }
                Err(CallError::Failed(failed)) => failed,
                Err(CallError::Denied(denied)) => {
                    // A refused first attempt is the outcome. A refused further one is not: it ends the loop.
                    return match last {
                        None => Err(denied.into()),
                        Some(failed) => self.stopped(&call, "rate_limited", failed),
                    };
                }
                Err(CallError::Unknown(unknown)) => return Err(unknown.into()),
            };
            if let Err(why) = self.again(&call, &failed, &mut so_far).await {
                return self.stopped(&call, why, failed);
            }
            last = Some(failed);
        }
    }

    fn succeeded(&self, further: bool) {
        if further {
            self.metrics.retry_success();
        } else {
            self.budget().deposit(Instant::now());
        }
    }

    fn stopped(&self, call: &ToolCall, why: StoppedBy, failed: Failed) -> Outcome {
        call.trace.note().retry_stopped_by = Some(why);
        self.metrics.retry_suppressed(why);
        Err(failed.into())
    }

    /// May there be one more attempt? Sleeps the back-off when so. The order of the questions is the rule.
    async fn again(
        &self,
        call: &ToolCall,
        failed: &Failed,
        so_far: &mut Loop,
    ) -> Result<(), StoppedBy> {
        if !retryable(Effect::Read, failed) {
            return Err("class");
        }
        if self.tool.effect != Effect::Read {
            debug_assert!(false, "retry stands in the stack of a write");
            return Err("effect");
        }
        if call.single_attempt {
            return Err("attempts");
        }
        if !call.payload.replayable() {
            return Err("not_replayable");
        }
        if failed.never_ran && !so_far.resent {
            so_far.resent = true;
            return self.resend_now(call);
        }
        if so_far.retries >= self.policy.max_retries {
            return Err("attempts");
        }
        let mut wait = delay(
            &self.policy.backoff,
            so_far.retries,
            so_far.previous_delay,
            &mut fastrand::Rng::new(),
        );
        so_far.previous_delay = Some(wait);
        if let Some(told) = failed.retry_after {
            // Never earlier than told; a longer wait goes to the model with the failure.
            if told > LONGEST_RETRY_AFTER {
                return Err("deadline");
            }
            wait = wait.max(told);
        }
        self.fits(call, wait)?;
        // No byte of an answer has been handed on: a body that goes to the agent as it comes is a success here.
        let took = call.trace.note().attempts.last().map_or(Duration::ZERO, |note| note.total);
        self.breaker.attempt_failed(call, failed, took);
        self.closed(call)?;
        // Before the sleep: sleeping retries hold their token, else a storm would pass the budget asleep.
        if !self.budget().take(Instant::now()) {
            return Err("retry_budget");
        }
        self.sleep(call, wait).await?;
        self.closed(call)?;
        so_far.retries += 1;
        Ok(())
    }

    /// The attempt provably never ran: sent again at once, for free but for its rate token.
    fn resend_now(&self, call: &ToolCall) -> Result<(), StoppedBy> {
        self.fits(call, Duration::ZERO)?;
        self.closed(call)?;
        if self.draining.is_cancelled() {
            return Err("draining");
        }
        Ok(())
    }

    fn fits(&self, call: &ToolCall, wait: Duration) -> Result<(), StoppedBy> {
        let left = call.deadline.saturating_duration_since(Instant::now());
        let need = wait.saturating_add(min_attempt(&self.tool.timeout));
        if need <= left { Ok(()) } else { Err("deadline") }
    }

    fn closed(&self, call: &ToolCall) -> Result<(), StoppedBy> {
        if self.breaker.peek(call) { Ok(()) } else { Err("circuit_open") }
    }

    async fn sleep(&self, call: &ToolCall, wait: Duration) -> Result<(), StoppedBy> {
        let began = Instant::now();
        #[expect(clippy::disallowed_methods, reason = "the back-off itself")]
        let sleep = tokio::time::sleep(wait);
        let drained = tokio::select! {
            biased;
            () = self.draining.cancelled() => true,
            () = sleep => false,
        };
        let mut noted = call.trace.note();
        noted.backoff += began.elapsed();
        noted.next_delay = began.elapsed();
        if drained { Err("draining") } else { Ok(()) }
    }

    fn budget(&self) -> std::sync::MutexGuard<'_, RetryBudget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
