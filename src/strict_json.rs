//! The one JSON parser for untrusted bytes (RFC 8259, with what it leaves open closed).
//!
//! Refused, each with its place: duplicate member names (also in escaped spelling), trailing bytes, nesting,
//! length and number of values over the limits, `NaN` and its kin, member names that serde_json keeps for itself. Numbers keep their
//! digits and members their order, so that what was validated can be written out again as it was.

pub mod object;
mod shallow;
mod spelling;
pub mod top;
pub mod write;

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::map::Entry;
use serde_json::{Map, Number, Value};

pub use self::shallow::shallow;

/// serde_json's own nesting limit is 128; ours must stay below it, so that ours is the one that answers.
pub const MAX_DEPTH: usize = 120;
/// Longest number kept by its digits; a longer one is refused rather than carried around.
const MAX_NUMBER: usize = 400;
/// Member names with this beginning are serde_json's private spelling of numbers and raw text.
const PRIVATE: &str = "$serde_json::private::";
/// Values in one text, nested ones counted. A value costs about 100 bytes once it is read, however short it was:
/// two bytes of `0,` are fifty times that.
pub const MAX_VALUES: usize = 1 << 18;
/// The same for a list of an MCP server, a page of which may hold thousands of tools with their schemas.
pub const MAX_LIST_VALUES: usize = 1 << 21;
/// Characters of a place that a fault tells; names may be as long as the text.
const MAX_PLACE: usize = 200;

/// Bounds of one parse.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest text, bytes.
    pub bytes: usize,
    /// Deepest nesting of arrays and objects; `{}` is 1.
    pub depth: usize,
    /// Refuse numbers that a double cannot hold even roughly: `1e999`, `1e-400`.
    pub double_range: bool,
    /// Most values, nested ones counted.
    pub values: usize,
}

impl Limits {
    pub fn arguments(bytes: usize, depth: usize) -> Self {
        Self { bytes, depth: depth.min(MAX_DEPTH), double_range: true, values: MAX_VALUES }
    }
    pub fn answer(bytes: usize) -> Self {
        Self { bytes, depth: MAX_DEPTH, double_range: false, values: MAX_VALUES }
    }
    /// A whole message of an agent: what of it are arguments is judged by itself.
    pub fn request(bytes: usize) -> Self {
        Self::answer(bytes)
    }
    /// A list of an MCP server, or what is made of one.
    pub fn list(bytes: usize) -> Self {
        Self { values: MAX_LIST_VALUES, ..Self::answer(bytes) }
    }
}

/// What is wrong with the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Empty,
    TooLong,
    TooDeep,
    /// More values than the bound.
    TooMany,
    DuplicateKey,
    PrivateKey,
    NumberRange,
    Trailing,
    Truncated,
    Syntax,
}

/// Where and why a text was refused. `Display` is one short sentence; it quotes at most the key's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonFault {
    pub kind: Kind,
    /// Byte offset into the text.
    pub offset: usize,
    /// JSON Pointer of the place, where one is known; "" is the whole text.
    pub at: String,
    pub message: Cow<'static, str>,
}

impl fmt::Display for JsonFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.message, self.offset)
    }
}
impl std::error::Error for JsonFault {}

/// Parses one JSON value; white space around it is allowed, nothing else.
pub fn parse(text: &[u8], limits: Limits) -> Result<Value, JsonFault> {
    if text.len() > limits.bytes {
        let message =
            format!("{} bytes of JSON are more than the limit of {}", text.len(), limits.bytes);
        return Err(JsonFault {
            kind: Kind::TooLong,
            offset: limits.bytes,
            at: String::new(),
            message: message.into(),
        });
    }
    if text.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')) {
        return Err(JsonFault {
            kind: Kind::Empty,
            offset: 0,
            at: String::new(),
            message: "no JSON value".into(),
        });
    }
    let walk = Walk {
        limits,
        found: std::cell::RefCell::new(None),
        path: std::cell::RefCell::new(String::new()),
        exponents: std::cell::Cell::new(false),
        values: std::cell::Cell::new(limits.values),
    };
    let mut reader = serde_json::Deserializer::from_slice(text);
    let parsed = Node { walk: &walk, depth: 0 }.deserialize(&mut reader);
    let mut value = match parsed {
        Ok(value) => value,
        Err(error) => return Err(walk.fault(text, &error)),
    };
    match reader.end() {
        Ok(()) => {
            if walk.exponents.get() {
                spelling::restore(text, &mut value);
            }
            Ok(value)
        }
        Err(error) => {
            let offset = offset_of(text, &error);
            Err(JsonFault {
                kind: Kind::Trailing,
                offset,
                at: String::new(),
                message: "unexpected text after the JSON value".into(),
            })
        }
    }
}

