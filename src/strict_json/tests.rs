use super::*;

fn limits() -> Limits {
    Limits::arguments(64 * 1024, 32)
}

fn kind(text: &str) -> Kind {
    parse(text.as_bytes(), limits()).expect_err(text).kind
}

#[test]
fn ambiguous_or_broken_text_is_refused_with_its_place() {
    for (text, want) in [
        (r#"{"qty":1,"qty":5}"#, Kind::DuplicateKey),
        (r#"{"qty":1,"\u0071ty":5}"#, Kind::DuplicateKey),
        (r#"{"a":[{"b":1,"b":2}]}"#, Kind::DuplicateKey),
        (r#"{"a":1}}"#, Kind::Trailing),
        (r#"{"a":1} done"#, Kind::Trailing),
        (r#"{"a":1}{"a":1}"#, Kind::Trailing),
        (r#"{"a":NaN}"#, Kind::Syntax),
        (r#"{"a":-Infinity}"#, Kind::Syntax),
        (r#"{"a":1e999}"#, Kind::NumberRange),
        (r#"{"a":1e-400}"#, Kind::NumberRange),
        (r#"{"a":["npm""#, Kind::Truncated),
        (r#"{"a":"x"#, Kind::Truncated),
        ("", Kind::Empty),
        ("  \n", Kind::Empty),
        (r#"{"$serde_json::private::Number":"7"}"#, Kind::PrivateKey),
        (r#"{"\u0024serde_json::private::Number":"7"}"#, Kind::PrivateKey),
        (r#"{"$serde_json::private::RawValue":"{\"a\":1,\"a\":2}"}"#, Kind::PrivateKey),
        (r#"{"x":{"$serde_json::private::Number":"7"}}"#, Kind::PrivateKey),
    ] {
        assert_eq!(kind(text), want, "{text}");
    }
    let fault = parse(br#"{"a":[{"b":1,"b":2}]}"#, limits()).expect_err("duplicate");
    assert_eq!(fault.at, "/a/0/b");
    let fault = parse(br#"{"order_id":"7"}}"#, limits()).expect_err("trailing");
    assert_eq!(fault.offset, 16);
}

#[test]
fn a_short_text_of_very_many_values_is_refused_before_it_is_large() {
    let few = Limits { values: 4, ..limits() };
    assert!(parse(b"[1,2,3]", few).is_ok(), "the array counts");
    let fault = parse(b"[1,2,3,4]", few).expect_err("five");
    assert_eq!((fault.kind, fault.at.as_str()), (Kind::TooMany, "/3"));
    assert_eq!(parse(br#"{"a":{"b":[{}]},"c":1}"#, few).expect_err("five").kind, Kind::TooMany);
    let many = format!("[{}0]", "0,".repeat(MAX_VALUES));
    let fault = parse(many.as_bytes(), Limits::answer(many.len())).expect_err("too many");
    assert_eq!(fault.kind, Kind::TooMany);
    assert!(parse(many.as_bytes(), Limits::list(many.len())).is_ok(), "a page of tools may");
}

#[test]
fn digits_and_order_are_kept() {
    for text in [
        r#"{"z":9007199254740993,"a":1.10,"m":18446744073709551615,"n":-0,"k":1.0}"#,
        r#"[123456789012345678901234567890,0.1,-1]"#,
        r#"{"q":"what's \"AI\"? \\n {x:'y'}"}"#,
    ] {
        let value = parse(text.as_bytes(), limits()).expect(text);
        assert_eq!(value.to_string(), text);
    }
}

#[test]
fn nesting_is_bounded_and_deep_text_is_refused_at_once() {
    let at = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    assert!(parse(at(32).as_bytes(), limits()).is_ok());
    assert_eq!(kind(&at(33)), Kind::TooDeep);
    let objects = format!("{}1{}", r#"{"a":"#.repeat(33), "}".repeat(33));
    assert_eq!(kind(&objects), Kind::TooDeep);
    let flood = "[".repeat(100_000);
    let fault = parse(flood.as_bytes(), Limits::answer(1 << 20)).expect_err("deep");
    assert_eq!(fault.kind, Kind::TooDeep);
}

#[test]
fn over_long_text_is_refused_before_it_is_read() {
    let fault = parse(&[b' '; 100], Limits::arguments(10, 5)).expect_err("long");
    assert_eq!(fault.kind, Kind::TooLong);
}

mod agrees_with_serde_json {
    use super::*;
    use proptest::prelude::*;

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(|n| Value::Number(n.into())),
            any::<u64>().prop_map(|n| Value::Number(n.into())),
            (-1.0e300..1.0e300f64)
                .prop_map(|n| Number::from_f64(n).map_or(Value::Null, Value::Number)),
            ".*".prop_map(Value::String),
        ];
        leaf.prop_recursive(5, 64, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
                prop::collection::btree_map("[a-z~/$]{0,6}", inner, 0..6)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn on_every_text_serde_json_writes(value in value()) {
            let text = value.to_string();
            prop_assert_eq!(parse(text.as_bytes(), limits()).expect("sound"), value);
        }

        #[test]
        fn and_never_accepts_what_it_refuses(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if parse(&bytes, Limits::answer(1024)).is_ok() {
                #[expect(clippy::disallowed_methods, reason = "the parser ours is held against")]
                let theirs = serde_json::from_slice::<Value>(&bytes);
                prop_assert!(theirs.is_ok());
            }
        }
    }
}

#[test]
fn a_fault_tells_a_place_of_bounded_length_whatever_the_names() {
    let name = "名".repeat(20_000);
    let text = format!(r#"{{"{name}":{{"{name}":1,"{name}":1}}}}"#);
    let fault = parse(text.as_bytes(), Limits::answer(1 << 20)).expect_err("twice");
    assert_eq!(fault.kind, Kind::DuplicateKey);
    assert!(fault.at.starts_with("/名") && fault.at.ends_with('…'), "{}", fault.at);
    assert_eq!(fault.at.chars().count(), MAX_PLACE + 1);
    assert!(fault.to_string().len() < 400);
}

#[test]
fn only_the_blanks_of_json_are_blank() {
    assert_eq!(kind(" \t\r\n"), Kind::Empty);
    for text in ["\u{c}", "\u{b}", "\u{a0}", "\u{feff}", "\u{c}{}", "{}\u{c}"] {
        assert_ne!(kind(text), Kind::Empty, "{text:?}");
    }
}
