//! What a server can do wrong, and what is then known of a read and of a write.

use std::time::Duration;

use checkrein::call::Side;
use serde_json::json;
use tokio::time::Instant;

use super::desk::ERAS;
use super::rig::{Rig, ended, evidence, stands, text};
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};

const MS: Duration = Duration::from_millis(1);

async fn of_era(revision: &'static str) -> ScriptedServer {
    let tools = vec![tool("look", json!({"n": {}})), tool("make", json!({"n": {}}))];
    match revision {
        "2026-07-28" => ScriptedServer::modern(tools).await,
        _ => ScriptedServer::legacy(revision, tools).await,
    }
}

async fn legacy() -> ScriptedServer {
    let tools = vec![tool("look", json!({"n": {}})), tool("make", json!({"n": {}}))];
    ScriptedServer::legacy("2025-11-25", tools).await
}

fn answer() -> serde_json::Value {
    json!({"content": [{"type": "text", "text": "done"}]})
}

#[tokio::test]
async fn a_tool_of_a_server_is_listed_called_and_answers_through_all_layers() {
    let server = legacy().await;
    let given = r#"{"content":[{"type":"text","text":"x","annotations":{"z":1,"a":2}}],"odd":{"n":1.50,"big":12345678901234567890123}}"#;
    server.script("look", [Does::Result(super::rig::parsed(given))]);
    let rig = Rig::ready(&[stands("srv", &server)]).await;
    let got = rig.call("look", r#"{"n":1.10}"#).await;
    assert_eq!(text(&got.outcome), given);
    let call = server.of("tools/call").pop().expect("it arrived");
    assert_eq!(call.body["params"]["arguments"].to_string(), r#"{"n":1.10}"#);
    assert_eq!(call.header("mcp-protocol-version"), Some("2025-11-25"));
    assert!(call.session().starts_with("session-"));
    let scrape = rig.metrics.encode();
    assert!(scrape.contains(r#"checkrein_mcp_server_up{server="srv"} 1"#), "{scrape}");
}

#[tokio::test]
async fn first_frame_is_not_the_answer() {
    for of_server in ERAS {
        let server = of_era(of_server).await;
        let log = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}});
        let foreign = json!({"jsonrpc": "2.0", "id": 999_999, "result": {"content": []}});
        let texts = json!({"jsonrpc": "2.0", "id": "1", "result": {"content": [{"type": "text", "text": "not ours"}]}});
        let mut ours = answer();
        ours["resultType"] = json!("complete");
        let pieces = vec![
            Piece::Comment,
            Piece::Message(log),
            Piece::Progress(json!({"progress": 1})),
            Piece::Message(foreign),
            Piece::Message(texts),
            Piece::Answer(ours),
        ];
        server.script("look", [Does::Stream(pieces)]);
        let rig = Rig::ready(&[stands("srv", &server)]).await;
        let got = rig.call("look", "{}").await;
        let content = super::rig::parsed(&text(&got.outcome))["content"].clone();
        assert_eq!(content, answer()["content"], "{of_server}");
        let scrape = rig.metrics.encode();
        let dropped = r#"checkrein_mcp_messages_dropped_total{reason="unknown_id"} 2"#;
        assert!(scrape.contains(dropped), "{scrape}");
    }
}

#[tokio::test]
async fn stream_end_without_answer_ends_now() {
    for of_server in ERAS {
        let server = of_era(of_server).await;
        let cut = || Does::Stream(vec![Piece::Run, Piece::Comment, Piece::Wait(100 * MS)]);
        server.script("make", [cut()]);
        server.script("look", [cut()]);
        let mut stand = stands("srv", &server);
        stand.keys = "timeout: { connect: 1s, first_byte: 20s, total: 30s }";
        let rig = Rig::ready(&[stand]).await;
        let began = Instant::now();
        let got = rig.call("make", r#"{"n":1}"#).await;
        assert!(began.elapsed() < 1000 * MS, "{:?}", began.elapsed());
        assert_eq!(ended(&got.outcome), ("outcome_unknown", "unknown"));
        assert_eq!((server.runs("make"), rig.reviews()), (1, 1));
        // the same write is not sent again, whatever the revision says of broken requests
        let again = rig.call("make", r#"{"n":1}"#).await;
        assert_eq!(ended(&again.outcome).0, "review_required");
        assert_eq!(server.runs("make"), 1);
        let read = rig.call("look", "{}").await;
        assert_eq!(ended(&read.outcome).0, "upstream_reset", "not a timeout: {of_server}");
    }
}

#[tokio::test]
async fn a_stream_that_named_its_events_is_gone_on_with_before_a_write_is_unknown() {
    let server = legacy().await;
    let first = vec![Piece::Run, Piece::Prime("e1", 20)];
    server.script("make", [Does::Stream(first)]);
    server.set_get(vec![Piece::Wait(2000 * MS)]);
    let rig = Rig::ready(&[stands("srv", &server)]).await;
    // the id of the call is its session's third: initialize, list, call are of two sessions
    server.set_get(vec![Piece::Raw(
        "id: e2\ndata: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"content\":[]}}\n\n",
    )]);
    let got = rig.call("make", r#"{"n":1}"#).await;
    assert_eq!(text(&got.outcome), r#"{"content":[]}"#);
    assert_eq!(server.runs("make"), 1);
    let get = server.seen().into_iter().filter(|seen| seen.header("last-event-id") == Some("e1"));
    assert_eq!(get.count(), 1);
}

#[tokio::test]
async fn keepalives_do_not_extend_the_total() {
    let again = |piece: &dyn Fn(u64) -> Piece| -> Vec<Piece> {
        (0..60).flat_map(|n| [piece(n), Piece::Wait(50 * MS)]).collect()
    };
    let comments = vec![Piece::Drip(50 * MS)];
    let progress = again(&|n| Piece::Progress(json!({"progress": n})));
    let bytes = again(&|_| Piece::Raw("d"));
    for of_server in ERAS {
        for pieces in [&comments, &progress, &bytes] {
            let server = of_era(of_server).await;
            server.script("look", [Does::Stream(pieces.clone())]);
            let mut stand = stands("srv", &server);
            stand.writes = Vec::new();
            stand.keys = "timeout: { connect: 1s, first_byte: 1s, total: 1s }\n    retry: { max_retries: 0 }";
            let rig = Rig::ready(&[stand]).await;
            let began = Instant::now();
            let ear = std::sync::Arc::new(super::rig::Ear::default());
            let side = Side { progress: true, ..super::rig::side("s", &ear) };
            let got = rig.call_as("default", Some(side), "look", "{}").await;
            assert_eq!(ended(&got.outcome).0, "upstream_timeout", "{of_server}");
            assert!(began.elapsed() < 2000 * MS, "{:?}", began.elapsed());
            if of_server == ERAS[0] {
                is_taken_back(&server).await;
            }
        }
    }
}

/// Nobody waits for it any more: the server hears so, by our id.
async fn is_taken_back(server: &ScriptedServer) {
    let call = server.of("tools/call").pop().expect("it arrived");
    crate::support::wait_for("the cancellation", 2000 * MS, async || {
        server
            .of("notifications/cancelled")
            .iter()
            .any(|told| told.body["params"]["requestId"] == call.body["id"])
    })
    .await;
}

#[tokio::test]
async fn what_a_server_answers_decides_what_is_known_of_a_write() {
    let rows: Vec<(Does, &str, &str, &str)> = vec![
        (Does::Error(-32602, "bad"), "tool_error", "no", "jsonrpc_-32602"),
        (Does::Error(-32601, "no"), "tool_error", "no", "jsonrpc_-32601"),
        (Does::Error(-32603, "oops"), "outcome_unknown", "unknown", ""),
        (Does::Error(-32000, "oops"), "outcome_unknown", "unknown", ""),
        (Does::Status(401, "{}"), "tool_error", "no", "status_401"),
        (Does::Status(500, "{}"), "outcome_unknown", "unknown", ""),
        (Does::Status(202, ""), "outcome_unknown", "unknown", ""),
        (Does::Body("text/html", b"<p>".to_vec()), "outcome_unknown", "unknown", ""),
        (Does::Body("application/json", b"{nope".to_vec()), "outcome_unknown", "unknown", ""),
        (Does::Body("application/json", b"[]".to_vec()), "outcome_unknown", "unknown", ""),
        (Does::Result(json!("text")), "outcome_unknown", "unknown", ""),
        (Does::Result(json!({"content": []})), "ok", "yes", ""),
        (
            Does::Result(json!({"isError": true, "content": [{"type": "text", "text": "no"}]})),
            "tool_error",
            "yes",
            "",
        ),
        (Does::RunThenClose, "outcome_unknown", "unknown", ""),
        (Does::Stream(vec![Piece::Raw("data: {nope\n\n")]), "outcome_unknown", "unknown", ""),
    ];
    let server = legacy().await;
    let mut stand = stands("srv", &server);
    stand.keys = "timeout: { connect: 1s, first_byte: 2s, total: 3s }\n    breaker: { consecutive_failures: 100 }";
    let rig = Rig::ready(&[stand]).await;
    for (n, (does, code, executed, proof)) in rows.into_iter().enumerate() {
        server.script("make", [does.clone()]);
        let got = rig.call("make", &format!(r#"{{"n":{n}}}"#)).await;
        assert_eq!(ended(&got.outcome), (code, executed), "{does:?}: {:?}", got.outcome);
        assert_eq!(evidence(&got.outcome), proof, "{does:?}");
    }
}

#[tokio::test]
async fn bb_m12_the_answer_is_found_by_its_id_and_what_comes_before_it_goes_where_it_belongs() {
    let server = legacy().await;
    let log = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}});
    let foreign = json!({"jsonrpc": "2.0", "id": 999_999, "result": {"content": [{"type": "text", "text": "not ours"}]}});
    let pieces = vec![
        Piece::Message(log),
        Piece::Progress(json!({"progress": 1})),
        Piece::Message(foreign),
        Piece::Answer(answer()),
    ];
    server.script("make", [Does::Stream(pieces)]);
    let rig = Rig::ready(&[stands("srv", &server)]).await;
    let ear = std::sync::Arc::new(super::rig::Ear::default());
    let asks = Side { progress: true, ..super::rig::side("s", &ear) };
    let got = rig.call_as("default", Some(asks), "make", "{}").await;
    assert_eq!(text(&got.outcome), answer().to_string());
    assert_eq!(ear.told("notifications/progress"), [json!({"progress": 1})]);
    assert!(ear.told("notifications/message").is_empty(), "the policy passes no logs");
    let again = rig.call("make", "{}").await;
    assert_eq!(ended(&again.outcome).0, "ok", "nothing of it was unknown");
}

#[tokio::test]
async fn bb_a14_a_server_that_is_full_or_down_never_makes_its_tools_unknown() {
    let server = legacy().await;
    let full = || Does::Status(503, "no place is free");
    server.script("look", [full()]);
    server.script("make", [full()]);
    let read = "timeout: { connect: 1s, first_byte: 2s, total: 3s }\n    retry: { max_retries: 0 }";
    let reads = super::rig::Stands { keys: read, writes: Vec::new(), ..stands("srv", &server) };
    let write = super::rig::Stands { name: "two", reads: Vec::new(), ..stands("two", &server) };
    let rig = Rig::ready(&[reads, write]).await;
    let got = rig.call("look", r#"{"n":1}"#).await;
    assert_eq!(ended(&got.outcome).0, "tool_unavailable");
    let got = rig.call("make", r#"{"n":1}"#).await;
    assert_eq!(ended(&got.outcome), ("outcome_unknown", "unknown"), "a 503 proves nothing");
    server.stop();
    crate::support::wait_for("the end of the server", 5000 * MS, async || {
        tokio::net::TcpStream::connect(("127.0.0.1", server.port())).await.is_err()
    })
    .await;
    for tool in ["look", "make"] {
        let got = rig.call(tool, r#"{"n":2}"#).await;
        assert_eq!(ended(&got.outcome), ("upstream_unreachable", "no"), "{tool}");
        assert!(rig.has(tool), "it is listed all the same");
    }
}
