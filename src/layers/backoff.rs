//! How long to wait before a further attempt. Pure; the source of chance is an argument.

use std::time::Duration;

use crate::policy::snapshot::{BackoffMode, BackoffPolicy};

/// Delay before retry `k` (from 0). `previous` is the delay before the last retry (`decorrelated` grows from it).
/// Never more than `max` plus the jitter, whatever `k`: the exponent is clamped before it multiplies.
pub fn delay(
    policy: &BackoffPolicy,
    k: u32,
    previous: Option<Duration>,
    rng: &mut fastrand::Rng,
) -> Duration {
    let (base, max) = (nanos(policy.base), nanos(policy.max));
    // 2^63 times any base of at least 1 ns is past every `max`; a larger exponent changes nothing.
    let capped = base.saturating_mul(1_u64 << k.min(63)).min(max);
    let wait = match policy.mode {
        BackoffMode::Additive => capped.saturating_add(rng.u64(0..=nanos(policy.jitter))),
        BackoffMode::Full => rng.u64(0..=capped),
        BackoffMode::Equal => capped / 2 + rng.u64(0..=capped - capped / 2),
        BackoffMode::Decorrelated => {
            let ceiling = previous.map_or(base, nanos).saturating_mul(3).max(base);
            rng.u64(base..=ceiling).min(max)
        }
        BackoffMode::None => capped,
    };
    Duration::from_nanos(wait)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn policy(mode: BackoffMode, base_ms: u64, max_ms: u64, jitter_ms: u64) -> BackoffPolicy {
        let ms = Duration::from_millis;
        BackoffPolicy { base: ms(base_ms), max: ms(max_ms), mode, jitter: ms(jitter_ms) }
    }

    #[test]
    fn the_reference_profile_waits_one_two_four_seconds_and_at_most_its_jitter_more() {
        let policy = policy(BackoffMode::Additive, 1000, 10_000, 500);
        let mut rng = fastrand::Rng::with_seed(1);
        for (k, table) in [(0, 1000), (1, 2000), (2, 4000), (3, 8000), (4, 10_000), (40, 10_000)] {
            let waited = delay(&policy, k, None, &mut rng).as_millis();
            assert!((table..=table + 500).contains(&waited), "retry {k}: {waited} ms");
        }
    }

    proptest! {
        #[test]
        fn delay_within_bounds_at_any_k(
            k in prop_oneof![0..64_u32, any::<u32>()],
            base in 0..86_400_000_u64,
            more in 0..86_400_000_u64,
            jitter in 0..10_000_u64,
            previous in proptest::option::of(any::<u64>()),
            seed: u64,
        ) {
            let max = base + more;
            let mut rng = fastrand::Rng::with_seed(seed);
            let previous = previous.map(Duration::from_nanos);
            for mode in [
                BackoffMode::Additive,
                BackoffMode::Full,
                BackoffMode::Equal,
                BackoffMode::Decorrelated,
                BackoffMode::None,
            ] {
                let policy = policy(mode, base, max, jitter);
                let table = u128::from(base).saturating_mul(1 << k.min(63)).min(u128::from(max));
                let waited = delay(&policy, k, previous, &mut rng);
                let (low, high) = match mode {
                    BackoffMode::Additive => (table, table + u128::from(jitter)),
                    BackoffMode::Full => (0, table),
                    BackoffMode::Equal => (table / 2, table),
                    BackoffMode::Decorrelated => (u128::from(base), u128::from(max)),
                    BackoffMode::None => (table, table),
                };
                let waited = waited.as_nanos();
                prop_assert!(
                    (low * 1_000_000..=high * 1_000_000).contains(&waited),
                    "{mode:?} retry {k}: {waited} ns outside {low}..{high} ms"
                );
            }
        }
    }
}
