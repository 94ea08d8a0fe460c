//! `checkrein schema policy`: the JSON Schema of a policy, for editors and for other programs.

use clap::ValueEnum;

use super::{Exit, say};
use crate::policy::json_schema;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[arg(value_enum)]
    what: What,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum What {
    /// The policy file
    Policy,
}

pub(super) fn run(args: &Args) -> Exit {
    match args.what {
        What::Policy => say(&format!("{:#}", json_schema::policy())),
    }
    Exit::Ok
}
