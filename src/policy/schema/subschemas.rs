//! Where subschemas stand inside a JSON Schema (Draft 2020-12), what its references lead to, and what is refused
//! about both before anything is compiled: size, depth, references that leave the document, references that circle.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::SchemaFault;
use crate::call::pointer::push_token;

/// Deepest nesting of a schema; past it no walk of ours goes.
pub(super) const MAX_DEPTH: usize = 120;
/// Most JSON values in one schema.
const MAX_VALUES: usize = 50_000;
/// Most subschemas that may judge one and the same value; a few lines of doubled references reach millions.
const MAX_AT_ONE_PLACE: u64 = 2_000;

const ONE: &[&str] = &[
    "items",
    "contains",
    "additionalProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
    "contentSchema",
];
const LIST: &[&str] = &["allOf", "anyOf", "oneOf", "prefixItems"];
const MAP: &[&str] =
    &["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
/// Keywords whose subschemas judge the same value as the schema that holds them.
const IN_PLACE: &[&str] =
    &["allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"];
/// Keywords whose subschemas judge what the value holds.
const DEEPER: &[&str] = &[
    "properties",
    "patternProperties",
    "additionalProperties",
    "unevaluatedProperties",
    "items",
    "prefixItems",
    "unevaluatedItems",
    "contains",
];
/// How deep ways are counted, and how many are too many: recursions that double pass it, others stay far below.
const COUNTED_LEVELS: usize = 24;
const MAX_WAYS: u64 = 10_000;
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// A subschema and its JSON Pointer in the whole.
pub(crate) type Place<'s> = (String, &'s Value);

/// The direct subschemas of `schema` under the keywords `wanted` names.
fn below<'s>(at: &str, schema: &'s Value, wanted: impl Fn(&str) -> bool) -> Vec<Place<'s>> {
    let Value::Object(members) = schema else { return Vec::new() };
    let mut found = Vec::new();
    for (keyword, value) in members.iter().filter(|(keyword, _)| wanted(keyword)) {
        let mut at = at.to_owned();
        push_token(&mut at, keyword);
        let keyword = keyword.as_str();
        if ONE.contains(&keyword) {
            found.push((at, value));
        } else if LIST.contains(&keyword) {
            let items = value.as_array().into_iter().flatten().enumerate();
            found.extend(items.map(|(index, item)| (format!("{at}/{index}"), item)));
        } else if MAP.contains(&keyword) {
            for (name, item) in value.as_object().into_iter().flatten() {
                let mut at = at.clone();
                push_token(&mut at, name);
                found.push((at, item));
            }
        }
    }
    found
}

/// Every subschema, the root first.
pub(crate) fn every(root: &Value) -> Vec<Place<'_>> {
    every_under(root, |_| true)
}

/// The root, and every subschema that is reached from it through the keywords `wanted` names alone.
pub(crate) fn every_under(root: &Value, wanted: impl Fn(&str) -> bool) -> Vec<Place<'_>> {
    let mut found = vec![(String::new(), root)];
    let mut next = 0;
    while let Some((at, schema)) = found.get(next).cloned() {
        found.extend(below(&at, schema, &wanted));
        next += 1;
    }
    found
}

