//! Reads Rust sources well enough to see what a file names: comments, texts and inline tests are blanked,
//! `use` trees are opened up, places are line numbers. Macros stay invisible.

/// A source with comments, string contents and inline test modules blanked; line breaks stay where they were.
pub(crate) fn blanked(source: &str) -> String {
    without_tests(&without_words(source))
}

/// Where in the text, as a line number from 1.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn without_words(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let end = skipped(&chars, at);
        if end == at {
            out.push(chars[at]);
            at += 1;
        } else {
            out.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    out
}

/// The end of the comment, text or character that begins at `at`; `at` itself where none begins.
fn skipped(chars: &[char], at: usize) -> usize {
    let rest = &chars[at..];
    match rest {
        ['/', '/', ..] => at + rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()),
        ['/', '*', ..] => end_of_block(chars, at),
        ['"', ..] => end_of_text(chars, at + 1, 0, true),
        ['r', next, ..] if matches!(next, '"' | '#') && !after_word(chars, at) => {
            let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
            if rest.get(1 + hashes) == Some(&'"') {
                end_of_text(chars, at + 2 + hashes, hashes, false)
            } else {
                at // a raw identifier
            }
        }
        ['\'', '\\', _, ..] => {
            at + 3 + rest[3..].iter().position(|c| *c == '\'').map_or(0, |n| n + 1)
        }
        ['\'', _, '\'', ..] => at + 3,
        _ => at, // a lifetime is a word like any other
    }
}

fn after_word(chars: &[char], at: usize) -> bool {
    // `br"…"` begins a text too, but then the quote inside is found by itself.
    at > 0 && is_word(chars[at - 1]) && chars[at - 1] != 'b'
}

fn end_of_block(chars: &[char], from: usize) -> usize {
    let (mut depth, mut at) = (0, from);
    while at < chars.len() {
        match &chars[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    at
}

fn end_of_text(chars: &[char], from: usize, hashes: usize, escapes: bool) -> usize {
    let mut at = from;
    while at < chars.len() {
        if escapes && chars[at] == '\\' {
            at += 2;
            continue;
        }
        let closed = chars[at] == '"'
            && chars[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes;
        at += 1;
        if closed {
            return at + hashes;
        }
    }
    at.min(chars.len())
}

/// Blanks every `mod tests { … }`; the braces of a blanked source always match.
fn without_tests(source: &str) -> String {
    let mut out = source.to_owned();
    for head in ["mod tests {", "mod tests{"] {
        while let Some(start) = out.find(head) {
            let open = start + head.len() - 1;
            let end = open + matching(&out[open..]);
            let blank: String =
                out[start..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
            out.replace_range(start..end, &blank);
        }
    }
    out
}

/// Length of the group that begins with the `{` at the start of `text`, both braces counted.
fn matching(text: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    text.len()
}

/// Places where `word` stands as the beginning of a word (or anywhere, when it begins with a sign).
pub(crate) fn places(text: &str, word: &str) -> Vec<usize> {
    let at_word = word.starts_with(is_word);
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(|at| !at_word || !text[..*at].ends_with(is_word))
        .collect()
}

/// (place, first word) of everything named after `prefix`, a group after it opened up: `crate::{a::B, c}` names a, c.
pub(crate) fn named_after<'a>(text: &'a str, prefix: &str) -> Vec<(usize, &'a str)> {
    let mut found = Vec::new();
    for at in places(text, prefix) {
        let rest = &text[at + prefix.len()..];
        match rest.trim_start().strip_prefix('{') {
            Some(group) => {
                found.extend(top_level(group).into_iter().map(|part| (at, first_word(part))))
            }
            None => found.push((at, first_word(rest))),
        }
    }
    found.retain(|(_, word)| !word.is_empty());
    found
}

fn first_word(text: &str) -> &str {
    let text = text.trim_start();
    &text[..text.find(|c| !is_word(c)).unwrap_or(text.len())]
}

/// Splits `a::{X, Y}, b::Z}…` at the commas outside inner braces, up to the closing brace.
fn top_level(group: &str) -> Vec<&str> {
    let (mut depth, mut from, mut parts) = (0, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                parts.push(&group[from..at]);
                return parts;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&group[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&group[from..]);
    parts
}

/// (place, whole path) of everything a file's `use` statements bring in, groups opened up.
pub(crate) fn used(text: &str) -> Vec<(usize, String)> {
    let mut paths = Vec::new();
    for at in places(text, "use ") {
        let rest = &text[at + 4..];
        let tree = &rest[..rest.find(';').unwrap_or(rest.len())];
        open_tree("", tree, &mut |path| paths.push((at, path)));
    }
    paths
}

fn open_tree(prefix: &str, tree: &str, found: &mut impl FnMut(String)) {
    let tree = tree.trim();
    match tree.find('{') {
        Some(brace) => {
            let prefix = format!("{prefix}{}", tree[..brace].trim());
            for part in top_level(&tree[brace + 1..]) {
                if !part.trim().is_empty() {
                    open_tree(&prefix, part, found);
                }
            }
        }
        None => found(format!("{prefix}{tree}")),
    }
}
