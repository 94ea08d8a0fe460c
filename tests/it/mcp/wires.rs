//! What agents see on the wire where a server, a tool's definition or their own message is not what one would wish.

use std::time::Duration;

use checkrein::policy::snapshot::{MayAsk, Pass};
use serde_json::{Value, json};

use super::desk::{Agent, Desk, ERAS};
use super::remote::Remote;
use super::rig::{Rig, Stands, policy, stands};
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};
use crate::support::{Gateway, http, wait_for};

const S: Duration = Duration::from_secs(1);

async fn of_era(revision: &'static str, tools: Vec<Value>) -> ScriptedServer {
    match revision {
        "2026-07-28" => ScriptedServer::modern(tools).await,
        _ => ScriptedServer::legacy(revision, tools).await,
    }
}

/// Clients of the official SDKs judge structured content by the listed schema, of errors too, and throw. That they take
/// this answer for a result is tried with them in `tests/mcp/clients`.
#[tokio::test]
async fn error_with_output_schema_is_accepted_by_clients() {
    for of_server in ERAS {
        let mut shaped = tool("look", json!({"n": {"type": "integer"}}));
        shaped["outputSchema"] =
            json!({"type": "object", "required": ["id"], "properties": {"id": {}}});
        let plain = tool("plain", json!({"n": {"type": "integer"}}));
        let server = of_era(of_server, vec![shaped.clone(), plain]).await;
        let stand =
            Stands { reads: vec!["look", "plain"], writes: Vec::new(), ..stands("srv", &server) };
        let desk = Desk::new(Rig::ready(&[stand]).await);
        for of_agent in ERAS {
            let agent = desk.agent(of_agent).await;
            let listed = agent.ask("tools/list", &json!({})).await;
            assert_eq!(listed.result()["tools"][0]["outputSchema"], shaped["outputSchema"]);
            let refused = agent.call("look", &json!({"n": "x"})).await;
            assert_eq!(refused.refusal()["error"], "invalid_arguments", "the text is enough");
            assert!(refused.result().get("structuredContent").is_none(), "{refused:?}");
            let outcome = &refused.result()["_meta"]["io.checkrein/outcome"];
            assert_eq!(outcome["error"], "invalid_arguments");
            let plain = agent.call("plain", &json!({"n": "x"})).await;
            assert_eq!(plain.result()["structuredContent"]["error"], "invalid_arguments");
        }
    }
}

/// The server's part of `an_rpc_error_is_not_a_500`.
#[tokio::test]
async fn an_rpc_error_of_a_server_is_not_a_500() {
    for of_server in ERAS {
        let server = of_era(of_server, vec![tool("look", json!({"n": {}}))]).await;
        server.set_capabilities(json!({"tools": {}, "resources": {}}));
        let broken = || Does::Error(-32603, "broken");
        let done = Does::Result(json!({"resultType": "complete", "content": []}));
        server.script("look", [broken(), broken(), broken(), done]);
        server.script("resources/read", [broken()]);
        let stand = Stands {
            writes: Vec::new(),
            pass: Pass { resources: vec!["*".into()], ..Pass::default() },
            keys: "retry: { max_retries: 0 }\n    breaker: { consecutive_failures: 100 }",
            ..stands("srv", &server)
        };
        let desk = Desk::new(Rig::ready(&[stand]).await);
        for (n, of_agent) in ERAS.iter().enumerate() {
            let agent = desk.agent(of_agent).await;
            let got = agent.call("look", &json!({"n": n})).await;
            assert_eq!((got.status, &got.refusal()["error"]), (200, &json!("tool_unavailable")));
            let got = agent.ask("resources/read", &json!({"uri": "file:///a"})).await;
            assert_eq!((got.status, got.code()), (200, -32603), "{got:?}");
        }
        let agent = desk.agent(ERAS[0]).await;
        agent.call("look", &json!({"n": 2})).await;
        let got = agent.call("look", &json!({"n": 3})).await;
        assert!(got.result()["isError"].is_null(), "the next request works: {got:?}");
    }
}

/// The agents' part of `deep_and_wide_messages_are_refused`, at full length.
#[tokio::test]
async fn a_hundred_thousand_brackets_are_an_error_and_the_gateway_lives() {
    let server = ScriptedServer::legacy("2025-11-25", vec![tool("look", json!({"n": {}}))]).await;
    let stand = Stands { writes: Vec::new(), ..stands("srv", &server) };
    let gateway = Gateway::start(&policy(&[stand]).replace("DIR/b", "TOKEN_B")).await;
    wait_for("the tool", 5 * S, async || {
        http::get(gateway.data, "/v1/tools").await.text().contains("look")
    })
    .await;
    let deep = "[".repeat(100_000);
    let closed = format!("{deep}{}", "]".repeat(100_000));
    let call = |arguments: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"look","arguments":{{"n":{arguments}}}}}}}"#
        )
    };
    for of_agent in ERAS {
        let agent = Remote::open(gateway.data, of_agent).await;
        let batch = format!("[{},{}]", call("1"), call("2"));
        for body in [deep.clone(), closed.clone(), call(&deep), call(&closed), batch] {
            let began = tokio::time::Instant::now();
            let got = agent.raw(&body).await;
            assert!(began.elapsed() < S, "{:?}", began.elapsed());
            assert_eq!(got.status, 400, "{}", got.text());
            assert!(got.json()["error"]["code"].is_i64(), "{}", got.text());
        }
        let called = agent.call("look", &json!({"n": of_agent})).await;
        assert!(called["isError"].is_null(), "{called}");
    }
    assert_eq!(server.of("tools/call").len(), 2);
}

