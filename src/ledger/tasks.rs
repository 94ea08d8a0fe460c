//! Handles of tasks that tools answered writes with: on record before anything else is done with them, and followed
//! until the write is known, whoever waits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::Notify;

use super::book::Book;
use super::entry::{Entry, State};
use super::ticket::Ticket;
use super::{Ledger, rows};
use crate::call::{IdempotencyKey, Sending, TaskId, TaskKeeper, TaskOf, ToolName};
use crate::store::Change;

/// Tasks that are followed in the background; past it one is asked for only when its operation is asked for again.
const MAX_FOLLOWED: usize = 10_000;

/// A write that is unknown, whose tool answered with a task, and whose exchange is over.
#[derive(Debug, Clone)]
pub struct OpenTask {
    pub sending: Sending,
    pub tool: ToolName,
    pub of: TaskOf,
    /// Since when it has been unknown.
    pub since: SystemTime,
}

/// Sendings whose tasks are to be followed.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    followed: Mutex<HashMap<IdempotencyKey, Sending>>,
    came: Notify,
}

/// Whose task it is. `None`: the tool answered with none.
pub(super) fn of(entry: &Entry) -> Option<TaskOf> {
    let (run, _) = entry.calls.first()?;
    Some(TaskOf { agent: entry.agent.clone(), run: run.clone(), task: entry.task.clone()? })
}

impl Tasks {
    /// Those that an earlier process left.
    pub(super) fn found(book: &Book) -> Self {
        let tasks = Self::default();
        book.each(|key, entry| {
            if let (State::Unknown { .. }, Some(_)) = (&entry.state, &entry.task) {
                tasks.follow(rows::sending(key, entry));
            }
        });
        tasks
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IdempotencyKey, Sending>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follow(&self, sending: Sending) {
        let mut followed = self.lock();
        if followed.len() < MAX_FOLLOWED || followed.contains_key(&sending.key) {
            followed.insert(sending.key, sending);
            self.came.notify_one();
        }
    }
}

impl Book {
    /// Notes the task of a sending that has no known end, and gives the change to make lasting.
    fn begun(&self, sending: Sending, task: TaskId) -> Option<Change> {
        let mut shard = self.shard(sending.key);
        let history = shard.get_mut(&sending.key)?;
        let entry =
            history.iter_mut().find(|entry| rows::sending(sending.key, entry) == sending)?;
        match entry.state {
            State::Intent { .. } | State::Unknown { .. } => {}
            State::Claimed { .. }
            | State::Executed { .. }
            | State::NotExecuted { .. }
            | State::Compensated { .. } => return None,
        }
        entry.task = Some(task.clone());
        Some(Change::Task { which: rows::which(sending.key, entry), task })
    }

    /// Whether nothing is known of that sending yet, not even that it is unknown.
    fn is_on_its_way(&self, sending: Sending) -> bool {
        let shard = self.shard(sending.key);
        let found = shard.get(&sending.key).and_then(|history| {
            history.iter().find(|entry| rows::sending(sending.key, entry) == sending)
        });
        found.is_some_and(|entry| matches!(entry.state, State::Intent { .. }))
    }
}

impl Ledger {
    /// Where the back end leaves the handle of the task that this sending is answered with.
    pub fn task_keeper(self: &Arc<Self>, ticket: &Ticket) -> TaskKeeper {
        let (ledger, sending) = (self.clone(), ticket.sending());
        TaskKeeper::new(move |task| {
            let ledger = ledger.clone();
            Box::pin(async move { ledger.keep_task(sending, task).await })
        })
    }

    async fn keep_task(&self, sending: Sending, task: TaskId) -> bool {
        let Some(change) = self.book.begun(sending, task) else { return false };
        crash_point!("ledger: before a task is on record");
        let kept = self.book.store.commit(change).await;
        crash_point!("ledger: after a task is on record");
        self.tasks.follow(sending);
        if let Err(error) = &kept {
            // It is followed all the same, as long as this process lives.
            tracing::error!(%error, operation = %sending.key.id(), "the handle of a task is not on record");
        }
        kept.is_ok()
    }

    /// Tasks that nobody else asks for: of writes that are unknown and whose exchange is over; and whether others may
    /// come to be so without a word.
    pub fn open_tasks(&self) -> (Vec<OpenTask>, bool) {
        let followed: Vec<Sending> = self.tasks.lock().values().copied().collect();
        let (mut open, mut more) = (Vec::new(), false);
        for sending in followed {
            let unsettled = self.book.unsettled(sending.key);
            let unsettled = unsettled.filter(|unsettled| unsettled.sending == sending);
            let found = unsettled.and_then(|one| Some((one.tool, one.since, one.task?)));
            match found {
                Some(_) if self.exchanges.under_way(&sending) => more = true,
                Some((tool, since, of)) => open.push(OpenTask { sending, tool, of, since }),
                None if self.book.is_on_its_way(sending) => more = true,
                None => self.leave_task(&sending),
            }
        }
        (open, more)
    }

    /// The task tells nothing more; its write stays as it is.
    pub fn leave_task(&self, sending: &Sending) {
        let mut followed = self.tasks.lock();
        if followed.get(&sending.key) == Some(sending) {
            followed.remove(&sending.key);
        }
    }

    /// Until another task is to be followed.
    pub async fn task_came(&self) {
        self.tasks.came.notified().await;
    }
}
