//! What must survive the process, whatever the engine: rows that change by conditions, an answer after the commit.
//!
//! The rules of the ledger are not here. An engine keeps rows, refuses a change whose condition does not hold, and
//! says "done" only once a crash can no longer undo it.

mod approvals;
mod begin;
mod entries;
mod files;
mod lock;
mod memory;
mod migrate;
mod secret;
mod sqlite;
#[cfg(test)]
mod tests;
mod wal;
mod wire;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;

use crate::call::{
    AgentId, ApprovalId, Arguments, CallId, Digest, Failed, IdempotencyKey, RunId, TaskId,
    ToolName, ToolResult,
};
use crate::telemetry::metrics::Metrics;
pub use approvals::{Approval, Decided, Said};
pub use memory::Memory;
pub use writer::Sqlite;

/// One occurrence of an operation under one claim. A later claim of the same occurrence is another row in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Which {
    pub key: IdempotencyKey,
    pub occurrence: u32,
    /// Unique among the live rows of a store; tells a row from its successor.
    pub claim: u64,
}

/// Whose call: ids of calls are unique within their run only.
pub type Caller = (RunId, CallId);

/// What is known of a write.
#[derive(Debug, Clone)]
pub enum Standing {
    /// It may be on its way.
    Intent,
    Executed(Answer),
    /// `evidence`: what proves it.
    NotExecuted {
        evidence: String,
    },
    Unknown {
        why: String,
    },
    /// It happened and was undone.
    Compensated,
}

/// The answer of a write that happened.
#[derive(Debug, Clone)]
pub enum Answer {
    /// Kept beside the row.
    Result,
    Lost,
    Error(Failed),
}

/// How an unknown write became known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// `late_answer`, `resend`, `status_query` or `person`.
    pub by: String,
    /// Empty unless it was a person.
    pub who: String,
    pub why: String,
    pub evidence: String,
}

/// One row, as the ledger means it.
#[derive(Debug, Clone)]
pub struct Row {
    pub which: Which,
    pub tool: ToolName,
    pub agent: AgentId,
    /// Over all arguments that are not volatile.
    pub digest: Digest,
    /// Their first form, where other arguments could come under the same name.
    pub arguments: Option<Arguments>,
    pub calls: Vec<Caller>,
    /// Who asked with which arguments, and what became of it.
    pub failures: Vec<(Caller, Digest, Failed)>,
    /// How long a finished row answers.
    pub ttl: Duration,
    /// When it reached its standing, by the wall clock.
    pub changed: SystemTime,
    pub standing: Standing,
    pub resolved: Option<Resolved>,
    /// What its tool calls the task that it answered with.
    pub task: Option<TaskId>,
}

/// One change; all of it happens or nothing.
#[derive(Debug, Clone)]
pub enum Change {
    /// A new row. Refused where a row of the same occurrence is an intent or unknown.
    Put { row: Box<Row>, result: Option<Box<ToolResult>> },
    /// How it ended. Refused unless the row of the same claim is an intent or unknown.
    End { row: Box<Row>, result: Option<Box<ToolResult>> },
    /// The result of an executed row whose result was lost. Refused for every other row.
    Found { which: Which, result: Box<ToolResult> },
    /// The tool answered with a task. Refused unless the row of this claim is an intent or unknown.
    Task { which: Which, task: TaskId },
    /// More calls share the row of this claim.
    Calls { which: Which, calls: Vec<Caller> },
    /// At a start: no intent has an end any more. Their time stays that of the sending, which keys are counted from.
    Recover,
    /// Rows that no longer answer. Intents and unknown ones stay, whoever asks.
    Forget(Vec<Which>),
    /// As `Put`, and the yes of a person is used up by it: both or neither. Refused also where there is none.
    PutSpending { row: Box<Row>, yes: ApprovalId },
    /// A person is asked. Refused where there is a question of that name.
    Ask(Box<Approval>),
    /// What a person said. Refused unless the question is open.
    Decide(Box<Approval>),
    /// A yes is used up. Refused where there is none.
    Spend(ApprovalId),
    /// Approvals that nobody looks at any more.
    ForgetApprovals(Vec<ApprovalId>),
}

