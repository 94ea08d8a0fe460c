//! The one thread that writes: what waits shares a transaction and a sync, and hears of it after the commit.
//!
//! A group ends at a number of changes or after a short time, whichever comes first; nothing lingers to make a group
//! larger, because what arrives during a sync makes the next one.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::lock::{self, Lock};
use super::sqlite::{Db, GroupFailed};
use super::{Approval, Change, OpenError, Place, Row, StoreError, Then, begin, files, secret};
use crate::call::{IdempotencyKey, ToolResult};
use crate::telemetry::metrics::Metrics;

/// Changes that may wait; past it further ones are refused at once. Twice the calls a gateway carries.
const MAX_WAITING: usize = 1024;
/// Changes of one transaction, and how long gathering them may take.
const MAX_GROUP: usize = 128;
const MAX_GATHER: Duration = Duration::from_millis(2);
/// Without work for this long the log is moved into the file; as often a store that failed is tried again.
const IDLE: Duration = Duration::from_secs(1);
/// A log past this is moved into the file between two groups.
const MAX_WAL: u64 = 4 << 20;
/// A log past this is held by somebody's open transaction: said once a minute.
const HELD_WAL: u64 = 64 << 20;
const SAY_AGAIN: Duration = Duration::from_secs(60);
/// Time for the last changes at a close.
const CLOSING: Duration = Duration::from_secs(5);

/// The durable engine.
#[derive(Debug)]
pub struct Sqlite {
    jobs: SyncSender<Job>,
    shared: Arc<Shared>,
    secret: secret::Secret,
    /// As they were found, until somebody takes them.
    approvals: Mutex<Vec<Approval>>,
}

#[derive(Debug)]
struct Shared {
    writable: AtomicBool,
    bytes: AtomicU64,
}

type Found = Result<Option<ToolResult>, StoreError>;

enum Job {
    Change(Change, Then),
    Result(IdempotencyKey, u32, oneshot::Sender<Found>),
    Close(oneshot::Sender<()>),
}

impl Sqlite {
    pub(super) fn open(
        place: &Place,
        metrics: Arc<Metrics>,
    ) -> Result<(Self, Vec<Row>), OpenError> {
        let folder: &Path = &place.folder;
        files::folder(folder)?;
        let lock = lock::take(folder)?;
        crash_point!("store: locked");
        let secret = begin::ready(folder)?;
        crash_point!("store: secret");
        // Made before `db`, so that they end after it here too.
        let locks = [lock::store(&folder.join("store.db"))?, lock];
        let db = Db::open(folder, &secret.fingerprint().0)?;
        let rows = db.load()?;
        let approvals = Mutex::new(db.approvals()?);
        db.leave_as_found(false)?;
        let shared =
            Arc::new(Shared { writable: AtomicBool::new(true), bytes: AtomicU64::new(db.bytes()) });
        let (jobs, waiting) = sync_channel(MAX_WAITING);
        let writer = Writer {
            db,
            _locks: locks,
            shared: shared.clone(),
            metrics,
            max_bytes: place.max_bytes,
            fault: None,
            tried: Instant::now(),
            said: None,
        };
        let named = thread::Builder::new().name("store".into());
        named
            .spawn(move || writer.run(&waiting))
            .map_err(|error| OpenError::Refused(format!("no thread for the store ({error})")))?;
        Ok((Self { jobs, shared, secret, approvals }, rows))
    }

