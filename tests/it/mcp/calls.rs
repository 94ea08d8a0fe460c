//! What comes of a call, in both eras: results as they came, refusals that a model can read, a write that is never cut.

use checkrein::call::Effect;
use checkrein::strict_json::{self, Limits};
use serde_json::{Value, json};

use super::peer::{Got, Session, as_pairs, ask_modern, build, modern};
use super::script::{ODD, house, tool_of};
use crate::front_ends::kit::House;

async fn both(house: &House, session: &Session, id: &str, params: &Value) -> [Got; 2] {
    let old = session.ask(house, id, "tools/call", params).await;
    [old, ask_modern(house, None, id, "tools/call", params).await]
}

#[tokio::test(start_paused = true)]
async fn error_text_and_structure_survive() {
    let (house, _) = house();
    let session = Session::open(&house).await;
    let refused = json!({"name": "lookup_order", "arguments": {"order_id": 7}});
    for (got, modern) in both(&house, &session, "1", &refused).await.iter().zip([false, true]) {
        let (text, result) = (got.refusal(), got.result());
        assert_eq!((got.status, &text["error"]), (200, &json!("invalid_arguments")));
        assert_eq!(text["faults"][0]["at"], "/order_id", "the text alone is enough");
        assert_eq!(result["structuredContent"], text);
        assert_eq!(result["_meta"]["io.checkrein/outcome"], text);
        assert_eq!(result.get("resultType").is_some(), modern);
    }
    let own = json!({"name": "lookup_order", "arguments": {"order_id": "is_error"}});
    for got in both(&house, &session, "2", &own).await {
        let result = got.result();
        assert_eq!(result["content"], json!([{"type": "text", "text": "no such order"}]));
        assert_eq!(result["isError"], true);
        assert!(result.get("structuredContent").is_none(), "the tool gave none: {result}");
        let outcome = &result["_meta"]["io.checkrein/outcome"];
        assert_eq!(
            (&outcome["error"], &outcome["executed"]),
            (&json!("tool_error"), &json!("yes"))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn bb_o05_a_tools_own_error_passes_with_its_text_and_counts_as_a_failure() {
    let (house, _) = house();
    let session = Session::open(&house).await;
    let got = session.call(&house, "1", "lookup_order", &json!({"order_id": "is_error"})).await;
    assert_eq!(got.result()["content"][0]["text"], "no such order");
    let run = got.header("checkrein-run");
    let summary = house.get(&format!("/v1/runs/{run}/summary"), &[]).await;
    assert_eq!(summary.body["failures"][0]["error"], "tool_error", "{summary:?}");
}

#[tokio::test(start_paused = true)]
async fn bb_o06_an_empty_result_is_a_success() {
    let (house, _) = house();
    let session = Session::open(&house).await;
    let got = session.call(&house, "1", "lookup_order", &json!({"order_id": "progress"})).await;
    assert_eq!(got.result()["content"], json!([]));
    assert!(got.result().get("isError").is_none(), "as the server gave it: {got:?}");
    assert_eq!(got.result()["_meta"]["io.checkrein/outcome"]["ok"], true);
}

#[tokio::test(start_paused = true)]
async fn a_servers_result_passes_as_it_came() {
    let (house, _) = house();
    let session = Session::open(&house).await;
    let params = json!({"name": "lookup_order", "arguments": {"order_id": "odd"}});
    for (got, modern) in both(&house, &session, "1", &params).await.into_iter().zip([false, true]) {
        let mut result = got.result().clone();
        let mut want = strict_json::parse(ODD.as_bytes(), Limits::answer(4096)).expect("JSON");
        let meta = result.as_object_mut().expect("an object").shift_remove("_meta").expect("meta");
        want.as_object_mut().expect("an object").shift_remove("_meta");
        if modern {
            assert_eq!(
                result.as_object_mut().expect("an object").shift_remove("resultType"),
                Some(json!("complete"))
            );
            assert_eq!(meta["io.modelcontextprotocol/serverInfo"]["name"], "checkrein");
        }
        assert_eq!(result.to_string(), want.to_string(), "order and digits");
        assert_eq!(meta["example.com/k"], 2);
        assert!(
            meta.get("io.checkrein/run").is_none()
                && meta.get("io.modelcontextprotocol/y").is_none()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn empty_arguments_are_validated() {
    let house = House::new();
    let session = Session::open(&house).await;
    for (n, params) in [
        json!({"name": "lookup_order"}),
        json!({"name": "lookup_order", "arguments": {}}),
        json!({"name": "lookup_order", "arguments": null}),
        json!({"name": "lookup_order", "arguments": [1]}),
    ]
    .iter()
    .enumerate()
    {
        for got in both(&house, &session, &n.to_string(), params).await {
            assert_eq!(got.refusal()["error"], "invalid_arguments", "{params}");
        }
    }
    assert!(house.hits.all().is_empty());
    for got in both(&house, &session, "9", &json!({"name": "list_regions"})).await {
        assert_eq!(got.result()["isError"], false, "{got:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn filtered_list_is_not_the_lock() {
    let house = House::new();
    let session = Session::open_as(&house, "b").await;
    let mut answers = Vec::new();
    for (n, name) in [
        "lookup_order",
        "Lookup_Order",
        "LIST_REGIONS",
        "shop.list_regions",
        "shop_list_regions",
        "no_such",
    ]
    .into_iter()
    .enumerate()
    {
        let params = json!({"name": name, "arguments": {"order_id": "A17"}});
        let old = session.ask(&house, &n.to_string(), "tools/call", &params).await;
        let new = ask_modern(&house, Some("b"), "1", "tools/call", &params).await;
        for got in [old, new] {
            let mut told = got.refusal();
            assert_eq!(told["error"], "unknown_tool", "{name}");
            assert_eq!(told["alternatives"], json!(["list_regions"]));
            for own in ["call", "message"] {
                told.as_object_mut().expect("an object").shift_remove(own);
            }
            answers.push(told);
        }
    }
    assert!(answers.iter().all(|told| *told == answers[0]), "{answers:?}");
    assert!(house.hits.all().is_empty());
}

#[tokio::test(start_paused = true)]
async fn policy_reads_the_body_name() {
    let house = House::new();
    let session = Session::open_as(&house, "b").await;
    let denied = json!({"name": "lookup_order", "arguments": {"order_id": "A17"}});
    let mut fields = session.fields();
    fields.push(("mcp-name", "list_regions"));
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": denied});
    let got = super::peer::raw(&house, "POST", &fields, &body.to_string()).await;
    assert_eq!(got.refusal()["error"], "unknown_tool", "a session has no such field: {got:?}");
    let (mut fields, body) = modern("1", "tools/call", &denied);
    fields.retain(|(name, _)| name != "mcp-name");
    fields.push(("mcp-name".into(), "list_regions".into()));
    fields.push(("authorization".into(), "Bearer token-b".into()));
    let got = super::peer::raw(&house, "POST", &as_pairs(&fields), &body).await;
    assert_eq!((got.status, got.code()), (400, -32020));
    assert!(house.hits.all().is_empty());
}

#[tokio::test(start_paused = true)]
async fn hangup_does_not_cut_a_write() {
    for is_modern in [false, true] {
        let (house, held) = house();
        let session = Session::open(&house).await;
        let params = json!({"name": tool_of(Effect::Write), "arguments": {"order_ref": "held"}});
        let (mut fields, mut body) = modern("1", "tools/call", &params);
        if !is_modern {
            fields = session.fields().iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
            body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
                .to_string();
        }
        let request = build("POST", &as_pairs(&fields), &body);
        let peer = checkrein::identity::Peer::Loopback;
        let front_ends = house.front_ends.clone();
        let asked = tokio::spawn(async move { front_ends.answer(peer, request).await });
        held.begun.notified().await;
        asked.abort();
        assert!(asked.await.is_err_and(|error| error.is_cancelled()));
        held.go_on.notify_one();
        held.dropped.notified().await;
        // The same write is answered from what was kept, and not made again.
        let again = session.ask(&house, "2", "tools/call", &params).await;
        assert_eq!(again.result()["_meta"]["io.checkrein/outcome"]["replayed"], true, "{again:?}");
        assert_eq!(house.hits.all().len(), 1, "one execution");
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_is_cut_by_a_closed_stream_without_a_session_and_goes_on_with_one() {
    for is_modern in [false, true] {
        let (house, held) = house();
        let session = Session::open(&house).await;
        let params = json!({"name": tool_of(Effect::Read), "arguments": {"order_id": "held"}});
        let (mut fields, mut body) = modern("1", "tools/call", &params);
        if !is_modern {
            fields = session.fields().iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
            body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
                .to_string();
        }
        let request = build("POST", &as_pairs(&fields), &body);
        let peer = checkrein::identity::Peer::Loopback;
        let front_ends = house.front_ends.clone();
        let asked = tokio::spawn(async move { front_ends.answer(peer, request).await });
        held.begun.notified().await;
        asked.abort();
        assert!(asked.await.is_err());
        if !is_modern {
            held.go_on.notify_one();
        }
        held.dropped.notified().await;
        assert_eq!(house.hits.all().len(), usize::from(!is_modern));
    }
}

#[tokio::test(start_paused = true)]
async fn progress_token_is_the_agents() {
    let (house, _) = house();
    let session = Session::open(&house).await;
    for (n, token) in [json!("x"), json!(7)].into_iter().enumerate() {
        let params = json!({"name": "lookup_order", "arguments": {"order_id": "progress"},
                            "_meta": {"progressToken": token}});
        for got in both(&house, &session, &n.to_string(), &params).await {
            assert_eq!(got.header("content-type"), "text/event-stream");
            assert_eq!(got.header("cache-control"), "no-cache, no-transform");
            let told: Vec<&Value> =
                got.messages.iter().filter(|m| m.get("method").is_some()).collect();
            assert_eq!(told.len(), 3, "not the one that goes back: {got:?}");
            for message in told {
                assert_eq!(message["params"]["progressToken"], token);
            }
            assert_eq!(got.result()["content"], json!([]), "the answer is the last");
        }
    }
    let params = json!({"name": "lookup_order", "arguments": {"order_id": "progress"}});
    for got in both(&house, &session, "9", &params).await {
        assert_eq!((got.header("content-type"), got.messages.len()), ("application/json", 1));
    }
}

#[tokio::test(start_paused = true)]
async fn log_messages_come_from_the_level_that_was_asked_for() {
    let (house, _) = house();
    let session = Session::open(&house).await;
    session.ask(&house, "0", "logging/setLevel", &json!({"level": "warning"})).await;
    let params = json!({"name": "lookup_order", "arguments": {"order_id": "progress"}});
    let old = session.ask(&house, "1", "tools/call", &params).await;
    let leveled = json!({"name": "lookup_order", "arguments": {"order_id": "progress"},
                         "_meta": {"io.modelcontextprotocol/logLevel": "warning"}});
    let new = ask_modern(&house, None, "1", "tools/call", &leveled).await;
    for got in [old, new] {
        let levels: Vec<&Value> =
            got.messages.iter().filter_map(|m| m.pointer("/params/level")).collect();
        assert_eq!(levels, ["error"], "{got:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_goes_to_who_can_be_asked_and_its_answer_home() {
    let (house, _) = house();
    let session = Session::open_with(&house, None, "2025-06-18", &json!({"elicitation": {}})).await;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "lookup_order", "arguments": {"order_id": "question"}}});
    let request = build("POST", &session.fields(), &body.to_string());
    let response =
        house.front_ends.clone().answer(checkrein::identity::Peer::Loopback, request).await;
    let mut stream = super::peer::Stream::new(response.into_body());
    let asked = stream.next().await.expect("a question");
    assert_eq!(asked["method"], "elicitation/create");
    let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": {"name": "Ada"}}});
    assert_eq!(session.post(&house, &answer.to_string()).await.status, 202);
    let answered = stream.next().await.expect("an answer");
    assert_eq!(answered["result"]["structuredContent"]["content"]["name"], "Ada");
    assert_eq!(stream.next().await, None);
    assert_eq!(session.post(&house, &answer.to_string()).await.status, 202, "late: dropped");
    let never = json!({"jsonrpc": "2.0", "id": 77, "result": {}});
    assert_eq!(session.post(&house, &never.to_string()).await.status, 400, "never asked");

    let plain = Session::open_with(&house, None, "2025-06-18", &json!({"sampling": {}})).await;
    let got = plain.call(&house, "1", "lookup_order", &json!({"order_id": "question"})).await;
    assert_eq!(got.result()["content"][0]["text"], "NotDeclared");
}

#[tokio::test(start_paused = true)]
async fn input_that_a_modern_server_wants_is_asked_of_an_agent_with_a_session() {
    let (house, _) = house();
    let session = Session::open_with(&house, None, "2025-11-25", &json!({"elicitation": {}})).await;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "lookup_order", "arguments": {"order_id": "ask"}}});
    let request = build("POST", &session.fields(), &body.to_string());
    let response =
        house.front_ends.clone().answer(checkrein::identity::Peer::Loopback, request).await;
    let mut stream = super::peer::Stream::new(response.into_body());
    let asked = stream.next().await.expect("a question");
    let refusal =
        json!({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -1, "message": "no"}});
    assert_eq!(session.post(&house, &refusal.to_string()).await.status, 202);
    let answered = stream.next().await.expect("an answer");
    let told = &answered["result"]["structuredContent"];
    assert_eq!(told["responses"], json!({"k": {"action": "decline"}}), "a refusal is an answer");
    assert_eq!((&told["state"], &told["round"]), (&json!("of the server"), &json!(1)));
    assert!(answered["result"].get("resultType").is_none());

    let plain = Session::open(&house).await;
    let got = plain.call(&house, "1", "lookup_order", &json!({"order_id": "ask"})).await;
    assert_eq!(got.refusal()["error"], "tool_error", "{got:?}");
}

async fn asked_for(house: &House, agent: Option<&str>, params: &Value) -> String {
    let got = ask_modern(house, agent, "1", "tools/call", params).await;
    assert_eq!(got.result()["resultType"], "input_required", "{got:?}");
    assert_eq!(got.result()["inputRequests"]["k"]["method"], "elicitation/create");
    got.result()["requestState"].as_str().expect("a state").to_owned()
}

fn going_on(params: &Value, state: &str) -> Value {
    let mut params = params.clone();
    params["requestState"] = state.into();
    params["inputResponses"] = json!({"k": {"action": "accept"}});
    params
}

#[tokio::test(start_paused = true)]
async fn a_forged_or_foreign_state_is_refused() {
    let (house, _) = house();
    let params = json!({"name": "lookup_order", "arguments": {"order_id": "ask"}});
    let state = asked_for(&house, None, &params).await;
    assert!(!state.contains("of the server"), "sealed");
    let done = ask_modern(&house, None, "2", "tools/call", &going_on(&params, &state)).await;
    let told = &done.result()["structuredContent"];
    assert_eq!((&told["state"], &told["round"]), (&json!("of the server"), &json!(1)), "{done:?}");
    assert_eq!(told["responses"], json!({"k": {"action": "accept"}}));

    let mut forged = state.clone().into_bytes();
    forged[20] = if forged[20] == b'A' { b'B' } else { b'A' };
    let forged = String::from_utf8(forged).expect("ascii");
    let mut other = going_on(&params, &state);
    other["arguments"]["order_id"] = "ask_ever".into();
    let mut torn = going_on(&params, &state);
    torn["_meta"] = json!({"io.checkrein/run": "another"});
    for (agent, params) in [
        (None, going_on(&params, &forged)),
        (Some("a"), going_on(&params, &state)),
        (None, other),
        (None, torn),
    ] {
        let got = ask_modern(&house, agent, "3", "tools/call", &params).await;
        assert_eq!((got.status, got.code()), (400, -32602), "{params}");
    }
    tokio::time::advance(std::time::Duration::from_secs(3600)).await;
    let late = ask_modern(&house, None, "4", "tools/call", &going_on(&params, &state)).await;
    assert_eq!(late.code(), -32602, "expired");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_asks_for_ever_is_stopped() {
    let (house, _) = house();
    let params = json!({"name": "lookup_order", "arguments": {"order_id": "ask_ever"},
                        "_meta": {"io.checkrein/run": "asks"}});
    let mut state = asked_for(&house, Some("a"), &params).await;
    for _ in 0..10 {
        state = asked_for(&house, Some("a"), &going_on(&params, &state)).await;
    }
    let got = ask_modern(&house, Some("a"), "1", "tools/call", &going_on(&params, &state)).await;
    assert_eq!(got.refusal()["error"], "repeat_blocked");
}

#[tokio::test(start_paused = true)]
async fn answers_without_a_state_go_to_the_server_with_a_new_call() {
    let (house, _) = house();
    let mut params = json!({"name": "lookup_order", "arguments": {"order_id": "ask"}});
    params["inputResponses"] = json!({"k": {"action": "accept"}, "unasked": {}});
    let got = ask_modern(&house, None, "1", "tools/call", &params).await;
    let told = &got.result()["structuredContent"];
    assert_eq!(told["responses"], params["inputResponses"], "{got:?}");
    assert_eq!((&told["state"], &told["round"]), (&json!(null), &json!(0)));
    // a server that asks all the same begins at the first round
    params["arguments"]["order_id"] = "ask_ever".into();
    let state = asked_for(&house, None, &params).await;
    let again = asked_for(&house, None, &going_on(&params, &state)).await;
    assert_ne!(state, again);
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_would_have_to_declare_is_an_error_its_client_acts_on() {
    let (house, _) = house();
    let session = Session::open(&house).await;
    let mut params = json!({"name": "lookup_order", "arguments": {"order_id": "lacks"}});
    let got = ask_modern(&house, None, "1", "tools/call", &params).await;
    assert_eq!((got.status, got.code()), (400, -32021), "{got:?}");
    let data = &got.answer()["error"]["data"];
    assert_eq!(data["requiredCapabilities"], json!({"sampling": {}}));
    let old = session.ask(&house, "1", "tools/call", &params).await;
    assert_eq!(old.refusal()["error"], "tool_error", "with a session there is no such error");
    params["_meta"] = json!({"io.modelcontextprotocol/clientCapabilities": {"sampling": {}}});
    let declared = ask_modern(&house, None, "2", "tools/call", &params).await;
    assert_eq!(declared.refusal()["error"], "tool_error", "declaring it again helps nobody");
}
