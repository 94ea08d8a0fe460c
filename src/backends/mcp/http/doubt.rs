//! A server with sessions that answers 503: it has too much to do, or whoever knew our session is gone and it does not
//! say so. Which of the two is found out beside the calls, so that a session that lives is never thrown away.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, timeout};

use super::HttpLink;
use super::session::Generation;
use crate::backends::mcp::link::Lost;

/// From the first doubt to an answer.
const COMPARED: Duration = Duration::from_secs(10);
/// Between two of them.
const AGAIN: Duration = Duration::from_secs(10);

impl HttpLink {
    /// Where a new session opens and the old one is not known at that very moment, the new one takes its place.
    pub(super) fn compare(&self, old: &Arc<Generation>) {
        if !old.may_be_doubted(Instant::now(), AGAIN) {
            return;
        }
        let (link, old) = (self.clone(), old.clone());
        self.door().beside(async move {
            if let Ok(Some(new)) = timeout(COMPARED, link.instead_of(&old)).await
                && !link.takes_the_place(&old, &new)
            {
                link.farewell(new);
            }
        });
    }

    async fn instead_of(&self, old: &Arc<Generation>) -> Option<Arc<Generation>> {
        let new = Arc::new(old.rival());
        new.opened.get_or_try_init(|| self.begin(&new)).await.ok()?;
        match self.ask(old, "ping", json!({}), &old.says(), false).await {
            Err(Lost::Status { status: 400 | 404 | 503, .. } | Lost::SessionGone(_)) => Some(new),
            Ok(_) | Err(_) => {
                self.farewell(new);
                None
            }
        }
    }

    fn takes_the_place(&self, old: &Arc<Generation>, new: &Arc<Generation>) -> bool {
        let mut current = self.lock();
        let still = Arc::ptr_eq(&current, old) && !old.closed.is_cancelled();
        if still {
            *current = new.clone();
            old.closed.cancel();
        }
        still
    }
}

impl Generation {
    /// Whether it is time to look.
    fn may_be_doubted(&self, now: Instant, again: Duration) -> bool {
        let since = u64::try_from((now - self.began).as_millis()).unwrap_or(u64::MAX);
        let wait = u64::try_from(again.as_millis()).unwrap_or(u64::MAX);
        let due =
            |last: u64| (last == 0 || since >= last.saturating_add(wait)).then_some(since.max(1));
        self.doubted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).is_ok()
    }
}
