//! JSON Schema (Draft 2020-12): compiled once at load, judged per call, in words a model can act on.
//!
//! Nothing is ever fetched, patterns run in linear time, and numbers are compared by their digits, not as doubles.

mod closing;
mod decimal;
mod dialect;
mod faults;
mod keywords;
mod misspelt;
mod nearest;
mod subschemas;
mod words;

use std::fmt;
use std::sync::Arc;

use jsonschema::{Draft, PatternOptions, ValidationError};
use serde_json::Value;

use self::closing::Objects;
use self::keywords::{bound, kinds, options};
use self::nearest::Nearest;
use self::subschemas::References;
use self::words::{cut, quoted};
use crate::call::Fault;

/// Bytes of one compiled pattern, and of the cache its matching may use.
const PATTERN_BYTES: usize = 1 << 20;

/// Why a schema cannot be used: a sentence, and the JSON Pointer into the schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaFault {
    pub message: String,
    pub at: String,
}

impl SchemaFault {
    pub(crate) fn new(at: impl Into<String>, message: impl Into<String>) -> Self {
        Self { at: at.into(), message: message.into() }
    }
}

impl fmt::Display for SchemaFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = if self.at.is_empty() { "the schema" } else { &self.at };
        write!(f, "{at}: {}", self.message)
    }
}
impl std::error::Error for SchemaFault {}

/// A compiled schema and its (closed) source.
#[derive(Clone)]
pub struct Schema {
    source: Arc<Value>,
    validator: Arc<jsonschema::Validator>,
    /// For a schema whose faults cannot all be told: it leads to some values in too many ways.
    nearest: Option<Arc<Nearest>>,
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schema({})", self.source)
    }
}

impl Schema {
    /// Compiles `source`, with `close` closing its objects first (arguments are closed; constraints and
    /// expectations are not). References must stay inside the schema: no network and no file is touched.
    pub fn compile(source: &Value, close: bool) -> Result<Self, SchemaFault> {
        Self::build(source, close.then_some(Objects::All))
    }

    fn build(source: &Value, close: Option<Objects>) -> Result<Self, SchemaFault> {
        subschemas::check_size(source)?;
        misspelt::check(source)?;
        let references = References::check(source)?;
        let source = match close {
            Some(which) => closing::close(source, &references, which),
            None => source.clone(),
        };
        let options = engine();
        let broken = |error| compile_fault(&source, &error);
        let validator = options.build(&source).map_err(broken)?;
        let branches_out = References::check(&source)?.branches_out();
        let nearest =
            branches_out.then(|| options.build_map(&source)).transpose().map_err(broken)?;
        Ok(Self {
            validator: Arc::new(validator),
            nearest: nearest.map(|validators| Arc::new(Nearest::new(validators))),
            source: Arc::new(source),
        })
    }

    /// A schema of an MCP server, closed but for objects of which it names no member: Draft 2020-12, or draft-07 where
    /// `$schema` says so.
    pub fn of_server(source: &Value) -> Result<Self, SchemaFault> {
        if !dialect::is_draft_07(source) {
            return Self::build(source, Some(Objects::Named));
        }
        subschemas::check_size(source)?;
        Self::build(&dialect::modern(source, subschemas::MAX_DEPTH), Some(Objects::Named))
    }

    /// Whether a server's schema says the same in Draft 2020-12 as in the dialect it names.
    pub fn reads_the_same(source: &Value) -> bool {
        let mut bare = source.clone();
        if let Value::Object(members) = &mut bare {
            members.shift_remove("$schema");
        }
        dialect::is_draft_07(source) && dialect::modern(source, subschemas::MAX_DEPTH) == bare
    }

    /// The schema as models are shown it.
    pub fn source(&self) -> &Arc<Value> {
        &self.source
    }

    /// The same schema without one of its top members: neither shown nor taken.
    pub fn without(&self, member: &str) -> Result<Self, SchemaFault> {
        let mut source = Value::clone(&self.source);
        if let Some(properties) = source.get_mut("properties").and_then(Value::as_object_mut) {
            properties.shift_remove(member);
        }
        if let Some(Value::Array(required)) = source.get_mut("required") {
            required.retain(|name| name != member);
        }
        Self::compile(&source, true)
    }

