//! Bodies that are passed on as they come: at once, both ways, bounded, and never taken for whole when they are not.

use std::time::Duration;

use serde_json::Value;

use super::kit::{Manual, Peer, SOON};
use crate::support::{Gateway, http, wait_for};

const GET: &str = "GET /proxy/shop/any/x HTTP/1.1\r\nhost: g\r\n\r\n";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

/// The records of calls that have ended, by their outcome.
async fn recorded(gateway: &Gateway, outcome: &str) -> Value {
    let mut found = None;
    wait_for("the record", SOON, async || {
        let of_call = |record: &Value| record["kind"] == "call" && record["outcome"] == outcome;
        found = gateway.records().into_iter().find(of_call);
        found.is_some()
    })
    .await;
    found.expect("just found")
}

#[tokio::test]
async fn an_answer_reaches_the_client_while_the_tool_still_writes_it() {
    let (tool, gateway) = Manual::start().await;
    let mut client = Peer::dial(gateway.data).await;
    client.send(GET).await;
    let mut peer = tool.next().await;
    peer.send(CHUNKED).await;
    client.until("\r\n\r\n").await;
    for piece in ["one", "two", "three"] {
        peer.send(&format!("{:x}\r\n{piece}\r\n", piece.len())).await;
        client.until(piece).await;
    }
    assert!(!client.text().contains("\r\n0\r\n"), "not ended yet");
    peer.send("0\r\n\r\n").await;
    client.until("0\r\n\r\n").await;
    let record = recorded(&gateway, "ok").await;
    assert_eq!((record["result_bytes"].as_u64(), record["attempts"].as_u64()), (Some(11), Some(1)));
    // Its connection serves the next one.
    client.seen.clear();
    client.send(GET).await;
    peer.seen.clear();
    peer.until("\r\n\r\n").await;
}

#[tokio::test]
async fn a_length_that_was_told_stays_told_and_ends_the_answer() {
    let (tool, gateway) = Manual::start().await;
    let mut client = Peer::dial(gateway.data).await;
    client.send(GET).await;
    let mut peer = tool.next().await;
    peer.send("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n").await;
    let head = client.until("\r\n\r\n").await;
    assert!(head.contains("content-length: 6\r\n") && !head.contains("chunked"), "{head}");
    peer.send("abc").await;
    client.until("abc").await;
    peer.send("def").await;
    client.until("abcdef").await;
    recorded(&gateway, "ok").await;
}

/// The place of a call is held to the last byte, and its end is judged there.
#[tokio::test]
async fn a_call_holds_its_place_until_its_last_byte() {
    let routes = "\n  any_read: { description: R., bulkhead: 1, proxy: { upstream: shop, methods: [GET], path: \"/any/{r*}\" } }";
    let (tool, gateway) = Manual::with(routes, |text| text).await;
    let mut client = Peer::dial(gateway.data).await;
    client.send(GET).await;
    let mut peer = tool.next().await;
    peer.send(CHUNKED).await;
    client.until("\r\n\r\n").await;
    let refused = http::get(gateway.data, "/proxy/shop/any/y").await;
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json()["error"], "concurrency_limited");
    assert!(refused.header("retry-after").is_some());
    peer.send("1\r\nx\r\n0\r\n\r\n").await;
    client.until("0\r\n\r\n").await;
    client.seen.clear();
    client.send(GET).await;
    peer.seen.clear();
    peer.until("\r\n\r\n").await;
    peer.send("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nz").await;
    client.until("\r\n\r\nz").await;
}

