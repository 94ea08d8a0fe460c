//! Answers that are kept, by the whole gateway: in every wire form, marked as what they are, counted and recorded.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Fixture, Form, Gateway, Process, Reply, ScriptedTool, http, wait_for};

const SOON: Duration = Duration::from_secs(10);
const A17: &str = r#"{"order_id":"A17"}"#;

fn fixture(cache: &str) -> Fixture {
    Fixture::new()
        .tool("lookup_order", &format!("cache: {cache}"))
        .with("retry: { max_retries: 2,", "retry: { max_retries: 0,")
}

/// What an answer says of where it came from: stale, whether it is of the cache, attempts.
fn marks(answer: &Value) -> (bool, bool, Option<u64>) {
    let stale = answer.get("stale").is_some_and(|stale| stale == true);
    (stale, answer["age_ms"].is_u64(), answer["attempts"].as_u64())
}

#[tokio::test]
async fn a_kept_answer_is_told_in_every_form_with_its_age() {
    let tool = ScriptedTool::start().await;
    let process = Process::start(&fixture("{ ttl: 10m }").text(&tool.url()), &[]).await;
    let first = process.agent(Form::OpenaiChat, "r0");
    let own = first.call("lookup_order", "c0", A17).await.json();
    assert_eq!((own["ok"] == true, marks(&own)), (true, (false, false, Some(1))), "{own}");
    for form in Form::ALL {
        let turned =
            process.agent(form, &format!("{form:?}")).ask(&[("c1", "lookup_order", A17)]).await;
        let answer = turned.answer("c1");
        assert_eq!(marks(answer), (false, true, Some(0)), "{form:?}: {answer}");
        assert_eq!(answer["value"], own["value"]);
    }
    assert_eq!(tool.hits("/orders"), 1);
    let metrics = process.metrics().await;
    let lookups = |result| {
        let labels = [("tool", "lookup_order"), ("result", result)];
        metrics.value("checkrein_cache_lookups_total", &labels)
    };
    assert_eq!([lookups("hit"), lookups("stale"), lookups("miss")], [3.0, 0.0, 1.0]);
}

