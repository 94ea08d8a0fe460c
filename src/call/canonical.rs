//! The canonical form of a value, by which two spellings of the same arguments are known as one.
//!
//! RFC 8785, but for numbers that a double cannot hold: those are `0` there, and which numbers they are, counted in the
//! order of the canonical form, and their exact decimals follow, length-prefixed. So 9007199254740993 and …992 stay two
//! values. As long as the text, whatever its names: a place is told by a count, not by a pointer.

use serde_json::{Map, Value};

use crate::strict_json::write;

/// The canonical form.
pub fn canonical(tree: &Value) -> Vec<u8> {
    let mut writer = Writer { out: Vec::with_capacity(256), numbers: 0, inexact: Vec::new() };
    writer.value(tree);
    let Writer { mut out, inexact, .. } = writer;
    for (count, decimal) in inexact {
        out.extend_from_slice(&count.to_be_bytes());
        out.extend_from_slice(&(decimal.len() as u64).to_be_bytes());
        out.extend_from_slice(decimal.as_bytes());
    }
    out
}

struct Writer {
    out: Vec<u8>,
    /// Numbers met so far.
    numbers: u64,
    /// Which number a double cannot hold, and its exact decimal.
    inexact: Vec<(u64, String)>,
}

impl Writer {
    fn value(&mut self, value: &Value) {
        match value {
            Value::Null | Value::Bool(_) => write::push(&mut self.out, value),
            // What must be escaped, and how, is the same there (RFC 8785 §3.2.2.2).
            Value::String(text) => write::push_string(&mut self.out, text),
            Value::Number(number) => self.number(number.as_str()),
            Value::Array(items) => {
                self.out.push(b'[');
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        self.out.push(b',');
                    }
                    self.value(item);
                }
                self.out.push(b']');
            }
            Value::Object(members) => self.object(members),
        }
    }

    /// Members in the order of their names' UTF-16 code units (RFC 8785 §3.2.3).
    fn object(&mut self, members: &Map<String, Value>) {
        let mut sorted: Vec<(&String, &Value)> = members.iter().collect();
        sorted.sort_unstable_by(|(a, _), (b, _)| {
            if a.is_ascii() && b.is_ascii() {
                a.cmp(b)
            } else {
                a.encode_utf16().cmp(b.encode_utf16())
            }
        });
        self.out.push(b'{');
        for (at, (name, value)) in sorted.into_iter().enumerate() {
            if at > 0 {
                self.out.push(b',');
            }
            write::push_string(&mut self.out, name);
            self.out.push(b':');
            self.value(value);
        }
        self.out.push(b'}');
    }

    fn number(&mut self, digits: &str) {
        self.numbers += 1;
        if is_plain(digits) {
            self.out.extend_from_slice(digits.as_bytes());
            return;
        }
        let exact = decimal(digits);
        let double: f64 = digits.parse().unwrap_or(f64::NAN);
        let shortest =
            if double.is_finite() { decimal(&format!("{double:e}")) } else { String::new() };
        if shortest == exact {
            // As ECMAScript writes a double (RFC 8785 §3.2.2.3): `1.0` → `1`, `-0` → `0`.
            let double = if double == 0.0 { 0.0 } else { double };
            let written = serde_json_canonicalizer::to_vec(&double);
            self.out.extend_from_slice(written.as_deref().unwrap_or(b"null"));
        } else {
            self.inexact.push((self.numbers, exact));
            self.out.push(b'0');
        }
    }
}

/// A whole number that is its own canonical form: no sign, point or exponent, and below 2^53.
fn is_plain(digits: &str) -> bool {
    let few = digits.len() <= 15 && digits.bytes().all(|byte| byte.is_ascii_digit());
    few && (digits.len() == 1 || !digits.starts_with('0'))
}

/// The value of a JSON number as `sign digits e exponent`, digits without leading or trailing zeros; never expanded.
fn decimal(text: &str) -> String {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    // An exponent beyond i64 cannot come from a bounded number that is in double range; kept apart by saturating.
    let mut exponent: i64 = exponent
        .trim_start_matches('+')
        .parse()
        .unwrap_or(if exponent.starts_with('-') { i64::MIN / 2 } else { i64::MAX / 2 });
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    exponent = exponent.saturating_sub(i64::try_from(fraction.len()).unwrap_or(i64::MAX));
    let all = format!("{whole}{fraction}");
    let digits = all.trim_start_matches('0');
    let kept = digits.trim_end_matches('0');
    if kept.is_empty() {
        return "0".to_owned();
    }
    exponent =
        exponent.saturating_add(i64::try_from(digits.len() - kept.len()).unwrap_or(i64::MAX));
    format!("{}{kept}e{exponent}", if negative { "-" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strict_json::{Limits, parse};

    fn of(text: &str) -> String {
        let tree = parse(text.as_bytes(), Limits::answer(1 << 20)).expect(text);
        String::from_utf8(canonical(&tree)).expect("text")
    }

    #[test]
    fn a_form_is_no_longer_than_its_text_whatever_the_names() {
        let name = "k".repeat(10_000);
        let text = format!(r#"{{"{name}":[{}1]}}"#, "9007199254740993,".repeat(1_000));
        let tree = parse(text.as_bytes(), Limits::answer(1 << 20)).expect("sound");
        assert!(canonical(&tree).len() < 3 * text.len());
    }

    #[test]
    fn where_every_number_is_a_double_it_is_rfc_8785() {
        for text in [
            r#"{"b":[1,-1,0,-0,1.50,1e3,1E-7,12345e-4,4.50,2e-3,1e21,1e20,-0.0,15,1000000000000000]}"#,
            r#"{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7}"#,
            r#"["\u0000\u001f\b\t\n\f\r\"\\/é😀 ","",{}, [] ,null,true,false]"#,
            r#"{"a":{"z":1,"y":{"x":[{"c":1,"b":2}]}},"A":0,"":1}"#,
        ] {
            let value = parse(text.as_bytes(), Limits::answer(1 << 20)).expect(text);
            let theirs = serde_json_canonicalizer::to_vec(&as_doubles(value)).expect(text);
            assert_eq!(of(text), String::from_utf8(theirs).expect("text"), "{text}");
        }
    }

    /// Numbers as doubles, which is what that crate takes.
    fn as_doubles(value: Value) -> Value {
        match value {
            Value::Number(number) => {
                serde_json::json!(number.as_f64().map(|n| if n == 0.0 { 0.0 } else { n }))
            }
            Value::Array(items) => items.into_iter().map(as_doubles).collect(),
            Value::Object(members) => {
                members.into_iter().map(|(name, v)| (name, as_doubles(v))).collect()
            }
            other @ (Value::Null | Value::Bool(_) | Value::String(_)) => other,
        }
    }
}
