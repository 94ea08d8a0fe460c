//! json-server keeps rows: a write that arrived twice is two rows, one that was refused is none.

use std::thread;

use serde_json::{Value, json};

use crate::address_of;
use crate::gateway::Gateway;
use crate::http;

struct Shop {
    address: String,
    gateway: Gateway,
}

impl Shop {
    fn open() -> Option<Self> {
        let address = address_of("CHECKREIN_TEST_JSON_SERVER")?;
        let text = |max: u32| json!({ "type": "string", "minLength": 1, "maxLength": max });
        let notice = json!({
            "type": "object", "required": ["order_id", "text"], "properties": { "order_id": text(80), "text": text(500) },
        });
        let order = json!({ "type": "object", "required": ["order_id"], "properties": { "order_id": text(80) } });
        let write = |path: &str, write: Value| {
            json!({
                "description": "Send a notice about an order.", "effect": "write", "profile": "internal_rpc",
                "http": { "upstream": "shop", "method": "POST", "path": path }, "schema": notice, "write": write,
            })
        };
        let policy = json!({
            "apiVersion": "checkrein/v1", "kind": "Policy", "name": "shop",
            "upstreams": { "shop": { "base_url": address, "addresses": ["loopback"] } },
            "tools": {
                "check_order": {
                    "description": "Look up the state of one order.", "effect": "read", "profile": "internal_rpc",
                    "http": { "upstream": "shop", "method": "GET", "path": "/orders/{order_id}" }, "schema": order,
                },
                "send_notice": write("/notices", json!({ "fingerprint": ["/order_id", "/text"] })),
                "send_quietly": write("/notices", json!({})),
            },
            "agents": { "default": { "allow": ["check_order", "send_notice"] } },
        });
        Some(Self { address, gateway: Gateway::start(&policy.to_string()) })
    }

    /// Rows about this order, as json-server counts them.
    fn rows(&self, order: &str) -> Vec<Value> {
        let answer = http::get(&format!("{}/notices?order_id={order}", self.address))
            .expect("json-server answers");
        answer.json().as_array().expect("a list").clone()
    }
}

#[test]
fn a_read_returns_what_the_tool_holds() {
    let Some(shop) = Shop::open() else { return };
    let answer = shop.gateway.call("check_order", &json!({ "order_id": "A17" })).json();
    assert_eq!(answer["value"]["status"], "in_transit", "{answer}");
    let missing = shop.gateway.call("check_order", &json!({ "order_id": "B99" })).json();
    assert_eq!(missing["error"], "tool_error", "{missing}");
    let escape = shop.gateway.call("check_order", &json!({ "order_id": "../notices" })).json();
    assert_eq!(escape["ok"], false, "an id stays one segment: {escape}");
}

#[test]
fn a_write_is_one_row_however_often_it_is_asked_for() {
    let Some(shop) = Shop::open() else { return };
    let arguments = json!({ "order_id": "once", "text": "on its way" });
    let first = shop.gateway.call("send_notice", &arguments).json();
    assert_eq!(first["ok"], true, "{first}");
    for id in ["call-2", "call-3"] {
        let again =
            shop.gateway.call_with("send_notice", &arguments, &[("Checkrein-Call-Id", id)]).json();
        assert_eq!((&again["ok"], &again["replayed"]), (&json!(true), &json!(true)), "{again}");
        assert_eq!(again["value"], first["value"]);
    }
    assert_eq!(shop.rows("once").len(), 1);
}

#[test]
fn the_same_write_asked_for_at_once_from_many_sides_is_one_row() {
    let Some(shop) = Shop::open() else { return };
    let arguments = json!({ "order_id": "crowd", "text": "on its way" });
    let answers: Vec<Value> = thread::scope(|scope| {
        let askers: Vec<_> = (0..12)
            .map(|n| {
                // Runs of their own: one that comes late must not meet the fuse of the others.
                let (gateway, arguments, run) = (&shop.gateway, &arguments, format!("side-{n}"));
                let ask = move || {
                    gateway.call_with("send_notice", arguments, &[("Checkrein-Run", &run)]).json()
                };
                scope.spawn(ask)
            })
            .collect();
        askers.into_iter().map(|asker| asker.join().expect("an answer")).collect()
    });
    assert!(answers.iter().all(|answer| answer["ok"] == true), "{answers:?}");
    assert_eq!(shop.rows("crowd").len(), 1);
}

#[test]
fn what_is_refused_leaves_no_row() {
    let Some(shop) = Shop::open() else { return };
    let order = "refused";
    let tries = [
        ("send_quietly", json!({ "order_id": order, "text": "psst" }), "unknown_tool"),
        ("send_notice", json!({ "order_id": order }), "invalid_arguments"),
        (
            "send_notice",
            json!({ "order_id": order, "text": "x", "priority": 1 }),
            "invalid_arguments",
        ),
        ("send_notice", json!({ "order_id": order, "text": 7 }), "invalid_arguments"),
    ];
    for (tool, arguments, code) in tries {
        let answer = shop.gateway.call(tool, &arguments).json();
        assert_eq!(
            (&answer["error"], &answer["executed"]),
            (&json!(code), &json!("no")),
            "{answer}"
        );
    }
    assert_eq!(shop.rows(order).len(), 0);
}

#[test]
fn a_batch_answers_every_call_under_its_own_id() {
    let Some(shop) = Shop::open() else { return };
    let call = |id: &str, name: &str, arguments: &Value| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments.to_string() } });
    let message = json!({ "role": "assistant", "content": null, "tool_calls": [
        call("c1", "check_order", &json!({ "order_id": "A17" })),
        call("c2", "send_notice", &json!({ "order_id": "batch", "text": "on its way" })),
        call("c3", "send_quietly", &json!({ "order_id": "batch", "text": "psst" })),
    ] });
    let answer = shop.gateway.batch(&message);
    assert_eq!(answer["state"], "continue", "{answer}");
    let ids: Vec<&Value> =
        answer["messages"].as_array().expect("a list").iter().map(|m| &m["tool_call_id"]).collect();
    assert_eq!(ids, [&json!("c1"), &json!("c2"), &json!("c3")], "{answer}");
    assert_eq!(shop.rows("batch").len(), 1, "{answer}");

    let twice = json!({ "role": "assistant", "content": null, "tool_calls": [
        call("c9", "send_notice", &json!({ "order_id": "twins", "text": "a" })),
        call("c9", "send_notice", &json!({ "order_id": "twins", "text": "b" })),
    ] });
    let refused = shop.gateway.batch(&twice);
    assert_eq!(refused["state"], "protocol_error", "{refused}");
    assert_eq!(shop.rows("twins").len(), 0, "a repeated id refuses the whole batch");
}
