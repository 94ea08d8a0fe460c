//! One running child: what it says is heard, and it is ended whole. A task on the main runtime watches over it; calls
//! reach it from any runtime through a bounded queue of lines.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::ending::{self, Over};
use super::fault::Fault;
use super::line::Line;
use super::nursery::{Nursery, Place};
use super::pending::Pending;
use super::pipes::{self, Ended, MAX_LINE};
use super::tail::Tail;
use crate::backends::mcp::link::Inbound;

/// Lines that wait for the child to read; past it a request is refused.
pub(super) const MAX_LINES: usize = 32;
/// Requests of the server that are being answered.
const MAX_ASKS: usize = 32;
/// For answers that are in the pipe when the child has ended.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// For calls in flight when the child is no longer wanted.
const LINGER: Duration = Duration::from_secs(30);

/// One child. It ends when it is told to, not when this is dropped.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) nursery: Nursery,
    pub(super) pending: Pending,
    pub(super) lines: mpsc::Sender<Line>,
    ids: AtomicU64,
    began: Instant,
    /// No longer wanted: what is in flight may end.
    stop: CancellationToken,
    /// To be ended now, and why.
    kill: CancellationToken,
    killed: OnceLock<String>,
    /// No call is served any more.
    pub(super) gone: CancellationToken,
    pub(super) over: OnceLock<Over>,
    pub(super) tail: Arc<Mutex<Tail>>,
    place: Weak<Place>,
    /// Who hears what belongs to no call.
    pub(super) fallback: Arc<dyn Inbound>,
    /// All its calls are of one agent.
    pub(super) of_one: bool,
    pub(super) asks: Arc<Semaphore>,
    pub(super) noise: AtomicU64,
}

/// The end of a task that owns a pipe; it is told however the task ends.
#[derive(Debug, Clone, Default)]
struct PipeEnd {
    over: CancellationToken,
    how: Arc<OnceLock<Ended>>,
}

impl PipeEnd {
    fn of(self, work: impl Future<Output = Ended>) -> impl Future<Output = ()> {
        // Made here, because a task that is aborted before its first step drops what it holds, and does nothing.
        let over = self.over.clone().drop_guard();
        async move {
            // Dropped last: the pipe is closed by then.
            let _over = over;
            let how = work.await;
            self.how.get_or_init(|| how);
        }
    }
}

