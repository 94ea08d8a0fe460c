//! Pages that are made from the program's own tables: stale ones fail, `UPDATE=1` rewrites them.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use checkrein::call::Dimension;
use checkrein::call::code::{
    DenyCode, FailCode, OUTCOME_UNKNOWN, OUTCOME_UNKNOWN_HINT, OUTCOME_UNKNOWN_HTTP,
};
use checkrein::call::turn::LoopState;

fn page(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name)
}

fn golden(name: &str, wanted: &str) {
    let path = page(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, wanted).expect("docs/ can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "docs/{name} is stale: UPDATE=1 cargo test --test it golden");
}

/// A heading, its words, the head of a table.
fn section(text: &mut String, title: &str, words: &str) {
    write!(
        text,
        "\n## {title}\n{words}\n\n| code | HTTP | executed | retry | hint |\n|---|---|---|---|---|\n"
    )
    .expect("a String takes everything");
}

fn row(text: &mut String, code: &str, http: u16, executed: &str, again: &str, hint: &str) {
    writeln!(text, "| `{code}` | {http} | {executed} | {again} | {hint} |")
        .expect("a String takes everything");
}

const HEAD: &str = "# Codes

Made from `src/call/code.rs` (`UPDATE=1 cargo test --test it golden`). The set is closed.

`HTTP` is the status at the tools API; in a batch every call has an answer of its own and the batch is 200, or 400
when it is refused whole. `executed` speaks of the operation, not of this message. `retry`: `never`, `after` a while,
only when `changed`, or after a `person` has acted.
";

const AFTER_REFUSED: &str = "
Of a write that was refused before the ledger was asked, `executed` and `retry` say what the ledger knows of its
operation ([api.md](api.md#the-answer-object)): the columns have what holds where it knows nothing.
A circuit that a person isolated is `retry: person`. `idempotency_conflict` is `executed: yes` where another agent's
finished operation stands in the way.
";

const AFTER_FAILED: &str = "
A write's `result_too_large` is `never`: asking for less would be a second write. A read whose result was lost on its
way is `after`.
";

fn codes() -> String {
    let mut text = String::from(HEAD);
    section(&mut text, "Refused", "The call sent nothing.");
    for code in DenyCode::ALL {
        let (executed, again) = (code.executed().as_str(), code.again().as_str());
        row(&mut text, code.as_str(), code.http(), executed, again, code.hint());
    }
    text.push_str(AFTER_REFUSED);
    let words = "The call ended, and it is known how. An answer's `executed` is what the failure itself showed; the \
                 column has the usual.";
    section(&mut text, "Failed", words);
    for code in FailCode::ALL {
        let (executed, again) = (code.executed().as_str(), code.again().as_str());
        row(&mut text, code.as_str(), code.http(), executed, again, code.hint());
    }
    text.push_str(AFTER_FAILED);
    let words =
        "A write that may have happened. Not a 5xx: client libraries repeat those by themselves.";
    section(&mut text, "Unknown", words);
    let (code, http) = (OUTCOME_UNKNOWN, OUTCOME_UNKNOWN_HTTP);
    row(&mut text, code, http, "unknown", "person", OUTCOME_UNKNOWN_HINT);
    text
}

#[test]
fn docs_codes_md_is_what_the_table_says() {
    golden("codes.md", &codes());
}

/// The values of the `enum:` list under the schema of this name, read as text: the file is ours, its layout too.
fn enumerated(openapi: &str, schema: &str) -> BTreeSet<String> {
    let (_, from) = openapi.split_once(&format!("\n    {schema}:\n")).expect(schema);
    let (_, from) = from.split_once("enum: [").expect(schema);
    let (values, _) = from.split_once(']').expect(schema);
    values.split(',').map(|value| value.trim().to_owned()).collect()
}

#[test]
fn docs_openapi_yaml_names_every_code_state_and_budget() {
    let openapi = std::fs::read_to_string(page("openapi.yaml")).expect("docs/openapi.yaml");
    let set = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
    let mut codes: Vec<&str> = DenyCode::ALL.iter().map(|code| code.as_str()).collect();
    codes.extend(FailCode::ALL.iter().map(|code| code.as_str()));
    codes.push(OUTCOME_UNKNOWN);
    assert_eq!(enumerated(&openapi, "Code"), set(codes));
    let states = LoopState::ALL.iter().map(|state| state.as_str()).collect();
    assert_eq!(enumerated(&openapi, "State"), set(states));
    let dimensions = Dimension::ALL.iter().map(|dimension| dimension.as_str()).collect();
    assert_eq!(enumerated(&openapi, "Dimension"), set(dimensions));
}

#[test]
fn docs_api_md_and_openapi_yaml_know_the_same_paths() {
    let read = |name| std::fs::read_to_string(page(name)).expect(name);
    let (openapi, api) = (read("openapi.yaml"), read("api.md"));
    let paths: Vec<&str> =
        openapi.lines().filter_map(|line| line.strip_prefix("  /")?.strip_suffix(':')).collect();
    assert_eq!(paths.len(), 9, "every path of the data listener");
    for path in paths {
        assert!(api.contains(&format!("/{path}")), "/{path} is not in docs/api.md");
    }
}
