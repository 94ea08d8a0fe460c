//! The policy language from outside: shipped policies, its own schema, what is refused and in which words.

mod every_key;
mod invalid;
mod shipped;
mod values;

use std::path::{Path, PathBuf};

use checkrein::policy::{Examined, LoadOptions, examine_text};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Examines a text as `policy.yaml` in an empty place, secrets absent.
fn examine(text: &str) -> Examined {
    examine_text(
        text.as_bytes(),
        "policy.yaml",
        Path::new("/nowhere"),
        LoadOptions { offline: true },
    )
}

/// `CR1002:3:1` of every error, in order.
fn errors(text: &str) -> Vec<String> {
    let examined = examine(text);
    let errors: Vec<String> = examined
        .problems
        .iter()
        .filter(|p| p.level == checkrein::policy::diagnostic::Level::Error)
        .map(|p| format!("{}:{}:{}", p.code, p.place.line, p.place.column))
        .collect();
    assert_eq!(errors.is_empty(), examined.snapshot.is_some(), "{errors:?}");
    errors
}

/// Compares with a golden file; `UPDATE=1` writes it.
fn golden(path: &Path, found: &str) {
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, found).expect("the golden file can be written");
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(kept == found, "{} differs; UPDATE=1 rewrites it:\n{found}", path.display());
}
