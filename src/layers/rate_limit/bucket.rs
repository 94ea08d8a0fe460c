//! Token buckets (GCRA, by governor) on tokio's clock, and the memo that keeps refused calls from draining them.

use std::cell::Cell;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::StateInformationMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use tokio::time::Instant;

use crate::call::Named;
use crate::policy::snapshot::RateLimit;

/// Buckets of runs (or agents) kept at once; past it newcomers share one bucket, so that keys that arrive from
/// outside cannot grow the store.
const MAX_KEYS: usize = 10_000;

/// tokio's clock, counted from the making of a bucket: a paused clock drives every test.
#[derive(Debug, Clone)]
struct TokioClock {
    base: Instant,
}

impl Clock for TokioClock {
    type Instant = Duration;
    fn now(&self) -> Duration {
        TURN.get().unwrap_or_else(Instant::now).saturating_duration_since(self.base)
    }
}

thread_local! {
    /// The instant of the check under way: the buckets of a call are asked at one time, which is read once.
    static TURN: Cell<Option<Instant>> = const { Cell::new(None) };
}

type Limiter = RateLimiter<NotKeyed, InMemoryState, TokioClock, StateInformationMiddleware>;

/// One token bucket. Starts full; a refused check leaves it as it was.
#[derive(Debug)]
pub struct Bucket {
    limiter: Limiter,
    clock: TokioClock,
    interval: Duration,
    burst: u32,
    /// Nanoseconds on the bucket's clock before which no check of any weight can pass: the time at which tokens
    /// come back only moves later, so this never refuses what the bucket would admit.
    not_before: AtomicU64,
    /// Tokens left after the last taking, and when that was; for gauges.
    left: AtomicU32,
    left_at: AtomicU64,
}

/// Answer of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    Yes {
        remaining: u32,
    },
    /// Until the same check passes.
    No {
        wait: Duration,
    },
}

impl Bucket {
    pub fn new(policy: &RateLimit) -> Self {
        let clock = TokioClock { base: Instant::now() };
        // The policy's check refuses zeros; here they would only make the narrowest bucket there is.
        let interval = policy.interval.max(Duration::from_nanos(1));
        let burst = NonZeroU32::new(policy.burst).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::with_period(interval)
            .unwrap_or_else(|| Quota::per_second(NonZeroU32::MIN))
            .allow_burst(burst);
        let limiter = RateLimiter::direct_with_clock(quota, clock.clone())
            .with_middleware::<StateInformationMiddleware>();
        Self {
            limiter,
            clock,
            interval,
            burst: burst.get(),
            not_before: AtomicU64::new(0),
            left: AtomicU32::new(burst.get()),
            left_at: AtomicU64::new(0),
        }
    }

    /// Whether a policy still means this bucket: rate and burst alone decide.
    pub fn serves(&self, policy: &RateLimit) -> bool {
        self.interval == policy.interval && self.burst == policy.burst
    }

    /// Reads the memo: a wait when no check of this weight can pass yet. Touches no token.
    pub fn closed_for(&self, weight: u32) -> Option<Duration> {
        let not_before = match self.not_before.load(Ordering::Acquire) {
            0 => return None,
            nanos => Duration::from_nanos(nanos),
        };
        let wait = not_before.checked_sub(self.clock.now()).filter(|wait| !wait.is_zero())?;
        // The memo is of one cell; each further one comes an interval later.
        Some(wait.saturating_add(self.interval.saturating_mul(weight.saturating_sub(1))))
    }

    /// Takes `weight` tokens, or none, at the instant `now`.
    pub fn take(&self, weight: u32, now: Instant) -> Taken {
        let cells = NonZeroU32::new(weight).unwrap_or(NonZeroU32::MIN);
        TURN.set(Some(now));
        let checked = self.limiter.check_n(cells);
        TURN.set(None);
        let now = now.saturating_duration_since(self.clock.base);
        match checked {
            Ok(Ok(after)) => {
                let remaining = after.remaining_burst_capacity();
                self.left.store(remaining, Ordering::Relaxed);
                self.left_at.store(nanos(now), Ordering::Relaxed);
                Taken::Yes { remaining }
            }
            Ok(Err(not_until)) => {
                if cells == NonZeroU32::MIN {
                    let earliest = not_until.earliest_possible();
                    self.not_before.fetch_max(nanos(earliest), Ordering::AcqRel);
                }
                Taken::No { wait: not_until.wait_time_from(now) }
            }
            // More than the burst can never pass. The policy's check refuses such a weight, so this is a bucket
            // that shrank under a call in flight: it comes back as after a whole refill.
            Err(_) => Taken::No { wait: self.window() },
        }
    }

    pub fn burst(&self) -> u32 {
        self.burst
    }

    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Time in which an empty bucket fills.
    pub fn window(&self) -> Duration {
        self.interval.saturating_mul(self.burst)
    }

    /// Tokens there now, without taking any.
    pub fn tokens(&self) -> u32 {
        let since = nanos(self.clock.now()).saturating_sub(self.left_at.load(Ordering::Relaxed));
        let back = since / nanos(self.interval).max(1);
        let left = u64::from(self.left.load(Ordering::Relaxed)).saturating_add(back);
        u32::try_from(left).unwrap_or(u32::MAX).min(self.burst)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Buckets by run or agent; bounded, swept.
#[derive(Debug)]
pub struct Keyed {
    policy: RateLimit,
    buckets: Mutex<Named<Arc<str>, Arc<Bucket>>>,
    overflow: Arc<Bucket>,
}

impl Keyed {
    pub fn new(policy: &RateLimit) -> Self {
        Self {
            policy: policy.clone(),
            buckets: Mutex::default(),
            overflow: Arc::new(Bucket::new(policy)),
        }
    }

    pub fn serves(&self, policy: &RateLimit) -> bool {
        self.overflow.serves(policy) && self.policy.per == policy.per
    }

    pub fn of(&self, key: &str) -> Arc<Bucket> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = buckets.get(key) {
            return bucket.clone();
        }
        if buckets.len() >= MAX_KEYS {
            return self.overflow.clone();
        }
        let bucket = Arc::new(Bucket::new(&self.policy));
        buckets.insert(key.into(), bucket.clone());
        bucket
    }

    /// Forgets buckets that are full again: a new one would be the same.
    pub fn sweep(&self) {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.retain(|_, bucket| bucket.tokens() < bucket.burst());
        buckets.shrink_to_fit();
    }

    /// Tokens of the emptiest bucket.
    pub fn tokens(&self) -> u32 {
        let buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.values().map(|bucket| bucket.tokens()).min().unwrap_or(self.overflow.burst())
    }
}

#[cfg(test)]
mod tests;
