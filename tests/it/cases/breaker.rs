//! A tool that is down costs milliseconds; a tool that is back is used again; nothing stays half-open for ever.

use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncWriteExt;

use super::order;
use crate::support::{Agent, Fixture, Form, Gateway, Reply, ScriptedTool, http, wait_for};

const SOON: Duration = Duration::from_secs(10);

/// No retries, a circuit that opens at two, and budgets that do not get in the way.
fn quick() -> Fixture {
    Fixture::new()
        .with("max_retries: 2", "max_retries: 0")
        .with("consecutive_failures: 5", "consecutive_failures: 2")
        .budgets(
            "calls: 10000, failures: 10000, fuse: { same_failures: 10000, same_results: 10000 }",
        )
        .with("wall_clock: 10s", "wall_clock: 10m")
}

async fn state(gateway: &Gateway, tool: &str) -> String {
    let metrics = gateway.metrics().await;
    let states = ["closed", "open", "half_open", "isolated", "shadow"];
    let on: Vec<&str> = states
        .into_iter()
        .filter(|s| {
            metrics.value("checkrein_breaker_state", &[("tool", tool), ("state", s)]) == 1.0
        })
        .collect();
    assert_eq!(on.len(), 1, "exactly one state at every scrape: {on:?}");
    on[0].to_owned()
}

async fn call(agent: &Agent, id: &str) -> Value {
    agent.call("lookup_order", id, &order("A17")).await.json()
}

async fn open(gateway: &Gateway, tool: &ScriptedTool, agent: &Agent) {
    tool.script("/orders", [Reply::Status(500)]);
    for n in 0..2 {
        assert_eq!(call(agent, &format!("open-{n}")).await["error"], "tool_unavailable");
    }
    assert_eq!(state(gateway, "lookup_order").await, "open");
}

async fn until_half_open(gateway: &Gateway) {
    wait_for("half-open", SOON, async || state(gateway, "lookup_order").await == "half_open").await;
}

#[tokio::test]
async fn bb_b01_a_probe_that_hangs_ends_by_its_total_and_the_circuit_recovers() {
    let tool = ScriptedTool::start().await;
    let gateway = quick().start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    open(&gateway, &tool, &agent).await;
    until_half_open(&gateway).await;
    tool.script("/orders", [Reply::Hang]);
    assert_eq!(call(&agent, "probe").await["error"], "upstream_timeout");
    assert_eq!(state(&gateway, "lookup_order").await, "open");
    tool.script("/orders", [Reply::Ok]);
    until_half_open(&gateway).await;
    assert_eq!(call(&agent, "again").await["ok"], true);
    assert_eq!(state(&gateway, "lookup_order").await, "closed");
}

#[tokio::test]
async fn bb_b02_a_probe_whose_agent_hangs_up_gives_its_place_back() {
    let tool = ScriptedTool::start().await;
    let gateway = quick().start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    open(&gateway, &tool, &agent).await;
    until_half_open(&gateway).await;
    tool.script("/orders", [Reply::Hang]);
    let before = tool.hits("/orders");
    let mut stream = tokio::net::TcpStream::connect(gateway.data).await.expect("connected");
    let body = order("A17");
    let request = http::bytes_of(
        "POST",
        "/v1/tools/lookup_order",
        &[("checkrein-run", "r")],
        body.as_bytes(),
    );
    stream.write_all(&request).await.expect("sent");
    wait_for("the probe at the tool", SOON, async || tool.hits("/orders") == before + 1).await;
    drop(stream);
    tool.script("/orders", [Reply::Ok]);
    // Admitted as soon as the gateway has noticed; at the latest when the slot's own deadline is over.
    wait_for("the next probe", SOON, async || call(&agent, "next").await["ok"] == true).await;
    assert_eq!(state(&gateway, "lookup_order").await, "closed");
}

#[tokio::test]
async fn bb_b03_a_probe_that_says_nothing_about_health_frees_the_slot() {
    let tool = ScriptedTool::start().await;
    let gateway = quick().start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    open(&gateway, &tool, &agent).await;
    until_half_open(&gateway).await;
    tool.script("/orders", [Reply::Status(404), Reply::Ok]);
    assert_eq!(call(&agent, "probe").await["error"], "tool_error");
    assert_eq!(
        state(&gateway, "lookup_order").await,
        "half_open",
        "a 404 neither closes nor opens"
    );
    assert_eq!(call(&agent, "next").await["ok"], true);
    assert_eq!(state(&gateway, "lookup_order").await, "closed");
}

