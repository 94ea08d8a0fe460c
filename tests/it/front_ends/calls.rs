//! The tools API: one call, who asks, what is refused before there is a call.

use checkrein::identity::Peer;

use super::kit::{House, request};

const A: (&str, &str) = ("authorization", "Bearer token-a");
const B: (&str, &str) = ("authorization", "Bearer token-b");
const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test(start_paused = true)]
async fn a_call_is_answered_with_its_value_run_and_id() {
    let house = House::new();
    let got = house.post("/v1/tools/lookup_order", &[], r#"{"order_id":"A17"}"#).await;
    assert_eq!(got.status, 200, "{got:?}");
    assert_eq!(got.body["ok"], true);
    assert_eq!(got.body["value"]["got"]["order_id"], "A17");
    assert_eq!(got.body["value"]["n"].to_string(), "9007199254740993", "digits are kept");
    assert_eq!(got.header("checkrein-call-id"), got.body["call"]);
    let run = got.header("checkrein-run").to_owned();
    let again = house.post("/v1/tools/lookup_order", &[], r#"{"order_id":"A18"}"#).await;
    assert_eq!(again.header("checkrein-run"), run, "the ambient run goes on");
    let fields = [("checkrein-run", "mine"), ("checkrein-call-id", "c|1")];
    let named = house.post("/v1/tools/lookup_order", &fields, r#"{"order_id":"A19"}"#).await;
    assert_eq!(named.header("checkrein-run"), "mine");
    assert_eq!(
        (named.header("checkrein-call-id"), named.body["call"].as_str()),
        ("c|1", Some("c|1"))
    );
}

#[tokio::test(start_paused = true)]
async fn bb_a06_only_the_credential_says_who_asks() {
    let house = House::new();
    let claims = [
        B,
        ("x-forwarded-for", "127.0.0.1"),
        ("x-agent-id", "a"),
        ("forwarded", "for=a"),
        ("from", "a"),
    ];
    let body = r#"{"order_id":"A17","agent":"a"}"#;
    let got = house.post("/v1/tools/lookup_order", &claims, body).await;
    assert_eq!(got.status, 404, "b has no such tool: {got:?}");
    assert_eq!(got.body["error"], "unknown_tool");
    assert_eq!(got.body["alternatives"], serde_json::json!(["list_regions"]));
    assert!(house.hits.all().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_bad_credential_is_a_401_and_counted() {
    let house = House::new();
    for field in ["Bearer wrong", "Bearer ", "Basic eDp5", "token-a"] {
        let got = house.get("/v1/tools", &[("authorization", field)]).await;
        assert_eq!(got.status, 401, "{field}");
        assert_eq!(got.body["error"], "unauthenticated");
        assert_eq!(got.header("www-authenticate"), "Bearer");
        assert_eq!(got.header("content-type"), "application/problem+json");
        assert!(!got.header("checkrein-run").is_empty());
    }
    let far = house.ask_as(Peer::Remote, request("GET", "/v1/tools", &[], "")).await;
    assert_eq!(far.status, 401, "no credential from elsewhere");
    assert!(
        house.metrics.encode().contains("checkrein_unauthenticated_total{listener=\"data\"} 5"),
        "each is counted"
    );
    let page = house.get("/v1/tools", &[("origin", "http://evil.example")]).await;
    assert_eq!(page.status, 403, "a web page has no credential");
    assert_eq!(house.get("/v1/tools", &[A, ("origin", "http://x.example")]).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn an_agent_sees_its_own_tools_only_and_bb_a07_an_empty_list_says_why() {
    let house = House::new();
    let names = |got: &super::kit::Got| -> Vec<String> {
        let tools = got.body["tools"].as_array().expect("tools");
        tools.iter().map(|tool| tool["name"].as_str().expect("name").to_owned()).collect()
    };
    let own = house.get("/v1/tools", &[]).await;
    assert_eq!(
        names(&own),
        ["create_order", "list_regions", "lookup_order", "search", "send_notice"]
    );
    assert_eq!(own.header("checkrein-tools-hidden"), "0");
    assert_eq!(
        names(&house.get("/v1/tools?form=mcp", &[A]).await),
        ["create_order", "lookup_order"]
    );
    let idle = house.get("/v1/tools", &[("authorization", "Bearer token-idle")]).await;
    assert!(names(&idle).is_empty());
    assert!(idle.body["note"].as_str().expect("a note").contains("no tool"));
    assert_eq!(house.get("/v1/tools?form=x", &[]).await.status, 400);
}

#[tokio::test(start_paused = true)]
async fn arguments_that_do_not_parse_are_a_call_with_named_faults() {
    let house = House::new();
    for (body, at) in [
        (r#"{"order_ref":"J1","qty":1,"qty":5}"#, "/qty"),
        (r#"{"order_ref":"J1","qty":NaN}"#, "/qty"),
        (r#"{"order_ref":"J1"} done"#, ""),
        (r#"{"order_ref":"J1""#, "/order_ref"),
        (r#"["order_ref"]"#, ""),
        (r#"{"order_ref":"J1","qty":9}"#, "/qty"),
    ] {
        let got = house.post("/v1/tools/create_order", &[], body).await;
        assert_eq!(got.status, 422, "{body} {got:?}");
        assert_eq!(got.body["error"], "invalid_arguments", "{body}");
        assert_eq!(got.body["faults"][0]["at"], at, "{body}");
        assert_eq!(got.body["executed"], "no");
        assert_eq!(got.header("content-type"), "application/json", "a call's own answer");
    }
    let long = format!(r#"{{"order_ref":"{}"}}"#, "x".repeat(5000));
    let got = house.post("/v1/tools/create_order", &[], &long).await;
    assert_eq!(
        (got.status.as_u16(), got.body["error"].as_str()),
        (413, Some("arguments_too_large"))
    );
    assert!(house.hits.all().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_unknown_tool_is_an_ordinary_answer_that_lists_the_others() {
    let house = House::new();
    for name in ["lookup_ordr", "nothing%20such", "delete"] {
        let got = house.post(&format!("/v1/tools/{name}"), &[], "{}").await;
        assert_eq!((got.status.as_u16(), got.body["error"].as_str()), (404, Some("unknown_tool")));
        assert_eq!(got.body["alternatives"].as_array().expect("names").len(), 5, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_are_no_call_are_problems_with_their_status() {
    let house = House::new();
    let long = "x".repeat(20_000);
    let text = [("content-type", "text/plain")];
    let run = [JSON, ("checkrein-run", "a b")];
    let time = [JSON, ("checkrein-timeout-ms", "soon")];
    let keys = [JSON, ("idempotency-key", "1"), ("idempotency-key", "2")];
    for (method, path, fields, body, status) in [
        ("POST", "/v1/tools/lookup_order", &text[..], "{}", 415),
        ("POST", "/v1/tools/lookup_order", &[JSON], long.as_str(), 413),
        ("POST", "/v1/tools/lookup_order", &run, "{}", 400),
        ("POST", "/v1/tools/lookup_order", &time, "{}", 400),
        ("POST", "/v1/tools/lookup_order", &keys, "{}", 400),
        ("GET", "/v1/tools/lookup_order", &[], "", 405),
        ("GET", "/v1/nothing", &[], "", 404),
        ("GET", "/v1/runs/r/events", &[], "", 404),
        ("GET", "/metrics", &[], "", 404),
        ("POST", "/v1/batches/openai-chat", &[JSON, ("idempotency-key", "1")], "{}", 400),
    ] {
        let got = house.ask(request(method, path, fields, body)).await;
        assert_eq!(got.status.as_u16(), status, "{method} {path} {got:?}");
        assert_eq!(got.header("content-type"), "application/problem+json", "{path}");
        assert_eq!(got.body["error"], "invalid_request", "{path}");
        assert_eq!(got.body["status"], status, "{path}");
        assert!(!got.header("checkrein-run").is_empty(), "{path}");
    }
    assert!(house.hits.all().is_empty());
    let text = house.metrics.encode();
    for reason in ["body", "media_type", "bad_request"] {
        let zero = format!("checkrein_requests_rejected_total{{reason=\"{reason}\"}} 0");
        assert!(!text.contains(&zero), "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn over_its_rate_a_call_is_told_when_to_come_back() {
    let house = House::new();
    let first = house.post("/v1/tools/search", &[], "{}").await;
    assert_eq!(first.status, 200, "{first:?}");
    assert!(first.header("ratelimit").starts_with("\"tool:search\";r=0;t="), "{first:?}");
    let second = house.post("/v1/tools/search", &[], "{}").await;
    assert_eq!(second.status, 429, "{second:?}");
    assert_eq!(second.body["limited_by"], "gateway");
    assert_eq!(second.header("retry-after"), "1");
    assert_eq!(second.header("ratelimit-policy"), "\"tool:search\";q=1;w=1");
    let wait = second.body["retry_after_ms"].as_u64().expect("a time");
    assert!((1..=1000).contains(&wait), "{wait}");
    tokio::time::advance(std::time::Duration::from_millis(wait)).await;
    assert_eq!(house.post("/v1/tools/search", &[], "{}").await.status, 200, "as promised");
}

#[tokio::test(start_paused = true)]
async fn a_key_of_the_agents_code_replays_in_either_spelling() {
    let house = House::new();
    let body = r#"{"text":"one"}"#;
    let first = house.post("/v1/tools/send_notice", &[("idempotency-key", "k1")], body).await;
    assert_eq!(first.body["ok"], true, "{first:?}");
    let again = house.post("/v1/tools/send_notice", &[("idempotency-key", "\"k1\"")], body).await;
    assert_eq!(again.body["replayed"], true, "{again:?}");
    assert_eq!(again.body["value"], first.body["value"]);
    assert_eq!(house.hits.all().len(), 1);
    let other = r#"{"text":"two"}"#;
    let got = house.post("/v1/tools/send_notice", &[("idempotency-key", "k1")], other).await;
    assert_eq!(
        (got.status.as_u16(), got.body["error"].as_str()),
        (422, Some("idempotency_conflict"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_write_that_may_have_happened_is_a_409_without_a_time() {
    let house = House::new();
    let body = r#"{"order_ref":"lost"}"#;
    let got = house.post("/v1/tools/create_order", &[], body).await;
    assert_eq!((got.status.as_u16(), got.body["error"].as_str()), (409, Some("outcome_unknown")));
    assert_eq!((&got.body["executed"], &got.body["retry"]), (&"unknown".into(), &"person".into()));
    assert!(got.body["operation"].as_str().expect("named").starts_with("op_"));
    assert_eq!(got.header("retry-after"), "");
    let again = house.post("/v1/tools/create_order", &[], body).await;
    assert_eq!(
        (again.status.as_u16(), again.body["error"].as_str()),
        (409, Some("review_required"))
    );
    assert_eq!(again.body["operation"], got.body["operation"]);
    assert_eq!(house.hits.all().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn while_draining_a_call_is_refused_and_the_connection_closes() {
    let house = House::new();
    house.engine.drain();
    let got = house.post("/v1/tools/lookup_order", &[], r#"{"order_id":"A17"}"#).await;
    assert_eq!((got.status.as_u16(), got.body["error"].as_str()), (503, Some("draining")));
    assert_eq!((got.header("connection"), got.header("retry-after")), ("close", "1"));
    assert!(house.hits.all().is_empty());
}

#[tokio::test]
async fn the_same_call_over_a_socket() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let house = House::new();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data.sock");
    let server = checkrein::server::Server {
        http2: true,
        limits: checkrein::server::Limits::new(8),
        metrics: house.metrics.clone(),
        shutdown: tokio_util::sync::CancellationToken::new(),
        tasks: tokio_util::task::TaskTracker::new(),
    };
    let bound = checkrein::server::bind_unix(&path).expect("bound");
    let listener = checkrein::server::Listener::unix(bound).expect("registered");
    let front_ends = house.front_ends.clone();
    let accepting = server.serve(listener, move |peer, request| {
        let front_ends = front_ends.clone();
        async move { front_ends.answer(peer, request).await }
    });
    let mut stream = tokio::net::UnixStream::connect(&path).await.expect("connected");
    let body = r#"{"order_id":"A17"}"#;
    let head = format!(
        "POST /v1/tools/lookup_order HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("read");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(answer.contains(r#""order_id":"A17""#), "{answer}");
    server.shutdown.cancel();
    accepting.await.expect("ended");
}

#[tokio::test]
async fn an_agent_that_asks_before_it_sends_too_much_is_told_at_once() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let house = House::new();
    let server = checkrein::server::Server {
        http2: true,
        limits: checkrein::server::Limits::new(8),
        metrics: house.metrics.clone(),
        shutdown: tokio_util::sync::CancellationToken::new(),
        tasks: tokio_util::task::TaskTracker::new(),
    };
    let bound = checkrein::server::bind_tcp("127.0.0.1:0".parse().expect("addr"), false);
    let listener = checkrein::server::Listener::tcp(bound.expect("bound")).expect("registered");
    let addr = listener.local_addr().expect("tcp");
    let front_ends = house.front_ends.clone();
    server.serve(listener, move |peer, request| {
        let front_ends = front_ends.clone();
        async move { front_ends.answer(peer, request).await }
    });
    #[expect(clippy::disallowed_methods, reason = "a test dials itself")]
    let mut stream = tokio::net::TcpStream::connect(addr).await.expect("connected");
    let head = "POST /v1/tools/list_regions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n\
                content-type: application/json\r\ncontent-length: 5000000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answered and closed");
    assert!(answer.starts_with("HTTP/1.1 413 "), "no 100 before it: {answer}");
    assert!(answer.contains("16384 bytes"), "{answer}");
}
