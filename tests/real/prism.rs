//! Prism (tests/run --full) judges by an OpenAPI file what reaches the tool: what Checkrein lets through, it accepts;
//! what only it can know is a tool's "no" with the field in it.

use serde_json::{Value, json};

use crate::address_of;
use crate::gateway::Gateway;

fn gateway(address: &str) -> Gateway {
    let text = |max: u32| json!({ "type": "string", "minLength": 1, "maxLength": max });
    let policy = json!({
        "apiVersion": "checkrein/v1", "kind": "Policy", "name": "prism",
        "upstreams": { "shop": { "base_url": address, "addresses": ["loopback"] } },
        "tools": {
            "check_order": {
                "description": "Look up one order.", "effect": "read", "profile": "internal_rpc",
                "http": { "upstream": "shop", "method": "GET", "path": "/orders/{order_id}" },
                "schema": { "type": "object", "required": ["order_id"], "properties": {
                    "order_id": text(80), "fields": { "type": "string" },
                } },
            },
            "send_notice": {
                "description": "Send a notice.", "effect": "write", "profile": "internal_rpc",
                "http": { "upstream": "shop", "method": "POST", "path": "/notices" },
                "schema": { "type": "object", "required": ["order_id", "text"], "properties": {
                    "order_id": text(80), "text": text(500), "copies": { "type": "integer" },
                } },
                "write": { "fingerprint": ["/order_id", "/text"] },
            },
        },
        "agents": { "default": { "allow": ["check_order", "send_notice"] } },
    });
    Gateway::start(&policy.to_string())
}

fn judged(tool: &str, arguments: &Value) -> Option<Value> {
    let address = address_of("CHECKREIN_TEST_PRISM")?;
    Some(gateway(&address).call(tool, arguments).json())
}

#[test]
fn prism_accepts_what_is_sent() {
    let Some(read) = judged("check_order", &json!({ "order_id": "A17", "fields": "all" })) else {
        return;
    };
    assert_eq!(read["value"]["status"], "in_transit", "{read}");
    let write =
        judged("send_notice", &json!({ "order_id": "A17", "text": "über & unter", "copies": 2 }));
    let write = write.expect("Prism is there");
    assert_eq!(write["value"]["id"], 1, "{write}");
}

#[test]
fn prism_finds_fault_and_the_model_hears_which() {
    let Some(read) = judged("check_order", &json!({ "order_id": "lower" })) else { return };
    assert_eq!(
        (&read["error"], &read["retry"]),
        (&json!("tool_error"), &json!("changed")),
        "{read}"
    );
    assert!(read.to_string().contains("order_id"), "the tool's own words are passed on: {read}");
    let write = judged("send_notice", &json!({ "order_id": "A17", "text": "x", "copies": 0 }))
        .expect("Prism is there");
    assert_eq!(
        (&write["error"], &write["executed"]),
        (&json!("tool_error"), &json!("no")),
        "{write}"
    );
}
