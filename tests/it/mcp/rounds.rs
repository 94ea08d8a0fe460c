//! Calls that go on: a tool asks for input, the agent answers in another request, and it is one call all the same.

use std::sync::Arc;
use std::time::Duration;

use checkrein::call::{Continuation, Outcome, Side};
use checkrein::policy::snapshot::MayAsk;
use serde_json::{Value, json};

use super::peer::{as_pairs, modern};
use super::rig::{Rig, Stands, ended, parsed, policy, stands, text};
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};
use crate::support::{Gateway, http, wait_for};

const S: Duration = Duration::from_secs(1);
const META: &str = "io.modelcontextprotocol/clientCapabilities";

async fn server() -> ScriptedServer {
    ScriptedServer::modern(vec![tool("look", json!({"n": {}})), tool("make", json!({"n": {}}))])
        .await
}

fn needs() -> Value {
    json!({
        "resultType": "input_required",
        "inputRequests": {"k": {"method": "elicitation/create", "params": {"message": "?"}}},
        "requestState": "their state",
    })
}

/// Does it, and says so.
fn made() -> Does {
    let done = json!({"resultType": "complete", "content": [{"type": "text", "text": "made"}]});
    Does::Stream(vec![Piece::Run, Piece::Answer(done)])
}

fn stand(server: &ScriptedServer, keys: &'static str) -> Stands {
    let may_ask = MayAsk { elicitation: true, ..MayAsk::default() };
    Stands { may_ask, reads: Vec::new(), keys, ..stands("srv", server) }
}

/// A whole gateway over this server whose one write has these keys; its runs have one call and a fuse that blows early.
async fn gateway(server: &ScriptedServer, keys: &'static str) -> Gateway {
    let runs =
        "runs: { default: { calls: 1, fuse: { same_failures: 2, same_results: 2 } } }\nagents:";
    let text = policy(&[stand(server, keys)]).replace("DIR/b", "TOKEN_B");
    let text = text.replacen("agents:", runs, 1);
    let gateway =
        Gateway::start_with(&text, |_, config| config.allowed_hosts.push("gateway".into())).await;
    wait_for("the tool", 5 * S, async || {
        http::get(gateway.data, "/v1/tools").await.text().contains("make")
    })
    .await;
    gateway
}

/// `make`, as an agent of 2026-07-28 asks for it that can be asked.
async fn make(gateway: &Gateway, id: &str, state: Option<&str>) -> Value {
    let meta = json!({META: {"elicitation": {}}, "io.checkrein/run": "r"});
    let mut params = json!({"name": "make", "arguments": {"n": 1}, "_meta": meta});
    if let Some(state) = state {
        params["requestState"] = state.into();
        params["inputResponses"] = json!({"k": {"action": "accept"}});
    }
    let (mut fields, body) = modern(id, "tools/call", &params);
    fields.push(("accept".into(), "application/json, text/event-stream".into()));
    let got =
        http::request(gateway.data, "POST", "/mcp", &as_pairs(&fields), body.as_bytes()).await;
    assert_eq!(got.status, 200, "{}", got.text());
    let said = got.text();
    let message = said.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or(&said);
    let message = parsed(message);
    assert_eq!(message["id"].to_string(), id);
    message["result"].clone()
}

fn state(result: &Value) -> String {
    assert_eq!(result["resultType"], "input_required", "{result}");
    let state = result["requestState"].as_str().expect("a state").to_owned();
    assert_ne!(state, "their state");
    state
}

