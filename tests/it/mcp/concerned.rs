//! Lists: whose they are, in what order, and who hears that they have changed.

use std::time::Duration;

use checkrein::policy::snapshot::OnDrift;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::desk::{Agent, Desk, ERAS};
use super::peer::Stream;
use super::remote::Remote;
use super::rig::{Rig, Stands, policy, stands};
use crate::support::fixture::TOKEN_B;
use crate::support::mcp::{Does, ScriptedServer, tool};
use crate::support::{Gateway, http, wait_for};

const S: Duration = Duration::from_secs(1);

fn names(answer: &Value) -> Vec<String> {
    let tools = answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("{answer}"));
    tools.iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test]
async fn lists_are_private_and_steady() {
    // More than a page, in no order.
    let many: Vec<Value> =
        (0..600).map(|n| tool(&format!("t{:03}", (n * 7) % 600), json!({}))).collect();
    let server = ScriptedServer::modern(many).await;
    server.script("t000", [Does::Hang]);
    let stand = Stands { reads: Vec::new(), writes: Vec::new(), ..stands("srv", &server) };
    let keys = "effect: read, timeout: { connect: 100ms, first_byte: 100ms, total: 200ms }, retry: { max_retries: 0 }, \
                breaker: { consecutive_failures: 1, open_for: 1h, open_max: 1h }";
    let text = policy(&[stand])
        .replace("DIR/b", "TOKEN_B")
        .replace("nothing_of_srv: { effect: read }", &format!("\"*\": {{ {keys} }}"))
        .replace("default: { allow: [] }", "default: { allow: [\"t*\"] }")
        .replace(
            "\"TOKEN_B\" } } ], allow: [] }",
            "\"TOKEN_B\" } } ], allow: [\"t1*\", \"t2*\", \"t3*\", \"t4*\", \"t5*\", t001, t002] }",
        )
        .replace("agents:\n", "runs: { default: { calls: 2 } }\nagents:\n");
    let gateway = Gateway::start(&text).await;
    wait_for("the tools", 10 * S, async || {
        http::get(gateway.data, "/v1/tools").await.text().contains("t599")
    })
    .await;
    let bearer = format!("Bearer {TOKEN_B}");
    let fields = [("authorization", &*bearer), ("checkrein-run", "of-b")];
    let own = [("checkrein-run", "of-a")];
    let a = Remote::open_with(gateway.data, "2026-07-28", &json!({}), &own).await;
    let b = Remote::open_with(gateway.data, "2026-07-28", &json!({}), &fields).await;
    let whole = async |agent: &Remote| {
        let (mut all, mut pages, mut cursor) = (Vec::new(), Vec::new(), Value::Null);
        loop {
            let params = if cursor.is_null() { json!({}) } else { json!({"cursor": cursor}) };
            let page = agent.ask("tools/list", &params).await;
            assert_eq!(page["result"]["cacheScope"], "private", "{page}");
            all.extend(names(&page));
            cursor = page["result"]["nextCursor"].clone();
            pages.push(cursor.clone());
            if cursor.is_null() {
                return (all, pages);
            }
        }
    };
    let (of_a, pages) = whole(&a).await;
    let (of_b, _) = whole(&b).await;
    let sorted: Vec<String> = (0..600).map(|n| format!("t{n:03}")).collect();
    assert_eq!((&of_a, pages.len()), (&sorted, 2), "all of them, once, in order");
    assert_eq!(of_b.len(), 502);
    assert!(of_b.iter().all(|name| of_a.contains(name)) && !of_b.contains(&"t000".to_owned()));
    // Its own cursor means nothing in another's hand.
    let stolen = b.ask("tools/list", &json!({"cursor": pages[0]})).await;
    assert_eq!(stolen["error"]["code"], -32602, "{stolen}");
    // A circuit that is open and a budget that is spent change no list.
    let error = |result: &Value| result["_meta"]["io.checkrein/outcome"]["error"].clone();
    assert_eq!(error(&a.call("t000", &json!({})).await), "upstream_timeout");
    assert_eq!(error(&a.call("t000", &json!({})).await), "circuit_open");
    assert_eq!(error(&a.call("t000", &json!({})).await), "budget_exhausted");
    assert_eq!(whole(&a).await.0, of_a);
    assert_eq!(whole(&b).await.0, of_b);
}

