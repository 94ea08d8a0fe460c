//! The three pipes of a child, a task each. Stdout is read line by line, stdin written a whole line at a time, stderr
//! always drained: a full pipe would stop the child.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{ChildStderr, ChildStdin};
use tokio::sync::mpsc;

use super::line::Line;
use super::nursery::Nursery;
use super::tail::Tail;
use crate::backends::room::{FREE, Place};
use crate::mcp::lines::Lines;

/// Longest line of a child that is not an answer to a tool's call.
pub(super) const MAX_LINE: usize = 16 * 1024 * 1024;
/// One read of a pipe: what the kernel holds of one.
const PIECE: usize = 64 * 1024;
/// For a line that nobody waits for, and the longest for any.
const STUCK: Duration = Duration::from_secs(60);

/// Why no more is read, or nothing more can be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    /// The child closed its end.
    Closed,
    TooLong(usize),
    /// It began a long line and does not go on with it.
    HalfLine,
    /// It takes no more.
    Stuck,
}

/// Reads lines until the stream ends. What a line is, the listener judges.
pub(super) async fn read(
    mut stdout: impl AsyncRead + Unpin,
    limit: usize,
    heard: impl Fn(&[u8]),
) -> Ended {
    let mut lines = Lines::new(limit);
    let mut piece = vec![0; PIECE];
    let mut place = Place::default();
    loop {
        // A long line holds room that others wait for.
        match lines.held() {
            ..=FREE => place.leave(),
            held => place.wait(held, limit).await,
        }
        let read = match place.patiently(stdout.read(&mut piece)).await {
            Some(Ok(0) | Err(_)) => return Ended::Closed,
            Some(Ok(read)) => read,
            None => return Ended::HalfLine,
        };
        match lines.push(piece.get(..read).unwrap_or_default()) {
            Ok(whole) => whole.iter().for_each(|line| heard(line)),
            Err(too_long) => return Ended::TooLong(too_long.limit),
        }
    }
}

/// Writes lines until there are none, or one cannot be written. Dropped midway, the line counts as begun.
pub(super) async fn write(mut stdin: ChildStdin, mut lines: mpsc::Receiver<Line>) -> Ended {
    while let Some(line) = lines.recv().await {
        if !line.fate.begin() {
            continue;
        }
        match tokio::time::timeout(STUCK, stdin.write_all(&line.bytes)).await {
            Ok(Ok(())) => line.fate.written(line.progress.as_ref()),
            Ok(Err(_)) => return Ended::Closed,
            Err(_) => return Ended::Stuck,
        }
    }
    Ended::Closed
}

/// Drains stderr and logs its lines with the server's name.
pub(super) async fn drain(mut stderr: ChildStderr, tail: Arc<Mutex<Tail>>, nursery: Nursery) {
    let mut piece = vec![0; PIECE];
    while let Ok(read @ 1..) = stderr.read(&mut piece).await {
        let lines = {
            let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
            tail.push(piece.get(..read).unwrap_or_default())
        };
        for mut line in lines {
            nursery.blot(&mut line);
            tracing::debug!(server = %nursery.name(), line, "stderr of an MCP server");
        }
    }
}
