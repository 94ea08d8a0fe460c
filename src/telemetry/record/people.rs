//! What people did: one line a change, with who and why. Their words are theirs; they are kept as they were said.

use serde::Serialize;

use super::{Recorder, rfc3339, wall_clock};

/// One change by a person.
#[derive(Debug, Clone, Copy, Default)]
pub struct PersonFacts<'a> {
    /// `approval`, `review` or `admin`.
    pub kind: &'static str,
    /// `resolve`, `interrupt`, `resume`, `isolate`, `reset`, `reload`, `drain`, `approve`, `edit`, `reject`
    pub action: &'static str,
    pub who: &'a str,
    pub why: &'a str,
    pub evidence: Option<&'a str>,
    pub resolution: Option<&'static str>,
    pub tool: Option<&'a str>,
    /// Whose write or run it was.
    pub agent: Option<&'a str>,
    pub run: Option<&'a str>,
    pub operation: Option<&'a str>,
    pub occurrence: Option<u32>,
    pub approval: Option<&'a str>,
    /// Of what was asked for, and of what a person made of it.
    pub arguments_hash: Option<&'a str>,
    pub edited_hash: Option<&'a str>,
}

#[derive(Serialize)]
struct PersonLine<'a> {
    v: u32,
    kind: &'static str,
    timestamp: String,
    action: &'static str,
    who: &'a str,
    why: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    evidence: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resolution: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    occurrence: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    approval: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments_hash: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    edited_hash: Option<&'a str>,
}

impl Recorder {
    /// A person has changed something; told to the diagnostics too.
    pub fn person(&self, facts: &PersonFacts<'_>) {
        let PersonFacts { kind, action, who, why, tool, run, operation, .. } = *facts;
        tracing::info!(kind, action, who, why, tool, run, operation, "a person acted");
        if let Some(shared) = &self.0 {
            shared.put_rare(&PersonLine {
                v: 1,
                kind,
                timestamp: rfc3339(wall_clock()),
                action,
                who,
                why,
                evidence: facts.evidence,
                resolution: facts.resolution,
                tool_name: tool,
                agent: facts.agent,
                run,
                operation,
                occurrence: facts.occurrence,
                approval: facts.approval,
                arguments_hash: facts.arguments_hash,
                edited_hash: facts.edited_hash,
            });
        }
    }
}
