//! `checkrein runs list|show|interrupt|resume`: what agents are at, and the brake.

use clap::Subcommand;
use serde_json::json;

use super::table::{members, table};
use super::{Page, Target, change, piece, query, told};
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
    /// Live runs, newest first
    List {
        /// In this state only: continue, review_required, interrupted, …
        #[arg(long)]
        state: Option<String>,
        /// Of this agent only
        #[arg(long)]
        agent: Option<String>,
        #[command(flatten)]
        page: Page,
    },
    /// One run: budgets, failures, steps
    Show { run: String },
    /// Start nothing more of a run; what has started ends
    Interrupt {
        run: String,
        /// Recorded
        #[arg(long)]
        why: String,
    },
    /// Let it go on, with the budgets it had
    Resume {
        run: String,
        /// Recorded
        #[arg(long)]
        why: String,
    },
}

pub(in crate::cli) fn run(args: &Args) -> Exit {
    let target = &args.target;
    let change_to = |run: &str, what: &str, why: &str, done: &str| {
        told(
            target,
            |client| {
                let body = change(client, &[("why", Some(json!(why)))]);
                client.post(&format!("runs/{}/{what}", piece(run)?), None, &body)
            },
            |_| done.to_owned(),
        )
    };
    match &args.verb {
        Verb::List { state, agent, page } => {
            let limit = page.limit.map(|limit| limit.to_string());
            let pairs = [
                ("state", state.as_deref()),
                ("agent", agent.as_deref()),
                ("limit", limit.as_deref()),
                ("cursor", page.cursor.as_deref()),
            ];
            let columns = ["run", "state", "agent", "opened", "rounds", "goal"];
            told(
                target,
                |client| client.get(&format!("runs{}", query(&pairs)?)),
                |body| table(body, "runs", &columns, "no live runs"),
            )
        }
        Verb::Show { run } => {
            told(target, |client| client.get(&format!("runs/{}", piece(run)?)), members)
        }
        Verb::Interrupt { run, why } => change_to(run, "interrupt", why, "interrupted"),
        Verb::Resume { run, why } => change_to(run, "resume", why, "resumed"),
    }
}
