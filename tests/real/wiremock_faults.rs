//! The fault table: every fault once with a read and once with a write. WireMock's journal is the verdict: a write
//! arrives at most once, a read at most once and its retries; the answer must be what the failure means.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::gateway::Gateway;
use crate::wait_for;
use crate::wiremock::{WireMock, policy};

/// What one call must have come to.
struct Want {
    /// The code of the answer; `""` is a success.
    code: &'static str,
    executed: &'static str,
    arrived: u64,
}

const fn ok(arrived: u64) -> Want {
    Want { code: "", executed: "", arrived }
}
const fn fails(code: &'static str, executed: &'static str, arrived: u64) -> Want {
    Want { code, executed, arrived }
}
/// A write that may have happened: said once, sent once.
const UNKNOWN: Want = fails("outcome_unknown", "unknown", 1);

fn check(what: &str, answer: &Value, want: &Want) {
    if want.code.is_empty() {
        assert_eq!(answer["ok"], true, "{what}: {answer}");
        return;
    }
    assert_eq!(answer["ok"], false, "{what}: {answer}");
    assert_eq!(answer["error"], want.code, "{what}: {answer}");
    if !want.executed.is_empty() {
        assert_eq!(answer["executed"], want.executed, "{what}: {answer}");
    }
    for field in ["message", "hint", "retry"] {
        assert!(
            answer[field].as_str().is_some_and(|text| !text.is_empty()),
            "{what} lacks {field}: {answer}"
        );
    }
}

/// Runs one row: the read, the write, and the write again under a new call id where it must not run twice.
fn row(name: &str, response: &Value, read: &Want, write: &Want) {
    row_with(name, response, &json!({}), read, write);
}

fn row_with(name: &str, response: &Value, more: &Value, read: &Want, write: &Want) {
    let Some(wiremock) = WireMock::shared() else { return };
    let (ask, act) = (format!("/{name}/ask"), format!("/{name}/act"));
    wiremock.answers(&ask, response);
    wiremock.answers(&act, response);
    let gateway = Gateway::start(&policy(&wiremock.address, &format!("/{name}"), more));

    check("read", &gateway.call("ask", &json!({ "n": 1 })).json(), read);
    assert_eq!(wiremock.arrived(&ask), read.arrived, "reads that arrived");

    check("write", &gateway.call("act", &json!({ "n": 1 })).json(), write);
    assert_eq!(wiremock.arrived(&act), write.arrived, "writes that arrived");
    if write.code == "outcome_unknown" {
        let again = gateway.call("act", &json!({ "n": 1 })).json();
        check("the same write again", &again, &fails("review_required", "unknown", 1));
        assert_eq!(wiremock.arrived(&act), 1, "an unknown write is never repeated");
    }
}

#[test]
fn a_delay_below_the_limits_changes_nothing() {
    row(
        "slow-but-fine",
        &json!({ "status": 200, "jsonBody": { "done": true }, "fixedDelayMilliseconds": 150 }),
        &ok(1),
        &ok(1),
    );
}

#[test]
fn a_delay_above_the_limits_times_a_read_out_and_a_late_answer_settles_the_write() {
    let Some(wiremock) = WireMock::shared() else { return };
    let late =
        json!({ "status": 200, "jsonBody": { "done": true }, "fixedDelayMilliseconds": 1500 });
    wiremock.answers("/late/ask", &late);
    wiremock.answers("/late/act", &late);
    let gateway = Gateway::start(&policy(&wiremock.address, "/late", &json!({})));

    check(
        "read",
        &gateway.call("ask", &json!({ "n": 1 })).json(),
        &fails("upstream_timeout", "", 3),
    );
    assert_eq!(wiremock.arrived("/late/ask"), 3);

    check("write", &gateway.call("act", &json!({ "n": 1 })).json(), &UNKNOWN);
    let settled = wait_for("the late answer settles the write", Duration::from_secs(10), || {
        Some(gateway.call("act", &json!({ "n": 1 })).json()).filter(|answer| answer["ok"] == true)
    });
    assert_eq!(settled["replayed"], true, "{settled}");
    assert_eq!(settled["value"]["done"], true, "{settled}");
    assert_eq!(wiremock.arrived("/late/act"), 1, "it was drained, not sent again");
}

