//! A person's yes through the real stacks: nothing is sent without one, and with one exactly once.

use std::time::Duration;

use checkrein::call::code::DenyCode;
use checkrein::call::pointer::Pointer;
use checkrein::call::{Arguments, Denied, Detail, Digest, Effect, Outcome, ToolCall};
use checkrein::ledger::approvals::{ApprovalView, DecideError, Decision, Standing};
use checkrein::policy::predicate::{Predicate, Test};
use checkrein::policy::snapshot::{Allowed, ApprovalPolicy, Identical, Tool, When};
use checkrein::strict_json::Limits;
use serde_json::json;

use super::rig::{
    Does, MS, Rig, S, advance, agent, breaker, code, denied, failed, snapshot, start, status, tool,
    unreachable_tool,
};

const EXPIRES: Duration = Duration::from_secs(600);

fn asking(mut tool: Tool, when: When) -> Tool {
    tool.approval = Some(ApprovalPolicy {
        when,
        approvers: Vec::new(),
        decisions: vec![Allowed::Approve, Allowed::Edit, Allowed::Reject],
        expires: EXPIRES,
    });
    tool
}

fn pay() -> Tool {
    asking(tool("pay", Effect::Write), When::Always)
}

fn look() -> Tool {
    asking(tool("look", Effect::Read), When::Always)
}

fn arguments(text: &str) -> Arguments {
    Arguments::parse(text.as_bytes(), Limits::arguments(1 << 16, 32)).expect("sound")
}

