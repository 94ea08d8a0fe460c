//! Who a head proves, over every way of getting it wrong.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::*;
use crate::call::Named;
use crate::policy::snapshot::{
    Agent, Egress, FusePolicy, OnUnlisted, ProcessLimits, Proofs, Revision, Rule, RunPolicy,
    SecretText,
};

fn run_policy() -> Arc<RunPolicy> {
    Arc::new(RunPolicy {
        name: "default".into(),
        explicit: false,
        max_live: 1,
        wall_clock: Duration::from_secs(60),
        rounds: None,
        calls: None,
        calls_per_round: None,
        failures: None,
        argument_bytes: None,
        result_bytes: None,
        cost: None,
        idle: Duration::from_secs(60),
        stall_turns: 3,
        rate_limit: None,
        fuse: FusePolicy { same_failures: None, same_results: None },
    })
}

fn agent(name: &str, tokens: &[&str]) -> Agent {
    Agent {
        id: AgentId::new(name).expect("a name"),
        rule: Rule { path: "agents".into(), line: 1 },
        tokens: tokens.iter().map(|token| SecretText((*token).into())).collect(),
        allowed: Default::default(),
        denied: HashMap::new(),
        grants: Default::default(),
        run: run_policy(),
        choosable_runs: HashMap::new(),
        dry_run: false,
        constraints: Default::default(),
        rate_limit: None,
        bulkhead: None,
    }
}

fn snapshot(agents: Vec<Agent>) -> Snapshot {
    let agents: Named<_, _> = agents.into_iter().map(|a| (a.id.clone(), Arc::new(a))).collect();
    Snapshot {
        routes: Arc::default(),
        name: "test".into(),
        revision: Revision("0".into()),
        tools: Default::default(),
        proofs: Arc::new(Proofs::of(agents.values())),
        agents,
        upstreams: HashMap::new(),
        limits: ProcessLimits {
            rate_limit: None,
            bulkhead: 1,
            batch_calls: 32,
            batch_parallel: 8,
            request_bytes: 1 << 20,
            argument_bytes: 1 << 16,
            argument_depth: 32,
            response_bytes: 1 << 20,
        },
        on_unlisted: OnUnlisted::Silent,
        egress: Egress { allow_hosts: Vec::new(), min_tls13: false },
        agent_label: true,
        broken_tools: Vec::new(),
        mcp_servers: Default::default(),
        quarantined: Default::default(),
        remarks: Vec::new(),
    }
}

fn house() -> Snapshot {
    snapshot(vec![
        agent("default", &[]),
        agent("a", &["token-a", "old-a"]),
        agent("b", &["token-b"]),
    ])
}

fn head(fields: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(
            HeaderName::from_bytes(name.as_bytes()).expect("name"),
            HeaderValue::from_str(value).expect("value"),
        );
    }
    headers
}

fn who(peer: Peer, fields: &[(&str, &str)]) -> Option<String> {
    identify(peer, &head(fields), &house()).ok().map(|id| id.to_string())
}

#[test]
fn each_token_proves_its_agent() {
    for (token, name) in [("token-a", "a"), ("old-a", "a"), ("token-b", "b")] {
        for scheme in ["Bearer", "bearer", "BEARER"] {
            let field = format!("{scheme} {token}");
            let shown = who(Peer::Remote, &[("authorization", &field)]);
            assert_eq!(shown.as_deref(), Some(name), "{field}");
        }
    }
}

#[test]
fn no_credential_is_the_default_agent_on_this_machine_only() {
    assert_eq!(who(Peer::Loopback, &[]).as_deref(), Some("default"));
    assert_eq!(who(Peer::Unix { uid: Some(7) }, &[]).as_deref(), Some("default"));
    assert_eq!(who(Peer::Remote, &[]), None);
    let without = snapshot(vec![agent("a", &["token-a"])]);
    assert!(identify(Peer::Loopback, &HeaderMap::new(), &without).is_err());
}

#[test]
fn a_bad_credential_is_never_the_default_agent() {
    for field in [
        "",
        "Bearer",
        "Bearer ",
        "Bearer token-",
        "Bearer token-a token-b",
        "Bearer token-a, Bearer token-b",
        "Bearer token-aa",
        "Bearertoken-a",
        "Basic dG9rZW4tYQ==",
        "token-a",
        "Bearer\ttoken-a",
    ] {
        assert_eq!(who(Peer::Loopback, &[("authorization", field)]), None, "{field:?}");
    }
    let twice = [("authorization", "Bearer token-a"), ("authorization", "Bearer token-a")];
    assert_eq!(who(Peer::Loopback, &twice), None);
}

#[test]
fn a_token_of_two_agents_proves_neither() {
    let shared = snapshot(vec![agent("a", &["same"]), agent("b", &["same"])]);
    let denied = identify(Peer::Loopback, &head(&[("authorization", "Bearer same")]), &shared)
        .expect_err("two");
    assert_eq!(denied.code, DenyCode::Unauthenticated);
    // The same token twice under one agent is one proof.
    let doubled = snapshot(vec![agent("a", &["same", "same"])]);
    assert!(identify(Peer::Remote, &head(&[("authorization", "Bearer same")]), &doubled).is_ok());
}

#[test]
fn bb_a06_free_headers_are_no_identity() {
    let claims = [
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-user", "a"),
        ("forwarded", "for=127.0.0.1"),
        ("x-agent-id", "a"),
        ("checkrein-agent", "a"),
        ("proxy-authorization", "Bearer token-a"),
    ];
    assert_eq!(who(Peer::Remote, &claims), None);
    let mut as_b = claims.to_vec();
    as_b.push(("authorization", "Bearer token-b"));
    assert_eq!(who(Peer::Remote, &as_b).as_deref(), Some("b"));
}

#[test]
fn one_of_a_thousand_agents_is_found_by_its_token_and_a_stranger_is_nobody() {
    let crowd = (0..1000).map(|n| agent(&format!("a{n}"), &[&format!("token-{n:04}")])).collect();
    let crowd = snapshot(crowd);
    let asked = |token: &str| {
        let mut headers = HeaderMap::new();
        let value = HeaderValue::from_str(&format!("Bearer {token}")).expect("a value");
        headers.insert(AUTHORIZATION, value);
        identify(Peer::Loopback, &headers, &crowd).map(|agent| agent.to_string()).ok()
    };
    for n in [0, 1, 500, 999] {
        assert_eq!(asked(&format!("token-{n:04}")), Some(format!("a{n}")));
    }
    for stranger in ["token-1000", "token-000", "token-00000", "TOKEN-0000"] {
        assert_eq!(asked(stranger), None, "{stranger}");
    }
}
