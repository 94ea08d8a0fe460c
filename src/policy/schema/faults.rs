//! What a schema found wrong, as faults: one for each place, with what is wanted there and what came.

use std::collections::HashSet;

use jsonschema::ValidationError;
use jsonschema::error::ValidationErrorKind;
use serde_json::Value;

use super::decimal::Decimal;
use super::words::{self, cut, quoted};
use crate::call::Fault;
use crate::call::arguments::kind_of;
use crate::call::outcome::MAX_FAULTS;
use crate::call::pointer::push_token;

/// How deep a failed `anyOf` or `oneOf` is followed into the one branch that was meant.
const MAX_BRANCHES_DEEP: usize = 8;

/// Every fault of one judgement, at most [`MAX_FAULTS`], undeclared fields last.
pub(super) fn gather<'e>(
    source: &Value,
    errors: impl Iterator<Item = ValidationError<'e>>,
) -> Vec<Fault> {
    let mut found =
        Found { source, faults: Vec::new(), strangers: Vec::new(), seen: HashSet::new() };
    errors.for_each(|error| found.add(&error, 0));
    let mut faults = found.faults;
    faults.append(&mut found.strangers);
    faults.truncate(MAX_FAULTS);
    faults
}

/// What is wanted where an undeclared field stands.
pub(super) fn no_such_field(fields: &[String]) -> String {
    match fields {
        [] => "no such field; there are none here".to_owned(),
        [only] => format!("no such field; the only one is {only}"),
        several => {
            format!("no such field; the fields are {}", words::list(several.iter().cloned()))
        }
    }
}

fn unexpected(kind: &ValidationErrorKind) -> Option<&[String]> {
    if let ValidationErrorKind::AdditionalProperties { unexpected }
    | ValidationErrorKind::UnevaluatedProperties { unexpected } = kind
    {
        Some(unexpected)
    } else {
        None
    }
}

fn branches(kind: &ValidationErrorKind) -> Option<&[Vec<ValidationError<'static>>]> {
    if let ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } =
        kind
    {
        Some(context)
    } else {
        None
    }
}

/// Faults gathered from one judgement; one for each place and schema, whatever the number of keywords that failed.
struct Found<'s> {
    source: &'s Value,
    faults: Vec<Fault>,
    /// Undeclared fields, told last: there may be many, and they must not hide what is missing.
    strangers: Vec<Fault>,
    seen: HashSet<(String, String)>,
}

impl Found<'_> {
    fn add(&mut self, error: &ValidationError<'_>, deep: usize) {
        let at = error.instance_path().to_string();
        let schema_path = error.schema_path().to_string();
        let parent = schema_path.rsplit_once('/').map_or("", |(parent, _)| parent);
        if let ValidationErrorKind::Required { property } = error.kind() {
            self.missing(&at, property.as_str().unwrap_or_default(), parent);
        } else if let Some(unexpected) = unexpected(error.kind()) {
            self.unexpected(&at, unexpected, error.instance());
        } else if let Some(branches) = branches(error.kind()).filter(|_| deep < MAX_BRANCHES_DEEP) {
            self.branches(error, branches, &at, parent, deep);
        } else if matches!(error.kind(), ValidationErrorKind::FalseSchema) {
            let got = kind_of(error.instance()).to_owned();
            self.push(at, &schema_path, "no such field".to_owned(), got);
        } else if matches!(error.kind(), ValidationErrorKind::PropertyNames { .. }) {
            let names = self.schema_at(&format!("{parent}/propertyNames"));
            let wanted = format!("field names: {}", self.wanted(names));
            let got = names_of(error.instance());
            self.push(at, parent, wanted, got);
        } else {
            let keyword = schema_path.rsplit('/').next().unwrap_or_default();
            let wanted = self.keyword_words(error.kind(), parent);
            let got = got(error.instance(), keyword);
            self.push(at, parent, wanted, got);
        }
    }

    fn push(&mut self, at: String, schema: &str, expected: String, got: String) {
        if self.faults.len() < MAX_FAULTS && self.seen.insert((at.clone(), schema.to_owned())) {
            self.faults.push(Fault { at, expected: expected.into(), got: got.into() });
        }
    }

    fn schema_at(&self, pointer: &str) -> Option<&Value> {
        self.source.pointer(pointer)
    }

    fn wanted(&self, schema: Option<&Value>) -> String {
        schema.map_or_else(|| "a matching value".to_owned(), |s| words::wanted(s, self.source))
    }

    fn keyword_words(&self, kind: &ValidationErrorKind, parent: &str) -> String {
        if let ValidationErrorKind::Not { schema } = kind {
            format!("anything but {}", words::wanted(schema, self.source))
        } else if matches!(kind, ValidationErrorKind::OneOfMultipleValid { .. }) {
            format!("exactly one of: {}", self.wanted(self.schema_at(parent)))
        } else if matches!(kind, ValidationErrorKind::Contains) {
            let item = self.schema_at(&format!("{parent}/contains"));
            format!("array that holds {}", self.wanted(item))
        } else if matches!(kind, ValidationErrorKind::UnevaluatedItems { .. }) {
            "array without further items".to_owned()
        } else {
            self.wanted(self.schema_at(parent))
        }
    }

    fn missing(&mut self, at: &str, name: &str, parent: &str) {
        let mut place = at.to_owned();
        push_token(&mut place, name);
        let declared = self
            .schema_at(parent)
            .and_then(|schema| schema.get("properties"))
            .and_then(|properties| properties.get(name));
        let expected = match declared {
            Some(schema) => format!("required, {}", words::wanted(schema, self.source)),
            None => "required".to_owned(),
        };
        self.push(place, "required", expected, "missing".to_owned());
    }

    fn unexpected(&mut self, at: &str, names: &[String], instance: &Value) {
        let fields = declared_fields(self.source, at);
        let expected = no_such_field(&fields);
        for name in names {
            let mut place = at.to_owned();
            push_token(&mut place, name);
            let value = instance.get(name).unwrap_or(&Value::Null);
            let got = wrapped(value, &fields).unwrap_or_else(|| kind_of(value).to_owned());
            if self.strangers.len() == MAX_FAULTS {
                return;
            }
            if self.seen.insert((place.clone(), "unexpected".to_owned())) {
                let (at, expected) = (cut(&place, 200), expected.clone().into());
                self.strangers.push(Fault { at, expected, got: got.into() });
            }
        }
    }

    /// A failed choice: told by the one branch that was meant, where types show which.
    fn branches(
        &mut self,
        error: &ValidationError<'_>,
        context: &[Vec<ValidationError<'static>>],
        at: &str,
        parent: &str,
        deep: usize,
    ) {
        let of_other_type = |branch: &[ValidationError<'static>]| {
            branch.iter().any(|inner| {
                let path = inner.schema_path();
                inner.instance_path().as_str() == at && path.as_str().ends_with("/type")
            })
        };
        let mut meant = context.iter().filter(|branch| !of_other_type(branch));
        match (meant.next(), meant.next()) {
            (Some(branch), None) => branch.iter().for_each(|inner| self.add(inner, deep + 1)),
            (Some(_), Some(_)) | (None, _) => {
                let wanted = self.wanted(self.schema_at(parent));
                let got = got(error.instance(), "anyOf");
                self.push(at.to_owned(), parent, wanted, got);
            }
        }
    }
}

