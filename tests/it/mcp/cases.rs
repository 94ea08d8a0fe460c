//! Public failures of other gateways that speak MCP, whole: a gateway on sockets, agents of both eras before it,
//! servers of both eras behind it. Each test bears the id of its case.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::desk::ERAS;
use super::remote::{Remote, until};
use super::rig::{Stands, policy, stands};
use crate::support::fixture::TOKEN_B;
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};
use crate::support::{Form, Gateway, http, wait_for};

const S: Duration = Duration::from_secs(1);

async fn server(revision: &'static str, tools: Vec<Value>) -> ScriptedServer {
    match revision {
        "2026-07-28" => ScriptedServer::modern(tools).await,
        _ => ScriptedServer::legacy(revision, tools).await,
    }
}

fn text(stand: &[Stands]) -> String {
    policy(stand).replace("DIR/b", "TOKEN_B")
}

/// A gateway that has heard of `tools` of these servers.
async fn gateway(text: &str, tools: &[&str]) -> Gateway {
    let gateway = Gateway::start(text).await;
    wait_for("the tools", 10 * S, async || {
        let listed = http::get(gateway.data, "/v1/tools").await.text();
        tools.iter().all(|tool| listed.contains(&format!(r#""name":"{tool}""#)))
    })
    .await;
    gateway
}

fn refusal(result: &Value) -> &Value {
    assert_eq!(result["isError"], true, "{result}");
    &result["_meta"]["io.checkrein/outcome"]
}

fn is_done(result: &Value) -> bool {
    result["isError"] != true
}

#[tokio::test]
async fn bb_a04_what_is_not_listed_cannot_be_called_and_its_server_never_hears_of_it() {
    for of_server in ERAS {
        let server = server(of_server, vec![tool("a", json!({})), tool("b", json!({}))]).await;
        let stand = Stands {
            reads: vec!["a", "b"],
            writes: Vec::new(),
            own: "prefix: s_",
            ..stands("srv", &server)
        };
        let whole = text(&[stand])
            .replace("default: { allow: [a, b] }", "default: { allow: [s_a] }")
            .replace("allow: [a, b] }", "allow: [s_a, s_b] }");
        let gateway = gateway(&whole, &["s_a"]).await;
        for of_agent in ["2025-06-18", "2025-11-25", "2026-07-28"] {
            let agent = Remote::open(gateway.data, of_agent).await;
            assert_eq!(agent.tools().await, ["s_a"], "{of_agent}");
            let unknown = agent.call("no_such_tool", &json!({})).await;
            // By its name, by its server's name for it, in other letters, and under another prefix.
            for name in ["s_b", "b", "a", "S_A", "s_A", "t_a", "srv.a"] {
                let refused = agent.call(name, &json!({})).await;
                assert_eq!(refusal(&refused)["error"], "unknown_tool", "{name}");
                assert_eq!(refusal(&refused)["hint"], refusal(&unknown)["hint"], "alike: {name}");
            }
            assert!(is_done(&agent.call("s_a", &json!({})).await));
        }
        let called: Vec<String> =
            server.of("tools/call").iter().map(|call| call.tool().to_owned()).collect();
        assert_eq!(called, ["a", "a", "a"], "under its own name");
    }
}

#[tokio::test]
async fn bb_a07_an_unknown_door_an_agent_without_tools_and_a_tool_no_server_has_are_each_told() {
    let server = ScriptedServer::legacy("2025-11-25", vec![tool("look", json!({}))]).await;
    let stand = Stands { writes: vec!["gone"], ..stands("srv", &server) };
    let whole = text(&[stand]).replace(
        "b: { identities: [ { token: { file: \"TOKEN_B\" } } ], allow: [look, gone] }",
        "b: { identities: [ { token: { file: \"TOKEN_B\" } } ], allow: [gone] }",
    );
    let process = crate::support::Process::start(&whole, &[]).await;
    let listed = async || http::get(process.data, "/v1/tools").await.text().contains("look");
    wait_for("the tool", 10 * S, listed).await;
    let told = async || process.log().contains("the policy names it, and the server offers no");
    wait_for("the warning", 10 * S, told).await;
    assert!(process.log().contains("gone"), "{}", process.log());
    let hello = super::peer::initialize("2025-11-25", &json!({}));
    for path in ["/mcp/srv", "/mcp/", "/servers/srv/mcp"] {
        let host = process.data.to_string();
        let fields = [("host", &*host), ("accept", "application/json, text/event-stream")];
        let got = http::request(process.data, "POST", path, &fields, hello.as_bytes()).await;
        assert_eq!(got.status, 404, "{path} {}", got.text());
        assert!(!got.text().is_empty(), "{path}");
    }
    let bearer = format!("Bearer {TOKEN_B}");
    for revision in ERAS {
        let fields = [("authorization", &*bearer)];
        let agent = Remote::open_with(process.data, revision, &json!({}), &fields).await;
        assert_eq!(agent.tools().await, Vec::<String>::new());
        let told = match agent.is_modern() {
            true => agent.ask("server/discover", &json!({})).await["result"].clone(),
            false => {
                let host = process.data.to_string();
                let usual = ("accept", "application/json, text/event-stream");
                let all = [("host", &*host), usual, ("authorization", &*bearer)];
                let got = http::request(process.data, "POST", "/mcp", &all, hello.as_bytes()).await;
                got.json()["result"].clone()
            }
        };
        let words = told["instructions"].as_str().unwrap_or_else(|| panic!("{told}"));
        assert!(words.contains("may call no tool"), "{words}");
    }
}

#[tokio::test]
async fn bb_b13_one_slow_tool_of_a_server_leaves_its_neighbours_and_the_list_alone() {
    const KEYS: &str = "timeout: { connect: 100ms, first_byte: 100ms, total: 200ms }\n    \
                        retry: { max_retries: 0 }\n    \
                        breaker: { consecutive_failures: 3, open_for: 1h, open_max: 1h }";
    for of_server in ERAS {
        let tools = vec![tool("slow", json!({"n": {}})), tool("fast", json!({"n": {}}))];
        let server = server(of_server, tools).await;
        server.script("slow", [Does::Hang]);
        let stand = Stands {
            reads: vec!["slow", "fast"],
            writes: Vec::new(),
            keys: KEYS,
            ..stands("srv", &server)
        };
        let gateway = gateway(&text(&[stand]), &["slow", "fast"]).await;
        for of_agent in ERAS {
            let agent = Remote::open(gateway.data, of_agent).await;
            let before = agent.tools().await;
            let mut n = 0;
            let mut opened = false;
            while !opened {
                n += 1;
                assert!(n < 10, "the circuit stays closed");
                let failed = agent.call("slow", &json!({"n": [of_agent, n]})).await;
                let error = refusal(&failed)["error"].clone();
                assert!(matches!(error.as_str(), Some("upstream_timeout" | "circuit_open")));
                opened = error == "circuit_open";
            }
            assert!(is_done(&agent.call("fast", &json!({"n": of_agent})).await));
            assert_eq!(agent.tools().await, before, "{of_agent}");
        }
    }
}

/// A server that counts in its session.
async fn counting() -> ScriptedServer {
    let tools = vec![tool("inc", json!({"n": {}})), tool("get", json!({"n": {}}))];
    let server = ScriptedServer::legacy("2025-11-25", tools).await;
    server.script("inc", [Does::Count]);
    server.script("get", [Does::Count]);
    server
}

#[tokio::test]
async fn bb_m04_what_a_server_keeps_in_a_session_is_one_agents_alone() {
    for of_agent in ERAS {
        let server = counting().await;
        let stand =
            Stands { reads: vec!["inc", "get"], writes: Vec::new(), ..stands("srv", &server) };
        let gateway = gateway(&text(&[stand]), &["inc"]).await;
        let a = Remote::open(gateway.data, of_agent).await;
        let bearer = format!("Bearer {TOKEN_B}");
        let fields = [("authorization", &*bearer)];
        let b = Remote::open_with(gateway.data, of_agent, &json!({}), &fields).await;
        let count = async |agent: &Remote, tool: &str, n: u32| {
            let got = agent.call(tool, &json!({"n": n})).await;
            got["structuredContent"]["before"].as_u64().unwrap_or_else(|| panic!("{got}"))
        };
        assert_eq!((count(&a, "inc", 1).await, count(&a, "inc", 2).await), (0, 1));
        assert_eq!(count(&b, "get", 3).await, 0, "{of_agent}");
        assert_eq!(count(&a, "get", 4).await, 2);
        let sessions: Vec<String> =
            server.of("tools/call").iter().map(|call| call.session().to_owned()).collect();
        assert_eq!((&sessions[0], &sessions[0]), (&sessions[1], &sessions[3]));
        assert_ne!(sessions[0], sessions[2]);
    }
}

#[tokio::test]
async fn bb_m08_of_three_servers_the_one_that_is_well_is_listed_and_called() {
    for of_agent in ERAS {
        let ok = ScriptedServer::legacy("2025-11-25", vec![tool("look", json!({}))]).await;
        let refused = ScriptedServer::legacy("2025-11-25", Vec::new()).await;
        refused.stop();
        let hanging = ScriptedServer::legacy("2025-11-25", Vec::new()).await;
        for method in ["initialize", "server/discover"] {
            hanging.script(method, [Does::Hang]);
        }
        let of = |name, server, reads: &[&'static str]| Stands {
            reads: reads.to_vec(),
            writes: Vec::new(),
            ..stands(name, server)
        };
        let all = [
            of("ok", &ok, &["look"]),
            of("refused", &refused, &["lost"]),
            of("hanging", &hanging, &["late"]),
        ];
        let gateway = Gateway::start(&text(&all)).await;
        let began = Instant::now();
        let agent = Remote::open(gateway.data, of_agent).await;
        assert_eq!(agent.tools().await, ["look"], "{of_agent}");
        assert!(is_done(&agent.call("look", &json!({})).await));
        // What a list waits for at a start, once; a server that is refused is not waited for.
        assert!(began.elapsed() < 4 * S, "{:?}", began.elapsed());
        let again = Instant::now();
        assert_eq!(agent.tools().await, ["look"]);
        assert!(again.elapsed() < S, "{:?}", again.elapsed());
        let metrics = gateway.metrics().await;
        for (server, up) in [("ok", 1.0), ("refused", 0.0), ("hanging", 0.0)] {
            assert_eq!(metrics.value("checkrein_mcp_server_up", &[("server", server)]), up);
        }
    }
}

#[tokio::test]
async fn bb_m14_a_browser_that_was_lied_to_about_our_name_drives_nothing() {
    let server = ScriptedServer::legacy("2025-11-25", vec![tool("look", json!({}))]).await;
    let stand = Stands { writes: Vec::new(), ..stands("srv", &server) };
    let gateway = gateway(&text(&[stand]), &["look"]).await;
    let port = gateway.data.port();
    let session = Remote::open(gateway.data, "2025-11-25").await;
    drop(session);
    let hits = server.seen().len();
    let call = json!({"name": "look", "arguments": {}});
    let (mut modern, body) = super::peer::modern("1", "tools/call", &call);
    modern.push(("accept".into(), "application/json, text/event-stream".into()));
    let hello = super::peer::initialize("2025-11-25", &json!({}));
    let local = format!("localhost:{port}");
    for (fields, status) in [
        (vec![("host", &*local), ("origin", "https://evil.example")], 403),
        (vec![("host", "evil.example")], 403),
        (vec![("host", "evil.example:80")], 403),
        (vec![("host", &*local), ("origin", "null")], 403),
        (vec![("host", &*local)], 200),
        (vec![("host", &*format!("[::1]:{port}"))], 200),
        (vec![("host", &*format!("127.0.0.1:{port}"))], 200),
    ] {
        for (own, body) in [(&modern, &body), (&Vec::new(), &hello)] {
            let mut all = super::peer::as_pairs(own);
            all.extend_from_slice(&fields);
            if own.is_empty() {
                all.push(("accept", "application/json, text/event-stream"));
            }
            let got = http::request(gateway.data, "POST", "/mcp", &all, body.as_bytes()).await;
            assert_eq!(got.status, status, "{fields:?} {}", got.text());
            assert_eq!(got.header("access-control-allow-origin"), None);
        }
        if status == 403 {
            assert_eq!(server.seen().len(), hits, "{fields:?}");
            for method in ["GET", "OPTIONS", "DELETE"] {
                let got = http::request(gateway.data, method, "/mcp", &fields, b"").await;
                assert_eq!(got.status, 403, "{method} {fields:?}");
            }
        }
    }
    assert_eq!(server.runs("look"), 3, "of those who may");
}

#[tokio::test]
async fn bb_m15_an_event_is_at_the_agent_while_the_stream_behind_it_stays_open() {
    for of_server in ERAS {
        for of_agent in ERAS {
            let server = server(of_server, vec![tool("look", json!({}))]).await;
            let done = json!({"resultType": "complete", "content": []});
            server.script(
                "look",
                [Does::Stream(vec![
                    Piece::Progress(json!({"progress": 1})),
                    Piece::Held,
                    Piece::Answer(done),
                ])],
            );
            let stand = Stands { writes: Vec::new(), ..stands("srv", &server) };
            let gateway = gateway(&text(&[stand]), &["look"]).await;
            let agent = Remote::open(gateway.data, of_agent).await;
            let params = json!({"name": "look", "arguments": {}, "_meta": {"progressToken": "t"}});
            let coded = [("accept-encoding", "gzip, br, zstd, deflate")];
            let began = Instant::now();
            let mut stream = agent.send("tools/call", &params, &coded).await;
            let seen = until(&mut stream, "notifications/progress").await;
            assert!(began.elapsed() < S, "{:?}", began.elapsed());
            let head = seen.to_ascii_lowercase();
            assert!(head.starts_with("http/1.1 200"), "{head}");
            for field in ["cache-control: no-cache, no-transform\r\n", "x-accel-buffering: no\r\n"]
            {
                assert!(head.contains(field), "{field} {head}");
            }
            assert!(!head.contains("content-encoding") && !seen.contains(r#""result""#), "{seen}");
            server.go();
            until(&mut stream, r#""result""#).await;
        }
    }
}

#[tokio::test]
async fn bb_n06_a_redirect_is_not_followed_and_takes_no_credential_along() {
    let canary = ScriptedServer::legacy("2025-11-25", vec![tool("look", json!({}))]).await;
    let away = format!("http://127.0.0.1:{}/mcp", canary.port());
    for location in ["http://169.254.169.254/latest/meta-data/", &*away] {
        for status in [302, 307, 308] {
            for of_server in ERAS {
                let tools = vec![tool("look", json!({})), tool("make", json!({}))];
                let server = server(of_server, tools).await;
                let own = "auth: { bearer: { file: \"TOKEN_A\" } }";
                let stand = Stands { own, ..stands("srv", &server) };
                let port = server.port();
                let http_tools = format!(
                    "tools:\n  \
                     fetch: {{ description: d, effect: read, http: {{ upstream: web, method: GET, path: /fetch }}, schema: {{ type: object, properties: {{}} }} }}\n  \
                     put: {{ description: d, effect: write, http: {{ upstream: web, method: POST, path: /put }}, schema: {{ type: object, properties: {{}} }} }}\n\
                     upstreams:\n  web: {{ base_url: \"http://127.0.0.1:{port}\", addresses: [loopback], auth: {{ bearer: {{ file: \"TOKEN_A\" }} }} }}\n\
                     agents:\n  default: {{ allow: [look, make, fetch, put] }}"
                );
                let whole = text(&[stand])
                    .replace("agents:\n  default: { allow: [look, make] }", &http_tools);
                let gateway = gateway(&whole, &["look", "make"]).await;
                let moved = Does::StatusWith(status, vec![("location", location.to_owned())], "");
                for what in ["look", "make"] {
                    server.script(what, [moved.clone()]);
                }
                server.elsewhere(moved);
                let agent = Remote::open(gateway.data, "2026-07-28").await;
                for tool in ["look", "fetch", "make", "put"] {
                    let before = server.seen().len();
                    let got = agent.call(tool, &json!({})).await;
                    let told = refusal(&got);
                    let name = format!("{tool} {status} {location}");
                    // A 302 may be the answer to a write that was done.
                    let done = status == 302 && matches!(tool, "make" | "put");
                    let ends = if done { "outcome_unknown" } else { "upstream_redirect" };
                    assert_eq!(told["error"], ends, "{name}: {told}");
                    let seen = server.seen();
                    let calls = seen
                        .iter()
                        .skip(before)
                        .filter(|one| one.method() == "tools/call" || one.path != "/mcp");
                    let sent: Vec<_> = calls.collect();
                    assert_eq!(sent.len(), 1, "sent once: {name}");
                    let bearer = sent[0].header("authorization");
                    assert!(bearer.is_some_and(|bearer| bearer.starts_with("Bearer ")), "{name}");
                }
            }
        }
    }
    assert!(canary.seen().is_empty(), "{:?}", canary.seen());
}

#[tokio::test]
async fn bb_o06_nothing_and_an_empty_text_are_successes_of_every_server_to_every_agent() {
    for of_server in ERAS {
        let server = server(of_server, vec![tool("look", json!({"n": {}}))]).await;
        let empty = json!([{"type": "text", "text": ""}]);
        let stand = Stands { writes: Vec::new(), ..stands("srv", &server) };
        let gateway = gateway(&text(&[stand]), &["look"]).await;
        for (n, content) in [json!([]), empty].into_iter().enumerate() {
            let result = json!({"resultType": "complete", "content": content});
            server.script("look", [Does::Result(result)]);
            for of_agent in ERAS {
                let agent = Remote::open(gateway.data, of_agent).await;
                let got = agent.call("look", &json!({"n": [n, of_agent]})).await;
                assert_eq!((&got["content"], &got["isError"]), (&content, &Value::Null), "{got}");
                assert_eq!(got["_meta"]["io.checkrein/outcome"]["ok"], true, "{got}");
            }
        }
    }
}

#[tokio::test]
async fn bb_r10_a_stream_that_ends_without_an_answer_is_a_lost_connection_at_once() {
    for of_server in ERAS {
        for of_agent in ERAS {
            let tools = vec![tool("look", json!({})), tool("make", json!({}))];
            let server = server(of_server, tools).await;
            let cut = || Does::Stream(vec![Piece::Run, Piece::Comment, Piece::Wait(S / 10)]);
            let done = Does::Result(json!({"resultType": "complete", "content": []}));
            server.script("look", [cut(), done]);
            server.script("make", [cut()]);
            let keys = "timeout: { connect: 5s, first_byte: 20s, total: 30s }";
            let stand = Stands { keys, ..stands("srv", &server) };
            let gateway = gateway(&text(&[stand]), &["look", "make"]).await;
            let agent = Remote::open(gateway.data, of_agent).await;
            let began = Instant::now();
            let got = agent.call("make", &json!({})).await;
            assert_eq!(refusal(&got)["error"], "outcome_unknown", "{of_server} {of_agent}");
            assert!(began.elapsed() < 3 * S, "{:?}", began.elapsed());
            // a read is asked again, for it may be
            assert!(is_done(&agent.call("look", &json!({})).await));
            assert_eq!((server.runs("make"), server.of("tools/call").len()), (1, 3));
            let metrics = gateway.metrics().await;
            for tool in ["make", "look"] {
                let lost = [("tool", tool), ("error_class", "reset_after_send")];
                assert_eq!(metrics.value("checkrein_attempts_total", &lost), 1.0, "{tool}");
            }
        }
    }
}

/// The MCP halves: agents by MCP among all others, before a server by MCP and one by HTTP.
#[tokio::test]
async fn bb_w10_fifty_at_once_through_every_front_end_are_one_write_of_an_mcp_server() {
    for of_server in ERAS {
        let server = server(of_server, vec![tool("make", json!({"ref": {}}))]).await;
        let done =
            json!({"resultType": "complete", "content": [], "structuredContent": {"done": true}});
        let acts = vec![Piece::Run, Piece::Wait(S / 5), Piece::Answer(done)];
        server.script("make", [Does::Stream(acts)]);
        let stand = Stands { reads: Vec::new(), ..stands("srv", &server) };
        let gateway = gateway(&text(&[stand]), &["make"]).await;
        let (data, arguments) = (gateway.data, json!({"ref": "R10"}));
        let calls = (0..50_usize).map(|n| {
            let (arguments, run) = (arguments.clone(), format!("run-{n}"));
            let form = Form::ALL.get(n % 6).copied();
            let plain = gateway.agent(form.unwrap_or(Form::OpenaiChat), &run);
            tokio::spawn(async move {
                let id = format!("c{n}");
                let raw = arguments.to_string();
                match (form, n % 6) {
                    (Some(_), _) => plain.ask(&[(&id, "make", &raw)]).await.answer(&id).clone(),
                    (None, 3) => plain.call("make", &id, &raw).await.json(),
                    (None, of) => {
                        let fields = [("checkrein-run", &*run)];
                        let revision = ERAS[of % 2];
                        let agent = Remote::open_with(data, revision, &json!({}), &fields).await;
                        agent.call("make", &arguments).await
                    }
                }
            })
        });
        for call in calls.collect::<Vec<_>>() {
            let answer = call.await.expect("no panic");
            let waits = answer.to_string().contains("in_progress");
            assert!(waits || answer.to_string().contains(r#""done":true"#), "{answer}");
        }
        assert_eq!((server.runs("make"), server.of("tools/call").len()), (1, 1), "{of_server}");
    }
}
