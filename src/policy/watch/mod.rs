//! Watches the policy file and every file it refers to by looking at them once a second, and at once when told to.
//!
//! Sees what a ConfigMap does (`..data` swapped, old directories deleted), renames over the file and writes in
//! place; waits for quiet before it reads; the same content again is no change. It decides nothing: see reload.rs.

mod files;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

pub(super) use self::files::is_mount_point;
use self::files::{Stamps, contents, stamps};
use super::reload::{Loaded, ReloadEvent, ReloadStatus};
use crate::call::Digest;

/// How the files are looked at.
#[derive(Debug, Clone, Copy)]
pub struct WatchOptions {
    /// Time between two looks.
    pub poll: Duration,
    /// How long files must have stayed as they are before they are read.
    pub quiet: Duration,
    /// After this long without quiet they are read all the same.
    pub patience: Duration,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self {
            poll: Duration::from_secs(1),
            quiet: Duration::from_millis(200),
            patience: Duration::from_secs(2),
        }
    }
}

/// How often a set of files that changes while it is read is read again at once.
const MAX_READINGS: usize = 5;
const MOVING: &str = "the policy and the files it refers to change faster than they can be read";

type Loader<T, P> = Arc<dyn Fn(&Path) -> Loaded<T, P> + Send + Sync>;

/// Watches one policy. Made before the first load, so that no change falls between the two.
pub struct Watcher<T, P> {
    path: PathBuf,
    options: WatchOptions,
    load: Loader<T, P>,
    /// The policy file first, then what the last reading referred to. A policy of at most 1 MiB bounds their number.
    files: Vec<PathBuf>,
    seen: Stamps,
    /// Files may change twice within one tick of their clock: after a change the next look reads them again.
    look_again: bool,
    /// Content of the last reading; `None` = it could not be read.
    tried: Option<Digest>,
    /// What is obeyed: the files it was made of, and their content.
    applied: Option<(Vec<PathBuf>, Digest)>,
    next_look: Instant,
    status: watch::Sender<ReloadStatus>,
}

impl<T, P> std::fmt::Debug for Watcher<T, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watcher")
            .field("path", &self.path)
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

/// One reading of a set of files.
struct Reading<T, P> {
    outcome: Option<Result<T, Vec<P>>>,
    files: Vec<PathBuf>,
    stamps: Stamps,
    content: Result<Digest, String>,
    settled: bool,
}

impl<T: Send + 'static, P: Display + Send + 'static> Watcher<T, P> {
    /// `load` runs on a thread that may block.
    pub fn new(
        path: impl Into<PathBuf>,
        options: WatchOptions,
        load: impl Fn(&Path) -> Loaded<T, P> + Send + Sync + 'static,
    ) -> Self {
        let path = path.into();
        Self {
            files: vec![path.clone()],
            path,
            options,
            load: Arc::new(load),
            seen: Stamps::default(),
            look_again: true,
            tried: None,
            applied: None,
            next_look: Instant::now(),
            status: watch::Sender::new(ReloadStatus::default()),
        }
    }

    /// How the file stands now and from now on; for `/ready?verbose`.
    pub fn status(&self) -> watch::Receiver<ReloadStatus> {
        self.status.subscribe()
    }

    /// The load at the start: reads at once, waits for nothing. Also finds out whether the file can change at all.
    pub async fn first(&mut self) -> ReloadEvent<T, P> {
        let path = self.path.clone();
        let degraded = blocking(move || is_mount_point(&path)).await.unwrap_or(false);
        self.status.send_modify(|status| status.watch_degraded = degraded);
        let event = self.read(true).await;
        self.told(event.unwrap_or(ReloadEvent::Unchanged))
    }

    /// The next thing to tell. A word on `force` reads at once and is always answered by an event; several words
    /// that wait are one. Dropping the future loses nothing: the next call looks again.
    pub async fn next(&mut self, force: &mut mpsc::Receiver<()>) -> ReloadEvent<T, P> {
        let mut forced_by = Some(force);
        loop {
            let forced = pause(self.next_look, &mut forced_by).await;
            if forced || self.has_changed().await {
                let forced = forced || self.settle(&mut forced_by).await;
                if let Some(event) = self.read(forced).await {
                    return self.told(event);
                }
            }
            self.next_look = Instant::now() + self.options.poll;
        }
    }

    fn told(&mut self, event: ReloadEvent<T, P>) -> ReloadEvent<T, P> {
        self.next_look = Instant::now() + self.options.poll;
        self.status.send_modify(|status| status.hear(&event));
        event
    }

    async fn stamps(&self) -> Stamps {
        let files = self.files.clone();
        blocking(move || stamps(&files)).await.unwrap_or_default()
    }

    async fn has_changed(&self) -> bool {
        self.look_again || self.stamps().await != self.seen
    }

    /// Waits until the files have stayed as they are; true when told to read at once.
    async fn settle(&self, force: &mut Option<&mut mpsc::Receiver<()>>) -> bool {
        let give_up = Instant::now() + self.options.patience;
        let mut before = self.stamps().await;
        // A look again after a change finds the same stamps and need not wait.
        if before == self.seen {
            return false;
        }
        loop {
            if pause(Instant::now() + self.options.quiet, force).await {
                return true;
            }
            let now = self.stamps().await;
            if now == before || Instant::now() >= give_up {
                return false;
            }
            before = now;
        }
    }

