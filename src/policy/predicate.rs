//! A closed question about a JSON document: what stands at a pointer, and any, all, none of several such. Pure.
//!
//! A test is a small JSON Schema, so that numbers are compared by their digits and patterns run in linear time.

use serde_json::Value;

use super::schema::{Schema, SchemaFault};
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
    /// The value is there and fits.
    Is(Schema),
    Exists(bool),
}

impl Test {
    /// A value fits this (open) schema.
    pub fn is(schema: &Value) -> Result<Self, SchemaFault> {
        Schema::compile(schema, false).map(Test::Is)
    }
}

impl Predicate {
    /// Whether it holds. Nothing at the pointer, or another type: the test is false, except `exists: false`.
    pub fn holds(&self, document: &Value) -> bool {
        match self {
            Predicate::Any(parts) => parts.iter().any(|part| part.holds(document)),
            Predicate::All(parts) => parts.iter().all(|part| part.holds(document)),
            Predicate::Not(part) => !part.holds(document),
            Predicate::Test { pointer, test } => match (pointer.get(document), test) {
                (found, Test::Exists(wanted)) => found.is_some() == *wanted,
                (Some(found), Test::Is(schema)) => schema.is_valid(found),
                (None, Test::Is(_)) => false,
            },
        }
    }
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
    fn any_all_and_not_are_what_they_say() {
        let document = json!({ "a": 1, "b": 2 });
        let is = |pointer: &str, n: u32| test(pointer, &json!({ "const": n }));
        assert!(Predicate::Any(vec![is("/a", 9), is("/b", 2)]).holds(&document));
        assert!(!Predicate::All(vec![is("/a", 9), is("/b", 2)]).holds(&document));
        assert!(Predicate::All(vec![is("/a", 1), is("/b", 2)]).holds(&document));
        assert!(Predicate::Not(Box::new(is("/a", 9))).holds(&document));
    }
}
