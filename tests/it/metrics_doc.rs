//! docs/metrics.md is made from the program's own table, and what is exported is what the table says.

use std::path::Path;

use checkrein::telemetry::metrics::table::{TABLE, Values, document};
use checkrein::telemetry::metrics::{Labels, Metrics, ToolLabel};

#[test]
fn docs_metrics_md_is_what_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    let wanted = document();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &wanted).expect("docs/ can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "docs/metrics.md is stale: UPDATE=1 cargo test --test it metrics_doc");
}

#[test]
fn names_types_and_labels_follow_the_conventions_of_prometheus() {
    for series in TABLE {
        let own = series.name.starts_with("checkrein_") || series.name.starts_with("process_");
        assert!(own, "{}", series.name);
        for label in series.labels {
            assert!(!matches!(label.name, "run" | "call" | "call_id" | "le"), "{}", series.name);
            if let Values::Closed(values) = label.values {
                assert!(values().iter().all(|value| !value.is_empty()), "{}", series.name);
            }
        }
        let tools = series.labels.iter().any(|label| label.name == "tool");
        let agents = series.labels.iter().any(|label| label.name == "agent");
        assert!(
            !(tools && agents),
            "{}: the cross product is what kills a Prometheus",
            series.name
        );
    }
}

#[test]
fn only_series_of_the_table_are_exported() {
    let metrics = Metrics::new();
    metrics.load(&Labels {
        tools: vec![ToolLabel { name: "t".into(), write: true }],
        agents: vec!["default".into()],
        agent_label: true,
        ..Labels::default()
    });
    let text = metrics.encode();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = line.split(' ').next().unwrap_or_default();
        assert!(TABLE.iter().any(|series| series.name == name), "{name} is not in the table");
    }
}
