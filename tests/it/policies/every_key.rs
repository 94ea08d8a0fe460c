//! Every key of the language, taken from its schema, in every wrong way: misspelt, doubled, removed, of a wrong kind.

use std::collections::BTreeSet;

use checkrein::policy::{document, json_schema};
use serde_json::{Map, Value, json};

use super::{errors, root};

/// A key of a record, where it stands in the fixture.
struct Found {
    /// Names and indices down to the record.
    record: Vec<String>,
    key: String,
    /// The record's name in the schema.
    section: String,
    required: bool,
    kind: Value,
}

fn fixture() -> Value {
    let text = std::fs::read(root().join("tests/it/fixtures/every_key.yaml")).expect("a fixture");
    document::tree::parse(&text).root.expect("YAML").to_json().expect("JSON")
}

fn resolve<'s>(schema: &'s Value, whole: &'s Value) -> (&'s Value, Option<&'s str>) {
    match schema.get("$ref").and_then(Value::as_str) {
        Some(reference) => {
            let pointer = reference.trim_start_matches('#');
            (whole.pointer(pointer).expect("a definition"), Some(reference))
        }
        None => (schema, None),
    }
}

/// Walks the fixture and the schema together.
fn walk(
    (schema, name): (&Value, &str),
    whole: &Value,
    value: &Value,
    path: &mut Vec<String>,
    out: &mut Vec<Found>,
) {
    let (schema, reference) = resolve(schema, whole);
    let name = reference.and_then(|text| text.rsplit('/').next()).unwrap_or(name);
    let none = Map::new();
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        let members = value.as_object().unwrap_or(&none);
        let required: Vec<&str> = schema
            .get("required")
            .and_then(Value::as_array)
            .map(|list| list.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default();
        for (key, inner) in properties {
            let Some(member) = members.get(key) else { continue };
            out.push(Found {
                record: path.clone(),
                key: key.clone(),
                section: name.to_owned(),
                required: required.contains(&key.as_str()),
                kind: resolve(inner, whole).0.clone(),
            });
            path.push(key.clone());
            walk((inner, &format!("{name}.{key}")), whole, member, path, out);
            path.pop();
        }
    } else if let Some(inner) = schema.get("additionalProperties").filter(|inner| inner.is_object())
    {
        for (member_name, member) in value.as_object().unwrap_or(&none) {
            path.push(member_name.clone());
            walk((inner, name), whole, member, path, out);
            path.pop();
        }
    } else if let (Some(inner), Some(items)) = (schema.get("items"), value.as_array()) {
        for (index, item) in items.iter().enumerate() {
            path.push(index.to_string());
            walk((inner, name), whole, item, path, out);
            path.pop();
        }
    }
}

fn keys() -> Vec<Found> {
    let schema = json_schema::policy();
    let mut out = Vec::new();
    walk((&schema, ""), &schema, &fixture(), &mut Vec::new(), &mut out);
    out
}

/// Every `properties` of the schema, as (definition or section, key).
fn language(schema: &Value, name: &str, out: &mut BTreeSet<(String, String)>) {
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        for (key, inner) in properties {
            out.insert((name.to_owned(), key.clone()));
            if inner.get("$ref").is_none() {
                language(inner, &format!("{name}.{key}"), out);
            }
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get(key).filter(|inner| inner.get("$ref").is_none()) {
            language(inner, name, out);
        }
    }
}

