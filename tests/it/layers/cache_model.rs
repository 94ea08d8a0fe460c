//! Random calls of two agents, writes, failures and time, against a model of a few lines: nobody is told another's
//! answer, an answer from before a write, or one that is too old, and the tool is asked exactly when it has to be.

use std::collections::HashMap;
use std::time::Duration;

use checkrein::call::{Effect, Source};
use proptest::prelude::*;
use tokio::time::Instant;

use super::cache_cases::{by, cached, two_agents};
use super::rig::{Does, MS, Rig, S, advance, status, tool};

/// As `cached` has it.
const TTL: Duration = Duration::from_secs(30);
const STALE: Duration = Duration::from_secs(300);
const BODIES: [&str; 4] = ["0", "1", "2", "3"];
const AGENTS: [&str; 2] = ["support", "sales"];

#[derive(Debug, Clone)]
enum Step {
    /// Agent, question, whether the tool works.
    Ask(usize, u8, bool),
    Write,
    Wait(Duration),
}

fn step() -> impl Strategy<Value = Step> {
    let wait = prop_oneof![
        (0_u64..40).prop_map(Duration::from_secs),
        Just(TTL - MS),
        Just(TTL),
        Just(STALE),
        Just(TTL + STALE - MS),
    ];
    prop_oneof![
        5 => (0_usize..2, 0_u8..3, any::<bool>()).prop_map(|(a, q, up)| Step::Ask(a, q, up)),
        1 => Just(Step::Write),
        3 => wait.prop_map(Step::Wait),
    ]
}

/// What the cache has to know: who was told what, and when.
#[derive(Default)]
struct Model {
    kept: HashMap<(usize, u8), (Instant, usize)>,
    asked: u32,
}

async fn ask(rig: &Rig, model: &mut Model, global: bool, (who, question, up): (usize, u8, bool)) {
    let body = model.asked as usize % BODIES.len();
    rig.backend.always(match up {
        true => Does::Answer(Duration::ZERO, BODIES[body]),
        false => Does::Fail(Duration::ZERO, status(503)),
    });
    let call = by(rig, AGENTS[who], &format!(r#"{{"id":"{question}"}}"#));
    let outcome = rig.send(call).await;
    let owner = if global { 0 } else { who };
    let now = Instant::now();
    let kept = model.kept.get(&(owner, question)).map(|(came, body)| (now - *came, *body));
    let expected = match kept {
        Some((age, body)) if age < TTL => Some((Source::Cache, Some(age), body)),
        _ if up => Some((Source::Tool, None, body)),
        Some((age, body)) if age < TTL + STALE => Some((Source::StaleCache, Some(age), body)),
        Some(_) | None => None,
    };
    let fresh = kept.is_some_and(|(age, _)| age < TTL);
    if !fresh {
        model.asked += 1;
        if up {
            model.kept.insert((owner, question), (now, body));
        }
    }
    let got = outcome.ok().map(|result| {
        let body = BODIES.iter().position(|body| body.as_bytes() == &result.content.bytes[..]);
        (result.source, result.notes.age, body.expect("a body of ours"))
    });
    assert_eq!(got, expected);
}

async fn run(steps: Vec<Step>, global: bool) {
    let rig = two_agents(vec![cached(Some(STALE), global), tool("pay", Effect::Write)]);
    let (mut model, mut writes) = (Model::default(), 0);
    for step in steps {
        match step {
            Step::Ask(who, question, up) => {
                ask(&rig, &mut model, global, (who, question, up)).await;
            }
            Step::Write => {
                rig.backend.always(Does::Answer(Duration::ZERO, "0"));
                let call = by(&rig, AGENTS[0], &format!(r#"{{"id":"w{writes}"}}"#));
                let tool = checkrein::call::ToolName::asked("pay");
                let call = checkrein::call::ToolCall { tool, ..call };
                rig.send(call).await.expect("a write");
                writes += 1;
                model.kept.clear();
            }
            Step::Wait(time) => advance(time).await,
        }
        assert_eq!(rig.backend.hits(), model.asked + writes, "each question once");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_cache_tells_what_its_model_tells(
        steps in prop::collection::vec(step(), 1..40),
        global in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all().start_paused(true).build().expect("a runtime");
        runtime.block_on(run(steps, global));
    }

    /// However many ask at once, and whoever goes away: the tool has one request of them, never two, never none.
    #[test]
    fn one_flight_counts_its_requests(asks in 2_usize..30, gone in 0_usize..30) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            let rig = two_agents(vec![cached(None, false)]);
            rig.backend.always(Does::Answer(S, "1"));
            let mut tasks = Vec::new();
            for _ in 0..asks {
                tasks.push(super::rig::start(rig.send(by(&rig, AGENTS[0], "{}"))).await);
            }
            let gone = gone % asks;
            for task in tasks.drain(..gone) {
                prop_assert_eq!(rig.backend.running(), 1);
                task.abort();
                super::rig::settle().await;
            }
            prop_assert_eq!(rig.backend.running(), 1);
            advance(S).await;
            for task in tasks {
                task.await.expect("no panic").expect("an answer");
            }
            // One anew for each leader that went away, at most.
            prop_assert!((1..=gone + 1).contains(&(rig.backend.hits() as usize)));
            Ok(())
        })?;
    }
}