    /// Reads the files and says what they came to; `None` = nothing worth telling.
    async fn read(&mut self, forced: bool) -> Option<ReloadEvent<T, P>> {
        let known = Known {
            path: self.path.clone(),
            files: self.files.clone(),
            applied: self.applied.clone(),
            tried: if forced { None } else { self.tried },
        };
        let load = Arc::clone(&self.load);
        let Some(found) = blocking(move || known.read(&*load)).await else {
            return Some(ReloadEvent::Unreadable(
                "the policy could not be read to its end".to_owned(),
            ));
        };
        match found {
            Found::Same { stamps, obeyed } => {
                let news = forced || self.is_failing() || stamps != self.seen;
                self.note(stamps);
                if obeyed {
                    self.tried = self.applied.as_ref().map(|(_, content)| *content);
                }
                (obeyed && news).then_some(ReloadEvent::Unchanged)
            }
            Found::New(reading) => self.take(reading, forced),
        }
    }

    fn is_failing(&self) -> bool {
        !self.status.borrow().failing.is_empty()
    }

    /// Remembers what was seen; a change is looked at once more.
    fn note(&mut self, stamps: Stamps) {
        self.look_again = stamps != self.seen;
        self.seen = stamps;
    }

    fn take(&mut self, reading: Reading<T, P>, forced: bool) -> Option<ReloadEvent<T, P>> {
        self.note(reading.stamps);
        self.look_again |= !reading.settled;
        let content = match reading.content {
            Ok(content) => content,
            Err(why) => {
                // Told once, until it can be read again or somebody asks.
                let told = !forced && self.tried.is_none() && self.is_failing();
                self.tried = None;
                return (!told).then_some(ReloadEvent::Unreadable(why));
            }
        };
        self.files.clone_from(&reading.files);
        if !reading.settled {
            // It may be a mixture of two generations: not obeyed, not remembered as read; the next look reads again.
            self.tried = None;
            return Some(ReloadEvent::Unreadable(MOVING.to_owned()));
        }
        self.tried = Some(content);
        match reading.outcome? {
            Ok(policy) => {
                self.applied = Some((reading.files, content));
                Some(ReloadEvent::Applied(policy))
            }
            Err(problems) => Some(ReloadEvent::Rejected(problems)),
        }
    }
}

/// What a blocking reading starts from.
struct Known {
    path: PathBuf,
    files: Vec<PathBuf>,
    applied: Option<(Vec<PathBuf>, Digest)>,
    tried: Option<Digest>,
}

enum Found<T, P> {
    /// Content that was read before: it is what is `obeyed`, or what was rejected already.
    Same {
        stamps: Stamps,
        obeyed: bool,
    },
    New(Reading<T, P>),
}

impl Known {
    fn read<T, P>(self, load: &(dyn Fn(&Path) -> Loaded<T, P> + Send + Sync)) -> Found<T, P> {
        let before = stamps(&self.files);
        let content = contents(&self.files);
        if let (Ok(_), Some((files, applied))) = (&content, &self.applied)
            && contents(files).as_ref() == Ok(applied)
        {
            return Found::Same { stamps: before, obeyed: true };
        }
        match &content {
            Ok(content) if Some(*content) == self.tried => {
                return Found::Same { stamps: before, obeyed: false };
            }
            Ok(_) => {}
            Err(_) => {
                let files = self.files;
                return Found::New(Reading {
                    outcome: None,
                    files,
                    stamps: before,
                    content,
                    settled: true,
                });
            }
        }
        let (mut files, mut before, mut content) = (self.files, before, content);
        let mut rounds = 0;
        loop {
            rounds += 1;
            let loaded = load(&self.path);
            let mut named = vec![self.path.clone()];
            named.extend(loaded.files);
            let now = contents(&named);
            let after = stamps(&named);
            // Files that moved while they were read, or that nobody watched yet, are read again as one set.
            let settled = named == files && after == before && now == content;
            if settled || rounds == MAX_READINGS || now.is_err() {
                let outcome = Some(loaded.outcome);
                let (files, stamps, content) = (named, after, now);
                return Found::New(Reading { outcome, files, stamps, content, settled });
            }
            (files, before, content) = (named, after, now);
        }
    }
}

/// Waits until `until`; true when a word came on `force` first. A closed channel is never asked again.
async fn pause(until: Instant, force: &mut Option<&mut mpsc::Receiver<()>>) -> bool {
    #[expect(clippy::disallowed_methods, reason = "the pace of polling itself")]
    let sleep = tokio::time::sleep_until(until);
    let Some(words) = force else {
        sleep.await;
        return false;
    };
    tokio::pin!(sleep);
    let word = tokio::select! {
        biased;
        word = words.recv() => word,
        () = &mut sleep => return false,
    };
    if word.is_some() {
        while words.try_recv().is_ok() {}
        return true;
    }
    *force = None;
    sleep.await;
    false
}

/// Runs what touches the disk where it may block; `None` when it panicked or the process ends.
async fn blocking<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Option<R> {
    tokio::task::spawn_blocking(work).await.ok()
}

#[cfg(test)]
mod tests;
