//! One circuit: closed, open, half-open, or isolated by hand. Pure: time is an argument, nothing waits.
//!
//! Every transition starts a new generation. A verdict carries the generation (and, half-open, the slot) of its
//! admission; one that no longer matches changes nothing. No input leaves a circuit half-open for ever: the one
//! slot has a deadline, and whoever leaves it without a verdict gives it back.

mod window;

use tokio::time::{Duration, Instant};

use crate::call::{Generation, Verdict};
use crate::policy::snapshot::{BreakerMode, BreakerPolicy};
use window::Window;

/// After this long closed, with a good verdict and no bad one, one earlier opening is forgotten.
const HEALTHY_SPELL: Duration = Duration::from_secs(60);
/// Named probes follow each other closely for so long, then less so.
const YOUNG_OUTAGE: Duration = Duration::from_secs(30);
const PROBE_SOON: Duration = Duration::from_secs(1);
const PROBE_LATER: Duration = Duration::from_secs(5);
/// Doublings of `open_for` past which every shift has long passed `open_max`.
const MAX_DOUBLINGS: u32 = 32;

/// What the next call would meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    Closed,
    Open,
    HalfOpen,
    Isolated,
}

impl Shown {
    pub fn as_str(self) -> &'static str {
        match self {
            Shown::Closed => "closed",
            Shown::Open => "open",
            Shown::HalfOpen => "half_open",
            Shown::Isolated => "isolated",
        }
    }
}

/// The right to make one call: what its verdict will be matched by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    pub generation: Generation,
    /// Set on a half-open probe: the slot it took.
    slot: Option<u64>,
}

impl Admission {
    /// Of a call that was let in while closed.
    pub fn closed(generation: Generation) -> Self {
        Self { generation, slot: None }
    }

    /// A probe makes one attempt.
    pub fn is_probe(&self) -> bool {
        self.slot.is_some()
    }
}

/// Why a call may not pass. `retry_after`: before it no call can be let in, unless a probe ends earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    Open {
        since: Instant,
        retry_after: Duration,
    },
    /// Until a person closes it.
    Isolated {
        since: Instant,
    },
}

/// What became of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    Taken,
    /// Of an older generation or a slot that was given away: nothing changed.
    Late,
}

#[derive(Debug)]
enum State {
    Closed {
        consecutive: u32,
        /// Closed by hand: the first bad verdict reopens, until one good.
        trial: bool,
    },
    Open {
        until: Instant,
    },
    HalfOpen {
        slot: Option<Slot>,
    },
    Isolated,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    id: u64,
    deadline: Instant,
}

/// A stretch of time without a bad verdict.
#[derive(Debug)]
struct Spell {
    start: Instant,
    good: bool,
}

#[derive(Debug)]
pub struct Circuit {
    policy: BreakerPolicy,
    state: State,
    generation: Generation,
    /// Openings without a healthy minute between: the open time doubles with each.
    openings: u32,
    spell: Spell,
    failures: Option<Window>,
    slow: Option<Window>,
    /// When it last left `Closed`.
    down_since: Instant,
    /// When the next named probe is due.
    probe_at: Instant,
    next_slot: u64,
    moved_at: Option<Instant>,
    /// Transitions since they were last taken, for metrics.
    moves: Vec<(Shown, Shown)>,
    rng: fastrand::Rng,
}

impl Circuit {
    pub fn new(policy: BreakerPolicy, now: Instant) -> Self {
        Self::seeded(policy, now, fastrand::u64(..))
    }

