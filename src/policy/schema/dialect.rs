//! Schemas of servers in draft-07, read as Draft 2020-12: the few words that changed their names or their meaning.
//!
//! What changed between the two: tuples (`items` as a list, `additionalItems`), `dependencies`, `$id` as an anchor,
//! and that members beside a `$ref` count. Everything else of draft-07 says the same in 2020-12.

use serde_json::{Map, Value};

/// How the `$schema` of draft-07 is written, but for a trailing `#` and `https`.
const DRAFT_07: &str = "://json-schema.org/draft-07/schema";

pub(super) fn is_draft_07(schema: &Value) -> bool {
    let dialect = schema.get("$schema").and_then(Value::as_str).unwrap_or_default();
    let dialect = dialect.trim_end_matches('#');
    matches!(dialect.strip_suffix(DRAFT_07), Some("http" | "https"))
}

/// The schema as 2020-12 says it; no deeper than `depth` levels, below which nothing is judged anyway.
pub(super) fn modern(schema: &Value, depth: usize) -> Value {
    let Value::Object(members) = schema else { return schema.clone() };
    if depth == 0 {
        return schema.clone();
    }
    if let Some(target) = members.get("$ref").filter(|target| target.is_string()) {
        return alone(target, members, depth);
    }
    let mut out = Map::new();
    for (key, value) in members {
        match key.as_str() {
            "$schema" => {}
            "items" if value.is_array() => {
                out.insert("prefixItems".into(), each(value, depth));
                if let Some(more) = members.get("additionalItems") {
                    out.insert("items".into(), modern(more, depth - 1));
                }
            }
            "additionalItems" => {}
            "$id" if value.as_str().is_some_and(|id| id.starts_with('#')) => {
                let anchor = value.as_str().unwrap_or_default().trim_start_matches('#');
                out.insert("$anchor".into(), anchor.into());
            }
            "dependencies" => dependencies(value, &mut out, depth),
            "properties" | "patternProperties" | "definitions" | "$defs" => {
                out.insert(key.clone(), members_of(value, depth));
            }
            "allOf" | "anyOf" | "oneOf" => {
                out.insert(key.clone(), each(value, depth));
            }
            "items"
            | "contains"
            | "additionalProperties"
            | "propertyNames"
            | "not"
            | "if"
            | "then"
            | "else" => {
                out.insert(key.clone(), modern(value, depth - 1));
            }
            _other => {
                out.insert(key.clone(), value.clone());
            }
        }
    }
    Value::Object(out)
}

/// In draft-07 nothing beside a `$ref` counts; definitions there are still found by their pointers.
fn alone(target: &Value, members: &Map<String, Value>, depth: usize) -> Value {
    let mut out = Map::from_iter([("$ref".to_owned(), target.clone())]);
    for key in ["title", "description", "default", "examples", "$comment"] {
        out.extend(members.get(key).map(|value| (key.to_owned(), value.clone())));
    }
    for key in ["definitions", "$defs"] {
        out.extend(members.get(key).map(|value| (key.to_owned(), members_of(value, depth))));
    }
    Value::Object(out)
}

fn each(list: &Value, depth: usize) -> Value {
    let items = list.as_array().map(Vec::as_slice);
    items.map_or_else(|| list.clone(), |items| items.iter().map(|s| modern(s, depth - 1)).collect())
}

fn members_of(map: &Value, depth: usize) -> Value {
    let Value::Object(members) = map else { return map.clone() };
    let below = |(name, schema): (&String, &Value)| (name.clone(), modern(schema, depth - 1));
    Value::Object(members.iter().map(below).collect())
}

/// A list of names, or a schema, by member.
fn dependencies(value: &Value, out: &mut Map<String, Value>, depth: usize) {
    let (mut required, mut schemas) = (Map::new(), Map::new());
    for (name, needs) in value.as_object().into_iter().flatten() {
        if needs.is_array() {
            required.insert(name.clone(), needs.clone());
        } else {
            schemas.insert(name.clone(), modern(needs, depth - 1));
        }
    }
    for (key, found) in [("dependentRequired", required), ("dependentSchemas", schemas)] {
        if !found.is_empty() {
            out.insert(key.into(), Value::Object(found));
        }
    }
}
