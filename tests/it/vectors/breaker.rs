//! Breakers: our circuit with the vectors' numbers; jitter 0, no growth, one verdict a call.

use std::time::{Duration, SystemTime};

use checkrein::backends::classify::{Promises, status};
use checkrein::call::{Effect, Verdict};
use checkrein::layers::circuit::{Admission, Circuit, Heard, Refused, Shown};
use checkrein::policy::snapshot::{BreakerPolicy, RatioPolicy, SlowPolicy};
use serde_json::Value;
use tokio::time::Instant;

use super::Vector;
use crate::layers::rig::{MS, S, breaker};

/// Never by a run of failures.
const NEVER: u32 = 1_000_000;

struct Rig {
    circuit: Circuit,
    refused: u32,
}

impl Rig {
    fn new(policy: BreakerPolicy) -> Self {
        Self { circuit: Circuit::seeded(policy, Instant::now(), 1), refused: 0 }
    }
    fn windowed(above_permille: u32, min_calls: u32, window: Duration, open: Duration) -> Self {
        let ratio = RatioPolicy { above_permille, min_calls, window };
        Self::new(BreakerPolicy { failure_ratio: Some(ratio), ..breaker(NEVER, open) })
    }
    fn acquire(&mut self) -> Option<Admission> {
        let admitted = self.circuit.admit(Instant::now()).ok();
        self.refused += u32::from(admitted.is_none());
        admitted
    }
    fn record(&mut self, admission: Admission, verdict: Verdict) -> Heard {
        self.circuit.record(admission, verdict, Duration::ZERO, Instant::now())
    }
    /// `S` good, `F` bad, `excluded` and `ignored` neutral.
    fn call(&mut self, letter: &str) {
        let admission = self.acquire().unwrap_or_else(|| panic!("{letter}: not admitted"));
        self.record(
            admission,
            match letter {
                "S" => Verdict::Good,
                "F" => Verdict::Bad,
                "excluded" | "ignored" => Verdict::Neutral,
                other => panic!("no driver for the call {other}"),
            },
        );
    }
    fn calls(&mut self, letters: &str) {
        for letter in letters.chars() {
            self.call(&letter.to_string());
        }
    }
    fn state(&self) -> &'static str {
        match self.circuit.shown(Instant::now()) {
            Shown::Closed => "CLOSED",
            Shown::Open => "OPEN",
            Shown::HalfOpen => "HALF_OPEN",
            Shown::Isolated => "FORCED_OPEN",
        }
    }
    fn counts(&self) -> (u64, u64) {
        self.circuit.window(Instant::now())
    }
    /// Open, and its time over.
    fn half_open(open_for: Duration) -> Self {
        let mut rig = Self::new(breaker(1, open_for));
        rig.call("F");
        rig
    }
}

async fn pass(time: Duration) {
    tokio::time::advance(time).await;
}

fn seconds(value: f64) -> Duration {
    Duration::from_secs_f64(value)
}

fn permille(share: f64) -> u32 {
    (share * 1000.0).round() as u32
}

pub(super) async fn consecutive_failures(vector: Vector) {
    let threshold = u32::try_from(vector.number("n")).expect("small");
    let open_for = Duration::from_secs(vector.number("mark_dead_s"));
    for step in vector.steps(&["seq", "dead_at"]) {
        let mut rig = Rig::new(breaker(threshold, open_for));
        let (mut seen, mut dead_at) = (0, None);
        for part in step.text("seq").split(',') {
            if part == "revived" {
                // As a changed breaker section makes it: a circuit without a past.
                rig = Rig::new(breaker(threshold, open_for));
                continue;
            }
            for letter in part.chars() {
                rig.call(&letter.to_string());
                seen += 1;
                if rig.state() == "OPEN" {
                    dead_at.get_or_insert(seen);
                }
            }
        }
        assert_eq!(dead_at, Some(step.number("dead_at")), "{}", step.text("seq"));
    }
}

pub(super) async fn consecutive_vs_probe(vector: Vector) {
    assert_eq!(vector.number("jitter"), 0);
    let failures = u32::try_from(vector.number("max_failures")).expect("small");
    let mut rig = Rig::new(breaker(failures, Duration::from_secs(vector.number("backoff_s"))));
    let start = Instant::now();
    for step in vector.steps(&["t_ms", "event", "gate"]) {
        pass(step.number("t_ms") as u32 * MS - start.elapsed()).await;
        if step.has("event") {
            for event in step.text("event").split(',') {
                assert_eq!(event, "502");
                rig.call("F");
            }
        }
        match step.text("gate") {
            "shut" => assert!(rig.acquire().is_none()),
            "limited(1)" => {
                assert!(rig.acquire().is_some_and(|admission| admission.is_probe()));
                assert!(rig.acquire().is_none());
            }
            other => panic!("no driver for the gate {other}"),
        }
    }
}

