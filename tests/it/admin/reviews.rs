//! A write that may have happened is listed, settled by a person once, and from then on behaves as was decided.

use serde_json::{Value, json};

use super::kit::{ADA, DEFAULT, GRACE, House, said};
use crate::support::{Fixture, Form, Reply, http, wait_for};
use checkrein::config::Keeps;
use tokio::io::AsyncWriteExt;

const SOON: std::time::Duration = std::time::Duration::from_secs(10);

fn reviews(body: &Value) -> &Vec<Value> {
    body["reviews"].as_array().expect("a list")
}

#[tokio::test]
async fn an_unknown_write_is_in_the_queue_with_what_a_person_needs_to_look_for_it() {
    let house = House::start(&Fixture::new()).await;
    assert!(reviews(&house.get("/admin/v1/reviews").await.json()).is_empty());
    let operation = house.lose("R1").await;
    let listed = house.get("/admin/v1/reviews").await.json();
    let [review] = reviews(&listed).as_slice() else { panic!("one review: {listed}") };
    assert_eq!(review["operation"], json!(operation));
    assert_eq!((&review["tool"], &review["agent"]), (&json!("create_order"), &json!("default")));
    assert_eq!((&review["run"], &review["call"]), (&json!("r"), &json!("c1")));
    assert_eq!(review["state"], "open");
    assert!(review["why"].as_str().is_some_and(|why| !why.is_empty()), "{review}");
    assert!(review.get("arguments").is_none(), "a list shows no arguments");
    let shown = house.get(&format!("/admin/v1/reviews/{operation}")).await.json();
    assert_eq!(shown["arguments"]["order_ref"], "R1");
    for (filter, count) in
        [("tool=pay", 0), ("tool=create_order", 1), ("agent=agent-a", 0), ("state=settled", 0)]
    {
        let listed = house.get(&format!("/admin/v1/reviews?{filter}")).await.json();
        assert_eq!(reviews(&listed).len(), count, "{filter}");
    }
    assert_eq!(house.get("/admin/v1/reviews/op_0000000000000000").await.status, 404);
    assert_eq!(house.get("/admin/v1/reviews?stat=open").await.status, 400);
}

