use proptest::prelude::*;
use serde_json::json;

use super::*;

fn read(text: &str) -> Result<Message, Fault> {
    parse(text.as_bytes(), Limits::answer(1 << 20))
}

fn fault(text: &str) -> (i64, Option<String>) {
    let fault = read(text).expect_err(text);
    (fault.code, fault.id.map(|id| id.to_string()))
}

#[test]
fn ids_are_tokens_and_come_back_as_they_came() {
    for token in [
        "1",
        "\"1\"",
        "9007199254740993",
        "-5",
        "0",
        "\"\"",
        "\"é\\n\\\"\"",
        "18446744073709551616",
    ] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{token},"method":"ping"}}"#);
        let Ok(Message::Request(request)) = read(&text) else { panic!("{text}") };
        assert_eq!(request.id.to_string(), token);
        assert_eq!(request.id.to_value().to_string(), token);
        assert_eq!(Id::of(&request.id.to_value()), Some(request.id.clone()));
        assert_eq!(write_request(&request.id, "ping", None), text.into_bytes());
    }
    let one = |text: &str| Id::of(&serde_json::from_value(json!(text)).expect("a value"));
    assert_ne!(one("1"), Some(Id::from(1)));
}

#[test]
fn only_an_id_of_ours_reads_as_a_number() {
    assert_eq!(Id::from(7).as_u64(), Some(7));
    assert_eq!(Id::text("7").as_u64(), None);
    for token in ["-0", "-7", "18446744073709551616"] {
        let number: Number = token.parse().expect(token);
        assert_eq!(Id::of(&Value::Number(number)).expect(token).as_u64(), None, "{token}");
    }
}

#[test]
fn a_bad_id_is_an_invalid_request_and_never_a_notification() {
    for id in ["null", "1.5", "1.0", "1e3", "true", "{}", "[1]"] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{}}}}"#);
        assert_eq!(fault(&text), (INVALID_REQUEST, None), "{text}");
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
        assert_eq!(fault(&text), (INVALID_REQUEST, None), "{text}");
    }
    let long = format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#, "x".repeat(MAX_ID + 1));
    assert_eq!(fault(&long), (INVALID_REQUEST, None));
}

