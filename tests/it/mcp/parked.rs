//! A server of a legacy revision asks in the middle of a call, and the agent speaks 2026-07-28: the call waits inside
//! the gateway for the request that brings the answer. A whole gateway, real sockets on both sides.

use std::time::Duration;

use checkrein::policy::snapshot::MayAsk;
use serde_json::{Value, json};

use super::peer::{as_pairs, modern, parse};
use super::remote::Remote;
use super::rig::{Stands, policy, stands};
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};
use crate::support::process::filled;
use crate::support::{Gateway, Process, http, wait_for};

const S: Duration = Duration::from_secs(1);

/// A gateway in front of a server that asks before it answers, and again where `twice`.
struct Parks {
    server: ScriptedServer,
    gateway: Gateway,
}

fn question(id: u64) -> Piece {
    Piece::Message(json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create",
        "params": {"message": format!("sure? {id}"), "requestedSchema": {"type": "object"}}}))
}

impl Parks {
    async fn new(pieces: Vec<Piece>, with: impl FnOnce(&mut Stands)) -> Self {
        let tools = vec![tool("look", json!({"n": {}})), tool("make", json!({"n": {}}))];
        let server = ScriptedServer::legacy("2025-11-25", tools).await;
        for tool in ["look", "make"] {
            server.script(tool, [Does::Stream(pieces.clone())]);
        }
        let mut stand = stands("srv", &server);
        stand.may_ask = MayAsk { elicitation: true, ..MayAsk::default() };
        with(&mut stand);
        let text = policy(&[stand]).replace("DIR/b", "TOKEN_B");
        let gateway = Gateway::start(&text).await;
        let there = async || http::get(gateway.data, "/v1/tools").await.text().contains("Does ");
        wait_for("the tools", 5 * S, there).await;
        Self { server, gateway }
    }

    async fn ask(&self, id: u64, params: Value) -> Value {
        let mut params = params;
        params["_meta"] = json!({"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
            "io.checkrein/run": "run-1"});
        let (mut fields, body) = modern(&id.to_string(), "tools/call", &params);
        for (name, value) in [
            ("content-type", "application/json"),
            ("host", &self.gateway.data.to_string()),
            ("accept", "application/json, text/event-stream"),
        ] {
            fields.push((name.to_owned(), value.to_owned()));
        }
        let (data, fields) = (self.gateway.data, as_pairs(&fields));
        let got = http::request(data, "POST", "/mcp", &fields, body.as_bytes()).await;
        parse(got.text().as_bytes())
    }

    async fn call(&self, id: u64, tool: &str) -> Value {
        self.ask(id, json!({"name": tool, "arguments": {"n": 1}})).await
    }

    async fn go_on(&self, id: u64, tool: &str, asked: &Value, answers: Value) -> Value {
        let state = &asked["result"]["requestState"];
        let params = json!({"name": tool, "arguments": {"n": 1}, "requestState": state, "inputResponses": answers});
        self.ask(id, params).await
    }

    /// What the server was answered, by the id of its question.
    fn heard(&self, id: u64) -> Option<Value> {
        let seen = self.server.seen().into_iter().map(|seen| seen.body);
        let mut answers = seen.filter(|body| body.get("method").is_none() && body["id"] == id);
        answers.next().map(|answer| answer["result"].clone())
    }
}

fn outcome(answer: &Value) -> &Value {
    &answer["result"]["_meta"]["io.checkrein/outcome"]
}

#[tokio::test]
async fn a_question_of_a_legacy_server_parks_the_call_and_the_answer_goes_on_with_it() {
    let done = json!({"content": [{"type": "text", "text": "made"}]});
    let pieces = vec![
        Piece::Run,
        question(1),
        Piece::Held,
        question(2),
        Piece::Wait(S),
        Piece::Answer(done),
    ];
    let parks = Parks::new(pieces, |_| ()).await;
    let first = parks.call(1, "make").await;
    assert_eq!(first["result"]["resultType"], "input_required", "{first}");
    let asked = &first["result"]["inputRequests"]["q1"];
    assert_eq!(asked["params"]["message"], "sure? 1", "{first}");
    assert!(first["result"].pointer("/_meta/io.checkrein~1parked").is_none(), "{first}");
    let accept = json!({"action": "accept", "content": {}});
    let state = &first["result"]["requestState"];
    let other = json!({"name": "make", "arguments": {"n": 2}, "requestState": state, "inputResponses": {"q1": accept}});
    assert_eq!(parks.ask(2, other).await["error"]["code"], -32602, "other arguments");
    assert_eq!(parks.heard(1), None);
    parks.server.go();
    let second = parks.go_on(3, "make", &first, json!({"q1": accept})).await;
    wait_for("the answer", 5 * S, async || parks.heard(1) == Some(accept.clone())).await;
    assert_eq!(second["result"]["inputRequests"]["q2"]["params"]["message"], "sure? 2", "{second}");
    let third = parks.go_on(4, "make", &second, json!({"q2": {"action": "decline"}})).await;
    assert_eq!(third["result"]["content"][0]["text"], "made", "{third}");
    let decline = json!({"action": "decline"});
    wait_for("the other answer", 5 * S, async || parks.heard(2) == Some(decline.clone())).await;
    let again = parks.go_on(5, "make", &second, json!({"q2": {"action": "accept"}})).await;
    assert_eq!(again["result"]["content"], third["result"]["content"], "its answer was lost");
    assert_eq!((parks.server.runs("make"), parks.server.of("tools/call").len()), (1, 1));
    let declared = parks.server.of("initialize");
    let declared = declared.iter().map(|one| &one.body["params"]["capabilities"]);
    assert!(declared.into_iter().any(|one| *one == json!({"elicitation": {}})));
}

