//! A tool that speaks HTTP/2 (`http_version: h2`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::support::http::{self, Answer};
use crate::support::http2::{
    CANCEL, ENHANCE_YOUR_CALM, Http2Tool, INTERNAL_ERROR, REFUSED_STREAM, Say, Seen,
};
use crate::support::{Gateway, wait_for};
use crate::vectors::field_of_steps;

const SOON: Duration = Duration::from_secs(10);
/// `NO_ERROR`.
const NONE: u32 = 0;

fn policy(url: &str, upstream: &str, write: &str) -> String {
    format!(
        r#"
apiVersion: checkrein/v1
kind: Policy
name: h2
profiles:
  fast:
    extends: internal_rpc
    timeout: {{ connect: 2s, first_byte: 2s, idle: 2s, total: 3s }}
    retry: {{ max_retries: 2, backoff: {{ base: 20ms, max: 50ms, jitter: 10ms }}, deadline: 10s }}
    breaker: {{ consecutive_failures: 50 }}
defaults: {{ profile: fast }}
runs: {{ default: {{ wall_clock: 1m, fuse: {{ same_failures: 1000, same_results: 1000 }} }} }}
upstreams:
  shop: {{ base_url: "{url}", addresses: [loopback], {upstream} }}
tools:
  look: {{ description: Look., effect: read, bulkhead: 64, http: {{ upstream: shop, method: GET, path: "/look/{{id}}" }}, schema: {{ type: object, properties: {{ id: {{ type: string }} }}, required: [id] }} }}
  make: {{ description: Make., effect: write, {write} http: {{ upstream: shop, method: POST, path: /make }}, schema: {{ type: object, properties: {{ id: {{ type: string }} }}, required: [id] }} }}
agents: {{ default: {{ allow: [look, make] }} }}
"#
    )
}

async fn gateway(tool: &Http2Tool) -> Gateway {
    Gateway::start(&policy(&tool.url(), "http_version: h2", "")).await
}

/// Its writes share connections, so that their streams have numbers of a test's choice.
async fn pooled(tool: &Http2Tool) -> Gateway {
    let pooled = "write: { connection: pooled },";
    Gateway::start(&policy(&tool.url(), "http_version: h2", pooled)).await
}

