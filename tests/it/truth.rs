//! A refusal says "not sent". Where the operation happened before, or may have, it does not say "did not happen":
//! each gate above the ledger, by name, in every wire form.

use std::time::Duration;

use serde_json::Value;

use crate::support::{Agent, Fixture, Form, Gateway, Reply, ScriptedTool, wait_for};

const SOON: Duration = Duration::from_secs(10);
const A17: &str = r#"{"order_id":"A17"}"#;

fn create(reference: &str) -> String {
    format!(r#"{{"order_ref":"{reference}","sku":"A","qty":1}}"#)
}

/// Every way to ask for one call.
#[derive(Debug, Clone, Copy)]
enum Way {
    ToolsApi,
    Batch(Form),
}

const WAYS: [Way; 4] = [
    Way::ToolsApi,
    Way::Batch(Form::OpenaiChat),
    Way::Batch(Form::OpenaiResponses),
    Way::Batch(Form::AnthropicMessages),
];

impl Way {
    fn agent(self, gateway: &Gateway, run: &str) -> Agent {
        let form = match self {
            Way::ToolsApi => Form::OpenaiChat,
            Way::Batch(form) => form,
        };
        gateway.agent(form, run)
    }

    async fn ask(self, agent: &Agent, tool: &str, id: &str, arguments: &str) -> Value {
        match self {
            Way::ToolsApi => agent.call(tool, id, arguments).await.json(),
            Way::Batch(_) => agent.ask(&[(id, tool, arguments)]).await.answer(id).clone(),
        }
    }
}

#[track_caller]
fn is(answer: &Value, error: &str, executed: &str, retry: &str) {
    let said = [&answer["error"], &answer["executed"], &answer["retry"]];
    assert_eq!(said, [&Value::from(error), &executed.into(), &retry.into()], "{answer}");
}

/// It may have happened: a person must look, and its review is named.
#[track_caller]
fn in_doubt(answer: &Value, error: &str, operation: &Value) {
    is(answer, error, "unknown", "person");
    assert_eq!(&answer["operation"], operation, "{answer}");
    assert!(answer["hint"].as_str().is_some_and(|hint| hint.contains("review")), "{answer}");
    assert_eq!(answer["alternatives"], Value::Null, "another way would do it twice: {answer}");
    assert_eq!(answer["retry_after_ms"], Value::Null, "{answer}");
}

/// A write whose reply is lost, by another run. Its operation.
async fn lose(tool: &ScriptedTool, gateway: &Gateway, reference: &str) -> Value {
    tool.script("/create", [Reply::ApplyThenReset]);
    let agent = gateway.agent(Form::OpenaiChat, "first");
    let answer = agent.call("create_order", reference, &create(reference)).await.json();
    is(&answer, "outcome_unknown", "unknown", "person");
    tool.script("/create", [Reply::Ok]);
    answer["operation"].clone()
}

#[tokio::test]
async fn a_used_up_budget_does_not_call_a_lost_write_undone() {
    for way in WAYS {
        for budget in ["calls: 1", "rounds: 1"] {
            let tool = ScriptedTool::start().await;
            let gateway = Fixture::new().budgets(budget).start(&tool).await;
            let operation = lose(&tool, &gateway, "R1").await;
            let agent = way.agent(&gateway, "r");
            way.ask(&agent, "lookup_order", "c1", A17).await;
            let again = way.ask(&agent, "create_order", "c2", &create("R1")).await;
            if matches!((way, budget), (Way::ToolsApi, "rounds: 1")) {
                // Single calls open no rounds: the ledger itself answered.
                assert_eq!(again["error"], "review_required", "{again}");
                continue;
            }
            in_doubt(&again, "budget_exhausted", &operation);
            // The record says what the agent was told.
            let recorded = async || {
                gateway.records().iter().any(|record| {
                    record["outcome"] == "budget_exhausted"
                        && record["executed"] == "unknown"
                        && record["operation"] == operation
                })
            };
            wait_for("the record", SOON, recorded).await;
            let fresh = way.ask(&agent, "create_order", "c3", &create("R2")).await;
            is(&fresh, "budget_exhausted", "no", "never");
            assert_eq!(fresh["operation"], Value::Null);
            assert_eq!((tool.hits("/create"), tool.effects("R1")), (1, 1), "{way:?}");
        }
    }
}

#[tokio::test]
async fn a_blocked_repeat_of_a_lost_write_is_not_called_undone() {
    for way in WAYS {
        let tool = ScriptedTool::start().await;
        let gateway = Fixture::new()
            .budgets("fuse: { same_failures: 2 }")
            .tool("create_order", "alternatives: [send_email]")
            .start(&tool)
            .await;
        tool.script("/create", [Reply::Status(422), Reply::ApplyThenReset, Reply::Ok]);
        let agent = way.agent(&gateway, "r");
        let refused = way.ask(&agent, "create_order", "c1", &create("R1")).await;
        is(&refused, "tool_error", "no", "changed");
        let lost = way.ask(&agent, "create_order", "c2", &create("R1")).await;
        is(&lost, "outcome_unknown", "unknown", "person");
        let again = way.ask(&agent, "create_order", "c3", &create("R1")).await;
        in_doubt(&again, "repeat_blocked", &lost["operation"]);
        assert_eq!(tool.hits("/create"), 2, "{way:?}");
    }
}

#[tokio::test]
async fn a_blocked_repeat_of_a_finished_write_says_that_it_was_done() {
    for way in WAYS {
        let tool = ScriptedTool::start().await;
        let fuse = "fuse: { same_results: 2 }";
        let gateway = Fixture::new().budgets(fuse).start(&tool).await;
        let agent = way.agent(&gateway, "r");
        for id in ["c1", "c2"] {
            let answer = way.ask(&agent, "create_order", id, &create("R1")).await;
            assert_eq!(answer["ok"], true, "{answer}");
        }
        let again = way.ask(&agent, "create_order", "c3", &create("R1")).await;
        is(&again, "repeat_blocked", "yes", "never");
        // Without a fingerprint an identical one is one of its own, and that did not happen.
        for id in ["p1", "p2"] {
            let answer = way.ask(&agent, "pay", id, r#"{"account_id":7}"#).await;
            assert_eq!(answer["ok"], true, "{answer}");
        }
        let again = way.ask(&agent, "pay", "p3", r#"{"account_id":7}"#).await;
        is(&again, "repeat_blocked", "no", "changed");
        assert!(again["identical_to"].as_str().is_some_and(|id| id.starts_with("op_")), "{again}");
        assert_eq!((tool.hits("/create"), tool.hits("/pay")), (1, 2), "{way:?}");
    }
}

#[tokio::test]
async fn refused_arguments_of_a_lost_operation_tell_both() {
    for way in WAYS {
        let tool = ScriptedTool::start().await;
        let constrained = "allow: [lookup_order, list_regions, get_doc, create_order, send_email, pay]\n    constraints: { create_order: { properties: { sku: { const: A } } } }\n  agent-a:";
        let gateway = Fixture::new()
            .with(
                "allow: [lookup_order, list_regions, get_doc, create_order, send_email, pay]\n  agent-a:",
                constrained,
            )
            .start(&tool)
            .await;
        let operation = lose(&tool, &gateway, "R1").await;
        let agent = way.agent(&gateway, "r");
        let wrong = r#"{"order_ref":"R1","sku":"A","qty":9}"#;
        let narrow = r#"{"order_ref":"R1","sku":"B","qty":1}"#;
        for (id, arguments, at) in [("c1", wrong, "/qty"), ("c2", narrow, "/sku")] {
            let answer = way.ask(&agent, "create_order", id, arguments).await;
            in_doubt(&answer, "invalid_arguments", &operation);
            assert_eq!(answer["faults"][0]["at"], at, "{answer}");
        }
        let fresh = r#"{"order_ref":"R2","sku":"A","qty":9}"#;
        is(
            &way.ask(&agent, "create_order", "c3", fresh).await,
            "invalid_arguments",
            "no",
            "changed",
        );
        let unread = way.ask(&agent, "create_order", "c4", r#"{"order_ref":1}"#).await;
        is(&unread, "invalid_arguments", "no", "changed");
        assert_eq!(tool.hits("/create"), 1, "{way:?}");
    }
}

#[tokio::test]
async fn what_is_skipped_behind_a_lost_write_tells_what_is_known_of_each() {
    for form in Form::ALL {
        let tool = ScriptedTool::start().await;
        let gateway = Fixture::new().start(&tool).await;
        let lost = lose(&tool, &gateway, "LOST").await;
        let agent = gateway.agent(form, "r");
        assert_eq!(
            agent.ask(&[("c0", "create_order", &create("DONE"))]).await.answer("c0")["ok"],
            true
        );
        tool.script("/create", [Reply::ApplyThenReset]);
        let (stop, again, done, fresh) =
            (create("STOP"), create("LOST"), create("DONE"), create("FRESH"));
        let turned = agent
            .ask(&[
                ("c1", "create_order", &stop),
                ("c2", "create_order", &again),
                ("c3", "create_order", &done),
                ("c4", "create_order", &fresh),
                ("c5", "lookup_order", A17),
            ])
            .await;
        assert_eq!(turned.state, "review_required", "{form:?}");
        assert_eq!(turned.error("c1"), "outcome_unknown");
        in_doubt(turned.answer("c2"), "skipped_pending_review", &lost);
        is(turned.answer("c3"), "skipped_pending_review", "yes", "person");
        is(turned.answer("c4"), "skipped_pending_review", "no", "person");
        is(turned.answer("c5"), "skipped_pending_review", "no", "person");
        assert_eq!(tool.effects("FRESH"), 0);
    }
}

#[tokio::test]
async fn a_refused_call_of_a_write_in_flight_is_in_doubt_until_that_has_ended() {
    for way in WAYS {
        let tool = ScriptedTool::start().await;
        let gateway = Fixture::new().budgets("calls: 1").start(&tool).await;
        let agent = way.agent(&gateway, "r");
        way.ask(&agent, "lookup_order", "c1", A17).await;
        tool.script("/create", [Reply::ApplyAfter(Duration::from_millis(300))]);
        let first = gateway.agent(Form::OpenaiChat, "first");
        let running =
            tokio::spawn(
                async move { first.call("create_order", "c", &create("R1")).await.json() },
            );
        wait_for("the write at the tool", SOON, async || tool.hits("/create") == 1).await;
        let meanwhile = way.ask(&agent, "create_order", "c2", &create("R1")).await;
        is(&meanwhile, "budget_exhausted", "unknown", "never");
        assert_eq!(running.await.expect("no panic")["ok"], true);
        let after = way.ask(&agent, "create_order", "c3", &create("R1")).await;
        is(&after, "budget_exhausted", "yes", "never");
        assert_eq!((tool.hits("/create"), tool.effects("R1")), (1, 1), "{way:?}");
    }
}

/// Below the ledger too: not sent, but an identical one was done.
#[tokio::test]
async fn a_refused_repeat_of_a_write_without_a_fingerprint_names_the_one_that_was_done() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().budgets("calls: 9").start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    let body = r#"{"account_id":7}"#;
    let first = agent.call("pay", "c1", body).await.json();
    assert_eq!(first["ok"], true, "{first}");
    tool.script("/pay", [Reply::Status(429)]);
    agent.call("pay", "c2", r#"{"account_id":8}"#).await;
    let cooling = agent.call("pay", "c3", body).await.json();
    is(&cooling, "rate_limited", "no", "after");
    assert_eq!(cooling["identical_to"], cooling["operation"], "{cooling}");
    assert!(cooling["identical_to"].is_string(), "{cooling}");
    assert_eq!(tool.hits("/pay"), 2);
}

/// Who may not use a tool hears of no operation of it, not even where all agents share them.
#[tokio::test]
async fn an_agent_that_may_not_use_a_tool_learns_nothing_of_its_operations() {
    for way in WAYS {
        let tool = ScriptedTool::start().await;
        let gateway = Fixture::new()
            .budgets("calls: 2")
            .with(
                "write: { fingerprint: [/order_ref]",
                "write: { scope: global, fingerprint: [/order_ref]",
            )
            .start(&tool)
            .await;
        lose(&tool, &gateway, "R1").await;
        let agent = way.agent(&gateway, "b").with_token(crate::support::fixture::TOKEN_B);
        let unlisted = way.ask(&agent, "create_order", "c1", &create("R1")).await;
        is(&unlisted, "unknown_tool", "no", "changed");
        assert_eq!(unlisted["operation"], Value::Null, "{unlisted}");
        way.ask(&agent, "lookup_order", "c2", A17).await;
        let spent = way.ask(&agent, "create_order", "c3", &create("R1")).await;
        is(&spent, "budget_exhausted", "no", "never");
        assert_eq!(spent["operation"], Value::Null, "{spent}");
        // Who may use it and has nothing left is told.
        let agent = way.agent(&gateway, "a").with_token(crate::support::fixture::TOKEN_A);
        for id in ["c1", "c2"] {
            way.ask(&agent, "lookup_order", id, A17).await;
        }
        let told = way.ask(&agent, "create_order", "c3", &create("R1")).await;
        is(&told, "budget_exhausted", "unknown", "person");
    }
}
