//! Exact decimal arithmetic on JSON numbers, digit by digit: nothing is rounded and no exponent is written out.
//!
//! JSON Schema's numeric keywords are judged here, because a double cannot tell 9007199254740993 from …992.

use std::cmp::Ordering;

use serde_json::Number;

/// A number as `± digits · 10^exponent`; digits carry no zero at either end, and zero has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decimal {
    negative: bool,
    digits: Vec<u8>,
    exponent: i64,
}

/// Doubles hold every integer up to here.
const EXACT: i64 = 1 << 53;

impl Decimal {
    pub(crate) fn of(number: &Number) -> Self {
        Self::parse(number.as_str())
    }

    /// `text` is a JSON number (RFC 8259, section 6).
    fn parse(text: &str) -> Self {
        let (negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let written: i64 = exponent
            .trim_start_matches('+')
            .parse()
            .unwrap_or(if exponent.starts_with('-') { i64::MIN / 4 } else { i64::MAX / 4 });
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let mut digits: Vec<u8> = whole
            .bytes()
            .chain(fraction.bytes())
            .filter(u8::is_ascii_digit)
            .map(|digit| digit - b'0')
            .skip_while(|digit| *digit == 0)
            .collect();
        let mut exponent =
            written.saturating_sub(i64::try_from(fraction.len()).unwrap_or(i64::MAX / 4));
        while digits.last() == Some(&0) {
            digits.pop();
            exponent = exponent.saturating_add(1);
        }
        if digits.is_empty() {
            return Self { negative: false, digits, exponent: 0 };
        }
        Self { negative, digits, exponent }
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.digits.is_empty()
    }

    pub(crate) fn is_integer(&self) -> bool {
        self.exponent >= 0
    }

    /// Not an integer, and outside ±2^53, where a tool that reads doubles would see another number.
    pub(crate) fn is_lossy_fraction(&self) -> bool {
        !self.is_integer() && self.compare_magnitude(&Self::of(&EXACT.into())) == Ordering::Greater
    }

    /// Places before the decimal point: 1 for 5, 3 for 120, 0 for 0.5.
    fn places(&self) -> i64 {
        self.exponent.saturating_add(i64::try_from(self.digits.len()).unwrap_or(i64::MAX / 4))
    }

    fn compare_magnitude(&self, other: &Self) -> Ordering {
        match (self.is_zero(), other.is_zero()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            // Without zeros at the end, a longer list of equal digits is the larger one.
            (false, false) => {
                self.places().cmp(&other.places()).then_with(|| self.digits.cmp(&other.digits))
            }
        }
    }

    /// Whether this is a whole multiple of `step`; `None` when `step` has more than 36 digits.
    pub(crate) fn is_multiple_of(&self, step: &Self) -> Option<bool> {
        if self.is_zero() {
            return Some(true);
        }
        if step.digits.len() > 36 {
            return None;
        }
        let divisor = step.digits.iter().fold(0u128, |sum, digit| sum * 10 + u128::from(*digit));
        // Digits of ours end in no zero: with the finer exponent on our side no multiple can be met.
        let zeros = self.exponent.checked_sub(step.exponent)?;
        if divisor == 0 || zeros < 0 {
            return Some(false);
        }
        let mut rest = 0u128;
        for digit in &self.digits {
            rest = (rest * 10 + u128::from(*digit)) % divisor;
        }
        for _ in 0..zeros.min(MAX_ZEROS) {
            if rest == 0 {
                break;
            }
            rest = rest * 10 % divisor;
        }
        Some(rest == 0)
    }
}

/// After this many zeros a remainder that has not vanished never will: 10^k takes out the factors 2 and 5, of which
/// a divisor of 36 digits has fewer than 128.
const MAX_ZEROS: i64 = 128;

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.negative, other.negative) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => self.compare_magnitude(other),
            (true, true) => other.compare_magnitude(self),
        }
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_that_of_the_numbers_whatever_their_spelling() {
        let rising = [
            "-1e400",
            "-18446744073709551616",
            "-2",
            "-1.5",
            "-1e-400",
            "0",
            "1e-400",
            "0.5",
            "1",
            "1.0000000000000000000001",
            "9",
            "10",
            "9007199254740992",
            "9007199254740992.5",
            "9007199254740993",
            "18446744073709551615",
            "18446744073709551616",
            "1e400",
        ];
        for (at, low) in rising.iter().enumerate() {
            for high in &rising[at + 1..] {
                assert!(Decimal::parse(low) < Decimal::parse(high), "{low} {high}");
            }
        }
        for (a, b) in [("1.0", "1"), ("-0", "0"), ("1E+2", "100"), ("12.50e1", "125")] {
            assert_eq!(Decimal::parse(a), Decimal::parse(b));
        }
    }

    #[test]
    fn multiples_are_exact_beyond_a_double() {
        for (number, step, answer) in [
            ("9007199254740993", "2", false),
            ("9007199254740994", "2", true),
            ("0.3", "0.1", true),
            ("0.35", "0.1", false),
            ("1e300", "7", false),
            ("1e300", "8", true),
            ("100", "25e-1", true),
            ("0", "3", true),
            ("5", "10", false),
        ] {
            assert_eq!(
                Decimal::parse(number).is_multiple_of(&Decimal::parse(step)),
                Some(answer),
                "{number} {step}"
            );
        }
    }

    #[test]
    fn a_fraction_beyond_two_to_the_53_is_lossy_and_an_integer_is_not() {
        assert!(Decimal::parse("9007199254740992.5").is_lossy_fraction());
        assert!(Decimal::parse("-9007199254740992.5").is_lossy_fraction());
        assert!(!Decimal::parse("9007199254740993").is_lossy_fraction());
        assert!(!Decimal::parse("9007199254740991.5").is_lossy_fraction());
    }
}
