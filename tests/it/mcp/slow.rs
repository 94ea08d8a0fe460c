//! Agents that stop reading, and agents that are gone in the middle of an answer: the whole program lives on, others are
//! served, and nothing piles up.

use std::time::Duration;

use checkrein::policy::snapshot::Pass;
use serde_json::json;
use tokio::io::AsyncReadExt;

use super::desk::ERAS;
use super::remote::{Remote, until};
use super::rig::{Stands, policy, stands};
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};
use crate::support::{Process, http, wait_for};

const SOON: Duration = Duration::from_secs(30);
/// Events that a server sends in one call.
const EVENTS: usize = 200_000;

async fn process(server: &ScriptedServer, keys: &'static str) -> Process {
    let stand = Stands {
        reads: vec!["look", "flood"],
        writes: Vec::new(),
        pass: Pass { logging: true, ..Pass::default() },
        keys,
        own: "bulkhead: 256",
        ..stands("srv", server)
    };
    let text = policy(&[stand])
        .replace("DIR/b", "TOKEN_B")
        .replace("agents:\n", "runs: { default: { calls: 10000 } }\nagents:\n");
    let process = Process::start(&text, &[]).await;
    let listed = async || http::get(process.data, "/v1/tools").await.text().contains("flood");
    wait_for("the tools", SOON, listed).await;
    process
}

async fn server() -> ScriptedServer {
    let tools = vec![tool("look", json!({"n": {}})), tool("flood", json!({"n": {}}))];
    let server = ScriptedServer::legacy("2025-11-25", tools).await;
    server.set_capabilities(json!({"tools": {}, "logging": {}}));
    server
}

#[tokio::test]
async fn bb_m17_an_agent_that_stops_reading_is_cut_and_costs_no_memory() {
    let log = json!({"jsonrpc": "2.0", "method": "notifications/message",
        "params": {"level": "error", "data": "x".repeat(300)}});
    let thousand = format!("event: message\ndata: {log}\n\n").repeat(1000);
    let thousand: &'static str = Box::leak(thousand.into_boxed_str());
    for of_agent in ERAS {
        let server = server().await;
        let mut flood = vec![Piece::Progress(json!({"progress": 1})), Piece::Held];
        flood.extend(vec![Piece::Raw(thousand); EVENTS / 1000]);
        flood.push(Piece::Run);
        flood.push(Piece::Answer(json!({"content": []})));
        server.script("flood", [Does::Stream(flood)]);
        let process =
            process(&server, "timeout: { connect: 5s, first_byte: 20s, total: 60s }").await;
        let agent = Remote::open(process.data, of_agent).await;
        let mut meta = json!({"progressToken": "t"});
        if agent.is_modern() {
            meta["io.modelcontextprotocol/logLevel"] = json!("debug");
        } else {
            agent.ask("logging/setLevel", &json!({"level": "debug"})).await;
        }
        // Everything has happened once before anything is counted.
        let warm = agent.call("look", &json!({"n": 0})).await;
        assert!(warm["isError"].is_null(), "{warm}");
        // One that reads is not cut, however many come in a row.
        let burst =
            vec![Piece::Raw(thousand), Piece::Raw(thousand), Piece::Answer(json!({"content": []}))];
        server.script("look", [Does::Stream(burst), Does::Result(json!({"content": []}))]);
        let params = json!({"name": "look", "arguments": {"n": "burst"}, "_meta": meta.clone()});
        let read = agent.ask("tools/call", &params).await;
        assert!(read["result"]["isError"].is_null(), "{read}");
        let before = process.resident();
        let params = json!({"name": "flood", "arguments": {}, "_meta": meta});
        let mut stalled = agent.send("tools/call", &params, &[]).await;
        until(&mut stalled, "notifications/progress").await;
        server.go();
        // It reads no more. Others are served meanwhile, and the memory is looked at as the flood goes on.
        let mut most = 0;
        let mut n = 0;
        let quiet = async || {
            n += 1;
            let other = agent.call("look", &json!({"n": n})).await;
            assert!(other["isError"].is_null(), "{other}");
            most = most.max(process.resident());
            process.metrics().await.sum("checkrein_inflight_calls", &[]) == 0.0
        };
        wait_for("the end of the flood", 2 * SOON, quiet).await;
        let grown = most.saturating_sub(before);
        assert!(grown < 20 << 20, "{grown} bytes for an agent of {of_agent} that does not read");
        // It can see that it has missed something: its stream ends, and has no answer.
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(SOON, stalled.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "its connection is cut");
        let rest = String::from_utf8_lossy(&rest);
        assert!(!rest.contains(r#""result""#), "an answer after a hole that nobody told");
    }
}

#[tokio::test]
async fn bb_m25_agents_that_reset_in_the_middle_of_a_stream_harm_nobody() {
    for of_agent in ERAS {
        let server = server().await;
        let done = Piece::Answer(json!({"content": []}));
        let pieces = vec![Piece::Progress(json!({"progress": 1})), Piece::Held, done];
        server.script("flood", [Does::Stream(pieces)]);
        let process = process(
            &server,
            "timeout: { connect: 5s, first_byte: 20s, total: 60s }\n    bulkhead: 200",
        )
        .await;
        let files = process.open_files();
        // Each has a session of its own with the server, whose idle connections may stay a while.
        for n in 0..100 {
            let agent = Remote::open(process.data, of_agent).await;
            let meta = json!({"progressToken": "t", "io.checkrein/run": format!("run-{n}")});
            let params = json!({"name": "flood", "arguments": {"n": n}, "_meta": meta});
            let mut stream = agent.send("tools/call", &params, &[]).await;
            if n < 25 {
                until(&mut stream, "notifications/progress").await;
            }
            // Closing with linger 0 sends RST.
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("an option");
            drop(stream);
        }
        let agent = Remote::open(process.data, of_agent).await;
        let other = agent.call("look", &json!({"n": 1})).await;
        assert!(other["isError"].is_null(), "{other}");
        server.go();
        let quiet = async || process.metrics().await.sum("checkrein_inflight_calls", &[]) == 0.0;
        wait_for("the end of all calls", SOON, quiet).await;
        let gone = async || process.open_files() <= files + 40;
        wait_for("the end of all connections", SOON, gone).await;
        assert!(!process.log().contains("panicked"), "{}", process.log());
    }
}
