//! Room for what is read whole: answers, events and lines of tools. Each has its own limit; this is the one over all of
//! them, so that many long answers at once wait for each other and not for more memory.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// Most bytes of long answers that are held at once, over all tools, while they are read.
pub(super) const ROOM: usize = 32 << 20;
/// So much each reader holds without asking. Readers are as many as calls, and most answers are shorter.
pub(super) const FREE: usize = 64 << 10;
/// Bytes that one permit stands for.
const UNIT: usize = 4 << 10;

/// A stream that belongs to no call has no deadline: in this time what it began of a long message is here, or nobody
/// waits for the rest.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// One for the process: memory is the process's.
static PERMITS: Semaphore = Semaphore::const_new(ROOM / UNIT);

/// One reader's part of the room, given back when it is dropped.
#[derive(Debug, Default)]
pub(super) struct Place {
    permits: Option<SemaphorePermit<'static>>,
    /// Bytes that may be held.
    bytes: usize,
    since: Option<Instant>,
}

impl Place {
    /// Before `held` bytes are held: waits until there is room for `most`, the longest that this may become. All of it
    /// is taken at once, as nobody may hold a part and wait for the rest; a single one always fits.
    pub(super) async fn wait(&mut self, held: usize, most: usize) {
        if held > FREE && self.permits.is_none() {
            // The semaphore is never closed.
            self.permits = PERMITS.acquire_many(units(most)).await.ok();
            self.bytes = most;
            self.since = Some(Instant::now());
        }
    }

    /// For what turns out to be longer than what was waited for: takes what lacks up to `most`, if it is there at once.
    pub(super) fn try_more(&mut self, held: usize, most: usize) -> bool {
        if held <= self.bytes.max(FREE) {
            return true;
        }
        let more = units(most).saturating_sub(units(self.bytes));
        let Ok(more) = PERMITS.try_acquire_many(more) else { return false };
        match &mut self.permits {
            Some(permits) => permits.merge(more),
            None => self.permits = Some(more),
        }
        self.bytes = most;
        self.since.get_or_insert_with(Instant::now);
        true
    }

    /// The next piece of a stream without a deadline of its own. `None`: it has held its place for too long.
    pub(super) async fn patiently<T>(&self, piece: impl Future<Output = T>) -> Option<T> {
        match self.since {
            Some(since) => tokio::time::timeout_at(since + PATIENCE, piece).await.ok(),
            None => Some(piece.await),
        }
    }

    /// What was held is handed on.
    pub(super) fn leave(&mut self) {
        *self = Self::default();
    }
}

/// Never more than there are: whoever may hold more than the whole room takes all of it.
fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.min(ROOM).div_ceil(UNIT)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn now(future: impl Future) -> bool {
        matches!(pin!(future).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_))
    }

    #[test]
    fn long_answers_wait_for_each_other_and_short_ones_for_nobody() {
        let (mut one, mut two, mut three) = (Place::default(), Place::default(), Place::default());
        assert!(now(one.wait(FREE + 1, ROOM / 2)));
        assert!(now(two.wait(FREE + 1, ROOM / 2)));
        assert!(!now(three.wait(FREE + 1, 1 << 20)), "full");
        assert!(now(three.wait(FREE, 1 << 20)), "a short one takes none");
        assert!(now(one.wait(ROOM / 2, ROOM / 2)), "it has its place");
        assert!(!one.try_more(ROOM / 2 + 1, ROOM), "and no more than that while there is none");
        drop(two);
        assert!(now(three.wait(FREE + 1, 1 << 20)));
        three.leave();
        assert!(one.try_more(ROOM / 2 + 1, ROOM));
        drop(one);
        let mut whole = Place::default();
        assert!(
            now(whole.wait(FREE + 1, 10 * ROOM)),
            "one that is longer than the room fits alone"
        );
        drop(whole);
        assert_eq!(PERMITS.available_permits(), ROOM / UNIT);
    }
}
