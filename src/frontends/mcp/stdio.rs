//! The same server over standard streams: one message a line, several at once, answers in whatever order they come.

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Lines that wait to be written; past it the reader is taken for stalled, and the connection ends.
pub(crate) const MAX_LINES: usize = 1024;

/// Writes lines for the one reader.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    lines: mpsc::Sender<Bytes>,
    gone: CancellationToken,
}

impl Writer {
    pub(crate) fn new(gone: CancellationToken) -> (Self, mpsc::Receiver<Bytes>) {
        let (lines, written) = mpsc::channel(MAX_LINES);
        (Self { lines, gone }, written)
    }

    /// Queues one message. False: nobody reads.
    pub(super) fn send(&self, message: &[u8]) -> bool {
        let sent = self.lines.try_send(Bytes::copy_from_slice(message)).is_ok();
        if !sent {
            self.gone.cancel();
        }
        sent
    }

    /// Cancelled once nobody reads.
    pub(super) fn gone(&self) -> &CancellationToken {
        &self.gone
    }
}
