//! Writes of plain HTTP clients: at most once, by their own key or by what they say, and told truly.

use serde_json::{Value, json};

use super::kit::{Manual, Peer, Shop};
use crate::support::Reply;

const ORDERS: &str = r#"
  order_put:
    description: Put an order.
    proxy: { upstream: shop, methods: [PUT], path: "/orders/{id}", request_bytes: 2KiB }
  order_pay:
    description: Pay an order.
    proxy: { upstream: shop, methods: [POST], path: "/orders/{id}/pay" }
    schema:
      type: object
      required: [path, body]
      properties:
        path: { type: object, required: [id], properties: { id: { type: string, maxLength: 20, pattern: "^[a-z0-9]+$" } } }
        body: { type: object, required: [amount], properties: { amount: { type: integer, minimum: 1, maximum: 100 }, note: { type: string, maxLength: 20 } } }
    write: { fingerprint: [/path/id], idempotency: { mode: header } }
"#;

async fn shop() -> Shop {
    Shop::with(ORDERS, |text| text).await
}

#[tokio::test]
async fn a_clients_key_is_honoured_a_finished_write_is_told_again_with_its_head() {
    let shop = shop().await;
    let headers = vec![("location", "/orders/7".to_owned()), ("content-type", "text/plain".into())];
    let body = b"made".to_vec();
    shop.tool.script("/orders", [Reply::Full { apply: false, status: 201, headers, body }]);
    let key = [("idempotency-key", "k1")];
    let first = shop.ask("PUT", "/orders/7", &key, b"{\"n\":1}").await;
    let again = shop.ask("PUT", "/orders/7", &key, b"{ \"n\": 1.0 }").await;
    for answer in [&first, &again] {
        assert_eq!((answer.status, answer.text()), (201, "made".to_owned()));
        assert_eq!(answer.header("location"), Some("/proxy/shop/orders/7"));
    }
    assert_eq!(first.header("checkrein-replayed"), None);
    assert_eq!(again.header("checkrein-replayed"), Some("true"));
    let other = shop.ask("PUT", "/orders/7", &key, b"{\"n\":2}").await;
    assert_eq!((other.status, other.json()["error"].as_str()), (422, Some("idempotency_conflict")));
    assert_eq!(other.header("content-type"), Some("application/problem+json"));
    assert_eq!(shop.tool.requests().len(), 1);
}

#[tokio::test]
async fn without_a_key_the_same_write_is_a_new_one_and_says_so() {
    let shop = shop().await;
    let first = shop.ask("PUT", "/orders/7", &[], b"abc").await;
    assert_eq!((first.status, first.header("checkrein-identical-to")), (200, None));
    let same = shop.ask("PUT", "/orders/7", &[], b"abc").await;
    assert!(
        same.header("checkrein-identical-to").is_some_and(|operation| operation.starts_with("op_"))
    );
    for (path, body) in [("/orders/7", &b"abd"[..]), ("/orders/8", b"abc"), ("/orders/7?x", b"abc")]
    {
        let other = shop.ask("PUT", path, &[], body).await;
        assert_eq!(other.header("checkrein-identical-to"), None, "{path}");
    }
    assert_eq!(shop.tool.requests().len(), 5);
}

/// A write that may have happened is 409, which clients do not repeat by themselves, and blocks its like.
#[tokio::test]
async fn a_write_that_nobody_knows_of_is_a_conflict_and_is_not_sent_again() {
    let shop = shop().await;
    for (count, reply) in [(1, Reply::Status(500)), (2, Reply::Close), (3, Reply::Reset)] {
        shop.tool.script("/orders", [reply]);
        let path = format!("/orders/{count}");
        let unknown = shop.ask("PUT", &path, &[], b"{\"b\":1,\"a\":2}").await;
        assert_eq!(
            (unknown.status, unknown.json()["error"].as_str()),
            (409, Some("outcome_unknown"))
        );
        assert_eq!(unknown.header("checkrein-outcome"), Some("outcome_unknown"));
        assert_eq!(unknown.json()["executed"], "unknown");
        shop.tool.script("/orders", [Reply::Ok]);
        let again = shop.ask("PUT", &path, &[], b"{\"a\":2.0,\"b\":1}").await;
        assert_eq!((again.status, again.json()["error"].as_str()), (409, Some("review_required")));
        assert_eq!(shop.tool.requests().len(), count);
    }
    assert_eq!(shop.ask("PUT", "/orders/1", &[], b"{\"b\":2}").await.status, 200, "another one");
}

