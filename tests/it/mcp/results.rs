//! What the policy says of a server's results: what they must be, and what an error of theirs says of its health.

use serde_json::{Value, json};

use super::rig::{Rig, Stands, ended, stands};
use crate::support::mcp::{Does, ScriptedServer, tool};

async fn rig(keys: &'static str, answers: Vec<Value>) -> (ScriptedServer, Rig) {
    let tools = vec![tool("look", json!({"n": {}})), tool("make", json!({"n": {}}))];
    let server = ScriptedServer::legacy("2025-11-25", tools).await;
    for name in ["look", "make"] {
        server.script(name, answers.iter().cloned().map(Does::Result));
    }
    let rig = Rig::ready(&[Stands { keys, ..stands("s", &server) }]).await;
    (server, rig)
}

fn text(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

fn structured(value: &Value) -> Value {
    json!({"content": [], "structuredContent": value})
}

#[tokio::test]
async fn a_success_that_is_not_what_the_policy_promises_is_none() {
    let expects = "result: { expect: { type: object, required: [id] } }";
    let json = "result: { format: json }";
    let image = json!({"content": [{"type": "image", "data": "", "mimeType": "image/png"}]});
    let failed = json!({"content": [], "isError": true});
    for (keys, answer, read, write) in [
        (expects, structured(&json!({"id": 1})), "ok", "ok"),
        (expects, text(r#"{"id":1}"#), "ok", "ok"),
        (expects, structured(&json!({"no": 1})), "upstream_protocol_error", "outcome_unknown"),
        (expects, text("<html>"), "upstream_protocol_error", "outcome_unknown"),
        (expects, failed, "tool_error", "tool_error"),
        (json, text("[1]"), "ok", "ok"),
        (json, text("plain"), "upstream_protocol_error", "outcome_unknown"),
        (json, image.clone(), "upstream_protocol_error", "outcome_unknown"),
        ("weight: 1", text("plain"), "ok", "ok"),
        ("weight: 1", image, "ok", "ok"),
    ] {
        let (_server, rig) = rig(keys, vec![answer.clone()]).await;
        let told = rig.call("look", "{}").await;
        assert_eq!(ended(&told.outcome).0, read, "{keys} {answer}");
        let told = rig.call("make", "{}").await;
        assert_eq!(ended(&told.outcome).0, write, "{keys} {answer}");
    }
}

#[tokio::test]
async fn an_error_of_a_tool_is_ill_health_only_where_the_policy_says_so() {
    let bad = "breaker: { consecutive_failures: 2, is_error: bad }";
    let neutral = "breaker: { consecutive_failures: 2 }";
    for (keys, third) in [(bad, "circuit_open"), (neutral, "tool_error")] {
        let failed = json!({"content": [], "isError": true});
        let (server, rig) = rig(keys, vec![failed]).await;
        for (n, wanted) in ["tool_error", "tool_error", third].into_iter().enumerate() {
            let told = rig.call("look", &format!(r#"{{"n":{n}}}"#)).await;
            assert_eq!(ended(&told.outcome).0, wanted, "{keys} {n}");
        }
        let sent = if third == "circuit_open" { 2 } else { 3 };
        assert_eq!(server.of("tools/call").len(), sent);
    }
}
