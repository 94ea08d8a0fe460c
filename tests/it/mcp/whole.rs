//! A whole gateway in front of a server that speaks MCP: called by plain HTTP, and left by a reload.

use std::time::Duration;

use serde_json::json;

use super::peer::{as_pairs, modern, parse};
use super::rig::{policy, stands};
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};
use crate::support::process::Process;
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

#[tokio::test]
async fn an_agents_trace_goes_on_by_a_span_of_ours_and_a_malformed_one_is_absent() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    let server = ScriptedServer::legacy("2025-11-25", vec![tool("look", json!({"n": {}}))]).await;
    let mut stand = stands("srv", &server);
    stand.writes = Vec::new();
    let gateway = Gateway::start(&policy(&[stand]).replace("DIR/b", "TOKEN_B")).await;
    let listed = async || http::get(gateway.data, "/v1/tools").await.text().contains("look");
    wait_for("the tool", 5 * S, listed).await;
    let parent = |span: &str| format!("00-{TRACE}-{span}-01");
    let (head, own) = (parent("00f067aa0ba902b7"), parent("00f067aa0ba902b8"));
    let host = gateway.data.to_string();
    for (n, (field, meta)) in [
        (&*head, json!({})),
        (&*head, json!({"traceparent": own, "tracestate": "a=b"})),
        ("x", json!({})),
    ]
    .into_iter()
    .enumerate()
    {
        let params = json!({"name": "look", "arguments": {"n": n}, "_meta": meta});
        let (mut fields, body) = modern(&n.to_string(), "tools/call", &params);
        for (name, value) in [
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
            ("host", &host),
            ("traceparent", field),
        ] {
            fields.push((name.to_owned(), value.to_owned()));
        }
        let got =
            http::request(gateway.data, "POST", "/mcp", &as_pairs(&fields), body.as_bytes()).await;
        assert_eq!(got.status, 200, "{}", got.text());
    }
    let calls = server.of("tools/call");
    let meta = |n: usize| calls[n].body["params"]["_meta"]["traceparent"].as_str();
    for n in [0, 1] {
        let sent = meta(n).expect("a trace goes on");
        assert!(sent.starts_with(&format!("00-{TRACE}-")) && sent.ends_with("-01"), "{sent}");
        assert!(sent != head && sent != own, "a span of our own: {sent}");
        assert_eq!(calls[n].header("traceparent"), Some(sent));
    }
    assert_eq!(calls[1].header("tracestate"), Some("a=b"));
    assert_eq!((meta(2), calls[2].header("traceparent")), (None, None));
}

#[tokio::test]
async fn a_tool_that_is_not_exposed_or_is_tightened_is_told_once_in_the_log() {
    let mut hinted = tool("drop_all", json!({}));
    hinted["annotations"] = json!({"destructiveHint": true});
    let offered = vec![tool("look", json!({})), tool("a.b", json!({})), hinted];
    let server = ScriptedServer::legacy("2025-11-25", offered).await;
    let mut stand = stands("srv", &server);
    stand.writes = Vec::new();
    let text = policy(&[stand]).replace("DIR/b", "TOKEN_B");
    let text = text.replace("      look:", "      \"*\":");
    let process = Process::start(&text, &[]).await;
    let listed = async || http::get(process.data, "/v1/tools").await.text().contains("look");
    wait_for("the tool", 5 * S, listed).await;
    process.swap(&text.replace("total: 3s", "total: 4s"));
    process.signal("HUP");
    let reloads = [("result", "applied")];
    let reloaded =
        async || process.metrics().await.value("checkrein_policy_reloads_total", &reloads) > 0.0;
    wait_for("the reload", 5 * S, reloaded).await;
    for words in ["`a.b` cannot be a name", "only the pattern `*` calls it a read"] {
        assert_eq!(process.log().matches(words).count(), 1, "{}", process.log());
    }
}

#[tokio::test]
async fn bb_many_long_answers_at_once_wait_for_room_and_all_come() {
    // Of each, more than half of what an answer may have; at once, four times what there is room for.
    const CALLS: usize = 48;
    let long = "x".repeat(3 << 20);
    let long = format!(
        "data: {{\"jsonrpc\":\"2.0\",\"result\":{{\"content\":[{{\"type\":\"text\",\"text\":\"{long}\"}}]}},\n"
    );
    let long: &'static str = long.leak();
    let server = ScriptedServer::legacy("2025-11-25", vec![tool("look", json!({"n": {}}))]).await;
    let mut stand = stands("srv", &server);
    stand.writes = Vec::new();
    stand.keys = "timeout: { connect: 5s, first_byte: 60s, total: 60s }\n    bulkhead: 64";
    stand.own = "bulkhead: 64";
    let policy = policy(&[stand]).replace("DIR/b", "TOKEN_B");
    let gateway = Process::start(&policy, &[]).await;
    let listed = async || http::get(gateway.data, "/v1/tools").await.text().contains("look");
    wait_for("the tool", 5 * S, listed).await;
    let before = gateway.resident();
    // All but the last bytes of each, until the test says so.
    let stream = Does::Stream(vec![Piece::Raw(long), Piece::Held, Piece::Id]);
    server.script("look", (0..CALLS).map(|_| stream.clone()));
    let calls = (0..CALLS).map(|n| {
        let (to, body) = (gateway.data, format!(r#"{{"n":{n}}}"#));
        tokio::spawn(async move {
            let json = [("content-type", "application/json")];
            http::request(to, "POST", "/v1/tools/look", &json, body.as_bytes()).await
        })
    });
    let calls: Vec<_> = calls.collect();
    wait_for("all calls", 30 * S, async || server.of("tools/call").len() == CALLS).await;
    server.go();
    for call in calls {
        let got = call.await.expect("an answer");
        assert_eq!(got.status, 200, "{}", &got.text()[..got.text().len().min(500)]);
        assert!(got.text().contains("xxxx"));
    }
    let grown = gateway.peak().saturating_sub(before);
    assert!(grown < 120 << 20, "{} MiB more than before", grown >> 20);
}
