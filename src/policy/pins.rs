//! Reviewed definitions of tools, kept by their hash in a file beside the policy.
//!
//! What is hashed is what a model, a person or a validator reads: name, title, description, both schemas, annotations.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::call::Digest;
use crate::call::canonical::canonical;
use crate::strict_json::{self, Limits};

/// Longest file of pins.
pub const MAX_BYTES: usize = 4 << 20;
/// What a file of this form says of itself.
const FORM: &str = "checkrein/v1";
const PINNED: [&str; 6] =
    ["name", "title", "description", "inputSchema", "outputSchema", "annotations"];

/// Hash of a definition as a pin holds it: `sha256:` and 64 hexadecimal digits, over the canonical form (RFC 8785) of
/// the members that are pinned. `null` counts as absent.
pub fn pin_of(definition: &Value) -> String {
    let mut members = Map::new();
    for key in PINNED {
        if let Some(value) = definition.get(key).filter(|value| !value.is_null()) {
            members.insert(key.to_owned(), value.clone());
        }
    }
    let digest = Digest::of(&canonical(&Value::Object(members)));
    format!("sha256:{}", digest.short_hex(32))
}

/// Reads `{"apiVersion": "checkrein/v1", "kind": "Pins", "tools": {own name: hash}}`. The error is a phrase about it.
pub fn parse(bytes: &[u8]) -> Result<BTreeMap<String, String>, String> {
    let value = strict_json::parse(bytes, Limits::list(MAX_BYTES))
        .map_err(|fault| format!("is not JSON: {fault}"))?;
    let says = |key: &str, word: &str| value.get(key).and_then(Value::as_str) == Some(word);
    if !says("apiVersion", FORM) || !says("kind", "Pins") {
        return Err(format!(
            "is no file of pins: it has not `apiVersion: {FORM}` and `kind: Pins`"
        ));
    }
    let known = ["apiVersion", "kind", "tools"];
    if let Some(key) =
        value.as_object().and_then(|all| all.keys().find(|key| !known.contains(&key.as_str())))
    {
        return Err(format!("has the unknown key `{}`", key.escape_debug()));
    }
    let Some(Value::Object(tools)) = value.get("tools") else {
        return Err("has no `tools` by name".to_owned());
    };
    let mut pins = BTreeMap::new();
    for (name, pin) in tools {
        let digits = pin.as_str().and_then(|pin| pin.strip_prefix("sha256:")).unwrap_or_default();
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if digits.len() != 64 || !digits.bytes().all(hex) {
            let name = name.escape_debug();
            return Err(format!("holds no hash for `{name}`: `sha256:` and 64 hexadecimal digits"));
        }
        pins.insert(name.clone(), format!("sha256:{digits}"));
    }
    Ok(pins)
}

/// The file as [`parse`] reads it, a tool a line.
pub fn render(pins: &BTreeMap<String, String>) -> String {
    let file = json!({ "apiVersion": FORM, "kind": "Pins", "tools": pins });
    format!("{file:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_pins_is_read_as_it_is_written_and_nothing_else_is_one() {
        let definition = json!({"name": "a", "inputSchema": {"type": "object"}});
        let pins = BTreeMap::from([("a".to_owned(), pin_of(&definition))]);
        assert_eq!(parse(render(&pins).as_bytes()), Ok(pins));
        for wrong in [
            "{}",
            "[",
            r#"{"apiVersion":"checkrein/v2","kind":"Pins","tools":{}}"#,
            r#"{"apiVersion":"checkrein/v1","kind":"Pins"}"#,
            r#"{"apiVersion":"checkrein/v1","kind":"Pins","tools":{"a":"sha256:00"}}"#,
            r#"{"apiVersion":"checkrein/v1","kind":"Pins","tools":{"a":1}}"#,
            r#"{"apiVersion":"checkrein/v1","kind":"Pins","tools":{},"tool":{}}"#,
            r#"{"apiVersion":"checkrein/v1","kind":"Pins","tools":{},"tools":{}}"#,
        ] {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pin_is_of_what_is_read_and_of_nothing_else() {
        let pin = |value: Value| pin_of(&value);
        let plain =
            json!({"name": "a", "description": "d", "inputSchema": {"type": "object", "x": 1}});
        let first = pin(plain.clone());
        let same = json!({"_meta": {"v": 2}, "icons": [], "title": null,
            "inputSchema": {"x": 1.0, "type": "object"}, "description": "d", "name": "a"});
        assert_eq!(pin(same), first);
        for (key, value) in [
            ("name", json!("b")),
            ("title", json!("t")),
            ("description", json!("d ")),
            ("inputSchema", json!({"type": "object", "x": 2})),
            ("outputSchema", json!({"type": "object"})),
            ("annotations", json!({"readOnlyHint": true})),
        ] {
            let mut other = plain.clone();
            other[key] = value;
            assert_ne!(pin(other), first, "{key}");
        }
    }
}
