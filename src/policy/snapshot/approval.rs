//! When a person is asked before a call is sent, compiled.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::policy::predicate::Predicate;

/// `approval` of one tool.
#[derive(Debug, Clone)]
pub struct ApprovalPolicy {
    pub when: When,
    /// Names of credentials that may decide; empty = every person.
    pub approvers: Vec<Arc<str>>,
    pub decisions: Vec<Allowed>,
    /// How long a question stands, and then its answer.
    pub expires: Duration,
}

#[derive(Debug, Clone)]
pub enum When {
    Always,
    /// Holds, or cannot be told.
    If(Predicate),
}

/// What a person may say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Allowed {
    Approve,
    Edit,
    Reject,
}

impl Allowed {
    pub fn as_str(self) -> &'static str {
        match self {
            Allowed::Approve => "approve",
            Allowed::Edit => "edit",
            Allowed::Reject => "reject",
        }
    }
}

impl ApprovalPolicy {
    /// The part of the rule by which a call with these arguments needs a yes. `identical`: the same write was done before.
    pub fn asks(&self, arguments: &Value, identical: bool) -> Option<&'static str> {
        match &self.when {
            When::Always => Some("approval.when: always"),
            When::If(predicate) if predicate.may_hold(arguments) => Some("approval.when"),
            When::If(_) => identical.then_some("write.identical: approve"),
        }
    }

    /// Whether whoever has this credential may decide.
    pub fn lets_decide(&self, credential: &str) -> bool {
        self.approvers.is_empty() || self.approvers.iter().any(|name| **name == *credential)
    }
}
