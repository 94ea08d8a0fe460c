//! An agent's own runs.

use super::kit::House;

const A: (&str, &str) = ("authorization", "Bearer token-a");

#[tokio::test(start_paused = true)]
async fn a_run_is_opened_used_looked_at_and_ended() {
    let house = House::new();
    let opened = house.post("/v1/runs", &[], r#"{"goal":"find A17"}"#).await;
    assert_eq!(opened.status, 201, "{opened:?}");
    let run = opened.body["run"].as_str().expect("a run").to_owned();
    assert_eq!(opened.header("checkrein-run"), run);
    assert_eq!(opened.header("location"), format!("/v1/runs/{run}"));
    assert_eq!(opened.body["budgets"]["rounds"], serde_json::json!({"used": 0, "limit": 3}));
    assert_eq!(opened.body["budgets"]["cost"]["limit"], serde_json::Value::Null);

    let fields = [("checkrein-run", run.as_str())];
    house.post("/v1/tools/lookup_order", &fields, r#"{"order_id":"broken"}"#).await;
    let view = house.get(&format!("/v1/runs/{run}"), &[]).await;
    assert_eq!(view.body["budgets"]["calls"]["used"], 1, "{view:?}");
    let summary = house.get(&format!("/v1/runs/{run}/summary"), &[]).await;
    assert_eq!(summary.body["failures"][0]["tool"], "lookup_order", "{summary:?}");
    assert_eq!(summary.body["failures"][0]["error"], "tool_unavailable");
    assert_eq!(summary.body["failures"][0]["count"], 1);

    let other = house.get(&format!("/v1/runs/{run}"), &[A]).await;
    let never = house.get("/v1/runs/never", &[A]).await;
    assert_eq!(
        (other.status, never.status),
        (http::StatusCode::NOT_FOUND, http::StatusCode::NOT_FOUND)
    );
    assert_eq!(
        other.body.to_string().replace(&run, "never"),
        never.body.to_string(),
        "another's run answers as one that never was"
    );
    assert_eq!(other.body["error"], "run_unknown");

    let bad = house.post(&format!("/v1/runs/{run}/finish"), &[], r#"{"state":"lost"}"#).await;
    assert_eq!(bad.status, 400);
    let finish = house.post(&format!("/v1/runs/{run}/finish"), &[], "").await;
    assert_eq!((finish.status.as_u16(), finish.body["state"].as_str()), (200, Some("done")));
    let late = house.post("/v1/tools/lookup_order", &fields, r#"{"order_id":"A17"}"#).await;
    assert_eq!((late.status.as_u16(), late.body["error"].as_str()), (404, Some("run_unknown")));
    assert_eq!(late.header("checkrein-run"), run, "the run asked for is echoed");
}

#[tokio::test(start_paused = true)]
async fn a_budget_is_one_the_agent_may_choose() {
    let house = House::new();
    let got = house.post("/v1/runs", &[], r#"{"budget":"no_such"}"#).await;
    assert_eq!((got.status.as_u16(), got.body["error"].as_str()), (400, Some("invalid_request")));
    assert_eq!(house.post("/v1/runs", &[], r#"{"budget":"default"}"#).await.status, 201);
    for body in [r#"{"goal":1}"#, r#"{"purpose":"x"}"#, r#"{"goal":"a","goal":"b"}"#, "[]"] {
        assert_eq!(house.post("/v1/runs", &[], body).await.status, 400, "{body}");
    }
}
