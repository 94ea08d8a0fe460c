//! A write is sent at most once for one operation, and nobody is told a guess.

use std::time::Duration;

use tokio::io::AsyncWriteExt;

use super::{create, order};
use crate::support::{Fixture, Form, Reply, ScriptedTool, http, wait_for};

const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn bb_w01_a_lost_reply_is_not_asked_for_twice() {
    for form in Form::ALL {
        let tool = ScriptedTool::start().await;
        let gateway = Fixture::new().start(&tool).await;
        tool.script("/create", [Reply::ApplyThenHang]);
        let agent = gateway.agent(form, "r");
        let (r1, r2, a17) = (create("R1"), create("R2"), order("A17"));
        let first = agent
            .ask(&[
                ("c1", "create_order", &r1),
                ("c2", "create_order", &r2),
                ("c3", "lookup_order", &a17),
            ])
            .await;
        assert_eq!(first.error("c1"), "outcome_unknown", "{form:?}");
        assert_eq!(first.error("c2"), "skipped_pending_review");
        assert_eq!(first.error("c3"), "skipped_pending_review");
        let second = agent.ask(&[("c9", "create_order", &r1)]).await;
        assert_eq!(second.error("c9"), "review_required");
        assert_eq!(second.answer("c9")["operation"], first.answer("c1")["operation"]);
        assert_eq!(
            (tool.effects("R1"), tool.hits("/create"), tool.hits("/orders")),
            (1, 1, 0),
            "{form:?}"
        );
    }
}

#[tokio::test]
async fn bb_w03_a_refused_connection_is_known_not_to_have_run() {
    for form in Form::ALL {
        let address = ScriptedTool::refused_address().await;
        let gateway =
            crate::support::Gateway::start(&Fixture::new().text(&format!("http://{address}")))
                .await;
        let agent = gateway.agent(form, "r");
        let (r3, a17) = (create("R3"), order("A17"));
        let first = agent.ask(&[("c1", "create_order", &r3), ("c2", "lookup_order", &a17)]).await;
        assert_eq!(first.error("c1"), "upstream_unreachable", "{form:?}");
        assert_eq!(first.answer("c1")["executed"], "no");
        assert_eq!(first.state, "continue");
        assert_eq!(first.error("c2"), "upstream_unreachable", "what stands after it still runs");
        let tool = ScriptedTool::start_at(address).await;
        let second = agent.ask(&[("c3", "create_order", &r3)]).await;
        assert_eq!(second.answer("c3")["ok"], true, "{form:?}: {}", second.body);
        assert_eq!(tool.effects("R3"), 1);
    }
}

#[tokio::test]
async fn bb_w04_a_5xx_on_a_write_is_unknown_unless_the_policy_knows_better() {
    for status in [500, 502, 503, 504] {
        let tool = ScriptedTool::start().await;
        tool.script("/create", [Reply::ApplyThenStatus(status)]);
        let gateway = Fixture::new().start(&tool).await;
        let answer =
            gateway.agent(Form::OpenaiChat, "r").call("create_order", "c1", &create("R4")).await;
        assert_eq!(answer.status, 409, "{status}");
        assert_eq!(answer.json()["error"], "outcome_unknown");
        assert_eq!(tool.hits("/create"), 1, "{status}");
    }
    let tool = ScriptedTool::start().await;
    tool.script("/create", [Reply::Status(503), Reply::Ok]);
    let listed = Fixture::new().with(
        "write: { fingerprint: [/order_ref]",
        "write: { not_executed_on: [503], fingerprint: [/order_ref]",
    );
    let gateway = listed.start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    let answer = agent.call("create_order", "c1", &create("R4")).await.json();
    assert_eq!(
        (answer["error"].as_str(), answer["executed"].as_str()),
        (Some("tool_unavailable"), Some("no"))
    );
    assert_eq!(tool.hits("/create"), 1, "listed or not, it is not retried by itself");
    assert_eq!(agent.call("create_order", "c2", &create("R4")).await.json()["ok"], true);
}

#[tokio::test]
async fn bb_w06_a_server_that_closes_between_requests_costs_no_write() {
    let tool = ScriptedTool::start().await;
    tool.script("/", [Reply::OkThenCloseSilently]);
    let gateway = Fixture::new()
        .budgets("calls: 10000, argument_bytes: unlimited, result_bytes: unlimited")
        .start(&tool)
        .await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    for n in 0..300 {
        let answer =
            agent.call("create_order", &format!("w{n}"), &create(&format!("W6-{n}"))).await.json();
        assert_eq!(answer["ok"], true, "write {n}: {answer}");
        assert_eq!(tool.effects(&format!("W6-{n}")), 1);
    }
    for n in 0..300 {
        let answer =
            agent.call("lookup_order", &format!("r{n}"), &order(&n.to_string())).await.json();
        assert_eq!(answer["ok"], true, "read {n}: {answer}");
    }
}

