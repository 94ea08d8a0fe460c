//! What `deploy/` names exists in the program: series, labels and their values, codes, flags, ports, probes, pages.

mod promql;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use checkrein::call::code::outcome_labels;
use checkrein::policy::{self, LoadOptions};
use checkrein::telemetry::metrics::table::{Kind, Series, TABLE, Values};
use promql::{grouped, named};
use serde::Deserialize;
use serde_json::Value;

/// Labels that the scrape adds, not the program.
const OF_THE_SCRAPE: &[&str] = &["namespace", "pod", "job", "instance", "le"];

/// Outcomes that are the product working: neither a tool's failure nor its answer. A new code must be placed here or
/// in the lists of rules.yaml.
const REFUSALS: &[&str] = &[
    // A question of the tool: no result yet, and neither good nor bad.
    "input_required",
    "abandoned",
    "unauthenticated",
    "run_unknown",
    "invalid_request",
    "missing_call_id",
    "duplicate_call_id",
    "call_id_reused",
    "unsupported_call",
    "unknown_tool",
    "tool_not_allowed",
    "tool_quarantined",
    "invalid_arguments",
    "arguments_too_large",
    "budget_exhausted",
    "run_interrupted",
    "repeat_blocked",
    "deadline_exceeded",
    "approval_required",
    "approval_edited",
    "approval_rejected",
    "approval_expired",
    "hook_denied",
    "dry_run",
    "rate_limited",
    "concurrency_limited",
    "idempotency_conflict",
    "in_progress",
    "review_required",
    "skipped_pending_review",
    "skipped_in_progress",
    "ledger_unavailable",
    "draining",
    "egress_blocked",
    "credential_unavailable",
];
/// Faults of the gateway: its own objective.
const OWN_FAULTS: &[&str] = &["internal"];

fn path(relative: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(relative)
}

fn text(relative: &str) -> String {
    fs::read_to_string(path(relative)).unwrap_or_else(|error| panic!("{relative}: {error}"))
}

#[derive(Deserialize)]
struct Rules {
    groups: Vec<Group>,
}
#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}
#[derive(Deserialize)]
struct Rule {
    record: Option<String>,
    alert: Option<String>,
    expr: String,
    labels: Option<Labels>,
    annotations: Option<Annotations>,
}
#[derive(Deserialize)]
struct Labels {
    severity: String,
}
#[derive(Deserialize)]
struct Annotations {
    summary: String,
    description: String,
    runbook_url: String,
}

fn rules() -> Vec<Rule> {
    let rules: Rules =
        serde_saphyr::from_str(&text("deploy/prometheus/rules.yaml")).expect("rules");
    rules.groups.into_iter().flat_map(|group| group.rules).collect()
}

#[expect(clippy::disallowed_methods, reason = "a file of this repository")]
fn dashboard() -> Value {
    serde_json::from_str(&text("deploy/grafana/checkrein.json")).expect("JSON")
}

/// Every `expr`, `query` and `definition` of the dashboard.
fn dashboard_expressions() -> Vec<String> {
    fn walk(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                for (key, value) in members {
                    let asks = matches!(key.as_str(), "expr" | "query" | "definition");
                    match value.as_str().filter(|_| asks) {
                        Some(text) => found.push(text.to_owned()),
                        None => walk(value, found),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| walk(item, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let mut found = Vec::new();
    walk(&dashboard(), &mut found);
    assert!(found.len() > 40, "the dashboard's expressions were not found");
    found
}

fn series(name: &str) -> Option<&'static Series> {
    let whole = |name: &str| TABLE.iter().copied().find(|series| series.name == name);
    whole(name).or_else(|| {
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end))?;
        whole(base).filter(|series| matches!(series.kind, Kind::Histogram(_)))
    })
}

/// Everything an expression names that the program does not have.
fn faults(expression: &str, records: &[String]) -> Vec<String> {
    let mut faults = Vec::new();
    for found in named(expression) {
        if found.name.contains(':') {
            if !records.contains(&found.name) {
                faults.push(format!("no rule records {}", found.name));
            }
            continue;
        }
        let Some(series) = series(&found.name) else {
            faults.push(format!("no series {}", found.name));
            continue;
        };
        for (label, values) in &found.labels {
            if OF_THE_SCRAPE.contains(&label.as_str()) {
                continue;
            }
            let Some(known) = series.labels.iter().find(|known| known.name == *label) else {
                faults.push(format!("{} has no label {label}", series.name));
                continue;
            };
            let Values::Closed(closed) = known.values else { continue };
            let strange = values
                .iter()
                .filter(|value| !value.starts_with('$') && !closed().contains(&value.as_str()));
            faults.extend(
                strange.map(|value| format!("{}{{{label}}} is never {value}", series.name)),
            );
        }
    }
    for label in grouped(expression) {
        let known =
            TABLE.iter().any(|series| series.labels.iter().any(|known| known.name == label));
        if !known && !OF_THE_SCRAPE.contains(&label.as_str()) {
            faults.push(format!("no series has a label {label}"));
        }
    }
    faults
}

#[test]
fn every_series_label_and_value_in_rules_and_dashboard_exists() {
    let records: Vec<String> = rules().into_iter().filter_map(|rule| rule.record).collect();
    let mut expressions: Vec<String> = rules().into_iter().map(|rule| rule.expr).collect();
    expressions.extend(dashboard_expressions());
    expressions.extend(text("deploy/prometheus/rules_test.yaml").lines().map(str::to_owned));
    let found: Vec<String> =
        expressions.iter().flat_map(|expression| faults(expression, &records)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));

    for (planted, fault) in [
        ("rate(checkrein_tool_call_total[5m])", "no series checkrein_tool_call_total"),
        ("checkrein_breaker_state{agent=\"a\"}", "checkrein_breaker_state has no label agent"),
        (
            "checkrein_breaker_state{state=\"half-open\"}",
            "checkrein_breaker_state{state} is never half-open",
        ),
        ("sum by (run) (checkrein_inflight_calls)", "no series has a label run"),
        ("tool:checkrein_x:rate5m", "no rule records tool:checkrein_x:rate5m"),
    ] {
        assert_eq!(faults(planted, &records), [fault], "a planted fault");
    }
}

