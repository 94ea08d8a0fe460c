//! What a run did, in order, bounded: the first and the last steps stay, the middle is folded to a count.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::call::{CallId, ToolName};

/// Steps kept from the beginning: what the run set out to do.
pub(crate) const FIRST: usize = 32;
/// Steps kept from the end: where it stands.
pub(crate) const LAST: usize = 224;

/// One call's end.
#[derive(Debug, Clone)]
pub struct Step {
    pub call: CallId,
    pub tool: ToolName,
    /// `call::ended::outcome_label`.
    pub outcome: &'static str,
    pub duration: Duration,
    pub ended: Instant,
}

#[derive(Debug, Default)]
pub(crate) struct Trajectory {
    first: Vec<Step>,
    last: VecDeque<Step>,
    folded: u64,
}

impl Trajectory {
    pub(crate) fn push(&mut self, step: Step) {
        if self.first.len() < FIRST {
            self.first.push(step);
            return;
        }
        if self.last.len() >= LAST {
            self.last.pop_front();
            self.folded += 1;
        }
        self.last.push_back(step);
    }

    /// First steps, how many were folded, last steps.
    pub(crate) fn view(&self) -> (Vec<Step>, u64, Vec<Step>) {
        (self.first.clone(), self.folded, self.last.iter().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_and_the_last_steps_stay_and_the_middle_is_counted() {
        let mut trajectory = Trajectory::default();
        for n in 0..(FIRST + LAST + 10) {
            trajectory.push(Step {
                call: CallId::new(&format!("c{n}")).expect("id"),
                tool: ToolName::new("t").expect("name"),
                outcome: "ok",
                duration: Duration::ZERO,
                ended: Instant::now(),
            });
        }
        let (first, folded, last) = trajectory.view();
        assert_eq!((first.len(), folded, last.len()), (FIRST, 10, LAST));
        assert_eq!(first[0].call.as_str(), "c0");
        assert_eq!(last[0].call.as_str(), format!("c{}", FIRST + 10));
        assert_eq!(last[LAST - 1].call.as_str(), format!("c{}", FIRST + LAST + 9));
    }
}
