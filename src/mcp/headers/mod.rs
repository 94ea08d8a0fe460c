//! The headers of MCP over HTTP: their names, how a value stands in one, and whether it says what the body says.
//!
//! What a mismatch leads to is the caller's choice. Rules: 2026-07-28, Streamable HTTP, request metadata.

mod number;
mod params;

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::version::Revision;
pub use params::{ParamHeader, ParamKind, param_headers};

pub const PROTOCOL_VERSION: &str = "mcp-protocol-version";
pub const METHOD: &str = "mcp-method";
pub const NAME: &str = "mcp-name";
pub const SESSION_ID: &str = "mcp-session-id";
pub const LAST_EVENT_ID: &str = "last-event-id";
/// What the name of a tool parameter's header begins with.
pub const PARAM_PREFIX: &str = "mcp-param-";

/// Longest value read, bytes.
pub const MAX_VALUE: usize = 8 * 1024;
/// Most `Mcp-Param-*` headers, unknown to us, that go on to an upstream.
pub const MAX_FORWARDED: usize = 32;
/// Longest name and longest value of such a header, bytes.
pub const MAX_FORWARDED_BYTES: usize = 1024;

const OPENING: &str = "=?base64?";
const CLOSING: &str = "?=";

/// A header is missing, malformed, or says something else than the body (-32020).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    pub header: String,
    pub message: Cow<'static, str>,
}

impl Mismatch {
    fn new(header: &str, message: impl Into<Cow<'static, str>>) -> Self {
        Self { header: header.to_owned(), message: message.into() }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "header mismatch: `{}` {}", self.header, self.message)
    }
}
impl std::error::Error for Mismatch {}

/// A text as a header value: plain where it can stand so, else base64 between markers. A plain text that looks like
/// the markers is encoded too, so that every value has one reading.
pub fn encode(text: &str) -> Cow<'_, str> {
    let padded = text.starts_with([' ', '\t']) || text.ends_with([' ', '\t']);
    let marked = text.starts_with(OPENING) && text.ends_with(CLOSING);
    let plain = text.bytes().all(is_field_byte) && !padded && !marked;
    if plain {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!("{OPENING}{}{CLOSING}", STANDARD.encode(text)))
    }
}

/// The text a header value stands for; the white space around it does not count (RFC 9110, 5.5).
pub fn decode(value: &[u8]) -> Result<Cow<'_, str>, &'static str> {
    let text = plain(value)?;
    let marked = text.strip_prefix(OPENING).and_then(|text| text.strip_suffix(CLOSING));
    let Some(encoded) = marked else { return Ok(Cow::Borrowed(text)) };
    let bytes = STANDARD.decode(encoded).map_err(|_| "is marked as base64 and is not")?;
    let text = String::from_utf8(bytes).map_err(|_| "is base64 of bytes that are not UTF-8")?;
    Ok(Cow::Owned(text))
}

fn plain(value: &[u8]) -> Result<&str, &'static str> {
    if value.len() > MAX_VALUE {
        return Err("is too long");
    }
    if !value.iter().copied().all(is_field_byte) {
        return Err("has a character that a header value cannot have");
    }
    let text = std::str::from_utf8(value).map_err(|_| "is not ASCII")?;
    Ok(text.trim_matches([' ', '\t']))
}

const fn is_field_byte(byte: u8) -> bool {
    matches!(byte, b'\t' | 0x20..=0x7e)
}

/// A field name (RFC 9110, 5.6.2).
fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// The member of `params` that `Mcp-Name` mirrors; `None` where a method has no such header.
pub fn name_member(method: &str) -> Option<&'static str> {
    match method {
        "tools/call" | "prompts/get" => Some("name"),
        "resources/read" => Some("uri"),
        "tasks/get" | "tasks/update" | "tasks/cancel" => Some("taskId"),
        _ => None,
    }
}

/// The standard headers of a request, as they came.
#[derive(Debug, Clone, Copy, Default)]
pub struct Standard<'h> {
    pub protocol_version: Option<&'h [u8]>,
    pub method: Option<&'h [u8]>,
    pub name: Option<&'h [u8]>,
}

/// Compares the standard headers of a modern request with its body. `version` is what the body's `_meta` says. A body
/// that lacks the member that `Mcp-Name` mirrors is no matter of headers.
pub fn check_standard(
    headers: Standard<'_>,
    version: &str,
    method: &str,
    params: Option<&Value>,
) -> Result<(), Mismatch> {
    equal(PROTOCOL_VERSION, headers.protocol_version, version, plain_text)?;
    equal(METHOD, headers.method, method, plain_text)?;
    let named = name_member(method)
        .and_then(|member| params.and_then(|params| params.get(member)).and_then(Value::as_str));
    match named {
        Some(name) => equal(NAME, headers.name, name, decode),
        None => Ok(()),
    }
}

fn plain_text(value: &[u8]) -> Result<Cow<'_, str>, &'static str> {
    plain(value).map(Cow::Borrowed)
}

fn equal(
    header: &str,
    value: Option<&[u8]>,
    body: &str,
    read: fn(&[u8]) -> Result<Cow<'_, str>, &'static str>,
) -> Result<(), Mismatch> {
    let value = value.ok_or_else(|| Mismatch::new(header, "is missing"))?;
    let text = read(value).map_err(|words| Mismatch::new(header, words))?;
    if text == body {
        return Ok(());
    }
    Err(Mismatch::new(header, "is not what the body says"))
}

/// The standard headers of a modern request of ours, name and value, built from the body that goes with them.
pub fn standard(
    revision: Revision,
    method: &str,
    params: Option<&Value>,
) -> Vec<(&'static str, String)> {
    let mut headers = vec![
        (PROTOCOL_VERSION, revision.as_str().to_owned()),
        (METHOD, encode(method).into_owned()),
    ];
    let named = name_member(method).and_then(|member| params?.get(member)?.as_str());
    headers.extend(named.map(|name| (NAME, encode(name).into_owned())));
    headers
}

/// Whether an `Mcp-Param-*` header that no tool of ours declares may go on: a proper name, a bounded value of visible
/// ASCII, space and tab.
pub fn is_forwardable(name: &str, value: &[u8]) -> bool {
    let prefixed = name
        .get(..PARAM_PREFIX.len())
        .is_some_and(|prefix| prefix.eq_ignore_ascii_case(PARAM_PREFIX));
    prefixed
        && name.len() > PARAM_PREFIX.len()
        && is_token(name)
        && name.len() <= MAX_FORWARDED_BYTES
        && value.len() <= MAX_FORWARDED_BYTES
        && value.iter().copied().all(is_field_byte)
}

#[cfg(test)]
mod tests;
