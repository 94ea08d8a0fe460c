//! One answer per call, each under its own id, whatever happens.

use std::time::Duration;

use super::{create, order};
use crate::support::{Fixture, Form, Reply, ScriptedTool};

#[tokio::test]
async fn bb_p01_every_id_gets_one_answer_whatever_its_call_came_to() {
    let tool = ScriptedTool::start().await;
    let more = "description: Down.\neffect: read\nbreaker: { consecutive_failures: 1, open_for: 30s, open_max: 30s }\n\
                retry: { max_retries: 0 }\nhttp: { upstream: shop, method: GET, path: /down }\nschema: { type: object, properties: {} }";
    let gateway = Fixture::new().more_tool("broken", more).start(&tool).await;
    tool.script("/down", [Reply::Status(500)]).script("/orders/hang", [Reply::Hang]);
    for form in Form::ALL {
        let agent = gateway.agent(form, &format!("run-{form:?}"));
        agent.ask(&[("c0", "broken", "{}")]).await;
        let hang = order("hang");
        let turned = agent
            .ask(&[
                ("c1", "list_regions", "{}"),
                ("c2", "lookup_order", &hang),
                ("c3", "no_such_tool", "{}"),
                ("c4", "lookup_order", r#"{"order_id":4}"#),
                ("c5", "broken", "{}"),
            ])
            .await;
        assert_eq!(turned.ids(), ["c1", "c2", "c3", "c4", "c5"], "{form:?}");
        assert_eq!(turned.answer("c1")["ok"], true);
        assert_eq!(turned.error("c2"), "upstream_timeout");
        assert_eq!(turned.error("c3"), "unknown_tool");
        assert_eq!(turned.error("c4"), "invalid_arguments");
        assert_eq!(turned.error("c5"), "circuit_open");
        for (_, answer) in &turned.answers {
            assert!(!answer.to_string().is_empty());
        }
    }
}

#[tokio::test]
async fn bb_p02_the_same_id_twice_refuses_the_batch_and_names_it() {
    for form in Form::ALL {
        let tool = ScriptedTool::start().await;
        let gateway = Fixture::new().start(&tool).await;
        let (a, b) = (create("P2a"), create("P2b"));
        let turned = gateway
            .agent(form, "r")
            .ask(&[("c1", "create_order", &a), ("c1", "create_order", &b)])
            .await;
        assert_eq!((turned.status, turned.state.as_str()), (400, "protocol_error"));
        assert!(turned.body["error"]["message"].as_str().expect("text").contains("c1"));
        assert_eq!(tool.requests().len(), 0);
    }
}

#[tokio::test]
async fn bb_p04_the_identical_batch_again_gives_the_stored_answers() {
    for form in Form::ALL {
        let tool = ScriptedTool::start().await;
        let gateway = Fixture::new().start(&tool).await;
        let agent = gateway.agent(form, "r");
        let (write, read) = (create("P4"), order("A17"));
        let calls = [("c1", "create_order", write.as_str()), ("c2", "lookup_order", read.as_str())];
        let first = agent.ask(&calls).await;
        let second = agent.ask(&calls).await;
        assert_eq!(first.body, second.body, "{form:?}");
        assert_eq!(first.body["round"], 1);
        assert_eq!(
            (tool.effects("P4"), tool.hits("/create"), tool.hits("/orders")),
            (1, 1, 1),
            "{form:?}"
        );
        // The same id with other content is another call under a used name: refused whole.
        let other = order("B22");
        let reused = agent.ask(&[("c2", "lookup_order", &other)]).await;
        assert_eq!(reused.state, "protocol_error");
        assert_eq!(reused.body["error"]["error"], "call_id_reused");
    }
}

#[tokio::test]
async fn bb_p06_two_calls_of_one_tool_both_run() {
    for form in Form::ALL {
        let tool = ScriptedTool::start().await;
        let gateway = Fixture::new().start(&tool).await;
        let (one, two) = (order("1"), order("2"));
        let turned = gateway
            .agent(form, "r")
            .ask(&[("c1", "lookup_order", &one), ("c2", "lookup_order", &two)])
            .await;
        assert_eq!(tool.hits("/orders"), 2);
        assert_eq!(turned.answer("c1")["value"]["order_id"], "1");
        assert_eq!(turned.answer("c2")["value"]["order_id"], "2");
    }
}

#[tokio::test]
async fn bb_p07_one_failing_read_leaves_its_siblings_alone() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    tool.script("/orders/3", [Reply::Status(404)]);
    let arguments: Vec<String> = (1..=10).map(|n| order(&n.to_string())).collect();
    let ids: Vec<String> = (1..=10).map(|n| format!("c{n}")).collect();
    let calls: Vec<(&str, &str, &str)> = ids
        .iter()
        .zip(&arguments)
        .map(|(id, a)| (id.as_str(), "lookup_order", a.as_str()))
        .collect();
    let turned = gateway.agent(Form::OpenaiChat, "r").ask(&calls).await;
    assert_eq!(turned.ids(), ids);
    for (n, (_, answer)) in turned.answers.iter().enumerate() {
        assert_eq!(answer["ok"], n != 2, "{answer}");
    }
    assert_eq!(turned.error("c3"), "tool_error");
}

