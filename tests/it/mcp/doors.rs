//! Who is let in, and what is refused before there is a message.

use checkrein::frontends::{Doors, FrontEnds};
use checkrein::identity::Peer;
use serde_json::json;

use super::peer::{ABSENT, Session, as_pairs, initialize, modern, raw, raw_as};
use crate::front_ends::kit::House;

const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"lookup_order","arguments":{"order_id":"A17"}}}"#;

#[tokio::test(start_paused = true)]
async fn foreign_origin_or_host_is_403() {
    let house = House::new();
    let session = Session::open(&house).await;
    let (fields, body) = modern(
        "1",
        "tools/call",
        &json!({"name": "lookup_order", "arguments": {"order_id": "A17"}}),
    );
    for foreign in [
        ("origin", "http://evil.example"),
        ("origin", "null"),
        ("host", "evil.example"),
        ("host", "localhost.evil.example:7411"),
    ] {
        let mut legacy = session.fields();
        legacy.push(foreign);
        assert_eq!(raw(&house, "POST", &legacy, CALL).await.status, 403, "{foreign:?}");
        let mut modern = as_pairs(&fields);
        modern.push(foreign);
        assert_eq!(raw(&house, "POST", &modern, &body).await.status, 403, "{foreign:?}");
        for method in ["GET", "DELETE", "OPTIONS"] {
            assert_eq!(raw(&house, method, &legacy, "").await.status, 403, "{method} {foreign:?}");
        }
    }
    assert!(house.hits.all().is_empty());
    let mut own = session.fields();
    own.extend([("origin", "http://localhost:7411"), ("host", "127.0.0.1:7411")]);
    let got = raw(&house, "POST", &own, CALL).await;
    assert_eq!(got.status, 200, "{got:?}");
    assert_eq!(got.header("access-control-allow-origin"), "", "nobody asked for it");
    let mut unix = session.fields();
    unix.push(("host", "anything"));
    let body = CALL.replace("\"id\":1", "\"id\":2");
    let got = raw_as(&house, Peer::Unix { uid: None }, "POST", &unix, &body).await;
    assert_eq!(got.status, 200, "{got:?}");
}

#[tokio::test(start_paused = true)]
async fn get_is_405_not_404() {
    let house = House::new();
    let version = ("mcp-protocol-version", "2026-07-28");
    for method in ["GET", "DELETE", "PUT", "PATCH", "HEAD"] {
        let got = raw(&house, method, &[version], "").await;
        assert_eq!((got.status, got.header("allow")), (405, "POST"), "{method}");
    }
    let got = raw(&house, "PUT", &[], "").await;
    assert_eq!((got.status, got.header("allow")), (405, "POST, GET, DELETE"));
    let got = raw(&house, "GET", &[("accept", "text/event-stream")], "").await;
    assert_eq!(got.status, 400, "a stream belongs to a session");
    // Where no such stream is offered at all, a session gets the same answer, and goes on.
    let doors = Doors { no_get_stream: true, ..Doors::default() };
    let metrics = checkrein::telemetry::metrics::Metrics::new();
    let mut house = house;
    house.front_ends = FrontEnds::new(house.engine.clone(), metrics, doors);
    let session = Session::open(&house).await;
    let mut fields = session.fields();
    fields.push(("accept", "text/event-stream"));
    let got = raw(&house, "GET", &fields, "").await;
    assert_eq!((got.status, got.header("allow")), (405, "POST, DELETE"));
    assert_eq!(session.ask(&house, "1", "ping", &json!({})).await.result(), &json!({}));
}

#[tokio::test(start_paused = true)]
async fn types_are_agreed_on_before_anything_is_read() {
    let house = House::new();
    let body = initialize("2025-11-25", &json!({}));
    for (field, status) in [
        (("accept", "application/json"), 406),
        (("accept", "text/event-stream"), 406),
        (("accept", "*/*"), 200),
        (("accept", ABSENT), 200),
        (("content-type", "text/plain"), 415),
        (("content-encoding", "gzip"), 415),
    ] {
        let got = raw(&house, "POST", &[field], &body).await;
        assert_eq!(got.status, status, "{field:?} {got:?}");
        assert_eq!(got.messages[0]["jsonrpc"], "2.0");
    }
    let large = "x".repeat(17 * 1024);
    assert_eq!(raw(&house, "POST", &[], &large).await.status, 413);
}

