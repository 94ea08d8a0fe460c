//! The transition table row by row, and a small model under arbitrary interleavings.

use proptest::prelude::*;

use super::*;
use crate::policy::snapshot::{RatioPolicy, SlowPolicy};

const S: Duration = Duration::from_secs(1);
const OPEN: Duration = Duration::from_secs(30);
const PROBE: Duration = Duration::from_secs(11);

fn policy() -> BreakerPolicy {
    BreakerPolicy {
        mode: BreakerMode::Enforce,
        count_by_attempt: false,
        consecutive_failures: 3,
        failure_ratio: None,
        slow_ratio: None,
        open_for: OPEN,
        open_max: 2 * OPEN,
        open_jitter_permille: 0,
        probe_deadline: PROBE,
        probe: None,
        probe_every: None,
        is_error_bad: false,
    }
}

struct Rig {
    circuit: Circuit,
    now: Instant,
}

impl Rig {
    fn new(policy: BreakerPolicy) -> Self {
        let now = Instant::now();
        Self { circuit: Circuit::seeded(policy, now, 1), now }
    }
    fn pass(&mut self, time: Duration) {
        self.now += time;
    }
    fn admit(&mut self) -> Admission {
        self.circuit.admit(self.now).expect("admitted")
    }
    fn wait(&mut self) -> Duration {
        match self.circuit.admit(self.now) {
            Err(Refused::Open { retry_after, .. }) => retry_after,
            other => panic!("expected an open circuit, got {other:?}"),
        }
    }
    fn record(&mut self, admission: Admission, verdict: Verdict) -> Heard {
        self.circuit.record(admission, verdict, Duration::ZERO, self.now)
    }
    fn call(&mut self, verdict: Verdict) {
        let admission = self.admit();
        self.record(admission, verdict);
    }
    fn shown(&self) -> Shown {
        self.circuit.shown(self.now)
    }
    fn open(&mut self) {
        for _ in 0..3 {
            self.call(Verdict::Bad);
        }
        assert_eq!(self.shown(), Shown::Open);
    }
    fn half_open(&mut self) -> Admission {
        self.open();
        self.pass(OPEN);
        self.admit()
    }
}

fn rig() -> Rig {
    Rig::new(policy())
}

#[test]
fn row_02_a_good_verdict_ends_a_run_of_failures() {
    let mut rig = rig();
    for verdict in [Verdict::Bad, Verdict::Bad, Verdict::Good, Verdict::Bad, Verdict::Bad] {
        rig.call(verdict);
    }
    assert_eq!((rig.shown(), rig.circuit.consecutive_failures()), (Shown::Closed, 2));
}

#[test]
fn row_04_the_threshold_opens_and_starts_a_new_generation() {
    let mut rig = rig();
    rig.open();
    assert_eq!(rig.circuit.generation(), 1);
    assert_eq!(rig.wait(), OPEN);
}

#[test]
fn row_06_neutral_and_dropped_calls_count_nothing_and_reset_nothing() {
    let mut rig = rig();
    rig.call(Verdict::Bad);
    rig.call(Verdict::Bad);
    rig.call(Verdict::Neutral);
    let dropped = rig.admit();
    rig.circuit.give_back(dropped, rig.now);
    assert_eq!(rig.circuit.consecutive_failures(), 2);
    rig.call(Verdict::Bad);
    assert_eq!(rig.shown(), Shown::Open);
}

#[test]
fn rows_07_and_08_refuses_to_the_instant_and_then_takes_one_probe() {
    let mut rig = rig();
    rig.open();
    rig.pass(OPEN - Duration::from_nanos(1));
    assert_eq!(rig.wait(), Duration::from_nanos(1));
    rig.pass(Duration::from_nanos(1));
    assert_eq!(rig.shown(), Shown::HalfOpen, "what the next call would meet");
    assert!(rig.admit().is_probe());
}

#[test]
fn rows_10_to_12_one_probe_at_a_time_and_a_good_one_closes() {
    let mut rig = rig();
    let probe = rig.half_open();
    assert_eq!(rig.wait(), PROBE);
    rig.pass(S);
    assert_eq!(rig.wait(), PROBE - S);
    assert_eq!(rig.record(probe, Verdict::Good), Heard::Taken);
    assert_eq!((rig.shown(), rig.circuit.consecutive_failures()), (Shown::Closed, 0));
    assert!(!rig.admit().is_probe());
}

#[test]
fn row_13_a_bad_probe_reopens_for_longer() {
    let mut rig = rig();
    let probe = rig.half_open();
    rig.record(probe, Verdict::Bad);
    assert_eq!(rig.wait(), 2 * OPEN);
    rig.pass(2 * OPEN);
    let probe = rig.admit();
    rig.record(probe, Verdict::Bad);
    assert_eq!(rig.wait(), 2 * OPEN, "never past the most");
}

