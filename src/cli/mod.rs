//! The command line: one file a verb, one table of exit codes.
//!
//! Stdout carries answers only, stderr diagnostics. An unknown flag or word is a usage error, never ignored.

mod admin;
mod check;
mod child;
mod demo;
mod import;
mod mcp;
mod output;
mod probe;
mod run;
mod schema;
mod version;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub(crate) use output::{complain, say};

/// How a verb ended, for the shell. Frozen: scripts depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Ok,
    /// Findings, refused, not ready, cannot start.
    Findings,
    /// A flag or a word that is none, or an input that cannot be read.
    Usage,
    /// No gateway answers, or it knows no such id.
    Unreachable,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Ok => ExitCode::from(0),
            Exit::Findings => ExitCode::from(1),
            Exit::Usage => ExitCode::from(2),
            Exit::Unreachable => ExitCode::from(3),
        }
    }
}

/// A tool gateway for AI agents: checks, limits, carries out and records every tool call a model asks for.
#[derive(Debug, Parser)]
#[command(name = "checkrein", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the gateway until it is told to stop
    Run(run::Args),
    /// Speak MCP on standard streams: a bridge to a running gateway, or a gateway of its own
    Mcp(mcp::Args),
    /// Say everything that is wrong with a policy
    Check(check::Args),
    /// Write what a server offers as part of a policy, for a person to decide on
    Import(import::Args),
    /// Print the JSON Schema of the policy language
    Schema(schema::Args),
    /// Ask a running gateway whether it is live or ready
    Probe(probe::Args),
    /// Calls that wait for a person: list, show, approve, edit, reject them
    Approvals(admin::approvals::Args),
    /// Writes that may have happened: list, show, resolve them
    Reviews(admin::reviews::Args),
    /// Runs of agents: list, show, interrupt, resume them
    Runs(admin::runs::Args),
    /// Circuits of tools: list, isolate, reset them
    Breakers(admin::breakers::Args),
    /// Tools of MCP servers that have changed since they were trusted: list, show, approve them
    McpTools(admin::mcp_tools::Args),
    /// Show what the gateway does: some seconds, one process, no network
    Demo(demo::Args),
    /// Print the version
    Version,
    /// Stand between a gateway and a child process of its; started by the gateway alone
    #[command(name = "__child", hide = true)]
    Child(child::Args),
}

/// Reads the command line and does what it says.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let exit = match cli.verb {
        Verb::Run(args) => run::run(&args),
        Verb::Mcp(args) => mcp::run(&args),
        Verb::Check(args) => check::run(&args),
        Verb::Import(args) => import::run(&args),
        Verb::Schema(args) => schema::run(&args),
        Verb::Probe(args) => probe::run(&args),
        Verb::Approvals(args) => admin::approvals::run(&args),
        Verb::Reviews(args) => admin::reviews::run(&args),
        Verb::Runs(args) => admin::runs::run(&args),
        Verb::Breakers(args) => admin::breakers::run(&args),
        Verb::McpTools(args) => admin::mcp_tools::run(&args),
        Verb::Demo(args) => demo::run(&args),
        Verb::Version => version::run(),
        Verb::Child(args) => return child::run(&args),
    };
    exit.into()
}

/// `--help` and `--version` are answers; everything else the parser says is a complaint.
fn usage(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    if error.use_stderr() {
        complain(&text);
        return Exit::Usage.into();
    }
    say(&text);
    Exit::Ok.into()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn unknown_words_and_flags_are_usage_errors() {
        for words in [
            vec!["checkrein", "walk"],
            vec!["checkrein", "run", "-p", "p.yaml", "--polcy-poll", "1s"],
            vec!["checkrein", "run", "-p", "p.yaml", "--drain-timeout", "25"],
            vec!["checkrein", "run", "-p", "p.yaml", "--listen", "7411"],
            vec!["checkrein", "run", "-p", "p.yaml", "--workers", "0"],
            vec!["checkrein", "run", "-p", "p.yaml", "--audit", "syslog"],
            vec!["checkrein", "probe", "started"],
            vec!["checkrein", "import", "mcp"],
            vec!["checkrein", "import", "mcp", "http://x/", "--", "server"],
            vec!["checkrein", "import", "mcp", "http://x/", "--header", "X-Key"],
            vec!["checkrein", "import", "mcp", "http://x/", "--env", "HOME"],
            vec!["checkrein", "mcp"],
            vec!["checkrein", "mcp", "-p", "p.yaml", "--audit", "stdout"],
            vec!["checkrein", "mcp", "-p", "p.yaml", "--gateway", "127.0.0.1:7411"],
            vec!["checkrein", "reviews", "resolve", "op_1", "perhaps", "--evidence", "x"],
            vec!["checkrein", "reviews", "resolve", "op_1", "happened"],
            vec!["checkrein", "approvals", "reject", "apr_1"],
            vec!["checkrein", "approvals", "edit", "apr_1", "--comment", "x"],
            vec!["checkrein", "runs", "interrupt", "r"],
            vec!["checkrein", "breakers", "isolate", "t"],
            vec!["checkrein", "run", "-p", "p.yaml", "--admin-token-file", "x"],
        ] {
            let error = Cli::try_parse_from(&words).expect_err("refused");
            assert!(error.use_stderr(), "{words:?}");
            assert_eq!(usage(&error), ExitCode::from(2), "{words:?}");
        }
    }
}
