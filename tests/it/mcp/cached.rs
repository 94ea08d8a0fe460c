//! Answers of a server's tools that are kept: for the session, the run and the words that an answer may hang on.

use std::sync::Arc;
use std::time::Duration;

use checkrein::call::{RunId, Side, Source};
use checkrein::engine::{Answer, Asker, Single};
use checkrein::policy::snapshot::{MayAsk, OnDrift, Share};
use serde_json::{Value, json};

use super::peer::{as_pairs, modern};
use super::rig::{Ear, Rig, Stands, ended, parsed, policy, side, stands};
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};
use crate::support::{Gateway, http, wait_for};

const KEYS: &str = "timeout: { connect: 1s, first_byte: 2s, total: 3s }\n    cache: { ttl: 10m }";
const S: Duration = Duration::from_secs(1);

async fn server() -> ScriptedServer {
    let tools = vec![tool("look", json!({"n": {}})), tool("make", json!({"n": {}}))];
    ScriptedServer::legacy("2025-11-25", tools).await
}

/// Whose reads are kept; a write of the same server has no such key.
fn stand(server: &ScriptedServer) -> Stands {
    Stands { writes: Vec::new(), keys: KEYS, ..stands("srv", server) }
}

fn with(change: impl FnOnce(&mut Side)) -> Option<Side> {
    let mut given = side("s", &Ear::that_answers(json!({"action": "accept"})));
    change(&mut given);
    Some(given)
}

/// Asked twice, the second time from the cache or not.
async fn again(rig: &Rig, first: Option<Side>, second: Option<Side>) -> bool {
    let one = rig.call_as("default", first, "look", "{}").await;
    let two = rig.call_as("default", second, "look", "{}").await;
    assert_eq!((ended(&one.outcome).0, ended(&two.outcome).0), ("ok", "ok"));
    two.outcome.is_ok_and(|result| result.source == Source::Cache)
}