/// Theirs trips on a share of successes below the threshold, ours on a share of failures at or above its complement.
pub(super) async fn success_rate_window(vector: Vector) {
    let window = Duration::from_secs(vector.number("window_s"));
    assert_eq!(vector.number("buckets"), 10);
    let trips = async |failures: u32, gap: Duration| {
        let mut rig = Rig::windowed(500, 5, window, 5 * S);
        for n in 0..failures {
            pass(gap * u32::from(n > 0)).await;
            rig.call("F");
        }
        rig.state() == "OPEN"
    };
    for step in vector.steps(&["case", "trip", "trip_same", "ratio"]) {
        match step.text("case") {
            "4F, min 5, thr .5" => assert_eq!(trips(4, Duration::ZERO).await, step.flag("trip")),
            "5F, min 5, thr .5" => assert_eq!(trips(5, Duration::ZERO).await, step.flag("trip")),
            "empty" => assert_eq!(trips(0, Duration::ZERO).await, step.flag("trip")),
            "5F within 1 ms == 5F over 4 s" => {
                let (burst, spread) =
                    (trips(5, Duration::from_micros(200)).await, trips(5, S).await);
                assert_eq!(burst == spread, step.flag("trip_same"));
            }
            "F@0 S@5 then S@10.5" => {
                let mut rig = Rig::windowed(1001, 1, window, S);
                rig.call("F");
                pass(5 * S).await;
                rig.call("S");
                pass(5500 * MS).await;
                rig.call("S");
                assert_eq!(good_share(&rig), step.float("ratio"));
            }
            "2F@0 8S@6" => {
                let mut rig = Rig::windowed(1001, 1, window, S);
                rig.calls("FF");
                pass(6 * S).await;
                rig.calls("SSSSSSSS");
                assert_eq!(good_share(&rig), step.float("ratio"));
            }
            other => panic!("no driver for the case {other}"),
        }
    }
}

fn good_share(rig: &Rig) -> f64 {
    let (calls, failures) = rig.counts();
    (calls - failures) as f64 / calls as f64
}

pub(super) async fn window(vector: Vector) {
    assert_eq!(vector.config("window"), "TIME 20s");
    let above = permille(vector.number("failure_rate") as f64 / 100.0);
    let min = u32::try_from(vector.number("min_calls")).expect("small");
    let mut rig = Rig::windowed(above, min, 20 * S, 60 * S);
    let start = Instant::now();
    let known = ["t", "call", "state", "rate", "buffered", "failed", "permitted", "not_permitted"];
    for step in vector.steps(&known) {
        if step.has("t") {
            pass(Duration::from_secs(step.number("t")) - start.elapsed()).await;
        }
        if step.text("call") == "acquire" {
            assert_eq!(rig.acquire().is_some(), step.flag("permitted"));
            assert_eq!(u64::from(rig.refused), step.number("not_permitted"));
            continue;
        }
        rig.call(step.text("call"));
        assert_eq!(rig.state(), step.text("state"), "{}", step.0);
        let (calls, failures) = rig.counts();
        if step.has("rate") {
            // −1 is theirs for "too few to say".
            let enough = calls >= u64::from(min);
            let rate = if enough { failures as f64 * 100.0 / calls as f64 } else { -1.0 };
            assert_eq!(rate, step.float("rate"));
        }
        if step.has("buffered") {
            assert_eq!((calls, failures), (step.number("buffered"), step.number("failed")));
        }
    }
}

pub(super) async fn threshold(vector: Vector) {
    for step in vector.steps(&["throughput", "min", "rate", "threshold", "should_break"]) {
        let min = u32::try_from(step.number("min")).expect("small");
        let mut rig = Rig::windowed(permille(step.float("threshold")), min, 60 * S, 60 * S);
        let calls = step.number("throughput");
        let failures = (calls as f64 * step.float("rate")).round() as u64;
        let mut broke = false;
        for n in 0..calls {
            if rig.state() == "OPEN" {
                break;
            }
            rig.call(if n < failures { "F" } else { "S" });
            broke = rig.state() == "OPEN";
        }
        assert_eq!(broke, step.flag("should_break"), "{}", step.0);
    }
}

