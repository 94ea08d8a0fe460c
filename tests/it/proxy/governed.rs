//! Every layer holds for a request of a plain HTTP client as it does for any call.

use std::time::Duration;

use serde_json::json;

use super::kit::Shop;
use crate::support::{Reply, http, wait_for};

const TWO: &str = r#"
  any_read: { description: Read., proxy: { upstream: shop, methods: [GET], path: "/any/{rest*}" } }
  hidden: { description: Hidden., proxy: { upstream: shop, methods: [GET], path: "/hidden" } }
  lookup:
    description: Look up.
    effect: read
    http: { upstream: shop, method: GET, path: "/any/{q}" }
    schema: { type: object, required: [q], properties: { q: { type: string, maxLength: 20 } } }
"#;

/// A request that no route takes, and one that this agent may not use, cannot be told apart.
#[tokio::test]
async fn what_no_route_takes_is_refused_like_an_unknown_tool_and_so_is_what_is_not_allowed() {
    let shop =
        Shop::with(TWO, |text| text.replace("allow: [\"*\"", "deny: [hidden], allow: [\"*\""))
            .await;
    let mut shown = Vec::new();
    for (method, path) in [
        ("GET", "/hidden"),
        ("GET", "/nowhere"),
        ("DELETE", "/any/x"),
        ("TRACE", "/any/x"),
        ("GET", "/"),
    ] {
        let answer = shop.ask(method, path, &[("checkrein-call-id", "c")], b"").await;
        assert_eq!(
            (answer.status, answer.json()["error"].as_str()),
            (404, Some("unknown_tool")),
            "{path}"
        );
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        shown.push(answer.text().replace(path, "PATH").replace(method, "METHOD"));
    }
    assert_eq!(shown[0], shown[1]);
    let other = http::get(shop.gateway.data, "/proxy/other/x").await;
    assert_eq!(other.json()["error"], "unknown_tool");
    assert!(shop.tool.requests().is_empty());
    let explained = Shop::with(TWO, |text| {
        text.replace("allow: [\"*\"", "deny: [hidden], allow: [\"*\"")
            .replace("defaults: { ", "defaults: { on_unlisted_tool: explain, ")
    })
    .await;
    assert_eq!(explained.get("/hidden").await.json()["error"], "tool_not_allowed");
}

#[tokio::test]
async fn a_route_is_no_function_and_a_function_is_no_route() {
    let shop = Shop::with(TWO, |text| text).await;
    let listed = http::get(shop.gateway.data, "/v1/tools").await.json();
    let names: Vec<&str> = listed["tools"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|t| t["name"].as_str())
        .collect();
    assert_eq!(names, ["lookup"]);
    let called = http::request(shop.gateway.data, "POST", "/v1/tools/any_read", &[], b"{}").await;
    assert_eq!((called.status, called.json()["error"].as_str()), (404, Some("unknown_tool")));
    let unknown = http::request(shop.gateway.data, "POST", "/v1/tools/nothing", &[], b"{}").await;
    assert_eq!(unknown.json()["alternatives"], json!(["lookup"]));
}

/// One table: the same refusal says the same at both front ends.
#[tokio::test]
async fn a_refusal_has_the_code_status_and_time_of_the_tools_api() {
    let change = |text: String| {
        text.replace(
            "description: Read., ",
            "description: Read., rate_limit: { rate: 1/m, burst: 1 }, ",
        )
        .replace(
            "description: Look up.",
            "description: Look up.\n    rate_limit: { rate: 1/m, burst: 1 }",
        )
    };
    let shop = Shop::with(TWO, change).await;
    let call = async || {
        http::request(shop.gateway.data, "POST", "/v1/tools/lookup", &[], b"{\"q\":\"x\"}").await
    };
    assert_eq!((shop.get("/any/x").await.status, call().await.status), (200, 200));
    let (passed, called) = (shop.get("/any/x").await, call().await);
    assert_eq!(passed.status, 429);
    assert_eq!(passed.status, called.status);
    assert_eq!(passed.header("retry-after"), called.header("retry-after"));
    assert!(passed.header("ratelimit").is_some_and(|field| field.contains("tool:any_read")));
    for member in ["error", "executed", "retry", "limited_by", "hint"] {
        assert_eq!(passed.json()[member], called.json()[member], "{member}");
    }
    assert_eq!(
        (&passed.json()["type"], &passed.json()["status"]),
        (&json!("about:blank"), &json!(429))
    );
}