#[tokio::test]
async fn a_continuation_is_not_a_repeat() {
    let server = server().await;
    server.script("make", [Does::Result(needs()), Does::Result(needs()), made()]);
    let keys = "write: { idempotency: { mode: meta, name: example.com/key } }";
    let gateway = gateway(&server, keys).await;
    let first = state(&make(&gateway, "1", None).await);
    let second = state(&make(&gateway, "\"2\"", Some(&first)).await);
    let done = make(&gateway, "3", Some(&second)).await;
    assert_eq!(done["resultType"], "complete", "{done}");
    let sent = server.of("tools/call");
    assert_eq!((server.runs("make"), sent.len()), (1, 3));
    let params = |n: usize, member: &str| sent[n].body["params"][member].clone();
    for n in [1, 2] {
        assert_eq!(params(n, "inputResponses"), json!({"k": {"action": "accept"}}));
        assert_eq!(params(n, "requestState"), "their state");
        assert_eq!(params(n, "_meta")["example.com/key"], params(0, "_meta")["example.com/key"]);
        assert_eq!(params(n, "_meta")[META], json!({"elicitation": {}}));
    }
    let calls = || {
        let mut records = gateway.records();
        records.retain(|record| record["kind"] == "call");
        records
    };
    wait_for("the records", 5 * S, async || calls().len() == 3).await;
    let records = calls();
    for (record, (outcome, executed, evidence)) in records.iter().zip([
        ("input_required", "no", json!("input_required")),
        ("input_required", "no", json!("input_required")),
        ("ok", "yes", Value::Null),
    ]) {
        assert_eq!((&record["outcome"], &record["executed"]), (&json!(outcome), &json!(executed)));
        assert_eq!((&record["evidence"], &record["error_type"]), (&evidence, &json!("none")));
        assert_eq!(record["operation"], records[0]["operation"], "one operation");
        assert_eq!((&record["occurrence"], &record["decision"]), (&json!(0), &json!("allow")));
    }
    let metrics = gateway.metrics().await;
    let count = |name: &str, label: (&str, &str)| metrics.value(name, &[label, ("tool", "make")]);
    assert_eq!(count("checkrein_tool_calls_total", ("outcome", "input_required")), 2.0);
    assert_eq!(count("checkrein_tool_calls_total", ("outcome", "ok")), 1.0);
    assert_eq!(count("checkrein_write_ends_total", ("end", "not_executed")), 2.0);
    assert_eq!(count("checkrein_write_ends_total", ("end", "executed")), 1.0);
    assert_eq!(count("checkrein_idempotency_lookups_total", ("result", "continuation")), 2.0);
    // The run had one call, and this is another one.
    let fresh = make(&gateway, "4", None).await;
    assert_eq!(fresh["structuredContent"]["error"], "budget_exhausted", "{fresh}");
}

#[tokio::test]
async fn a_state_given_back_after_the_end_is_answered_from_the_ledger() {
    let server = server().await;
    server.script("make", [Does::Result(needs()), Does::Result(needs()), made()]);
    let gateway = gateway(&server, "").await;
    let first = state(&make(&gateway, "1", None).await);
    let second = state(&make(&gateway, "2", Some(&first)).await);
    let done = make(&gateway, "3", Some(&second)).await;
    for state in [&first, &second] {
        let again = make(&gateway, "4", Some(state)).await;
        assert_eq!(again["content"], done["content"], "{again}");
        assert_eq!(again["_meta"]["io.checkrein/outcome"]["replayed"], true);
    }
    assert_eq!((server.runs("make"), server.of("tools/call").len()), (1, 3));
}

#[tokio::test]
async fn an_agent_that_cannot_be_asked_is_told_so_in_words() {
    let server = server().await;
    server.script("make", [Does::Result(needs())]);
    let gateway = gateway(&server, "").await;
    let words = "needs a person's input, which this client cannot give";
    let json = [("content-type", "application/json"), ("checkrein-run", "api")];
    let got = http::request(gateway.data, "POST", "/v1/tools/make", &json, br#"{"n":1}"#).await;
    let told = got.json();
    assert_eq!((&told["error"], &told["executed"]), (&json!("tool_error"), &json!("no")), "{told}");
    assert!(told["message"].as_str().expect("words").contains(words), "{told}");
    let turn = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "make", "arguments": "{\"n\":2}"}}]});
    let batch = [("content-type", "application/json"), ("checkrein-run", "batch")];
    let path = "/v1/batches/openai-chat";
    let got = http::request(gateway.data, "POST", path, &batch, turn.to_string().as_bytes()).await;
    assert!(got.text().contains("tool_error") && got.text().contains(words), "{}", got.text());
    let sent = server.of("tools/call");
    assert_eq!(sent.len(), 2);
    for one in sent {
        assert_eq!(one.body["params"]["_meta"][META], json!({}), "nobody could be asked");
    }
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.sum("checkrein_reviews_open", &[]), 0.0);
}

/// An agent of 2026-07-28; `goes_on`: with the question it was asked.
fn agent(goes_on: Option<(&Outcome, u32)>) -> Side {
    let continuation = goes_on.map(|(asked, round)| {
        let asks = asked.as_ref().expect("a question").notes.asks.expect("a question");
        Arc::new(Continuation {
            responses: json!({"k": {"action": "accept"}}),
            state: Some("their state".into()),
            round,
            occurrence: asks.occurrence,
            parked: None,
        })
    });
    let capabilities = Arc::new(json!({"elicitation": {}}));
    Side { modern: true, capabilities, continuation, ..Side::default() }
}

