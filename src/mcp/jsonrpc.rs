//! JSON-RPC 2.0 as MCP narrows it: one message a text, ids that are strings or integers, no batch arrays.
//!
//! Reading keeps ids as tokens and `params`/`result` as strictly parsed trees; writing makes one line without a newline.
//! What a method means is not known here.

use std::fmt;

use serde_json::{Map, Number, Value};

use crate::strict_json::{self, JsonFault, Kind, Limits, write};

/// JSON-RPC 2.0, 5.1: the bytes are not JSON.
pub const PARSE_ERROR: i64 = -32700;
/// JSON-RPC 2.0, 5.1: JSON, but not a message.
pub const INVALID_REQUEST: i64 = -32600;
/// JSON-RPC 2.0, 5.1.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// JSON-RPC 2.0, 5.1; from MCP 2026-07-28 on also: no such resource.
pub const INVALID_PARAMS: i64 = -32602;
/// JSON-RPC 2.0, 5.1.
pub const INTERNAL_ERROR: i64 = -32603;
/// MCP up to 2025-11-25: no such resource. Never sent to a modern peer.
pub const RESOURCE_NOT_FOUND: i64 = -32002;
/// MCP 2025-11-25 alone: a person must visit a URL first. Never sent to a modern peer.
pub const URL_ELICITATION_REQUIRED: i64 = -32042;
/// MCP 2026-07-28: a header differs from the body, or is missing or malformed.
pub const HEADER_MISMATCH: i64 = -32020;
/// MCP 2026-07-28: the client did not declare a capability that is needed.
pub const MISSING_CLIENT_CAPABILITY: i64 = -32021;
/// MCP 2026-07-28: the revision asked for is not spoken here.
pub const UNSUPPORTED_PROTOCOL_VERSION: i64 = -32022;

/// Whether the code is one that only a server of 2026-07-28 or later sends: proof of its era.
pub const fn is_modern_code(code: i64) -> bool {
    matches!(code, HEADER_MISMATCH | MISSING_CLIENT_CAPABILITY | UNSUPPORTED_PROTOCOL_VERSION)
}

/// Longest id, bytes of its text: ids live in tables for as long as their request.
pub const MAX_ID: usize = 1024;

/// The id of a request, kept as the token it was: `1`, `"1"` and `9007199254740993` are three ids.
///
/// `Display` prints the JSON token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Id(Token);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Token {
    Text(Box<str>),
    /// The digits as they came.
    Integer(Box<str>),
}

impl Id {
    /// Reads an id: a string or an integer without point or exponent, at most [`MAX_ID`] bytes. Nothing else is one.
    pub fn of(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) if text.len() <= MAX_ID => {
                Some(Self(Token::Text(text.as_str().into())))
            }
            Value::Number(number) => {
                let digits = number.to_string();
                let whole = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
                (whole && digits.len() <= MAX_ID).then(|| Self(Token::Integer(digits.into())))
            }
            Value::String(_)
            | Value::Null
            | Value::Bool(_)
            | Value::Array(_)
            | Value::Object(_) => None,
        }
    }

    pub fn text(text: &str) -> Self {
        Self(Token::Text(text.into()))
    }

    /// The id as a number of ours; `None` for a string, and for an integer that no `u64` of ours was printed as.
    pub fn as_u64(&self) -> Option<u64> {
        match &self.0 {
            Token::Text(_) => None,
            Token::Integer(digits) => {
                let number: u64 = digits.parse().ok()?;
                (number.to_string() == **digits).then_some(number)
            }
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match &self.0 {
            Token::Text(text) => Some(text),
            Token::Integer(_) => None,
        }
    }

    /// The id as a tree, for the places of a body that name one: `requestId`, `progressToken`.
    pub fn to_value(&self) -> Value {
        match &self.0 {
            Token::Text(text) => Value::String(text.to_string()),
            Token::Integer(digits) => digits.parse::<Number>().map_or(Value::Null, Value::Number),
        }
    }
}

impl From<u64> for Id {
    fn from(number: u64) -> Self {
        Self(Token::Integer(number.to_string().into()))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Token::Text(text) => f.write_str(&quoted(text)),
            Token::Integer(digits) => f.write_str(digits),
        }
    }
}

