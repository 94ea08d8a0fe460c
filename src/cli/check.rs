//! `checkrein check FILE…`: what `run` would say of a policy, without running it. Touches no network.

use std::io;
use std::path::PathBuf;

use clap::ValueEnum;

use super::{Exit, complain, say};
use crate::policy::bind::Entry;
use crate::policy::diagnostic::{self, CODES, Level, Problem, Sources};
use crate::policy::snapshot::{Reach, SentAs, Snapshot};
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
    let mut servers = String::new();
    for path in &args.files {
        let examined = policy::examine(path, LoadOptions { offline: args.offline });
        if let Some(snapshot) = &examined.snapshot {
            servers.push_str(&unasked(snapshot));
        }
        problems.extend(examined.problems);
        sources.merge(examined.sources);
    }
    diagnostic::sort(&mut problems);
    match args.output {
        Form::Pretty => {
            say(&diagnostic::pretty(&problems, &sources));
            if !servers.is_empty() {
                say(servers.trim_end());
            }
            say(&summary(&problems, args.files.len()));
        }
        Form::Compact if problems.is_empty() => {}
        Form::Compact => say(&diagnostic::compact(&problems)),
        Form::Json => say(&diagnostic::to_json(&problems)),
    }
    let fails = diagnostic::worst(&problems).is_some_and(|worst| worst >= args.fail_level.into());
    if fails { Exit::Findings } else { Exit::Ok }
}

/// Servers of the policy, and what of their rules only they can tell: a check asks nobody.
fn unasked(snapshot: &Snapshot) -> String {
    let mut servers: Vec<_> = snapshot.mcp_servers.values().collect();
    servers.sort_by(|a, b| a.name.cmp(&b.name));
    let mut text = String::new();
    for server in servers {
        let exposed = || server.entries.iter().filter(|entry| entry.expose);
        let listed = |wanted: &dyn Fn(&Entry) -> bool| {
            let names = exposed().filter(|entry| wanted(entry)).map(|entry| entry.pattern.as_ref());
            names.collect::<Vec<_>>().join(", ")
        };
        let reach = match &server.reach {
            Reach::Http => {
                let scheme = if server.upstream.tls { "https" } else { "http" };
                let host = server.upstream.authority.to_str().unwrap_or_default();
                format!("{scheme}://{host}{}", server.upstream.base_path)
            }
            Reach::Child(child) => child.argv.first().cloned().unwrap_or_default(),
        };
        text.push_str(&format!("server {} ({reach}), not asked:\n", server.name));
        let named = |entry: &Entry| {
            let write = &entry.write;
            let key = write.idempotency.as_ref().map(|key| &key.sent_as);
            let argument = matches!(key, Some(SentAs::Argument(_)));
            entry.schema.is_none() && (argument || !write.fingerprint.is_empty())
        };
        for (what, names) in [
            ("whether it offers", listed(&|entry| entry.is_exact())),
            ("which of its tools fit", listed(&|entry| !entry.is_exact())),
            ("whether the arguments are there that `write` names of", listed(&named)),
        ] {
            if !names.is_empty() {
                text.push_str(&format!("  {what} {names}\n"));
            }
        }
    }
    text
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

    #[test]
    fn what_a_server_has_to_be_asked_for_is_told() {
        let text = include_bytes!("../../policies/mcp.yaml");
        let here = std::path::Path::new(".");
        let examined = policy::examine_text(text, "mcp.yaml", here, LoadOptions::default());
        let told = unasked(&examined.snapshot.expect("sound"));
        assert_eq!(
            told,
            "server notes (/usr/local/bin/notes-server), not asked:\n  \
             whether it offers read_note, write.note\n\
             server tickets (http://127.0.0.1:9091/mcp), not asked:\n  \
             whether it offers create_ticket\n  \
             which of its tools fit get_*, list_*\n  \
             whether the arguments are there that `write` names of create_ticket\n"
        );
    }
}
