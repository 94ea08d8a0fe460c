//! Limits that nothing extends, retries that never storm, the cause told instead of "timeout".

use std::time::Duration;

use tokio::time::Instant;

use super::order;
use crate::support::{Fixture, Form, Reply, ScriptedTool, wait_for};

const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn bb_r01_retry_after_is_honoured_when_it_is_valid_and_ignored_when_not() {
    let valid = ["1", "DATE"];
    let void = ["-5", "", "abc", "1.5", "Wed, 01 Jan 2020 00:00:00 GMT", "0"];
    let fixture = || {
        Fixture::new()
            .with("deadline: 2s", "deadline: 8s")
            .with("wall_clock: 10s", "wall_clock: 1m")
    };
    for (wait, values) in [(true, &valid[..]), (false, &void[..])] {
        for value in values {
            let tool = ScriptedTool::start().await;
            let gateway = fixture().start(&tool).await;
            #[expect(clippy::disallowed_methods, reason = "a date on the wire is wall time")]
            let soon =
                || httpdate::fmt_http_date(std::time::SystemTime::now() + Duration::from_secs(2));
            let value = if *value == "DATE" { soon() } else { (*value).to_owned() };
            let headers = vec![("retry-after", value.clone())];
            tool.script(
                "/orders",
                [
                    Reply::Full { apply: false, status: 503, headers, body: b"{}".to_vec() },
                    Reply::Ok,
                ],
            );
            let began = Instant::now();
            let answer = gateway
                .agent(Form::OpenaiChat, "r")
                .call("lookup_order", "c1", &order("1"))
                .await
                .json();
            let took = began.elapsed();
            assert_eq!(
                (&answer["ok"], &answer["attempts"]),
                (&true.into(), &2.into()),
                "{value:?}: {answer}"
            );
            // "now + 2 s" has whole seconds on the wire, so at least one of them is ahead.
            assert_eq!(took >= Duration::from_millis(950), wait, "{value:?} took {took:?}");
            assert!(took >= Duration::from_millis(20), "never a burst without back-off");
        }
    }
    // Two fields say nothing.
    let tool = ScriptedTool::start().await;
    let gateway = fixture().start(&tool).await;
    let headers = vec![("retry-after", "3".to_owned()), ("retry-after", "4".to_owned())];
    tool.script(
        "/orders",
        [Reply::Full { apply: false, status: 503, headers, body: b"{}".to_vec() }, Reply::Ok],
    );
    let began = Instant::now();
    let answer =
        gateway.agent(Form::OpenaiChat, "r").call("lookup_order", "c1", &order("1")).await.json();
    assert_eq!(answer["ok"], true);
    assert!(began.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn bb_r03_the_cause_is_told_instead_of_a_timeout() {
    let tool = ScriptedTool::start().await;
    let fixture = Fixture::new().with(
        "backoff: { base: 20ms, max: 100ms, jitter: 10ms }, deadline: 2s",
        "backoff: { base: 2s, max: 2s, jitter: 0ms }, deadline: 1200ms",
    );
    let gateway = fixture.start(&tool).await;
    let headers = vec![("content-type", "text/plain".to_owned())];
    tool.script(
        "/orders",
        [Reply::Full { apply: false, status: 503, headers, body: b"shop is closed".to_vec() }],
    );
    let began = Instant::now();
    let answer =
        gateway.agent(Form::OpenaiChat, "r").call("lookup_order", "c1", &order("1")).await.json();
    assert!(began.elapsed() < Duration::from_millis(1900), "no sleep into the deadline");
    assert_eq!(answer["error"], "tool_unavailable", "{answer}");
    let message = answer["message"].as_str().expect("text");
    assert!(message.contains("503") && message.contains("shop is closed"), "{message}");
    wait_for("the record", SOON, async || gateway.records().iter().any(|r| r["kind"] == "call"))
        .await;
    let record = gateway.records().into_iter().find(|r| r["kind"] == "call").expect("just seen");
    assert_eq!((&record["attempts"], &record["retry_stopped_by"]), (&1.into(), &"deadline".into()));
    let stopped = gateway.metrics().await;
    assert_eq!(
        stopped.value(
            "checkrein_retries_suppressed_total",
            &[("tool", "lookup_order"), ("reason", "deadline")]
        ),
        1.0
    );
}

#[tokio::test]
async fn bb_r04_retries_do_not_multiply_and_none_is_hidden() {
    let tool = ScriptedTool::start().await;
    tool.script("/orders", [Reply::Status(503)]);
    let fixture = Fixture::new()
        .with("consecutive_failures: 5", "consecutive_failures: 1000")
        .budgets("calls: 1000, failures: 1000")
        .with("bulkhead: 64", "bulkhead: 200")
        .with("addresses: [loopback],", "addresses: [loopback], bulkhead: 200,");
    let gateway = fixture.start(&tool).await;
    let calls: Vec<_> = (0..100)
        .map(|n| {
            let agent = gateway.agent(Form::OpenaiChat, "r");
            tokio::spawn(async move {
                agent.call("lookup_order", &format!("c{n}"), &order(&n.to_string())).await.json()
            })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.expect("no panic")["error"], "tool_unavailable");
    }
    let hits = tool.hits("/orders");
    let metrics = gateway.metrics().await;
    assert_eq!(
        metrics.sum("checkrein_attempts_total", &[("tool", "lookup_order")]),
        hits as f64,
        "no hidden retry"
    );
    // 100 calls, and what the retry budget of the upstream holds: ten tokens and the little that time added.
    assert!((100..=115).contains(&hits), "{hits} requests for 100 calls");
    assert_eq!(
        metrics.sum("checkrein_retries_total", &[("tool", "lookup_order")]),
        (hits - 100) as f64
    );
}

#[tokio::test]
async fn bb_r06_a_dripping_body_does_not_extend_the_total() {
    for chunked in [false, true] {
        let tool = ScriptedTool::start().await;
        let gateway = Fixture::new().with("max_retries: 2", "max_retries: 0").start(&tool).await;
        tool.script("/orders", [Reply::Drip { every: Duration::from_millis(100), chunked }]);
        let began = Instant::now();
        let answer = gateway
            .agent(Form::OpenaiChat, "r")
            .call("lookup_order", "c1", &order("1"))
            .await
            .json();
        assert_eq!(answer["error"], "upstream_timeout", "{answer}");
        assert!(began.elapsed() >= Duration::from_secs(1));
        wait_for("the tool's socket to close", SOON, async || tool.open_connections() == 0).await;
        wait_for("the record", SOON, async || {
            gateway.records().iter().any(|r| r["kind"] == "attempt")
        })
        .await;
        let record = gateway
            .records()
            .into_iter()
            .find(|r| r["kind"] == "attempt")
            .expect("an attempt record");
        assert_eq!(record["timed_out_by"], "total", "{record}");
    }
}

#[tokio::test]
async fn bb_r07_silence_after_accept_ends_at_the_first_byte_limit() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().with("max_retries: 2", "max_retries: 0").start(&tool).await;
    tool.script("/orders", [Reply::Hang]);
    let began = Instant::now();
    let answer =
        gateway.agent(Form::OpenaiChat, "r").call("lookup_order", "c1", &order("1")).await.json();
    let took = began.elapsed();
    assert_eq!(answer["error"], "upstream_timeout");
    assert!(took >= Duration::from_millis(500) && took < Duration::from_millis(990), "{took:?}");
    wait_for("the tool's socket to close", SOON, async || tool.open_connections() == 0).await;
    let metrics = gateway.metrics().await;
    let class = [("tool", "lookup_order"), ("error_class", "timeout_first_byte")];
    assert_eq!(metrics.value("checkrein_attempts_total", &class), 1.0);
}

#[tokio::test]
async fn the_caller_may_shorten_its_time_and_never_lengthen_it() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().with("max_retries: 2", "max_retries: 0").start(&tool).await;
    tool.script("/orders", [Reply::Hang]);
    let agent = gateway.agent(Form::OpenaiChat, "r");
    for (millis, at_most) in [("300", 490), ("60000", 3000)] {
        let began = Instant::now();
        let answer = agent
            .post(
                "/v1/tools/lookup_order",
                &[("checkrein-timeout-ms", millis)],
                order("1").as_bytes(),
            )
            .await;
        assert_eq!(answer.json()["error"], "upstream_timeout", "{}", answer.text());
        assert!(began.elapsed() < Duration::from_millis(at_most));
    }
    let answer = agent
        .post("/v1/tools/lookup_order", &[("checkrein-timeout-ms", "-1")], order("1").as_bytes())
        .await;
    assert_eq!(answer.status, 400);
}
