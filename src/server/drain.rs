//! The end of a connection: by itself, or because the gateway drains. An exchange in hand is answered first.
//! A connection with none in hand closes at once; the answer of the last one says `Connection: close`.

use std::pin::pin;

use hyper_util::server::graceful::GracefulConnection;
use tokio_util::sync::CancellationToken;

use super::io::Watching;

/// Runs a connection until it is closed.
pub(super) async fn until_closed<C: GracefulConnection>(
    connection: C,
    shutdown: &CancellationToken,
    watching: &Watching,
) -> Result<(), C::Error> {
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        ended = connection.as_mut() => return ended,
        () = shutdown.cancelled() => {}
    }
    if !watching.served() && !watching.bytes_came() {
        // It has never asked for anything, so nothing is lost; hyper would wait for its first head.
        return Ok(());
    }
    connection.as_mut().graceful_shutdown();
    connection.await
}