#[test]
fn a_drip_fed_body_does_not_extend_the_total() {
    let Some(wiremock) = WireMock::shared() else { return };
    let drip = json!({
        "status": 200, "jsonBody": { "a": 1, "b": 2, "c": 3, "d": 4 },
        "chunkedDribbleDelay": { "numberOfChunks": 20, "totalDuration": 4000 },
    });
    wiremock.answers("/drip/ask", &drip);
    wiremock.answers("/drip/act", &drip);
    let gateway = Gateway::start(&policy(&wiremock.address, "/drip", &json!({})));

    let from = Instant::now();
    check(
        "read",
        &gateway.call("ask", &json!({ "n": 1 })).json(),
        &fails("upstream_timeout", "", 3),
    );
    let took = from.elapsed();
    assert!(
        took >= Duration::from_secs(3) && took < Duration::from_secs(5),
        "three attempts of 1 s took {took:?}"
    );
    assert_eq!(wiremock.arrived("/drip/ask"), 3);

    let from = Instant::now();
    let answer = gateway.call("act", &json!({ "n": 1 })).json();
    assert!(from.elapsed() < Duration::from_secs(2), "the agent waits for the total only");
    // The head was a 200: it ran, and what it said is lost.
    check("write", &answer, &fails("result_lost", "yes", 1));
    assert_eq!(answer["retry"], "never", "{answer}");
    assert_eq!(wiremock.arrived("/drip/act"), 1);
}

#[test]
fn a_reset_before_any_byte() {
    row(
        "reset",
        &json!({ "fault": "CONNECTION_RESET_BY_PEER" }),
        &fails("upstream_reset", "", 3),
        &UNKNOWN,
    );
}

#[test]
fn a_close_before_any_byte() {
    row("empty", &json!({ "fault": "EMPTY_RESPONSE" }), &fails("upstream_reset", "", 3), &UNKNOWN);
}

#[test]
fn a_body_cut_after_the_head_of_a_success_loses_the_result_of_a_write() {
    let lost = fails("result_lost", "yes", 1);
    row(
        "malformed-chunk",
        &json!({ "fault": "MALFORMED_RESPONSE_CHUNK" }),
        &fails("result_lost", "", 3),
        &lost,
    );
}

#[test]
fn bytes_that_are_not_http_are_not_asked_for_again() {
    row(
        "garbage",
        &json!({ "fault": "RANDOM_DATA_THEN_CLOSE" }),
        &fails("upstream_protocol_error", "", 1),
        &UNKNOWN,
    );
}

#[test]
fn a_503_with_a_short_retry_after_then_200_is_waited_for_by_a_read_only() {
    let Some(wiremock) = WireMock::shared() else { return };
    let busy = json!({ "status": 503, "headers": { "Retry-After": "1" } });
    let fine = json!({ "status": 200, "jsonBody": { "done": true } });
    wiremock.answers_first("/busy/ask", &busy, &fine);
    wiremock.answers_first("/busy/act", &busy, &fine);
    let gateway = Gateway::start(&policy(&wiremock.address, "/busy", &json!({})));

    let from = Instant::now();
    let answer = gateway.call("ask", &json!({ "n": 1 })).json();
    check("read", &answer, &ok(2));
    assert_eq!(answer["attempts"], 2, "{answer}");
    assert!(from.elapsed() >= Duration::from_secs(1), "never earlier than told");
    assert_eq!(wiremock.arrived("/busy/ask"), 2);

    check("write", &gateway.call("act", &json!({ "n": 1 })).json(), &UNKNOWN);
    assert_eq!(wiremock.arrived("/busy/act"), 1);
}

#[test]
fn a_503_with_a_long_retry_after_hands_the_time_to_the_model() {
    let busy = json!({ "status": 503, "headers": { "Retry-After": "30" } });
    let Some(wiremock) = WireMock::shared() else { return };
    wiremock.answers("/very-busy/ask", &busy);
    let gateway = Gateway::start(&policy(&wiremock.address, "/very-busy", &json!({})));
    let answer = gateway.call("ask", &json!({ "n": 1 })).json();
    check("read", &answer, &fails("tool_unavailable", "", 1));
    let wait = answer["retry_after_ms"].as_u64().expect("a time to come back");
    assert!((25_000..=30_000).contains(&wait), "{answer}");
    assert_eq!(wiremock.arrived("/very-busy/ask"), 1);
}

