//! What a single value of the language may be: names, counts, quantities, pointers, addresses, references.

use http::{HeaderName, HeaderValue};
use serde_json::{Map, Value, json};

use super::read::{At, Fields, Kind, Report, suggest_switch};
use super::tree::{Node, NodeKind, Scalar};
use crate::call::names::is_plain_name;
use crate::call::pointer::{Path, Pointer};
use crate::policy::diagnostic::Problem;
use crate::policy::quantity;
use crate::policy::template::reserved_header;

pub(crate) use super::reference::{SchemaKind, SecretKind, is_env_name};
pub use super::reference::{SchemaSource, SecretRef};
pub(crate) use super::target::{ADDRESS, BASE_URL, HOST, PATH, URL};
pub use super::target::{Address, Host, Target};

/// A text that means `T`. `parse` answers a phrase that completes "expected …".
pub(crate) struct Text<T> {
    pub(crate) expected: &'static str,
    pub(crate) parse: fn(&str) -> Result<T, &'static str>,
    pub(crate) schema: fn() -> Value,
}

impl<T> Kind for Text<T> {
    type Out = T;

    fn read(&self, node: &Node, report: &mut Report) -> Option<T> {
        match (&node.kind, node.scalar()) {
            (NodeKind::Scalar { text, .. }, Some(Scalar::Text)) => match (self.parse)(text) {
                Ok(value) => return Some(value),
                Err(expected) => report.wrong("CR1004", node, expected),
            },
            (_, Some(Scalar::Integer | Scalar::Float | Scalar::Bool(_))) => {
                report.wrong("CR1004", node, self.expected);
                if let Some(last) = report.problems.last_mut() {
                    last.label = Some("put a text in quotes".into());
                }
            }
            _other => report.wrong("CR1004", node, self.expected),
        }
        None
    }

    fn schema(&self, _defs: &mut Map<String, Value>) -> Value {
        (self.schema)()
    }
}

/// A quantity with a unit (CR1005 without one).
pub(crate) struct Quantity<T> {
    pub(crate) expected: &'static str,
    pub(crate) parse: fn(&str) -> Result<T, quantity::Fault>,
    pub(crate) schema: fn() -> Value,
}

impl<T> Kind for Quantity<T> {
    type Out = T;

    fn read(&self, node: &Node, report: &mut Report) -> Option<T> {
        match (&node.kind, node.scalar()) {
            (NodeKind::Scalar { text, .. }, Some(Scalar::Text)) => match (self.parse)(text) {
                Ok(value) => return Some(value),
                Err(quantity::Fault::Unit(expected)) => report.wrong("CR1005", node, expected),
                Err(quantity::Fault::Range(expected)) => report.wrong("CR1004", node, expected),
            },
            (_, Some(Scalar::Integer | Scalar::Float)) => {
                report.wrong("CR1005", node, self.expected);
            }
            _other => report.wrong("CR1004", node, self.expected),
        }
        None
    }

    fn schema(&self, _defs: &mut Map<String, Value>) -> Value {
        (self.schema)()
    }
}

macro_rules! quantity_kind {
    ($name:ident, $type:ty, $expected:expr, $parse:expr, $pattern:literal) => {
        pub(crate) const $name: Quantity<$type> = Quantity {
            expected: $expected,
            parse: $parse,
    schema: || json!({ "type": "string", "pattern": $pattern }),
        };
    };
}

/// Above zero.
fn positive(text: &str) -> Result<std::time::Duration, quantity::Fault> {
    match quantity::duration(text)? {
        zero if zero.is_zero() => Err(quantity::Fault::Range("a duration above zero")),
        some => Ok(some),
    }
}

const TIME: &str = quantity::A_DURATION;
quantity_kind!(
    DURATION,
    std::time::Duration,
    TIME,
    positive,
    r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"
);
quantity_kind!(
    DURATION_OR_ZERO,
    std::time::Duration,
    TIME,
    quantity::duration,
    r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"
);
quantity_kind!(SIZE, u64, quantity::A_SIZE, quantity::size, r"^[0-9]+(B|KiB|MiB|GiB)$");
quantity_kind!(
    RATE,
    quantity::Rate,
    quantity::A_RATE,
    quantity::rate,
    r"^[0-9]+(\.[0-9]+)?/(s|m|h)$"
);
quantity_kind!(SHARE, u32, quantity::A_SHARE, quantity::share, r"^[0-9]{1,3}(\.[0-9])?%$");
quantity_kind!(
    MONEY,
    quantity::Money,
    quantity::MONEY,
    quantity::money,
    r"^[0-9]+(\.[0-9]{1,6})? [A-Z]{3}$"
);

