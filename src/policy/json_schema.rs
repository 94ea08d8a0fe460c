//! The language's own JSON Schema, written by the same declarations that read it: it refuses unknown keys, and so
//! an editor says while typing what `check` would say later. It cannot see references, nor units against each other.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::document::Document;
use super::document::read::{Kind as _, Record, nearest};

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

/// Sections whose keys are looked for when a key stands in the wrong place, and how a person finds them.
const SECTIONS: [(&str, &str); 9] = [
    ("agent", "an agent (`agents.<name>`)"),
    ("tool", "a tool (`tools.<name>`)"),
    ("upstream", "an upstream (`upstreams.<name>`)"),
    ("run", "a run (`runs.<name>`)"),
    ("write", "`write`"),
    ("http", "`http`"),
    ("result", "`result`"),
    ("limits", "`limits`"),
    ("breaker", "`breaker`"),
];

/// The section that has a key of that name, or nearly that name.
pub(crate) fn elsewhere(asked: &str) -> Option<(&'static str, String)> {
    static LANGUAGE: LazyLock<Value> = LazyLock::new(policy);
    let schema = &*LANGUAGE;
    SECTIONS.iter().find_map(|(def, section)| {
        let properties = schema.get("$defs")?.get(def)?.get("properties")?.as_object()?;
        let known: Vec<&str> = properties.keys().map(String::as_str).collect();
        nearest(asked, &known).map(|near| (*section, near.to_owned()))
    })
}
