//! The keywords judged here instead of in the crate, so that every digit of a number counts: it reads numbers past
//! 64 bits, and fractions, as doubles.

use std::collections::HashSet;

use jsonschema::{Keyword, ValidationError};
use serde_json::Value;

use super::decimal::Decimal;
use crate::call::arguments::kind_of;
use crate::call::canonical::canonical;

pub(super) type Compiled<'a> = Result<Box<dyn for<'i> Keyword<'i>>, ValidationError<'a>>;

/// A numeric keyword, judged by digits. A fraction beyond ±2^53 never passes one: a tool that reads doubles would
/// see another number than the one that was judged.
struct Bound {
    limit: Decimal,
    holds: fn(&Decimal, &Decimal) -> bool,
}

pub(super) fn bound<'a>(limit: &Value, holds: fn(&Decimal, &Decimal) -> bool) -> Compiled<'a> {
    match limit {
        Value::Number(limit) => Ok(Box::new(Bound { limit: Decimal::of(limit), holds })),
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            Err(ValidationError::custom("a number is wanted here"))
        }
    }
}

impl<'i> Keyword<'i> for Bound {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        verdict(self.is_valid(instance))
    }
    fn is_valid(&self, instance: &'i Value) -> bool {
        let Value::Number(number) = instance else { return true };
        let value = Decimal::of(number);
        !value.is_lossy_fraction() && (self.holds)(&value, &self.limit)
    }
}

/// `const` and `enum`: equal as JSON Schema means it (1 = 1.0), with every digit counted.
struct Options(HashSet<Vec<u8>>);

pub(super) fn options<'a>(values: &[Value]) -> Compiled<'a> {
    Ok(Box::new(Options(values.iter().map(canonical).collect())))
}

impl<'i> Keyword<'i> for Options {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        verdict(self.is_valid(instance))
    }
    fn is_valid(&self, instance: &'i Value) -> bool {
        self.0.contains(&canonical(instance))
    }
}

/// `type`, where an integer is what has no fraction by its digits (`1.0` is one, `9007199254740992.5` is not).
struct Kinds(Vec<String>);

pub(super) fn kinds<'a>(wanted: &Value) -> Compiled<'a> {
    let several = wanted.as_array().map_or_else(|| std::slice::from_ref(wanted), Vec::as_slice);
    let text = |kind: &Value| kind.as_str().map(ToOwned::to_owned);
    Ok(Box::new(Kinds(several.iter().filter_map(text).collect())))
}

impl<'i> Keyword<'i> for Kinds {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        verdict(self.is_valid(instance))
    }
    fn is_valid(&self, instance: &'i Value) -> bool {
        let kind = kind_of(instance);
        self.0.iter().any(|wanted| {
            wanted == kind
                || matches!(instance, Value::Number(number)
                    if wanted == "integer" && (is_whole(number.as_str()) || Decimal::of(number).is_integer()))
        })
    }
}

/// Digits and nothing else.
fn is_whole(number: &str) -> bool {
    number.bytes().all(|byte| byte.is_ascii_digit())
}

fn verdict<'i>(holds: bool) -> Result<(), ValidationError<'i>> {
    if holds { Ok(()) } else { Err(ValidationError::custom("")) }
}
