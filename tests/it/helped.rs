//! Writes at tools that help, through the whole gateway: the wire, the ledger, the answer.

use std::time::Duration;

use crate::support::{Fixture, Form, Reply, ScriptedTool, wait_for};

const SOON: Duration = Duration::from_secs(10);

fn order(reference: &str) -> String {
    format!(r#"{{"order_ref":"{reference}","sku":"s","qty":1}}"#)
}

const KEYED: &str = "write: { idempotency: { mode: header, window: 1h }, fingerprint: [/order_ref]";
const ASKED: &str = "write: { status_query: { tool: lookup_order, arguments: { order_id: { from: /order_ref } }, executed_when: { pointer: /value/status, equals: in_transit }, not_executed_when: { pointer: /value/status, equals: none }, settle: 100ms }, fingerprint: [/order_ref]";
const PLAIN: &str = "write: { fingerprint: [/order_ref]";

#[tokio::test]
async fn a_key_that_the_tool_recognises_turns_a_lost_answer_into_an_answer() {
    for lost in [Reply::ApplyThenReset, Reply::ApplyThenClose, Reply::ApplyThenStatus(503)] {
        let tool = ScriptedTool::start().await;
        tool.script("/create", [lost, Reply::Json(r#"{"id":7}"#.into())]);
        let gateway = Fixture::new().with(PLAIN, KEYED).start(&tool).await;
        let agent = gateway.agent(Form::OpenaiChat, "r");
        let answer = agent.call("create_order", "c1", &order("H1")).await;
        assert_eq!((answer.status, &answer.json()["value"]["id"]), (200, &7.into()));
        let keys: Vec<String> = tool
            .requests()
            .iter()
            .map(|request| request.header("idempotency-key").expect("a key").to_owned())
            .collect();
        assert_eq!((keys.len(), &keys[0]), (2, &keys[1]));
        let metrics = gateway.metrics().await;
        let by = [("tool", "create_order"), ("by", "resend")];
        assert_eq!(metrics.value("checkrein_write_upgrades_total", &by), 1.0);
        assert_eq!(metrics.sum("checkrein_reviews_open", &[("tool", "create_order")]), 0.0);
    }
}

#[tokio::test]
async fn a_read_tells_what_became_of_a_write() {
    for (status, executed, code) in
        [("in_transit", "yes", "result_lost"), ("none", "no", "tool_unavailable")]
    {
        let tool = ScriptedTool::start().await;
        let lost = if status == "none" { Reply::Reset } else { Reply::ApplyThenHang };
        tool.script("/create", [lost, Reply::Ok]);
        tool.script("/orders", [Reply::Json(format!(r#"{{"status":"{status}"}}"#))]);
        let gateway = Fixture::new().with(PLAIN, ASKED).start(&tool).await;
        let agent = gateway.agent(Form::OpenaiChat, "r");
        let answer = agent.call("create_order", "c1", &order("H2")).await.json();
        assert_eq!(
            (answer["executed"].as_str(), answer["error"].as_str()),
            (Some(executed), Some(code))
        );
        assert_eq!(tool.hits("/create"), 1);
        let asked = if status == "none" { 2 } else { 1 };
        assert_eq!(tool.hits("/orders/H2"), asked);
        let metrics = gateway.metrics().await;
        // The gateway's own question is no call of an agent.
        assert_eq!(metrics.sum("checkrein_tool_calls_total", &[("tool", "lookup_order")]), 0.0);
        let by = [("tool", "create_order"), ("by", "status_query")];
        assert_eq!(metrics.value("checkrein_write_upgrades_total", &by), 1.0);
    }
}

/// A slow tool acts after it was asked: what it says meanwhile frees nothing, or it would act twice.
#[tokio::test]
async fn a_no_counts_only_once_the_exchange_is_over() {
    let tool = ScriptedTool::start().await;
    tool.script("/create", [Reply::Hang, Reply::Ok]);
    tool.script("/orders", [Reply::Json(r#"{"status":"none"}"#.into())]);
    let gateway = Fixture::new().with(PLAIN, ASKED).start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    let began = tokio::time::Instant::now();
    let answer = agent.call("create_order", "c1", &order("H2")).await.json();
    assert_eq!(answer["executed"], "no", "{answer}");
    // `first_byte` is 500 ms, and for the three seconds of `drain` it might still have acted.
    assert!(began.elapsed() > Duration::from_millis(3500), "{:?}", began.elapsed());
    assert_eq!(tool.hits("/create"), 1);
    assert!(tool.hits("/orders/H2") > 2, "the early answers did not count");
    let again = agent.call("create_order", "c2", &order("H2")).await.json();
    assert_eq!((again["ok"].as_bool(), tool.hits("/create")), (Some(true), 2));
}

#[tokio::test]
async fn a_key_among_the_arguments_is_neither_shown_to_models_nor_taken_from_them() {
    let tool = ScriptedTool::start().await;
    let fixture = Fixture::new()
        .with(PLAIN, "write: { idempotency: { mode: argument, name: /request_key }, fingerprint: [/order_ref]")
        .with("        sku: {", "        request_key: { type: string, maxLength: 80 }\n        sku: {");
    let gateway = fixture.start(&tool).await;
    let shown = crate::support::http::get(gateway.data, "/v1/tools").await.text();
    assert!(shown.contains("order_ref") && !shown.contains("request_key"), "{shown}");
    let agent = gateway.agent(Form::OpenaiChat, "r");
    let own = r#"{"order_ref":"H3","sku":"s","qty":1,"request_key":"mine"}"#;
    let refused = agent.call("create_order", "c1", own).await.json();
    assert_eq!(refused["error"], "invalid_arguments");
    assert_eq!(tool.hits("/create"), 0);
    let answer = agent.call("create_order", "c2", &order("H3")).await.json();
    assert_eq!(answer["ok"], true, "{answer}");
    let body: serde_json::Value = serde_json::from_slice(&tool.last().body).expect("JSON");
    assert_eq!(body["request_key"].as_str().map(str::len), Some(43));
}

/// A tool that was down is used again within seconds, and no write was spent to find out.
#[tokio::test]
async fn a_named_probe_finds_out_that_a_tool_is_back() {
    for probe in ["connect", "{ tool: list_regions }"] {
        let address = ScriptedTool::refused_address().await;
        let breaker = format!(
            "breaker: {{ consecutive_failures: 2, open_for: 1h, open_max: 1h, probe: {probe}, probe_every: 50ms }}"
        );
        let fixture = Fixture::new().tool("create_order", &breaker);
        let gateway =
            crate::support::Gateway::start(&fixture.text(&format!("http://{address}"))).await;
        let agent = gateway.agent(Form::OpenaiChat, "r");
        for n in 0..2 {
            let answer =
                agent.call("create_order", &format!("c{n}"), &order(&format!("P{n}"))).await;
            assert_eq!(answer.json()["error"], "upstream_unreachable");
        }
        assert_eq!(
            agent.call("create_order", "c3", &order("P3")).await.json()["error"],
            "circuit_open"
        );
        let bad = async || {
            let labels = [("tool", "create_order"), ("verdict", "bad")];
            gateway.metrics().await.sum("checkrein_breaker_probes_total", &labels) >= 2.0
        };
        wait_for("two probes", SOON, bad).await;
        let tool = ScriptedTool::start_at(address).await;
        let closed = async || {
            let labels = [("tool", "create_order"), ("state", "closed")];
            gateway.metrics().await.value("checkrein_breaker_state", &labels) == 1.0
        };
        wait_for("the circuit to close", SOON, closed).await;
        assert_eq!(tool.hits("/create"), 0);
        assert_eq!(agent.call("create_order", "c4", &order("P4")).await.json()["ok"], true);
    }
}
