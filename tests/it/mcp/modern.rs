//! Revision 2026-07-28 over HTTP: every request stands for itself, and its headers must say what its body says.

use serde_json::json;

use super::peer::{as_pairs, ask_modern, modern, raw};
use crate::front_ends::kit::House;

#[tokio::test(start_paused = true)]
async fn discover_lists_and_calls_need_no_handshake() {
    let house = House::new();
    let got = ask_modern(&house, None, "\"d\"", "server/discover", &json!({})).await;
    let result = got.result();
    assert_eq!(result["supportedVersions"], json!(["2026-07-28", "2025-11-25", "2025-06-18"]));
    assert_eq!(
        (&result["resultType"], &result["cacheScope"]),
        (&json!("complete"), &json!("private"))
    );
    assert_eq!((&result["ttlMs"], &got.answer()["id"]), (&json!(60_000), &json!("d")));
    assert_eq!(result["capabilities"]["tools"]["listChanged"], true);
    assert_eq!(result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "checkrein");
    let got = ask_modern(&house, Some("a"), "1", "tools/list", &json!({})).await;
    let result = got.result();
    assert_eq!((&result["ttlMs"], &result["cacheScope"]), (&json!(0), &json!("private")));
    assert_eq!(result["tools"].as_array().map(Vec::len), Some(2));
    assert_eq!(got.header("mcp-session-id"), "");
    let call = json!({"name": "lookup_order", "arguments": {"order_id": "A17"}});
    let got = ask_modern(&house, None, "2", "tools/call", &call).await;
    assert_eq!(got.result()["structuredContent"]["got"]["order_id"], "A17");
    assert_eq!(got.result()["resultType"], "complete");
}

#[tokio::test(start_paused = true)]
async fn an_agent_without_tools_is_told_so() {
    let house = House::new();
    let got = ask_modern(&house, Some("idle"), "1", "tools/list", &json!({})).await;
    assert_eq!(got.result()["tools"], json!([]));
    let got = ask_modern(&house, Some("idle"), "1", "server/discover", &json!({})).await;
    let told = got.result()["instructions"].as_str().expect("a line");
    assert!(told.contains("may call no tool"), "{told}");
}

#[tokio::test(start_paused = true)]
async fn header_must_equal_body() {
    let house = House::new();
    let call = json!({"name": "lookup_order", "arguments": {"order_id": "A17"}});
    let (sound, body) = modern("1", "tools/call", &call);
    for (name, values) in [
        ("mcp-protocol-version", vec!["", "2025-11-25", "2027-01-01", "2026-07-28 x"]),
        ("mcp-method", vec!["", "tools/list", "TOOLS/CALL"]),
        ("mcp-name", vec!["", "list_regions", "=?base64?bGlzdF9yZWdpb25z?=", "=?base64?!?="]),
    ] {
        for value in values {
            let mut fields = sound.clone();
            fields.retain(|(known, _)| known != name);
            if !value.is_empty() {
                fields.push((name.to_owned(), value.to_owned()));
            }
            let got = raw(&house, "POST", &as_pairs(&fields), &body).await;
            assert_eq!((got.status, got.code()), (400, -32020), "{name}: {value} {got:?}");
            assert_eq!(got.answer()["id"], 1);
        }
        let mut doubled = sound.clone();
        let own = sound.iter().find(|(known, _)| known == name).expect("sound").clone();
        doubled.push(own);
        assert_eq!(raw(&house, "POST", &as_pairs(&doubled), &body).await.status, 400, "{name}");
    }
    assert!(house.hits.all().is_empty());
    let mut encoded = sound.clone();
    encoded.retain(|(name, _)| name != "mcp-name");
    encoded.push(("mcp-name".into(), "=?base64?bG9va3VwX29yZGVy?=".into()));
    assert_eq!(raw(&house, "POST", &as_pairs(&encoded), &body).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_request_says_who_speaks_or_is_refused() {
    let house = House::new();
    let version = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/list")];
    let meta = |meta: serde_json::Value| {
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}})
            .to_string()
    };
    const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
    const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
    for body in [
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#.to_owned(),
        meta(json!({})),
        meta(json!({CAPABILITIES: {}})),
        meta(json!({VERSION: "2026-07-28"})),
        meta(json!({VERSION: "2026-07-28", CAPABILITIES: []})),
    ] {
        let got = raw(&house, "POST", &version, &body).await;
        assert_eq!((got.status, got.code()), (400, -32602), "{body}");
    }
    let body = meta(json!({VERSION: "2027-01-01", CAPABILITIES: {}}));
    let later = [("mcp-protocol-version", "2027-01-01"), ("mcp-method", "tools/list")];
    let got = raw(&house, "POST", &later, &body).await;
    assert_eq!((got.status, got.code()), (400, -32022));
    let data = &got.answer()["error"]["data"];
    assert_eq!(data["requested"], "2027-01-01");
    assert_eq!(data["supported"], json!(["2026-07-28", "2025-11-25", "2025-06-18"]));
    for gone in ["initialize", "ping", "logging/setLevel", "resources/subscribe"] {
        let got = ask_modern(&house, None, "1", gone, &json!({})).await;
        assert_eq!((got.status, got.code()), (404, -32601), "{gone}");
    }
    let answer = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    assert_eq!(raw(&house, "POST", &version, answer).await.status, 400);
}

#[tokio::test(start_paused = true)]
async fn lists_are_private_and_steady() {
    let house = House::new();
    let mut lists = Vec::new();
    for _ in 0..2 {
        for agent in ["a", "b"] {
            let got = ask_modern(&house, Some(agent), "1", "tools/list", &json!({})).await;
            lists.push(got.result()["tools"].to_string());
        }
        // Its only token is spent, and the tool stays listed.
        ask_modern(&house, None, "1", "tools/call", &json!({"name": "search"})).await;
    }
    assert_eq!(lists[0], lists[2]);
    assert_eq!(lists[1], lists[3]);
    assert_ne!(lists[0], lists[1]);
    let forged = json!({"cursor": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"});
    let got = ask_modern(&house, Some("b"), "1", "tools/list", &forged).await;
    assert_eq!((got.status, got.code()), (200, -32602));
}

#[tokio::test(start_paused = true)]
async fn a_key_of_the_agents_code_makes_a_write_once() {
    let house = House::new();
    let params = json!({"name": "send_notice", "arguments": {"text": "hello"},
                        "_meta": {"io.checkrein/idempotency-key": "k1"}});
    let first = ask_modern(&house, None, "1", "tools/call", &params).await;
    assert_eq!(first.result()["isError"], false, "{first:?}");
    let again = ask_modern(&house, None, "1", "tools/call", &params).await;
    assert_eq!(again.result()["_meta"]["io.checkrein/outcome"]["replayed"], true, "{again:?}");
    assert_eq!(house.hits.all().len(), 1);
    // The same id of JSON-RPC says nothing: without a key two notices alike are two notices.
    let plain = json!({"name": "send_notice", "arguments": {"text": "plain"}});
    for _ in 0..2 {
        ask_modern(&house, None, "1", "tools/call", &plain).await;
    }
    assert_eq!(house.hits.all().len(), 3);
}
