//! What is left of an outcome without what it carries: for those who count, and for those who judge health. A question
//! of the tool is neither an answer nor a failure.

use super::outcome::{CallError, Outcome, Source};

/// A tool's question in place of its answer (`input_required`). It has left nothing in flight; the call goes on with
/// the answers, or not at all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Asks {
    /// By the policy it may have acted before it asked (`write.on_input_required: unknown`).
    pub after_acting: bool,
    /// Of the write that goes on with the answers; 0 of a read.
    pub occurrence: u32,
}

/// How a call ended, once the last byte is through.
pub type Ended = Result<Came, CallError>;

/// What came of a call that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Came {
    Answer,
    /// The tool wants input before it goes on.
    Question,
}

/// `outcome` without what it carries.
pub fn ended(outcome: &Outcome) -> Ended {
    match outcome {
        Ok(result) if result.notes.asks.is_some() => Ok(Came::Question),
        Ok(_) => Ok(Came::Answer),
        Err(error) => Err(error.clone()),
    }
}

/// Label of a call whose tool asked for input instead of answering.
pub const INPUT_REQUIRED: &str = "input_required";

/// Label of an outcome: `ok`, `replayed`, `stale`, `input_required`, or the code.
pub fn outcome_label(outcome: &Outcome) -> &'static str {
    match outcome {
        Ok(result) if result.notes.asks.is_some() => INPUT_REQUIRED,
        Ok(result) => match result.source {
            Source::Tool | Source::Cache => "ok",
            Source::Ledger => "replayed",
            Source::StaleCache => "stale",
        },
        Err(error) => error.code(),
    }
}
