//! Many messages of one run at once: budgets hold whatever the interleaving.
//!
//! Rounds and calls are exact. Failures, result bytes and cost are known only at an end: they may be passed by the
//! calls then in flight and by no other, so no call may reach its tool once what is known has come to the limit.

use std::sync::OnceLock;

use proptest::prelude::*;

use super::*;

/// Bytes of the longest result.
const LONGEST: u64 = 40;
/// What one call costs, in millionths: the policy says `cost: 2 EUR`.
const COST: u64 = 2_000_000;

/// One call: does it fail, after how many milliseconds, with how long a result.
type Shape = (bool, u64, u64);

#[derive(Debug, Clone, Copy)]
struct Limits {
    calls: u64,
    rounds: u64,
    failures: u64,
    result_bytes: u64,
    cost: u64,
}

impl Limits {
    fn known_at_the_end(&self) -> [(Dimension, u64); 3] {
        [
            (Dimension::Failures, self.failures),
            (Dimension::ResultBytes, self.result_bytes),
            (Dimension::Cost, self.cost * 1_000_000),
        ]
    }
}

fn acts(call: &ToolCall) -> Act {
    let order = order(call);
    let mut parts = order.split('-');
    let fails = parts.next() == Some("fail");
    let mut number = || parts.next().and_then(|part| part.parse().ok()).expect("a number");
    let (after, bytes): (u64, u64) = (number(), number());
    let after = Duration::from_millis(after);
    if fails {
        Act::FailAfter(after, FailCode::UpstreamTimeout)
    } else {
        Act::SayAfter(after, "x".repeat(usize::try_from(bytes).expect("short")))
    }
}

fn used(engine: &Engine) -> Vec<(Dimension, u64, Option<u64>)> {
    let run = RunId::new("r1").expect("id");
    engine.run_view(&asker("x").agent, &run).expect("its own run").budgets
}

fn of(budgets: &[(Dimension, u64, Option<u64>)], wanted: Dimension) -> u64 {
    let found = budgets.iter().find(|(dimension, _, _)| *dimension == wanted);
    found.expect("every dimension is told").1
}

/// An engine whose tools write down which budgets were used up when a call reached them.
fn watched(limits: Limits) -> (Arc<Bench>, Arc<Mutex<Vec<String>>>) {
    let Limits { calls, rounds, failures, result_bytes, cost } = limits;
    let run = format!(
        "calls: {calls}, rounds: {rounds}, failures: {failures}, result_bytes: {result_bytes}B, \
         cost: {cost} EUR"
    );
    let (engine, late) =
        (Arc::new(OnceLock::<Weak<Engine>>::new()), Arc::new(Mutex::new(Vec::new())));
    let (seen, noted) = (engine.clone(), late.clone());
    let tools = Tools::new(move |call| {
        let engine = seen.get().and_then(Weak::upgrade).expect("it lives");
        let budgets = used(&engine);
        for (dimension, limit) in limits.known_at_the_end() {
            // Its own cost was taken a moment ago.
            let own = if dimension == Dimension::Cost { COST } else { 0 };
            let known = of(&budgets, dimension) - own;
            if known >= limit {
                let what = format!("{} started with {dimension:?} at {known} of {limit}", call.id);
                noted.lock().expect("no panic").push(what);
            }
        }
        acts(call)
    });
    let bench = bench(&run, tools);
    engine.set(Arc::downgrade(&bench.engine)).expect("once");
    (Arc::new(bench), late)
}

async fn storm(batches: Vec<Vec<Shape>>, limits: Limits) {
    let (bench, late) = watched(limits);
    let mut running = JoinSet::new();
    for (at, batch) in batches.into_iter().enumerate() {
        let bench = bench.clone();
        running.spawn(async move {
            let line = |(n, (fails, after, bytes)): (usize, &Shape)| {
                let what = if *fails { "fail" } else { "say" };
                format!("c{at}-{n} lookup_order {what}-{after}-{bytes}-{at}-{n}")
            };
            let lines: Vec<String> = batch.iter().enumerate().map(line).collect();
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            let answer = bench.turn("r1", &lines).await;
            assert_eq!(answer.answers.len(), lines.len());
            for (line, answer) in lines.iter().zip(&answer.answers) {
                assert!(line.starts_with(answer.id.as_str()));
            }
            answer.answers.iter().any(|answer| dimension(answer) != Some(Dimension::Rounds))
        });
    }
    let ran = running.join_all().await.into_iter().filter(|ran| *ran).count() as u64;
    assert!(ran <= limits.rounds, "{ran} rounds of {}", limits.rounds);
    let hits = bench.tools.hits() as u64;
    assert!(hits <= limits.calls, "{hits} calls of {}", limits.calls);
    let late = late.lock().expect("no panic");
    assert!(late.is_empty(), "{late:?}");

    let budgets = used(&bench.engine);
    let at = |dimension| of(&budgets, dimension);
    assert!(at(Dimension::Calls) <= limits.calls && at(Dimension::Rounds) <= limits.rounds);
    // At most as many ends as ran side by side come after the one that used a budget up.
    let side_by_side = bench.tools.highest.load(Ordering::SeqCst) as u64;
    assert!(at(Dimension::Failures) < limits.failures + side_by_side.max(1));
    assert!(at(Dimension::ResultBytes) < limits.result_bytes + side_by_side.max(1) * LONGEST);
    assert!(at(Dimension::Cost) < limits.cost * 1_000_000 + COST);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..Default::default() })]
    #[test]
    fn no_budget_is_passed_by_more_than_the_calls_in_flight(
        batches in proptest::collection::vec(
            proptest::collection::vec((any::<bool>(), 0..30_u64, 1..LONGEST), 1..6), 1..8),
        calls in 1..30_u64,
        rounds in 1..8_u64,
        failures in 1..6_u64,
        result_bytes in 1..200_u64,
        cost in 1..40_u64,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let limits = Limits { calls, rounds, failures, result_bytes, cost };
        runtime.block_on(storm(batches, limits));
    }
}
