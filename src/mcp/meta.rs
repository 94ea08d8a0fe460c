//! `_meta`: which keys mean what, how a key may be spelled, and what crosses the gateway in either direction.
//!
//! Keys of the protocol are made anew for every hop, keys of ours never leave, all others pass (2026-07-28, basic, `_meta`).

use serde_json::{Map, Value};

use super::messages::Wrong;

pub const PROGRESS_TOKEN: &str = "progressToken";
pub const TRACEPARENT: &str = "traceparent";
pub const TRACESTATE: &str = "tracestate";
pub const BAGGAGE: &str = "baggage";
/// Prefix of the protocol's own keys.
pub const PROTOCOL: &str = "io.modelcontextprotocol/";
pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
/// Prefix of Checkrein's keys.
pub const OURS: &str = "io.checkrein/";
/// The run a call belongs to.
pub const RUN: &str = "io.checkrein/run";
/// The same write, asked for again.
pub const IDEMPOTENCY_KEY: &str = "io.checkrein/idempotency-key";
/// How long the agent will wait, milliseconds.
pub const TIMEOUT_MS: &str = "io.checkrein/timeout-ms";
/// How a call ended, in Checkrein's words.
pub const OUTCOME: &str = "io.checkrein/outcome";

/// Most that an agent may send on in keys we do not know: their names and values as JSON, bytes together.
pub const MAX_PASSED: usize = 8 * 1024;
/// Longest `tracestate`, characters (W3C Trace Context, 3.3.1.5).
pub const MAX_TRACESTATE: usize = 512;

/// Whose a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// `progressToken`: of one hop.
    Progress,
    /// `traceparent`, `tracestate`, `baggage`.
    Trace,
    /// `io.modelcontextprotocol/*`: of one hop.
    Protocol,
    /// `io.checkrein/*`.
    Checkrein,
    /// Anyone else's, prefixed or not.
    Other,
}

pub fn owner(key: &str) -> Owner {
    match key {
        PROGRESS_TOKEN => Owner::Progress,
        TRACEPARENT | TRACESTATE | BAGGAGE => Owner::Trace,
        _ if key.starts_with(PROTOCOL) => Owner::Protocol,
        _ if key.starts_with(OURS) => Owner::Checkrein,
        _ => Owner::Other,
    }
}

/// Whether a key is spelled as the specification wants: labels with dots and a slash, or no prefix; then a name that
/// begins and ends with a letter or digit, or nothing.
pub fn is_valid_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => prefix.split('.').all(is_label) && is_name(name),
        None => !key.is_empty() && is_name(key),
    }
}

fn is_label(label: &str) -> bool {
    let bytes = label.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
}

fn is_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    ends.into_iter().flatten().all(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

/// Whether a text is a `traceparent` (W3C Trace Context, 3.2): any version but ff, ids that are not all zero.
pub fn is_traceparent(text: &str) -> bool {
    let is_hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_id = |part: &str, length| is_hex(part, length) && part.bytes().any(|byte| byte != b'0');
    let mut parts = text.splitn(5, '-');
    let mut part = || parts.next().unwrap_or_default();
    let version = part();
    let head = is_hex(version, 2) && version != "ff" && is_id(part(), 32) && is_id(part(), 16);
    // a later version may say more after the flags
    head && is_hex(part(), 2) && (parts.next().is_none() || version != "00")
}

/// What an agent's `_meta` says, sorted by whom it is for.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FromAgent<'m> {
    /// Where it is well formed; otherwise it is absent, never an error.
    pub traceparent: Option<&'m str>,
    /// Only beside a `traceparent`.
    pub tracestate: Option<&'m str>,
    pub protocol_version: Option<&'m str>,
    pub client_info: Option<&'m Value>,
    pub client_capabilities: Option<&'m Value>,
    pub log_level: Option<&'m str>,
    pub run: Option<&'m str>,
    pub idempotency_key: Option<&'m str>,
    pub timeout_ms: Option<u64>,
    /// What goes on to the upstream, in the agent's order.
    pub pass: Map<String, Value>,
    /// Keys left behind because they are spelled as none may be.
    pub misspelt: usize,
}

