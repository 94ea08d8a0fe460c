//! A value as JSON text, straight into bytes: no formatter between, and a text without anything to escape is copied whole.
//!
//! Order and digits are the value's own (RFC 8259); what is escaped is what must be, as serde_json does.

use serde_json::Value;

/// The text of a value, without white space.
pub fn text(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    push(&mut out, value);
    out
}

/// Writes a value behind what is there.
pub fn push(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(number) => out.extend_from_slice(number.as_str().as_bytes()),
        Value::String(text) => push_string(out, text),
        Value::Array(items) => {
            out.push(b'[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                push(out, item);
            }
            out.push(b']');
        }
        Value::Object(members) => push_members(out, members.iter()),
    }
}

/// Writes an object of some members, in their order.
pub fn push_members<'v>(out: &mut Vec<u8>, members: impl Iterator<Item = (&'v String, &'v Value)>) {
    out.push(b'{');
    for (at, (name, value)) in members.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        push_string(out, name);
        out.push(b':');
        push(out, value);
    }
    out.push(b'}');
}

/// Writes a string with its quotes.
pub fn push_string(out: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    out.reserve(bytes.len() + 2);
    out.push(b'"');
    let mut from = 0;
    while let Some(found) = to_escape(bytes.get(from..).unwrap_or_default()) {
        let at = from + found;
        out.extend_from_slice(bytes.get(from..at).unwrap_or_default());
        escape(out, bytes.get(at).copied().unwrap_or_default());
        from = at + 1;
    }
    out.extend_from_slice(bytes.get(from..).unwrap_or_default());
    out.push(b'"');
}

/// The first byte that may not stand in a string as it is: a chunk at a time, without a branch within one, so that the
/// compiler looks at many bytes at once; then one by one.
pub(super) fn to_escape(bytes: &[u8]) -> Option<usize> {
    let must = |byte: u8| (byte < 0x20) | (byte == b'"') | (byte == b'\\');
    let (chunks, _) = bytes.as_chunks::<32>();
    let clean =
        chunks.iter().take_while(|chunk| !chunk.iter().fold(false, |any, byte| any | must(*byte)));
    let mut at = clean.count() * 32;
    let (eights, rest) = bytes.get(at..)?.as_chunks::<8>();
    let clean = eights.iter().take_while(|eight| !any_of_eight(u64::from_le_bytes(**eight)));
    let skipped = clean.count() * 8;
    if skipped == eights.len() * 8 {
        let found = rest.iter().position(|byte| must(*byte))?;
        return Some(at + skipped + found);
    }
    at += skipped;
    let found = bytes.get(at..)?.iter().position(|byte| must(*byte))?;
    Some(at + found)
}

/// Whether one of eight bytes has to be escaped: the high bit of a byte tells, where nothing is borrowed from it.
fn any_of_eight(bytes: u64) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let below = |bound: u64| bytes.wrapping_sub(ONES * bound) & !bytes;
    let equals = |byte: u8| {
        let differing = bytes ^ (ONES * u64::from(byte));
        differing.wrapping_sub(ONES) & !differing
    };
    (below(0x20) | equals(b'"') | equals(b'\\')) & HIGH != 0
}

fn escape(out: &mut Vec<u8>, byte: u8) {
    let short = match byte {
        b'"' | b'\\' => byte,
        0x08 => b'b',
        b'\t' => b't',
        b'\n' => b'n',
        0x0c => b'f',
        b'\r' => b'r',
        control => {
            let digit = |half: u8| if half < 10 { b'0' + half } else { b'a' + half - 10 };
            out.extend_from_slice(&[
                b'\\',
                b'u',
                b'0',
                b'0',
                digit(control >> 4),
                digit(control & 15),
            ]);
            return;
        }
    };
    out.extend_from_slice(&[b'\\', short]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn every_character_is_written_as_serde_json_writes_it_wherever_it_stands() {
        for c in
            (0..=0x2ff).chain([0x7ff, 0x800, 0xffff, 0x10000, 0x10_ffff]).filter_map(char::from_u32)
        {
            for before in 0..10 {
                let value = Value::String(format!("{}{c}{}", "a".repeat(before), "b".repeat(9)));
                assert_eq!(text(&value), value.to_string().as_bytes(), "{value}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_value_is_written_as_serde_json_writes_it(names in prop::collection::vec(".{0,20}", 0..6), n in any::<i64>()) {
            let list: Vec<Value> = names.iter().map(|name| json!({ name: [name, n, null, true, {}, [], 1.5] })).collect();
            let value = json!({ "list": list, "none": null });
            prop_assert_eq!(text(&value), value.to_string().into_bytes());
        }
    }
}
