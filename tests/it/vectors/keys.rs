//! Keys: what the agent's code sends, by the IETF's draft, and what the tool is sent.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Step, Vector};
use crate::support::{Agent, Fixture, Form, Gateway, Reply, ScriptedTool, wait_for};

const SOON: Duration = Duration::from_secs(10);

async fn pay(agent: &Agent, more: &[(&str, &str)], account: u32) -> (u16, serde_json::Value) {
    let body = format!(r#"{{"account_id":{account}}}"#);
    let answer = agent.post("/v1/tools/pay", more, body.as_bytes()).await;
    (answer.status, answer.json())
}

/// Statuses as the draft gives them; a key is one field whether it is spelt bare or as a string.
pub(super) async fn caller_key(vector: Vector) {
    // Real sockets: time goes by itself.
    tokio::time::resume();
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new()
        .with(
            "write: { drain: 3s }\n  delete",
            "write: { caller_key: required, drain: 3s }\n  delete",
        )
        .start(&tool)
        .await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    for step in vector.steps(&["case", "status", "value", "type"]) {
        let hits = tool.hits("/pay");
        let expected = step.has("status").then(|| step.value("status").clone());
        match step.text("case") {
            "required key missing" => {
                let (status, _) = pay(&agent, &[], 1).await;
                assert_eq!(Some(status.into()), expected);
                assert_eq!(tool.hits("/pay"), hits);
            }
            "same key, different fingerprint" => {
                assert_eq!(pay(&agent, &[("idempotency-key", "k1")], 1).await.0, 200);
                let (status, _) = pay(&agent, &[("idempotency-key", "k1")], 2).await;
                assert_eq!(Some(status.into()), expected);
                assert_eq!(tool.hits("/pay"), hits + 1);
            }
            "same key, original still running" => still_running(&agent, &tool, &step).await,
            "same key+fingerprint, completed ok" => {
                let first = pay(&agent, &[("idempotency-key", "k3")], 1).await;
                let again = pay(&agent, &[("idempotency-key", "k3")], 1).await;
                assert_eq!((first.0, &first.1["value"]), (again.0, &again.1["value"]));
                assert_eq!(tool.hits("/pay"), hits + 1);
            }
            "same key+fingerprint, completed with error" => {
                tool.script("/pay", [Reply::Status(422), Reply::Ok]);
                let named = [("idempotency-key", "k4"), ("checkrein-call-id", "c4")];
                let first = pay(&agent, &named, 1).await;
                let again = pay(&agent, &named, 1).await;
                assert_eq!((first.0, &first.1["error"]), (again.0, &again.1["error"]));
                assert_eq!(tool.hits("/pay"), hits + 1);
            }
            "field syntax" => {
                let quoted = step.text("value");
                assert!(step.text("type").starts_with("sf-string"));
                assert_eq!(pay(&agent, &[("idempotency-key", quoted)], 1).await.0, 200);
                let bare = quoted.trim_matches('"');
                let (_, again) = pay(&agent, &[("idempotency-key", bare)], 1).await;
                assert_eq!((again["ok"].as_bool(), tool.hits("/pay")), (Some(true), hits + 1));
            }
            other => panic!("{other}"),
        }
    }
}

async fn still_running(agent: &Agent, tool: &ScriptedTool, step: &Step) {
    tool.script("/pay", [Reply::ApplyAfter(Duration::from_millis(400)), Reply::Ok]);
    let hits = tool.hits("/pay");
    let first = {
        let agent = agent.clone();
        tokio::spawn(async move { pay(&agent, &[("idempotency-key", "k2")], 1).await })
    };
    wait_for("the first request", SOON, async || tool.hits("/pay") > hits).await;
    let soon = [("idempotency-key", "k2"), ("checkrein-timeout-ms", "50")];
    let (status, answer) = pay(agent, &soon, 1).await;
    assert_eq!(u64::from(status), step.number("status"), "{answer}");
    assert_eq!(first.await.expect("no panic").0, 200);
    assert_eq!(tool.hits("/pay"), hits + 1);
}

const KEYED: &str = r#"description: Refund an order.
effect: write
http: { upstream: shop, method: POST, path: /refunds }
schema:
  type: object
  required: [order_ref]
  properties:
    order_ref: { type: string, minLength: 1, maxLength: 80 }
    trace: { type: string, maxLength: 80 }
    idempotency_key: { type: string, maxLength: 80 }
volatile: [/trace]
write: { identical: refuse, not_executed_on: [503], drain: 3s, idempotency: { mode: header, window: 1h } }"#;

fn keys(tool: &ScriptedTool) -> Vec<String> {
    let refunds = tool.requests().into_iter().filter(|request| request.target == "/refunds");
    refunds
        .map(|r| r.header("idempotency-key").expect("every write has a key").to_owned())
        .collect()
}

/// One key for one operation, whatever asks for it again and whatever a model makes up.
pub(super) async fn stable(vector: Vector) {
    tokio::time::resume();
    let tool = ScriptedTool::start().await;
    tool.script("/refunds", [Reply::Status(503)]);
    let gateway = Fixture::new().more_tool("refund", KEYED).start(&tool).await;
    let ask = async |run: &str, id: &str, more: &str| {
        let body = format!(r#"{{"order_ref":"R1"{more}}}"#);
        let answer =
            Gateway::agent(&gateway, Form::OpenaiChat, run).call("refund", id, &body).await;
        assert_eq!(answer.json()["executed"], "no", "{}", answer.text());
    };
    for (n, step) in vector.steps(&["case", "must"]).iter().enumerate() {
        let run = format!("r{n}");
        match (step.text("case"), step.text("must")) {
            // A write is one attempt a call: what comes again is the operation.
            ("retry attempts of one call", "same key") => {
                ask(&run, "c1", "").await;
                ask(&run, "c2", "").await;
            }
            ("new tool_call_id, same business operation", "same key") => ask(&run, "x", "").await,
            (case, "same key (fields excluded by policy)") if case.starts_with("volatile") => {
                ask(&run, "c1", r#","trace":"other""#).await;
            }
            ("model supplies its own key", must) => {
                assert!(must.starts_with("ignored"));
                // A header of the agent's code names the operation; it is not the key that goes out.
                let agent = gateway.agent(Form::OpenaiChat, &run);
                let body = br#"{"order_ref":"R1","idempotency_key":"made-up"}"#;
                agent.post("/v1/tools/refund", &[], body).await;
                let sent = tool.requests().last().cloned().expect("a request");
                let key = sent.header("idempotency-key").expect("a key").to_owned();
                assert_ne!(key, "made-up");
                assert_eq!(key.len(), 43);
                assert_ne!(key, keys(&tool)[0], "as an argument it names another operation");
                continue;
            }
            other => panic!("{other:?}"),
        }
        let all = keys(&tool);
        let unique: BTreeSet<&String> = all.iter().collect();
        assert_eq!(unique.len(), 1, "after {}: {all:?}", step.text("case"));
    }
    assert!(keys(&tool).len() >= 5);
}
