//! YAML text → a tree that knows where everything stands. The one place that knows the YAML parser.
//!
//! Nothing of YAML is left that could be read in two ways: anchors, aliases, merge keys, tags, directives, further
//! documents and duplicate keys are findings, and which plain words are booleans or numbers is YAML 1.2's core schema.

use std::collections::HashMap;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, Span};
use serde_json::{Map, Number, Value};

use crate::policy::diagnostic::{Mask, Place, Problem};

/// Longest policy file, bytes.
pub const MAX_BYTES: usize = 1024 * 1024;
/// Deepest nesting of lists and maps; a bare scalar is 0.
pub const MAX_DEPTH: usize = 64;
/// Most problems of the YAML itself that are collected.
const MAX_PROBLEMS: usize = 200;

/// A value of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// What a caret underlines.
    pub place: Place,
    /// One past its last character: line and column from 1.
    pub end: (u32, u32),
    pub kind: NodeKind,
}

#[derive(Debug, Clone, PartialEq)]
pub enum NodeKind {
    /// `plain`: without quotes, so it may be a number, a boolean or null.
    Scalar {
        text: String,
        plain: bool,
    },
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
    /// Already reported; readers pass over it in silence.
    Broken,
}

/// A key and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Key {
    pub text: String,
    pub place: Place,
}

/// What a scalar is by YAML 1.2's core schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    Null,
    Bool(bool),
    Integer,
    /// With a fraction or an exponent; `.inf` and `.nan` too.
    Float,
    Text,
}

impl Node {
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|(_, node)| node)
    }

    pub fn entry(&self, key: &str) -> Option<(&Key, &Node)> {
        match &self.kind {
            NodeKind::Map(entries) => {
                entries.iter().find(|(k, _)| k.text == key).map(|(k, n)| (k, n))
            }
            NodeKind::Scalar { .. } | NodeKind::List(_) | NodeKind::Broken => None,
        }
    }

    /// `None` for what is no scalar.
    pub fn scalar(&self) -> Option<Scalar> {
        match &self.kind {
            NodeKind::Scalar { text, plain } => Some(resolve(text, *plain)),
            NodeKind::List(_) | NodeKind::Map(_) | NodeKind::Broken => None,
        }
    }

    /// The node a JSON Pointer names, and the key that leads to it.
    pub fn at(&self, tokens: &[String]) -> Option<(Option<&Key>, &Node)> {
        let mut found: (Option<&Key>, &Node) = (None, self);
        for token in tokens {
            found = match &found.1.kind {
                NodeKind::Map(_) => {
                    let (key, node) = found.1.entry(token)?;
                    (Some(key), node)
                }
                NodeKind::List(items) => (None, items.get(token.parse::<usize>().ok()?)?),
                NodeKind::Scalar { .. } | NodeKind::Broken => return None,
            };
        }
        Some(found)
    }

    /// `number 30`, `a list`: for messages. Quotes at most a short scalar.
    pub fn described(&self) -> String {
        match &self.kind {
            NodeKind::Scalar { text, .. } => match self.scalar() {
                Some(Scalar::Null) => "nothing".into(),
                Some(Scalar::Bool(_)) => format!("the boolean `{text}`"),
                Some(Scalar::Integer | Scalar::Float) => format!("the number `{}`", short(text)),
                Some(Scalar::Text) | None if text.is_empty() => "an empty text".into(),
                // Quoted: without its quotes it would be something else.
                Some(Scalar::Text) if resolve(text, true) != Scalar::Text => {
                    format!("the text `{}`", short(text))
                }
                Some(Scalar::Text) | None => format!("`{}`", short(text)),
            },
            NodeKind::List(_) => "a list".into(),
            NodeKind::Map(_) => "a map".into(),
            NodeKind::Broken => "something unreadable".into(),
        }
    }

    /// The value as JSON, digits kept. Problems are numbers that JSON cannot spell.
    pub fn to_json(&self) -> Result<Value, Problem> {
        match &self.kind {
            NodeKind::Broken => Ok(Value::Null),
            NodeKind::List(items) => {
                items.iter().map(Node::to_json).collect::<Result<Vec<_>, _>>().map(Value::from)
            }
            NodeKind::Map(entries) => {
                let mut map = Map::new();
                for (key, node) in entries {
                    map.insert(key.text.clone(), node.to_json()?);
                }
                Ok(Value::Object(map))
            }
            NodeKind::Scalar { text, plain } => match resolve(text, *plain) {
                Scalar::Null => Ok(Value::Null),
                Scalar::Bool(value) => Ok(Value::Bool(value)),
                Scalar::Text => Ok(Value::String(text.clone())),
                Scalar::Integer | Scalar::Float => json_number(text).map_or_else(
                    || {
                        let message = format!("`{}` is no number that JSON can hold", short(text));
                        Err(Problem::new("CR1004", self.place, message))
                    },
                    |number| Ok(Value::Number(number)),
                ),
            },
        }
    }

    /// Strikes out every scalar below.
    pub fn mask_scalars(&self, keep: &dyn Fn(&str, &str) -> bool, masks: &mut Vec<Mask>) {
        self.mask_under("", keep, masks);
    }

    fn mask_under(&self, key: &str, keep: &dyn Fn(&str, &str) -> bool, masks: &mut Vec<Mask>) {
        match &self.kind {
            NodeKind::Scalar { text, .. } => {
                if !keep(key, text) {
                    masks.push(self.mask());
                }
            }
            NodeKind::List(items) => {
                items.iter().for_each(|item| item.mask_under(key, keep, masks));
            }
            NodeKind::Map(entries) => {
                entries.iter().for_each(|(k, node)| node.mask_under(&k.text, keep, masks));
            }
            NodeKind::Broken => masks.push(self.mask()),
        }
    }

    fn mask(&self) -> Mask {
        Mask { from: (self.place.line, self.place.column), to: self.end }
    }
}