/// Whether a tree that was read under wider limits is within these, but for the length of its text.
pub fn within(value: &Value, limits: Limits) -> bool {
    let mut left = limits.values;
    fits(value, limits, limits.depth, &mut left)
}

fn fits(value: &Value, limits: Limits, depth: usize, left: &mut usize) -> bool {
    let Some(fewer) = left.checked_sub(1) else { return false };
    *left = fewer;
    match value {
        Value::Null | Value::Bool(_) | Value::String(_) => true,
        // Others are looked at where they are read.
        Value::Number(number) => !limits.double_range || is_plain(number.as_str()),
        Value::Array(items) => {
            depth > 0 && items.iter().all(|item| fits(item, limits, depth - 1, left))
        }
        Value::Object(members) => {
            depth > 0 && members.values().all(|value| fits(value, limits, depth - 1, left))
        }
    }
}

/// Digits alone, and so few that they are a whole number of every width.
fn is_plain(digits: &str) -> bool {
    digits.len() <= 18 && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// State of one walk: the limits, the pointer so far, and the first fault of ours.
struct Walk {
    limits: Limits,
    found: std::cell::RefCell<Option<(Kind, String, Cow<'static, str>)>>,
    path: std::cell::RefCell<String>,
    /// A number with an exponent was met: only those are spelt otherwise by the parser.
    exponents: std::cell::Cell<bool>,
    /// Values that may still come.
    values: std::cell::Cell<usize>,
}

impl Walk {
    fn refuse<E: de::Error>(&self, kind: Kind, message: impl Into<Cow<'static, str>>) -> E {
        let mut found = self.found.borrow_mut();
        if found.is_none() {
            *found = Some((kind, self.place(), message.into()));
        }
        E::custom("refused")
    }

    fn place(&self) -> String {
        let path = self.path.borrow();
        match path.char_indices().nth(MAX_PLACE) {
            Some((end, _)) => format!("{}…", path.get(..end).unwrap_or_default()),
            None => path.clone(),
        }
    }

    fn fault(&self, text: &[u8], error: &serde_json::Error) -> JsonFault {
        let offset = offset_of(text, error);
        if let Some((kind, at, message)) = self.found.borrow_mut().take() {
            return JsonFault { kind, offset, at, message };
        }
        let at = self.place();
        if error.is_eof() {
            return JsonFault {
                kind: Kind::Truncated,
                offset: text.len(),
                at,
                message: "the JSON text is cut off".into(),
            };
        }
        let words = error.to_string();
        let words = words.split(" at line ").next().unwrap_or("not JSON").to_owned();
        let (kind, message) = if words.starts_with("recursion limit") {
            (Kind::TooDeep, "nested too deeply".to_owned())
        } else {
            (Kind::Syntax, format!("not JSON: {words}"))
        };
        JsonFault { kind, offset, at, message: message.into() }
    }

    fn number<E: de::Error>(&self, digits: String) -> Result<Value, E> {
        if digits.len() > MAX_NUMBER {
            return Err(
                self.refuse(Kind::NumberRange, format!("a number of {} characters", digits.len()))
            );
        }
        let plain = is_plain(&digits);
        if !plain && digits.contains(['e', 'E']) {
            self.exponents.set(true);
        }
        if self.limits.double_range && !plain {
            let double: f64 = digits.parse().unwrap_or(f64::NAN);
            let is_zero = digits
                .bytes()
                .take_while(|b| !matches!(b, b'e' | b'E'))
                .all(|b| !(b'1'..=b'9').contains(&b));
            if !double.is_finite() || (double == 0.0 && !is_zero) {
                return Err(
                    self.refuse(Kind::NumberRange, "a number outside the range of a double")
                );
            }
        }
        // The parser has read it as a number already.
        Ok(Value::Number(Number::from_string_unchecked(digits)))
    }
}

/// serde_json tells line and column (both from 1, column in bytes); messages want one byte offset.
fn offset_of(text: &[u8], error: &serde_json::Error) -> usize {
    let line_start: usize = text
        .split_inclusive(|b| *b == b'\n')
        .take(error.line().saturating_sub(1))
        .map(<[u8]>::len)
        .sum();
    (line_start + error.column()).saturating_sub(1).min(text.len())
}

#[derive(Clone, Copy)]
struct Node<'w> {
    walk: &'w Walk,
    depth: usize,
}

impl Node<'_> {
    fn below<E: de::Error>(self) -> Result<Self, E> {
        let depth = self.depth + 1;
        if depth > self.walk.limits.depth {
            let message = format!("nested deeper than {} levels", self.walk.limits.depth);
            return Err(self.walk.refuse(Kind::TooDeep, message));
        }
        Ok(Self { depth, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let Some(left) = self.walk.values.get().checked_sub(1) else {
            let message = format!("more than {} values", self.walk.limits.values);
            return Err(self.walk.refuse(Kind::TooMany, message));
        };
        self.walk.values.set(left);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }
    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let below = self.below()?;
        let start = self.walk.path.borrow().len();
        let mut list = Vec::new();
        loop {
            {
                let mut path = self.walk.path.borrow_mut();
                path.truncate(start);
                path.push('/');
                push_index(&mut path, list.len());
            }
            match items.next_element_seed(below)? {
                Some(item) => list.push(item),
                None => break,
            }
        }
        self.walk.path.borrow_mut().truncate(start);
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let start = self.walk.path.borrow().len();
        // Room for the members of most calls at once; only for the outermost objects, of which there are few.
        let mut map = if self.depth <= 1 { Map::with_capacity(7) } else { Map::new() };
        let mut below = None;
        while let Some(key) = members.next_key::<String>()? {
            if key.starts_with(PRIVATE) {
                // A number that serde_json keeps as text comes as a map with this key and an *owned* string;
                // a member the agent wrote comes with a borrowed or copied one (see tests).
                return match members.next_value_seed(OwnDigits)? {
                    Some(digits) if map.is_empty() => self.walk.number(digits),
                    Some(_) | None => Err(self.walk.refuse(
                        Kind::PrivateKey,
                        "a member name that begins with `$serde_json::private::`",
                    )),
                };
            }
            let node = match below {
                Some(node) => node,
                None => *below.insert(self.below()?),
            };
            push_name(&self.walk.path, start, &key);
            match map.entry(key) {
                Entry::Vacant(place) => drop(place.insert(members.next_value_seed(node)?)),
                Entry::Occupied(known) => {
                    let message = format!("the member `{}` stands twice", shown(known.key()));
                    return Err(self.walk.refuse(Kind::DuplicateKey, message));
                }
            }
        }
        if below.is_none() {
            self.below::<A::Error>()?;
        }
        self.walk.path.borrow_mut().truncate(start);
        Ok(Value::Object(map))
    }
}

fn push_index(path: &mut String, index: usize) {
    if index >= 10 {
        push_index(path, index / 10);
    }
    path.push(char::from(b"0123456789".get(index % 10).copied().unwrap_or(b'0')));
}

fn push_name(path: &std::cell::RefCell<String>, start: usize, name: &str) {
    let mut path = path.borrow_mut();
    path.truncate(start);
    path.push('/');
    if !name.contains(['~', '/']) {
        path.push_str(name);
        return;
    }
    for c in name.chars() {
        match c {
            '~' => path.push_str("~0"),
            '/' => path.push_str("~1"),
            other => path.push(other),
        }
    }
}

/// A member name as a message may quote it: cut at 64 characters, control characters out.
fn shown(name: &str) -> String {
    name.chars().take(64).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Takes the value of serde_json's private number map: `Some` for an owned string, `None` for anything a text can say.
struct OwnDigits;

impl<'de> DeserializeSeed<'de> for OwnDigits {
    type Value = Option<String>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for OwnDigits {
    type Value = Option<String>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }
    fn visit_string<E>(self, digits: String) -> Result<Self::Value, E> {
        Ok(Some(digits))
    }
    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
        Ok(None)
    }
    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