/// One message, sorted by its members and never by the shape of its result.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    Request(Request),
    Notification(Notification),
    Response(Response),
    Error(ErrorReply),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub id: Id,
    pub method: String,
    /// An object where present.
    pub params: Option<Value>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Notification {
    pub method: String,
    /// An object where present.
    pub params: Option<Value>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Response {
    pub id: Id,
    pub result: Value,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ErrorReply {
    /// Absent or null where the sender could not read the id of what it answers.
    pub id: Option<Id>,
    pub code: i64,
    /// Empty where the sender gave none: the code is what is judged.
    pub message: String,
    pub data: Option<Value>,
}

/// Why a text is no message of ours, with the code to answer by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub code: i64,
    pub message: String,
    /// The id of the message, where it had a readable one.
    pub id: Option<Id>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
impl std::error::Error for Fault {}

impl Fault {
    fn new(code: i64, message: impl Into<String>, id: Option<Id>) -> Self {
        Self { code, message: message.into(), id }
    }
}

/// Reads one message. An array is -32600 in every revision, a text that is not JSON -32700, JSON that the limits or
/// the strict parser refuse -32600, `params` that are no object -32602.
pub fn parse(bytes: &[u8], limits: Limits) -> Result<Message, Fault> {
    let value = strict_json::parse(bytes, limits).map_err(|fault| not_json(&fault))?;
    from_value(value)
}

/// The same from a tree that [`strict_json`] made.
pub fn from_value(value: Value) -> Result<Message, Fault> {
    let mut members = match value {
        Value::Object(members) => members,
        Value::Array(_) => {
            let words = "batch arrays are not supported: send one message at a time";
            return Err(Fault::new(INVALID_REQUEST, words, None));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            return Err(Fault::new(INVALID_REQUEST, "a message is a JSON object", None));
        }
    };
    let id_token = members.shift_remove("id");
    let id = id_token.as_ref().and_then(Id::of);
    if members.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return Err(Fault::new(INVALID_REQUEST, "`jsonrpc` must be \"2.0\"", id));
    }
    match members.shift_remove("method") {
        Some(Value::String(method)) => asking(members, id_token.is_some(), id, method),
        Some(_) => Err(Fault::new(INVALID_REQUEST, "`method` must be a string", id)),
        None => answering(members, id_token.as_ref(), id),
    }
}

fn asking(
    mut members: Map<String, Value>,
    has_id: bool,
    id: Option<Id>,
    method: String,
) -> Result<Message, Fault> {
    if has_id && id.is_none() {
        let words = format!("`id` must be a string or an integer of at most {MAX_ID} bytes");
        return Err(Fault::new(INVALID_REQUEST, words, None));
    }
    if members.contains_key("result") || members.contains_key("error") {
        let words = "a message has either `method` or `result` or `error`";
        return Err(Fault::new(INVALID_REQUEST, words, id));
    }
    let params = match members.shift_remove("params") {
        // some writers spell an absent member so; there is nothing else it could mean
        None | Some(Value::Null) => None,
        Some(params @ Value::Object(_)) => Some(params),
        Some(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
            return Err(Fault::new(INVALID_PARAMS, "`params` must be an object", id));
        }
    };
    Ok(match id {
        Some(id) => Message::Request(Request { id, method, params }),
        None => Message::Notification(Notification { method, params }),
    })
}

fn answering(
    mut members: Map<String, Value>,
    id_token: Option<&Value>,
    id: Option<Id>,
) -> Result<Message, Fault> {
    let result = members.shift_remove("result");
    // JSON-RPC 1.0 writes both, one of them null
    let error = members.shift_remove("error").filter(|error| !error.is_null());
    match (result, error) {
        (None | Some(Value::Null), Some(Value::Object(error))) => {
            if id.is_none() && !matches!(id_token, None | Some(Value::Null)) {
                let words = "the `id` of an error must be a string, an integer or null";
                return Err(Fault::new(INVALID_REQUEST, words, None));
            }
            error_reply(error, id)
        }
        (Some(result), None) => match id {
            Some(id) => Ok(Message::Response(Response { id, result })),
            None => {
                let words = "the `id` of a response must be a string or an integer";
                Err(Fault::new(INVALID_REQUEST, words, None))
            }
        },
        (_, Some(Value::Object(_))) => {
            let words = "a message has either `method` or `result` or `error`";
            Err(Fault::new(INVALID_REQUEST, words, id))
        }
        (_, Some(_)) => Err(Fault::new(INVALID_REQUEST, "`error` must be an object", id)),
        (None, None) => {
            let words = "a message has a `method`, a `result` or an `error`";
            Err(Fault::new(INVALID_REQUEST, words, id))
        }
    }
}

fn error_reply(mut error: Map<String, Value>, id: Option<Id>) -> Result<Message, Fault> {
    let Some(code) = error.get("code").and_then(Value::as_i64) else {
        return Err(Fault::new(INVALID_REQUEST, "the `code` of an error must be an integer", id));
    };
    let message = match error.shift_remove("message") {
        Some(Value::String(message)) => message,
        Some(
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_),
        )
        | None => String::new(),
    };
    Ok(Message::Error(ErrorReply { id, code, message, data: error.shift_remove("data") }))
}

