//! Reload, metrics, health, limits of the listener: what operators depend on.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::order;
use crate::support::{Fixture, Form, Gateway, Reply, ScriptedTool, http, wait_for};

const SOON: Duration = Duration::from_secs(10);

async fn reloads(gateway: &Gateway, result: &str) -> f64 {
    gateway.metrics().await.value("checkrein_policy_reloads_total", &[("result", result)])
}

#[tokio::test]
async fn bb_k02_a_broken_policy_never_replaces_a_good_one() {
    let tool = ScriptedTool::start().await;
    let fixture = Fixture::new();
    let gateway = fixture.start(&tool).await;
    let good = fixture.text(&tool.url());
    let agent = gateway.agent(Form::OpenaiChat, "r");
    let half = &good[..good.len() / 2];
    let tab = good.replace("  shop:", "\tshop:");
    let version = good.replace("checkrein/v1", "checkrein/v9");
    let mut n = 0;
    for bad in ["", half, tab.as_str(), version.as_str()] {
        let before = reloads(&gateway, "rejected").await;
        gateway.rewrite(bad).await;
        wait_for("the refusal", SOON, async || reloads(&gateway, "rejected").await > before).await;
        n += 1;
        assert_eq!(
            agent.call("lookup_order", &format!("c{n}"), &order(&n.to_string())).await.status,
            200
        );
        assert_eq!(
            agent.call("delete_order", &format!("d{n}"), &order(&format!("d{n}"))).await.status,
            404,
            "deny stays deny"
        );
        assert_eq!(
            gateway.metrics().await.value("checkrein_policy_last_reload_successful", &[]),
            0.0
        );
        let ready = http::get(gateway.health, "/ready?verbose").await;
        assert_eq!(ready.status, 200, "a bad file does not take the pod out");
        assert!(ready.text().contains("CR"), "says why: {}", ready.text());
    }
    let before = reloads(&gateway, "applied").await;
    gateway.rewrite(&good.replace("name: cases", "name: mended")).await;
    wait_for("the mended file", SOON, async || reloads(&gateway, "applied").await > before).await;
    assert_eq!(gateway.metrics().await.value("checkrein_policy_last_reload_successful", &[]), 1.0);
    // The file gone: the same.
    std::fs::remove_file(&gateway.policy).expect("removed");
    wait_for("the loss", SOON, async || reloads(&gateway, "unreadable").await > 0.0).await;
    assert_eq!(agent.call("lookup_order", "last", &order("last")).await.status, 200);
}

#[tokio::test]
async fn bb_g01_names_from_callers_add_no_series() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new()
        .with("wall_clock: 10s", "wall_clock: 10m, max_live: 100000")
        .start(&tool)
        .await;
    gateway.agent(Form::OpenaiChat, "warm").call("lookup_order", "c", &order("1")).await;
    let before = gateway.metrics().await.count();
    let mut stream = TcpStream::connect(gateway.data).await.expect("connected");
    let mut buffer = vec![0; 1 << 16];
    for n in 0..10_000 {
        let body = format!(r#"{{"order_id":"value-{n}","extra-{n}":1}}"#);
        let tool = if n % 2 == 0 { format!("made_up_{n}") } else { "lookup_order".to_owned() };
        let head = format!(
            "POST /v1/tools/{tool} HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\ncheckrein-run: run-{n}\r\ncheckrein-call-id: call-{n}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.expect("sent");
        let mut got = Vec::new();
        // One answer: its head, and the length it names.
        loop {
            let read = stream.read(&mut buffer).await.expect("an answer");
            assert!(read > 0, "closed after {n}");
            got.extend_from_slice(&buffer[..read]);
            if let Some(at) = got.windows(4).position(|w| w == b"\r\n\r\n") {
                let answer = http::parse(&got);
                let length: usize =
                    answer.header("content-length").and_then(|l| l.parse().ok()).expect("a length");
                if got.len() >= at + 4 + length {
                    break;
                }
            }
        }
    }
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.count(), before);
    assert_eq!(
        metrics.value(
            "checkrein_tool_calls_total",
            &[("tool", "_unknown"), ("outcome", "unknown_tool")]
        ),
        5000.0
    );
}