#[tokio::test]
async fn a_definite_refusal_of_the_tool_passes_with_its_body_and_frees_the_operation() {
    let shop = shop().await;
    for status in [400, 404, 409, 422, 429] {
        let headers = vec![("content-type", "application/json".to_owned())];
        let body = b"{\"why\":\"no\"}".to_vec();
        shop.tool
            .script("/orders", [Reply::Full { apply: false, status, headers, body }, Reply::Ok]);
        let path = format!("/orders/{status}");
        let refused = shop.ask("PUT", &path, &[], b"x").await;
        assert_eq!((refused.status, refused.json()), (status, json!({ "why": "no" })));
        let code = if status == 429 { "rate_limited" } else { "tool_error" };
        assert_eq!(refused.header("checkrein-outcome"), Some(code));
        if status != 429 {
            assert_eq!(shop.ask("PUT", &path, &[], b"x").await.status, 200);
        }
    }
    let cooling = shop.ask("PUT", "/orders/x", &[], b"x").await;
    assert_eq!((cooling.status, cooling.json()["limited_by"].as_str()), (429, Some("tool")));
    assert!(cooling.header("retry-after").is_some());
}

/// It happened, and its answer is lost: told as executed, and never sent again.
#[tokio::test]
async fn an_answer_to_a_write_that_breaks_off_after_its_head_is_executed_with_its_result_lost() {
    let shop = shop().await;
    shop.tool.script("/orders", [Reply::Cut { apply: true }]);
    let lost = shop.ask("PUT", "/orders/7", &[("idempotency-key", "k")], b"x").await;
    assert_eq!((lost.status, lost.json()["error"].as_str()), (502, Some("result_lost")));
    assert_eq!((&lost.json()["executed"], &lost.json()["retry"]), (&json!("yes"), &json!("never")));
    let again = shop.ask("PUT", "/orders/7", &[("idempotency-key", "k")], b"x").await;
    assert_eq!(again.json()["executed"], "yes", "{}", again.text());
    assert_eq!(shop.tool.requests().len(), 1);
}

#[tokio::test]
async fn a_write_is_known_whole_before_it_is_sent_and_over_its_bound_not_at_all() {
    let (tool, gateway) = Manual::with(ORDERS, |text| text).await;
    let mut client = Peer::dial(gateway.data).await;
    let head = "PUT /proxy/shop/orders/7 HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n";
    client.send(&format!("{head}3\r\nabc\r\n")).await;
    assert!(tool.is_left_alone().await, "not while it is on its way");
    client.send("0\r\n\r\n").await;
    let mut peer = tool.next().await;
    assert!(peer.until("abc").await.contains("content-length: 3\r\n"));
    peer.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    client.until("\r\n\r\n").await;
    let mut client = Peer::dial(gateway.data).await;
    client.send(&format!("{head}900\r\n{}\r\n0\r\n\r\n", "x".repeat(0x900))).await;
    assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 413 "));
    assert!(tool.is_left_alone().await);
}

