//! What Checkrein promises, one test a promise, named like it; through the real server and a real tool.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::support::{Fixture, Form, Gateway, Reply, ScriptedTool, wait_for};

const SOON: Duration = Duration::from_secs(10);
const A17: &str = r#"{"order_id":"A17"}"#;

fn create(reference: &str) -> String {
    format!(r#"{{"order_ref":"{reference}","sku":"A","qty":1}}"#)
}

/// Promise 1.
#[tokio::test]
async fn nothing_reaches_a_tool_that_the_policy_does_not_allow() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    for form in Form::ALL {
        let agent = gateway.agent(form, &format!("r-{form:?}"));
        let words = r#"{"order_id":"A17"}"#;
        let turned = agent
            .ask(&[
                ("c1", "delete_order", words),
                ("c2", "nothing_of_the_kind", words),
                ("c3", "lookup_order", r#"{"order_id":"A17","effect":"write"}"#),
                ("c4", "lookup_order/../create", words),
                ("c5", "LOOKUP_ORDER", words),
            ])
            .await;
        for id in ["c1", "c2", "c3", "c4", "c5"] {
            assert_eq!(turned.answer(id)["executed"], "no", "{form:?}");
        }
        let direct = agent.call("delete_order", "c6", words).await;
        assert_eq!(direct.status, 404);
    }
    assert_eq!(tool.requests().len(), 0);
}

/// Promise 2.
#[tokio::test]
async fn what_was_validated_is_what_is_sent() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    // White space and escapes are the agent's bytes and stay behind; order and exact digits are kept.
    let written = "{ \"sku\" : \"\\u0041\",\n\"order_ref\":\"P2\", \"qty\": 2 }";
    assert_eq!(agent.call("create_order", "c1", written).await.status, 200);
    assert_eq!(tool.last().text(), r#"{"sku":"A","order_ref":"P2","qty":2}"#);
    let before = tool.requests().len();
    for (n, refused) in [
        r#"{"order_ref":"P2b","sku":"A","qty":1,"qty":2}"#,
        r#"{"order_ref":"P2b","sku":"A","qty":1,"more":1}"#,
        r#"{"order_ref":"P2b","sku":"A","qty":1} x"#,
        r#"{"order_ref":"P2b","sku":"A","qty":NaN}"#,
        &format!(r#"{{"order_ref":"P2b","sku":{}1{},"qty":1}}"#, "[".repeat(40), "]".repeat(40)),
        &format!(r#"{{"order_ref":"P2b","sku":"{}","qty":1}}"#, "x".repeat(70_000)),
    ]
    .iter()
    .enumerate()
    {
        let answer = agent.call("create_order", &format!("d{n}"), refused).await.json();
        assert_eq!((&answer["ok"], &answer["executed"]), (&false.into(), &"no".into()), "{answer}");
    }
    assert_eq!(tool.requests().len(), before);
}

/// Promise 3, as far as one process goes.
#[tokio::test]
async fn a_write_is_sent_at_most_once_for_one_operation() {
    let ends = [
        Reply::ApplyThenHang,
        Reply::ApplyThenReset,
        Reply::ApplyThenClose,
        Reply::ApplyThenStatus(503),
        Reply::Cut { apply: true },
        Reply::Ok,
    ];
    for (n, end) in ends.into_iter().enumerate() {
        let tool = ScriptedTool::start().await;
        tool.script("/create", [end.clone()]);
        let gateway = Fixture::new().start(&tool).await;
        let write = create(&format!("P3-{n}"));
        // Under new ids, in new runs, through every front end.
        for (m, form) in Form::ALL.iter().enumerate() {
            let agent = gateway.agent(*form, &format!("run-{m}"));
            agent.ask(&[(&format!("c{m}"), "create_order", &write)]).await;
            agent.call("create_order", &format!("d{m}"), &write).await;
        }
        assert_eq!((tool.hits("/create"), tool.effects(&format!("P3-{n}"))), (1, 1), "{end:?}");
    }
}

/// Promise 4, as far as one process goes.
#[tokio::test]
async fn every_write_ends_as_executed_not_executed_or_unknown() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    for (reference, reply, executed) in [
        ("P4-ok", Reply::Ok, "yes"),
        ("P4-422", Reply::Status(422), "no"),
        ("P4-429", Reply::Status(429), "no"),
        ("P4-cut", Reply::Cut { apply: true }, "yes"),
        ("P4-500", Reply::ApplyThenStatus(500), "unknown"),
        ("P4-reset", Reply::ApplyThenReset, "unknown"),
    ] {
        tool.script("/create", [reply]);
        let answer = agent.call("create_order", reference, &create(reference)).await.json();
        let said =
            if answer["ok"] == true { "yes" } else { answer["executed"].as_str().expect("text") };
        assert_eq!(said, executed, "{reference}: {answer}");
        // After a 429 the tool's cooldown stands for a second: the next write waits for it.
        if reference == "P4-429" {
            let cool = async || {
                gateway.metrics().await.sum(
                    "checkrein_tool_cooldown_until_timestamp_seconds",
                    &[("tool", "create_order")],
                ) == 0.0
            };
            wait_for("the end of the cooldown", SOON, cool).await;
        }
    }
    let metrics = gateway.metrics().await;
    for (end, count) in [("executed", 2.0), ("not_executed", 2.0), ("unknown", 2.0)] {
        assert_eq!(
            metrics.value("checkrein_write_ends_total", &[("tool", "create_order"), ("end", end)]),
            count,
            "{end}"
        );
    }
    assert_eq!(metrics.sum("checkrein_reviews_open", &[("tool", "create_order")]), 2.0);
    wait_for("the records", SOON, async || {
        gateway.records().iter().filter(|r| r["kind"] == "call").count() == 6
    })
    .await;
    // `not_executed` stands on named evidence only.
    for record in gateway.records().iter().filter(|r| r["kind"] == "call" && r["executed"] == "no")
    {
        assert!(record["evidence"].as_str().is_some_and(|e| e.starts_with("status_4")), "{record}");
    }
}

/// Promise 5.
#[tokio::test]
async fn a_read_is_retried_only_when_transient_and_never_past_its_deadline() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    for (n, (reply, attempts)) in [
        (Reply::Status(503), 3),
        (Reply::Reset, 3),
        (Reply::Status(404), 1),
        (Reply::Status(501), 1),
        (Reply::Json("not json".into()), 1),
    ]
    .into_iter()
    .enumerate()
    {
        tool.script(&format!("/orders/p5-{n}"), [reply]);
        agent.call("lookup_order", &format!("c{n}"), &format!(r#"{{"order_id":"p5-{n}"}}"#)).await;
        assert_eq!(tool.hits(&format!("/orders/p5-{n}")), attempts, "case {n}");
    }
    // The deadline of the caller bounds the whole loop.
    tool.script("/orders/slow", [Reply::Hang]);
    let began = Instant::now();
    let text = r#"{"order_id":"slow"}"#;
    let answer = agent
        .post("/v1/tools/lookup_order", &[("checkrein-timeout-ms", "700")], text.as_bytes())
        .await;
    assert_eq!(answer.json()["error"], "upstream_timeout", "{}", answer.text());
    assert!(began.elapsed() < Duration::from_millis(1500));
}

/// Promise 6.
#[tokio::test]
async fn nothing_queues_over_a_limit_is_refused_at_once_with_a_time_to_come_back() {
    let tool = ScriptedTool::start().await;
    tool.script("/orders", [Reply::After(Duration::from_millis(400))]);
    let gateway = Fixture::new()
        .with("bulkhead: 64", "bulkhead: 1")
        .tool("list_regions", "rate_limit: { rate: 1/m, burst: 1 }")
        .start(&tool)
        .await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    let busy = tokio::spawn({
        let agent = agent.clone();
        async move { agent.call("lookup_order", "c1", A17).await }
    });
    wait_for("the first at the tool", SOON, async || tool.hits("/orders") == 1).await;
    let began = Instant::now();
    let second = agent.call("lookup_order", "c2", r#"{"order_id":"B"}"#).await;
    assert!(began.elapsed() < Duration::from_millis(300));
    assert_eq!(
        (second.status, second.json()["error"].as_str()),
        (503, Some("concurrency_limited"))
    );
    assert!(second.json()["retry_after_ms"].as_u64().is_some_and(|ms| ms >= 1));
    assert_eq!(busy.await.expect("no panic").status, 200);
    assert_eq!(agent.call("list_regions", "c3", "{}").await.status, 200);
    let limited = agent.call("list_regions", "c4", "{}").await;
    assert_eq!((limited.status, limited.json()["retry"].as_str()), (429, Some("after")));
    let wait: u64 = limited.header("retry-after").and_then(|s| s.parse().ok()).expect("seconds");
    assert!((1..=60).contains(&wait));
}

/// Promise 7.
#[tokio::test]
async fn a_dead_tool_costs_milliseconds_and_a_mended_one_is_used_within_seconds() {
    let address = ScriptedTool::refused_address().await;
    let gateway = Gateway::start(
        &Fixture::new().with("max_retries: 2", "max_retries: 0").text(&format!("http://{address}")),
    )
    .await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    let call = async |id: &str| {
        agent.call("lookup_order", id, &format!(r#"{{"order_id":"{id}"}}"#)).await.json()
    };
    for n in 0..5 {
        assert_eq!(call(&format!("c{n}")).await["error"], "upstream_unreachable");
    }
    let began = Instant::now();
    let refused = call("c5").await;
    assert_eq!(refused["error"], "circuit_open");
    assert!(began.elapsed() < Duration::from_millis(200));
    assert!(
        refused["retry_after_ms"].as_u64().is_some_and(|ms| (1..=1300).contains(&ms)),
        "{refused}"
    );
    assert!(refused["message"].as_str().expect("text").contains("temporarily unavailable"));
    let _tool = ScriptedTool::start_at(address).await;
    let mut n = 5;
    wait_for("the mended tool in use", Duration::from_secs(5), async || {
        n += 1;
        call(&format!("c{n}")).await["ok"] == true
    })
    .await;
}

/// Promise 8.
#[tokio::test]
async fn every_answer_says_what_happened_and_what_to_do_next() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new()
        .tool("list_regions", "rate_limit: { rate: 1/m, burst: 1 }")
        .start(&tool)
        .await;
    tool.script("/orders/500", [Reply::Status(500)])
        .script("/create", [Reply::ApplyThenReset])
        .script("/orders/404", [Reply::Status(404)]);
    for form in Form::ALL {
        let agent = gateway.agent(form, &format!("r-{form:?}"));
        let write = create(&format!("P8-{form:?}"));
        let turned = agent
            .ask(&[
                ("c1", "lookup_order", r#"{"order_id":1}"#),
                ("c2", "lookup_order", r#"{"order_id":"500"}"#),
                ("c3", "lookup_order", r#"{"order_id":"404"}"#),
                ("c4", "no_tool", "{}"),
                ("c5", "list_regions", "{}"),
                ("c6", "list_regions", r#"{}"#),
                ("c7", "create_order", &write),
                ("c8", "lookup_order", A17),
            ])
            .await;
        for (id, answer) in &turned.answers {
            if answer["ok"] == true {
                assert!(answer["attempts"].as_u64().is_some_and(|n| n >= 1), "{answer}");
                continue;
            }
            for field in ["error", "message", "hint"] {
                assert!(
                    answer[field].as_str().is_some_and(|text| !text.is_empty()),
                    "{id}: {field} of {answer}"
                );
            }
            assert!(
                ["no", "yes", "unknown"].contains(&answer["executed"].as_str().expect("text")),
                "{answer}"
            );
            let retry = answer["retry"].as_str().expect("text");
            assert!(["never", "after", "changed", "person"].contains(&retry), "{answer}");
            assert!(answer["message"].as_str().expect("text").len() < 700, "short: {answer}");
            assert_eq!(answer["call"], Value::from(id.as_str()));
        }
        assert_eq!(turned.answer("c7")["retry"], "person");
        assert_eq!(turned.answer("c1")["retry"], "changed");
    }
}

/// Promise 9.
#[tokio::test]
async fn a_bad_policy_never_replaces_a_good_one() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    let wider = Fixture::new()
        .text(&tool.url())
        .replace("send_email, pay]", "send_email, pay, delete_order]");
    gateway.rewrite(&format!("{wider}    alow: [everything]\n")).await;
    let rejected = async || {
        gateway.metrics().await.value("checkrein_policy_reloads_total", &[("result", "rejected")])
            >= 1.0
    };
    wait_for("the refusal", SOON, rejected).await;
    assert_eq!(
        agent.call("delete_order", "c1", A17).await.status,
        404,
        "what the old policy refused stays refused"
    );
    assert_eq!(agent.call("lookup_order", "c2", A17).await.status, 200);
    gateway.rewrite(&wider).await;
    let applied = async || {
        gateway.metrics().await.value("checkrein_policy_reloads_total", &[("result", "applied")])
            >= 1.0
    };
    wait_for("the good one", SOON, applied).await;
    assert_eq!(agent.call("delete_order", "c3", A17).await.status, 200);
}

/// Promise 10.
#[tokio::test]
async fn everything_that_happened_can_be_shown_afterwards() {
    let tool = ScriptedTool::start().await;
    tool.script("/orders/flaky", [Reply::Status(503), Reply::Ok])
        .script("/create", [Reply::ApplyThenHang]);
    let gateway = Fixture::new().start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "run-10");
    agent.call("lookup_order", "c1", r#"{"order_id":"flaky"}"#).await;
    agent.call("delete_order", "c2", A17).await;
    agent.call("lookup_order", "c3", r#"{"order_id":3}"#).await;
    agent.call("create_order", "c4", &create("P10")).await;
    let calls =
        || gateway.records().into_iter().filter(|r| r["kind"] == "call").collect::<Vec<_>>();
    wait_for("all records", SOON, async || calls().len() == 4).await;
    let of = |id: &str| calls().into_iter().find(|r| r["call_id"] == id).expect("a record");
    assert_eq!(of("c1")["outcome"], "ok");
    assert_eq!(of("c1")["attempts"], 2);
    assert_eq!(of("c2")["outcome"], "unknown_tool");
    assert_eq!(of("c3")["outcome"], "invalid_arguments");
    assert_eq!(of("c4")["outcome"], "outcome_unknown");
    assert_eq!(of("c4")["executed"], "unknown");
    assert!(of("c4")["operation"].as_str().is_some_and(|op| op.starts_with("op_")));
    for id in ["c1", "c2", "c3", "c4"] {
        let record = of(id);
        assert!(
            record["rule"].as_str().is_some_and(|rule| !rule.is_empty()),
            "the deciding rule: {record}"
        );
        assert_eq!(record["run"], "run-10");
        assert!(record["duration_ms"].as_f64().is_some());
        assert!(record["policy_revision"].as_str().is_some_and(|r| r.len() == 12));
    }
}
