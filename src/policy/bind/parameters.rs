//! Arguments that a modern server wants repeated in header fields: `x-mcp-header` in its `inputSchema`
//! (2026-07-28, SEP-2243).

use std::sync::Arc;

use serde_json::Value;

use crate::call::pointer::Pointer;
use crate::policy::schema::every_subschema;

const WORD: &str = "x-mcp-header";

/// Pointer into the arguments and field name without `Mcp-Param-`, in order of the schema. `Err` says which rule of the
/// specification a mark breaks: the whole tool is then not to be used.
pub(super) fn headers(input_schema: &Value) -> Result<Arc<[(String, String)]>, String> {
    let mut found: Vec<(String, String)> = Vec::new();
    for (at, schema) in every_subschema(input_schema) {
        let Some(mark) = schema.get(WORD) else { continue };
        let broken = |why: &str| Err(format!("`{WORD}` at `{at}` {why}"));
        let Some(field) = mark.as_str().filter(|field| is_token(field)) else {
            return broken("is no field name");
        };
        let Some(pointer) = argument(&at) else {
            return broken("does not mark an argument that is reached by `properties` alone");
        };
        if !matches!(
            schema.get("type").and_then(Value::as_str),
            Some("integer" | "string" | "boolean")
        ) {
            return broken("marks what is neither an integer, a string nor a boolean");
        }
        if found.iter().any(|(_, other)| other.eq_ignore_ascii_case(field)) {
            return broken("names a field that another argument has");
        }
        found.push((pointer, field.to_owned()));
    }
    Ok(found.into())
}

/// A token of RFC 9110 §5.6.2.
fn is_token(text: &str) -> bool {
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.len() <= 128 && text.bytes().all(sound)
}

/// `/properties/a/properties/b` in the schema is `/a/b` in the arguments.
fn argument(at: &str) -> Option<String> {
    let pointer = Pointer::parse(at)?;
    let tokens = pointer.tokens();
    let mut out = String::new();
    for pair in tokens.chunks(2) {
        let [properties, member] = pair else { return None };
        if properties != "properties" {
            return None;
        }
        crate::call::pointer::push_token(&mut out, member);
    }
    (!out.is_empty()).then_some(out)
}
