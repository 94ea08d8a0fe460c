//! One assistant message's calls. A [`Batch`] that exists is sound: every call has an id of its own.

use std::collections::HashSet;

use super::Payload;
use super::code::DenyCode;
use super::names::{CallId, ToolName};
use super::outcome::Denied;

/// A call as a wire form read it; its id is not checked yet.
#[derive(Debug, Clone)]
pub struct Asked {
    pub id: Option<String>,
    pub tool: String,
    pub payload: Payload,
}

/// An assistant message: its text, and what it asks for.
#[derive(Debug, Clone, Default)]
pub struct Turn {
    pub text: String,
    pub calls: Vec<Asked>,
}

/// A call with a sound id.
#[derive(Debug, Clone)]
pub struct Paired {
    pub id: CallId,
    pub tool: ToolName,
    pub payload: Payload,
}

#[derive(Debug, Clone)]
pub struct Batch(Vec<Paired>);

impl Batch {
    /// Checks all ids before anything runs. The refusal names the offending call.
    pub fn pair(calls: Vec<Asked>) -> Result<Self, Denied> {
        let mut seen = HashSet::with_capacity(calls.len());
        let mut paired = Vec::with_capacity(calls.len());
        for (at, asked) in calls.into_iter().enumerate() {
            let tool = ToolName::asked(&asked.tool);
            let id = match asked.id.as_deref() {
                None | Some("") => {
                    let message = format!(
                        "call {} of the message, to `{tool}`, has no id; nothing was run",
                        at + 1
                    );
                    return Err(Denied::new(DenyCode::MissingCallId, message));
                }
                Some(text) => CallId::new(text).map_err(|bad| {
                    Denied::new(
                        DenyCode::InvalidRequest,
                        format!("{bad} (call {}); nothing was run", at + 1),
                    )
                })?,
            };
            if !seen.insert(id.clone()) {
                let message =
                    format!("the id `{id}` stands on two calls of one message; nothing was run");
                return Err(Denied::new(DenyCode::DuplicateCallId, message));
            }
            paired.push(Paired { id, tool, payload: asked.payload });
        }
        Ok(Self(paired))
    }

    pub fn calls(&self) -> &[Paired] {
        &self.0
    }

    pub fn into_calls(self) -> Vec<Paired> {
        self.0
    }
}
