//! Servers of both eras: which one it is, what each is told, and that the agent's own revision never shows.

use std::sync::Arc;

use checkrein::policy::snapshot::OnDrift;
use serde_json::{Value, json};

use super::rig::{Ear, Rig, ended, evidence, side, stands, text};
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};

#[tokio::test]
async fn probe_falls_back_only_on_proof() {
    let null_id =
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"not initialized"}}"#;
    let legacy = [
        Does::Error(-32601, "no such method"),
        Does::Error(-32602, "bad params"),
        Does::Status(400, null_id),
        Does::Status(400, ""),
        Does::Status(404, "<html>"),
        Does::Result(json!({"ok": true})),
        Does::Hang,
    ];
    for does in legacy {
        let server = ScriptedServer::legacy("2025-06-18", vec![tool("look", json!({}))]).await;
        server.script("server/discover", [does.clone()]);
        let mut stand = stands("srv", &server);
        stand.writes = Vec::new();
        let rig = Rig::ready(&[stand]).await;
        assert_eq!(server.of("tools/call").len(), 0, "no tool is run by probing");
        assert_eq!(ended(&rig.call("look", "{}").await.outcome).0, "ok", "{does:?}");
        let call = server.of("tools/call").remove(0);
        assert_eq!(call.header("mcp-protocol-version"), Some("2025-06-18"), "{does:?}");
        assert!(call.header("mcp-method").is_none());
        // asked once a server, not once a session
        assert_eq!(server.of("server/discover").len(), 1, "{does:?}");
    }
    let server = ScriptedServer::modern(vec![tool("look", json!({}))]).await;
    let refusal = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"no","data":{"supported":["2026-07-28"],"requested":"x"}}}"#;
    server.script("server/discover", [Does::Status(400, refusal)]);
    let mut stand = stands("srv", &server);
    stand.writes = Vec::new();
    let rig = Rig::ready(&[stand]).await;
    assert_eq!(ended(&rig.call("look", "{}").await.outcome).0, "ok");
    assert!(server.of("initialize").is_empty(), "a modern error is proof: never fall back");
}

