//! Quantities with units: durations, sizes, rates, shares, money. Exact integers throughout, no floating point.
//!
//! Every parser answers a text with the value or with one phrase that says what was expected.

use std::fmt;
use std::time::Duration;

/// Longest duration the language takes: far beyond any use, and safe to add to any clock.
pub const MAX_DURATION: Duration = Duration::from_secs(366 * 86_400);
/// Most digits after a decimal point.
const MAX_FRACTION: usize = 6;

/// What a quantity should have been; `Display` completes "expected …".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// No unit, or none of the right ones.
    Unit(&'static str),
    /// Spelt right, but out of range.
    Range(&'static str),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Unit(expected) | Fault::Range(expected) => f.write_str(expected),
        }
    }
}

pub const A_DURATION: &str = "a duration with its unit, such as `500ms`, `3s`, `1m30s` or `7d`";
pub const A_SIZE: &str = "a size with its unit, such as `512B`, `64KiB`, `4MiB` or `1GiB`";
pub const A_RATE: &str = "a rate with its unit, such as `50/s`, `20/m` or `5/h`";
pub const A_SHARE: &str = "a share, such as `50%`";
pub const MONEY: &str = "an amount with its currency, such as `2.50 USD`";

/// A decimal without sign or exponent as (value × 10⁶); `None` when it is spelt otherwise or too large.
fn millionths(text: &str) -> Option<u64> {
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
        Some(_) => return None,
        None => (text, ""),
    };
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > MAX_FRACTION {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(1_000_000)?;
    let padded = format!("{fraction:0<width$}", width = MAX_FRACTION);
    whole.checked_add(padded.parse::<u64>().ok()?)
}

/// Units from long to short; a duration names each at most once, in this order.
const TIME_UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// `500ms`, `1.5s`, `1m30s`, `7d`; `0s` is zero.
pub fn duration(text: &str) -> Result<Duration, Fault> {
    let fault = Fault::Unit(A_DURATION);
    let mut rest = text;
    let mut nanos: u128 = 0;
    let mut allowed: &[(&str, u64)] = &TIME_UNITS;
    if rest.is_empty() {
        return Err(fault);
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(fault)?;
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let at = allowed.iter().position(|(name, _)| *name == unit).ok_or(fault)?;
        let (_, millis) = allowed.get(at).ok_or(fault)?;
        allowed = allowed.get(at + 1..).unwrap_or_default();
        // millionths × milliseconds = nanoseconds
        nanos += u128::from(millionths(number).ok_or(fault)?) * u128::from(*millis);
        rest = tail;
    }
    if nanos > MAX_DURATION.as_nanos() {
        return Err(Fault::Range("a duration of at most 366d"));
    }
    Ok(Duration::from_nanos(u64::try_from(nanos).map_err(|_| fault)?))
}

/// Bytes.
pub fn size(text: &str) -> Result<u64, Fault> {
    let fault = Fault::Unit(A_SIZE);
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or(fault)?;
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _other => return Err(fault),
    };
    let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)).ok_or(fault)?;
    match bytes {
        0 => Err(Fault::Range("a size above 0B")),
        bytes if bytes > 1 << 40 => Err(Fault::Range("a size of at most 1024GiB")),
        bytes => Ok(bytes),
    }
}

/// A rate, exact: `amount` millionths each `per`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    pub millionths: u64,
    pub per: Duration,
}

impl Rate {
    /// Time for one token, rounded up to the nanosecond: never faster than what is written.
    pub fn interval(self) -> Duration {
        let nanos = (self.per.as_nanos() * 1_000_000).div_ceil(u128::from(self.millionths.max(1)));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Thousandths of a token each second, rounded down.
    pub fn milli_per_second(self) -> u64 {
        self.millionths / 1000 / self.per.as_secs().max(1)
    }
}

/// `50/s`, `20/m`, `0.2/s`.
pub fn rate(text: &str) -> Result<Rate, Fault> {
    let fault = Fault::Unit(A_RATE);
    let (number, unit) = text.split_once('/').ok_or(fault)?;
    let per = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _other => return Err(fault),
    };
    match millionths(number).ok_or(fault)? {
        0 => Err(Fault::Range("a rate above zero")),
        amount if amount > 1_000_000_000_000 => {
            Err(Fault::Range("a rate of at most 1000000 in its unit of time"))
        }
        millionths => Ok(Rate { millionths, per: Duration::from_secs(per) }),
    }
}

