//! What a policy means: the profiles' numbers, every default, what is laid over what, who may do what.

use std::time::Duration;

use checkrein::policy::snapshot::{
    BackoffMode, BreakerMode, FusePolicy, Identical, OnUnlisted, Per, Snapshot,
};
use checkrein::policy::{LoadOptions, examine_text};

use super::{examine, root};

fn snapshot(text: &str) -> std::sync::Arc<Snapshot> {
    let examined = examine(text);
    examined.snapshot.unwrap_or_else(|| panic!("{:?}", examined.problems))
}

const HEAD: &str = "apiVersion: checkrein/v1\nkind: Policy\n";

/// A read named `name` with more keys.
fn read(name: &str, more: &str) -> String {
    format!(
        "  {name}:\n    description: Reads.\n    effect: read\n    http: {{ method: GET, url: \"https://api.example/{name}\" }}\n    schema: {{ type: object, properties: {{}} }}\n{more}"
    )
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Name; connect, first byte and total; delays before the retries; deadline; failures that open the circuit.
type Row = (&'static str, [u64; 3], &'static [u64], u64, u32);

#[test]
fn profiles_have_the_numbers_of_the_reference() {
    // connect, first byte, total; retries and their delays without jitter; deadline; breaker
    let rows: [Row; 4] = [
        ("internal_rpc", [3, 10, 15], &[1, 2], 50, 3),
        ("external_http", [5, 30, 60], &[1, 2, 4], 120, 3),
        ("llm_inference", [5, 60, 120], &[2, 4], 240, 2),
        ("file_transfer", [5, 30, 300], &[0], 600, 2),
    ];
    let tools: String =
        rows.iter().map(|(name, ..)| read(name, &format!("    profile: {name}\n"))).collect();
    let plain = read("plain", "");
    let text = format!("{HEAD}tools:\n{tools}{plain}agents: {{ default: {{ allow: [\"*\"] }} }}\n");
    let snapshot = snapshot(&text);
    for (name, [connect, first_byte, total], delays, deadline, failures) in rows {
        let tool = &snapshot.tools[name];
        let timeout = tool.timeout;
        assert_eq!(timeout.connect, seconds(connect), "{name}");
        assert_eq!(timeout.first_byte, seconds(first_byte), "{name}");
        assert_eq!(timeout.idle, seconds(first_byte), "{name}");
        assert_eq!(timeout.total, seconds(total), "{name}");
        let retry = tool.retry.as_ref().expect("a read");
        assert_eq!(retry.max_retries as usize, delays.len(), "{name}");
        assert_eq!(retry.deadline, seconds(deadline), "{name}");
        let backoff = retry.backoff;
        assert_eq!(backoff.mode, BackoffMode::Additive);
        assert_eq!(backoff.jitter, backoff.base, "{name}");
        for (n, delay) in (0..).zip(delays) {
            assert_eq!((backoff.base * 2_u32.pow(n)).min(backoff.max), seconds(*delay), "{name}");
        }
        assert_eq!(tool.breaker.consecutive_failures, failures, "{name}");
        assert_eq!(tool.breaker.probe_deadline, seconds(total + 1), "{name}");
    }
    let (plain, external) = (&snapshot.tools["plain"], &snapshot.tools["external_http"]);
    assert_eq!(plain.timeout, external.timeout);
    assert_eq!(plain.retry, external.retry);
}

#[test]
fn a_minimal_policy_is_bounded_by_every_default() {
    let text = std::fs::read_to_string(root().join("policies/minimal.yaml")).expect("shipped");
    let snapshot = snapshot(&text);
    assert_eq!(snapshot.name.as_ref(), "policy.yaml");
    assert_eq!(snapshot.on_unlisted, OnUnlisted::Silent);
    assert!(snapshot.agent_label);
    assert!(!snapshot.egress.min_tls13);
    let hosts: Vec<_> =
        snapshot.egress.allow_hosts.iter().map(|h| (h.host.as_str(), h.wildcard, h.port)).collect();
    assert_eq!(hosts, [("api.weather.example", false, 443)]);
    let limits = &snapshot.limits;
    assert_eq!((limits.bulkhead, limits.batch_calls, limits.batch_parallel), (256, 32, 8));
    assert_eq!((limits.request_bytes, limits.argument_bytes), (1 << 20, 64 << 10));
    assert_eq!((limits.argument_depth, limits.response_bytes), (32, 4 << 20));
    assert_eq!(limits.rate_limit, None);

    let agent = &snapshot.agents["default"];
    assert!(!agent.dry_run && agent.tokens.is_empty() && agent.bulkhead.is_none());
    let run = &agent.run;
    assert_eq!((run.name.as_ref(), run.explicit, run.max_live), ("default", false, 1000));
    assert_eq!((run.wall_clock, run.idle), (seconds(1800), seconds(900)));
    assert_eq!((run.rounds, run.calls, run.calls_per_round), (Some(50), Some(200), Some(16)));
    assert_eq!((run.failures, run.stall_turns, run.cost), (Some(30), 3, None));
    assert_eq!((run.argument_bytes, run.result_bytes), (Some(1 << 20), Some(4 << 20)));
    assert_eq!(run.fuse, FusePolicy { same_failures: Some(3), same_results: Some(5) });
    assert_eq!(agent.choosable_runs.keys().map(AsRef::as_ref).collect::<Vec<_>>(), ["default"]);

    let tool = &snapshot.tools["get_weather"];
    assert_eq!((tool.bulkhead, tool.weight, tool.fuse), (8, 1, None));
    assert_eq!((tool.result.json, tool.result.max), (true, 64 << 10));
    assert!(!tool.result.fail_on_oversize && tool.write.is_none());
    assert_eq!(tool.breaker.mode, BreakerMode::Enforce);
    assert_eq!((tool.breaker.open_for, tool.breaker.open_max), (seconds(30), seconds(60)));
    assert_eq!(tool.breaker.open_jitter_permille, 200);
    let upstream = &tool.upstream;
    assert_eq!(upstream.name.as_str(), "https://api.weather.example:443");
    assert_eq!((upstream.bulkhead, upstream.follow_same_origin), (32, false));
    assert_eq!(upstream.breaker.consecutive_failures, 5);
    let budget = upstream.retry_budget;
    assert_eq!(
        (budget.max_milli, budget.ratio_milli, budget.floor_milli_per_s),
        (10_000, 100, 200)
    );
}

#[test]
fn what_is_not_said_to_be_a_read_is_a_write_with_the_ledger_s_defaults() {
    let text = format!(
        "{HEAD}tools:\n  send:\n    description: Sends.\n    http: {{ method: POST, url: \"https://a.example/s\" }}\n    schema: {{ type: object, properties: {{}} }}\nagents: {{ default: {{ allow: [send] }} }}\n"
    );
    let snapshot = snapshot(&text);
    let tool = &snapshot.tools["send"];
    assert_eq!(tool.effect, checkrein::call::Effect::Write);
    assert!(tool.retry.is_none(), "no retry reaches a write");
    let write = tool.write.as_ref().expect("a write");
    assert_eq!((write.ttl, write.drain), (seconds(86_400), seconds(30)));
    assert_eq!(write.identical, Identical::Allow);
    assert!(!write.global_scope && !write.pooled && !write.caller_key_required);
    assert!(write.fingerprint.is_empty());
}

#[test]
fn the_tool_s_word_beats_its_profile_s_and_that_the_built_in_s() {
    let text = format!(
        "{HEAD}profiles:
  internal_rpc: {{ timeout: {{ total: 20s }}, breaker: {{ failure_ratio: {{ above: 50%, min_calls: 5 }} }} }}
  quick: {{ extends: internal_rpc, timeout: {{ first_byte: 2s }}, retry: {{ backoff: {{ base: 3s }} }} }}
tools:
{}{}{}agents: {{ default: {{ allow: [\"*\"] }} }}
",
        read("a", "    profile: internal_rpc\n"),
        read("b", "    profile: quick\n"),
        read(
            "c",
            "    profile: internal_rpc\n    timeout: { connect: 1s }\n    breaker: { failure_ratio: { above: 20% } }\n    retry: { backoff: { mode: full } }\n"
        ),
    );
    let snapshot = snapshot(&text);
    let [a, b, c] = ["a", "b", "c"].map(|name| &snapshot.tools[name]);
    assert_eq!((a.timeout.connect, a.timeout.total), (seconds(3), seconds(20)));
    // `extends` names the built-in as it is built in.
    assert_eq!((b.timeout.first_byte, b.timeout.idle), (seconds(2), seconds(2)));
    assert_eq!(b.timeout.total, seconds(15));
    let backoff = b.retry.as_ref().expect("a read").backoff;
    assert_eq!((backoff.base, backoff.jitter), (seconds(3), seconds(3)));
    assert_eq!((c.timeout.connect, c.timeout.total), (seconds(1), seconds(20)));
    let ratio = c.breaker.failure_ratio.expect("merged");
    assert_eq!((ratio.above_permille, ratio.min_calls, ratio.window), (200, 5, seconds(30)));
    assert_eq!(c.retry.as_ref().expect("a read").backoff.mode, BackoffMode::Full);
}

#[test]
fn deny_beats_allow_and_a_pattern_allows_no_write() {
    let send = "  send:\n    description: Sends.\n    http: { method: POST, url: \"https://a.example/s\" }\n    schema: { type: object, properties: {} }\n";
    let text = format!(
        "{HEAD}tools:\n{}{}{send}agents:\n  a: {{ identities: [{{ token: {{ env: NOWHERE_A }} }}], allow: [\"*\"], deny: [\"b?\"] }}\n  default: {{ allow: [send, a1], deny: [a1] }}\n",
        read("a1", ""),
        read("b1", ""),
    );
    let snapshot = snapshot(&text);
    let names = |agent: &str| {
        let mut names: Vec<_> =
            snapshot.agents[agent].allowed.keys().map(|name| name.as_str().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names("a"), ["a1"]);
    assert_eq!(names("default"), ["send"]);
    assert_eq!(snapshot.agents["a"].denied["b1"].path.as_ref(), "agents.a.deny");
    assert_eq!(snapshot.agents["default"].denied["a1"].path.as_ref(), "agents.default.deny");
    assert!(!snapshot.agents["a"].denied.contains_key("send"));
}

#[test]
fn every_key_arrives_in_the_snapshot() {
    let text = std::fs::read_to_string(root().join("tests/it/fixtures/every_key.yaml"));
    let snapshot = snapshot(&text.expect("a fixture"));
    assert_eq!(snapshot.on_unlisted, OnUnlisted::Explain);
    assert!(!snapshot.agent_label && snapshot.egress.min_tls13);
    let hosts: Vec<_> =
        snapshot.egress.allow_hosts.iter().map(|h| (h.host.as_str(), h.port)).collect();
    let expected =
        [(".example", 80), (".example", 443), ("shop.example", 80), ("shop.example", 443)];
    assert_eq!(hosts, expected);
    let global = snapshot.limits.rate_limit.as_ref().expect("named");
    assert_eq!((global.name.as_str(), global.burst, global.shadow), ("global", 200, false));
    assert_eq!(global.interval, Duration::from_millis(10));
    let agent = &snapshot.agents["worker"];
    assert!(agent.dry_run && agent.run.explicit && agent.tokens.is_empty());
    assert_eq!((agent.bulkhead, agent.run.cost), (Some(4), Some(2_500_000)));
    assert_eq!(
        agent.run.rate_limit.as_ref().map(|r| (r.name.as_str(), r.shadow)),
        Some(("run:task", true))
    );
    assert!(agent.constraints.contains_key("order_read"));
    let shop = snapshot.upstreams.get("shop").expect("named");
    assert_eq!((shop.base_path.as_ref(), shop.follow_same_origin), ("/v1", true));
    assert_eq!(shop.authority.to_str().expect("ASCII"), "shop.example");
    assert_eq!(shop.ca.as_deref(), Some(&b""[..]), "a bundle that is missing trusts nobody");
    assert!(shop.addresses.private && shop.timeout_header.is_some() && shop.auth.is_some());
    assert_eq!((shop.retry_budget.max_milli, shop.retry_budget.ratio_milli), (5000, 200));
    assert_eq!(shop.retry_budget.floor_milli_per_s, 500);
    let tool = &snapshot.tools["order_read"];
    assert_eq!(
        tool.rate_limit.as_ref().map(|r| (r.name.as_str(), r.per)),
        Some(("tool:order_read", Per::Agent))
    );
    assert_eq!((tool.weight, tool.cost, tool.result.max), (2, Some(20_000), 32 << 10));
    assert_eq!((tool.result.select.len(), tool.result.redact.len()), (2, 1));
    let write = snapshot.tools["order_cancel"].write.as_ref().expect("a write");
    assert!(write.global_scope && write.pooled && write.caller_key_required);
    assert_eq!(
        (write.not_executed_on.as_slice(), write.unknown_on.as_slice()),
        (&[503][..], &[429][..])
    );
}

/// What the calls of a snapshot depend on, in an order of its own.
fn essence(snapshot: &Snapshot) -> String {
    let mut lines = vec![format!("{:?} {:?}", snapshot.limits, snapshot.egress)];
    lines.extend(snapshot.tools.values().map(|tool| format!("{} {:?}", tool.name, tool.section)));
    lines.extend(snapshot.upstreams.values().map(|u| format!("{} {:?}", u.name, u.section)));
    for agent in snapshot.agents.values() {
        let mut allowed: Vec<_> = agent.allowed.keys().collect();
        allowed.sort();
        lines.push(format!("{} {allowed:?} {:?} {:?}", agent.id, agent.run, agent.rate_limit));
    }
    lines.sort();
    lines.join("\n")
}

fn shuffled(value: &serde_json::Value, random: &mut fastrand::Rng) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> =
                map.iter().map(|(key, value)| (key.clone(), shuffled(value, random))).collect();
            random.shuffle(&mut entries);
            Value::Object(entries.into_iter().collect())
        }
        Value::Array(items) => items.iter().map(|item| shuffled(item, random)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

#[test]
fn the_order_of_keys_changes_nothing() {
    let text = std::fs::read(root().join("tests/it/fixtures/every_key.yaml")).expect("a fixture");
    let parsed = checkrein::policy::document::tree::parse(&text);
    let value = parsed.root.expect("YAML").to_json().expect("JSON");
    let first = essence(&snapshot(&value.to_string()));
    for seed in 0..24 {
        let other = shuffled(&value, &mut fastrand::Rng::with_seed(seed));
        assert_eq!(essence(&snapshot(&other.to_string())), first, "seed {seed}");
    }
    let wider = value.to_string().replace("\"weight\":2", "\"weight\":3");
    assert_ne!(essence(&snapshot(&wider)), first, "the essence sees a number");
}

#[test]
fn the_revision_is_of_the_policy_and_its_schemas_and_of_no_secret() {
    let folder = tempfile::tempdir().expect("a folder");
    let schema = folder.path().join("look.json");
    let secret = folder.path().join("token");
    let text = format!(
        "{HEAD}upstreams:\n  a: {{ base_url: \"https://a.example\", auth: {{ bearer: {{ file: {} }} }} }}\ntools:\n  look:\n    description: Looks.\n    effect: read\n    http: {{ method: GET, upstream: a, path: /x }}\n    schema: {{ file: look.json }}\nagents: {{ default: {{ allow: [look] }} }}\n",
        secret.display()
    );
    let load = |text: &str| {
        let options = LoadOptions::default();
        examine_text(text.as_bytes(), "policy.yaml", folder.path(), options)
    };
    let write = |path: &std::path::Path, text: &str| std::fs::write(path, text).expect("written");
    write(&schema, r#"{"type":"object","properties":{}}"#);
    assert!(load(&text).snapshot.is_none(), "the secret is missing");
    write(&secret, "one\n");
    let examined = load(&text);
    assert_eq!(examined.files, [schema.clone(), secret.clone()]);
    let first = examined.snapshot.expect("sound");
    assert_eq!(first.revision.0.len(), 12);
    let checkrein::policy::snapshot::Auth::Bearer(bearer) =
        first.upstreams["a"].auth.as_ref().expect("it has one")
    else {
        panic!("another kind")
    };
    assert_eq!(bearer.value.as_ref().map(|text| text.0.as_ref()), Some("one"));
    assert!(!format!("{first:?}").contains("\"one\""), "a secret never prints");

    write(&secret, "two\n");
    let rotated = load(&text).snapshot.expect("sound");
    assert_eq!(rotated.revision, first.revision);
    assert_eq!(essence(&rotated), essence(&first), "state survives a rotation");

    write(&schema, r#"{"type":"object","properties":{"q":{"type":"string","maxLength":3}}}"#);
    assert_ne!(load(&text).snapshot.expect("sound").revision, first.revision);
    let commented = format!("{text}# a comment\n");
    assert_ne!(load(&commented).snapshot.expect("sound").revision, first.revision);

    write(&secret, "\n");
    let empty = load(&text);
    assert!(empty.problems.iter().any(|p| p.code == "CR3010" && p.message.contains("is empty")));
    assert!(empty.snapshot.is_some(), "an empty secret is told at call time");
}

#[test]
fn a_broken_schema_beside_the_policy_leaves_out_its_tool_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = format!(
        "{HEAD}tools:\n  bad:\n    description: Looks.\n    effect: read\n    http: {{ method: GET, url: \"https://a.example/x\" }}\n    schema: {{ file: bad.json }}\n{}agents: {{ default: {{ allow: [\"*\"] }} }}\n",
        read("good", "")
    );
    for content in [None, Some("{"), Some(r#"{"type":"objekt"}"#), Some(r#"{"a":1,"a":2}"#)] {
        if let Some(content) = content {
            std::fs::write(folder.path().join("bad.json"), content).expect("written");
        }
        let examined =
            examine_text(text.as_bytes(), "p.yaml", folder.path(), LoadOptions::default());
        assert!(examined.problems.iter().any(|p| p.code == "CR1007"), "{content:?}");
        let snapshot = examined.snapshot.expect("the others go on");
        assert!(!snapshot.tools.contains_key("bad") && snapshot.tools.contains_key("good"));
        assert_eq!(snapshot.broken_tools.len(), 1);
        assert!(!snapshot.agents["default"].allowed.contains_key("bad"));
    }
    // A constraint that cannot be judged would widen the agent: it refuses the file.
    let narrowed =
        text.replace("allow: [\"*\"]", "allow: [\"*\"], constraints: { good: { file: bad.json } }");
    let examined =
        examine_text(narrowed.as_bytes(), "p.yaml", folder.path(), LoadOptions::default());
    assert!(examined.snapshot.is_none());
}

#[test]
fn bb_j16_a_schema_that_points_out_is_refused_and_nothing_is_fetched() {
    let canary = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    canary.set_nonblocking(true).expect("a setting");
    let port = canary.local_addr().expect("an address").port();
    let policy = |schema: &str| {
        format!(
            "{HEAD}tools:\n  look:\n    description: Looks.\n    effect: read\n    http: {{ method: GET, url: \"https://a.example/x\" }}\n    schema: {schema}\nagents: {{ default: {{ allow: [look] }} }}\n"
        )
    };
    for schema in [
        format!(r#"{{"$ref":"http://127.0.0.1:{port}/x"}}"#),
        r#"{"$ref":"file:///etc/hostname"}"#.to_owned(),
        format!(r#"{{"$schema":"http://127.0.0.1:{port}/s","type":"object"}}"#),
        format!(r##"{{"$id":"http://127.0.0.1:{port}/s","$ref":"other"}}"##),
    ] {
        let codes = super::errors(&policy(&schema));
        assert!(codes.iter().any(|code| code.starts_with("CR1007")), "{schema}: {codes:?}");
    }
    let local = r##"{"type":"object","properties":{"q":{"$ref":"#/$defs/q"}},"$defs":{"q":{"type":"string","maxLength":3}}}"##;
    assert_eq!(super::errors(&policy(local)), [""; 0]);
    assert!(canary.accept().is_err(), "nobody came");
}