#[test]
fn row_14_a_neutral_or_dropped_probe_frees_the_slot_at_once() {
    let mut rig = rig();
    let probe = rig.half_open();
    rig.record(probe, Verdict::Neutral);
    assert_eq!(rig.record(probe, Verdict::Good), Heard::Late);
    let next = rig.admit();
    assert_eq!(next.generation, probe.generation);
    rig.circuit.give_back(next, rig.now);
    assert_eq!(rig.record(next, Verdict::Bad), Heard::Late);
    let last = rig.admit();
    rig.record(last, Verdict::Good);
    assert_eq!(rig.shown(), Shown::Closed);
}

#[test]
fn row_15_half_open_has_a_deadline_counted_from_it_and_not_from_who_looks() {
    let mut rig = rig();
    let probe = rig.half_open();
    rig.pass(PROBE + S);
    assert_eq!(rig.wait(), OPEN - S);
    assert_eq!(rig.record(probe, Verdict::Good), Heard::Late);
    rig.pass(OPEN - S);
    let next = rig.admit();
    rig.pass(PROBE + OPEN);
    assert_eq!(rig.record(next, Verdict::Bad), Heard::Late, "its slot was given away");
    assert!(rig.admit().is_probe());
}

#[test]
fn rows_16_to_18_isolated_until_a_hand_closes_it_on_trial() {
    let mut rig = rig();
    rig.circuit.isolate(rig.now);
    rig.pass(1000 * S);
    assert!(matches!(rig.circuit.admit(rig.now), Err(Refused::Isolated { .. })));
    rig.circuit.close_by_hand(rig.now);
    rig.call(Verdict::Bad);
    assert_eq!(rig.shown(), Shown::Open, "the first bad verdict reopens");
    rig.circuit.close_by_hand(rig.now);
    rig.call(Verdict::Good);
    rig.call(Verdict::Bad);
    assert_eq!(rig.shown(), Shown::Closed, "until one good");
}

#[test]
fn a_late_verdict_changes_nothing_and_does_not_extend_the_open_time() {
    let mut rig = rig();
    let (first, second) = (rig.admit(), rig.admit());
    rig.open();
    rig.pass(S);
    assert_eq!(rig.record(first, Verdict::Bad), Heard::Late);
    assert_eq!(rig.record(second, Verdict::Good), Heard::Late);
    assert_eq!(rig.wait(), OPEN - S);
}

#[test]
fn one_more_attempt_only_while_closed_and_in_the_generation_of_admission() {
    let mut rig = rig();
    let looping = rig.admit();
    assert!(rig.circuit.peek(looping.generation));
    rig.open();
    assert!(!rig.circuit.peek(looping.generation));
    rig.circuit.close_by_hand(rig.now);
    assert!(!rig.circuit.peek(looping.generation), "a reset revives no old loop");
    let generation = rig.circuit.generation();
    assert!(rig.circuit.peek(generation));
}

#[test]
fn a_healthy_minute_forgets_one_opening() {
    let mut rig = rig();
    let probe = rig.half_open();
    rig.record(probe, Verdict::Bad);
    rig.pass(2 * OPEN);
    rig.call(Verdict::Good);
    // Two openings so far. A minute with a good verdict and no bad one takes one back, an idle one does not.
    rig.call(Verdict::Good);
    rig.pass(60 * S);
    rig.call(Verdict::Good);
    rig.pass(600 * S);
    rig.call(Verdict::Bad);
    rig.call(Verdict::Bad);
    rig.call(Verdict::Bad);
    assert_eq!(rig.wait(), OPEN, "two were forgotten: one minute each held a good verdict");
}

#[test]
fn jitter_only_lengthens() {
    for seed in 0..200 {
        let now = Instant::now();
        let mut policy = policy();
        policy.consecutive_failures = 1;
        policy.open_jitter_permille = 200;
        let mut rig = Rig { circuit: Circuit::seeded(policy, now, seed), now };
        rig.call(Verdict::Bad);
        let wait = rig.wait();
        assert!((OPEN..=OPEN + 6 * S).contains(&wait), "{wait:?}");
    }
}

#[test]
fn consecutive_outside_window_a_slow_outage_with_sparse_calls_still_trips() {
    let mut policy = policy();
    policy.failure_ratio = Some(RatioPolicy { above_permille: 500, min_calls: 10, window: 10 * S });
    let mut rig = Rig::new(policy);
    for _ in 0..3 {
        rig.pass(3600 * S);
        rig.call(Verdict::Bad);
    }
    assert_eq!(rig.shown(), Shown::Open);
}