fn not_json(fault: &JsonFault) -> Fault {
    let code = match fault.kind {
        Kind::Empty | Kind::Trailing | Kind::Truncated | Kind::Syntax => PARSE_ERROR,
        Kind::TooLong
        | Kind::TooDeep
        | Kind::TooMany
        | Kind::DuplicateKey
        | Kind::PrivateKey
        | Kind::NumberRange => INVALID_REQUEST,
    };
    let message =
        if fault.at.is_empty() { fault.to_string() } else { format!("{fault} ({})", fault.at) };
    Fault::new(code, message, None)
}

/// `{"jsonrpc":"2.0","id":…,"method":…,"params":…}`, without a line end.
pub fn write_request(id: &Id, method: &str, params: Option<&Value>) -> Vec<u8> {
    let mut line = begun(Some(id), 512);
    line.extend_from_slice(b",\"method\":");
    write::push_string(&mut line, method);
    finish(line, "params", params)
}

/// `{"jsonrpc":"2.0","method":…,"params":…}`, without a line end.
pub fn write_notification(method: &str, params: Option<&Value>) -> Vec<u8> {
    let mut line = begun(None, 256);
    line.extend_from_slice(b",\"method\":");
    write::push_string(&mut line, method);
    finish(line, "params", params)
}

/// `{"jsonrpc":"2.0","id":…,"result":…}`, without a line end.
pub fn write_result(id: &Id, result: &Value) -> Vec<u8> {
    finish(begun(Some(id), 512), "result", Some(result))
}

/// The same from JSON text that is known to be one value. Line ends in it, which JSON allows between tokens alone,
/// become spaces.
pub fn write_result_raw(id: &Id, result: &[u8]) -> Vec<u8> {
    let mut line = begun(Some(id), result.len());
    line.extend_from_slice(b",\"result\":");
    let from = line.len();
    line.extend_from_slice(result);
    for byte in line.iter_mut().skip(from) {
        // Without a branch, so that many bytes are looked at together.
        *byte = if (*byte == b'\n') | (*byte == b'\r') { b' ' } else { *byte };
    }
    line.push(b'}');
    line
}

/// `{"jsonrpc":"2.0","id":…,"error":{"code":…,"message":…,"data":…}}`, without a line end. Without an id, `null` stands
/// there (JSON-RPC 2.0, 5).
pub fn write_error(id: Option<&Id>, code: i64, message: &str, data: Option<&Value>) -> Vec<u8> {
    let mut line = begun(id, 256);
    if id.is_none() {
        line.extend_from_slice(b",\"id\":null");
    }
    line.extend_from_slice(b",\"error\":{\"code\":");
    line.extend_from_slice(code.to_string().as_bytes());
    line.extend_from_slice(b",\"message\":");
    write::push_string(&mut line, message);
    line = finish(line, "data", data);
    line.push(b'}');
    line
}

/// The beginning of every message. `room`: bytes to come.
fn begun(id: Option<&Id>, room: usize) -> Vec<u8> {
    let mut line = Vec::with_capacity(64 + room);
    line.extend_from_slice(b"{\"jsonrpc\":\"2.0\"");
    if let Some(Id(token)) = id {
        line.extend_from_slice(b",\"id\":");
        match token {
            Token::Text(text) => write::push_string(&mut line, text),
            Token::Integer(digits) => line.extend_from_slice(digits.as_bytes()),
        }
    }
    line
}

fn finish(mut line: Vec<u8>, name: &str, value: Option<&Value>) -> Vec<u8> {
    if let Some(value) = value {
        line.extend_from_slice(b",\"");
        line.extend_from_slice(name.as_bytes());
        line.extend_from_slice(b"\":");
        write::push(&mut line, value);
    }
    line.push(b'}');
    line
}

/// A string as JSON. A tree's `Display` escapes control characters, so no newline is left in it.
fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests;
