//! `/breakers`: circuits as they stand, and the hand that opens and closes them.

use serde_json::{Value, json};

use super::answer::{Problem, response};
use super::ask::Ask;
use super::{Admin, Answered};
use crate::call::ToolName;
use crate::engine::{CircuitView, NotMoved};
use crate::people::Person;
use crate::telemetry::record::{PersonFacts, rfc3339};

impl Admin {
    /// Every tool of the policy, by name.
    pub(super) fn list_breakers(&self) -> Answered {
        let circuits: Vec<Value> = self.engine.circuits().iter().map(shown).collect();
        Ok(response(&json!({ "breakers": circuits })))
    }

    pub(super) fn isolate(&self, ask: &Ask, person: Person, tool: &str) -> Answered {
        let (person, why) = Self::said(ask, person)?;
        let (tool, who) = (named(tool)?, person.to_string());
        self.engine.isolate(&tool, &who, &why).map_err(|not| refused(not, &tool))?;
        self.moved(&tool, "isolate", &who, &why)
    }

    pub(super) fn reset(&self, ask: &Ask, person: Person, tool: &str) -> Answered {
        let (person, why) = Self::said(ask, person)?;
        let (tool, who) = (named(tool)?, person.to_string());
        self.engine.reset(&tool).map_err(|not| refused(not, &tool))?;
        self.moved(&tool, "reset", &who, &why)
    }

    fn moved(&self, tool: &ToolName, action: &'static str, who: &str, why: &str) -> Answered {
        self.record(&PersonFacts {
            kind: "admin",
            action,
            who,
            why,
            tool: Some(tool.as_str()),
            ..PersonFacts::default()
        });
        let circuits = self.engine.circuits();
        let found = circuits.iter().find(|circuit| circuit.tool == *tool);
        found.map(|circuit| response(&shown(circuit))).ok_or_else(|| none(tool))
    }
}

fn named(tool: &str) -> Result<ToolName, Problem> {
    ToolName::new(tool).map_err(|_| Problem::not_found("the policy in force has no such tool"))
}

fn none(tool: &ToolName) -> Problem {
    Problem::not_found(format!("the policy in force has no tool `{tool}`"))
}

fn refused(not: NotMoved, tool: &ToolName) -> Problem {
    match not {
        NotMoved::NoSuchTool => none(tool),
        NotMoved::AlreadyIsolated
        | NotMoved::AlreadyClosed
        | NotMoved::ByPolicy
        | NotMoved::TooMany => Problem::conflict(not.to_string()),
    }
}

fn shown(circuit: &CircuitView) -> Value {
    let isolated = circuit.isolated.as_ref();
    json!({
        "tool": circuit.tool.as_str(),
        "state": circuit.state,
        "consecutive_failures": circuit.consecutive_failures,
        "failure_threshold": circuit.failure_threshold,
        "last_transition": circuit.last_transition.map(rfc3339),
        "isolated": isolated.map(|isolated| json!({
            "at": rfc3339(isolated.at),
            "who": isolated.who,
            "why": isolated.why,
        })),
    })
}