#[tokio::test]
async fn the_same_reads_of_one_message_are_one_request() {
    let tool = ScriptedTool::start().await;
    tool.script("/orders", [Reply::After(Duration::from_millis(200))]);
    let gateway = fixture("{ ttl: 10m }").start(&tool).await;
    for form in Form::ALL {
        let before = tool.hits("/orders");
        let question = format!(r#"{{"order_id":"{form:?}"}}"#);
        let calls = ["a", "b", "c", "d"].map(|id| (id, "lookup_order", question.as_str()));
        let turned = gateway.agent(form, &format!("{form:?}")).ask(&calls).await;
        assert_eq!(turned.ids(), ["a", "b", "c", "d"]);
        for (_, answer) in &turned.answers {
            assert_eq!(answer["ok"], true, "{answer}");
        }
        assert_eq!(tool.hits("/orders") - before, 1, "{form:?}");
    }
}

#[tokio::test]
async fn a_tool_that_goes_down_is_stood_in_for_and_the_record_says_so() {
    let tool = ScriptedTool::start().await;
    let gateway = fixture("{ ttl: 1ms, stale_if_error: 1h }").start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    assert_eq!(agent.call("lookup_order", "c0", A17).await.status, 200);
    tool.stop();
    wait_for("a stale answer", SOON, async || {
        let told = agent.call("lookup_order", "c1", A17).await;
        told.status == 200 && told.json()["stale"] == true
    })
    .await;
    // Past the circuit's threshold it is not even dialled.
    for n in 0..8 {
        let other = gateway.agent(Form::OpenaiChat, &format!("r{n}"));
        let told = other.call("lookup_order", "c", A17).await.json();
        assert_eq!((&told["ok"], &told["stale"]), (&json!(true), &json!(true)), "{told}");
    }
    let last = gateway.agent(Form::OpenaiChat, "last").call("lookup_order", "z", A17).await.json();
    assert_eq!(marks(&last), (true, true, Some(0)), "an open circuit: {last}");
    let metrics = gateway.metrics().await;
    let stale = [("tool", "lookup_order"), ("outcome", "stale")];
    assert!(metrics.value("checkrein_tool_calls_total", &stale) >= 9.0);
    wait_for("the record", SOON, async || {
        gateway.records().iter().any(|line| {
            line["call_id"] == "z" && line["outcome"] == "stale" && line["cache"] == "stale"
        })
    })
    .await;
    // Back again, it is asked again.
    tool.start_again().await;
    let mut tries = 0;
    wait_for("the tool's own answer", SOON, async || {
        tries += 1;
        let run = format!("back-{tries}");
        let told = gateway.agent(Form::OpenaiChat, &run).call("lookup_order", "y", A17).await;
        marks(&told.json()) == (false, false, Some(1))
    })
    .await;
}

#[tokio::test]
async fn each_agent_has_its_own_answers() {
    let tool = ScriptedTool::start().await;
    let gateway = fixture("{ ttl: 10m }").start(&tool).await;
    let nobody = gateway.agent(Form::OpenaiChat, "r");
    let tokens = [crate::support::fixture::TOKEN_A, crate::support::fixture::TOKEN_B];
    for id in ["a", "b"] {
        assert_eq!(nobody.call("lookup_order", id, A17).await.status, 200);
        for token in tokens {
            let bearer = format!("Bearer {token}");
            let fields = [("content-type", "application/json"), ("authorization", bearer.as_str())];
            let path = "/v1/tools/lookup_order";
            let told = http::request(gateway.data, "POST", path, &fields, A17.as_bytes()).await;
            assert_eq!(told.status, 200, "{}", told.text());
        }
    }
    assert_eq!(tool.hits("/orders"), 3, "one for each of three agents");
}

#[tokio::test]
async fn a_write_to_the_shop_makes_its_orders_old() {
    let tool = ScriptedTool::start().await;
    let gateway = fixture("{ ttl: 10m, stale_if_error: 1h }").start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    let create = r#"{"order_ref":"R1","sku":"A","qty":1}"#;
    // In one message too: what stands after the write is asked anew.
    let calls = [
        ("a", "lookup_order", A17),
        ("b", "create_order", create),
        ("c", "lookup_order", A17),
        ("d", "lookup_order", A17),
    ];
    let turned = agent.ask(&calls).await;
    assert_eq!(marks(turned.answer("a")), (false, false, Some(1)));
    let (c, d) = (turned.answer("c"), turned.answer("d"));
    let attempts = [c, d].map(|answer| answer["attempts"].as_u64().expect("a number"));
    assert_eq!(attempts[0] + attempts[1], 1, "one of the two asked: {c} {d}");
    assert_eq!(tool.hits("/orders"), 2);
    // A finished write that is told again sends nothing, and so changes nothing.
    let again = agent.call("create_order", "e", create).await.json();
    assert_eq!(again["replayed"], true, "{again}");
    assert_eq!(marks(&agent.call("lookup_order", "f", A17).await.json()), (false, true, Some(0)));
}

#[tokio::test]
async fn what_its_origin_forbids_or_what_is_cut_is_asked_for_again() {
    let tool = ScriptedTool::start().await;
    let reply = |headers: Vec<(&'static str, String)>, status| {
        let headers = [headers, vec![("content-type", "application/json".into())]].concat();
        Reply::Full { apply: false, status, headers, body: br#"{"a":1}"#.to_vec() }
    };
    let forbids = |words: &str| vec![("cache-control", words.to_owned())];
    let gateway = fixture("{ ttl: 10m, scope: global }").start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    for (order, reply, asked) in [
        ("n", reply(forbids("no-store"), 200), 2),
        ("p", reply(forbids("private, max-age=60"), 200), 2),
        ("m", reply(forbids("max-age=0"), 200), 1),
        ("a", reply(Vec::new(), 202), 2),
    ] {
        tool.script(&format!("/orders/{order}"), [reply]);
        for id in 0..2 {
            let question = format!(r#"{{"order_id":"{order}"}}"#);
            let told = agent.call("lookup_order", &format!("{order}{id}"), &question).await;
            assert_eq!(told.status, 200, "{}", told.text());
        }
        assert_eq!(tool.hits(&format!("/orders/{order}")), asked, "{order}");
    }
}

#[tokio::test]
async fn a_reload_that_touches_the_tool_empties_it_and_one_that_does_not_keeps_it() {
    let tool = ScriptedTool::start().await;
    let first = fixture("{ ttl: 10m }");
    let gateway = first.start(&tool).await;
    let agent = gateway.agent(Form::OpenaiChat, "r");
    assert_eq!(agent.call("lookup_order", "a", A17).await.status, 200);
    let swap = async |next: &Fixture, n: f64| {
        gateway.rewrite(&next.text(&tool.url())).await;
        applied(&gateway, n).await;
    };
    swap(&first.clone().with("List the regions that", "List all regions that"), 1.0).await;
    assert_eq!(marks(&agent.call("lookup_order", "b", A17).await.json()), (false, true, Some(0)));
    swap(&fixture("{ ttl: 9m }"), 2.0).await;
    assert_eq!(marks(&agent.call("lookup_order", "c", A17).await.json()), (false, false, Some(1)));
}

async fn applied(gateway: &Gateway, n: f64) {
    wait_for("the other policy", SOON, async || {
        let metrics = gateway.metrics().await;
        metrics.sum("checkrein_policy_reloads_total", &[("result", "applied")]) >= n
    })
    .await;
}