#[test]
fn rolling_window_across_boundary_sees_the_whole_burst() {
    let ratio = RatioPolicy { above_permille: 500, min_calls: 10, window: 10 * S };
    let mut policy = policy();
    policy.consecutive_failures = 1000;
    policy.failure_ratio = Some(ratio);
    policy.slow_ratio = Some(SlowPolicy { ratio, slower_than: S });
    let mut rig = Rig::new(policy);
    rig.pass(Duration::from_millis(9_990));
    for _ in 0..5 {
        rig.call(Verdict::Bad);
    }
    rig.pass(Duration::from_millis(20));
    for _ in 0..4 {
        rig.call(Verdict::Bad);
    }
    assert_eq!(rig.shown(), Shown::Closed);
    rig.call(Verdict::Bad);
    assert_eq!(rig.shown(), Shown::Open);
}

// ── against a model ──────────────────────────────────────────────────────────────────────────────────────────────

/// The table once more, in milliseconds and without windows, growth or hands.
struct Model {
    now: u64,
    epoch: u32,
    slots: u32,
    state: Is,
}

#[derive(Clone, Copy)]
enum Is {
    Closed(u32),
    Open(u64),
    Half(Option<(u32, u64)>),
}

type Pass = (u32, Option<u32>);

impl Model {
    const OPEN: u64 = 30_000;
    const PROBE: u64 = 11_000;

    fn go(&mut self, state: Is) {
        self.state = state;
        self.epoch += 1;
    }
    fn tick(&mut self) {
        if let Is::Half(Some((_, deadline))) = self.state
            && self.now >= deadline
        {
            self.go(Is::Open(deadline + Self::OPEN));
        }
    }
    fn admit(&mut self) -> Result<Pass, u64> {
        self.tick();
        if let Is::Open(until) = self.state
            && self.now >= until
        {
            self.go(Is::Half(None));
        }
        match self.state {
            Is::Closed(_) => Ok((self.epoch, None)),
            Is::Open(until) | Is::Half(Some((_, until))) => Err(until - self.now),
            Is::Half(None) => {
                self.slots += 1;
                self.state = Is::Half(Some((self.slots, self.now + Self::PROBE)));
                Ok((self.epoch, Some(self.slots)))
            }
        }
    }
    fn settle(&mut self, (epoch, slot): Pass, verdict: Verdict) -> bool {
        self.tick();
        let taken = if let Is::Half(Some((id, _))) = self.state { Some(id) } else { None };
        if (epoch, slot) != (self.epoch, taken) {
            return false;
        }
        match (self.state, verdict) {
            (_, Verdict::Neutral) if slot.is_some() => self.state = Is::Half(None),
            (_, Verdict::Neutral) => {}
            (Is::Closed(n), Verdict::Bad) if n < 2 => self.state = Is::Closed(n + 1),
            (Is::Closed(_), Verdict::Good) => self.state = Is::Closed(0),
            (_, Verdict::Bad) => self.go(Is::Open(self.now + Self::OPEN)),
            (_, Verdict::Good) => self.go(Is::Closed(0)),
        }
        true
    }
}

