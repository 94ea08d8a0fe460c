//! Resources that agents subscribe to: asked of the server once, heard of by those who wanted it, in every era; and
//! still so after a lost session, a broken stream and another policy.

use std::time::Duration;

use checkrein::policy::snapshot::Pass;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::desk::{Agent, Desk, ERAS};
use super::peer::Stream;
use super::rig::{Rig, Stands, stands};
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};
use crate::support::wait_for;

const S: Duration = Duration::from_secs(1);
const A: &str = "file:///a";

/// A server with resources that tells what the test says.
async fn server(revision: &'static str) -> ScriptedServer {
    let tools = vec![tool("look", json!({"n": {}}))];
    let server = match revision {
        "2026-07-28" => ScriptedServer::modern(tools).await,
        _ => ScriptedServer::legacy(revision, tools).await,
    };
    let resources = json!({"subscribe": true});
    server.set_capabilities(json!({"tools": {"listChanged": true}, "resources": resources}));
    server.script("resources/subscribe", [Does::Result(json!({}))]);
    server.script("resources/unsubscribe", [Does::Result(json!({}))]);
    server.set_get(vec![Piece::Told]);
    server
}

fn stand(server: &ScriptedServer) -> Stands {
    let pass = Pass { resources: vec!["file:///*".into()], ..Pass::default() };
    Stands { writes: Vec::new(), pass, ..stands("srv", server) }
}

async fn desk(server: &ScriptedServer) -> Desk {
    Desk::new(Rig::ready(&[stand(server)]).await)
}

/// Subscribed to `uri`, in the words of the agent's era; what a listen is promised is the agent's.
async fn subscribed(agent: &Agent, uri: &str) -> Stream {
    let mut stream = agent.listen(&json!({"resourceSubscriptions": [uri]})).await;
    if agent.modern {
        let first = stream.next().await.expect("acknowledged");
        let promised = &first["params"]["notifications"]["resourceSubscriptions"];
        assert_eq!(promised, &json!([uri]), "{first}");
    } else {
        let got = agent.ask("resources/subscribe", &json!({"uri": uri})).await;
        assert_eq!(got.result(), &json!({}), "{got:?}");
    }
    stream
}

async fn heard(stream: &mut Stream) -> Value {
    let next = timeout(5 * S, stream.next()).await.expect("in time").expect("open");
    assert_eq!(next["method"], "notifications/resources/updated", "{next}");
    next["params"].clone()
}

async fn quiet(stream: &mut Stream) {
    let heard = timeout(S / 5, stream.next()).await;
    assert!(heard.is_err(), "{heard:?}");
}

/// What the server has been asked for `A`.
fn asked(server: &ScriptedServer, method: &str) -> usize {
    let names = |seen: &crate::support::mcp::Seen| match method {
        "subscriptions/listen" => {
            seen.body["params"]["notifications"]["resourceSubscriptions"] == json!([A])
        }
        _ => seen.body["params"]["uri"] == A,
    };
    server.of(method).iter().filter(|seen| names(seen)).count()
}

fn asks(revision: &str) -> &'static str {
    if revision == "2026-07-28" { "subscriptions/listen" } else { "resources/subscribe" }
}

#[tokio::test]
async fn what_an_agent_subscribed_to_is_heard_of_across_eras_and_nothing_else_is() {
    for of_server in ERAS {
        for of_agent in ERAS {
            let server = server(of_server).await;
            let desk = desk(&server).await;
            let (agent, other) = (desk.agent(of_agent).await, desk.agent(of_agent).await);
            let mut stream = subscribed(&agent, A).await;
            let mut others = subscribed(&other, "file:///c").await;
            // The streams on which it is told are open.
            let streams = if of_server == of_agent && !agent.modern { 3 } else { 2 };
            wait_for("the streams", 5 * S, async || server.hearers() >= streams).await;
            for uri in ["file:///b", "db:///x", A] {
                server.tell("notifications/resources/updated", json!({"uri": uri, "odd": 1.50}));
            }
            let params = heard(&mut stream).await;
            assert_eq!((&params["uri"], &params["odd"]), (&json!(A), &json!(1.50)));
            let tag = params.pointer("/_meta/io.modelcontextprotocol~1subscriptionId");
            assert_eq!(tag.is_some(), agent.modern, "{params}");
            server.tell("notifications/resources/updated", json!({"uri": "file:///a/part"}));
            assert_eq!(heard(&mut stream).await["uri"], "file:///a/part");
            quiet(&mut others).await;
            // What the policy does not pass cannot be subscribed to.
            if agent.modern {
                let filter = json!({"resourceSubscriptions": ["db:///x"]});
                let mut none = agent.listen(&filter).await;
                let first = none.next().await.expect("acknowledged");
                assert_eq!(first["params"]["notifications"], json!({}), "{first}");
            } else {
                let got = agent.ask("resources/subscribe", &json!({"uri": "db:///x"})).await;
                assert_eq!(got.code(), -32002, "{got:?}");
                // and what is no longer wanted is no longer told
                let got = agent.ask("resources/unsubscribe", &json!({"uri": A})).await;
                assert_eq!(got.result(), &json!({}), "{got:?}");
                server.tell("notifications/resources/updated", json!({"uri": A}));
                quiet(&mut stream).await;
            }
        }
    }
}

