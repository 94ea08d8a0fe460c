use super::*;
use crate::call::{Dimension, ErrorClass};

fn labels(tools: &[(&str, bool)], agents: &[&str]) -> Labels {
    Labels {
        policy: "shop".into(),
        revision: "0123456789ab".into(),
        tools: tools
            .iter()
            .map(|(n, write)| ToolLabel { name: (*n).into(), write: *write })
            .collect(),
        agents: agents.iter().map(|name| (*name).into()).collect(),
        upstreams: vec!["shop".into()],
        agent_label: true,
    }
}

fn metrics() -> Arc<Metrics> {
    let metrics = Metrics::new();
    metrics.load(&labels(&[("check_order", false), ("send_notice", true)], &["default"]));
    metrics
}

fn series(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.rsplit_once(' ').map(|(series, _)| series))
        .filter(|series| !series.starts_with("process_"))
        .collect()
}

fn value(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

fn state(tool: &str, breaker: &'static str) -> ToolStateView {
    ToolStateView {
        tool: tool.into(),
        breaker,
        consecutive_failures: 2,
        failure_threshold: 3,
        last_transition: None,
        inflight: 1,
        tokens: vec![("tool", 4)],
        cooldown_until: None,
    }
}

#[derive(Debug)]
struct Scripted(RwLock<StateView>);
impl StateSource for Scripted {
    fn read(&self) -> StateView {
        self.0.read().expect("not poisoned").clone()
    }
}

#[test]
fn every_series_of_a_known_name_exists_at_zero_from_the_start() {
    let text = metrics().encode();
    for expected in [
        r#"checkrein_tool_calls_total{outcome="ok",tool="check_order"}"#,
        r#"checkrein_tool_calls_total{outcome="outcome_unknown",tool="send_notice"}"#,
        r#"checkrein_tool_calls_total{outcome="unknown_tool",tool="_unknown"}"#,
        r#"checkrein_agent_calls_total{agent="default",outcome="ok"}"#,
        r#"checkrein_attempts_total{error_class="http_5xx",tool="check_order"}"#,
        r#"checkrein_breaker_transitions_total{from="closed",to="open",tool="check_order"}"#,
        r#"checkrein_write_ends_total{end="unknown",tool="send_notice"}"#,
        r#"checkrein_reviews_open{store="local",tool="send_notice"}"#,
        r#"checkrein_batches_total{state="done"}"#,
        r#"checkrein_run_budget_exhausted_total{agent="default",budget="rounds"}"#,
        "checkrein_audit_dropped_total",
    ] {
        assert_eq!(value(&text, expected), Some(0.0), "{expected}");
    }
    assert_eq!(
        value(&text, r#"checkrein_write_ends_total{end="unknown",tool="check_order"}"#),
        None
    );
    let info = r#"checkrein_policy_info{policy="shop",revision="0123456789ab"}"#;
    assert_eq!(value(&text, info), Some(1.0));
}

#[test]
fn marks_land_on_their_series() {
    let metrics = metrics();
    let tool = metrics.tool("send_notice");
    tool.call("ok", Duration::from_millis(30));
    tool.attempt(ErrorClass::Http5xx);
    tool.phase("total", Duration::from_secs(1));
    tool.transition("open", "half_open");
    tool.ratelimit("tool", "rejected");
    tool.write_end("executed");
    tool.result_bytes(12);
    metrics.agent("default").budget_exhausted(Dimension::Rounds);
    metrics.batch_rejected("too_many");
    metrics.egress_blocked("link_local");
    metrics.overhead(Duration::from_micros(70));
    let text = metrics.encode();
    for (series, expected) in [
        (r#"checkrein_tool_calls_total{outcome="ok",tool="send_notice"}"#, 1.0),
        (r#"checkrein_tool_call_duration_seconds_bucket{tool="send_notice",le="0.05"}"#, 1.0),
        (r#"checkrein_tool_call_duration_seconds_bucket{tool="send_notice",le="0.02"}"#, 0.0),
        (r#"checkrein_attempts_total{error_class="http_5xx",tool="send_notice"}"#, 1.0),
        (r#"checkrein_attempt_phase_seconds_count{phase="total",tool="send_notice"}"#, 1.0),
        (
            r#"checkrein_breaker_transitions_total{from="open",to="half_open",tool="send_notice"}"#,
            1.0,
        ),
        (
            r#"checkrein_ratelimit_decisions_total{decision="rejected",scope="tool",tool="send_notice"}"#,
            1.0,
        ),
        (r#"checkrein_write_ends_total{end="executed",tool="send_notice"}"#, 1.0),
        (r#"checkrein_result_bytes_total{tool="send_notice"}"#, 12.0),
        (r#"checkrein_run_budget_exhausted_total{agent="default",budget="rounds"}"#, 1.0),
        (r#"checkrein_batches_rejected_total{reason="too_many"}"#, 1.0),
        (r#"checkrein_egress_blocked_total{reason="link_local"}"#, 1.0),
        (r#"checkrein_gateway_overhead_seconds_bucket{le="0.0001"}"#, 1.0),
        ("checkrein_metrics_series_dropped_total", 0.0),
    ] {
        assert_eq!(value(&text, series), Some(expected), "{series}");
    }
}

#[test]
fn bb_g01_ten_thousand_names_from_outside_add_no_series() {
    let metrics = metrics();
    let before = series(&metrics.encode()).len();
    for n in 0..10_000 {
        let tool = metrics.tool(&format!("tool_{n}"));
        tool.call("unknown_tool", Duration::from_millis(1));
        metrics.agent(&format!("agent_{n}")).call("unknown_tool");
    }
    let text = metrics.encode();
    assert_eq!(series(&text).len(), before);
    let unknown = r#"checkrein_tool_calls_total{outcome="unknown_tool",tool="_unknown"}"#;
    assert_eq!(value(&text, unknown), Some(10_000.0));
}

#[test]
fn bb_g03_a_removed_tool_takes_its_series_along_and_the_others_keep_their_counts() {
    let metrics = metrics();
    let source = Arc::new(Scripted(RwLock::new(StateView {
        tools: vec![state("check_order", "open"), state("send_notice", "closed")],
        reviews_open: vec![("send_notice".into(), 2)],
        ..StateView::default()
    })));
    metrics.set_state_source(source.clone());
    metrics.tool("check_order").call("ok", Duration::ZERO);
    metrics.tool("send_notice").call("ok", Duration::ZERO);
    assert!(
        metrics.encode().contains(r#"checkrein_breaker_state{state="open",tool="check_order"} 1"#)
    );
    let old = metrics.tool("check_order");

    metrics.load(&labels(&[("send_notice", true)], &["default"]));
    old.call("ok", Duration::ZERO); // a call that was under way when the tool went
    let text = metrics.encode();
    assert!(!text.contains(r#""check_order""#), "{text}");
    let kept = r#"checkrein_tool_calls_total{outcome="ok",tool="send_notice"}"#;
    assert_eq!(value(&text, kept), Some(1.0));

    metrics.load(&labels(&[], &["other"]));
    let text = metrics.encode();
    assert!(!text.contains(r#""send_notice""#) && !text.contains(r#"agent="default""#), "{text}");
    let orphans = r#"checkrein_reviews_open{store="local",tool="_unknown"}"#;
    assert_eq!(value(&text, orphans), Some(2.0));
}

#[test]
fn a_refused_reload_shows_until_a_good_one() {
    let metrics = metrics();
    let successful = "checkrein_policy_last_reload_successful";
    let at = "checkrein_policy_last_reload_success_timestamp_seconds";
    assert_eq!(value(&metrics.encode(), successful), Some(1.0));
    metrics.reload("rejected");
    let text = metrics.encode();
    assert_eq!(value(&text, successful), Some(0.0));
    assert!(value(&text, at) > Some(1.6e9), "the last success is not forgotten");
    metrics.reload("unchanged");
    assert_eq!(value(&metrics.encode(), successful), Some(1.0));
}

#[test]
fn bb_b12_exactly_one_breaker_state_is_true_at_every_scrape() {
    let metrics = metrics();
    let source = Arc::new(Scripted(RwLock::default()));
    metrics.set_state_source(source.clone());
    let walk = ["closed", "open", "half_open", "open", "half_open", "closed", "isolated", "shadow"];
    for now in walk {
        source.0.write().expect("not poisoned").tools = vec![state("check_order", now)];
        let text = metrics.encode();
        let mut sum = 0.0;
        for known in table::BREAKER_STATES {
            let series =
                format!(r#"checkrein_breaker_state{{state="{known}",tool="check_order"}}"#);
            let is = value(&text, &series).expect("every state is there");
            assert_eq!(is == 1.0, *known == now, "{series} while {now}");
            sum += is;
        }
        assert_eq!(sum, 1.0);
    }
}

#[test]
fn past_the_bound_of_series_names_share_overflow_and_the_scrape_stays_below_it() {
    let names: Vec<String> = (0..300).map(|n| format!("tool_{n}")).collect();
    let tools: Vec<(&str, bool)> = names.iter().map(|name| (name.as_str(), true)).collect();
    let max = 5_000;
    let metrics = Metrics::with_max_series(max);
    metrics.set_state_source(Arc::new(Scripted(RwLock::new(StateView {
        tools: names.iter().map(|name| state(name, "closed")).collect(),
        ..StateView::default()
    }))));
    metrics.load(&labels(&tools, &["default"]));
    for name in &names {
        metrics.tool(name).call("ok", Duration::ZERO);
    }
    let text = metrics.encode();
    assert!(series(&text).len() <= max, "{} series", series(&text).len());
    let first = value(&text, r#"checkrein_tool_calls_total{outcome="ok",tool="tool_0"}"#);
    assert_eq!(first, Some(1.0));
    let shared = value(&text, r#"checkrein_tool_calls_total{outcome="ok",tool="_overflow"}"#);
    assert!(shared > Some(200.0), "{shared:?}");
    assert!(value(&text, "checkrein_metrics_series_dropped_total") > Some(0.0));
    metrics.load(&labels(&[("tool_0", true)], &["default"]));
    assert!(!metrics.encode().contains(r#""_overflow""#));
}

#[test]
fn without_the_agent_label_every_agent_is_one() {
    let metrics = Metrics::new();
    metrics.load(&Labels { agent_label: false, ..labels(&[], &["a", "b"]) });
    metrics.agent("a").call("ok");
    metrics.agent("b").call("ok");
    let text = metrics.encode();
    assert_eq!(
        value(&text, r#"checkrein_agent_calls_total{agent="_all",outcome="ok"}"#),
        Some(2.0)
    );
    assert!(!text.contains(r#"agent="a""#));
}

#[test]
fn a_tool_that_becomes_a_write_gains_the_series_of_writes_and_a_read_loses_them() {
    let metrics = Metrics::new();
    metrics.load(&labels(&[("t", false)], &[]));
    metrics.load(&labels(&[("t", true)], &[]));
    metrics.tool("t").write_end("executed");
    let text = metrics.encode();
    assert_eq!(value(&text, r#"checkrein_write_ends_total{end="executed",tool="t"}"#), Some(1.0));
    metrics.load(&labels(&[("t", false)], &[]));
    assert!(!metrics.encode().contains(r#"checkrein_write_ends_total{end="executed",tool="t"}"#));
}

#[test]
fn process_figures_are_real() {
    let text = metrics().encode();
    assert!(value(&text, "process_resident_memory_bytes") > Some(1e6), "{text}");
    assert!(value(&text, "process_open_fds") >= Some(3.0));
    assert!(value(&text, "process_threads") >= Some(1.0));
    assert!(value(&text, "process_start_time_seconds") > Some(1.6e9));
    assert!(value(&text, "process_cpu_seconds_total").is_some());
}
