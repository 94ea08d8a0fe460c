//! Answers that are told again, shared by calls that ask the same at once, or stand in for a broken tool: through the
//! real stacks, counted at the tool.

use std::sync::Arc;
use std::time::Duration;

use checkrein::call::code::DenyCode;
use checkrein::call::pointer::Pointer;
use checkrein::call::{AgentId, Digest, Effect, Outcome, RunId, Source, ToolCall};
use checkrein::policy::snapshot::*;
use checkrein::run::Wanted;
use tokio::time::Instant;

use super::rig::{
    Does, MS, Rig, S, advance, breaker, code, denied, failed, retries, settle, snapshot, start,
    status, tool, unreachable_tool,
};

const TTL: Duration = Duration::from_secs(30);
const STALE: Duration = Duration::from_secs(300);
const A17: &str = r#"{"id":"A17"}"#;

pub(super) fn cached(stale_if_error: Option<Duration>, global_scope: bool) -> Tool {
    let cache = Some(CachePolicy { ttl: TTL, stale_if_error, global_scope });
    Tool { cache, ..tool("look", Effect::Read) }
}

/// An agent whose runs have no fuse: the same is asked again on purpose.
pub(super) fn agent(tools: &[Tool]) -> Agent {
    let agent = super::rig::agent(tools);
    let fuse = FusePolicy { same_failures: None, same_results: None };
    Agent { run: Arc::new(RunPolicy { fuse, ..(*agent.run).clone() }), ..agent }
}

fn of(tools: Vec<Tool>) -> Rig {
    let agent = agent(&tools);
    Rig::with(snapshot(tools, agent))
}

fn one(tool: Tool) -> Rig {
    of(vec![tool])
}

fn look() -> Tool {
    cached(None, false)
}

fn stale_look() -> Tool {
    cached(Some(STALE), false)
}

/// `support` and `sales`, both with runs of their own.
pub(super) fn two_agents(tools: Vec<Tool>) -> Rig {
    let first = agent(&tools);
    let second = Agent { id: AgentId::new("sales").expect("a name"), ..agent(&tools) };
    let mut policy = snapshot(tools, first);
    policy.agents.insert(second.id.clone(), Arc::new(second));
    let rig = Rig::with(policy);
    for agent in rig.gates.snapshot.agents.values() {
        let run = Wanted::Named(run_of(agent.id.as_str()));
        assert!(rig.gates.runs.enter(agent, &run, Instant::now()).is_ok(), "the run opens");
    }
    rig
}

fn run_of(agent: &str) -> RunId {
    RunId::new(&format!("run-of-{agent}")).expect("a sound id")
}

pub(super) fn by(rig: &Rig, agent: &str, arguments: &str) -> ToolCall {
    let id = AgentId::new(agent).expect("a name");
    ToolCall { agent: id, run: run_of(agent), ..rig.call("look", arguments) }
}

/// Where an answer came from, how old it is, and what it says.
#[track_caller]
fn told(outcome: &Outcome) -> (Source, Option<Duration>, &str) {
    let result = outcome.as_ref().unwrap_or_else(|error| panic!("expected an answer: {error:?}"));
    (result.source, result.notes.age, std::str::from_utf8(&result.content.bytes).expect("UTF-8"))
}

fn lookups(rig: &Rig) -> [f64; 3] {
    ["hit", "stale", "miss"].map(|result| {
        rig.metric("checkrein_cache_lookups_total", &["look", &format!("result=\"{result}\"")])
    })
}

// ── fresh ────────────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(start_paused = true)]
async fn a_fresh_answer_is_told_again_without_its_tool_until_its_time_is_over() {
    let rig = one(look());
    rig.backend.then(Does::Answer(S, "1")).then(Does::Answer(S, "2"));
    assert_eq!(told(&rig.ask_same("look").await), (Source::Tool, None, "1"));
    advance(TTL - MS).await;
    let call = rig.call("look", A17);
    let trace = call.trace.clone();
    let again = rig.send(call).await;
    assert_eq!(told(&again), (Source::Cache, Some(TTL - MS), "1"));
    assert_eq!((again.expect("an answer").notes.attempts, trace.note().cache), (0, Some("hit")));
    advance(MS).await;
    assert_eq!(told(&rig.ask_same("look").await), (Source::Tool, None, "2"));
    assert_eq!((rig.backend.hits(), lookups(&rig)), (2, [1.0, 0.0, 2.0]));
    assert_eq!(rig.metric("checkrein_tool_calls_total", &["look", "outcome=\"ok\""]), 3.0);
}

