//! Three wire forms: what each reads, what each refuses whole, what each answers, word for word.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::call::batch::{Asked, Batch};
use crate::call::{
    CallError, CallId, Content, Notes, Outcome, RunId, Source, ToolName, ToolResult,
};

const LIMITS: BodyLimits = BodyLimits {
    request_bytes: 1 << 20,
    argument_bytes: 1 << 16,
    argument_depth: 32,
    batch_calls: 32,
};

const FORMS: [FrontEnd; 3] =
    [FrontEnd::OpenaiChat, FrontEnd::OpenaiResponses, FrontEnd::AnthropicMessages];

fn parse(form: FrontEnd, body: &str) -> Result<Turn, String> {
    read(form, body.as_bytes(), LIMITS)
        .map(|(turn, _)| turn)
        .map_err(|refused| refused.denied.message.into_owned())
}

/// A message with the given calls: (id, tool, arguments as text).
fn message(form: FrontEnd, calls: &[(&str, &str, &str)]) -> String {
    let object = |text: &str| -> Value {
        strict_json::parse(text.as_bytes(), Limits::answer(1 << 20)).expect("an object")
    };
    let body = match form {
        FrontEnd::OpenaiChat => {
            json!({"role": "assistant", "content": null, "tool_calls": calls.iter().map(|(id, tool, text)|
            json!({"id": id, "type": "function", "function": {"name": tool, "arguments": text}})).collect::<Vec<_>>()})
        }
        FrontEnd::OpenaiResponses => json!({"output": calls.iter().map(|(id, tool, text)|
            json!({"type": "function_call", "id": "fc_item", "call_id": id, "name": tool, "arguments": text})).collect::<Vec<_>>()}),
        FrontEnd::AnthropicMessages => {
            json!({"role": "assistant", "content": calls.iter().map(|(id, tool, text)|
            json!({"type": "tool_use", "id": id, "name": tool, "input": object(text)})).collect::<Vec<_>>()})
        }
        FrontEnd::ToolsApi | FrontEnd::McpHttp | FrontEnd::McpStdio | FrontEnd::Proxy => {
            Value::Null
        }
    };
    body.to_string()
}

fn only(turn: &Turn) -> &Asked {
    assert_eq!(turn.calls.len(), 1);
    &turn.calls[0]
}

fn got(asked: &Asked) -> String {
    match &asked.payload {
        Payload::Arguments(arguments) => arguments.tree().to_string(),
        Payload::Malformed(malformed) => {
            let fault = &malformed.faults[0];
            format!("malformed: {} | {} | {}", fault.at, fault.expected, fault.got)
        }
        Payload::Unsupported { kind } => format!("unsupported: {kind}"),
        Payload::Request(_) => unreachable!("of a batch"),
    }
}

fn one_chat(arguments: &Value) -> Turn {
    let body =
        json!({"tool_calls": [{"id": "c1", "function": {"name": "t", "arguments": arguments}}]});
    parse(FrontEnd::OpenaiChat, &body.to_string()).expect("a message")
}

