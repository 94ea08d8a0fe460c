//! Approvals as rows: what was asked of a person, what was said, whether the yes is used up.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Caller;
use super::wire::{json, millis, parsed, time};
use crate::call::{AgentId, ApprovalId, Arguments, CallId, Digest, RunId, ToolName};

/// Where an approval stands. That its time is over is not written down: time says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    Pending,
    Approved,
    Rejected,
    /// The yes is used up: the call was sent, or was about to be.
    Spent,
}

impl Said {
    const ALL: [Said; 4] = [Said::Pending, Said::Approved, Said::Rejected, Said::Spent];

    pub fn as_str(self) -> &'static str {
        match self {
            Said::Pending => "pending",
            Said::Approved => "approved",
            Said::Rejected => "rejected",
            Said::Spent => "spent",
        }
    }
}

/// Who decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    pub who: String,
    pub comment: String,
    pub at: SystemTime,
}

/// One row.
#[derive(Debug, Clone)]
pub struct Approval {
    pub id: ApprovalId,
    /// What was asked for.
    pub asked_for: Digest,
    /// What the yes is for: the same, unless a person changed the arguments.
    pub binding: Digest,
    pub tool: ToolName,
    pub agent: AgentId,
    pub caller: Caller,
    /// Hash of the tool's rules under which it was asked.
    pub section: Digest,
    pub arguments: Arguments,
    /// As a person changed them.
    pub edited: Option<Arguments>,
    /// Why a person was asked.
    pub why: String,
    /// How long the question stands, and then the answer.
    pub ttl: Duration,
    pub asked: SystemTime,
    /// Since when it stands as it does.
    pub changed: SystemTime,
    pub said: Said,
    pub decided: Option<Decided>,
}

/// What stands in a row of `approvals`, column by column.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Columns {
    pub(super) id: String,
    pub(super) state: String,
    pub(super) tool: String,
    pub(super) agent: String,
    pub(super) run: String,
    pub(super) call: String,
    pub(super) asked_for: Vec<u8>,
    pub(super) binding: Vec<u8>,
    pub(super) section: Vec<u8>,
    pub(super) arguments: String,
    pub(super) edited: Option<String>,
    pub(super) why: String,
    pub(super) ttl_ms: i64,
    pub(super) asked_ms: i64,
    pub(super) changed_ms: i64,
    pub(super) decided: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct DecidedText {
    who: String,
    comment: String,
    at_ms: i64,
}

/// A row as it is written.
pub(super) fn columns(row: &Approval) -> Columns {
    let (run, call) = &row.caller;
    Columns {
        id: row.id.to_string(),
        state: row.said.as_str().to_owned(),
        tool: row.tool.as_str().to_owned(),
        agent: row.agent.as_str().to_owned(),
        run: run.as_str().to_owned(),
        call: call.as_str().to_owned(),
        asked_for: row.asked_for.as_bytes().to_vec(),
        binding: row.binding.as_bytes().to_vec(),
        section: row.section.as_bytes().to_vec(),
        arguments: json(row.arguments.tree()),
        edited: row.edited.as_ref().map(|edited| json(edited.tree())),
        why: row.why.clone(),
        ttl_ms: i64::try_from(row.ttl.as_millis()).unwrap_or(i64::MAX),
        asked_ms: millis(row.asked),
        changed_ms: millis(row.changed),
        decided: row.decided.as_ref().map(|decided| {
            let (who, comment) = (decided.who.clone(), decided.comment.clone());
            json(&DecidedText { who, comment, at_ms: millis(decided.at) })
        }),
    }
}

/// The row that was written so. `None`: it makes no sense, so nobody said yes.
pub(super) fn row(columns: &Columns) -> Option<Approval> {
    let digest = |bytes: &[u8]| Some(Digest::restored(<[u8; 32]>::try_from(bytes).ok()?));
    let arguments =
        |text: &str| Arguments::from_tree(parsed::<Value>(text)?, u64::try_from(text.len()).ok()?);
    let decided = match &columns.decided {
        Some(text) => {
            let DecidedText { who, comment, at_ms } = parsed(text)?;
            Some(Decided { who, comment, at: time(at_ms) })
        }
        None => None,
    };
    Some(Approval {
        id: ApprovalId::parse(&columns.id)?,
        asked_for: digest(&columns.asked_for)?,
        binding: digest(&columns.binding)?,
        tool: ToolName::new(&columns.tool).ok()?,
        agent: AgentId::new(&columns.agent).ok()?,
        caller: (RunId::new(&columns.run).ok()?, CallId::new(&columns.call).ok()?),
        section: digest(&columns.section)?,
        arguments: arguments(&columns.arguments)?,
        edited: match &columns.edited {
            Some(text) => Some(arguments(text)?),
            None => None,
        },
        why: columns.why.clone(),
        ttl: Duration::from_millis(u64::try_from(columns.ttl_ms).ok()?),
        asked: time(columns.asked_ms),
        changed: time(columns.changed_ms),
        said: Said::ALL.into_iter().find(|said| said.as_str() == columns.state)?,
        decided,
    })
}