#[tokio::test(start_paused = true)]
async fn without_the_key_every_read_is_asked() {
    let rig = one(tool("look", Effect::Read));
    for _ in 0..3 {
        assert_eq!(code(&rig.ask_same("look").await), "ok");
    }
    assert_eq!((rig.backend.hits(), lookups(&rig)), (3, [0.0, 0.0, 0.0]));
}

#[tokio::test(start_paused = true)]
async fn a_write_is_never_answered_by_the_cache_whatever_its_policy_says() {
    let cache = Some(CachePolicy { ttl: TTL, stale_if_error: Some(STALE), global_scope: true });
    let rig = one(Tool { cache, ..tool("pay", Effect::Write) });
    rig.backend.always(Does::Answer(50 * MS, "1"));
    for n in 1..=3 {
        assert_eq!(told(&rig.ask_same("pay").await).0, Source::Tool);
        assert_eq!(rig.backend.hits(), n);
    }
    let (one, two) = tokio::join!(rig.ask_same("pay"), rig.ask("pay"));
    assert_eq!((code(&one), code(&two), rig.backend.hits()), ("ok", "ok", 5));
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_told_to_the_agent_that_asked_for_it_alone() {
    let rig = two_agents(vec![look()]);
    rig.backend.then(Does::Answer(S, "1")).then(Does::Answer(S, "2"));
    assert_eq!(told(&rig.send(by(&rig, "support", A17)).await).2, "1");
    assert_eq!(told(&rig.send(by(&rig, "sales", A17)).await).2, "2");
    assert_eq!(told(&rig.send(by(&rig, "support", A17)).await).2, "1");
    // Nor do they share a question that is being asked.
    let other = r#"{"id":"B2"}"#;
    rig.backend.always(Does::Answer(S, "3"));
    let both =
        tokio::join!(rig.send(by(&rig, "support", other)), rig.send(by(&rig, "sales", other)));
    assert_eq!((code(&both.0), code(&both.1), rig.backend.hits()), ("ok", "ok", 4));
}

#[tokio::test(start_paused = true)]
async fn where_the_policy_says_so_agents_share_answers() {
    let rig = two_agents(vec![cached(None, true)]);
    assert_eq!(told(&rig.send(by(&rig, "support", A17)).await).0, Source::Tool);
    assert_eq!(told(&rig.send(by(&rig, "sales", A17)).await).0, Source::Cache);
    assert_eq!(rig.backend.hits(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_may_not_use_the_tool_is_not_told_what_another_was() {
    let mut narrowed = agent(&[]);
    narrowed.id = AgentId::new("sales").expect("a name");
    let tools = vec![cached(None, true)];
    let first = agent(&tools);
    let mut policy = snapshot(tools, first);
    policy.agents.insert(narrowed.id.clone(), Arc::new(narrowed));
    let rig = Rig::with(policy);
    for agent in rig.gates.snapshot.agents.values() {
        let run = Wanted::Named(run_of(agent.id.as_str()));
        assert!(rig.gates.runs.enter(agent, &run, Instant::now()).is_ok());
    }
    assert_eq!(code(&rig.send(by(&rig, "support", A17)).await), "ok");
    assert_eq!(code(&rig.send(by(&rig, "sales", A17)).await), "unknown_tool");
}

#[tokio::test(start_paused = true)]
async fn the_same_question_is_the_same_arguments_but_for_what_is_volatile() {
    let volatile = vec![Pointer::parse("/note").expect("a pointer")];
    let rig = one(Tool { volatile, ..look() });
    for (arguments, hits) in [
        (r#"{"id":"A","note":"x"}"#, 1),
        (r#"{"note":"y","id":"A"}"#, 1),
        (r#"{ "id": "A" }"#, 1),
        (r#"{"id":"B"}"#, 2),
        (r"{}", 3),
    ] {
        assert_eq!(code(&rig.send(rig.call("look", arguments)).await), "ok");
        assert_eq!(rig.backend.hits(), hits, "{arguments}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_never_kept() {
    let rig = one(look());
    for answer in [status(404), status(503), status(429), unreachable_tool()] {
        let again = answer.code;
        rig.backend.then(Does::Fail(MS, answer));
        assert_eq!(failed(&rig.ask_same("look").await).code, again);
        advance(2 * S).await; // past a cooldown
    }
    assert_eq!(told(&rig.ask_same("look").await).0, Source::Tool);
    assert_eq!(lookups(&rig), [0.0, 0.0, 5.0]);
}

#[tokio::test(start_paused = true)]
async fn a_kept_answer_passes_the_gates_above_and_needs_none_of_those_below() {
    let tight = RateLimit { burst: 1, ..super::rig::rate("tool:look", 600 * S, 1) };
    let mut first = agent(&[look()]);
    let run = RunPolicy { calls: Some(3), ..(*first.run).clone() };
    first.run = Arc::new(run);
    let rig = Rig::with(snapshot(vec![Tool { rate_limit: Some(tight), ..look() }], first));
    assert_eq!(told(&rig.ask_same("look").await).0, Source::Tool);
    // No token is left, and none is needed.
    assert_eq!(told(&rig.ask_same("look").await).0, Source::Cache);
    let bad = rig.send(rig.call("look", r#"{"id":7}"#)).await;
    assert_eq!(code(&bad), "invalid_arguments");
    assert_eq!(code(&rig.ask_same("look").await), "budget_exhausted", "it counts as any call");
    assert_eq!(rig.backend.hits(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_rehearses_hears_that_and_no_answer() {
    let rehearses = Agent { dry_run: true, ..agent(&[look()]) };
    let rig = one(look());
    assert_eq!(code(&rig.ask_same("look").await), "ok");
    let rig = rig.reload(snapshot(vec![look()], rehearses));
    assert_eq!(code(&rig.ask_same("look").await), "dry_run");
}

// ── a policy, a person, a write ──────────────────────────────────────────────────────────────────────────────────

#[tokio::test(start_paused = true)]
async fn a_reload_keeps_what_came_of_an_unchanged_section_and_nothing_else() {
    let rig = one(look());
    assert_eq!(code(&rig.ask_same("look").await), "ok");
    let same = look();
    let rig = rig.reload(snapshot(vec![same], agent(&[look()])));
    assert_eq!(told(&rig.ask_same("look").await).0, Source::Cache);
    let changed = || Tool { section: Digest::of(b"changed"), ..look() };
    let rig = rig.reload(snapshot(vec![changed()], agent(&[look()])));
    assert_eq!(told(&rig.ask_same("look").await).0, Source::Tool);
    // Without the key for a while: nobody saw the writes of that time.
    let rig = rig.reload(snapshot(vec![tool("look", Effect::Read)], agent(&[look()])));
    let rig = rig.reload(snapshot(vec![changed()], agent(&[look()])));
    assert_eq!(told(&rig.ask_same("look").await).0, Source::Tool);
}

#[tokio::test(start_paused = true)]
async fn a_tool_switched_off_by_a_person_says_nothing_more_and_forgets_what_it_said() {
    let rig = one(stale_look());
    assert_eq!(code(&rig.ask_same("look").await), "ok");
    let name = super::rig::tool_name("look");
    rig.gates.state.isolate(&name, "ada", "it lies").expect("isolated");
    assert_eq!(code(&rig.ask_same("look").await), "circuit_open");
    advance(TTL).await;
    assert_eq!(code(&rig.ask_same("look").await), "circuit_open", "no old answer either");
    rig.gates.state.reset(&name).expect("closed");
    rig.backend.always(Does::Fail(MS, status(503)));
    assert_eq!(code(&rig.ask_same("look").await), "tool_unavailable", "what it said is gone");
}

#[tokio::test(start_paused = true)]
async fn no_old_answer_stands_in_for_a_tool_that_was_switched_off_while_it_was_asked() {
    let rig = one(stale_look());
    assert_eq!(code(&rig.ask_same("look").await), "ok");
    advance(TTL).await;
    rig.backend.then(Does::Fail(3 * S, status(503)));
    let asked = start(rig.ask_same("look")).await;
    rig.gates.state.isolate(&super::rig::tool_name("look"), "ada", "it lies").expect("isolated");
    advance(3 * S).await;
    assert_eq!(code(&asked.await.expect("no panic")), "tool_unavailable");
}

fn shop() -> Rig {
    of(vec![stale_look(), tool("pay", Effect::Write)])
}

#[tokio::test(start_paused = true)]
async fn a_write_to_the_same_upstream_makes_reads_of_it_old_and_another_s_does_not() {
    let mut elsewhere = super::rig::upstream();
    elsewhere.name = checkrein::call::UpstreamName::new("bank").expect("a name");
    let other = Tool { upstream: Arc::new(elsewhere), ..tool("other", Effect::Write) };
    let rig = of(vec![stale_look(), tool("pay", Effect::Write), other]);
    assert_eq!(code(&rig.ask_same("look").await), "ok");
    assert_eq!(code(&rig.ask("other").await), "ok");
    assert_eq!(told(&rig.ask_same("look").await).0, Source::Cache);
    assert_eq!(code(&rig.ask("pay").await), "ok");
    assert_eq!(told(&rig.ask_same("look").await).0, Source::Tool);
    // Stale ones are dropped too.
    assert_eq!(code(&rig.ask("pay").await), "ok");
    rig.backend.then(Does::Fail(MS, status(503)));
    assert_eq!(code(&rig.ask_same("look").await), "tool_unavailable");
}

#[tokio::test(start_paused = true)]
async fn what_is_read_while_a_write_is_out_is_not_kept_past_its_end() {
    let rig = shop();
    rig.backend.then(Does::Answer(4 * S, "paid")).then(Does::Answer(MS, "before"));
    let write = start(rig.ask("pay")).await;
    assert_eq!(told(&rig.ask_same("look").await).2, "before");
    advance(4 * S).await;
    assert_eq!(code(&write.await.expect("no panic")), "ok");
    rig.backend.then(Does::Answer(MS, "after"));
    assert_eq!(told(&rig.ask_same("look").await).2, "after");
}

#[tokio::test(start_paused = true)]
async fn what_is_read_while_a_lost_write_drains_is_not_kept_past_its_end() {
    let rig = shop();
    rig.backend.then(Does::Answer(20 * S, "paid"));
    let write = start(rig.ask("pay")).await;
    advance(10 * S).await;
    assert_eq!(code(&write.await.expect("no panic")), "outcome_unknown");
    rig.backend.then(Does::Answer(MS, "before"));
    assert_eq!(told(&rig.ask_same("look").await).2, "before");
    advance(15 * S).await; // its answer came after all
    rig.backend.then(Does::Answer(MS, "after"));
    assert_eq!(told(&rig.ask_same("look").await).2, "after");
}

#[tokio::test(start_paused = true)]
async fn who_asks_after_a_write_does_not_join_a_question_from_before_it() {
    let rig = shop();
    rig.backend.then(Does::Answer(5 * S, "before")).then(Does::Answer(MS, "paid"));
    let early = start(rig.ask_same("look")).await;
    assert_eq!(code(&rig.ask("pay").await), "ok");
    rig.backend.then(Does::Answer(MS, "after"));
    assert_eq!(told(&rig.ask_same("look").await).2, "after");
    advance(5 * S).await;
    assert_eq!(told(&early.await.expect("no panic")).2, "before");
    assert_eq!(told(&rig.ask_same("look").await).2, "after", "and it is not kept");
}

// ── at once ──────────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(start_paused = true)]
async fn calls_that_ask_the_same_at_once_are_one_request() {
    let rig = one(look());
    rig.backend.then(Does::Answer(2 * S, "1"));
    let leader = start(rig.ask_same("look")).await;
    let followers: Vec<_> = (0..100).map(|_| tokio::spawn(rig.ask_same("look"))).collect();
    settle().await;
    let other = start(rig.send(rig.call("look", r#"{"id":"B2"}"#))).await;
    assert_eq!(code(&other.await.expect("no panic")), "ok", "another question waits for nobody");
    advance(2 * S).await;
    assert_eq!(told(&leader.await.expect("no panic")), (Source::Tool, None, "1"));
    for follower in followers {
        let outcome = follower.await.expect("no panic");
        assert_eq!(told(&outcome), (Source::Cache, Some(Duration::ZERO), "1"));
    }
    assert_eq!((rig.backend.hits(), lookups(&rig)), (2, [100.0, 0.0, 2.0]));
}

#[tokio::test(start_paused = true)]
async fn who_goes_away_takes_nobody_with_it() {
    let rig = one(look());
    rig.backend.then(Does::Answer(5 * S, "never heard")).then(Does::Answer(S, "2"));
    let leader = start(rig.ask_same("look")).await;
    let (one, two) = (start(rig.ask_same("look")).await, start(rig.ask_same("look")).await);
    advance(S).await;
    leader.abort();
    settle().await;
    assert_eq!(rig.backend.hits(), 2, "one of the others asks, and one only");
    advance(S).await;
    for follower in [one, two] {
        assert_eq!(told(&follower.await.expect("no panic")).2, "2");
    }
    assert_eq!(rig.backend.hits(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_goes_away_leaves_the_others_waiting() {
    let rig = one(look());
    rig.backend.then(Does::Answer(2 * S, "1"));
    let leader = start(rig.ask_same("look")).await;
    let (gone, stays) = (start(rig.ask_same("look")).await, start(rig.ask_same("look")).await);
    gone.abort();
    advance(2 * S).await;
    assert_eq!(told(&leader.await.expect("no panic")).2, "1");
    assert_eq!(told(&stays.await.expect("no panic")).2, "1");
}

#[tokio::test(start_paused = true)]
async fn a_panic_takes_nobody_with_it() {
    let rig = one(look());
    rig.backend.then(Does::Panic).then(Does::Answer(S, "2"));
    let leader = tokio::spawn(rig.ask_same("look"));
    let follower = tokio::spawn(rig.ask_same("look"));
    settle().await;
    advance(S).await;
    assert!(leader.await.is_err(), "planted");
    assert_eq!(told(&follower.await.expect("no panic")).2, "2");
}

#[tokio::test(start_paused = true)]
async fn the_tool_s_failure_is_heard_by_all_that_asked_and_by_none_that_comes_after() {
    let rig = one(look());
    rig.backend.then(Does::Fail(S, status(503))).then(Does::Answer(S, "2"));
    let leader = start(rig.ask_same("look")).await;
    let follower = start(rig.ask_same("look")).await;
    advance(S).await;
    for call in [leader, follower] {
        assert_eq!(code(&call.await.expect("no panic")), "tool_unavailable");
    }
    assert_eq!(rig.backend.hits(), 1);
    assert_eq!(told(&rig.ask_same("look").await).2, "2");
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_own_time_is_over_is_no_answer_for_others() {
    let rig = one(look());
    rig.backend.then(Does::Answer(4 * S, "1")).then(Does::Answer(S, "2"));
    let hurried = ToolCall { deadline: Instant::now() + 2 * S, ..rig.call("look", A17) };
    let leader = start(rig.send(hurried)).await;
    let follower = start(rig.ask_same("look")).await;
    advance(2 * S).await;
    assert_eq!(code(&leader.await.expect("no panic")), "upstream_timeout");
    advance(S).await;
    assert_eq!(told(&follower.await.expect("no panic")).2, "2");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_refused_is_no_answer_for_others() {
    let policy = Tool { bulkhead: 1, ..look() };
    let rig = one(policy);
    rig.backend.then(Does::Answer(2 * S, "other"));
    let other = start(rig.send(rig.call("look", r#"{"id":"B2"}"#))).await;
    let (one, two) = tokio::join!(rig.ask_same("look"), rig.ask_same("look"));
    assert_eq!(denied(&one).code, DenyCode::ConcurrencyLimited);
    assert_eq!(denied(&two).code, DenyCode::ConcurrencyLimited);
    advance(2 * S).await;
    assert_eq!(code(&other.await.expect("no panic")), "ok");
    assert_eq!(code(&rig.ask_same("look").await), "ok");
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_another_call_waits_no_longer_than_its_own_time() {
    let rig = one(look());
    rig.backend.then(Does::Answer(4 * S, "1"));
    let leader = start(rig.ask_same("look")).await;
    let call = ToolCall { deadline: Instant::now() + S, ..rig.call("look", A17) };
    let trace = call.trace.clone();
    let began = Instant::now();
    let outcome = rig.send(call).await;
    assert_eq!((denied(&outcome).code, began.elapsed()), (DenyCode::DeadlineExceeded, S));
    assert_eq!(trace.note().rule.as_deref(), Some("cache: another call asks the same"));
    advance(3 * S).await;
    assert_eq!(code(&leader.await.expect("no panic")), "ok");
    assert_eq!(rig.backend.hits(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_another_call_waits_no_longer_than_for_the_tool() {
    let retry = RetryPolicy { deadline: 3 * S, ..retries(0) };
    let rig = one(Tool { retry: Some(retry), ..look() });
    rig.backend.then(Does::Answer(4 * S, "1"));
    let began = Instant::now();
    let leader = start(rig.ask_same("look")).await;
    advance(2 * S).await;
    let follower = start(rig.ask_same("look")).await;
    advance(S).await;
    // The leader's loop has ended; what is told is the tool's failure.
    assert_eq!(code(&leader.await.expect("no panic")), "upstream_timeout");
    assert_eq!(code(&follower.await.expect("no panic")), "upstream_timeout");
    assert_eq!(began.elapsed(), 3 * S);
}

// ── stale ────────────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test(start_paused = true)]
async fn an_old_answer_stands_in_for_a_tool_that_fails_and_says_how_old_it_is() {
    let rig = one(stale_look());
    rig.backend.then(Does::Answer(MS, "1"));
    assert_eq!(code(&rig.ask_same("look").await), "ok");
    rig.backend.always(Does::Fail(MS, status(503)));
    advance(TTL).await;
    let call = rig.call("look", A17);
    let trace = call.trace.clone();
    let stood_in = rig.send(call).await;
    assert_eq!(told(&stood_in), (Source::StaleCache, Some(TTL + MS), "1"));
    let noted = trace.note().clone();
    assert_eq!((noted.cache, noted.attempts.len()), (Some("stale"), 1));
    assert_eq!(rig.metric("checkrein_tool_calls_total", &["look", "outcome=\"stale\""]), 1.0);
    assert_eq!(lookups(&rig), [0.0, 1.0, 1.0]);
    // Never past its time.
    advance(STALE - 2 * MS).await;
    assert_eq!(code(&rig.ask_same("look").await), "tool_unavailable");
}

#[tokio::test(start_paused = true)]
async fn without_the_key_no_old_answer_stands_in() {
    let rig = one(look());
    assert_eq!(code(&rig.ask_same("look").await), "ok");
    rig.backend.always(Does::Fail(MS, status(503)));
    advance(TTL).await;
    assert_eq!(code(&rig.ask_same("look").await), "tool_unavailable");
}

#[tokio::test(start_paused = true)]
async fn an_old_answer_stands_in_while_the_circuit_is_open_and_the_tool_is_left_alone() {
    let rig = one(Tool { breaker: breaker(2, 60 * S), ..stale_look() });
    rig.backend.then(Does::Answer(MS, "1"));
    assert_eq!(code(&rig.ask_same("look").await), "ok");
    rig.backend.always(Does::Fail(MS, unreachable_tool()));
    advance(TTL).await;
    for _ in 0..2 {
        assert_eq!(told(&rig.ask_same("look").await).0, Source::StaleCache);
    }
    rig.backend.always(Does::Answer(MS, "2"));
    let hits = rig.backend.hits();
    for _ in 0..10 {
        assert_eq!(told(&rig.ask_same("look").await).0, Source::StaleCache);
    }
    assert_eq!(rig.backend.hits(), hits, "an open circuit lets nothing through");
    let other = rig.send(rig.call("look", r#"{"id":"B2"}"#)).await;
    assert_eq!(code(&other), "circuit_open", "of that nothing was kept");
    // The circuit heard of the failures, and of the tool's return.
    advance(60 * S).await;
    assert_eq!(told(&rig.ask_same("look").await), (Source::Tool, None, "2"));
}

#[tokio::test(start_paused = true)]
async fn an_old_answer_stands_in_while_the_tool_wants_to_be_left_alone() {
    let rig = one(stale_look());
    assert_eq!(code(&rig.ask_same("look").await), "ok");
    rig.backend.then(Does::Fail(MS, status(429)));
    advance(TTL).await;
    assert_eq!(told(&rig.ask_same("look").await).0, Source::StaleCache);
    assert_eq!(told(&rig.ask_same("look").await).0, Source::StaleCache, "its cooldown lasts");
    assert_eq!(rig.backend.hits(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_old_answer_does_not_hide_an_answer_nor_a_limit_of_ours() {
    let tight = super::rig::rate("tool:look", 600 * S, 3);
    let rig = one(Tool { rate_limit: Some(tight), ..stale_look() });
    assert_eq!(code(&rig.ask_same("look").await), "ok");
    advance(TTL).await;
    rig.backend.then(Does::Fail(MS, status(404)));
    assert_eq!(code(&rig.ask_same("look").await), "tool_error", "the tool has answered");
    assert_eq!(code(&rig.ask("look").await), "ok");
    assert_eq!(code(&rig.ask_same("look").await), "rate_limited", "that is no fault of the tool");
    assert_eq!(lookups(&rig), [0.0, 0.0, 4.0]);
}

#[tokio::test(start_paused = true)]
async fn an_old_answer_is_for_the_agent_that_asked_for_it_alone() {
    let rig = two_agents(vec![stale_look()]);
    assert_eq!(code(&rig.send(by(&rig, "support", A17)).await), "ok");
    rig.backend.always(Does::Fail(MS, status(503)));
    advance(TTL).await;
    assert_eq!(code(&rig.send(by(&rig, "sales", A17)).await), "tool_unavailable");
    assert_eq!(told(&rig.send(by(&rig, "support", A17)).await).0, Source::StaleCache);
}

#[tokio::test(start_paused = true)]
async fn an_old_answer_stands_in_for_all_that_wait_for_one_call() {
    let rig = one(stale_look());
    assert_eq!(code(&rig.ask_same("look").await), "ok");
    advance(TTL).await;
    rig.backend.then(Does::Fail(3 * S, status(503)));
    let leader = start(rig.ask_same("look")).await;
    let follower = start(rig.ask_same("look")).await;
    let hurried = ToolCall { deadline: Instant::now() + S, ..rig.call("look", A17) };
    assert_eq!(told(&rig.send(hurried).await).0, Source::StaleCache, "its time was over");
    advance(3 * S).await;
    assert_eq!(told(&leader.await.expect("no panic")).0, Source::StaleCache);
    assert_eq!(told(&follower.await.expect("no panic")).0, Source::StaleCache);
    assert_eq!((rig.backend.hits(), lookups(&rig)), (2, [0.0, 3.0, 1.0]));
}

#[tokio::test(start_paused = true)]
async fn a_stale_answer_is_no_failure_of_the_run() {
    let mut first = agent(&[stale_look()]);
    first.run = Arc::new(RunPolicy { failures: Some(2), ..(*first.run).clone() });
    let rig = Rig::with(snapshot(vec![stale_look()], first));
    assert_eq!(code(&rig.ask_same("look").await), "ok");
    advance(TTL).await;
    rig.backend.always(Does::Fail(MS, status(503)));
    for _ in 0..5 {
        assert_eq!(told(&rig.ask_same("look").await).0, Source::StaleCache);
    }
}
