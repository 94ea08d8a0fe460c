//! The six behaviours the product was asked for, each in every wire form, through the real server.

use crate::support::{Fixture, Form, Reply, ScriptedTool};

const A17: &str = r#"{"order_id":"A17"}"#;
const R1: &str = r#"{"order_ref":"R1","sku":"A","qty":1}"#;
const R2: &str = r#"{"order_ref":"R2","sku":"A","qty":1}"#;

#[tokio::test]
async fn behaviour_1_a_result_is_bound_to_its_call() {
    for form in Form::ALL {
        let tool = ScriptedTool::start().await;
        let gateway = Fixture::new().start(&tool).await;
        // The first order answers later than the second: order of arrival must not matter.
        tool.script("/orders/A17", [Reply::After(std::time::Duration::from_millis(150))]);
        let agent = gateway.agent(form, "run-1");
        let turned = agent
            .ask(&[("c1", "lookup_order", A17), ("c2", "lookup_order", r#"{"order_id":"B22"}"#)])
            .await;
        assert_eq!(turned.state, "continue", "{form:?}");
        assert_eq!(turned.ids(), ["c1", "c2"], "{form:?}");
        assert_eq!(turned.answer("c1")["value"]["order_id"], "A17");
        assert_eq!(turned.answer("c2")["value"]["order_id"], "B22");
        let done = agent.say("订单 A17 正在运输中。").await;
        assert_eq!(done.state, "done", "{form:?}");
    }
}

#[tokio::test]
async fn behaviour_2_arguments_and_permissions_are_intercepted() {
    for form in Form::ALL {
        let tool = ScriptedTool::start().await;
        let gateway = Fixture::new().with("send_email, pay]", "pay]").start(&tool).await;
        let agent = gateway.agent(form, "run-1");
        let turned = agent
            .ask(&[
                ("c1", "lookup_order", r#"{"order_id":17}"#),
                ("c2", "lookup_order", r#"{"order_id":"A17","priority":"high"}"#),
                ("c3", "send_email", r#"{"message_ref":"M1","text":"hello"}"#),
                ("c4", "lookup_order", r#"{"order_id":""}"#),
            ])
            .await;
        assert_eq!(turned.state, "continue", "{form:?}");
        assert_eq!(turned.error("c1"), "invalid_arguments");
        assert_eq!(turned.answer("c1")["faults"][0]["at"], "/order_id");
        assert_eq!(turned.answer("c1")["retry"], "changed");
        assert_eq!(turned.error("c2"), "invalid_arguments");
        assert_eq!(turned.answer("c2")["faults"][0]["at"], "/priority");
        assert_eq!(turned.error("c3"), "unknown_tool");
        assert_eq!(turned.answer("c3")["executed"], "no");
        assert_eq!(turned.error("c4"), "invalid_arguments");
        assert_eq!(tool.requests().len(), 0, "{form:?}: the tool is untouched");
        // The model mends its call.
        let mended = agent.ask(&[("c5", "lookup_order", A17)]).await;
        assert_eq!(mended.answer("c5")["ok"], true);
    }
}

#[tokio::test]
async fn behaviour_3_a_transient_failure_of_a_read_is_retried() {
    for form in Form::ALL {
        let tool = ScriptedTool::start().await;
        let gateway = Fixture::new().start(&tool).await;
        tool.script("/orders/A17", [Reply::Status(503), Reply::Ok]);
        tool.script("/create", [Reply::Status(503)]);
        let agent = gateway.agent(form, "run-1");
        let turned = agent.ask(&[("c1", "lookup_order", A17)]).await;
        assert_eq!(turned.answer("c1")["ok"], true, "{form:?}");
        assert_eq!(turned.answer("c1")["attempts"], 2);
        assert_eq!(tool.hits("/orders/A17"), 2);
        // The same failure of a write is not.
        agent.ask(&[("c2", "create_order", R1)]).await;
        assert_eq!(tool.hits("/create"), 1, "{form:?}");
    }
}

#[tokio::test]
async fn behaviour_4_a_write_whose_outcome_is_unknown_pauses_the_run() {
    for form in Form::ALL {
        let tool = ScriptedTool::start().await;
        let gateway = Fixture::new().start(&tool).await;
        tool.script("/create", [Reply::ApplyThenHang]);
        let agent = gateway.agent(form, "run-1");
        let turned = agent
            .ask(&[
                ("c1", "create_order", R1),
                ("c2", "create_order", R2),
                ("c3", "lookup_order", A17),
            ])
            .await;
        assert_eq!(turned.state, "review_required", "{form:?}");
        assert_eq!(turned.ids(), ["c1", "c2", "c3"]);
        assert_eq!(turned.error("c1"), "outcome_unknown");
        assert_eq!(turned.answer("c1")["executed"], "unknown");
        assert_eq!(turned.answer("c1")["retry"], "person");
        assert_eq!(turned.error("c2"), "skipped_pending_review");
        assert_eq!(turned.error("c3"), "skipped_pending_review");
        assert_eq!(tool.requests().len(), 1, "{form:?}: nothing after the unknown write was sent");
        // The same write under another call id is not run.
        let again = agent.ask(&[("c9", "create_order", R1)]).await;
        assert_eq!(again.error("c9"), "review_required");
        assert_eq!(again.state, "review_required");
        assert_eq!(tool.effects("R1"), 1, "{form:?}");
    }
}

#[tokio::test]
async fn behaviour_5_the_round_budget_refuses_before_anything_runs() {
    for form in Form::ALL {
        let tool = ScriptedTool::start().await;
        let gateway = Fixture::new().budgets("rounds: 2").start(&tool).await;
        let agent = gateway.agent(form, "run-1");
        for (round, id) in [(1, "c1"), (2, "c2")] {
            let turned = agent.ask(&[(id, "lookup_order", A17)]).await;
            assert_eq!(turned.state, "continue", "{form:?}");
            assert_eq!(turned.body["round"], round);
        }
        let over = agent.ask(&[("c3", "lookup_order", A17), ("c4", "lookup_order", A17)]).await;
        assert_eq!(over.state, "budget_exhausted", "{form:?}");
        assert_eq!((over.error("c3"), over.error("c4")), ("budget_exhausted", "budget_exhausted"));
        assert_eq!(over.answer("c3")["dimension"], "rounds");
        assert_eq!(tool.hits("/orders"), 2, "{form:?}: nothing ran after the last round");
        // The model may still answer.
        assert_eq!(agent.say("A17 is in transit").await.state, "done");
    }
}

#[tokio::test]
async fn behaviour_6_missing_or_repeated_call_ids_refuse_the_whole_batch() {
    for form in Form::ALL {
        let tool = ScriptedTool::start().await;
        let gateway = Fixture::new().start(&tool).await;
        let agent = gateway.agent(form, "run-1");
        let repeated = agent.ask(&[("c1", "create_order", R1), ("c1", "create_order", R2)]).await;
        assert_eq!((repeated.status, repeated.state.as_str()), (400, "protocol_error"), "{form:?}");
        assert_eq!(repeated.body["error"]["error"], "duplicate_call_id");
        assert!(repeated.body["error"]["message"].as_str().expect("text").contains("c1"));
        let empty = agent.ask(&[("c2", "lookup_order", A17), ("", "lookup_order", A17)]).await;
        assert_eq!((empty.status, empty.state.as_str()), (400, "protocol_error"), "{form:?}");
        assert_eq!(empty.body["error"]["error"], "missing_call_id");
        assert_eq!(tool.requests().len(), 0, "{form:?}: nothing ran");
        // The refused message cost no id: sent again whole, it runs.
        let turned = agent.ask(&[("c1", "create_order", R1), ("c2", "create_order", R2)]).await;
        assert_eq!(turned.state, "continue", "{form:?}");
    }
}
