//! A person stops a run: nothing more of it starts. Let go on, it has the budgets it had.

use serde_json::{Value, json};

use super::kit::House;
use crate::support::{Fixture, Form};

const ORDER: &str = r#"{"order_id":"A17"}"#;

#[tokio::test]
async fn an_interrupted_run_answers_so_and_sends_nothing_until_it_is_resumed() {
    for form in Form::ALL {
        let house = House::start(&Fixture::new().budgets("rounds: 3")).await;
        let agent = house.gateway.agent(form, "r");
        let other = house.gateway.agent(form, "other");
        let first = agent.ask(&[("c1", "lookup_order", ORDER)]).await;
        assert_eq!(first.state, "continue", "{form:?}");
        let why = json!({ "why": "it loops" });
        let stopped = house.post("/admin/v1/runs/r/interrupt", &why).await;
        assert_eq!(stopped.status, 200, "{}", stopped.text());
        assert_eq!(stopped.json()["state"], "interrupted");
        assert_eq!(stopped.json()["interrupted"]["who"], "ada");
        assert_eq!(house.post("/admin/v1/runs/r/interrupt", &why).await.status, 409);
        let refused =
            agent.ask(&[("c2", "lookup_order", ORDER), ("c3", "pay", r#"{"account_id":1}"#)]).await;
        assert_eq!(
            (refused.status, refused.state.as_str()),
            (200, "interrupted"),
            "{}",
            refused.body
        );
        assert_eq!(
            (refused.error("c2"), refused.error("c3")),
            ("run_interrupted", "run_interrupted")
        );
        assert_eq!(refused.answer("c3")["retry"], "person");
        let single = agent.call("lookup_order", "s1", ORDER).await;
        assert_eq!((single.status, &single.json()["error"]), (409, &json!("run_interrupted")));
        let spoken = agent.say("I am done").await;
        assert_eq!(spoken.state, "interrupted", "also a turn without calls");
        let resent = agent.ask(&[("c1", "lookup_order", ORDER)]).await;
        assert_eq!(resent.state, "interrupted", "also a message that was answered before");
        assert_eq!(resent.answer("c1")["ok"], true);
        assert_eq!(house.tool.hits("/"), 1, "nothing was sent meanwhile");
        assert_eq!(other.ask(&[("c1", "lookup_order", ORDER)]).await.state, "continue");
        assert_eq!(house.post("/admin/v1/runs/r/resume", &why).await.status, 200);
        assert_eq!(house.post("/admin/v1/runs/r/resume", &why).await.status, 409);
        let again =
            agent.ask(&[("c2", "lookup_order", ORDER), ("c3", "pay", r#"{"account_id":1}"#)]).await;
        assert_eq!(again.state, "continue", "the same message runs now: {}", again.body);
        assert_eq!(
            (&again.answer("c2")["ok"], &again.answer("c3")["ok"]),
            (&json!(true), &json!(true))
        );
        assert_eq!(again.body["round"], 2, "the refused message took no round");
    }
}

#[tokio::test]
async fn an_interrupted_run_is_not_told_that_a_lost_write_did_not_happen() {
    for form in Form::ALL {
        let house = House::start(&Fixture::new()).await;
        let operation = house.lose("R1").await;
        let why = json!({ "why": "it loops" });
        assert_eq!(house.post("/admin/v1/runs/r/interrupt", &why).await.status, 200);
        let single = house.create("s1", "R1").await;
        let write = r#"{"order_ref":"R1","sku":"A","qty":1}"#;
        let batch = house.gateway.agent(form, "r").ask(&[("c2", "create_order", write)]).await;
        assert_eq!(batch.state, "interrupted");
        for answer in [&single, batch.answer("c2")] {
            assert_eq!(answer["error"], "run_interrupted", "{answer}");
            assert_eq!(
                (&answer["executed"], &answer["retry"]),
                (&json!("unknown"), &json!("person"))
            );
            assert_eq!(answer["operation"], json!(operation));
        }
        let fresh = house.create("s2", "R2").await;
        assert_eq!(
            (&fresh["error"], &fresh["executed"]),
            (&json!("run_interrupted"), &json!("no"))
        );
        assert_eq!(house.tool.hits("/create"), 1);
    }
}

#[tokio::test]
async fn runs_are_listed_and_shown_with_what_they_did() {
    let house = House::start(&Fixture::new()).await;
    for run in ["first", "second"] {
        house.gateway.agent(Form::OpenaiChat, run).call("lookup_order", "c1", ORDER).await;
    }
    let listed = house.get("/admin/v1/runs").await.json();
    let names: Vec<&Value> =
        listed["runs"].as_array().expect("a list").iter().map(|run| &run["run"]).collect();
    assert_eq!(names, ["second", "first"], "newest first");
    let shown = house.get("/admin/v1/runs/first").await.json();
    assert_eq!(shown["agent"], "default");
    assert_eq!(shown["budgets"]["calls"]["used"], 1);
    assert_eq!(shown["first_steps"][0]["tool"], "lookup_order");
    let none = house.get("/admin/v1/runs?state=interrupted").await.json();
    assert_eq!(none["runs"], json!([]));
    for path in ["/admin/v1/runs/none", "/admin/v1/runs/none/interrupt"] {
        let method = if path.ends_with("none") { "GET" } else { "POST" };
        let answer = house.ask(method, path, Some(super::kit::ADA), &[], br#"{"why":"x"}"#).await;
        assert_eq!(answer.status, 404, "{path}");
    }
    let finished = house
        .gateway
        .agent(Form::OpenaiChat, "first")
        .post("/v1/runs/first/finish", &[], b"{}")
        .await;
    assert_eq!(finished.status, 200);
    let gone = house.get("/admin/v1/runs/first").await;
    assert!(gone.status == 404 && gone.text().contains("completed"), "{}", gone.text());
}
