//! The budgets of one run. Rounds, calls, calls of a round and argument bytes are exact however many calls run at
//! once; failures, result bytes and cost are known only at the end, so calls in flight may overshoot them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::call::code::DenyCode;
use crate::call::{Denied, Detail, Dimension};
use crate::policy::snapshot::RunPolicy;

/// What a run has used. Plain atomics: nothing here is read together with anything else.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    rounds: AtomicU64,
    round_calls: AtomicU64,
    calls: AtomicU64,
    argument_bytes: AtomicU64,
    failures: AtomicU64,
    result_bytes: AtomicU64,
    cost: AtomicU64,
}

/// A refusal for want of budget. Wall clock is told in milliseconds, cost in millionths.
pub(crate) fn exhausted(dimension: Dimension, used: u64, limit: u64) -> Denied {
    let message = match dimension {
        Dimension::WallClock => {
            format!("the time of this run is over: {used} of {limit} ms; no further tool is called")
        }
        Dimension::CallsPerRound => format!(
            "this message asks for {used} calls and a round may hold {limit}; this one was not run"
        ),
        Dimension::LiveRuns => {
            format!("this agent already has {used} live runs of {limit}; finish one first")
        }
        Dimension::Rounds
        | Dimension::Calls
        | Dimension::Failures
        | Dimension::ArgumentBytes
        | Dimension::ResultBytes
        | Dimension::Cost => format!(
            "the budget of {} of this run is used up ({used} of {limit}); no further tool is called",
            dimension.as_str()
        ),
    };
    Denied::new(DenyCode::BudgetExhausted, message).detail(Detail::Budget {
        dimension,
        used,
        limit,
    })
}

/// Adds when the sum stays within the limit; else changes nothing. Exact both ways: one that is too big never
/// makes a smaller one fail beside it, as an add that is taken back would for a moment.
fn take(counter: &AtomicU64, more: u64, limit: Option<u64>) -> Result<u64, (u64, u64)> {
    let limit_or_all = limit.unwrap_or(u64::MAX);
    counter
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            used.checked_add(more).filter(|sum| *sum <= limit_or_all)
        })
        .map(|before| before.saturating_add(more))
        .map_err(|used| (used, limit_or_all))
}

/// Adds without a limit; sticks at the top instead of wrapping.
fn add(counter: &AtomicU64, more: u64) {
    let sum = |used: u64| Some(used.saturating_add(more));
    // The closure never says no, so there is no error to lose.
    let _before = counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, sum);
}

fn known(counter: &AtomicU64, limit: Option<u64>, dimension: Dimension) -> Result<(), Denied> {
    let used = counter.load(Ordering::Acquire);
    match limit {
        Some(limit) if used >= limit => Err(exhausted(dimension, used, limit)),
        Some(_) | None => Ok(()),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Usage {
    /// One more call. What is known only at the end is asked first, so that a refusal there costs nothing.
    pub(crate) fn take_call(
        &self,
        policy: &RunPolicy,
        argument_bytes: u64,
        age: Duration,
    ) -> Result<(), Denied> {
        self.go_on(policy, age)?;
        take(&self.calls, 1, policy.calls)
            .map_err(|(used, limit)| exhausted(Dimension::Calls, used, limit))?;
        take(&self.argument_bytes, argument_bytes, policy.argument_bytes)
            .map_err(|(used, limit)| exhausted(Dimension::ArgumentBytes, used, limit))?;
        Ok(())
    }

    /// A call goes on that was taken before.
    pub(crate) fn go_on(&self, policy: &RunPolicy, age: Duration) -> Result<(), Denied> {
        if age >= policy.wall_clock {
            return Err(exhausted(Dimension::WallClock, millis(age), millis(policy.wall_clock)));
        }
        known(&self.failures, policy.failures, Dimension::Failures)?;
        known(&self.result_bytes, policy.result_bytes, Dimension::ResultBytes)?;
        known(&self.cost, policy.cost, Dimension::Cost)
    }

    /// One more round of `calls` calls; its number, from 1.
    pub(crate) fn take_round(&self, policy: &RunPolicy, calls: u64) -> Result<u64, Denied> {
        let round = take(&self.rounds, 1, policy.rounds)
            .map_err(|(used, limit)| exhausted(Dimension::Rounds, used, limit))?;
        self.round_calls.store(calls, Ordering::Release);
        Ok(round)
    }

    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Acquire)
    }

    pub(crate) fn spend(&self, cost: u64) {
        add(&self.cost, cost);
    }

    pub(crate) fn failed(&self) {
        add(&self.failures, 1);
    }

    pub(crate) fn result(&self, bytes: u64) {
        add(&self.result_bytes, bytes);
    }

    pub(crate) fn view(
        &self,
        policy: &RunPolicy,
        age: Duration,
    ) -> Vec<(Dimension, u64, Option<u64>)> {
        let of = |dimension, counter: &AtomicU64, limit| {
            (dimension, counter.load(Ordering::Acquire), limit)
        };
        vec![
            of(Dimension::Rounds, &self.rounds, policy.rounds),
            of(Dimension::Calls, &self.calls, policy.calls),
            of(Dimension::CallsPerRound, &self.round_calls, policy.calls_per_round),
            of(Dimension::Failures, &self.failures, policy.failures),
            of(Dimension::ArgumentBytes, &self.argument_bytes, policy.argument_bytes),
            of(Dimension::ResultBytes, &self.result_bytes, policy.result_bytes),
            of(Dimension::Cost, &self.cost, policy.cost),
            (Dimension::WallClock, millis(age), Some(millis(policy.wall_clock))),
        ]
    }
}