/// Refuses what is too large or too deep to be walked; never recurses itself.
pub(crate) fn check_size(root: &Value) -> Result<(), SchemaFault> {
    let mut open = vec![(root, 1)];
    let mut seen = 0;
    while let Some((value, depth)) = open.pop() {
        seen += 1;
        if depth > MAX_DEPTH {
            return Err(SchemaFault::new("", format!("nested deeper than {MAX_DEPTH} levels")));
        }
        if seen > MAX_VALUES {
            return Err(SchemaFault::new("", format!("more than {MAX_VALUES} values")));
        }
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(members) => {
                open.extend(members.values().map(|member| (member, depth + 1)));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    Ok(())
}

/// What the references of one document lead to.
#[derive(Debug)]
pub(crate) struct References<'s> {
    root: &'s Value,
    /// `#anchor` and `$id` → pointer.
    named: HashMap<String, String>,
}

impl<'s> References<'s> {
    /// Refuses every `$schema`, `$id` and `$ref` that points out of the document: nothing is ever fetched.
    pub(crate) fn check(root: &'s Value) -> Result<Self, SchemaFault> {
        let places = every(root);
        let mut named = HashMap::new();
        for (at, schema) in &places {
            let Value::Object(members) = schema else { continue };
            check_dialect(at, members)?;
            for keyword in ["$anchor", "$dynamicAnchor"] {
                if let Some(Value::String(name)) = members.get(keyword) {
                    named.insert(format!("#{name}"), at.clone());
                }
            }
            if let Some(id) = members.get("$id") {
                named.insert(check_id(at, id)?, at.clone());
            }
        }
        let references = Self { root, named };
        for (at, schema) in &places {
            references.check_targets(at, schema)?;
        }
        references.check_circles(&places)?;
        Ok(references)
    }

    fn check_targets(&self, at: &str, schema: &Value) -> Result<(), SchemaFault> {
        for keyword in ["$ref", "$dynamicRef"] {
            let Some(target) = schema.get(keyword) else { continue };
            let Value::String(target) = target else { continue };
            let document = target.split('#').next().unwrap_or_default();
            if !document.is_empty() && !self.named.contains_key(document) {
                let place = format!("{at}/{keyword}");
                let message = format!(
                    "`{keyword}: {}` points out of this schema; nothing is fetched, so only `#/…`, `#anchor` and an `$id` of the same schema can be named",
                    shown(target)
                );
                return Err(SchemaFault::new(place, message));
            }
            if document.is_empty() && self.resolve(target).is_none() {
                let message = format!("`{keyword}: {}` leads nowhere", shown(target));
                return Err(SchemaFault::new(format!("{at}/{keyword}"), message));
            }
        }
        Ok(())
    }

    /// The place a reference leads to; `None` when it is not one of the simple local forms.
    pub(crate) fn resolve(&self, target: &str) -> Option<Place<'s>> {
        if let Some(at) = self.named.get(target) {
            return Some((at.clone(), self.root.pointer(at)?));
        }
        let pointer = target.strip_prefix('#')?;
        let pointer = percent_encoding::percent_decode_str(pointer).decode_utf8().ok()?;
        let schema = self.root.pointer(&pointer)?;
        Some((pointer.into_owned(), schema))
    }

    /// The subschemas that judge the same value as `schema`: one step.
    pub(crate) fn in_place(&self, at: &str, schema: &'s Value) -> Vec<Place<'s>> {
        let mut found = below(at, schema, |keyword| IN_PLACE.contains(&keyword));
        for keyword in ["$ref", "$dynamicRef"] {
            if let Some(Value::String(target)) = schema.get(keyword) {
                found.extend(self.resolve(target));
            }
        }
        found
    }

    /// Every subschema that judges the same value as `schema`, itself left out.
    pub(crate) fn in_place_closure(&self, at: &str, schema: &'s Value) -> Vec<Place<'s>> {
        let mut seen = HashSet::new();
        let mut found: Vec<Place<'s>> = Vec::new();
        let mut open = self.in_place(at, schema);
        while let Some((at, schema)) = open.pop() {
            if seen.insert(at.clone()) {
                open.extend(self.in_place(&at, schema));
                found.push((at, schema));
            }
        }
        found
    }

    /// Refuses a schema that comes back to itself without going deeper into the value, and one whose references
    /// double up to more judgements of one value than a call may cost.
    fn check_circles(&self, places: &[Place<'s>]) -> Result<(), SchemaFault> {
        let mut costs: HashMap<String, Option<u64>> = HashMap::new();
        for (at, schema) in places {
            self.cost(at, schema, &mut costs, 0)?;
        }
        Ok(())
    }

    /// `None` in `costs` = being counted, so meeting it again is a circle.
    fn cost(
        &self,
        at: &str,
        schema: &'s Value,
        costs: &mut HashMap<String, Option<u64>>,
        depth: usize,
    ) -> Result<u64, SchemaFault> {
        match costs.get(at) {
            Some(Some(cost)) => return Ok(*cost),
            Some(None) => {
                let message = "refers to itself without going deeper into the value";
                return Err(SchemaFault::new(at, message));
            }
            None => {}
        }
        if depth > MAX_DEPTH {
            let message = format!("a chain of more than {MAX_DEPTH} references");
            return Err(SchemaFault::new(at, message));
        }
        costs.insert(at.to_owned(), None);
        let mut sum = 1u64;
        for (below, schema) in self.in_place(at, schema) {
            sum = sum.saturating_add(self.cost(&below, schema, costs, depth + 1)?);
        }
        if sum > MAX_AT_ONE_PLACE {
            let message = format!(
                "its branches and references judge one value more than {MAX_AT_ONE_PLACE} times"
            );
            return Err(SchemaFault::new(at, message));
        }
        costs.insert(at.to_owned(), Some(sum));
        Ok(sum)
    }

    /// Whether the ways from the root to one value may double level by level: a recursion that names itself twice for
    /// one value. Told by counting the ways for values of growing depth.
    pub(crate) fn branches_out(&self) -> bool {
        let places = every(self.root);
        let index: HashMap<&str, usize> =
            places.iter().enumerate().map(|(index, (at, _))| (at.as_str(), index)).collect();
        let find = |found: Vec<Place<'s>>| -> Vec<usize> {
            found.iter().filter_map(|(at, _)| index.get(at.as_str()).copied()).collect()
        };
        let edges: Vec<(Vec<usize>, Vec<usize>)> = places
            .iter()
            .map(|(at, schema)| {
                let deeper = below(at, schema, |keyword| DEEPER.contains(&keyword));
                (find(self.in_place(at, schema)), find(deeper))
            })
            .collect();
        let order = in_place_order(&edges);
        // Several members of one object are several values: of them the worst counts, not the sum.
        let mut ways = vec![1u64; places.len()];
        for _ in 0..COUNTED_LEVELS {
            let before = ways.clone();
            for place in &order {
                let Some((same, deeper)) = edges.get(*place) else { continue };
                let of = |from: &[u64], place: &usize| from.get(*place).copied().unwrap_or(1);
                let here =
                    same.iter().fold(0u64, |sum, place| sum.saturating_add(of(&ways, place)));
                let below = deeper.iter().map(|place| of(&before, place)).max().unwrap_or(0);
                if let Some(slot) = ways.get_mut(*place) {
                    *slot = here.saturating_add(below).max(1);
                }
            }
        }
        ways.first().is_some_and(|ways| *ways > MAX_WAYS)
    }
}

/// Places so that what judges the same value comes before what refers to it; there is no circle among them.
fn in_place_order(edges: &[(Vec<usize>, Vec<usize>)]) -> Vec<usize> {
    let mut done = vec![false; edges.len()];
    let mut order = Vec::with_capacity(edges.len());
    for start in 0..edges.len() {
        let mut open = vec![(start, false)];
        while let Some((place, left)) = open.pop() {
            if left {
                order.push(place);
            } else if let Some(seen) = done.get_mut(place).filter(|seen| !**seen) {
                *seen = true;
                open.push((place, true));
                let same = edges.get(place).map_or(&[][..], |(same, _)| same.as_slice());
                open.extend(same.iter().map(|place| (*place, false)));
            }
        }
    }
    order
}

fn check_dialect(at: &str, members: &Map<String, Value>) -> Result<(), SchemaFault> {
    match members.get("$schema") {
        None => {}
        Some(Value::String(dialect)) if dialect.trim_end_matches('#') == DIALECT => {}
        Some(other) => {
            let message = format!(
                "`$schema: {}` is not known; schemas are read as Draft 2020-12 ({DIALECT}), and nothing is fetched",
                shown(&plain(other))
            );
            return Err(SchemaFault::new(format!("{at}/$schema"), message));
        }
    }
    if members.contains_key("$recursiveRef") {
        let message = "`$recursiveRef` is not of Draft 2020-12; write `$dynamicRef` or `$ref`";
        return Err(SchemaFault::new(format!("{at}/$recursiveRef"), message));
    }
    Ok(())
}

fn check_id(at: &str, id: &Value) -> Result<String, SchemaFault> {
    let text = plain(id);
    let scheme = text.split_once(':').map(|(scheme, _)| scheme);
    let leaves = text.starts_with("//") || scheme.is_some_and(|scheme| scheme != "urn");
    if leaves || !id.is_string() {
        let message = format!(
            "`$id: {}` names a place outside this schema; nothing is fetched: leave it out, or use a plain name or a `urn:`",
            shown(&text)
        );
        return Err(SchemaFault::new(format!("{at}/$id"), message));
    }
    Ok(text)
}

/// Whether a schema refuses members it does not declare.
pub(crate) fn is_closed(schema: &Value) -> bool {
    ["additionalProperties", "unevaluatedProperties"]
        .iter()
        .any(|word| schema.get(*word) == Some(&Value::Bool(false)))
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

/// A text of the schema as a message may quote it.
pub(crate) fn shown(text: &str) -> String {
    let mut out: String =
        text.chars().take(80).map(|c| if c.is_control() { '?' } else { c }).collect();
    if text.chars().nth(80).is_some() {
        out.push('…');
    }
    out
}
