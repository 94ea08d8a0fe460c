//! One declaration of a key serves three ends: reading it, describing it as JSON Schema, and listing it for tests.
//!
//! A record is a function over `Fields`. Run over a node it reads and collects every problem; run over nothing it
//! writes its schema. So the schema can never say something else than the reader does.

use std::collections::HashSet;

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

pub(crate) use super::report::{Report, nearest};
use super::report::{first_line, unknown_keys};
use super::tree::{Node, NodeKind, Scalar};
use crate::call::names::is_plain_name;
use crate::policy::diagnostic::{Place, Problem};

/// A value of the policy with its places.
#[derive(Debug, Clone, PartialEq)]
pub struct At<T> {
    pub value: T,
    /// The key that names it; the item itself in a list.
    pub key: Place,
    /// The value.
    pub place: Place,
    /// Last line of the value.
    pub last_line: u32,
}

impl<T> At<T> {
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> At<U> {
        At { value: f(self.value), key: self.key, place: self.place, last_line: self.last_line }
    }
}

/// Entries in the order of the file.
pub type Entries<T> = IndexMap<String, At<T>>;

/// What may stand at a key.
pub(crate) trait Kind {
    type Out;
    /// `None` when it is unreadable; the report says why.
    fn read(&self, node: &Node, report: &mut Report) -> Option<Self::Out>;
    /// Its JSON Schema; named parts go into `defs`.
    fn schema(&self, defs: &mut Map<String, Value>) -> Value;
}

fn at<K: Kind>(kind: &K, key: Place, node: &Node, report: &mut Report) -> Option<At<K::Out>> {
    if node.kind == NodeKind::Broken {
        return None;
    }
    let value = kind.read(node, report)?;
    Some(At { value, key, place: node.place, last_line: node.end.0 })
}

enum Mode<'a> {
    Read { node: &'a Node, report: &'a mut Report },
    Describe { defs: &'a mut Map<String, Value>, out: Description },
}

#[derive(Default)]
struct Description {
    properties: Map<String, Value>,
    required: Vec<Value>,
    more: Map<String, Value>,
}

/// The keys of one record, as its function asks for them.
pub(crate) struct Fields<'a> {
    mode: Mode<'a>,
    known: Vec<&'static str>,
    /// Keys of the language that this build lacks.
    lacking: Vec<&'static str>,
}

