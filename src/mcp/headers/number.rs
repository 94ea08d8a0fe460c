//! Numbers of headers, compared as numbers and by their digits: nothing is rounded.

/// The largest integer that every reader of doubles reads exactly: 2^53 − 1.
const SAFE: i64 = 9_007_199_254_740_991;

/// A number as ± digits · 10^exponent, without zeros at either end of the digits; two are equal when their values are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Exact {
    negative: bool,
    digits: String,
    exponent: i64,
}

impl Exact {
    /// Reads a JSON number (RFC 8259, 6), leading zeros allowed; `None` where the text is none.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
            Some(_) => return None,
            None => (mantissa, ""),
        };
        let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let power = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        let sound = !whole.is_empty()
            && is_digits(whole)
            && is_digits(fraction)
            && !power.is_empty()
            && is_digits(power);
        if !sound {
            return None;
        }
        let exponent: i64 = exponent.parse().ok()?;
        let all = format!("{whole}{fraction}");
        let leading = all.trim_start_matches('0');
        let digits = leading.trim_end_matches('0');
        if digits.is_empty() {
            return Some(Self { negative: false, digits: String::new(), exponent: 0 });
        }
        let zeros = i64::try_from(leading.len() - digits.len()).ok()?;
        let places = i64::try_from(fraction.len()).ok()?;
        let exponent = exponent.checked_sub(places)?.checked_add(zeros)?;
        Some(Self { negative, digits: digits.to_owned(), exponent })
    }

    /// The decimal digits of an integer within ±(2^53 − 1); `None` for any other number.
    pub(super) fn safe_integer(&self) -> Option<i64> {
        if self.digits.is_empty() {
            return Some(0);
        }
        let power = u32::try_from(self.exponent).ok()?;
        let value: i64 = self.digits.parse().ok()?;
        let value = value.checked_mul(10_i64.checked_pow(power)?)?;
        (value <= SAFE).then_some(if self.negative { -value } else { value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_are_equal_however_they_are_written() {
        for same in ["42", "42.0", "4.2e1", "420E-1", "042", "42.000", "0.42e+2"] {
            assert_eq!(Exact::parse(same), Exact::parse("42"), "{same}");
            assert_eq!(Exact::parse(same).and_then(|number| number.safe_integer()), Some(42));
        }
        assert_eq!(Exact::parse("-0"), Exact::parse("0e999"));
        assert_ne!(Exact::parse("9007199254740993"), Exact::parse("9007199254740992"));
        assert_ne!(Exact::parse("1.00000000000000000001"), Exact::parse("1"));
        assert_ne!(Exact::parse("-1"), Exact::parse("1"));
    }

    #[test]
    fn what_is_no_number_is_none() {
        for text in [
            "",
            "-",
            "+1",
            ".5",
            "5.",
            "1e",
            "1e+",
            "0x1",
            "inf",
            "NaN",
            "1 ",
            "1_0",
            "--1",
            "1e99999999999999999999",
        ] {
            assert_eq!(Exact::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_integers_that_doubles_hold_are_safe() {
        let safe = |text| Exact::parse(text).and_then(|number: Exact| number.safe_integer());
        assert_eq!(safe("9007199254740991"), Some(SAFE));
        assert_eq!(safe("-9007199254740991"), Some(-SAFE));
        for text in [
            "9007199254740992",
            "-9007199254740992",
            "0.5",
            "1e16",
            "1e400",
            "99999999999999999999",
        ] {
            assert_eq!(safe(text), None, "{text}");
        }
    }
}
