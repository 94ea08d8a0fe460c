//! One structured JSON line a call and an attempt: what was decided, by which rule, how it ended.
//!
//! Lines go through a bounded buffer to a thread of their own; a full buffer drops and counts, it never makes a call
//! wait. Never arguments, results or credentials.

mod people;

use std::io::{self, Write};
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::metrics::Metrics;
use crate::call::outcome::TimedOutBy;
use crate::call::trace::{AttemptNote, Noted};
use crate::call::{CallError, Outcome, ToolCall};

pub use people::PersonFacts;

/// Lines not yet taken by the writer, in bytes. Past it records are dropped and counted: some 4,000 of them.
pub const MAX_BUFFERED: usize = 4 * 1024 * 1024;
/// The writer is woken at once past this many bytes, …
const FLUSH_BYTES: usize = 64 * 1024;
/// … and after this long in any case.
const FLUSH_AFTER: Duration = Duration::from_millis(200);
/// At most one line about lost records in this time.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// The one place that asks the wall clock.
#[expect(clippy::disallowed_methods, reason = "this is the one lawful place")]
pub fn wall_clock() -> SystemTime {
    SystemTime::now()
}

/// RFC 3339, UTC, microseconds. A time before 1970 shows as 1970.
pub fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let micros = since.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// The Gregorian date of a day since 1970-01-01, counted in years that begin in March, so that the leap day is last.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468; // days since 0000-03-01
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// Facts of a call that are not on the call itself.
#[derive(Debug)]
pub struct CallFacts<'a> {
    pub call: &'a ToolCall,
    pub effect: &'static str,
    pub revision: &'a str,
    /// `outcome_label`, or `abandoned`.
    pub outcome: &'static str,
    /// no, yes, unknown
    pub executed: &'static str,
    pub result: Option<&'a Outcome>,
    pub duration: Duration,
    pub noted: &'a Noted,
}

/// A finished call, as it is written. `kind: call`.
#[derive(Serialize)]
struct CallLine<'a> {
    v: u32,
    kind: &'static str,
    timestamp: String,
    run: &'a str,
    agent: &'a str,
    call_id: &'a str,
    front_end: &'static str,
    tool_name: &'a str,
    effect: &'static str,
    policy_revision: &'a str,
    /// allow, deny
    decision: &'static str,
    rule: Option<&'a str>,
    outcome: &'static str,
    executed: &'static str,
    evidence: Option<&'a str>,
    /// The code, or `none`.
    error_type: &'static str,
    /// Of the last attempt; 0 = nothing was sent.
    attempt: u32,
    attempts: usize,
    /// Waits between attempts, all together.
    delay_ms: f64,
    circuit_status: Option<&'static str>,
    retry_stopped_by: Option<&'static str>,
    status: Option<u16>,
    timed_out_by: Option<&'static str>,
    operation: Option<String>,
    occurrence: u32,
    ledger: Option<&'static str>,
    result_bytes: Option<usize>,
    truncated: bool,
    duration_ms: f64,
    at_tool_ms: f64,
}

/// One try at the tool. `kind: attempt`.
#[derive(Serialize)]
struct AttemptLine<'a> {
    v: u32,
    kind: &'static str,
    timestamp: String,
    run: &'a str,
    agent: &'a str,
    call_id: &'a str,
    tool_name: &'a str,
    /// From 1.
    attempt: u32,
    /// Waited before it.
    delay_ms: f64,
    /// As the label `error_class` of the metrics; `none` = the tool answered.
    error_type: &'static str,
    status: Option<u16>,
    timed_out_by: Option<&'static str>,
    circuit_status: &'static str,
    connect_ms: Option<f64>,
    first_byte_ms: Option<f64>,
    total_ms: f64,
}

/// Takes records on the data path; see [`Recorder::channel`].
#[derive(Debug)]
pub struct Recorder(Option<Arc<Shared>>);