#[tokio::test]
async fn two_streams_of_one_uri_are_one_subscription_that_ends_with_the_last() {
    for of_server in ERAS {
        let server = server(of_server).await;
        let desk = desk(&server).await;
        let agent = desk.agent("2026-07-28").await;
        let (mut one, two) = tokio::join!(subscribed(&agent, A), subscribed(&agent, A));
        assert_eq!(asked(&server, asks(of_server)), 1, "{of_server}");
        wait_for("the stream", 5 * S, async || server.hearers() >= 2).await;
        let all = server.hearers();
        drop(two);
        quiet(&mut one).await;
        assert_eq!(asked(&server, "resources/unsubscribe"), 0);
        server.tell("notifications/resources/updated", json!({"uri": A}));
        assert_eq!(heard(&mut one).await["uri"], A);
        drop(one);
        if of_server == "2026-07-28" {
            wait_for("its end", 5 * S, async || server.hearers() == all - 1).await;
        } else {
            let over = async || asked(&server, "resources/unsubscribe") == 1;
            wait_for("the word", 5 * S, over).await;
        }
        // and another one begins it anew
        let mut again = subscribed(&agent, A).await;
        assert_eq!(asked(&server, asks(of_server)), 2, "{of_server}");
        wait_for("the stream", 5 * S, async || server.hearers() == all).await;
        server.tell("notifications/resources/updated", json!({"uri": A}));
        assert_eq!(heard(&mut again).await["uri"], A);
    }
}

#[tokio::test]
async fn a_listen_that_wants_more_takes_the_place_of_the_one_before() {
    let server = server("2026-07-28").await;
    let desk = desk(&server).await;
    let agent = desk.agent("2026-07-28").await;
    let mut one = subscribed(&agent, A).await;
    let mut two = subscribed(&agent, "file:///b").await;
    wait_for("one of two", 5 * S, async || server.hearers() == 2).await;
    let last = server.of("subscriptions/listen").pop().expect("sent");
    let wanted = &last.body["params"]["notifications"]["resourceSubscriptions"];
    assert_eq!(wanted, &json!([A, "file:///b"]));
    for (stream, uri) in [(&mut one, A), (&mut two, "file:///b")] {
        server.tell("notifications/resources/updated", json!({"uri": uri}));
        assert_eq!(heard(stream).await["uri"], uri);
    }
}

#[tokio::test]
async fn a_subscription_outlives_the_servers_session_and_its_agent_looks_again() {
    for of_server in ERAS {
        for of_agent in ERAS {
            let server = server(of_server).await;
            let desk = desk(&server).await;
            let agent = desk.agent(of_agent).await;
            let mut stream = subscribed(&agent, A).await;
            let called = agent.call("look", &json!({})).await;
            assert!(called.result()["isError"].is_null(), "{called:?}");
            let before = asked(&server, asks(of_server));
            server.restart().await;
            // Something may have changed meanwhile.
            assert_eq!(timeout(20 * S, heard(&mut stream)).await.expect("told")["uri"], A);
            assert_eq!(asked(&server, asks(of_server)), before + 1, "{of_server} {of_agent}");
            // the streams on which it is told may take a moment more
            let mut told = false;
            while !told {
                server.tell("notifications/resources/updated", json!({"uri": A}));
                told = timeout(S / 5, heard(&mut stream)).await.is_ok();
            }
        }
    }
}

#[tokio::test]
async fn a_session_that_a_call_finds_lost_is_subscribed_anew() {
    let server = server("2025-11-25").await;
    let desk = desk(&server).await;
    let agent = desk.agent("2025-11-25").await;
    let mut stream = subscribed(&agent, A).await;
    server.forget_sessions(404);
    let called = agent.call("look", &json!({})).await;
    assert!(called.result()["isError"].is_null(), "{called:?}");
    assert_eq!(heard(&mut stream).await["uri"], A);
    assert_eq!(asked(&server, "resources/subscribe"), 2);
    let sessions: Vec<String> =
        server.of("resources/subscribe").iter().map(|seen| seen.session().to_owned()).collect();
    assert_ne!(sessions[0], sessions[1]);
}

