//! What servers ask the agent's side: only what the policy and the agent allow, and every answer to its asker.

use std::sync::Arc;

use checkrein::policy::snapshot::MayAsk;
use serde_json::{Value, json};

use super::rig::{Ear, Rig, ended, parsed, side, stands, text};
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};
use crate::support::wait_for;

fn asking(answer: &Value) -> Does {
    let elicit = json!({"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": {"message": "sure?"}});
    let sample =
        json!({"jsonrpc": "2.0", "id": "1", "method": "sampling/createMessage", "params": {}});
    let ping = json!({"jsonrpc": "2.0", "id": 7, "method": "ping"});
    let pieces = vec![
        Piece::Message(elicit),
        Piece::Message(sample),
        Piece::Message(ping),
        Piece::Held,
        Piece::Answer(answer.clone()),
    ];
    Does::Stream(pieces)
}

#[tokio::test]
async fn elicitation_goes_home() {
    let one = ScriptedServer::legacy("2025-11-25", vec![tool("look", json!({}))]).await;
    let two = ScriptedServer::legacy("2025-11-25", vec![tool("see", json!({}))]).await;
    let done = json!({"content": []});
    one.script("look", [asking(&done)]);
    two.script("see", [asking(&done)]);
    let may_ask = MayAsk { elicitation: true, ..MayAsk::default() };
    let mut first = stands("one", &one);
    (first.writes, first.may_ask) = (Vec::new(), may_ask);
    let mut second = stands("two", &two);
    (second.reads, second.writes, second.may_ask) = (vec!["see"], Vec::new(), may_ask);
    let rig = Rig::ready(&[first, second]).await;
    let ears = ["a", "b"]
        .map(|name| Ear::that_answers(json!({"action": "accept", "content": {"who": name}})));
    let asks = |n: usize| {
        let mut asks = side(["sa", "sb"][n], &ears[n]);
        asks.capabilities = Arc::new(json!({"elicitation": {}, "sampling": {}}));
        asks
    };
    let answers = |server: &ScriptedServer| -> Vec<Value> {
        server
            .seen()
            .into_iter()
            .map(|seen| seen.body)
            .filter(|body| body.get("method").is_none() && body.get("id").is_some())
            .collect()
    };
    let going = async {
        for server in [&one, &two] {
            wait_for("three answers", std::time::Duration::from_secs(5), async || {
                answers(server).len() == 3
            })
            .await;
            server.go();
        }
    };
    let (a, b, ()) = tokio::join!(
        rig.call_as("default", Some(asks(0)), "look", "{}"),
        rig.call_as("default", Some(asks(1)), "see", "{}"),
        going
    );
    assert_eq!((ended(&a.outcome).0, ended(&b.outcome).0), ("ok", "ok"));
    for (server, name) in [(&one, "a"), (&two, "b")] {
        let all = answers(server);
        let of =
            |id: Value| all.iter().find(|answer| answer["id"] == id).expect("answered").clone();
        assert_eq!(of(json!(1))["result"]["content"]["who"], name);
        // declared by the agent, not allowed by the policy
        assert_eq!(of(json!("1"))["error"]["code"], -32601);
        assert_eq!(of(json!(7))["result"], json!({}));
        let declared = &server.of("initialize")[1].body["params"]["capabilities"];
        assert_eq!(declared, &json!({"elicitation": {}}));
    }
    assert!(ears.iter().all(|ear| ear.asked().len() == 1));
}

#[tokio::test]
async fn a_modern_server_that_needs_input_is_answered_by_a_legacy_agent_on_its_open_call() {
    let server =
        ScriptedServer::modern(vec![tool("look", json!({})), tool("make", json!({}))]).await;
    let needs = json!({
        "resultType": "input_required",
        "inputRequests": {"k": {"method": "elicitation/create", "params": {"message": "?"}}},
        "requestState": "their state",
    });
    let done = json!({"resultType": "complete", "content": []});
    server.script("make", [Does::Result(needs.clone()), Does::Result(done.clone())]);
    let mut stand = stands("srv", &server);
    stand.may_ask = MayAsk { elicitation: true, ..MayAsk::default() };
    let rig = Rig::ready(&[stand]).await;
    let ear = Ear::that_answers(json!({"action": "accept"}));
    let mut asks = side("s", &ear);
    asks.capabilities = Arc::new(json!({"elicitation": {}}));
    let got = rig.call_as("default", Some(asks), "make", "{}").await;
    assert_eq!(parsed(&text(&got.outcome)), done);
    let second = server.of("tools/call").remove(1);
    assert_eq!(second.body["params"]["inputResponses"]["k"], json!({"action": "accept"}));
    assert_eq!(second.body["params"]["requestState"], "their state");
    // an agent that cannot be asked is told so, and the write has not happened
    server.script("make", [Does::Result(needs)]);
    let got = rig.call("make", r#"{}"#).await;
    assert_eq!(ended(&got.outcome), ("tool_error", "no"));
}
