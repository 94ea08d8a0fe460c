//! One line on its way to a child's stdin: whether it has begun, which settles what may be said of a call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::Notify;

use crate::call::{Phase, Progress};

const WAITING: u8 = 0;
const BEGUN: u8 = 1;
const WRITTEN: u8 = 2;
const ABANDONED: u8 = 3;

/// Bytes, their end included, and how far they got.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) bytes: Vec<u8>,
    pub(super) fate: Arc<Fate>,
    pub(super) progress: Option<Progress>,
}

impl Line {
    pub(super) fn new(mut message: Vec<u8>, progress: Option<&Progress>) -> Self {
        message.push(b'\n');
        Self { bytes: message, fate: Arc::default(), progress: progress.cloned() }
    }
}

#[derive(Debug, Default)]
pub(super) struct Fate {
    state: AtomicU8,
    over: Notify,
}

/// Where a line was when its caller left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// It will not be written.
    Unwritten,
    /// Some of it may be out: it has to be written to its end.
    Midway,
    Written,
}

impl Fate {
    /// Asked by the writer before the first byte. `false`: nobody wants it any more.
    pub(super) fn begin(&self) -> bool {
        self.state.compare_exchange(WAITING, BEGUN, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    pub(super) fn written(&self, progress: Option<&Progress>) {
        self.state.store(WRITTEN, Ordering::Release);
        self.over.notify_one();
        if let Some(progress) = progress {
            progress.mark(Phase::Written);
        }
    }

    /// At least one byte may have gone out.
    pub(super) fn has_begun(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), BEGUN | WRITTEN)
    }

    /// The caller leaves.
    pub(super) fn leave(&self) -> Left {
        match self.state.compare_exchange(WAITING, ABANDONED, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) | Err(ABANDONED) => Left::Unwritten,
            Err(WRITTEN) => Left::Written,
            Err(_) => Left::Midway,
        }
    }

    /// Until the line is out.
    pub(super) async fn out(&self) {
        while self.state.load(Ordering::Acquire) != WRITTEN {
            self.over.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_was_left_is_never_begun_and_a_begun_one_is_never_left() {
        let line = Line::new(b"{}".to_vec(), None);
        assert_eq!(line.bytes, b"{}\n");
        assert_eq!(line.fate.leave(), Left::Unwritten);
        assert!(!line.fate.begin() && !line.fate.has_begun());
        let fate = Fate::default();
        assert!(fate.begin() && fate.has_begun());
        assert_eq!(fate.leave(), Left::Midway);
        fate.written(None);
        assert_eq!(fate.leave(), Left::Written);
    }
}
