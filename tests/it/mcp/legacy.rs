//! Revisions with sessions over HTTP.

use serde_json::json;

use super::peer::{Got, Session, ask_modern, initialize, raw};
use super::script::house;
use crate::front_ends::kit::House;

#[tokio::test(start_paused = true)]
async fn a_session_lists_and_calls_the_tools_of_its_agent() {
    let house = House::new();
    let session = Session::open(&house).await;
    let listed = session.ask(&house, "1", "tools/list", &json!({})).await;
    assert_eq!((listed.status, listed.header("content-type")), (200, "application/json"));
    let names: Vec<&str> = listed.result()["tools"]
        .as_array()
        .expect("tools")
        .iter()
        .map(|tool| tool["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(names, ["create_order", "list_regions", "lookup_order", "search", "send_notice"]);
    assert_eq!(listed.result()["tools"][0]["annotations"], json!({"readOnlyHint": false}));
    let called = session.call(&house, "2", "lookup_order", &json!({"order_id": "A17"})).await;
    let result = called.result();
    assert_eq!(result["isError"], false);
    assert_eq!(result["structuredContent"]["got"]["order_id"], "A17");
    assert_eq!(result["structuredContent"]["n"].to_string(), "9007199254740993");
    assert!(result.get("resultType").is_none(), "{result}");
    assert_eq!(result["_meta"]["io.checkrein/outcome"]["ok"], true);
    assert!(!called.header("checkrein-run").is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_initialize_is_answered_with_the_revision_asked_for_or_the_newest_of_its_era() {
    let house = House::new();
    for (asked, answered) in [
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2025-03-26", "2025-11-25"),
        ("2024-11-05", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
    ] {
        let got = raw(&house, "POST", &[], &initialize(asked, &json!({}))).await;
        assert_eq!(got.result()["protocolVersion"], answered, "{asked}");
        assert!(got.header("mcp-session-id").len() >= 22);
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_takes_the_revision_that_is_assumed_where_none_is_said() {
    let house = House::new();
    let session = Session::open(&house).await;
    let listing = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).to_string();
    for (version, status) in
        [("2025-03-26", 200), ("2025-06-18", 200), ("2024-11-05", 400), ("soon", 400)]
    {
        let mut fields = session.fields();
        fields.push(("mcp-protocol-version", version));
        let got = raw(&house, "POST", &fields, &listing).await;
        assert_eq!(got.status, status, "{version}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_servers_have_a_part_in_is_streamed_to_an_agent_that_can_be_asked() {
    let house = House::new();
    let session = Session::open_with(&house, None, "2025-11-25", &json!({"sampling": {}})).await;
    for (method, kind) in [
        ("tools/list", "text/event-stream"),
        ("resources/list", "text/event-stream"),
        ("ping", "application/json"),
    ] {
        let got = session.ask(&house, "1", method, &json!({})).await;
        assert_eq!((got.header("content-type"), got.messages.len()), (kind, 1), "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn ids_are_tokens() {
    let house = House::new();
    let (one, two) = (Session::open(&house).await, Session::open(&house).await);
    for id in ["1", "\"1\"", "9007199254740993", "-7", "\"\""] {
        for session in [&one, &two] {
            let got = session.call(&house, id, "lookup_order", &json!({"order_id": id})).await;
            assert_eq!(got.answer()["id"].to_string(), id);
            assert_eq!(got.result()["structuredContent"]["got"]["order_id"], id, "its own answer");
        }
        // Without a session the same id may be in flight twice, and each has its own answer.
        let params =
            |order: &str| json!({"name": "lookup_order", "arguments": {"order_id": order}});
        let (first, second) = (params("first"), params("second"));
        let (first, second) = tokio::join!(
            ask_modern(&house, None, id, "tools/call", &first),
            ask_modern(&house, None, id, "tools/call", &second)
        );
        for (got, order) in [(first, "first"), (second, "second")] {
            assert_eq!(got.answer()["id"].to_string(), id);
            assert_eq!(got.result()["structuredContent"]["got"]["order_id"], order);
        }
    }
    let hits = house.hits.all().len();
    for id in ["null", "1.5", "{}", "true", "[1]"] {
        let got = ask_modern(&house, None, id, "tools/list", &json!({})).await;
        assert_eq!((got.status, got.code(), &got.answer()["id"]), (400, -32600, &json!(null)));
    }
    assert_eq!(house.hits.all().len(), hits);
}

#[tokio::test(start_paused = true)]
async fn bb_m11_an_id_that_is_none_is_refused_and_nothing_is_run() {
    let house = House::new();
    let session = Session::open(&house).await;
    for id in ["null", "1.5", "{}", "true", "[1]"] {
        let got = session.call(&house, id, "lookup_order", &json!({"order_id": "A17"})).await;
        assert_eq!((got.status, got.code()), (400, -32600), "{id}");
        assert_eq!(got.answer()["id"], json!(null));
    }
    assert!(house.hits.all().is_empty());
}

#[tokio::test(start_paused = true)]
async fn bb_m09_one_id_in_two_sessions_is_two_and_twice_in_one_is_refused() {
    let (house, held) = house();
    let (one, two) = (Session::open(&house).await, Session::open(&house).await);
    let arguments = json!({"order_id": "held"});
    let first = one.call(&house, "1", "lookup_order", &arguments);
    let others = async {
        held.begun.notified().await;
        let twice = one.call(&house, "1", "lookup_order", &arguments).await;
        let other = two.call(&house, "1", "list_regions", &json!({})).await;
        held.go_on.notify_one();
        (twice, other)
    };
    let (first, (twice, other)) = tokio::join!(first, others);
    assert_eq!((twice.status, twice.code()), (200, -32600), "{twice:?}");
    let data = &twice.answer()["error"]["data"]["io.checkrein/outcome"];
    assert_eq!(data["error"], "duplicate_call_id");
    assert_eq!(other.result()["structuredContent"]["tool"], "list_regions");
    assert_eq!(first.result()["structuredContent"]["tool"], "lookup_order");
}

#[tokio::test(start_paused = true)]
async fn within_a_session_an_id_is_the_same_call_only_with_the_same_content() {
    let house = House::new();
    let (one, two) = (Session::open(&house).await, Session::open(&house).await);
    let send = json!({"text": "hello"});
    let first = one.call(&house, "5", "send_notice", &send).await;
    let again = one.call(&house, "5", "send_notice", &send).await;
    assert_eq!(first.result()["structuredContent"], again.result()["structuredContent"]);
    assert_eq!(again.result()["_meta"]["io.checkrein/outcome"]["replayed"], true, "{again:?}");
    assert_eq!(house.hits.all().len(), 1);
    let other = one.call(&house, "5", "send_notice", &json!({"text": "other"})).await;
    assert_eq!((other.status, other.code()), (200, -32600));
    assert_eq!(other.answer()["error"]["data"]["io.checkrein/outcome"]["error"], "call_id_reused");
    // Another session's 5 is another call: two notices alike are two notices.
    two.call(&house, "5", "send_notice", &send).await;
    assert_eq!(house.hits.all().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_taken_back_gets_no_answer() {
    let (house, held) = house();
    let session = Session::open(&house).await;
    let cancel = async {
        held.begun.notified().await;
        for id in [99, 7] {
            let note = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
            assert_eq!(session.post(&house, &note.to_string()).await.status, 202);
        }
    };
    let arguments = json!({"order_id": "held"});
    let call = session.call(&house, "7", "lookup_order", &arguments);
    let (got, ()) = tokio::join!(call, cancel);
    assert_eq!((got.status, got.bytes), (202, 0), "{got:?}");
    held.dropped.notified().await;
    assert!(house.hits.all().is_empty(), "the read was cut");
}

#[tokio::test(start_paused = true)]
async fn each_session_has_a_run_of_its_own_and_the_head_or_meta_may_name_another() {
    let house = House::new();
    let (one, two) = (Session::open(&house).await, Session::open(&house).await);
    let run = |got: &Got| got.header("checkrein-run").to_owned();
    let first = one.call(&house, "1", "list_regions", &json!({})).await;
    let second = one.call(&house, "2", "lookup_order", &json!({"order_id": "B"})).await;
    let other = two.call(&house, "1", "list_regions", &json!({})).await;
    assert_eq!(run(&first), run(&second));
    assert_ne!(run(&first), run(&other));
    let params = json!({"name": "list_regions", "_meta": {"io.checkrein/run": "mine"}});
    let named = one.ask(&house, "3", "tools/call", &params).await;
    assert_eq!(run(&named), "mine");
    let mut fields = one.fields();
    fields.push(("checkrein-run", "other"));
    let body = json!({"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": params});
    let torn = raw(&house, "POST", &fields, &body.to_string()).await;
    assert_eq!((torn.status, torn.code()), (200, -32602), "two runs at once");
    let open = house.post("/v1/runs/mine/finish", &[], "{}").await;
    assert_eq!(open.status, 200, "{open:?}");
    let over = one.ask(&house, "5", "tools/call", &params).await;
    assert_eq!((over.status, over.code()), (200, -32602), "not a 404: {over:?}");
    assert_eq!(over.answer()["error"]["data"]["io.checkrein/outcome"]["error"], "run_unknown");
    // The session lives on, and its own run with it.
    assert_eq!(one.call(&house, "6", "search", &json!({})).await.result()["isError"], false);
}

#[tokio::test(start_paused = true)]
async fn an_rpc_error_is_not_a_500() {
    let house = House::new();
    let session = Session::open(&house).await;
    for (method, params, code) in [
        ("resources/list", json!({}), -32601),
        ("tasks/list", json!({}), -32601),
        ("no/such", json!({}), -32601),
        ("tools/list", json!({"cursor": "AAAA"}), -32602),
        ("tools/call", json!({}), -32602),
        ("logging/setLevel", json!({"level": "loud"}), -32602),
    ] {
        let old = session.ask(&house, "1", method, &params).await;
        assert_eq!((old.status, old.code()), (200, code), "{method}");
        let new = ask_modern(&house, None, "1", method, &params).await;
        let status = match (method, code) {
            (_, -32601) | ("logging/setLevel", _) => 404,
            ("tools/call", _) => 400,
            _ => 200,
        };
        assert_eq!(new.status, status, "{method} {new:?}");
    }
    let ok = session.call(&house, "2", "list_regions", &json!({})).await;
    assert_eq!(ok.result()["isError"], false, "the next request works");
}

#[tokio::test(start_paused = true)]
async fn past_the_bound_the_longest_idle_session_ends() {
    let house = House::new();
    let first = Session::open(&house).await;
    let second = Session::open(&house).await;
    let others = Session::open_as(&house, "a").await;
    for _ in 0..511 {
        tokio::time::advance(std::time::Duration::from_millis(1)).await;
        first.ask(&house, "1", "ping", &json!({})).await;
        Session::open(&house).await;
    }
    assert_eq!(second.ask(&house, "1", "ping", &json!({})).await.status, 404, "the idle one");
    assert_eq!(first.ask(&house, "1", "ping", &json!({})).await.status, 200, "used meanwhile");
    assert_eq!(others.ask(&house, "1", "ping", &json!({})).await.status, 200, "another agent's");
    tokio::time::advance(std::time::Duration::from_secs(8 * 3600)).await;
    house.front_ends.sweep();
    assert_eq!(first.ask(&house, "1", "ping", &json!({})).await.status, 404, "idle too long");
}
