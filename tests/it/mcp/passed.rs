//! Resources, prompts, completion and logs of servers, through the engine: filtered by the policy, owned by one server.

use std::sync::Arc;
use std::time::Duration;

use checkrein::call::code::DenyCode;
use checkrein::call::{AgentId, Continuation, Failed, FrontEnd, RunId, ServerEvent};
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
            if let ServerEvent::ResourceUpdated { agent, stream, params } =
                events.recv().await.expect("open")
            {
                return (agent, stream, params);
            }
        }
    };
    let heard = tokio::time::timeout(Duration::from_secs(5), heard).await.expect("heard of");
    assert_eq!(heard, (agent, "s".into(), json!({"uri": "file:///a"})));
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
        occurrence: 0,
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

/// A server that passes all its resources, and an agent that reads them in one run.
struct Reads {
    server: ScriptedServer,
    rig: Rig,
    asker: Asker,
}

impl Reads {
    async fn new(own: &'static str, does: impl IntoIterator<Item = Does>) -> Self {
        let server = ScriptedServer::legacy("2025-11-25", vec![tool("look", json!({}))]).await;
        server.set_capabilities(json!({"tools": {}, "resources": {}}));
        server.script("resources/read", does);
        let mut stand = stands("srv", &server);
        stand.writes = Vec::new();
        stand.pass = Pass { resources: vec!["*".into()], ..Pass::default() };
        stand.own = own;
        let rig = Rig::ready(&[stand]).await;
        let asker = Asker { run: Some(RunId::mint()), ..asker(&Arc::new(Ear::default())) };
        Self { server, rig, asker }
    }

    async fn read(&self, uri: &str) -> Result<Value, PassError> {
        self.rig.engine.mcp_pass(&self.asker, PassMethod::ResourcesRead, json!({"uri": uri})).await
    }

    async fn refused(&self, uri: &str) -> DenyCode {
        match self.read(uri).await {
            Err(PassError::Denied(denied)) => denied.code,
            other => panic!("not refused: {other:?}"),
        }
    }

    fn asked(&self) -> usize {
        self.server.of("resources/read").len()
    }
}

fn page() -> Does {
    Does::Result(json!({"contents": []}))
}

#[tokio::test]
async fn a_server_is_not_flooded_by_what_is_read_of_it_besides_tools() {
    let reads = Reads::new("rate_limit: { rate: 1/h, burst: 3 }", [page()]).await;
    for n in 0..3 {
        reads.read(&format!("file:///{n}")).await.expect("within the burst");
    }
    assert_eq!(reads.refused("file:///4").await, DenyCode::RateLimited);
    let tool = reads.rig.call("look", "{}").await;
    assert_eq!(super::rig::ended(&tool.outcome), ("rate_limited", "no"), "one bucket for both");
    let listed =
        reads.rig.engine.mcp_pass(&reads.asker, PassMethod::ResourcesList, json!({})).await;
    assert!(
        matches!(&listed, Err(PassError::Denied(denied)) if denied.code == DenyCode::RateLimited),
        "a list does not grow shorter by what was asked before: {listed:?}"
    );
    assert_eq!(reads.asked(), 3);
    let scrape = reads.rig.metrics.encode();
    for (outcome, n) in [("ok", 3), ("rate_limited", 2)] {
        let counted = format!(r#"outcome="{outcome}",tool="mcp:srv"}} {n}"#);
        assert!(scrape.contains(&counted), "{counted}\n{scrape}");
    }
}

#[tokio::test]
async fn the_same_page_read_again_and_again_blows_the_fuse_and_spends_the_runs_calls() {
    let reads = Reads::new("", [page()]).await;
    for _ in 0..5 {
        reads.read("file:///a").await.expect("it is there");
    }
    assert_eq!(reads.refused("file:///a").await, DenyCode::RepeatBlocked);
    let page = async |n: u32| reads.read(&format!("file:///{n}")).await.expect("another page");
    for n in (0..194).step_by(2) {
        tokio::join!(page(n), page(n + 1));
    }
    assert_eq!(reads.refused("file:///last").await, DenyCode::BudgetExhausted);
    assert_eq!(reads.asked(), 199);
}

#[tokio::test]
async fn a_server_that_fails_at_what_it_passes_is_left_alone_for_a_while() {
    let reads = Reads::new("", [Does::Error(-32603, "broken")]).await;
    for n in 0..3 {
        let failed = reads.read(&format!("file:///{n}")).await;
        assert!(matches!(&failed, Err(PassError::Rpc { code: -32603, .. })), "{failed:?}");
    }
    assert_eq!(reads.refused("file:///3").await, DenyCode::CircuitOpen);
    assert_eq!(reads.asked(), 3);
    let tool = reads.rig.call("look", "{}").await;
    assert_eq!(super::rig::ended(&tool.outcome).0, "ok", "its tools have circuits of their own");
}

#[tokio::test]
async fn what_is_passed_waits_no_longer_than_its_caller_and_takes_a_place_of_its_server() {
    let mut reads = Reads::new("bulkhead: 1", [Does::Hang]).await;
    reads.asker.timeout = Some(Duration::from_secs(1));
    let (first, second) = tokio::join!(reads.read("file:///a"), async {
        while reads.asked() == 0 {
            tokio::task::yield_now().await;
        }
        reads.refused("file:///b").await
    });
    assert_eq!(second, DenyCode::ConcurrencyLimited);
    assert!(
        matches!(&first, Err(PassError::Failed(Failed { timed_out_by: Some(_), .. }))),
        "{first:?}"
    );
    assert_eq!(reads.asked(), 1);
}
