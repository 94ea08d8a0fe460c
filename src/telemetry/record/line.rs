//! One record under way: JSON written piece by piece into a buffer that is used again.

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::strict_json::object::push_number;
use crate::strict_json::write::push_string;

/// Bytes of `2026-11-30T09:08:07`.
const SECOND: usize = 19;

/// A line. Its writer puts the commas: see `members!`.
#[derive(Debug, Default)]
pub(super) struct Line(Vec<u8>);

impl Line {
    pub(super) fn clear(&mut self) {
        self.0.clear();
        self.0.reserve(1024);
    }
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
    /// What stands before a value, as it is.
    pub(super) fn lead(&mut self, text: &'static str) {
        self.0.extend_from_slice(text.as_bytes());
    }
    pub(super) fn end(&mut self) {
        self.0.push(b'}');
    }
    pub(super) fn bool(&mut self, value: bool) {
        self.lead(if value { "true" } else { "false" });
    }
    pub(super) fn number(&mut self, value: u64) {
        match u8::try_from(value) {
            Ok(digit) if digit < 10 => self.0.push(b'0' + digit),
            Ok(_) | Err(_) => push_number(&mut self.0, value),
        }
    }
    pub(super) fn number_or_null(&mut self, value: Option<u64>) {
        match value {
            Some(value) => self.number(value),
            None => self.lead("null"),
        }
    }
    /// Thousandths, written as a number with a fraction: 1500 is `1.5`, 2000 is `2.0`.
    pub(super) fn thousandths(&mut self, value: u64) {
        self.number(value / 1000);
        let rest = value % 1000;
        let digits = [b'.', digit(rest / 100), digit(rest / 10), digit(rest)];
        let kept = match (rest % 100, rest % 10) {
            (0, _) => 2,
            (_, 0) => 3,
            (_, _) => 4,
        };
        self.0.extend_from_slice(digits.get(..kept).unwrap_or(&digits));
    }
    pub(super) fn thousandths_or_null(&mut self, value: Option<u64>) {
        match value {
            Some(value) => self.thousandths(value),
            None => self.lead("null"),
        }
    }
    /// A text without anything that would have to be escaped: of ours, or checked before.
    pub(super) fn plain(&mut self, value: &str) {
        self.0.push(b'"');
        self.0.extend_from_slice(value.as_bytes());
        self.0.push(b'"');
    }
    pub(super) fn string(&mut self, value: &str) {
        push_string(&mut self.0, value);
    }
    pub(super) fn string_or_null(&mut self, value: Option<&str>) {
        match value {
            Some(value) => self.string(value),
            None => self.lead("null"),
        }
    }
    /// RFC 3339, UTC, microseconds, in quotes.
    pub(super) fn time(&mut self, time: SystemTime) {
        self.0.push(b'"');
        self.0.extend_from_slice(&spelt(time));
        self.0.push(b'"');
    }
}

/// RFC 3339, UTC, microseconds. A time before 1970 shows as 1970, one after 9999 as the end of it.
pub fn rfc3339(time: SystemTime) -> String {
    spelt(time).into_iter().map(char::from).collect()
}

fn spelt(time: SystemTime) -> [u8; SECOND + 8] {
    thread_local! {
        /// The last second that was spelt: most records are of the second of the one before.
        static LAST: Cell<(u64, [u8; SECOND])> = const { Cell::new((u64::MAX, [0; SECOND])) };
    }
    /// 9999-12-31T23:59:59.
    const LATEST: u64 = 253_402_300_799;
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs().min(LATEST);
    let (known, mut second) = LAST.get();
    if known != seconds {
        second = spelt_second(seconds);
        LAST.set((seconds, second));
    }
    let micros = u64::from(since.subsec_micros());
    let mut text = [b'Z'; SECOND + 8];
    let (whole, fraction) = text.split_at_mut(SECOND);
    whole.copy_from_slice(&second);
    let mut left = micros;
    for place in fraction.iter_mut().take(7).skip(1).rev() {
        *place = digit(left);
        left /= 10;
    }
    if let Some(point) = fraction.first_mut() {
        *point = b'.';
    }
    text
}

fn spelt_second(seconds: u64) -> [u8; SECOND] {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let pairs = [year / 100, year % 100, month, day, second / 3600, second / 60 % 60, second % 60];
    let mut text = *b"0000-00-00T00:00:00";
    let places = [0, 2, 5, 8, 11, 14, 17];
    for (at, pair) in places.into_iter().zip(pairs) {
        for (place, digit) in text.iter_mut().skip(at).zip([digit(pair / 10), digit(pair)]) {
            *place = digit;
        }
    }
    text
}

/// The last digit of a number.
fn digit(number: u64) -> u8 {
    b'0' + u8::try_from(number % 10).unwrap_or_default()
}

/// The Gregorian date of a day since 1970-01-01, counted in years that begin in March, so that the leap day is last.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468; // days since 0000-03-01
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}