#[tokio::test]
async fn a_read_is_retried_where_it_can_be_sent_again_and_passes_the_last_answer_where_it_cannot() {
    let shop = Shop::start().await;
    shop.tool.script("/any", [Reply::Status(503), Reply::Close, Reply::Ok]);
    let answer = shop.get("/any/x").await;
    assert_eq!((answer.status, answer.header("checkrein-attempts")), (200, Some("3")));
    shop.tool.script("/any", [Reply::Status(503)]);
    let answer = shop.get("/any/y").await;
    assert_eq!((answer.status, answer.json()), (503, json!({"error": "status 503"})));
    assert_eq!(answer.header("checkrein-outcome"), Some("tool_unavailable"));
    assert_eq!(shop.tool.hits("/any/y"), 3);
    shop.tool.script("/search", [Reply::Status(503), Reply::Ok]);
    let small = shop.ask("POST", "/search", &[], b"{}").await;
    assert_eq!((small.status, shop.tool.hits("/search")), (200, 2));
    shop.tool.script("/search", [Reply::Status(503), Reply::Ok]);
    let long = vec![b'x'; 100_000];
    let streamed = shop.ask("POST", "/search", &[], &long).await;
    assert_eq!((streamed.status, shop.tool.hits("/search")), (503, 3), "it can be sent once");
    wait_for("the record", Duration::from_secs(10), async || {
        let why = |record: &serde_json::Value| record["retry_stopped_by"] == "not_replayable";
        shop.gateway.records().iter().any(why)
    })
    .await;
}

#[tokio::test]
async fn a_broken_tool_is_refused_at_once_and_used_again_when_it_is_back() {
    let shop = Shop::with(TWO, |text| text.replace("max_retries: 2", "max_retries: 0")).await;
    shop.tool.script("/any", [Reply::Status(500)]);
    for _ in 0..5 {
        assert_eq!(shop.get("/any/x").await.status, 500);
    }
    let open = shop.get("/any/x").await;
    assert_eq!((open.status, open.json()["error"].as_str()), (503, Some("circuit_open")));
    assert!(open.header("retry-after").is_some());
    assert_eq!(shop.tool.requests().len(), 5);
    shop.tool.script("/any", [Reply::Ok]);
    wait_for("the tool is used again", Duration::from_secs(10), async || {
        shop.get("/any/x").await.status == 200
    })
    .await;
}

#[tokio::test]
async fn budgets_and_the_repeat_fuse_hold_for_requests() {
    let shop = Shop::with(TWO, |text| {
        text.replace("same_results: 1000", "same_results: 2")
            .replace("wall_clock: 1m, ", "wall_clock: 1m, calls: 6, ")
    })
    .await;
    let in_run = |run: &'static str| [("checkrein-run", run)];
    for _ in 0..2 {
        assert_eq!(shop.ask("GET", "/any/x", &in_run("a"), b"").await.status, 200);
    }
    let blocked = shop.ask("GET", "/any/x", &in_run("a"), b"").await;
    assert_eq!((blocked.status, blocked.json()["error"].as_str()), (409, Some("repeat_blocked")));
    assert_eq!(shop.ask("GET", "/any/x?other", &in_run("a"), b"").await.status, 200);
    // Refused ones count too.
    assert_eq!(shop.ask("GET", "/nowhere", &in_run("a"), b"").await.status, 404);
    assert_eq!(shop.ask("GET", "/any/y", &in_run("a"), b"").await.status, 200);
    let out = shop.ask("GET", "/any/z", &in_run("a"), b"").await;
    assert_eq!((out.status, out.json()["dimension"].as_str()), (429, Some("calls")));
    assert_eq!(out.header("retry-after"), None);
    assert_eq!(shop.ask("GET", "/any/z", &in_run("b"), b"").await.status, 200);
}

