use http::HeaderValue;
use serde_json::json;

use super::*;
use crate::backends::http::tests::support;
use crate::call::code::FailCode;
use crate::call::{Class, Delivery};
use crate::policy::schema::Schema;

fn read() -> Tool {
    support::tool(Effect::Read, support::upstream("shop.example", 80))
}

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, HeaderValue::from_static(value));
    }
    headers
}

fn json_headers() -> HeaderMap {
    headers(&[("content-type", "application/json; charset=utf-8")])
}

fn of(tool: &Tool, body: &str) -> Result<ToolResult, Failed> {
    result(tool, 200, json_headers(), &Bytes::copy_from_slice(body.as_bytes()))
}

fn paths(texts: &[&str]) -> Vec<Path> {
    texts.iter().map(|text| Path::parse(text).expect("a path")).collect()
}

#[test]
fn bb_j09_digits_of_a_result_are_kept() {
    let body = r#"{"id":1915883588174806058,"big":18446744073709551617,"price":1.10}"#;
    assert_eq!(support::text(&of(&read(), body).expect("sound")), body);
    let mut tool = read();
    tool.result.select = paths(&["/id", "/price"]);
    let kept = support::text(&of(&tool, body).expect("sound"));
    assert_eq!(kept, r#"{"id":1915883588174806058,"price":1.10}"#);
}

#[test]
fn bb_b09_a_success_that_breaks_the_contract_is_a_fault_of_the_back_end() {
    let mut strict = read();
    let expect = json!({"type": "object", "required": ["status"]});
    strict.result.expect = Some(Schema::compile(&expect, false).expect("a schema"));
    let html = headers(&[("content-type", "text/html")]);
    let cases = [
        (read(), html, "<html>please log in</html>"),
        (read(), HeaderMap::new(), "{}"),
        (read(), json_headers(), ""),
        (read(), json_headers(), "{\"a\":1,\"a\":2}"),
        (read(), json_headers(), "{\"a\":1} x"),
        (read(), json_headers(), "{\"a\":NaN}"),
        (strict, json_headers(), "{\"error\":\"down\"}"),
    ];
    for (tool, headers, body) in cases {
        let failed = result(&tool, 200, headers, &Bytes::from(body)).expect_err(body);
        assert_eq!(failed.code, FailCode::UpstreamProtocolError, "{body}");
        assert_eq!(failed.class, Class::Permanent, "{body}");
        assert_eq!(failed.delivery, Delivery::Unknown, "{body}");
        assert_eq!(failed.health, Verdict::Bad, "{body}");
        assert_eq!(failed.status, Some(200), "{body}");
        assert!(failed.message.contains("200"), "{}", failed.message);
    }
}

#[test]
fn a_success_without_a_body_by_definition_is_null() {
    for status in [202, 204, 205] {
        let result = result(&read(), status, HeaderMap::new(), &Bytes::new()).expect("honest");
        assert_eq!(support::text(&result), "null", "{status}");
    }
    for status in [200, 201] {
        assert!(result(&read(), status, json_headers(), &Bytes::new()).is_err(), "{status}");
    }
}

#[test]
fn a_write_that_was_only_accepted_says_so() {
    let write = support::tool(Effect::Write, support::upstream("shop.example", 80));
    let of = |tool, status| result(tool, status, json_headers(), &Bytes::from_static(b"{}"));
    assert!(of(&write, 202).expect("ok").notes.accepted);
    assert!(!of(&write, 200).expect("ok").notes.accepted);
    assert!(!of(&read(), 202).expect("ok").notes.accepted);
}

#[test]
fn select_keeps_the_structure_around_what_it_names() {
    let body = r#"{"a":{"b":1,"c":2},"items":[{"id":1,"x":0},{"x":0},{"id":3}],"z":9}"#;
    let table = [
        (&["/a/b"][..], r#"{"a":{"b":1}}"#),
        (&["/items/*/id"], r#"{"items":[{"id":1},{},{"id":3}]}"#),
        (&["/items/0", "/z"], r#"{"items":[{"id":1,"x":0}],"z":9}"#),
        (&["/nothing"], "{}"),
        (&["/a/b/deeper"], r#"{"a":{}}"#),
        (&["/*/c"], r#"{"a":{"c":2},"items":[]}"#),
        (&[""], body),
    ];
    for (select, kept) in table {
        let mut tool = read();
        tool.result.select = paths(select);
        assert_eq!(support::text(&of(&tool, body).expect("sound")), kept, "{select:?}");
    }
}

#[test]
fn redact_reaches_any_depth_and_comes_after_select() {
    let body = r#"{"token":"a","deep":[{"token":{"x":1}},{"k":{"token":[1]}}],"note":"n"}"#;
    let mut tool = read();
    tool.result.redact = paths(&["/**/token"]);
    assert_eq!(
        support::text(&of(&tool, body).expect("sound")),
        r#"{"token":"[redacted]","deep":[{"token":"[redacted]"},{"k":{"token":"[redacted]"}}],"note":"n"}"#
    );
    tool.result.redact = paths(&["/deep/*/token", "/note"]);
    tool.result.select = paths(&["/deep", "/note"]);
    assert_eq!(
        support::text(&of(&tool, body).expect("sound")),
        r#"{"deep":[{"token":"[redacted]"},{"k":{"token":[1]}}],"note":"[redacted]"}"#
    );
}

#[test]
fn bb_o01_a_cut_text_ends_on_a_whole_character_within_the_limit() {
    for unit in ["订", "é", "🛳", "e\u{301}", "a"] {
        for format_json in [false, true] {
            let mut tool = read();
            tool.result.json = format_json;
            tool.result.max = 1000;
            let body = serde_json::Value::String(unit.repeat(1200)).to_string();
            let result = of(&tool, &body).expect("cut");
            let truncated = result.notes.truncated.expect("a note");
            assert_eq!(truncated.total, body.len() as u64, "{unit}");
            assert_eq!(truncated.kept, result.content.bytes.len() as u64, "{unit}");
            assert!((997..=1000).contains(&truncated.kept), "{unit} {}", truncated.kept);
            assert!(std::str::from_utf8(&result.content.bytes).is_ok(), "{unit}");
        }
    }
}

#[test]
fn bb_o02_a_cut_json_is_told_as_text_never_as_json() {
    let mut tool = read();
    tool.result.max = 100;
    let body = serde_json::Value::from((0..1000).collect::<Vec<_>>()).to_string();
    let cut = of(&tool, &body).expect("cut");
    assert!(cut.content.form == Form::Text);
    assert!(cut.notes.truncated.is_some());
    let whole = of(&tool, "[1,2]").expect("fits");
    assert!(whole.content.form == Form::Json && whole.notes.truncated.is_none());
    tool.result.fail_on_oversize = true;
    let failed = of(&tool, &body).expect_err("too large");
    assert_eq!(failed.code, FailCode::ResultTooLarge);
    assert_eq!((failed.delivery, failed.health), (Delivery::Done, Verdict::Good));
    assert!(failed.message.contains("100"), "{}", failed.message);
}

#[test]
fn bb_n03_the_tools_own_hop_by_hop_fields_end_here() {
    let headers = headers(&[
        ("content-type", "application/json"),
        ("connection", "close, X-Secret"),
        ("x-secret", "1"),
        ("keep-alive", "timeout=5"),
        ("proxy-authenticate", "Basic"),
        ("te", "trailers"),
        ("trailer", "x"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("content-length", "2"),
        ("x-kept", "yes"),
    ]);
    let result = result(&read(), 200, headers, &Bytes::from_static(b"{}")).expect("sound");
    let head = result.head.expect("a head");
    let mut left: Vec<&str> = head.headers.keys().map(http::HeaderName::as_str).collect();
    left.sort_unstable();
    assert_eq!(left, ["content-type", "x-kept"]);
}

#[test]
fn a_text_result_is_valid_text_in_any_charset() {
    let mut tool = read();
    tool.result.json = false;
    let latin = headers(&[("content-type", "text/plain; charset=ISO-8859-1")]);
    let of = |tool: &Tool, headers, body: &'static [u8]| {
        result(tool, 200, headers, &Bytes::from_static(body)).expect("text")
    };
    assert_eq!(support::text(&of(&tool, latin, b"caf\xe9")), "café");
    assert_eq!(support::text(&of(&tool, HeaderMap::new(), b"a\xffb")), "a\u{fffd}b");
    assert_eq!(support::text(&of(&tool, HeaderMap::new(), b"")), "");
    tool.result.redact = paths(&["/token"]);
    let redacted = of(&tool, HeaderMap::new(), b"{\"token\":\"s\"}");
    assert_eq!(support::text(&redacted), r#"{"token":"[redacted]"}"#);
}

#[test]
fn what_a_tool_says_with_an_error_is_redacted_too() {
    let mut tool = read();
    tool.result.redact = paths(&["/**/token"]);
    let text = error_text(&tool.result, br#"{"error":"bad","token":"s3cret"}"#);
    assert_eq!(text, r#"{"error":"bad","token":"[redacted]"}"#);
    for unreadable in [&b"{\"token\":\"s3cret\""[..], b"token=s3cret"] {
        assert!(!error_text(&tool.result, unreadable).contains("s3cret"));
    }
    assert_eq!(error_text(&tool.result, b" \n"), "");
    tool.result.redact = Vec::new();
    assert_eq!(error_text(&tool.result, b"no such order"), "no such order");
}

/// Trees with secrets under `token` at any depth.
fn trees() -> impl proptest::strategy::Strategy<Value = Value> {
    use proptest::prelude::*;
    let leaf = prop_oneof![Just(json!("s3cret")), Just(json!(1.10)), Just(Value::Null)];
    leaf.prop_recursive(5, 40, 4, |inner| {
        let name = prop_oneof![Just("token".to_owned()), "[a-c/~*]{1,2}"];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            proptest::collection::vec((name, inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Every value under a member `token`, at any depth.
fn tokens(value: &Value, found: &mut Vec<Value>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                if name == "token" {
                    found.push(value.clone());
                }
                tokens(value, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| tokens(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

proptest::proptest! {
    #[test]
    fn no_depth_hides_a_value_from_its_redaction(tree in trees()) {
        let mut value = tree;
        redact(&mut value, &paths(&["/**/token"]));
        let mut found = Vec::new();
        tokens(&value, &mut found);
        proptest::prop_assert!(found.iter().all(|value| value == REDACTED), "{}", value);
    }

    #[test]
    fn select_never_adds_and_keeping_all_keeps_all(tree in trees()) {
        let kept = |texts: &[&str]| {
            let paths = paths(texts);
            let paths: Vec<&[Segment]> = paths.iter().map(|path| path.0.as_slice()).collect();
            select(tree.clone(), &paths)
        };
        proptest::prop_assert_eq!(kept(&[""]), Some(tree.clone()));
        if let Some(part) = kept(&["/*/token", "/a"]) {
            proptest::prop_assert!(part.to_string().len() <= tree.to_string().len());
        }
        match &tree {
            Value::Object(_) | Value::Array(_) => {
                proptest::prop_assert_eq!(kept(&["/*"]), Some(tree.clone()));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                proptest::prop_assert_eq!(kept(&["/*"]), None);
            }
        }
    }
}

#[test]
fn a_cut_result_does_not_hold_on_to_the_whole_answer() {
    let mut tool = read();
    tool.result.max = 100;
    tool.result.json = false;
    let body = Bytes::from(vec![b'x'; 100_000]);
    let kept = result(&tool, 200, HeaderMap::new(), &body).expect("cut").content.bytes;
    assert_eq!(kept.len(), 100);
    // Alone in its buffer, and that no longer than itself.
    let own = kept.try_into_mut().expect("nobody else holds it");
    assert!(own.capacity() < 1_000, "{}", own.capacity());
}
