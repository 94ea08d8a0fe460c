//! WireMock by its admin API: what it shall answer, and what it says has arrived.

use std::time::Duration;

use serde_json::{Value, json};

use crate::http;
use crate::{address_of, wait_for};

pub(crate) struct WireMock {
    pub(crate) address: String,
}

impl WireMock {
    /// The one that `tests/real/with` started; shared, so every test keeps to paths of its own.
    pub(crate) fn shared() -> Option<Self> {
        address_of("CHECKREIN_TEST_WIREMOCK").map(|address| Self { address })
    }

    /// Answers any method at this path as told (WireMock's response definition).
    pub(crate) fn answers(&self, path: &str, response: &Value) {
        self.maps(&json!({ "request": { "urlPath": path }, "response": response }));
    }

    /// The first request at this path gets `first`, all later ones `then`.
    pub(crate) fn answers_first(&self, path: &str, first: &Value, then: &Value) {
        let steps = [("Started", "later", first), ("later", "later", then)];
        for (from, to, response) in steps {
            self.maps(&json!({
                "scenarioName": path, "requiredScenarioState": from, "newScenarioState": to,
                "request": { "urlPath": path }, "response": response,
            }));
        }
    }

    fn maps(&self, mapping: &Value) {
        let mut mapping = mapping.clone();
        if mapping["response"]["jsonBody"].is_object() {
            mapping["response"]["headers"]["Content-Type"] = json!("application/json"); // WireMock adds none
        }
        let answer = http::post(&format!("{}/__admin/mappings", self.address), &mapping)
            .expect("WireMock answers");
        assert_eq!(answer.status, 201, "{}", answer.text());
    }

    /// How many requests have arrived at this path: WireMock writes them down before it answers.
    pub(crate) fn arrived(&self, path: &str) -> u64 {
        let url = format!("{}/__admin/requests/count", self.address);
        let answer =
            http::post(&url, &json!({ "urlPath": path })).expect("WireMock answers").json();
        answer["count"].as_u64().expect("a count")
    }

    /// The bodies that have arrived at this path.
    pub(crate) fn bodies(&self, path: &str) -> Vec<String> {
        let url = format!("{}/__admin/requests/find", self.address);
        let found = http::post(&url, &json!({ "urlPath": path })).expect("WireMock answers").json();
        let requests = found["requests"].as_array().expect("a list");
        requests
            .iter()
            .map(|request| request["body"].as_str().expect("a text").to_owned())
            .collect()
    }

    pub(crate) fn wait_until_ready(&self) {
        wait_for("WireMock answers", Duration::from_secs(60), || {
            http::get(&format!("{}/__admin/mappings", self.address))
                .ok()
                .filter(|answer| answer.status == 200)
        });
    }
}

/// A policy with a read `ask` (`GET PREFIX/ask`) and a write `act` (`POST PREFIX/act`) at one upstream, with short
/// times: first byte 400 ms, total 1 s, two retries a few milliseconds apart. `more` is laid over it, key by key.
pub(crate) fn policy(address: &str, prefix: &str, more: &Value) -> String {
    let timeout =
        json!({ "connect": "500ms", "first_byte": "400ms", "idle": "400ms", "total": "1s" });
    let schema = json!({ "type": "object", "required": ["n"], "properties": { "n": { "type": "integer" } } });
    let mut policy = json!({
        "apiVersion": "checkrein/v1", "kind": "Policy", "name": "faults",
        "upstreams": { "tool": { "base_url": address, "addresses": ["loopback"], "breaker": { "mode": "disabled" } } },
        "tools": {
            "ask": {
                "description": "Ask the tool.", "effect": "read", "timeout": timeout, "schema": schema,
                "http": { "upstream": "tool", "method": "GET", "path": format!("{prefix}/ask") },
                "retry": { "max_retries": 2, "deadline": "20s", "backoff": { "mode": "none", "base": "5ms", "max": "10ms" } },
                "breaker": { "mode": "disabled" },
            },
            "act": {
                "description": "Let the tool act.", "effect": "write", "timeout": timeout, "schema": schema,
                "http": { "upstream": "tool", "method": "POST", "path": format!("{prefix}/act") },
                "breaker": { "mode": "disabled" },
                "write": { "fingerprint": ["/n"] },
            },
        },
        "agents": { "default": { "allow": ["ask", "act"] } },
    });
    lay_over(&mut policy, more);
    policy.to_string() // JSON is YAML
}

fn lay_over(under: &mut Value, over: &Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (key, value) in over {
                lay_over(under.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (under, over) => *under = over.clone(),
    }
}
