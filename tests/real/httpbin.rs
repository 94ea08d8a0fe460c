//! httpbin: what a plain public test service does with delays, drips, redirects and encodings.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::address_of;
use crate::gateway::Gateway;

/// One read `ask` at `GET path?…` with a total of one second and no retries.
fn gateway(address: &str, path: &str, more: &Value) -> Gateway {
    let properties =
        json!({ "q": { "type": "string", "maxLength": 200 }, "n": { "type": "integer" } });
    let mut tool = json!({
        "description": "Ask httpbin.", "effect": "read",
        "http": { "upstream": "httpbin", "method": "GET", "path": path },
        "schema": { "type": "object", "properties": properties },
        "timeout": { "connect": "500ms", "first_byte": "800ms", "idle": "800ms", "total": "1s" },
        "retry": { "max_retries": 0 },
    });
    for (key, value) in more.as_object().expect("an object") {
        tool[key] = value.clone();
    }
    let policy = json!({
        "apiVersion": "checkrein/v1", "kind": "Policy", "name": "httpbin",
        "upstreams": { "httpbin": { "base_url": address, "addresses": ["loopback"], "redirects": "same_origin" } },
        "tools": { "ask": tool },
        "agents": { "default": { "allow": ["ask"] } },
    });
    Gateway::start(&policy.to_string())
}

#[test]
fn httpbin_sees_the_arguments_encoded_as_one_value() {
    let Some(address) = address_of("CHECKREIN_TEST_HTTPBIN") else { return };
    let text = "a&b=c #?/ü%2e";
    let answer = gateway(&address, "/get", &json!({})).call("ask", &json!({ "q": text })).json();
    assert_eq!(answer["value"]["args"], json!({ "q": text }), "{answer}");
}

#[test]
fn httpbin_slower_than_the_limit_is_a_timeout_after_the_limit() {
    let Some(address) = address_of("CHECKREIN_TEST_HTTPBIN") else { return };
    let gateway = gateway(&address, "/delay/3", &json!({}));
    let from = Instant::now();
    let answer = gateway.call("ask", &json!({})).json();
    assert_eq!(answer["error"], "upstream_timeout", "{answer}");
    assert!(from.elapsed() < Duration::from_secs(2), "{:?}", from.elapsed());
}

#[test]
fn httpbin_dripping_does_not_extend_the_total() {
    let Some(address) = address_of("CHECKREIN_TEST_HTTPBIN") else { return };
    let text = json!({ "result": { "format": "text" }, "http": {
        "upstream": "httpbin", "method": "GET", "path": "/drip", "query": "rest",
    } });
    let gateway = gateway(&address, "/drip", &text);
    let from = Instant::now();
    let answer = gateway.call("ask", &json!({})).json(); // two seconds by default
    assert_eq!(answer["error"], "upstream_timeout", "{answer}");
    assert!(from.elapsed() < Duration::from_millis(1_900), "{:?}", from.elapsed());
}

#[test]
fn httpbin_compressed_answers_are_read() {
    let Some(address) = address_of("CHECKREIN_TEST_HTTPBIN") else { return };
    let answer = gateway(&address, "/gzip", &json!({})).call("ask", &json!({})).json();
    assert_eq!(answer["value"]["gzipped"], true, "{answer}");
}

#[test]
fn httpbin_redirects_of_its_own_origin_are_followed_three_hops_and_no_more() {
    let Some(address) = address_of("CHECKREIN_TEST_HTTPBIN") else { return };
    let near = gateway(&address, "/relative-redirect/3", &json!({})).call("ask", &json!({})).json();
    assert_eq!(near["ok"], true, "{near}");
    let far = gateway(&address, "/relative-redirect/4", &json!({})).call("ask", &json!({})).json();
    assert_eq!(far["error"], "upstream_redirect", "{far}");
}

#[test]
fn httpbin_statuses_are_told_apart() {
    let Some(address) = address_of("CHECKREIN_TEST_HTTPBIN") else { return };
    for (status, code) in [
        (404, "tool_error"),
        (418, "tool_error"),
        (500, "tool_unavailable"),
        (503, "tool_unavailable"),
    ] {
        let answer = gateway(&address, &format!("/status/{status}"), &json!({}))
            .call("ask", &json!({}))
            .json();
        assert_eq!(answer["error"], code, "{status}: {answer}");
    }
}

#[test]
fn httpbin_pages_that_are_not_json_are_not_results() {
    let Some(address) = address_of("CHECKREIN_TEST_HTTPBIN") else { return };
    let answer = gateway(&address, "/html", &json!({})).call("ask", &json!({})).json();
    assert_eq!(answer["error"], "upstream_protocol_error", "{answer}");
}
