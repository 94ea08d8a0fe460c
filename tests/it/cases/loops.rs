//! An agent in a loop runs out, and is told what to change.

use std::time::Duration;

use super::order;
use crate::support::{Fixture, Form, Reply, ScriptedTool, wait_for};

#[tokio::test]
async fn bb_l01_the_same_failing_call_is_blocked_after_three() {
    for form in Form::ALL {
        let tool = ScriptedTool::start().await;
        tool.script("/orders", [Reply::Status(404)]);
        let gateway = Fixture::new().start(&tool).await;
        let agent = gateway.agent(form, "r");
        let mut seen = Vec::new();
        for n in 0..10 {
            let id = format!("c{n}");
            // Other spelling, same arguments.
            let text =
                if n % 2 == 0 { order("1") } else { r#"{ "order_id" : "\u0031" }"#.to_owned() };
            let turned = agent.ask(&[(&id, "lookup_order", &text)]).await;
            seen.push((turned.error(&id).to_owned(), turned.answer(&id)["message"].to_string()));
        }
        assert_eq!(tool.hits("/orders"), 3, "{form:?}");
        assert!(seen[..3].iter().all(|(code, _)| code == "tool_error"), "{seen:?}");
        assert!(seen[3..].iter().all(|(code, _)| code == "repeat_blocked"), "{seen:?}");
        assert_ne!(seen[2].1, seen[3].1, "another text, telling what to change");
        // Changed arguments pass.
        tool.script("/orders", [Reply::Ok]);
        assert_eq!(
            agent.ask(&[("d1", "lookup_order", &order("2"))]).await.answer("d1")["ok"],
            true
        );
        let trips = gateway.metrics().await;
        assert_eq!(
            trips.value(
                "checkrein_repeat_fuse_trips_total",
                &[("tool", "lookup_order"), ("kind", "same_failures")]
            ),
            7.0
        );
    }
}

#[tokio::test]
async fn successes_that_change_nothing_are_blocked_too_and_polling_that_sees_change_is_not() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    for n in 0..5 {
        assert_eq!(
            agent.call("lookup_order", &format!("c{n}"), &order("1")).await.json()["ok"],
            true
        );
    }
    let blocked = agent.call("lookup_order", "c5", &order("1")).await;
    assert_eq!((blocked.status, blocked.json()["error"].as_str()), (409, Some("repeat_blocked")));
    let progress = (0..12).map(|n| Reply::Json(format!(r#"{{"percent":{n}}}"#)));
    tool.script("/orders/9", progress);
    for n in 0..12 {
        assert_eq!(
            agent.call("lookup_order", &format!("p{n}"), &order("9")).await.json()["ok"],
            true
        );
    }
}

#[tokio::test]
async fn bb_l03_failures_that_look_different_still_run_out() {
    for form in Form::ALL {
        let tool = ScriptedTool::start().await;
        let gateway = Fixture::new().budgets("failures: 5").start(&tool).await;
        let agent = gateway.agent(form, "r");
        for n in 0..5 {
            let id = format!("c{n}");
            let turned =
                agent.ask(&[(&id, "lookup_order", &format!(r#"{{"order_id":{n}}}"#))]).await;
            assert_eq!(turned.error(&id), "invalid_arguments", "{form:?}");
        }
        let over = agent.ask(&[("c5", "lookup_order", r#"{"order_id":5}"#)]).await;
        assert_eq!(over.error("c5"), "budget_exhausted", "{form:?}");
        assert_eq!(over.answer("c5")["dimension"], "failures");
        assert_eq!(over.state, "budget_exhausted");
        assert!(
            over.body["summary"].as_str().is_some_and(|s| s.contains("lookup_order")),
            "{}",
            over.body
        );
    }
}

#[tokio::test]
async fn bb_q01_the_burst_is_what_passes_at_once() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new()
        .tool("lookup_order", "rate_limit: { rate: 60/m, burst: 1 }")
        .budgets("calls: 1000, failures: 1000")
        .start(&tool)
        .await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    let calls: Vec<_> = (0..100)
        .map(|n| {
            let agent = agent.clone();
            tokio::spawn(async move {
                agent.call("lookup_order", &format!("c{n}"), &order(&n.to_string())).await
            })
        })
        .collect();
    let mut passed = 0;
    for call in calls {
        let answer = call.await.expect("no panic");
        if answer.status == 200 {
            passed += 1;
            continue;
        }
        assert_eq!((answer.status, answer.json()["error"].as_str()), (429, Some("rate_limited")));
        assert_eq!(answer.json()["limited_by"], "gateway");
        assert!(
            answer.json()["retry_after_ms"].as_u64().is_some_and(|ms| (1..=1000).contains(&ms))
        );
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert!(
            answer
                .header("ratelimit-policy")
                .is_some_and(|p| p.contains("q=1") && p.contains("w=1"))
        );
    }
    assert_eq!(passed, tool.hits("/orders"));
    // One at t=0, and one more for each whole second that a loaded machine took to send them all.
    assert!((1..=4).contains(&passed), "{passed} passed");
}

#[tokio::test]
async fn bb_q04_a_reload_neither_gives_nor_takes_tokens() {
    let tool = ScriptedTool::start().await;
    let fixture = Fixture::new().tool("lookup_order", "rate_limit: { rate: 1/h, burst: 5 }");
    let gateway = fixture.start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    let mut n = 0;
    let mut call = async || {
        n += 1;
        agent.call("lookup_order", &format!("c{n}"), &order(&n.to_string())).await.status
    };
    for _ in 0..5 {
        assert_eq!(call().await, 200);
    }
    assert_eq!(call().await, 429);
    let reloads = async |result: &str| {
        gateway.metrics().await.value("checkrein_policy_reloads_total", &[("result", result)])
    };
    let soon = Duration::from_secs(10);
    // Other text, the same numbers: the bucket stays as it is.
    let before = reloads("applied").await;
    gateway.rewrite(&format!("# touched\n{}", fixture.text(&tool.url()))).await;
    wait_for("the reload", soon, async || reloads("applied").await > before).await;
    assert_eq!(call().await, 429);
    // Other numbers: a new bucket, full.
    let before = reloads("applied").await;
    gateway.rewrite(&fixture.clone().with("burst: 5", "burst: 10").text(&tool.url())).await;
    wait_for("the reload", soon, async || reloads("applied").await > before).await;
    for _ in 0..10 {
        assert_eq!(call().await, 200);
    }
    assert_eq!(call().await, 429);
}
