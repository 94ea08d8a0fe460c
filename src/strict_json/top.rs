//! A look at an object's own members in text that this module wrote, without reading what is in them.

use super::write::to_escape;

/// One member: its name as it is spelt, and the first byte of its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member<'t> {
    pub name: &'t [u8],
    pub begins: u8,
}

/// The members of an object that was written without white space, as [`super::write`] writes. `None`: it is none.
pub fn members(text: &[u8]) -> Option<Vec<Member<'_>>> {
    let mut found = Vec::with_capacity(8);
    let mut at = 1;
    if text.first() != Some(&b'{') {
        return None;
    }
    if text.get(at) == Some(&b'}') {
        return (text.len() == 2).then_some(found);
    }
    loop {
        let end = string_end(text, at)?;
        let name = text.get(at + 1..end - 1)?;
        let value = end + 1;
        let begins = *text.get(value).filter(|_| text.get(end) == Some(&b':'))?;
        found.push(Member { name, begins });
        let end = value_end(text, value)?;
        match text.get(end) {
            Some(b',') => at = end + 1,
            Some(b'}') if end + 1 == text.len() => return Some(found),
            Some(_) | None => return None,
        }
    }
}

/// Behind the closing quote of the string that begins at `from`.
fn string_end(text: &[u8], from: usize) -> Option<usize> {
    let mut at = from + 1;
    if text.get(from) != Some(&b'"') {
        return None;
    }
    loop {
        at += to_escape(text.get(at..)?)?;
        match text.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => return None,
        }
    }
}

/// Where the value that begins at `from` is over: at the comma or the bracket behind it.
fn value_end(text: &[u8], from: usize) -> Option<usize> {
    let (mut at, mut depth) = (from, 0_usize);
    loop {
        match text.get(at)? {
            b'"' => {
                at = string_end(text, at)?;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 0 => return Some(at),
            b'}' | b']' => depth -= 1,
            b',' if depth == 0 => return Some(at),
            _ => {}
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::strict_json::write;

    proptest! {
        #[test]
        fn the_members_of_what_was_written_are_those_of_the_tree(names in prop::collection::vec("[a-z_]{0,4}", 0..6), text in ".{0,40}", pick in 0..5_u8) {
            let value = |n: usize| match (n as u8).wrapping_add(pick) % 5 {
                0 => json!(text),
                1 => json!({ text.clone(): [text, {}, "}"], "x": { "y": null } }),
                2 => json!([[], "]", 1.5e3]),
                3 => json!(-1),
                _ => Value::Null,
            };
            let tree: Map<String, Value> = names.into_iter().enumerate().map(|(n, name)| (name, value(n))).collect();
            let text = write::text(&Value::Object(tree.clone()));
            let found = members(&text).expect("an object");
            let first = |value: &Value| value.to_string().bytes().next().expect("a byte");
            let wanted: Vec<Member<'_>> = tree.iter().map(|(name, value)| Member { name: name.as_bytes(), begins: first(value) }).collect();
            prop_assert_eq!(found, wanted);
        }

        #[test]
        fn no_text_is_too_strange(text in prop::collection::vec(any::<u8>(), 0..60)) {
            let _looked = members(&text);
        }
    }

    #[test]
    fn what_is_no_object_has_none() {
        for text in
            ["", "[]", "{", "{}x", "{\"a\":1", "{\"a\"1}", "{\"a\":1}}", "{ \"a\":1}", "{\"a\":1,}"]
        {
            assert_eq!(members(text.as_bytes()), None, "{text}");
        }
    }
}
