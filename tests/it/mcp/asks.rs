//! What servers ask the agent's side: only what the policy and the agent allow, and every answer to its asker.

use std::sync::Arc;

use checkrein::call::Side;
use checkrein::frontends::{Body, Doors, FrontEnds};
use checkrein::identity::Peer;
use checkrein::policy::snapshot::MayAsk;
use serde_json::{Value, json};

use super::peer::{Stream, build, got, initialize};
use super::rig::{Ear, Rig, ended, side, stands};
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

/// A legacy agent that can be asked, before the real engine.
pub(super) struct Agent {
    pub(super) front_ends: FrontEnds,
    pub(super) session: String,
}

impl Agent {
    async fn open(rig: &Rig) -> Self {
        Self::that_declares(rig, &json!({"elicitation": {}, "sampling": {}})).await
    }

    pub(super) async fn that_declares(rig: &Rig, capabilities: &Value) -> Self {
        let front_ends = FrontEnds::new(rig.engine.clone(), rig.metrics.clone(), Doors::default());
        let hello = initialize("2025-11-25", capabilities);
        let answer = front_ends.clone().answer(Peer::Loopback, build("POST", &[], &hello)).await;
        let session = got(answer).await.header("mcp-session-id").to_owned();
        Self { front_ends, session }
    }

    pub(super) async fn post(&self, message: &Value) -> http::Response<Body> {
        let fields = [("mcp-session-id", &*self.session)];
        let request = build("POST", &fields, &message.to_string());
        self.front_ends.clone().answer(Peer::Loopback, request).await
    }

    /// Calls `make`, answers the one question, and tells how it ended.
    pub(super) async fn make(&self, id: u32, answer: &Value) -> Value {
        let params = json!({"name": "make", "arguments": {"n": id}});
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        let mut stream = Stream::new(self.post(&call).await.into_body());
        let asked = stream.next().await.expect("a question");
        let mut answer = answer.clone();
        answer["jsonrpc"] = "2.0".into();
        answer["id"] = asked["id"].clone();
        assert_eq!(got(self.post(&answer).await).await.status, 202);
        stream.next().await.expect("an answer")["result"].clone()
    }
}

fn needs() -> Value {
    json!({
        "resultType": "input_required",
        "inputRequests": {"k": {"method": "elicitation/create", "params": {"message": "?"}}},
        "requestState": "their state",
    })
}

async fn modern_server() -> ScriptedServer {
    ScriptedServer::modern(vec![tool("look", json!({})), tool("make", json!({"n": {}}))]).await
}

#[tokio::test]
async fn a_modern_server_that_needs_input_is_answered_by_a_legacy_agent_on_its_open_call() {
    let server = modern_server().await;
    let done = json!({"resultType": "complete", "content": []});
    server.script("make", [Does::Result(needs()), Does::Result(done)]);
    let mut stand = stands("srv", &server);
    stand.may_ask = MayAsk { elicitation: true, ..MayAsk::default() };
    let rig = Rig::ready(&[stand]).await;
    let agent = Agent::open(&rig).await;
    let ended_as = agent.make(1, &json!({"result": {"action": "accept"}})).await;
    assert_eq!(ended_as["content"], json!([]), "{ended_as}");
    let second = server.of("tools/call").remove(1);
    assert_eq!(second.body["params"]["inputResponses"]["k"], json!({"action": "accept"}));
    assert_eq!(second.body["params"]["requestState"], "their state");
    // an agent that cannot be asked is told so, and the write has not happened
    server.script("make", [Does::Result(needs())]);
    let told = rig.call("make", r#"{"n":2}"#).await;
    assert_eq!(ended(&told.outcome), ("tool_error", "no"));
    // nor is one that did not declare this kind of question
    let undeclared = Side { modern: true, ..Side::default() };
    let told = rig.call_as("default", Some(undeclared), "make", r#"{"n":3}"#).await;
    assert_eq!(ended(&told.outcome), ("tool_error", "no"));
}

/// What becomes of a later round says nothing of what a server had done before it asked.
#[tokio::test]
async fn no_later_round_calls_a_write_undone_whose_server_acts_before_it_asks() {
    let accepts = json!({"result": {"action": "accept"}});
    let refuses = json!({"error": {"code": -1, "message": "no"}});
    let mut samples = needs();
    samples["inputRequests"]["k"] = json!({"method": "sampling/createMessage", "params": {}});
    let mut roots = needs();
    roots["inputRequests"]["k"] = json!({"method": "roots/list"});
    let rounds = [
        (needs(), Does::Error(-32602, "stale"), &accepts),
        (needs(), Does::Status(404, "gone"), &accepts),
        // The agent did not declare this kind; in the last one it declared it, and refuses.
        (needs(), Does::Result(roots), &accepts),
        (samples, Does::Hang, &refuses),
    ];
    for (n, (first, later, answer)) in (1..).zip(rounds) {
        let server = modern_server().await;
        server.script("make", [Does::Result(first), later]);
        let mut stand = stands("srv", &server);
        stand.may_ask = MayAsk { elicitation: true, sampling: true, roots: true };
        (stand.reads, stand.keys) = (Vec::new(), "write: { on_input_required: unknown }");
        let rig = Rig::ready(&[stand]).await;
        let agent = Agent::open(&rig).await;
        let told = agent.make(n, answer).await;
        assert_eq!(told["structuredContent"]["executed"], "unknown", "{n}: {told}");
        assert_eq!(rig.reviews(), 1, "{n}");
        let again = rig.call("make", &format!(r#"{{"n":{n}}}"#)).await;
        assert_eq!(ended(&again.outcome), ("review_required", "unknown"), "{n}");
    }
}

#[tokio::test]
async fn an_error_after_a_word_of_the_server_is_no_proof_that_nothing_was_done() {
    let question =
        json!({"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": {}});
    let word = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "begun"}});
    for (n, said) in [Some(question), Some(word), None].into_iter().enumerate() {
        let server = ScriptedServer::legacy("2025-11-25", vec![tool("make", json!({}))]).await;
        let mut pieces = vec![Piece::Run];
        pieces.extend(said.clone().map(Piece::Message));
        // Some servers pass on the refusal of their own question as the answer to the call.
        pieces.push(Piece::Raw(
            "data: {\"jsonrpc\":\"2.0\",\"error\":{\"code\":-32601,\"message\":\"no\"},\n",
        ));
        pieces.push(Piece::Id);
        server.script("make", [Does::Stream(pieces)]);
        let mut stand = stands("srv", &server);
        stand.reads = Vec::new();
        let rig = Rig::ready(&[stand]).await;
        let ear = Ear::that_answers(json!({}));
        let answer = rig.call_as("default", Some(side("s", &ear)), "make", "{}").await;
        let due = match said {
            Some(_) => ("outcome_unknown", "unknown"),
            None => ("tool_error", "no"),
        };
        assert_eq!(ended(&answer.outcome), due, "{n}: {:?}", answer.outcome);
    }
}
