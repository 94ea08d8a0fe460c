//! A rolling share of calls over ten exact buckets. Sums are counted anew from the live buckets, never decremented,
//! so no count can fall below zero and a burst across a boundary is seen whole.

use tokio::time::{Duration, Instant};

use crate::policy::snapshot::RatioPolicy;

/// Buckets of a window: its edge moves in tenths.
const BUCKETS: usize = 10;

#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    /// Which tenth since `base` it counts; an older number is a bucket whose time has passed.
    tick: u64,
    total: u64,
    hits: u64,
}

/// Counts verdicts and, among them, hits (failures, or slow calls).
#[derive(Debug, Clone)]
pub(super) struct Window {
    policy: RatioPolicy,
    base: Instant,
    buckets: [Bucket; BUCKETS],
}

impl Window {
    pub(super) fn new(policy: RatioPolicy, now: Instant) -> Self {
        Self { policy, base: now, buckets: [Bucket::default(); BUCKETS] }
    }

    pub(super) fn clear(&mut self) {
        self.buckets = [Bucket::default(); BUCKETS];
    }

    pub(super) fn push(&mut self, hit: bool, now: Instant) {
        let tick = self.tick(now);
        let at = usize::try_from(tick % BUCKETS as u64).unwrap_or(0);
        if let Some(bucket) = self.buckets.get_mut(at) {
            if bucket.tick != tick {
                *bucket = Bucket { tick, ..Bucket::default() };
            }
            bucket.total += 1;
            bucket.hits += u64::from(hit);
        }
    }

    /// `(verdicts, hits)` that are still inside the window.
    pub(super) fn counts(&self, now: Instant) -> (u64, u64) {
        let tick = self.tick(now);
        self.buckets
            .iter()
            .filter(|bucket| bucket.tick + (BUCKETS as u64) > tick)
            .fold((0, 0), |(total, hits), bucket| (total + bucket.total, hits + bucket.hits))
    }

    /// At least the named share of at least the named number of verdicts: `>=` in both.
    pub(super) fn trips(&self, now: Instant) -> bool {
        let (total, hits) = self.counts(now);
        total > 0
            && total >= u64::from(self.policy.min_calls)
            && hits * 1000 >= u64::from(self.policy.above_permille) * total
    }

    fn tick(&self, now: Instant) -> u64 {
        let width = (self.policy.window / BUCKETS as u32).max(Duration::from_nanos(1));
        let ticks = now.saturating_duration_since(self.base).as_nanos() / width.as_nanos();
        // The first tick is ten, so that untouched buckets (tick 0) never look live.
        u64::try_from(ticks).unwrap_or(u64::MAX / 2).saturating_add(BUCKETS as u64)
    }
}