/// JSON text (which is YAML) of `value`, with one record's member written by `write`.
fn spelt(value: &Value, record: &[String], key: &str, write: &dyn Fn(&Value) -> String) -> String {
    match value {
        Value::Object(map) => {
            let members: Vec<String> = map
                .iter()
                .filter_map(|(name, member)| {
                    if record.is_empty() && name == key {
                        return Some(write(member)).filter(|text| !text.is_empty());
                    }
                    let text = match record.split_first() {
                        Some((first, rest)) if first == name => spelt(member, rest, key, write),
                        Some(_) | None => member.to_string(),
                    };
                    Some(format!("{}: {text}", json!(name)))
                })
                .collect();
            format!("{{{}}}", members.join(", "))
        }
        Value::Array(items) => {
            let members: Vec<String> = items
                .iter()
                .enumerate()
                .map(|(index, item)| match record.split_first() {
                    Some((first, rest)) if *first == index.to_string() => {
                        spelt(item, rest, key, write)
                    }
                    Some(_) | None => item.to_string(),
                })
                .collect();
            format!("[{}]", members.join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

fn codes(text: &str) -> BTreeSet<String> {
    errors(text).iter().filter_map(|found| found.split(':').next().map(str::to_owned)).collect()
}

#[test]
fn the_fixture_names_every_key_of_the_language_and_is_sound() {
    let value = fixture();
    assert_eq!(codes(&value.to_string()), BTreeSet::new());
    let whole = json_schema::policy();
    let mut all = BTreeSet::new();
    language(&whole, "", &mut all);
    for (name, def) in whole["$defs"].as_object().expect("definitions") {
        language(def, name, &mut all);
    }
    all.retain(|(section, _)| section != "json_schema");
    let found: BTreeSet<_> = keys().into_iter().map(|found| (found.section, found.key)).collect();
    assert_eq!(all.difference(&found).collect::<Vec<_>>(), Vec::<&(String, String)>::new());
    assert!(keys().len() > 150, "{}", keys().len());
}

#[test]
fn bb_k03_every_key_misspelt_is_refused_by_its_name() {
    let value = fixture();
    for found in keys() {
        let wrong = format!("{}q", found.key);
        let text = spelt(&value, &found.record, &found.key, &|member| {
            format!("{}: {member}", json!(wrong))
        });
        let examined = super::examine(&text);
        let named = examined.problems.iter().any(|problem| {
            match found.key.as_str() {
                // A reference with an unknown key is no reference.
                "file" | "env" if found.section == "secret" => problem.code == "CR1006",
                _other => problem.code == "CR1002" && problem.message.contains(&wrong),
            }
        });
        assert!(named, "{}.{wrong}: {:?}", found.record.join("."), examined.problems);
        assert!(examined.snapshot.is_none());
    }
}

#[test]
fn every_key_doubled_is_refused() {
    let value = fixture();
    for found in keys() {
        let text = spelt(&value, &found.record, &found.key, &|member| {
            let name = json!(found.key);
            format!("{name}: {member}, {name}: {member}")
        });
        assert!(codes(&text).contains("CR0002"), "{}.{}", found.record.join("."), found.key);
    }
}

#[test]
fn every_required_key_removed_is_refused() {
    let value = fixture();
    let mut checked = 0;
    for found in keys().iter().filter(|found| found.required) {
        checked += 1;
        let text = spelt(&value, &found.record, &found.key, &|_| String::new());
        let codes = codes(&text);
        let told = ["CR1001", "CR1003", "CR1008"].iter().any(|code| codes.contains(*code));
        assert!(told, "{}.{}: {codes:?}", found.record.join("."), found.key);
    }
    assert!(checked > 20, "{checked}");
}

#[test]
fn bb_r09_a_bare_number_where_a_unit_a_word_or_a_map_belongs_is_refused_with_path_and_value() {
    let value = fixture();
    for found in keys() {
        let counts = found.kind.to_string().contains("integer");
        let wrong = if counts && found.kind.get("items").is_none() { ".nan" } else { "-7" };
        let text =
            spelt(&value, &found.record, &found.key, &|_| format!("{}: {wrong}", json!(found.key)));
        let examined = super::examine(&text);
        let path = [found.record.as_slice(), std::slice::from_ref(&found.key)].concat().join(".");
        let told = examined.problems.iter().any(|problem| {
            let quotes = problem.message.contains(wrong)
                // What may hold a secret is not quoted.
                || path.contains("auth") || path.contains("identities") || path.ends_with("ca")
                || path.contains("ca.") || path.ends_with("headers")
                || path.contains(".env");
            quotes && (problem.message.contains(&path) || problem.code == "CR1006")
        });
        assert!(told, "{path}: {:?}", examined.problems);
        assert!(examined.snapshot.is_none(), "{path}");
    }
}

#[test]
fn every_word_of_the_language_survives_neither_another_case_nor_yaml_s_old_booleans() {
    let value = fixture();
    for found in keys().iter().filter(|found| found.kind.get("enum").is_some()) {
        for wrong in ["yes", "no", "on", "off", "true", "\"\"", "Enforce", "~"] {
            let text = spelt(&value, &found.record, &found.key, &|_| {
                format!("{}: {wrong}", json!(found.key))
            });
            assert!(codes(&text).contains("CR1004"), "{}: {wrong}", found.key);
        }
    }
}
