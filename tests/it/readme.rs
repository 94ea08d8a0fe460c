//! README's promises name the tests that keep them, and those tests exist; its first screen holds the two commands.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path: PathBuf = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|end| end == "rs") {
            text.push_str(&fs::read_to_string(&path).expect("a source"));
        }
    }
}

/// Names in backticks that are sentences: six words and more are a test, fewer are a code or a series.
fn tests_named(table: &str) -> Vec<&str> {
    table
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| name.matches('_').count() >= 4 && !name.contains('{'))
        .collect()
}

#[test]
fn every_test_that_the_readme_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).expect("README.md");
    let mut code = String::new();
    for folder in ["src", "tests/it", "tests/real"] {
        sources(&root.join(folder), &mut code);
    }
    let named = tests_named(&readme);
    assert!(named.len() > 30, "the tables were not found");
    let missing: Vec<_> =
        named.iter().filter(|name| !code.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "README.md names tests that are gone: {missing:#?}");
}

#[test]
fn the_first_screen_holds_the_two_commands() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md"))
        .expect("README.md");
    let first: Vec<&str> = readme.lines().take(30).collect();
    for command in ["cargo run --release -- demo --once", "tests/run "] {
        assert!(first.iter().any(|line| line.starts_with(command)), "{command}");
    }
}
