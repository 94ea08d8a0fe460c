//! What a single value of the language may be: names, counts, quantities, pointers, addresses, references.

use std::path::PathBuf;

use http::{HeaderName, HeaderValue};
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::read::{At, Fields, Kind, Report};
use super::tree::{Node, NodeKind, Scalar};
use crate::call::names::is_plain_name;
use crate::call::pointer::{Path, Pointer};
use crate::policy::diagnostic::Problem;
use crate::policy::quantity;
use crate::policy::snapshot::PathPiece;

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
            _bound => self.0.read(node, report).map(Some),
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

/// Headers that only the gateway itself may set: framing, routing, hop by hop (RFC 9110 §7.6.1).
fn reserved(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("content-")
        || matches!(
            name,
            "host"
                | "connection"
                | "keep-alive"
                | "proxy-connection"
                | "te"
                | "trailer"
                | "transfer-encoding"
                | "upgrade"
                | "expect"
                | "proxy-authorization"
                | "proxy-authenticate"
                | "proxy-authentication-info"
        )
}

const RESERVED: &str =
    "a header that is neither `Host`, `Content-*` nor hop-by-hop: those the gateway sets itself";

/// A header of a request, credentials among them.
pub(crate) const CREDENTIAL_HEADER: Text<HeaderName> = Text {
    expected: "a header's name",
    parse: |text| match HeaderName::from_bytes(text.as_bytes()) {
        Ok(name) if reserved(&name) => Err(RESERVED),
        Ok(name) => Ok(name),
        Err(_) => Err("a header's name"),
    },
    schema: || json!({ "type": "string", "pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$" }),
};

/// A header's name as a key, without credentials.
pub(crate) fn plain_header(text: &str) -> Result<HeaderName, &'static str> {
    let name = (CREDENTIAL_HEADER.parse)(text)?;
    match name.as_str() {
        "authorization" | "cookie" => Err("a header without credentials: those belong in `auth`"),
        _other => Ok(name),
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
                    let message = format!("`{}` is not {expected}", super::tree::short(&key.text));
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

/// Which non-public addresses an upstream may resolve to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address {
    Loopback,
    Private,
    LinkLocal,
    Net(IpNet),
}

pub(crate) const ADDRESS: Text<Address> = Text {
    expected: "`loopback`, `private`, `link_local` or a network such as `10.0.0.0/8`",
    parse: |text| match text {
        "loopback" => Ok(Address::Loopback),
        "private" => Ok(Address::Private),
        "link_local" => Ok(Address::LinkLocal),
        net => net
            .parse::<IpNet>()
            .map(|net| Address::Net(net.trunc()))
            .map_err(|_| "`loopback`, `private`, `link_local` or a network such as `10.0.0.0/8`"),
    },
    schema: || {
        json!({ "anyOf": [
            { "enum": ["loopback", "private", "link_local"] },
            { "type": "string", "pattern": "^[0-9a-fA-F.:]+/[0-9]{1,3}$" },
        ] })
    },
};

/// A URL that calls may go to.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    pub tls: bool,
    /// As a URL spells it, IPv6 in brackets; lower case.
    pub host: String,
    pub port: u16,
    pub path: Vec<PathPiece>,
}

impl Target {
    /// IPv6 without brackets.
    pub fn bare_host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// `host`, or `host:port` where the port is not the scheme's own.
    pub fn authority(&self) -> String {
        let own = if self.tls { 443 } else { 80 };
        if self.port == own { self.host.clone() } else { format!("{}:{}", self.host, self.port) }
    }

    /// `scheme://host:port`.
    pub fn origin(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}:{}", self.host, self.port)
    }
}

const A_URL: &str = "an `http://` or `https://` URL without user, query and fragment";

fn target(text: &str) -> Result<Target, &'static str> {
    let after = text.split_once("://").map_or("", |(_, after)| after);
    let (authority, path) = match after.find('/') {
        Some(at) => after.split_at(at),
        None => (after, "/"),
    };
    let scheme = text.split("://").next().unwrap_or_default();
    let origin = url::Url::parse(&format!("{scheme}://{authority}/")).map_err(|_| A_URL)?;
    let tls = match origin.scheme() {
        "http" => false,
        "https" => true,
        _other => return Err(A_URL),
    };
    if !origin.username().is_empty() || origin.password().is_some() || authority.contains('@') {
        return Err("a URL without a user: credentials belong in `auth`");
    }
    if authority.contains(['?', '#']) {
        return Err(A_URL);
    }
    let host = origin.host_str().ok_or(A_URL)?.to_owned();
    let port = origin.port_or_known_default().filter(|port| *port != 0).ok_or(A_URL)?;
    Ok(Target { tls, host, port, path: template(path)? })
}

