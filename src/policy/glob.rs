//! Patterns of `allow` and `deny`: whole names, `*` and `?`. A pattern never reaches a write.

use crate::call::Effect;

/// Whether a pattern of `allow` or `deny` is one, and not an exact name.
pub fn is_glob(pattern: &str) -> bool {
    pattern.contains(['*', '?'])
}

/// Whole-string match; `*` is any text, `?` any one character. Linear in both lengths, never exponential.
pub fn glob_matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p + 1, n));
                p += 1;
            }
            Some(c) if *c == '?' || name.get(n) == Some(c) => {
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
    pattern.iter().skip(p).all(|c| *c == '*')
}

/// Whether an `allow` entry lets a tool be called: a pattern reaches reads only, a write is allowed by its name.
pub fn allows(entry: &str, tool: &str, effect: Effect) -> bool {
    if is_glob(entry) { effect == Effect::Read && glob_matches(entry, tool) } else { entry == tool }
}