#[test]
fn a_503_that_the_tool_promises_to_send_before_acting_is_not_executed() {
    let more = json!({ "tools": { "act": { "write": { "not_executed_on": [503] } } } });
    let want = fails("tool_unavailable", "no", 1);
    row_with(
        "promised",
        &json!({ "status": 503 }),
        &more,
        &fails("tool_unavailable", "", 3),
        &want,
    );
}

#[test]
fn a_429_sets_a_cooldown_and_is_never_hammered() {
    let Some(wiremock) = WireMock::shared() else { return };
    let limited = json!({ "status": 429, "headers": { "Retry-After": "7" } });
    wiremock.answers("/limited/ask", &limited);
    wiremock.answers("/limited/act", &limited);
    let gateway = Gateway::start(&policy(&wiremock.address, "/limited", &json!({})));
    for (tool, path) in [("ask", "/limited/ask"), ("act", "/limited/act")] {
        let answer = gateway.call(tool, &json!({ "n": 1 }));
        assert_eq!(answer.status, 429, "{}", answer.text());
        assert!(answer.header("retry-after").is_some(), "{answer:?}");
        let answer = answer.json();
        check(tool, &answer, &fails("rate_limited", "no", 1));
        assert_eq!(answer["limited_by"], "tool", "{answer}");
        assert!(
            (6_000..=7_000).contains(&answer["retry_after_ms"].as_u64().expect("a time")),
            "{answer}"
        );
        check(
            "during the cooldown",
            &gateway.call(tool, &json!({ "n": 2 })).json(),
            &fails("rate_limited", "no", 1),
        );
        assert_eq!(wiremock.arrived(path), 1, "{tool}");
    }
}

#[test]
fn a_4xx_is_an_answer_and_not_repeated() {
    for status in [400, 401, 403, 404, 405, 409, 410, 413, 415, 422] {
        let no = json!({ "status": status, "jsonBody": { "error": "no such order" } });
        row(
            &format!("status-{status}"),
            &no,
            &fails("tool_error", "", 1),
            &fails("tool_error", "no", 1),
        );
    }
}

#[test]
fn a_408_may_have_run_and_a_425_did_not() {
    row("status-408", &json!({ "status": 408 }), &fails("tool_unavailable", "", 3), &UNKNOWN);
    row(
        "status-425",
        &json!({ "status": 425 }),
        &fails("rate_limited", "no", 3),
        &fails("rate_limited", "no", 1),
    );
}

#[test]
fn a_202_is_executed_and_said_to_be_accepted_only() {
    let Some(wiremock) = WireMock::shared() else { return };
    let taken = json!({ "status": 202, "jsonBody": { "queued": true } });
    wiremock.answers("/accepted/act", &taken);
    let gateway = Gateway::start(&policy(&wiremock.address, "/accepted", &json!({})));
    let answer = gateway.call("act", &json!({ "n": 1 })).json();
    check("write", &answer, &ok(1));
    assert_eq!(answer["accepted"], true, "{answer}");
    let again = gateway.call("act", &json!({ "n": 1 })).json();
    assert_eq!((&again["ok"], &again["replayed"]), (&true.into(), &true.into()), "{again}");
    assert_eq!(wiremock.arrived("/accepted/act"), 1);
}

#[test]
fn a_doubt_of_the_policy_beats_what_a_status_says() {
    let more = json!({ "tools": { "act": { "write": { "unknown_on": [422, 429] } } } });
    for status in [422, 429] {
        let Some(wiremock) = WireMock::shared() else { return };
        let path = format!("/doubted-{status}");
        wiremock.answers(&format!("{path}/act"), &json!({ "status": status }));
        let gateway = Gateway::start(&policy(&wiremock.address, &path, &more));
        check("write", &gateway.call("act", &json!({ "n": 1 })).json(), &UNKNOWN);
        let again = gateway.call("act", &json!({ "n": 1 })).json();
        check("the same write again", &again, &fails("review_required", "unknown", 1));
        assert_eq!(wiremock.arrived(&format!("{path}/act")), 1);
    }
}

