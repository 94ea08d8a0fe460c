//! A whole gateway in front of a server that speaks MCP: called by plain HTTP, and left by a reload.

use std::time::Duration;

use serde_json::json;

use super::peer::{as_pairs, modern, parse};
use super::rig::{policy, stands};
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};
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

#[tokio::test]
async fn an_agent_that_lists_as_the_gateway_starts_does_not_find_it_empty() {
    let slow = ScriptedServer::legacy("2025-11-25", vec![tool("look", json!({}))]).await;
    let listed = json!({"tools": [tool("look", json!({}))]});
    slow.script("tools/list", [Does::Stream(vec![Piece::Held, Piece::Answer(listed)])]);
    let dead = ScriptedServer::legacy("2025-11-25", Vec::new()).await;
    dead.stop();
    let mut stand = stands("slow", &slow);
    stand.writes = Vec::new();
    let mut gone = stands("gone", &dead);
    (gone.reads, gone.writes) = (vec!["see"], Vec::new());
    let gateway = Gateway::start(&policy(&[stand, gone]).replace("DIR/b", "TOKEN_B")).await;
    let (mut fields, body) = modern("1", "tools/list", &json!({}));
    fields.push(("host".into(), format!("localhost:{}", gateway.data.port())));
    fields.push(("content-type".into(), "application/json".into()));
    fields.push(("accept".into(), "application/json, text/event-stream".into()));
    let fields = as_pairs(&fields);
    let going = async {
        wait_for("the crawl", 5 * S, async || !slow.of("tools/list").is_empty()).await;
        slow.go();
    };
    let asked = http::request(gateway.data, "POST", "/mcp", &fields, body.as_bytes());
    let (got, ()) = tokio::join!(asked, going);
    let answer = parse(got.text().as_bytes());
    let tools = answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(names, ["look"], "the dead server is not waited for: {answer}");
}
