//! Keywords that are nearly, but not, keywords of JSON Schema: `maxlength` bounds nothing.
//!
//! The standard lets unknown keywords pass as notes, so a slip of the pen would leave open what it was meant to
//! shut. Only near misses are refused; notes of one's own (`x-owner`, `example`) stay.

use super::SchemaFault;
use super::subschemas;
use crate::call::pointer::push_token;

/// The vocabulary of Draft 2020-12.
const KNOWN: &[&str] = &[
    "$anchor",
    "$comment",
    "$defs",
    "$dynamicAnchor",
    "$dynamicRef",
    "$id",
    "$ref",
    "$schema",
    "$vocabulary",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "contains",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "default",
    "dependentRequired",
    "dependentSchemas",
    "deprecated",
    "description",
    "else",
    "enum",
    "examples",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "if",
    "items",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "readOnly",
    "required",
    "then",
    "title",
    "type",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
    "writeOnly",
];
/// Words of older drafts and of OpenAPI that come near one and are meant.
const OTHERS: &[&str] =
    &["anchor", "comment", "definitions", "dependencies", "example", "id", "schema"];

/// Refuses the first keyword that is one letter, a case or a dash away from a real one.
pub(super) fn check(source: &serde_json::Value) -> Result<(), SchemaFault> {
    for (at, schema) in subschemas::every(source) {
        for keyword in schema.as_object().into_iter().flat_map(|members| members.keys()) {
            if let Some(meant) = meant(keyword) {
                let mut at = at.clone();
                push_token(&mut at, keyword);
                let message = format!("`{keyword}` is no keyword; did you mean `{meant}`?");
                return Err(SchemaFault::new(at, message));
            }
        }
    }
    Ok(())
}

fn meant(keyword: &str) -> Option<&'static str> {
    let is_known = |list: &[&str]| list.contains(&keyword);
    if is_known(KNOWN) || is_known(OTHERS) || keyword.len() > 2 * "unevaluatedProperties".len() {
        return None;
    }
    let bare = bare(keyword);
    let near = |known: &&&str| {
        let known = self::bare(known);
        known == bare || (known.len() >= 5 && is_one_slip(&known, &bare))
    };
    KNOWN.iter().find(near).copied()
}

/// Without what people write words together with.
fn bare(keyword: &str) -> String {
    let kept = keyword.chars().filter(|c| !matches!(c, '$' | '_' | '-' | ' '));
    kept.flat_map(char::to_lowercase).collect()
}

/// One character more, less or other, or two that changed places.
fn is_one_slip(a: &str, b: &str) -> bool {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let same = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let (a, b) = (a.get(same..).unwrap_or_default(), b.get(same..).unwrap_or_default());
    let rest = |of: &[char], from: usize| of.get(from..).unwrap_or_default().to_vec();
    let swapped = a.len() > 1 && b.len() > 1 && a.first() == b.get(1) && a.get(1) == b.first();
    rest(a, 1) == rest(b, 1)
        || rest(a, 1) == b
        || a == rest(b, 1)
        || (swapped && rest(a, 2) == rest(b, 2))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn near_misses_are_named_and_notes_of_ones_own_stay() {
        for (keyword, expected) in [
            ("maxlength", Some("maxLength")),
            ("max_length", Some("maxLength")),
            ("additional-properties", Some("additionalProperties")),
            ("maxmum", Some("maximum")),
            ("requierd", Some("required")),
            ("require", Some("required")),
            ("propertys", None),
            ("patern", Some("pattern")),
            ("ref", Some("$ref")),
            ("x-owner", None),
            ("example", None),
            ("nullable", None),
            ("max", None),
            ("units", None),
            ("", None),
        ] {
            assert_eq!(meant(keyword), expected, "{keyword}");
        }
        for known in KNOWN {
            assert_eq!(meant(known), None, "{known}");
        }
    }

    #[test]
    fn arguments_and_literals_may_be_called_anything() {
        let schema = json!({"properties": {"maxlength": {"enum": [{"maxlength": 1}]}},
            "default": {"requierd": 1}, "$defs": {"patern": {}}});
        assert_eq!(check(&schema), Ok(()));
        let fault =
            check(&json!({"properties": {"q": {"items": {"maxlength": 1}}}})).expect_err("a slip");
        assert_eq!(fault.at, "/properties/q/items/maxlength");
    }
}
