//! Memory of writes: at most once per operation, whatever asks again, across restarts. Never lets a write that may
//! have happened run again, and never forgets one.
//!
//! Every live entry is in this process's memory, where a claim is one short lock; the store has the same rows. An
//! intent is in the store before a byte is sent, an end before it is told.

pub mod approvals;
mod book;
mod ends;
mod entry;
mod exchanges;
mod fetched;
mod peek;
mod recent;
pub mod resolver;
mod review;
mod rows;
mod secret;
mod tasks;
mod ticket;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::call::operation::Operation;
use crate::call::{
    AgentId, Arguments, CallError, CallId, Denied, Evidence, Failed, IdempotencyKey, RunId,
    Sending, SentKey, ToolName, ToolResult,
};
use crate::store::{Change, Memory, Row, Store};
use approvals::{Approvals, Yes};
use book::{Begun, Book};
pub use peek::Peeked;
pub use review::{EntryView, Resolution, ResolveError, Settled, Standing, Verdict, Version};
pub use secret::Secret;
pub use tasks::OpenTask;
pub use ticket::{Join, Joined, Ticket};

/// Entries kept at once, of whatever state; past it new operations are refused, none is forgotten for them.
pub const MAX_ENTRIES: usize = 250_000;
/// What `replay` asks about.
#[derive(Debug, Clone)]
pub struct Intent {
    pub operation: Operation,
    pub tool: ToolName,
    pub agent: AgentId,
    pub run: RunId,
    pub call: CallId,
    pub arguments: Arguments,
    /// An identical later write of a tool without fingerprint: refuse instead of a new occurrence.
    pub refuse_identical: bool,
    pub global_scope: bool,
    /// How long a finished entry answers.
    pub ttl: Duration,
    /// The call goes on with this occurrence, whose tool asked for input.
    pub continues: Option<u32>,
}

/// Answer to a claim.
#[derive(Debug)]
pub enum Begin {
    /// Claimed by this caller: only a ticket may send.
    Fresh(Ticket),
    /// Finished: the stored answer (a tool's error answer is one too).
    Replay(Result<ToolResult, CallError>),
    /// In flight: wait on it, up to the caller's own deadline.
    InProgress(Join),
    /// Unknown: `review_required`, whatever the call id. Also `idempotency_conflict`, identical refused,
    /// ledger full (`ledger_unavailable`).
    Refused(Denied),
}

/// How a write ended, as far as is known.
#[derive(Debug, Clone)]
pub enum End {
    /// The tool's answer; `None` = executed, the result is lost (or not kept).
    Executed(Option<ToolResult>),
    /// The tool answered with an error of its own, and has ended.
    ExecutedWithError(Failed),
    NotExecuted(Failed, Evidence),
    Unknown(Failed),
    /// The tool asked for input. Until the call goes on, and where it never does, it is not executed, or by the policy
    /// unknown (`after_acting`).
    Asked {
        result: Box<ToolResult>,
        why: Failed,
        after_acting: bool,
    },
}

impl End {
    /// What a call whose write ended so is told.
    pub fn told(self, key: IdempotencyKey) -> Result<ToolResult, CallError> {
        match self {
            End::Executed(Some(result)) => Ok(result),
            End::Asked { result, .. } => Ok(*result),
            end @ (End::Executed(None)
            | End::ExecutedWithError(_)
            | End::NotExecuted(..)
            | End::Unknown(_)) => entry::told(key, &end),
        }
    }
}

#[derive(Debug, Clone, thiserror::Error)]
#[error("the ledger could not {doing}")]
pub struct LedgerError {
    pub doing: &'static str,
}

#[derive(Debug)]
pub struct Ledger {
    book: Arc<Book>,
    approvals: Arc<Approvals>,
    secret: Secret,
    resolver: resolver::Resolver,
    exchanges: exchanges::Exchanges,
    tasks: tasks::Tasks,
}

impl Ledger {
    /// Forgets all at its end.
    pub fn in_memory() -> Arc<Self> {
        Self::bounded(MAX_ENTRIES, recent::MAX_RESULT_BYTES)
    }

    fn bounded(max_entries: usize, result_bytes: u64) -> Arc<Self> {
        let store = Store::Memory(Memory::without_results());
        let book = Arc::new(Book::new(store, max_entries, result_bytes));
        Arc::new(Self::of(book))
    }

    fn of(book: Arc<Book>) -> Self {
        // Without a store that lasts, what is remembered ends with the process, and so may its keys.
        let secret = book.store.secret().map_or_else(Secret::random, Secret::from_bytes);
        Self {
            approvals: Approvals::new(book.clone()),
            tasks: tasks::Tasks::found(&book),
            book,
            secret,
            resolver: resolver::Resolver::default(),
            exchanges: exchanges::Exchanges::default(),
        }
    }

    /// The key a tool is to recognise this occurrence of an operation by; 43 characters of base64url.
    pub fn derived_key(&self, key: &IdempotencyKey, occurrence: u32) -> SentKey {
        self.secret.key(key, occurrence)
    }

    /// To be held as long as the exchange of this sending is under way.
    pub fn exchange(&self, ticket: &Ticket) -> Arc<dyn std::any::Any + Send + Sync> {
        Arc::new(self.exchanges.begin(&ticket.sending()))
    }

    /// What people are asked before a call is sent.
    pub fn approvals(&self) -> &Arc<Approvals> {
        &self.approvals
    }

    /// Unknown writes that are there and whose arguments are kept, at most `most`, in no order.
    pub fn left(&self, most: usize) -> Vec<resolver::Left> {
        self.book.left(most)
    }

    /// Who settles what may have happened, where its tool helps.
    pub fn resolver(&self) -> &resolver::Resolver {
        &self.resolver
    }