impl Process {
    /// Starts a child in its place.
    pub(super) fn start(
        nursery: &Nursery,
        place: Place,
        fallback: Arc<dyn Inbound>,
        of_one: bool,
    ) -> Result<Arc<Self>, Fault> {
        let mut command = nursery.command()?;
        let started = command.spawn();
        let mut child = started
            .map_err(|error| Fault::Unusable(format!("its process cannot be started: {error}")))?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(Fault::Unusable("its process came without pipes".into()));
        };
        let place = Arc::new(place);
        let (lines, waiting) = mpsc::channel(MAX_LINES);
        let process = Arc::new(Self {
            nursery: nursery.clone(),
            pending: Pending::default(),
            lines,
            ids: AtomicU64::new(1),
            began: Instant::now(),
            stop: CancellationToken::new(),
            kill: CancellationToken::new(),
            killed: OnceLock::new(),
            gone: CancellationToken::new(),
            over: OnceLock::new(),
            tail: Arc::default(),
            place: Arc::downgrade(&place),
            fallback,
            of_one,
            asks: Arc::new(Semaphore::new(MAX_ASKS)),
            noise: AtomicU64::new(0),
        });
        tracing::debug!(server = %nursery.name(), pid = child.id(), "an MCP server's process was started");
        let (reading, writing) = (PipeEnd::default(), PipeEnd::default());
        let (hears, limit) = (process.clone(), MAX_LINE.max(nursery.response_bytes()));
        let read = async move { pipes::read(stdout, limit, |line| hears.hear(line)).await };
        let tasks = Tasks {
            reader: nursery.run(reading.clone().of(read)),
            writer: nursery.run(writing.clone().of(pipes::write(stdin, waiting))),
            stderr: nursery.run(pipes::drain(stderr, process.tail.clone(), nursery.clone())),
            reading,
            writing,
        };
        drop(nursery.run(process.clone().supervise(child, place, tasks)));
        Ok(process)
    }

    /// Integers, rising, never twice.
    pub(super) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn serves(&self) -> bool {
        !(self.gone.is_cancelled() || self.stop.is_cancelled() || self.kill.is_cancelled())
    }

    /// When it failed and how long it had lived, where nobody wanted it to end.
    pub(super) fn failure(&self) -> Option<(Instant, Duration)> {
        match self.over.get() {
            Some(over) => over.failed.then_some((over.at, over.lived)),
            None => self.kill.is_cancelled().then(|| (Instant::now(), self.began.elapsed())),
        }
    }

    /// No longer wanted. Never waits.
    pub(super) fn stop(&self) {
        self.leaves();
        self.stop.cancel();
    }

    /// Ends it now: it cannot be talked to any more.
    pub(super) fn kill(&self, why: &str) {
        self.killed.get_or_init(|| why.to_owned());
        self.leaves();
        self.kill.cancel();
    }

    fn leaves(&self) {
        if let Some(place) = self.place.upgrade() {
            place.leaves();
        }
    }

    pub(super) fn tail(&self) -> std::sync::MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn supervise(
        self: Arc<Self>,
        mut child: tokio::process::Child,
        place: Arc<Place>,
        tasks: Tasks,
    ) {
        let group = child.id();
        let why = self.until_over(&mut child, &tasks).await;
        place.leaves();
        if why.may_have_said_more() {
            drop(timeout(LAST_WORDS, tasks.reading.over.cancelled()).await);
        }
        // Once the writer has ended no line begins, so what is told of each line stays true. It closes stdin, too.
        tasks.writer.abort();
        tasks.writing.over.cancelled().await;
        let words = self.words(&why);
        let over =
            Over { at: Instant::now(), lived: self.began.elapsed(), failed: why.failed(), words };
        let told = self.over.get_or_init(|| over);
        self.gone.cancel();
        self.pending.close();
        let status = ending::end(&mut child, group, why.in_a_hurry()).await;
        // What still holds the pipes has left the group, and is nobody we talk to.
        drop(timeout(LAST_WORDS, tasks.stderr_over()).await);
        tasks.reader.abort();
        tasks.stderr.abort();
        self.log(told, status);
        drop(place);
    }

    async fn until_over(&self, child: &mut tokio::process::Child, tasks: &Tasks) -> Why {
        let unwanted = async {
            self.stop.cancelled().await;
            drop(timeout(LINGER, self.pending.idle()).await);
        };
        tokio::select! {
            biased;
            () = self.kill.cancelled() => Why::Killed,
            () = tasks.reading.over.cancelled() => match tasks.reading.how.get() {
                Some(Ended::TooLong(limit)) => Why::TooLong(*limit),
                Some(Ended::HalfLine) => Why::HalfLine,
                Some(Ended::Closed | Ended::Stuck) | None => Why::Closed,
            },
            () = tasks.writing.over.cancelled() => match tasks.writing.how.get() {
                Some(Ended::Stuck) => Why::Stuck,
                Some(Ended::Closed | Ended::TooLong(_) | Ended::HalfLine) | None => Why::Deaf,
            },
            _ = child.wait() => Why::Exited,
            () = unwanted => Why::Unwanted,
        }
    }

    /// Why it ended, for people; with the last thing it said.
    fn words(&self, why: &Why) -> String {
        let mut words = match why {
            Why::Unwanted => "it was no longer needed".to_owned(),
            Why::Killed => self.killed.get().cloned().unwrap_or_default(),
            Why::TooLong(limit) => format!("it wrote a line longer than {limit} bytes"),
            Why::HalfLine => "it stopped in the middle of a line".to_owned(),
            Why::Closed | Why::Exited => "its process ended".to_owned(),
            Why::Deaf => "it closed its stdin".to_owned(),
            Why::Stuck => "it reads no more of what it is sent".to_owned(),
        };
        if let Some(last) = self.tail().last_line() {
            words = format!("{words}; its stderr ends with: {last}");
        }
        self.nursery.blot(&mut words);
        words
    }

    fn log(&self, over: &Over, status: Option<std::process::ExitStatus>) {
        let server = self.nursery.name();
        let status = status.map(|status| status.to_string());
        let (why, lived_ms) = (&over.words, over.lived.as_millis());
        if !over.failed {
            tracing::debug!(%server, why, status, lived_ms, "an MCP server's process was ended");
            return;
        }
        let mut stderr = self.tail().text();
        self.nursery.blot(&mut stderr);
        tracing::warn!(%server, why, status, lived_ms, "an MCP server's process ended");
        tracing::debug!(%server, stderr, "what it wrote to stderr last");
    }
}

/// The tasks that own the pipes.
#[derive(Debug)]
struct Tasks {
    reader: tokio::task::JoinHandle<()>,
    writer: tokio::task::JoinHandle<()>,
    stderr: tokio::task::JoinHandle<()>,
    reading: PipeEnd,
    writing: PipeEnd,
}

impl Tasks {
    async fn stderr_over(&self) {
        while !self.stderr.is_finished() {
            drop(timeout(Duration::from_millis(10), std::future::pending::<()>()).await);
        }
    }
}

#[derive(Debug)]
enum Why {
    Unwanted,
    Killed,
    TooLong(usize),
    HalfLine,
    /// Stdout ended.
    Closed,
    /// Stdin was closed from the other side.
    Deaf,
    Stuck,
    Exited,
}

impl Why {
    fn may_have_said_more(&self) -> bool {
        matches!(self, Why::Deaf | Why::Exited)
    }

    /// It ends by itself when its stdin is closed, unless it has lost its way.
    fn in_a_hurry(&self) -> bool {
        matches!(self, Why::Killed | Why::TooLong(_) | Why::HalfLine | Why::Stuck)
    }

    fn failed(&self) -> bool {
        !matches!(self, Why::Unwanted)
    }
}