#[test]
fn what_is_not_one_message_gets_the_code_that_says_why() {
    for (text, want) in [
        ("", PARSE_ERROR),
        ("{", PARSE_ERROR),
        ("Server listening on port 3000", PARSE_ERROR),
        (r#"{"jsonrpc":"2.0","method":"a"} {}"#, PARSE_ERROR),
        ("[", PARSE_ERROR),
        ("[]", INVALID_REQUEST),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, INVALID_REQUEST),
        ("7", INVALID_REQUEST),
        ("{}", INVALID_REQUEST),
        (r#"{"id":1,"method":"ping"}"#, INVALID_REQUEST),
        (r#"{"jsonrpc":2.0,"id":1,"method":"ping"}"#, INVALID_REQUEST),
        (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, INVALID_REQUEST),
        (r#"{"jsonrpc":"2.0","id":1}"#, INVALID_REQUEST),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","result":{}}"#, INVALID_REQUEST),
        (
            r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}"#,
            INVALID_REQUEST,
        ),
        (r#"{"jsonrpc":"2.0","id":1,"error":"no"}"#, INVALID_REQUEST),
        (r#"{"jsonrpc":"2.0","id":1,"error":{"code":1.5}}"#, INVALID_REQUEST),
        (r#"{"jsonrpc":"2.0","id":1.5,"error":{"code":1}}"#, INVALID_REQUEST),
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"a"}"#, INVALID_REQUEST),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","params":[1]}"#, INVALID_PARAMS),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","params":"x"}"#, INVALID_PARAMS),
    ] {
        assert_eq!(fault(text).0, want, "{text}");
    }
    assert_eq!(fault(&"[".repeat(100_000)).0, INVALID_REQUEST);
}

#[test]
fn a_fault_names_the_id_where_one_could_be_read() {
    let named = |text| fault(text).1;
    assert_eq!(named(r#"{"jsonrpc":"1.0","id":"a","method":"ping"}"#).as_deref(), Some("\"a\""));
    assert_eq!(named(r#"{"jsonrpc":"2.0","id":7,"method":"x","params":0}"#).as_deref(), Some("7"));
    assert_eq!(named(r#"{"jsonrpc":"2.0","id":7,"error":[]}"#).as_deref(), Some("7"));
}

#[test]
fn an_error_without_an_id_is_still_an_error_reply() {
    for id in [r#""id":null,"#, ""] {
        let text = format!(r#"{{"jsonrpc":"2.0",{id}"error":{{"code":-32601,"message":"no"}}}}"#);
        let Ok(Message::Error(error)) = read(&text) else { panic!("{text}") };
        assert_eq!((error.id, error.code, error.message.as_str()), (None, -32601, "no"));
    }
    let text = r#"{"jsonrpc":"2.0","id":3,"result":null,"error":{"code":-32000,"data":[1.10]}}"#;
    let Ok(Message::Error(error)) = read(text) else { panic!("{text}") };
    assert_eq!((error.code, error.message.as_str()), (-32000, ""));
    assert_eq!(error.data.expect("data").to_string(), "[1.10]");
}

#[test]
fn params_that_are_null_are_absent() {
    let Ok(Message::Notification(note)) = read(r#"{"jsonrpc":"2.0","method":"a","params":null}"#)
    else {
        panic!("no notification")
    };
    assert_eq!(note.params, None);
}

#[test]
fn results_keep_unknown_members_their_order_and_every_digit() {
    let result = r#"{"z":9007199254740993,"content":[{"type":"hologram","x":1.10}],"a":{"n":-0}}"#;
    let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
    let Ok(Message::Response(response)) = read(&text) else { panic!("{text}") };
    assert_eq!(write_result(&response.id, &response.result), text.as_bytes());
    assert_eq!(write_result_raw(&response.id, result.as_bytes()), text.into_bytes());
}

#[test]
fn raw_results_lose_their_line_ends_and_nothing_else() {
    let line = write_result_raw(&Id::from(1), b"{\r\n  \"a\": \"x\\ny\"\n}");
    assert_eq!(line, br#"{"jsonrpc":"2.0","id":1,"result":{    "a": "x\ny" }}"#);
}

#[test]
fn an_error_without_an_id_says_null() {
    assert_eq!(
        write_error(None, INVALID_REQUEST, "a \"b\"\n", Some(&json!({"supported": []}))),
        br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"a \"b\"\n","data":{"supported":[]}}}"#
    );
}

fn trees() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(|number| json!(number)),
        ".{0,12}".prop_map(Value::String),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
            prop::collection::vec(("[a-z\\n]{0,6}", inner), 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn ids() -> impl Strategy<Value = Id> {
    prop_oneof![any::<u64>().prop_map(Id::from), ".{0,20}".prop_map(|text| Id::text(&text)),]
}

proptest! {
    #[test]
    fn every_message_written_is_one_line_that_reads_back(
        id in ids(), method in ".{0,20}", tree in trees(), code in any::<i64>(), with in any::<bool>(),
    ) {
        let params = with.then(|| json!({"x": tree.clone()}));
        let written = [
            (write_request(&id, &method, params.as_ref()),
             Message::Request(Request { id: id.clone(), method: method.clone(), params: params.clone() })),
            (write_notification(&method, params.as_ref()),
             Message::Notification(Notification { method: method.clone(), params })),
            (write_result(&id, &tree), Message::Response(Response { id: id.clone(), result: tree.clone() })),
            (write_error(with.then_some(&id), code, &method, Some(&tree)),
             Message::Error(ErrorReply { id: with.then_some(id), code, message: method, data: Some(tree) })),
        ];
        for (line, message) in written {
            prop_assert!(!line.iter().any(|byte| matches!(byte, b'\n' | b'\r')));
            prop_assert_eq!(parse(&line, Limits::answer(1 << 20)), Ok(message));
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        drop(parse(&bytes, Limits::answer(1 << 20)));
    }

    #[test]
    fn no_tree_makes_it_panic(mut tree in trees(), keys in prop::sample::subsequence(vec!["jsonrpc", "id", "method", "params", "result", "error"], 0..=6)) {
        if let Value::Object(members) = &mut tree {
            for key in keys {
                members.insert(key.to_owned(), json!("2.0"));
            }
        }
        drop(from_value(tree));
    }
}