pub(super) async fn slow(vector: Vector) {
    let ratio = |name| RatioPolicy {
        above_permille: permille(vector.number(name) as f64 / 100.0),
        min_calls: u32::try_from(vector.number("min_calls")).expect("small"),
        window: 60 * S,
    };
    let slower_than = Duration::from_secs(vector.number("slow_s"));
    let mut policy = breaker(NEVER, 60 * S);
    policy.failure_ratio = Some(ratio("failure_rate"));
    policy.slow_ratio = Some(SlowPolicy { ratio: ratio("slow_rate"), slower_than });
    let mut rig = Rig::new(policy.clone());
    let mut slow_calls = 0;
    let steps = vector.steps(&["dur_s", "ok", "state", "slow_rate"]);
    for step in &steps {
        let took = seconds(step.float("dur_s"));
        let verdict = if step.flag("ok") { Verdict::Good } else { Verdict::Bad };
        let admission = rig.acquire().expect("admitted");
        rig.circuit.record(admission, verdict, took, Instant::now());
        slow_calls += u32::from(took > slower_than);
        let expected = if step.has("state") { step.text("state") } else { "CLOSED" };
        assert_eq!(rig.state(), expected, "{}", step.0);
        if step.has("slow_rate") {
            assert_eq!(f64::from(slow_calls) * 100.0 / steps.len() as f64, step.float("slow_rate"));
        }
    }
    // Strictly slower: exactly the limit is not slow.
    let mut rig = Rig::new(policy);
    for _ in 0..10 {
        let admission = rig.acquire().expect("admitted");
        rig.circuit.record(admission, Verdict::Good, slower_than, Instant::now());
    }
    assert_eq!(rig.state(), "CLOSED");
}

/// Theirs permits four, ours one: the first asks pass, the rest are refused, a release admits again.
pub(super) async fn half_open_permits(vector: Vector) {
    let permitted = usize::try_from(vector.number("permitted")).expect("small");
    let mut rig = Rig::half_open(S);
    pass(S).await;
    let mut held = None;
    for step in vector.steps(&["acquire", "op", "then_acquire"]) {
        if step.has("acquire") {
            let expected = step.value("acquire").as_array().expect("asks");
            assert_eq!(expected.iter().filter(|ask| **ask == Value::Bool(true)).count(), permitted);
            for n in 0..expected.len() {
                let asked = rig.acquire();
                assert_eq!(asked.is_some(), n == 0);
                held = held.or(asked);
            }
        } else {
            assert_eq!(step.text("op"), "release");
            rig.circuit.give_back(held.expect("the one permit"), Instant::now());
            assert_eq!(rig.acquire().is_some(), step.flag("then_acquire"));
        }
    }
}

/// One good probe closes; what the window held is gone.
pub(super) async fn closing_resets(vector: Vector) {
    for step in vector.steps(&["calls", "state", "metrics_reset"]) {
        let mut rig = Rig::windowed(500, 5, 60 * S, S);
        rig.calls("FFFFF");
        pass(S).await;
        assert!(step.text("calls").contains('S'));
        rig.call("S");
        assert_eq!(rig.state(), step.text("state"));
        assert_eq!(rig.counts() == (0, 0), step.flag("metrics_reset"));
    }
}

/// A neutral probe decides nothing and gives its place back, as often as it comes.
pub(super) async fn half_open_ignored(vector: Vector) {
    let mut rig = Rig::half_open(S);
    pass(S).await;
    for step in vector.steps(&["calls", "state", "buffered"]) {
        match step.text("calls") {
            "4 x ignored" => {
                for _ in 0..4 {
                    rig.call("ignored");
                    assert_eq!(rig.state(), step.text("state"));
                }
                assert_eq!(rig.counts(), (0, 0));
                assert_eq!(step.number("buffered"), 0);
            }
            // Theirs needs four verdicts; ours closes at the first good one.
            "SSSS" => rig.call("S"),
            "SSS,ignored(release),F" => {
                rig.call("ignored");
                assert_eq!(rig.state(), "HALF_OPEN");
                rig.call("S");
            }
            other => panic!("no driver for the calls {other}"),
        }
        assert_eq!(rig.state(), step.text("state"));
    }
}