#[tokio::test]
async fn the_client_may_ask_for_less_time_and_an_upgrade_is_refused() {
    let shop = Shop::start().await;
    shop.tool.script("/any", [Reply::Hang]);
    let began = tokio::time::Instant::now();
    let answer = shop.ask("GET", "/any/x", &[("checkrein-timeout-ms", "300")], b"").await;
    assert_eq!((answer.status, answer.json()["error"].as_str()), (504, Some("upstream_timeout")));
    assert!(began.elapsed() < Duration::from_millis(2_500), "{:?}", began.elapsed());
    let fields = [("connection", "upgrade"), ("upgrade", "websocket")];
    let answer = shop.ask("GET", "/any/x", &fields, b"").await;
    assert_eq!((answer.status, answer.json()["error"].as_str()), (400, Some("invalid_request")));
    assert!(answer.json()["message"].as_str().is_some_and(|message| message.contains("websocket")));
    assert_eq!(shop.tool.requests().len(), 1);
}

/// What was matched is what is sent: no spelling leads to a tool by another tool's route.
#[tokio::test]
async fn a_path_that_could_be_read_in_two_ways_is_not_sent() {
    let routes = r#"
  page: { description: Page., proxy: { upstream: shop, methods: [GET], path: "/{name}" } }
  admin: { description: Admin., proxy: { upstream: shop, methods: [GET], path: "/admin" } }
"#;
    let shop =
        Shop::with(routes, |text| text.replace("allow: [\"*\"", "deny: [admin], allow: [\"*\""))
            .await;
    for path in [
        "/%2fadmin",
        "/admin;x",
        "/..%2fadmin",
        "/x/../admin",
        "/%2e%2e/admin",
        "//admin",
        "/%",
        "/a%00",
    ] {
        let answer = shop.get(path).await;
        assert_eq!(
            (answer.status, answer.json()["error"].as_str()),
            (400, Some("invalid_request")),
            "{path}"
        );
    }
    assert_eq!(shop.get("/%61dmin").await.status, 404, "the same route, and not allowed");
    assert!(shop.tool.requests().is_empty());
    assert_eq!(shop.get("/a%2Fb").await.status, 200);
    assert_eq!(shop.tool.last().target, "/a%2Fb");
}

/// A web page reaches loopback too: by an origin of its own, or by a name that was made to point here.
#[tokio::test]
async fn bb_m14_a_web_page_drives_no_route_and_no_session() {
    let shop = Shop::with(TWO, |text| text).await;
    let port = shop.gateway.data.port();
    let own = [format!("localhost:{port}"), format!("[::1]:{port}"), format!("127.0.0.1:{port}")];
    let call = br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    for path in ["/proxy/shop/any/x", "/mcp"] {
        let (method, body) = if path == "/mcp" { ("POST", &call[..]) } else { ("GET", &b""[..]) };
        let ask = async |fields: &[(&str, &str)]| {
            http::request(shop.gateway.data, method, path, fields, body).await.status
        };
        for foreign in [
            &[("origin", "https://evil.example"), ("host", own[0].as_str())][..],
            &[("host", "evil.example")],
            &[("host", &format!("evil.example:{port}"))],
            &[("origin", "null"), ("host", own[0].as_str())],
        ] {
            assert_eq!(ask(foreign).await, 403, "{path} {foreign:?}");
        }
        assert_eq!(shop.tool.requests().len(), 0, "{path}");
    }
    for host in &own {
        let fields = [("host", host.as_str())];
        let answer =
            http::request(shop.gateway.data, "GET", "/proxy/shop/any/x", &fields, b"").await;
        assert_eq!(answer.status, 200, "{host}: {}", answer.text());
    }
}

