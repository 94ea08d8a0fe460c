//! Standard streams as channels: a thread reads, a thread writes, both block where they must and nowhere else.

use std::io::{self, Read as _, Write};
use std::sync::mpsc as blocking;
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::frontends::{Cutter, Read, Writer};

/// Longest line read; the policy's own limit on requests is below it.
pub(super) const MAX_LINE: usize = 64 << 20;
/// Lines read that wait to be taken; past it the agent's own pipe holds them.
const MAX_WAITING: usize = 16;
/// Time for the last lines to be taken at the end.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Lines of stdin; the channel ends with it.
pub(super) fn input(limit: usize) -> mpsc::Receiver<Read> {
    let (lines, taken) = mpsc::channel(MAX_WAITING);
    thread::Builder::new()
        .name("stdin".into())
        .spawn(move || {
            let (mut cutter, mut piece) = (Cutter::new(limit), vec![0; 64 * 1024]);
            let mut stdin = io::stdin().lock();
            loop {
                let read = match stdin.read(&mut piece) {
                    Ok(0) => break,
                    Ok(read) => read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(_) => break,
                };
                for line in cutter.push(piece.get(..read).unwrap_or_default()) {
                    if lines.blocking_send(line).is_err() {
                        return;
                    }
                }
            }
            // Nobody takes it: the connection has ended before the input.
            drop(cutter.end().map(|last| lines.blocking_send(last)));
        })
        .map_or_else(|_| taken_of_nothing(), |_| taken)
}

/// Without a thread there is nothing to read: the end of the input.
fn taken_of_nothing() -> mpsc::Receiver<Read> {
    mpsc::channel(1).1
}

/// The end of writing.
#[derive(Debug)]
pub(super) struct Written(blocking::Receiver<()>);

impl Written {
    /// Waits until the last line is taken, a while at most.
    pub(super) fn wait(&self, gone: &CancellationToken) {
        if !gone.is_cancelled() {
            // A reader that takes nothing must not hold the process.
            let ended = self.0.recv_timeout(LAST_LINES);
            tracing::debug!(?ended, "the last line was written, or its time is over");
        }
    }
}

/// Writes lines to stdout, each with its end and at once. `gone` is cancelled when they cannot be written.
pub(super) fn output(gone: &CancellationToken) -> (Writer, Written) {
    let (writer, mut lines) = Writer::new(gone.clone());
    let (done, written) = blocking::channel();
    let gone = gone.clone();
    let started = thread::Builder::new().name("stdout".into()).spawn(move || {
        let mut stdout = io::stdout().lock();
        while let Some(line) = lines.blocking_recv() {
            let mut whole = line.to_vec();
            whole.push(b'\n');
            if stdout.write_all(&whole).and_then(|()| stdout.flush()).is_err() {
                gone.cancel();
                break;
            }
        }
        drop(done);
    });
    if started.is_err() {
        writer.gone().cancel();
    }
    (writer, Written(written))
}
