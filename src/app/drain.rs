//! The end: not ready at once, no new calls, those in flight finish, the last record is written.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use super::Gateway;

/// Time for connections to take the answers that are already made.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

impl Gateway {
    /// Drains and ends every task. `hurry` = a second signal: what is left is left. True = all ended by itself.
    pub(super) async fn drain(&self, hurry: impl Future<Output = ()>) -> bool {
        tracing::info!("draining");
        self.health.draining();
        self.metrics.draining(true);
        let ended = tokio::select! {
            () = hurry => false,
            ended = self.finish_calls() => ended,
        };
        if !ended {
            tracing::warn!("calls were left unfinished");
        }
        self.server.shutdown.cancel();
        self.server.tasks.close();
        // A connection that does not take its answer is cut with the runtime.
        let taken = timeout(LAST_ANSWERS, self.server.tasks.wait()).await;
        tracing::debug!(all_taken = taken.is_ok(), "listeners closed");
        self.stop.cancel();
        self.records.close();
        tracing::info!("drained");
        ended
    }

    /// Serves for the drain's delay, then refuses new calls and waits for those in flight, writes whose agent has
    /// gone too. Connections are taken meanwhile: `draining` tells an agent more than a refused connection.
    async fn finish_calls(&self) -> bool {
        let until = Instant::now() + self.config.drain_delay;
        let waited = timeout_at(until, std::future::pending::<()>()).await;
        debug_assert!(waited.is_err(), "nothing but the clock ends the delay");
        self.engine.drain();
        self.exchanges.close();
        self.tasks.close();
        let all = async {
            self.exchanges.wait().await;
            self.tasks.wait().await;
        };
        timeout(self.config.drain_timeout, all).await.is_ok()
    }
}
