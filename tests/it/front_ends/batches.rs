//! Batches: the reference behaviours, each in every wire form.

use serde_json::{Value, json};

use super::kit::{Got, House};

const FORMS: [&str; 3] = ["openai-chat", "openai-responses", "anthropic-messages"];

/// A message with calls (id, tool, arguments), in a form's words.
fn message(form: &str, calls: &[(&str, &str, Value)]) -> String {
    let all =
        |one: &dyn Fn(&(&str, &str, Value)) -> Value| calls.iter().map(one).collect::<Vec<_>>();
    match form {
        "openai-chat" => json!({"role": "assistant", "content": null, "tool_calls": all(&|(id, tool, a)|
            json!({"id": id, "type": "function", "function": {"name": tool, "arguments": a.to_string()}}))}),
        "openai-responses" => json!({"output": all(&|(id, tool, a)|
            json!({"type": "function_call", "id": format!("fc_{id}"), "call_id": id, "name": tool, "arguments": a.to_string()}))}),
        _ => json!({"role": "assistant", "content": all(&|(id, tool, a)|
            json!({"type": "tool_use", "id": id, "name": tool, "input": a}))}),
    }
    .to_string()
}

/// A message of words alone.
fn words(form: &str, text: &str) -> String {
    match form {
        "openai-chat" => json!({"role": "assistant", "content": text}),
        "openai-responses" => json!({"output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}]}),
        _ => json!({"role": "assistant", "content": [{"type": "text", "text": text}]}),
    }
    .to_string()
}

/// (id, answer object) of each message to append.
fn answers(form: &str, got: &Got) -> Vec<(String, Value)> {
    let messages = got.body["messages"].as_array().expect("messages");
    let blocks: Vec<Value> = match form {
        "anthropic-messages" => messages
            .iter()
            .flat_map(|m| m["content"].as_array().expect("content").clone())
            .collect(),
        _ => messages.clone(),
    };
    let (id, text) = match form {
        "openai-chat" => ("tool_call_id", "content"),
        "openai-responses" => ("call_id", "output"),
        _ => ("tool_use_id", "content"),
    };
    let parse = |text: &str| {
        let limits = checkrein::strict_json::Limits::answer(1 << 16);
        checkrein::strict_json::parse(text.as_bytes(), limits).expect("an answer object")
    };
    blocks
        .iter()
        .map(|b| (b[id].as_str().expect("id").to_owned(), parse(b[text].as_str().expect("text"))))
        .collect()
}

async fn send(house: &House, form: &str, run: &str, body: &str) -> Got {
    house.post(&format!("/v1/batches/{form}"), &[("checkrein-run", run)], body).await
}

fn order(id: &str) -> Value {
    json!({"order_id": id})
}

#[tokio::test(start_paused = true)]
async fn bb_p06_each_answer_goes_with_its_own_call() {
    for form in FORMS {
        let house = House::new();
        let calls = [
            ("call_A|fc_B", "lookup_order", order("1")),
            ("functions.eval:301", "lookup_order", order("2")),
            ("c3", "list_regions", json!({})),
        ];
        let got = send(&house, form, "r1", &message(form, &calls)).await;
        assert_eq!(got.status, 200, "{form} {got:?}");
        assert_eq!(
            (got.body["state"].as_str(), got.body["round"].as_u64()),
            (Some("continue"), Some(1))
        );
        assert_eq!((got.header("checkrein-run"), got.body["run"].as_str()), ("r1", Some("r1")));
        let answers = answers(form, &got);
        for ((id, answer), (asked, tool, arguments)) in answers.iter().zip(&calls) {
            assert_eq!((id.as_str(), answer["call"].as_str()), (*asked, Some(*asked)), "{form}");
            assert_eq!(answer["value"]["tool"], *tool, "{form}");
            assert_eq!(answer["value"]["got"], *arguments, "{form}");
        }
        assert_eq!((answers.len(), house.hits.all().len()), (3, 3), "{form}");
    }
}

#[tokio::test(start_paused = true)]
async fn bb_p02_a_doubled_or_missing_id_refuses_the_whole_message() {
    for form in FORMS {
        let house = House::new();
        let calls = [
            ("c1", "create_order", json!({"order_ref": "P2a"})),
            ("c1", "create_order", json!({"order_ref": "P2b"})),
        ];
        let doubled = message(form, &calls);
        let missing = doubled.replace("\"c1\"", "\"\"");
        for (body, code) in [(&doubled, "duplicate_call_id"), (&missing, "missing_call_id")] {
            let got = send(&house, form, "r1", body).await;
            assert_eq!(got.status, 400, "{form} {got:?}");
            assert_eq!(got.body["state"], "protocol_error");
            assert_eq!(got.body["messages"], json!([]));
            assert_eq!(got.body["error"]["error"], code, "{form}");
        }
        let got = send(&house, form, "r1", &doubled).await;
        assert!(got.body["error"]["message"].as_str().expect("words").contains("c1"), "{form}");
        assert!(house.hits.all().is_empty(), "{form}");
        let text = house.metrics.encode();
        assert!(
            text.contains("checkrein_batches_rejected_total{reason=\"duplicate_id\"} 2"),
            "{text}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_id_used_for_another_call_is_refused_and_the_same_message_is_answered_again() {
    for form in FORMS {
        let house = House::new();
        let body = message(form, &[("c1", "lookup_order", order("1"))]);
        let first = send(&house, form, "r1", &body).await;
        let again = send(&house, form, "r1", &body).await;
        assert_eq!(first.body, again.body, "{form}");
        assert_eq!(house.hits.all().len(), 1, "{form}");
        let other =
            send(&house, form, "r1", &message(form, &[("c1", "lookup_order", order("2"))])).await;
        assert_eq!(
            (other.status.as_u16(), other.body["error"]["error"].as_str()),
            (400, Some("call_id_reused"))
        );
        assert_eq!(house.hits.all().len(), 1, "{form}");
    }
}

#[tokio::test(start_paused = true)]
async fn bb_j01_arguments_that_do_not_parse_are_answered_and_their_neighbours_run() {
    let house = House::new();
    let call =
        |id, text: &str| json!({"id": id, "function": {"name": "create_order", "arguments": text}});
    let body = json!({"tool_calls": [
        call("dup", r#"{"order_ref":"J1","sku":"A","qty":1,"qty":5}"#),
        call("tail", r#"{"order_ref":"J1"}}"#),
        call("cut", r#"{"order_ref":"J11""#),
        call("twice", r#""{\"order_ref\":\"J6\"}""#),
        {"id": "object", "function": {"name": "create_order", "arguments": {"order_ref": "J"}}},
        {"id": "kind", "type": "custom", "custom": {"name": "create_order", "input": "x"}},
        {"id": "good", "function": {"name": "lookup_order", "arguments": "{\"order_id\":\"7\"}\n"}},
    ]});
    let got = send(&house, "openai-chat", "r1", &body.to_string()).await;
    assert_eq!(got.status, 200, "{got:?}");
    let answers = answers("openai-chat", &got);
    let told: Vec<_> = answers
        .iter()
        .map(|(id, answer)| (id.as_str(), answer["error"].as_str().unwrap_or("ok")))
        .collect();
    assert_eq!(
        told,
        [
            ("dup", "invalid_arguments"),
            ("tail", "invalid_arguments"),
            ("cut", "invalid_arguments"),
            ("twice", "invalid_arguments"),
            ("object", "invalid_arguments"),
            ("kind", "unsupported_call"),
            ("good", "ok"),
        ]
    );
    assert_eq!(answers[0].1["faults"][0]["at"], "/qty");
    assert_eq!(house.hits.all(), [r#"lookup_order {"order_id":"7"}"#]);
}

#[tokio::test(start_paused = true)]
async fn bb_j05_no_arguments_are_an_empty_object_and_the_schema_decides() {
    for arguments in [json!(""), json!("  "), json!("{}"), json!(null)] {
        let house = House::new();
        let call = |id, tool| json!({"id": id, "function": {"name": tool, "arguments": arguments}});
        let body = json!({"tool_calls": [call("c1", "list_regions"), call("c2", "lookup_order")]});
        let got = send(&house, "openai-chat", "r1", &body.to_string()).await;
        let answers = answers("openai-chat", &got);
        assert_eq!(answers[0].1["ok"], true, "{arguments}");
        assert_eq!(answers[1].1["error"], "invalid_arguments", "{arguments}");
        let faults = answers[1].1["faults"].to_string();
        assert!(faults.contains("order_id"), "{arguments} {faults}");
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_write_that_may_have_happened_the_rest_is_not_started() {
    for form in FORMS {
        let house = House::new();
        let calls = [
            ("c1", "lookup_order", order("1")),
            ("c2", "create_order", json!({"order_ref": "lost"})),
            ("c3", "lookup_order", order("2")),
            ("c4", "create_order", json!({"order_ref": "later"})),
        ];
        let got = send(&house, form, "r1", &message(form, &calls)).await;
        assert_eq!(got.body["state"], "review_required", "{form} {got:?}");
        let told: Vec<_> = answers(form, &got)
            .into_iter()
            .map(|(id, answer)| (id, answer["error"].as_str().unwrap_or("ok").to_owned()))
            .collect();
        let expected = [
            ("c1", "ok"),
            ("c2", "outcome_unknown"),
            ("c3", "skipped_pending_review"),
            ("c4", "skipped_pending_review"),
        ];
        assert_eq!(told, expected.map(|(id, code)| (id.to_owned(), code.to_owned())), "{form}");
        assert_eq!(house.hits.all().len(), 2, "{form}");
        if form == "anthropic-messages" {
            let flags: Vec<_> = got.body["messages"][0]["content"]
                .as_array()
                .expect("blocks")
                .iter()
                .map(|block| block["is_error"].as_bool())
                .collect();
            assert_eq!(flags, [Some(false), Some(true), Some(true), Some(true)]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_round_is_answered_and_one_more_is_refused_before_it_runs() {
    for form in FORMS {
        let house = House::new();
        for round in 1..=3u64 {
            let id = format!("c{round}");
            let got =
                send(&house, form, "r1", &message(form, &[(&id, "lookup_order", order(&id))]))
                    .await;
            assert_eq!(
                (got.body["state"].as_str(), got.body["round"].as_u64()),
                (Some("continue"), Some(round))
            );
        }
        let got =
            send(&house, form, "r1", &message(form, &[("c4", "lookup_order", order("4"))])).await;
        assert_eq!(
            (got.status.as_u16(), got.body["state"].as_str()),
            (200, Some("budget_exhausted"))
        );
        let answers = answers(form, &got);
        assert_eq!(
            (answers[0].0.as_str(), answers[0].1["error"].as_str()),
            ("c4", Some("budget_exhausted"))
        );
        assert_eq!(answers[0].1["dimension"], "rounds");
        assert_eq!(house.hits.all().len(), 3, "{form}");
        let done = send(&house, form, "r1", &words(form, "订单 A17 正在运输中。")).await;
        assert_eq!(
            (done.body["state"].as_str(), &done.body["messages"]),
            (Some("done"), &json!([]))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn words_are_done_silence_breaks_the_protocol_and_going_on_without_a_step_stalls() {
    for form in FORMS {
        let house = House::new();
        let silent = send(&house, form, "r1", &words(form, "")).await;
        assert_eq!(
            (silent.status.as_u16(), silent.body["state"].as_str()),
            (400, Some("protocol_error"))
        );
        let path = format!("/v1/batches/{form}");
        let fields = [("checkrein-run", "r2"), ("checkrein-unfinished", "true")];
        let mut states = Vec::new();
        for _ in 0..3 {
            let got = house.post(&path, &fields, &words(form, "let me think")).await;
            states.push(got.body["state"].as_str().unwrap_or_default().to_owned());
        }
        assert!(states.contains(&"decision_stall".to_owned()), "{form} {states:?}");
        assert_eq!(states[0], "continue", "{form}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_not_of_its_form_runs_nothing_and_is_told_its_place() {
    let house = House::new();
    for (form, body, place) in [
        ("openai-chat", "", "no JSON value"),
        ("openai-chat", r#"{"tool_calls":[{"id":"a","id":"b"}]}"#, "/tool_calls/0/id"),
        ("openai-chat", r#"{"choices":[]}"#, "choices[0].message"),
        ("openai-responses", r#"{"output":{}}"#, "/output"),
        (
            "anthropic-messages",
            r#"{"content":[{"type":"tool_use","id":7,"name":"x"}]}"#,
            "/content/0/id",
        ),
        ("anthropic-messages", r#"{"content":[]} x"#, "after the JSON value"),
    ] {
        let got = send(&house, form, "r1", body).await;
        assert_eq!(
            (got.status.as_u16(), got.body["state"].as_str()),
            (400, Some("protocol_error")),
            "{body}"
        );
        assert_eq!(got.body["error"]["error"], "invalid_request");
        assert!(got.body["error"]["message"].as_str().expect("words").contains(place), "{got:?}");
    }
    assert!(
        house.metrics.encode().contains("checkrein_batches_rejected_total{reason=\"bad_json\"} 6")
    );
}

#[tokio::test(start_paused = true)]
async fn a_batch_into_a_finished_run_is_a_problem() {
    let house = House::new();
    let body = message("openai-chat", &[("c1", "lookup_order", order("1"))]);
    send(&house, "openai-chat", "r1", &body).await;
    house.post("/v1/runs/r1/finish", &[], "").await;
    let got = send(&house, "openai-chat", "r1", &words("openai-chat", "x")).await;
    assert_eq!((got.status.as_u16(), got.body["error"].as_str()), (404, Some("run_unknown")));
    assert_eq!(got.header("content-type"), "application/problem+json");
}
