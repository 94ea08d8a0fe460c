//! The accept loop of the health listener. It knows no bound but its own: a flood of agents must not silence probes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::StartError;
use crate::health::{Health, MAX_CONNECTIONS};

/// After a failed accept (no descriptors left), at most one try in this time.
const BREATH: Duration = Duration::from_millis(100);

/// Binds and serves until `stop`; the address that was really bound.
pub(super) async fn serve(
    address: SocketAddr,
    health: Arc<Health>,
    stop: CancellationToken,
) -> Result<SocketAddr, StartError> {
    let failed =
        |source| StartError::Listen { what: "health", address: address.to_string(), source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    tokio::spawn(async move {
        tokio::select! {
            () = accept(listener, health) => {}
            () = stop.cancelled() => {}
        }
    });
    Ok(bound)
}

async fn accept(listener: TcpListener, health: Arc<Health>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut breath: Interval = interval(BREATH);
    breath.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Past the bound the connection is closed at once: a probe tries again.
                let Ok(place) = places.clone().try_acquire_owned() else { continue };
                let health = health.clone();
                tokio::spawn(async move {
                    health.serve(stream).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the health listener could not accept");
                breath.tick().await;
            }
        }
    }
}