#[test]
fn a_5xx_is_asked_again_by_a_read_and_leaves_a_write_unknown() {
    for status in [500, 502, 504] {
        row(
            &format!("status-{status}"),
            &json!({ "status": status }),
            &fails("tool_unavailable", "", 3),
            &UNKNOWN,
        );
    }
}

#[test]
fn a_501_or_505_says_that_nothing_was_done() {
    for status in [501, 505] {
        let Some(wiremock) = WireMock::shared() else { return };
        let path = format!("/status-{status}");
        wiremock.answers(&format!("{path}/ask"), &json!({ "status": status }));
        wiremock.answers(&format!("{path}/act"), &json!({ "status": status }));
        let gateway = Gateway::start(&policy(&wiremock.address, &path, &json!({})));
        let read = gateway.call("ask", &json!({ "n": 1 })).json();
        assert_eq!(read["ok"], false, "{read}");
        let write = gateway.call("act", &json!({ "n": 1 })).json();
        assert_eq!(write["executed"], "no", "{write}");
        assert_eq!(
            (wiremock.arrived(&format!("{path}/ask")), wiremock.arrived(&format!("{path}/act"))),
            (1, 1)
        );
    }
}

#[test]
fn a_200_that_breaks_its_promise_is_a_failure_and_not_repeated() {
    let html = json!({ "status": 200, "headers": { "Content-Type": "text/html" }, "body": "<html>please log in</html>" });
    let empty = json!({ "status": 200, "headers": { "Content-Type": "application/json" } });
    let twice = json!({ "status": 200, "headers": { "Content-Type": "application/json" }, "body": r#"{"a":1,"a":2}"# });
    for (name, response) in [("html", html), ("nothing", empty), ("twice", twice)] {
        row(name, &response, &fails("upstream_protocol_error", "", 1), &UNKNOWN);
    }
}

#[test]
fn a_redirect_is_not_followed_and_never_to_a_forbidden_address() {
    let Some(wiremock) = WireMock::shared() else { return };
    wiremock.answers("/elsewhere", &json!({ "status": 200, "jsonBody": {} }));
    let to = |target: &str| json!({ "status": 302, "headers": { "Location": target } });
    let elsewhere = format!("{}/elsewhere", wiremock.address);
    // A 302 may be the answer after the deed ("see there for what came of it"); a 307 asks for the deed elsewhere.
    row("redirect", &to(&elsewhere), &fails("upstream_redirect", "", 1), &UNKNOWN);
    let kept = json!({ "status": 307, "headers": { "Location": elsewhere } });
    row(
        "redirect-kept",
        &kept,
        &fails("upstream_redirect", "", 1),
        &fails("upstream_redirect", "no", 1),
    );
    let follow = json!({ "upstreams": { "tool": { "redirects": "same_origin" } } });
    let metadata = "http://169.254.169.254/latest/meta-data/";
    row_with("to-metadata", &to(metadata), &follow, &fails("upstream_redirect", "", 1), &UNKNOWN);
    assert_eq!(wiremock.arrived("/elsewhere"), 0, "nothing was followed");
    row_with("same-origin", &to(&elsewhere), &follow, &ok(1), &UNKNOWN);
    assert_eq!(wiremock.arrived("/elsewhere"), 1, "the read only");
}

#[test]
fn what_was_validated_is_what_arrives() {
    let Some(wiremock) = WireMock::shared() else { return };
    wiremock.answers("/exact/act", &json!({ "status": 200, "jsonBody": {} }));
    let schema = json!({ "properties": { "price": { "type": "number" } } });
    let more = json!({ "tools": { "act": { "schema": schema } } });
    let gateway = Gateway::start(&policy(&wiremock.address, "/exact", &more));
    check(
        "write",
        &gateway.call("act", &json!({ "n": 9_007_199_254_740_993_u64, "price": 1.5 })).json(),
        &ok(1),
    );
    assert_eq!(wiremock.bodies("/exact/act"), [r#"{"n":9007199254740993,"price":1.5}"#]);
    check(
        "refused",
        &gateway.call("act", &json!({ "n": "1" })).json(),
        &fails("invalid_arguments", "no", 0),
    );
    check(
        "refused",
        &gateway.call("act", &json!({ "n": 1, "x": 1 })).json(),
        &fails("invalid_arguments", "no", 0),
    );
    assert_eq!(wiremock.arrived("/exact/act"), 1, "nothing after a refusal");
}
