//! `checkrein check FILE…`: what `run` would say of a policy, without running it. Touches no network.

use std::io;
use std::path::PathBuf;

use clap::ValueEnum;

use super::{Exit, complain, say};
use crate::policy::diagnostic::{self, CODES, Level, Problem, Sources};
use crate::policy::{self, LoadOptions};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Policies to check
    #[arg(required_unless_present = "explain", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The least level of a finding that makes the verb fail
    #[arg(long, value_enum, default_value = "error", value_name = "LEVEL")]
    fail_level: FailLevel,
    /// How findings are printed
    #[arg(short, long, value_enum, default_value = "pretty", value_name = "FORM")]
    output: Form,
    /// Secrets may be missing here
    #[arg(long)]
    offline: bool,
    /// Print what a code means and how to mend it
    #[arg(long, value_name = "CODE", conflicts_with = "files")]
    explain: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FailLevel {
    Note,
    Warning,
    Error,
}

impl From<FailLevel> for Level {
    fn from(level: FailLevel) -> Self {
        match level {
            FailLevel::Note => Level::Note,
            FailLevel::Warning => Level::Warning,
            FailLevel::Error => Level::Error,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    Pretty,
    Compact,
    Json,
}

pub(super) fn run(args: &Args) -> Exit {
    if let Some(code) = &args.explain {
        return explain(code);
    }
    if let Some((path, error)) = args.files.iter().find_map(|path| unreadable(path)) {
        complain(&format!("{}: {error}", path.display()));
        return Exit::Usage;
    }
    let mut problems: Vec<Problem> = Vec::new();
    let mut sources = Sources::default();
    for path in &args.files {
        let examined = policy::examine(path, LoadOptions { offline: args.offline });
        problems.extend(examined.problems);
        sources.merge(examined.sources);
    }
    diagnostic::sort(&mut problems);
    match args.output {
        Form::Pretty => {
            say(&diagnostic::pretty(&problems, &sources));
            say(&summary(&problems, args.files.len()));
        }
        Form::Compact if problems.is_empty() => {}
        Form::Compact => say(&diagnostic::compact(&problems)),
        Form::Json => say(&diagnostic::to_json(&problems)),
    }
    let fails = diagnostic::worst(&problems).is_some_and(|worst| worst >= args.fail_level.into());
    if fails { Exit::Findings } else { Exit::Ok }
}

fn unreadable(path: &PathBuf) -> Option<(&PathBuf, io::Error)> {
    let tried = std::fs::metadata(path).and_then(|meta| {
        // Asked before it is opened: opening a pipe would wait for its writer.
        if !meta.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        std::fs::File::open(path).map(drop)
    });
    tried.err().map(|error| (path, error))
}

/// `2 errors, 1 warning`, or that all is well.
fn summary(problems: &[Problem], files: usize) -> String {
    let counted = |level: Level| {
        let count = problems.iter().filter(|problem| problem.level == level).count();
        let plural = if count == 1 { "" } else { "s" };
        (count > 0).then(|| format!("{count} {}{plural}", level.as_str()))
    };
    let counts: Vec<String> =
        [Level::Error, Level::Warning, Level::Note].into_iter().filter_map(counted).collect();
    let files = if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
    if counts.is_empty() {
        format!("{files} checked, nothing found")
    } else {
        format!("{files} checked: {}", counts.join(", "))
    }
}

fn explain(code: &str) -> Exit {
    match diagnostic::find(code) {
        Some(entry) => {
            say(entry.page);
            Exit::Ok
        }
        None => {
            let first = CODES.first().map_or("", |entry| entry.code);
            let last = CODES.last().map_or("", |entry| entry.code);
            complain(&format!("`{code}` is no code: they go from {first} to {last}"));
            Exit::Usage
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(files: &[&str], offline: bool) -> Args {
        Args {
            files: files.iter().map(PathBuf::from).collect(),
            fail_level: FailLevel::Error,
            output: Form::Compact,
            offline,
            explain: None,
        }
    }

    #[test]
    fn a_sound_policy_is_ok_a_missing_one_is_a_usage_error_a_bad_one_is_a_finding() {
        let sound = concat!(env!("CARGO_MANIFEST_DIR"), "/policies/quickstart.yaml");
        assert_eq!(run(&args(&[sound], true)), Exit::Ok);
        assert_eq!(run(&args(&["/nowhere/policy.yaml"], true)), Exit::Usage);
        assert_eq!(run(&args(&[env!("CARGO_MANIFEST_DIR")], true)), Exit::Usage);
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/rustfmt.toml");
        assert_eq!(run(&args(&[sound, manifest], true)), Exit::Findings);
    }

    #[test]
    fn every_code_has_a_page_that_begins_with_its_name() {
        for entry in CODES {
            let title = format!("# {}: ", entry.code);
            assert!(entry.page.starts_with(&title), "{} has no page", entry.code);
            assert_eq!(explain(entry.code), Exit::Ok);
        }
        assert_eq!(explain("CR9999"), Exit::Usage);
    }
}
