//! What was not to be changed arrives as it was sent: arguments at the server, results at the agent, equal as JSON text but
//! for white space and the spelling of characters; through the real front end, stack and back end, in every revision.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use checkrein::call::Effect;
use checkrein::frontends::{Doors, FrontEnds};
use checkrein::identity::Peer;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Map, Value, json};

use super::peer::{Got, as_pairs, build, got, initialize, modern};
use super::rig::{Rig, parsed, stands};
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};

/// Members that a front end and a back end put in or take out at a hop; all others are somebody's own.
const OUTCOME: &str = "io.checkrein/outcome";
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// An agent of either era before the gateway, a server of either era behind it.
struct Line {
    agent_modern: bool,
    server_modern: bool,
    server: ScriptedServer,
    front_ends: FrontEnds,
    session: String,
    calls: AtomicU64,
    _rig: Rig,
}

impl Line {
    async fn new(agent: &'static str, server: &'static str) -> Self {
        let tools = vec![tool("look", json!({"x": {}})), tool("make", json!({"x": {}, "n": {}}))];
        let server_modern = server == "2026-07-28";
        let server = match server_modern {
            true => ScriptedServer::modern(tools).await,
            false => ScriptedServer::legacy(server, tools).await,
        };
        let mut stand = stands("srv", &server);
        stand.keys = "timeout: { connect: 5s, first_byte: 10s, total: 20s }";
        let rig = Rig::ready(&[stand]).await;
        let front_ends = FrontEnds::new(rig.engine.clone(), rig.metrics.clone(), Doors::default());
        let agent_modern = agent == "2026-07-28";
        let mut line = Self {
            agent_modern,
            server_modern,
            server,
            front_ends,
            session: String::new(),
            calls: AtomicU64::new(1),
            _rig: rig,
        };
        if !agent_modern {
            let begun = line.post(&[], &initialize(agent, &json!({}))).await;
            assert_eq!(begun.result()["protocolVersion"], agent);
            begun.header("mcp-session-id").clone_into(&mut line.session);
        }
        line
    }

    async fn post(&self, fields: &[(&str, &str)], body: &str) -> Got {
        let request = build("POST", fields, body);
        got(self.front_ends.clone().answer(Peer::Loopback, request).await).await
    }

    /// Calls a tool, and what the server got of it and the agent got back.
    async fn call(&self, effect: Effect, x: &str, meta: &Value, does: Does) -> (Value, Value) {
        self.call_shaped(effect, x, meta, &[], does).await
    }

