//! The end of a connection: by itself, because it is quiet, or because the gateway drains. An exchange in hand is answered first.
//! A connection with none in hand closes at once; the answer of the last one says `Connection: close`.

use std::pin::pin;
use std::time::Duration;

use hyper_util::server::graceful::GracefulConnection;
use tokio_util::sync::CancellationToken;

use super::io::Watching;

/// For the last frames of a quiet connection (RFC 9113 §6.8).
const FAREWELL: Duration = Duration::from_secs(2);

/// Runs a connection until it is closed.
pub(super) async fn until_closed<C: GracefulConnection>(
    connection: C,
    shutdown: &CancellationToken,
    watching: &Watching,
    quiet: Duration,
) -> Result<(), C::Error> {
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        ended = connection.as_mut() => return ended,
        () = shutdown.cancelled() => {}
        () = watching.quiet(quiet) => {
            // A peer that is there takes its leave; any other is not waited for.
            connection.as_mut().graceful_shutdown();
            let ended = tokio::time::timeout(FAREWELL, connection).await;
            return ended.unwrap_or(Ok(()));
        }
    }
    if !watching.served() && !watching.bytes_came() {
        // It has never asked for anything, so nothing is lost; hyper would wait for its first head.
        return Ok(());
    }
    connection.as_mut().graceful_shutdown();
    connection.await
}