/// A bare integer within bounds.
pub(crate) struct Count {
    pub(crate) least: u64,
    pub(crate) most: u64,
}

/// A count that fits `u32` and is at least 1.
pub(crate) const COUNT: Count = Count { least: 1, most: 1_000_000_000 };

impl Kind for Count {
    type Out = u64;

    fn read(&self, node: &Node, report: &mut Report) -> Option<u64> {
        if let (NodeKind::Scalar { text, .. }, Some(Scalar::Integer)) = (&node.kind, node.scalar())
            && let Ok(count) = text.parse::<u64>()
            && (self.least..=self.most).contains(&count)
        {
            return Some(count);
        }
        let expected = if self.most == COUNT.most {
            format!("a whole number, {} or more", self.least)
        } else {
            format!("a whole number from {} to {}", self.least, self.most)
        };
        report.wrong("CR1004", node, &expected);
        None
    }

    fn schema(&self, _defs: &mut Map<String, Value>) -> Value {
        json!({ "type": "integer", "minimum": self.least, "maximum": self.most })
    }
}

pub(crate) struct Bool;

impl Kind for Bool {
    type Out = bool;

    fn read(&self, node: &Node, report: &mut Report) -> Option<bool> {
        if let Some(Scalar::Bool(value)) = node.scalar() {
            return Some(value);
        }
        report.wrong("CR1004", node, "`true` or `false`");
        suggest_switch(node, &["true", "false"], report);
        None
    }

    fn schema(&self, _defs: &mut Map<String, Value>) -> Value {
        json!({ "type": "boolean" })
    }
}

/// `unlimited`, or a bound. `None` = unlimited.
pub(crate) struct OrUnlimited<K>(pub(crate) K);

impl<K: Kind> Kind for OrUnlimited<K> {
    type Out = Option<K::Out>;

    fn read(&self, node: &Node, report: &mut Report) -> Option<Self::Out> {
        match &node.kind {
            NodeKind::Scalar { text, .. } if text == "unlimited" => Some(None),
            NodeKind::Scalar { .. } | NodeKind::List(_) | NodeKind::Map(_) | NodeKind::Broken => {
                self.0.read(node, report).map(Some)
            }
        }
    }

    fn schema(&self, defs: &mut Map<String, Value>) -> Value {
        json!({ "anyOf": [self.0.schema(defs), { "const": "unlimited" }] })
    }
}

pub(crate) const NAME: Text<String> = Text {
    expected: "a name",
    parse: |text| {
        let expected = "a name of 1 to 64 of the characters A-Z a-z 0-9 _ -";
        is_plain_name(text).then(|| text.to_owned()).ok_or(expected)
    },
    schema: || json!({ "type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$" }),
};

pub(crate) const GLOB: Text<String> = Text {
    expected: "a tool's name or a pattern of names",
    parse: |text| {
        let sound = text.len() <= 64 && is_plain_name(&text.replace(['*', '?'], "x"));
        sound.then(|| text.to_owned()).ok_or("a name, or a pattern with `*` and `?`")
    },
    schema: || json!({ "type": "string", "pattern": "^[A-Za-z0-9_*?-]{1,64}$" }),
};

/// A line for people, at most 256 bytes.
pub(crate) const LINE: Text<String> = Text {
    expected: "a text",
    parse: |text| {
        let sound =
            !text.trim().is_empty() && text.len() <= 256 && !text.contains(char::is_control);
        sound.then(|| text.to_owned()).ok_or("one line of 1 to 256 bytes")
    },
    schema: || json!({ "type": "string", "minLength": 1, "maxLength": 256 }),
};

/// A tool's description: what the model reads.
pub(crate) const DESCRIPTION: Text<String> = Text {
    expected: "a text",
    parse: |text| {
        let sound = !text.trim().is_empty() && text.len() <= 1024;
        sound.then(|| text.to_owned()).ok_or("a text of 1 to 1024 bytes")
    },
    schema: || json!({ "type": "string", "minLength": 1, "maxLength": 1024 }),
};

