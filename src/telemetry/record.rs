//! One structured JSON line a call and an attempt. STUB of the contract.
use std::sync::Arc;
use std::time::Duration;

use crate::call::trace::{AttemptNote, Noted};
use crate::call::{Outcome, ToolCall};

/// Facts of a call that are not on the call itself.
#[derive(Debug)]
pub struct CallFacts<'a> {
    pub call: &'a ToolCall,
    pub effect: &'static str,
    pub revision: &'a str,
    /// `outcome_label`, or `abandoned`.
    pub outcome: &'static str,
    /// no, yes, unknown
    pub executed: &'static str,
    pub result: Option<&'a Outcome>,
    pub duration: Duration,
    pub noted: &'a Noted,
}

/// Writes lines through a bounded buffer on a thread of its own; full = dropped and counted.
#[derive(Debug)]
pub struct Recorder {}
impl Recorder {
    /// Keeps nothing (tests that do not look).
    pub fn none() -> Arc<Self> {
        Arc::new(Self {})
    }
    pub fn call(&self, _facts: &CallFacts<'_>) {}
    pub fn attempt(&self, _call: &ToolCall, _attempt: &AttemptNote) {}
}
