//! Who waits for what on one child: answers by id, progress by its token, and the rest to whoever it may belong to. One
//! stream carries the words of all calls, so what names no call is nobody's where more than one could be meant.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::{Notify, oneshot};

use super::line::Fate;
use crate::backends::mcp::link::{Inbound, Lost, Reply};
use crate::call::{Phase, Progress};
use crate::mcp::jsonrpc::Notification;

/// Requests of ours that one child has not answered; past it they are refused.
pub(super) const MAX_PENDING: usize = 256;
/// On every notification of a subscription (MCP 2026-07-28): the id of the request that opened it.
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

pub(super) type Answered = Result<Reply, Lost>;

/// One request that is not answered.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) answer: oneshot::Sender<Answered>,
    pub(super) inbound: Arc<dyn Inbound>,
    pub(super) progress: Option<Progress>,
    pub(super) token: Option<u64>,
    /// Longest answer, bytes.
    pub(super) most: usize,
    /// It is open for as long as the server wishes, and belongs to no call.
    pub(super) subscription: bool,
    /// It asks for a list.
    pub(super) list: bool,
    pub(super) fate: Arc<Fate>,
}

#[derive(Debug, Default)]
struct Table {
    waiting: HashMap<u64, Waiting>,
    closed: bool,
    /// The request by which the session begins: an error without id is about it, for nothing else was sent.
    opening: Option<u64>,
}

impl Table {
    fn calls(&self) -> impl Iterator<Item = (&u64, &Waiting)> {
        self.waiting.iter().filter(|(_, one)| !one.subscription)
    }
}

#[derive(Debug, Default)]
pub(super) struct Pending {
    table: Mutex<Table>,
    fewer: Notify,
}

impl Pending {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, id: u64, waiting: Waiting, opens: bool) -> Result<(), Lost> {
        let mut table = self.lock();
        if table.closed {
            return Err(Lost::ChildGone { written: false });
        }
        if table.waiting.len() >= MAX_PENDING {
            return Err(Lost::Busy);
        }
        table.opening = opens.then_some(id);
        table.waiting.insert(id, waiting);
        Ok(())
    }

    /// `true`: it was still waiting.
    pub(super) fn remove(&self, id: u64) -> bool {
        let was_there = self.lock().waiting.remove(&id).is_some();
        self.fewer.notify_one();
        was_there
    }

    /// Gives an answer to who waits for it. `false`: nobody does.
    pub(super) fn settle(&self, id: Option<u64>, size: usize, answered: Answered) -> bool {
        let waiting = {
            let mut table = self.lock();
            let id = id.or(table.opening);
            id.and_then(|id| table.waiting.remove(&id))
        };
        self.fewer.notify_one();
        let Some(waiting) = waiting else { return false };
        if let Some(progress) = &waiting.progress {
            progress.mark(Phase::FirstByte);
        }
        let answered = match size > waiting.most {
            true => Err(Lost::TooLarge(waiting.most)),
            false => answered,
        };
        // Who left at this very moment needs no answer.
        drop(waiting.answer.send(answered));
        true
    }

    /// The child is gone and its writer with it: all who wait hear of it, and whether their line had begun.
    pub(super) fn close(&self) {
        let waiting = {
            let mut table = self.lock();
            table.closed = true;
            std::mem::take(&mut table.waiting)
        };
        self.fewer.notify_one();
        for (_, one) in waiting {
            let written = one.fate.has_begun();
            drop(one.answer.send(Err(Lost::ChildGone { written })));
        }
    }

    /// Until no call waits.
    pub(super) async fn idle(&self) {
        while self.lock().calls().next().is_some() {
            self.fewer.notified().await;
        }
    }

    /// Whose a notification is, by what it names. `None`: it names nobody who waits.
    pub(super) fn named_by(&self, notification: &Notification) -> Option<Arc<dyn Inbound>> {
        let params = notification.params.as_ref()?;
        let table = self.lock();
        if let Some(id) = params.pointer("/_meta").and_then(|meta| meta.get(SUBSCRIPTION)) {
            let id = id.as_u64().or_else(|| id.as_str()?.parse().ok())?;
            return table.waiting.get(&id).map(|one| one.inbound.clone());
        }
        let token = params.get("progressToken").and_then(Value::as_u64)?;
        let (_, one) = table.calls().find(|(_, one)| one.token == Some(token))?;
        if let Some(progress) = &one.progress {
            progress.mark(Phase::FirstByte);
            progress.mark(Phase::Progress);
        }
        Some(one.inbound.clone())
    }

    /// Whether a list waits under this id.
    pub(super) fn is_list(&self, id: Option<u64>) -> bool {
        id.and_then(|id| self.lock().waiting.get(&id).map(|one| one.list)).unwrap_or(false)
    }

    /// Whether any list is waited for.
    pub(super) fn has_list(&self) -> bool {
        self.lock().waiting.values().any(|one| one.list)
    }

    /// The one call that waits, where it is one.
    pub(super) fn only(&self) -> Option<Arc<dyn Inbound>> {
        let table = self.lock();
        let mut calls = table.calls();
        let (_, only) = calls.next()?;
        calls.next().is_none().then(|| only.inbound.clone())
    }
}
