//! JSON objects written member by member, straight into bytes.
//! Numbers that came from a tool are never parsed again on the way out: their digits go through as text.

/// One object under construction. Member names are ours, so they are written as they are.
#[derive(Debug)]
pub(super) struct Object {
    bytes: Vec<u8>,
}

impl Object {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(capacity);
        bytes.push(b'{');
        Self { bytes }
    }

    fn name(&mut self, name: &str) {
        if self.bytes.last() != Some(&b'{') {
            self.bytes.push(b',');
        }
        push_text(&mut self.bytes, name);
        self.bytes.push(b':');
    }

    pub(super) fn bool(&mut self, name: &str, value: bool) {
        self.raw(name, if value { "true" } else { "false" });
    }
    pub(super) fn number(&mut self, name: &str, value: u64) {
        self.raw(name, &value.to_string());
    }
    pub(super) fn string(&mut self, name: &str, value: &str) {
        self.name(name);
        push_text(&mut self.bytes, value);
    }
    /// `json` is complete, valid JSON text.
    pub(super) fn raw(&mut self, name: &str, json: &str) {
        self.name(name);
        self.bytes.extend_from_slice(json.as_bytes());
    }
    /// `json` is complete, valid JSON text of ours.
    pub(super) fn raw_bytes(&mut self, name: &str, json: &[u8]) {
        self.name(name);
        self.bytes.extend_from_slice(json);
    }
    pub(super) fn nested(&mut self, name: &str, fill: impl FnOnce(&mut Object)) {
        let mut inner = Object::with_capacity(64);
        fill(&mut inner);
        self.raw_bytes(name, &inner.finish());
    }
    pub(super) fn strings<'a>(&mut self, name: &str, values: impl Iterator<Item = &'a str>) {
        self.name(name);
        self.bytes.push(b'[');
        for (at, value) in values.enumerate() {
            if at > 0 {
                self.bytes.push(b',');
            }
            push_text(&mut self.bytes, value);
        }
        self.bytes.push(b']');
    }
    pub(super) fn objects<T>(
        &mut self,
        name: &str,
        values: &[T],
        mut fill: impl FnMut(&mut Object, &T),
    ) {
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
    pub(super) fn append(&mut self, other: &Object) {
        if let Some(members) = other.bytes.get(1..).filter(|members| !members.is_empty()) {
            if self.bytes.last() != Some(&b'{') {
                self.bytes.push(b',');
            }
            self.bytes.extend_from_slice(members);
        }
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.bytes.push(b'}');
        self.bytes
    }
}

/// A JSON string.
fn push_text(bytes: &mut Vec<u8>, text: &str) {
    // Writing a str to a Vec cannot fail; were it to, the answer says so rather than being cut.
    let start = bytes.len();
    if serde_json::to_writer(&mut *bytes, text).is_err() {
        bytes.truncate(start);
        bytes.extend_from_slice(b"\"\"");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