    pub fn is_valid(&self, value: &Value) -> bool {
        self.validator.is_valid(value)
    }

    /// Every fault at once (at most [`crate::call::outcome::MAX_FAULTS`]), each by JSON Pointer; empty = valid.
    pub fn faults(&self, value: &Value) -> Vec<Fault> {
        if self.validator.is_valid(value) {
            return Vec::new();
        }
        if let Some(nearest) = &self.nearest {
            return nearest.faults(&self.source, value);
        }
        faults::gather(&self.source, self.validator.iter_errors(value))
    }
}

/// The crate, set up: nothing is fetched, patterns are linear, numbers are judged by their digits.
fn engine() -> jsonschema::ValidationOptions<'static> {
    jsonschema::options()
        .with_draft(Draft::Draft202012)
        .with_retriever(Nowhere)
        .with_pattern_options(
            PatternOptions::regex().size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES),
        )
        .with_keyword("minimum", |_, limit, _| bound(limit, |value, limit| value >= limit))
        .with_keyword("maximum", |_, limit, _| bound(limit, |value, limit| value <= limit))
        .with_keyword("exclusiveMinimum", |_, limit, _| bound(limit, |value, limit| value > limit))
        .with_keyword("exclusiveMaximum", |_, limit, _| bound(limit, |value, limit| value < limit))
        .with_keyword("multipleOf", |_, step, _| {
            bound(step, |value, step| value.is_multiple_of(step).unwrap_or(false))
        })
        .with_keyword("const", |_, value, _| options(std::slice::from_ref(value)))
        .with_keyword("enum", |_, values, _| options(values.as_array().map_or(&[], Vec::as_slice)))
        .with_keyword("type", |_, wanted, _| kinds(wanted))
}

/// Fetches nothing; [`References::check`] has refused what would ask it.
struct Nowhere;

impl jsonschema::Retrieve for Nowhere {
    fn retrieve(
        &self,
        _: &jsonschema::Uri<String>,
    ) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        Err("schemas are never fetched".into())
    }
}

/// Every subschema with its JSON Pointer, the root first; of a schema that compiles.
pub fn every_subschema(source: &Value) -> Vec<(String, &Value)> {
    subschemas::every(source)
}

fn compile_fault(source: &Value, error: &ValidationError<'_>) -> SchemaFault {
    // An error of the schema against its own dialect has its place in the *instance*, which is the schema.
    let at = error.instance_path().to_string();
    let at = if at.is_empty() { error.schema_path().to_string() } else { at };
    let pattern = match source.pointer(&at) {
        Some(Value::String(pattern)) if at.ends_with("/pattern") => Some(pattern.as_str()),
        Some(_) | None => match error.instance().as_ref() {
            Value::String(pattern) if at.contains("attern") => Some(pattern.as_str()),
            Value::String(_)
            | Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_) => None,
        },
    };
    let message = match pattern {
        Some(pattern) if LOOK_AROUND.iter().any(|sign| pattern.contains(sign)) => format!(
            "the pattern {} uses look-around, which the linear-time engine does not have; say it by several patterns in `allOf`, or by `not`",
            quoted(&Value::String(pattern.to_owned()))
        ),
        Some(pattern) => format!(
            "the pattern {} is not one the linear-time engine can compile within {PATTERN_BYTES} bytes: an open bracket, or what it does not know (look-around, back-references)",
            quoted(&Value::String(pattern.to_owned()))
        ),
        None if at.ends_with("/type") => format!(
            "{} is no type; the types are {TYPES}",
            quoted(source.pointer(&at).unwrap_or(error.instance().as_ref()))
        ),
        None => cut(&error.to_string(), 300),
    };
    SchemaFault::new(at, message)
}

const TYPES: &str = "string, number, integer, boolean, object, array and null";
const LOOK_AROUND: &[&str] = &["(?=", "(?!", "(?<=", "(?<!"];

#[cfg(test)]
mod tests;
