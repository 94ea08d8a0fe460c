//! Where records go: a recorder, and the thread that writes them.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::task::spawn_blocking;

use super::StartError;
use crate::config::Audit;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::record::Recorder;

/// Longest wait for the last records at the end: a pipe that nobody reads must not hold the process.
const LAST_FLUSH: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub(super) struct Records(Arc<Recorder>);

impl Records {
    pub(super) async fn start(audit: &Audit, metrics: Arc<Metrics>) -> Result<Self, StartError> {
        let sink: Box<dyn Write + Send> = match audit {
            Audit::None => return Ok(Self(Recorder::none())),
            Audit::Stdout => Box::new(io::stdout()),
            Audit::Stderr => Box::new(io::stderr()),
            Audit::File(path) => Box::new(open(path.clone()).await?),
        };
        let (recorder, writer) = Recorder::channel(metrics);
        thread::Builder::new()
            .name("records".to_owned())
            .spawn(move || writer.run(sink))
            .map_err(|source| StartError::System { what: "a thread", source })?;
        Ok(Self(recorder))
    }

    pub(super) fn recorder(&self) -> Arc<Recorder> {
        self.0.clone()
    }

    /// Blocks until the last record is written, one second at most.
    pub(super) fn close(&self) {
        if !self.0.close(LAST_FLUSH) {
            tracing::error!("the last records could not be written in time");
        }
    }
}

/// Where a pipe has no reader yet, this waits for one; whoever awaits it may stop waiting.
async fn open(path: PathBuf) -> Result<File, StartError> {
    let to_open = path.clone();
    let opened = spawn_blocking(move || OpenOptions::new().create(true).append(true).open(to_open));
    let opened = opened.await.unwrap_or_else(|gone| Err(io::Error::other(gone)));
    opened.map_err(|source| StartError::Records { path, source })
}