/// An agent that answers the question of its call with its own name.
async fn answers(agent: &Agent, tool: &str, name: &str, server: &ScriptedServer) -> Value {
    let params = json!({"name": tool, "arguments": {}});
    let says = json!({"action": "accept", "content": {"who": name}});
    if agent.modern {
        let got = agent.ask("tools/call", &params).await;
        let asked = got.result()["inputRequests"].as_object().cloned();
        let asked = asked.unwrap_or_else(|| panic!("{got:?}"));
        let key = asked.keys().next().expect("a question");
        let mut more = params.clone();
        more["requestState"] = got.result()["requestState"].clone();
        more["inputResponses"] = json!({key: says});
        let goes_on = async {
            wait_for("the answers", 5 * S, async || all_heard(server)).await;
            server.go();
        };
        let (got, ()) = tokio::join!(agent.ask("tools/call", &more), goes_on);
        return got.result().clone();
    }
    let mut stream = agent.open("tools/call", &params).await;
    let asked = stream.next().await.expect("a question");
    let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": says});
    assert_eq!(agent.say(&answer).await, 202);
    wait_for("the answers", 5 * S, async || all_heard(server)).await;
    server.go();
    stream.next().await.expect("an answer")["result"].clone()
}

/// Who has answered, by the session or connection that the server asked in.
fn heard(server: &ScriptedServer) -> Vec<(String, String)> {
    let who = |body: &Value| {
        let plain = body.pointer("/result/content/who");
        let sealed = body.pointer("/params/inputResponses/k/content/who");
        plain.or(sealed).and_then(Value::as_str).map(str::to_owned)
    };
    let seen = server.seen();
    seen.iter().filter_map(|one| Some((one.session().to_owned(), who(&one.body)?))).collect()
}

fn all_heard(server: &ScriptedServer) -> bool {
    heard(server).len() >= 2
}

/// Two calls on each of two servers, all asking with the same id; and more than `elicitation_goes_home` shows: agents
/// and servers of every era, and no question of a kind that was not declared.
#[tokio::test]
async fn elicitation_of_two_calls_on_one_server_goes_home_in_every_era() {
    for of_server in ERAS {
        for of_agent in ERAS {
            let servers = [
                of_era(of_server, vec![tool("one", json!({}))]).await,
                of_era(of_server, vec![tool("two", json!({}))]).await,
            ];
            let question = json!({"message": "who?", "requestedSchema": {"type": "object"}});
            for (server, name) in servers.iter().zip(["one", "two"]) {
                let done = json!({"resultType": "complete", "content": []});
                if of_server == "2026-07-28" {
                    let needs = json!({"resultType": "input_required", "requestState": "theirs",
                        "inputRequests": {"k": {"method": "elicitation/create", "params": question}}});
                    let needs = || Does::Result(needs.clone());
                    server.script(name, [needs(), needs(), Does::Result(done)]);
                } else {
                    let asks = json!({"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": question});
                    let pieces = vec![Piece::Message(asks), Piece::Held, Piece::Answer(done)];
                    server.script(name, [Does::Stream(pieces)]);
                }
            }
            let may_ask = MayAsk { elicitation: true, sampling: true, ..MayAsk::default() };
            let of = |name, server, reads: &[&'static str]| Stands {
                reads: reads.to_vec(),
                writes: Vec::new(),
                may_ask,
                keys: "timeout: { connect: 1s, first_byte: 9s, total: 10s }",
                ..stands(name, server)
            };
            let all = [of("s1", &servers[0], &["one"]), of("s2", &servers[1], &["two"])];
            let desk = Desk::new(Rig::ready(&all).await);
            let can = || json!({"elicitation": {}});
            let a = desk.agent_as(of_agent, None, can()).await;
            let b = desk.agent_as(of_agent, Some("b"), can()).await;
            let told = tokio::join!(
                answers(&a, "one", "a", &servers[0]),
                answers(&b, "one", "b", &servers[0]),
                answers(&a, "two", "a", &servers[1]),
                answers(&b, "two", "b", &servers[1])
            );
            for result in [&told.0, &told.1, &told.2, &told.3] {
                assert!(result["isError"].is_null(), "{of_server} {of_agent}: {result}");
            }
            for server in &servers {
                let heard = heard(server);
                let mut who: Vec<&str> = heard.iter().map(|(_, who)| who.as_str()).collect();
                who.sort_unstable();
                assert_eq!(who, ["a", "b"], "{of_server} {of_agent}");
                // Each answer is in the session of the call that asked.
                if of_server != "2026-07-28" {
                    assert_ne!(heard[0].0, heard[1].0);
                }
                for hello in server.of("initialize").iter().skip(1) {
                    let declared = &hello.body["params"]["capabilities"];
                    assert_eq!(declared, &can(), "not what the agent did not declare");
                }
            }
        }
    }
}
