//! A whole gateway in front of a server that speaks MCP: called by plain HTTP, and left by a reload.

use std::time::Duration;

use serde_json::json;

use super::rig::{policy, stands};
use crate::support::mcp::{ScriptedServer, tool};
use crate::support::{Gateway, http, wait_for};

const S: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_gateway_serves_the_tools_of_a_server_to_every_front_end_and_leaves_it_in_order() {
    let server = ScriptedServer::legacy(
        "2025-11-25",
        vec![tool("look", json!({"n": {}})), tool("make", json!({}))],
    )
    .await;
    let text = policy(&[stands("srv", &server)]).replace("DIR/b", "TOKEN_B");
    let gateway = Gateway::start(&text).await;
    wait_for("the tools", 5 * S, async || {
        let listed = http::get(gateway.data, "/v1/tools").await;
        listed.text().contains("look") && listed.text().contains("make")
    })
    .await;
    let got = http::request(
        gateway.data,
        "POST",
        "/v1/tools/look",
        &[("content-type", "application/json")],
        br#"{"n":1.50}"#,
    )
    .await;
    assert_eq!(got.status, 200, "{}", got.text());
    assert!(got.text().contains("1.50"), "{}", got.text());
    assert_eq!(server.runs("look"), 1);
    gateway.rewrite(&policy(&[]).replace("DIR/b", "TOKEN_B")).await;
    wait_for("the farewells", 5 * S, async || {
        let farewells = server.seen().iter().filter(|seen| seen.http == "DELETE").count();
        farewells == server.of("initialize").len()
    })
    .await;
}
