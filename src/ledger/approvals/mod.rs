//! Questions to people about calls that were not sent: each bound to one operation, answered once, used once.
//!
//! All of them are in this process's memory, under one short lock; the store has the same rows. A question is on record
//! before its name is told, an answer before it counts, and a yes is used up on record before a byte is sent. Time ends
//! all of them, and its end is a no.

mod decide;
mod table;
mod yes;

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::LedgerError;
use super::book::{Book, lock};
use crate::call::approval::binding;
use crate::call::{AgentId, ApprovalId, Arguments, CallId, Digest, RunId, ToolName};
use crate::store::{Approval, Change, Decided, Said};
use crate::telemetry::record::wall_clock;
pub use decide::{DecideError, Decision};
use table::{State, Table};
pub use yes::Yes;

/// Questions that wait at once; past a bound a further one is refused, none is dropped for it.
pub const MAX_PENDING: usize = 1024;
pub const MAX_PENDING_OF_AGENT: usize = 64;
pub const MAX_PENDING_OF_RUN: usize = 16;
/// Approvals kept in all; of those that are over the oldest goes first.
const MAX_KEPT: usize = 4096;
/// Bytes of the arguments kept.
const MAX_BYTES: u64 = 32 << 20;
/// How long one that is over is still shown.
const SHOWN: Duration = Duration::from_secs(24 * 3600);

/// What a call wants a yes for.
#[derive(Debug, Clone)]
pub struct Wish {
    pub agent: AgentId,
    pub tool: ToolName,
    pub run: RunId,
    pub call: CallId,
    pub arguments: Arguments,
    /// Hash of the tool's rules.
    pub section: Digest,
    /// The rule that asks.
    pub why: String,
    /// How long the question stands, and then the answer.
    pub ttl: Duration,
}

/// What a call that needs a yes is told where there is none.
#[derive(Debug)]
pub enum NotYet {
    /// A person is asked, by this call or by an earlier one.
    Waits {
        id: ApprovalId,
        left: Duration,
    },
    /// Nobody said yes in time, or the yes was not used in time. Told once: the next call asks anew.
    Expired {
        id: ApprovalId,
    },
    Rejected {
        id: ApprovalId,
        comment: String,
    },
    /// A yes for other arguments.
    Edited {
        id: ApprovalId,
        arguments: Arguments,
        comment: String,
        left: Duration,
    },
    /// Another call is about to use the yes.
    InUse,
    /// Too many questions wait: whose, and how many.
    TooMany {
        whose: &'static str,
        most: usize,
    },
    /// The question cannot be recorded, so nobody is asked.
    Unrecorded(LedgerError),
}

/// Where an approval stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Pending,
    Approved,
    Rejected,
    Expired,
    Used,
}

impl Standing {
    pub fn as_str(self) -> &'static str {
        match self {
            Standing::Pending => "pending",
            Standing::Approved => "approved",
            Standing::Rejected => "rejected",
            Standing::Expired => "expired",
            Standing::Used => "used",
        }
    }
}

/// One approval, for people.
#[derive(Debug, Clone)]
pub struct ApprovalView {
    pub id: ApprovalId,
    pub standing: Standing,
    pub tool: ToolName,
    pub agent: AgentId,
    pub run: RunId,
    pub call: CallId,
    pub arguments: Arguments,
    pub edited: Option<Arguments>,
    pub why: String,
    /// Of the tool's rules under which it was asked.
    pub section: Digest,
    pub asked: SystemTime,
    /// Until the question, or the yes, is over.
    pub left: Option<Duration>,
    pub decided: Option<Decided>,
}

#[derive(Debug)]
pub struct Approvals {
    book: Arc<Book>,
    table: Mutex<Table>,
}

impl Approvals {
    pub(super) fn new(book: Arc<Book>) -> Arc<Self> {
        let table = Table::restored(book.store.approvals(), Instant::now(), wall_clock());
        Arc::new(Self { book, table: Mutex::new(table) })
    }

