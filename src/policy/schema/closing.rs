//! Closes object schemas, so that an argument nobody declared is a fault.
//!
//! Every object schema of the root and below `properties`, `items`, `prefixItems` and `$defs` that says nothing of
//! further members gets `additionalProperties: false`. Branches (`allOf`, `anyOf`, `oneOf`, `not`, `if`, `then`,
//! `else`) stay open: closing one would refuse its siblings' fields. For the same reason an object that shares its
//! value with branches is closed by `unevaluatedProperties: false`, which sees what they declare, and a definition
//! that several of them join is left open and closed where they are joined.
//!
//! A server's own schema may have objects of which it names no member at all: a map of anything, or a tool that takes
//! what its server alone knows. Closed they would take nothing but `{}`; they are left open, and say so.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::subschemas::{self, References};

const OBJECT_WORDS: &[&str] = &[
    "properties",
    "required",
    "patternProperties",
    "minProperties",
    "maxProperties",
    "propertyNames",
    "dependentRequired",
];
const APPLICATORS: &[&str] =
    &["allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "$ref", "$dynamicRef"];
/// Where closed schemas hold further closed ones.
const CLOSED_BELOW: &[&str] = &["properties", "items", "prefixItems", "$defs"];

/// Which objects are closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Objects {
    All,
    /// Those of which the schema names a member, or says that there is none (`properties: {}`).
    Named,
}

/// The schema with its objects closed. `references` are those of `root`.
pub(crate) fn close(root: &Value, references: &References<'_>, which: Objects) -> Value {
    let places = subschemas::every_under(root, |keyword| CLOSED_BELOW.contains(&keyword));
    let mut joined = joined_schemas(root, references);
    joined.retain(|at| !at.is_empty() && places.iter().any(|(place, _)| place == at));
    let mut closed = root.clone();
    for (at, schema) in &places {
        let Some(word) = closing_word(at, schema, references, &joined) else { continue };
        if let Some(Value::Object(members)) = closed.pointer_mut(at) {
            let free = which == Objects::Named && names_no_member(members);
            members.insert(word.to_owned(), Value::Bool(free));
        }
    }
    closed
}

fn closing_word(
    at: &str,
    schema: &Value,
    references: &References<'_>,
    joined: &HashSet<String>,
) -> Option<&'static str> {
    let members = schema.as_object()?;
    let said = ["additionalProperties", "unevaluatedProperties"];
    if said.iter().any(|word| members.contains_key(*word)) || joined.contains(at) {
        return None;
    }
    let joins =
        references.in_place_closure(at, schema).iter().any(|(target, _)| joined.contains(target));
    // Arguments are always an object: the root is one whatever it says.
    if !(joins || is_object_schema(members) || (at.is_empty() && !members.contains_key("$ref"))) {
        return None;
    }
    let shared = APPLICATORS.iter().any(|word| members.contains_key(*word));
    Some(if shared { "unevaluatedProperties" } else { "additionalProperties" })
}

/// Neither by itself nor by what it joins.
fn names_no_member(members: &Map<String, Value>) -> bool {
    let names = ["properties", "patternProperties"];
    !names.iter().chain(APPLICATORS).any(|word| members.contains_key(*word))
}

/// By its `type`, or by its other words when it names none.
fn is_object_schema(members: &Map<String, Value>) -> bool {
    match members.get("type") {
        Some(Value::String(kind)) => kind == "object",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "object"),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) => false,
        None => OBJECT_WORDS.iter().any(|word| members.contains_key(*word)),
    }
}

/// Pointers of the schemas that are joined with other declarations for one value.
fn joined_schemas(root: &Value, references: &References<'_>) -> HashSet<String> {
    subschemas::every(root)
        .iter()
        .filter(|(_, schema)| joins_declarations(schema))
        .flat_map(|(at, schema)| references.in_place_closure(at, schema))
        .map(|(at, _)| at)
        .collect()
}