#[tokio::test]
async fn bb_g03_a_removed_tool_leaves_no_ghost() {
    let tool = ScriptedTool::start().await;
    let more = "description: Down.\neffect: read\nbreaker: { consecutive_failures: 1, open_for: 30s, open_max: 30s }\n\
                retry: { max_retries: 0 }\nhttp: { upstream: shop, method: GET, path: /down }\nschema: { type: object, properties: {} }";
    tool.script("/down", [Reply::Status(500)]);
    let gateway = Fixture::new().more_tool("broken", more).start(&tool).await;
    gateway.agent(Form::OpenaiChat, "r").call("broken", "c1", "{}").await;
    let open = gateway.metrics().await;
    assert_eq!(
        open.value("checkrein_breaker_state", &[("tool", "broken"), ("state", "open")]),
        1.0
    );
    gateway.rewrite(&Fixture::new().text(&tool.url())).await;
    wait_for("the reload", SOON, async || reloads(&gateway, "applied").await >= 1.0).await;
    let text = gateway.metrics().await.0;
    assert!(!text.contains("tool=\"broken\""), "its series are gone");
    assert!(text.contains("checkrein_policy_last_reload_successful 1"));
}

#[tokio::test]
async fn bb_d04_liveness_and_readiness_do_not_hang_on_the_tools() {
    let address = ScriptedTool::refused_address().await;
    let gateway = Gateway::start(&Fixture::new().text(&format!("http://{address}"))).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    for n in 0..6 {
        agent.call("lookup_order", &format!("c{n}"), &order(&n.to_string())).await;
    }
    assert_eq!(agent.call("lookup_order", "c9", &order("9")).await.json()["error"], "circuit_open");
    for path in ["/live", "/ready", "/ready?verbose"] {
        assert_eq!(http::get(gateway.health, path).await.status, 200, "{path}");
    }
    assert_eq!(http::get(gateway.health, "/else").await.status, 404);
    assert_eq!(http::request(gateway.health, "POST", "/ready", &[], b"").await.status, 405);
    let metrics = http::request(
        gateway.health,
        "GET",
        "/metrics",
        &[("accept", "application/openmetrics-text")],
        b"",
    )
    .await;
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4"));
}

#[tokio::test]
async fn bb_n07_too_many_or_too_large_heads_are_431_with_a_reason() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    let fields = |n: usize| (0..n).map(|i| (format!("x-{i}"), "1".to_owned())).collect::<Vec<_>>();
    let send = async |fields: Vec<(String, String)>| {
        let headers: Vec<(&str, &str)> =
            fields.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        http::request(gateway.data, "GET", "/v1/tools", &headers, b"").await
    };
    assert_eq!(send(fields(50)).await.status, 200);
    for over in [fields(65), vec![("x-large".into(), "y".repeat(100_000))]] {
        let answer = send(over).await;
        assert_eq!(answer.status, 431);
        assert!(
            answer.text().contains("64") && answer.text().contains("32"),
            "names both limits: {}",
            answer.text()
        );
    }
    assert_eq!(send(fields(101)).await.status, 431);
    let rejected = async || {
        gateway.metrics().await.value("checkrein_requests_rejected_total", &[("reason", "head")])
    };
    wait_for("all three counted", SOON, async || rejected().await == 3.0).await;
}

#[tokio::test]
async fn bb_n01_a_request_with_two_lengths_smuggles_nothing() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    let orders = [
        "content-length: 4\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 4\r\n",
    ];
    for lengths in orders {
        let mut stream = TcpStream::connect(gateway.data).await.expect("connected");
        let body = "3\r\n{ }\r\n0\r\n\r\nGET /v1/runs/smuggled HTTP/1.1\r\nhost: g\r\n\r\n";
        let text = format!(
            "POST /v1/tools/list_regions HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\n{lengths}\r\n{body}"
        );
        stream.write_all(text.as_bytes()).await.expect("sent");
        let mut bytes = Vec::new();
        // Closed, or reset, after one answer at most.
        let ended = tokio::time::timeout(SOON, stream.read_to_end(&mut bytes)).await;
        assert!(ended.is_ok(), "the connection is closed");
        let answers = String::from_utf8_lossy(&bytes).matches("HTTP/1.1 ").count();
        assert!(answers <= 1, "{}", String::from_utf8_lossy(&bytes));
    }
}

#[tokio::test]
async fn bb_n03_hop_by_hop_and_foreign_headers_stop_here_both_ways() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    let headers = vec![
        ("content-type", "application/json".into()),
        ("x-from-tool", "1".into()),
        ("keep-alive", "timeout=5".into()),
    ];
    tool.script(
        "/regions",
        [Reply::Full { apply: false, status: 200, headers, body: b"[]".to_vec() }],
    );
    let sent = [
        ("x-secret", "1"),
        ("keep-alive", "timeout=5"),
        ("te", "trailers"),
        ("proxy-authorization", "Basic YTpi"),
        ("cookie", "session=1"),
        ("http2-settings", "AAMAAABk"),
    ];
    let answer = http::request(gateway.data, "POST", "/v1/tools/list_regions", &sent, b"{}").await;
    assert_eq!(answer.status, 200);
    for name in [
        "x-secret",
        "keep-alive",
        "te",
        "proxy-authorization",
        "cookie",
        "upgrade",
        "http2-settings",
        "authorization",
    ] {
        assert_eq!(tool.last().header(name), None, "{name} reached the tool");
    }
    for name in ["x-from-tool", "keep-alive"] {
        assert_eq!(answer.header(name), None, "{name} reached the agent");
    }
}

