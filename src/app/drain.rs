//! The end: not ready at once, served until the delay is over, then no new calls; those in flight finish, the rest is
//! left to the end of its runtime.

use std::future::Future;
use std::time::Duration;

use tokio::time::timeout;

use super::Gateway;

/// Time for connections to take the answers that are already made.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

impl Gateway {
    /// Drains and ends every task. `hurry` = a second signal: what is left is left. True = all ended by itself.
    /// Records are closed by the caller, after the runtimes: what is left is recorded as its task is dropped.
    pub(super) async fn drain(&self, hurry: impl Future<Output = ()>) -> bool {
        tracing::info!("draining");
        self.health.draining();
        self.metrics.draining(true);
        let ended = tokio::select! {
            () = hurry => false,
            ended = self.finish() => ended,
        };
        self.engine.drain(); // a second signal may come within the delay
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
        self.servers.shutdown().await;
        self.ledger.close().await;
        tracing::info!("drained");
        ended
    }

    /// Serves until the delay is over, because address lists still name this gateway and the agent beside it has its
    /// own end to come to. From then on new calls are refused, and those in flight are waited for, writes whose agent
    /// has gone too. Connections are taken to the last: `draining` and a time tell more than a refused connection.
    async fn finish(&self) -> bool {
        let delay = self.config.drain_delay;
        if !delay.is_zero() {
            // Nothing ends this wait but its time: a pause, not a limit.
            let _over = timeout(delay, std::future::pending::<()>()).await;
        }
        self.engine.drain();
        tracing::info!("new calls are refused, those in flight are waited for");
        self.exchanges.close();
        self.tasks.close();
        let all = async {
            self.exchanges.wait().await;
            self.tasks.wait().await;
        };
        timeout(self.config.drain_timeout, all).await.is_ok()
    }
}