    /// With a fixed source of jitter.
    pub fn seeded(policy: BreakerPolicy, now: Instant, seed: u64) -> Self {
        let state = match policy.mode {
            BreakerMode::Isolated => State::Isolated,
            BreakerMode::Enforce | BreakerMode::Shadow | BreakerMode::Disabled => {
                State::Closed { consecutive: 0, trial: false }
            }
        };
        Self {
            failures: policy.failure_ratio.map(|ratio| Window::new(ratio, now)),
            slow: policy.slow_ratio.map(|slow| Window::new(slow.ratio, now)),
            policy,
            state,
            generation: 0,
            openings: 0,
            spell: Spell { start: now, good: false },
            down_since: now,
            probe_at: now,
            next_slot: 0,
            moved_at: None,
            moves: Vec::new(),
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    pub fn policy(&self) -> &BreakerPolicy {
        &self.policy
    }

    /// May a call pass? Half-open exactly one may; it holds the slot until its verdict, its return or its deadline.
    pub fn admit(&mut self, now: Instant) -> Result<Admission, Refused> {
        self.catch_up(now);
        match self.state {
            State::Closed { .. } => Ok(Admission { generation: self.generation, slot: None }),
            State::Isolated => Err(Refused::Isolated { since: self.down_since }),
            State::Open { .. } | State::HalfOpen { slot: None } if self.named() => {
                Err(self.refused_until(self.probe_at, now))
            }
            State::Open { until } if now < until => Err(self.refused_until(until, now)),
            State::Open { .. } => {
                self.enter(State::HalfOpen { slot: None }, now);
                Ok(self.take_slot(now))
            }
            State::HalfOpen { slot: Some(slot) } => Err(self.refused_until(slot.deadline, now)),
            State::HalfOpen { slot: None } => Ok(self.take_slot(now)),
        }
    }

    /// A probe in place of real calls, where the policy names one and it is due: it holds the slot as a call would.
    pub fn admit_probe(&mut self, now: Instant) -> Option<Admission> {
        self.catch_up(now);
        if !self.named() || now < self.probe_at {
            return None;
        }
        match self.state {
            State::Open { .. } => {
                self.enter(State::HalfOpen { slot: None }, now);
                Some(self.take_slot(now))
            }
            State::HalfOpen { slot: None } => Some(self.take_slot(now)),
            State::HalfOpen { slot: Some(_) } | State::Closed { .. } | State::Isolated => None,
        }
    }

    /// When to look whether a probe is due; `None` = not before it opens again.
    pub fn next_probe(&self) -> Option<Instant> {
        match self.state {
            State::HalfOpen { slot: Some(slot) } if self.named() => Some(slot.deadline),
            State::Open { .. } | State::HalfOpen { .. } if self.named() => Some(self.probe_at),
            State::Open { .. }
            | State::HalfOpen { .. }
            | State::Closed { .. }
            | State::Isolated => None,
        }
    }

    fn named(&self) -> bool {
        self.policy.probe.is_some()
    }

    /// How long until the next probe: often while an outage is young, so that its end is noticed within seconds.
    fn probe_pause(&mut self, now: Instant) -> Duration {
        let young = now.saturating_duration_since(self.down_since) < YOUNG_OUTAGE;
        let default = if young { PROBE_SOON } else { PROBE_LATER };
        let pause = self.policy.probe_every.unwrap_or(default);
        self.lengthened(pause)
    }

    /// Hears how an admitted call ended; `took` is the time of the attempt that decided it.
    pub fn record(
        &mut self,
        admission: Admission,
        verdict: Verdict,
        took: Duration,
        now: Instant,
    ) -> Heard {
        self.catch_up(now);
        if !self.matches(admission) {
            return Heard::Late;
        }
        match (&self.state, verdict) {
            (State::Closed { .. }, Verdict::Good | Verdict::Bad) => {
                self.count(verdict == Verdict::Bad, took, now);
            }
            // A probe says less than a real call: until one has succeeded, the first failure opens again.
            (State::HalfOpen { .. }, Verdict::Good) => self.close(self.named(), now),
            (State::HalfOpen { .. }, Verdict::Bad) if self.named() => {
                self.probe_at = now + self.probe_pause(now);
                self.enter(State::Open { until: self.probe_at }, now);
            }
            (State::HalfOpen { .. }, Verdict::Bad) => self.open(now),
            (State::HalfOpen { .. }, Verdict::Neutral) => {
                self.probe_at = now + self.probe_pause(now);
                self.state = State::HalfOpen { slot: None }
            }
            (State::Closed { .. }, Verdict::Neutral)
            | (State::Open { .. } | State::Isolated, _) => {}
        }
        Heard::Taken
    }

    /// The admitted call went away without a verdict: its slot is free at once, nothing is counted.
    pub fn give_back(&mut self, admission: Admission, now: Instant) {
        self.record(admission, Verdict::Neutral, Duration::ZERO, now);
    }

    /// May a call of that generation make one more attempt? Closed, and not once reopened since.
    pub fn peek(&self, generation: Generation) -> bool {
        generation == self.generation && matches!(self.state, State::Closed { .. })
    }

    /// By hand: refuses every call until a person closes it.
    pub fn isolate(&mut self, now: Instant) {
        self.enter(State::Isolated, now);
    }

    /// By hand: closed on trial, its history forgotten.
    pub fn close_by_hand(&mut self, now: Instant) {
        self.openings = 0;
        self.close(true, now);
    }

    /// What the next call would meet: an open circuit past its time shows half-open.
    pub fn shown(&self, now: Instant) -> Shown {
        match self.state {
            State::Closed { .. } => Shown::Closed,
            State::Isolated => Shown::Isolated,
            State::Open { until } if now < until || self.named() => Shown::Open,
            State::Open { .. } | State::HalfOpen { .. } => Shown::HalfOpen,
        }
    }

    pub fn consecutive_failures(&self) -> u32 {
        match self.state {
            State::Closed { consecutive, .. } => consecutive,
            State::Open { .. } | State::HalfOpen { .. } | State::Isolated => 0,
        }
    }

    /// `(verdicts, failures)` of the failure window; zeros where none is configured.
    pub fn window(&self, now: Instant) -> (u64, u64) {
        self.failures.as_ref().map_or((0, 0), |window| window.counts(now))
    }

    pub fn generation(&self) -> Generation {
        self.generation
    }

    pub fn last_transition(&self) -> Option<Instant> {
        self.moved_at
    }

    /// Transitions since the last taking, oldest first.
    pub fn take_moves(&mut self) -> Vec<(Shown, Shown)> {
        std::mem::take(&mut self.moves)
    }

    /// What a timer would have done by `now`: a probe that outlived its slot's deadline counts as no answer, and
    /// the open time runs from that deadline, whoever comes to look when.
    fn catch_up(&mut self, now: Instant) {
        if let State::HalfOpen { slot: Some(Slot { deadline, .. }) } = self.state
            && now >= deadline
        {
            let until = deadline + self.open_time();
            self.probe_at = deadline + self.probe_pause(deadline);
            self.enter(State::Open { until }, deadline);
        }
    }

    fn matches(&self, admission: Admission) -> bool {
        let slot = match self.state {
            State::HalfOpen { slot } => slot.map(|slot| slot.id),
            State::Closed { .. } | State::Open { .. } | State::Isolated => None,
        };
        admission.generation == self.generation && admission.slot == slot
    }

    fn take_slot(&mut self, now: Instant) -> Admission {
        self.next_slot += 1;
        let slot = Slot { id: self.next_slot, deadline: now + self.policy.probe_deadline };
        self.state = State::HalfOpen { slot: Some(slot) };
        Admission { generation: self.generation, slot: Some(slot.id) }
    }

    fn refused_until(&self, until: Instant, now: Instant) -> Refused {
        Refused::Open { since: self.down_since, retry_after: until.saturating_duration_since(now) }
    }

    /// A verdict while closed. The consecutive counter stands outside the windows, so that a slow outage with
    /// sparse calls still trips; a good verdict may be the sample that completes a window.
    fn count(&mut self, bad: bool, took: Duration, now: Instant) {
        self.age(now);
        if let Some(window) = &mut self.failures {
            window.push(bad, now);
        }
        if let (Some(window), Some(policy)) = (&mut self.slow, self.policy.slow_ratio) {
            window.push(took > policy.slower_than, now);
        }
        let State::Closed { consecutive, trial } = &mut self.state else { return };
        let mut trips = false;
        if bad {
            *consecutive += 1;
            trips = *trial || *consecutive >= self.policy.consecutive_failures;
            self.spell = Spell { start: now, good: false };
        } else {
            *consecutive = 0;
            *trial = false;
            self.spell.good = true;
        }
        let windows = [&self.failures, &self.slow];
        if trips || windows.into_iter().flatten().any(|window| window.trips(now)) {
            self.open(now);
        }
    }

    /// Forgets one opening for a healthy minute that has passed.
    fn age(&mut self, now: Instant) {
        let length = now.saturating_duration_since(self.spell.start);
        if length >= HEALTHY_SPELL {
            self.openings = self.openings.saturating_sub(u32::from(self.spell.good));
            let rest = length.as_nanos() % HEALTHY_SPELL.as_nanos();
            let rest = Duration::from_nanos(u64::try_from(rest).unwrap_or(0));
            self.spell = Spell { start: now.checked_sub(rest).unwrap_or(now), good: false };
        }
    }

    fn open(&mut self, now: Instant) {
        self.openings = self.openings.saturating_add(1);
        let until = now + self.open_time();
        // A probe that was good in front of a tool that is ill would spend a real call each time it is asked.
        let fooled = matches!(self.state, State::Closed { trial: true, .. });
        self.enter(State::Open { until }, now);
        self.probe_at = if fooled { until } else { now + self.probe_pause(now) };
    }

    fn close(&mut self, trial: bool, now: Instant) {
        for window in [&mut self.failures, &mut self.slow].into_iter().flatten() {
            window.clear();
        }
        self.spell = Spell { start: now, good: false };
        self.enter(State::Closed { consecutive: 0, trial }, now);
    }

    /// min(`open_for` · 2^(n−1), `open_max`), and a random share on top: jitter only lengthens.
    fn open_time(&mut self) -> Duration {
        let doublings = self.openings.saturating_sub(1).min(MAX_DOUBLINGS);
        let grown =
            self.policy.open_for.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX));
        self.lengthened(grown.min(self.policy.open_max))
    }

    fn lengthened(&mut self, base: Duration) -> Duration {
        let most = base.as_nanos() * u128::from(self.policy.open_jitter_permille) / 1000;
        let most = u64::try_from(most).unwrap_or(u64::MAX);
        base.saturating_add(Duration::from_nanos(self.rng.u64(0..=most)))
    }

    fn enter(&mut self, state: State, now: Instant) {
        let from = self.name();
        self.state = state;
        let to = self.name();
        if from == Shown::Closed && to != Shown::Closed {
            self.down_since = now;
        }
        self.generation += 1;
        self.moved_at = Some(now);
        self.moves.push((from, to));
    }

    /// The state it is in, whatever the time.
    fn name(&self) -> Shown {
        match self.state {
            State::Closed { .. } => Shown::Closed,
            State::Open { .. } => Shown::Open,
            State::HalfOpen { .. } => Shown::HalfOpen,
            State::Isolated => Shown::Isolated,
        }
    }
}

#[cfg(test)]
mod tests;
