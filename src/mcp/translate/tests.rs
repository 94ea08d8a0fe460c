use proptest::prelude::*;

use super::*;
use crate::mcp::messages::{InputRequired, ResultKind};
use crate::mcp::version::ALL;

#[test]
fn a_modern_result_has_a_type_and_hints_where_its_method_wants_them() {
    let mut result = json!({"contents": [], "ttlMs": 99, "cacheScope": "public"});
    result_to_modern("resources/read", &mut result);
    assert_eq!(
        result.to_string(),
        r#"{"contents":[],"ttlMs":0,"cacheScope":"private","resultType":"complete"}"#
    );
    let mut result = json!({"resultType": "input_required", "requestState": "s"});
    result_to_modern("tools/call", &mut result);
    assert_eq!(result, json!({"resultType": "input_required", "requestState": "s"}));
    let mut result = json!({});
    result_to_modern("server/discover", &mut result);
    assert_eq!(result["ttlMs"], DISCOVER_TTL_MS);
}

#[test]
fn a_legacy_result_has_neither_and_a_tools_own_member_of_that_name_stays() {
    let mut result =
        json!({"tools": [], "resultType": "complete", "ttlMs": 1, "cacheScope": "public", "x": 1});
    result_to_legacy("tools/list", &mut result);
    assert_eq!(result.to_string(), r#"{"tools":[],"x":1}"#);
    let mut result = json!({"content": [], "ttlMs": 1});
    result_to_legacy("tools/call", &mut result);
    assert_eq!(result.to_string(), r#"{"content":[],"ttlMs":1}"#);
}

#[test]
fn structure_that_is_no_object_becomes_text_for_a_legacy_agent() {
    let legacy = |mut result: Value| {
        result_to_legacy("tools/call", &mut result);
        result.to_string()
    };
    let text = r#"{"type":"text","text":"[1,2]"}"#;
    assert_eq!(
        legacy(json!({"content": [], "structuredContent": [1, 2]})),
        format!(r#"{{"content":[{text}]}}"#)
    );
    assert_eq!(legacy(json!({"structuredContent": [1, 2]})), format!(r#"{{"content":[{text}]}}"#));
    let said = json!({"content": [{"type": "text", "text": "[1,2]"}], "structuredContent": [1, 2]});
    assert_eq!(legacy(said), format!(r#"{{"content":[{text}]}}"#));
    let object = json!({"content": [], "structuredContent": {"a": 1}});
    assert_eq!(legacy(object.clone()), object.to_string());
    assert_eq!(
        legacy(json!({"content": [], "structuredContent": null})),
        r#"{"content":[{"type":"text","text":"null"}]}"#
    );
}

#[test]
fn a_tool_keeps_what_its_agent_can_read() {
    let shown = |era, mut tool: Value| {
        tool_for(era, &mut tool);
        tool.to_string()
    };
    let tool = json!({"name": "a", "outputSchema": {"type": "array"}, "execution": {"taskSupport": "required"}, "z": 1});
    assert_eq!(shown(Era::Legacy, tool.clone()), r#"{"name":"a","z":1}"#);
    assert_eq!(shown(Era::Modern, tool), r#"{"name":"a","outputSchema":{"type":"array"},"z":1}"#);
    let tool = json!({"outputSchema": {"type": "object"}, "execution": {"taskSupport": "optional", "x": 1}});
    assert_eq!(
        shown(Era::Legacy, tool),
        r#"{"outputSchema":{"type":"object"},"execution":{"x":1}}"#
    );
}

#[test]
fn error_codes_are_those_of_the_agents_era() {
    use ErrorImage::{Code, InputRequired, OurHop};
    for (era, method, code, want) in [
        (Era::Legacy, "resources/read", -32602, Code(-32002)),
        (Era::Legacy, "tools/call", -32602, Code(-32602)),
        (Era::Modern, "resources/read", -32002, Code(-32602)),
        (Era::Legacy, "tools/call", -32042, Code(-32042)),
        (Era::Modern, "tools/call", -32042, InputRequired),
        (Era::Modern, "tools/call", -32603, Code(-32603)),
        (Era::Legacy, "tools/call", -32020, OurHop),
        (Era::Legacy, "tools/call", -32021, OurHop),
        (Era::Modern, "tools/call", -32022, OurHop),
    ] {
        assert_eq!(error_for(era, method, code), want, "{era:?} {method} {code}");
    }
}

#[test]
fn questions_by_url_lose_the_id_of_their_hop_and_are_input_that_reads_back() {
    let data = json!({"elicitations": [
        {"mode": "url", "elicitationId": "e", "url": "https://x", "message": "m"}, {"mode": "form"}]});
    let requests = elicitations(Some(&data)).expect("one question");
    assert_eq!(
        Value::Object(requests.clone()).to_string(),
        r#"{"url-0":{"method":"elicitation/create","params":{"mode":"url","url":"https://x","message":"m"}}}"#
    );
    let result = json!({"resultType": "input_required", "inputRequests": requests});
    assert_eq!(ResultKind::of(&result), ResultKind::InputRequired);
    assert_eq!(InputRequired::of(&result).expect("input").requests[0].kind, AskKind::ElicitUrl);
    for none in [None, Some(json!({})), Some(json!({"elicitations": []})), Some(json!(1))] {
        assert_eq!(elicitations(none.as_ref()), None);
    }
}

#[test]
fn a_legacy_agent_is_asked_only_what_its_revision_knows() {
    let form = json!({"mode": "form", "message": "m", "_meta": {"a": 1}});
    let url = json!({"mode": "url", "url": "https://x"});
    let ask = |revision, kind, params: &Value| {
        ask_to_legacy(revision, kind, Some(params), "e").map(|params| params.to_string())
    };
    use Revision::{V2025_03_26, V2025_06_18, V2025_11_25, V2026_07_28};
    assert_eq!(ask(V2025_06_18, AskKind::ElicitForm, &form).as_deref(), Some(r#"{"message":"m"}"#));
    assert_eq!(
        ask(V2025_11_25, AskKind::ElicitForm, &form).as_deref(),
        Some(r#"{"mode":"form","message":"m"}"#)
    );
    assert_eq!(
        ask(V2025_11_25, AskKind::ElicitUrl, &url).as_deref(),
        Some(r#"{"mode":"url","url":"https://x","elicitationId":"e"}"#)
    );
    assert_eq!(ask(V2025_06_18, AskKind::ElicitUrl, &url), None);
    assert_eq!(ask(V2025_03_26, AskKind::ElicitForm, &form), None);
    assert_eq!(ask(V2026_07_28, AskKind::Roots, &form), None);
    assert!(ask(V2025_03_26, AskKind::Sampling, &json!({})).is_some());
}

#[test]
fn notifications_without_an_image_are_dropped() {
    for era in [Era::Legacy, Era::Modern] {
        assert_eq!(notification_for(era, "notifications/progress"), NotificationImage::Same);
        for method in
            ["notifications/subscriptions/acknowledged", "notifications/tasks/status", "x", ""]
        {
            assert_eq!(notification_for(era, method), NotificationImage::None, "{method}");
        }
    }
    let complete = "notifications/elicitation/complete";
    assert_eq!(notification_for(Era::Modern, complete), NotificationImage::None);
}

#[test]
fn an_upstream_is_told_no_more_than_the_agent_declared_and_its_revision_has() {
    let declared = json!({"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}},
        "roots": {"listChanged": true}, "tasks": {}, "extensions": {"a.b/c": {}}, "experimental": {}});
    let told = |revision| {
        Value::Object(capabilities_for(revision, &ClientCapabilities::of(&declared))).to_string()
    };
    assert_eq!(told(Revision::V2025_03_26), r#"{"sampling":{},"roots":{"listChanged":true}}"#);
    assert_eq!(
        told(Revision::V2025_06_18),
        r#"{"elicitation":{},"sampling":{},"roots":{"listChanged":true}}"#
    );
    assert_eq!(
        told(Revision::V2026_07_28),
        r#"{"elicitation":{"form":{},"url":{}},"sampling":{"tools":{}},"roots":{}}"#
    );
    for revision in ALL {
        assert!(capabilities_for(revision, &ClientCapabilities::of(&json!({}))).is_empty());
    }
    // a person who can only visit a URL cannot be asked by a revision that has forms alone
    let url = json!({"elicitation": {"url": {}}});
    assert!(capabilities_for(Revision::V2025_06_18, &ClientCapabilities::of(&url)).is_empty());
}

#[test]
fn a_modern_request_says_who_speaks_and_keeps_the_rest_of_its_meta() {
    let mut params = json!({"name": "a", "_meta": {"x.y/z": 1}});
    request_to_modern(
        &mut params,
        Revision::V2026_07_28,
        json!({"name": "c"}),
        Map::new(),
        Some("info"),
    );
    assert_eq!(
        params["_meta"].to_string(),
        r#"{"x.y/z":1,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c"},"io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/logLevel":"info"}"#
    );
}

proptest! {
    #[test]
    fn a_legacy_result_comes_back_from_the_modern_shape_as_it_was(
        names in prop::collection::vec("[a-z]{1,6}", 0..5), method in prop::sample::select(vec!["tools/call", "tools/list", "prompts/get"]),
    ) {
        let mut result = json!({"content": [{"type": "hologram", "n": 1}], "structuredContent": {"b": 1, "a": 2}});
        for (at, name) in names.into_iter().enumerate() {
            result[name] = json!(at);
        }
        let before = result.to_string();
        result_to_modern(method, &mut result);
        prop_assert_eq!(ResultKind::of(&result), ResultKind::Complete);
        result_to_legacy(method, &mut result);
        prop_assert_eq!(result.to_string(), before);
    }
}
