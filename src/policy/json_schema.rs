//! The language's own JSON Schema, written by the same declarations that read it: it refuses unknown keys, and so
//! an editor says while typing what `check` would say later. It cannot see references, nor units against each other.

use serde_json::{Map, Value, json};

use super::document::Document;
use super::document::read::{Kind as _, Record};

/// JSON Schema (Draft 2020-12) of a policy file.
pub fn policy() -> Value {
    let mut defs = Map::new();
    let record = Record { name: "", fields: Document::fields };
    let body = record.schema(&mut defs);
    let mut out = Map::new();
    out.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
    out.insert("$id".into(), "urn:checkrein:policy:v1".into());
    out.insert("title".into(), "Checkrein policy v1".into());
    if let Value::Object(body) = body {
        out.extend(body);
    }
    defs.sort_keys();
    out.insert("$defs".into(), json!(defs));
    Value::Object(out)
}