/// At most 40 characters of a text.
pub fn short(text: &str) -> String {
    let mut cut: String = text.chars().take(40).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    cut
}

fn json_number(text: &str) -> Option<Number> {
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    if let Some(hex) = unsigned.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok().map(Number::from);
    }
    if let Some(octal) = unsigned.strip_prefix("0o") {
        return u64::from_str_radix(octal, 8).ok().map(Number::from);
    }
    unsigned.parse::<Number>().ok()
}

/// YAML 1.2 core schema, with `true` and `false` in one spelling only: the others are text.
fn resolve(text: &str, plain: bool) -> Scalar {
    if !plain {
        return Scalar::Text;
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Scalar::Null,
        "true" => return Scalar::Bool(true),
        "false" => return Scalar::Bool(false),
        ".nan" | ".NaN" | ".NAN" => return Scalar::Float,
        _other => {}
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let all =
        |digits: &str, ok: fn(&u8) -> bool| !digits.is_empty() && digits.as_bytes().iter().all(ok);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") {
        return Scalar::Float;
    }
    if all(unsigned, u8::is_ascii_digit)
        || text.strip_prefix("0x").is_some_and(|rest| all(rest, u8::is_ascii_hexdigit))
        || text.strip_prefix("0o").is_some_and(|rest| all(rest, |b| (b'0'..=b'7').contains(b)))
    {
        return Scalar::Integer;
    }
    if is_float(unsigned) { Scalar::Float } else { Scalar::Text }
}

/// `[0-9]*(\.[0-9]*)?([eE][-+]?[0-9]+)?` with at least one digit before the exponent.
fn is_float(text: &str) -> bool {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let exponent_sound = exponent.is_none_or(|exponent| {
        let rest = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !rest.is_empty() && digits(rest)
    });
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    exponent_sound && digits(whole) && digits(fraction) && (whole.len() + fraction.len()) > 0
}

/// The tree (absent when nothing can be made of the text), what is wrong with the YAML, and what must not be shown.
#[derive(Debug, Default)]
pub struct Parsed {
    pub root: Option<Node>,
    pub problems: Vec<Problem>,
    pub masks: Vec<Mask>,
    /// The text stopped being YAML: nothing can be said about what is missing from the tree.
    pub cut: bool,
}

/// Parses a file's bytes. Never recurses deeper than [`MAX_DEPTH`].
pub fn parse(bytes: &[u8]) -> Parsed {
    let mut parsed = Parsed::default();
    match sound_text(bytes) {
        Err(problem) => {
            parsed.problems.push(problem);
            parsed.cut = true;
            mask_values(&String::from_utf8_lossy(bytes), &mut parsed.masks);
        }
        Ok(text) => Builder::default().run(text, &mut parsed),
    }
    parsed
}

