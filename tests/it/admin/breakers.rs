//! Circuits by hand: an isolated tool refuses until a person closes it, whatever policy comes.

use serde_json::json;

use super::kit::House;
use crate::support::{Fixture, Form, wait_for};

const ORDER: &str = r#"{"order_id":"A17"}"#;
const SOON: std::time::Duration = std::time::Duration::from_secs(10);

#[tokio::test]
async fn a_tool_isolated_by_hand_refuses_in_every_mode_and_over_reloads_until_it_is_reset() {
    for mode in ["enforce", "shadow", "disabled"] {
        let fixture = Fixture::new().tool("lookup_order", &format!("breaker: {{ mode: {mode} }}"));
        let house = House::start(&fixture).await;
        let agent = house.gateway.agent(Form::OpenaiChat, "r");
        assert_eq!(agent.call("lookup_order", "c1", ORDER).await.status, 200, "{mode}");
        let path = "/admin/v1/breakers/lookup_order/isolate";
        assert_eq!(house.post(path, &json!({})).await.status, 400, "a reason is required");
        let moved = house.post(path, &json!({ "why": "the shop moves house" })).await;
        assert_eq!(moved.status, 200, "{mode}: {}", moved.text());
        assert_eq!(
            (&moved.json()["state"], &moved.json()["isolated"]["who"]),
            (&json!("isolated"), &json!("ada"))
        );
        assert_eq!(house.post(path, &json!({ "why": "x" })).await.status, 409);
        let refused = agent.call("lookup_order", "c2", ORDER).await.json();
        assert_eq!(
            (&refused["error"], &refused["retry"]),
            (&json!("circuit_open"), &json!("person")),
            "{mode}: {refused}"
        );
        let other = fixture.clone().with(
            &format!("mode: {mode} }}"),
            &format!("mode: {mode}, consecutive_failures: 7 }}"),
        );
        house.gateway.rewrite(&other.text(&house.tool.url())).await;
        let applied = async || {
            house
                .gateway
                .metrics()
                .await
                .sum("checkrein_policy_reloads_total", &[("result", "applied")])
                >= 1.0
        };
        wait_for("the other policy", SOON, applied).await;
        let refused = agent.call("lookup_order", "c3", ORDER).await.json();
        assert_eq!(refused["error"], "circuit_open", "{mode}: {refused}");
        let shown = house.gateway.metrics().await;
        let isolated = [("tool", "lookup_order"), ("state", "isolated")];
        assert_eq!(shown.value("checkrein_breaker_state", &isolated), 1.0, "{mode}");
        let reset = house
            .post("/admin/v1/breakers/lookup_order/reset", &json!({ "why": "it is back" }))
            .await;
        assert_eq!(reset.status, 200, "{mode}: {}", reset.text());
        assert_eq!(agent.call("lookup_order", "c4", ORDER).await.status, 200, "{mode}");
        assert_eq!(house.tool.hits("/orders"), 2, "{mode}");
    }
}

#[tokio::test]
async fn what_the_policy_isolates_no_hand_opens_and_what_is_closed_needs_none() {
    let house =
        House::start(&Fixture::new().tool("lookup_order", "breaker: { mode: isolated }")).await;
    let why = json!({ "why": "x" });
    assert_eq!(house.post("/admin/v1/breakers/lookup_order/reset", &why).await.status, 409);
    assert_eq!(house.post("/admin/v1/breakers/get_doc/reset", &why).await.status, 409);
    assert_eq!(house.post("/admin/v1/breakers/no_such/isolate", &why).await.status, 404);
    let listed = house.get("/admin/v1/breakers").await.json();
    let states: Vec<_> = listed["breakers"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|breaker| breaker["state"] != "closed")
        .map(|breaker| (breaker["tool"].clone(), breaker["isolated"].clone()))
        .collect();
    assert_eq!(states, [(json!("lookup_order"), json!(null))]);
}
