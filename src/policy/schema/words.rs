//! Says in words what a schema wants and what came instead, so that a model can mend its call.
//!
//! Every text is bounded: a schema or a value may be long, a message is not.

use serde_json::{Map, Value};

use super::subschemas::shown;
use crate::call::arguments::kind_of;

/// Most names or options a message lists.
const MAX_LISTED: usize = 24;
/// Longest description of one schema, in characters.
const MAX_WORDS: usize = 300;
/// Longest quotation of a value, in characters.
const MAX_QUOTED: usize = 60;
/// How many references and branches a description follows.
const MAX_FOLLOWED: usize = 4;

/// What `schema` wants: "string of 1 to 80 characters". `root` is the whole schema, for local references.
pub(crate) fn wanted(schema: &Value, root: &Value) -> String {
    cut(&describe(schema, root, MAX_FOLLOWED), MAX_WORDS)
}

fn describe(schema: &Value, root: &Value, follow: usize) -> String {
    let Value::Object(members) = schema else {
        return if schema == &Value::Bool(false) { "nothing" } else { "any value" }.to_owned();
    };
    if let Some(value) = members.get("const") {
        return format!("exactly {}", quoted(value));
    }
    if let Some(Value::Array(options)) = members.get("enum") {
        return format!("one of {}", list(options.iter().map(quoted)));
    }
    let kinds = kinds(members);
    if kinds.is_empty() {
        return follow_on(members, root, follow).unwrap_or_else(|| "a matching value".to_owned());
    }
    kinds.iter().map(|kind| one_kind(kind, members)).collect::<Vec<_>>().join(" or ")
}

fn follow_on(members: &Map<String, Value>, root: &Value, follow: usize) -> Option<String> {
    let follow = follow.checked_sub(1)?;
    if let Some(Value::String(target)) = members.get("$ref") {
        return Some(describe(root.pointer(target.strip_prefix('#')?)?, root, follow));
    }
    for (keyword, word) in [("anyOf", " or "), ("oneOf", " or "), ("allOf", " and ")] {
        if let Some(Value::Array(branches)) = members.get(keyword) {
            let mut parts =
                branches.iter().take(MAX_LISTED).fold(Vec::new(), |mut parts, branch| {
                    let part = describe(branch, root, follow);
                    if !parts.contains(&part) {
                        parts.push(part);
                    }
                    parts
                });
            parts.truncate(MAX_LISTED);
            return Some(parts.join(word));
        }
    }
    None
}

