//! docs/operations.md names every flag of `run`, and no other.

use std::path::Path;
use std::process::Command;

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations.md");
    std::fs::read_to_string(path).expect("the page is there")
}

/// Every `--flag` at the start of a line of the help.
fn flags(help: &str) -> Vec<&str> {
    help.lines()
        .filter_map(|line| line.trim_start().strip_prefix("-p, ").or(Some(line.trim_start())))
        .filter(|line| line.starts_with("--"))
        .filter_map(|line| line.split([' ', '=']).next())
        .collect()
}

#[test]
fn every_flag_of_run_stands_on_the_page_and_every_flag_of_the_page_exists() {
    let output = Command::new(env!("CARGO_BIN_EXE_checkrein"))
        .args(["run", "--help"])
        .output()
        .expect("the program starts");
    let help = String::from_utf8(output.stdout).expect("text");
    let page = page();
    let known = flags(&help);
    assert!(known.len() >= 12, "{known:?}");
    for flag in &known {
        assert!(page.contains(&format!("| `{flag}")), "{flag} is not in the table of settings");
        let variable = flag.trim_start_matches('-').replace('-', "_").to_uppercase();
        assert!(help.contains(&format!("[env: CHECKREIN_{variable}=")), "{flag} has no variable");
    }
    for row in page.lines().filter_map(|line| line.strip_prefix("| `--")) {
        let flag = row.split([' ', '`']).next().unwrap_or_default();
        assert!(known.contains(&format!("--{flag}").as_str()), "--{flag} does not exist");
    }
}
