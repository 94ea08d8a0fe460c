use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::strict_json::{self, Limits};

#[test]
fn the_encodings_of_the_specification_are_ours() {
    for (text, value) in [
        ("us-west1", "us-west1"),
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
    ] {
        assert_eq!(encode(text), value);
        assert_eq!(decode(value.as_bytes()).as_deref(), Ok(text));
    }
}

#[test]
fn a_value_that_is_marked_and_broken_is_refused() {
    for bad in ["=?base64?SGVsbG8?=", "=?base64?!!!?=", "=?base64?/w==?=", "a\u{7f}", "é", "a\nb"]
    {
        assert!(decode(bad.as_bytes()).is_err(), "{bad:?}");
    }
    assert!(decode(&[b'a'; MAX_VALUE + 1]).is_err());
    for plain in ["=?BASE64?YQ==?=", "=?base64?", "?=", "=?base64?="] {
        assert_eq!(decode(plain.as_bytes()).as_deref(), Ok(plain));
    }
}

fn told<'h>(version: &'h str, method: &'h str, name: Option<&'h str>) -> Standard<'h> {
    Standard {
        protocol_version: Some(version.as_bytes()),
        method: Some(method.as_bytes()),
        name: name.map(str::as_bytes),
    }
}

#[test]
fn the_standard_headers_must_say_what_the_body_says() {
    let params = json!({"name": "é", "uri": "file:///a"});
    let check = |headers, method| {
        check_standard(headers, "2026-07-28", method, Some(&params)).map_err(|fault| fault.header)
    };
    let version = "2026-07-28";
    assert_eq!(check(told(version, "tools/call", Some("=?base64?w6k=?=")), "tools/call"), Ok(()));
    assert_eq!(
        check(told(version, "resources/read", Some(" file:///a")), "resources/read"),
        Ok(())
    );
    assert_eq!(check(told(version, "tools/list", None), "tools/list"), Ok(()));
    for (headers, method, header) in [
        (told("2025-11-25", "tools/list", None), "tools/list", PROTOCOL_VERSION),
        (told(version, "Tools/List", None), "tools/list", METHOD),
        (told(version, "tools/call", None), "tools/call", NAME),
        (told(version, "tools/call", Some("e")), "tools/call", NAME),
        (told(version, "tools/call", Some("=?base64?ZQ==?=")), "tools/call", NAME),
        (Standard::default(), "tools/list", PROTOCOL_VERSION),
    ] {
        assert_eq!(check(headers, method), Err(header.to_owned()), "{headers:?}");
    }
}

#[test]
fn the_headers_we_build_are_the_ones_we_would_take() {
    let params = json!({"name": "naïve tool"});
    let built = standard(Revision::V2026_07_28, "tools/call", Some(&params));
    let of = |name| built.iter().find(|header| header.0 == name).map(|header| header.1.as_bytes());
    let headers =
        Standard { protocol_version: of(PROTOCOL_VERSION), method: of(METHOD), name: of(NAME) };
    assert_eq!(check_standard(headers, "2026-07-28", "tools/call", Some(&params)), Ok(()));
    assert_eq!(standard(Revision::V2026_07_28, "tools/list", None).len(), 2);
}

fn schema(properties: Value) -> Value {
    let mut schema = json!({"type": "object"});
    schema["properties"] = properties;
    schema
}

#[test]
fn mirrored_parameters_are_found_through_properties_alone() {
    let good = schema(json!({
        "region": {"type": "string", "x-mcp-header": "Region"},
        "x-mcp-header": {"type": "string"},
        "deep": {"type": "object", "properties": {"n": {"type": ["integer", "null"], "x-mcp-header": "N"}}},
        "other": {"default": {"x-mcp-header": 1}, "enum": [{"x-mcp-header": 1}]},
    }));
    let found = param_headers(&good).expect("sound");
    let told: Vec<_> =
        found.iter().map(|one| (one.header.as_str(), one.path.join("."), one.kind)).collect();
    assert_eq!(
        told,
        [
            ("mcp-param-n", "deep.n".to_owned(), ParamKind::Integer),
            ("mcp-param-region", "region".to_owned(), ParamKind::Text),
        ]
    );
}

#[test]
fn an_annotation_that_breaks_a_rule_is_told() {
    let one = |name: Value, kind: &str| json!({"type": kind, "x-mcp-header": name});
    let ok = one(json!("A"), "string");
    for bad in [
        schema(json!({"a": one(json!(""), "string")})),
        schema(json!({"a": one(json!("a b"), "string")})),
        schema(json!({"a": one(json!("a\r\nb"), "string")})),
        schema(json!({"a": one(json!(1), "string")})),
        schema(json!({"a": one(json!("A"), "number")})),
        schema(json!({"a": one(json!("A"), "object")})),
        schema(json!({"a": {"x-mcp-header": "A"}})),
        schema(json!({"a": {"type": ["string", "integer"], "x-mcp-header": "A"}})),
        schema(json!({"a": ok, "b": one(json!("a"), "boolean")})),
        schema(json!({"a": {"type": "array", "items": ok}})),
        schema(json!({"a": {"anyOf": [ok]}})),
        schema(json!({"a": {"anyOf": [{"type": "object", "properties": {"b": ok}}]}})),
        json!({"type": "object", "$defs": {"a": ok}}),
        json!({"type": "object", "if": schema(json!({"a": ok}))}),
        json!({"type": "object", "patternProperties": {"^a": ok}}),
        json!({"type": "object", "additionalProperties": ok}),
        json!({"type": "object", "x-mcp-header": "A"}),
    ] {
        assert!(param_headers(&bad).is_err(), "{bad}");
    }
}