async fn call(gateway: &Gateway, tool: &str, id: &str) -> Answer {
    let body = format!(r#"{{"id":"{id}"}}"#);
    let path = format!("/v1/tools/{tool}");
    http::request(gateway.data, "POST", &path, &[("checkrein-run", id)], body.as_bytes()).await
}

fn told(answer: &Answer) -> (String, String) {
    let json = answer.json();
    let text = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
    (text("error"), text("executed"))
}

/// A tool that answers everything.
fn ok(seen: &Seen) -> Vec<Say> {
    vec![Say::Ok(seen.stream, r#"{"ok":1}"#)]
}

#[tokio::test]
async fn many_reads_share_one_connection_and_a_write_has_its_own() {
    let tool = Http2Tool::start(100, ok).await;
    let gateway = gateway(&tool).await;
    for n in 0..5 {
        let got = call(&gateway, "look", &format!("r{n}")).await;
        assert_eq!(got.status, 200, "{}", got.text());
    }
    let reads = tool.seen();
    assert!(reads.iter().all(|seen| seen.connection == 1), "{reads:?}");
    assert_eq!(reads.iter().map(|seen| seen.stream).collect::<Vec<_>>(), [1, 3, 5, 7, 9]);
    assert_eq!(call(&gateway, "make", "w").await.status, 200);
    let write = tool.seen().pop().expect("there");
    assert_eq!((write.connection, write.stream), (2, 1));
    assert_eq!(serde_json::from_slice::<Value>(&write.body).expect("JSON")["id"], "w");
}

#[tokio::test]
async fn no_more_streams_are_opened_than_the_tool_allows() {
    const CALLS: usize = 6;
    let came = Arc::new(AtomicUsize::new(0));
    let counted = came.clone();
    let tool = Http2Tool::start(2, move |seen| {
        counted.fetch_add(1, Ordering::SeqCst);
        match seen.connection {
            // The first answers so that its settings are known; all later ones wait for each other.
            1 if seen.stream == 1 => ok(seen),
            _ => Vec::new(),
        }
    })
    .await;
    let gateway = gateway(&tool).await;
    assert_eq!(call(&gateway, "look", "first").await.status, 200);
    let ids: Vec<String> = (0..CALLS).map(|n| format!("r{n}")).collect();
    let calls = ids.iter().map(|id| call(&gateway, "look", id));
    let all = async {
        let mut calls: Vec<_> = calls.map(Box::pin).collect();
        std::future::poll_fn(|cx| {
            for call in &mut calls {
                drop(call.as_mut().poll(cx));
            }
            std::task::Poll::<()>::Pending
        })
        .await;
    };
    tokio::select! {
        () = all => {}
        () = wait_for("all calls", SOON, async || came.load(Ordering::SeqCst) > CALLS) => {}
    }
    assert!(tool.taken_back().is_empty(), "none has given up, so all are open at once");
    let mut on: std::collections::HashMap<usize, usize> = std::collections::HashMap::new();
    for seen in tool.seen().iter().skip(1) {
        *on.entry(seen.connection).or_default() += 1;
    }
    assert_eq!(on.get(&1), Some(&2), "as it was told: {on:?}");
}

#[tokio::test]
async fn bb_n09_what_a_goaway_left_out_is_asked_again_for_a_read_and_not_executed_for_a_write() {
    let tool = Http2Tool::start(100, |seen| match (seen.connection, seen.stream) {
        // Both are in flight when it says which of them it takes.
        (1, 1) => Vec::new(),
        (1, 3) => vec![Say::GoAway(1, NONE), Say::Ok(1, r#"{"which":1}"#)],
        _ => ok(seen),
    })
    .await;
    let gateway = pooled(&tool).await;
    let (one, two) = tokio::join!(call(&gateway, "look", "a"), async {
        wait_for("the first", SOON, async || !tool.seen().is_empty()).await;
        call(&gateway, "look", "b").await
    });
    assert_eq!(one.status, 200, "{}", one.text());
    assert_eq!(one.json()["value"]["which"], 1, "the stream below is answered");
    assert_eq!(two.status, 200, "{}", two.text());
    assert_eq!(two.json()["attempts"], 2, "{}", two.text());
    assert_eq!(tool.seen().last().expect("there").connection, 2);

    let tool = Http2Tool::start(100, |seen| match (seen.connection, seen.stream) {
        (1, 1) => Vec::new(),
        (1, 3) => vec![Say::GoAway(1, NONE), Say::Ok(1, r#"{"which":1}"#)],
        _ => ok(seen),
    })
    .await;
    let gateway = pooled(&tool).await;
    let (read, write) = tokio::join!(call(&gateway, "look", "a"), async {
        wait_for("the first", SOON, async || !tool.seen().is_empty()).await;
        call(&gateway, "make", "b").await
    });
    assert_eq!(read.status, 200, "{}", read.text());
    assert_eq!(told(&write), ("upstream_refused_stream".into(), "no".into()), "{}", write.text());
    assert_eq!(tool.seen().len(), 2, "and it was sent once");
}

#[tokio::test]
async fn h2_01_what_was_not_processed_is_not_executed_and_all_else_is_unknown() {
    let on = |say: fn(u32) -> Vec<Say>| {
        move |seen: &Seen| match (seen.connection, seen.stream) {
            (1, 1 | 3 | 5) => ok(seen),
            (_, stream) => say(stream),
        }
    };
    type Says = fn(u32) -> Vec<Say>;
    let unknown = ("outcome_unknown", "unknown");
    let refused = ("upstream_refused_stream", "no");
    let steps: [(&str, Says, (&str, &str)); 5] = [
        (
            "GOAWAY last_stream_id=5, our stream 7",
            |_| vec![Say::GoAway(5, NONE), Say::Close],
            refused,
        ),
        (
            "GOAWAY last_stream_id=7, our stream 7, then connection lost",
            |_| vec![Say::GoAway(7, NONE), Say::Close],
            unknown,
        ),
        ("RST_STREAM REFUSED_STREAM", |stream| vec![Say::Reset(stream, REFUSED_STREAM)], refused),
        ("RST_STREAM INTERNAL_ERROR", |stream| vec![Say::Reset(stream, INTERNAL_ERROR)], unknown),
        ("RST_STREAM CANCEL", |stream| vec![Say::Reset(stream, CANCEL)], unknown),
    ];
    let (events, outcomes) = (field_of_steps("H2-01", "ev"), field_of_steps("H2-01", "outcome"));
    for (n, (what, _, (_, executed))) in steps.iter().enumerate() {
        // The last two are one step of the vector; its fifth is below.
        let n = n.min(3);
        let step = events[n].as_str().expect("an event");
        assert!(n == 3 || step == *what, "{step}");
        assert_eq!(outcomes[n] == "not_executed", *executed == "no", "{what}");
    }
    assert_eq!(events.len(), 5);
    for (what, say, due) in steps {
        let tool = Http2Tool::start(100, on(say)).await;
        let gateway = pooled(&tool).await;
        for n in 0..3 {
            assert_eq!(call(&gateway, "look", &format!("r{n}")).await.status, 200);
        }
        let write = call(&gateway, "make", "w").await;
        let (code, executed) = told(&write);
        assert_eq!((&*code, &*executed), due, "{what}: {}", write.text());
        let sent = tool.seen().into_iter().filter(|seen| !seen.body.is_empty()).count();
        assert_eq!(sent, 1, "{what}: a write is sent once");
        assert_eq!(tool.seen().last().map(|seen| seen.stream), Some(7), "{what}");
    }
    // Refused for ever: one more sending beside the ordinary retries, and no end without an end.
    let tool = Http2Tool::start(100, |seen| vec![Say::Reset(seen.stream, REFUSED_STREAM)]).await;
    let gateway = gateway(&tool).await;
    let read = call(&gateway, "look", "r").await;
    assert_eq!(told(&read).0, "upstream_refused_stream", "{}", read.text());
    assert!((2..=4).contains(&tool.seen().len()), "{:?}", tool.seen());
}

#[tokio::test]
async fn a_tool_that_wants_less_is_left_alone_for_a_while() {
    let tool = Http2Tool::start(100, |seen| vec![Say::Reset(seen.stream, ENHANCE_YOUR_CALM)]).await;
    let gateway = gateway(&tool).await;
    let write = call(&gateway, "make", "w").await;
    assert_eq!(told(&write), ("outcome_unknown".into(), "unknown".into()), "{}", write.text());
    let next = call(&gateway, "make", "v").await;
    assert_eq!(told(&next), ("rate_limited".into(), "no".into()), "{}", next.text());
    assert_eq!(tool.seen().len(), 1);
}

#[tokio::test]
async fn bb_o12_a_head_with_too_much_in_it_names_the_limit_over_http2_too() {
    let tool = Http2Tool::start(100, |seen| {
        let (fields, bytes) = match seen.stream {
            1 => (150, 1),
            3 => (5, 20_000),
            _ => (5, 200),
        };
        vec![Say::Fields(seen.stream, fields, bytes)]
    })
    .await;
    let gateway = gateway(&tool).await;
    for _ in 0..2 {
        let got = call(&gateway, "look", "r").await;
        assert_eq!(told(&got).0, "upstream_protocol_error", "{}", got.text());
        assert!(got.text().contains("100 fields or 65536 bytes"), "{}", got.text());
    }
    assert_eq!(call(&gateway, "look", "r").await.status, 200);
    // Far more than anybody holds: the stream is given up, and the gateway goes on.
    let tool = Http2Tool::start(100, |seen| vec![Say::Fields(seen.stream, 50, 20_000)]).await;
    let gateway = self::gateway(&tool).await;
    let got = call(&gateway, "look", "r").await;
    assert_eq!(told(&got).0, "upstream_protocol_error", "{}", got.text());
}

#[tokio::test]
async fn an_exchange_that_runs_out_of_time_is_taken_back_and_its_connection_lives() {
    let tool = Http2Tool::start(100, |seen| match seen.stream {
        1 | 3 | 5 => Vec::new(),
        _ => ok(seen),
    })
    .await;
    let url = tool.url();
    let text = policy(&url, "http_version: h2", "").replace("first_byte: 2s", "first_byte: 200ms");
    let gateway = Gateway::start(&text).await;
    let got = call(&gateway, "look", "r").await;
    assert_eq!(told(&got).0, "upstream_timeout", "{}", got.text());
    wait_for("the resets", SOON, async || tool.taken_back().len() == 3).await;
    assert!(tool.taken_back().iter().all(|(connection, _)| *connection == 1));
    assert_eq!(call(&gateway, "look", "s").await.status, 200);
    assert!(tool.seen().iter().all(|seen| seen.connection == 1), "{:?}", tool.seen());
}
