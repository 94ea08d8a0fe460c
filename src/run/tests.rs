use std::collections::HashMap;

use super::*;
use crate::call::code::{DenyCode, FailCode};
use crate::call::{
    Arguments, CallError, Class, Content, Delivery, Detail, Failed, FrontEnd, Notes, Payload,
    Source, ToolResult, Trace, Verdict,
};
use crate::policy::snapshot::{Agent, Rule};
use crate::strict_json::Limits;
use crate::telemetry::metrics::Metrics;

fn policy() -> RunPolicy {
    RunPolicy {
        name: "default".into(),
        explicit: false,
        max_live: 3,
        wall_clock: Duration::from_secs(1800),
        rounds: Some(3),
        calls: Some(100),
        calls_per_round: Some(16),
        failures: Some(5),
        argument_bytes: Some(1000),
        result_bytes: Some(1000),
        cost: None,
        idle: Duration::from_secs(900),
        stall_turns: 3,
        rate_limit: None,
        fuse: FusePolicy { same_failures: Some(3), same_results: Some(5) },
    }
}

fn agent(name: &str, run: RunPolicy) -> Agent {
    let run = Arc::new(run);
    Agent {
        id: AgentId::new(name).expect("name"),
        rule: Rule { path: "agents.x".into(), line: 1 },
        tokens: Vec::new(),
        allowed: Default::default(),
        denied: HashMap::new(),
        grants: Default::default(),
        choosable_runs: HashMap::from([(run.name.clone(), run.clone())]),
        run,
        dry_run: false,
        constraints: Default::default(),
        rate_limit: None,
        bulkhead: None,
    }
}

fn named(text: &str) -> Wanted {
    Wanted::Named(RunId::new(text).expect("id"))
}

fn runs() -> Arc<Runs> {
    Runs::new(Metrics::new())
}

fn call(run: &Run, id: &str) -> ToolCall {
    let arguments = Arguments::parse(b"{}", Limits::arguments(1 << 10, 8)).expect("sound");
    ToolCall {
        home: None,
        id: CallId::new(id).expect("id"),
        agent: run.agent().clone(),
        run: run.id().clone(),
        tool: ToolName::new("lookup_order").expect("name"),
        front_end: FrontEnd::ToolsApi,
        payload: Payload::Arguments(arguments),
        caller_key: None,
        side: None,
        began: Instant::now(),
        deadline: run.deadline(),
        admitted: None,
        single_attempt: false,
        place: None,
        handoff: None,
        identical: false,
        consent: None,
        entry: None,
        send_gate: None,
        sent_key: None,
        progress: None,
        trace: Trace::default(),
    }
}

fn ok(bytes: &'static [u8]) -> Outcome {
    Ok(ToolResult {
        head: None,
        content: Content { bytes: bytes.into(), form: crate::call::Form::Json },
        source: Source::Tool,
        notes: Notes::default(),
    })
}

fn timed_out() -> Outcome {
    let (class, delivery) = (Class::Transient, Delivery::Unknown);
    Err(Failed::new(FailCode::UpstreamTimeout, class, delivery, Verdict::Bad, "too slow").into())
}

fn dimension(denied: &Denied) -> Dimension {
    let Detail::Budget { dimension, .. } = denied.detail else { panic!("no budget: {denied:?}") };
    dimension
}

#[tokio::test(start_paused = true)]
async fn a_finished_a_foreign_and_an_unopened_run_are_unknown() {
    let (runs, now) = (runs(), Instant::now());
    let (a, b) = (agent("a", policy()), agent("b", policy()));
    let run = runs.enter(&a, &named("r1"), now).expect("opens");
    let foreign = runs.enter(&b, &named("r1"), now).expect_err("foreign");
    runs.finish(&run, "completed");
    let own = runs.enter(&a, &named("r1"), now).expect_err("finished");
    let later = runs.enter(&b, &named("r1"), now).expect_err("foreign and finished");
    let explicit = agent("c", RunPolicy { explicit: true, ..policy() });
    let never = runs.enter(&explicit, &named("r1"), now).expect_err("never opened");
    let owned = runs.owned(run.id(), &b.id).expect_err("foreign");
    for denied in [&foreign, &own, &later, &never, &owned] {
        assert_eq!(denied.code, DenyCode::RunUnknown);
    }
    // To anybody but its owner it is a run that never was, word for word.
    assert_eq!(foreign.message, never.message);
    assert_eq!(later.message, never.message);
    assert_eq!(owned.message, never.message);
}