pub(super) async fn open_wait(vector: Vector) {
    let mut rig = Rig::half_open(Duration::from_secs(vector.number("wait_s")));
    let start = Instant::now();
    for step in vector.steps(&["t", "acquire", "not_permitted", "state"]) {
        pass(Duration::from_secs(step.number("t")) - start.elapsed()).await;
        assert_eq!(rig.acquire().is_some(), step.flag("acquire"));
        if step.has("not_permitted") {
            assert_eq!(u64::from(rig.refused), step.number("not_permitted"));
        }
        if step.has("state") {
            assert_eq!(rig.state(), step.text("state"));
        }
    }
}

/// Theirs grows by half without end, ours doubles to a ceiling: 30, 60, 60 s. The first open time is the same rule.
pub(super) async fn open_wait_grows(vector: Vector) {
    let initial = Duration::from_secs(vector.number("initial_s"));
    let steps = vector.steps(&["open", "half_open_after_s"]);
    for (nth, first, expected) in
        [(1, initial, initial), (1, 30 * S, 30 * S), (2, 30 * S, 60 * S), (3, 30 * S, 60 * S)]
    {
        let mut policy = breaker(1, first);
        policy.open_max = 60 * S;
        let mut rig = Rig::new(policy);
        rig.call("F");
        for _ in 1..nth {
            while rig.state() == "OPEN" {
                pass(S).await;
            }
            rig.call("F");
        }
        let Err(Refused::Open { retry_after, .. }) = rig.circuit.admit(Instant::now()) else {
            panic!("open")
        };
        assert_eq!(retry_after, expected, "opening {nth}");
    }
    assert_eq!(seconds(steps[0].float("half_open_after_s")), initial);
    assert!(steps[1].float("half_open_after_s") > steps[0].float("half_open_after_s"));
    assert_eq!([steps[0].number("open"), steps[1].number("open")], [1, 2]);
}

pub(super) async fn isolated(vector: Vector) {
    let mut rig = Rig::new(breaker(3, Duration::from_secs(vector.number("wait_s"))));
    for step in vector.steps(&["op", "acquire", "advance_s", "state"]) {
        if step.has("op") {
            assert_eq!(step.text("op"), "force_open");
            rig.circuit.isolate(Instant::now());
        }
        if step.has("advance_s") {
            pass(Duration::from_secs(step.number("advance_s"))).await;
        }
        assert_eq!(rig.acquire().is_some(), step.flag("acquire"));
        if step.has("state") {
            assert_eq!(rig.state(), step.text("state"));
        }
    }
}

/// There is no such call to make: whatever is heard or asked while closed, half-open is not the next state.
pub(super) async fn no_way_from_closed_to_half_open(vector: Vector) {
    for step in vector.steps(&["frm", "to", "error"]) {
        assert_eq!((step.text("frm"), step.text("to")), ("CLOSED", "HALF_OPEN"));
        assert!(step.flag("error"));
        let mut rng = fastrand::Rng::with_seed(12);
        let mut rig = Rig::new(breaker(3, S));
        for _ in 0..10_000 {
            pass(rng.u32(0..2000) * MS).await;
            if let Some(admission) = rig.acquire() {
                let verdicts = [Verdict::Good, Verdict::Bad, Verdict::Neutral];
                rig.record(admission, verdicts[rng.usize(0..3)]);
            }
        }
        let moves = rig.circuit.take_moves();
        assert!(moves.contains(&(Shown::Closed, Shown::Open)));
        assert!(!moves.contains(&(Shown::Closed, Shown::HalfOpen)));
    }
}

pub(super) async fn rolling_window(vector: Vector) {
    assert_eq!(vector.number("windows"), 10);
    let window = Duration::from_secs(vector.number("sampling_s"));
    let mut rig = Rig::windowed(1001, 1, window, S);
    for step in vector.steps(&["i", "add", "advance_s", "throughput", "rate"]) {
        if step.has("add") {
            for letter in step.text("add").split(',') {
                rig.call(letter);
            }
        }
        // Its numbers are those after the pause.
        pass(Duration::from_secs(step.number("advance_s"))).await;
        let (calls, failures) = rig.counts();
        if step.has("throughput") {
            assert_eq!(calls, step.number("throughput"), "{}", step.0);
            assert_eq!(failures as f64 / calls as f64, step.float("rate"), "{}", step.0);
        }
        assert!(step.has("i"));
    }
}