impl<'m> FromAgent<'m> {
    /// Sorts an agent's `_meta`. An error is -32602: a key of the protocol or of ours with a value of the wrong type,
    /// or more to pass than [`MAX_PASSED`].
    pub fn of(meta: Option<&'m Map<String, Value>>) -> Result<Self, Wrong> {
        let mut sorted = Self::default();
        let mut passed = 0_usize;
        for (key, value) in meta.into_iter().flatten() {
            match owner(key) {
                Owner::Progress => {}
                Owner::Trace => sorted.trace(key, value),
                Owner::Protocol => sorted.protocol(key, value)?,
                Owner::Checkrein => sorted.ours(key, value)?,
                Owner::Other if !is_valid_key(key) => sorted.misspelt += 1,
                Owner::Other => {
                    passed = passed.saturating_add(key.len() + value.to_string().len());
                    if passed > MAX_PASSED {
                        let words = format!("more than {MAX_PASSED} bytes to pass on");
                        return Err(Wrong::new("/_meta", words));
                    }
                    sorted.pass.insert(key.clone(), value.clone());
                }
            }
        }
        if sorted.traceparent.is_none() {
            sorted.tracestate = None;
        }
        Ok(sorted)
    }

    fn trace(&mut self, key: &str, value: &'m Value) {
        let text = value.as_str();
        match key {
            TRACEPARENT => self.traceparent = text.filter(|text| is_traceparent(text)),
            TRACESTATE => {
                self.tracestate = text.filter(|text| {
                    text.len() <= MAX_TRACESTATE
                        && text.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~'))
                });
            }
            // `baggage` goes no further
            _ => {}
        }
    }

    fn protocol(&mut self, key: &str, value: &'m Value) -> Result<(), Wrong> {
        match key {
            PROTOCOL_VERSION => self.protocol_version = Some(text(key, value)?),
            CLIENT_INFO => self.client_info = Some(value),
            CLIENT_CAPABILITIES if value.is_object() => self.client_capabilities = Some(value),
            CLIENT_CAPABILITIES => return Err(wrong(key, "must be an object")),
            LOG_LEVEL => self.log_level = Some(text(key, value)?),
            _ => {}
        }
        Ok(())
    }

    fn ours(&mut self, key: &str, value: &'m Value) -> Result<(), Wrong> {
        match key {
            RUN => self.run = Some(text(key, value)?),
            IDEMPOTENCY_KEY => self.idempotency_key = Some(text(key, value)?),
            TIMEOUT_MS => {
                let Some(ms) = value.as_u64() else {
                    return Err(wrong(key, "must be a whole number of milliseconds"));
                };
                self.timeout_ms = Some(ms);
            }
            _ => {}
        }
        Ok(())
    }
}

fn text<'m>(key: &str, value: &'m Value) -> Result<&'m str, Wrong> {
    value.as_str().ok_or_else(|| wrong(key, "must be a string"))
}

fn wrong(key: &str, words: &str) -> Wrong {
    Wrong::new(format!("/_meta/{}", key.replace('/', "~1")), words)
}

/// Removes from a message of an upstream what is not for the agent: trace context, keys of one hop, and keys of ours
/// that only we may write. An empty `_meta` of ours to remove goes too; one that came empty stays.
pub fn to_agent(message: &mut Value) {
    let Some(Value::Object(meta)) = message.get_mut("_meta") else { return };
    let before = meta.len();
    meta.retain(|key, _| owner(key) == Owner::Other);
    let emptied = meta.is_empty() && before > 0;
    if let (true, Value::Object(members)) = (emptied, message) {
        members.shift_remove("_meta");
    }
}

/// Writes one key into the `_meta` of `params` or a result, which must be an object; makes the `_meta` where there is
/// none, and replaces one that is no object.
pub fn put(message: &mut Value, key: &str, value: Value) {
    let Value::Object(members) = message else { return };
    let meta = members.entry("_meta").or_insert_with(|| Value::Object(Map::new()));
    if !meta.is_object() {
        *meta = Value::Object(Map::new());
    }
    if let Value::Object(meta) = meta {
        meta.insert(key.to_owned(), value);
    }
}

/// Takes one key out of the `_meta` of `params` or a result.
pub fn take(message: &mut Value, key: &str) -> Option<Value> {
    message.get_mut("_meta")?.as_object_mut()?.shift_remove(key)
}

#[cfg(test)]
mod tests;