impl Fields<'_> {
    /// A key that may be left out.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "kinds are constants: a list of keys reads better without `&`"
    )]
    pub(crate) fn optional<K: Kind>(&mut self, name: &'static str, kind: K) -> Option<At<K::Out>> {
        self.known.push(name);
        match &mut self.mode {
            Mode::Describe { defs, out } => {
                let schema = kind.schema(defs);
                out.properties.insert(name.to_owned(), schema);
                None
            }
            Mode::Read { node, report } => {
                let (key, value) = node.entry(name)?;
                report.path.push(name.to_owned());
                let read = at(&kind, key.place, value, report);
                report.path.pop();
                read
            }
        }
    }

    /// A key that must be there (CR1003).
    pub(crate) fn required<K: Kind>(&mut self, name: &'static str, kind: K) -> Option<At<K::Out>> {
        match &mut self.mode {
            Mode::Describe { out, .. } => out.required.push(name.into()),
            Mode::Read { node, report } => {
                if matches!(node.kind, NodeKind::Map(_)) && node.get(name).is_none() {
                    let whose = match report.path() {
                        path if path.is_empty() => "the policy".to_owned(),
                        path => format!("`{path}`"),
                    };
                    let message = format!("{whose} has no `{name}`");
                    let place = first_line(node);
                    report.push(
                        Problem::new("CR1003", place, message).label(format!("add `{name}:`")),
                    );
                }
            }
        }
        self.optional(name, kind)
    }

    /// A key of the language whose feature this build lacks (CR1009).
    pub(crate) fn absent(&mut self, name: &'static str) {
        self.known.push(name);
        self.lacking.push(name);
        if let Mode::Read { node, report } = &mut self.mode
            && let Some((key, value)) = node.entry(name)
        {
            let message = format!("`{name}` is not in this build");
            report.push(Problem::new("CR1009", key.place, message).hint(
                "remove the key; it is not ignored, because what it asks for would not be done",
            ));
            value.mask_scalars(&|_, _| false, &mut report.masks);
        }
    }

    /// A key of the language that this kind of record cannot honour (CR2007).
    pub(crate) fn unfit(&mut self, name: &'static str, why: &str) {
        self.known.push(name);
        if let Mode::Read { node, report } = &mut self.mode
            && let Some((key, _)) = node.entry(name)
        {
            let message = format!("`{name}` means nothing for `{}`: {why}", report.path());
            report.push(Problem::new("CR2007", key.place, message).hint("remove the key"));
        }
    }

    /// Exactly one of these keys (CR1008). Keys must be asked for besides.
    pub(crate) fn exactly_one(&mut self, names: &[&'static str]) {
        self.one_of(names, true);
    }

    /// At most one of these keys (CR1008).
    pub(crate) fn at_most_one(&mut self, names: &[&'static str]) {
        self.one_of(names, false);
    }

    fn one_of(&mut self, names: &[&'static str], needed: bool) {
        let here: Vec<&str> =
            names.iter().copied().filter(|name| !self.lacking.contains(name)).collect();
        match &mut self.mode {
            Mode::Describe { out, .. } => {
                let one: Vec<Value> =
                    here.iter().map(|name| json!({ "required": [name] })).collect();
                let rule = if needed {
                    json!({ "oneOf": one })
                } else {
                    json!({ "not": { "required": names } })
                };
                let all = out.more.entry("allOf").or_insert_with(|| json!([]));
                if let Value::Array(rules) = all {
                    rules.push(rule);
                }
            }
            Mode::Read { node, report } => {
                let NodeKind::Map(entries) = &node.kind else { return };
                let given: Vec<_> =
                    entries.iter().filter(|(k, _)| names.contains(&k.text.as_str())).collect();
                let list =
                    here.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" or ");
                match given.as_slice() {
                    [] if needed => {
                        let message = format!("`{}` has no {list}", report.path());
                        report.push(Problem::new("CR1008", first_line(node), message));
                    }
                    [_, (second, _), ..] => {
                        let message = format!("`{}` takes only one of {list}", report.path());
                        report.push(Problem::new("CR1008", second.place, message));
                    }
                    _none_or_one => {}
                }
            }
        }
    }

    /// A finding of the record's own. Not called when describing.
    pub(crate) fn check(&mut self, f: impl FnOnce(&Node, &mut Report)) {
        if let Mode::Read { node, report } = &mut self.mode {
            f(node, report);
        }
    }

    /// A rule that only JSON Schema words can tell an editor.
    pub(crate) fn describe(&mut self, key: &str, rule: Value) {
        if let Mode::Describe { out, .. } = &mut self.mode {
            out.more.insert(key.to_owned(), rule);
        }
    }

    fn finish(self) -> Option<Value> {
        match self.mode {
            Mode::Read { node, report } => {
                unknown_keys(node, &self.known, report);
                None
            }
            Mode::Describe { out, .. } => {
                let mut schema = Map::new();
                schema.insert("type".into(), "object".into());
                schema.insert("properties".into(), Value::Object(out.properties));
                schema.insert("additionalProperties".into(), false.into());
                if !out.required.is_empty() {
                    schema.insert("required".into(), Value::Array(out.required));
                }
                schema.extend(out.more);
                Some(Value::Object(schema))
            }
        }
    }
}

/// A map with fixed keys. `name` is its entry in `$defs`; "" writes it in place.
pub(crate) struct Record<T> {
    pub(crate) name: &'static str,
    pub(crate) fields: fn(&mut Fields<'_>) -> T,
}

impl<T> Kind for Record<T> {
    type Out = T;

    fn read(&self, node: &Node, report: &mut Report) -> Option<T> {
        if !matches!(node.kind, NodeKind::Map(_)) {
            report.wrong("CR1004", node, "a map");
        }
        // Of anything but a map no key is found, and none is missed: one finding is enough.
        let mut fields =
            Fields { mode: Mode::Read { node, report }, known: Vec::new(), lacking: Vec::new() };
        let value = (self.fields)(&mut fields);
        fields.finish();
        Some(value)
    }

    fn schema(&self, defs: &mut Map<String, Value>) -> Value {
        let reference = json!({ "$ref": format!("#/$defs/{}", self.name) });
        if !self.name.is_empty() {
            if defs.contains_key(self.name) {
                return reference;
            }
            defs.insert(self.name.to_owned(), Value::Null);
        }
        let mode = Mode::Describe { defs: &mut *defs, out: Description::default() };
        let mut fields = Fields { mode, known: Vec::new(), lacking: Vec::new() };
        (self.fields)(&mut fields);
        let schema = fields.finish().unwrap_or_default();
        if self.name.is_empty() {
            return schema;
        }
        defs.insert(self.name.to_owned(), schema);
        reference
    }
}

/// A map from names of the author's choice.
pub(crate) struct Named<K>(pub(crate) K);

impl<K: Kind> Kind for Named<K> {
    type Out = Entries<K::Out>;

    fn read(&self, node: &Node, report: &mut Report) -> Option<Self::Out> {
        let NodeKind::Map(entries) = &node.kind else {
            report.wrong("CR1004", node, "a map");
            return None;
        };
        let mut out = IndexMap::new();
        for (key, value) in entries {
            if !is_plain_name(&key.text) {
                let message = format!("`{}` is no name", super::tree::short(&key.text));
                report.push(
                    Problem::new("CR1004", key.place, message)
                        .label("a name has 1 to 64 of the characters A-Z a-z 0-9 _ -"),
                );
            }
            report.path.push(key.text.clone());
            if let Some(read) = at(&self.0, key.place, value, report) {
                out.insert(key.text.clone(), read);
            }
            report.path.pop();
        }
        Some(out)
    }

    fn schema(&self, defs: &mut Map<String, Value>) -> Value {
        json!({
            "type": "object",
            "propertyNames": { "pattern": "^[A-Za-z0-9_-]{1,64}$" },
            "additionalProperties": self.0.schema(defs),
        })
    }
}

/// A list of distinct items, at least `least` of them.
pub(crate) struct List<K> {
    pub(crate) of: K,
    pub(crate) least: usize,
}

impl<K: Kind> Kind for List<K> {
    type Out = Vec<At<K::Out>>;

    fn read(&self, node: &Node, report: &mut Report) -> Option<Self::Out> {
        let NodeKind::List(items) = &node.kind else {
            report.wrong("CR1004", node, "a list");
            return None;
        };
        if items.len() < self.least {
            let message = format!("`{}` is an empty list", report.path());
            report.push(Problem::new("CR1004", node.place, message).label("name at least one"));
        }
        let mut out = Vec::new();
        let mut seen = HashSet::new();
        for (number, item) in items.iter().enumerate() {
            report.path.push(number.to_string());
            let again = match &item.kind {
                NodeKind::Scalar { text, .. } => !seen.insert(text),
                NodeKind::List(_) | NodeKind::Map(_) | NodeKind::Broken => false,
            };
            if again {
                let message = format!("`{}` stands in the list before", report.path());
                report.push(Problem::new("CR1004", item.place, message).label("named twice"));
            }
            out.extend(at(&self.of, item.place, item, report));
            report.path.pop();
        }
        Some(out)
    }

    fn schema(&self, defs: &mut Map<String, Value>) -> Value {
        let items = self.of.schema(defs);
        json!({ "type": "array", "items": items, "minItems": self.least, "uniqueItems": true })
    }
}

/// A subtree that may hold secrets: what is not plainly a reference is never shown.
pub(crate) struct Sensitive<K>(pub(crate) K);

impl<K: Kind> Kind for Sensitive<K> {
    type Out = K::Out;

    fn read(&self, node: &Node, report: &mut Report) -> Option<K::Out> {
        let reference = |key: &str, text: &str| match key {
            "file" => text.starts_with('/'),
            "env" => super::kinds::is_env_name(text),
            _other => false,
        };
        node.mask_scalars(&reference, &mut report.masks);
        let before = std::mem::replace(&mut report.hush, true);
        let read = self.0.read(node, report);
        report.hush = before;
        read
    }

    fn schema(&self, defs: &mut Map<String, Value>) -> Value {
        self.0.schema(defs)
    }
}

/// One word of a closed set. `None` = a word of the language that this build lacks (CR1009).
pub(crate) struct Words<T: 'static>(pub(crate) &'static [(&'static str, Option<T>)]);

impl<T: Copy> Kind for Words<T> {
    type Out = T;

    fn read(&self, node: &Node, report: &mut Report) -> Option<T> {
        let words: Vec<&str> =
            self.0.iter().filter(|(_, value)| value.is_some()).map(|(word, _)| *word).collect();
        let text = match (&node.kind, node.scalar()) {
            (NodeKind::Scalar { text, .. }, Some(Scalar::Text)) => text.as_str(),
            _not_a_word => "",
        };
        match self.0.iter().find(|(word, _)| *word == text) {
            Some((_, Some(value))) => return Some(*value),
            Some((word, None)) => {
                let message = format!("`{}: {word}` is not in this build", report.path());
                report.push(Problem::new("CR1009", node.place, message));
            }
            None => {
                let list = words.iter().map(|w| format!("`{w}`")).collect::<Vec<_>>().join(", ");
                report.wrong("CR1004", node, &format!("one of {list}"));
                let bare = matches!(&node.kind, NodeKind::Scalar { text, plain: true } if words.contains(&text.as_str()));
                if let (true, Some(last)) = (bare, report.problems.last_mut()) {
                    last.label = Some("put it in quotes: without them it is a number".into());
                }
                let near = nearest(text, &words).or_else(|| switch(node, &words));
                if let (Some(near), Some(last)) = (near, report.problems.last_mut()) {
                    last.label = Some(format!("did you mean `{near}`?"));
                }
            }
        }
        None
    }

    fn schema(&self, _defs: &mut Map<String, Value>) -> Value {
        let words: Vec<&str> =
            self.0.iter().filter(|(_, value)| value.is_some()).map(|(word, _)| *word).collect();
        json!({ "enum": words })
    }
}

/// Words that switch something off or on in other files (`off` and `no` are even booleans in YAML 1.1), and the words of
/// this language that mean it.
const SWITCHES: [(&[&str], &[&str]); 2] = [
    (
        &["off", "no", "n", "false", "none", "never", "disable", "disabled", "null", "~"],
        &["disabled", "none", "ignore", "false"],
    ),
    (
        &["on", "yes", "y", "true", "always", "enable", "enabled"],
        &["enforce", "use", "required", "true"],
    ),
];

/// The word of `words` that is meant by a switch of another language.
pub(crate) fn switch<'w>(node: &Node, words: &[&'w str]) -> Option<&'w str> {
    let NodeKind::Scalar { text, .. } = &node.kind else { return None };
    let asked = text.to_ascii_lowercase();
    let (_, meant) = SWITCHES.iter().find(|(said, _)| said.contains(&asked.as_str()))?;
    meant.iter().find_map(|meant| words.iter().find(|word| *word == meant).copied())
}

/// Stands beside the value that was reported last.
pub(crate) fn suggest_switch(node: &Node, words: &[&str], report: &mut Report) {
    if let (Some(meant), Some(last)) = (switch(node, words), report.problems.last_mut()) {
        last.label = Some(format!("did you mean `{meant}`?"));
    }
}
