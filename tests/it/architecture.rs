//! The house keeps its shape: imports go down only, crates stay at home, files stay readable.
//! The table is `architecture/table.rs`; the last tests plant faults and want each one found.

mod reader;
mod table;

use std::fs;
use std::path::{Path, PathBuf};

use reader::{blanked, line_of, named_after, places, used};
use table::{
    HOMES, LAYER_EXCEPTIONS, LAYERS_TOGETHER, MAX_LINES, MAY_IMPORT, NO_SERDE, ROOTS,
    SHARED_BY_LAYERS,
};

/// A file of `src/`: its path from there, with `/`, and its text.
struct Source {
    path: String,
    text: String,
}

impl Source {
    /// `call` for `call/mod.rs` and `call/names.rs`; `strict_json` for `strict_json.rs`.
    fn module(&self) -> &str {
        let first = self.path.split('/').next().unwrap_or(&self.path);
        first.strip_suffix(".rs").unwrap_or(first)
    }

    /// True where `super::` means the crate itself.
    fn stands_at_the_top(&self) -> bool {
        !self.path.contains('/') || self.path == format!("{}/mod.rs", self.module())
    }

    fn is_tests(&self) -> bool {
        self.path.ends_with("/tests.rs") || self.path.contains("/tests/")
    }

    fn lives_in(&self, home: &str) -> bool {
        self.path == home
            || self.path == format!("{home}.rs")
            || self.path.starts_with(&format!("{home}/"))
    }
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    walk(&root, &mut files);
    assert!(files.len() > 10, "the sources were not found under {}", root.display());
    files
        .into_iter()
        .map(|file| Source {
            path: file
                .strip_prefix(&root)
                .expect("found under it")
                .to_str()
                .expect("source names are ASCII")
                .replace('\\', "/"),
            text: fs::read_to_string(&file).expect("a source can be read"),
        })
        .collect()
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            walk(&path, files);
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
}

fn row(module: &str) -> Option<&'static [&'static str]> {
    MAY_IMPORT.iter().find(|(name, _)| *name == module).map(|(_, may)| *may)
}

fn is_known(module: &str) -> bool {
    row(module).is_some() || ROOTS.contains(&module)
}

/// Every fault of one file against the import table and the homes.
fn import_faults(source: &Source) -> Vec<String> {
    if source.is_tests() {
        return Vec::new(); // a test may stand anywhere
    }
    let module = source.module();
    let text = blanked(&source.text);
    let mut faults = Vec::new();
    let mut fault = |at: usize, what: String| {
        faults.push(format!("src/{}:{}: {what}", source.path, line_of(&text, at)))
    };
    if !is_known(module) {
        fault(0, format!("module `{module}` has no row in the table"));
    }
    let mut named = named_after(&text, "crate::");
    if source.stands_at_the_top() {
        named.extend(named_after(&text, "super::").into_iter().filter(|(_, word)| is_known(word)));
    }
    for (at, other) in named {
        let allowed = ROOTS.contains(&module)
            || other == module
            || row(module).is_some_and(|may| may.contains(&other));
        if !allowed {
            fault(at, format!("`{module}` may not import `{other}`"));
        }
    }
    for at in places(&text, "super::super") {
        fault(at, "`super::super` hides where an import goes; say `crate::`".to_owned());
    }
    home_faults(source, &text, &mut fault);
    faults
}

fn home_faults(source: &Source, text: &str, fault: &mut impl FnMut(usize, String)) {
    let uses = used(text);
    for (at, path) in &uses {
        if path.contains(" as ") && !path.contains("::") && !path.ends_with(" as _") {
            fault(*at, format!("`use {path}` renames a whole crate"));
        }
    }
    let stands = |word: &str| -> Vec<usize> {
        let mut at = places(text, word);
        at.extend(
            uses.iter().filter(|(_, path)| !places(path, word).is_empty()).map(|(at, _)| *at),
        );
        at.sort_unstable();
        at.dedup_by_key(|at| line_of(text, *at)); // a `use` is seen whole and opened up
        at
    };
    for (word, homes) in HOMES {
        if homes.iter().any(|home| source.lives_in(home)) {
            continue;
        }
        for at in stands(word) {
            fault(at, format!("`{word}` lives in {homes:?} only"));
        }
    }
    if NO_SERDE.contains(&source.module()) {
        for word in ["serde::", "Serialize", "Deserialize"] {
            for at in stands(word) {
                fault(at, format!("`{word}`: types of `{}` are never serialised", source.module()));
            }
        }
    }
}

