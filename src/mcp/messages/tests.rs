use serde_json::json;

use super::*;
use crate::strict_json::{self, Limits};

fn tree(text: &str) -> Value {
    strict_json::parse(text.as_bytes(), Limits::answer(1 << 22)).expect(text)
}

#[test]
fn a_call_is_read_with_whatever_arguments_it_has() {
    let params = tree(
        r#"{"name":"pay","arguments":{"z":1.10,"a":1},"_meta":{"progressToken":7,"x.y/z":1},
            "inputResponses":{"k":{"action":"accept"}},"requestState":""}"#,
    );
    let call = CallParams::of(Some(&params)).expect("a call");
    assert_eq!(call.name, "pay");
    assert_eq!(call.arguments.expect("arguments").to_string(), r#"{"z":1.10,"a":1}"#);
    assert_eq!(call.progress_token, Some(&json!(7)));
    assert_eq!(call.request_state, Some(""));
    assert_eq!(call.input_responses.expect("answers").len(), 1);
    let odd = json!({"name": "pay", "arguments": "all of it"});
    assert_eq!(CallParams::of(Some(&odd)).expect("a call").arguments, Some(&json!("all of it")));
}

#[test]
fn a_call_that_is_none_says_which_member_is_wrong() {
    for (params, at) in [
        (None, ""),
        (Some(json!([])), ""),
        (Some(json!({})), "/name"),
        (Some(json!({"name": ""})), "/name"),
        (Some(json!({"name": 1})), "/name"),
        (Some(json!({"name": "a", "_meta": []})), "/_meta"),
        (Some(json!({"name": "a", "requestState": 1})), "/requestState"),
        (Some(json!({"name": "a", "inputResponses": []})), "/inputResponses"),
    ] {
        assert_eq!(CallParams::of(params.as_ref()).expect_err("wrong").at, at, "{params:?}");
    }
}

#[test]
fn a_progress_token_of_another_type_asks_for_no_progress() {
    for (token, want) in
        [(json!("x"), true), (json!(7), true), (json!(null), false), (json!([]), false)]
    {
        let params = json!({"name": "a", "_meta": {"progressToken": token}});
        let call = CallParams::of(Some(&params)).expect("a call");
        assert_eq!(call.progress_token.is_some(), want, "{params}");
    }
}

#[test]
fn the_kind_of_a_result_is_what_it_says_and_complete_when_it_says_nothing() {
    for (result, want) in [
        (json!({}), ResultKind::Complete),
        (json!({"resultType": "complete"}), ResultKind::Complete),
        (json!({"resultType": "input_required"}), ResultKind::InputRequired),
        (json!({"resultType": "task"}), ResultKind::Task),
        (json!({"resultType": "Complete"}), ResultKind::Other),
        (json!({"resultType": null}), ResultKind::Other),
        (json!({"inputRequests": {}, "content": []}), ResultKind::Complete),
    ] {
        assert_eq!(ResultKind::of(&result), want, "{result}");
    }
    assert!(!is_error(&json!({"isError": "true"})) && is_error(&json!({"isError": true})));
}