#[test]
fn every_outcome_is_somebodys_in_the_objectives() {
    let outcomes = |record: &str| -> BTreeSet<String> {
        let rule =
            rules().into_iter().find(|rule| rule.record.as_deref() == Some(record)).expect(record);
        let named = named(&rule.expr);
        let label =
            named.iter().flat_map(|named| &named.labels).find(|(label, _)| label == "outcome");
        label.expect("outcomes").1.iter().cloned().collect()
    };
    let bad = outcomes("tool:checkrein_tool_failures:rate5m");
    let executed = outcomes("tool:checkrein_tool_executions:rate5m");
    assert!(bad.is_subset(&executed), "a failure is an execution: {:?}", bad.difference(&executed));
    for outcome in outcome_labels() {
        let of_tool = executed.contains(outcome);
        let places = [of_tool, REFUSALS.contains(&outcome), OWN_FAULTS.contains(&outcome)];
        assert_eq!(
            places.iter().filter(|here| **here).count(),
            1,
            "`{outcome}` must stand in exactly one list"
        );
    }
    // What the agent is told to leave alone, or may have happened, is never counted as well.
    for outcome in ["circuit_open", "outcome_unknown", "upstream_timeout", "result_lost"] {
        assert!(bad.contains(outcome), "{outcome}");
    }
}

#[test]
fn every_alert_has_its_page_and_every_page_its_alert() {
    let mut pages = BTreeSet::new();
    for rule in rules() {
        let Some(alert) = rule.alert else { continue };
        assert!(alert.starts_with("Checkrein"), "{alert}");
        let severity = rule.labels.expect("a severity").severity;
        assert!(
            ["critical", "warning", "info"].contains(&severity.as_str()),
            "{alert}: {severity}"
        );
        let says = rule.annotations.expect("annotations");
        assert!(
            says.summary.ends_with('.') && !says.summary.contains("{{"),
            "{alert}: one fixed sentence"
        );
        assert!(says.description.contains("{{ $labels."), "{alert}: says where");
        let page = text(&says.runbook_url);
        assert!(page.contains(&format!("`{alert}`")), "{} does not name {alert}", says.runbook_url);
        for part in ["## Look at", "## Do", "## It ends when"] {
            assert!(page.contains(part), "{} lacks `{part}`", says.runbook_url);
        }
        pages.insert(says.runbook_url);
    }
    let written: BTreeSet<String> = fs::read_dir(path("docs/runbooks"))
        .expect("pages")
        .map(|entry| {
            format!("docs/runbooks/{}", entry.expect("a page").file_name().to_string_lossy())
        })
        .collect();
    assert_eq!(pages, written);
}

#[test]
fn what_a_runbook_asks_prometheus_exists() {
    let records: Vec<String> = rules().into_iter().filter_map(|rule| rule.record).collect();
    for entry in fs::read_dir(path("docs/runbooks")).expect("pages") {
        let page = fs::read_to_string(entry.expect("a page").path()).expect("a text");
        let found = faults(&page, &records);
        assert!(found.is_empty(), "{found:?} in {page}");
    }
}

fn yaml(relative: &str) -> Value {
    serde_saphyr::from_str(&text(relative)).unwrap_or_else(|error| panic!("{relative}: {error}"))
}

fn words(list: &Value) -> Vec<String> {
    list.as_array()
        .expect("a list")
        .iter()
        .map(|word| word.as_str().expect("a word").to_owned())
        .collect()
}

const SIDECAR: &str = "deploy/kustomize/component/sidecar.yaml";

fn sidecar() -> Value {
    yaml(SIDECAR)["spec"]["template"]["spec"]["initContainers"][0].clone()
}