#[tokio::test]
async fn a_subscription_outlives_a_policy_that_changes_its_server() {
    for of_server in ERAS {
        let server = server(of_server).await;
        let desk = desk(&server).await;
        let agent = desk.agent("2026-07-28").await;
        let mut stream = subscribed(&agent, A).await;
        let mut changed = stand(&server);
        changed.protocol.pop();
        desk.rig.install(&[changed]);
        assert_eq!(heard(&mut stream).await["uri"], A, "{of_server}");
        assert_eq!(asked(&server, asks(of_server)), 2, "{of_server}");
    }
}

#[tokio::test]
async fn what_a_server_refuses_is_not_promised() {
    let legacy = server("2025-11-25").await;
    legacy.script("resources/subscribe", [Does::Error(-32002, "no such resource")]);
    let modern = server("2026-07-28").await;
    let none = json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged",
        "params": {"notifications": {}}});
    let stream = vec![Piece::Message(none), Piece::Told];
    modern.script("subscriptions/listen", [Does::Stream(stream)]);
    for server in [&legacy, &modern] {
        let desk = desk(server).await;
        let agent = desk.agent("2026-07-28").await;
        let mut stream = agent.listen(&json!({"resourceSubscriptions": [A]})).await;
        let first = stream.next().await.expect("acknowledged");
        assert_eq!(first["params"]["notifications"], json!({}), "{first}");
        let agent = desk.agent("2025-11-25").await;
        let long = format!("file:///{}", "x".repeat(9000));
        for uri in [A, &long] {
            let got = agent.ask("resources/subscribe", &json!({"uri": uri})).await;
            assert!(matches!(got.code(), -32002 | -32602), "{got:?}");
        }
    }
    assert!(legacy.of("resources/unsubscribe").is_empty(), "there is nothing to end");
}

/// What a server says while a stream of its living session is broken is lost.
#[tokio::test]
async fn a_stream_that_broke_and_is_open_again_has_its_subscribers_look_again() {
    let server = server("2025-11-25").await;
    let resources = json!({"subscribe": true, "listChanged": true});
    server.set_capabilities(json!({"tools": {"listChanged": true}, "resources": resources}));
    server.set_get(vec![Piece::Held]);
    let desk = desk(&server).await;
    let agent = desk.agent("2026-07-28").await;
    let filter = json!({"resourceSubscriptions": [A], "resourcesListChanged": true});
    let mut stream = agent.listen(&filter).await;
    let first = stream.next().await.expect("acknowledged");
    assert_eq!(first["params"]["notifications"], filter, "{first}");
    let streams = || server.seen().iter().filter(|seen| seen.http == "GET").count();
    // The gateway's own and the agent's.
    wait_for("the streams", 5 * S, async || streams() == 2).await;
    quiet(&mut stream).await;
    server.set_get(vec![Piece::Told]);
    server.go();
    let mut told = Vec::new();
    for _ in 0..2 {
        let next = timeout(5 * S, stream.next()).await.expect("in time").expect("open");
        told.push(next["method"].as_str().unwrap_or_default().to_owned());
        if next["method"] == "notifications/resources/updated" {
            assert_eq!(next["params"]["uri"], A, "{next}");
        }
    }
    told.sort();
    assert_eq!(told, ["notifications/resources/list_changed", "notifications/resources/updated"]);
    quiet(&mut stream).await;
    assert_eq!(
        asked(&server, "resources/subscribe"),
        1,
        "the session lives: nothing is asked anew"
    );
}

/// One that names its events is gone on with where it ended: nothing is missing.
#[tokio::test]
async fn a_stream_that_is_gone_on_with_has_nobody_look_again() {
    let server = server("2025-11-25").await;
    server.set_get(vec![Piece::Prime("e1", 10), Piece::Held]);
    let desk = desk(&server).await;
    let agent = desk.agent("2026-07-28").await;
    let mut stream = subscribed(&agent, A).await;
    let streams = || server.seen().iter().filter(|seen| seen.http == "GET").count();
    wait_for("the streams", 5 * S, async || streams() == 2).await;
    server.set_get(vec![Piece::Told]);
    server.go();
    wait_for("the next ones", 5 * S, async || server.hearers() == 2).await;
    let resumed =
        server.seen().iter().filter(|seen| seen.header("last-event-id") == Some("e1")).count();
    assert_eq!(resumed, 2);
    quiet(&mut stream).await;
}