#[tokio::test]
async fn name_is_rewritten_on_every_hop() {
    let mut look = tool(
        "look",
        json!({"region": {"type": "string", "x-mcp-header": "Region"}, "n": {"type": "integer", "x-mcp-header": "Count"}}),
    );
    look["inputSchema"]["required"] = json!(["region"]);
    let server = ScriptedServer::modern(vec![look, tool("make", json!({}))]).await;
    let rig = Rig::ready(&[stands("srv", &server)]).await;
    let ear = Arc::new(Ear::default());
    let mut asks = side("the-agents-own", &ear);
    asks.param_headers = Arc::from([
        ("Extra".to_owned(), "e".to_owned()),
        ("Region".to_owned(), "forged".to_owned()),
    ]);
    let got = rig.call_as("default", Some(asks), "look", r#"{"region":"zürich","n":7}"#).await;
    assert_eq!(ended(&got.outcome).0, "ok", "{:?}", got.outcome);
    let call = server.of("tools/call").remove(0);
    assert_eq!(call.header("mcp-name"), Some("look"));
    assert_eq!(call.header("mcp-param-region"), Some("=?base64?esO8cmljaA==?="));
    assert_eq!(call.header("mcp-param-count"), Some("7"));
    assert_eq!(call.header("mcp-param-extra"), Some("e"));
    assert_eq!(call.header("mcp-session-id"), None, "the agent's session is no server's");
    assert_eq!(
        call.body["params"]["_meta"]["io.modelcontextprotocol/clientInfo"]["name"],
        "checkrein"
    );
}

#[tokio::test]
async fn a_read_that_repeats_the_wrong_fields_is_sent_once_more_by_a_fresh_list() {
    const MISMATCH: &str =
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32020,"message":"header mismatch"}}"#;
    let region = |header: bool| {
        let mut region = json!({"type": "string"});
        if header {
            region["x-mcp-header"] = json!("Region");
        }
        vec![
            tool("look", json!({"region": region.clone()})),
            tool("make", json!({"region": region})),
        ]
    };
    let refuses = || Does::Status(400, MISMATCH);
    let done = || Does::Result(json!({"resultType": "complete", "content": []}));
    for (on_drift, sent) in [(OnDrift::Warn, 2), (OnDrift::Quarantine, 1)] {
        let server = ScriptedServer::modern(region(false)).await;
        let mut stand = stands("srv", &server);
        stand.on_drift = on_drift;
        let rig = Rig::ready(&[stand]).await;
        server.set_pages(vec![region(true)], &[]);
        server.script("make", [refuses(), done()]);
        let got = rig.call("make", r#"{"region":"eu"}"#).await;
        assert_eq!(ended(&got.outcome), ("tool_error", "no"), "a write has no second sending");
        assert_eq!(evidence(&got.outcome), "jsonrpc_-32020");
        server.script("look", [refuses(), done()]);
        let got = rig.call("look", r#"{"region":"eu"}"#).await;
        let reads = || {
            let mut calls = server.of("tools/call");
            calls.retain(|call| call.tool() == "look");
            calls
        };
        assert_eq!(reads().len(), sent, "{on_drift:?}");
        assert_eq!(server.of("tools/call").len(), sent + 1);
        let last = reads().pop().expect("sent");
        match on_drift {
            OnDrift::Warn => {
                assert_eq!(ended(&got.outcome).0, "ok", "{:?}", got.outcome);
                assert_eq!(last.header("mcp-param-region"), Some("eu"));
                // and that is all: a server that says so again is not asked a third time
                server.script("look", [refuses()]);
                let got = rig.call("look", r#"{"region":"us"}"#).await;
                assert_eq!(ended(&got.outcome).0, "tool_error");
                assert_eq!(reads().len(), 4);
            }
            OnDrift::Quarantine | OnDrift::Block => {
                assert_eq!(ended(&got.outcome).0, "tool_error", "changed, and not approved");
            }
        }
    }
}

#[tokio::test]
async fn no_server_sees_its_agents_revision_or_session() {
    for (modern_server, revision) in
        [(false, "2025-06-18"), (false, "2025-11-25"), (true, "2026-07-28")]
    {
        for modern_agent in [false, true] {
            let tools = vec![tool("look", json!({})), tool("make", json!({}))];
            let server = match modern_server {
                true => ScriptedServer::modern(tools).await,
                false => ScriptedServer::legacy(revision, tools).await,
            };
            let rig = Rig::ready(&[stands("srv", &server)]).await;
            let ear = Arc::new(Ear::default());
            let asks = || {
                let mut asks = side("outer", &ear);
                asks.modern = modern_agent;
                asks.progress = true;
                if modern_agent {
                    asks.session = None;
                }
                asks
            };
            let answer = |more: Value| {
                let mut answer = json!({"content": [{"type": "text", "text": "x"}]});
                for (name, value) in more.as_object().expect("members") {
                    answer[name] = value.clone();
                }
                if modern_server {
                    answer["resultType"] = json!("complete");
                }
                answer
            };
            let pieces = vec![
                Piece::Progress(json!({"progress": 1})),
                Piece::Answer(answer(json!({"structuredContent": [1]}))),
            ];
            server.script("look", [Does::Stream(pieces)]);
            let got = rig.call_as("default", Some(asks()), "look", "{}").await;
            assert_eq!(super::rig::parsed(&text(&got.outcome))["structuredContent"], json!([1]));
            assert_eq!(ear.told("notifications/progress").len(), 1, "{revision}");
            server.script("make", [Does::Result(answer(json!({"isError": true})))]);
            let got = rig.call_as("default", Some(asks()), "make", "{}").await;
            assert_eq!(ended(&got.outcome), ("tool_error", "yes"), "{revision}");
            for call in server.of("tools/call") {
                assert_eq!(call.header("mcp-protocol-version"), Some(revision));
                assert_ne!(call.session(), "outer");
                assert_eq!(call.session().is_empty(), modern_server);
            }
        }
    }
}

#[tokio::test]
async fn a_result_type_that_was_not_agreed_on_ends_the_call() {
    let server =
        ScriptedServer::modern(vec![tool("look", json!({})), tool("make", json!({}))]).await;
    let rig = Rig::ready(&[stands("srv", &server)]).await;
    for kind in ["task", "surprise"] {
        server.script("look", [Does::Result(json!({"resultType": kind, "content": []}))]);
        let got = rig.call("look", &format!(r#"{{"k":"{kind}"}}"#)).await;
        assert_eq!(ended(&got.outcome).0, "invalid_arguments");
    }
    server.script("look", [Does::Result(json!({"resultType": "task", "content": []}))]);
    assert_eq!(ended(&rig.call("look", "{}").await.outcome).0, "upstream_protocol_error");
}