#[tokio::test]
async fn bb_p09_no_error_answer_is_empty() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    let empty = |status| Reply::Full { apply: false, status, headers: vec![], body: vec![] };
    tool.script("/orders/500", [empty(500)]).script("/orders/404", [empty(404)]);
    tool.script("/orders/rst", [Reply::Reset]).script("/orders/eof", [Reply::Close]);
    let agent = gateway.agent(Form::OpenaiChat, "r");
    for id in ["500", "404", "rst", "eof"] {
        let answer = agent.call("lookup_order", id, &order(id)).await.json();
        assert_eq!(answer["ok"], false, "{id}");
        for field in ["error", "message", "hint", "executed", "retry"] {
            assert!(
                answer[field].as_str().is_some_and(|s| !s.is_empty()),
                "{id}: {field} in {answer}"
            );
        }
    }
}

#[tokio::test]
async fn bb_p10_ids_come_back_byte_for_byte() {
    let long = "x".repeat(64);
    let ids = ["call_A|fc_B", "toolu_1", "functions.eval:301", "идент-号-🙂", &long];
    for form in Form::ALL {
        let tool = ScriptedTool::start().await;
        let gateway = Fixture::new().start(&tool).await;
        let calls: Vec<(&str, &str, &str)> =
            ids.iter().map(|id| (*id, "list_regions", "{}")).collect();
        let turned = gateway.agent(form, "r").ask(&calls).await;
        assert_eq!(turned.ids(), ids, "{form:?}");
    }
}

#[tokio::test]
async fn bb_p12_parallel_calls_do_not_escape_the_budget_of_calls() {
    for form in Form::ALL {
        let tool = ScriptedTool::start().await;
        tool.script("/orders", [Reply::After(Duration::from_millis(50))]);
        let gateway = Fixture::new().budgets("calls: 3").start(&tool).await;
        let arguments: Vec<String> = (1..=5).map(|n| order(&n.to_string())).collect();
        let calls: Vec<(&str, &str, &str)> = ["c1", "c2", "c3", "c4", "c5"]
            .iter()
            .zip(&arguments)
            .map(|(id, a)| (*id, "lookup_order", a.as_str()))
            .collect();
        let turned = gateway.agent(form, "r").ask(&calls).await;
        assert_eq!(tool.hits("/orders"), 3, "{form:?}");
        for id in ["c1", "c2", "c3"] {
            assert_eq!(turned.answer(id)["ok"], true, "{form:?} {id}");
        }
        for id in ["c4", "c5"] {
            assert_eq!(turned.error(id), "budget_exhausted", "{form:?}");
            assert_eq!(turned.answer(id)["dimension"], "calls");
        }
    }
}
