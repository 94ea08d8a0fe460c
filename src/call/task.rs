//! A task that a tool answers with in place of a result: its handle on the way to whoever keeps it, and what asking for
//! it shows.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::names::{AgentId, RunId};
use super::outcome::{Failed, ToolResult};

/// A task's name, as its server gave it; the back end bounds its length.
pub type TaskId = Arc<str>;

type Keeping = Pin<Box<dyn Future<Output = bool> + Send>>;
type Keep = Arc<dyn Fn(TaskId) -> Keeping + Send + Sync>;

/// Where a back end leaves the handle of a write's task, before it does anything else with it.
#[derive(Clone)]
pub struct TaskKeeper(Keep);

impl fmt::Debug for TaskKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TaskKeeper")
    }
}

impl TaskKeeper {
    pub fn new(keep: impl Fn(TaskId) -> Keeping + Send + Sync + 'static) -> Self {
        Self(Arc::new(keep))
    }

    /// True once it is on record.
    pub async fn keep(&self, task: TaskId) -> bool {
        (self.0)(task).await
    }
}

/// Whose task is asked for.
#[derive(Debug, Clone)]
pub struct TaskOf {
    pub agent: AgentId,
    pub run: RunId,
    pub task: TaskId,
}

/// What asking for a task showed.
#[derive(Debug)]
pub enum Polled {
    /// Still under way; the server wants to be asked again after so long.
    Working(Duration),
    /// As the call itself would have ended.
    Ended(Box<Result<ToolResult, Failed>>),
    /// Nothing more is to be learned: it was cancelled, or its server does not know it (any more). Why.
    Over(String),
    /// The server could not be asked.
    NoAnswer,
}

type Polling = Pin<Box<dyn Future<Output = Polled> + Send>>;

/// The way to ask for a tool's tasks. Never sends a call.
#[derive(Clone)]
pub struct TaskWay(Arc<dyn Fn(TaskOf) -> Polling + Send + Sync>);

impl fmt::Debug for TaskWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TaskWay")
    }
}

impl TaskWay {
    pub fn new(poll: impl Fn(TaskOf) -> Polling + Send + Sync + 'static) -> Self {
        Self(Arc::new(poll))
    }

    pub fn poll(&self, task: TaskOf) -> Polling {
        (self.0)(task)
    }
}
