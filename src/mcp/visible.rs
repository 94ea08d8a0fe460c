//! Words of a server that a person or a model reads: characters that move the cursor, turn text around or are not seen at
//! all are spelt (`⟨U+202E⟩`), so that what is read is what is there. Names and values by which something is chosen or
//! called are never changed, and neither are results.

use std::borrow::Cow;

use serde_json::Value;

/// Members that are compared or matched, not read.
const NOT_READ: [&str; 6] = ["_meta", "enum", "const", "default", "pattern", "examples"];

/// Controls of a terminal (C0 but for tab and line ends, DEL, C1), directions that override others, and characters that
/// are never shown (annotations, tags). What languages and emoji are written with stays: joiners, marks, selectors.
pub fn is_hidden(c: char) -> bool {
    (c.is_control() && !matches!(c, '\t' | '\n' | '\r'))
        || matches!(c,
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

/// The text with every hidden character spelt.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_hidden(c) {
            true => shown.push_str(&format!("⟨U+{:04X}⟩", u32::from(c))),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// Of a definition: every `title` and `description`, in its schemas too.
pub fn descriptions(definition: &mut Value) {
    walk(definition, &|name| matches!(name, "title" | "description"), false);
}

/// Of a question or a note: every text in it.
pub fn texts(params: &mut Value) {
    walk(params, &|_| true, true);
}

/// `here`: a text that stands here is read.
fn walk(value: &mut Value, read: &impl Fn(&str) -> bool, here: bool) {
    match value {
        Value::String(text) if here => {
            if let Cow::Owned(shown) = visible(text) {
                *text = shown;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| walk(item, read, here)),
        Value::Object(members) => {
            for (name, member) in members {
                match (name.as_str(), member) {
                    // Names of the author's choice.
                    ("properties", Value::Object(properties)) => {
                        properties.values_mut().for_each(|schema| walk(schema, read, here));
                    }
                    (name, member) if !NOT_READ.contains(&name) => walk(member, read, read(name)),
                    (_, _) => {}
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_of_hidden_character_is_spelt_and_what_is_written_with_stays() {
        for (hidden, spelt) in [
            ("\u{0}", "⟨U+0000⟩"),
            ("\u{1b}[31m", "⟨U+001B⟩[31m"),
            ("\u{7f}", "⟨U+007F⟩"),
            ("\u{9b}2J", "⟨U+009B⟩2J"),
            ("\u{202e}", "⟨U+202E⟩"),
            ("\u{2066}", "⟨U+2066⟩"),
            ("\u{fff9}", "⟨U+FFF9⟩"),
            ("\u{e0041}", "⟨U+E0041⟩"),
        ] {
            assert_eq!(visible(hidden), spelt);
        }
        let stays = "a\tb\r\nGrüße, שלום, فا\u{200c}رسی, 👩\u{200d}💻, ❤\u{fe0f}";
        assert!(matches!(visible(stays), Cow::Borrowed(same) if same == stays));
    }

    #[test]
    fn of_a_definition_what_is_read_is_spelt_and_what_is_compared_stays() {
        let mut tool = json!({
            "name": "a\u{1b}", "title": "T\u{202e}", "description": "D\u{7}",
            "inputSchema": {"properties": {
                "default": {"description": "d\u{1}", "default": {"description": "\u{1}"}},
                "pick": {"enum": ["\u{1}"], "const": "\u{1}", "pattern": "\u{1}", "anyOf": [{"title": "\u{2}"}]},
            }},
            "annotations": {"title": "\u{3}", "other": "\u{3}"},
            "_meta": {"title": "\u{4}"},
        });
        descriptions(&mut tool);
        assert_eq!(
            tool,
            json!({
                "name": "a\u{1b}", "title": "T⟨U+202E⟩", "description": "D⟨U+0007⟩",
                "inputSchema": {"properties": {
                    "default": {"description": "d⟨U+0001⟩", "default": {"description": "\u{1}"}},
                    "pick": {"enum": ["\u{1}"], "const": "\u{1}", "pattern": "\u{1}", "anyOf": [{"title": "⟨U+0002⟩"}]},
                }},
                "annotations": {"title": "⟨U+0003⟩", "other": "\u{3}"},
                "_meta": {"title": "\u{4}"},
            })
        );
    }

    #[test]
    fn of_a_question_every_text_is_spelt() {
        let mut params = json!({
            "message": "Pay\u{202e}?", "url": "https://x/\u{1b}", "messages": [{"content": {"text": "\u{8}"}}],
            "requestedSchema": {"properties": {"a": {"title": "\u{9c}", "enum": ["\u{1}"]}}},
        });
        texts(&mut params);
        assert_eq!(
            params,
            json!({
                "message": "Pay⟨U+202E⟩?", "url": "https://x/⟨U+001B⟩", "messages": [{"content": {"text": "⟨U+0008⟩"}}],
                "requestedSchema": {"properties": {"a": {"title": "⟨U+009C⟩", "enum": ["\u{1}"]}}},
            })
        );
    }
}
