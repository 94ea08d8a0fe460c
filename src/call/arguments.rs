//! Arguments of a call: strictly parsed, with one canonical form.
//!
//! They exist only by [`Arguments::parse`]; what is validated is this tree, and what is sent is written from it.

use std::sync::{Arc, OnceLock};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::outcome::Fault;
use super::pointer::Pointer;
use crate::strict_json::{self, JsonFault, Kind, Limits};

/// SHA-256 of a canonical form.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
    /// Over parts, each prefixed by its length, so that no two lists of parts run together.
    pub fn of_parts(parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
    /// A digest that was made before and kept.
    pub fn restored(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
    /// The first `bytes` bytes, in hexadecimal.
    pub fn short_hex(&self, bytes: usize) -> String {
        use std::fmt::Write as _;
        self.0.iter().take(bytes).fold(String::new(), |mut text, byte| {
            // Writing to a String cannot fail.
            if write!(text, "{byte:02x}").is_err() {
                text.clear();
            }
            text
        })
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.short_hex(6))
    }
}

/// Arguments that did not parse: what is wrong, and a digest of their text for the fuse.
#[derive(Debug, Clone)]
pub struct Malformed {
    pub faults: Vec<Fault>,
    pub digest: Digest,
    /// Set when the text was over the limit: `(bytes, limit)`.
    pub too_large: Option<(u64, u64)>,
    pub bytes: u64,
}

/// An object of arguments. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Arguments(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    tree: Value,
    bytes: u64,
    digest: OnceLock<Digest>,
}

impl Arguments {
    /// Parses the text of one call's arguments. Empty text, white space and `null` are an empty object: some
    /// models spell "no arguments" so; required fields are then missed by the schema, which names them.
    pub fn parse(text: &[u8], limits: Limits) -> Result<Self, Malformed> {
        let bytes = text.len() as u64;
        let malformed =
            |faults, too_large| Malformed { faults, digest: Digest::of(text), too_large, bytes };
        let tree = match strict_json::parse(text, limits) {
            Ok(Value::Object(map)) => Value::Object(map),
            Ok(Value::Null) => Value::Object(serde_json::Map::new()),
            Ok(other) => {
                let twice = matches!(&other, Value::String(inner) if inner.trim_start().starts_with(['{', '[']));
                let got = if twice {
                    "a string that holds JSON: the arguments are encoded twice"
                } else {
                    kind_of(&other)
                };
                return Err(malformed(
                    vec![Fault {
                        at: String::new(),
                        expected: "an object".into(),
                        got: got.into(),
                    }],
                    None,
                ));
            }
            Err(fault) if fault.kind == Kind::Empty => Value::Object(serde_json::Map::new()),
            Err(fault) if fault.kind == Kind::TooLong => {
                return Err(malformed(vec![fault_of(&fault)], Some((bytes, limits.bytes as u64))));
            }
            Err(fault) => return Err(malformed(vec![fault_of(&fault)], None)),
        };
        Ok(Self(Arc::new(Inner { tree, bytes, digest: OnceLock::new() })))
    }

    /// An already strictly parsed value (a member of a larger body). `None` when it is no object.
    pub fn from_tree(tree: Value, bytes: u64) -> Option<Self> {
        matches!(tree, Value::Object(_))
            .then(|| Self(Arc::new(Inner { tree, bytes, digest: OnceLock::new() })))
    }

    pub fn tree(&self) -> &Value {
        &self.0.tree
    }

    /// Size of the text they came in.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Digest of the canonical form without the `volatile` members.
    pub fn digest(&self, volatile: &[Pointer]) -> Digest {
        if volatile.is_empty() {
            return *self.0.digest.get_or_init(|| Digest::of(&canonical(&self.0.tree)));
        }
        let mut tree = self.0.tree.clone();
        for pointer in volatile {
            pointer.remove(&mut tree);
        }
        Digest::of(&canonical(&tree))
    }
}