pub(crate) const URL: Text<Target> = Text {
    expected: A_URL,
    parse: target,
    schema: || json!({ "type": "string", "pattern": "^https?://" }),
};

/// As [`URL`], with a fixed path.
pub(crate) const BASE_URL: Text<Target> = Text {
    expected: A_URL,
    parse: |text| {
        let target = target(text)?;
        let fixed = target.path.iter().all(|piece| matches!(piece, PathPiece::Literal(_)));
        fixed.then_some(target).ok_or("a URL without `{…}`: nothing in it comes from arguments")
    },
    schema: || json!({ "type": "string", "pattern": "^https?://[^/{}]+(/[^{}]*)?$" }),
};

const A_PATH: &str = "a path that begins with `/`, with `{argument}` for whole or part segments";

/// `/orders/{order_id}` in pieces.
fn template(text: &str) -> Result<Vec<PathPiece>, &'static str> {
    if !text.starts_with('/') {
        return Err(A_PATH);
    }
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((literal, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').ok_or("a path whose `{` is closed by `}`")?;
        if name.is_empty() || name.contains(['{', '/']) {
            return Err(A_PATH);
        }
        if !literal.is_empty() {
            pieces.push(PathPiece::Literal(path_literal(literal)?));
        }
        if pieces.contains(&PathPiece::Argument(name.to_owned())) {
            return Err("a path that names each argument once");
        }
        pieces.push(PathPiece::Argument(name.to_owned()));
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(PathPiece::Literal(path_literal(rest)?));
    }
    let whole = text.split('/').all(|segment| segment != "." && segment != "..");
    whole.then_some(pieces).ok_or("a path without `.` and `..`")
}

/// Characters of RFC 3986's `pchar` and `/`, and whole percent-encodings.
fn path_literal(text: &str) -> Result<String, &'static str> {
    let expected = "a path of URL characters; anything else percent-encoded, no `?` and no `#`";
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let sound = match byte {
            b'%' => {
                let hex = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_hexdigit());
                hex(bytes.next()) && hex(bytes.next())
            }
            other => other.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/".contains(&other),
        };
        if !sound {
            return Err(expected);
        }
    }
    let dots = text.to_ascii_lowercase().contains("%2e");
    if dots { Err("a path without encoded dots") } else { Ok(text.to_owned()) }
}

pub(crate) const PATH: Text<Vec<PathPiece>> = Text {
    expected: A_PATH,
    parse: template,
    schema: || json!({ "type": "string", "pattern": "^/" }),
};

/// An entry of `egress.allow_hosts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Lower case, without `*.`.
    pub host: String,
    pub wildcard: bool,
    /// `None` = the scheme's own.
    pub port: Option<u16>,
}

pub(crate) const HOST: Text<Host> = Text {
    expected: "a host such as `api.example.org`, `*.example.org` or `10.1.2.3:8080`",
    parse: |text| {
        let expected = "a host such as `api.example.org`, `*.example.org` or `10.1.2.3:8080`";
        let (rest, wildcard) = match text.strip_prefix("*.") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let parsed = url::Url::parse(&format!("http://{rest}/")).map_err(|_| expected)?;
        let host = parsed.host_str().ok_or(expected)?.to_owned();
        let (spelt, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                (host, Some(port.parse::<u16>().ok().filter(|p| *p > 0).ok_or(expected)?))
            }
            _no_port => (rest, None),
        };
        let sound = spelt.eq_ignore_ascii_case(&host) && !(wildcard && spelt.starts_with('['));
        sound.then_some(Host { host, wildcard, port }).ok_or(expected)
    },
    schema: || json!({ "type": "string", "pattern": r"^(\*\.)?[A-Za-z0-9.:\[\]-]+$" }),
};

/// Where a secret is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SecretRef {
    File(PathBuf),
    Env(String),
}

impl std::fmt::Display for SecretRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SecretRef::File(path) => write!(f, "file {}", path.display()),
            SecretRef::Env(name) => write!(f, "env {name}"),
        }
    }
}

pub(crate) fn is_env_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_uppercase() || c == '_')
        && text.len() <= 128
        && text.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

