//! A call that needs a person: it waits, is shown, is decided once, and goes its way once. Over real HTTP.

use serde_json::{Value, json};

use super::kit::{ADA, DEFAULT, GRACE, House};
use crate::support::agent::Turned;
use crate::support::http::Answer;
use crate::support::{Fixture, Form, wait_for};

const SOON: std::time::Duration = std::time::Duration::from_secs(30);
const DELETE_1: &str = r#"{"order_id":"1"}"#;
const DELETE_2: &str = r#"{"order_id":"2"}"#;

/// The shared policy; `delete_order` needs a person, `rules` beside `when`.
fn asking(rules: &str) -> Fixture {
    Fixture::new()
        .with("wall_clock: 10s", "wall_clock: 30m")
        .with("send_email, pay]", "send_email, pay, delete_order]")
        .tool("delete_order", &format!("approval: {{ when: always{rules} }}"))
}

impl House {
    async fn approvals(&self, filter: &str) -> Vec<Value> {
        let listed = self.get(&format!("/admin/v1/approvals{filter}")).await;
        assert_eq!(listed.status, 200, "{}", listed.text());
        listed.json()["approvals"].as_array().expect("a list").clone()
    }

    /// The name of the one that waits.
    async fn waiting(&self) -> String {
        let all = self.approvals("").await;
        assert_eq!(all.len(), 1, "{all:?}");
        all[0]["approval"].as_str().expect("a name").to_owned()
    }

    async fn decide(&self, id: &str, said: &Value) -> Answer {
        self.decide_as(ADA, id, "\"pending\"", said).await
    }

    async fn decide_as(&self, token: &str, id: &str, seen: &str, said: &Value) -> Answer {
        let path = format!("/admin/v1/approvals/{id}/decide");
        let body = said.to_string();
        self.ask("POST", &path, Some(token), &[("if-match", seen)], body.as_bytes()).await
    }

    async fn approve(&self) -> String {
        let id = self.waiting().await;
        let done = self.decide(&id, &json!({ "decision": "approve" })).await;
        assert_eq!(done.status, 200, "{}", done.text());
        id
    }

    async fn delete(&self, form: Form, call: &str, arguments: &str) -> Turned {
        self.gateway.agent(form, "r").ask(&[(call, "delete_order", arguments)]).await
    }

    fn deleted(&self) -> usize {
        self.tool.hits("/orders/")
    }
}

#[tokio::test]
async fn bb_h01_an_approval_is_for_these_arguments_whatever_the_call_s_id() {
    for form in Form::ALL {
        let house = House::start(&asking("")).await;
        let first = house.delete(form, "c1", DELETE_1).await;
        assert_eq!(
            (first.state.as_str(), first.error("c1")),
            ("approval_required", "approval_required")
        );
        let told = first.answer("c1");
        let id = house.approve().await;
        assert_eq!(told["approval"], json!(id), "{told}");
        assert!(told["expires_in_ms"].as_u64().is_some_and(|left| left > 800_000), "{told}");
        assert_eq!((&told["executed"], &told["retry"]), (&json!("no"), &json!("person")));
        // Other arguments, under a new id and under the approved one's.
        let other = house.delete(form, "c2", DELETE_2).await;
        assert_eq!(other.error("c2"), "approval_required");
        assert_ne!(other.answer("c2")["approval"], json!(id));
        let same_id = house.delete(form, "c1", DELETE_2).await;
        assert_eq!(same_id.state, "protocol_error", "{}", same_id.body);
        assert_eq!(house.deleted(), 0);
        // What was approved goes, once.
        let go = house.delete(form, "c3", DELETE_1).await;
        assert_eq!((go.state.as_str(), &go.answer("c3")["ok"]), ("continue", &json!(true)));
        assert_eq!(house.deleted(), 1);
    }
}

#[tokio::test]
async fn bb_h04_a_late_yes_revives_nothing_and_says_so() {
    let house = House::start(&asking(", expires: 1s")).await;
    assert_eq!(house.delete(Form::OpenaiChat, "c1", DELETE_1).await.state, "approval_required");
    let id = house.waiting().await;
    wait_for("its end", SOON, async || house.approvals("").await.is_empty()).await;
    let late = house.decide(&id, &json!({ "decision": "approve" })).await;
    assert_eq!(late.status, 412, "{}", late.text());
    assert!(late.text().contains("nobody decided in time, and that was a no"), "{}", late.text());
    let whatever = house.decide_as(ADA, &id, "*", &json!({ "decision": "approve" })).await;
    assert_eq!((whatever.status, &whatever.json()["approval"]["state"]), (409, &json!("expired")));
    let told = house.delete(Form::OpenaiChat, "c2", DELETE_1).await;
    assert_eq!((told.error("c2"), told.state.as_str()), ("approval_expired", "continue"));
    assert_eq!(told.answer("c2")["executed"], "no");
    assert_eq!(house.deleted(), 0);
    let expired = async || {
        let metrics = house.gateway.metrics().await;
        metrics
            .value("checkrein_approvals_total", &[("tool", "delete_order"), ("decision", "expire")])
    };
    wait_for("the count", SOON, async || expired().await == 1.0).await;
}

