//! Every lint has a smallest policy that gives it and nothing else: `fixtures/lints/CODE[.why].yaml`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use checkrein::policy::diagnostic::{self, CODES, Level, Problem};
use checkrein::policy::{Examined, LoadOptions, examine_text};

fn fixtures() -> BTreeMap<String, PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/fixtures/lints");
    fs::read_dir(directory)
        .expect("the fixtures")
        .map(|entry| entry.expect("an entry").path())
        .map(|path| (path.file_stem().expect("a name").to_string_lossy().into_owned(), path))
        .collect()
}

/// As the policy at `path` is examined, with what no build reaches yet.
fn examine(path: &Path, options: LoadOptions) -> Examined {
    let bytes = fs::read(path).expect("readable");
    let directory = path.parent().expect("a directory");
    examine_text(&bytes, &path.display().to_string(), directory, options)
}

fn found(text: &str) -> Vec<Problem> {
    examine_text(text.as_bytes(), "policy.yaml", Path::new("."), LoadOptions::default()).problems
}

#[test]
fn every_lint_s_smallest_policy_gives_exactly_that_finding() {
    let mut wrong = String::new();
    for (name, path) in fixtures() {
        let code = name.split('.').next().unwrap_or_default();
        let examined = examine(&path, LoadOptions::default());
        let codes: Vec<&str> = examined.problems.iter().map(|problem| problem.code).collect();
        if codes != [code] {
            wrong.push_str(&format!("{name}:\n{}\n", diagnostic::compact(&examined.problems)));
        }
        let is_error = diagnostic::worst(&examined.problems) == Some(Level::Error);
        assert_eq!(
            examined.snapshot.is_none(),
            is_error,
            "{name}: an error and nothing else refuses a policy"
        );
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_lint_has_a_smallest_policy() {
    let fixtures = fixtures();
    let without: Vec<&str> = CODES
        .iter()
        .map(|entry| entry.code)
        .filter(|code| matches!(code.as_bytes().get(2), Some(b'2'..=b'4')))
        .filter(|code| !fixtures.keys().any(|name| name.split('.').next() == Some(code)))
        .collect();
    assert!(without.is_empty(), "no fixture for {without:?}");
}

#[test]
fn every_lint_points_at_a_line_that_is_there() {
    for (name, path) in fixtures() {
        let lines = fs::read_to_string(&path).expect("readable").lines().count();
        for problem in examine(&path, LoadOptions::default()).problems {
            let line = problem.place.line as usize;
            assert!((3..=lines).contains(&line), "{name}: {problem}");
            assert!(
                !problem.file.is_empty() && !problem.message.ends_with('.'),
                "{name}: {problem}"
            );
        }
    }
}

#[test]
fn bb_a07_a_name_that_no_tool_has_and_a_tool_nobody_may_call_are_told() {
    let problems = found(
        "apiVersion: checkrein/v1\nkind: Policy\ntools:\n  look:\n    description: d\n    effect: read\n    \
         http: { method: GET, url: \"https://api.example/v1\" }\n    schema: { type: object }\nagents:\n  \
         default: { allow: [lok, \"shop_*\"] }\n",
    );
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "policy.yaml:4:3: note[CR2003]: no agent may call `look`",
            "policy.yaml:10:22: warning[CR2002]: the name `lok` in `agents.default.allow` matches no tool; did you mean `look`?",
            "policy.yaml:10:27: warning[CR2002]: the pattern `shop_*` in `agents.default.allow` matches no tool",
        ]
    );
}

#[test]
fn the_shipped_policies_have_no_error_and_no_warning() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies");
    for entry in fs::read_dir(directory).expect("the policies") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|ext| ext != "yaml") {
            continue;
        }
        let examined = examine(&path, LoadOptions { offline: true });
        let worst = diagnostic::worst(&examined.problems);
        assert!(
            worst.is_none_or(|level| level == Level::Note),
            "{}",
            diagnostic::compact(&examined.problems)
        );
    }
}

/// Whatever a hand does to a policy, the answer is findings: no line taken out, doubled or cut makes it panic.
#[test]
fn damaged_policies_are_judged_to_their_end() {
    for (name, path) in fixtures() {
        let text = fs::read_to_string(&path).expect("readable");
        let lines: Vec<&str> = text.lines().collect();
        for at in 0..lines.len() {
            let (before, after) = lines.split_at(at);
            let line = lines[at];
            let middle = line.char_indices().nth(line.chars().count() / 2).map_or(0, |(at, _)| at);
            for damaged in [&[][..], &[line, line], &[&line[..middle]]] {
                let damaged = [before, damaged, &after[1..]].concat().join("\n");
                let problems = found(&damaged);
                assert!(problems.len() < 100, "{name}: {} findings", problems.len());
            }
        }
    }
}