#[tokio::test(start_paused = true)]
async fn deep_and_wide_messages_are_refused() {
    let house = House::new();
    let session = Session::open(&house).await;
    let deep = "[".repeat(10_000);
    let nested = format!("{}{}", r#"{"a":"#.repeat(70), format_args!("1{}", "}".repeat(70)));
    let call = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"lookup_order","arguments":{nested}}}}}"#
    );
    let batch = format!("[{CALL},{CALL}]");
    for (body, code) in
        [(&*deep, -32600), (&*call, -32600), (&*batch, -32600), ("{", -32700), ("", -32700)]
    {
        for fields in [session.fields(), vec![("mcp-protocol-version", "2026-07-28")]] {
            let got = raw(&house, "POST", &fields, body).await;
            assert_eq!((got.status, got.code()), (400, code), "{:?}", &body[..body.len().min(40)]);
            assert_eq!(got.answer()["id"], json!(null));
        }
    }
    assert!(house.hits.all().is_empty());
    assert_eq!(session.ask(&house, "9", "ping", &json!({})).await.result(), &json!({}));
}

#[tokio::test(start_paused = true)]
async fn dead_session_is_404_even_when_limited() {
    bb_m01_m02(&House::new()).await;
}

#[tokio::test(start_paused = true)]
async fn bb_m01_a_dead_session_is_a_404_with_a_reason_and_a_bad_token_a_401() {
    bb_m01_m02(&House::new()).await;
}

#[tokio::test(start_paused = true)]
async fn bb_m02_no_session_is_a_400_and_a_strange_one_a_404_never_a_5xx() {
    bb_m01_m02(&House::new()).await;
}

async fn bb_m01_m02(house: &House) {
    let others = Session::open_as(house, "b").await;
    let ended = Session::open(house).await;
    // Its only token is spent: what comes after is over a limit.
    ended.call(house, "1", "search", &json!({})).await;
    assert_eq!(
        ended.call(house, "2", "search", &json!({})).await.refusal()["error"],
        "rate_limited"
    );
    assert_eq!(raw(house, "DELETE", &ended.fields(), "").await.status, 204);
    let junk = "j".repeat(4096);
    for id in [&*ended.id, &*others.id, "never-was", &*junk] {
        let fields = [("mcp-session-id", id)];
        for (method, body) in [("POST", CALL), ("GET", ""), ("DELETE", "")] {
            let mut fields = fields.to_vec();
            if method == "GET" {
                fields.push(("accept", "text/event-stream"));
            }
            let got = raw(house, method, &fields, body).await;
            assert_eq!(got.status, 404, "{method} {got:?}");
            assert_eq!(got.header("content-type"), "application/json");
            assert!(got.code() < 0);
            fields.push(("authorization", "Bearer wrong"));
            let got = raw(house, method, &fields, body).await;
            assert_eq!((got.status, got.header("www-authenticate")), (401, "Bearer"), "{method}");
        }
    }
    let spaces = raw(house, "POST", &[("mcp-session-id", "a b")], CALL).await;
    assert_eq!(spaces.status, 404, "{spaces:?}");
    let none = raw(house, "POST", &[], CALL).await;
    assert_eq!(none.status, 400);
    assert_eq!(
        none.answer()["error"]["data"]["supported"],
        json!(["2026-07-28", "2025-11-25", "2025-06-18"])
    );
}

#[tokio::test(start_paused = true)]
async fn notification_is_202_and_empty() {
    let house = House::new();
    let session = Session::open(&house).await;
    let call = CALL.replace(r#""id":1,"#, "");
    for body in [r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#, &*call] {
        for fields in [session.fields(), vec![("mcp-protocol-version", "2026-07-28")]] {
            let got = raw(&house, "POST", &fields, body).await;
            assert_eq!((got.status, got.bytes, got.messages.len()), (202, 0, 0), "{body}");
        }
    }
    assert!(house.hits.all().is_empty(), "a call without an id is not run");
}