/// Every sibling that a layer names and may not.
fn layer_faults(source: &Source, layers: &[&str]) -> Vec<String> {
    let Some(own) = source.path.strip_prefix("layers/") else { return Vec::new() };
    let own = own.split('/').next().unwrap_or(own);
    let own = own.strip_suffix(".rs").unwrap_or(own);
    if source.is_tests() || LAYERS_TOGETHER.contains(&own) {
        return Vec::new();
    }
    let text = blanked(&source.text);
    let mut named = named_after(&text, "crate::layers::");
    if source.path == format!("layers/{own}.rs") {
        named.extend(named_after(&text, "super::"));
    }
    named
        .into_iter()
        .filter(|(_, other)| {
            layers.contains(other) && *other != own && !SHARED_BY_LAYERS.contains(other)
        })
        .filter(|(_, other)| !LAYER_EXCEPTIONS.contains(&(own, other)))
        .map(|(at, other)| {
            format!(
                "src/{}:{}: layer `{own}` knows layer `{other}`",
                source.path,
                line_of(&text, at)
            )
        })
        .collect()
}

fn file_faults(source: &Source) -> Vec<String> {
    let lines = source.text.lines().count();
    if lines > MAX_LINES && !source.is_tests() {
        return vec![format!("src/{}: {lines} lines, {MAX_LINES} are the ceiling", source.path)];
    }
    Vec::new()
}

fn report(faults: &[String]) {
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn the_table_has_no_cycle() {
    let mut above: Vec<&str> = Vec::new();
    let mut faults = Vec::new();
    for (module, may) in MAY_IMPORT {
        for other in *may {
            if !above.contains(other) {
                faults.push(format!("row `{module}` names `{other}`, which is not above it"));
            }
        }
        assert!(!above.contains(module) && !ROOTS.contains(module), "two rows for `{module}`");
        above.push(module);
    }
    report(&faults);
}

#[test]
fn modules_import_only_downwards() {
    report(&sources().iter().flat_map(import_faults).collect::<Vec<_>>());
}

#[test]
fn files_stay_readable() {
    report(&sources().iter().flat_map(file_faults).collect::<Vec<_>>());
}

#[test]
fn layers_do_not_know_each_other() {
    let sources = sources();
    let layers: Vec<&str> = sources
        .iter()
        .filter_map(|source| source.path.strip_prefix("layers/"))
        .map(|path| path.split('/').next().unwrap_or(path))
        .map(|name| name.strip_suffix(".rs").unwrap_or(name))
        .collect();
    report(&sources.iter().flat_map(|source| layer_faults(source, &layers)).collect::<Vec<_>>());
}

// ── the reader itself, by planted faults ───────────────────────────────────────────────────────────────────────

fn planted(path: &str, text: &str) -> Vec<String> {
    import_faults(&Source { path: path.to_owned(), text: text.to_owned() })
}

fn found(path: &str, text: &str, fault: &str) {
    let faults = planted(path, text);
    assert_eq!(faults, [fault], "in {text:?}");
}

fn clean(path: &str, text: &str) {
    assert_eq!(planted(path, text), [""; 0], "in {text:?}");
}

#[test]
fn an_upward_import_is_found_also_in_a_grouped_use_over_several_lines() {
    found(
        "call/names.rs",
        "use crate::engine::Engine;",
        "src/call/names.rs:1: `call` may not import `engine`",
    );
    found(
        "policy/check.rs",
        "\nuse crate::{\n    call::{ToolName, Effect},\n    engine,\n};",
        "src/policy/check.rs:2: `policy` may not import `engine`",
    );
    found(
        "run/mod.rs",
        "fn f() { crate::app::start() }",
        "src/run/mod.rs:1: `run` may not import `app`",
    );
    found("health.rs", "use super::policy;", "src/health.rs:1: `health` may not import `policy`");
    clean("app.rs", "use crate::{cli, engine, server};");
    clean("policy/check.rs", "use crate::{call::{ToolName, Effect}, strict_json};");
}

#[test]
fn a_module_without_a_row_and_a_hidden_super_super_are_found() {
    found("extra/mod.rs", "", "src/extra/mod.rs:1: module `extra` has no row in the table");
    found(
        "call/a/b.rs",
        "use super::super::engine;",
        "src/call/a/b.rs:1: `super::super` hides where an import goes; say `crate::`",
    );
}

#[test]
fn a_crate_outside_its_home_is_found_however_it_is_written() {
    let homes = r#"`governor::` lives in ["layers/rate_limit"] only"#;
    found(
        "layers/bulkhead.rs",
        "use governor::Quota;",
        &format!("src/layers/bulkhead.rs:1: {homes}"),
    );
    clean("layers/rate_limit.rs", "use governor::Quota;");
    clean("layers/rate_limit/clock.rs", "use governor::Quota;");
    let faults = planted("layers/bulkhead.rs", "use tokio::{sync::Mutex, time::{sleep, Instant}};");
    assert!(faults.len() == 1 && faults[0].contains("`tokio::time::sleep` lives in"), "{faults:?}");
    let faults = planted("engine/mod.rs", "fn f() { tokio::spawn(async {}); }");
    assert!(faults.len() == 1 && faults[0].contains("`tokio::spawn` lives in"), "{faults:?}");
    found(
        "call/mod.rs",
        "use sha2 as digest;",
        "src/call/mod.rs:1: `use sha2 as digest` renames a whole crate",
    );
    let faults = planted("egress/client.rs", "use hyper_util::client::legacy::Client;");
    assert!(
        faults.len() == 1 && faults[0].contains("`client::legacy` lives in [] only"),
        "{faults:?}"
    );
}

#[test]
fn serde_in_the_vocabulary_is_found() {
    let faults = planted("call/names.rs", "#[derive(Debug, serde::Serialize)]\nstruct A;");
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults.iter().all(|fault| fault.starts_with("src/call/names.rs:1: ")), "{faults:?}");
    clean("frontends/render.rs", "#[derive(serde::Serialize)]\nstruct A;");
}

