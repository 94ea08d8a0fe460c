//! An inner session with a server that is a child process: started by its first request, started again when it ended,
//! ever later and not for ever; ended whole when nobody needs it.
//!
//! The child lives on the main runtime, whatever runtime its calls come from. See `cli/child.rs` for what stands
//! between it and us.

mod ending;
mod exchange;
mod fault;
mod hear;
mod line;
mod nursery;
mod open;
mod pending;
mod pipes;
mod process;
mod restarts;
mod tail;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use self::exchange::Ask;
use self::fault::Fault;
pub use self::nursery::own_program;
pub(super) use self::nursery::{Grounds, Nursery};
use self::open::First;
use self::process::Process;
use self::restarts::{Restarts, Start};
use super::handshake;
use super::link::{Ends, Inbound, Lost, Met, Reply, Wire};
use super::sessions::Declares;
use crate::mcp::version::Era;

/// From the start of a child to the end of the first words with it; launchers may have to fetch what they launch.
const OPENING: Duration = Duration::from_secs(60);
/// A restart that is due within this is waited for; else a call is refused at once.
const SOON: Duration = Duration::from_secs(1);

/// What a link is for.
pub(super) struct Owner {
    pub(super) declares: Declares,
    /// Hears what belongs to no call.
    pub(super) fallback: Arc<dyn Inbound>,
    /// All calls are of one agent.
    pub(super) of_one: bool,
}

/// One inner session. Cheap to clone.
#[derive(Debug, Clone)]
pub(in crate::backends::mcp) struct ChildLink(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    nursery: Nursery,
    declares: Declares,
    fallback: Arc<dyn Inbound>,
    of_one: bool,
    state: Mutex<State>,
    closed: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    now: Now,
    restarts: Restarts,
}

type Opening = watch::Receiver<Option<Result<Open, Fault>>>;

#[derive(Debug, Default)]
enum Now {
    #[default]
    Nothing,
    /// One task opens, all who want it wait for that.
    Opening(Opening),
    Open(Open),
}

#[derive(Debug, Clone)]
struct Open {
    process: Arc<Process>,
    met: Arc<Met>,
}

impl ChildLink {
    pub(super) fn new(nursery: &Nursery, owner: Owner) -> Self {
        let Owner { declares, fallback, of_one } = owner;
        Self(Arc::new(Inner {
            nursery: nursery.clone(),
            declares,
            fallback,
            of_one,
            state: Mutex::default(),
            closed: CancellationToken::new(),
        }))
    }

    /// Starts the child if it does not run; what was agreed on.
    pub(super) async fn open(&self) -> Result<Arc<Met>, Lost> {
        Ok(self.opened().await?.met)
    }

    async fn opened(&self) -> Result<Open, Lost> {
        let mut opening = match self.0.current() {
            Ok(open) => return Ok(open),
            Err(opening) => opening,
        };
        let opened = opening.wait_for(Option::is_some).await;
        match opened.as_deref() {
            Ok(Some(Ok(open))) => Ok(open.clone()),
            Ok(Some(Err(fault))) => Err(fault.clone().into()),
            // The runtime of the children has ended.
            Ok(None) | Err(_) => Err(Lost::Unusable("the gateway ends".into())),
        }
    }

    pub(super) async fn request(&self, wire: Wire<'_>) -> Result<Reply, Lost> {
        let Open { process, met } = self.opened().await?;
        let params = match met.revision.era() {
            Era::Modern => {
                let mut declared = self.0.declares.declared(Era::Modern);
                if wire.tasks {
                    handshake::declare_tasks(&mut declared);
                }
                handshake::modern(wire.params, met.revision, &declared)
            }
            Era::Legacy => wire.params,
        };
        let ask = Ask {
            method: wire.method,
            params: &params,
            inbound: wire.inbound,
            gate: wire.gate,
            progress: wire.progress,
            cancelled: Some(wire.cancelled),
            opens: false,
        };
        process.ask(ask).await
    }

    /// Until the child that runs now has ended; its one stream carries everything, and the fallback hears it. `gone`
    /// where it ended unwanted.
    pub(super) async fn listen(&self, inbound: Arc<dyn Inbound>, gone: impl Fn(Ends) + Send) {
        let process = match &self.0.lock().now {
            Now::Open(open) => open.process.clone(),
            Now::Nothing | Now::Opening(_) => return,
        };
        inbound.listening();
        process.gone.cancelled().await;
        if process.over.get().is_none_or(|over| over.failed) {
            gone(Ends::Lost);
        }
    }