    pub(super) fn approvals(&self) -> Vec<Approval> {
        std::mem::take(&mut *self.approvals.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn secret(&self) -> &[u8] {
        self.secret.bytes()
    }

    pub(super) fn submit(&self, change: Change, then: Then) {
        match self.jobs.try_send(Job::Change(change, then)) {
            Ok(()) => {}
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => {
                if let Job::Change(_, then) = job {
                    then(Err(StoreError::Unavailable("too much waits for it".into())));
                }
            }
        }
    }

    pub(super) async fn result(&self, key: IdempotencyKey, occurrence: u32) -> Found {
        let (tell, heard) = oneshot::channel();
        let sent = self.jobs.try_send(Job::Result(key, occurrence, tell));
        let gone = || StoreError::Unavailable("too much waits for it".into());
        sent.map_err(|_| gone())?;
        heard.await.unwrap_or_else(|_| Err(gone()))
    }

    pub(super) fn writable(&self) -> bool {
        self.shared.writable.load(Ordering::Acquire)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Acquire)
    }

    pub(super) async fn close(&self) {
        let (tell, heard) = oneshot::channel();
        let mut job = Some(Job::Close(tell));
        // A queue that is full empties within a sync or two.
        let handed = async {
            while let Some(one) = job.take() {
                match self.jobs.try_send(one) {
                    Ok(()) | Err(TrySendError::Disconnected(_)) => {}
                    Err(TrySendError::Full(one)) => {
                        job = Some(one);
                        tokio::task::yield_now().await;
                    }
                }
            }
            heard.await
        };
        if tokio::time::timeout(CLOSING, handed).await.is_err() {
            tracing::error!("the store did not close in time; what was acknowledged is kept");
        }
    }
}

/// Why rows are not taken.
#[derive(Debug, Clone)]
struct Fault {
    error: StoreError,
    /// Until the next start.
    for_good: bool,
}

struct Writer {
    db: Db,
    /// After `db`, so that they end last.
    _locks: [Lock; 2],
    shared: Arc<Shared>,
    metrics: Arc<Metrics>,
    max_bytes: u64,
    fault: Option<Fault>,
    /// When a failed store was last tried.
    tried: Instant,
    /// When a long log was last spoken of.
    said: Option<Instant>,
}

impl Writer {
    fn run(mut self, waiting: &Receiver<Job>) {
        self.measure();
        let closed = loop {
            match waiting.recv_timeout(IDLE) {
                Ok(job) => {
                    crash_point!("store: a change has come");
                    if let Some(closed) = self.work(job, waiting) {
                        break Some(closed);
                    }
                    self.between_groups();
                }
                Err(RecvTimeoutError::Timeout) => self.idle(),
                Err(RecvTimeoutError::Disconnected) => break None,
            }
        };
        self.tidy();
        drop(self);
        crash_point!("store: closed");
        if closed.is_some_and(|closed| closed.send(()).is_err()) {
            tracing::debug!("nobody waits for the store to close");
        }
    }

    /// The log goes into the file, unless one of them is damaged.
    fn tidy(&self) {
        if self.fault.as_ref().is_some_and(|fault| fault.for_good) {
            if let Err(error) = self.db.leave_as_found(true) {
                tracing::warn!(%error, "a damaged store may be changed by its closing");
            }
            return;
        }
        crash_point!("store: before the last checkpoint");
        let done = self.db.checkpoint(true);
        crash_point!("store: after the last checkpoint");
        if let Err(failed) = done {
            tracing::warn!(why = failed.why, "the store's log stays beside it");
        }
    }

    /// Gathers a group and makes it lasting.
    fn work(&mut self, first: Job, waiting: &Receiver<Job>) -> Option<oneshot::Sender<()>> {
        let began = Instant::now();
        let mut group: Vec<(Change, Then)> = Vec::new();
        let mut next = Some(first);
        let mut closed = None;
        while let Some(job) = next.take() {
            match job {
                Job::Change(change, then) => group.push((change, then)),
                Job::Result(key, occurrence, tell) => {
                    self.commit(std::mem::take(&mut group)); // it may be of this very group
                    let found = self.db.result(key, occurrence);
                    if let Err(failed) = &found
                        && failed.damaged
                    {
                        self.failed(failed);
                    }
                    // Whoever asked may have gone.
                    drop(tell.send(found.map_err(|f| StoreError::Unavailable(f.why))));
                }
                Job::Close(tell) => {
                    closed = Some(tell);
                    break;
                }
            }
            if group.len() < MAX_GROUP && began.elapsed() < MAX_GATHER {
                next = waiting.try_recv().ok();
            }
        }
        self.commit(group);
        closed
    }