/// The name of an argument.
pub(crate) const ARGUMENT: Text<String> = Text {
    expected: "an argument's name",
    parse: |text| {
        let sound = !text.is_empty() && text.len() <= 256 && !text.contains(char::is_control);
        sound.then(|| text.to_owned()).ok_or("an argument's name")
    },
    schema: || json!({ "type": "string", "minLength": 1, "maxLength": 256 }),
};

/// A header's name, or a pointer to an argument.
pub(crate) const KEY_NAME: Text<String> = Text {
    expected: "a header's name, or a pointer to an argument",
    parse: ARGUMENT.parse,
    schema: || json!({ "type": "string", "minLength": 1, "maxLength": 256 }),
};

/// A regular expression; whether it compiles is seen when it is compiled.
pub(crate) const PATTERN: Text<String> = Text {
    expected: "a regular expression",
    parse: |text| {
        let sound = !text.is_empty() && text.len() <= 1024;
        sound.then(|| text.to_owned()).ok_or("a regular expression of 1 to 1024 bytes")
    },
    schema: || json!({ "type": "string", "minLength": 1, "maxLength": 1024 }),
};

const POINTER_PATTERN: &str = "^(/([^/~]|~[01])*)+$";

pub(crate) const POINTER: Text<Pointer> = Text {
    expected: "a JSON Pointer such as `/order_id`",
    parse: |text| {
        let pointer = Pointer::parse(text).filter(|_| !text.is_empty());
        pointer.ok_or("a JSON Pointer (RFC 6901) such as `/order_id`")
    },
    schema: || json!({ "type": "string", "pattern": POINTER_PATTERN }),
};

pub(crate) const DEEP_PATH: Text<Path> = Text {
    expected: "a path such as `/lines/*/sku`",
    parse: |text| {
        Path::parse(text)
            .filter(|_| !text.is_empty())
            .ok_or("a path such as `/lines/*/sku` or `/**/email`")
    },
    schema: || json!({ "type": "string", "pattern": POINTER_PATTERN }),
};

pub(crate) const FLAT_PATH: Text<Path> = Text {
    expected: "a path such as `/lines/*/sku`",
    parse: |text| match Path::parse(text).filter(|_| !text.is_empty()) {
        Some(path) if path.has_deep() => Err("a path without `**`, which `select` does not take"),
        Some(path) => Ok(path),
        None => Err("a path such as `/lines/*/sku`"),
    },
    schema: || json!({ "type": "string", "pattern": POINTER_PATTERN }),
};

/// Only `auth` sets these.
fn carries_credentials(name: &HeaderName) -> bool {
    matches!(name.as_str(), "authorization" | "cookie")
}

const RESERVED: &str =
    "a header that is neither `Host`, `Content-*` nor hop-by-hop: those the gateway sets itself";

/// A header of a request, credentials among them.
pub(crate) const CREDENTIAL_HEADER: Text<HeaderName> = Text {
    expected: "a header's name",
    parse: |text| match HeaderName::from_bytes(text.as_bytes()) {
        Ok(name) if reserved_header(&name) && !carries_credentials(&name) => Err(RESERVED),
        Ok(name) => Ok(name),
        Err(_) => Err("a header's name"),
    },
    schema: || json!({ "type": "string", "pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$" }),
};

/// A header's name as a key, without credentials.
pub(crate) fn plain_header(text: &str) -> Result<HeaderName, &'static str> {
    let name = (CREDENTIAL_HEADER.parse)(text)?;
    if carries_credentials(&name) {
        Err("a header without credentials: those belong in `auth`")
    } else {
        Ok(name)
    }
}

pub(crate) const PLAIN_HEADER: Text<HeaderName> = Text {
    expected: "a header's name",
    parse: plain_header,
    schema: || json!({ "type": "string", "pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$" }),
};

pub(crate) const HEADER_VALUE: Text<HeaderValue> = Text {
    expected: "a header's value",
    parse: |text| HeaderValue::from_str(text).map_err(|_| "visible ASCII characters"),
    schema: || json!({ "type": "string" }),
};