#[tokio::test]
async fn a_schema_judges_path_and_body_and_a_fingerprint_names_the_operation() {
    let shop = shop().await;
    let pay = async |path: &str, media: &str, body: &str| {
        let fields = [("content-type", media)];
        shop.ask("POST", path, &fields, body.as_bytes()).await
    };
    let json_type = "application/json";
    for (path, media, body, at) in [
        ("/orders/A/pay", json_type, "{\"amount\":1}", "/path/id"),
        ("/orders/a/pay", json_type, "{\"amount\":0}", "/body/amount"),
        ("/orders/a/pay", json_type, "{\"amount\":1,\"other\":2}", "/body/other"),
        ("/orders/a/pay", json_type, "{\"amount\":1,\"amount\":2}", "/body"),
        ("/orders/a/pay", json_type, "{\"amount\":", "/body"),
        ("/orders/a/pay", "text/plain", "amount=1", "/body_sha256"),
        ("/orders/a/pay?x=1", json_type, "{\"amount\":1}", "/query"),
    ] {
        let refused = pay(path, media, body).await;
        assert_eq!(
            (refused.status, refused.json()["error"].as_str()),
            (422, Some("invalid_arguments"))
        );
        let faults = refused.json()["faults"].as_array().cloned().unwrap_or_default();
        let places: Vec<&str> = faults.iter().filter_map(|fault| fault["at"].as_str()).collect();
        assert!(places.iter().any(|place| place.starts_with(at)), "{body}: {places:?}");
    }
    assert!(shop.tool.requests().is_empty());
    let paid = pay("/orders/a/pay", json_type, "{ \"amount\" : 1 }").await;
    assert_eq!(paid.status, 200, "{}", paid.text());
    assert_eq!(shop.tool.last().text(), "{ \"amount\" : 1 }", "the client's own bytes");
    let key = shop.tool.last().header("idempotency-key").map(str::to_owned);
    assert_eq!(key.as_ref().map(String::len), Some(43), "a derived key");
    let again = pay("/orders/a/pay", json_type, "{\"amount\":1}").await;
    assert_eq!(again.header("checkrein-replayed"), Some("true"));
    let other = pay("/orders/a/pay", json_type, "{\"amount\":2}").await;
    assert_eq!(other.json()["error"], "idempotency_conflict");
    assert_eq!(shop.tool.requests().len(), 1);
}

/// A tool that takes the key is asked again under it, with the same bytes.
#[tokio::test]
async fn an_unknown_write_of_a_tool_that_knows_the_key_is_sent_again_with_the_same_body() {
    let shop = Shop::with(ORDERS, |text| {
        text.replace("idempotency: { mode: header }", "idempotency: { mode: header, window: 1h }")
    })
    .await;
    shop.tool.script("/orders", [Reply::ApplyThenClose, Reply::Ok]);
    let paid = shop.ask("POST", "/orders/a/pay", &[], b"{\"amount\":1}").await;
    assert_eq!(paid.status, 200, "{}", paid.text());
    let sent = shop.tool.requests();
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[0].header("idempotency-key"), sent[1].header("idempotency-key"));
    assert_eq!(sent[0].body, sent[1].body);
}

#[tokio::test]
async fn a_write_goes_on_when_its_client_hangs_up() {
    let (tool, gateway) = Manual::with(ORDERS, |text| text).await;
    let mut client = Peer::dial(gateway.data).await;
    client.send("PUT /proxy/shop/orders/7 HTTP/1.1\r\nhost: g\r\nidempotency-key: k\r\ncontent-length: 1\r\n\r\nx").await;
    let mut peer = tool.next().await;
    peer.until("\r\n\r\nx").await;
    drop(client);
    peer.send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone").await;
    let key = [("idempotency-key", "k")];
    let mut told = None;
    crate::support::wait_for("the answer", super::kit::SOON, async || {
        let path = "/proxy/shop/orders/7";
        let answer = crate::support::http::request(gateway.data, "PUT", path, &key, b"x").await;
        let there = answer.status == 200;
        told = Some(answer);
        there
    })
    .await;
    let told = told.expect("answered");
    assert_eq!((told.text().as_str(), told.header("checkrein-replayed")), ("done", Some("true")));
    crate::support::wait_for("the record", super::kit::SOON, async || {
        let ended = |record: &Value| record["kind"] == "call" && record["outcome"] == "ok";
        gateway.records().iter().any(ended)
    })
    .await;
}
