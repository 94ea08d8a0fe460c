//! One tool's entry: its effect, what its server claims of it, and what could make its repeats known.

use serde_json::Value;

use super::text::{cleaned, key, lines, quoted};
use super::{Decided, fits, hint};
use crate::call::Effect;
use crate::call::pointer::push_token;
use crate::policy::bind::Offered;
use crate::policy::glob::is_glob;

/// Hints of a definition (2025-06-18, tools): claims.
const HINTS: [&str; 4] = ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"];
/// Arguments of a suggested fingerprint; more than these are no name of anything.
const MAX_NAMED: usize = 4;
/// Last words of names of arguments that say which thing a write is about. A path says where: two commits to one
/// repository, and two texts for one file, are two writes.
const NAMES: [&str; 9] = ["id", "key", "ref", "uuid", "guid", "slug", "sku", "number", "reference"];

/// Adds the entry; at most `most` characters of its description. `true`: a person has to decide on it.
pub(super) fn entry(
    out: &mut String,
    tool: &Offered,
    rename: Option<&str>,
    decided: &Decided,
    most: usize,
) -> bool {
    let definition = &tool.definition;
    let (effect, todo) = effect(tool, decided);
    let mut body = Vec::new();
    let said = ["description", "title"].iter().find_map(|name| definition.get(*name)?.as_str());
    if let Some(said) = said.filter(|_| most > 0) {
        body.extend(lines(&cleaned(said, most)).into_iter().map(|words| format!("# | {words}")));
    }
    for name in HINTS {
        body.extend(hint(definition, name).map(|value| format!("# {name}: {value}")));
    }
    body.extend(rename.map(|rename| format!("rename: {}", quoted(rename))));
    let mark = if todo { " # TODO: a write, or a read?" } else { "" };
    body.push(match effect {
        Effect::Read => format!("effect: read{mark}"),
        Effect::Write => format!("effect: write{mark}"),
    });
    if effect == Effect::Write {
        let named = fingerprint(definition);
        body.extend(named.map(|named| format!("# write: {{ fingerprint: [{named}] }}")));
    }
    out.push_str(&format!("      {}:\n", key(&tool.own_name)));
    for line in body {
        out.push_str("        ");
        out.push_str(&line);
        out.push('\n');
    }
    todo
}

/// The effect, and whether nobody has decided on it. An exact name is a person's word on that tool; a pattern is not,
/// against a server's own word that the tool changes something.
fn effect(tool: &Offered, decided: &Decided) -> (Effect, bool) {
    let (name, hint) = (&*tool.own_name, |name| hint(&tool.definition, name));
    let exact = |patterns: &[String]| patterns.iter().any(|one| one == name && !is_glob(one));
    let changes = hint("readOnlyHint") == Some(false) || hint("destructiveHint") == Some(true);
    if exact(&decided.writes) {
        return (Effect::Write, false);
    }
    if exact(&decided.reads) {
        return (Effect::Read, false);
    }
    if changes || fits(&decided.writes, name) {
        return (Effect::Write, false);
    }
    if fits(&decided.reads, name) {
        return (Effect::Read, false);
    }
    (Effect::Write, true)
}

/// Required texts that say which thing a write is about, as pointers.
fn fingerprint(definition: &Value) -> Option<String> {
    let schema = definition.get("inputSchema")?;
    let required: Vec<&str> =
        schema.get("required")?.as_array()?.iter().filter_map(Value::as_str).collect();
    let properties = schema.get("properties")?.as_object()?;
    let named: Vec<String> = properties
        .iter()
        .filter(|(name, schema)| {
            required.contains(&name.as_str())
                && schema.get("type").and_then(Value::as_str) == Some("string")
                && names_a_thing(name)
        })
        .map(|(name, _)| {
            let mut pointer = String::new();
            push_token(&mut pointer, name);
            quoted(&pointer)
        })
        .collect();
    (1..=MAX_NAMED).contains(&named.len()).then(|| named.join(", "))
}

/// `ticket_id`, `ticketId`, `TicketID`, `order-number`.
fn names_a_thing(name: &str) -> bool {
    let short = name.len() <= 64;
    short
        && NAMES.iter().any(|word| {
            let Some(before) = name.len().checked_sub(word.len()) else { return false };
            let Some((head, tail)) = name.split_at_checked(before) else { return false };
            let begins = head.is_empty()
                || head.ends_with(['_', '-', '.', '/', ' '])
                || tail.starts_with(|c: char| c.is_ascii_uppercase());
            begins && tail.eq_ignore_ascii_case(word)
        })
}