fn got(value: &Value, keyword: &str) -> String {
    match value {
        Value::Number(number) if Decimal::of(number).is_lossy_fraction() => {
            format!("{}, which a double cannot hold", quoted(value))
        }
        Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_) => words::got(value, keyword),
    }
}

fn names_of(instance: &Value) -> String {
    let names = instance.as_object().map(|members| members.keys().cloned().collect::<Vec<_>>());
    cut(&words::list(names.unwrap_or_default().into_iter()), 80)
}

/// Arguments that were put one level too deep: `{"arguments": {"order_id": …}}`.
fn wrapped(value: &Value, fields: &[String]) -> Option<String> {
    let inner = value.as_object()?;
    let held = fields.iter().find(|field| inner.contains_key(field.as_str()))?;
    Some(format!("an object that holds {held}: put its fields one level higher"))
}

/// The fields that the schema declares for the object at `at`, followed by the simple keywords only.
fn declared_fields(source: &Value, at: &str) -> Vec<String> {
    let mut schemas = resolve_all(source, vec![source]);
    for token in at.split('/').skip(1) {
        let name = token.replace("~1", "/").replace("~0", "~");
        let next = schemas
            .iter()
            .filter_map(|schema| {
                let member = schema.get("properties").and_then(|all| all.get(&name));
                let index = name.parse::<usize>().ok();
                member
                    .or_else(|| index.and_then(|index| schema.get("prefixItems")?.get(index)))
                    .or_else(|| index.and(schema.get("items")))
                    .or_else(|| schema.get("additionalProperties"))
            })
            .collect();
        schemas = resolve_all(source, next);
    }
    let mut names: Vec<String> = Vec::new();
    for schema in schemas {
        for name in schema
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flat_map(|all| all.keys())
        {
            if !names.contains(name) {
                names.push(cut(name, 64));
            }
        }
    }
    names
}

/// The schemas with those they point to, and their branches.
fn resolve_all<'s>(source: &'s Value, mut schemas: Vec<&'s Value>) -> Vec<&'s Value> {
    let mut next = 0;
    while let Some(schema) = schemas.get(next).copied() {
        next += 1;
        if schemas.len() > 64 {
            break;
        }
        if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
            schemas.extend(target.strip_prefix('#').and_then(|pointer| source.pointer(pointer)));
        }
        for branches in ["allOf", "anyOf", "oneOf"] {
            schemas.extend(schema.get(branches).and_then(Value::as_array).into_iter().flatten());
        }
    }
    schemas
}