/// Streams that hear of lists: one of each era.
async fn streams(desk: &Desk) -> Vec<(Agent, Stream)> {
    let mut all = Vec::new();
    for revision in ERAS {
        let agent = desk.agent(revision).await;
        let mut stream = agent.listen(&json!({"toolsListChanged": true})).await;
        if agent.modern {
            let first = stream.next().await.expect("acknowledged");
            let shown = &first["params"]["notifications"];
            assert_eq!(shown, &json!({"toolsListChanged": true}));
        }
        all.push((agent, stream));
    }
    all
}

#[tokio::test]
async fn list_changed_reaches_those_concerned() {
    const CHANGED: &str = "notifications/tools/list_changed";
    for of_server in ERAS {
        let look = |properties: Value| tool("look", properties);
        let server = match of_server {
            "2026-07-28" => {
                ScriptedServer::modern(vec![look(json!({"n": {"type": "integer"}}))]).await
            }
            _ => {
                ScriptedServer::legacy(of_server, vec![look(json!({"n": {"type": "integer"}}))])
                    .await
            }
        };
        server.set_get(vec![crate::support::mcp::Piece::Told]);
        let stand =
            Stands { writes: Vec::new(), on_drift: OnDrift::Warn, ..stands("srv", &server) };
        let desk = Desk::new(Rig::ready(&[stand]).await);
        wait_for("the stream on which it tells", 5 * S, async || server.hearers() == 1).await;
        let mut streams = streams(&desk).await;
        let quiet = async |streams: &mut Vec<(Agent, Stream)>| {
            for (_, stream) in streams {
                let heard = timeout(3 * S / 2, stream.next()).await;
                assert!(heard.is_err(), "{heard:?}");
            }
        };
        // A tool that no rule of the policy takes concerns nobody.
        let lists = server.of("tools/list").len();
        let more = tool("other", json!({}));
        server.set_pages(vec![vec![look(json!({"n": {"type": "integer"}})), more.clone()]], &[]);
        server.tell(CHANGED, json!({}));
        let listed = async || server.of("tools/list").len() > lists;
        wait_for("the list", 5 * S, listed).await;
        desk.rig.engine.rebind();
        quiet(&mut streams).await;
        assert!(!desk.rig.has("other"));
        // One that they may see does, once a stream however often it is said.
        server.set_pages(vec![vec![look(json!({"m": {"type": "string"}})), more]], &[]);
        server.tell(CHANGED, json!({}));
        server.tell(CHANGED, json!({}));
        desk.rig
            .until(|snapshot| {
                snapshot
                    .tools
                    .values()
                    .any(|tool| tool.schema.source().to_string().contains("\"m\""))
            })
            .await;
        for (agent, stream) in &mut streams {
            let told = timeout(5 * S, stream.next()).await.expect("in time").expect("open");
            assert_eq!(told["method"], CHANGED, "{told}");
            let tag = told.pointer("/params/_meta/io.modelcontextprotocol~1subscriptionId");
            assert_eq!(tag.is_some(), agent.modern, "{told}");
        }
        quiet(&mut streams).await;
        for (agent, _) in &streams {
            let old = agent.call("look", &json!({"n": 1})).await;
            assert_eq!(old.refusal()["error"], "invalid_arguments", "{of_server}");
            let new = agent.call("look", &json!({"m": "x"})).await;
            assert!(new.result()["isError"].is_null(), "{new:?}");
        }
    }
}