/// Of a text that is no YAML nothing is known: of each line only what stands before its first colon is shown.
fn mask_values(text: &str, masks: &mut Vec<Mask>) {
    for (line, number) in text.lines().zip(1_u32..) {
        let shown = line.split_once(':').map_or(0, |(key, _)| key.chars().count() as u32);
        masks.push(Mask { from: (number, shown + 1), to: (number, u32::MAX) });
    }
}

fn sound_text(bytes: &[u8]) -> Result<&str, Problem> {
    if bytes.len() > MAX_BYTES {
        let message = format!("the file has {} bytes, more than 1 MiB", bytes.len());
        return Err(Problem::new("CR0004", Place::START, message));
    }
    let text = std::str::from_utf8(bytes).map_err(|fault| {
        let before = bytes.get(..fault.valid_up_to()).unwrap_or_default();
        let line = before.iter().filter(|b| **b == b'\n').count() as u32 + 1;
        let column = before
            .rsplit(|b| *b == b'\n')
            .next()
            .map_or(0, |tail| String::from_utf8_lossy(tail).chars().count() as u32)
            + 1;
        let place = Place { line, column, width: 1 };
        Problem::new("CR0001", place, "the file is not UTF-8").hint("save it as UTF-8")
    })?;
    for (line, number) in text.lines().zip(1_u32..) {
        let indent = line.len() - line.trim_start_matches([' ', '\t']).len();
        if let Some(at) = line.get(..indent).and_then(|indent| indent.find('\t')) {
            let place = Place { line: number, column: at as u32 + 1, width: 1 };
            return Err(Problem::new("CR0001", place, "a tab in the indentation")
                .hint("indent with spaces"));
        }
    }
    Ok(text)
}

/// A list or map that is still open.
struct Open {
    place: Place,
    end: (u32, u32),
    kind: OpenKind,
}

enum OpenKind {
    List(Vec<Node>),
    Map { entries: Vec<(Key, Node)>, lines: HashMap<String, u32>, key: Option<Key> },
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    documents: usize,
    root: Option<Node>,
}

fn place_of(span: &Span) -> (Place, (u32, u32)) {
    let (line, column) = (span.start.line() as u32, span.start.col() as u32 + 1);
    let end = (span.end.line() as u32, span.end.col() as u32 + 1);
    let width = if end.0 == line { end.1.saturating_sub(column).max(1) } else { u32::MAX };
    (Place { line, column, width }, end)
}

impl Builder {
    fn run(mut self, text: &str, parsed: &mut Parsed) {
        let options = granit_parser::options! {
            disallow_directives: true,
            emit_unresolved_aliases: true,
            flow_nesting_limit: MAX_DEPTH + 1,
            block_nesting_limit: MAX_DEPTH + 1,
        };
        for next in Parser::new_from_str_with_options(text, options) {
            let taken = match next {
                Ok((event, span)) => self.take(event, &span, parsed),
                Err(error) => Err(broken(&error)),
            };
            if let Err(problem) = taken {
                parsed.problems.push(problem);
                parsed.cut = true;
                mask_values(text, &mut parsed.masks);
                return;
            }
            if parsed.problems.len() >= MAX_PROBLEMS {
                parsed.cut = true;
                break;
            }
        }
        let empty = self.root.as_ref().is_none_or(|root| root.scalar() == Some(Scalar::Null));
        if empty && parsed.problems.is_empty() {
            let problem = Problem::new("CR0004", Place::START, "the policy is empty")
                .hint("begin with `apiVersion: checkrein/v1`; `policies/minimal.yaml` shows the least a policy holds");
            parsed.problems.push(problem);
            parsed.cut = true;
        }
        parsed.root = self.root;
    }