#[test]
fn an_empty_cursor_is_a_cursor_and_null_is_none() {
    let cursor = |text: &str| {
        let result = tree(text);
        ListPage::of(List::Tools, &result).map(|page| page.next_cursor.map(str::to_owned))
    };
    assert_eq!(cursor(r#"{"tools":[],"nextCursor":""}"#), Ok(Some(String::new())));
    assert_eq!(cursor(r#"{"tools":[],"nextCursor":null}"#), Ok(None));
    assert_eq!(cursor(r#"{"tools":[]}"#), Ok(None));
    assert_eq!(cursor(r#"{"tools":[],"nextCursor":1}"#).expect_err("number").at, "/nextCursor");
    assert_eq!(cursor(r#"{"tools":{}}"#).expect_err("object").at, "/tools");
    for list in List::ALL {
        assert_eq!(List::of_method(list.method()), Some(list));
        assert!(ListPage::of(list, &json!({list.member(): []})).is_ok());
    }
}

#[test]
fn one_bad_definition_costs_one_tool() {
    let deep = (0..70).fold(json!({"type": "object"}), |below, _| json!({"not": below}));
    let wide: Vec<Value> = (0..10_001).map(|_| json!({})).collect();
    let schema = json!({"type": "object"});
    let items = vec![
        json!({"name": "good", "inputSchema": schema, "x": 1}),
        Value::Null,
        json!({"inputSchema": schema}),
        json!({"name": "", "inputSchema": schema}),
        json!({"name": "twice", "inputSchema": schema}),
        json!({"name": "none"}),
        json!({"name": "null", "inputSchema": null}),
        json!({"name": "bool", "inputSchema": true}),
        json!({"name": "array", "inputSchema": {"type": "array"}}),
        json!({"name": "types", "inputSchema": {"type": ["object"]}}),
        json!({"name": "deep", "inputSchema": {"type": "object", "not": deep}}),
        json!({"name": "wide", "inputSchema": {"type": "object", "allOf": wide}}),
        json!({"name": "long", "inputSchema": {"type": "object", "title": "x".repeat(300_000)}}),
        json!({"name": "output", "inputSchema": schema, "outputSchema": "x"}),
        json!({"name": "twice", "inputSchema": {"type": "object", "properties": {}}}),
        json!({"name": "also good", "inputSchema": schema, "outputSchema": {"type": "array"}}),
    ];
    let judged = judge_tools(items, Transport::Http);
    let names: Vec<_> = judged.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["good", "also good"]);
    assert_eq!(
        judged.tools[0].raw.to_string(),
        r#"{"name":"good","inputSchema":{"type":"object"},"x":1}"#
    );
    let dropped: Vec<_> = judged.dropped.iter().map(|dropped| dropped.name.as_str()).collect();
    assert_eq!(
        dropped,
        [
            "#1", "#2", "#3", "twice", "none", "null", "bool", "array", "types", "deep", "wide",
            "long", "output", "twice"
        ]
    );
    assert!(judged.dropped.iter().all(|dropped| !dropped.reason.is_empty()));
}

#[test]
fn a_tool_named_like_a_place_is_not_mistaken_for_a_nameless_one() {
    let schema = json!({"type": "object"});
    let judged = judge_tools(
        vec![json!({"inputSchema": schema}), json!({"name": "#0", "inputSchema": schema})],
        Transport::Stdio,
    );
    assert_eq!(judged.tools.len(), 1);
    assert_eq!(judged.dropped[0].reason, "no name");
}

#[test]
fn an_absent_hint_says_nothing_and_neither_does_one_of_another_type() {
    let hints =
        Hints::of(&json!({"readOnlyHint": true, "destructiveHint": "no", "openWorldHint": false}));
    assert_eq!(
        hints,
        Hints {
            read_only: Some(true),
            destructive: None,
            idempotent: None,
            open_world: Some(false)
        }
    );
}

#[test]
fn input_required_needs_a_question_or_a_state_and_known_kinds() {
    let result = tree(
        r#"{"resultType":"input_required","requestState":"s","inputRequests":{
            "b":{"method":"elicitation/create","params":{"mode":"url","url":"https://x"}},
            "a":{"method":"elicitation/create","params":{"message":"who?"}},
            "s":{"method":"sampling/createMessage","params":{}},
            "r":{"method":"roots/list"}}}"#,
    );
    let input = InputRequired::of(&result).expect("input");
    let kinds: Vec<_> = input.requests.iter().map(|ask| (ask.key, ask.kind)).collect();
    assert_eq!(
        kinds,
        [
            ("b", AskKind::ElicitUrl),
            ("a", AskKind::ElicitForm),
            ("s", AskKind::Sampling),
            ("r", AskKind::Roots)
        ]
    );
    assert_eq!(input.state, Some("s"));
    assert!(InputRequired::of(&json!({"requestState": ""})).is_ok());
    let many: Map<String, Value> =
        (0..=input::MAX_ASKS).map(|at| (at.to_string(), json!({"method": "roots/list"}))).collect();
    for bad in [
        json!({}),
        json!({"inputRequests": []}),
        json!({"requestState": 1}),
        json!({"inputRequests": {"a": {"method": "tools/call"}}}),
        json!({"inputRequests": {"a": {"method": "elicitation/create", "params": {"mode": "telepathy"}}}}),
        json!({"inputRequests": {"a": 1}}),
        json!({"inputRequests": many}),
    ] {
        assert!(InputRequired::of(&bad).is_err(), "{bad}");
    }
}

#[test]
fn elicitation_without_modes_is_elicitation_by_form() {
    let of = |capabilities: Value| {
        let view = ClientCapabilities::of(&capabilities);
        (view.elicitation_form, view.elicitation_url)
    };
    assert_eq!(of(json!({"elicitation": {}})), (true, false));
    assert_eq!(of(json!({"elicitation": {"form": {}}})), (true, false));
    assert_eq!(of(json!({"elicitation": {"url": {}}})), (false, true));
    assert_eq!(of(json!({"elicitation": {"form": {}, "url": {}}})), (true, true));
    assert_eq!(of(json!({"elicitation": true})), (false, false));
    assert_eq!(of(json!(null)), (false, false));
}

#[test]
fn what_a_server_declares_is_read_and_nothing_more() {
    let declared = json!({
        "tools": {"listChanged": true}, "resources": {"subscribe": true}, "logging": {},
        "tasks": {"requests": {"tools": {"call": {}}}}, "extensions": {"a.b/c": {}}, "prompts": null,
    });
    let view = ServerCapabilities::of(&declared);
    assert!(view.tools && view.tools_list_changed && view.resources && view.resources_subscribe);
    assert!(view.logging && view.tasks_for_calls && view.extensions.is_some());
    assert!(!view.prompts && !view.completions && !view.resources_list_changed);
}

#[test]
fn both_handshakes_are_read() {
    let params = json!({"protocolVersion": "2030-01-01", "capabilities": {"roots": {"listChanged": true}}, "clientInfo": {"name": "a"}});
    let read = InitializeParams::of(Some(&params)).expect("params");
    assert_eq!(read.protocol_version, "2030-01-01");
    assert!(read.capabilities.roots_list_changed);
    assert!(InitializeParams::of(Some(&json!({"capabilities": {}}))).is_err());
    assert!(
        InitializeParams::of(Some(&json!({"protocolVersion": "x", "capabilities": 1}))).is_err()
    );
    let result = json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "instructions": "go"});
    let read = InitializeResult::of(&result).expect("result");
    assert_eq!(
        (read.protocol_version, read.instructions, read.capabilities.tools),
        ("2025-06-18", Some("go"), true)
    );
    let result =
        json!({"supportedVersions": ["2026-07-28", 1], "capabilities": {"tools": {}}, "ttlMs": 5});
    let read = DiscoverResult::of(&result).expect("result");
    assert_eq!((read.supported_versions, read.ttl_ms), (vec!["2026-07-28"], Some(5)));
    assert!(DiscoverResult::of(&json!({"content": []})).is_err());
}

#[test]
fn a_bad_mirrored_parameter_costs_the_tool_over_http_alone() {
    let item = json!({"name": "a", "inputSchema": {"type": "object", "properties": {
        "n": {"type": "number", "x-mcp-header": "N"}}}});
    assert_eq!(judge_tools(vec![item.clone()], Transport::Http).dropped.len(), 1);
    assert_eq!(judge_tools(vec![item], Transport::Stdio).tools.len(), 1);
}

#[test]
fn what_is_required_is_covered_by_what_was_declared() {
    let covers =
        |declared: Value, required: Value| ClientCapabilities::of(&declared).cover(&required);
    assert!(covers(json!({"sampling": {}}), json!({"sampling": {}})));
    assert!(!covers(json!({"elicitation": {}}), json!({"sampling": {}})));
    assert!(!covers(json!({"sampling": {}}), json!({"sampling": {"tools": {}}})));
    assert!(covers(json!({"elicitation": {}}), json!({"elicitation": {"form": {}}})));
    assert!(!covers(json!({"elicitation": {}}), json!({"elicitation": {"url": {}}})));
    assert!(!covers(json!(null), json!({"roots": {}})));
    assert!(covers(json!({}), json!({})));
}
