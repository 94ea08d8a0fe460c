use proptest::prelude::*;
use serde_json::json;

use super::*;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01";

fn map(value: Value) -> Map<String, Value> {
    let Value::Object(map) = value else { panic!("an object") };
    map
}

#[test]
fn keys_are_spelled_as_the_specification_wants() {
    for good in ["a", "com.example/key", "a/", "a-b.c1/x_y.z-0", "traceparent", "A.b/C"] {
        assert!(is_valid_key(good), "{good}");
    }
    for bad in ["", "/a", "a b", "1a/x", "a-/x", "a..b/x", "a/b/c", "-a", "a_", "a./x", "é", "a/é"]
    {
        assert!(!is_valid_key(bad), "{bad}");
    }
}

#[test]
fn a_traceparent_is_taken_only_well_formed() {
    assert!(is_traceparent(PARENT));
    assert!(is_traceparent(&format!("01{}-more-of-it", &PARENT[2..])));
    for bad in [
        "",
        "00",
        &PARENT.to_uppercase(),
        &PARENT[..54],
        &format!("{PARENT}-x"),
        &format!("{PARENT}-"),
        &format!("ff{}", &PARENT[2..]),
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
    ] {
        assert!(!is_traceparent(bad), "{bad}");
    }
}

#[test]
fn an_agents_meta_is_sorted_by_whom_it_is_for() {
    let meta = map(json!({
        "z.example/later": {"b": 1, "a": 2}, "progressToken": 7, "traceparent": PARENT, "tracestate": "a=b",
        "baggage": "secret=1", "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {}, "io.modelcontextprotocol/unheard": 1,
        "io.checkrein/run": "r", "io.checkrein/idempotency-key": "k", "io.checkrein/timeout-ms": 5,
        "io.checkrein/unheard": 1, "bad key": 1, "bare": 1,
    }));
    let sorted = FromAgent::of(Some(&meta)).expect("sound");
    assert_eq!(
        Value::Object(sorted.pass).to_string(),
        r#"{"z.example/later":{"b":1,"a":2},"bare":1}"#
    );
    assert_eq!((sorted.traceparent, sorted.tracestate), (Some(PARENT), Some("a=b")));
    assert_eq!(sorted.protocol_version, Some("2026-07-28"));
    assert_eq!(sorted.client_capabilities, Some(&json!({})));
    assert_eq!(
        (sorted.run, sorted.idempotency_key, sorted.timeout_ms),
        (Some("r"), Some("k"), Some(5))
    );
    assert_eq!(sorted.misspelt, 1);
}

#[test]
fn a_malformed_trace_is_absent_and_never_an_error() {
    for parent in [json!("nonsense"), json!(7), json!(null)] {
        let meta = map(json!({"tracestate": "a=b", "traceparent": parent}));
        let sorted = FromAgent::of(Some(&meta)).expect("sound");
        assert_eq!((sorted.traceparent, sorted.tracestate), (None, None));
    }
}

#[test]
fn keys_of_the_protocol_and_of_ours_have_the_type_they_must_have() {
    for (key, value) in [
        (PROTOCOL_VERSION, json!(1)),
        (CLIENT_CAPABILITIES, json!([])),
        (LOG_LEVEL, json!({})),
        (RUN, json!(1)),
        (IDEMPOTENCY_KEY, json!(null)),
        (TIMEOUT_MS, json!("5")),
        (TIMEOUT_MS, json!(-1)),
    ] {
        let meta = map(json!({key: value}));
        assert!(FromAgent::of(Some(&meta)).expect_err(key).at.starts_with("/_meta/io."), "{key}");
    }
}

#[test]
fn what_passes_is_bounded_all_together() {
    let half = "x".repeat(MAX_PASSED / 2);
    assert!(FromAgent::of(Some(&map(json!({"a": half})))).is_ok());
    assert!(FromAgent::of(Some(&map(json!({"a": half, "b": half})))).is_err());
}

#[test]
fn an_upstream_cannot_speak_for_the_gateway_or_for_the_protocol() {
    let mut result = json!({"content": [], "_meta": {
        "io.checkrein/outcome": {"ok": true}, "io.modelcontextprotocol/serverInfo": {"name": "x"},
        "traceparent": PARENT, "baggage": "a", "b.c/d": 1, "odd key": 2}});
    to_agent(&mut result);
    assert_eq!(result.to_string(), r#"{"content":[],"_meta":{"b.c/d":1,"odd key":2}}"#);
    let mut result = json!({"_meta": {"io.checkrein/outcome": 1}, "a": 1});
    to_agent(&mut result);
    assert_eq!(result.to_string(), r#"{"a":1}"#);
    for same in [json!({"_meta": {}}), json!({"_meta": 1}), json!([]), json!({})] {
        let mut message = same.clone();
        to_agent(&mut message);
        assert_eq!(message, same);
    }
}

#[test]
fn what_is_put_can_be_taken() {
    for mut message in [json!({}), json!({"_meta": null}), json!({"_meta": {"a": 1}})] {
        put(&mut message, OUTCOME, json!(7));
        assert_eq!(message["_meta"][OUTCOME], 7);
        assert_eq!(take(&mut message, OUTCOME), Some(json!(7)));
        assert_eq!(take(&mut message, OUTCOME), None);
    }
}

proptest! {
    #[test]
    fn every_key_of_an_agent_passes_is_read_or_is_left_behind(key in "[ -~é]{0,12}(/[a-z]{0,4})?") {
        let meta = map(json!({key.clone(): "v"}));
        let Ok(sorted) = FromAgent::of(Some(&meta)) else { return Ok(()) };
        let passes = owner(&key) == Owner::Other && is_valid_key(&key);
        prop_assert_eq!(sorted.pass.contains_key(&key), passes);
    }

    #[test]
    fn no_text_makes_a_trace_panic(text in any::<String>()) {
        is_traceparent(&text);
        is_valid_key(&text);
    }
}
