//! One structured JSON line a call and an attempt: what was decided, by which rule, how it ended.
//!
//! Lines go through a bounded buffer to a thread of their own; a full buffer drops and counts, it never makes a call
//! wait. Never arguments, results or credentials.

mod people;

use std::io::{self, Write};
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::metrics::Metrics;
use crate::call::outcome::TimedOutBy;
use crate::call::trace::{AttemptNote, Noted};
use crate::call::{CallError, Outcome, ToolCall, ToolResult};
use crate::strict_json::object::Object;

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
    let micros = u64::from(since.subsec_micros());
    let mut text = String::with_capacity(27);
    push_pair(&mut text, year / 100);
    for (number, after) in
        [(year % 100, '-'), (month, '-'), (day, 'T'), (hour, ':'), (minute, ':'), (second, '.')]
    {
        push_pair(&mut text, number);
        text.push(after);
    }
    for number in [micros / 10_000, micros / 100 % 100, micros % 100] {
        push_pair(&mut text, number);
    }
    text.push('Z');
    text
}

/// Two digits. A number over 99 (of a year past 9999) is written whole.
fn push_pair(text: &mut String, number: u64) {
    let digit = |digit: u64| char::from(b'0' + u8::try_from(digit % 10).unwrap_or_default());
    if number > 99 {
        text.push_str(&number.to_string());
        return;
    }
    text.push(digit(number / 10));
    text.push(digit(number));
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
    /// A line that comes too seldom to be written by hand.
    fn put_rare(&self, line: &impl serde::Serialize) {
        match serde_json::to_vec(line) {
            Ok(line) => self.put(&line),
            Err(_) => self.metrics.record_dropped(),
        }
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

/// A finished call. `kind: call`. Names and times are ours; what others chose is escaped.
fn call_line(facts: &CallFacts<'_>) -> Vec<u8> {
    let (call, noted) = (facts.call, facts.noted);
    let error = facts.result.and_then(|outcome| outcome.as_ref().err());
    let result = facts.result.and_then(|outcome| outcome.as_ref().ok());
    let last = noted.attempts.last();
    let mut line = begun("call", call);
    line.plain("front_end", call.front_end.as_str());
    line.string("tool_name", call.tool.as_str());
    line.plain("effect", facts.effect);
    line.string("policy_revision", facts.revision);
    // allow, deny
    line.plain(
        "decision",
        if matches!(error, Some(CallError::Denied(_))) { "deny" } else { "allow" },
    );
    line.string_or_null("rule", noted.rule.as_deref());
    line.plain("outcome", facts.outcome);
    line.plain("executed", facts.executed);
    line.string_or_null("evidence", noted.evidence.as_deref());
    // The code, or `none`.
    line.plain("error_type", error.map_or("none", CallError::code));
    // Of the last attempt; 0 = nothing was sent.
    line.number("attempt", last.map_or(0, |attempt| u64::from(attempt.number)));
    line.number("attempts", noted.attempts.len() as u64);
    // Waits between attempts, all together.
    line.thousandths("delay_ms", micros(noted.backoff));
    let circuit = noted.circuit.or_else(|| last.map(|attempt| attempt.circuit));
    line.string_or_null("circuit_status", circuit);
    line.string_or_null("retry_stopped_by", noted.retry_stopped_by);
    line.number_or_null("status", last.and_then(|attempt| attempt.status).map(u64::from));
    let timed_out_by = last.and_then(|attempt| attempt.timed_out_by).map(TimedOutBy::as_str);
    line.string_or_null("timed_out_by", timed_out_by);
    let operation = noted.operation.map(|operation| operation.to_string());
    line.string_or_null("operation", operation.as_deref());
    line.number("occurrence", u64::from(noted.occurrence));
    line.string_or_null("ledger", noted.ledger);
    line.string_or_null("cache", noted.cache);
    let whole = |result: &ToolResult| result.content.bytes.len() as u64;
    let bytes = result.map(|result| noted.streamed.unwrap_or(whole(result)));
    line.number_or_null("result_bytes", bytes);
    line.bool("truncated", result.is_some_and(|result| result.notes.truncated.is_some()));
    line.thousandths("duration_ms", micros(facts.duration));
    line.thousandths("at_tool_ms", micros(noted.at_tool));
    line.finish()
}

/// One try at the tool. `kind: attempt`.
fn attempt_line(call: &ToolCall, attempt: &AttemptNote) -> Vec<u8> {
    let mut line = begun("attempt", call);
    line.string("tool_name", call.tool.as_str());
    // From 1.
    line.number("attempt", u64::from(attempt.number));
    // Waited before it.
    line.thousandths("delay_ms", micros(attempt.delay));
    // As the label `error_class` of the metrics; `none` = the tool answered.
    line.plain("error_type", attempt.error_class.as_str());
    line.number_or_null("status", attempt.status.map(u64::from));
    line.string_or_null("timed_out_by", attempt.timed_out_by.map(TimedOutBy::as_str));
    line.plain("circuit_status", attempt.circuit);
    for (name, time) in [("connect_ms", attempt.connect), ("first_byte_ms", attempt.first_byte)] {
        match time {
            Some(time) => line.thousandths(name, micros(time)),
            None => line.null(name),
        }
    }
    line.thousandths("total_ms", micros(attempt.total));
    line.finish()
}

/// What every line about a call begins with.
fn begun(kind: &str, call: &ToolCall) -> Object {
    let mut line = Object::with_capacity(1024);
    line.number("v", 1);
    line.plain("kind", kind);
    line.plain("timestamp", &rfc3339(wall_clock()));
    line.string("run", call.run.as_str());
    line.string("agent", call.agent.as_str());
    line.string("call_id", call.id.as_str());
    line
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