/// The other end: writes what the [`Recorder`] took, on a thread of its own.
#[derive(Debug)]
pub struct Writer(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    buffer: Mutex<Buffer>,
    /// Wakes the writer: enough to write, or closed.
    wanted: Condvar,
    /// Wakes who waits for the end.
    done: Condvar,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct Buffer {
    lines: Vec<u8>,
    /// Dropped since the last complaint.
    dropped: u64,
    closed: bool,
    finished: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorder {
    /// Keeps nothing (tests that do not look, `--audit none`).
    pub fn none() -> Arc<Self> {
        Arc::new(Self(None))
    }

    /// A recorder and its writer; [`Writer::run`] belongs on a thread that may block.
    pub fn channel(metrics: Arc<Metrics>) -> (Arc<Self>, Writer) {
        let shared = Arc::new(Shared {
            buffer: Mutex::default(),
            wanted: Condvar::new(),
            done: Condvar::new(),
            metrics,
        });
        (Arc::new(Self(Some(shared.clone()))), Writer(shared))
    }

    /// A call has ended; once each, refused ones too.
    pub fn call(&self, facts: &CallFacts<'_>) {
        if let Some(shared) = &self.0 {
            shared.put(&call_line(facts));
        }
    }

    /// An attempt has ended.
    pub fn attempt(&self, call: &ToolCall, attempt: &AttemptNote) {
        if let Some(shared) = &self.0 {
            shared.put(&attempt_line(call, attempt));
        }
    }

    /// Takes no more; waits until everything taken is written, at most `within`. True = all of it is.
    pub fn close(&self, within: Duration) -> bool {
        let Some(shared) = &self.0 else { return true };
        let mut buffer = shared.lock();
        buffer.closed = true;
        shared.wanted.notify_one();
        let waited = shared.done.wait_timeout_while(buffer, within, |buffer| !buffer.finished);
        let (buffer, _) = waited.unwrap_or_else(PoisonError::into_inner);
        buffer.finished
    }
}

impl Shared {
    fn put(&self, line: &impl Serialize) {
        let mut buffer = self.lock();
        if buffer.closed || buffer.lines.len() >= MAX_BUFFERED {
            buffer.dropped += 1;
            self.metrics.record_dropped();
            return;
        }
        let before = buffer.lines.len();
        if serde_json::to_writer(&mut buffer.lines, line).is_err() {
            // Strings and numbers always serialise; a half line must not spoil the next one.
            buffer.lines.truncate(before);
            self.metrics.record_dropped();
            return;
        }
        buffer.lines.push(b'\n');
        self.metrics.record_written();
        if before < FLUSH_BYTES && buffer.lines.len() >= FLUSH_BYTES {
            self.wanted.notify_one();
        }
    }
}

impl Writer {
    /// Writes until the recorder is closed; then writes the rest and returns. Blocks.
    pub fn run(self, mut sink: impl Write) {
        let shared = self.0;
        let mut lines = Vec::new();
        let mut complaints = Complaints::default();
        let mut torn = false; // a write that failed may have left half a line behind
        loop {
            let mut buffer = shared.lock();
            if !buffer.closed && buffer.lines.len() < FLUSH_BYTES {
                let waited = shared.wanted.wait_timeout(buffer, FLUSH_AFTER);
                (buffer, _) = waited.unwrap_or_else(PoisonError::into_inner);
            }
            mem::swap(&mut buffer.lines, &mut lines);
            let closed = buffer.closed;
            complaints.dropped += mem::take(&mut buffer.dropped);
            drop(buffer);
            if !lines.is_empty() {
                let begun: &[u8] = if torn { b"\n" } else { b"" };
                let written = sink.write_all(begun).and_then(|()| sink.write_all(&lines));
                torn = false;
                if let Err(error) = written.and_then(|()| sink.flush()) {
                    torn = true;
                    shared.metrics.record_write_error();
                    complaints.error = Some(error);
                }
                lines.clear();
            }
            complaints.tell();
            if closed {
                break;
            }
        }
        shared.lock().finished = true;
        shared.done.notify_all();
    }
}

/// Lost records, told at most once a minute.
#[derive(Debug, Default)]
struct Complaints {
    dropped: u64,
    error: Option<io::Error>,
    last: Option<SystemTime>,
}

impl Complaints {
    fn tell(&mut self) {
        if self.dropped == 0 && self.error.is_none() {
            return;
        }
        let now = wall_clock();
        let quiet =
            |last: SystemTime| now.duration_since(last).is_ok_and(|since| since < COMPLAIN_EVERY);
        if self.last.is_some_and(quiet) {
            return;
        }
        let error = self.error.take().map(|error| error.to_string());
        tracing::error!(dropped = self.dropped, error, "records were lost");
        *self = Self { last: Some(now), ..Self::default() };
    }
}

fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1_000_000.0).round() / 1000.0
}

fn call_line<'a>(facts: &'a CallFacts<'a>) -> CallLine<'a> {
    let (call, noted) = (facts.call, facts.noted);
    let error = facts.result.and_then(|outcome| outcome.as_ref().err());
    let result = facts.result.and_then(|outcome| outcome.as_ref().ok());
    let last = noted.attempts.last();
    CallLine {
        v: 1,
        kind: "call",
        timestamp: rfc3339(wall_clock()),
        run: call.run.as_str(),
        agent: call.agent.as_str(),
        call_id: call.id.as_str(),
        front_end: call.front_end.as_str(),
        tool_name: call.tool.as_str(),
        effect: facts.effect,
        policy_revision: facts.revision,
        decision: if matches!(error, Some(CallError::Denied(_))) { "deny" } else { "allow" },
        rule: noted.rule.as_deref(),
        outcome: facts.outcome,
        executed: facts.executed,
        evidence: noted.evidence.as_deref(),
        error_type: error.map_or("none", CallError::code),
        attempt: last.map_or(0, |attempt| attempt.number),
        attempts: noted.attempts.len(),
        delay_ms: millis(noted.backoff),
        circuit_status: noted.circuit.or_else(|| last.map(|attempt| attempt.circuit)),
        retry_stopped_by: noted.retry_stopped_by,
        status: last.and_then(|attempt| attempt.status),
        timed_out_by: last.and_then(|attempt| attempt.timed_out_by).map(TimedOutBy::as_str),
        operation: noted.operation.map(|operation| operation.to_string()),
        occurrence: noted.occurrence,
        ledger: noted.ledger,
        result_bytes: result.map(|result| result.content.bytes.len()),
        truncated: result.is_some_and(|result| result.notes.truncated.is_some()),
        duration_ms: millis(facts.duration),
        at_tool_ms: millis(noted.at_tool),
    }
}

fn attempt_line<'a>(call: &'a ToolCall, attempt: &AttemptNote) -> AttemptLine<'a> {
    AttemptLine {
        v: 1,
        kind: "attempt",
        timestamp: rfc3339(wall_clock()),
        run: call.run.as_str(),
        agent: call.agent.as_str(),
        call_id: call.id.as_str(),
        tool_name: call.tool.as_str(),
        attempt: attempt.number,
        delay_ms: millis(attempt.delay),
        error_type: attempt.error_class.as_str(),
        status: attempt.status,
        timed_out_by: attempt.timed_out_by.map(TimedOutBy::as_str),
        circuit_status: attempt.circuit,
        connect_ms: attempt.connect.map(millis),
        first_byte_ms: attempt.first_byte.map(millis),
        total_ms: millis(attempt.total),
    }
}

#[cfg(test)]
mod tests;
