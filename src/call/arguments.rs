//! Arguments of a call: strictly parsed, with one canonical form.
//!
//! They exist only by [`Arguments::parse`]; what is validated is this tree, and what is sent is written from it.

use std::sync::{Arc, LazyLock, OnceLock};

use ahash::RandomState;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::canonical::canonical;
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
        let hex = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or('0');
        self.0.iter().take(bytes).flat_map(|byte| [hex(byte >> 4), hex(byte & 15)]).collect()
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.short_hex(6))
    }
}

/// Tells one call's arguments from another's, within this process only: a keyed hash, which nobody outside can aim at.
/// For memories that forget; what outlives the process goes by a [`Digest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Likeness(u64);

impl Likeness {
    pub fn of(bytes: &[u8]) -> Self {
        static KEYED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Self(KEYED.hash_one(bytes))
    }
    /// Over parts that do not run together.
    pub fn of_parts(parts: &[&[u8]]) -> Self {
        static KEYED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Self(KEYED.hash_one(parts))
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
    likeness: OnceLock<Likeness>,
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
        Ok(Self(Arc::new(Inner {
            tree,
            bytes,
            digest: OnceLock::new(),
            likeness: OnceLock::new(),
        })))
    }

    /// As [`Arguments::parse`] of the text that the value is written as; it was strictly parsed before, perhaps under
    /// wider limits.
    pub fn of_value(value: &Value, limits: Limits) -> Result<Self, Malformed> {
        let text = strict_json::write::text(value);
        let fits = text.len() <= limits.bytes && strict_json::within(value, limits);
        match fits.then(|| Self::from_tree(value.clone(), text.len() as u64)).flatten() {
            Some(arguments) => Ok(arguments),
            None => Self::parse(&text, limits),
        }
    }

    /// An already strictly parsed value (a member of a larger body). `None` when it is no object.
    pub fn from_tree(tree: Value, bytes: u64) -> Option<Self> {
        matches!(tree, Value::Object(_)).then(|| {
            Self(Arc::new(Inner {
                tree,
                bytes,
                digest: OnceLock::new(),
                likeness: OnceLock::new(),
            }))
        })
    }

    /// Of members that were taken from a request one by one.
    pub fn of_members(members: serde_json::Map<String, Value>, bytes: u64) -> Self {
        let (digest, likeness) = (OnceLock::new(), OnceLock::new());
        Self(Arc::new(Inner { tree: Value::Object(members), bytes, digest, likeness }))
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
        Digest::of(&self.without(volatile))
    }

    /// As [`Arguments::digest`], for memories of this process.
    pub fn likeness(&self, volatile: &[Pointer]) -> Likeness {
        if volatile.is_empty() {
            return *self.0.likeness.get_or_init(|| Likeness::of(&canonical(&self.0.tree)));
        }
        Likeness::of(&self.without(volatile))
    }

    fn without(&self, volatile: &[Pointer]) -> Vec<u8> {
        let mut tree = self.0.tree.clone();
        for pointer in volatile {
            pointer.remove(&mut tree);
        }
        canonical(&tree)
    }
}

fn fault_of(fault: &JsonFault) -> Fault {
    let expected = match fault.kind {
        Kind::DuplicateKey => "each member once",
        Kind::Trailing => "nothing after the object",
        Kind::Truncated => "a complete JSON object; the text is truncated",
        Kind::TooDeep | Kind::TooLong | Kind::TooMany => "less",
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