#[tokio::test]
async fn an_answer_is_for_the_session_and_the_words_it_was_asked_in() {
    let server = server().await;
    let rig = Rig::ready(&[stand(&server)]).await;
    let meta = |text: &str| Arc::new(parsed(text).as_object().expect("an object").clone());
    let same = || with(|side| side.session = Some("first".into()));
    assert!(again(&rig, same(), same()).await);
    assert!(!again(&rig, same(), with(|side| side.session = Some("second".into()))).await);
    let tenant = |name: &str| {
        let text = format!(r#"{{"x/tenant":"{name}","traceparent":"00-{name}"}}"#);
        with(|side| side.meta = meta(&text))
    };
    assert!(again(&rig, tenant("a"), tenant("a")).await);
    assert!(!again(&rig, tenant("c"), tenant("d")).await);
    let traced = |id: &str| {
        let text = format!(r#"{{"traceparent":"{id}","tracestate":"{id}"}}"#);
        with(|side| side.meta = meta(&text))
    };
    assert!(again(&rig, traced("1"), traced("2")).await, "a trace changes no answer");
    let field = |value: &str| {
        let fields = [("Region".to_owned(), value.to_owned())];
        with(|side| side.param_headers = Arc::from(fields))
    };
    assert!(!again(&rig, field("eu"), field("us")).await);
    let other = rig.call_as("b", same(), "look", "{}").await;
    assert_eq!(other.outcome.expect("an answer").source, Source::Tool, "another agent");
}

/// A call in a run that is named.
async fn in_run(rig: &Rig, run: &str) -> Answer {
    let run = RunId::new(run).expect("a sound id");
    let asker = Asker {
        agent: checkrein::call::AgentId::new("default").expect("a name"),
        run: Some(run),
        timeout: None,
        front_end: checkrein::call::FrontEnd::McpHttp,
        side: with(|_| {}).map(Arc::new),
    };
    let arguments = checkrein::call::Arguments::from_tree(json!({}), 2).expect("an object");
    let single = Single {
        asker,
        id: checkrein::call::CallId::mint(),
        tool: checkrein::call::ToolName::asked("look"),
        payload: checkrein::call::Payload::Arguments(arguments),
        caller_key: None,
    };
    rig.engine.call(single).await.expect("a run").1
}

#[tokio::test]
async fn where_a_run_has_a_session_of_its_own_it_has_its_own_answers() {
    let server = server().await;
    let rig = Rig::ready(&[Stands { share: Share::Run, ..stand(&server) }]).await;
    for (run, from) in [("a", Source::Tool), ("b", Source::Tool), ("a", Source::Cache)] {
        let answer = in_run(&rig, run).await;
        assert_eq!(answer.outcome.expect("an answer").source, from, "{run}");
    }
}

#[tokio::test]
async fn who_can_be_asked_is_answered_by_the_server_alone() {
    let server = server().await;
    let may_ask = MayAsk { elicitation: true, ..MayAsk::default() };
    let rig = Rig::ready(&[Stands { may_ask, ..stand(&server) }]).await;
    let can = |what: Value| with(|side| side.capabilities = Arc::new(what));
    let elicits = || can(json!({"elicitation": {}}));
    assert!(!again(&rig, elicits(), elicits()).await);
    // What the policy does not let the server ask, or the agent cannot be asked, makes no difference.
    let samples = || can(json!({"sampling": {}}));
    assert!(again(&rig, samples(), samples()).await);
}

#[tokio::test]
async fn a_server_s_own_error_and_a_question_are_not_kept() {
    let server = server().await;
    let error = json!({"isError": true, "content": [{"type": "text", "text": "no"}]});
    server.script("look", [Does::Result(error), Does::Result(json!({"content": []}))]);
    let rig = Rig::ready(&[stand(&server)]).await;
    assert_eq!(ended(&rig.call("look", "{}").await.outcome).0, "tool_error");
    assert_eq!(ended(&rig.call("look", "{}").await.outcome).0, "ok");
    assert_eq!(rig.call("look", "{}").await.outcome.expect("kept").source, Source::Cache);
    assert_eq!(server.of("tools/call").len(), 2);
}

#[tokio::test]
async fn a_leader_that_takes_its_call_back_takes_no_follower_with_it() {
    let server = server().await;
    server.script("look", [Does::Hang, Does::Result(json!({"content": []}))]);
    let rig = Rig::ready(&[stand(&server)]).await;
    let leader = with(|_| {});
    let taken_back = leader.as_ref().expect("a side").cancelled.clone();
    let going = async {
        wait_for("the first request", 5 * S, async || server.of("tools/call").len() == 1).await;
        let follower = rig.call_as("default", with(|_| {}), "look", "{}");
        let taking = async {
            tokio::task::yield_now().await;
            taken_back.cancel();
        };
        tokio::join!(follower, taking).0
    };
    let (first, second) = tokio::join!(rig.call_as("default", leader, "look", "{}"), going);
    assert_eq!(ended(&first.outcome).0, "upstream_reset", "it was taken back");
    assert_eq!(ended(&second.outcome).0, "ok", "{:?}", second.outcome);
}

#[tokio::test]
async fn a_changed_definition_has_other_answers() {
    let server = server().await;
    let changes = [
        Piece::Held,
        Piece::Message(json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})),
    ];
    server.set_get(changes.to_vec());
    let open = Stands { on_drift: OnDrift::Warn, ..stand(&server) };
    let rig = Rig::ready(&[open]).await;
    assert!(again(&rig, with(|_| {}), with(|_| {})).await);
    let changed = tool("look", json!({"n": {}, "more": {}}));
    server.set_pages(vec![vec![changed]], &[]);
    server.go();
    rig.until(|snapshot| {
        snapshot.tools.values().any(|tool| tool.listed.to_string().contains("more"))
    })
    .await;
    let asked = rig.call_as("default", with(|_| {}), "look", "{}").await;
    assert_eq!(asked.outcome.expect("an answer").source, Source::Tool);
}

#[tokio::test]
async fn a_write_to_the_server_makes_what_was_read_of_it_old() {
    let server = server().await;
    let text = policy(&[stand(&server)]).replace("DIR/b", "TOKEN_B");
    let text = text.replace("      look:\n", "      make: { effect: write }\n      look:\n");
    let text = text.replace("allow: [look]", "allow: [look, make]");
    let change = |_: &std::path::Path, config: &mut checkrein::config::Config| {
        config.allowed_hosts.push("gateway".into());
    };
    let gateway = Gateway::start_with(&text, change).await;
    wait_for("the tools", 5 * S, async || {
        http::get(gateway.data, "/v1/tools").await.text().contains("make")
    })
    .await;
    let asks = async |id: &str, name: &str| -> Value {
        let params = json!({"name": name, "arguments": {}, "_meta": {"io.checkrein/run": "r"}});
        let (mut fields, body) = modern(id, "tools/call", &params);
        fields.push(("accept".into(), "application/json, text/event-stream".into()));
        let pairs = as_pairs(&fields);
        let got = http::request(gateway.data, "POST", "/mcp", &pairs, body.as_bytes()).await;
        let said = got.text();
        let message = said.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or(&said);
        parsed(message)["result"]["_meta"]["io.checkrein/outcome"].clone()
    };
    let first = asks("1", "look").await;
    assert_eq!((&first["attempts"], &first["age_ms"]), (&json!(1), &Value::Null), "{first}");
    let kept = asks("2", "look").await;
    assert!(kept["attempts"] == 0 && kept["age_ms"].is_u64(), "{kept}");
    assert_eq!(asks("3", "make").await["ok"], true);
    let after = asks("4", "look").await;
    assert_eq!((&after["attempts"], &after["age_ms"]), (&json!(1), &Value::Null), "{after}");
}
