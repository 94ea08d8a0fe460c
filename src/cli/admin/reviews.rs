//! `checkrein reviews list|show|resolve`: writes that may have happened.

use clap::{Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::client::{Answer, Client};
use super::table::{members, table};
use super::{Failure, Page, Target, change, piece, query, told};
use crate::cli::Exit;
use crate::strict_json::{self, Limits};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Writes that may have happened, newest first
    List {
        #[arg(long, value_enum, default_value = "open")]
        state: State,
        /// Of this tool only
        #[arg(long)]
        tool: Option<String>,
        /// Of this agent only
        #[arg(long)]
        agent: Option<String>,
        #[command(flatten)]
        page: Page,
    },
    /// One of them, with what was asked of the tool
    Show {
        /// As the agent was told it: op_…
        operation: String,
    },
    /// Say what became of it, once you have looked at the tool
    Resolve {
        operation: String,
        #[arg(value_enum)]
        resolution: Resolution,
        /// What you looked at, and what it showed; recorded
        #[arg(long)]
        evidence: String,
        /// What the tool answered, as JSON; the operation is answered by it from now on
        #[arg(long, value_name = "JSON")]
        result: Option<String>,
        #[arg(long)]
        comment: Option<String>,
        /// The version you decided on, as `show` prints it [default: the present one]
        #[arg(long, value_name = "VERSION")]
        version: Option<String>,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum State {
    Open,
    Settled,
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Resolution {
    /// It was done: never sent again
    Happened,
    /// It was not done: the agent may ask for it again
    #[value(name = "did_not_happen", alias = "did-not-happen")]
    DidNotHappen,
    /// It was done and undone since: asked for again it is a new one
    Compensated,
}

impl Resolution {
    fn as_str(self) -> &'static str {
        match self {
            Resolution::Happened => "happened",
            Resolution::DidNotHappen => "did_not_happen",
            Resolution::Compensated => "compensated",
        }
    }
}

pub(in crate::cli) fn run(args: &Args) -> Exit {
    let target = &args.target;
    match &args.verb {
        Verb::List { state, tool, agent, page } => {
            let limit = page.limit.map(|limit| limit.to_string());
            let state = match state {
                State::Open => "open",
                State::Settled => "settled",
                State::All => "all",
            };
            let pairs = [
                ("state", Some(state)),
                ("tool", tool.as_deref()),
                ("agent", agent.as_deref()),
                ("limit", limit.as_deref()),
                ("cursor", page.cursor.as_deref()),
            ];
            let columns = ["operation", "state", "tool", "agent", "run", "since", "why"];
            told(
                target,
                |client| client.get(&format!("reviews{}", query(&pairs)?)),
                |body| table(body, "reviews", &columns, "no reviews"),
            )
        }
        Verb::Show { operation } => {
            told(target, |client| client.get(&format!("reviews/{}", piece(operation)?)), members)
        }
        Verb::Resolve { operation, resolution, evidence, result, comment, version } => {
            let said = |client: &Client| -> Result<Value, Failure> {
                Ok(change(
                    client,
                    &[
                        ("resolution", Some(json!(resolution.as_str()))),
                        ("evidence", Some(json!(evidence))),
                        ("result", result.as_deref().map(parsed).transpose()?),
                        ("comment", comment.as_ref().map(|comment| json!(comment))),
                    ],
                ))
            };
            let ask = |client: &Client| {
                let (path, body) = (format!("reviews/{}", piece(operation)?), said(client)?);
                resolved(client, &path, version.as_deref(), &body)
            };
            told(target, ask, |body| {
                format!("settled; asked for again it is {}", super::word(body, "next"))
            })
        }
    }
}

/// Without a version the present one is decided on: read first, so that of two who decide at once one is refused.
fn resolved(
    client: &Client,
    path: &str,
    version: Option<&str>,
    body: &Value,
) -> Result<Answer, Failure> {
    let version = match version {
        Some(version) => format!("\"{}\"", piece(version)?),
        None => {
            let now = client.get(path)?;
            match now.etag {
                Some(etag) if now.status == 200 => etag,
                Some(_) | None => return Ok(now),
            }
        }
    };
    client.post(&format!("{path}/resolve"), Some(&version), body)
}

fn parsed(text: &str) -> Result<Value, Failure> {
    strict_json::parse(text.as_bytes(), Limits::answer(text.len()))
        .map_err(|fault| Failure::Usage(format!("--result is not JSON: {fault}")))
}
