//! Failures folded into one short line a model can act on: `tried: A timed out (2×), B wrong arguments`.

use std::borrow::Cow;

use crate::call::code::{DenyCode, FailCode};
use crate::call::{CallError, ToolName};

/// Failures a run needs before it is told of them together.
pub(crate) const PILED_UP: u64 = 3;
/// Different (tool, failure) pairs kept apart; what comes later is only counted.
pub(crate) const MAX_KINDS: usize = 32;
/// Pairs named in the line, the most frequent first.
const MAX_NAMED: usize = 8;

#[derive(Debug)]
struct Kind {
    tool: ToolName,
    code: &'static str,
    words: Cow<'static, str>,
    count: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Failures {
    kinds: Vec<Kind>,
    others: u64,
    total: u64,
}

impl Failures {
    pub(crate) fn push(&mut self, tool: &ToolName, error: &CallError) {
        self.total += 1;
        let words = words(error);
        let known = self.kinds.iter_mut().find(|kind| kind.tool == *tool && kind.words == words);
        if let Some(kind) = known {
            kind.count += 1;
        } else if self.kinds.len() < MAX_KINDS {
            self.kinds.push(Kind { tool: tool.clone(), code: error.code(), words, count: 1 });
        } else {
            self.others += 1;
        }
    }

    /// `None` until failures pile up.
    pub(crate) fn line(&self) -> Option<String> {
        if self.total < PILED_UP {
            return None;
        }
        let mut kinds: Vec<&Kind> = self.kinds.iter().collect();
        // Stable: equally frequent ones stay in the order they first came.
        kinds.sort_by_key(|kind| std::cmp::Reverse(kind.count));
        let mut parts: Vec<String> = Vec::new();
        for kind in kinds.iter().take(MAX_NAMED) {
            let mut part = format!("{} {}", kind.tool, kind.words);
            if kind.count > 1 {
                part.push_str(&format!(" ({}×)", kind.count));
            }
            parts.push(part);
        }
        let unnamed: u64 = kinds.iter().skip(MAX_NAMED).map(|kind| kind.count).sum();
        if unnamed + self.others > 0 {
            parts.push(format!("{} other failures", unnamed + self.others));
        }
        Some(format!("tried: {}", parts.join(", ")))
    }

    /// (tool, code, count)
    pub(crate) fn table(&self) -> Vec<(ToolName, &'static str, u64)> {
        let mut table: Vec<(ToolName, &'static str, u64)> = Vec::new();
        for kind in &self.kinds {
            match table.iter_mut().find(|row| row.0 == kind.tool && row.1 == kind.code) {
                Some(row) => row.2 += kind.count,
                None => table.push((kind.tool.clone(), kind.code, kind.count)),
            }
        }
        table
    }
}

fn words(error: &CallError) -> Cow<'static, str> {
    match error {
        CallError::Unknown(_) => "may have happened".into(),
        CallError::Denied(denied) => denied_words(denied.code).into(),
        CallError::Failed(failed) => match (failed.code, failed.status) {
            (FailCode::ToolUnavailable, Some(status)) => format!("server {status}").into(),
            (FailCode::ToolError, Some(status)) => format!("refused with {status}").into(),
            (code, Some(_) | None) => failed_words(code).into(),
        },
    }
}

fn failed_words(code: FailCode) -> &'static str {
    match code {
        FailCode::UpstreamUnreachable => "not reachable",
        FailCode::UpstreamUntrusted => "certificate not trusted",
        FailCode::EgressBlocked => "address not permitted",
        FailCode::CredentialUnavailable => "credential missing",
        FailCode::UpstreamRefusedStream => "did not take the request",
        FailCode::ToolError => "refused the request",
        FailCode::RateLimited => "called too often",
        FailCode::ToolUnavailable => "server error",
        FailCode::UpstreamRedirect => "redirected elsewhere",
        FailCode::UpstreamTimeout => "timed out",
        FailCode::UpstreamReset => "connection broke",
        FailCode::UpstreamProtocolError => "answered nonsense",
        FailCode::ResultLost => "executed, result lost",
        FailCode::ResultTooLarge => "result too large",
        FailCode::ResultWithheld => "result withheld",
        FailCode::Internal => "gateway fault",
    }
}

fn denied_words(code: DenyCode) -> &'static str {
    match code {
        DenyCode::InvalidArguments => "wrong arguments",
        DenyCode::ArgumentsTooLarge => "arguments too large",
        DenyCode::UnknownTool => "no such tool",
        DenyCode::ToolNotAllowed => "not permitted",
        DenyCode::CircuitOpen => "temporarily unavailable",
        DenyCode::Unauthenticated
        | DenyCode::RunUnknown
        | DenyCode::InvalidRequest
        | DenyCode::MissingCallId
        | DenyCode::DuplicateCallId
        | DenyCode::CallIdReused
        | DenyCode::UnsupportedCall
        | DenyCode::ToolQuarantined
        | DenyCode::BudgetExhausted
        | DenyCode::RunInterrupted
        | DenyCode::RepeatBlocked
        | DenyCode::DeadlineExceeded
        | DenyCode::ApprovalRequired
        | DenyCode::ApprovalEdited
        | DenyCode::ApprovalRejected
        | DenyCode::ApprovalExpired
        | DenyCode::HookDenied
        | DenyCode::DryRun
        | DenyCode::RateLimited
        | DenyCode::ConcurrencyLimited
        | DenyCode::IdempotencyConflict
        | DenyCode::InProgress
        | DenyCode::ReviewRequired
        | DenyCode::SkippedPendingReview
        | DenyCode::SkippedInProgress
        | DenyCode::LedgerUnavailable
        | DenyCode::Draining => code.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{Class, Delivery, Denied, Failed, Verdict};

    fn failed(code: FailCode, status: Option<u16>) -> CallError {
        let mut failed =
            Failed::new(code, Class::Transient, Delivery::Unknown, Verdict::Bad, "it failed");
        failed.status = status;
        failed.into()
    }

    fn name(text: &str) -> ToolName {
        ToolName::new(text).expect("name")
    }

    #[test]
    fn failures_are_told_in_one_line_once_they_pile_up() {
        let mut failures = Failures::default();
        failures.push(&name("A"), &failed(FailCode::UpstreamTimeout, None));
        failures.push(&name("A"), &failed(FailCode::UpstreamTimeout, None));
        assert_eq!(failures.line(), None);
        failures.push(&name("B"), &Denied::new(DenyCode::InvalidArguments, "no").into());
        failures.push(&name("C"), &failed(FailCode::ToolUnavailable, Some(500)));
        assert_eq!(
            failures.line().as_deref(),
            Some("tried: A timed out (2×), B wrong arguments, C server 500")
        );
        assert_eq!(failures.table()[0], (name("A"), "upstream_timeout", 2));
    }

    #[test]
    fn a_thousand_kinds_of_failure_stay_one_short_line() {
        let mut failures = Failures::default();
        for n in 0..1000 {
            failures.push(
                &ToolName::asked(&format!("t{n}")),
                &Denied::new(DenyCode::UnknownTool, "no").into(),
            );
        }
        let line = failures.line().expect("piled up");
        assert!(line.len() < 400, "{line}");
        assert!(line.ends_with("992 other failures"), "{line}");
        assert_eq!(failures.table().len(), MAX_KINDS);
    }
}
