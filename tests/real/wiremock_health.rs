//! The breaker against a real tool: what opens it, what does not, and how soon a tool that is back is used again.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::gateway::Gateway;
use crate::wiremock::{WireMock, policy};
use crate::{address_of, wait_for};

/// `ask` without retries, its breaker open after two bad calls in a row for `open_for`.
fn guarded(open_for: &str) -> Value {
    let breaker = json!({ "mode": "enforce", "consecutive_failures": 2, "open_for": open_for, "open_max": open_for });
    json!({ "tools": { "ask": { "retry": { "max_retries": 0 }, "breaker": breaker } } })
}

fn state(gateway: &Gateway, state: &str) -> f64 {
    gateway.metric(&format!("checkrein_breaker_state{{state=\"{state}\",tool=\"ask\"}}"))
}

#[test]
fn a_failing_tool_is_left_alone_and_its_refusals_cost_milliseconds() {
    let Some(wiremock) = WireMock::shared() else { return };
    wiremock.answers("/failing/ask", &json!({ "status": 500, "fixedDelayMilliseconds": 200 }));
    let gateway = Gateway::start(&policy(&wiremock.address, "/failing", &guarded("30s")));
    for n in 0..2 {
        assert_eq!(gateway.call("ask", &json!({ "n": n })).json()["error"], "tool_unavailable");
    }
    let from = Instant::now();
    let refused = gateway.call("ask", &json!({ "n": 9 }));
    assert!(
        from.elapsed() < Duration::from_millis(150),
        "refused at once, took {:?}",
        from.elapsed()
    );
    assert_eq!(refused.status, 503);
    let refused = refused.json();
    assert_eq!(refused["error"], "circuit_open", "{refused}");
    assert_eq!(refused["executed"], "no", "{refused}");
    assert!(refused["retry_after_ms"].as_u64().is_some_and(|wait| wait > 0), "{refused}");
    assert_eq!(wiremock.arrived("/failing/ask"), 2);
    assert_eq!((state(&gateway, "open"), state(&gateway, "closed")), (1.0, 0.0));
}

#[test]
fn a_tool_that_says_no_or_wait_is_not_ill() {
    let Some(wiremock) = WireMock::shared() else { return };
    for status in [404, 422, 429] {
        let prefix = format!("/says-{status}");
        wiremock.answers(&format!("{prefix}/ask"), &json!({ "status": status, "jsonBody": {} }));
        let gateway = Gateway::start(&policy(&wiremock.address, &prefix, &guarded("30s")));
        for n in 0..4 {
            let answer = gateway.call("ask", &json!({ "n": n })).json();
            assert_ne!(answer["error"], "circuit_open", "{status}: {answer}");
        }
        assert_eq!(state(&gateway, "closed"), 1.0, "{status}");
    }
}

#[test]
fn after_its_time_one_probe_closes_the_circuit() {
    let Some(wiremock) = WireMock::shared() else { return };
    let path = "/heals/ask";
    wiremock.answers(path, &json!({ "status": 500 }));
    let gateway = Gateway::start(&policy(&wiremock.address, "/heals", &guarded("1s")));
    for n in 0..2 {
        gateway.call("ask", &json!({ "n": n }));
    }
    assert_eq!(gateway.call("ask", &json!({ "n": 3 })).json()["error"], "circuit_open");
    wiremock.answers(path, &json!({ "status": 200, "jsonBody": { "well": true } }));
    let mut n = 10;
    wait_for("the tool is used again", Duration::from_secs(5), || {
        n += 1;
        Some(gateway.call("ask", &json!({ "n": n })).json()).filter(|answer| answer["ok"] == true)
    });
    assert_eq!(wiremock.arrived(path), 3, "two failures and the probe");
    assert_eq!(state(&gateway, "closed"), 1.0);
}

/// A WireMock of the test's own, so that it may be killed.
struct Own {
    child: Child,
    _folder: TempDir,
}

impl Own {
    fn start(port: u16) -> Option<Self> {
        let (java, jar) =
            (address_of("CHECKREIN_TEST_JAVA")?, address_of("CHECKREIN_TEST_WIREMOCK_JAR")?);
        let folder = TempDir::new().expect("a temporary folder");
        let child = Command::new(java)
            .args([
                "-Xmx128m",
                "-jar",
                &jar,
                "--bind-address",
                "127.0.0.1",
                "--disable-banner",
                "--port",
            ])
            .args([&port.to_string(), "--root-dir"])
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("java starts");
        Some(Self { child, _folder: folder })
    }

    fn kill(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("and ends");
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("WireMock could not be ended: {error}");
        }
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}

#[test]
fn a_tool_that_dies_is_known_not_to_have_acted_and_is_used_again_when_it_is_back() {
    let port = free_port();
    let wiremock = WireMock { address: format!("http://127.0.0.1:{port}") };
    let Some(mut own) = Own::start(port) else { return };
    wiremock.wait_until_ready();
    let fine = json!({ "status": 200, "jsonBody": {} });
    wiremock.answers("/mortal/ask", &fine);
    let gateway = Gateway::start(&policy(&wiremock.address, "/mortal", &guarded("1s")));
    assert_eq!(gateway.call("ask", &json!({ "n": 0 })).json()["ok"], true);

    own.kill();
    let write = gateway.call("act", &json!({ "n": 1 })).json();
    assert_eq!(
        (&write["error"], &write["executed"]),
        (&json!("upstream_unreachable"), &json!("no")),
        "{write}"
    );
    for n in 1..3 {
        assert_eq!(gateway.call("ask", &json!({ "n": n })).json()["error"], "upstream_unreachable");
    }
    assert_eq!(gateway.call("ask", &json!({ "n": 3 })).json()["error"], "circuit_open");

    let own = Own::start(port);
    assert!(own.is_some());
    wiremock.wait_until_ready();
    for path in ["/mortal/ask", "/mortal/act"] {
        wiremock.answers(path, &fine);
    }
    let mut n = 10;
    wait_for("the tool is used again", Duration::from_secs(5), || {
        n += 1;
        Some(gateway.call("ask", &json!({ "n": n })).json()).filter(|answer| answer["ok"] == true)
    });
    let again = gateway.call("act", &json!({ "n": 1 })).json();
    assert_eq!(again["ok"], true, "a write that never left may be asked again: {again}");
    assert_eq!(wiremock.arrived("/mortal/act"), 1);
}