fn mirror(kind: ParamKind) -> ParamHeader {
    ParamHeader { header: "mcp-param-a".to_owned(), path: vec!["a".to_owned()], kind }
}

fn arguments(text: &str) -> Value {
    strict_json::parse(text.as_bytes(), Limits::answer(1000)).expect(text)
}

#[test]
fn values_are_mirrored_in_the_form_the_specification_names() {
    for (kind, body, want) in [
        (ParamKind::Text, r#"{"a":"us-west1"}"#, Some("us-west1")),
        (ParamKind::Text, r#"{"a":""}"#, Some("")),
        (ParamKind::Integer, r#"{"a":-7}"#, Some("-7")),
        (ParamKind::Integer, r#"{"a":42.0}"#, Some("42")),
        (ParamKind::Boolean, r#"{"a":true}"#, Some("true")),
        (ParamKind::Boolean, r#"{"a":null}"#, None),
        (ParamKind::Text, r#"{"b":1}"#, None),
    ] {
        let arguments = arguments(body);
        assert_eq!(mirror(kind).value(Some(&arguments)), Ok(want.map(str::to_owned)), "{body}");
        assert_eq!(mirror(kind).check(want.map(str::as_bytes), Some(&arguments)), Ok(()), "{body}");
    }
    assert_eq!(mirror(ParamKind::Text).value(None), Ok(None));
    for body in [r#"{"a":9007199254740992}"#, r#"{"a":1.5}"#, r#"{"a":"1"}"#, r#"{"a":{}}"#] {
        assert!(mirror(ParamKind::Integer).value(Some(&arguments(body))).is_err(), "{body}");
    }
}

#[test]
fn a_parameters_header_must_say_what_the_body_says() {
    let check = |kind, header: Option<&str>, body| {
        mirror(kind).check(header.map(str::as_bytes), Some(&arguments(body))).is_ok()
    };
    assert!(check(ParamKind::Integer, Some("42.0"), r#"{"a":42}"#));
    assert!(check(ParamKind::Integer, Some("9007199254740993"), r#"{"a":9007199254740993}"#));
    assert!(!check(ParamKind::Integer, Some("9007199254740992"), r#"{"a":9007199254740993}"#));
    assert!(!check(ParamKind::Integer, Some("forty"), r#"{"a":42}"#));
    assert!(!check(ParamKind::Integer, Some("42"), r#"{"a":"42"}"#));
    assert!(!check(ParamKind::Text, Some("A"), r#"{"a":"a"}"#));
    assert!(!check(ParamKind::Text, None, r#"{"a":"a"}"#));
    assert!(!check(ParamKind::Text, Some("a"), r#"{"a":null}"#));
    assert!(!check(ParamKind::Text, Some("a"), "{}"));
    assert!(!check(ParamKind::Boolean, Some("TRUE"), r#"{"a":true}"#));
    assert!(check(ParamKind::Text, Some("=?base64?w6k=?="), r#"{"a":"é"}"#));
}

#[test]
fn what_goes_on_unread_has_a_proper_name_and_a_bounded_value() {
    assert!(is_forwardable("Mcp-Param-Region", b"us west"));
    for (name, value) in [
        ("Mcp-Param-", &b"a"[..]),
        ("Mcp-Name", b"a"),
        ("é", b"a"),
        ("Mcp-Param-a b", b"a"),
        ("Mcp-Param-A", b"a\nb"),
        ("Mcp-Param-A", &[b'a'; MAX_FORWARDED_BYTES + 1]),
    ] {
        assert!(!is_forwardable(name, value), "{name}");
    }
}

proptest! {
    #[test]
    fn every_text_comes_back_from_its_header(text in any::<String>()) {
        let value = encode(&text);
        prop_assert!(value.bytes().all(is_field_byte));
        if value.len() <= MAX_VALUE {
            let read = decode(value.as_bytes());
            prop_assert_eq!(read.as_deref(), Ok(text.as_str()));
        }
    }

    #[test]
    fn no_bytes_make_it_panic(value in prop::collection::vec(any::<u8>(), 0..60)) {
        drop(decode(&value));
        drop(mirror(ParamKind::Integer).check(Some(&value), Some(&json!({"a": 1}))));
    }

    #[test]
    fn every_integer_is_equal_to_itself_and_to_no_other(one in any::<i32>(), other in any::<i32>()) {
        let header = format!("{one}.0");
        let same = mirror(ParamKind::Integer).check(Some(header.as_bytes()), Some(&json!({"a": other})));
        prop_assert_eq!(same.is_ok(), one == other);
    }
}
