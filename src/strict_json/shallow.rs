//! A text without what is nested too deep in it: for lists, where one item that nobody can read must not cost the
//! others. Every array and object below the bound is written as `null`; nothing else changes.

use std::borrow::Cow;

/// `text` with `null` for every array and object that stands deeper than `depth` levels; the same bytes where nothing
/// does. It is no judgement: what is no JSON goes through as it is.
pub fn shallow(text: &[u8], depth: usize) -> Cow<'_, [u8]> {
    let mut out: Option<Vec<u8>> = None;
    let (mut level, mut in_string, mut escaped) = (0_usize, false, false);
    for (at, byte) in text.iter().copied().enumerate() {
        let kept = level <= depth;
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            push(&mut out, byte, kept);
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => {
                level += 1;
                if level == depth + 1 {
                    out.get_or_insert_with(|| text.iter().take(at).copied().collect())
                        .extend_from_slice(b"null");
                }
            }
            b']' | b'}' => {
                level = level.saturating_sub(1);
                push(&mut out, byte, kept);
                continue;
            }
            _ => {}
        }
        push(&mut out, byte, level <= depth);
    }
    out.map_or(Cow::Borrowed(text), Cow::Owned)
}

fn push(out: &mut Option<Vec<u8>>, byte: u8, kept: bool) {
    if let Some(out) = out
        && kept
    {
        out.push(byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, depth: usize) -> String {
        String::from_utf8(shallow(text.as_bytes(), depth).into_owned()).expect("UTF-8")
    }

    #[test]
    fn what_is_deeper_is_null_and_the_rest_stays_as_it_was() {
        assert_eq!(read(r#"{"a":[1,{"b":[2]}],"c":"x"}"#, 2), r#"{"a":[1,null],"c":"x"}"#);
        assert_eq!(read(r#"[[[]],[{}], 1.50]"#, 2), "[[null],[null], 1.50]");
        assert_eq!(read(r#"{"a":"[[[\"{\\","b":[]}"#, 1), r#"{"a":"[[[\"{\\","b":null}"#);
        assert_eq!(read("[[1],[\"]\"],[2]]", 1), "[null,null,null]");
    }

    #[test]
    fn a_text_that_is_not_too_deep_is_not_copied() {
        assert!(matches!(shallow(br#"{"a":[1]}"#, 2), Cow::Borrowed(_)));
        assert!(matches!(shallow(b"]]]{", 1), Cow::Borrowed(_)));
    }

    #[test]
    fn a_hundred_thousand_levels_are_no_more_than_a_walk() {
        let deep = format!("[{}{},7]", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(read(&deep, 1), "[null,7]");
    }
}