#[derive(Debug, Clone)]
enum Event {
    Pass(u64),
    Admit,
    Settle(prop::sample::Index, Verdict),
    Drop(prop::sample::Index),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let verdict = prop_oneof![Just(Verdict::Good), Just(Verdict::Bad), Just(Verdict::Neutral)];
    let event = prop_oneof![
        2 => prop_oneof![0..100_u64, 0..40_000_u64, Just(30_000), Just(11_000)].prop_map(Event::Pass),
        4 => Just(Event::Admit),
        4 => (any::<prop::sample::Index>(), verdict).prop_map(|(at, v)| Event::Settle(at, v)),
        1 => any::<prop::sample::Index>().prop_map(Event::Drop),
    ];
    prop::collection::vec(event, 1..200)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

proptest! {
    /// No verdict crosses a generation or a slot; at most one slot is taken; half-open is always left.
    #[test]
    fn the_circuit_does_what_the_table_says_under_any_interleaving(events in events()) {
        let start = Instant::now();
        let mut policy = policy();
        policy.open_max = OPEN;
        let mut circuit = Circuit::seeded(policy, start, 1);
        let mut model = Model { now: 0, epoch: 0, slots: 0, state: Is::Closed(0) };
        let mut out: Vec<(Admission, Pass)> = Vec::new();
        for event in events {
            let now = start + ms(model.now);
            match event {
                Event::Pass(time) => model.now += time,
                Event::Admit => match (circuit.admit(now), model.admit()) {
                    (Ok(admission), Ok(pass)) => {
                        prop_assert_eq!(admission.is_probe(), pass.1.is_some());
                        out.push((admission, pass));
                    }
                    (Err(Refused::Open { retry_after, .. }), Err(wait)) => {
                        prop_assert_eq!(retry_after, ms(wait));
                    }
                    (own, table) => prop_assert!(false, "{:?} where the table says {:?}", own, table),
                },
                Event::Settle(at, verdict) if !out.is_empty() => {
                    let (admission, pass) = out.swap_remove(at.index(out.len()));
                    let heard = circuit.record(admission, verdict, Duration::ZERO, now);
                    prop_assert_eq!(heard == Heard::Taken, model.settle(pass, verdict));
                }
                Event::Drop(at) if !out.is_empty() => {
                    let (admission, pass) = out.swap_remove(at.index(out.len()));
                    circuit.give_back(admission, now);
                    model.settle(pass, Verdict::Neutral);
                }
                Event::Settle(..) | Event::Drop(_) => {}
            }
            let own = circuit.shown(start + ms(model.now));
            let table = match model.state {
                Is::Closed(_) => Shown::Closed,
                Is::Open(until) if model.now < until => Shown::Open,
                Is::Open(_) | Is::Half(_) => Shown::HalfOpen,
            };
            prop_assert_eq!(own, table);
        }
        // Whatever became of the calls in flight: within a probe's deadline and an open time one call is let in.
        let mut now = start + ms(model.now);
        let latest = now + PROBE + OPEN;
        while let Err(Refused::Open { retry_after, .. }) = circuit.admit(now) {
            prop_assert!(!retry_after.is_zero());
            now += retry_after;
            prop_assert!(now <= latest);
        }
    }
}

fn named() -> BreakerPolicy {
    BreakerPolicy { probe: Some(crate::policy::snapshot::Probe::Connect), ..policy() }
}

#[test]
fn with_a_named_probe_no_call_is_let_through_an_open_circuit_at_any_time() {
    let mut rig = Rig::new(named());
    rig.open();
    assert_eq!(rig.wait(), S, "until the next probe");
    rig.pass(100 * S);
    assert_eq!(rig.shown(), Shown::Open);
    assert!(rig.circuit.admit(rig.now).is_err());
    let probe = rig.circuit.admit_probe(rig.now).expect("due");
    assert!(probe.is_probe());
    assert_eq!(rig.wait(), PROBE, "while one is under way");
    assert!(rig.circuit.admit_probe(rig.now).is_none(), "one at a time");
}

#[test]
fn a_named_probe_comes_every_second_in_a_young_outage_and_every_five_in_an_old_one() {
    let mut rig = Rig::new(named());
    rig.open();
    let began = rig.now;
    let mut probes = Vec::new();
    while rig.now < began + 60 * S {
        rig.now = rig.circuit.next_probe().expect("open");
        let probe = rig.circuit.admit_probe(rig.now).expect("due");
        probes.push((rig.now - began).as_secs());
        rig.record(probe, Verdict::Bad);
        assert_eq!(rig.shown(), Shown::Open);
    }
    let young: Vec<u64> = (1..=30).collect();
    assert_eq!(probes[..30], young);
    assert_eq!(probes[30..], [35, 40, 45, 50, 55, 60]);
    let mut rig = Rig::new(BreakerPolicy { probe_every: Some(3 * S), ..named() });
    rig.open();
    assert_eq!(rig.wait(), 3 * S);
}

#[test]
fn a_good_named_probe_closes_on_trial_and_one_bad_call_opens_again_for_the_whole_time() {
    let mut rig = Rig::new(named());
    rig.open();
    rig.pass(S);
    let probe = rig.circuit.admit_probe(rig.now).expect("due");
    assert_eq!(rig.record(probe, Verdict::Good), Heard::Taken);
    assert_eq!(rig.shown(), Shown::Closed);
    assert!(rig.circuit.next_probe().is_none());
    rig.call(Verdict::Bad);
    assert_eq!(rig.shown(), Shown::Open, "the probe is well, the tool is not");
    assert_eq!(rig.wait(), 2 * OPEN, "a real call is spent once in the open time");
    rig.pass(2 * OPEN);
    let probe = rig.circuit.admit_probe(rig.now).expect("due");
    rig.record(probe, Verdict::Good);
    rig.call(Verdict::Good);
    rig.call(Verdict::Bad);
    assert_eq!(rig.shown(), Shown::Closed, "a good call ended the trial");
}

#[test]
fn a_named_probe_that_says_nothing_or_never_ends_is_followed_by_another() {
    let mut rig = Rig::new(named());
    rig.open();
    rig.pass(S);
    let probe = rig.circuit.admit_probe(rig.now).expect("due");
    rig.record(probe, Verdict::Neutral);
    assert!(rig.circuit.admit(rig.now).is_err());
    rig.pass(S);
    let lost = rig.circuit.admit_probe(rig.now).expect("due again");
    rig.pass(PROBE);
    assert!(rig.circuit.admit(rig.now).is_err());
    rig.pass(S);
    assert!(rig.circuit.admit_probe(rig.now).is_some());
    assert_eq!(rig.record(lost, Verdict::Good), Heard::Late);
}