    /// `Err` ends the reading.
    fn take(&mut self, event: Event<'_>, span: &Span, parsed: &mut Parsed) -> Result<(), Problem> {
        let (place, end) = place_of(span);
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(Problem::new("CR0003", place, "a second document in one file")
                        .hint("one file holds one policy: remove the `---` and what follows"));
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                marks(anchor, tag.is_some(), place, parsed);
                let plain = style == ScalarStyle::Plain;
                let kind = NodeKind::Scalar { text: text.into_owned(), plain };
                self.put(Node { place, end, kind }, parsed);
            }
            Event::SequenceStart(_, anchor, tag) => {
                marks(anchor, tag.is_some(), place, parsed);
                self.open(Open { place, end, kind: OpenKind::List(Vec::new()) })?;
            }
            Event::MappingStart(_, anchor, tag) => {
                marks(anchor, tag.is_some(), place, parsed);
                let kind = OpenKind::Map { entries: Vec::new(), lines: HashMap::new(), key: None };
                self.open(Open { place, end, kind })?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(place, end, parsed),
            Event::Alias(_) | Event::UnresolvedAlias(_) => {
                parsed
                    .problems
                    .push(Problem::new("CR0003", place, "an alias").hint("write the value out"));
                self.put(Node { place, end, kind: NodeKind::Broken }, parsed);
            }
            Event::StreamStart | Event::StreamEnd | Event::DocumentEnd | Event::Anchor(..) => {}
            // The parser's events may grow; a new one is no node we know.
            _ => {}
        }
        Ok(())
    }

    fn open(&mut self, open: Open) -> Result<(), Problem> {
        if self.open.len() >= MAX_DEPTH {
            return Err(too_deep(open.place));
        }
        self.open.push(open);
        Ok(())
    }

    fn close(&mut self, at: Place, end: (u32, u32), parsed: &mut Parsed) {
        let Some(open) = self.open.pop() else { return };
        // A block collection ends where its last value does, a flow one at its bracket.
        let flow = at.width == 1 && end == (at.line, at.column + 1);
        let end = if flow { end } else { open.end.max((open.place.line, open.place.column)) };
        let kind = match open.kind {
            OpenKind::List(items) => NodeKind::List(items),
            OpenKind::Map { entries, .. } => NodeKind::Map(entries),
        };
        let mut place = open.place;
        place.width =
            if end.0 == place.line { end.1.saturating_sub(place.column).max(1) } else { u32::MAX };
        self.put(Node { place, end, kind }, parsed);
    }

    fn put(&mut self, node: Node, parsed: &mut Parsed) {
        let Some(top) = self.open.last_mut() else {
            self.root = Some(node);
            return;
        };
        top.end = top.end.max(node.end);
        match &mut top.kind {
            OpenKind::List(items) => items.push(node),
            OpenKind::Map { entries, lines, key } => match key.take() {
                None => *key = Some(as_key(&node, parsed)),
                Some(name) => {
                    if let Some(first) = lines.get(&name.text) {
                        let message = format!("duplicate key `{}`", short(&name.text));
                        let first = format!("first on line {first}");
                        let problem = Problem::new("CR0002", name.place, message).label(first);
                        parsed.problems.push(problem.hint("keep one of the two"));
                        node.mask_scalars(&|_, _| false, &mut parsed.masks);
                    } else if name.text == "<<" {
                        let problem = Problem::new("CR0003", name.place, "a merge key `<<`");
                        parsed.problems.push(problem.hint("write the keys out"));
                    } else {
                        lines.insert(name.text.clone(), name.place.line);
                        entries.push((name, node));
                    }
                }
            },
        }
    }
}

fn as_key(node: &Node, parsed: &mut Parsed) -> Key {
    match &node.kind {
        NodeKind::Scalar { text, .. } => Key { text: text.clone(), place: node.place },
        NodeKind::List(_) | NodeKind::Map(_) => {
            parsed.problems.push(Problem::new("CR1004", node.place, "a key must be a word"));
            Key { text: String::new(), place: node.place }
        }
        NodeKind::Broken => Key { text: String::new(), place: node.place },
    }
}

fn marks(anchor: usize, tagged: bool, place: Place, parsed: &mut Parsed) {
    if anchor != 0 {
        let problem = Problem::new("CR0003", place, "an anchor `&…` on this value");
        parsed.problems.push(problem.hint("write the value out where it is needed"));
    }
    if tagged {
        let problem = Problem::new("CR0003", place, "a tag `!…` on this value");
        parsed.problems.push(problem.hint("remove the tag"));
    }
}

fn too_deep(place: Place) -> Problem {
    Problem::new("CR0004", place, format!("nested deeper than {MAX_DEPTH}"))
}

fn broken(error: &ScanError) -> Problem {
    let (line, column) = (error.marker().line() as u32, error.marker().col() as u32 + 1);
    let place = Place { line: line.max(1), column, width: 1 };
    if *error.kind() == ErrorKind::RecursionLimitExceeded {
        return too_deep(place);
    }
    if *error.kind() == ErrorKind::DirectiveDisallowed {
        return Problem::new("CR0003", place, "a directive `%…`").hint("remove the line");
    }
    Problem::new("CR0001", place, format!("this is not YAML: {}", error.info()))
}