/// The gateway goes nowhere that a tool sends it: not to a place within the machine, not with the credential.
#[tokio::test]
async fn bb_n06_a_redirect_is_followed_by_nobody_with_the_credential() {
    let canary = crate::support::ScriptedTool::start().await;
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "credential-of-the-tool").expect("written");
    let auth =
        format!("addresses: [loopback], auth: {{ bearer: {{ file: {} }} }}", file.path().display());
    let routes = format!(
        "{TWO}  any_write: {{ description: W., proxy: {{ upstream: shop, methods: [POST], path: \"/any/{{r*}}\" }} }}\n"
    );
    let shop = Shop::with(&routes, |text| text.replace("addresses: [loopback]", &auth)).await;
    for place in ["http://169.254.169.254/latest".to_owned(), format!("{}/x", canary.url())] {
        for status in [302, 307, 308] {
            let headers = vec![("location", place.clone())];
            shop.tool
                .script("/any", [Reply::Full { apply: false, status, headers, body: Vec::new() }]);
            let before = shop.tool.requests().len();
            let called =
                http::request(shop.gateway.data, "POST", "/v1/tools/lookup", &[], b"{\"q\":\"x\"}")
                    .await;
            assert_eq!(called.json()["error"], "upstream_redirect");
            // The client is told, and goes there by itself or not: without what the gateway holds.
            let read = shop.get("/any/x").await;
            assert_eq!((read.status, read.header("location")), (status, Some(place.as_str())));
            let write = shop.ask("POST", &format!("/any/{status}"), &[], place.as_bytes()).await;
            match status {
                302 => assert_eq!(write.json()["error"], "outcome_unknown"),
                _ => assert_eq!(
                    (write.status, write.header("checkrein-outcome")),
                    (status, Some("upstream_redirect"))
                ),
            }
            assert_eq!(shop.tool.requests().len(), before + 3, "each was sent once");
        }
    }
    assert!(canary.requests().is_empty());
}

#[tokio::test]
async fn an_approval_of_a_route_is_for_this_method_path_query_and_body() {
    let pay = r#"
  pay: { description: Pay., effect: write, proxy: { upstream: shop, methods: [POST, PUT], path: "/pay/{to}" }, approval: { when: always } }
"#;
    let shop = Shop::with(pay, |text| text.replace("allow: [\"*\"", "allow: [pay, \"*\"")).await;
    let ask = async |method: &str, path: &str, kind: &str, body: &str| {
        let answer = shop.ask(method, path, &[("content-type", kind)], body.as_bytes()).await;
        let told = answer.json();
        assert_eq!(told["error"], "approval_required", "{method} {path} {body}: {told}");
        told["approval"].as_str().expect("a name").to_owned()
    };
    let (json, plain) = ("application/json", "text/plain");
    let first = ask("POST", "/pay/a", json, r#"{"n":1,"m":2}"#).await;
    assert_eq!(ask("POST", "/pay/a", json, r#"{"m":2,"n":1}"#).await, first, "the same request");
    let mut seen = vec![first];
    for (method, path, kind, body) in [
        ("PUT", "/pay/a", json, r#"{"n":1,"m":2}"#),
        ("POST", "/pay/b", json, r#"{"n":1,"m":2}"#),
        ("POST", "/pay/a?x=1", json, r#"{"n":1,"m":2}"#),
        ("POST", "/pay/a", json, r#"{"n":2,"m":2}"#),
        ("POST", "/pay/a", plain, "one"),
        ("POST", "/pay/a", plain, "two"),
    ] {
        let other = ask(method, path, kind, body).await;
        assert!(!seen.contains(&other), "{method} {path} {body}");
        seen.push(other);
    }
    assert!(shop.tool.requests().is_empty());
}