#[test]
fn bb_p06_calls_of_one_tool_stay_apart_in_every_form() {
    for form in FORMS {
        let calls = [
            ("c1", "lookup_order", r#"{"order_id":"1"}"#),
            ("c2", "lookup_order", r#"{"order_id":"2"}"#),
        ];
        let turn = parse(form, &message(form, &calls)).expect("sound");
        let read: Vec<_> = turn
            .calls
            .iter()
            .map(|asked| (asked.id.as_deref().expect("id"), asked.tool.as_str(), got(asked)))
            .collect();
        for (read, (id, tool, text)) in read.iter().zip(calls) {
            assert_eq!((read.0, read.1, read.2.as_str()), (id, tool, text), "{form:?}");
        }
    }
}

#[test]
fn bb_p02_a_doubled_or_missing_id_pairs_nothing_in_any_form() {
    for form in FORMS {
        let doubled = message(form, &[("c1", "create_order", "{}"), ("c1", "create_order", "{}")]);
        let turn = parse(form, &doubled).expect("a message");
        let denied = Batch::pair(turn.calls).expect_err("two of one id");
        assert_eq!(denied.code, DenyCode::DuplicateCallId);
        assert!(denied.message.contains("c1"), "{form:?}");
        let missing = doubled.replace("\"c1\"", "null");
        let turn = parse(form, &missing).expect("a message");
        assert_eq!(Batch::pair(turn.calls).expect_err("none").code, DenyCode::MissingCallId);
    }
}

#[test]
fn bb_j01_a_doubled_member_of_arguments_is_named() {
    let asked = one_chat(&json!(r#"{"order_ref":"J1","sku":"A","qty":1,"qty":5}"#));
    let text = got(only(&asked));
    assert!(text.starts_with("malformed: /qty") && text.contains("`qty`"), "{text}");
    // Where arguments are an object of the body, the whole body is refused.
    let body = r#"{"content":[{"type":"tool_use","id":"c","name":"t","input":{"qty":1,"qty":5}}]}"#;
    let message = parse(FrontEnd::AnthropicMessages, body).expect_err("twice");
    assert!(message.contains("/content/0/input/qty"), "{message}");
}

#[test]
fn bb_j04_only_white_space_may_follow_the_arguments() {
    for text in [r#"{"order_id":"7"}}"#, r#"{"order_id":"7"} done"#, "{}{}"] {
        let text = got(only(&one_chat(&json!(text))));
        assert!(text.contains("nothing after the object") && text.contains("at byte"), "{text}");
    }
    for text in ["{\"order_id\":\"7\"}\n\n", " {\"order_id\":\"7\"}"] {
        assert_eq!(got(only(&one_chat(&json!(text)))), r#"{"order_id":"7"}"#);
    }
}

#[test]
fn bb_j05_no_text_is_no_arguments() {
    for none in [json!(""), json!("  "), json!("{}"), json!("null"), Value::Null] {
        assert_eq!(got(only(&one_chat(&none))), "{}", "{none}");
    }
    for (form, body) in [
        (
            FrontEnd::OpenaiChat,
            r#"{"tool_calls":[{"id":"c","type":"function","function":{"name":"t"}}]}"#,
        ),
        (
            FrontEnd::OpenaiResponses,
            r#"{"output":[{"type":"function_call","call_id":"c","name":"t"}]}"#,
        ),
        (FrontEnd::AnthropicMessages, r#"{"content":[{"type":"tool_use","id":"c","name":"t"}]}"#),
    ] {
        assert_eq!(got(only(&parse(form, body).expect("sound"))), "{}", "{form:?}");
    }
}

#[test]
fn bb_j06_arguments_encoded_twice_are_refused_not_guessed() {
    let text = got(only(&one_chat(&json!(r#""{\"order_id\":\"7\"}""#))));
    assert!(text.contains("an object") && text.contains("encoded twice"), "{text}");
    let body =
        json!({"content": [{"type": "tool_use", "id": "c", "name": "t", "input": "{\"a\":1}"}]});
    let turn = parse(FrontEnd::AnthropicMessages, &body.to_string()).expect("a message");
    assert!(got(only(&turn)).contains("encoded twice"));
    let text = got(only(&one_chat(&json!({"order_id": "7"}))));
    assert_eq!(text, "malformed:  | a JSON object written as a string | object");
}

#[test]
fn bb_j08_what_is_no_json_number_is_refused_with_its_call() {
    for text in [r#"{"qty":NaN}"#, r#"{"qty":-Infinity}"#, r#"{"qty":1e999}"#, r#"{"qty":1e-400}"#]
    {
        assert!(got(only(&one_chat(&json!(text)))).starts_with("malformed: /qty"), "{text}");
    }
    for number in ["1e999", "1e-400"] {
        let body = format!(
            r#"{{"content":[{{"type":"tool_use","id":"c","name":"t","input":{{"qty":{number}}}}}]}}"#
        );
        let turn = parse(FrontEnd::AnthropicMessages, &body).expect("one call's fault");
        assert!(got(only(&turn)).starts_with("malformed: /qty"), "{number}");
    }
    let body = r#"{"content":[{"type":"tool_use","id":"c","name":"t","input":{"qty":NaN}}]}"#;
    assert!(parse(FrontEnd::AnthropicMessages, body).is_err());
}

#[test]
fn bb_j11_cut_off_arguments_are_called_truncated() {
    for text in [r#"{"commands":["npm install","npm test""#, r#"{"order_ref":"J11","sku":"A"#] {
        let text = got(only(&one_chat(&json!(text))));
        assert!(text.contains("truncated"), "{text}");
    }
}

#[test]
fn bb_j12_text_within_arguments_is_untouched() {
    let sent = r#"{"q":"what's \"AI\"? \\n {x:'y'}"}"#;
    for form in FORMS {
        let turn = parse(form, &message(form, &[("c1", "t", sent)])).expect("sound");
        assert_eq!(got(only(&turn)), sent, "{form:?}");
    }
}

#[test]
fn bb_j15_wrapped_arguments_are_kept_for_the_schema_to_name() {
    let sent = r#"{"arguments":{"order_id":"7"}}"#;
    assert_eq!(got(only(&one_chat(&json!(sent)))), sent, "no unwrapping");
}

#[test]
fn numbers_keep_their_digits_in_every_form() {
    let sent = r#"{"n":9007199254740993,"x":0.10000000000000001}"#;
    for form in FORMS {
        let turn = parse(form, &message(form, &[("c1", "t", sent)])).expect("sound");
        assert_eq!(got(only(&turn)), sent, "{form:?}");
    }
}

#[test]
fn arguments_over_their_bounds_are_one_calls_fault() {
    let deep = format!("{}1{}", r#"{"a":"#.repeat(33), "}".repeat(33));
    let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(1 << 16));
    for form in FORMS {
        for (text, too_large) in [(&deep, false), (&long, true)] {
            let turn = parse(form, &message(form, &[("c1", "t", text)])).expect("a message");
            let Payload::Malformed(malformed) = &only(&turn).payload else {
                panic!("{form:?} took them")
            };
            assert_eq!(malformed.too_large.is_some(), too_large, "{form:?}");
        }
    }
}

#[test]
fn other_kinds_of_calls_are_refused_by_themselves() {
    let chat =
        r#"{"tool_calls":[{"id":"c1","type":"custom","custom":{"name":"grep","input":"x"}}]}"#;
    let responses = r#"{"output":[{"type":"web_search_call","id":"c1","status":"completed"}]}"#;
    let custom = r#"{"output":[{"type":"custom_tool_call","id":"i","call_id":"c1","name":"grep","input":"x"}]}"#;
    let anthropic =
        r#"{"content":[{"type":"server_tool_use","id":"c1","name":"web_search","input":{}}]}"#;
    for (form, body, tool, kind) in [
        (FrontEnd::OpenaiChat, chat, "grep", "custom"),
        (FrontEnd::OpenaiResponses, responses, "web_search_call", "web_search_call"),
        (FrontEnd::OpenaiResponses, custom, "grep", "custom_tool_call"),
        (FrontEnd::AnthropicMessages, anthropic, "web_search", "server_tool_use"),
    ] {
        let turn = parse(form, body).expect("a message");
        let asked = only(&turn);
        assert_eq!(asked.id.as_deref(), Some("c1"), "{body}");
        assert_eq!((asked.tool.as_str(), got(asked)), (tool, format!("unsupported: {kind}")));
    }
}

#[test]
fn the_words_of_a_message_are_gathered_and_the_rest_passed_over() {
    for (form, body) in [
        (FrontEnd::OpenaiChat, r#"{"role":"assistant","content":"ab"}"#),
        (
            FrontEnd::OpenaiChat,
            r#"{"content":[{"type":"text","text":"a"},{"type":"refusal","refusal":"b"}],"tool_calls":null}"#,
        ),
        (FrontEnd::OpenaiChat, r#"{"content":null,"refusal":"ab","annotations":[]}"#),
        (
            FrontEnd::OpenaiResponses,
            r#"{"id":"resp","output":[{"type":"reasoning","summary":[]},{"type":"message","content":[{"type":"output_text","text":"a"},{"type":"refusal","refusal":"b"}]},{"type":"compaction"}]}"#,
        ),
        (FrontEnd::AnthropicMessages, r#"{"role":"assistant","content":"ab"}"#),
        (
            FrontEnd::AnthropicMessages,
            r#"{"content":[{"type":"thinking","thinking":"x","signature":"y"},{"type":"text","text":"a"},{"type":"web_search_tool_result","content":[]},{"type":"text","text":"b"}]}"#,
        ),
    ] {
        let turn = parse(form, body).expect(body);
        assert_eq!((turn.text.as_str(), turn.calls.len()), ("ab", 0), "{body}");
    }
}

#[test]
fn a_body_of_another_shape_is_told_its_place() {
    for (form, body, place) in [
        (FrontEnd::OpenaiChat, r#"[]"#, "`the body` must be an object, not array"),
        (FrontEnd::OpenaiChat, r#"{"role":"user","content":"x"}"#, "`/role`"),
        (FrontEnd::OpenaiChat, r#"{"choices":[{"message":{}}]}"#, "choices[0].message"),
        (
            FrontEnd::OpenaiChat,
            r#"{"function_call":{"name":"t","arguments":"{}"}}"#,
            "`/function_call`",
        ),
        (FrontEnd::OpenaiChat, r#"{"tool_calls":{}}"#, "`/tool_calls` must be an array"),
        (FrontEnd::OpenaiChat, r#"{"tool_calls":[7]}"#, "`/tool_calls/0` must be an object"),
        (
            FrontEnd::OpenaiChat,
            r#"{"tool_calls":[{"id":1,"function":{"name":"t"}}]}"#,
            "`/tool_calls/0/id` must be a string, not number",
        ),
        (
            FrontEnd::OpenaiChat,
            r#"{"tool_calls":[{"id":"c"}]}"#,
            "`/tool_calls/0` lacks the member `function`",
        ),
        (
            FrontEnd::OpenaiChat,
            r#"{"tool_calls":[{"id":"c","function":{"arguments":"{}"}}]}"#,
            "`/tool_calls/0/function` lacks the member `name`",
        ),
        (FrontEnd::OpenaiChat, r#"{"content":7}"#, "`/content`"),
        (FrontEnd::OpenaiResponses, r#"{}"#, "lacks the member `output`"),
        (FrontEnd::OpenaiResponses, r#"{"output":[{}]}"#, "`/output/0` lacks the member `type`"),
        (
            FrontEnd::OpenaiResponses,
            r#"{"output":[{"type":"function_call","call_id":"c","name":7}]}"#,
            "`/output/0/name`",
        ),
        (FrontEnd::AnthropicMessages, r#"{"role":"assistant"}"#, "lacks the member `content`"),
        (
            FrontEnd::AnthropicMessages,
            r#"{"content":[{"type":"text"}]}"#,
            "`/content/0` lacks the member `text`",
        ),
        (FrontEnd::AnthropicMessages, r#"{"content":["x"]}"#, "`/content/0` must be an object"),
    ] {
        let message = parse(form, body).expect_err(body);
        assert!(message.contains(place), "{body}: {message}");
        assert!(message.contains("nothing was run"), "{message}");
    }
}

#[test]
fn an_unsound_envelope_is_refused_whole() {
    for body in [
        "",
        "{",
        "{} x",
        r#"{"a":1,"a":2}"#,
        r#"{"tool_calls":[{"id":"a","id":"b"}]}"#,
        r#"{"x":NaN}"#,
    ] {
        for form in FORMS {
            assert!(parse(form, body).is_err(), "{form:?} {body}");
        }
    }
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    assert!(parse(FrontEnd::OpenaiChat, &deep).is_err());
}

#[test]
fn more_calls_than_a_batch_may_hold_are_refused_whole() {
    for form in FORMS {
        let ids: Vec<String> = (0..33).map(|n| format!("c{n}")).collect();
        let calls: Vec<_> = ids.iter().map(|id| (id.as_str(), "t", "{}")).collect();
        assert_eq!(parse(form, &message(form, &calls[..32])).expect("32").calls.len(), 32);
        let refused = read(form, message(form, &calls).as_bytes(), LIMITS).expect_err("33");
        assert_eq!(refused.reason, "too_many");
        assert!(refused.denied.message.contains("33") && refused.denied.message.contains("32"));
    }
}

#[test]
fn a_re_sent_message_has_the_same_digest_and_another_has_not() {
    let digest = |form, body: &str| read(form, body.as_bytes(), LIMITS).expect("sound").1;
    let chat = FrontEnd::OpenaiChat;
    let once = digest(chat, r#"{"content":"x","role":"assistant"}"#);
    assert_eq!(once, digest(chat, r#"{ "role":"assistant", "content":"\u0078" }"#));
    assert_ne!(once, digest(chat, r#"{"content":"y","role":"assistant"}"#));
    assert_ne!(once, digest(FrontEnd::AnthropicMessages, r#"{"content":"x","role":"assistant"}"#));
}

fn answer(id: &str, outcome: Outcome) -> Answer {
    Answer {
        id: CallId::new(id).expect("id"),
        tool: ToolName::new("check_order").expect("name"),
        outcome,
        attempts: 1,
        operation: None,
        alternatives: Vec::new(),
    }
}

fn found(text: &'static str) -> Outcome {
    Ok(ToolResult {
        head: None,
        content: Content {
            bytes: Bytes::from_static(text.as_bytes()),
            form: crate::call::Form::Json,
        },
        source: Source::Tool,
        notes: Notes::default(),
    })
}

fn refused() -> Outcome {
    Err(CallError::Denied(Denied::new(DenyCode::DryRun, "rehearsed")))
}

fn turn_answer(state: LoopState, answers: Vec<Answer>) -> TurnAnswer {
    let run = RunId::new("r1").expect("id");
    TurnAnswer { state, run, round: 2, answers, summary: None, error: None }
}

#[test]
fn each_form_answers_in_its_own_words() {
    let ok =
        r#"{\"ok\":true,\"value\":{\"status\":\"in_transit\"},\"call\":\"c1\",\"attempts\":1}"#;
    let no = r#"{\"ok\":false,\"error\":\"dry_run\",\"message\":\"rehearsed\",\"executed\":\"no\",\"retry\":\"never\",\"hint\":\"the call passed every check and would have been sent; this agent only rehearses\",\"call\":\"c2\"}"#;
    let answers =
        || vec![answer("c1", found(r#"{"status":"in_transit"}"#)), answer("c2", refused())];
    for (form, messages) in [
        (
            FrontEnd::OpenaiChat,
            format!(
                r#"[{{"role":"tool","tool_call_id":"c1","content":"{ok}"}},{{"role":"tool","tool_call_id":"c2","content":"{no}"}}]"#
            ),
        ),
        (
            FrontEnd::OpenaiResponses,
            format!(
                r#"[{{"type":"function_call_output","call_id":"c1","output":"{ok}"}},{{"type":"function_call_output","call_id":"c2","output":"{no}"}}]"#
            ),
        ),
        (
            FrontEnd::AnthropicMessages,
            format!(
                r#"[{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"c1","content":"{ok}","is_error":false}},{{"type":"tool_result","tool_use_id":"c2","content":"{no}","is_error":true}}]}}]"#
            ),
        ),
    ] {
        let shown = body(form, &turn_answer(LoopState::Continue, answers()));
        assert_eq!(
            String::from_utf8(shown).expect("utf-8"),
            format!(r#"{{"state":"continue","run":"r1","round":2,"messages":{messages}}}"#)
        );
    }
}

#[test]
fn a_message_without_calls_is_answered_without_messages() {
    for form in FORMS {
        let mut done = turn_answer(LoopState::Done, Vec::new());
        done.summary = Some("tried: a timed out".into());
        assert_eq!(
            String::from_utf8(body(form, &done)).expect("utf-8"),
            r#"{"state":"done","run":"r1","round":2,"messages":[],"summary":"tried: a timed out"}"#
        );
    }
}

#[test]
fn a_message_refused_whole_is_a_400_that_says_why() {
    let mut answer = turn_answer(LoopState::ProtocolError, Vec::new());
    answer.error = Some(Denied::new(DenyCode::DuplicateCallId, "the id `c1` stands twice"));
    let text = format!(
        "{:?}",
        shown(FrontEnd::OpenaiChat, &answer).into_response(None).into_parts().0.status
    );
    assert_eq!(text, "400");
    let denied = answer.error.expect("set");
    assert_eq!(
        String::from_utf8(protocol_error(&denied)).expect("utf-8"),
        r#"{"state":"protocol_error","messages":[],"error":{"ok":false,"error":"duplicate_call_id","message":"the id `c1` stands twice","executed":"no","retry":"changed","hint":"repeat the whole message; every call needs an id of its own"}}"#
    );
}

#[test]
fn bb_p10_ids_come_back_byte_for_byte() {
    let long = "x".repeat(64);
    for id in ["call_A|fc_B", "toolu_1", "functions.eval:301", "идент-号", "a\"b\\c", &long] {
        for form in FORMS {
            let turn = parse(form, &message(form, &[(id, "t", "{}")])).expect("sound");
            let paired = Batch::pair(turn.calls).expect("sound").into_calls();
            let answers = vec![answer(paired[0].id.as_str(), found("1"))];
            let text = body(form, &turn_answer(LoopState::Continue, answers));
            let tree = strict_json::parse(&text, Limits::answer(1 << 16)).expect("json");
            assert_eq!(ids(form, &tree), [id], "{form:?}");
        }
    }
}

/// The ids that the messages of an answer are paired by, in order.
fn ids(form: FrontEnd, tree: &Value) -> Vec<String> {
    let messages = tree["messages"].as_array().expect("messages");
    let (items, name) = match form {
        FrontEnd::OpenaiChat
        | FrontEnd::ToolsApi
        | FrontEnd::McpHttp
        | FrontEnd::McpStdio
        | FrontEnd::Proxy => (messages.clone(), "tool_call_id"),
        FrontEnd::OpenaiResponses => (messages.clone(), "call_id"),
        FrontEnd::AnthropicMessages => (
            messages
                .iter()
                .flat_map(|m| m["content"].as_array().expect("blocks").clone())
                .collect(),
            "tool_use_id",
        ),
    };
    items.iter().map(|item| item[name].as_str().expect("id").to_owned()).collect()
}

/// Values of about the right shape, with every part sometimes wrong.
fn nearly() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-c{}\"]{0,4}".prop_map(Value::from),
        prop_oneof![
            Just("assistant"),
            Just("function"),
            Just("custom"),
            Just("function_call"),
            Just("web_search_call"),
            Just("message"),
            Just("text"),
            Just("tool_use"),
            Just("server_tool_use"),
            Just("{\"a\":1}"),
            Just("{\"a\":1,\"a\":2}"),
        ]
        .prop_map(Value::from),
    ];
    let name = prop_oneof![
        Just("role"),
        Just("content"),
        Just("tool_calls"),
        Just("output"),
        Just("type"),
        Just("id"),
        Just("call_id"),
        Just("function"),
        Just("name"),
        Just("arguments"),
        Just("input"),
        Just("text"),
        Just("refusal"),
        Just("custom"),
    ];
    leaf.prop_recursive(6, 64, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((name.clone(), inner), 0..6).prop_map(|members| {
                Value::Object(members.into_iter().map(|(n, v)| (n.to_owned(), v)).collect())
            }),
        ]
    })
}

/// Calls in a sound envelope: ids missing, empty or doubled at times.
fn calls() -> impl Strategy<Value = Vec<(Option<String>, String, Value)>> {
    let id = prop::option::weighted(0.9, "[a-z|é]{0,3}");
    prop::collection::vec((id, "[a-z ]{0,6}", nearly()), 0..6)
}

fn wire(form: FrontEnd, calls: &[(Option<String>, String, Value)]) -> Value {
    let (key, items): (&str, Vec<Value>) = match form {
        FrontEnd::OpenaiChat | FrontEnd::ToolsApi | FrontEnd::McpHttp | FrontEnd::McpStdio | FrontEnd::Proxy => (
            "tool_calls",
            calls.iter().map(|(id, tool, a)| json!({"id": id, "function": {"name": tool, "arguments": a}})).collect(),
        ),
        FrontEnd::OpenaiResponses => (
            "output",
            calls.iter().map(|(id, tool, a)| json!({"type": "function_call", "call_id": id, "name": tool, "arguments": a})).collect(),
        ),
        FrontEnd::AnthropicMessages => (
            "content",
            calls.iter().map(|(id, tool, a)| json!({"type": "tool_use", "id": id, "name": tool, "input": a})).collect(),
        ),
    };
    json!({ key: items })
}

proptest! {
    #[test]
    fn no_bytes_make_a_form_panic(bytes in prop::collection::vec(any::<u8>(), 0..25)) {
        for form in FORMS {
            if let Ok((turn, _)) = read(form, &bytes, LIMITS) {
                prop_assert!(turn.calls.is_empty(), "a call is longer than these bytes");
            }
        }
    }

    #[test]
    fn nearly_right_bodies_are_read_or_refused_with_words(value in nearly()) {
        for form in FORMS {
            if let Err(refused) = read(form, value.to_string().as_bytes(), LIMITS) {
                prop_assert!(!refused.denied.message.is_empty());
            }
        }
    }

    #[test]
    fn a_paired_batch_is_answered_once_per_id_in_order(calls in calls()) {
        for form in FORMS {
            let body_text = wire(form, &calls).to_string();
            let turn = parse(form, &body_text).expect("a sound envelope");
            prop_assert_eq!(turn.calls.len(), calls.len());
            let asked: Vec<Option<String>> = calls.iter().map(|call| call.0.clone()).collect();
            let mut distinct: Vec<&Option<String>> = asked.iter().collect();
            distinct.sort();
            distinct.dedup();
            let sound = distinct.len() == asked.len()
                && asked.iter().all(|id| id.as_ref().is_some_and(|id| !id.is_empty()));
            match Batch::pair(turn.calls) {
                Ok(batch) => {
                    prop_assert!(sound);
                    let answers: Vec<Answer> = batch
                        .into_calls()
                        .into_iter()
                        .map(|paired| answer(paired.id.as_str(), found("1")))
                        .collect();
                    let text = body(form, &turn_answer(LoopState::Continue, answers));
                    let tree = strict_json::parse(&text, Limits::answer(1 << 20)).expect("json");
                    let asked: Vec<String> = asked.into_iter().flatten().collect();
                    prop_assert_eq!(ids(form, &tree), asked);
                }
                Err(_) => prop_assert!(!sound),
            }
        }
    }
}