#[tokio::test(start_paused = true)]
async fn live_runs_are_refused_past_their_bound_and_never_evicted() {
    let (runs, now) = (runs(), Instant::now());
    let a = agent("a", policy());
    let first: Vec<_> = ["r1", "r2", "r3"].map(|id| runs.enter(&a, &named(id), now)).into();
    let refused = runs.enter(&a, &named("r4"), now).expect_err("full");
    assert_eq!(dimension(&refused), Dimension::LiveRuns);
    assert!(runs.enter(&agent("b", policy()), &named("r5"), now).is_ok(), "another agent's bound");
    let again = runs.enter(&a, &named("r1"), now).expect("still there");
    let first = first[0].as_ref().expect("opened");
    assert!(Arc::ptr_eq(&again, first));
    runs.finish(first, "completed");
    runs.finish(first, "completed");
    assert!(runs.enter(&a, &named("r4"), now).is_ok(), "one place is free");
    assert!(runs.enter(&a, &named("r6"), now).is_err(), "ending twice frees no second place");
}

#[tokio::test(start_paused = true)]
async fn an_ambient_run_ends_by_silence_and_a_named_one_by_its_wall_clock() {
    let runs = runs();
    let a = agent("a", policy());
    let ambient = runs.enter(&a, &Wanted::Ambient, Instant::now()).expect("opens");
    let named_run = runs.enter(&a, &named("r1"), Instant::now()).expect("opens");
    tokio::time::advance(Duration::from_secs(800)).await;
    let same = runs.enter(&a, &Wanted::Ambient, Instant::now()).expect("alive");
    assert!(Arc::ptr_eq(&ambient, &same));
    tokio::time::advance(Duration::from_secs(899)).await;
    runs.sweep(Instant::now());
    assert!(runs.get(ambient.id()).is_some());
    tokio::time::advance(Duration::from_secs(1)).await;
    runs.sweep(Instant::now());
    assert!(runs.get(ambient.id()).is_none(), "silent for 900 s");
    assert!(runs.get(named_run.id()).is_some(), "a named run does not end by silence");
    tokio::time::advance(Duration::from_secs(100)).await;
    assert!(runs.enter(&a, &named("r1"), Instant::now()).is_err(), "its 1800 s are over");
    let next = runs.enter(&a, &Wanted::Ambient, Instant::now()).expect("a new one");
    assert_ne!(next.id(), ambient.id());
    assert_eq!(runs.live(), [(a.id.clone(), 1)]);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_asks_on_past_the_wall_clock_gets_a_new_ambient_run_after_idle() {
    let runs = runs();
    let a = agent("a", policy());
    let first = runs.enter(&a, &Wanted::Ambient, Instant::now()).expect("opens");
    for _ in 0..6 {
        tokio::time::advance(Duration::from_secs(450)).await;
        let run = runs.enter(&a, &Wanted::Ambient, Instant::now()).expect("a run");
        if run.id() == first.id() && Instant::now() >= first.deadline() {
            let refused = run.take_call(0, Instant::now()).expect_err("over");
            assert_eq!(dimension(&refused), Dimension::WallClock);
        }
    }
    let last = runs.enter(&a, &Wanted::Ambient, Instant::now()).expect("a run");
    assert_ne!(last.id(), first.id());
    assert!(last.take_call(0, Instant::now()).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_run_that_works_is_not_idle() {
    let runs = runs();
    let a = agent("a", policy());
    let run = runs.enter(&a, &Wanted::Ambient, Instant::now()).expect("opens");
    let busy = run.busy();
    tokio::time::advance(Duration::from_secs(1000)).await;
    runs.sweep(Instant::now());
    assert!(runs.get(run.id()).is_some());
    drop(busy);
    runs.sweep(Instant::now());
    assert!(runs.get(run.id()).is_some(), "its silence begins when the work ends");
    tokio::time::advance(Duration::from_secs(900)).await;
    runs.sweep(Instant::now());
    assert!(runs.get(run.id()).is_none());
}

#[tokio::test(start_paused = true)]
async fn finished_ids_are_forgotten_after_a_day() {
    let runs = runs();
    let a = agent("a", policy());
    let run = runs.enter(&a, &named("r1"), Instant::now()).expect("opens");
    runs.finish(&run, "completed");
    tokio::time::advance(registry::ENDED_FOR).await;
    runs.sweep(Instant::now());
    assert!(runs.live().is_empty());
    assert!(runs.enter(&a, &named("r1"), Instant::now()).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_new_policy_is_adopted_and_a_chosen_budget_keeps_its_name() {
    let (runs, now) = (runs(), Instant::now());
    let mut a = agent("a", policy());
    let long = Arc::new(RunPolicy { name: "long".into(), rounds: Some(9), ..policy() });
    a.choosable_runs.insert("long".into(), long.clone());
    let plain = runs.enter(&a, &named("r1"), now).expect("opens");
    let chosen = runs.create(&a, &long, Some("a goal".to_owned()), now).expect("opens");
    let mut next = agent("a", RunPolicy { rounds: Some(7), ..policy() });
    let longer = Arc::new(RunPolicy { name: "long".into(), rounds: Some(10), ..policy() });
    next.choosable_runs.insert("long".into(), longer);
    runs.enter(&next, &named("r1"), now).expect("known");
    runs.enter(&next, &Wanted::Named(chosen.id().clone()), now).expect("known");
    assert_eq!((plain.policy().rounds, chosen.policy().rounds), (Some(7), Some(10)));
    assert_eq!(chosen.goal(), Some("a goal"));
}

#[tokio::test(start_paused = true)]
async fn bb_l03_failures_end_the_run_with_its_budget_and_are_summed_up() {
    let (runs, now) = (runs(), Instant::now());
    let run = runs.enter(&agent("a", policy()), &named("r1"), now).expect("opens");
    for n in 0_u8..5 {
        run.take_call(10, now).expect("within budget");
        let faulty: Outcome = Err(Denied::new(DenyCode::InvalidArguments, "bad").into());
        run.note_end(&call(&run, "c"), Some(Likeness::of(&[n])), &faulty, Duration::ZERO);
    }
    let refused = run.take_call(10, now).expect_err("five failures");
    assert_eq!(dimension(&refused), Dimension::Failures);
    assert_eq!(run.summary().as_deref(), Some("tried: lookup_order wrong arguments (5×)"));
    assert_eq!(run.failures(), [(call(&run, "c").tool, "invalid_arguments", 5)]);
    assert_eq!(run.trajectory().0.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn ends_feed_the_fuse_the_budget_of_results_and_nothing_else() {
    let (runs, now) = (runs(), Instant::now());
    let run = runs.enter(&agent("a", policy()), &named("r1"), now).expect("opens");
    let (one, digest) = (call(&run, "c1"), Likeness::of(b"a"));
    let limited: Outcome = Err(Denied::new(DenyCode::RateLimited, "later").into());
    for _ in 0..10 {
        run.note_end(&one, Some(digest), &limited, Duration::ZERO);
    }
    assert!(run.fuse(&one.tool, digest, policy().fuse).is_ok(), "we advised to ask again");
    for _ in 0..3 {
        run.note_end(&one, Some(digest), &timed_out(), Duration::ZERO);
    }
    assert!(run.fuse(&one.tool, digest, policy().fuse).is_err());
    run.note_end(&one, Some(digest), &ok(b"{\"a\":1}"), Duration::ZERO);
    assert!(run.fuse(&one.tool, digest, policy().fuse).is_ok());
    let used = |wanted| {
        let found = run.budgets(now).into_iter().find(|(dimension, ..)| *dimension == wanted);
        found.expect("every budget is told").1
    };
    assert_eq!((used(Dimension::Failures), used(Dimension::ResultBytes)), (3, 7));
    assert_eq!(used(Dimension::Calls), 0);
}

#[tokio::test(start_paused = true)]
async fn result_bytes_and_cost_refuse_the_next_call() {
    let (runs, now) = (runs(), Instant::now());
    let a = agent("a", RunPolicy { cost: Some(50), ..policy() });
    let run = runs.enter(&a, &named("r1"), now).expect("opens");
    run.note_end(&call(&run, "c"), None, &ok(&[b'1'; 1001]), Duration::ZERO);
    let refused = run.take_call(0, now).expect_err("over");
    assert_eq!(dimension(&refused), Dimension::ResultBytes);
    let run = runs.enter(&a, &named("r2"), now).expect("opens");
    run.spend(49);
    assert!(run.take_call(0, now).is_ok());
    run.spend(u64::MAX);
    assert_eq!(dimension(&run.take_call(0, now).expect_err("over")), Dimension::Cost);
}

#[tokio::test(start_paused = true)]
async fn rounds_are_exact_and_a_message_sent_again_is_no_new_one() {
    let (runs, now) = (runs(), Instant::now());
    let run = runs.enter(&agent("a", policy()), &named("r1"), now).expect("opens");
    let round = |text: &str| run.take_round(Digest::of(text.as_bytes()), 1);
    assert_eq!(round("m1").expect("1"), 1);
    assert_eq!(round("m1").expect("again"), 1);
    assert_eq!((round("m2").expect("2"), round("m3").expect("3")), (2, 3));
    assert_eq!(dimension(&round("m4").expect_err("over")), Dimension::Rounds);
    assert_eq!(round("m2").expect("again"), 2);
    assert_eq!(run.rounds(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_brings_nothing_new_stalls_after_three() {
    let (runs, now) = (runs(), Instant::now());
    let run = runs.enter(&agent("a", policy()), &named("r1"), now).expect("opens");
    let stalls: Vec<bool> = ["plan", "plan", "", "new", "new", " new ", "", "x"]
        .into_iter()
        .map(|text| run.stalls(text))
        .collect();
    assert_eq!(stalls, [false, false, false, false, false, false, true, false]);
    run.stalls("x");
    run.stalls("x");
    run.take_round(Digest::of(b"m"), 1).expect("a turn with calls");
    assert!(!run.stalls("x"), "calls are progress");
}

#[tokio::test]
async fn calls_and_bytes_are_never_exceeded_however_many_ask_at_once() {
    let (runs, now) = (runs(), Instant::now());
    let run = runs.enter(&agent("a", policy()), &named("r1"), now).expect("opens");
    let taken: usize = std::thread::scope(|scope| {
        let take = || (0..50).filter(|_| run.take_call(9, now).is_ok()).count();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(take)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    // 100 calls of 9 bytes fit into 1000 bytes: the calls are what runs out, and all of them were given.
    assert_eq!(taken, 100);
    let rounds: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8_u8)
            .map(|n| {
                let run = &run;
                scope.spawn(move || {
                    (0..50_u8).filter(|m| run.take_round(Digest::of(&[n, *m]), 1).is_ok()).count()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    assert_eq!(rounds, 3);
    let error: CallError = run.take_call(1, now).expect_err("used up").into();
    assert_eq!(error.code(), "budget_exhausted");
}

#[tokio::test(start_paused = true)]
async fn a_stopped_run_refuses_keeps_its_budgets_and_goes_on_when_resumed() {
    let runs = runs();
    let agent = agent("a", policy());
    let run = runs.enter(&agent, &named("r"), Instant::now()).expect("opened");
    run.take_call(1, Instant::now()).expect("one");
    run.set_state(LoopState::ReviewRequired);
    assert!(run.interrupt("ada", "it loops") && !run.interrupt("grace", "too"));
    assert_eq!(run.stopped().map(|stopped| stopped.who).as_deref(), Some("ada"));
    // Whatever a turn that was under way says at its end.
    run.set_state(LoopState::Continue);
    assert_eq!(run.state(), LoopState::Interrupted);
    let denied = run.refusal().expect("refused");
    assert_eq!(denied.code, DenyCode::RunInterrupted);
    assert!(!denied.message.contains("loops"), "what people told people is not for the model");
    assert!(run.resume() && !run.resume());
    assert_eq!((run.state(), run.refusal().is_some()), (LoopState::Continue, false));
    let calls = run.budgets(Instant::now()).into_iter().find(|(d, ..)| *d == Dimension::Calls);
    assert_eq!(calls.map(|(_, used, _)| used), Some(1));
}

#[tokio::test(start_paused = true)]
async fn silence_does_not_rid_an_agent_of_a_stop_and_the_wall_clock_ends_it_as_interrupted() {
    let runs = runs();
    let agent = agent("a", policy());
    let ambient = runs.enter(&agent, &Wanted::Ambient, Instant::now()).expect("opened");
    let run = runs.enter(&agent, &named("r"), Instant::now()).expect("opened");
    assert!(ambient.interrupt("ada", "x") && run.interrupt("ada", "x"));
    tokio::time::advance(policy().wall_clock + policy().idle).await;
    runs.sweep(Instant::now());
    let again = runs.enter(&agent, &Wanted::Ambient, Instant::now()).expect("still there");
    assert_eq!((again.id(), again.interrupted()), (ambient.id(), true));
    assert_eq!(runs.how_ended(run.id()), Some("interrupted"));
    assert!(ambient.resume());
    runs.sweep(Instant::now());
    assert_eq!(runs.how_ended(ambient.id()), Some("idle"));
}
