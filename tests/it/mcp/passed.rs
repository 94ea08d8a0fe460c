//! Resources, prompts, completion and logs of servers, through the engine: filtered by the policy, owned by one server.

use std::sync::Arc;
use std::time::Duration;

use checkrein::call::{AgentId, Continuation, FrontEnd, ServerEvent};
use checkrein::engine::Asker;
use checkrein::engine::mcp::{PassError, PassMethod};
use checkrein::policy::snapshot::Pass;
use serde_json::{Value, json};

use super::rig::{Ear, Rig, side, stands};
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};

fn asker(ear: &Arc<Ear>) -> Asker {
    Asker {
        agent: AgentId::new("default").expect("a name"),
        run: None,
        timeout: None,
        front_end: FrontEnd::McpHttp,
        side: Some(Arc::new(side("s", ear))),
    }
}

#[tokio::test]
async fn what_the_policy_passes_is_listed_read_and_heard_of() {
    let server = ScriptedServer::legacy("2025-11-25", vec![tool("look", json!({}))]).await;
    server.set_capabilities(json!({"tools": {}, "resources": {"subscribe": true}, "prompts": {}}));
    let resources = json!({"resources": [{"uri": "file:///a", "odd": 1}, {"uri": "db:///b"}]});
    server.script("resources/list", [Does::Result(resources)]);
    let read = json!({"contents": [{"uri": "file:///a", "text": "x"}]});
    server.script("resources/read", [Does::Result(read.clone())]);
    server.script("resources/subscribe", [Does::Result(json!({}))]);
    let updated = json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "file:///a"}});
    server.set_get(vec![
        Piece::Held,
        Piece::Message(updated),
        Piece::Wait(Duration::from_secs(30)),
    ]);
    let mut stand = stands("srv", &server);
    stand.writes = Vec::new();
    stand.pass = Pass { resources: vec!["file:///*".into()], ..Pass::default() };
    let rig = Rig::ready(&[stand]).await;
    let agent = AgentId::new("default").expect("a name");
    let offers = rig.engine.mcp_offers(&agent);
    assert!(offers.resources && offers.subscribe && !offers.prompts && !offers.logging);
    let ear = Arc::new(Ear::default());
    let asker = asker(&ear);
    let pass = async |method, params: Value| rig.engine.mcp_pass(&asker, method, params).await;
    let listed = pass(PassMethod::ResourcesList, json!({})).await.expect("a list");
    assert_eq!(listed, json!({"resources": [{"uri": "file:///a", "odd": 1}]}));
    let got =
        pass(PassMethod::ResourcesRead, json!({"uri": "file:///a"})).await.expect("it is there");
    assert_eq!(got, read);
    let hidden = pass(PassMethod::ResourcesRead, json!({"uri": "db:///b"})).await;
    assert!(matches!(hidden, Err(PassError::NotFound(_))), "{hidden:?}");
    assert_eq!(server.of("resources/read").len(), 1);
    let prompts = pass(PassMethod::PromptsGet, json!({"name": "p"})).await;
    assert!(matches!(prompts, Err(PassError::NotFound(_))), "{prompts:?}");
    let mut events = rig.engine.mcp_events();
    pass(PassMethod::ResourcesSubscribe, json!({"uri": "file:///a"})).await.expect("subscribed");
    server.go();
    let heard = async {
        loop {
            if let ServerEvent::ResourceUpdated { agent, session, params } =
                events.recv().await.expect("open")
            {
                return (agent, session, params);
            }
        }
    };
    let heard = tokio::time::timeout(Duration::from_secs(5), heard).await.expect("heard of");
    assert_eq!(heard, (agent, Some("s".into()), json!({"uri": "file:///a"})));
}

#[tokio::test]
async fn an_error_of_a_server_is_passed_on_in_its_own_words() {
    let server = ScriptedServer::legacy("2025-11-25", vec![tool("look", json!({}))]).await;
    server.set_capabilities(json!({"tools": {}, "prompts": {}, "completions": {}}));
    server.script("prompts/get", [Does::Error(-32602, "no such prompt")]);
    let completed = json!({"completion": {"values": ["ab"]}});
    server.script("completion/complete", [Does::Result(completed.clone())]);
    let mut stand = stands("srv", &server);
    stand.writes = Vec::new();
    stand.pass = Pass { prompts: vec!["*".into()], completion: true, ..Pass::default() };
    let rig = Rig::ready(&[stand]).await;
    let ear = Arc::new(Ear::default());
    let asker = asker(&ear);
    let refused = rig.engine.mcp_pass(&asker, PassMethod::PromptsGet, json!({"name": "p"})).await;
    assert!(
        matches!(&refused, Err(PassError::Rpc { code: -32602, message, .. }) if message == "no such prompt"),
        "{refused:?}"
    );
    let about = json!({"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "x", "value": "a"}});
    let got = rig.engine.mcp_pass(&asker, PassMethod::Complete, about).await.expect("completed");
    assert_eq!(got, completed);
}

#[tokio::test]
async fn a_prompt_that_asks_for_input_is_gone_on_with() {
    let server = ScriptedServer::modern(vec![tool("look", json!({}))]).await;
    server.set_capabilities(json!({"tools": {}, "prompts": {}}));
    let needs = json!({"resultType": "input_required", "requestState": "theirs",
        "inputRequests": {"k": {"method": "elicitation/create", "params": {"message": "?"}}}});
    let done = json!({"resultType": "complete", "messages": []});
    server.script("prompts/get", [Does::Result(needs.clone()), Does::Result(done.clone())]);
    let mut stand = stands("srv", &server);
    stand.writes = Vec::new();
    stand.pass = Pass { prompts: vec!["*".into()], ..Pass::default() };
    let rig = Rig::ready(&[stand]).await;
    let mut asker = asker(&Arc::new(Ear::default()));
    let get = async |asker: &Asker| {
        let got = rig.engine.mcp_pass(asker, PassMethod::PromptsGet, json!({"name": "p"})).await;
        got.expect("an answer")
    };
    assert_eq!(get(&asker).await, needs);
    let answers = Continuation {
        responses: json!({"k": {"action": "accept"}}),
        state: Some("theirs".into()),
        round: 1,
        parked: None,
    };
    let mut goes_on = side("s", &Arc::new(Ear::default()));
    goes_on.continuation = Some(Arc::new(answers));
    asker.side = Some(Arc::new(goes_on));
    assert_eq!(get(&asker).await, done);
    let sent = &server.of("prompts/get")[1].body["params"];
    assert_eq!(sent["inputResponses"], json!({"k": {"action": "accept"}}));
    assert_eq!(sent["requestState"], "theirs");
}