/// What broke off is never taken for whole: by its length, or by the chunk that does not come.
#[tokio::test]
async fn an_answer_that_breaks_off_breaks_off_at_the_client_and_counts_as_a_failure() {
    for (head, piece) in
        [(CHUNKED, "3\r\nabc\r\n"), ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", "abc")]
    {
        let (tool, gateway) = Manual::start().await;
        let mut client = Peer::dial(gateway.data).await;
        client.send(GET).await;
        let mut peer = tool.next().await;
        peer.send(head).await;
        client.until("\r\n\r\n").await;
        peer.send(piece).await;
        client.until("abc").await;
        drop(peer);
        let told = client.rest().await;
        assert!(!told.contains("\r\n0\r\n") && !told.contains("abcabc"), "{told}");
        let record = recorded(&gateway, "result_lost").await;
        assert_eq!(record["error_type"], "result_lost");
        let metrics = gateway.metrics().await;
        let failures = [("tool", "any_read"), ("error_class", "reset_after_send")];
        assert_eq!(metrics.sum("checkrein_attempts_total", &failures), 1.0);
        assert!(tool.is_left_alone().await, "nothing was sent again: bytes were out");
    }
}

/// Total means total: bytes that never cease do not extend it; and silence is bounded by the idle time.
#[tokio::test]
async fn the_times_of_an_attempt_rule_its_answer_to_the_end() {
    let limits = |times: &'static str| {
        move |text: String| {
            text.replace("{ connect: 500ms, first_byte: 1s, idle: 1s, total: 3s }", times)
        }
    };
    let endless = "{ connect: 500ms, first_byte: 300ms, idle: 300ms, total: 600ms }";
    let (tool, gateway) = Manual::with(ROUTE, limits(endless)).await;
    let mut client = Peer::dial(gateway.data).await;
    client.send(GET).await;
    let mut peer = tool.next().await;
    peer.send(CHUNKED).await;
    let began = tokio::time::Instant::now();
    let writing = tokio::spawn(async move {
        while tokio::io::AsyncWriteExt::write_all(&mut peer.stream, b"1\r\nx\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    client.rest().await;
    let took = began.elapsed();
    assert!(took > Duration::from_millis(400) && took < Duration::from_secs(3), "{took:?}");
    let record = recorded(&gateway, "upstream_timeout").await;
    assert_eq!(record["timed_out_by"], "total");
    writing.await.expect("the tool's connection was closed");

    let silent = "{ connect: 500ms, first_byte: 300ms, idle: 300ms, total: 20s }";
    let (tool, gateway) = Manual::with(ROUTE, limits(silent)).await;
    let mut client = Peer::dial(gateway.data).await;
    client.send(GET).await;
    let mut peer = tool.next().await;
    peer.send(CHUNKED).await;
    client.until("\r\n\r\n").await;
    client.rest().await;
    assert_eq!(recorded(&gateway, "upstream_timeout").await["timed_out_by"], "idle");
    peer.rest().await;
}

const ROUTE: &str = "\n  any_read: { description: R., proxy: { upstream: shop, methods: [GET], path: \"/any/{r*}\" } }";

#[tokio::test]
async fn a_client_that_goes_away_ends_the_exchange_and_blames_nobody() {
    let (tool, gateway) = Manual::start().await;
    let mut client = Peer::dial(gateway.data).await;
    client.send(GET).await;
    let mut peer = tool.next().await;
    peer.send(CHUNKED).await;
    peer.send("1\r\nx\r\n").await;
    client.until("x").await;
    drop(client);
    // The gateway notices when it writes, or when it reads the end.
    let gone = async {
        let mut peer = peer;
        while tokio::io::AsyncWriteExt::write_all(&mut peer.stream, b"1\r\nx\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, gone).await.expect("the tool's connection is closed");
    recorded(&gateway, "abandoned").await;
}

/// More than one gateway's worth of memory passes, and the tool is read only as fast as the client takes it.
#[tokio::test]
async fn a_client_that_does_not_read_holds_the_tool_back() {
    let (tool, gateway) = Manual::start().await;
    let mut client = Peer::dial(gateway.data).await;
    client.send(GET).await;
    let mut peer = tool.next().await;
    peer.send("HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n").await;
    client.until("\r\n\r\n").await;
    let piece = vec![b'x'; 1 << 16];
    let mut written = 0_usize;
    let stalled = loop {
        let write = tokio::io::AsyncWriteExt::write_all(&mut peer.stream, &piece);
        match tokio::time::timeout(Duration::from_millis(300), write).await {
            Ok(sent) => sent.expect("open"),
            Err(_) => break true,
        }
        written += piece.len();
        if written > 64 << 20 {
            break false;
        }
    };
    assert!(stalled, "{written} bytes were taken for a client that reads none");
}

#[tokio::test]
async fn a_long_body_of_a_read_reaches_the_tool_while_the_client_still_sends_it() {
    let (tool, gateway) = Manual::start().await;
    let mut client = Peer::dial(gateway.data).await;
    client
        .send("POST /proxy/shop/search HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\nexpect: 100-continue\r\n\r\n")
        .await;
    let mut peer = tool.next().await;
    assert!(!peer.text().to_ascii_lowercase().contains("expect"), "{}", peer.text());
    client.until("HTTP/1.1 100 Continue\r\n\r\n").await;
    for piece in ["one", "two"] {
        client.send(&format!("3\r\n{piece}\r\n")).await;
        peer.until(piece).await;
    }
    client.send("0\r\n\r\n").await;
    peer.until("0\r\n\r\n").await;
    peer.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    client.until("\r\n\r\nok").await;
}

#[tokio::test]
async fn a_body_over_its_bound_is_refused_by_its_length_before_anything_is_sent_and_cut_without_one()
 {
    let (tool, gateway) = Manual::start().await;
    let mut client = Peer::dial(gateway.data).await;
    let head = "POST /proxy/shop/search HTTP/1.1\r\nhost: g\r\nexpect: 100-continue\r\n";
    client.send(&format!("{head}content-length: 262145\r\n\r\n")).await;
    let told = client.until("\r\n\r\n").await;
    assert!(told.starts_with("HTTP/1.1 413 "), "no interim answer invites the body: {told}");
    assert!(tool.is_left_alone().await);

    let mut client = Peer::dial(gateway.data).await;
    client
        .send("POST /proxy/shop/search HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n")
        .await;
    let mut peer = tool.next().await;
    let piece = format!("8000\r\n{}\r\n", "x".repeat(0x8000));
    for _ in 0..9 {
        client.send(&piece).await;
    }
    let told = client.until("\r\n\r\n").await;
    assert!(told.starts_with("HTTP/1.1 413 ") && told.contains("problem+json"), "{told}");
    let arrived = peer.rest().await;
    assert!(!arrived.ends_with("0\r\n\r\n"), "the tool never takes it for whole");
    let metrics = gateway.metrics().await;
    let open = [("tool", "search"), ("state", "closed")];
    assert_eq!(metrics.sum("checkrein_breaker_state", &open), 1.0, "the tool is not to blame");
}

#[tokio::test]
async fn a_client_that_does_not_send_on_is_told_so_and_the_tool_is_not_blamed() {
    let (tool, gateway) = Manual::with(
        "\n  search: { description: S., effect: read, breaker: { consecutive_failures: 1 }, proxy: { upstream: shop, methods: [POST], path: /search } }",
        |text| text.replace("idle: 1s", "idle: 200ms"),
    )
    .await;
    let mut client = Peer::dial(gateway.data).await;
    client.send("POST /proxy/shop/search HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n").await;
    let mut peer = tool.next().await;
    let told = client.until("\r\n\r\n").await;
    assert!(told.starts_with("HTTP/1.1 408 "), "{told}");
    assert!(!peer.rest().await.ends_with("0\r\n\r\n"));
    let metrics = gateway.metrics().await;
    assert_eq!(
        metrics.sum("checkrein_breaker_state", &[("tool", "search"), ("state", "closed")]),
        1.0
    );
}

/// An event is at the client while the stream behind it stays open: nothing here holds it back, packs it or lets a cache
/// have it.
#[tokio::test]
async fn bb_m15_an_event_passes_at_once_and_as_it_is() {
    let routes = "\n  any_read: { description: R., proxy: { upstream: shop, methods: [GET], path: \"/any/{r*}\", request_headers: [Accept, Accept-Encoding] } }";
    let (tool, gateway) = Manual::with(routes, |text| text).await;
    let mut client = Peer::dial(gateway.data).await;
    let fields = "accept: text/event-stream\r\naccept-encoding: gzip, br, zstd\r\n";
    client.send(&format!("GET /proxy/shop/any/x HTTP/1.1\r\nhost: g\r\n{fields}\r\n")).await;
    let mut peer = tool.next().await;
    assert!(peer.text().contains("accept-encoding: gzip, br, zstd\r\n"), "{}", peer.text());
    peer.send(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache, no-transform\r\n\
         x-accel-buffering: no\r\ntransfer-encoding: chunked\r\n\r\n",
    )
    .await;
    let head = client.until("\r\n\r\n").await;
    for kept in
        ["text/event-stream", "cache-control: no-cache, no-transform", "x-accel-buffering: no"]
    {
        assert!(head.contains(kept), "{head}");
    }
    assert!(!head.contains("content-encoding"), "{head}");
    let began = tokio::time::Instant::now();
    peer.send("1f\r\nevent: message\ndata: thirty b\n\n\r\n").await;
    client.until("data: thirty b\n\n").await;
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
}