/// The value of `--name=value`.
fn flag(arguments: &[String], name: &str) -> String {
    let prefix = format!("--{name}=");
    let value = arguments.iter().find_map(|argument| argument.strip_prefix(&prefix));
    value.unwrap_or_else(|| panic!("no --{name} in {arguments:?}")).to_owned()
}

#[test]
fn ports_and_probes_of_the_sidecar_are_the_programs() {
    let container = sidecar();
    assert_eq!(container["restartPolicy"], "Always", "a native sidecar");
    let port = &container["ports"][0];
    let name = port["name"].as_str().expect("a name");
    assert!(name.len() <= 15, "Kubernetes refuses longer port names");
    let arguments = words(&container["args"]);
    assert_eq!(flag(&arguments, "health"), format!("0.0.0.0:{}", port["containerPort"]));
    for (probe, asked) in
        [("startupProbe", "/ready"), ("readinessProbe", "/ready"), ("livenessProbe", "/live")]
    {
        assert_eq!(container[probe]["httpGet"]["path"], asked, "{probe}");
        assert_eq!(container[probe]["httpGet"]["port"], name, "{probe}");
    }
    let agent = &yaml(SIDECAR)["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(agent["env"][0]["value"], format!("http://{}", flag(&arguments, "listen")));
    assert!(agent["volumeMounts"].is_null(), "the agent mounts nothing of the gateway's");
    let monitor = yaml("deploy/prometheus/podmonitor.yaml");
    assert_eq!(monitor["spec"]["podMetricsEndpoints"][0]["port"], name);
}

#[test]
fn the_sidecar_runs_with_nothing_it_does_not_need() {
    let container = sidecar();
    let security = &container["securityContext"];
    assert_eq!(security["runAsNonRoot"], true);
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(security["capabilities"]["drop"][0], "ALL");
    let pod = &yaml(SIDECAR)["spec"]["template"]["spec"];
    let agent = &pod["containers"][0]["securityContext"];
    assert_ne!(agent["runAsUser"], security["runAsUser"], "two users");
    assert_eq!(pod["automountServiceAccountToken"], false);
    let grace = pod["terminationGracePeriodSeconds"].as_u64().expect("seconds");
    let drain = flag(&words(&container["args"]), "drain-timeout");
    let drain: u64 = drain.strip_suffix('s').and_then(|drain| drain.parse().ok()).expect("seconds");
    assert!(grace >= drain + 5, "{grace} s of grace for {drain} s of drain");
    let tag = format!(":{}", env!("CARGO_PKG_VERSION"));
    assert!(
        container["image"].as_str().is_some_and(|image| image.ends_with(&tag)),
        "image tag = version"
    );
}

/// True where the binary knows every flag and can read every value; `--help` keeps it from starting.
fn accepts(arguments: &[String]) -> bool {
    let output =
        Command::new(env!("CARGO_BIN_EXE_checkrein")).args(arguments).arg("--help").output();
    output.expect("the binary runs").status.success()
}

#[test]
fn the_binary_accepts_every_flag_in_a_manifest_and_in_the_image() {
    let sidecar = words(&sidecar()["args"]);
    assert!(accepts(&sidecar), "{sidecar:?}");
    let file = text("Dockerfile");
    let line = file.lines().find_map(|line| line.strip_prefix("CMD ")).expect("a command");
    let image = words(&serde_saphyr::from_str(line).expect("a list"));
    assert!(accepts(&image), "{image:?}");
    let planted = |flag: &str| [sidecar.clone(), vec![flag.to_owned()]].concat();
    assert!(!accepts(&planted("--no-such-flag")), "a planted fault");
    assert!(!accepts(&planted("--drain-delay=soon")), "a planted fault");
}

#[test]
fn the_policy_of_every_example_and_of_the_image_is_sound() {
    let options = LoadOptions { offline: true }; // its secrets are mounted elsewhere
    for policy in ["deploy/examples/sidecar/policy.yaml", "policies/default.yaml"] {
        let loaded = policy::load(&path(policy), options)
            .unwrap_or_else(|problems| panic!("{policy}: {problems:?}"));
        // absent secrets; a tool that nobody may call, and a write nobody probes: the example's point
        let lawful = ["CR3010", "CR2003", "CR3012"];
        let told: Vec<_> = loaded.warnings.iter().map(|problem| problem.code).collect();
        assert!(told.iter().all(|code| lawful.contains(code)), "{policy}: {told:?}");
    }
}

#[test]
fn panels_have_numbers_of_their_own_and_do_not_overlap() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut seen = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in panels {
        assert!(seen.insert(panel["id"].as_u64()), "{}", panel["title"]);
        let place = |key: &str| panel["gridPos"][key].as_u64().expect("a place");
        assert!(place("x") + place("w") <= 24, "{}", panel["title"]);
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(taken.insert((x, y)), "{} overlaps", panel["title"]);
            }
        }
    }
    let rows: Vec<&str> = panels
        .iter()
        .filter(|panel| panel["type"] == "row")
        .filter_map(|row| row["title"].as_str())
        .collect();
    assert_eq!(rows[..2], ["Summary", "Circuit breakers"], "what an operator looks at first");
}
