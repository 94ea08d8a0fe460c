//! No case is forgotten: each is a test by its id, or stands in tests/cases.md with the reason.

use std::path::Path;

fn sources(folder: &Path, found: &mut String) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push_str(&std::fs::read_to_string(&path).expect("source text"));
        }
    }
}

#[test]
fn every_case_is_a_test_or_is_listed_with_its_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    sources(&root.join("src"), &mut text);
    sources(&root.join("tests"), &mut text);
    let listed = std::fs::read_to_string(root.join("tests/cases.md")).expect("the list");
    let (listed, _) = listed.split_once("## Kept in part").expect("the list has two parts");
    let cases = std::fs::read_to_string(root.join("tests/cases/cases.jsonl")).expect("the cases");
    let mut missing = Vec::new();
    for line in cases.lines() {
        let case: serde_json::Value = serde_json::from_str(line).expect("JSON lines");
        let id = case["id"].as_str().expect("an id");
        let name = format!("fn {}_", id.to_lowercase().replace('-', "_"));
        let row = format!("| {id} |");
        let reason = listed
            .lines()
            .find(|l| l.starts_with(&row))
            .is_some_and(|l| l.split('|').nth(3).is_some_and(|w| w.trim().len() > 8));
        if !text.contains(&name) && !reason {
            missing.push(id.to_owned());
        }
    }
    assert!(missing.is_empty(), "neither tested nor listed: {missing:?}");
}