#[tokio::test]
async fn the_arguments_of_a_write_without_a_fingerprint_are_shown_too() {
    let house = House::start(&Fixture::new()).await;
    house.tool.script("/pay", [Reply::ApplyThenHang]);
    let agent = house.gateway.agent(Form::OpenaiChat, "r");
    let lost = agent.call("pay", "c1", r#"{"account_id":9007199254740993}"#).await.json();
    let operation = lost["operation"].as_str().expect("an operation");
    let shown = house.get(&format!("/admin/v1/reviews/{operation}")).await;
    assert!(shown.text().contains("9007199254740993"), "{}", shown.text());
}

#[tokio::test]
async fn what_happened_is_answered_with_the_result_a_person_gave() {
    let house = House::start(&Fixture::new()).await;
    let operation = house.lose("R1").await;
    let mut word = said("happened");
    word["result"] = json!({ "order_id": "A17", "total": 12 });
    let settled = house.resolve(&operation, &word).await;
    assert_eq!(settled.status, 200, "{}", settled.text());
    let settled = settled.json();
    assert_eq!(
        (&settled["settled"]["who"], &settled["settled"]["by"]),
        (&json!("ada"), &json!("person"))
    );
    for call in ["c1", "c2"] {
        let again = house.create(call, "R1").await;
        assert_eq!(again["ok"], true, "{call}: {again}");
        assert_eq!(again["value"]["order_id"], "A17");
        assert_eq!(again["replayed"], true);
    }
    assert_eq!((house.tool.hits("/create"), house.tool.effects("R1")), (1, 1));
}

#[tokio::test]
async fn what_happened_without_a_result_is_never_sent_again() {
    let house = House::start(&Fixture::new()).await;
    let operation = house.lose("R1").await;
    assert_eq!(house.resolve(&operation, &said("happened")).await.status, 200);
    let again = house.create("c2", "R1").await;
    assert_eq!(
        (&again["error"], &again["executed"]),
        (&json!("result_lost"), &json!("yes")),
        "{again}"
    );
    assert_eq!(house.tool.hits("/create"), 1);
}

#[tokio::test]
async fn what_did_not_happen_may_be_asked_for_again_under_any_call_id() {
    for call in ["c1", "c2"] {
        let house = House::start(&Fixture::new()).await;
        let operation = house.lose("R1").await;
        assert_eq!(house.resolve(&operation, &said("did_not_happen")).await.status, 200);
        let again = house.create(call, "R1").await;
        assert_eq!(again["ok"], true, "{call}: {again}");
        assert!(again.get("replayed").is_none(), "{again}");
        assert_eq!(house.tool.hits("/create"), 2, "sent once more, because a person said so");
        let third = house.gateway.agent(Form::OpenaiChat, "r2");
        let third = third
            .call("create_order", "c9", r#"{"order_ref":"R1","sku":"A","qty":1}"#)
            .await
            .json();
        assert_eq!(third["replayed"], true, "{third}");
    }
}

#[tokio::test]
async fn what_was_undone_is_a_new_occurrence_when_it_is_meant_again() {
    let house = House::start(&Fixture::new()).await;
    let operation = house.lose("R1").await;
    assert_eq!(house.resolve(&operation, &said("compensated")).await.status, 200);
    let same = house.create("c1", "R1").await;
    assert_eq!(
        (&same["error"], &same["executed"]),
        (&json!("result_lost"), &json!("yes")),
        "{same}"
    );
    assert_eq!(house.tool.hits("/create"), 1, "the same call is answered as it ended");
    let anew = house.create("c2", "R1").await;
    assert_eq!(anew["ok"], true, "{anew}");
    assert_eq!(house.tool.hits("/create"), 2);
    let occurrence = async || {
        let records = house.gateway.records();
        records.iter().any(|line| line["call_id"] == "c2" && line["occurrence"] == 1)
    };
    wait_for("the record of a second occurrence", SOON, occurrence).await;
    let replayed = house.create("c3", "R1").await;
    assert_eq!(replayed["replayed"], true, "{replayed}");
}

#[tokio::test]
async fn of_two_people_at_once_one_decides() {
    let house = House::start(&Fixture::new()).await;
    let operation = house.lose("R1").await;
    let etag = house.etag(&operation).await;
    let on_it = [("if-match", etag.as_str())];
    let (happened, did_not) = (said("happened"), said("did_not_happen"));
    let (first, second) = tokio::join!(
        house.resolve_as(ADA, &operation, &on_it, &happened),
        house.resolve_as(GRACE, &operation, &on_it, &did_not),
    );
    let mut statuses = [first.status, second.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 412], "{} {}", first.text(), second.text());
    let loser = if first.status == 412 { &first } else { &second };
    assert_eq!(loser.json()["review"]["state"], "settled", "the loser is shown what was decided");
    let late = house.resolve_as(GRACE, &operation, &[("if-match", "*")], &did_not).await;
    assert_eq!(late.status, 409, "{}", late.text());
    let blind = house.resolve_as(GRACE, &operation, &[], &did_not).await;
    assert_eq!(blind.status, 428, "{}", blind.text());
    let metrics = house.gateway.metrics().await;
    let tool = [("tool", "create_order"), ("by", "person")];
    assert_eq!(metrics.sum("checkrein_reviews_resolved_total", &tool), 1.0);
    assert_eq!(metrics.sum("checkrein_reviews_open", &[("tool", "create_order")]), 0.0);
}

#[tokio::test]
async fn a_version_of_an_earlier_unknown_end_decides_nothing_of_a_later_one() {
    let house = House::start(&Fixture::new()).await;
    let operation = house.lose("R1").await;
    let first = house.etag(&operation).await;
    assert_eq!(house.resolve(&operation, &said("did_not_happen")).await.status, 200);
    house.tool.script("/create", [Reply::ApplyThenHang]);
    assert_eq!(house.create("c2", "R1").await["error"], "outcome_unknown");
    let stale =
        house.resolve_as(ADA, &operation, &[("if-match", &first)], &said("did_not_happen")).await;
    assert_eq!(stale.status, 412, "{}", stale.text());
    assert_eq!(house.create("c3", "R1").await["error"], "review_required");
}

#[tokio::test]
async fn a_late_answer_settles_a_review_before_any_person_and_a_person_does_not_undo_it() {
    let fixture =
        Fixture::new().with("first_byte: 500ms, total: 1s", "first_byte: 300ms, total: 300ms");
    let house = House::start(&fixture).await;
    house.tool.script("/create", [Reply::ApplyAfter(std::time::Duration::from_millis(700))]);
    let lost = house.create("c1", "R1").await;
    let operation = lost["operation"].as_str().expect("an operation").to_owned();
    let path = format!("/admin/v1/reviews/{operation}");
    wait_for("the late answer", SOON, async || house.get(&path).await.json()["state"] == "settled")
        .await;
    assert_eq!(house.get(&path).await.json()["settled"]["by"], "late_answer");
    let word = house.resolve(&operation, &said("did_not_happen")).await;
    assert_eq!(word.status, 409, "{}", word.text());
    assert_eq!(house.create("c2", "R1").await["replayed"], true);
    let by = [("resolution", "happened"), ("by", "late_answer"), ("tool", "create_order")];
    assert_eq!(house.gateway.metrics().await.value("checkrein_reviews_resolved_total", &by), 1.0);
}

#[tokio::test]
async fn a_word_needs_a_resolution_and_evidence_and_nothing_unknown() {
    let house = House::start(&Fixture::new()).await;
    let operation = house.lose("R1").await;
    for bad in [
        json!({}),
        json!({ "resolution": "happened" }),
        json!({ "resolution": "happened", "evidence": "  " }),
        json!({ "resolution": "happened", "evidence": "x".repeat(5000) }),
        json!({ "resolution": "perhaps", "evidence": "x" }),
        json!({ "resolution": "did_not_happen", "evidence": "x", "result": 1 }),
        json!({ "resolution": "happened", "evidence": "x", "reslut": 1 }),
        json!({ "resolution": "happened", "evidence": "x", "who": "a\nb" }),
        json!({ "resolution": "happened", "evidence": "x", "result": "y".repeat(70_000) }),
        json!([]),
    ] {
        let answer = house.resolve(&operation, &bad).await;
        assert_eq!(answer.status, 400, "{bad}: {}", answer.text());
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    }
    let path = format!("/admin/v1/reviews/{operation}/resolve");
    let twice = br#"{"resolution":"happened","resolution":"did_not_happen","evidence":"x"}"#;
    let answer = house.ask("POST", &path, Some(ADA), &[("if-match", "*")], twice).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert_eq!(house.get(&format!("/admin/v1/reviews/{operation}")).await.json()["state"], "open");
}

#[tokio::test]
async fn who_made_a_write_does_not_say_what_became_of_it() {
    let house = House::start(&Fixture::new()).await;
    let operation = house.lose("R1").await;
    let any = [("if-match", "*")];
    let own = house.resolve_as(DEFAULT, &operation, &any, &said("did_not_happen")).await;
    assert_eq!(own.status, 403, "{}", own.text());
    let mut word = said("did_not_happen");
    word["who"] = json!("default");
    let own = house.resolve_as(ADA, &operation, &any, &word).await;
    assert_eq!(own.status, 403, "{}", own.text());
    assert_eq!(house.create("c2", "R1").await["error"], "review_required");
}

#[tokio::test]
async fn every_word_of_a_person_is_on_record() {
    let house = House::start(&Fixture::new()).await;
    let operation = house.lose("R1").await;
    let mut word = said("did_not_happen");
    word["comment"] = json!("asked the shop");
    word["who"] = json!("Ada L.");
    assert_eq!(house.resolve(&operation, &word).await.status, 200);
    let mut found = Value::Null;
    wait_for("the record", SOON, async || {
        let records = house.gateway.records();
        found = records.into_iter().find(|line| line["kind"] == "review").unwrap_or_default();
        !found.is_null()
    })
    .await;
    assert_eq!((&found["who"], &found["why"]), (&json!("Ada L. (ada)"), &json!("asked the shop")));
    assert_eq!(
        (&found["action"], &found["resolution"]),
        (&json!("resolve"), &json!("did_not_happen"))
    );
    assert_eq!((&found["operation"], &found["run"]), (&json!(operation), &json!("r")));
    assert_eq!(found["evidence"], "the shop's own list of orders");
    assert!(found.get("arguments").is_none() && !found.to_string().contains("R1"), "{found}");
}

#[tokio::test]
async fn the_queue_has_pages_newest_first() {
    let house = House::start(&Fixture::new().budgets("calls: 100")).await;
    house.tool.script("/create", [Reply::ApplyThenReset]);
    let mut operations = Vec::new();
    for n in 0..5 {
        let lost = house.create(&format!("c{n}"), &format!("P{n}")).await;
        assert_eq!(lost["error"], "outcome_unknown", "{lost}");
        operations.push(lost["operation"].clone());
    }
    operations.reverse();
    let mut seen = Vec::new();
    let mut path = "/admin/v1/reviews?limit=2".to_owned();
    loop {
        let page = house.get(&path).await.json();
        seen.extend(reviews(&page).iter().map(|review| review["operation"].clone()));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/admin/v1/reviews?limit=2&cursor={next}");
    }
    assert_eq!(seen, operations);
    assert_eq!(house.get("/admin/v1/reviews?limit=201").await.status, 400);
}

/// A word is on record and in force, or neither: whoever gave it may be gone by then.
#[tokio::test]
async fn who_hangs_up_while_deciding_leaves_no_half_settled_review() {
    let house = House::over(&Fixture::new(), Keeps::Sqlite).await;
    let mut operations = Vec::new();
    for n in 0..20 {
        // In doubt, and nothing that a circuit opens for.
        let see = Reply::Full { apply: true, status: 303, headers: vec![], body: Vec::new() };
        house.tool.script("/create", [see]);
        let lost = house.create(&format!("c{n}"), &format!("H{n}")).await;
        operations.push(lost["operation"].as_str().expect("an operation").to_owned());
    }
    let word = said("did_not_happen").to_string();
    let bearer = format!("Bearer {ADA}");
    for operation in &operations {
        let path = format!("/admin/v1/reviews/{operation}/resolve");
        let fields = [("if-match", "*"), ("authorization", bearer.as_str())];
        let request = http::bytes_of("POST", &path, &fields, word.as_bytes());
        let request = String::from_utf8(request).expect("text");
        let request = request.replacen("host: gateway", &format!("host: {}", house.admin), 1);
        let mut stream = tokio::net::TcpStream::connect(house.admin).await.expect("it listens");
        stream.write_all(request.as_bytes()).await.expect("taken");
    }
    let settled = async || {
        // What was cut before it was read is open, and can be settled.
        for operation in &operations {
            let now = house.get(&format!("/admin/v1/reviews/{operation}")).await.json();
            if now["state"] == "open" {
                house.resolve(operation, &said("did_not_happen")).await;
                return false;
            }
        }
        true
    };
    wait_for("an end of each", SOON, settled).await;
    let told = || house.gateway.records().iter().filter(|r| r["kind"] == "review").count();
    wait_for("who said so of each", SOON, async || told() == operations.len()).await;
}
