//! What a server asks on the stream of no request, which of its streams it ends, and what it is told on lists.

use std::time::Duration;

use checkrein::identity::Peer;
use checkrein::policy::snapshot::MayAsk;
use serde_json::{Value, json};

use super::asks::Agent;
use super::peer::{Stream, build, got};
use super::rig::{Rig, Stands, stands};
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};
use crate::support::wait_for;

const S: Duration = Duration::from_secs(1);
const ALL: MayAsk = MayAsk { elicitation: true, sampling: true, roots: true };

/// A server that asks as soon as somebody listens, and answers its tool when the test says so.
async fn server() -> ScriptedServer {
    let server = ScriptedServer::legacy("2025-11-25", vec![tool("look", json!({}))]).await;
    let params = json!({"message": "sure?", "requestedSchema": {"type": "object"}});
    let question =
        json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": params});
    server.set_get(vec![Piece::Message(question), Piece::Held]);
    let answer = Piece::Answer(json!({"content": []}));
    server.script("look", [Does::Stream(vec![Piece::Held, answer])]);
    server
}

fn stand(server: &ScriptedServer, may_ask: MayAsk) -> Stands {
    let mut stand = stands("srv", server);
    (stand.writes, stand.may_ask) = (Vec::new(), may_ask);
    stand
}

fn call() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "look"}})
}

/// Answers to the question of a session: by the gateway itself, and by whoever is behind the others.
fn answers(server: &ScriptedServer, gateways: bool) -> Vec<Value> {
    let seen = server.seen().into_iter();
    seen.filter(|seen| seen.body["id"] == "q" && (seen.session() == "session-1") == gateways)
        .map(|seen| seen.body)
        .collect()
}

fn gets(server: &ScriptedServer) -> usize {
    let gets = server.seen().into_iter();
    gets.filter(|seen| seen.http == "GET" && seen.session() != "session-1").count()
}

#[tokio::test]
async fn a_question_on_the_stream_of_no_request_goes_to_the_one_agent_behind_the_session() {
    for listens in [false, true] {
        let server = server().await;
        let mut stand = stand(&server, ALL);
        // Silent for longer than a server may be; but it waits for a person.
        stand.keys = "timeout: { connect: 1s, first_byte: 1s, idle: 300ms, total: 10s }";
        let rig = Rig::ready(&[stand]).await;
        let agent = Agent::that_declares(&rig, &json!({"elicitation": {}})).await;
        let fields = [("mcp-session-id", &*agent.session), ("accept", "text/event-stream")];
        let get = agent.front_ends.clone();
        let mut by_get = Stream::new(got_body(&get, &fields).await);
        if !listens {
            by_get.end();
        }
        let mut open = Stream::new(agent.post(&call()).await.into_body());
        let asked = match listens {
            true => by_get.next().await.expect("a question"),
            false => open.next().await.expect("a question"),
        };
        assert_eq!(asked["method"], "elicitation/create", "{listens}");
        assert_ne!(asked["id"], "q", "our own name");
        assert_eq!(asked["params"]["message"], "sure?");
        let waiting = tokio::time::timeout(S, open.next()).await;
        assert!(waiting.is_err(), "the call goes on: {waiting:?}");
        let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}});
        assert_eq!(got(agent.post(&answer).await).await.status, 202);
        wait_for("the answer at its server", 5 * S, async || !answers(&server, false).is_empty())
            .await;
        assert_eq!(answers(&server, false)[0]["result"], json!({"action": "accept"}));
        // In the gateway's own session nobody is there to be asked.
        wait_for("a refusal", 5 * S, async || !answers(&server, true).is_empty()).await;
        assert_eq!(answers(&server, true)[0]["error"]["code"], -32601);
        server.go();
        assert_eq!(open.next().await.expect("an answer")["result"]["content"], json!([]));
        assert_eq!(server.of("initialize")[0].body["params"]["capabilities"], json!({}));
    }
}

async fn got_body(
    front_ends: &checkrein::frontends::FrontEnds,
    fields: &[(&str, &str)],
) -> checkrein::frontends::Body {
    let response = front_ends.clone().answer(Peer::Loopback, build("GET", fields, "")).await;
    assert_eq!(response.status(), 200);
    response.into_body()
}

