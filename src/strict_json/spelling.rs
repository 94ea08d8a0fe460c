//! Numbers as they were spelt. The parser keeps their digits, but makes `1e+5` of `1e5` and of `1E5`; here their own text
//! is put back, so that what passes through is equal as text.

use serde_json::{Number, Value};

/// Puts back how numbers with an exponent are written in `text`, of which `value` was parsed. Only worth its time where
/// the parser has met one.
pub(super) fn restore(text: &[u8], value: &mut Value) {
    put(value, &mut Numbers(text));
}

/// Members and elements stand in the order of the text, and none of them twice.
fn put(value: &mut Value, numbers: &mut Numbers<'_>) {
    match value {
        Value::Null | Value::Bool(_) | Value::String(_) => {}
        Value::Number(number) => {
            let own = numbers.next().filter(|own| own.contains(['e', 'E']));
            if let Some(own) = own.filter(|own| *number.as_str() == *as_parsed(own)) {
                *number = Number::from_string_unchecked(own.to_owned());
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| put(item, numbers)),
        Value::Object(members) => members.values_mut().for_each(|member| put(member, numbers)),
    }
}

/// A number with an exponent, as the parser spells it.
fn as_parsed(own: &str) -> String {
    let (digits, exponent) = own.split_once(['e', 'E']).unwrap_or((own, ""));
    let sign = if exponent.starts_with(['+', '-']) { "" } else { "+" };
    format!("{digits}e{sign}{exponent}")
}

/// The numbers of a JSON text that is known to be one.
struct Numbers<'t>(&'t [u8]);

impl<'t> Iterator for Numbers<'t> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        loop {
            let (first, rest) = self.0.split_first()?;
            match first {
                b'"' => self.0 = after_string(rest),
                b'-' | b'0'..=b'9' => {
                    let of = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
                    let end = self.0.iter().position(|byte| !of(byte)).unwrap_or(self.0.len());
                    let (number, rest) = self.0.split_at(end);
                    self.0 = rest;
                    return std::str::from_utf8(number).ok();
                }
                _other => self.0 = rest,
            }
        }
    }
}

/// What follows a string, of which only the opening quote is taken.
fn after_string(text: &[u8]) -> &[u8] {
    let mut escaped = false;
    let end = text.iter().position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    });
    end.and_then(|end| text.get(end + 1..)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use crate::strict_json::{Limits, parse};

    #[test]
    fn a_number_is_spelt_as_it_came_whatever_stands_around_it() {
        let text = r#"{"1e5":[1E5,1e5,"9E9 \" 8E8",-0,1.50,1e+5,2.5E-3,{"\\":1e400}],"a":"7e7","b":-1E+09}"#;
        let value = parse(text.as_bytes(), Limits::answer(1024)).expect("JSON");
        assert_eq!(value.to_string(), text);
        let alone = parse(b" 1E5 ", Limits::answer(10)).expect("JSON");
        assert_eq!(alone.to_string(), "1E5");
        assert_eq!(alone.as_f64(), Some(100_000.0));
    }
}
