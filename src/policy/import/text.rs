//! Texts of others, written so that they stay what they are: one scalar, or words of a comment.

/// Longest line of a comment, characters.
const WIDTH: usize = 100;
/// Words that YAML 1.1 or 1.2 reads as something else than a text.
const READ_OTHERWISE: [&str; 10] =
    ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan"];

/// What a reader would not see, or would see elsewhere: controls, line ends of any kind, directions, invisible ones.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}'
            | '\u{fffe}' | '\u{ffff}' | '\u{e0000}'..='\u{e0fff}')
        // Nothing is printed there, and YAML allows none of them in plain sight.
        || u32::from(c) & 0xfffe == 0xfffe
}

/// A text in double quotes (YAML 1.2 §7.3.1).
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            _ if !is_hidden(c) => out.push(c),
            _ if u32::from(c) <= 0xffff => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => out.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    out.push('"');
    out
}

/// A key of a map: plain where nothing can read it otherwise.
pub(super) fn key(text: &str) -> String {
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
        && !READ_OTHERWISE.iter().any(|word| word.eq_ignore_ascii_case(text));
    if plain { text.to_owned() } else { quoted(text) }
}

/// One line of at most `most` characters: white space is a space, what is hidden is spelt out.
pub(super) fn cleaned(text: &str, most: usize) -> String {
    let mut out = String::new();
    let (mut length, mut left) = (0, text.chars());
    let mut space = false;
    while length < most {
        let Some(c) = left.next() else { return out };
        if c.is_whitespace() {
            space = !out.is_empty();
            continue;
        }
        if std::mem::take(&mut space) {
            out.push(' ');
            length += 1;
        }
        length += 1;
        match is_hidden(c) {
            true => out.extend(c.escape_unicode()),
            false => out.push(c),
        }
    }
    let rest = left.count();
    if rest > 0 {
        out.push_str(&format!(" … ({rest} more characters)"));
    }
    out
}

/// Lines of at most [`WIDTH`] characters; a longer word has a line of its own.
pub(super) fn lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let (mut line, mut length) = (String::new(), 0);
    for word in text.split(' ') {
        let long = word.chars().count();
        if length > 0 && length + 1 + long > WIDTH {
            lines.push(std::mem::take(&mut line));
            length = 0;
        }
        if length > 0 {
            line.push(' ');
            length += 1;
        }
        line.push_str(word);
        length += long;
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}
