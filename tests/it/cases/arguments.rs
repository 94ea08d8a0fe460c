//! What was validated is what is sent; what is ambiguous, broken or too much is refused with its place.

use serde_json::Value;

use super::create;
use crate::support::{Fixture, Form, Gateway, Reply, ScriptedTool, http};

async fn shop() -> (ScriptedTool, Gateway) {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new()
        .budgets("failures: 1000, calls: 10000, fuse: { same_failures: 1000, same_results: 1000 }")
        .start(&tool)
        .await;
    (tool, gateway)
}

/// One call in a form whose arguments are text, and by the tools API: both must answer alike.
async fn both(gateway: &Gateway, run: &str, tool: &str, arguments: &str) -> Vec<Value> {
    let mut answers = Vec::new();
    for form in [Form::OpenaiChat, Form::OpenaiResponses] {
        let turned =
            gateway.agent(form, &format!("{run}-{form:?}")).ask(&[("c1", tool, arguments)]).await;
        answers.push(turned.answer("c1").clone());
    }
    let direct =
        gateway.agent(Form::OpenaiChat, &format!("{run}-api")).call(tool, "c1", arguments).await;
    answers.push(direct.json());
    answers
}

#[tokio::test]
async fn bb_j01_duplicate_keys_are_refused_by_name() {
    let (tool, gateway) = shop().await;
    let spellings = [
        r#"{"order_ref":"J1","sku":"A","qty":1,"qty":5}"#,
        r#"{"order_ref":"J1","sku":"A","qty":1,"\u0071ty":5}"#,
    ];
    for (n, text) in spellings.iter().enumerate() {
        for answer in both(&gateway, &format!("j01-{n}"), "create_order", text).await {
            assert_eq!(answer["error"], "invalid_arguments", "{answer}");
            assert_eq!(answer["faults"][0]["at"], "/qty", "{answer}");
        }
    }
    // Where arguments are an object inside the body, the body itself is refused.
    let message = Form::AnthropicMessages.message("", &[("c1", "create_order", spellings[0])]);
    let turned = gateway.agent(Form::AnthropicMessages, "j01").send(&message, &[]).await;
    assert_eq!((turned.status, turned.state.as_str()), (400, "protocol_error"));
    assert!(
        turned.body["error"]["message"].as_str().expect("text").contains("qty"),
        "{}",
        turned.body
    );
    // And in the envelope.
    let body = r#"{"role":"assistant","tool_calls":[],"tool_calls":[]}"#;
    let answer = gateway
        .agent(Form::OpenaiChat, "j01")
        .post("/v1/batches/openai-chat", &[], body.as_bytes())
        .await;
    assert_eq!((answer.status, answer.json()["state"].as_str()), (400, Some("protocol_error")));
    assert_eq!(tool.requests().len(), 0);
}

#[tokio::test]
async fn bb_j04_what_stands_after_the_object_is_refused_with_its_offset() {
    let (tool, gateway) = shop().await;
    for (n, text) in
        [r#"{"order_id":"7"}}"#, r#"{"order_id":"7"} done"#, r#"{"order_id":"7"}{"order_id":"7"}"#]
            .iter()
            .enumerate()
    {
        for answer in both(&gateway, &format!("j04-{n}"), "lookup_order", text).await {
            assert_eq!(answer["error"], "invalid_arguments", "{answer}");
            assert!(
                answer["faults"][0]["got"].as_str().expect("text").contains("byte 1"),
                "{answer}"
            );
        }
    }
    assert_eq!(tool.requests().len(), 0);
    for (n, text) in ["{\"order_id\":\"7\"}\n\n", " {\"order_id\":\"7\"}"].iter().enumerate() {
        for answer in both(&gateway, &format!("j04-ok-{n}"), "lookup_order", text).await {
            assert_eq!(answer["ok"], true, "{answer}");
        }
    }
}

#[tokio::test]
async fn bb_j05_no_arguments_may_be_spelt_in_five_ways() {
    let (_tool, gateway) = shop().await;
    let spelt = [
        r#""arguments":"","#,
        r#""arguments":"  ","#,
        r#""arguments":"{}","#,
        r#""arguments":null,"#,
        "",
    ];
    for (n, arguments) in spelt.iter().enumerate() {
        let message = format!(
            r#"{{"role":"assistant","tool_calls":[
                {{"id":"c1","type":"function","function":{{{arguments}"name":"list_regions"}}}},
                {{"id":"c2","type":"function","function":{{{arguments}"name":"lookup_order"}}}}]}}"#
        );
        let turned = gateway.agent(Form::OpenaiChat, &format!("j05-{n}")).send(&message, &[]).await;
        assert_eq!(turned.answer("c1")["ok"], true, "{}", turned.body);
        assert_eq!(turned.error("c2"), "invalid_arguments");
        assert_eq!(turned.answer("c2")["faults"][0]["at"], "/order_id", "{}", turned.body);
        assert_eq!(turned.answer("c2")["faults"][0]["got"], "missing", "{}", turned.body);
    }
}

