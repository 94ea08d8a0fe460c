//! The policies that come with the product, and the schema that editors read.

use checkrein::policy::schema::Schema;
use checkrein::policy::{LoadOptions, document, examine, examine_text, json_schema};

use super::{golden, root};

const SHIPPED: [&str; 7] = ["cache", "default", "demo", "mcp", "minimal", "proxy", "quickstart"];

#[test]
fn shipped_policies_load_without_an_error_or_a_warning() {
    use checkrein::policy::diagnostic::Level;
    for name in SHIPPED {
        let path = root().join(format!("policies/{name}.yaml"));
        let text = std::fs::read(&path).expect("shipped");
        let file = path.display().to_string();
        let examined = examine_text(&text, &file, &root(), LoadOptions::default());
        let worse: Vec<_> = examined
            .problems
            .iter()
            .filter(|p| p.level > Level::Note)
            .map(ToString::to_string)
            .collect();
        assert_eq!(worse, [""; 0], "{name}");
        assert!(examined.snapshot.is_some());
        assert!(examined.files.is_empty(), "{name} needs nothing beside it");
    }
}

#[test]
fn the_default_policy_denies_everything() {
    let path = root().join("policies/default.yaml");
    let snapshot = examine(&path, LoadOptions::default()).snapshot.expect("sound");
    assert!(snapshot.tools.is_empty());
    assert!(snapshot.agents.values().all(|agent| agent.allowed.is_empty()));
}

#[test]
fn in_the_demo_nobody_may_delete_an_order() {
    let path = root().join("policies/demo.yaml");
    let snapshot = examine(&path, LoadOptions::default()).snapshot.expect("sound");
    assert!(snapshot.tools.contains_key("delete_order"));
    assert!(snapshot.agents.values().all(|agent| !agent.allowed.contains_key("delete_order")));
    let text = std::fs::read_to_string(path).expect("shipped");
    let urls = text.lines().filter(|line| line.contains("base_url") && line.contains(":9090"));
    assert_eq!(urls.count(), 1, "the demo replaces the one port");
}

#[test]
fn the_schema_of_the_language_is_current() {
    let path = root().join("policies/policy.schema.json");
    golden(&path, &format!("{:#}\n", json_schema::policy()));
}

#[test]
fn the_schema_of_the_language_takes_what_ships_and_refuses_unknown_keys() {
    let schema = Schema::compile(&json_schema::policy(), false).expect("a sound schema");
    for name in SHIPPED {
        let text = std::fs::read(root().join(format!("policies/{name}.yaml"))).expect("shipped");
        let parsed = document::tree::parse(&text);
        let value = parsed.root.expect("YAML").to_json().expect("JSON");
        let faults = schema.faults(&value);
        assert!(faults.is_empty(), "{name}: {faults:?}");
        let mut typo = value.clone();
        typo["agents"]["default"]["alow"] = serde_json::json!(["x"]);
        assert!(!schema.faults(&typo).is_empty(), "{name}");
    }
}