    /// The same with members of `params` that no revision knows, before and after those that one does.
    async fn call_shaped(
        &self,
        effect: Effect,
        x: &str,
        meta: &Value,
        more: &[(String, String)],
        does: Does,
    ) -> (Value, Value) {
        let n = self.calls.fetch_add(1, Ordering::Relaxed);
        let (name, arguments) = match effect {
            Effect::Read => ("look", format!(r#"{{"x":{x}}}"#)),
            // Every write is another operation.
            Effect::Write => ("make", format!(r#"{{"n":{n},"x":{x}}}"#)),
        };
        self.server.forget_seen();
        self.server.script(name, [does]);
        let (before, after) = more.split_at(more.len() / 2);
        let texts = |more: &[(String, String)]| -> Vec<String> {
            more.iter().map(|(name, value)| format!("{}:{value}", json!(name))).collect()
        };
        let mut members = texts(before);
        members.push(format!(r#""arguments":{arguments}"#));
        members.push(format!(r#""_meta":{meta}"#));
        members.extend(texts(after));
        members.push(format!(r#""name":"{name}""#));
        let params = parsed(&format!("{{{}}}", members.join(",")));
        let run = format!("run-{n}");
        let got = match self.agent_modern {
            true => {
                let (mut fields, body) = modern(&n.to_string(), "tools/call", &params);
                fields.push(("checkrein-run".into(), run));
                self.post(&as_pairs(&fields), &body).await
            }
            false => {
                let fields = [("mcp-session-id", &*self.session), ("checkrein-run", &*run)];
                let body = format!(
                    r#"{{"jsonrpc":"2.0","id":{n},"method":"tools/call","params":{params}}}"#
                );
                self.post(&fields, &body).await
            }
        };
        let seen = self.server.of("tools/call");
        assert_eq!(seen.len(), 1, "{got:?}");
        assert_eq!(seen[0].body["params"]["arguments"].to_string(), parsed(&arguments).to_string());
        (seen[0].body["params"].clone(), got.result().clone())
    }
}

/// Without the members that belong to a hop.
fn without_hop(mut object: Value) -> Value {
    let members = object.as_object_mut().expect("an object");
    if let Some(Value::Object(meta)) = members.get_mut("_meta") {
        let hop = |name: &str| {
            name == OUTCOME || name == SERVER_INFO || name.starts_with("io.modelcontextprotocol/")
        };
        meta.retain(|name, _| !hop(name));
        if meta.is_empty() {
            members.shift_remove("_meta");
        }
    }
    object
}

/// The result that an agent has to get for one that a server gave.
fn due(line: &Line, given: &Value) -> Value {
    let mut due = given.clone();
    let members = due.as_object_mut().expect("an object");
    if line.server_modern && !line.agent_modern {
        members.shift_remove("resultType");
    }
    if members.get("_meta").is_some_and(|meta| meta.as_object().is_some_and(Map::is_empty)) {
        members.shift_remove("_meta");
    }
    due
}

/// A number as its text: digits, sign and exponent count.
fn number(for_servers: bool) -> impl Strategy<Value = String> {
    let both = prop_oneof![
        Just("9007199254740993"),
        Just("-9007199254740993"),
        Just("18446744073709551616"),
        Just("0"),
        Just("-0"),
        Just("-0.0"),
        Just("1.50"),
        Just("1.0"),
        Just("0.1000000000000000055511151231257827"),
        Just("1e2"),
        Just("1E+2"),
        Just("2.50e-3"),
    ];
    let huge = prop_oneof![Just("1e400"), Just("-1E+999"), Just("1e-999")];
    let any = (any::<i64>(), 0u32..40).prop_map(|(n, zeros)| {
        format!("{n}.{}", "0".repeat(usize::try_from(zeros).expect("few") + 1))
    });
    match for_servers {
        true => prop_oneof![3 => both.prop_map(str::to_owned), 1 => any].boxed(),
        false => {
            prop_oneof![3 => both.prop_map(str::to_owned), 1 => huge.prop_map(str::to_owned), 1 => any]
                .boxed()
        }
    }
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z_]{0,6}",
        "\\PC{0,8}",
        Just("\u{0}\u{1f}\"\\/\u{7f}\u{2028}".to_owned()),
        Just("\u{1f600}é\u{10ffff}".to_owned()),
        Just("__proto__".to_owned()),
    ]
}

/// JSON as text: nested, members in any order, numbers as they are spelt.
fn text(for_servers: bool) -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        any::<bool>().prop_map(|b| b.to_string()),
        number(for_servers),
        word().prop_map(|word| Value::String(word).to_string()),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6)
                .prop_map(|items| format!("[{}]", items.join(","))),
            members(inner),
        ]
    })
}

fn members(value: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    prop::collection::vec((word(), value), 0..6).prop_map(|mut members| {
        let mut known = std::collections::HashSet::new();
        members.retain(|(name, _)| known.insert(name.clone()));
        let members: Vec<String> = members
            .into_iter()
            .map(|(name, value)| format!("{}:{value}", Value::String(name)))
            .collect();
        format!("{{{}}}", members.join(","))
    })
}

/// Arguments; own `_meta` members of the agent; the result's own parts, in any order.
type Case = (String, String, Vec<(String, String)>, Vec<String>, bool);

fn cases() -> impl Strategy<Value = Case> {
    let parts = (text(false), text(false), text(false), text(false)).prop_map(|(a, b, c, d)| {
        vec![
            format!(r#""content":[{{"type":"text","text":"x","x-block":{a}}},{{"type":"hologram","z":{b}}}]"#),
            format!(r#""structuredContent":{{"b":{c},"a":null}}"#),
            format!(r#""x-unknown":{d}"#),
            format!(r#""_meta":{{"example.com/k":{a}}}"#),
        ]
    });
    let parts = parts.prop_shuffle();
    let more = prop::collection::btree_map("x-[a-z]{1,4}|\\PC{3}", text(true), 0..4);
    let more = more.prop_map(|more| more.into_iter().collect());
    (text(true), members(text(true)), more, parts, any::<bool>())
}

fn check(line: &Arc<Line>, runtime: &tokio::runtime::Runtime, cases_of: u32) {
    let mut runner = TestRunner::new(Config { cases: cases_of, ..Config::default() });
    let ran = runner.run(&cases(), |(x, own, more, parts, write)| {
        let mut parts = parts;
        if line.server_modern {
            parts.push(r#""resultType":"complete""#.to_owned());
        }
        let given = format!("{{ {} }}", parts.join(" ,\n\t "));
        let compact = format!("{{{}}}", parts.join(","));
        assert_eq!(parsed(&given).to_string(), compact, "the tree keeps the text");
        let meta = parsed(&format!(r#"{{"example.com/own":{own}}}"#));
        let effect = if write { Effect::Write } else { Effect::Read };
        runtime.block_on(async {
            let does = Does::ResultText(given.clone());
            let (params, result) = line.call_shaped(effect, &x, &meta, &more, does).await;
            let names: Vec<&String> = params.as_object().expect("an object").keys().collect();
            let (before, after) = more.split_at(more.len() / 2);
            let own = ["arguments".to_owned(), "_meta".to_owned()];
            let asked = before.iter().map(|(name, _)| name).chain(&own);
            let name = "name".to_owned();
            let asked: Vec<&String> =
                asked.chain(after.iter().map(|(name, _)| name)).chain([&name]).collect();
            assert_eq!(names, asked, "in the order of the agent");
            for (name, value) in &more {
                assert_eq!(params[name].to_string(), parsed(value).to_string(), "{name}");
            }
            let sent = without_hop(params);
            assert_eq!(sent["_meta"].to_string(), meta.to_string(), "the agent's own words");
            let mut got = without_hop(result);
            if line.agent_modern && !line.server_modern {
                got.as_object_mut().expect("an object").shift_remove("resultType");
            }
            assert_eq!(got.to_string(), due(line, &parsed(&given)).to_string());
        });
        Ok(())
    });
    ran.unwrap_or_else(|error| panic!("{error}"));
}

fn line(agent: &'static str, server: &'static str) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let line = Arc::new(runtime.block_on(Line::new(agent, server)));
    check(&line, &runtime, 150);
}

#[test]
fn what_passes_between_a_legacy_agent_and_a_legacy_server_is_not_changed() {
    line("2025-11-25", "2025-11-25");
    line("2025-06-18", "2025-06-18");
}

#[test]
fn what_passes_between_a_modern_agent_and_a_modern_server_is_not_changed() {
    line("2026-07-28", "2026-07-28");
}

#[test]
fn what_passes_from_one_era_to_the_other_is_not_changed_but_for_the_era() {
    line("2025-11-25", "2026-07-28");
    line("2026-07-28", "2025-11-25");
}

#[tokio::test]
async fn a_tools_own_error_and_an_event_stream_keep_their_digits_too() {
    let line = Line::new("2025-11-25", "2025-11-25").await;
    let given = r#"{"isError":true,"x":[1e400,-0,1.50],"content":[{"type":"text","text":"no","n":9007199254740993}]}"#;
    for effect in [Effect::Read, Effect::Write] {
        let (_, result) =
            line.call(effect, "1.50", &json!({}), Does::ResultText(given.to_owned())).await;
        assert_eq!(without_hop(result).to_string(), given);
    }
    // The scripted server's own pen puts a sign before an exponent.
    let given = given.replace("true", "false").replace("1e400", "1e+400");
    let answer = Piece::Answer(parsed(&given));
    let (_, result) = line.call(Effect::Read, "-0", &json!({}), Does::Stream(vec![answer])).await;
    assert_eq!(without_hop(result).to_string(), given);
}
