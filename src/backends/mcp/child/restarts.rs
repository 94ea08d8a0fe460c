//! When a child that ended may be started again: ever later, and seldom where nothing comes of it. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Before the first restart, and the longest wait; doubled in between.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// A child that served for so long was well: the next wait is the first one again.
const WELL: Duration = Duration::from_secs(60);
/// So many restarts within the time; then the server is down until the first of them is that old, or its section of the
/// policy is loaded anew.
const MOST: usize = 5;
const WITHIN: Duration = Duration::from_secs(600);

/// Whether and when to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    Now,
    At(Instant),
    /// Too often of late.
    NotNow,
}

#[derive(Debug, Default)]
pub(super) struct Restarts {
    /// Failures since it was last well.
    failures: u32,
    /// Restarts that count; at most [`MOST`].
    done: VecDeque<Instant>,
    not_before: Option<Instant>,
}

impl Restarts {
    /// A child ended by itself, or could not be started or met. `jitter`: 0 to 1.
    pub(super) fn failed(&mut self, at: Instant, lived: Duration, jitter: f64) {
        if lived >= WELL {
            self.failures = 0;
        }
        let doubled = BACK_OFF.0.saturating_mul(1 << self.failures.min(16));
        // Half of it is fixed, so that the waits still grow.
        let wait = doubled.min(BACK_OFF.1).mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0));
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(at + wait);
    }

    pub(super) fn when(&mut self, now: Instant) -> Start {
        let Some(not_before) = self.not_before else { return Start::Now };
        while self.done.front().is_some_and(|at| now.saturating_duration_since(*at) >= WITHIN) {
            self.done.pop_front();
        }
        let down = self.done.len() >= MOST;
        match (down, not_before <= now) {
            (true, _) => Start::NotNow,
            (false, true) => Start::Now,
            (false, false) => Start::At(not_before),
        }
    }

    /// A start after a failure is a restart.
    pub(super) fn started(&mut self, now: Instant) {
        if self.not_before.take().is_some() {
            self.done.push_back(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_TIME: Duration = Duration::ZERO;

    /// Waits of a server that fails at once, until it is down.
    fn waits(restarts: &mut Restarts, mut now: Instant) -> Vec<u128> {
        let mut waits = Vec::new();
        loop {
            restarts.failed(now, NO_TIME, 1.0);
            match restarts.when(now) {
                Start::At(at) => {
                    waits.push((at - now).as_millis());
                    now = at;
                }
                Start::Now => waits.push(0),
                Start::NotNow => return waits,
            }
            restarts.started(now);
        }
    }

    #[test]
    fn waits_double_and_the_sixth_restart_waits_until_the_first_is_ten_minutes_old() {
        let mut restarts = Restarts::default();
        let now = Instant::now();
        assert_eq!(restarts.when(now), Start::Now);
        assert_eq!(waits(&mut restarts, now), [100, 200, 400, 800, 1600]);
        let first = now + Duration::from_millis(100);
        let almost = first + WITHIN - Duration::from_millis(1);
        assert_eq!(restarts.when(almost), Start::NotNow);
        assert_eq!(restarts.when(first + WITHIN), Start::Now, "it heals without anybody");
    }

    #[test]
    fn a_minute_of_health_begins_anew_and_old_restarts_are_forgotten() {
        let mut restarts = Restarts::default();
        let mut now = Instant::now();
        for _ in 0..30 {
            restarts.failed(now, WELL, 1.0);
            assert_eq!(restarts.when(now), Start::At(now + BACK_OFF.0));
            now += WITHIN / 4;
            assert_eq!(restarts.when(now), Start::Now);
            restarts.started(now);
        }
    }

    #[test]
    fn the_wait_is_never_over_its_most_nor_under_half_of_its_least() {
        let mut restarts = Restarts::default();
        let now = Instant::now();
        restarts.failed(now, NO_TIME, 0.0);
        assert_eq!(restarts.when(now), Start::At(now + BACK_OFF.0 / 2));
        for _ in 0..40 {
            restarts.failed(now, NO_TIME, 7.0);
        }
        assert_eq!(restarts.when(now), Start::At(now + BACK_OFF.1));
    }
}
