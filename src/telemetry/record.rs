//! One structured JSON line a call and an attempt: what was decided, by which rule, how it ended.
//!
//! Lines go through a bounded buffer to a thread of their own; a full buffer drops and counts, it never makes a call
//! wait. Never arguments, results or credentials.

mod line;
mod people;

use std::cell::RefCell;
use std::io::{self, Write};
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use super::metrics::Metrics;
use crate::call::outcome::TimedOutBy;
use crate::call::trace::{AttemptNote, Noted};
use crate::call::{CallError, Outcome, ToolCall, ToolResult};
use line::Line;

pub use line::rfc3339;
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
            shared.put_line(|line| call_line(facts, line));
        }
    }

    /// An attempt has ended.
    pub fn attempt(&self, call: &ToolCall, attempt: &AttemptNote) {
        if let Some(shared) = &self.0 {
            shared.put_line(|line| attempt_line(call, attempt, line));
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
    /// A line that comes too seldom to be written by hand.
    fn put_rare(&self, line: &impl serde::Serialize) {
        match serde_json::to_vec(line) {
            Ok(line) => self.put(&line),
            Err(_) => self.metrics.record_dropped(),
        }
    }

    /// A line is written beside the buffer, so that its lock is held for a copy alone.
    fn put_line(&self, write: impl FnOnce(&mut Line)) {
        thread_local! {
            static LINE: RefCell<Line> = RefCell::default();
        }
        LINE.with_borrow_mut(|line| {
            line.clear();
            write(line);
            self.put(line.bytes());
        });
    }

    fn put(&self, line: &[u8]) {
        let mut buffer = self.lock();
        if buffer.closed || buffer.lines.len() >= MAX_BUFFERED {
            buffer.dropped += 1;
            self.metrics.record_dropped();
            return;
        }
        let before = buffer.lines.len();
        buffer.lines.extend_from_slice(line);
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

/// Appends the members named by string literals, each with its comma: a name is one piece of text, put together at
/// compile time.
macro_rules! members {
    ($line:ident, $($name:literal: $write:ident($($value:expr),*);)*) => {
        $( $line.lead(concat!(",\"", $name, "\":")); $line.$write($($value),*); )*
    };
}

/// A finished call. `kind: call`. Names and times are ours; what others chose is escaped.
fn call_line(facts: &CallFacts<'_>, line: &mut Line) {
    let (call, noted) = (facts.call, facts.noted);
    let error = facts.result.and_then(|outcome| outcome.as_ref().err());
    let result = facts.result.and_then(|outcome| outcome.as_ref().ok());
    let last = noted.attempts.last();
    let denied = matches!(error, Some(CallError::Denied(_)));
    let circuit = noted.circuit.or_else(|| last.map(|attempt| attempt.circuit));
    let timed_out_by = last.and_then(|attempt| attempt.timed_out_by).map(TimedOutBy::as_str);
    let operation = noted.operation.map(|operation| operation.to_string());
    let whole = |result: &ToolResult| result.content.bytes.len() as u64;
    let bytes = result.map(|result| noted.streamed.unwrap_or(whole(result)));
    begun("{\"v\":1,\"kind\":\"call\",\"timestamp\":", call, line);
    members! { line,
        "front_end": plain(call.front_end.as_str());
        "tool_name": string(call.tool.as_str());
        "effect": plain(facts.effect);
        "policy_revision": string(facts.revision);
        "decision": plain(if denied { "deny" } else { "allow" });
        "rule": string_or_null(noted.rule.as_deref());
        "outcome": plain(facts.outcome);
        "executed": plain(facts.executed);
        "evidence": string_or_null(noted.evidence.as_deref());
        // The code, or `none`.
        "error_type": plain(error.map_or("none", CallError::code));
        // Of the last attempt; 0 = nothing was sent.
        "attempt": number(last.map_or(0, |attempt| u64::from(attempt.number)));
        "attempts": number(noted.attempts.len() as u64);
        // Waits between attempts, all together.
        "delay_ms": thousandths(micros(noted.backoff));
        "circuit_status": string_or_null(circuit);
        "retry_stopped_by": string_or_null(noted.retry_stopped_by);
        "status": number_or_null(last.and_then(|attempt| attempt.status).map(u64::from));
        "timed_out_by": string_or_null(timed_out_by);
        "operation": string_or_null(operation.as_deref());
        "occurrence": number(u64::from(noted.occurrence));
        "ledger": string_or_null(noted.ledger);
        "cache": string_or_null(noted.cache);
        "result_bytes": number_or_null(bytes);
        "truncated": bool(result.is_some_and(|result| result.notes.truncated.is_some()));
        "duration_ms": thousandths(micros(facts.duration));
        "at_tool_ms": thousandths(micros(noted.at_tool));
    }
    line.end();
}

/// One try at the tool. `kind: attempt`.
fn attempt_line(call: &ToolCall, attempt: &AttemptNote, line: &mut Line) {
    begun("{\"v\":1,\"kind\":\"attempt\",\"timestamp\":", call, line);
    members! { line,
        "tool_name": string(call.tool.as_str());
        // From 1.
        "attempt": number(u64::from(attempt.number));
        // Waited before it.
        "delay_ms": thousandths(micros(attempt.delay));
        // As the label `error_class` of the metrics; `none` = the tool answered.
        "error_type": plain(attempt.error_class.as_str());
        "status": number_or_null(attempt.status.map(u64::from));
        "timed_out_by": string_or_null(attempt.timed_out_by.map(TimedOutBy::as_str));
        "circuit_status": plain(attempt.circuit);
        "connect_ms": thousandths_or_null(attempt.connect.map(micros));
        "first_byte_ms": thousandths_or_null(attempt.first_byte.map(micros));
        "total_ms": thousandths(micros(attempt.total));
    }
    line.end();
}

/// What every line about a call begins with: its kind, when it ended, whose it was.
fn begun(kind: &'static str, call: &ToolCall, line: &mut Line) {
    line.lead(kind);
    line.time(wall_clock());
    members! { line,
        "run": string(call.run.as_str());
        "agent": string(call.agent.as_str());
        "call_id": string(call.id.as_str());
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