#[tokio::test]
async fn bb_h05_what_ran_beside_a_call_that_waits_does_not_run_again_when_it_goes_on() {
    for form in Form::ALL {
        let house = House::start(&asking("")).await;
        let calls = [
            ("c1", "create_order", r#"{"order_ref":"R1","sku":"A","qty":1}"#),
            ("c2", "delete_order", DELETE_1),
            ("c3", "list_regions", "{}"),
        ];
        let agent = house.gateway.agent(form, "r");
        let first = agent.ask(&calls).await;
        assert_eq!(
            (first.state.as_str(), first.error("c2")),
            ("approval_required", "approval_required")
        );
        assert_eq!(
            (&first.answer("c1")["ok"], &first.answer("c3")["ok"]),
            (&json!(true), &json!(true))
        );
        // Before a person has spoken the same message comes to the same.
        assert_eq!(agent.ask(&calls).await.error("c2"), "approval_required");
        house.approve().await;
        let resumed = agent.ask(&calls).await;
        assert_eq!(resumed.state, "continue", "{}", resumed.body);
        assert!(resumed.answers.iter().all(|(_, answer)| answer["ok"] == true), "{}", resumed.body);
        assert_eq!(resumed.body["round"], first.body["round"], "the same round goes on");
        assert_eq!((house.tool.effects("R1"), house.deleted()), (1, 1));
        // And it is kept as it is now.
        assert_eq!(agent.ask(&calls).await.body, resumed.body);
        assert_eq!((house.tool.effects("R1"), house.deleted()), (1, 1));
    }
}

#[tokio::test]
async fn the_card_says_what_will_happen_and_hides_what_is_secret() {
    let fixture = asking("").tool("send_email", "approval: { when: { pointer: /message_ref, matches: \"^M\" } }")
        .with("text: { type: string, maxLength: 500 }", "text: { type: string, maxLength: 500 }\n        api_key: { type: string, maxLength: 50 }");
    let house = House::start(&fixture).await;
    let agent = house.gateway.agent(Form::OpenaiChat, "r");
    let arguments =
        "{\"message_ref\":\"M1\",\"text\":\"pay \\u202e001\\u202c now\",\"api_key\":\"hunter2\"}";
    assert_eq!(agent.call("send_email", "c1", arguments).await.status, 403);
    assert_eq!(
        agent.call("send_email", "c2", r#"{"message_ref":"X","text":"t"}"#).await.status,
        200
    );
    let listed = house.approvals("").await;
    let [one] = listed.as_slice() else { panic!("{listed:?}") };
    assert!(one.get("arguments").is_none(), "a list shows no arguments");
    let id = one["approval"].as_str().expect("a name");
    let shown = house.get(&format!("/admin/v1/approvals/{id}")).await;
    assert_eq!(shown.header("etag"), Some("\"pending\""));
    assert!(!shown.text().contains("hunter2"), "{}", shown.text());
    let card = shown.json();
    assert_eq!(
        card["sentence"],
        "Send an e-mail to a customer (tool send_email), for agent default, with message_ref = \"M1\", \
         text = \"pay ⟨U+202E⟩001⟨U+202C⟩ now\", api_key = \"hidden (7 bytes)\"."
    );
    assert_eq!(
        (&card["tool"], &card["effect"], &card["agent"]),
        (&json!("send_email"), &json!("write"), &json!("default"))
    );
    assert_eq!(
        (&card["run"], &card["call"], &card["state"]),
        (&json!("r"), &json!("c1"), &json!("pending"))
    );
    assert!(
        card["why"].as_str().is_some_and(|why| why.starts_with("tools.send_email.approval.when :")),
        "{card}"
    );
    assert!(card["left_ms"].as_u64().is_some_and(|left| left > 800_000), "{card}");
    assert_eq!(card["hidden"], json!(["/api_key"]));
    assert_eq!(card["decisions"], json!(["approve", "reject"]));
    assert_eq!(
        card["lines"][1],
        json!({ "at": "/text", "value": "\"pay ⟨U+202E⟩001⟨U+202C⟩ now\"" })
    );
    assert_eq!(card["arguments"]["text"], "pay \u{202e}001\u{202c} now", "exact, for programs");
    for (filter, count) in [
        ("?tool=pay", 0),
        ("?tool=send_email&agent=default", 1),
        ("?state=over", 0),
        ("?state=all", 1),
    ] {
        assert_eq!(house.approvals(filter).await.len(), count, "{filter}");
    }
    assert_eq!(house.get("/admin/v1/approvals?state=waiting").await.status, 400);
    assert_eq!(house.get("/admin/v1/approvals/apr_0000000000000000").await.status, 404);
    assert_eq!(
        house.gateway.metrics().await.sum("checkrein_approvals_pending", &[("tool", "send_email")]),
        1.0
    );
}

#[tokio::test]
async fn of_two_people_one_decides_and_every_word_is_on_record() {
    let house = House::start(&asking("")).await;
    house.delete(Form::OpenaiChat, "c1", DELETE_1).await;
    let id = house.waiting().await;
    let no = json!({ "decision": "reject", "comment": "order 1 is paid", "who": "Ada L." });
    let yes = json!({ "decision": "approve" });
    for (seen, status) in [("", 400), ("\"approved\"", 412)] {
        assert_eq!(house.decide_as(ADA, &id, seen, &yes).await.status, status, "{seen}");
    }
    let path = format!("/admin/v1/approvals/{id}/decide");
    assert_eq!(
        house.ask("POST", &path, Some(ADA), &[], yes.to_string().as_bytes()).await.status,
        428
    );
    // A no and a change say why; the agent's own name is nobody's.
    assert_eq!(house.decide(&id, &json!({ "decision": "reject" })).await.status, 400);
    assert_eq!(house.decide_as(DEFAULT, &id, "*", &yes).await.status, 403);
    for bad in [
        json!({}),
        json!({ "decision": "yes" }),
        json!({ "decision": "approve", "arguments": {} }),
        json!({ "decision": "approve", "x": 1 }),
    ] {
        assert_eq!(house.decide(&id, &bad).await.status, 400, "{bad}");
    }
    let (first, second) =
        tokio::join!(house.decide(&id, &no), house.decide_as(GRACE, &id, "\"pending\"", &yes));
    let mut both = [first.status, second.status];
    both.sort_unstable();
    assert_eq!(both, [200, 412]);
    let rejected = first.status == 200;
    let told = house.delete(Form::OpenaiChat, "c2", DELETE_1).await;
    match rejected {
        true => {
            assert_eq!(told.error("c2"), "approval_rejected");
            let message = told.answer("c2")["message"].as_str().expect("a message");
            assert!(message.contains("order 1 is paid"), "{message}");
        }
        false => assert_eq!(told.answer("c2")["ok"], true),
    }
    let card = house.get(&format!("/admin/v1/approvals/{id}")).await.json();
    let who = if rejected { "Ada L. (ada)" } else { "grace" };
    assert_eq!(card["decided"]["who"], who, "{card}");
    wait_for("the record", SOON, async || {
        house.gateway.records().iter().any(|line| {
            line["kind"] == "approval"
                && line["approval"] == json!(id)
                && line["who"] == who
                && line["tool_name"] == "delete_order"
                && line["agent"] == "default"
                && line["arguments_hash"].as_str().is_some_and(|hash| hash.len() == 64)
        })
    })
    .await;
    let metrics = house.gateway.metrics().await;
    assert_eq!(metrics.sum("checkrein_approvals_total", &[("tool", "delete_order")]), 1.0);
    assert_eq!(metrics.value("checkrein_approval_wait_seconds_count", &[]), 1.0);
}

#[tokio::test]
async fn an_edit_is_judged_as_the_agent_s_own_call_would_be_and_binds_the_edited_one() {
    let fixture = Fixture::new()
        .with("wall_clock: 10s", "wall_clock: 30m")
        .tool("create_order", "approval: { when: always, decisions: [approve, edit, reject] }");
    let house = House::start(&fixture).await;
    let agent = house.gateway.agent(Form::OpenaiChat, "r");
    let asked =
        agent.ask(&[("c1", "create_order", r#"{"order_ref":"R1","sku":"A","qty":5}"#)]).await;
    assert_eq!(asked.state, "approval_required");
    let id = house.waiting().await;
    let edit = |arguments: Value| json!({ "decision": "edit", "comment": "one is enough", "arguments": arguments });
    for bad in [
        json!({ "order_ref": "R1", "sku": "A", "qty": 6 }),
        json!({ "order_ref": "R1" }),
        json!([1]),
        json!({ "order_ref": "R1", "sku": "A", "qty": 1, "x": 1 }),
    ] {
        let told = house.decide(&id, &edit(bad.clone())).await;
        assert_eq!(told.status, 400, "{bad}: {}", told.text());
    }
    let told = house.decide(&id, &edit(json!({ "order_ref": "R1", "sku": "A", "qty": 6 }))).await;
    assert_eq!(told.json()["faults"][0]["at"], "/qty", "{}", told.text());
    let same = house.decide(&id, &edit(json!({ "qty": 5, "sku": "A", "order_ref": "R1" }))).await;
    assert_eq!(same.status, 409, "{}", same.text());
    let done = house.decide(&id, &edit(json!({ "order_ref": "R1", "sku": "A", "qty": 1 }))).await;
    assert_eq!(done.status, 200, "{}", done.text());
    assert_eq!(
        (&done.json()["arguments"]["qty"], &done.json()["edited"]["qty"]),
        (&json!(5), &json!(1)),
        "both are kept"
    );
    let again =
        agent.ask(&[("c2", "create_order", r#"{"order_ref":"R1","sku":"A","qty":5}"#)]).await;
    assert_eq!((again.error("c2"), again.state.as_str()), ("approval_edited", "continue"));
    let told = again.answer("c2");
    assert_eq!((&told["retry"], &told["executed"]), (&json!("changed"), &json!("no")));
    let message = told["message"].as_str().expect("a message");
    assert!(
        message.contains(r#"{"order_ref":"R1","sku":"A","qty":1}"#)
            && message.contains("one is enough"),
        "{message}"
    );
    assert_eq!(house.tool.hits("/create"), 0);
    let go = agent.ask(&[("c3", "create_order", r#"{"order_ref":"R1","sku":"A","qty":1}"#)]).await;
    assert_eq!(go.answer("c3")["ok"], true, "{}", go.body);
    assert_eq!(house.tool.effects("R1"), 1);
    let sent: Value = serde_json::from_slice(&house.tool.last().body).expect("JSON");
    assert_eq!(sent["qty"], 1);
    // Not where the policy does not name it.
    let house = House::start(&asking("")).await;
    house.delete(Form::OpenaiChat, "c1", DELETE_1).await;
    let id = house.waiting().await;
    let told = house.decide(&id, &edit(json!({ "order_id": "2" }))).await;
    assert_eq!(told.status, 409, "{}", told.text());
}

#[tokio::test]
async fn only_who_the_policy_names_decides_and_a_changed_policy_makes_a_question_void() {
    let house = House::start(&asking(", approvers: [\"user:grace\"]")).await;
    house.delete(Form::OpenaiChat, "c1", DELETE_1).await;
    let id = house.waiting().await;
    let yes = json!({ "decision": "approve", "who": "grace" });
    let told = house.decide_as(ADA, &id, "*", &yes).await;
    assert_eq!(told.status, 403, "a name in a body is no credential: {}", told.text());
    let text = asking(", approvers: [\"user:ada\"]").text(&house.tool.url());
    house.gateway.rewrite(&text).await;
    let applied = async || {
        let metrics = house.gateway.metrics().await;
        metrics.value("checkrein_policy_reloads_total", &[("result", "applied")]) > 0.0
    };
    wait_for("the other policy", SOON, applied).await;
    let card = house.get(&format!("/admin/v1/approvals/{id}")).await.json();
    assert_eq!(card["void"], true, "{card}");
    for token in [ADA, GRACE] {
        let told = house.decide_as(token, &id, "*", &json!({ "decision": "approve" })).await;
        assert_eq!(told.status, 409, "{}", told.text());
    }
    let no = json!({ "decision": "reject", "comment": "void" });
    assert_eq!(house.decide_as(GRACE, &id, "*", &no).await.status, 200);
    // Under the rules of now it is another question.
    let asked = house.delete(Form::OpenaiChat, "c2", DELETE_1).await;
    assert_eq!(asked.error("c2"), "approval_required");
    assert_ne!(asked.answer("c2")["approval"], json!(id));
    house.approve().await;
    assert_eq!(house.delete(Form::OpenaiChat, "c3", DELETE_1).await.answer("c3")["ok"], true);
    assert_eq!(house.deleted(), 1);
}
