//! The process by hand: which policy is obeyed, reading it now, draining.

use serde_json::json;

use super::kit::House;
use crate::support::{Fixture, wait_for};

const SOON: std::time::Duration = std::time::Duration::from_secs(10);

#[tokio::test]
async fn a_reload_answers_with_what_came_of_it() {
    let house = House::start(&Fixture::new()).await;
    let why = json!({ "why": "a new limit" });
    let before = house.get("/admin/v1/policy").await.json();
    assert_eq!((&before["name"], &before["failing"]), (&json!("cases"), &json!([])));
    let same = house.post("/admin/v1/policy/reload", &why).await;
    assert_eq!(
        (same.status, &same.json()["result"]),
        (200, &json!("unchanged")),
        "{}",
        same.text()
    );
    house.gateway.rewrite("apiVersion: checkrein/v1\nkind: Policy\nalow: []\n").await;
    let bad = house.post("/admin/v1/policy/reload", &why).await;
    assert_eq!(bad.status, 409, "{}", bad.text());
    let shown = house.get("/admin/v1/policy").await.json();
    assert_eq!(shown["revision"], before["revision"], "the old policy is obeyed");
    assert!(shown["failing"].to_string().contains("alow"), "{shown}");
    let other = Fixture::new().with("bulkhead: 256", "bulkhead: 255").text(&house.tool.url());
    house.gateway.rewrite(&other).await;
    let good = house.post("/admin/v1/policy/reload", &why).await;
    assert_eq!(good.status, 200, "{}", good.text());
    let shown = house.get("/admin/v1/policy").await.json();
    assert_eq!((shown["revision"] != before["revision"], &shown["failing"]), (true, &json!([])));
    assert_eq!(house.post("/admin/v1/policy/reload", &json!({})).await.status, 400, "why?");
    assert_eq!(house.get("/admin/v1/version").await.json()["version"], env!("CARGO_PKG_VERSION"));
}

#[tokio::test]
async fn a_person_can_begin_the_drain() {
    let house = House::start(&Fixture::new()).await;
    let asked = house.post("/admin/v1/drain", &json!({ "why": "maintenance" })).await;
    assert_eq!(asked.status, 202, "{}", asked.text());
    let record = async || {
        let records = house.gateway.records();
        records.iter().any(|line| {
            line["kind"] == "admin" && line["action"] == "drain" && line["who"] == "ada"
        })
    };
    wait_for("the record", SOON, record).await;
    let closed = async || tokio::net::TcpStream::connect(house.gateway.data).await.is_err();
    wait_for("the data listener to close", SOON, closed).await;
}
