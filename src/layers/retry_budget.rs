//! Retries that an upstream can afford, in thousandths of a token. Pure; exact integers.
//!
//! A retry costs one token, taken before its back-off, so a sleeping retry holds it. First-attempt successes and
//! time give tokens back; the pot never holds more than its size, so credit cannot be hoarded over a quiet night.

use std::time::Duration;

use tokio::time::Instant;

use crate::policy::snapshot::RetryBudgetPolicy;

/// What one retry costs.
const RETRY_MILLI: u64 = 1000;

#[derive(Debug)]
pub struct RetryBudget {
    policy: RetryBudgetPolicy,
    milli: u64,
    /// Time up to which the floor has been paid out.
    paid: Instant,
}

impl RetryBudget {
    /// Starts full.
    pub fn new(policy: RetryBudgetPolicy, now: Instant) -> Self {
        Self { policy, milli: policy.max_milli, paid: now }
    }

    pub fn policy(&self) -> &RetryBudgetPolicy {
        &self.policy
    }

    /// Takes one retry's token, where there is one.
    pub fn take(&mut self, now: Instant) -> bool {
        self.refill(now);
        let enough = self.milli >= RETRY_MILLI;
        if enough {
            self.milli -= RETRY_MILLI;
        }
        enough
    }

    /// A first attempt succeeded.
    pub fn deposit(&mut self, now: Instant) {
        self.refill(now);
        self.milli = self.milli.saturating_add(self.policy.ratio_milli).min(self.policy.max_milli);
    }

    /// Thousandths in the pot.
    pub fn balance(&self, now: Instant) -> u64 {
        let (given, _) = self.due(now);
        self.milli.saturating_add(given).min(self.policy.max_milli)
    }

    fn refill(&mut self, now: Instant) {
        let (given, paid) = self.due(now);
        self.milli = self.milli.saturating_add(given).min(self.policy.max_milli);
        self.paid = paid;
    }

    /// What the floor owes up to `now`, and the instant it is then paid up to: the rest of a thousandth stays owed.
    fn due(&self, now: Instant) -> (u64, Instant) {
        let rate = u128::from(self.policy.floor_milli_per_s);
        if rate == 0 {
            return (0, now);
        }
        let elapsed = now.saturating_duration_since(self.paid);
        if let Some((given, worth)) = in_64_bits(elapsed, self.policy.floor_milli_per_s) {
            return (given, self.paid + worth);
        }
        let elapsed = elapsed.as_nanos();
        let given = elapsed * rate / 1_000_000_000;
        let worth = u64::try_from(given * 1_000_000_000 / rate).unwrap_or(0);
        let given = u64::try_from(given).unwrap_or(u64::MAX);
        (given, self.paid + Duration::from_nanos(worth))
    }
}

/// The same for the short times between calls, without wide divisions.
fn in_64_bits(elapsed: Duration, rate: u64) -> Option<(u64, Duration)> {
    const SECOND: u64 = 1_000_000_000;
    let elapsed = u64::try_from(elapsed.as_nanos()).ok()?;
    let given = elapsed.checked_mul(rate)? / SECOND;
    Some((given, Duration::from_nanos(given.checked_mul(SECOND)?.checked_div(rate)?)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICY: RetryBudgetPolicy =
        RetryBudgetPolicy { max_milli: 10_000, ratio_milli: 100, floor_milli_per_s: 200 };

    #[test]
    fn a_full_pot_pays_ten_retries_and_the_floor_one_every_five_seconds() {
        let start = Instant::now();
        let mut budget = RetryBudget::new(POLICY, start);
        assert_eq!((0..20).filter(|_| budget.take(start)).count(), 10);
        assert!(!budget.take(start + Duration::from_millis(4999)));
        assert!(budget.take(start + Duration::from_secs(5)));
        assert_eq!(budget.balance(start + Duration::from_secs(5)), 0);
    }

    #[test]
    fn grpc_02_the_pot_is_clamped_at_both_ends() {
        let now = Instant::now();
        let mut budget = RetryBudget::new(POLICY, now);
        for _ in 0..1_000_000 {
            budget.deposit(now);
        }
        assert_eq!(budget.balance(now), 10_000);
        for _ in 0..100 {
            budget.take(now);
        }
        assert_eq!(budget.balance(now), 0);
    }

    proptest! {
        /// Over any stretch: retries ≤ pot + ratio · first successes + floor · time, in thousandths.
        #[test]
        fn retries_never_exceed_what_was_given(
            steps in proptest::collection::vec((0..3_u8, 0..5_000_u64), 1..400),
            ratio in 0..2_000_u64,
            floor in 0..2_000_u64,
            max in 0..20_000_u64,
        ) {
            let policy =
                RetryBudgetPolicy { max_milli: max, ratio_milli: ratio, floor_milli_per_s: floor };
            let start = Instant::now();
            let mut now = start;
            let mut budget = RetryBudget::new(policy, start);
            let (mut taken, mut given) = (0, max);
            for (what, ms) in steps {
                match what {
                    0 => taken += u64::from(budget.take(now)) * RETRY_MILLI,
                    1 => {
                        budget.deposit(now);
                        given += ratio;
                    }
                    _ => now += Duration::from_millis(ms),
                }
                let over_time = (now - start).as_millis() * u128::from(floor) / 1000;
                prop_assert!(u128::from(taken) <= u128::from(given) + over_time);
                prop_assert!(budget.balance(now) <= max);
            }
        }
    }
}