    /// The yes for a call, which may then be sent; else a person is asked. A question that is new is on record when
    /// this returns.
    pub async fn ask(self: &Arc<Self>, wish: Wish) -> Result<Yes, NotYet> {
        let now = Instant::now();
        let row = {
            let mut table = lock(&self.table);
            let key = binding(&wish.agent, &wish.tool, wish.section, &wish.arguments);
            if let Some(asked) = self.known(&mut table, key, now) {
                return asked;
            }
            if let Err((whose, most)) = table.room(&wish) {
                return Err(NotYet::TooMany { whose, most });
            }
            let row = row(wish, key);
            table.open(row.clone(), now);
            row
        };
        let (id, left) = (row.id.clone(), row.ttl);
        crash_point!("approvals: before the question");
        let done = self.book.store.commit(Change::Ask(Box::new(row))).await;
        crash_point!("approvals: after the question");
        match done {
            Ok(()) => Err(NotYet::Waits { id, left }),
            Err(error) => {
                tracing::error!(%error, %id, "a question to a person is not on record");
                lock(&self.table).forget(&id);
                Err(NotYet::Unrecorded(LedgerError { doing: "record a question to a person" }))
            }
        }
    }

    /// What an earlier question of the same operation came to; `None` = it is to be asked.
    fn known(
        self: &Arc<Self>,
        table: &mut Table,
        key: Digest,
        now: Instant,
    ) -> Option<Result<Yes, NotYet>> {
        let kept = table.by_binding(key)?;
        kept.pass(now);
        let (id, left) = (kept.row.id.clone(), kept.until.saturating_duration_since(now));
        let comment = kept.row.decided.as_ref().map(|by| by.comment.clone()).unwrap_or_default();
        match (kept.state, &kept.row.edited) {
            (State::Pending, _) => Some(Err(NotYet::Waits { id, left })),
            (State::InUse, _) => Some(Err(NotYet::InUse)),
            (State::Approved, Some(edited)) if kept.row.binding != key => {
                Some(Err(NotYet::Edited { id, arguments: edited.clone(), comment, left }))
            }
            (State::Approved, _) => {
                kept.state = State::InUse;
                Some(Ok(Yes::new(self.clone(), id)))
            }
            (State::Rejected, _) if now < kept.until => Some(Err(NotYet::Rejected { id, comment })),
            (State::Expired, _) => {
                table.unbind(key);
                Some(Err(NotYet::Expired { id }))
            }
            (State::Rejected | State::Spent, _) => {
                table.unbind(key);
                None
            }
        }
    }

    /// Every approval that is kept, in no order.
    pub fn all(&self) -> Vec<ApprovalView> {
        let now = Instant::now();
        let mut table = lock(&self.table);
        table.each(now, |kept| kept.view(now))
    }

    pub fn find(&self, id: &ApprovalId) -> Option<ApprovalView> {
        let now = Instant::now();
        let mut table = lock(&self.table);
        let kept = table.by_id(id)?;
        kept.pass(now);
        Some(kept.view(now))
    }

    /// (tool, questions that wait).
    pub fn pending(&self) -> Vec<(ToolName, u64)> {
        let now = Instant::now();
        lock(&self.table).pending(now)
    }

    /// Ends what is past its time and forgets what was shown long enough; called on a timer. Tells the tools of
    /// questions that nobody answered, each once.
    pub fn sweep(&self) -> Vec<ToolName> {
        let (expired, gone) = lock(&self.table).sweep(Instant::now());
        if !gone.is_empty() {
            self.book.store.append(Change::ForgetApprovals(gone));
        }
        expired
    }

    /// A yes that was not used is there again; its time goes on.
    fn give_back(&self, id: &ApprovalId) {
        if let Some(kept) = lock(&self.table).by_id(id)
            && kept.state == State::InUse
        {
            kept.state = State::Approved;
        }
    }

    fn spent(&self, id: &ApprovalId) {
        if let Some(kept) = lock(&self.table).by_id(id) {
            kept.state = State::Spent;
            (kept.row.said, kept.row.changed) = (Said::Spent, wall_clock());
            kept.until = Instant::now() + SHOWN;
        }
    }
}

fn row(wish: Wish, key: Digest) -> Approval {
    let now = wall_clock();
    Approval {
        id: ApprovalId::mint(),
        asked_for: key,
        binding: key,
        tool: wish.tool,
        agent: wish.agent,
        caller: (wish.run, wish.call),
        section: wish.section,
        arguments: wish.arguments,
        edited: None,
        why: wish.why,
        ttl: wish.ttl,
        asked: now,
        changed: now,
        said: Said::Pending,
        decided: None,
    }
}
