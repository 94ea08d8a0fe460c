//! `/approvals`: calls that wait for a person. A decision names the standing it was made on, so of two people one decides.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::answer::{Problem, response, versioned};
use super::ask::{Ask, Seen};
use super::page::{Wanted, place};
use super::{Admin, Answered, named};
use crate::call::{Arguments, Denied, Detail};
use crate::ledger::approvals::{ApprovalView, Decision, Standing};
use crate::people::{Approvals, NotDecided, Person, card};
use crate::policy::snapshot::Allowed;
use crate::strict_json::Limits;
use crate::telemetry::record::{rfc3339, wall_clock};

/// What a decision may say.
const MEMBERS: [&str; 4] = ["decision", "arguments", "comment", "who"];

impl Admin {
    fn approvals(&self) -> Approvals {
        Approvals {
            ledger: self.engine.ledger().clone(),
            snapshot: self.engine.snapshot(),
            metrics: self.metrics.clone(),
            recorder: self.recorder.clone(),
        }
    }

    pub(super) fn list_approvals(&self, ask: &Ask) -> Answered {
        let [state, tool, agent, limit, cursor] =
            ask.query(["state", "tool", "agent", "limit", "cursor"])?;
        let open = match state {
            None | Some("open") => Some(true),
            Some("over") => Some(false),
            Some("all") => None,
            Some(_) => return Err(Problem::invalid("`state` must be open, over or all")),
        };
        let wanted = Wanted::parse(limit, cursor)?;
        let queue = self.approvals();
        let mut all = queue.list(open);
        all.retain(|one| {
            tool.is_none_or(|tool| one.tool.as_str() == tool)
                && agent.is_none_or(|agent| one.agent.as_str() == agent)
        });
        let (page, next) = wanted.of(all, |one| place(one.asked, one.id.to_string()));
        let page: Vec<Value> = page.iter().map(|one| shown(&queue, one)).collect();
        Ok(response(&json!({ "approvals": page, "next": next })))
    }

    pub(super) fn show_approval(&self, id: &str) -> Answered {
        let queue = self.approvals();
        let one = queue.show(id).ok_or_else(|| none(id))?;
        Ok(versioned(&whole(&queue, &one), one.standing.as_str()))
    }

    pub(super) async fn decide(&self, ask: &Ask, person: Person, id: &str) -> Answered {
        ask.only(&MEMBERS)?;
        let person = named(person, ask.text("who")?)?;
        let comment = ask.text("comment")?.unwrap_or_default();
        let queue = self.approvals();
        let decision = self.decision(&queue, ask, &person, id)?;
        let seen = match ask.if_match()? {
            None => return Err(Problem::precondition_required()),
            Some(Seen::Any) => None,
            Some(Seen::Version(version)) => Some(version),
        };
        let (queued, name) = (queue.clone(), id.to_owned());
        // In a task of its own: who hangs up cuts no word in half, on record here and unheard there.
        let task = self.engine.tasks().spawn(async move {
            queued.decide(&name, seen.as_deref(), &person, decision, &comment).await
        });
        let done = task.await.map_err(|_| Problem::unavailable("the gateway failed".to_owned()))?;
        let one = done.map_err(|refused| problem(&queue, refused, id))?;
        Ok(versioned(&whole(&queue, &one), one.standing.as_str()))
    }

    fn decision(
        &self,
        queue: &Approvals,
        ask: &Ask,
        person: &Person,
        id: &str,
    ) -> Result<Decision, Problem> {
        match (ask.text("decision")?.as_deref(), ask.member("arguments")) {
            (Some("approve"), None) => Ok(Decision::Approve),
            (Some("reject"), None) => Ok(Decision::Reject),
            (Some("edit"), Some(arguments)) => {
                let one = queue.show(id).ok_or_else(|| none(id))?;
                // Who may not decide is not told what the tool takes.
                queue
                    .may(&one, person, Allowed::Edit)
                    .map_err(|refused| problem(queue, refused, id))?;
                self.edited(queue, &one, arguments.clone()).map(Decision::Edit)
            }
            (Some("edit"), None) => Err(Problem::invalid("an edit has `arguments`, all of them")),
            (Some("approve" | "reject"), Some(_)) => {
                Err(Problem::invalid("only an edit has `arguments`"))
            }
            (Some(_) | None, _) => {
                Err(Problem::invalid("`/decision` must be approve, edit or reject"))
            }
        }
    }