#[tokio::test]
async fn where_a_server_acts_before_it_asks_nothing_but_the_continuation_gets_through() {
    let server = server().await;
    let stale = Does::Error(-32602, "stale");
    server.script("make", [Does::Result(needs()), stale, Does::Result(needs()), made()]);
    let rig = Rig::ready(&[stand(&server, "write: { on_input_required: unknown }")]).await;
    let first = rig.call_as("default", Some(agent(None)), "make", "{}").await;
    assert_eq!(parsed(&text(&first.outcome)), needs());
    assert_eq!(rig.reviews(), 1, "it may have happened");
    for side in [None, Some(agent(None))] {
        let again = rig.call_as("default", side, "make", "{}").await;
        assert_eq!(ended(&again.outcome), ("review_required", "unknown"));
    }
    let on = |round| Some(agent(Some((&first.outcome, round))));
    // The server refuses what goes on: that says nothing of what it had done.
    let stale = rig.call_as("default", on(1), "make", "{}").await;
    assert_eq!(ended(&stale.outcome), ("outcome_unknown", "unknown"));
    let more = rig.call_as("default", on(1), "make", "{}").await;
    assert_eq!(parsed(&text(&more.outcome)), needs());
    assert_eq!(rig.reviews(), 1);
    let done = rig.call_as("default", on(2), "make", "{}").await;
    assert_eq!((ended(&done.outcome).0, rig.reviews()), ("ok", 0));
    let replayed = rig.call_as("default", on(1), "make", "{}").await;
    assert_eq!(text(&replayed.outcome), text(&done.outcome));
    assert_eq!((server.runs("make"), server.of("tools/call").len()), (1, 4));
}

#[tokio::test]
async fn an_operation_is_asked_ten_times_at_most_and_each_round_costs_a_token() {
    let server = server().await;
    server.script("make", [Does::Result(needs()), Does::Result(needs())]);
    let keys = "rate_limit: { rate: 0.01/s, burst: 2 }";
    let rig = Rig::ready(&[stand(&server, keys)]).await;
    let first = rig.call_as("default", Some(agent(None)), "make", "{}").await;
    let on = |round| Some(agent(Some((&first.outcome, round))));
    let blocked = rig.call_as("default", on(11), "make", "{}").await;
    assert_eq!(ended(&blocked.outcome), ("repeat_blocked", "no"));
    let tenth = rig.call_as("default", on(10), "make", "{}").await;
    assert_eq!(parsed(&text(&tenth.outcome)), needs());
    let limited = rig.call_as("default", on(10), "make", "{}").await;
    assert_eq!(ended(&limited.outcome), ("rate_limited", "no"));
    assert_eq!(server.of("tools/call").len(), 2);
    let trips = r#"checkrein_repeat_fuse_trips_total{kind="rounds",tool="make"} 1"#;
    assert!(rig.metrics.encode().contains(trips));
}

#[tokio::test]
async fn answers_without_a_state_are_a_call_of_their_own() {
    let server = server().await;
    server.script("make", [Does::Result(needs())]);
    let rig = Rig::ready(&[stand(&server, "write: { on_input_required: unknown }")]).await;
    let first = rig.call_as("default", Some(agent(None)), "make", "{}").await;
    assert_eq!(parsed(&text(&first.outcome)), needs());
    // Round 0: nobody has vouched for what it says it goes on with.
    let claimed =
        rig.call_as("default", Some(agent(Some((&first.outcome, 0)))), "make", "{}").await;
    assert_eq!(ended(&claimed.outcome), ("review_required", "unknown"));
    assert_eq!(server.of("tools/call").len(), 1);
}

#[tokio::test]
async fn a_question_says_nothing_of_a_tool_s_health() {
    let server = server().await;
    let down = || Does::Status(500, "{}");
    server.script("make", [down(), down(), Does::Result(needs()), down()]);
    let rig = Rig::ready(&[stand(&server, "breaker: { consecutive_failures: 3 }")]).await;
    for n in 0..4 {
        let side = Some(agent(None));
        let got = rig.call_as("default", side, "make", &format!(r#"{{"n":{n}}}"#)).await;
        assert_eq!(got.outcome.is_ok(), n == 2, "{got:?}");
    }
    // Three failures in a row: the question between them was neither good nor bad.
    let got = rig.call_as("default", Some(agent(None)), "make", r#"{"n":9}"#).await;
    assert_eq!(ended(&got.outcome), ("circuit_open", "no"));
}