/// `{ file: /abs/path }` or `{ env: NAME }`. Whatever else stands there is never quoted.
pub(crate) struct SecretKind;

impl Kind for SecretKind {
    type Out = SecretRef;

    fn read(&self, node: &Node, report: &mut Report) -> Option<SecretRef> {
        let literal = |place, report: &mut Report| {
            let message = format!(
                "`{}` holds a literal where a reference to a secret belongs",
                report.path()
            );
            report.push(Problem::new("CR1006", place, message).hint(
                "write `{ file: /absolute/path }` or `{ env: NAME }`, and change a secret that stood here",
            ));
            None
        };
        let NodeKind::Map(entries) = &node.kind else { return literal(node.place, report) };
        match entries.as_slice() {
            [(key, value)] if key.text == "file" || key.text == "env" => {
                let NodeKind::Scalar { text, .. } = &value.kind else {
                    return literal(value.place, report);
                };
                match key.text.as_str() {
                    "file" if text.starts_with('/') => Some(SecretRef::File(text.into())),
                    "env" if is_env_name(text) => Some(SecretRef::Env(text.clone())),
                    kind => {
                        let expected = match kind {
                            "file" => "an absolute path",
                            _env => "an environment variable's name (A-Z, 0-9 and _)",
                        };
                        let message = format!("`{}.{kind}` is not {expected}", report.path());
                        report.push(Problem::new("CR1006", value.place, message));
                        None
                    }
                }
            }
            entries => {
                let message = format!("`{}` is no reference to a secret", report.path());
                let place = entries.first().map_or(node.place, |(key, _)| key.place);
                report.push(
                    Problem::new("CR1006", place, message)
                        .hint("write either `{ file: /absolute/path }` or `{ env: NAME }`"),
                );
                None
            }
        }
    }

    fn schema(&self, defs: &mut Map<String, Value>) -> Value {
        defs.entry("secret").or_insert_with(|| {
            json!({
                "type": "object",
                "description": "A reference; a literal is refused. Files are read again when they change.",
                "properties": {
                    "file": { "type": "string", "pattern": "^/" },
                    "env": { "type": "string", "pattern": "^[A-Z_][A-Z0-9_]*$" },
                },
                "additionalProperties": false,
                "minProperties": 1,
                "maxProperties": 1,
            })
        });
        json!({ "$ref": "#/$defs/secret" })
    }
}

/// A JSON Schema, inline or beside the policy.
#[derive(Debug, Clone, PartialEq)]
pub enum SchemaSource {
    /// The schema, and the tree it was read from: `node.at(tokens)` finds a place inside it.
    Inline { value: Value, node: Node },
    /// A path below the policy's directory.
    File { path: PathBuf },
}

pub(crate) struct SchemaKind;

impl Kind for SchemaKind {
    type Out = SchemaSource;

    fn read(&self, node: &Node, report: &mut Report) -> Option<SchemaSource> {
        let NodeKind::Map(entries) = &node.kind else {
            report.wrong("CR1004", node, "a JSON Schema or `{ file: path }`");
            return None;
        };
        match entries.as_slice() {
            [] => {
                report.push(
                    Problem::new("CR1004", node.place, format!("`{}` is empty", report.path()))
                        .label("say at least `type: object`"),
                );
                None
            }
            [(key, value)] if key.text == "file" => {
                let NodeKind::Scalar { text, .. } = &value.kind else {
                    report.wrong("CR1004", value, "a relative path");
                    return None;
                };
                let path = PathBuf::from(text);
                let inside = !text.is_empty()
                    && path.components().all(|c| matches!(c, std::path::Component::Normal(_)));
                if !inside {
                    report.wrong("CR1004", value, "a path below the policy's directory");
                    return None;
                }
                Some(SchemaSource::File { path })
            }
            _inline => match node.to_json() {
                Ok(value) => Some(SchemaSource::Inline { value, node: node.clone() }),
                Err(problem) => {
                    report.push(problem);
                    None
                }
            },
        }
    }

    fn schema(&self, defs: &mut Map<String, Value>) -> Value {
        defs.entry("json_schema").or_insert_with(|| {
            json!({
                "description": "JSON Schema 2020-12, inline or `{ file: path }` beside the policy. Local $ref only.",
                "type": "object",
                "minProperties": 1,
            })
        });
        json!({ "$ref": "#/$defs/json_schema" })
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
            _other => {
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