/// A share in thousandths, above 0 and at most 1000: `50%`, `12.5%`.
pub fn share(text: &str) -> Result<u32, Fault> {
    let fault = Fault::Unit(A_SHARE);
    let amount = millionths(text.strip_suffix('%').ok_or(fault)?).ok_or(fault)?;
    if amount == 0 || amount > 100_000_000 {
        return Err(Fault::Range("a share above 0% and at most 100%"));
    }
    if amount % 100_000 != 0 {
        return Err(Fault::Range("a share with at most one digit after the point"));
    }
    Ok(u32::try_from(amount / 100_000).unwrap_or(1000))
}

/// An amount of money: millionths of a unit of `currency`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Money {
    pub millionths: u64,
    /// Three capital letters (ISO 4217's shape).
    pub currency: String,
}

/// `2.50 USD`.
pub fn money(text: &str) -> Result<Money, Fault> {
    let fault = Fault::Unit(MONEY);
    let (number, currency) = text.split_once(' ').ok_or(fault)?;
    if currency.len() != 3 || !currency.bytes().all(|b| b.is_ascii_uppercase()) {
        return Err(fault);
    }
    let millionths = millionths(number).ok_or(fault)?;
    Ok(Money { millionths, currency: currency.to_owned() })
}

/// A duration as the language spells it: `1m30s`; for messages.
pub fn spell(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut out = String::new();
    for (unit, millis) in TIME_UNITS {
        if rest >= millis {
            out.push_str(&format!("{}{unit}", rest / millis));
            rest %= millis;
        }
    }
    if out.is_empty() { "0s".to_owned() } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_exact_and_carry_units() {
        for (text, millis) in [
            ("500ms", 500),
            ("3s", 3000),
            ("1m30s", 90_000),
            ("7d", 604_800_000),
            ("1.5s", 1500),
            ("0s", 0),
            ("1d2h3m4s5ms", 93_784_005),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "",
            "30",
            "1e3s",
            "-1s",
            ".5s",
            "5.s",
            "30s1m",
            "1s1s",
            "5 s",
            "5S",
            ".nan",
            ".inf",
            "1y",
            "s",
            "99999999999999999999s",
            "1.0000001s",
            "٣s",
        ] {
            assert!(matches!(duration(text), Err(Fault::Unit(_))), "{text}");
        }
        assert!(matches!(duration("367d"), Err(Fault::Range(_))));
    }

    #[test]
    fn a_spelt_duration_reads_back_as_itself() {
        for millis in [0, 1, 999, 1000, 61_000, 86_400_000, 93_784_005] {
            let time = Duration::from_millis(millis);
            assert_eq!(duration(&spell(time)), Ok(time));
        }
    }

    #[test]
    fn rates_never_round_up() {
        assert_eq!(rate("50/s").expect("a rate").interval(), Duration::from_millis(20));
        assert_eq!(rate("20/m").expect("a rate").interval(), Duration::from_secs(3));
        assert_eq!(rate("3/s").expect("a rate").interval(), Duration::from_nanos(333_333_334));
        assert_eq!(rate("0.2/s").expect("a rate").milli_per_second(), 200);
        for text in ["50", "0/s", "-5/s", ".nan/s", ".inf", "5/d", "5 /s", "1e3/s", "2000000/s"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shares_sizes_and_money_are_exact() {
        assert_eq!(share("50%"), Ok(500));
        assert_eq!(share("12.5%"), Ok(125));
        for text in ["0%", "101%", "50", "-1%", "0.01%", ".nan%"] {
            assert!(share(text).is_err(), "{text}");
        }
        assert_eq!(size("64KiB"), Ok(65_536));
        for text in ["64", "0B", "64KB", "1.5MiB", "-1B", "99999999999999999999GiB", "2000GiB"] {
            assert!(size(text).is_err(), "{text}");
        }
        let money_of = |text| money(text).map(|m| (m.millionths, m.currency));
        assert_eq!(money_of("2.50 USD"), Ok((2_500_000, "USD".to_owned())));
        assert_eq!(money_of("0.000001 EUR"), Ok((1, "EUR".to_owned())));
        for text in ["2.50", "2.50USD", "2.50 usd", "-1 USD", "1 USDT", "0.0000001 USD"] {
            assert!(money(text).is_err(), "{text}");
        }
    }
}
