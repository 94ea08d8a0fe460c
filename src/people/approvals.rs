//! The queue of calls that wait for a person: list, show, decide. Nothing here sends: who said yes lets the agent ask again.

use std::sync::Arc;

use super::Person;
use super::reviews::MAX_WORDS;
use crate::call::ApprovalId;
use crate::ledger::Ledger;
use crate::ledger::approvals::{ApprovalView, DecideError, Decision, Standing};
use crate::policy::snapshot::{Allowed, Snapshot, Tool};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::record::{PersonFacts, Recorder, wall_clock};

/// Why a person's word was not taken.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NotDecided {
    #[error("there is no such approval")]
    NotFound,
    /// Somebody else was first, or time was.
    #[error("{}", over(.0.standing))]
    Changed(Box<ApprovalView>),
    #[error("{}", over(.0.standing))]
    Over(Box<ApprovalView>),
    #[error("who asks for a call does not approve it")]
    OwnCall,
    #[error("the policy names who may decide this: {0}")]
    NotAnApprover(String),
    #[error("the policy lets people only {0} this")]
    NotAllowed(String),
    #[error(
        "the tool's rules have changed since it was asked, so a yes would be worth nothing; reject it, or let it run out"
    )]
    Void,
    #[error("`comment` must say why: 1 to {MAX_WORDS} bytes")]
    NoComment,
    #[error("`comment` has more than {MAX_WORDS} bytes")]
    TooLong,
    #[error("these are the arguments that were asked for; approve them")]
    SameArguments,
    #[error("the call with these arguments has an approval of its own: {0}")]
    Elsewhere(ApprovalId),
    #[error("it could not be recorded: {0}")]
    Ledger(String),
}

/// What there is to say of one that does not wait any more.
fn over(standing: Standing) -> &'static str {
    match standing {
        Standing::Pending => "the approval has changed since it was read; read it again",
        Standing::Approved => "it is approved already",
        Standing::Rejected => "it is rejected already",
        Standing::Expired => {
            "nobody decided in time, and that was a no; nothing was sent, and the agent may ask again"
        }
        Standing::Used => "it was approved, and the yes is used up",
    }
}

/// Approvals over the ledger, under the policy in force, counted and recorded.
#[derive(Debug, Clone)]
pub struct Approvals {
    pub ledger: Arc<Ledger>,
    pub snapshot: Arc<Snapshot>,
    pub metrics: Arc<Metrics>,
    pub recorder: Arc<Recorder>,
}

impl Approvals {
    /// In no order. `open`: only those that wait, only those that do not, or (`None`) both.
    pub fn list(&self, open: Option<bool>) -> Vec<ApprovalView> {
        let mut all = self.ledger.approvals().all();
        all.retain(|one| open.is_none_or(|open| (one.standing == Standing::Pending) == open));
        all
    }

    pub fn show(&self, id: &str) -> Option<ApprovalView> {
        self.ledger.approvals().find(&ApprovalId::parse(id)?)
    }

    /// The tool that was asked about, if its rules are still those under which it was.
    pub fn tool(&self, asked: &ApprovalView) -> Option<&Arc<Tool>> {
        self.snapshot.tools.get(&asked.tool).filter(|tool| tool.section == asked.section)
    }

    /// Whether this person may say this, as far as that can be told before it is said.
    pub fn may(
        &self,
        asked: &ApprovalView,
        person: &Person,
        said: Allowed,
    ) -> Result<(), NotDecided> {
        if !person.is_not(&asked.agent) {
            return Err(NotDecided::OwnCall);
        }
        let rules = self.tool(asked).and_then(|tool| tool.approval.as_ref());
        let Some(rules) = rules else {
            // A no is never worth less.
            return if said == Allowed::Reject { Ok(()) } else { Err(NotDecided::Void) };
        };
        if !rules.lets_decide(person.credential()) {
            return Err(NotDecided::NotAnApprover(rules.approvers.join(", ")));
        }
        if !rules.decisions.contains(&said) {
            let words: Vec<&str> = rules.decisions.iter().map(|one| one.as_str()).collect();
            return Err(NotDecided::NotAllowed(words.join(" or ")));
        }
        Ok(())
    }

    /// Decides, once. `seen`: the standing decided on; `None` = as long as it waits.
    pub async fn decide(
        &self,
        id: &str,
        seen: Option<&str>,
        person: &Person,
        decision: Decision,
        comment: &str,
    ) -> Result<ApprovalView, NotDecided> {
        let (asked_for, said) = match &decision {
            Decision::Approve => ("approve", Allowed::Approve),
            Decision::Edit(_) => ("edit", Allowed::Edit),
            Decision::Reject => ("reject", Allowed::Reject),
        };
        if said != Allowed::Approve && comment.trim().is_empty() {
            return Err(NotDecided::NoComment);
        }
        if comment.len() > MAX_WORDS {
            return Err(NotDecided::TooLong);
        }
        let asked = self.show(id).ok_or(NotDecided::NotFound)?;
        self.may(&asked, person, said)?;
        let changed = seen.is_some_and(|seen| seen != asked.standing.as_str());
        match (changed, asked.standing == Standing::Pending) {
            (true, _) => return Err(NotDecided::Changed(Box::new(asked))),
            (false, false) => return Err(NotDecided::Over(Box::new(asked))),
            (false, true) => {}
        }
        let who = person.to_string();
        let done = self.ledger.approvals().decide(&asked.id, decision, &who, comment).await;
        crash_point!("people: approval decided");
        let now = self.show(id).ok_or(NotDecided::NotFound)?;
        match done {
            Ok(()) => {
                self.tell(&now, asked_for, &who, comment);
                Ok(now)
            }
            Err(DecideError::NotFound) => Err(NotDecided::NotFound),
            Err(DecideError::NotPending(_)) if seen.is_some() => {
                Err(NotDecided::Changed(Box::new(now)))
            }
            Err(DecideError::NotPending(_)) => Err(NotDecided::Over(Box::new(now))),
            Err(DecideError::SameArguments) => Err(NotDecided::SameArguments),
            Err(DecideError::Elsewhere(id)) => Err(NotDecided::Elsewhere(id)),
            Err(DecideError::Unavailable(why)) => Err(NotDecided::Ledger(why)),
        }
    }

    fn tell(&self, now: &ApprovalView, action: &'static str, who: &str, comment: &str) {
        self.metrics.tool(now.tool.as_str()).approval(action);
        let waited = wall_clock().duration_since(now.asked).unwrap_or_default();
        self.metrics.approval_wait(waited);
        let digest = |arguments: &crate::call::Arguments| arguments.digest(&[]).short_hex(32);
        self.recorder.person(&PersonFacts {
            kind: "approval",
            action,
            who,
            why: comment,
            tool: Some(now.tool.as_str()),
            agent: Some(now.agent.as_str()),
            run: Some(now.run.as_str()),
            approval: Some(now.id.as_str()),
            arguments_hash: Some(&digest(&now.arguments)),
            edited_hash: now.edited.as_ref().map(digest).as_deref(),
            ..PersonFacts::default()
        });
    }
}
