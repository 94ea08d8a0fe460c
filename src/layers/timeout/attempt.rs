//! The account of one attempt: its cost, its note on the call's pad, its metrics and record, the tool's cooldown.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::call::{
    AttemptNote, ErrorClass, Failed, Phase, Progress, TimedOutBy, ToolCall, ToolResult,
};
use crate::layers::state::ToolState;
use crate::policy::snapshot::Tool;
use crate::run::Runs;
use crate::telemetry::metrics::ToolMetrics;
use crate::telemetry::record::Recorder;

/// What the accounts of one tool's attempts go to.
#[derive(Debug)]
pub struct Attempts {
    pub tool: Arc<Tool>,
    pub state: Arc<ToolState>,
    pub runs: Arc<Runs>,
    pub metrics: Arc<ToolMetrics>,
    pub recorder: Arc<Recorder>,
}

impl Attempts {
    /// An attempt is about to be sent.
    pub fn begin(self: &Arc<Self>, call: &ToolCall, progress: Progress) -> Begun {
        if let Some(cost) = self.tool.cost
            && let Some(run) = self.runs.of(call)
        {
            run.spend(cost);
        }
        let delay = std::mem::take(&mut call.trace.note().next_delay);
        // Without its place: that is given back when the exchange ends, not when it is written down.
        let call = ToolCall { place: None, ..call.clone() };
        Begun { to: self.clone(), call, progress, delay, ended: false }
    }
}

/// An attempt under way. Dropped without an end (the agent went away) it still counts as an attempt: what the tool
/// was asked and what we say we asked must agree.
#[derive(Debug)]
pub struct Begun {
    to: Arc<Attempts>,
    call: ToolCall,
    progress: Progress,
    delay: Duration,
    ended: bool,
}

impl Begun {
    /// The call it belongs to, without its place.
    pub fn call(&self) -> &ToolCall {
        &self.call
    }

    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    pub fn end(mut self, ended: &Result<ToolResult, Failed>) {
        self.ended = true;
        let (error_class, status, timed_out_by) = match ended {
            Ok(result) => (ErrorClass::None, result.head.as_ref().map(|head| head.status), None),
            Err(failed) => (failed.error_class, failed.status, failed.timed_out_by),
        };
        let note = self.note(error_class, status, timed_out_by);
        let metrics = &self.to.metrics;
        for (phase, time) in [
            ("connect", note.connect),
            ("first_byte", note.first_byte),
            ("total", Some(note.total)),
        ] {
            if let Some(time) = time {
                metrics.phase(phase, time);
            }
        }
        if let Err(failed) = ended
            && failed.cooldown
        {
            self.to.state.cooldown.set(failed.retry_after);
            metrics.cooldown();
        }
        self.write_down(note);
    }

    /// Metric, record and pad: every attempt once in each, however it ended.
    fn write_down(&self, note: AttemptNote) {
        self.to.metrics.attempt(note.error_class);
        self.to.recorder.attempt(&self.call, &note);
        let mut noted = self.call.trace.note();
        noted.at_tool += note.total;
        noted.circuit = Some(note.circuit);
        noted.attempts.push(note);
    }

    fn note(
        &self,
        error_class: ErrorClass,
        status: Option<u16>,
        timed_out_by: Option<TimedOutBy>,
    ) -> AttemptNote {
        let before = self.call.trace.note().attempts.len();
        AttemptNote {
            number: u32::try_from(before).unwrap_or(u32::MAX).saturating_add(1),
            delay: self.delay,
            error_class,
            status,
            timed_out_by,
            connect: self.progress.reached(Phase::Connected),
            first_byte: self.progress.reached(Phase::FirstByte),
            total: self.progress.started().elapsed(),
            circuit: self.to.state.breaker(Instant::now()),
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if !self.ended {
            let error_class = if self.progress.phase() < Phase::Sending {
                ErrorClass::ResetBeforeSend
            } else {
                ErrorClass::ResetAfterSend
            };
            self.write_down(self.note(error_class, None, None));
        }
    }
}