#[tokio::test]
async fn where_policy_or_agent_does_not_let_it_ask_a_server_is_refused() {
    let samples = MayAsk { sampling: true, ..MayAsk::default() };
    let both = json!({"elicitation": {}, "sampling": {}});
    for (may_ask, declared, listens) in [
        (ALL, json!({"sampling": {}}), true),
        (samples, both.clone(), true),
        (ALL, json!({}), false),
        (MayAsk::default(), both, false),
    ] {
        let server = server().await;
        let rig = Rig::ready(&[stand(&server, may_ask)]).await;
        let agent = Agent::that_declares(&rig, &declared).await;
        let calling = async { got(agent.post(&call()).await).await };
        let going = async {
            wait_for("the call", 5 * S, async || !server.of("tools/call").is_empty()).await;
            if listens {
                wait_for("a refusal", 5 * S, async || !answers(&server, false).is_empty()).await;
                assert_eq!(answers(&server, false)[0]["error"]["code"], -32601);
            }
            server.go();
        };
        let (answered, ()) = tokio::join!(calling, going);
        assert_eq!(answered.messages.len(), 1, "the agent was asked nothing: {answered:?}");
        assert_eq!(gets(&server) > 0, listens, "listened to only where something may be asked");
    }
}

#[tokio::test]
async fn a_server_without_such_a_stream_is_asked_for_it_once_a_session() {
    let server = ScriptedServer::legacy("2025-11-25", vec![tool("look", json!({}))]).await;
    let rig = Rig::ready(&[stand(&server, ALL)]).await;
    let agent = Agent::that_declares(&rig, &json!({"elicitation": {}})).await;
    for id in 1..=3 {
        let mut call = call();
        call["id"] = id.into();
        let answered = got(agent.post(&call).await).await;
        assert_eq!(answered.result()["isError"], json!(null), "{answered:?}");
    }
    assert_eq!(gets(&server), 1);
}

#[tokio::test]
async fn a_server_that_ends_its_stream_to_be_polled_has_its_agent_poll_and_is_called_once() {
    let server = ScriptedServer::legacy("2025-11-25", vec![tool("look", json!({}))]).await;
    server.script("look", [Does::Stream(vec![Piece::Run, Piece::Prime("e1", 20)])]);
    server.set_get(vec![Piece::Held]);
    let rig = Rig::ready(&[stand(&server, MayAsk::default())]).await;
    let agent = Agent::that_declares(&rig, &json!({"elicitation": {}})).await;
    let mut call = call();
    call["params"]["_meta"] = json!({"progressToken": 1});
    // The id of the call is its session's second.
    let answer = "id: e2\ndata: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"content\":[]}}\n\n";
    server.set_get(vec![Piece::Held, Piece::Raw(answer)]);
    let mut open = Stream::new(agent.post(&call).await.into_body());
    assert_eq!(open.next().await, None, "its connection is closed");
    assert_eq!(open.retry_ms(), Some(20));
    let last = open.last();
    let fields = [
        ("mcp-session-id", &*agent.session),
        ("accept", "text/event-stream"),
        ("last-event-id", &*last),
    ];
    let mut again = Stream::new(got_body(&agent.front_ends, &fields).await);
    server.go();
    assert_eq!(again.next().await.expect("an answer")["result"]["content"], json!([]));
    assert_eq!(again.next().await, None);
    assert_eq!((server.runs("look"), server.of("tools/call").len()), (1, 1));
}

#[tokio::test]
async fn a_list_declares_what_the_policy_lets_a_server_ask_and_a_session_of_ours_nothing() {
    let modern = ScriptedServer::modern(vec![tool("look", json!({}))]).await;
    let may_ask = MayAsk { elicitation: true, roots: true, ..MayAsk::default() };
    let rig = Rig::ready(&[stand(&modern, may_ask)]).await;
    let declared = |method: &str| {
        let seen = modern.of(method).remove(0).body;
        seen["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"].clone()
    };
    for method in ["server/discover", "tools/list"] {
        assert_eq!(declared(method), json!({"elicitation": {}, "roots": {}}), "{method}");
    }
    // A call declares what its own agent can be asked, as ever.
    rig.call("look", "{}").await;
    assert_eq!(declared("tools/call"), json!({}));
    let legacy = ScriptedServer::legacy("2025-11-25", vec![tool("look", json!({}))]).await;
    let _rig = Rig::ready(&[stand(&legacy, may_ask)]).await;
    assert_eq!(legacy.of("initialize")[0].body["params"]["capabilities"], json!({}));
}