/// The fixed text before a credential in a header.
pub(crate) const PREFIX: Text<String> = Text {
    expected: "a text",
    parse: |text| {
        HeaderValue::from_str(text).map(|_| text.to_owned()).map_err(|_| "visible ASCII characters")
    },
    schema: || json!({ "type": "string" }),
};

/// A map from header names.
pub(crate) struct Headers<K>(pub(crate) K);

impl<K: Kind> Kind for Headers<K> {
    type Out = Vec<(HeaderName, At<K::Out>)>;

    fn read(&self, node: &Node, report: &mut Report) -> Option<Self::Out> {
        let NodeKind::Map(entries) = &node.kind else {
            report.wrong("CR1004", node, "a map from headers' names");
            return None;
        };
        let mut out: Self::Out = Vec::new();
        for (key, value) in entries {
            match plain_header(&key.text) {
                Err(expected) => {
                    let message = format!(
                        "`{}` cannot stand here, expected {expected}",
                        super::tree::short(&key.text)
                    );
                    report.push(Problem::new("CR1004", key.place, message));
                }
                Ok(name) if out.iter().any(|(other, _)| *other == name) => {
                    let message = format!("the header `{name}` is named twice");
                    report.push(Problem::new("CR0002", key.place, message));
                }
                Ok(name) => {
                    if let Some(read) = self.0.read(value, report) {
                        let (place, last_line) = (value.place, value.end.0);
                        out.push((name, At { value: read, key: key.place, place, last_line }));
                    }
                }
            }
        }
        Some(out)
    }

    fn schema(&self, defs: &mut Map<String, Value>) -> Value {
        json!({ "type": "object", "additionalProperties": self.0.schema(defs) })
    }
}

/// Which arguments go to one part of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// All that are named nowhere.
    Rest,
    None,
    Named(Vec<String>),
}

pub(crate) struct PartKind;

impl Kind for PartKind {
    type Out = Part;

    fn read(&self, node: &Node, report: &mut Report) -> Option<Part> {
        match &node.kind {
            NodeKind::Scalar { text, .. } if text == "rest" => Some(Part::Rest),
            NodeKind::Scalar { text, .. } if text == "none" => Some(Part::None),
            NodeKind::List(_) => {
                let list = super::read::List { of: ARGUMENT, least: 1 }.read(node, report)?;
                Some(Part::Named(list.into_iter().map(|name| name.value).collect()))
            }
            NodeKind::Scalar { .. } | NodeKind::Map(_) | NodeKind::Broken => {
                report.wrong("CR1004", node, "`rest`, `none` or a list of arguments' names");
                None
            }
        }
    }

    fn schema(&self, _defs: &mut Map<String, Value>) -> Value {
        json!({ "anyOf": [
            { "enum": ["rest", "none"] },
            { "type": "array", "items": { "type": "string" }, "minItems": 1, "uniqueItems": true },
        ] })
    }
}

/// One value, always the same (CR1001): `apiVersion` and `kind`.
pub(crate) struct Exactly(pub(crate) &'static str);

impl Kind for Exactly {
    type Out = ();

    fn read(&self, node: &Node, report: &mut Report) -> Option<()> {
        match &node.kind {
            NodeKind::Scalar { text, .. } if text == self.0 => Some(()),
            NodeKind::Scalar { .. } | NodeKind::List(_) | NodeKind::Map(_) | NodeKind::Broken => {
                report.wrong("CR1001", node, &format!("`{}`", self.0));
                None
            }
        }
    }

    fn schema(&self, _defs: &mut Map<String, Value>) -> Value {
        json!({ "const": self.0 })
    }
}

/// CR1001 where `apiVersion` or `kind` is missing.
pub(crate) fn identity(fields: &mut Fields<'_>) {
    for (name, word) in [("apiVersion", "checkrein/v1"), ("kind", "Policy")] {
        fields.check(|node, report| {
            if matches!(node.kind, NodeKind::Map(_)) && node.get(name).is_none() {
                let message = format!("the policy has no `{name}`");
                report.push(
                    Problem::new("CR1001", crate::policy::diagnostic::Place::START, message)
                        .label(format!("begin with `{name}: {word}`")),
                );
            }
        });
        fields.optional(name, Exactly(word));
    }
    fields.describe("required", json!(["apiVersion", "kind", "agents"]));
}