/// The one approval that waits.
fn waiting(rig: &Rig) -> ApprovalView {
    let mut all = rig.gates.ledger.approvals().all();
    all.retain(|one| one.standing == Standing::Pending);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

async fn say(rig: &Rig, one: &ApprovalView, decision: Decision) -> Result<(), DecideError> {
    rig.gates.ledger.approvals().decide(&one.id, decision, "ada", "because").await
}

async fn approve(rig: &Rig) {
    let one = waiting(rig);
    say(rig, &one, Decision::Approve).await.expect("on record");
}

#[track_caller]
fn refused(outcome: &Outcome, code: DenyCode) -> &Denied {
    let denied = denied(outcome);
    assert_eq!(denied.code, code, "{denied:?}");
    denied
}

#[tokio::test(start_paused = true)]
async fn without_a_yes_nothing_is_sent_and_with_one_exactly_one_call_is() {
    for tool in [pay(), look()] {
        let name = tool.name.to_string();
        let rig = Rig::one(tool);
        let first = rig.ask_same(&name).await;
        let told = refused(&first, DenyCode::ApprovalRequired);
        let Detail::Approval { id, left } = &told.detail else { panic!("{told:?}") };
        assert_eq!(*left, Some(EXPIRES));
        assert!(told.message.contains(id.as_str()) && told.message.contains("10 min"), "{told:?}");
        // Asked again it joins the same question, whatever the call's id.
        advance(60 * S).await;
        let again = rig.ask_same(&name).await;
        let told = refused(&again, DenyCode::ApprovalRequired);
        let same = matches!(&told.detail, Detail::Approval { id: other, left }
            if other == id && *left == Some(EXPIRES - 60 * S));
        assert!(same, "{told:?}");
        assert_eq!(rig.backend.hits(), 0);
        approve(&rig).await;
        assert_eq!(code(&rig.ask_same(&name).await), "ok");
        // The yes is used up.
        let once_more = rig.ask_same(&name).await;
        let told = refused(&once_more, DenyCode::ApprovalRequired);
        assert!(!told.message.contains(id.as_str()), "another question: {told:?}");
        assert_eq!(rig.backend.hits(), 1, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn fifty_calls_at_once_open_one_question_and_use_one_yes_once() {
    for tool in [pay(), look()] {
        let name = tool.name.to_string();
        let rig = Rig::one(tool);
        let mut asked = Vec::new();
        for _ in 0..50 {
            asked.push(start(rig.ask_same(&name)).await);
        }
        for one in asked {
            let outcome = one.await.expect("no panic");
            assert!(matches!(code(&outcome), "approval_required" | "in_progress"), "{outcome:?}");
        }
        approve(&rig).await;
        rig.backend.always(Does::Answer(100 * MS, "{}"));
        let mut asked = Vec::new();
        for _ in 0..50 {
            asked.push(start(rig.ask_same(&name)).await);
        }
        advance(S).await;
        let mut ok = 0;
        for one in asked {
            ok += u32::from(code(&one.await.expect("no panic")) == "ok");
        }
        assert_eq!(rig.backend.hits(), 1, "{name}");
        // Calls of the same write share its one end; a read's is one call's alone.
        assert_eq!(ok, if name == "pay" { 50 } else { 1 });
    }
}

#[tokio::test(start_paused = true)]
async fn a_yes_is_for_this_agent_tool_and_arguments_under_these_rules_alone() {
    let other = || asking(tool("pay_2", Effect::Write), When::Always);
    let rig = Rig::of(vec![pay(), other()]);
    refused(&rig.ask_same("pay").await, DenyCode::ApprovalRequired);
    approve(&rig).await;
    for (name, text) in [("pay_2", r#"{"id":"A17"}"#), ("pay", r#"{"id":"A18"}"#), ("pay", "{}")] {
        refused(&rig.send(rig.call(name, text)).await, DenyCode::ApprovalRequired);
    }
    // Another agent.
    let mut stranger = rig.call("pay", r#"{"id":"A17"}"#);
    stranger.agent = checkrein::call::AgentId::new("stranger").expect("a name");
    assert_eq!(code(&rig.send(stranger).await), "unknown_tool");
    // Under other rules of the tool it is worth nothing; back under the old ones it is what it was.
    let mut changed = pay();
    changed.section = Digest::of(b"changed");
    let under = |tool: Tool| {
        let tools = vec![tool, other()];
        let agent = agent(&tools);
        snapshot(tools, agent)
    };
    let rig = rig.reload(under(changed));
    refused(&rig.ask_same("pay").await, DenyCode::ApprovalRequired);
    assert_eq!(rig.backend.hits(), 0);
    let rig = rig.reload(under(pay()));
    assert_eq!(code(&rig.ask_same("pay").await), "ok");
    assert_eq!(rig.backend.hits(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_no_is_told_with_its_words_and_stands_as_long_as_a_yes_would() {
    let rig = Rig::one(pay());
    refused(&rig.ask_same("pay").await, DenyCode::ApprovalRequired);
    let one = waiting(&rig);
    say(&rig, &one, Decision::Reject).await.expect("on record");
    for _ in 0..3 {
        let again = rig.ask_same("pay").await;
        let told = refused(&again, DenyCode::ApprovalRejected);
        assert!(told.message.contains("because"), "{told:?}");
    }
    assert_eq!(
        say(&rig, &one, Decision::Approve).await,
        Err(DecideError::NotPending(Standing::Rejected))
    );
    advance(EXPIRES).await;
    refused(&rig.ask_same("pay").await, DenyCode::ApprovalRequired);
    assert_ne!(waiting(&rig).id, one.id);
    assert_eq!(rig.backend.hits(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_question_that_nobody_answers_is_a_no_and_a_late_yes_changes_nothing() {
    let rig = Rig::one(pay());
    refused(&rig.ask_same("pay").await, DenyCode::ApprovalRequired);
    let one = waiting(&rig);
    advance(EXPIRES).await;
    assert_eq!(
        say(&rig, &one, Decision::Approve).await,
        Err(DecideError::NotPending(Standing::Expired))
    );
    refused(&rig.ask_same("pay").await, DenyCode::ApprovalExpired);
    // Told once; asked again a person is asked anew.
    refused(&rig.ask_same("pay").await, DenyCode::ApprovalRequired);
    assert_ne!(waiting(&rig).id, one.id);
    // A yes that is not used in time is none either.
    approve(&rig).await;
    advance(EXPIRES).await;
    refused(&rig.ask_same("pay").await, DenyCode::ApprovalExpired);
    assert_eq!(rig.backend.hits(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_edited_yes_is_for_the_edited_arguments_and_for_no_others() {
    let rig = Rig::one(pay());
    refused(&rig.ask_same("pay").await, DenyCode::ApprovalRequired);
    let one = waiting(&rig);
    let same = Decision::Edit(arguments(r#"{"id":"A17"}"#));
    assert_eq!(say(&rig, &one, same).await, Err(DecideError::SameArguments));
    let edit = Decision::Edit(arguments(r#"{"id":"A17","note":"half"}"#));
    say(&rig, &one, edit).await.expect("on record");
    let asked = rig.ask_same("pay").await;
    let told = refused(&asked, DenyCode::ApprovalEdited);
    assert!(told.message.contains(r#"{"id":"A17","note":"half"}"#), "{told:?}");
    assert_eq!(rig.backend.hits(), 0, "what was asked for is not sent");
    assert_eq!(code(&rig.send(rig.call("pay", r#"{"note":"half","id":"A17"}"#)).await), "ok");
    assert_eq!(rig.backend.hits(), 1);
    let kept = rig.gates.ledger.approvals().find(&one.id).expect("kept");
    assert_eq!(kept.standing, Standing::Used);
    assert_eq!(kept.arguments.tree(), &json!({ "id": "A17" }), "both versions are kept");
    assert_eq!(kept.edited.expect("edited").tree(), &json!({ "id": "A17", "note": "half" }));
    // Both are questions again.
    refused(&rig.ask_same("pay").await, DenyCode::ApprovalRequired);
    refused(
        &rig.send(rig.call("pay", r#"{"note":"half","id":"A17"}"#)).await,
        DenyCode::ApprovalRequired,
    );
}

#[tokio::test(start_paused = true)]
async fn only_a_predicate_that_surely_does_not_hold_lets_a_call_pass() {
    let above = Predicate::Test {
        pointer: Pointer::parse("/id").expect("a pointer"),
        test: Test::is(&json!({ "const": "A17" })).expect("a schema"),
    };
    let rig = Rig::one(asking(tool("pay", Effect::Write), When::If(above)));
    assert_eq!(code(&rig.send(rig.call("pay", r#"{"id":"B"}"#)).await), "ok");
    refused(&rig.send(rig.call("pay", r#"{"id":"A17"}"#)).await, DenyCode::ApprovalRequired);
    // Nobody knows what the tool makes of an argument that is not there.
    refused(&rig.send(rig.call("pay", "{}")).await, DenyCode::ApprovalRequired);
    assert_eq!(rig.backend.hits(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_identical_write_needs_a_yes_where_the_policy_says_so() {
    let never = Predicate::Test {
        pointer: Pointer::parse("").expect("a pointer"),
        test: Test::Exists(false),
    };
    let mut tool = asking(tool("pay", Effect::Write), When::If(never));
    tool.write.as_mut().expect("a write").identical = Identical::Approve;
    let rig = Rig::one(tool);
    assert_eq!(code(&rig.ask_same("pay").await), "ok");
    let again = rig.ask_same("pay").await;
    let told = refused(&again, DenyCode::ApprovalRequired);
    assert_eq!(told.known, Some(checkrein::call::Known::Identical));
    assert!(waiting(&rig).why.contains("write.identical: approve"), "{:?}", waiting(&rig));
    assert_eq!(rig.backend.hits(), 1);
    approve(&rig).await;
    assert_eq!(code(&rig.ask_same("pay").await), "ok");
    assert_eq!(rig.backend.hits(), 2);
    assert_eq!(
        code(&rig.send(rig.call("pay", r#"{"id":"B"}"#)).await),
        "ok",
        "another is no repeat"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_below_gives_the_yes_back() {
    // A tool that cannot be reached: no byte was sent.
    let rig = Rig::one(pay());
    refused(&rig.ask_same("pay").await, DenyCode::ApprovalRequired);
    approve(&rig).await;
    rig.backend.then(Does::Unreachable);
    assert_eq!(failed(&rig.ask_same("pay").await).code, unreachable_tool().code);
    assert_eq!(code(&rig.ask_same("pay").await), "ok", "the same yes");
    assert_eq!(rig.backend.hits(), 1);
    // A gate below that says no.
    for mut tool in [pay(), look()] {
        let name = tool.name.to_string();
        tool.bulkhead = 1;
        let rig = Rig::one(tool);
        for id in ["A", "B"] {
            let text = format!(r#"{{"id":"{id}"}}"#);
            refused(&rig.send(rig.call(&name, &text)).await, DenyCode::ApprovalRequired);
            approve(&rig).await;
        }
        rig.backend.then(Does::Answer(S, "{}"));
        let running = start(rig.send(rig.call(&name, r#"{"id":"A"}"#))).await;
        refused(&rig.send(rig.call(&name, r#"{"id":"B"}"#)).await, DenyCode::ConcurrencyLimited);
        advance(S).await;
        assert_eq!(code(&running.await.expect("no panic")), "ok");
        assert_eq!(code(&rig.send(rig.call(&name, r#"{"id":"B"}"#)).await), "ok", "{name}");
        assert_eq!(rig.backend.hits(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_has_used_its_yes_whatever_came_of_it() {
    for does in [Does::Silent, Does::Fail(MS, status(503)), Does::Fail(MS, status(422))] {
        let rig = Rig::one(pay());
        refused(&rig.ask_same("pay").await, DenyCode::ApprovalRequired);
        let one = waiting(&rig);
        approve(&rig).await;
        rig.backend.then(does.clone());
        let outcome = rig.ask_same("pay").await;
        assert!(outcome.is_err(), "{does:?}");
        let kept = rig.gates.ledger.approvals().find(&one.id).expect("kept");
        assert_eq!(kept.standing, Standing::Used, "{does:?}");
        let again = code(&rig.ask_same("pay").await);
        assert!(matches!(again, "review_required" | "approval_required"), "{does:?}: {again}");
        assert_eq!(rig.backend.hits(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_s_further_attempts_need_no_other_yes() {
    let mut tool = look();
    tool.retry = Some(super::rig::retries(2));
    let rig = Rig::one(tool);
    refused(&rig.ask_same("look").await, DenyCode::ApprovalRequired);
    approve(&rig).await;
    rig.backend.then(Does::Fail(MS, status(503))).then(Does::Answer(MS, "{}"));
    let asked = start(rig.ask_same("look")).await;
    advance(10 * S).await;
    assert_eq!(code(&asked.await.expect("no panic")), "ok");
    assert_eq!(rig.backend.hits(), 2);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_asked_about_what_the_ledger_answers_or_a_rehearsal() {
    let mut tool = pay();
    tool.write.as_mut().expect("a write").fingerprint = vec![Pointer::parse("/id").expect("one")];
    let rig = Rig::one(tool);
    refused(&rig.ask_same("pay").await, DenyCode::ApprovalRequired);
    approve(&rig).await;
    assert_eq!(code(&rig.ask_same("pay").await), "ok");
    for _ in 0..2 {
        assert_eq!(code(&rig.ask_same("pay").await), "ok", "told again from the ledger");
    }
    assert_eq!(rig.backend.hits(), 1);
    let tools = vec![pay()];
    let mut rehearsing = agent(&tools);
    rehearsing.dry_run = true;
    let rig = Rig::with(snapshot(tools, rehearsing));
    assert_eq!(code(&rig.ask_same("pay").await), "dry_run");
    assert!(rig.gates.ledger.approvals().all().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_circuit_that_is_open_costs_no_yes() {
    let mut tool = look();
    tool.breaker = breaker(1, 30 * S);
    let rig = Rig::one(tool);
    for id in ["A", "B"] {
        let text = format!(r#"{{"id":"{id}"}}"#);
        refused(&rig.send(rig.call("look", &text)).await, DenyCode::ApprovalRequired);
        approve(&rig).await;
    }
    rig.backend.then(Does::Fail(MS, status(503)));
    assert!(rig.send(rig.call("look", r#"{"id":"A"}"#)).await.is_err());
    refused(&rig.send(rig.call("look", r#"{"id":"B"}"#)).await, DenyCode::CircuitOpen);
    advance(60 * S).await;
    assert_eq!(code(&rig.send(rig.call("look", r#"{"id":"B"}"#)).await), "ok");
}

#[tokio::test(start_paused = true)]
async fn questions_have_bounds_and_none_is_dropped_for_another() {
    let rig = Rig::one(pay());
    let ask = |run: &str, id: u32| -> ToolCall {
        let mut call = rig.call("pay", &format!(r#"{{"id":"{id}"}}"#));
        call.run = checkrein::call::RunId::new(run).expect("an id");
        call
    };
    for id in 0..16 {
        refused(&rig.send(ask("run-1", id)).await, DenyCode::ApprovalRequired);
    }
    let past = rig.send(ask("run-1", 16)).await;
    let told = refused(&past, DenyCode::RateLimited);
    assert!(told.message.contains("16") && told.retry_after.is_some(), "{told:?}");
    refused(&rig.send(ask("run-1", 3)).await, DenyCode::ApprovalRequired);
    assert_eq!(rig.gates.ledger.approvals().all().len(), 16);
    // A person's word makes room.
    let one = rig.gates.ledger.approvals().all().remove(0);
    say(&rig, &one, Decision::Reject).await.expect("on record");
    refused(&rig.send(ask("run-1", 16)).await, DenyCode::ApprovalRequired);
    assert_eq!(rig.backend.hits(), 0);
}