fn fault_of(fault: &JsonFault) -> Fault {
    let expected = match fault.kind {
        Kind::DuplicateKey => "each member once",
        Kind::Trailing => "nothing after the object",
        Kind::Truncated => "a complete JSON object; the text is truncated",
        Kind::TooDeep | Kind::TooLong => "less",
        Kind::NumberRange => "a number that a double can hold",
        Kind::PrivateKey => "another member name",
        Kind::Empty | Kind::Syntax => "one JSON object",
    };
    Fault { at: fault.at.clone(), expected: expected.into(), got: fault.to_string().into() }
}

/// A value's JSON type, as messages name it.
pub fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// RFC 8785, but for numbers that a double cannot hold: those are `0` there, and which numbers they are, counted in
/// the order of the canonical form, and their exact decimals follow, length-prefixed. So 9007199254740993 and …992
/// stay two values. As long as the text, whatever its names: a place is told by a count, not by a pointer.
pub fn canonical(tree: &Value) -> Vec<u8> {
    let mut inexact = Inexact::default();
    let rounded = inexact.round(tree);
    // Every number left is one that a double holds, so RFC 8785 has a form for the tree.
    let mut bytes = serde_json_canonicalizer::to_vec(&rounded)
        .unwrap_or_else(|_| rounded.to_string().into_bytes());
    for (count, decimal) in inexact.found {
        bytes.extend_from_slice(&count.to_be_bytes());
        bytes.extend_from_slice(&(decimal.len() as u64).to_be_bytes());
        bytes.extend_from_slice(decimal.as_bytes());
    }
    bytes
}

/// The numbers of a tree that a double cannot hold.
#[derive(Default)]
struct Inexact {
    /// Numbers met so far.
    numbers: u64,
    /// Which number, and its exact decimal.
    found: Vec<(u64, String)>,
}

impl Inexact {
    fn round(&mut self, value: &Value) -> Value {
        match value {
            Value::Null | Value::Bool(_) | Value::String(_) => value.clone(),
            Value::Number(number) => self.number(&number.to_string()),
            Value::Array(items) => {
                Value::Array(items.iter().map(|item| self.round(item)).collect())
            }
            Value::Object(map) => {
                // In one order, whatever the order of the text: the count must not depend on it.
                let mut members: Vec<_> = map.iter().collect();
                members.sort_unstable_by_key(|(name, _)| *name);
                let rounded = members.into_iter().map(|(name, v)| (name.clone(), self.round(v)));
                Value::Object(rounded.collect())
            }
        }
    }

    fn number(&mut self, digits: &str) -> Value {
        self.numbers += 1;
        let exact = decimal(digits);
        let double: f64 = digits.parse().unwrap_or(f64::NAN);
        let shortest =
            if double.is_finite() { decimal(&format!("{double:e}")) } else { String::new() };
        if shortest == exact {
            // Written as RFC 8785 wants it: `1.0` → `1`, `-0` → `0`.
            return serde_json::Number::from_f64(if double == 0.0 { 0.0 } else { double })
                .map_or(Value::Null, Value::Number);
        }
        self.found.push((self.numbers, exact));
        Value::Number(0.into())
    }
}

