//! `/runs`: what agents are at, and the brake. A stopped run keeps its budgets; what has started ends.

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::answer::{Problem, response};
use super::ask::Ask;
use super::page::{Wanted, place};
use super::{Admin, Answered};
use crate::call::RunId;
use crate::people::Person;
use crate::run::Run;
use crate::run::trajectory::Step;
use crate::telemetry::record::{PersonFacts, rfc3339};

impl Admin {
    pub(super) fn list_runs(&self, ask: &Ask) -> Answered {
        let [state, agent, limit, cursor] = ask.query(["state", "agent", "limit", "cursor"])?;
        let wanted = Wanted::parse(limit, cursor)?;
        let mut runs = self.engine.runs().all();
        runs.retain(|run| {
            state.is_none_or(|state| run.state().as_str() == state)
                && agent.is_none_or(|agent| run.agent().as_str() == agent)
        });
        let (page, next) = wanted.of(runs, |run| place(run.opened(), run.id().to_string()));
        let page: Vec<Value> = page.iter().map(|run| Value::Object(shown(run))).collect();
        Ok(response(&json!({ "runs": page, "next": next })))
    }

    pub(super) fn show_run(&self, id: &str) -> Answered {
        let id = self.run_id(id)?;
        let run = self.engine.runs().get(&id).ok_or_else(|| self.no_run(&id))?;
        Ok(response(&whole(&run)))
    }

    pub(super) fn interrupt(&self, ask: &Ask, person: Person, id: &str) -> Answered {
        let (person, why) = Self::said(ask, person)?;
        let (id, who) = (self.run_id(id)?, person.to_string());
        match self.engine.interrupt_run(&id, &who, &why) {
            None => Err(self.no_run(&id)),
            Some(false) => Err(Problem::conflict("the run is interrupted already")),
            Some(true) => self.changed(&id, "interrupt", &who, &why),
        }
    }

    pub(super) fn resume(&self, ask: &Ask, person: Person, id: &str) -> Answered {
        let (person, why) = Self::said(ask, person)?;
        let (id, who) = (self.run_id(id)?, person.to_string());
        match self.engine.resume_run(&id) {
            None => Err(self.no_run(&id)),
            Some(false) => Err(Problem::conflict("the run is not interrupted")),
            Some(true) => self.changed(&id, "resume", &who, &why),
        }
    }

    fn changed(&self, id: &RunId, action: &'static str, who: &str, why: &str) -> Answered {
        let run = self.engine.runs().get(id);
        self.record(&PersonFacts {
            kind: "admin",
            action,
            who,
            why,
            agent: run.as_ref().map(|run| run.agent().as_str()),
            run: Some(id.as_str()),
            ..PersonFacts::default()
        });
        run.map(|run| response(&whole(&run))).ok_or_else(|| self.no_run(id))
    }

    fn run_id(&self, text: &str) -> Result<RunId, Problem> {
        RunId::new(text).map_err(|_| Problem::not_found("there is no such live run"))
    }

    fn no_run(&self, id: &RunId) -> Problem {
        match self.engine.runs().how_ended(id) {
            Some(end) => Problem::not_found(format!("the run `{id}` has ended ({end})")),
            None => Problem::not_found(format!("there is no live run `{id}`")),
        }
    }
}

fn shown(run: &Run) -> Map<String, Value> {
    let stopped = run.stopped().map(
        |stopped| json!({ "at": rfc3339(stopped.at), "who": stopped.who, "why": stopped.why }),
    );
    let members = [
        ("run", json!(run.id().as_str())),
        ("agent", json!(run.agent().as_str())),
        ("state", json!(run.state().as_str())),
        ("opened", json!(rfc3339(run.opened()))),
        ("goal", json!(run.goal())),
        ("rounds", json!(run.rounds())),
        ("interrupted", json!(stopped)),
    ];
    members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn whole(run: &Run) -> Value {
    let mut members = shown(run);
    let budgets: Map<String, Value> = run
        .budgets(Instant::now())
        .into_iter()
        .map(|(dimension, used, limit)| {
            (dimension.as_str().to_owned(), json!({ "used": used, "limit": limit }))
        })
        .collect();
    let (first, folded, last) = run.trajectory();
    let failures: Vec<Value> = run
        .failures()
        .into_iter()
        .map(
            |(tool, error, count)| json!({ "tool": tool.as_str(), "error": error, "count": count }),
        )
        .collect();
    let steps = |steps: Vec<Step>| steps.iter().map(step).collect::<Vec<Value>>();
    members.insert("budgets".to_owned(), Value::Object(budgets));
    members.insert("failures".to_owned(), Value::Array(failures));
    members.insert("first_steps".to_owned(), Value::Array(steps(first)));
    members.insert("steps_left_out".to_owned(), json!(folded));
    members.insert("last_steps".to_owned(), Value::Array(steps(last)));
    Value::Object(members)
}

fn step(step: &Step) -> Value {
    let millis = u64::try_from(step.duration.as_millis()).unwrap_or(u64::MAX);
    json!({
        "call": step.call.as_str(),
        "tool": step.tool.as_str(),
        "outcome": step.outcome,
        "duration_ms": millis,
    })
}
