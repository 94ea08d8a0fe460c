//! Shortens `call.deadline` to the tool's loop deadline, and cuts nothing: dropping a call from here would drop
//! `journal` between intent and end.

use std::sync::Arc;

use tokio::time::Instant;

use super::gate::{Gate, Permit, min_attempt};
use crate::call::code::DenyCode;
use crate::call::{Denied, Ended, TimedOutBy, ToolCall};
use crate::policy::snapshot::Tool;

#[derive(Debug)]
pub struct Deadline(pub Arc<Tool>);

impl Gate for Deadline {
    type Permit = Shortened;

    fn admit(&self, call: &ToolCall) -> Result<Shortened, Denied> {
        let now = Instant::now();
        let looped = self.0.retry.as_ref().and_then(|retry| now.checked_add(retry.deadline));
        let by_loop = looped.filter(|at| *at < call.deadline);
        let deadline = by_loop.unwrap_or(call.deadline);
        if deadline.saturating_duration_since(now) < min_attempt(&self.0.timeout) {
            let message = format!("no time is left to call tool {}", self.0.name);
            call.trace.note().rule = Some("deadline".into());
            return Err(Denied::new(DenyCode::DeadlineExceeded, message));
        }
        if by_loop.is_some() {
            call.trace.note().deadline_of = Some(TimedOutBy::Loop);
        }
        Ok(Shortened(deadline))
    }
}

#[derive(Debug)]
pub struct Shortened(Instant);

impl Permit for Shortened {
    const HEARS: bool = false;

    fn stamp(&self, call: &mut ToolCall) {
        call.deadline = self.0;
    }

    fn settle(self, _ended: &Ended) {}
}
