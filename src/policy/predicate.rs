//! A closed question about a JSON document: what stands at a pointer, and any, all, none of several such. Pure.
//!
//! A test is a small JSON Schema, so that numbers are compared by their digits and patterns run in linear time.

use serde_json::Value;

use super::schema::{Schema, SchemaFault};
use crate::call::arguments::kind_of;
use crate::call::pointer::Pointer;

#[derive(Debug, Clone)]
pub enum Predicate {
    Any(Vec<Predicate>),
    All(Vec<Predicate>),
    Not(Box<Predicate>),
    Test { pointer: Pointer, test: Test },
}

#[derive(Debug, Clone)]
pub enum Test {
    /// The value is there and fits. Values of other kinds than these cannot be told to fit or not.
    Is {
        schema: Schema,
        kinds: Vec<&'static str>,
    },
    Exists(bool),
}

impl Test {
    /// A value fits this (open) schema.
    pub fn is(schema: &Value) -> Result<Self, SchemaFault> {
        let kinds = kinds(schema);
        Schema::compile(schema, false).map(|schema| Test::Is { schema, kinds })
    }
}

/// Kinds of the values that a test is about.
fn kinds(schema: &Value) -> Vec<&'static str> {
    let listed = schema.get("enum").and_then(Value::as_array);
    let values = schema.get("const").into_iter().chain(listed.into_iter().flatten());
    let named = match schema.get("type").and_then(Value::as_str) {
        Some("number") => Some("number"),
        Some("string") => Some("string"),
        Some(_) | None => None,
    };
    let mut kinds: Vec<_> = values.map(kind_of).chain(named).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

impl Predicate {
    /// False only where it is sure that it does not hold: a value that is missing, or of another kind than the test is
    /// about, may be anything to the tool.
    pub fn may_hold(&self, document: &Value) -> bool {
        self.judge(document) != Some(false)
    }

    /// `None`: it cannot be told.
    fn judge(&self, document: &Value) -> Option<bool> {
        match self {
            Predicate::Any(parts) => any_of(parts.iter().map(|part| part.judge(document)), true),
            Predicate::All(parts) => any_of(parts.iter().map(|part| part.judge(document)), false),
            Predicate::Not(part) => part.judge(document).map(|holds| !holds),
            Predicate::Test { pointer, test } => match (pointer.get(document), test) {
                (found, Test::Exists(wanted)) => Some(found.is_some() == *wanted),
                (Some(found), Test::Is { schema, kinds }) => match schema.is_valid(found) {
                    true => Some(true),
                    false => kinds.contains(&kind_of(found)).then_some(false),
                },
                (None, Test::Is { .. }) => None,
            },
        }
    }

    /// Every pointer it looks at.
    pub fn pointers(&self) -> Vec<&Pointer> {
        match self {
            Predicate::Any(parts) | Predicate::All(parts) => {
                parts.iter().flat_map(Predicate::pointers).collect()
            }
            Predicate::Not(part) => part.pointers(),
            Predicate::Test { pointer, .. } => vec![pointer],
        }
    }

    /// Whether it holds. Nothing at the pointer, or another type: the test is false, except `exists: false`.
    pub fn holds(&self, document: &Value) -> bool {
        match self {
            Predicate::Any(parts) => parts.iter().any(|part| part.holds(document)),
            Predicate::All(parts) => parts.iter().all(|part| part.holds(document)),
            Predicate::Not(part) => !part.holds(document),
            Predicate::Test { pointer, test } => match (pointer.get(document), test) {
                (found, Test::Exists(wanted)) => found.is_some() == *wanted,
                (Some(found), Test::Is { schema, .. }) => schema.is_valid(found),
                (None, Test::Is { .. }) => false,
            },
        }
    }
}

/// One part that is `deciding` decides; else one that cannot be told leaves it open.
fn any_of(parts: impl Iterator<Item = Option<bool>>, deciding: bool) -> Option<bool> {
    let mut sure = true;
    for part in parts {
        match part {
            Some(part) if part == deciding => return Some(deciding),
            Some(_) => {}
            None => sure = false,
        }
    }
    sure.then_some(!deciding)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn test(pointer: &str, schema: &Value) -> Predicate {
        Predicate::Test {
            pointer: Pointer::parse(pointer).expect("a pointer"),
            test: Test::is(schema).expect("a schema"),
        }
    }

    #[test]
    fn a_missing_pointer_or_another_type_is_false_but_for_exists_false() {
        let document = json!({ "value": { "status": "open", "n": 3 } });
        let exists = |pointer: &str, wanted| Predicate::Test {
            pointer: Pointer::parse(pointer).expect("a pointer"),
            test: Test::Exists(wanted),
        };
        assert!(test("/value/status", &json!({"const": "open"})).holds(&document));
        assert!(!test("/value/state", &json!({"const": "open"})).holds(&document));
        assert!(!test("/value/status", &json!({"type": "number", "minimum": 1})).holds(&document));
        assert!(
            test("/value/n", &json!({"type": "number", "exclusiveMinimum": 2})).holds(&document)
        );
        assert!(exists("/value/n", true).holds(&document));
        assert!(exists("/value/m", false).holds(&document));
        assert!(!exists("/value/m", true).holds(&document));
    }

    #[test]
    fn what_cannot_be_told_may_hold_and_not_does_not_make_it_sure() {
        let document = json!({ "amount": 5, "to": "a", "list": [1] });
        let above =
            |pointer: &str| test(pointer, &json!({ "type": "number", "exclusiveMinimum": 100 }));
        let is = |pointer: &str| test(pointer, &json!({ "const": "prod" }));
        // Sure.
        assert!(!above("/amount").may_hold(&document));
        assert!(!is("/to").may_hold(&document));
        assert!(!test("/amount", &json!({ "enum": [1, "x"] })).may_hold(&document));
        // Missing, or of another kind.
        for unsure in [above("/sum"), above("/to"), is("/amount"), is("/list"), is("/to/x")] {
            assert!(unsure.may_hold(&document), "{unsure:?}");
            assert!(Predicate::Not(Box::new(unsure.clone())).may_hold(&document));
            assert!(!unsure.holds(&document));
        }
        let both = |a, b| [Predicate::Any(vec![a, b])];
        assert!(both(above("/amount"), above("/sum"))[0].may_hold(&document));
        assert!(!Predicate::All(vec![above("/amount"), above("/sum")]).may_hold(&document));
        let exists = |wanted| Predicate::Test {
            pointer: Pointer::parse("/sum").expect("a pointer"),
            test: Test::Exists(wanted),
        };
        assert!(exists(false).may_hold(&document) && !exists(true).may_hold(&document));
    }

    #[test]
    fn any_all_and_not_are_what_they_say() {
        let document = json!({ "a": 1, "b": 2 });
        let is = |pointer: &str, n: u32| test(pointer, &json!({ "const": n }));
        assert!(Predicate::Any(vec![is("/a", 9), is("/b", 2)]).holds(&document));
        assert!(!Predicate::All(vec![is("/a", 9), is("/b", 2)]).holds(&document));
        assert!(Predicate::All(vec![is("/a", 1), is("/b", 2)]).holds(&document));
        assert!(Predicate::Not(Box::new(is("/a", 9))).holds(&document));
    }
}
