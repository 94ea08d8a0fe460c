//! Streams that belong to no call.

use std::time::Duration;

use checkrein::identity::Peer;
use http_body_util::BodyExt;
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::peer::{Session, Stream, as_pairs, build, modern};
use crate::front_ends::kit::House;

async fn open(house: &House, method: &str, fields: &[(&str, &str)], body: &str) -> Stream {
    let request = build(method, fields, body);
    let response = house.front_ends.clone().answer(Peer::Loopback, request).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    Stream::new(response.into_body())
}

async fn get(house: &House, session: &Session) -> Stream {
    let mut fields = session.fields();
    fields.push(("accept", "text/event-stream"));
    open(house, "GET", &fields, "").await
}

async fn listen(house: &House, filter: serde_json::Value) -> Stream {
    let (fields, body) =
        modern("\"sub\"", "subscriptions/listen", &json!({"notifications": filter}));
    open(house, "POST", &as_pairs(&fields), &body).await
}

/// Nothing is said for a while.
async fn quiet(stream: &mut Stream) {
    let heard = timeout(Duration::from_secs(5), stream.next()).await;
    assert!(heard.is_err(), "{heard:?}");
}

const DEFAULT: &str =
    "default: { allow: [lookup_order, list_regions, search, create_order, send_notice] }";
const FEWER: &str = "default: { allow: [lookup_order, list_regions] }";

#[tokio::test(start_paused = true)]
async fn bad_reload_keeps_the_good_catalog() {
    let house = House::new();
    let session = Session::open(&house).await;
    let mut stream = get(&house, &session).await;
    let mut listener =
        listen(&house, json!({"toolsListChanged": true, "promptsListChanged": true})).await;
    let acknowledged = listener.next().await.expect("first");
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(acknowledged["params"]["notifications"], json!({"toolsListChanged": true}));
    let names = async || {
        let listed = session.ask(&house, "1", "tools/list", &json!({})).await;
        listed.result()["tools"].as_array().expect("tools").len()
    };
    assert!(!house.reload(DEFAULT, "default: { alow: [lookup_order] }"));
    assert_eq!(names().await, 5);
    quiet(&mut stream).await;
    // A reload that changes nothing this agent may see says nothing to it.
    assert!(house.reload("allow: [list_regions] }", "allow: [search] }"));
    quiet(&mut stream).await;
    assert!(house.reload(DEFAULT, FEWER));
    assert!(house.reload(DEFAULT, FEWER));
    let began = Instant::now();
    assert_eq!(stream.next().await.expect("told")["method"], "notifications/tools/list_changed");
    assert!(began.elapsed() <= Duration::from_secs(1));
    let told = listener.next().await.expect("told");
    assert_eq!(told["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "sub");
    assert_eq!(names().await, 2);
    quiet(&mut stream).await;
    quiet(&mut listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_second_stream_of_a_session_replaces_the_first_and_its_end_ends_it() {
    let house = House::new();
    let session = Session::open(&house).await;
    let mut first = get(&house, &session).await;
    let mut second = get(&house, &session).await;
    assert_eq!(first.next().await, None);
    quiet(&mut second).await;
    super::peer::raw(&house, "DELETE", &session.fields(), "").await;
    assert_eq!(second.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn what_was_not_asked_for_is_not_said_and_a_bad_filter_is_refused() {
    let house = House::new();
    let mut listener = listen(&house, json!({"resourceSubscriptions": ["file:///a"]})).await;
    let acknowledged = listener.next().await.expect("first");
    assert_eq!(acknowledged["params"]["notifications"], json!({}), "nothing of it is offered");
    assert!(house.reload(DEFAULT, FEWER));
    quiet(&mut listener).await;
    for filter in [
        json!(null),
        json!([]),
        json!({"toolsListChanged": 1}),
        json!({"resourceSubscriptions": [1]}),
    ] {
        let params = json!({"notifications": filter});
        let got = super::peer::ask_modern(&house, None, "1", "subscriptions/listen", &params).await;
        assert_eq!((got.status, got.code()), (400, -32602), "{filter}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_subscription_is_answered_when_the_gateway_ends_and_a_quiet_one_is_kept_alive() {
    let house = House::new();
    let (fields, body) =
        modern("7", "subscriptions/listen", &json!({"notifications": {"toolsListChanged": true}}));
    let request = build("POST", &as_pairs(&fields), &body);
    let response = house.front_ends.clone().answer(Peer::Loopback, request).await;
    let mut body = response.into_body();
    let mut frames = Vec::new();
    for _ in 0..2 {
        let frame = body.frame().await.expect("a frame").expect("whole");
        frames.push(frame.into_data().expect("data"));
    }
    assert!(frames[1].starts_with(b":"), "a comment: {frames:?}");
    house.engine.drain();
    let mut stream = Stream::new(body);
    let last = stream.next().await.expect("an answer");
    assert_eq!((&last["id"], &last["result"]["resultType"]), (&json!(7), &json!("complete")));
    assert_eq!(last["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 7);
    assert_eq!(stream.next().await, None);
}
