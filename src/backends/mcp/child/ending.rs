//! How a child ends, whole: its stdin is closed, then SIGTERM to its group, then SIGKILL to its group, then it is
//! reaped. What stands between ends what has left the group.

use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Child;
use tokio::time::{Instant, timeout};

/// From the closing of stdin to SIGTERM.
const BEFORE_TERM: Duration = Duration::from_secs(5);
/// From SIGTERM to SIGKILL: what stands between sends it after five seconds; this is for the case that it does not.
const BEFORE_KILL: Duration = Duration::from_secs(6);

/// That a child is over.
#[derive(Debug, Clone)]
pub(super) struct Over {
    pub(super) at: Instant,
    pub(super) lived: Duration,
    /// Nobody wanted it to end.
    pub(super) failed: bool,
    pub(super) words: String,
}

/// Ends a child whose stdin is closed, and reaps it. `group`: its number while it was alive.
pub(super) async fn end(
    child: &mut Child,
    group: Option<u32>,
    in_a_hurry: bool,
) -> Option<ExitStatus> {
    let group = group.and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let to_the_group = |signal| {
        // Nobody there is what we wish for.
        group.map(|group| kill_process_group(group, signal).ok());
    };
    let quiet = if in_a_hurry { Duration::ZERO } else { BEFORE_TERM };
    let mut ended = timeout(quiet, child.wait()).await.ok();
    if ended.is_none() {
        to_the_group(Signal::TERM);
        ended = timeout(BEFORE_KILL, child.wait()).await.ok();
    }
    let status = match ended {
        Some(status) => status.ok(),
        None => {
            to_the_group(Signal::KILL);
            child.wait().await.ok()
        }
    };
    // What stood between was killed itself: the rest of its group may be left. Process numbers are handed out in a
    // circle, so that of a group whose leader was reaped just now is nobody else's yet.
    if status.is_none_or(|status| status.code().is_none()) {
        to_the_group(Signal::KILL);
    }
    status
}
