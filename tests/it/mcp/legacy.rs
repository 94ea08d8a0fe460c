//! Revisions with sessions over HTTP.

use serde_json::json;

use super::peer::{Session, initialize, raw};
use crate::front_ends::kit::House;

#[tokio::test(start_paused = true)]
async fn a_session_lists_and_calls_the_tools_of_its_agent() {
    let house = House::new();
    let session = Session::open(&house).await;
    let listed = session.ask(&house, "1", "tools/list", &json!({})).await;
    assert_eq!((listed.status, listed.header("content-type")), (200, "application/json"));
    let names: Vec<&str> = listed.result()["tools"]
        .as_array()
        .expect("tools")
        .iter()
        .map(|tool| tool["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(names, ["create_order", "list_regions", "lookup_order", "search", "send_notice"]);
    assert_eq!(listed.result()["tools"][0]["annotations"], json!({"readOnlyHint": false}));
    let called = session.call(&house, "2", "lookup_order", &json!({"order_id": "A17"})).await;
    let result = called.result();
    assert_eq!(result["isError"], false);
    assert_eq!(result["structuredContent"]["got"]["order_id"], "A17");
    assert_eq!(result["structuredContent"]["n"].to_string(), "9007199254740993");
    assert!(result.get("resultType").is_none(), "{result}");
    assert_eq!(result["_meta"]["io.checkrein/outcome"]["ok"], true);
    assert!(!called.header("checkrein-run").is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_initialize_is_answered_with_the_revision_asked_for_or_the_newest_of_its_era() {
    let house = House::new();
    for (asked, answered) in [
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2025-03-26", "2025-11-25"),
        ("2024-11-05", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
    ] {
        let got = raw(&house, "POST", &[], &initialize(asked, &json!({}))).await;
        assert_eq!(got.result()["protocolVersion"], answered, "{asked}");
        assert!(got.header("mcp-session-id").len() >= 22);
    }
}