    /// Cancelled when the child that runs now has ended.
    pub(super) fn life(&self) -> Option<CancellationToken> {
        match &self.0.lock().now {
            Now::Open(open) => Some(open.process.gone.clone()),
            Now::Nothing | Now::Opening(_) => None,
        }
    }

    /// The child is no longer wanted; calls in flight may end. Never waits.
    pub(super) fn close(&self) {
        self.0.closed.cancel();
        if let Now::Open(open) = std::mem::take(&mut self.0.lock().now) {
            open.process.stop();
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The child that runs, or the opening of one.
    fn current(self: &Arc<Self>) -> Result<Open, Opening> {
        let mut state = self.lock();
        match &state.now {
            Now::Open(open) if open.process.serves() => return Ok(open.clone()),
            Now::Opening(opening) => return Err(opening.clone()),
            Now::Open(open) => {
                if let Some((at, lived)) = open.process.failure() {
                    state.restarts.failed(at, lived, fastrand::f64());
                }
            }
            Now::Nothing => {}
        }
        let (told, opening) = watch::channel(None);
        state.now = Now::Opening(opening.clone());
        drop(state);
        let inner = self.clone();
        drop(self.nursery.run(async move {
            let opened = inner.begin().await;
            inner.lock().now = match &opened {
                Ok(open) if !inner.closed.is_cancelled() => Now::Open(open.clone()),
                Ok(open) => {
                    open.process.stop();
                    Now::Nothing
                }
                Err(_) => Now::Nothing,
            };
            // Nobody may be waiting any more.
            drop(told.send(Some(opened)));
        }));
        Err(opening)
    }

    async fn begin(&self) -> Result<Open, Fault> {
        let closed = || Fault::Unusable("the session was closed".into());
        let mut probed = false;
        tokio::select! {
            may = self.until_it_may_start() => may?,
            () = self.closed.cancelled() => return Err(closed()),
        }
        loop {
            let place = tokio::select! {
                place = self.nursery.place() => place?,
                () = self.closed.cancelled() => return Err(closed()),
            };
            self.lock().restarts.started(Instant::now());
            let began = Instant::now();
            let failed = |fault| {
                self.lock().restarts.failed(Instant::now(), began.elapsed(), fastrand::f64());
                fault
            };
            let process = Process::start(&self.nursery, place, self.fallback.clone(), self.of_one);
            let process = process.map_err(|fault| match fault {
                // Nothing was started: there is nothing to be slow about.
                Fault::NoCredential(_) | Fault::Busy => fault,
                Fault::Unusable(_) => failed(fault),
            })?;
            let meeting = timeout(OPENING, open::meet(&process, &self.declares, probed));
            let met = tokio::select! {
                met = meeting => met,
                () = self.closed.cancelled() => {
                    process.stop();
                    return Err(closed());
                }
            };
            match met {
                Ok(Ok(First::Met(met))) => return Ok(Open { process, met }),
                Ok(Ok(First::EndedOnProbe)) => probed = true,
                Ok(Err(fault)) => {
                    process.kill("it could not be met");
                    return Err(failed(fault));
                }
                Err(_) => {
                    let words = format!("it did not begin a session within {OPENING:?}");
                    process.kill(&words);
                    return Err(failed(Fault::Unusable(words)));
                }
            }
        }
    }

    #[expect(clippy::disallowed_methods, reason = "the back-off itself")]
    async fn until_it_may_start(&self) -> Result<(), Fault> {
        let now = Instant::now();
        let start = self.lock().restarts.when(now);
        match start {
            Start::Now => Ok(()),
            Start::At(at) if at - now <= SOON => {
                sleep_until(at).await;
                Ok(())
            }
            Start::At(at) => Err(Fault::Unusable(format!(
                "the server's process ended; it may be started again in {} s",
                (at - now).as_secs() + 1
            ))),
            Start::NotNow => Err(Fault::Unusable(
                "the server's process has ended too often; it is started again within ten minutes, or when its \
                 section of the policy changes"
                    .into(),
            )),
        }
    }
}