/// Why a change was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The row is not as the change wants it.
    #[error("the row has changed")]
    Refused,
    /// At its bound; ends are still taken.
    #[error("the store is full")]
    Full,
    #[error("the store cannot be written: {0}")]
    Unavailable(String),
}

/// Why a store cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// It is there and makes no sense: nothing may start as if it were empty.
    #[error("{0}")]
    Damaged(String),
    #[error("{0}")]
    Refused(String),
}

/// Hears what became of a change, once; on the engine's thread, so it must not block.
pub type Then = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// Where a durable store lies, and how large it may become.
#[derive(Debug, Clone)]
pub struct Place {
    pub folder: PathBuf,
    pub max_bytes: u64,
}

#[derive(Debug)]
pub enum Store {
    Sqlite(Sqlite),
    Memory(Memory),
    /// There is a store, and it cannot be read: everything is refused.
    Unreadable(String),
}

impl Store {
    /// The SQLite store of a folder, and every row in it. Blocks: once, at the start.
    pub fn open(place: &Place, metrics: Arc<Metrics>) -> Result<(Self, Vec<Row>), OpenError> {
        let (engine, rows) = Sqlite::open(place, metrics)?;
        Ok((Store::Sqlite(engine), rows))
    }

    /// Hands a change in and returns; `then` hears of it after the commit. Changes happen in the order handed in.
    pub fn submit(&self, change: Change, then: Then) {
        match self {
            Store::Sqlite(engine) => engine.submit(change, then),
            Store::Memory(engine) => then(engine.apply(&change)),
            Store::Unreadable(why) => then(Err(StoreError::Unavailable(why.clone()))),
        }
    }

    /// Makes a change; returns once it is lasting.
    pub async fn commit(&self, change: Change) -> Result<(), StoreError> {
        let (tell, heard) = oneshot::channel();
        // A caller that went away needs no word.
        self.submit(change, Box::new(move |done| drop(tell.send(done))));
        heard.await.unwrap_or_else(|_| Err(StoreError::Unavailable("it has closed".into())))
    }

    /// Makes a change whose loss changes nothing; returns at once.
    pub fn append(&self, change: Change) {
        self.submit(
            change,
            Box::new(|done| {
                if let Err(error) = done {
                    tracing::warn!(%error, "a note to the store was lost; nothing depends on it");
                }
            }),
        );
    }

    /// The kept result of a row.
    pub async fn result(
        &self,
        key: IdempotencyKey,
        occurrence: u32,
    ) -> Result<Option<ToolResult>, StoreError> {
        match self {
            Store::Sqlite(engine) => engine.result(key, occurrence).await,
            Store::Memory(engine) => Ok(engine.result(key, occurrence)),
            Store::Unreadable(why) => Err(StoreError::Unavailable(why.clone())),
        }
    }

    /// Every approval found at the start, once.
    pub fn approvals(&self) -> Vec<Approval> {
        match self {
            Store::Sqlite(engine) => engine.approvals(),
            Store::Memory(engine) => engine.approvals(),
            Store::Unreadable(_) => Vec::new(),
        }
    }

    /// What the keys that tools are sent are derived from, as lasting as the rows; `None` where nothing lasts.
    pub fn secret(&self) -> Option<&[u8]> {
        match self {
            Store::Sqlite(engine) => Some(engine.secret()),
            Store::Memory(_) | Store::Unreadable(_) => None,
        }
    }

    /// True while new rows are taken.
    pub fn writable(&self) -> bool {
        match self {
            Store::Sqlite(engine) => engine.writable(),
            Store::Memory(_) => true,
            Store::Unreadable(_) => false,
        }
    }

    /// Bytes on disk.
    pub fn bytes(&self) -> u64 {
        match self {
            Store::Sqlite(engine) => engine.bytes(),
            Store::Memory(_) | Store::Unreadable(_) => 0,
        }
    }

    /// All that was handed in is done, the file is closed and the folder free. Later changes are refused.
    pub async fn close(&self) {
        match self {
            Store::Sqlite(engine) => engine.close().await,
            Store::Memory(_) | Store::Unreadable(_) => {}
        }
    }
}