    fn commit(&mut self, group: Vec<(Change, Then)>) {
        let mut taken = Vec::with_capacity(group.len());
        for (change, then) in group {
            // A row that would have to be given up at its end is not begun.
            match (&self.fault, &change) {
                (Some(fault), Change::Put { .. } | Change::PutSpending { .. } | Change::Ask(_)) => {
                    then(Err(fault.error.clone()))
                }
                (Some(_) | None, _) => taken.push((change, then)),
            }
        }
        if taken.is_empty() {
            return;
        }
        let began = Instant::now();
        let changes: Vec<&Change> = taken.iter().map(|(change, _)| change).collect();
        match self.db.group(&changes) {
            Ok(fates) => {
                crash_point!("store: committed, nobody told");
                self.metrics.journal(began.elapsed(), fates.len());
                self.healed();
                self.measure();
                for ((_, then), fate) in taken.into_iter().zip(fates) {
                    then(fate);
                    crash_point!("store: one is told");
                }
            }
            Err(failed) => {
                self.failed(&failed);
                for (_, then) in taken {
                    then(Err(StoreError::Unavailable(failed.why.clone())));
                }
            }
        }
    }

    fn failed(&mut self, failed: &GroupFailed) {
        if self.fault.is_none() {
            tracing::error!(why = failed.why, "the store cannot be written: writes are refused");
        }
        let for_good = failed.damaged || self.fault.as_ref().is_some_and(|fault| fault.for_good);
        self.fault = Some(Fault { error: StoreError::Unavailable(failed.why.clone()), for_good });
        self.tried = Instant::now();
        self.shared.writable.store(false, Ordering::Release);
    }

    /// A commit worked. What is damaged stays so; what is full is measured.
    fn healed(&mut self) {
        if self
            .fault
            .as_ref()
            .is_some_and(|fault| !fault.for_good && fault.error != StoreError::Full)
        {
            tracing::info!("the store can be written again");
            self.fault = None;
        }
    }

    fn measure(&mut self) {
        self.shared.bytes.store(self.db.bytes(), Ordering::Release);
        let full = match self.db.used() {
            Ok(used) => used >= self.max_bytes,
            Err(failed) => return self.failed(&failed),
        };
        match (&self.fault, full) {
            (None, true) => {
                tracing::error!(max = self.max_bytes, "the store is full: writes are refused");
                self.fault = Some(Fault { error: StoreError::Full, for_good: false });
            }
            (Some(Fault { error: StoreError::Full, .. }), false) => {
                tracing::info!("the store has room again");
                self.fault = None;
            }
            (None, false) | (Some(_), _) => {}
        }
        self.shared.writable.store(self.fault.is_none(), Ordering::Release);
    }

    fn between_groups(&mut self) {
        if self.db.wal_bytes() > MAX_WAL {
            self.checkpoint(false);
        }
        self.try_again();
    }

    fn idle(&mut self) {
        if self.db.wal_bytes() > 0 {
            self.checkpoint(true);
        }
        self.measure();
        self.try_again();
    }

    fn checkpoint(&mut self, wait: bool) {
        if self.fault.as_ref().is_some_and(|fault| fault.for_good) {
            return;
        }
        crash_point!("store: before a checkpoint");
        let done = self.db.checkpoint(wait);
        crash_point!("store: after a checkpoint");
        let said = self.said.is_some_and(|said| said.elapsed() < SAY_AGAIN);
        match done {
            Err(failed) if failed.damaged => self.failed(&failed),
            // Nothing is lost: the log keeps what the file has not taken.
            Err(failed) if !said => {
                self.said = Some(Instant::now());
                tracing::warn!(why = failed.why, "the store's log cannot be moved into its file");
            }
            Ok(()) if !said && self.db.wal_bytes() > HELD_WAL => {
                self.said = Some(Instant::now());
                tracing::warn!(
                    "somebody's open transaction keeps the store's log from being emptied"
                );
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// A store that failed is tried again; nobody has to ask for that.
    fn try_again(&mut self) {
        let again = self.fault.as_ref().is_some_and(|fault| fault.error != StoreError::Full);
        if !again || self.tried.elapsed() < IDLE {
            return;
        }
        self.tried = Instant::now();
        match self.db.probe() {
            Ok(()) => {
                self.healed();
                self.measure();
            }
            Err(failed) => self.failed(&failed),
        }
    }
}
