//! Phases of an attempt: marked by back ends, heard by `timeout`. No timers here.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::time::{Duration, Instant};

use super::outcome::Failed;

/// How far an attempt got. Order is the order of time; `Progress` may repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    Connecting = 0,
    Connected = 1,
    /// The send gate has opened: bytes may be on the wire from here on.
    Sending = 2,
    /// Written as far as that can be known.
    Written = 3,
    FirstByte = 4,
    /// Another byte of the body, either way.
    Progress = 5,
    Ended = 6,
}

impl Phase {
    fn from_u8(raw: u8) -> Self {
        match raw {
            0 => Phase::Connecting,
            1 => Phase::Connected,
            2 => Phase::Sending,
            3 => Phase::Written,
            4 => Phase::FirstByte,
            5 => Phase::Progress,
            _ => Phase::Ended,
        }
    }
}

/// Shared by the one `timeout` of an attempt and the back end that marks it.
#[derive(Debug, Clone)]
pub struct Progress(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    started: Instant,
    phase: AtomicU8,
    /// One more than the microseconds from `started` to the mark of each phase; 0 = not reached.
    at: [AtomicU64; 7],
    marked: Notify,
    if_cut: Mutex<Option<IfCut>>,
}

/// What an attempt comes to should nothing of the answer's body follow; asked for only then.
struct IfCut(Box<dyn Fn() -> Failed + Send>);

impl std::fmt::Debug for IfCut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IfCut")
    }
}

impl Progress {
    pub fn start() -> Self {
        Self(Arc::new(Inner {
            started: Instant::now(),
            phase: AtomicU8::new(0),
            at: Default::default(),
            marked: Notify::new(),
            if_cut: Mutex::default(),
        }))
    }

    /// Marks a phase; going back is ignored, `Progress` may repeat.
    pub fn mark(&self, phase: Phase) {
        let reached = self.0.phase.fetch_max(phase as u8, Ordering::AcqRel);
        if (phase as u8) < reached {
            return;
        }
        let micros = u64::try_from(self.0.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        if let Some(slot) = self.0.at.get(phase as usize) {
            slot.store(micros.saturating_add(1), Ordering::Release);
        }
        self.0.marked.notify_one();
    }

    pub fn phase(&self) -> Phase {
        Phase::from_u8(self.0.phase.load(Ordering::Acquire))
    }

    pub fn started(&self) -> Instant {
        self.0.started
    }

    /// When a phase was (last) marked, counted from the start of the attempt.
    pub fn reached(&self, phase: Phase) -> Option<Duration> {
        let micros = self.0.at.get(phase as usize)?.load(Ordering::Acquire);
        micros.checked_sub(1).map(Duration::from_micros)
    }

    /// The head of the answer is here: what the attempt comes to should nothing of its body follow. The back end
    /// judges it, because it alone reads statuses.
    pub fn head_came(&self, if_cut: impl Fn() -> Failed + Send + 'static) {
        *self.0.if_cut.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(IfCut(Box::new(if_cut)));
    }

    /// What the head of the answer, if it came, settles without its body.
    pub fn if_cut(&self) -> Option<Failed> {
        let known = self.0.if_cut.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().map(|judge| judge.0())
    }

    /// Waits for the next mark. One listener: `timeout`.
    pub async fn marked(&self) {
        self.0.marked.notified().await;
    }
}
