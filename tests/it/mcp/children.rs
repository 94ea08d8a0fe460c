//! A whole gateway in front of servers that are child processes: listed, called, crashing, and gone with the gateway.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::desk::ERAS;
use super::remote::{Remote, until};
use crate::support::process::Process;
use crate::support::{http, wait_for};

const S: Duration = Duration::from_secs(1);
/// Patience for programs on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// One server of the policy; its files lie in FOLDER.
fn server(name: &str, words: &str, more: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/support/mcp_child.py");
    let files = ["started", "effects", "heard"].map(|file| format!("{file}=FOLDER/{name}.{file}"));
    format!(
        "  {name}:
    command: [PYTHON, \"-S\", \"-E\", {script}, {files}, {words}]
    prefix: {name}_
    {more}
    tools:
      echo: {{ effect: read, timeout: {{ connect: 9s, first_byte: 9s, total: 10s }} }}
      slow: {{ effect: read, timeout: {{ connect: 9s, first_byte: 1s, total: 10s }} }}
      die_before: {{ effect: read, timeout: {{ connect: 9s, first_byte: 9s, total: 10s }}, retry: {{ max_retries: 0 }} }}
      count: {{ effect: read, timeout: {{ connect: 9s, first_byte: 9s, total: 10s }} }}
      long: {{ effect: read, timeout: {{ connect: 9s, first_byte: 9s, total: 10s }} }}
      ask: {{ timeout: {{ connect: 9s, first_byte: 9s, total: 10s }} }}
      touch: {{ effect: read, timeout: {{ connect: 9s, first_byte: 9s, total: 10s }} }}
      deep: {{ timeout: {{ connect: 9s, first_byte: 9s, total: 10s }} }}
      effect: {{ timeout: {{ connect: 9s, first_byte: 9s, total: 10s }} }}
      die_after: {{ timeout: {{ connect: 9s, first_byte: 9s, total: 10s }} }}
",
        script = script.display(),
        files = files.join(", "),
    )
}

async fn gateway(servers: &[String]) -> Process {
    gateway_that_allows(servers, "kid_effect, kid_die_after, kid_deep, kid_ask").await
}

/// `writes`: what the agent may call beside every read.
async fn gateway_that_allows(servers: &[String], writes: &str) -> Process {
    let folder = tempfile::tempdir().expect("a folder");
    let policy = format!(
        "apiVersion: checkrein/v1
kind: Policy
mcp_servers:
{}agents:
  default: {{ allow: [\"*\", {writes}] }}
  b: {{ identities: [ {{ token: {{ file: FOLDER/b }} }} ], allow: [\"*\"] }}
",
        servers.concat()
    );
    let text =
        policy.replace("FOLDER", &folder.path().display().to_string()).replace("PYTHON", &python());
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, text).expect("written");
    std::fs::write(folder.path().join("b"), "token-of-b").expect("written");
    Process::start_at(folder, &file, &["--log-level", "debug"], &[]).await
}

/// The interpreter itself: what stands in the path may be a script.
fn python() -> String {
    let asked = std::process::Command::new("python3")
        .args(["-c", "import sys;print(sys.executable)"])
        .output();
    String::from_utf8(asked.expect("Python is there").stdout).expect("a path").trim().to_owned()
}

fn lines(gateway: &Process, file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(gateway.folder.path().join(file)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Those of the server's processes that are there; a zombie is not.
fn alive(gateway: &Process, name: &str) -> usize {
    let is_alive = |pid: &String| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
    };
    lines(gateway, &format!("{name}.started")).iter().filter(|pid| is_alive(pid)).count()
}

async fn listed(gateway: &Process, tool: &str) {
    wait_for("the tool", SOON, async || {
        http::get(gateway.data, "/v1/tools").await.text().contains(tool)
    })
    .await;
}

async fn call(gateway: &Process, run: &str, tool: &str, text: &str) -> (u16, Value) {
    let body = json!({"text": text}).to_string();
    let fields = [("content-type", "application/json"), ("checkrein-run", run)];
    let path = format!("/v1/tools/{tool}");
    let got = http::request(gateway.data, "POST", &path, &fields, body.as_bytes()).await;
    (got.status, serde_json::from_str(&got.text()).unwrap_or_default())
}

#[tokio::test]
async fn a_write_whose_child_ends_is_unknown_and_not_sent_again() {
    let gateway = gateway(&[server("kid", "era=legacy", "")]).await;
    listed(&gateway, "kid_die_after").await;
    let (_, told) = call(&gateway, "a", "kid_effect", "one").await;
    assert_eq!(told["ok"], json!(true), "{told}");
    let (_, told) = call(&gateway, "b", "kid_die_after", "two").await;
    assert_eq!(told["error"], json!("outcome_unknown"), "{told}");
    let (_, told) = call(&gateway, "c", "kid_die_after", "two").await;
    assert_eq!(told["error"], json!("review_required"), "{told}");
    let (_, told) = call(&gateway, "d", "kid_echo", "three").await;
    assert_eq!(told["ok"], json!(true), "{told}");
    assert_eq!(lines(&gateway, "kid.effects"), ["effect one", "die_after two"]);
}

/// The stdio part of `deep_and_wide_messages_are_refused`.
#[tokio::test]
async fn deep_and_wide_messages_of_a_child_cost_what_cannot_be_read() {
    for era in ["era=legacy", "era=modern"] {
        let gateway = gateway(&[server("kid", &format!("{era}, deep"), "")]).await;
        listed(&gateway, "kid_echo").await;
        assert!(gateway.log().contains("nested deeper than 100 levels"), "{}", gateway.log());
        let began = Instant::now();
        let (_, told) = call(&gateway, "a", "kid_deep", "one").await;
        assert_eq!(told["error"], json!("outcome_unknown"), "{told}");
        assert!(began.elapsed() < S * 5, "at once, not when its time is over");
        let (_, told) = call(&gateway, "b", "kid_echo", "two").await;
        assert_eq!(told["ok"], json!(true), "{told}");
    }
}

/// A child has no address to connect to; whatever the probe is called, the child is asked.
#[tokio::test]
async fn a_broken_tool_of_a_child_is_tested_by_asking_the_child() {
    for probe in ["connect", "discover"] {
        let broken = format!(
            "retry: {{ max_retries: 0 }}, breaker: {{ consecutive_failures: 1, open_for: 1h, open_max: 1h, probe: {probe}, probe_every: 100ms }}"
        );
        let kid = server("kid", "era=legacy", "").replace("retry: { max_retries: 0 }", &broken);
        let gateway = gateway(&[kid]).await;
        listed(&gateway, "kid_die_before").await;
        let (_, told) = call(&gateway, "a", "kid_die_before", "one").await;
        assert_eq!(told["ok"], json!(false), "{told}");
        let closed = r#"checkrein_breaker_state{state="closed",tool="kid_die_before"} 1"#;
        wait_for("the circuit to close", SOON, async || {
            let scrape = http::get(gateway.health, "/metrics").await.text();
            let opened = r#"checkrein_breaker_transitions_total{from="closed",to="open",tool="kid_die_before"} 1"#;
            scrape.contains(opened) && scrape.contains(closed)
        })
        .await;
    }
}

/// The stdio half of `a_dead_upstream_does_not_spoil_the_list`.
#[tokio::test]
async fn a_dead_child_does_not_spoil_the_list() {
    let absent = "  gone: { command: [no-such-program-here], prefix: gone_, tools: { x: {} } }\n";
    let servers = [
        server("mute", "discover=silent, mute", ""),
        absent.to_owned(),
        server("kid", "era=modern", ""),
    ];
    let gateway = gateway(&servers).await;
    listed(&gateway, "kid_echo").await;
    let (_, told) = call(&gateway, "a", "kid_echo", "x").await;
    assert_eq!(told["ok"], json!(true), "{told}");
    let scrape = http::get(gateway.health, "/metrics").await.text();
    for (name, up) in [("kid", 1), ("mute", 0), ("gone", 0)] {
        let line = format!("checkrein_mcp_server_up{{server=\"{name}\"}} {up}");
        assert!(scrape.contains(&line), "{line}");
    }
}

/// One child for everybody: two agents' streams of one resource are one subscription at the server, which ends with the
/// last; and each is told on its own stream.
#[tokio::test]
async fn a_resource_of_a_child_is_subscribed_to_once_for_all_and_told_to_each() {
    for (era, asks) in
        [("era=legacy", "resources/subscribe"), ("era=modern", "subscriptions/listen")]
    {
        let more = "share: all\n    pass: { resources: [\"file:///*\"] }";
        let gateway = gateway(&[server("kid", era, more)]).await;
        listed(&gateway, "kid_touch").await;
        let said = |words: &str| {
            lines(&gateway, "kid.effects").iter().filter(|line| *line == words).count()
        };
        let asked = format!("{asks} file:///a");
        let own = [("authorization", "Bearer token-of-b")];
        let a = Remote::open(gateway.data, "2025-11-25").await;
        let b = Remote::open_with(gateway.data, "2026-07-28", &json!({}), &own).await;
        let mut of_a = a.listen(&json!({})).await;
        let got = a.ask("resources/subscribe", &json!({"uri": "file:///a"})).await;
        assert_eq!(got["result"], json!({}), "{era} {got}");
        let mut of_b = b.listen(&json!({"resourceSubscriptions": ["file:///a"]})).await;
        let first = until(&mut of_b, "acknowledged").await;
        assert!(first.contains("file:///a"), "{era} {first}");
        assert_eq!(said(&asked), 1, "{era}: once for both");
        let touched = a.call("kid_touch", &json!({"text": "file:///a"})).await;
        assert!(touched["isError"].is_null(), "{touched}");
        for stream in [&mut of_a, &mut of_b] {
            let told = until(stream, "notifications/resources/updated").await;
            assert!(told.contains("file:///a"), "{told}");
        }
        let over = "resources/unsubscribe file:///a";
        let got = a.ask("resources/unsubscribe", &json!({"uri": "file:///a"})).await;
        assert_eq!(
            (&got["result"], said(over)),
            (&json!({}), 0),
            "{era}: the other wants it still"
        );
        drop(of_b);
        if era == "era=legacy" {
            wait_for("the word", SOON, async || said(over) == 1).await;
        } else {
            let told = async || {
                lines(&gateway, "kid.heard").iter().any(|line| line == "notifications/cancelled")
            };
            wait_for("the end of its listen", SOON, told).await;
        }
    }
}

/// A call that a child asks in the midst of, by an agent whose answers come in requests of their own.
#[tokio::test]
async fn a_question_of_a_child_parks_the_call_and_the_answer_goes_on_with_it() {
    let gateway = gateway(&[server("kid", "era=legacy", "may_ask: [elicitation]")]).await;
    listed(&gateway, "kid_ask").await;
    let can = json!({"elicitation": {}});
    let agent = Remote::open_with(gateway.data, "2026-07-28", &can, &[]).await;
    let call = json!({"name": "kid_ask", "arguments": {"text": "elicitation/create"}});
    let asked = agent.ask("tools/call", &call).await["result"].clone();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let key = asked["inputRequests"].as_object().and_then(|all| all.keys().next()).expect("one");
    let mut more = call.clone();
    more["requestState"] = asked["requestState"].clone();
    more["inputResponses"] = json!({key: {"action": "accept", "content": {"yes": 1}}});
    let done = agent.ask("tools/call", &more).await["result"].clone();
    assert!(done["isError"].is_null(), "{done}");
    let told = done["content"][0]["text"].as_str().expect("what it was answered");
    assert!(told.contains(r#""yes": 1"#) && told.contains("accept"), "{told}");
    assert_eq!(lines(&gateway, "kid.effects"), ["ask elicitation/create"], "it ran once");
}

/// The stdio part of `no_session_is_shared_between_identities`.
#[tokio::test]
async fn no_child_is_shared_between_identities() {
    for era in ["era=legacy", "era=modern"] {
        let gateway = gateway(&[server("kid", era, "")]).await;
        listed(&gateway, "kid_count").await;
        let b = [("authorization", "Bearer token-of-b")];
        for of_agent in ERAS {
            let a = Remote::open(gateway.data, of_agent).await;
            let b = Remote::open_with(gateway.data, of_agent, &json!({}), &b).await;
            let count = async |agent: &Remote, n: u32| {
                let told =
                    agent.call("kid_count", &json!({"text": format!("{of_agent} {n}")})).await;
                let text = told["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{told}"));
                text.parse::<u32>().expect("a number")
            };
            let first = count(&a, 1).await;
            assert_eq!(count(&a, 2).await, first + 1, "its own child goes on counting");
            let others = count(&b, 3).await;
            assert_eq!(others, first / 2 + 1, "and B's knows nothing of it: {era} {of_agent}");
        }
        assert_eq!(lines(&gateway, "kid.started").len(), 3, "the gateway's own, and one each");
    }
}

/// Noise on every pipe, lines without end, and agents that leave: answers, bounded memory, and nothing left behind.
#[tokio::test]
async fn stdio_noise_and_full_pipes() {
    for era in ["era=legacy", "era=modern"] {
        let words = format!("{era}, banner, stderr=1048576");
        let mut gateway = gateway(&[server("kid", &words, "children: 2")]).await;
        listed(&gateway, "kid_echo").await;
        let (_, told) = call(&gateway, "warm", "kid_echo", "warm").await;
        assert_eq!(told["ok"], json!(true), "{told}");
        let before = gateway.resident();
        // A line of ten megabytes that is no message costs a line, not the call.
        let (_, told) = call(&gateway, "long", "kid_long", "10485760").await;
        assert_eq!(told["ok"], json!(true), "{told}");
        let calls = (0..20).map(|client| {
            let gateway = &gateway;
            async move {
                let (tool, patience) =
                    if client % 2 == 0 { ("kid_echo", SOON) } else { ("kid_slow", S / 20) };
                let (run, text) = (format!("r{client}"), client.to_string());
                let call = call(gateway, &run, tool, &text);
                // A refusal by a limit is an answer.
                tokio::time::timeout(patience, call).await.is_ok()
            }
        });
        let answered = futures(calls).await.into_iter().filter(|ok| *ok).count();
        assert!(answered >= 10, "{answered}");
        assert!(alive(&gateway, "kid") <= 2, "{era}");
        let (_, told) = call(&gateway, "after", "kid_echo", "after").await;
        assert_eq!(told["ok"], json!(true), "{told}");
        let grown = gateway.resident().saturating_sub(before);
        assert!(grown < 64 << 20, "{grown} bytes");
        assert!(gateway.log().contains("no message; it is skipped"), "noise is told: {era}");
        gateway.signal("TERM");
        gateway.exit().await;
        wait_for("the end of all", SOON, async || alive(&gateway, "kid") == 0).await;
    }
}

#[tokio::test]
async fn bb_m23_calls_of_clients_that_vanish_start_no_more_children_than_the_cap() {
    let gateway = gateway(&[server("kid", "era=legacy", "children: 2")]).await;
    listed(&gateway, "kid_echo").await;
    let mut most = 0;
    for round in 0..10 {
        let calls = (0..20).map(|client| {
            let run = format!("r{client}");
            let gateway = &gateway;
            async move {
                // Half of them go away in the middle of a call that takes long.
                let tool = if client % 2 == 0 { "kid_echo" } else { "kid_slow" };
                let text = format!("{round} {client}");
                let call = call(gateway, &run, tool, &text);
                let patience = if client % 2 == 0 { SOON } else { S / 20 };
                tokio::time::timeout(patience, call).await.is_ok()
            }
        });
        let mut answered = 0;
        for one in futures(calls).await {
            answered += usize::from(one);
        }
        assert!(answered >= 10, "{answered}");
        most = most.max(alive(&gateway, "kid"));
    }
    assert!((1..=2).contains(&most), "{most} children");
}

/// All at once.
async fn futures<T>(calls: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut pinned: Vec<_> = calls.map(|call| (Box::pin(call), None)).collect();
    std::future::poll_fn(|context| {
        for (call, ended) in pinned.iter_mut().filter(|(_, ended)| ended.is_none()) {
            if let std::task::Poll::Ready(value) = call.as_mut().poll(context) {
                *ended = Some(value);
            }
        }
        match pinned.iter().all(|(_, ended)| ended.is_some()) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    pinned.into_iter().filter_map(|(_, ended)| ended).collect()
}

#[tokio::test]
async fn the_gateways_own_end_takes_every_group_along() {
    for signal in ["TERM", "KILL"] {
        let mut gateway = gateway(&[server("kid", "deaf, grandchild", "")]).await;
        listed(&gateway, "kid_echo").await;
        let (_, told) = call(&gateway, "a", "kid_echo", "x").await;
        assert_eq!(told["ok"], json!(true), "{told}");
        assert_eq!(alive(&gateway, "kid"), 4, "the gateway's child and the agent's, with theirs");
        let began = Instant::now();
        gateway.signal(signal);
        gateway.exit().await;
        wait_for("the end of all", SOON, async || alive(&gateway, "kid") == 0).await;
        let took = began.elapsed();
        assert!(took < S * 14, "{signal}: {took:?} {}", gateway.log());
    }
}

/// As by HTTP: the handle is asked for on the streams of the same child until its task has ended.
#[tokio::test]
async fn a_child_that_answers_with_a_task_is_asked_until_it_has_ended_and_called_once() {
    let kid = server("kid", "era=modern, tasks=2", "").replace(
        "    tools:\n",
        "    tools:\n      task: { tasks: use, timeout: { connect: 9s, first_byte: 9s, total: 10s } }\n",
    );
    let gateway = gateway_that_allows(&[kid], "kid_task").await;
    let listed = async || http::get(gateway.data, "/v1/tools").await.text().contains("kid_task");
    wait_for("the tool", SOON, listed).await;
    let called = http::request(gateway.data, "POST", "/v1/tools/kid_task", &[], br#"{"text":"x"}"#);
    let called = called.await;
    assert_eq!(called.status, 200, "{}", called.text());
    assert!(called.text().contains("made by a child"), "{}", called.text());
    let mut effects = lines(&gateway, "kid.effects");
    effects.retain(|effect| !effect.starts_with("subscriptions/listen"));
    assert_eq!(effects, ["task x", "asked of t-1", "asked of t-1", "asked of t-1"]);
    assert_eq!(lines(&gateway, "kid.heard").iter().filter(|line| *line == "tools/call").count(), 1);
}