/// A write whose server has asked, and a gateway that is killed before the answer comes.
#[tokio::test]
async fn a_parked_write_that_is_gone_after_a_restart_is_unknown_and_not_sent_again() {
    let server = ScriptedServer::legacy("2025-11-25", vec![tool("make", json!({"n": {}}))]).await;
    server.script("make", [Does::Stream(vec![Piece::Run, question(1), Piece::Held])]);
    let may_ask = MayAsk { elicitation: true, ..MayAsk::default() };
    let keys = "timeout: { connect: 5s, first_byte: 20s, total: 60s }";
    let stand = Stands { reads: Vec::new(), may_ask, keys, ..stands("srv", &server) };
    let text = policy(&[stand]).replace("DIR/b", "TOKEN_B");
    let state = tempfile::tempdir().expect("a folder");
    let place = state.path().join("state").display().to_string();
    let start = async || {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("policy.yaml");
        std::fs::write(&file, filled(folder.path(), &text)).expect("written");
        let process = Process::start_at(folder, &file, &["--state", &place], &[]).await;
        let there = async || http::get(process.data, "/v1/tools").await.text().contains("make");
        wait_for("the tool", 30 * S, there).await;
        process
    };
    let mut process = start().await;
    let can = json!({"elicitation": {}});
    let call = json!({"name": "make", "arguments": {"n": 1}});
    let agent = Remote::open_with(process.data, "2026-07-28", &can, &[]).await;
    let asked = agent.ask("tools/call", &call).await["result"].clone();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    process.signal("KILL");
    process.exit().await;
    let process = start().await;
    let agent = Remote::open_with(process.data, "2026-07-28", &can, &[]).await;
    let mut more = call.clone();
    more["requestState"] = asked["requestState"].clone();
    more["inputResponses"] = json!({"q1": {"action": "accept"}});
    let refused = agent.ask("tools/call", &more).await;
    assert_eq!(refused["error"]["code"], -32602, "its key is gone with the process: {refused}");
    // What it had become is on record: it may have happened, and a person looks.
    for _ in 0..2 {
        let again = agent.call("make", &json!({"n": 1})).await;
        let told = &again["_meta"]["io.checkrein/outcome"];
        assert_eq!(
            (&told["error"], &told["executed"]),
            (&json!("review_required"), &json!("unknown"))
        );
    }
    assert_eq!(process.metrics().await.sum("checkrein_reviews_open", &[]), 1.0);
    assert_eq!((server.runs("make"), server.of("tools/call").len()), (1, 1));
}

#[tokio::test]
async fn a_parked_call_whose_time_is_over_ends_as_any_that_was_sent() {
    for (tool, ends) in [("look", "upstream_timeout"), ("make", "outcome_unknown")] {
        let parks = Parks::new(vec![Piece::Run, question(1), Piece::Held], |stand| {
            let read = tool == "look";
            let all = std::mem::take(&mut stand.writes);
            stand.keys = "timeout: { connect: 1s, first_byte: 1s, idle: 1s, total: 2s }\n    retry: { max_retries: 0 }";
            if !read {
                (stand.reads, stand.writes) = (Vec::new(), all);
                stand.keys = "timeout: { connect: 1s, first_byte: 1s, idle: 1s, total: 2s }";
            }
        })
        .await;
        let began = tokio::time::Instant::now();
        let asked = parks.call(1, tool).await;
        assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
        // Nothing is answered, so the call comes to its own end.
        let ended = parks.go_on(2, tool, &asked, json!({})).await;
        let ended = match ended["result"]["resultType"].as_str() {
            Some("input_required") => {
                let metric = format!(r#"outcome="{ends}",tool="{tool}"}} 1"#);
                let over = async || {
                    http::get(parks.gateway.health, "/metrics").await.text().contains(&metric)
                };
                wait_for("its end", 8 * S, over).await;
                parks.go_on(3, tool, &ended, json!({"q1": {"action": "accept"}})).await
            }
            _ => ended,
        };
        assert_eq!(outcome(&ended)["error"], ends, "{ended}");
        assert!(began.elapsed() >= 2 * S, "not by its silence, but by its total");
        let told = async || parks.heard(1) == Some(json!({"action": "cancel"}));
        wait_for("the server to be told", 5 * S, told).await;
        assert_eq!(parks.server.of("tools/call").len(), 1, "nothing was sent again");
    }
}
