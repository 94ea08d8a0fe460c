use super::compile::template;
use super::document::{At, Http};
use super::glob::{allows, glob_matches};
use super::snapshot::Rest;
use super::*;
use crate::call::Effect;

#[test]
fn globs_match_whole_names_and_never_take_exponential_time() {
    for (pattern, name) in [
        ("*", ""),
        ("order_*", "order_"),
        ("order_*", "order_get"),
        ("?_*t", "a_bt"),
        ("a*b*c", "axxbyyc"),
    ] {
        assert!(glob_matches(pattern, name), "{pattern} {name}");
    }
    for (pattern, name) in
        [("order_*", "reorder_get"), ("order", "order_get"), ("?", ""), ("a*b", "ac"), ("", "a")]
    {
        assert!(!glob_matches(pattern, name), "{pattern} {name}");
    }
    assert!(!glob_matches(&"*a".repeat(32), &"a".repeat(31)));
}

#[test]
fn a_pattern_reaches_reads_only_and_a_name_reaches_both() {
    assert!(allows("*", "send", Effect::Read));
    assert!(!allows("*", "send", Effect::Write));
    assert!(!allows("sen?", "send", Effect::Write));
    assert!(allows("send", "send", Effect::Write));
}

fn http(text: &str) -> Http {
    let policy = format!(
        "apiVersion: checkrein/v1\nkind: Policy\nagents: {{ default: {{ allow: [] }} }}\ntools:\n  t: {{ description: d, schema: {{ type: object }}, http: {{ url: \"https://a.example/x\", {text} }} }}\n"
    );
    let document = parse(policy.as_bytes(), "p").expect("sound");
    let http = document.tools.get("t").and_then(|tool| tool.value.http.clone());
    let At { value, .. } = http.expect("there");
    value
}

#[test]
fn arguments_that_are_named_nowhere_go_where_the_method_says() {
    let rest = |text: &str| template(&http(text)).expect("a template").rest;
    for method in ["GET", "HEAD", "DELETE"] {
        assert_eq!(rest(&format!("method: {method}")), Rest::Query);
        assert_eq!(rest(&format!("method: {method}, query: none")), Rest::None);
        assert_eq!(rest(&format!("method: {method}, query: [a]")), Rest::None);
    }
    for method in ["POST", "PUT", "PATCH"] {
        assert_eq!(rest(&format!("method: {method}")), Rest::Body);
        assert_eq!(rest(&format!("method: {method}, query: [a]")), Rest::Body);
        assert_eq!(rest(&format!("method: {method}, query: rest")), Rest::Query);
        assert_eq!(rest(&format!("method: {method}, body: [a]")), Rest::None);
    }
}

#[test]
fn a_long_line_is_shown_around_the_caret() {
    let long = format!("apiVersion: checkrein/v1\nkind: Policy\nname: {}\n", "x".repeat(4000));
    let examined =
        examine_text(long.as_bytes(), "p.yaml", Path::new("/nowhere"), LoadOptions::default());
    let text = diagnostic::pretty(&examined.problems, &examined.sources);
    assert!(text.lines().all(|line| line.chars().count() < 400), "{text}");
}

/// `off` and `no` are booleans in YAML 1.1, and switches in many files: each key that takes words of its own says which
/// of them is meant.
#[test]
fn a_switch_of_another_language_is_told_which_word_is_meant() {
    let suggested = |place: &str| {
        let text = format!(
            "apiVersion: checkrein/v1\nkind: Policy\nagents: {{ default: {{ allow: [] }} }}\n{place}\n"
        );
        let examined = examine_text(text.as_bytes(), "p", Path::new("."), LoadOptions::default());
        let labels = examined.problems.iter().filter(|problem| problem.code == "CR1004");
        labels.filter_map(|problem| problem.label.clone()).collect::<Vec<_>>().join("; ")
    };
    let tool = |keys: &str| {
        format!(
            "tools: {{ t: {{ description: d, schema: {{ type: object }}, effect: read, http: {{ method: GET, url: \"https://a.example/x\" }}, {keys} }} }}"
        )
    };
    for off in ["off", "OFF", "no", "false", "none", "\"off\""] {
        let said = suggested(&tool(&format!("breaker: {{ mode: {off} }}")));
        assert_eq!(said, "did you mean `disabled`?", "{off}");
    }
    for (place, meant) in [
        (tool("breaker: { mode: on }"), "enforce"),
        (tool("breaker: { mode: yes }"), "enforce"),
        (tool("retry: { backoff: { mode: off } }"), "none"),
        (tool("rate_limit: { rate: 1/s, burst: 1, mode: on }"), "enforce"),
        (tool("volatile: off"), ""),
        ("mcp_servers: { s: { url: \"https://a.example/x\", pin: off, tools: {} } }".into(), "none"),
        ("mcp_servers: { s: { url: \"https://a.example/x\", tools: { t: { effect: read, tasks: off } } } }".into(), "ignore"),
        ("mcp_servers: { s: { url: \"https://a.example/x\", tools: { t: { effect: read, tasks: on } } } }".into(), "use"),
        ("mcp_servers: { s: { url: \"https://a.example/x\", pass: { logging: off }, tools: {} } }".into(), "false"),
        ("mcp_servers: { s: { url: \"https://a.example/x\", pass: { logging: yes }, tools: {} } }".into(), "true"),
        ("upstreams: { u: { base_url: \"https://a.example\", redirects: off } }".into(), "none"),
    ] {
        let said = suggested(&place);
        match meant {
            "" => assert!(!said.contains("did you mean"), "{place}: {said}"),
            meant => assert_eq!(said, format!("did you mean `{meant}`?"), "{place}"),
        }
    }
}
