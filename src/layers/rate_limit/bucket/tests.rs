use proptest::prelude::*;

use super::*;
use crate::call::PolicyName;
use crate::policy::snapshot::Per;

fn policy(interval: Duration, burst: u32) -> RateLimit {
    RateLimit { name: PolicyName::new("tool:x"), interval, burst, shadow: false, per: Per::Tool }
}

#[tokio::test(start_paused = true)]
async fn the_bucket_refills_in_paused_time() {
    let bucket = Bucket::new(&policy(Duration::from_millis(100), 2));
    assert_eq!(bucket.take(2, Instant::now()), Taken::Yes { remaining: 0 });
    assert_eq!(bucket.take(1, Instant::now()), Taken::No { wait: Duration::from_millis(100) });
    assert_eq!(bucket.tokens(), 0);
    tokio::time::advance(Duration::from_millis(100)).await;
    assert_eq!(bucket.tokens(), 1);
    assert_eq!(bucket.take(1, Instant::now()), Taken::Yes { remaining: 0 });
}

#[tokio::test(start_paused = true)]
async fn keys_bounded_and_full_buckets_are_forgotten() {
    let keyed = Keyed::new(&policy(Duration::from_secs(1), 1));
    for n in 0..MAX_KEYS {
        assert_eq!(keyed.of(&n.to_string()).take(1, Instant::now()), Taken::Yes { remaining: 0 });
    }
    assert!(Arc::ptr_eq(&keyed.of("one more"), &keyed.of("and another")), "they share one");
    assert!(!Arc::ptr_eq(&keyed.of("0"), &keyed.of("1")));
    tokio::time::advance(Duration::from_millis(999)).await;
    keyed.sweep();
    assert_eq!(keyed.buckets.lock().expect("not poisoned").len(), MAX_KEYS, "none is full yet");
    tokio::time::advance(Duration::from_millis(1)).await;
    keyed.sweep();
    assert_eq!(keyed.buckets.lock().expect("not poisoned").len(), 0);
}

/// A paused runtime of its own for each case.
fn paused<F: Future>(test: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime")
        .block_on(test)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// The memo never refuses what governor would admit, and what it tells to wait is what governor would.
    #[test]
    fn the_memo_agrees_with_the_bucket(
        interval_us in 1..500_000_u64,
        burst in 1..20_u32,
        steps in prop::collection::vec((0..700_000_u64, 1..20_u32), 1..80),
    ) {
        paused(async {
            let interval = Duration::from_micros(interval_us);
            let (memo, bare) =
                (Bucket::new(&policy(interval, burst)), Bucket::new(&policy(interval, burst)));
            for (pause, weight) in steps {
                tokio::time::advance(Duration::from_micros(pause)).await;
                let weight = weight.min(burst);
                let expected = bare.take(weight, Instant::now());
                let own = match memo.closed_for(weight) {
                    Some(wait) => Taken::No { wait },
                    None => memo.take(weight, Instant::now()),
                };
                prop_assert_eq!(own, expected);
            }
            Ok(())
        })?;
    }

    /// Who waits as told passes, and asking meanwhile never makes it later.
    #[test]
    fn the_told_wait_is_enough_and_never_grows(
        interval_us in 1..500_000_u64,
        burst in 1..20_u32,
        asks in prop::collection::vec(1..1000_u32, 0..20),
        weight in 1..20_u32,
    ) {
        paused(async {
            let interval = Duration::from_micros(interval_us);
            let bucket = Bucket::new(&policy(interval, burst));
            let weight = weight.min(burst);
            while let Taken::Yes { .. } = bucket.take(weight, Instant::now()) {}
            let Taken::No { wait } = bucket.take(weight, Instant::now()) else { unreachable!("just emptied") };
            let mut left = wait;
            for part in asks {
                let step = left * part / 2000;
                tokio::time::advance(step).await;
                let Taken::No { wait } = bucket.take(weight, Instant::now()) else { unreachable!("too early") };
                prop_assert!(!wait.is_zero() && wait <= left);
                left = wait;
            }
            tokio::time::advance(left).await;
            let passes = matches!(bucket.take(weight, Instant::now()), Taken::Yes { .. });
            prop_assert!(passes);
            Ok(())
        })?;
    }
}
