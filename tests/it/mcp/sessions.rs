//! Inner sessions: whose they are, how they are lost, and that nothing of one reaches another.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::desk::{Desk, ERAS};
use super::rig::{Ear, Rig, Stands, ended, evidence, side, stands, text};
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};
use crate::support::wait_for;

const S: Duration = Duration::from_secs(1);

async fn of_era(revision: &'static str) -> ScriptedServer {
    let tools = vec![tool("look", json!({"n": {}})), tool("make", json!({"n": {}}))];
    match revision {
        "2026-07-28" => ScriptedServer::modern(tools).await,
        _ => ScriptedServer::legacy(revision, tools).await,
    }
}

async fn server() -> ScriptedServer {
    let tools = vec![tool("look", json!({"n": {}})), tool("make", json!({"n": {}}))];
    ScriptedServer::legacy("2025-11-25", tools).await
}

#[tokio::test]
async fn one_upstream_expires_the_rest_live() {
    for status in [404, 400] {
        let (lost, sound) = (server().await, {
            let tools = vec![tool("see", json!({}))];
            ScriptedServer::legacy("2025-06-18", tools).await
        });
        let mut other = stands("other", &sound);
        (other.reads, other.writes) = (vec!["see"], Vec::new());
        let rig = Rig::ready(&[stands("srv", &lost), other]).await;
        for tool in ["look", "make", "see"] {
            assert_eq!(ended(&rig.call(tool, "{}").await.outcome).0, "ok", "{tool}");
        }
        let begun = lost.of("initialize").len();
        // a read goes on after one new session, and only its answer is told
        lost.forget_sessions(status);
        let (a, b) = tokio::join!(rig.call("look", r#"{"n":1}"#), rig.call("look", r#"{"n":2}"#));
        assert_eq!((ended(&a.outcome).0, ended(&b.outcome).0), ("ok", "ok"), "{status}");
        assert_eq!(lost.of("initialize").len(), begun + 1, "single flight");
        // a write did not happen, is not sent again, and the next one works
        lost.forget_sessions(status);
        let refused = rig.call("make", r#"{"n":1}"#).await;
        assert_eq!(ended(&refused.outcome), ("upstream_refused_stream", "no"));
        assert_eq!(evidence(&refused.outcome), format!("session_{status}"));
        let runs = lost.runs("make");
        assert_eq!(ended(&rig.call("make", r#"{"n":1}"#).await.outcome).0, "ok");
        assert_eq!(lost.runs("make"), runs + 1);
        assert_eq!(sound.of("initialize").len(), 2, "nothing was begun anew there");
        assert_eq!(ended(&rig.call("see", "{}").await.outcome).0, "ok");
    }
}

/// A server whose front answers for whoever is gone.
#[tokio::test]
async fn bb_m03_a_session_that_is_lost_costs_one_new_one_and_no_write_is_made_twice() {
    for status in [404, 400, 503] {
        let (lost, sound) = (server().await, {
            ScriptedServer::legacy("2025-06-18", vec![tool("see", json!({}))]).await
        });
        let mut other = stands("other", &sound);
        (other.reads, other.writes) = (vec!["see"], Vec::new());
        let keys = "breaker: { consecutive_failures: 1000 }";
        let rig = Rig::ready(&[Stands { keys, ..stands("srv", &lost) }, other]).await;
        for tool in ["look", "make", "see"] {
            assert_eq!(ended(&rig.call(tool, "{}").await.outcome).0, "ok", "{tool}");
        }
        let begun = lost.of("initialize").len();
        lost.forget_sessions(status);
        let read = rig.call("look", r#"{"n":1}"#).await;
        assert_eq!(ended(&read.outcome).0, "ok", "{status}");
        assert_eq!(lost.of("initialize").len(), begun + 1, "{status}");
        lost.forget_sessions(status);
        let runs = lost.runs("make");
        let write = rig.call("make", r#"{"n":1}"#).await;
        // A 503 is no proof that nothing was done.
        let (code, known) = if status == 503 {
            ("outcome_unknown", "unknown")
        } else {
            ("upstream_refused_stream", "no")
        };
        assert_eq!(ended(&write.outcome), (code, known), "{status}");
        assert_eq!(lost.runs("make"), runs, "not sent again");
        // It is found out beside the calls whether the session lives.
        let mut n = 1;
        let works = async || {
            n += 1;
            let next = rig.call("make", &format!(r#"{{"n":{n}}}"#)).await;
            ended(&next.outcome).0 == "ok"
        };
        wait_for("a write that works", 5 * S, works).await;
        assert!(status == 503 || n == 2, "the very next one");
        assert_eq!(lost.of("initialize").len(), begun + 2);
        assert_eq!(lost.runs("make"), runs + 1);
        assert_eq!(sound.of("initialize").len(), 2, "nothing was begun anew there");
        assert_eq!(ended(&rig.call("see", "{}").await.outcome).0, "ok");
    }
}

#[tokio::test]
async fn a_session_that_lives_is_not_thrown_away_for_a_503() {
    let server = server().await;
    let rig = Rig::ready(&[stands("srv", &server)]).await;
    assert_eq!(ended(&rig.call("look", "{}").await.outcome).0, "ok");
    let own = server.of("tools/call")[0].session().to_owned();
    let done = Does::Result(json!({"content": []}));
    server.script("look", [Does::Status(503, "busy"), done]);
    assert_eq!(ended(&rig.call("look", r#"{"n":1}"#).await.outcome).0, "ok");
    // It was looked at, and found alive: the one beside it is told farewell.
    wait_for("the farewell", 5 * S, async || {
        server.seen().iter().any(|seen| seen.http == "DELETE" && seen.session() != own)
    })
    .await;
    assert_eq!(ended(&rig.call("look", r#"{"n":2}"#).await.outcome).0, "ok");
    assert!(server.of("tools/call").iter().all(|call| call.session() == own));
}

#[tokio::test]
async fn a_session_that_is_lost_again_and_again_is_no_loop() {
    let server = server().await;
    let rig = Rig::ready(&[stands("srv", &server)]).await;
    server.script("look", [Does::Status(404, "{}")]);
    let begun = server.of("initialize").len();
    let got = rig.call("look", "{}").await;
    assert_eq!(ended(&got.outcome).0, "upstream_refused_stream");
    let calls = server.of("tools/call").len();
    assert!(calls <= 4, "{calls} calls");
    assert!(server.of("initialize").len() <= begun + calls, "a session a call at most");
}

#[tokio::test]
async fn no_session_is_shared_between_identities() {
    let server = server().await;
    let rig = Rig::ready(&[stands("srv", &server)]).await;
    let ear = Arc::new(Ear::default());
    let asks = [
        ("default", None),
        ("b", None),
        ("default", Some(side("s1", &ear))),
        ("default", Some(side("s2", &ear))),
        ("b", Some(side("s1", &ear))),
        ("default", Some(side("s1", &ear))),
    ];
    for (agent, side) in asks {
        let got = rig.call_as(agent, side, "look", "{}").await;
        assert_eq!(ended(&got.outcome).0, "ok");
    }
    let sessions: Vec<String> =
        server.of("tools/call").iter().map(|call| call.session().to_owned()).collect();
    let mut distinct = sessions.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), 5, "{sessions:?}");
    assert_eq!(sessions[2], sessions[5], "the same owner keeps its session");
    let list = server.of("tools/list")[0].session().to_owned();
    assert!(!sessions.contains(&list), "the gateway's own is nobody's");
    // its end closes what hung on it, and nothing else
    let default = checkrein::call::AgentId::new("default").expect("a name");
    rig.servers.session_over(&default, "s1");
    wait_for("the farewell", 5 * S, async || {
        server.seen().iter().any(|seen| seen.http == "DELETE" && seen.session() == sessions[2])
    })
    .await;
    let farewells = server.seen().iter().filter(|seen| seen.http == "DELETE").count();
    assert_eq!(farewells, 1);
}

#[tokio::test]
async fn request_ids_are_integers_that_rise_and_are_never_used_twice() {
    let server = server().await;
    let rig = Rig::ready(&[stands("srv", &server)]).await;
    for n in 0..3 {
        rig.call("look", &format!(r#"{{"n":{n}}}"#)).await;
    }
    server.forget_sessions(404);
    rig.call("look", r#"{"n":9}"#).await;
    let ids: Vec<u64> = server
        .of("tools/call")
        .iter()
        .map(|call| call.body["id"].as_u64().expect("an integer"))
        .collect();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{ids:?}");
}

#[tokio::test]
async fn cancel_uses_the_upstreams_id() {
    let (one, two) = (server().await, {
        ScriptedServer::legacy("2025-11-25", vec![tool("see", json!({}))]).await
    });
    let mut other = stands("other", &two);
    (other.reads, other.writes) = (vec!["see"], Vec::new());
    let rig = Arc::new(Rig::ready(&[stands("srv", &one), other]).await);
    for what in ["look", "make"] {
        one.script(
            what,
            [Does::Stream(vec![Piece::Run, Piece::Held, Piece::Answer(json!({"content": []}))])],
        );
    }
    let ear = Arc::new(Ear::default());
    // a read ends at once; its server hears our id
    let agents = side("s", &ear);
    let token = agents.cancelled.clone();
    let calling = rig.call_as("default", Some(agents), "look", "{}");
    let cancelling = async {
        wait_for("the call", 5 * S, async || !one.of("tools/call").is_empty()).await;
        token.cancel();
    };
    let (got, ()) = tokio::join!(calling, cancelling);
    assert_eq!(ended(&got.outcome).0, "upstream_reset");
    wait_for("the word", 5 * S, async || !one.of("notifications/cancelled").is_empty()).await;
    let told = one.of("notifications/cancelled");
    assert_eq!(told[0].body["params"]["requestId"], one.of("tools/call")[0].body["id"]);
    assert!(two.of("notifications/cancelled").is_empty());
    // a write: told too, and its answer is waited for all the same
    let agents = side("s", &ear);
    let token = agents.cancelled.clone();
    let calling = rig.call_as("default", Some(agents), "make", "{}");
    let cancelling = async {
        wait_for("the call", 5 * S, async || one.runs("make") == 1).await;
        token.cancel();
        wait_for("the word", 5 * S, async || one.of("notifications/cancelled").len() == 2).await;
        one.go();
    };
    let (got, ()) = tokio::join!(calling, cancelling);
    assert_eq!(text(&got.outcome), r#"{"content":[]}"#);
    assert_eq!(one.runs("make"), 1);
}

#[tokio::test]
async fn hangup_does_not_cut_a_write() {
    for of_server in ERAS {
        let server = of_era(of_server).await;
        let rig = Rig::ready(&[stands("srv", &server)]).await;
        let answer = Piece::Answer(json!({"resultType": "complete", "content": []}));
        server.script("make", [Does::Stream(vec![Piece::Run, Piece::Held, answer])]);
        {
            let calling = rig.call("make", "{}");
            tokio::pin!(calling);
            let arrived = wait_for("the call", 5 * S, async || server.runs("make") == 1);
            tokio::select! {
                _ = &mut calling => panic!("it is held"),
                () = arrived => {}
            }
            // the agent's connection is dropped here
        }
        server.go();
        wait_for("the end of the write", 5 * S, async || {
            rig.metrics
                .encode()
                .contains(r#"checkrein_write_ends_total{end="executed",tool="make"} 1"#)
        })
        .await;
        assert_eq!((server.runs("make"), rig.reviews()), (1, 0));
        assert!(server.of("notifications/cancelled").is_empty());
    }
}

#[tokio::test]
async fn reissue_under_a_new_id_does_not_write_twice() {
    for of_server in ERAS {
        for of_agent in ERAS {
            let server = of_era(of_server).await;
            let desk = Desk::new(Rig::ready(&[stands("srv", &server)]).await);
            let agent = desk.agent(of_agent).await;
            server.script("make", [Does::RunThenClose]);
            let first = agent.call("make", &json!({"n": 1})).await;
            assert_eq!(first.refusal()["error"], "outcome_unknown");
            // The agent asks again under another id, and its server has begun anew.
            let done = Does::Result(json!({"resultType": "complete", "content": []}));
            server.script("make", [done]);
            server.restart().await;
            let again = agent.call("make", &json!({"n": 1})).await;
            assert_ne!(first.answer()["id"], again.answer()["id"]);
            assert_eq!(again.refusal()["error"], "review_required", "{of_server} {of_agent}");
            assert_eq!((server.runs("make"), server.of("tools/call").len()), (1, 1));
        }
    }
}

#[tokio::test]
async fn a_429_is_not_ill_health() {
    for of_server in ERAS {
        for of_agent in ERAS {
            let server = of_era(of_server).await;
            let desk = Desk::new(Rig::ready(&[stands("srv", &server)]).await);
            let agent = desk.agent(of_agent).await;
            let headers = vec![("retry-after", "30".to_owned())];
            server.script("look", [Does::StatusWith(429, headers, "{}")]);
            for n in 0..20 {
                let got = agent.call("look", &json!({"n": n})).await;
                let told = got.refusal();
                assert_eq!(
                    (&told["error"], &told["limited_by"]),
                    (&json!("rate_limited"), &json!("tool"))
                );
                assert!(told["retry_after_ms"].as_u64().is_some_and(|ms| ms > 20_000), "{told}");
            }
            assert_eq!(server.of("tools/call").len(), 1, "the cooldown kept the others here");
            let scrape = desk.rig.metrics.encode();
            assert!(
                scrape.contains(r#"checkrein_breaker_state{state="closed",tool="look"} 1"#),
                "{scrape}"
            );
        }
    }
}

#[tokio::test]
async fn progress_token_is_the_agents() {
    for of_server in ERAS {
        let server = of_era(of_server).await;
        let rig = Rig::ready(&[stands("srv", &server)]).await;
        let note = |n: i64| Piece::Progress(json!({"progress": n, "total": 3}));
        let late = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": "x", "progress": 9}});
        let pieces = vec![
            note(1),
            note(1),
            note(0),
            Piece::Message(late),
            Piece::Wait(Duration::from_millis(150)),
            note(2),
            note(3),
            Piece::Answer(json!({"resultType": "complete", "content": []})),
        ];
        server.script("look", [Does::Stream(pieces)]);
        let ear = Arc::new(Ear::default());
        let mut asks = side("s", &ear);
        asks.progress = true;
        let got = rig.call_as("default", Some(asks), "look", "{}").await;
        assert_eq!(ended(&got.outcome).0, "ok");
        let told: Vec<i64> = ear
            .told("notifications/progress")
            .iter()
            .map(|params| params["progress"].as_i64().expect("a number"))
            .collect();
        assert_eq!(told, [1, 2, 3], "rising only, the last before the answer");
        assert!(ear.told("notifications/progress")[0].get("progressToken").is_none());
        // nobody asked: the server is given no token
        rig.call_as("default", Some(side("s", &ear)), "look", r#"{"n":2}"#).await;
        let calls = server.of("tools/call");
        assert!(calls[0].body["params"]["_meta"]["progressToken"].is_u64());
        assert!(calls[1].body["params"]["_meta"].get("progressToken").is_none());
        assert_eq!(ear.told("notifications/progress").len(), 3);
    }
}

#[tokio::test]
async fn reused_connection_failure_is_unknown() {
    for of_server in ERAS {
        let server = of_era(of_server).await;
        let mut stand = stands("srv", &server);
        (stand.reads, stand.keys) = (Vec::new(), "write: { connection: pooled }");
        let rig = Rig::ready(&[stand]).await;
        assert_eq!(ended(&rig.call("make", r#"{"n":0}"#).await.outcome).0, "ok");
        server.script("make", [Does::RunThenClose]);
        let got = rig.call("make", r#"{"n":1}"#).await;
        assert_eq!(ended(&got.outcome), ("outcome_unknown", "unknown"));
        let calls = server.of("tools/call");
        assert_eq!(calls[0].connection, calls[1].connection, "it was used again");
        assert_eq!((calls.len(), server.runs("make")), (2, 2), "and nothing was sent again");
        server.stop();
        wait_for("the end of the server", 5 * S, async || {
            tokio::net::TcpStream::connect(("127.0.0.1", server.port())).await.is_err()
        })
        .await;
        let got = rig.call("make", r#"{"n":2}"#).await;
        assert_eq!(ended(&got.outcome), ("upstream_unreachable", "no"));
        assert_eq!((evidence(&got.outcome).as_str(), server.runs("make")), ("connect_failed", 2));
    }
}
