//! The end: not ready at once, no new calls, those in flight finish, the last record is written.

use std::future::Future;
use std::time::Duration;

use tokio::time::timeout;

use super::Gateway;

/// An interval needs a length.
const SHORTEST: Duration = Duration::from_millis(1);
/// Time for connections to take the answers that are already made.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

impl Gateway {
    /// Drains and ends every task. `hurry` = a second signal: what is left is left. True = all ended by itself.
    pub(super) async fn drain(&self, hurry: impl Future<Output = ()>) -> bool {
        tracing::info!("draining");
        self.health.draining();
        self.engine.drain();
        let ended = tokio::select! {
            () = hurry => false,
            ended = self.finish_calls() => ended,
        };
        if !ended {
            tracing::warn!("calls were left unfinished");
        }
        self.server.shutdown.cancel();
        self.server.tasks.close();
        if ended {
            // A connection that does not take its answer is cut with the runtime.
            let taken = timeout(LAST_ANSWERS, self.server.tasks.wait()).await;
            tracing::debug!(all_taken = taken.is_ok(), "listeners closed");
        }
        self.stop.cancel();
        self.records.close();
        tracing::info!("drained");
        ended
    }

    /// Waits for the calls in flight, writes whose agent has gone too, and at least the drain's delay: address lists
    /// that still name this gateway get an answer. Connections are taken meanwhile, because `draining` and a time
    /// tell an agent more than a refused connection.
    async fn finish_calls(&self) -> bool {
        let mut delay = tokio::time::interval(self.config.drain_delay.max(SHORTEST));
        delay.tick().await; // the first tick is now
        delay.tick().await;
        self.exchanges.close();
        self.tasks.close();
        let all = async {
            self.exchanges.wait().await;
            self.tasks.wait().await;
        };
        timeout(self.config.drain_timeout, all).await.is_ok()
    }
}
