//! Messages of servers that were let go, by reason: counted, so that silence is never taken for peace.

use std::sync::Arc;

use crate::telemetry::metrics::Metrics;

/// Counts of one process.
#[derive(Debug)]
pub(super) struct Drops {
    metrics: Arc<Metrics>,
}

impl Drops {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics }
    }

    /// unknown_id, too_many_requests, not_wanted, stale_progress, malformed, noise, queue_full
    pub(super) fn count(&self, why: &'static str) {
        self.metrics.mcp_message_dropped(why);
    }
}
