//! Server-sent events (WHATWG HTML, 9.2) as MCP uses them: one message an event.
//!
//! The decoder takes a stream in any pieces and keeps no more than one event of it.

use std::fmt;

/// One message as an event. A line end in it, which JSON allows between tokens, begins a further `data:` line.
pub fn event(message: &[u8]) -> Vec<u8> {
    written(Vec::with_capacity(message.len() + 32), message)
}

/// The same, named: a client that lost its connection comes back with the last name it heard.
pub fn named(id: &str, message: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.len() + id.len() + 40);
    out.extend_from_slice(b"id: ");
    out.extend_from_slice(id.as_bytes());
    out.push(b'\n');
    written(out, message)
}

/// An event without a message, by which a stream begins: from here on its client can come back (2025-11-25,
/// "Sending Messages to the Server", 6).
pub fn prime(id: &str) -> Vec<u8> {
    format!("id: {id}\ndata: \n\n").into_bytes()
}

/// How long a client is to wait before it comes again, said before its connection is closed.
pub fn retry(after_ms: u64) -> Vec<u8> {
    format!("retry: {after_ms}\n\n").into_bytes()
}

fn written(mut out: Vec<u8>, message: &[u8]) -> Vec<u8> {
    out.extend_from_slice(b"event: message\n");
    for line in message.split(|byte| matches!(byte, b'\n' | b'\r')) {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    out.push(b'\n');
    out
}

/// A comment: keeps a quiet connection open and says nothing.
pub const KEEP_ALIVE: &[u8] = b":\n\n";

/// An event of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// `message` where the sender named none.
    pub name: String,
    /// Empty for an event that only tells its id (2025-11-25): no message.
    pub data: Vec<u8>,
    /// The stream's last event id so far; empty means none.
    pub id: String,
}

/// An event grew over the bound: the stream cannot be read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventTooLong {
    /// The bound, bytes.
    pub limit: usize,
}

impl fmt::Display for EventTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an event is longer than {} bytes", self.limit)
    }
}
impl std::error::Error for EventTooLong {}

/// Reads a stream of events. What follows the last blank line at the end of a stream is cut off and no event.
#[derive(Debug)]
pub struct Decoder {
    limit: usize,
    line: Vec<u8>,
    /// The last byte ended a line as `\r`; a `\n` now belongs to that end.
    after_cr: bool,
    first_line: bool,
    name: String,
    data: Vec<u8>,
    has_data: bool,
    id: String,
    retry_ms: Option<u64>,
    failed: bool,
}

impl Decoder {
    /// `limit`: longest event, bytes, counted over its lines.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            line: Vec::new(),
            after_cr: false,
            first_line: true,
            name: String::new(),
            data: Vec::new(),
            has_data: false,
            id: String::new(),
            retry_ms: None,
            failed: false,
        }
    }

    /// Takes the next piece and gives the events it completes. After an error every further piece is the same error.
    pub fn push(&mut self, piece: &[u8]) -> Result<Vec<Event>, EventTooLong> {
        let mut events = Vec::new();
        let mut rest = piece;
        if self.failed {
            return Err(self.fail());
        }
        while !rest.is_empty() {
            if std::mem::take(&mut self.after_cr) {
                rest = rest.strip_prefix(b"\n").unwrap_or(rest);
                if rest.is_empty() {
                    break;
                }
            }
            let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let (part, after) = rest.split_at(end.unwrap_or(rest.len()));
            let held = self.line.len() + self.data.len() + self.name.len();
            if part.len() > self.limit.saturating_sub(held) {
                return Err(self.fail());
            }
            self.line.extend_from_slice(part);
            let Some((terminator, after)) = after.split_first() else { break };
            self.after_cr = *terminator == b'\r';
            rest = after;
            events.extend(self.end_line());
        }
        Ok(events)
    }

    /// Bytes that are held of an event that is not whole yet.
    pub fn held(&self) -> usize {
        self.line.len() + self.data.len()
    }

    /// The id of the last event that named one; empty means none.
    pub fn last_event_id(&self) -> &str {
        &self.id
    }

    /// How long the sender wants a client to wait before it comes again, milliseconds.
    pub fn retry_ms(&self) -> Option<u64> {
        self.retry_ms
    }

    fn end_line(&mut self) -> Option<Event> {
        let line = std::mem::take(&mut self.line);
        let mut line = line.as_slice();
        if std::mem::take(&mut self.first_line) {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        if line.is_empty() {
            return self.dispatch();
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (field, value) = line.split_at(colon.unwrap_or(line.len()));
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.has_data = true;
                self.data.extend_from_slice(value);
            }
            b"event" => self.name = String::from_utf8_lossy(value).into_owned(),
            b"id" if !value.contains(&0) => self.id = String::from_utf8_lossy(value).into_owned(),
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                self.retry_ms = std::str::from_utf8(value).ok().and_then(|ms| ms.parse().ok());
            }
            // a comment (no field before the colon), or a field that nobody knows
            _ => {}
        }
        None
    }

    fn dispatch(&mut self) -> Option<Event> {
        let name = std::mem::take(&mut self.name);
        let data = std::mem::take(&mut self.data);
        if !std::mem::take(&mut self.has_data) {
            return None;
        }
        let name = if name.is_empty() { "message".to_owned() } else { name };
        Some(Event { name, data, id: self.id.clone() })
    }

    fn fail(&mut self) -> EventTooLong {
        self.failed = true;
        self.line = Vec::new();
        self.data = Vec::new();
        EventTooLong { limit: self.limit }
    }
}

#[cfg(test)]
mod tests;