pub(super) async fn half_open(vector: Vector) {
    let open_for = Duration::from_secs(vector.number("break_s"));
    let known = ["state", "second_concurrent", "probe", "next", "late_result", "extends_open"];
    for step in vector.steps(&known) {
        let mut rig = Rig::new(breaker(1, open_for));
        let late = rig.acquire().expect("closed");
        rig.call("F");
        match step.text("state") {
            "HALF_OPEN" => {
                pass(open_for).await;
                let probe = rig.acquire().expect("the probe");
                if step.has("second_concurrent") {
                    let second = rig.circuit.admit(Instant::now());
                    let Err(Refused::Open { retry_after, .. }) = second else { panic!("refused") };
                    assert!(!retry_after.is_zero());
                    continue;
                }
                let good = step.text("probe") == "ok";
                rig.record(probe, if good { Verdict::Good } else { Verdict::Bad });
            }
            "OPEN" => {
                pass(S).await;
                assert_eq!(step.text("late_result"), "fail");
                assert_eq!(rig.record(late, Verdict::Bad), Heard::Late);
                let Err(Refused::Open { retry_after, .. }) = rig.circuit.admit(Instant::now())
                else {
                    panic!("open")
                };
                assert_eq!(retry_after > open_for - S, step.flag("extends_open"));
            }
            "ISOLATED" => {
                rig.circuit.isolate(Instant::now());
                assert_eq!(step.text("late_result"), "ok");
                assert_eq!(rig.record(late, Verdict::Good), Heard::Late);
                assert_eq!((rig.state(), step.text("next")), ("FORCED_OPEN", "ISOLATED"));
                continue;
            }
            other => panic!("no driver for the state {other}"),
        }
        assert_eq!(rig.state(), step.text("next"), "{}", step.0);
    }
}

pub(super) async fn neutral_probe(vector: Vector) {
    for step in vector.steps(&["state", "probe", "must", "must_not"]) {
        assert_eq!((step.text("state"), step.text("probe")), ("HALF_OPEN", "neutral"));
        assert_eq!(step.text("must"), "release the probe slot; next call may probe");
        assert_eq!(step.text("must_not"), "stay HALF_OPEN rejecting forever");
        let mut rig = Rig::half_open(S);
        pass(S).await;
        rig.call("ignored");
        assert!(rig.acquire().is_some_and(|next| next.is_probe()));
    }
}

pub(super) async fn sequence(vector: Vector) {
    assert_eq!(vector.config("trip"), "consecutive_failures>5");
    assert_eq!(vector.number("max_requests"), 1);
    let timeout = Duration::from_secs(vector.number("timeout_s"));
    let mut rig = Rig::new(breaker(6, timeout));
    for step in vector.steps(&["calls", "at", "state"]) {
        if step.has("at") {
            match step.text("at") {
                "timeout-1ms" => pass(timeout - MS).await,
                // Theirs begins a millisecond after the one before, or a whole time-out after the failed probe.
                "> timeout" => {
                    while rig.state() == "OPEN" {
                        pass(MS).await;
                    }
                }
                other => panic!("no driver for the time {other}"),
            }
        }
        if step.has("calls") {
            rig.calls(step.text("calls"));
        }
        assert_eq!(rig.state(), step.text("state"), "{}", step.0);
    }
}

/// Counting and neutrality are ours too; three half-open probes are not: one decides.
pub(super) async fn ratio_excluded(vector: Vector) {
    assert_eq!(vector.config("trip"), "n>=3 and f/n>=0.6");
    assert_eq!(vector.number("max_requests"), 3);
    let interval = Duration::from_secs(vector.number("interval_s"));
    let timeout = Duration::from_secs(vector.number("timeout_s"));
    let mut rig = Rig::windowed(600, 3, interval, timeout);
    let known = ["calls", "state", "requests", "excluded", "at", "counts", "why", "fourth"];
    let mut seen = 0;
    for step in vector.steps(&known) {
        seen += 1;
        if step.has("at") && step.text("at") == "interval elapsed" {
            pass(interval).await;
            assert_eq!((rig.counts(), step.text("counts")), ((0, 0), "reset"));
            continue;
        }
        if step.has("at") {
            assert_eq!(step.text("at"), "> timeout");
            pass(timeout + MS).await;
        }
        match step.has("calls").then(|| step.text("calls")) {
            None => {}
            Some("5x(S,F,excluded)") => {
                for _ in 0..5 {
                    for letter in ["S", "F", "excluded"] {
                        rig.call(letter);
                    }
                }
                let all = step.number("requests") - step.number("excluded");
                assert_eq!(rig.counts(), (all, all / 2));
            }
            Some("F,S,F") => {
                for letter in ["F", "S", "F"] {
                    rig.call(letter);
                }
            }
            Some("4 x excluded") => {
                for _ in 0..4 {
                    rig.call("excluded");
                }
            }
            Some("F") => rig.call("F"),
            // From here on theirs counts three good probes; ours closes at the first.
            Some("SS" | "S in flight + S" | "third S completes") => {
                let before = rig.state();
                assert!(["HALF_OPEN", "CLOSED"].contains(&before), "{before}");
                rig.call("S");
                assert_eq!(rig.state(), "CLOSED");
                continue;
            }
            Some(other) => panic!("no driver for the calls {other}"),
        }
        assert_eq!(rig.state(), step.text("state"), "{}", step.0);
    }
    assert_eq!(seen, 9);
}