#[tokio::test]
async fn bb_w07_an_agent_that_hangs_up_does_not_cut_a_write_in_half() {
    let tool = ScriptedTool::start().await;
    tool.script("/create", [Reply::ApplyAfter(Duration::from_millis(400))]);
    let gateway = Fixture::new().start(&tool).await;
    let mut stream = tokio::net::TcpStream::connect(gateway.data).await.expect("connected");
    let body = create("R7");
    let request = http::bytes_of(
        "POST",
        "/v1/tools/create_order",
        &[("checkrein-run", "r"), ("checkrein-call-id", "c1")],
        body.as_bytes(),
    );
    stream.write_all(&request).await.expect("sent");
    wait_for("the write at the tool", SOON, async || tool.hits("/create") == 1).await;
    drop(stream);
    wait_for("the effect", SOON, async || tool.effects("R7") == 1).await;
    let again = gateway.agent(Form::OpenaiChat, "r").call("create_order", "c2", &body).await.json();
    assert_eq!(again["ok"], true, "{again}");
    assert_eq!(again["replayed"], true, "{again}");
    assert_eq!((tool.hits("/create"), tool.effects("R7")), (1, 1));
}

#[tokio::test]
async fn bb_w24_a_business_key_outlives_its_run() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    let first = gateway
        .agent(Form::OpenaiChat, "run-1")
        .call("create_order", "c1", &create("R24"))
        .await
        .json();
    assert_eq!(first["ok"], true);
    let second = gateway
        .agent(Form::OpenaiChat, "run-2")
        .call("create_order", "c1", &create("R24"))
        .await
        .json();
    assert_eq!((&second["ok"], &second["replayed"]), (&true.into(), &true.into()), "{second}");
    assert_eq!(second["value"], first["value"]);
    assert_eq!(tool.effects("R24"), 1);
}

#[tokio::test]
async fn bb_w28_a_late_answer_settles_the_ledger_and_nothing_else() {
    for form in Form::ALL {
        let tool = ScriptedTool::start().await;
        let gateway = Fixture::new()
            .with("first_byte: 500ms, total: 1s", "first_byte: 300ms, total: 300ms")
            .start(&tool)
            .await;
        tool.script("/create", [Reply::ApplyAfter(Duration::from_millis(600))]);
        let agent = gateway.agent(form, "r");
        let r28 = create("R28");
        let first = agent.ask(&[("c1", "create_order", &r28)]).await;
        assert_eq!(first.ids(), ["c1"]);
        assert_eq!(first.error("c1"), "outcome_unknown");
        let settled = async || {
            gateway
                .metrics()
                .await
                .sum("checkrein_write_upgrades_total", &[("tool", "create_order")])
                == 1.0
        };
        wait_for("the late answer in the ledger", SOON, settled).await;
        let again = agent.ask(&[("c2", "create_order", &r28)]).await;
        assert_eq!(again.answer("c2")["ok"], true, "{form:?}: {}", again.body);
        assert_eq!(again.answer("c2")["replayed"], true);
        assert_eq!((tool.hits("/create"), tool.effects("R28")), (1, 1));
    }
}

#[tokio::test]
async fn the_same_operation_with_other_arguments_names_what_changed() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    agent.call("create_order", "c1", &create("M1")).await;
    let other = agent.call("create_order", "c2", r#"{"order_ref":"M1","sku":"A","qty":2}"#).await;
    assert_eq!(other.status, 422);
    assert_eq!(other.json()["error"], "idempotency_conflict");
    assert!(other.text().contains("/qty"), "{}", other.text());
    assert_eq!(tool.effects("M1"), 1);
}

#[tokio::test]
async fn fifty_at_once_are_one_write_and_fifty_answers() {
    let tool = ScriptedTool::start().await;
    tool.script("/create", [Reply::ApplyAfter(Duration::from_millis(200))]);
    let gateway = Fixture::new().start(&tool).await;
    let calls = (0..50).map(|n| {
        // Runs of their own: one that comes late must not meet the fuse of the others.
        let agent = gateway.agent(Form::OpenaiChat, &format!("r{n}"));
        tokio::spawn(async move {
            agent.call("create_order", &format!("c{n}"), &create("J50")).await.json()
        })
    });
    for call in calls.collect::<Vec<_>>() {
        let answer = call.await.expect("no panic");
        assert_eq!(answer["ok"], true, "{answer}");
    }
    assert_eq!((tool.hits("/create"), tool.effects("J50")), (1, 1));
}