/// The types a schema allows; guessed from its other words when it names none.
fn kinds(members: &Map<String, Value>) -> Vec<&str> {
    match members.get("type") {
        Some(Value::String(kind)) => return vec![kind],
        Some(Value::Array(kinds)) => return kinds.iter().filter_map(Value::as_str).collect(),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => {}
    }
    let says = |words: &[&str]| words.iter().any(|word| members.contains_key(*word));
    if says(&["minLength", "maxLength", "pattern", "format"]) {
        vec!["string"]
    } else if says(&["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]) {
        vec!["number"]
    } else if says(&["items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"]) {
        vec!["array"]
    } else if says(&["properties", "required", "minProperties", "maxProperties", "propertyNames"]) {
        vec!["object"]
    } else {
        Vec::new()
    }
}

fn one_kind(kind: &str, members: &Map<String, Value>) -> String {
    match kind {
        "string" => string_words(members),
        "integer" | "number" => number_words(kind, members),
        "array" => array_words(members),
        "object" => {
            let size = span(members, "minProperties", "maxProperties", "field", "fields");
            format!("object{}", size.map_or_else(String::new, |size| format!(" of {size}")))
        }
        other => other.to_owned(),
    }
}

fn string_words(members: &Map<String, Value>) -> String {
    let mut words = "string".to_owned();
    if let Some(size) = span(members, "minLength", "maxLength", "character", "characters") {
        words.push_str(&format!(" of {size}"));
    }
    if let Some(Value::String(pattern)) = members.get("pattern") {
        words.push_str(&format!(" that matches {}", shown(pattern)));
    }
    if let Some(Value::String(format)) = members.get("format") {
        words.push_str(&format!(" in the format {}", shown(format)));
    }
    words
}

fn number_words(kind: &str, members: &Map<String, Value>) -> String {
    let bound = |word| match members.get(word) {
        Some(Value::Number(limit)) => Some(cut(&limit.to_string(), MAX_QUOTED)),
        Some(_) | None => None,
    };
    let mut parts = Vec::new();
    match (bound("minimum"), bound("maximum")) {
        (Some(low), Some(high)) => parts.push(format!("of {low} to {high}")),
        (Some(low), None) => parts.push(format!("of at least {low}")),
        (None, Some(high)) => parts.push(format!("of at most {high}")),
        (None, None) => {}
    }
    if let Some(low) = bound("exclusiveMinimum") {
        parts.push(format!("above {low}"));
    }
    if let Some(high) = bound("exclusiveMaximum") {
        parts.push(format!("below {high}"));
    }
    if let Some(step) = bound("multipleOf") {
        parts.push(format!("that is a multiple of {step}"));
    }
    if parts.is_empty() { kind.to_owned() } else { format!("{kind} {}", parts.join(", ")) }
}

fn array_words(members: &Map<String, Value>) -> String {
    let distinct =
        if members.get("uniqueItems") == Some(&Value::Bool(true)) { "distinct " } else { "" };
    match span(members, "minItems", "maxItems", "item", "items") {
        Some(size) => {
            // "of at most 3 distinct items": the word stands before the noun.
            let noun = if size.ends_with("items") { "items" } else { "item" };
            format!("array of {}", size.replace(noun, &format!("{distinct}{noun}")))
        }
        None if distinct.is_empty() => "array".to_owned(),
        None => "array of distinct items".to_owned(),
    }
}

/// "1 to 80 characters", "at most 5 items", "at least 1 character", "exactly 3 items".
fn span(
    members: &Map<String, Value>,
    low: &str,
    high: &str,
    one: &str,
    many: &str,
) -> Option<String> {
    let count = |word| members.get(word).and_then(Value::as_u64);
    let noun = |count| if count == 1 { one } else { many };
    match (count(low).filter(|low| *low > 0), count(high)) {
        (Some(low), Some(high)) if low == high => Some(format!("exactly {low} {}", noun(low))),
        (Some(low), Some(high)) => Some(format!("{low} to {high} {}", noun(high))),
        (Some(low), None) => Some(format!("at least {low} {}", noun(low))),
        (None, Some(high)) => Some(format!("at most {high} {}", noun(high))),
        (None, None) => None,
    }
}

/// What came, as `keyword` looked at it.
pub(crate) fn got(value: &Value, keyword: &str) -> String {
    match (keyword, value) {
        ("minLength" | "maxLength", Value::String(text)) => {
            format!("a string of {}", counted(text.chars().count(), "character"))
        }
        ("minItems" | "maxItems", Value::Array(items)) => {
            format!("an array of {}", counted(items.len(), "item"))
        }
        ("minProperties" | "maxProperties", Value::Object(members)) => {
            format!("an object of {}", counted(members.len(), "field"))
        }
        ("uniqueItems", Value::Array(_)) => "an array with equal items".to_owned(),
        // The place may want a number and have got one: then its digits say what is wrong.
        ("type", Value::Number(_) | Value::Bool(_) | Value::Null) => kind_of(value).to_owned(),
        ("type", Value::String(_) | Value::Array(_) | Value::Object(_)) => {
            kind_of(value).to_owned()
        }
        (_, Value::Array(_) | Value::Object(_)) => kind_of(value).to_owned(),
        (_, Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => quoted(value),
    }
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// A value as JSON text, cut.
pub(crate) fn quoted(value: &Value) -> String {
    match value {
        Value::String(text) if text.chars().nth(MAX_QUOTED).is_some() => {
            let kept: String = text.chars().take(MAX_QUOTED).collect();
            format!("{}…", Value::String(kept))
        }
        Value::String(_)
        | Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::Array(_)
        | Value::Object(_) => cut(&value.to_string(), MAX_QUOTED),
    }
}

/// `a, b, c and 4 more`.
pub(crate) fn list(items: impl ExactSizeIterator<Item = String>) -> String {
    let more = items.len().saturating_sub(MAX_LISTED);
    let mut text = items.take(MAX_LISTED).collect::<Vec<_>>().join(", ");
    text = cut(&text, MAX_WORDS);
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

pub(crate) fn cut(text: &str, most: usize) -> String {
    if text.chars().nth(most).is_none() {
        return text.to_owned();
    }
    let mut kept: String = text.chars().take(most).collect();
    kept.push('…');
    kept
}
