//! README's promises name the tests that keep them, and those tests exist; its first screen holds the two commands.
//! The repository stands alone: every page that anything names, and everything ARCHITECTURE.md names, is in it.

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

/// Every file of ours with one of these endings.
fn ours(folder: &Path, ends: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            // Not in git: what was built and what was installed.
            if name != "target" && name != "npm" && !name.starts_with('.') {
                ours(&path, ends, found);
            }
        } else if ends.iter().any(|end| name.ends_with(end)) {
            found.push(path);
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

#[test]
fn every_page_that_anything_names_is_here() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = Vec::new();
    ours(root, &[".md"], &mut pages);
    let mut files = pages.clone();
    ours(root, &[".rs", ".toml", ".yaml"], &mut files);
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_-./*{}".contains(c);
    let mut missing = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let words = text.split(|c| !is_word(c)).map(|word| word.trim_start_matches(['.', '/']));
        let pages_named = words.filter(|word| {
            word.strip_suffix(".md")
                .is_some_and(|name| !name.is_empty() && !name.contains(['*', '{', '}']))
        });
        for named in pages_named {
            // A whole address on the network names its host first.
            let elsewhere = named.split('/').next().is_some_and(|host| host.contains('.'))
                && named.contains('/');
            if !elsewhere && !pages.iter().any(|page| page.ends_with(named)) {
                missing.push(format!("{}: {named}", file.display()));
            }
        }
    }
    assert!(missing.is_empty(), "pages that are named and not here: {missing:#?}");
}

#[test]
fn everything_that_architecture_md_names_is_in_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let mut code = String::new();
    sources(&root.join("src"), &mut code);
    let names = text.split('`').skip(1).step_by(2).filter(|name| name.contains("::"));
    let names: Vec<&str> = names.filter(|name| !name.contains([' ', '{'])).collect();
    assert!(names.len() > 20, "the names were not found");
    let is_there = |name: &str| {
        let kinds = ["fn ", "struct ", "enum ", "trait ", "type ", "mod ", "extern crate "];
        let begins =
            |at: usize| code[at..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let declared = kinds.iter().any(|kind| {
            let wanted = format!("{kind}{name}");
            code.match_indices(&wanted).any(|(at, _)| !begins(at + wanted.len()))
        });
        // A variant stands alone at the beginning of its line.
        declared
            || code.lines().any(|line| line.trim_start().trim_end_matches([',', ' ', '{']) == name)
            || code.lines().any(|line| line.trim_start().starts_with(&format!("{name}(")))
            || name == "time"
    };
    let missing: Vec<_> = names
        .iter()
        .filter(|name| !is_there(name.rsplit("::").next().unwrap_or_default()))
        .collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names what is gone: {missing:#?}");
}
