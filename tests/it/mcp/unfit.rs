//! Answers of agents that do not fit what a server asked: the server never gets them, and hears why.

use std::sync::Arc;

use checkrein::policy::snapshot::MayAsk;
use serde_json::{Value, json};

use super::asks::Agent;
use super::rig::{Ear, Rig, Stands, ended, side, stands};
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};
use crate::support::wait_for;

fn question() -> Value {
    json!({"message": "how many?", "requestedSchema": {"type": "object", "required": ["n"], "properties": {
        "n": {"type": "integer", "minimum": 1}}}})
}

fn may_ask() -> MayAsk {
    MayAsk { elicitation: true, ..MayAsk::default() }
}

#[tokio::test]
async fn a_legacy_server_hears_of_an_answer_that_does_not_fit_its_question() {
    for (content, fits) in [
        (json!({"n": 3}), true),
        (json!({"n": 0}), false),
        (json!({"n": "3"}), false),
        (json!({}), false),
        (json!({"n": {"deep": 1}}), false),
    ] {
        let server = ScriptedServer::legacy("2025-11-25", vec![tool("look", json!({}))]).await;
        let elicit = json!({"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": question()});
        let answer = Piece::Answer(json!({"content": []}));
        server.script("look", [Does::Stream(vec![Piece::Message(elicit), Piece::Held, answer])]);
        let stand = Stands { writes: Vec::new(), may_ask: may_ask(), ..stands("srv", &server) };
        let rig = Rig::ready(&[stand]).await;
        let ear = Ear::that_answers(json!({"action": "accept", "content": content}));
        let mut asks = side("s", &ear);
        asks.capabilities = Arc::new(json!({"elicitation": {}}));
        let told = || {
            let mut seen = server.seen().into_iter().map(|seen| seen.body);
            seen.find(|body| body.get("method").is_none() && body["id"] == 1)
        };
        let going = async {
            wait_for("its answer", std::time::Duration::from_secs(5), async || told().is_some())
                .await;
            server.go();
        };
        let (called, ()) = tokio::join!(rig.call_as("default", Some(asks), "look", "{}"), going);
        assert_eq!(ended(&called.outcome).0, "ok");
        let told = told().expect("told");
        if fits {
            assert_eq!(told["result"]["content"], content);
        } else {
            assert_eq!(told["error"]["code"], -32602, "{told}");
            let words = told["error"]["message"].as_str().unwrap_or_default();
            assert!(words.contains("/content/n"), "{words}");
        }
    }
}

#[tokio::test]
async fn a_modern_server_is_not_sent_an_answer_that_does_not_fit_and_the_write_has_not_happened() {
    let make = tool("make", json!({"n": {}}));
    let server = ScriptedServer::modern(vec![tool("look", json!({})), make]).await;
    let needs = json!({
        "resultType": "input_required", "requestState": "s",
        "inputRequests": {"k": {"method": "elicitation/create", "params": question()}},
    });
    server.script("make", [Does::Result(needs)]);
    let rig = Rig::ready(&[Stands { may_ask: may_ask(), ..stands("srv", &server) }]).await;
    let agent = Agent::that_declares(&rig, &json!({"elicitation": {}})).await;
    let told =
        agent.make(1, &json!({"result": {"action": "accept", "content": {"n": "many"}}})).await;
    let refusal = &told["structuredContent"];
    assert_eq!((&refusal["error"], &refusal["executed"]), (&json!("tool_error"), &json!("no")));
    assert!(
        refusal["message"].as_str().is_some_and(|words| words.contains("/content/n")),
        "{told}"
    );
    assert_eq!(server.of("tools/call").len(), 1, "nothing more is sent");
}
