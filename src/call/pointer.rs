//! JSON Pointers (RFC 6901) into arguments, and the paths of `select` and `redact`.

use std::fmt;

use serde_json::Value;

/// A pointer, parsed once.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Pointer {
    text: String,
    tokens: Vec<String>,
}

impl fmt::Debug for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}
impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn unescape(token: &str) -> Option<String> {
    let mut out = String::with_capacity(token.len());
    let mut chars = token.chars();
    while let Some(c) = chars.next() {
        match c {
            '~' => match chars.next() {
                Some('0') => out.push('~'),
                Some('1') => out.push('/'),
                Some(_) | None => return None,
            },
            other => out.push(other),
        }
    }
    Some(out)
}

/// Writes one member name as a pointer token: `~` → `~0`, `/` → `~1`.
pub fn push_token(pointer: &mut String, name: &str) {
    pointer.push('/');
    for c in name.chars() {
        match c {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            other => pointer.push(other),
        }
    }
}

impl Pointer {
    /// `None` when the text is no RFC 6901 pointer.
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self { text: String::new(), tokens: Vec::new() });
        }
        let rest = text.strip_prefix('/')?;
        let tokens = rest.split('/').map(unescape).collect::<Option<Vec<_>>>()?;
        Some(Self { text: text.to_owned(), tokens })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }

    pub fn get<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        value.pointer(&self.text)
    }

    /// Takes the member out of the tree; true when it was there.
    pub fn remove(&self, value: &mut Value) -> bool {
        let Some((last, parents)) = self.tokens.split_last() else { return false };
        let mut at = value;
        for token in parents {
            let next = match at {
                Value::Object(map) => map.get_mut(token.as_str()),
                Value::Array(items) => token.parse::<usize>().ok().and_then(|i| items.get_mut(i)),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
            };
            match next {
                Some(next) => at = next,
                None => return false,
            }
        }
        match at {
            Value::Object(map) => map.shift_remove(last.as_str()).is_some(),
            Value::Array(items) => match last.parse::<usize>() {
                Ok(i) if i < items.len() => {
                    items.remove(i);
                    true
                }
                Ok(_) | Err(_) => false,
            },
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        }
    }
}

/// One step of a [`Path`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    Name(String),
    /// `*`: any one member.
    Any,
    /// `**`: any depth, none included.
    Deep,
}

/// A pointer whose segments may be `*` and `**`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path(pub Vec<Segment>);

impl Path {
    pub fn parse(text: &str) -> Option<Self> {
        let pointer = Pointer::parse(text)?;
        let segment = |token: &String| match token.as_str() {
            "*" => Segment::Any,
            "**" => Segment::Deep,
            name => Segment::Name(name.to_owned()),
        };
        let mut segments: Vec<Segment> = pointer.tokens.iter().map(segment).collect();
        // Twice any depth is any depth; each further one would multiply the ways through a value.
        segments.dedup_by(|b, a| *a == Segment::Deep && *b == Segment::Deep);
        Some(Self(segments))
    }

    /// Whether the place that these tokens name is one of those it stands for.
    pub fn leads_to(&self, tokens: &[String]) -> bool {
        fn fits(segments: &[Segment], tokens: &[String]) -> bool {
            match (segments.split_first(), tokens.split_first()) {
                (None, None) => true,
                (Some((Segment::Deep, rest)), _) => {
                    (0..=tokens.len()).any(|skip| tokens.get(skip..).is_some_and(|t| fits(rest, t)))
                }
                (Some((Segment::Any, rest)), Some((_, tokens))) => fits(rest, tokens),
                (Some((Segment::Name(name), rest)), Some((token, tokens))) => {
                    name == token && fits(rest, tokens)
                }
                (None, Some(_)) | (Some(_), None) => false,
            }
        }
        fits(&self.0, tokens)
    }

    pub fn has_deep(&self) -> bool {
        self.0.contains(&Segment::Deep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_to_the_places_it_stands_for_and_to_no_other() {
        let leads = |path: &str, to: &str| {
            Path::parse(path).expect("a path").leads_to(Pointer::parse(to).expect("one").tokens())
        };
        for (path, to) in [
            ("/a", "/a"),
            ("/a/*", "/a/0"),
            ("/**/b", "/b"),
            ("/**/b", "/a/0/b"),
            ("/a/**/c", "/a/c"),
        ] {
            assert!(leads(path, to), "{path} {to}");
        }
        for (path, to) in
            [("/a", "/a/b"), ("/a", "/b"), ("/a/*", "/a"), ("/**/b", "/b/c"), ("/a/**/c", "/c")]
        {
            assert!(!leads(path, to), "{path} {to}");
        }
    }

    #[test]
    fn any_depth_twice_is_any_depth_once() {
        let path = |text: &str| Path::parse(text).expect("a path");
        assert_eq!(path("/**/**/**/token"), path("/**/token"));
        assert_eq!(path("/**/a/**/b").0.len(), 4);
        assert_eq!(path("/*/*/a").0.len(), 3);
    }
}