    /// Arguments as a person changed them: judged as the agent's own are.
    fn edited(
        &self,
        queue: &Approvals,
        one: &ApprovalView,
        mut arguments: Value,
    ) -> Result<Arguments, Problem> {
        let tool =
            queue.tool(one).ok_or_else(|| Problem::conflict(NotDecided::Void.to_string()))?;
        card::unhide(Some(tool), &mut arguments, one.arguments.tree());
        let limits = &queue.snapshot.limits;
        let limits = Limits::arguments(limits.argument_bytes, limits.argument_depth);
        let read = Arguments::parse(arguments.to_string().as_bytes(), limits);
        let read = read.map_err(|_| {
            Problem::invalid("`/arguments` must be one JSON object, within the policy's limits")
        })?;
        self.engine
            .judge(&queue.snapshot, tool, &one.agent, &read)
            .map_err(|denied| unfit(&denied))?;
        Ok(read)
    }
}

fn none(id: &str) -> Problem {
    Problem::not_found(format!("there is no approval `{id}`"))
}

fn unfit(denied: &Denied) -> Problem {
    let problem = Problem::invalid(format!("`/arguments`: {}", denied.message));
    let Detail::Faults(faults) = &denied.detail else { return problem };
    let faults: Vec<Value> = faults
        .iter()
        .map(|fault| json!({ "at": fault.at, "expected": fault.expected, "got": fault.got }))
        .collect();
    problem.with("faults", faults.into())
}

fn problem(queue: &Approvals, refused: NotDecided, id: &str) -> Problem {
    let said = refused.to_string();
    match refused {
        NotDecided::NotFound => none(id),
        NotDecided::Changed(now) => Problem::changed(said).with("approval", whole(queue, &now)),
        NotDecided::Over(now) => Problem::conflict(said).with("approval", whole(queue, &now)),
        NotDecided::OwnCall | NotDecided::NotAnApprover(_) => Problem::forbidden(said),
        NotDecided::NotAllowed(_)
        | NotDecided::Void
        | NotDecided::SameArguments
        | NotDecided::Elsewhere(_) => Problem::conflict(said),
        NotDecided::NoComment | NotDecided::TooLong => Problem::invalid(said),
        NotDecided::Ledger(_) => Problem::unavailable(said),
    }
}

fn shown(queue: &Approvals, one: &ApprovalView) -> Value {
    let tool = queue.snapshot.tools.get(&one.tool);
    let expires = one.left.and_then(|left| SystemTime::checked_add(&wall_clock(), left));
    let decided = one.decided.as_ref();
    json!({
        "approval": one.id.as_str(),
        "state": one.standing.as_str(),
        "tool": one.tool.as_str(),
        "effect": tool.map(|tool| tool.effect.as_str()),
        "agent": one.agent.as_str(),
        "run": one.run.as_str(),
        "call": one.call.as_str(),
        "asked": rfc3339(one.asked),
        "expires": expires.map(rfc3339),
        "left_ms": one.left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        "why": one.why,
        "void": queue.tool(one).is_none(),
        "decided": decided.map(|by| json!({
            "decision": decision(one),
            "who": by.who,
            "comment": by.comment,
            "at": rfc3339(by.at),
        })),
        "version": one.standing.as_str(),
    })
}

fn decision(one: &ApprovalView) -> &'static str {
    match (one.standing, &one.edited) {
        (Standing::Rejected, _) => "reject",
        (_, Some(_)) => "edit",
        (_, None) => "approve",
    }
}

/// The card: what a person decides by. Words of models and tools are plain text in it.
fn whole(queue: &Approvals, one: &ApprovalView) -> Value {
    let tool = queue.snapshot.tools.get(&one.tool).map(AsRef::as_ref);
    let asked = card::show(tool, one.arguments.tree());
    let edited = one.edited.as_ref().map(|edited| card::show(tool, edited.tree()));
    let rules = queue.tool(one).and_then(|tool| tool.approval.as_ref());
    let lines = |shown: &card::Shown| -> Vec<Value> {
        let line = |line: &card::Line| json!({ "at": line.at, "value": line.value });
        shown.lines.iter().map(line).collect()
    };
    let mut card = shown(queue, one);
    let Value::Object(members) = &mut card else { return card };
    let name = one.tool.as_str();
    let sentence = card::sentence(tool, name, one.agent.as_str(), &asked);
    members.insert("sentence".to_owned(), sentence.into());
    members.insert("lines".to_owned(), lines(&asked).into());
    members.insert("hidden".to_owned(), json!(asked.hidden));
    if let Some(edited) = &edited {
        members.insert("edited_lines".to_owned(), lines(edited).into());
        members.insert("edited".to_owned(), edited.arguments.clone());
    }
    let words =
        rules.map(|rules| rules.decisions.iter().map(|one| one.as_str()).collect::<Vec<_>>());
    members.insert("decisions".to_owned(), json!(words));
    let who = rules.map(|rules| rules.approvers.iter().map(AsRef::as_ref).collect::<Vec<&str>>());
    members.insert("approvers".to_owned(), json!(who));
    members.insert("arguments".to_owned(), asked.arguments);
    card
}
