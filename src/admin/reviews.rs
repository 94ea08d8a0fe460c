//! `/reviews`: writes that may have happened. A decision names the version it was made on, so of two people one decides.

use std::time::UNIX_EPOCH;

use bytes::Bytes;
use serde_json::{Value, json};

use super::answer::{Problem, response, versioned};
use super::ask::{Ask, Seen};
use super::page::{Wanted, place};
use super::{Admin, Answered, named};
use crate::call::ToolResult;
use crate::call::outcome::{Content, Notes, Source};
use crate::ledger::{EntryView, Resolution, Standing};
use crate::people::{Person, Refused, Said};
use crate::telemetry::record::rfc3339;

/// What a resolve may say.
const MEMBERS: [&str; 5] = ["resolution", "evidence", "result", "comment", "who"];

impl Admin {
    pub(super) fn list_reviews(&self, ask: &Ask) -> Answered {
        let [state, tool, agent, limit, cursor] =
            ask.query(["state", "tool", "agent", "limit", "cursor"])?;
        let open = match state {
            None | Some("open") => Some(true),
            Some("settled") => Some(false),
            Some("all") => None,
            Some(_) => return Err(Problem::invalid("`state` must be open, settled or all")),
        };
        let wanted = Wanted::parse(limit, cursor)?;
        let mut reviews = self.reviews().list(open);
        reviews.retain(|review| {
            tool.is_none_or(|tool| review.tool.as_str() == tool)
                && agent.is_none_or(|agent| review.agent.as_str() == agent)
        });
        let at = |review: &EntryView| {
            place(
                review.since.unwrap_or(UNIX_EPOCH),
                format!("{}-{}", review.operation, review.occurrence),
            )
        };
        let (page, next) = wanted.of(reviews, at);
        let page: Vec<Value> = page.iter().map(shown).collect();
        Ok(response(&json!({ "reviews": page, "next": next })))
    }

    pub(super) fn show_review(&self, operation: &str) -> Answered {
        let review = self.reviews().show(operation).ok_or_else(|| none(operation))?;
        Ok(versioned(&whole(&review), &review.version.to_string()))
    }

    pub(super) async fn resolve(&self, ask: &Ask, person: Person, operation: &str) -> Answered {
        ask.only(&MEMBERS)?;
        let person = named(person, ask.text("who")?)?;
        let said = Said {
            resolution: resolution(ask)?,
            evidence: ask.text("evidence")?.unwrap_or_default(),
            comment: ask.text("comment")?.unwrap_or_default(),
        };
        let seen = match ask.if_match()? {
            None => return Err(Problem::precondition_required()),
            Some(Seen::Any) => None,
            Some(Seen::Version(version)) => Some(version),
        };
        let (reviews, name) = (self.reviews(), operation.to_owned());
        // In a task of its own: who hangs up cuts no word in half, on record here and unheard there.
        let task = self
            .engine
            .tasks()
            .spawn(async move { reviews.resolve(&name, seen.as_deref(), &person, said).await });
        let done = task.await.map_err(|_| Problem::unavailable("the gateway failed".to_owned()))?;
        let review = done.map_err(|refused| problem(refused, operation))?;
        Ok(versioned(&whole(&review), &review.version.to_string()))
    }
}

fn none(operation: &str) -> Problem {
    Problem::not_found(format!("there is no review of an operation `{operation}`"))
}

fn problem(refused: Refused, operation: &str) -> Problem {
    let said = refused.to_string();
    match refused {
        Refused::NotFound => none(operation),
        Refused::Changed(now) => Problem::changed(said).with("review", whole(&now)),
        Refused::Settled(now) => Problem::conflict(said).with("review", whole(&now)),
        Refused::OwnWrite => Problem::forbidden(said),
        Refused::NoEvidence | Refused::TooLong | Refused::ResultTooLong => Problem::invalid(said),
        Refused::Ledger(_) => Problem::unavailable(said),
    }
}

fn resolution(ask: &Ask) -> Result<Resolution, Problem> {
    let result = ask.member("result").map(|value| ToolResult {
        head: None,
        content: Content { bytes: Bytes::from(value.to_string()), form: crate::call::Form::Json },
        source: Source::Ledger,
        notes: Notes::default(),
    });
    match (ask.text("resolution")?.as_deref(), result) {
        (Some("happened"), result) => Ok(Resolution::Happened(result)),
        (Some("did_not_happen"), None) => Ok(Resolution::DidNotHappen),
        (Some("compensated"), None) => Ok(Resolution::Compensated),
        (Some("did_not_happen" | "compensated"), Some(_)) => {
            Err(Problem::invalid("only what happened has a `result`"))
        }
        (Some(_) | None, _) => {
            Err(Problem::invalid("`/resolution` must be happened, did_not_happen or compensated"))
        }
    }
}

fn shown(review: &EntryView) -> Value {
    let since = review.since.unwrap_or(UNIX_EPOCH);
    let settled = review.settled.as_ref();
    json!({
        "operation": review.operation.to_string(),
        "occurrence": review.occurrence,
        "state": if review.is_open() { "open" } else { "settled" },
        "tool": review.tool.as_str(),
        "agent": review.agent.as_str(),
        "run": review.caller.as_ref().map(|(run, _)| run.as_str()),
        "call": review.caller.as_ref().map(|(_, call)| call.as_str()),
        "since": rfc3339(since),
        "why": review.why,
        "standing": review.standing.as_str(),
        "settled": settled.map(|settled| json!({
            "resolution": resolved_as(review.standing),
            "by": settled.by.by,
            "who": settled.by.who,
            "comment": settled.by.why,
            "evidence": settled.by.evidence,
            "at": rfc3339(settled.at),
        })),
        "next": next(review.standing),
        "version": review.version.to_string(),
    })
}

/// A settled entry stands as it was settled until it is claimed anew; then it has no review any more.
fn resolved_as(standing: Standing) -> Option<&'static str> {
    match standing {
        Standing::Executed => Some("happened"),
        Standing::NotExecuted => Some("did_not_happen"),
        Standing::Compensated => Some("compensated"),
        Standing::Unknown | Standing::Claimed | Standing::Intent => None,
    }
}

/// With what was asked of the tool, which is what a person looks for there.
fn whole(review: &EntryView) -> Value {
    let mut shown = shown(review);
    if let (Some(arguments), Value::Object(members)) = (&review.arguments, &mut shown) {
        members.insert("arguments".to_owned(), arguments.tree().clone());
    }
    shown
}

/// What the next call that means the operation meets.
fn next(standing: Standing) -> &'static str {
    match standing {
        Standing::Unknown => "refused: review_required, under every call id, until this is settled",
        Standing::Executed => "never sent again: answered from the ledger",
        Standing::NotExecuted => "sent: the operation is free",
        Standing::Compensated => "sent, as a new occurrence",
        Standing::Claimed | Standing::Intent => "joined: the operation is under way",
    }
}