#[tokio::test]
async fn bb_j06_arguments_encoded_twice_are_not_decoded_twice() {
    let (tool, gateway) = shop().await;
    for answer in both(&gateway, "j06", "lookup_order", r#""{\"order_id\":\"7\"}""#).await {
        assert_eq!(answer["error"], "invalid_arguments", "{answer}");
        assert_eq!(answer["faults"][0]["expected"], "an object");
        assert!(answer["faults"][0]["got"].as_str().expect("text").contains("string"), "{answer}");
    }
    assert_eq!(tool.requests().len(), 0);
}

#[tokio::test]
async fn bb_j08_numbers_that_are_none_are_refused() {
    let (tool, gateway) = shop().await;
    for (n, number) in ["NaN", "-Infinity", "1e999", "1e-400"].iter().enumerate() {
        let text = format!(r#"{{"order_ref":"J8","sku":"A","qty":{number}}}"#);
        for answer in both(&gateway, &format!("j08-{n}"), "create_order", &text).await {
            assert_eq!(answer["error"], "invalid_arguments", "{number}: {answer}");
        }
    }
    assert_eq!(tool.requests().len(), 0);
}

#[tokio::test]
async fn bb_j09_ids_beyond_a_double_keep_every_digit_both_ways() {
    let (tool, gateway) = shop().await;
    tool.script("/pay", [Reply::Json(r#"{"id":1915883588174806058}"#.into())]);
    let agent = gateway.agent(Form::OpenaiChat, "j09");
    for (id, digits) in
        [("c1", "9007199254740993"), ("c2", "18446744073709551615"), ("c3", "9007199254740992")]
    {
        let answer = agent.call("pay", id, &format!(r#"{{"account_id":{digits}}}"#)).await;
        assert!(answer.text().contains("1915883588174806058"), "{}", answer.text());
        assert_eq!(tool.last().text(), format!(r#"{{"account_id":{digits}}}"#));
        // Told again under the same id: the stored answer has its digits still.
        let again = agent.call("pay", id, &format!(r#"{{"account_id":{digits}}}"#)).await;
        assert!(again.text().contains("1915883588174806058"), "{}", again.text());
    }
    assert_eq!(tool.hits("/pay"), 3, "…992 and …993 are two operations, each sent once");
}

#[tokio::test]
async fn bb_j11_truncated_arguments_are_named_so_and_never_repaired() {
    let (tool, gateway) = shop().await;
    for (n, text) in [r#"{"commands":["npm install","npm test""#, r#"{"order_ref":"J11","sku":"A"#]
        .iter()
        .enumerate()
    {
        for answer in both(&gateway, &format!("j11-{n}"), "create_order", text).await {
            assert_eq!(answer["error"], "invalid_arguments", "{answer}");
            assert!(
                answer["faults"][0]["expected"].as_str().expect("text").contains("truncated"),
                "{answer}"
            );
        }
    }
    assert_eq!(tool.requests().len(), 0);
}

#[tokio::test]
async fn bb_j12_strings_arrive_as_they_were_written() {
    let (tool, gateway) = shop().await;
    let text = r#"{"message_ref":"J12","text":"what's \"AI\"? \\n {x:'y'}"}"#;
    let answer = gateway.agent(Form::OpenaiChat, "j12").call("send_email", "c1", text).await;
    assert_eq!(answer.json()["ok"], true, "{}", answer.text());
    assert_eq!(tool.last().text(), text);
}

#[tokio::test]
async fn bb_j14_deep_nesting_is_a_bounded_error_everywhere() {
    let (tool, gateway) = shop().await;
    let deep = "[".repeat(60_000);
    let agent = gateway.agent(Form::OpenaiChat, "j14");
    let turned = agent.ask(&[("c1", "lookup_order", &deep)]).await;
    assert_eq!(turned.error("c1"), "invalid_arguments");
    // As the body itself, and as a tool's answer.
    let body = "[".repeat(100_000);
    let answer = agent.post("/v1/batches/openai-chat", &[], body.as_bytes()).await;
    assert_eq!(answer.status, 400);
    tool.script("/orders", [Reply::Json("[".repeat(100_000))]);
    let answer = agent.call("lookup_order", "c2", r#"{"order_id":"1"}"#).await;
    assert_eq!(answer.json()["error"], "upstream_protocol_error");
    // As a value deep inside sound JSON.
    let nested = format!(r#"{{"order_id":{}1{}}}"#, "[".repeat(200), "]".repeat(200));
    assert_eq!(
        agent.call("lookup_order", "c3", &nested).await.json()["error"],
        "invalid_arguments"
    );
    // The process is alive and others are served.
    assert_eq!(agent.call("list_regions", "c4", "{}").await.json()["ok"], true);
}

#[tokio::test]
async fn bb_j15_arguments_wrapped_too_deep_name_the_field_and_the_right_ones() {
    let (tool, gateway) = shop().await;
    for (n, text) in
        [r#"{"arguments":{"order_id":"7"}}"#, r#"{"args":{"order_id":"7"},"name":"lookup_order"}"#]
            .iter()
            .enumerate()
    {
        for answer in both(&gateway, &format!("j15-{n}"), "lookup_order", text).await {
            assert_eq!(answer["error"], "invalid_arguments", "{answer}");
            let faults = answer["faults"].to_string();
            let unexpected = if n == 0 { "/arguments" } else { "/args" };
            assert!(faults.contains(unexpected) && faults.contains("order_id"), "{faults}");
        }
    }
    assert_eq!(tool.requests().len(), 0);
}

#[tokio::test]
async fn one_wrong_value_is_told_once_whoever_finds_it_wrong() {
    let tool = ScriptedTool::start().await;
    let narrower = "{ type: object, required: [order_id], additionalProperties: true, \
        properties: { order_id: { type: string, minLength: 1, maxLength: 80 } } }";
    let gateway = Fixture::new()
        .with(
            "  default:\n    allow:",
            &format!("  default:\n    constraints: {{ lookup_order: {narrower} }}\n    allow:"),
        )
        .start(&tool)
        .await;
    // Wanted by the schema, by the agent's constraint and by the path, each for itself.
    for (n, (text, at)) in [
        ("{}", vec!["/order_id"]),
        (r#"{"order_id":null}"#, vec!["/order_id"]),
        (r#"{"order_id":""}"#, vec!["/order_id"]),
        (r#"{"order_id":".."}"#, vec!["/order_id"]),
        (r#"{"order":7}"#, vec!["/order_id", "/order"]),
    ]
    .iter()
    .enumerate()
    {
        for answer in both(&gateway, &format!("once-{n}"), "lookup_order", text).await {
            let faults = answer["faults"].as_array().expect("faults");
            let places: Vec<_> = faults.iter().filter_map(|fault| fault["at"].as_str()).collect();
            assert_eq!(places, *at, "{answer}");
        }
    }
    assert_eq!(tool.requests().len(), 0);
}

#[tokio::test]
async fn the_envelope_is_refused_with_a_problem_that_names_its_fault() {
    let (tool, gateway) = shop().await;
    let body = create("E1");
    let post = |path: &'static str, kind: &'static str, body: Vec<u8>| async move {
        http::request(gateway.data, "POST", path, &[("content-type", kind)], &body).await
    };
    let answer = post("/v1/tools/create_order", "text/plain", body.clone().into_bytes()).await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (415, Some("application/problem+json"))
    );
    let answer =
        post("/v1/tools/create_order", "application/json; charset=utf-8", body.into_bytes()).await;
    assert_eq!(answer.status, 200);
    let big = vec![b' '; 2 << 20];
    let answer = post("/v1/batches/openai-chat", "application/json", big).await;
    assert_eq!(answer.status, 413);
    let big = format!(r#"{{"order_ref":"{}","sku":"A","qty":1}}"#, "x".repeat(70_000));
    let answer = post("/v1/tools/create_order", "application/json", big.into_bytes()).await;
    assert_eq!(
        (answer.status, answer.json()["error"].as_str()),
        (413, Some("arguments_too_large"))
    );
    assert_eq!(tool.hits("/create"), 1);
}

#[tokio::test]
async fn a_refusal_is_short_however_many_and_however_long_the_wrong_names_are() {
    let (tool, gateway) = shop().await;
    let many: Vec<String> = (0..5_000).map(|n| format!(r#""{n:x}":{{}}"#)).collect();
    let long = "k".repeat(60_000);
    let texts = [
        format!("{{{}}}", many.join(",")),
        format!(r#"{{"{long}":{{"{long}":1}}}}"#).replace(&long, &long[..30_000]),
        format!(r#"{{"{long}":1,"{long}":2}}"#).replace(&long, &long[..30_000]),
        format!(r#"{{"{long}":NaN}}"#),
    ];
    for (n, text) in texts.iter().enumerate() {
        for answer in both(&gateway, &format!("short-{n}"), "create_order", text).await {
            assert_eq!(answer["error"], "invalid_arguments", "{n}");
            assert!(answer.to_string().len() < 8_000, "{n}: {} bytes", answer.to_string().len());
            assert!(answer["faults"].as_array().expect("faults").len() <= 16, "{n}");
        }
    }
    let body = format!(r#"{{"role":"assistant","{long}":1,"{long}":2}}"#);
    let answer = gateway
        .agent(Form::OpenaiChat, "short")
        .post("/v1/batches/openai-chat", &[], body.as_bytes())
        .await;
    assert_eq!(answer.json()["state"], "protocol_error");
    assert!(answer.body.len() < 1_000, "{}", answer.body.len());
    assert_eq!(tool.requests().len(), 0);
}