pub(super) async fn ratio(vector: Vector) {
    assert_eq!(vector.config("trip"), "n>=3 and f/n>=0.6");
    assert_eq!((vector.number("bucket_s"), vector.number("buckets")), (3, 10));
    let mut rig = Rig::windowed(600, 3, Duration::from_secs(vector.number("interval_s")), 60 * S);
    for step in vector.steps(&["state_before", "ratio", "state", "calls"]) {
        if step.has("state_before") {
            assert_eq!(step.text("state_before"), "9 S + 13 F live");
            rig.calls("SSSSSSSSS");
            pass(20 * S).await;
            rig.calls("FFFFFFFFFFFFF");
        } else {
            rig.calls(step.text("calls"));
        }
        let (calls, failures) = rig.counts();
        assert!((failures as f64 / calls as f64 - step.float("ratio")).abs() < 1e-9);
        assert_eq!(rig.state(), step.text("state"));
    }
}

pub(super) async fn stale_generation(vector: Vector) {
    for step in vector.steps(&["case", "effect"]) {
        assert_eq!(step.text("effect"), "result ignored, counters unchanged");
        assert!(step.text("case").starts_with("call admitted in generation g"));
        let mut rig = Rig::windowed(1000, 3, 60 * S, S);
        let stale = [rig.acquire().expect("closed"), rig.acquire().expect("closed")];
        rig.calls("FFF");
        let before = (rig.counts(), rig.state());
        for (admission, verdict) in stale.into_iter().zip([Verdict::Good, Verdict::Bad]) {
            assert_eq!(rig.record(admission, verdict), Heard::Late);
        }
        assert_eq!((rig.counts(), rig.state()), before);
    }
}

/// At the level of the circuit; through the stack: `order_01_later_refusal_returns_permit_of_a_probe`.
pub(super) async fn later_reject(vector: Vector) {
    for step in vector.steps(&["case", "must"]) {
        assert!(step.text("case").starts_with("half-open permit taken"));
        assert_eq!(step.text("must"), "permit returned, breaker unchanged");
        let mut rig = Rig::half_open(S);
        pass(S).await;
        let permit = rig.acquire().expect("the probe");
        let before = rig.circuit.generation();
        assert_eq!(rig.record(permit, Verdict::Neutral), Heard::Taken);
        assert_eq!((rig.state(), rig.circuit.generation()), ("HALF_OPEN", before));
        assert!(rig.acquire().is_some());
    }
}

/// Through the stack: `bb_b02_dropped_probe_recovers_its_slot_at_once`.
pub(super) async fn probe_cancelled(vector: Vector) {
    for step in vector.steps(&["case", "must"]) {
        assert!(step.text("case").starts_with("probe's caller disconnects"));
        assert!(step.text("must").ends_with("no verdict counted; next caller may probe"));
        let mut rig = Rig::half_open(S);
        pass(S).await;
        let probe = rig.acquire().expect("the probe");
        rig.circuit.give_back(probe, Instant::now());
        assert!(rig.acquire().is_some_and(|next| next.is_probe()));
    }
}

/// Every 4xx is neutral, 429 too (it sets a cooldown instead); 5xx is bad.
pub(super) async fn classification(vector: Vector) {
    let promises = Promises { effect: Effect::Read, not_executed_on: &[], unknown_on: &[] };
    for step in vector.steps(&["status", "breaker"]) {
        let code = u16::try_from(step.number("status")).expect("a status");
        let failed = status(code, &http::HeaderMap::new(), "", promises, SystemTime::UNIX_EPOCH);
        let expected = match step.text("breaker") {
            "failure" => Verdict::Bad,
            "neutral" | "success/neutral" => Verdict::Neutral,
            soft if soft.starts_with("soft: not consecutive") => Verdict::Neutral,
            other => panic!("no driver for {other}"),
        };
        assert_eq!(failed.health, expected, "{code}");
        assert_eq!(failed.cooldown, code == 429);
    }
}
