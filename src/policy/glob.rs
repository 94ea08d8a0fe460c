//! Patterns of `allow` and `deny`: whole names, `*` and `?`. A pattern never reaches a write.

use crate::call::Effect;

/// Whether a pattern of `allow` or `deny` is one, and not an exact name.
pub fn is_glob(pattern: &str) -> bool {
    pattern.contains(['*', '?'])
}

/// Whole-string match; `*` is any text, `?` any one character. Linear in both lengths, never exponential.
pub fn glob_matches(pattern: &str, name: &str) -> bool {
    if pattern.is_ascii() && name.is_ascii() {
        return matches(pattern.as_bytes(), name.as_bytes(), (b'*', b'?'));
    }
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    matches(&pattern, &name, ('*', '?'))
}

fn matches<C: PartialEq>(pattern: &[C], name: &[C], (any, one): (C, C)) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(c) if *c == any => {
                star = Some((p + 1, n));
                p += 1;
            }
            Some(c) if *c == one || name.get(n) == Some(c) => {
                p += 1;
                n += 1;
            }
            _no_match => match star {
                None => return false,
                Some((after, taken)) => {
                    star = Some((after, taken + 1));
                    (p, n) = (after, taken + 1);
                }
            },
        }
    }
    pattern.iter().skip(p).all(|c| *c == any)
}

/// Whether a pattern of `pass.resources` reaches a URI. One that climbs (`..` in any spelling), or holds a backslash or a
/// control character, is reached only by its own exact spelling or by `*`: servers resolve such a path, and what they
/// then read is not what the pattern was written for.
pub fn uri_matches(pattern: &str, uri: &str) -> bool {
    glob_matches(pattern, uri) && (pattern == "*" || pattern == uri || !climbs(uri))
}

fn climbs(uri: &str) -> bool {
    let mut read = uri.to_ascii_lowercase();
    // As often as careless servers decode, and once more.
    for _ in 0..3 {
        let hidden =
            ["%00", "%0a", "%0d", "%09", "%1b", "%7f"].iter().any(|code| read.contains(code));
        if hidden || read.contains(|c: char| c == '\\' || c.is_control()) {
            return true;
        }
        let dots = |segment: &str| matches!(segment.split(';').next(), Some("." | ".."));
        if read.split(['/', '?', '#', ':']).any(dots) {
            return true;
        }
        for (code, plain) in [("%2e", "."), ("%2f", "/"), ("%5c", "\\"), ("%3b", ";"), ("%25", "%")]
        {
            read = read.replace(code, plain);
        }
    }
    false
}

/// Whether some name fits both patterns. Quadratic in their lengths.
pub fn globs_meet(a: &str, b: &str) -> bool {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    // below[j]: whether what is left of `a` and `b[j..]` meet.
    let mut below: Vec<bool> = Vec::new();
    for left in (0..=a.len()).rev() {
        let mine = a.get(left);
        let mut row = vec![false; b.len() + 1];
        for right in (0..=b.len()).rev() {
            let at = |row: &[bool], place: usize| row.get(place).copied().unwrap_or(false);
            let meets = match (mine, b.get(right)) {
                (None, None) => true,
                (Some('*'), _) => at(&below, right) || at(&row, right + 1),
                (_, Some('*')) => at(&row, right + 1) || at(&below, right),
                (Some(x), Some(y)) => (x == y || *x == '?' || *y == '?') && at(&below, right + 1),
                (Some(_), None) | (None, Some(_)) => false,
            };
            if let Some(slot) = row.get_mut(right) {
                *slot = meets;
            }
        }
        below = row;
    }
    below.first().copied().unwrap_or(false)
}

/// Whether an `allow` entry lets a tool be called: a pattern reaches reads only, a write is allowed by its name.
pub fn allows(entry: &str, tool: &str, effect: Effect) -> bool {
    if is_glob(entry) { effect == Effect::Read && glob_matches(entry, tool) } else { entry == tool }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_that_climbs_is_reached_by_no_pattern_but_its_own_spelling() {
        for uri in [
            "file:///pub/../secret",
            "file:///pub/%2e%2e/secret",
            "file:///pub/%2E./secret",
            "file:///pub/..%2fsecret",
            "file:///pub/\\..\\secret",
            "file:///pub/%5c..%5csecret",
            "file:///pub/%252e%252e/secret",
            "file:///pub//../../etc/passwd",
            "file:///pub/..;a/secret",
            "file:///pub/x\u{0}",
            "file:///pub/x%00",
            "file:///pub/./x",
        ] {
            assert!(!uri_matches("file:///pub/*", uri), "{uri}");
            assert!(uri_matches("*", uri) && uri_matches(uri, uri), "{uri}");
        }
        for uri in [
            "file:///pub/a",
            "file:///pub/a..b",
            "file:///pub/.well-known",
            "file:///pub/a%20b?q=1..2",
            "file:///pub/",
        ] {
            assert!(uri_matches("file:///pub/*", uri), "{uri}");
        }
    }
}