#[test]
fn comments_texts_and_tests_name_nothing_but_what_follows_them_does() {
    clean(
        "call/mod.rs",
        "// crate::engine\n/* crate::engine /* deep */ crate::engine */\n/// see crate::engine",
    );
    clean(
        "call/mod.rs",
        "const A: &str = \"crate::engine \\\" crate::run\"; const B: &str = r#\"crate::engine \" x\"#;",
    );
    clean("call/mod.rs", "#[cfg(test)]\nmod tests {\n use crate::engine; fn f() { if a { b } }\n}");
    clean("call/tests.rs", "use crate::engine;");
    found(
        "call/mod.rs",
        "const URL: &str = \"http://x\"; use crate::run;",
        "src/call/mod.rs:1: `call` may not import `run`",
    );
    found(
        "call/mod.rs",
        "mod tests { }\nfn f<'a>(c: &'a char) -> bool { *c == '\"' || *c == '\\'' }\nuse crate::run;",
        "src/call/mod.rs:3: `call` may not import `run`",
    );
}

#[test]
fn a_layer_that_knows_a_layer_is_found() {
    let layers = ["gate", "breaker", "bulkhead", "retry", "stack"];
    let faults = |path: &str, text: &str| {
        layer_faults(&Source { path: path.into(), text: text.into() }, &layers)
    };
    assert_eq!(
        faults("layers/bulkhead.rs", "use super::{gate::Gate, breaker};"),
        ["src/layers/bulkhead.rs:1: layer `bulkhead` knows layer `breaker`"]
    );
    assert_eq!(faults("layers/bulkhead.rs", "use crate::layers::retry::Retry;").len(), 1);
    assert_eq!(faults("layers/retry.rs", "use super::breaker;").len(), 0, "the peek");
    assert_eq!(faults("layers/stack.rs", "use super::{breaker, bulkhead};").len(), 0, "the page");
}

#[test]
fn a_file_over_the_ceiling_is_found() {
    let long = "\n".repeat(MAX_LINES + 1);
    let faults = |path: &str| file_faults(&Source { path: path.into(), text: long.clone() });
    assert_eq!(faults("call/mod.rs"), ["src/call/mod.rs: 501 lines, 500 are the ceiling"]);
    assert_eq!(faults("call/tests.rs").len(), 0);
}
