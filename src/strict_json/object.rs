//! JSON objects written member by member, straight into bytes.
//! Numbers that came from a tool are never parsed again on the way out: their digits go through as text.

use super::write::push_string;

/// One object under construction. Member names are ours, so they are written as they are.
#[derive(Debug)]
pub struct Object {
    bytes: Vec<u8>,
}

impl Object {
    pub fn with_capacity(capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(capacity);
        bytes.push(b'{');
        Self { bytes }
    }

    fn name(&mut self, name: &str) {
        if self.bytes.last() != Some(&b'{') {
            self.bytes.push(b',');
        }
        self.bytes.push(b'"');
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(b"\":");
    }

    pub fn bool(&mut self, name: &str, value: bool) {
        self.raw(name, if value { "true" } else { "false" });
    }
    pub fn number(&mut self, name: &str, value: u64) {
        self.name(name);
        push_number(&mut self.bytes, value);
    }
    /// Thousandths, written as a number with a fraction: 1500 is `1.5`, 2000 is `2.0`.
    pub fn thousandths(&mut self, name: &str, value: u64) {
        self.number(name, value / 1000);
        let rest = value % 1000;
        self.bytes.push(b'.');
        let digits = [rest / 100, rest / 10 % 10, rest % 10];
        let kept = match digits {
            [_, 0, 0] => 1,
            [_, _, 0] => 2,
            [_, _, _] => 3,
        };
        self.bytes.extend(digits.iter().take(kept).map(|digit| digit_of(*digit)));
    }
    /// A text without anything that would have to be escaped: of ours, or checked before.
    pub fn plain(&mut self, name: &str, value: &str) {
        self.name(name);
        self.bytes.push(b'"');
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(b'"');
    }
    pub fn null(&mut self, name: &str) {
        self.raw(name, "null");
    }
    /// The text, or `null`.
    pub fn string_or_null(&mut self, name: &str, value: Option<&str>) {
        match value {
            Some(value) => self.string(name, value),
            None => self.null(name),
        }
    }
    /// The number, or `null`.
    pub fn number_or_null(&mut self, name: &str, value: Option<u64>) {
        match value {
            Some(value) => self.number(name, value),
            None => self.null(name),
        }
    }
    pub fn string(&mut self, name: &str, value: &str) {
        self.name(name);
        push_string(&mut self.bytes, value);
    }
    /// `json` is complete, valid JSON text.
    pub fn raw(&mut self, name: &str, json: &str) {
        self.name(name);
        self.bytes.extend_from_slice(json.as_bytes());
    }
    /// `json` is complete, valid JSON text of ours.
    pub fn raw_bytes(&mut self, name: &str, json: &[u8]) {
        self.name(name);
        self.bytes.extend_from_slice(json);
    }
    pub fn nested(&mut self, name: &str, fill: impl FnOnce(&mut Object)) {
        let mut inner = Object::with_capacity(64);
        fill(&mut inner);
        self.raw_bytes(name, &inner.finish());
    }
    pub fn strings<'a>(&mut self, name: &str, values: impl Iterator<Item = &'a str>) {
        self.name(name);
        self.bytes.push(b'[');
        for (at, value) in values.enumerate() {
            if at > 0 {
                self.bytes.push(b',');
            }
            push_string(&mut self.bytes, value);
        }
        self.bytes.push(b']');
    }
    pub fn objects<T>(&mut self, name: &str, values: &[T], mut fill: impl FnMut(&mut Object, &T)) {
        self.name(name);
        self.bytes.push(b'[');
        for (at, value) in values.iter().enumerate() {
            if at > 0 {
                self.bytes.push(b',');
            }
            let mut inner = Object::with_capacity(64);
            fill(&mut inner, value);
            self.bytes.extend_from_slice(&inner.finish());
        }
        self.bytes.push(b']');
    }
    /// The members of another object after ours.
    pub fn append(&mut self, other: &Object) {
        if let Some(members) = other.bytes.get(1..).filter(|members| !members.is_empty()) {
            if self.bytes.last() != Some(&b'{') {
                self.bytes.push(b',');
            }
            self.bytes.extend_from_slice(members);
        }
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.push(b'}');
        self.bytes
    }
}

fn digit_of(digit: u64) -> u8 {
    b'0' + u8::try_from(digit).unwrap_or_default()
}

/// A whole number in decimal digits.
pub fn push_number(out: &mut Vec<u8>, value: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut left = value;
    loop {
        at -= 1;
        if let Some(place) = digits.get_mut(at) {
            *place = digit_of(left % 10);
        }
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(at..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_digit_by_digit() {
        let mut object = Object::with_capacity(0);
        for value in [0, 9, 10, 1234567890, u64::MAX] {
            object.number("n", value);
        }
        for value in [0, 1, 10, 500, 1500, 2000, 12_345] {
            object.thousandths("t", value);
        }
        object.number_or_null("a", None);
        object.string_or_null("b", Some("x"));
        assert_eq!(
            String::from_utf8(object.finish()).expect("text"),
            r#"{"n":0,"n":9,"n":10,"n":1234567890,"n":18446744073709551615,"t":0.0,"t":0.001,"t":0.01,"t":0.5,"t":1.5,"t":2.0,"t":12.345,"a":null,"b":"x"}"#
        );
    }

    #[test]
    fn members_are_separated_and_text_is_escaped() {
        let mut inner = Object::with_capacity(0);
        inner.number("n", 1);
        let mut object = Object::with_capacity(0);
        object.nested("empty", |_| {});
        object.string("text", "a\"b\n\u{1}ü{");
        object.raw("raw", "{}");
        object.strings("list", ["a", "b"].into_iter());
        object.objects("objects", &[1u64, 2], |o, n| o.number("n", *n));
        object.append(&inner);
        object.append(&Object::with_capacity(0));
        let text = String::from_utf8(object.finish()).expect("utf-8");
        assert_eq!(
            text,
            r#"{"empty":{},"text":"a\"b\n\u0001ü{","raw":{},"list":["a","b"],"objects":[{"n":1},{"n":2}],"n":1}"#
        );
    }
}
