//! `checkrein breakers list|isolate|reset`: circuits, and the hand on them.

use clap::Subcommand;
use serde_json::json;

use super::table::table;
use super::{Target, change, piece, told};
use crate::cli::Exit;

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Every tool's circuit
    List,
    /// Refuse every call of a tool until it is reset
    Isolate {
        tool: String,
        /// Recorded
        #[arg(long)]
        why: String,
    },
    /// Close a tool's circuit, on trial: the next failure opens it again
    Reset {
        tool: String,
        /// Recorded
        #[arg(long)]
        why: String,
    },
}

pub(in crate::cli) fn run(args: &Args) -> Exit {
    let target = &args.target;
    let change_to = |tool: &str, what: &str, why: &str, done: &str| {
        told(
            target,
            |client| {
                let body = change(client, &[("why", Some(json!(why)))]);
                client.post(&format!("breakers/{}/{what}", piece(tool)?), None, &body)
            },
            |_| done.to_owned(),
        )
    };
    let columns = [
        "tool",
        "state",
        "consecutive_failures",
        "failure_threshold",
        "last_transition",
        "isolated",
    ];
    match &args.verb {
        Verb::List => told(
            target,
            |client| client.get("breakers"),
            |body| table(body, "breakers", &columns, "no tools"),
        ),
        Verb::Isolate { tool, why } => change_to(tool, "isolate", why, "isolated"),
        Verb::Reset { tool, why } => change_to(tool, "reset", why, "closed, on trial"),
    }
}
