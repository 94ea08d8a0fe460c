//! Who may call what, and what is told about the rest.

use super::{create, order};
use crate::support::fixture::{TOKEN_A, TOKEN_B};
use crate::support::{Fixture, Form, ScriptedTool, http};

#[tokio::test]
async fn bb_a01_an_unknown_tool_is_an_answer_that_lists_the_callers_own() {
    for form in Form::ALL {
        let tool = ScriptedTool::start().await;
        let gateway = Fixture::new().start(&tool).await;
        let agent = gateway.agent(form, "r").with_token(TOKEN_B);
        let (read, write) = (order("1"), create("A1"));
        let turned = agent
            .ask(&[
                ("c1", "lookup_ordr", &read),
                ("c2", "create_order", &write),
                ("c3", "lookup_order", &read),
            ])
            .await;
        assert_eq!(turned.error("c1"), "unknown_tool", "{form:?}");
        assert_eq!(
            turned.answer("c1")["alternatives"],
            serde_json::json!(["lookup_order"]),
            "{form:?}"
        );
        // What exists but is not allowed answers like what does not exist.
        let (unknown, hidden) = (turned.answer("c1").to_string(), turned.answer("c2").to_string());
        assert_eq!(
            unknown.replace("lookup_ordr", "X").replace("c1", "I"),
            hidden.replace("create_order", "X").replace("c2", "I")
        );
        assert_eq!(turned.answer("c3")["ok"], true, "the run goes on");
        assert_eq!(tool.hits("/create"), 0);
    }
}

#[tokio::test]
async fn bb_a03_the_same_unknown_name_again_and_again_is_told_to_stop() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    let mut texts = Vec::new();
    for n in 0..6 {
        let turned = agent.ask(&[(&format!("c{n}"), "find_everything", "{}")]).await;
        texts.push((
            turned.error(&format!("c{n}")).to_owned(),
            turned.answer(&format!("c{n}"))["message"].to_string(),
        ));
    }
    assert!(texts[..3].iter().all(|(code, _)| code == "unknown_tool"), "{texts:?}");
    assert!(texts[3..].iter().all(|(code, _)| code == "repeat_blocked"), "{texts:?}");
    assert_ne!(texts[2].1, texts[3].1);
}

#[tokio::test]
async fn bb_a06_only_the_credential_says_who_asks() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    let bearer = format!("Bearer {TOKEN_B}");
    let spoofed = [
        ("authorization", bearer.as_str()),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-agent-id", "agent-a"),
        ("checkrein-agent", "agent-a"),
        ("x-forwarded-user", "agent-a"),
    ];
    let answer = http::request(
        gateway.data,
        "POST",
        "/v1/tools/create_order",
        &spoofed,
        create("A6").as_bytes(),
    )
    .await;
    assert_eq!((answer.status, answer.json()["error"].as_str()), (404, Some("unknown_tool")));
    let body = Form::OpenaiChat.message("", &[("c1", "create_order", &create("A6"))]);
    let body = body.replacen('{', r#"{"agent":"agent-a","_meta":{"agent":"agent-a"},"#, 1);
    let answer =
        http::request(gateway.data, "POST", Form::OpenaiChat.path(), &spoofed, body.as_bytes())
            .await;
    assert!(answer.text().contains("unknown_tool"), "{}", answer.text());
    assert_eq!(tool.requests().len(), 0);
    // A wrong credential is nobody, not the default agent; so is a doubled one.
    for token in ["Bearer wrong", "Bearer ", "Basic YTpi", &format!("Bearer {TOKEN_A}x")] {
        let answer =
            http::request(gateway.data, "GET", "/v1/tools", &[("authorization", token)], b"").await;
        assert_eq!(
            (answer.status, answer.header("www-authenticate")),
            (401, Some("Bearer")),
            "{token}"
        );
    }
    let twice = [("authorization", bearer.as_str()), ("authorization", bearer.as_str())];
    assert_eq!(http::request(gateway.data, "GET", "/v1/tools", &twice, b"").await.status, 401);
    let real = [("authorization", "Bearer token-of-agent-a-0123456789")];
    assert_eq!(
        http::request(
            gateway.data,
            "POST",
            "/v1/tools/create_order",
            &real,
            create("A6").as_bytes()
        )
        .await
        .status,
        200
    );
}

#[tokio::test]
async fn the_list_holds_exactly_what_the_agent_may_call_in_every_form() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    let bearer = format!("Bearer {TOKEN_B}");
    let list = async |form: &str, headers: &[(&str, &str)]| {
        http::request(gateway.data, "GET", &format!("/v1/tools?form={form}"), headers, b"")
            .await
            .json()["tools"]
            .clone()
    };
    for (form, name, schema) in [
        ("mcp", "/name", "/inputSchema"),
        ("openai-chat", "/function/name", "/function/parameters"),
        ("openai-responses", "/name", "/parameters"),
        ("anthropic-messages", "/name", "/input_schema"),
    ] {
        let all = list(form, &[]).await;
        let names: Vec<&str> = all
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|t| t.pointer(name)?.as_str())
            .collect();
        assert_eq!(
            names,
            ["create_order", "get_doc", "list_regions", "lookup_order", "pay", "send_email"],
            "{form}"
        );
        let own = list(form, &[("authorization", &bearer)]).await;
        assert_eq!(own.as_array().map(Vec::len), Some(1), "{form}");
        assert_eq!(
            own[0].pointer(schema).expect("a schema")["additionalProperties"],
            false,
            "{form}: closed"
        );
    }
}

#[tokio::test]
async fn another_agents_run_answers_like_one_that_never_was() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    let a = gateway.agent(Form::OpenaiChat, "shared-name").with_token(TOKEN_A);
    assert_eq!(a.call("list_regions", "c1", "{}").await.status, 200);
    let b = gateway.agent(Form::OpenaiChat, "shared-name").with_token(TOKEN_B);
    let answer = b.call("lookup_order", "c1", &order("1")).await;
    assert_eq!((answer.status, answer.json()["error"].as_str()), (404, Some("run_unknown")));
    let bearer = format!("Bearer {TOKEN_B}");
    let see = async |run: &str| {
        let path = format!("/v1/runs/{run}");
        let answer =
            http::request(gateway.data, "GET", &path, &[("authorization", &bearer)], b"").await;
        (answer.status, answer.text().replace(run, "RUN"))
    };
    assert_eq!(see("shared-name").await, see("never-was").await);
    assert_eq!(tool.hits("/orders"), 0);
}

#[test]
fn bb_a08_two_tools_under_one_name_are_refused_by_name_and_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.yaml");
    let twice = Fixture::new()
        .text("http://127.0.0.1:9")
        .replace("  pay:\n", "  lookup_order:\n    description: Another.\n    effect: read\n    http: { upstream: shop, method: GET, path: /x }\n    schema: { type: object, properties: {} }\n  pay:\n");
    std::fs::write(&file, crate::support::process::filled(folder.path(), &twice)).expect("written");
    let (code, out, err) = crate::support::process::verb(&["check", &file.display().to_string()]);
    assert_eq!(code, 1, "{out}{err}");
    assert!(format!("{out}{err}").contains("lookup_order"), "{out}{err}");
}
