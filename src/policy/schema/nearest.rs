//! The one nearest fault, for schemas that lead to the same value in so many ways that telling every fault would take
//! for ever: judging alone is quick, so the place is found by asking which part is unsound.

use jsonschema::ValidatorMap;
use serde_json::Value;

use super::subschemas::{self, Place, References};
use super::{faults, words};
use crate::call::Fault;
use crate::call::arguments::kind_of;
use crate::call::pointer::push_token;

/// Deepest place that is looked for.
const MAX_DEPTH: usize = 128;

/// A validator for every subschema.
pub(super) struct Nearest(ValidatorMap);

impl Nearest {
    pub(super) fn new(validators: ValidatorMap) -> Self {
        Self(validators)
    }

    /// What is wrong at the deepest place that is wrong whichever way leads to it. `value` is unsound.
    pub(super) fn faults(&self, source: &Value, value: &Value) -> Vec<Fault> {
        let Ok(references) = References::check(source) else { return Vec::new() };
        let mut at = String::new();
        let mut here = value;
        let mut schemas = together(&references, vec![(String::new(), source)]);
        for _ in 0..MAX_DEPTH {
            let Some((token, member, below)) = self.unsound_part(&schemas, here) else { break };
            push_token(&mut at, &token);
            here = member;
            schemas = together(&references, below);
        }
        vec![explain(source, at, here, &schemas)]
    }

    /// A member or item that every schema declaring it refuses.
    fn unsound_part<'v, 's>(
        &self,
        schemas: &[Place<'s>],
        here: &'v Value,
    ) -> Option<(String, &'v Value, Vec<Place<'s>>)> {
        let parts: Vec<(String, &Value)> = match here {
            Value::Object(members) => {
                members.iter().map(|(name, part)| (name.clone(), part)).collect()
            }
            Value::Array(items) => {
                items.iter().enumerate().map(|(index, part)| (index.to_string(), part)).collect()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
        };
        parts.into_iter().find_map(|(token, part)| {
            let below: Vec<Place<'s>> =
                schemas.iter().filter_map(|schema| step(schema, &token, here)).collect();
            let refused = !below.is_empty() && below.iter().all(|(at, _)| !self.is_sound(at, part));
            refused.then_some((token, part, below))
        })
    }

    /// A place that has no validator of its own says nothing against the value.
    fn is_sound(&self, at: &str, value: &Value) -> bool {
        self.0.get(&format!("#{at}")).is_none_or(|validator| validator.is_valid(value))
    }
}

impl std::fmt::Debug for Nearest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nearest({})", self.0.len())
    }
}

/// The schemas with all that judges the same value.
fn together<'s>(references: &References<'s>, schemas: Vec<Place<'s>>) -> Vec<Place<'s>> {
    let mut all: Vec<Place<'s>> = Vec::new();
    for (at, schema) in schemas {
        let more = references.in_place_closure(&at, schema);
        for place in std::iter::once((at, schema)).chain(more) {
            if !all.iter().any(|(known, _)| *known == place.0) {
                all.push(place);
            }
        }
    }
    all
}

/// The schema that `place` declares for one member or item.
fn step<'s>(place: &Place<'s>, token: &str, here: &Value) -> Option<Place<'s>> {
    let (at, schema) = place;
    let (keyword, named) = match here {
        Value::Array(_) => ("items", false),
        Value::Object(_) => ("properties", true),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return None,
    };
    let mut pointer = format!("{at}/{keyword}");
    let mut below = schema.get(keyword)?;
    if named {
        below = below.get(token)?;
        push_token(&mut pointer, token);
    }
    Some((pointer, below))
}

fn explain(source: &Value, at: String, here: &Value, schemas: &[Place<'_>]) -> Fault {
    let (fields, unknown) = strangers(here, schemas);
    if let Some(name) = unknown {
        let mut place = at;
        push_token(&mut place, &name);
        let got = here.get(&name).map_or("missing", kind_of);
        return Fault {
            at: place,
            expected: faults::no_such_field(&fields).into(),
            got: got.into(),
        };
    }
    let wanted = schemas.iter().find(|(_, schema)| schema.get("type").is_some());
    let expected = wanted.or(schemas.first()).map(|(_, schema)| words::wanted(schema, source));
    let mut expected = expected.unwrap_or_else(|| "a matching value".to_owned());
    let kind = kind_of(here);
    if here.is_object() && expected.starts_with("object") {
        let fields = words::list(fields.iter().cloned());
        expected = format!("object in one of the forms of the schema; their fields are {fields}");
    }
    Fault { at, expected: expected.into(), got: kind.into() }
}

/// The members that the schemas declare, and one of the value's that none of them does.
fn strangers(here: &Value, schemas: &[Place<'_>]) -> (Vec<String>, Option<String>) {
    let declared = schemas.iter().filter_map(|(_, schema)| schema.get("properties")?.as_object());
    let mut fields: Vec<String> = Vec::new();
    for name in declared.flat_map(|properties| properties.keys()) {
        if !fields.contains(name) {
            fields.push(name.clone());
        }
    }
    let closed = schemas.iter().any(|(_, schema)| subschemas::is_closed(schema));
    let mut members = here.as_object().into_iter().flat_map(|members| members.keys());
    let unknown = members.find(|name| closed && !fields.contains(name)).cloned();
    (fields, unknown)
}