/// Whether more than one place inside `schema` may declare members of the same value.
fn joins_declarations(schema: &Value) -> bool {
    let Value::Object(members) = schema else { return false };
    let own = OBJECT_WORDS.iter().any(|word| members.contains_key(*word));
    let all_of = members.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
    let others = APPLICATORS
        .iter()
        .filter(|word| !matches!(**word, "allOf" | "then" | "else") && members.contains_key(**word))
        .count();
    let conditional = members.contains_key("if") || members.contains_key("dependentSchemas");
    usize::from(own) + all_of + others + usize::from(conditional) > 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::policy::schema::Schema;

    fn closed(schema: &Value) -> Value {
        close(schema, &References::check(schema).expect("sound"), Objects::All)
    }

    #[test]
    fn every_object_that_says_nothing_of_further_members_is_closed() {
        let schema = json!({"type": "object", "properties": {
                "a": {"type": "object", "additionalProperties": {"type": "string"}},
                "b": {"type": ["object", "null"]},
                "c": {"type": "array", "items": {"properties": {"x": {}}}, "prefixItems": [{"type": "object"}]},
                "d": {"type": "string"}, "e": {"type": "object", "unevaluatedProperties": true}},
            "$defs": {"f": {"type": "object"}}});
        let after = closed(&schema);
        for (at, word) in [
            ("", Some("additionalProperties")),
            ("/properties/b", Some("additionalProperties")),
            ("/properties/c/items", Some("additionalProperties")),
            ("/properties/c/prefixItems/0", Some("additionalProperties")),
            ("/$defs/f", Some("additionalProperties")),
            ("/properties/a", None),
            ("/properties/c", None),
            ("/properties/d", None),
            ("/properties/e", None),
            ("/properties/c/items/properties/x", None),
        ] {
            let before = schema.pointer(at).expect(at);
            let mut wanted = before.clone();
            let now = after.pointer(at).expect(at);
            match word {
                Some(word) => assert_eq!(now.get(word), Some(&Value::Bool(false)), "{at}"),
                None => {
                    // Only what stands below may have changed.
                    assert_eq!(
                        now.get("unevaluatedProperties"),
                        before.get("unevaluatedProperties")
                    );
                    assert_eq!(now.get("additionalProperties"), wanted.get("additionalProperties"));
                    wanted.take();
                }
            }
        }
    }

    #[test]
    fn an_object_of_a_server_that_names_no_member_takes_any_and_one_that_names_none_takes_none() {
        let free = json!({"type": "object"});
        let judge = Schema::of_server(&free).expect("sound");
        assert!(judge.faults(&json!({"anything": [1]})).is_empty());
        assert_eq!(**judge.source(), json!({"type": "object", "additionalProperties": true}));
        assert_eq!(Schema::compile(&free, true).expect("sound").faults(&json!({"a": 1})).len(), 1);
        let none = Schema::of_server(&json!({"type": "object", "properties": {}})).expect("sound");
        assert_eq!(none.faults(&json!({"a": 1}))[0].at, "/a");
        let needs = json!({"type": "object", "required": ["a"]});
        assert!(
            Schema::of_server(&needs).expect("sound").faults(&json!({"a": 1, "b": 2})).is_empty()
        );
        let map = json!({"type": "object", "properties": {"map": {"type": "object"},
            "named": {"type": "object", "properties": {"x": {}}}, "joined": {"$ref": "#/$defs/any"}},
            "$defs": {"any": {"type": ["object", "null"]}}});
        let judge = Schema::of_server(&map).expect("sound");
        let taken = json!({"map": {"k": {"v": 1}}, "joined": {"k": 1}, "named": {"x": 1}});
        assert!(judge.faults(&taken).is_empty(), "{:?}", judge.faults(&taken));
        let faults = judge.faults(&json!({"named": {"y": 1}, "more": 1}));
        let places: Vec<_> = faults.iter().map(|fault| fault.at.as_str()).collect();
        assert_eq!(places, ["/named/y", "/more"]);
    }

    #[test]
    fn branches_stay_open_and_what_they_declare_is_known_to_the_whole() {
        let schema = json!({"type": "object", "properties": {"a": {}},
            "allOf": [{"type": "object", "properties": {"b": {}}}],
            "if": {"required": ["b"]}, "then": {"properties": {"c": {"type": "object"}}}});
        let after = closed(&schema);
        assert_eq!(after.get("unevaluatedProperties"), Some(&Value::Bool(false)));
        assert_eq!(after.get("allOf"), schema.get("allOf"));
        assert_eq!(after.get("then"), schema.get("then"));
        let judge = Schema::compile(&schema, true).expect("sound");
        assert!(judge.faults(&json!({"a": 1, "b": 2, "c": {"any": 1}})).is_empty());
        assert_eq!(judge.faults(&json!({"a": 1, "d": 2}))[0].at, "/d");
        // `c` is declared only for objects with `b`.
        assert_eq!(judge.faults(&json!({"c": {}}))[0].at, "/c");
    }

    #[test]
    fn a_definition_used_alone_is_closed_and_one_that_is_joined_is_closed_where_it_is_joined() {
        let base = json!({"type": "object", "properties": {"a": {}}});
        let alone = closed(
            &json!({"properties": {"x": {"anyOf": [{"$ref": "#/$defs/base"}, {"type": "null"}]}}, "$defs": {"base": base}}),
        );
        assert_eq!(alone.pointer("/$defs/base/additionalProperties"), Some(&Value::Bool(false)));
        let joined = json!({"properties": {
                "x": {"allOf": [{"$ref": "#/$defs/base"}, {"properties": {"b": {}}}]},
                "y": {"$ref": "#/$defs/base"}},
            "$defs": {"base": base}});
        let judge = Schema::compile(&joined, true).expect("sound");
        assert!(judge.faults(&json!({"x": {"a": 1, "b": 1}, "y": {"a": 1}})).is_empty());
        let faults = judge.faults(&json!({"x": {"c": 1}, "y": {"b": 1}}));
        let places: Vec<_> = faults.iter().map(|fault| fault.at.as_str()).collect();
        assert_eq!(places, ["/x/c", "/y/b"]);
    }

    /// An object schema whose members are spread over itself, branches and a definition, with a value of it.
    fn object(depth: u32) -> BoxedStrategy<(Value, Value)> {
        let leaf = prop_oneof![
            Just((json!({"type": "integer"}), json!(1))),
            Just((json!({"type": "string"}), json!("x"))),
            Just((json!({}), json!({"anything": [1]}))),
        ];
        if depth == 0 {
            return leaf.boxed();
        }
        let member = prop_oneof![2 => leaf, 1 => object(depth - 1), 1 => object(depth - 1).prop_map(|(schema, value)| {
            (json!({"type": "array", "items": schema}), json!([value.clone(), value]))
        })];
        (proptest::collection::vec((member, 0..4u8, any::<bool>()), 0..5), any::<bool>())
            .prop_map(|(members, typed)| {
                let mut own = Map::new();
                let mut branches = vec![Map::new(), Map::new(), Map::new()];
                let mut value = Map::new();
                for (index, ((schema, sample), place, present)) in members.into_iter().enumerate() {
                    let name = format!("m{index}");
                    match branches.get_mut(usize::from(place)) {
                        Some(branch) => branch.insert(name.clone(), schema),
                        None => own.insert(name.clone(), schema),
                    };
                    if present {
                        value.insert(name, sample);
                    }
                }
                let mut whole = Map::new();
                whole.insert("properties".to_owned(), Value::Object(own));
                if typed {
                    whole.insert("type".to_owned(), json!("object"));
                }
                let parts = ["allOf", "anyOf", "oneOf"];
                for (word, branch) in parts.iter().zip(branches).filter(|(_, b)| !b.is_empty()) {
                    whole.insert(
                        (*word).to_owned(),
                        json!([{"type": "object", "properties": branch}]),
                    );
                }
                (Value::Object(whole), Value::Object(value))
            })
            .boxed()
    }

    proptest! {
        #[test]
        fn what_was_valid_with_declared_members_alone_is_valid_when_closed((schema, value) in object(3)) {
            let open = Schema::compile(&schema, false).expect("sound");
            let closed = Schema::compile(&schema, true).expect("sound when closed");
            prop_assert!(open.faults(&value).is_empty());
            prop_assert_eq!(closed.faults(&value), Vec::new());
        }

        #[test]
        fn a_member_that_nobody_declared_is_a_fault_when_closed((schema, mut value) in object(3)) {
            let closed = Schema::compile(&schema, true).expect("sound when closed");
            if let Value::Object(members) = &mut value {
                members.insert("stranger".to_owned(), Value::Null);
            }
            let faults = closed.faults(&value);
            prop_assert!(faults.iter().any(|fault| fault.at == "/stranger"), "{:?}", faults);
        }
    }
}
