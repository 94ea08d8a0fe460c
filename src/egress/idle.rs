//! Idle HTTP/1.1 connections of one upstream: last in, first out, few and young.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::client::Connection;

/// More idle connections than this are closed.
pub const MAX_IDLE: usize = 32;
/// An idle connection older than this is not used again: servers commonly close theirs after a minute or less, and
/// the longer one lies, the likelier it dies in the moment it is used.
pub const MAX_IDLE_TIME: Duration = Duration::from_secs(15);

#[derive(Debug, Default)]
pub(super) struct Idle(Mutex<Vec<Lying>>);

#[derive(Debug)]
struct Lying {
    connection: Connection,
    since: Instant,
}

impl Idle {
    fn lock(&self) -> MutexGuard<'_, Vec<Lying>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The youngest that can take a request now. Closed and old ones are dropped; one that is not ready yet stays.
    pub(super) fn take(&self) -> Option<Connection> {
        let mut lying = self.lock();
        prune(&mut lying, Instant::now());
        let at = lying.iter().rposition(|one| one.connection.is_ready())?;
        Some(lying.remove(at).connection)
    }

    /// Only for a connection whose last body was read to its end.
    pub(super) fn give(&self, connection: Connection) {
        let (mut lying, now) = (self.lock(), Instant::now());
        prune(&mut lying, now);
        if lying.len() >= MAX_IDLE {
            // The oldest lies first.
            lying.remove(0);
        }
        lying.push(Lying { connection, since: now });
    }

    /// Closes them all.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    pub(super) fn sweep(&self) {
        prune(&mut self.lock(), Instant::now());
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }
}

fn prune(lying: &mut Vec<Lying>, now: Instant) {
    lying.retain(|one| {
        let lay = now.saturating_duration_since(one.since);
        !one.connection.is_closed() && lay < MAX_IDLE_TIME
    });
}
