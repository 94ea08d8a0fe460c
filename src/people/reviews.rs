//! The queue of writes that may have happened: list, show, settle. Nothing here ends by time, and nothing here sends.

use std::sync::Arc;

use super::Person;
use crate::call::ToolResult;
use crate::ledger::{EntryView, Ledger, Resolution, ResolveError, Verdict};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::record::{PersonFacts, Recorder};

/// Longest reason and longest evidence, bytes.
pub const MAX_WORDS: usize = 4096;
/// Longest result a person can hand in, bytes: a model is to read it.
pub const MAX_RESULT: usize = 64 << 10;

/// What a person says of one write.
#[derive(Debug, Clone)]
pub struct Said {
    pub resolution: Resolution,
    /// What was looked at, and what it showed. Never empty.
    pub evidence: String,
    pub comment: String,
}

/// Why a person's word was not taken.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Refused {
    #[error("there is no such review")]
    NotFound,
    /// Somebody else was first, or the tool answered after all.
    #[error("the review has changed since it was read; read it again")]
    Changed(Box<EntryView>),
    #[error("the review is already settled")]
    Settled(Box<EntryView>),
    #[error("who made a write does not say what became of it")]
    OwnWrite,
    #[error("`evidence` must say what was looked at: 1 to {MAX_WORDS} bytes")]
    NoEvidence,
    #[error("`comment` has more than {MAX_WORDS} bytes")]
    TooLong,
    #[error("`result` has more than {MAX_RESULT} bytes")]
    ResultTooLong,
    #[error("{0}")]
    Ledger(String),
}

/// Reviews over the ledger, counted and recorded.
#[derive(Debug, Clone)]
pub struct Reviews {
    pub ledger: Arc<Ledger>,
    pub metrics: Arc<Metrics>,
    pub recorder: Arc<Recorder>,
}

impl Reviews {
    /// Newest first. `open`: only open ones, only settled ones, or (`None`) both.
    pub fn list(&self, open: Option<bool>) -> Vec<EntryView> {
        let mut reviews = self.ledger.reviewed();
        reviews.retain(|review| open.is_none_or(|open| review.is_open() == open));
        reviews.sort_by_cached_key(|review| {
            std::cmp::Reverse((review.since, review.operation.to_string()))
        });
        reviews
    }

    /// The newest review of an operation, by the name the agent was told (`op_…`).
    pub fn show(&self, operation: &str) -> Option<EntryView> {
        let mut reviews = self.ledger.find(operation);
        reviews.retain(|review| review.since.is_some());
        reviews.into_iter().max_by_key(|review| review.occurrence)
    }

    /// Settles a review, once. `seen`: the version decided on, as [`EntryView::version`] is written;
    /// `None` = whatever it is, as long as it is open.
    pub async fn resolve(
        &self,
        operation: &str,
        seen: Option<&str>,
        person: &Person,
        said: Said,
    ) -> Result<EntryView, Refused> {
        check(&said)?;
        let review = self.show(operation).ok_or(Refused::NotFound)?;
        if !person.is_not(&review.agent) {
            return Err(Refused::OwnWrite);
        }
        let changed = seen.is_some_and(|seen| seen != review.version.to_string());
        match (changed, review.is_open()) {
            (true, _) => return Err(Refused::Changed(Box::new(review))),
            (false, false) => return Err(Refused::Settled(Box::new(review))),
            (false, true) => {}
        }
        let resolution = said.resolution.as_str();
        let verdict =
            Verdict { who: person.to_string(), why: said.comment, evidence: said.evidence };
        let (key, version) = (review.operation.key(), Some(review.version));
        let done = self.ledger.resolve(&key, version, said.resolution, verdict.clone()).await;
        crash_point!("people: decided");
        // As it stands now, whoever was first.
        let now = self.show(operation).ok_or(Refused::NotFound)?;
        match done {
            Ok(()) => {
                self.tell(&now, resolution, &verdict);
                Ok(now)
            }
            Err(ResolveError::NotFound) => Err(Refused::NotFound),
            Err(ResolveError::Changed | ResolveError::NotUnknown) if seen.is_some() => {
                Err(Refused::Changed(Box::new(now)))
            }
            Err(ResolveError::Changed | ResolveError::NotUnknown) => {
                Err(Refused::Settled(Box::new(now)))
            }
            Err(ResolveError::Unavailable(why)) => Err(Refused::Ledger(why)),
        }
    }

    fn tell(&self, review: &EntryView, resolution: &'static str, verdict: &Verdict) {
        self.metrics.tool(review.tool.as_str()).review_resolved(resolution, "person");
        let run = review.caller.as_ref().map(|(run, _)| run.as_str());
        self.recorder.person(&PersonFacts {
            kind: "review",
            action: "resolve",
            who: &verdict.who,
            why: &verdict.why,
            evidence: Some(&verdict.evidence),
            resolution: Some(resolution),
            tool: Some(review.tool.as_str()),
            agent: Some(review.agent.as_str()),
            run,
            operation: Some(&review.operation.to_string()),
            occurrence: Some(review.occurrence),
            ..PersonFacts::default()
        });
    }
}

fn check(said: &Said) -> Result<(), Refused> {
    if said.evidence.trim().is_empty() || said.evidence.len() > MAX_WORDS {
        return Err(Refused::NoEvidence);
    }
    if said.comment.len() > MAX_WORDS {
        return Err(Refused::TooLong);
    }
    let bytes = |result: &ToolResult| result.content.bytes.len();
    match &said.resolution {
        Resolution::Happened(Some(result)) if bytes(result) > MAX_RESULT => {
            Err(Refused::ResultTooLong)
        }
        Resolution::Happened(_) | Resolution::DidNotHappen | Resolution::Compensated => Ok(()),
    }
}