/// The value of a JSON number as `sign digits e exponent`, digits without leading or trailing zeros; never expanded.
fn decimal(text: &str) -> String {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    // An exponent beyond i64 cannot come from a bounded number that is in double range; kept apart by saturating.
    let mut exponent: i64 = exponent
        .trim_start_matches('+')
        .parse()
        .unwrap_or(if exponent.starts_with('-') { i64::MIN / 2 } else { i64::MAX / 2 });
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    exponent = exponent.saturating_sub(i64::try_from(fraction.len()).unwrap_or(i64::MAX));
    let all = format!("{whole}{fraction}");
    let digits = all.trim_start_matches('0');
    let kept = digits.trim_end_matches('0');
    if kept.is_empty() {
        return "0".to_owned();
    }
    exponent =
        exponent.saturating_add(i64::try_from(digits.len() - kept.len()).unwrap_or(i64::MAX));
    format!("{}{kept}e{exponent}", if negative { "-" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(text: &str) -> Digest {
        Arguments::parse(text.as_bytes(), Limits::arguments(1 << 16, 32)).expect(text).digest(&[])
    }

    #[test]
    fn equal_values_share_a_digest_whatever_their_spelling() {
        for (a, b) in [
            (r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#),
            (r#"{"a":1.10}"#, r#"{"a":1.1}"#),
            (r#"{"a":1.0}"#, r#"{"a":1}"#),
            (r#"{"a":1E+2}"#, r#"{"a":100}"#),
            (r#"{"a":-0}"#, r#"{"a":0}"#),
            (r#"{"a":"\u0041"}"#, r#"{"a":"A"}"#),
            ("", "{}"),
            ("null", "{}"),
            (r#"{"a":90071992547409930e-1}"#, r#"{"a":9007199254740993}"#),
        ] {
            assert_eq!(digest(a), digest(b), "{a} {b}");
        }
    }

    #[test]
    fn bb_j09_numbers_beyond_a_double_stay_distinct() {
        assert_ne!(digest(r#"{"a":9007199254740993}"#), digest(r#"{"a":9007199254740992}"#));
        assert_ne!(digest(r#"{"a":9007199254740993}"#), digest(r#"{"a":-9007199254740993}"#));
        assert_ne!(digest(r#"{"a":0.1}"#), digest(r#"{"a":0.10000000000000001}"#));
        assert_ne!(
            digest(r#"{"a":9007199254740993,"b":0}"#),
            digest(r#"{"a":0,"b":9007199254740993}"#)
        );
    }

    #[test]
    fn a_canonical_form_is_no_longer_than_its_text_whatever_the_names() {
        let name = "k".repeat(10_000);
        let text = format!(r#"{{"{name}":[{}1]}}"#, "9007199254740993,".repeat(1_000));
        let tree = strict_json::parse(text.as_bytes(), Limits::answer(1 << 20)).expect("sound");
        assert!(canonical(&tree).len() < 3 * text.len());
    }

    #[test]
    fn which_number_is_beyond_a_double_does_not_depend_on_the_order_of_members() {
        let one = r#"{"a":[1,{"c":9007199254740993,"b":2}],"z":0.10000000000000001}"#;
        let two = r#"{"z":0.10000000000000001,"a":[1,{"b":2,"c":9007199254740993}]}"#;
        let other = r#"{"z":9007199254740993,"a":[1,{"b":2,"c":0.10000000000000001}]}"#;
        assert_eq!(digest(one), digest(two));
        assert_ne!(digest(one), digest(other));
        assert_ne!(
            digest(r#"{"a":[9007199254740993,0]}"#),
            digest(r#"{"a":[0,9007199254740993]}"#)
        );
    }

    #[test]
    fn volatile_members_are_left_out() {
        let volatile = [Pointer::parse("/at").expect("pointer")];
        let parse = |text: &str| {
            Arguments::parse(text.as_bytes(), Limits::arguments(1 << 16, 32)).expect("sound")
        };
        assert_eq!(
            parse(r#"{"a":1,"at":1}"#).digest(&volatile),
            parse(r#"{"at":2,"a":1}"#).digest(&volatile)
        );
    }

    #[test]
    fn bb_j06_double_encoded_arguments_are_named_as_such() {
        let malformed =
            Arguments::parse(br#""{\"order_id\":\"7\"}""#, Limits::arguments(1 << 16, 32))
                .expect_err("a string");
        assert!(malformed.faults[0].got.contains("encoded twice"));
        assert_eq!(malformed.faults[0].expected, "an object");
    }
}