#[tokio::test]
async fn bb_b04_half_open_lets_one_of_fifty_through() {
    let tool = ScriptedTool::start().await;
    let gateway = quick().start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    open(&gateway, &tool, &agent).await;
    until_half_open(&gateway).await;
    tool.script("/orders", [Reply::After(Duration::from_millis(300))]);
    let before = tool.hits("/orders");
    let calls: Vec<_> = (0..50)
        .map(|n| {
            let agent = agent.clone();
            tokio::spawn(async move { call(&agent, &format!("flood-{n}")).await })
        })
        .collect();
    let (mut ok, mut refused) = (0, 0);
    for each in calls {
        let answer = each.await.expect("no panic");
        if answer["ok"] == true {
            ok += 1;
        } else {
            assert_eq!(answer["error"], "circuit_open", "{answer}");
            assert!(answer["retry_after_ms"].as_u64().is_some_and(|ms| ms >= 1));
            refused += 1;
        }
    }
    // A call that came after the probe had closed the circuit may have passed too: only while it was under way is one the bound.
    assert!(ok >= 1 && ok + refused == 50);
    assert_eq!(tool.hits("/orders") - before, ok);
    assert!(refused >= 40, "{ok} passed");
}

#[tokio::test]
async fn bb_b07_what_the_caller_did_wrong_opens_nothing() {
    let tool = ScriptedTool::start().await;
    let gateway = quick().start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    for status in [400, 401, 404, 422] {
        let body = br#"{"error":"no such order"}"#.to_vec();
        let headers = vec![("content-type", "application/json".to_owned())];
        tool.script("/orders", [Reply::Full { apply: false, status, headers, body }]);
        for n in 0..5 {
            let answer = call(&agent, &format!("{status}-{n}")).await;
            assert_eq!(answer["error"], "tool_error");
            assert!(
                answer["message"].as_str().expect("text").contains("no such order"),
                "{answer}"
            );
        }
    }
    assert_eq!(state(&gateway, "lookup_order").await, "closed");
    assert_eq!(tool.hits("/orders"), 20, "none was retried");
}

#[tokio::test]
async fn bb_b09_a_200_with_garbage_is_a_failure_and_opens_the_circuit() {
    let tool = ScriptedTool::start().await;
    let gateway = quick().start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    let html = Reply::Full {
        apply: false,
        status: 200,
        headers: vec![("content-type", "text/html".into())],
        body: b"<html>please log in</html>".to_vec(),
    };
    tool.script("/orders", [html]);
    for n in 0..2 {
        assert_eq!(call(&agent, &format!("c{n}")).await["error"], "upstream_protocol_error");
    }
    assert_eq!(call(&agent, "c2").await["error"], "circuit_open");
    assert_eq!(tool.hits("/orders"), 2);
}

#[tokio::test]
async fn bb_b12_every_scrape_shows_exactly_one_state_and_the_real_one() {
    let tool = ScriptedTool::start().await;
    let gateway = quick().start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    assert_eq!(state(&gateway, "lookup_order").await, "closed");
    open(&gateway, &tool, &agent).await;
    until_half_open(&gateway).await;
    tool.script("/orders", [Reply::Ok]);
    assert_eq!(call(&agent, "probe").await["ok"], true);
    assert_eq!(state(&gateway, "lookup_order").await, "closed");
    let metrics = gateway.metrics().await;
    for (from, to) in [("closed", "open"), ("open", "half_open"), ("half_open", "closed")] {
        let labels = [("tool", "lookup_order"), ("from", from), ("to", to)];
        assert_eq!(
            metrics.value("checkrein_breaker_transitions_total", &labels),
            1.0,
            "{from} → {to}"
        );
    }
}

#[tokio::test]
async fn bb_b13_one_slow_tool_leaves_its_neighbours_alone() {
    let tool = ScriptedTool::start().await;
    let gateway = quick().start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    tool.script("/orders", [Reply::Hang]);
    for n in 0..2 {
        assert_eq!(call(&agent, &format!("slow-{n}")).await["error"], "upstream_timeout");
    }
    assert_eq!(call(&agent, "slow-2").await["error"], "circuit_open");
    assert_eq!(agent.call("list_regions", "fast", "{}").await.json()["ok"], true);
    let listed = http::get(gateway.data, "/v1/tools").await.text();
    assert!(listed.contains("lookup_order"), "an open circuit hides nothing");
}