    /// Over a store, with the rows found in it. An intent without an end is unknown from here on: whoever sent it
    /// is gone. Call it before the first agent is listened to.
    pub async fn over(store: Store, rows: Vec<Row>) -> Arc<Self> {
        let book = Arc::new(Book::new(store, MAX_ENTRIES, recent::MAX_RESULT_BYTES));
        book.restore(rows);
        if let Err(error) = book.store.commit(Change::Recover).await {
            // In memory they are unknown all the same.
            tracing::warn!(%error, "writes without an end are not on record as unknown yet");
        }
        Arc::new(Self::of(book))
    }

    /// One atomic claim of the identity, before connect. Waits for the store only where a result is to be fetched.
    pub async fn begin(&self, intent: Intent) -> Result<Begin, LedgerError> {
        match self.book.begin(&intent, Instant::now()) {
            Begun::Now(begin) => Ok(begin),
            Begun::Stored { key, occurrence } => {
                let found = self.book.store.result(key, occurrence).await;
                let kept = found.map_err(|error| {
                    tracing::error!(%error, operation = %key.id(), "a stored result cannot be read");
                    LedgerError { doing: "read a result" }
                })?;
                let answer = kept.map(entry::from_ledger).ok_or_else(|| entry::lost().into());
                if let Ok(result) = &answer {
                    self.book.recent.put(key, occurrence, result);
                }
                Ok(Begin::Replay(answer))
            }
        }
    }

    /// What is known of the operation, from memory alone: nothing is claimed, nobody waits. `None`: nothing that
    /// would keep it from being sent.
    pub fn peek(&self, intent: &Intent) -> Option<Peeked> {
        self.book.peek(intent, Instant::now())
    }

    /// At the send gate: the intent is lasting once this returns, and the yes used up with it. `Err`: neither is, and
    /// nothing may be sent.
    pub async fn intend(&self, ticket: &Ticket, yes: Option<&Yes>) -> Result<(), LedgerError> {
        let change = match (self.book.intending(ticket)?, yes) {
            (Some(Change::Put { row, .. }), Some(yes)) => {
                if yes.begin() {
                    self.book.not_intended(ticket);
                    return Err(LedgerError { doing: "use an approval twice" });
                }
                Change::PutSpending { row, yes: yes.id().clone() }
            }
            // Its row is there: it goes on, under the yes it began with.
            (None, _) => return Ok(()),
            (Some(change), _) => change,
        };
        crash_point!("ledger: before the intent");
        let done = self.book.store.commit(change).await;
        crash_point!("ledger: after the intent");
        if let Some(yes) = yes {
            yes.end(done.as_ref().err());
        }
        done.map_err(|error| {
            tracing::error!(%error, operation = %ticket.key().id(), "an intent is not on record");
            self.book.not_intended(ticket);
            LedgerError { doing: "record an intent" }
        })
    }

    /// On record before the answer. Joiners are told. `Err`: the entry is unknown until the store takes the end,
    /// unless nothing was sent. Of a write that goes on and may have happened before ([`Ticket::may_have_happened`])
    /// "not executed" says nothing: it is as unknown as it was, and may go on again.
    pub async fn finish(&self, ticket: Ticket, end: End) -> Result<(), LedgerError> {
        let (tell, heard) = oneshot::channel();
        crash_point!("ledger: before the end");
        self.book.finish(ticket, end, tell);
        let done = heard.await.unwrap_or(Err(LedgerError { doing: "record an end" }));
        crash_point!("ledger: after the end");
        done
    }

    /// unknown → executed | not_executed, nothing else, once it is on record. True when that very sending was unknown.
    #[expect(clippy::needless_pass_by_value, reason = "an end is told once")]
    pub fn late(&self, sending: &Sending, end: End) -> bool {
        self.book.late(*sending, &end)
    }

    /// (tool, open reviews) and when the oldest began.
    pub fn reviews_open(&self) -> (Vec<(ToolName, u64)>, Option<SystemTime>) {
        self.book.reviews_open()
    }

    /// Unknown writes, oldest first, at most `most`.
    pub fn reviews(&self, most: usize) -> Vec<EntryView> {
        self.book.reviews(most)
    }

    /// Writes that wait for a person, and those that did, as long as they are kept; in no order.
    pub fn reviewed(&self) -> Vec<EntryView> {
        self.book.reviewed()
    }

    /// Every live occurrence of an operation, by its short name (`op_…`).
    pub fn find(&self, operation: &str) -> Vec<EntryView> {
        self.book.find(operation)
    }

    /// A person's word about an unknown write, once: lasting when this returns. `seen`: the version it was decided on;
    /// another one is refused.
    pub async fn resolve(
        &self,
        key: &IdempotencyKey,
        seen: Option<Version>,
        resolution: Resolution,
        verdict: Verdict,
    ) -> Result<(), ResolveError> {
        self.book.resolve(*key, seen, resolution, verdict).await
    }

    /// False: new operations are refused, because every place is taken or nothing can be recorded.
    pub fn writable(&self) -> bool {
        self.book.has_place() && self.book.store.writable()
    }

    /// Bytes of the store on disk.
    pub fn store_bytes(&self) -> u64 {
        self.book.store.bytes()
    }

    /// Forgets finished entries past their `ttl`, and tries again to record what could not be; called on a timer.
    pub fn sweep(&self) {
        self.book.sweep(Instant::now());
        self.book.forget_rows();
        self.book.pay_owed();
        self.resolver.sweep(self);
    }

    /// All that was handed in is on record, and the store is closed: later writes are refused.
    pub async fn close(&self) {
        self.book.store.close().await;
    }
}