#[tokio::test]
async fn bb_n13_over_the_limit_is_a_quick_no() {
    let tool = ScriptedTool::start().await;
    tool.script("/orders", [Reply::After(Duration::from_millis(500))]);
    let fixture = Fixture::new()
        .with("bulkhead: 256", "bulkhead: 10")
        .budgets("calls: 1000, failures: 1000")
        .with("first_byte: 500ms, total: 1s", "first_byte: 3s, total: 4s");
    let gateway = fixture.start(&tool).await;
    let calls: Vec<_> = (0..100)
        .map(|n| {
            let agent = gateway.agent(Form::OpenaiChat, "r");
            tokio::spawn(async move {
                agent.call("lookup_order", &format!("c{n}"), &order(&n.to_string())).await
            })
        })
        .collect();
    let mut passed = 0;
    for call in calls {
        let answer = call.await.expect("no panic");
        if answer.status == 200 {
            passed += 1;
        } else {
            assert_eq!(
                (answer.status, answer.json()["error"].as_str()),
                (503, Some("concurrency_limited"))
            );
            assert!(answer.header("retry-after").is_some());
        }
    }
    assert!((10..40).contains(&passed), "{passed} passed");
    // All places are free again.
    tool.script("/orders", [Reply::Ok]);
    for n in 0..10 {
        assert_eq!(
            gateway
                .agent(Form::OpenaiChat, "r")
                .call("lookup_order", &format!("d{n}"), &order(&format!("d{n}")))
                .await
                .status,
            200
        );
    }
    assert_eq!(
        gateway.metrics().await.value("checkrein_inflight_calls", &[("tool", "lookup_order")]),
        0.0
    );
}

#[tokio::test]
async fn bb_n14_localhost_that_answers_on_one_family_only_works() {
    let tool = ScriptedTool::start().await;
    let gateway = Gateway::start(
        &Fixture::new().text(&format!("http://localhost:{}", tool.address().port())),
    )
    .await;
    let answer = gateway.agent(Form::OpenaiChat, "r").call("lookup_order", "c1", &order("1")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[tokio::test]
async fn one_record_a_call_and_one_an_attempt_with_the_fields_of_the_contract() {
    let tool = ScriptedTool::start().await;
    tool.script("/orders", [Reply::Status(503), Reply::Ok]);
    let gateway = Fixture::new().start(&tool).await;
    gateway
        .agent(Form::OpenaiChat, "run-7")
        .call("lookup_order", "c1", &order("secret-value"))
        .await;
    wait_for("the records", SOON, async || gateway.records().iter().any(|r| r["kind"] == "call"))
        .await;
    let records = gateway.records();
    let attempts: Vec<_> = records.iter().filter(|r| r["kind"] == "attempt").collect();
    assert_eq!(attempts.len(), 2);
    assert_eq!(
        (&attempts[0]["error_type"], &attempts[1]["error_type"]),
        (&"http_5xx".into(), &"none".into())
    );
    assert_eq!((&attempts[0]["attempt"], &attempts[1]["attempt"]), (&1.into(), &2.into()));
    assert!(attempts[1]["delay_ms"].as_f64().is_some_and(|ms| ms >= 20.0), "{}", attempts[1]);
    for attempt in attempts {
        for field in [
            "timestamp",
            "tool_name",
            "attempt",
            "delay_ms",
            "circuit_status",
            "run",
            "agent",
            "call_id",
        ] {
            assert!(attempt.get("error_type").is_some(), "there for a success too: {attempt}");
            assert!(!attempt[field].is_null(), "{field} in {attempt}");
        }
    }
    let call = records.iter().find(|r| r["kind"] == "call").expect("a call record");
    for field in [
        "timestamp",
        "tool_name",
        "outcome",
        "executed",
        "run",
        "agent",
        "call_id",
        "duration_ms",
        "circuit_status",
        "policy_revision",
    ] {
        assert!(!call[field].is_null(), "{field} in {call}");
    }
    assert_eq!((&call["outcome"], &call["run"]), (&"ok".into(), &"run-7".into()));
    assert!(
        !records.iter().any(|r| r.to_string().contains("secret-value")),
        "arguments are in no record"
    );
}
