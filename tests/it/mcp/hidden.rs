//! Characters that nobody sees, or that move and turn what stands beside them, in what servers say to people and models:
//! spelt in descriptions, questions and notes; never in results, nor in what something is asked for by.

use std::sync::Arc;

use checkrein::policy::snapshot::{MayAsk, Pass};
use serde_json::{Value, json};

use super::desk::{Desk, ERAS};
use super::rig::{Ear, Rig, Stands, ended, parsed, side, stands, text};
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};

/// One of each kind: terminal, C1, direction, tag.
const NASTY: &str = "a\u{1b}[2J\u{9b}m\u{202e}b\u{e0041}\tc";
const SPELT: &str = "a⟨U+001B⟩[2J⟨U+009B⟩m⟨U+202E⟩b⟨U+E0041⟩\tc";

async fn server(revision: &'static str, tools: Vec<Value>) -> ScriptedServer {
    match revision {
        "2026-07-28" => ScriptedServer::modern(tools).await,
        _ => ScriptedServer::legacy(revision, tools).await,
    }
}

#[tokio::test]
async fn what_is_listed_hides_nothing_and_what_would_by_its_name_is_left_out() {
    for revision in ERAS {
        let mut look = tool("look", json!({"n": {"description": NASTY, "enum": [NASTY]}}));
        look["description"] = NASTY.into();
        look["title"] = NASTY.into();
        let server = server(revision, vec![look]).await;
        server.set_capabilities(json!({"tools": {}, "resources": {}, "prompts": {}}));
        let (hidden, plain) = (format!("file:///{NASTY}"), "file:///a");
        let resources = json!({"resources": [
            {"uri": plain, "name": NASTY, "description": NASTY, "_meta": {"x": NASTY}},
            {"uri": hidden, "name": "b"},
        ]});
        let templates = json!({"resourceTemplates": [
            {"uriTemplate": "file:///{a}", "name": "t", "title": NASTY},
            {"uriTemplate": format!("file:///{NASTY}/{{a}}"), "name": "u"},
        ]});
        let prompts = json!({"prompts": [
            {"name": "p", "description": NASTY, "arguments": [{"name": "x", "description": NASTY}]},
            {"name": NASTY},
        ]});
        server.script("resources/list", [Does::Result(resources)]);
        server.script("resources/templates/list", [Does::Result(templates)]);
        server.script("prompts/list", [Does::Result(prompts)]);
        let pass =
            Pass { resources: vec!["*".into()], prompts: vec!["*".into()], ..Pass::default() };
        let stand = Stands { writes: Vec::new(), pass, ..stands("srv", &server) };
        let desk = Desk::new(Rig::ready(&[stand]).await);
        for of_agent in ERAS {
            let agent = desk.agent(of_agent).await;
            let got = agent.ask("tools/list", &json!({})).await;
            let look = &got.result()["tools"][0];
            assert_eq!((&look["description"], &look["title"]), (&json!(SPELT), &json!(SPELT)));
            let n = &look["inputSchema"]["properties"]["n"];
            assert_eq!(n, &json!({"description": SPELT, "enum": [NASTY]}), "values stay");
            let got = agent.ask("resources/list", &json!({})).await;
            let want =
                json!([{"uri": plain, "name": SPELT, "description": SPELT, "_meta": {"x": NASTY}}]);
            assert_eq!(got.result()["resources"], want);
            let got = agent.ask("resources/templates/list", &json!({})).await;
            let want = json!([{"uriTemplate": "file:///{a}", "name": "t", "title": SPELT}]);
            assert_eq!(got.result()["resourceTemplates"], want);
            let got = agent.ask("prompts/list", &json!({})).await;
            let want = json!([{"name": "p", "description": SPELT, "arguments": [{"name": "x", "description": SPELT}]}]);
            assert_eq!(got.result()["prompts"], want);
        }
    }
}

#[tokio::test]
async fn what_is_asked_and_noted_hides_nothing_and_a_result_is_as_its_server_gave_it() {
    let server = server("2025-11-25", vec![tool("look", json!({}))]).await;
    let question = json!({"message": NASTY, "requestedSchema": {"type": "object", "properties": {
        "a": {"type": "string", "title": NASTY}}}});
    let elicit =
        json!({"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": question});
    let log = json!({"jsonrpc": "2.0", "method": "notifications/message",
        "params": {"level": "error", "data": {"x": [NASTY]}}});
    let result = json!({"content": [{"type": "text", "text": NASTY}]});
    let pieces = vec![Piece::Message(log), Piece::Message(elicit), Piece::Answer(result.clone())];
    server.script("look", [Does::Stream(pieces)]);
    let may_ask = MayAsk { elicitation: true, ..MayAsk::default() };
    let pass = Pass { logging: true, ..Pass::default() };
    let rig =
        Rig::ready(&[Stands { writes: Vec::new(), may_ask, pass, ..stands("srv", &server) }]).await;
    let ear = Ear::that_answers(json!({"action": "decline"}));
    let mut asks = side("s", &ear);
    asks.capabilities = Arc::new(json!({"elicitation": {}}));
    asks.log_level = Some("debug".into());
    let answer = rig.call_as("default", Some(asks), "look", "{}").await;
    assert_eq!(ended(&answer.outcome).0, "ok");
    assert_eq!(parsed(&text(&answer.outcome))["content"], result["content"], "fidelity");
    let asked = ear.asked();
    assert_eq!(asked.len(), 1);
    let params = &asked[0].1;
    assert_eq!(params["message"], SPELT);
    assert_eq!(params["requestedSchema"]["properties"]["a"]["title"], SPELT);
    let told = ear.told("notifications/message");
    assert_eq!(told, [json!({"level": "error", "data": {"x": [SPELT]}})]);
}

#[tokio::test]
async fn a_question_of_a_modern_server_hides_nothing_and_its_state_stays() {
    let server = server("2026-07-28", vec![tool("look", json!({}))]).await;
    let needs = json!({
        "resultType": "input_required",
        "inputRequests": {"k": {"method": "elicitation/create", "params": {"message": NASTY}}},
        "requestState": NASTY,
    });
    let done = json!({"resultType": "complete", "content": []});
    server.script("look", [Does::Result(needs), Does::Result(done)]);
    let may_ask = MayAsk { elicitation: true, ..MayAsk::default() };
    let rig = Rig::ready(&[Stands { writes: Vec::new(), may_ask, ..stands("srv", &server) }]).await;
    let ear = Ear::that_answers(json!({"action": "decline"}));
    let mut asks = side("s", &ear);
    asks.capabilities = Arc::new(json!({"elicitation": {}}));
    asks.modern = true;
    let answer = rig.call_as("default", Some(asks), "look", "{}").await;
    let asked = parsed(&text(&answer.outcome));
    assert_eq!(asked["inputRequests"]["k"]["params"]["message"], SPELT, "{asked}");
    assert_eq!(asked["requestState"], NASTY, "sealed by the front end, given back as it is");
}
