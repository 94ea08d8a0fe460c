//! Each budget of a run, through the real server.

use serde_json::Value;

use crate::support::{Fixture, Form, Reply, ScriptedTool, http, wait_for};

fn order(n: usize) -> String {
    format!(r#"{{"order_id":"{n}"}}"#)
}

/// Calls until one is refused; (how many passed, the dimension that refused).
async fn until_refused(budget: &str, arguments: impl Fn(usize) -> String) -> (usize, String) {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().budgets(budget).start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    for n in 0..50 {
        let answer = agent.call("lookup_order", &format!("c{n}"), &arguments(n)).await;
        if answer.json()["error"] == "budget_exhausted" {
            assert_eq!((answer.status, answer.header("retry-after")), (429, None));
            assert_eq!(answer.json()["retry"], "never");
            return (n, answer.json()["dimension"].as_str().expect("text").to_owned());
        }
    }
    (50, String::new())
}

#[tokio::test]
async fn each_budget_refuses_the_call_that_would_pass_it() {
    assert_eq!(until_refused("calls: 4", order).await, (4, "calls".into()));
    // 16 bytes each: three fit into 50.
    assert_eq!(
        until_refused("argument_bytes: 50B", |n| order(10 + n)).await,
        (2, "argument_bytes".into())
    );
    assert_eq!(
        until_refused("failures: 3", |n| format!(r#"{{"order_id":{n}}}"#)).await,
        (3, "failures".into())
    );
    let (passed, dimension) = until_refused("result_bytes: 100B", order).await;
    assert_eq!(dimension, "result_bytes");
    assert!((2..=4).contains(&passed), "known at the end, overshot by what is in flight: {passed}");
}

#[tokio::test]
async fn cost_is_spent_per_attempt_and_refuses_when_it_is_gone() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new()
        .budgets("cost: 0.05 USD")
        .tool("lookup_order", "cost: 0.02 USD")
        .start(&tool)
        .await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    let mut passed = 0;
    for n in 0..10 {
        let answer = agent.call("lookup_order", &format!("c{n}"), &order(n)).await.json();
        if answer["ok"] == true {
            passed += 1;
        } else {
            assert_eq!(
                (&answer["error"], &answer["dimension"]),
                (&"budget_exhausted".into(), &"cost".into())
            );
        }
    }
    assert!((2..=3).contains(&passed), "{passed}");
    assert_eq!(tool.hits("/orders"), passed);
}

#[tokio::test]
async fn calls_beyond_a_round_are_answered_and_the_round_goes_on() {
    for form in Form::ALL {
        let tool = ScriptedTool::start().await;
        let gateway = Fixture::new().budgets("calls_per_round: 2").start(&tool).await;
        let arguments: Vec<String> = (0..4).map(order).collect();
        let ids = ["c0", "c1", "c2", "c3"];
        let calls: Vec<(&str, &str, &str)> =
            ids.iter().zip(&arguments).map(|(id, a)| (*id, "lookup_order", a.as_str())).collect();
        let turned = gateway.agent(form, "r").ask(&calls).await;
        assert_eq!((turned.state.as_str(), tool.hits("/orders")), ("continue", 2), "{form:?}");
        assert_eq!(turned.error("c3"), "budget_exhausted");
        assert_eq!(turned.answer("c3")["dimension"], "calls_per_round");
    }
}

#[tokio::test]
async fn the_wall_clock_ends_a_named_run() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new()
        .with("wall_clock: 10s", "wall_clock: 300ms")
        .with("drain: 3s", "drain: 100ms")
        .start(&tool)
        .await;
    let agent = gateway.agent(Form::OpenaiChat, "short");
    assert_eq!(agent.call("lookup_order", "c0", &order(0)).await.status, 200);
    let mut n = 0;
    let mut last = Value::Null;
    wait_for("the end of the run", std::time::Duration::from_secs(5), async || {
        n += 1;
        last = agent.call("list_regions", &format!("c{n}"), "{}").await.json();
        last["ok"] == false && last["error"] != "repeat_blocked"
    })
    .await;
    assert!(
        ["budget_exhausted", "deadline_exceeded", "run_unknown"]
            .contains(&last["error"].as_str().expect("text")),
        "{last}"
    );
}

#[tokio::test]
async fn live_runs_are_bounded_and_none_is_evicted() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().budgets("max_live: 2, calls: 1").start(&tool).await;
    for run in ["one", "two"] {
        assert_eq!(
            gateway.agent(Form::OpenaiChat, run).call("lookup_order", "c", &order(1)).await.status,
            200
        );
    }
    let third = gateway.agent(Form::OpenaiChat, "three").call("lookup_order", "c", &order(1)).await;
    assert_eq!(
        (third.status, third.json()["dimension"].as_str()),
        (429, Some("live_runs")),
        "{}",
        third.text()
    );
    // The old ones have kept their counts.
    let old = gateway.agent(Form::OpenaiChat, "one").call("lookup_order", "d", &order(2)).await;
    assert_eq!(old.json()["dimension"], "calls");
    // An end makes room.
    let done =
        http::request(gateway.data, "POST", "/v1/runs/one/finish", &[], br#"{"state":"done"}"#)
            .await;
    assert_eq!(done.status, 200, "{}", done.text());
    assert_eq!(
        gateway.agent(Form::OpenaiChat, "three").call("lookup_order", "c", &order(1)).await.status,
        200
    );
    let gone = gateway.agent(Form::OpenaiChat, "one").call("lookup_order", "e", &order(3)).await;
    assert_eq!((gone.status, gone.json()["error"].as_str()), (404, Some("run_unknown")));
}

#[tokio::test]
async fn rounds_and_calls_are_exact_under_concurrency() {
    let tool = ScriptedTool::start().await;
    tool.script("/orders", [Reply::After(std::time::Duration::from_millis(30))]);
    let gateway = Fixture::new().budgets("rounds: 7, calls: 9").start(&tool).await;
    let turns: Vec<_> = (0..20)
        .map(|n| {
            let agent = gateway.agent(Form::ALL[n % 3], "shared");
            tokio::spawn(async move {
                let (one, two) = (order(2 * n), order(2 * n + 1));
                let (a, b) = (format!("a{n}"), format!("b{n}"));
                agent.ask(&[(&a, "lookup_order", &one), (&b, "lookup_order", &two)]).await
            })
        })
        .collect();
    let (mut rounds, mut ok) = (0, 0);
    for turn in turns {
        let turned = turn.await.expect("no panic");
        rounds += usize::from(
            turned.state != "budget_exhausted"
                || turned.answers.iter().any(|(_, a)| a["ok"] == true),
        );
        ok += turned.answers.iter().filter(|(_, a)| a["ok"] == true).count();
    }
    assert_eq!((ok, tool.hits("/orders")), (9, 9));
    assert!(rounds <= 7, "{rounds}");
}

#[tokio::test]
async fn the_runs_own_calls_show_what_is_used() {
    let tool = ScriptedTool::start().await;
    tool.script("/orders/9", [Reply::Status(404)]);
    let gateway = Fixture::new().start(&tool).await;
    let opened =
        http::request(gateway.data, "POST", "/v1/runs", &[], br#"{"goal":"where is A17?"}"#).await;
    assert_eq!(opened.status, 201, "{}", opened.text());
    let run = opened.json()["run"].as_str().expect("an id").to_owned();
    assert_eq!(opened.header("checkrein-run"), Some(run.as_str()));
    let agent = gateway.agent(Form::OpenaiChat, &run);
    for n in [1, 2, 9] {
        agent.call("lookup_order", &format!("c{n}"), &order(n)).await;
    }
    let shown = http::get(gateway.data, &format!("/v1/runs/{run}")).await.json();
    assert_eq!(shown["state"], "continue");
    assert_eq!(shown["budgets"]["calls"], serde_json::json!({"used": 3, "limit": 200}));
    assert_eq!(shown["budgets"]["failures"]["used"], 1);
    let summary = http::get(gateway.data, &format!("/v1/runs/{run}/summary")).await.json();
    assert_eq!(
        summary["failures"][0],
        serde_json::json!({"tool": "lookup_order", "error": "tool_error", "count": 1})
    );
}

#[tokio::test]
async fn turns_that_go_nowhere_stall_and_an_honest_end_is_done() {
    for form in Form::ALL {
        let tool = ScriptedTool::start().await;
        let gateway = Fixture::new().start(&tool).await;
        let agent = gateway.agent(form, "r");
        let unfinished = [("checkrein-unfinished", "true")];
        let message = form.message("let me think", &[]);
        let mut states = Vec::new();
        for _ in 0..4 {
            states.push(agent.send(&message, &unfinished).await.state);
        }
        assert_eq!(
            states.last().map(String::as_str),
            Some("decision_stall"),
            "{form:?}: {states:?}"
        );
        assert_eq!(agent.say("A17 is in transit").await.state, "done");
        let empty = agent.send(&form.message("", &[]), &[]).await;
        assert_eq!(empty.state, "protocol_error", "{form:?}");
    }
}
