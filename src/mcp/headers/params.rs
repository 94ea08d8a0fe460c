//! `x-mcp-header`: parameters of a tool that are mirrored into `Mcp-Param-*` headers.
//!
//! A definition that breaks one of the rules loses its tool (2026-07-28, Streamable HTTP, schema extension).

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::{Map, Value};

use super::number::Exact;
use super::{Mismatch, PARAM_PREFIX, decode, encode, is_token};

const ANNOTATION: &str = "x-mcp-header";

/// The type of a mirrored parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamKind {
    Text,
    Integer,
    Boolean,
}

/// One parameter that a tool wants mirrored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamHeader {
    /// The whole header name, lower case: `mcp-param-region`.
    pub header: String,
    /// The names of the properties that lead to it.
    pub path: Vec<String>,
    pub kind: ParamKind,
}

/// Finds the mirrored parameters of an `inputSchema`, or says which rule it breaks: the annotation is a non-empty field
/// name, unique without regard to case, on a string, integer or boolean that `properties` alone lead to.
///
/// The schema's depth must be bounded before.
pub fn param_headers(input_schema: &Value) -> Result<Vec<ParamHeader>, String> {
    let mut walk = Walk { found: Vec::new(), open: Vec::new(), names: HashSet::new() };
    walk.open.push((Some(Vec::new()), input_schema));
    while let Some((path, schema)) = walk.open.pop() {
        let Value::Object(members) = schema else { continue };
        walk.annotation(path.as_deref(), members)?;
        walk.below(path.as_deref(), members);
    }
    walk.found.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(walk.found)
}

/// A schema yet to be looked at; `None` where anything but `properties` leads to it.
type Place<'s> = (Option<Vec<String>>, &'s Value);

struct Walk<'s> {
    found: Vec<ParamHeader>,
    open: Vec<Place<'s>>,
    names: HashSet<String>,
}

impl<'s> Walk<'s> {
    fn annotation(
        &mut self,
        path: Option<&[String]>,
        members: &Map<String, Value>,
    ) -> Result<(), String> {
        let Some(annotation) = members.get(ANNOTATION) else { return Ok(()) };
        let Some(path) = path.filter(|path| !path.is_empty()) else {
            return Err(format!("`{ANNOTATION}` on what `properties` alone do not lead to"));
        };
        let Some(name) = annotation.as_str().filter(|name| is_token(name)) else {
            return Err(format!("`{ANNOTATION}` must be a field name"));
        };
        let header = format!("{PARAM_PREFIX}{}", name.to_ascii_lowercase());
        let Some(kind) = kind_of(members.get("type")) else {
            return Err(format!("`{ANNOTATION}: {name}` is on no string, integer or boolean"));
        };
        if !self.names.insert(header.clone()) {
            return Err(format!("`{ANNOTATION}: {name}` stands more than once"));
        }
        self.found.push(ParamHeader { header, path: path.to_vec(), kind });
        Ok(())
    }

    fn below(&mut self, path: Option<&[String]>, members: &'s Map<String, Value>) {
        for (keyword, value) in members {
            match (keyword.as_str(), value) {
                // values, not schemas
                ("const" | "enum" | "default" | "examples", _) => {}
                ("properties", Value::Object(properties)) => {
                    for (name, schema) in properties {
                        let path = path.map(|path| [path, std::slice::from_ref(name)].concat());
                        self.open.push((path, schema));
                    }
                }
                (
                    "patternProperties" | "$defs" | "definitions" | "dependentSchemas",
                    Value::Object(schemas),
                ) => {
                    self.open.extend(schemas.values().map(|schema| (None, schema)));
                }
                (_, Value::Array(items)) => {
                    self.open.extend(items.iter().map(|schema| (None, schema)));
                }
                (_, schema) => self.open.push((None, schema)),
            }
        }
    }
}

/// The type named alone, or beside `null`: a null is mirrored by no header at all.
fn kind_of(types: Option<&Value>) -> Option<ParamKind> {
    let one = match types? {
        Value::String(one) => one.as_str(),
        Value::Array(types) => {
            let mut names = types.iter().filter(|name| name.as_str() != Some("null"));
            let one = names.next()?.as_str()?;
            if names.next().is_some() {
                return None;
            }
            one
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => return None,
    };
    match one {
        "string" => Some(ParamKind::Text),
        "integer" => Some(ParamKind::Integer),
        "boolean" => Some(ParamKind::Boolean),
        _ => None,
    }
}

impl ParamHeader {
    /// The header's value for these arguments, encoded; `None` where there is no value or a null. An error where the
    /// value cannot be mirrored: of another type, or an integer beyond ±(2^53 − 1).
    pub fn value(&self, arguments: Option<&Value>) -> Result<Option<String>, Mismatch> {
        let Some(value) = self.body(arguments) else { return Ok(None) };
        let text = self.text(value)?;
        Ok(Some(encode(&text).into_owned()))
    }

    /// Compares the header as it came with the body; integers as numbers, so that `42.0` is `42`.
    pub fn check(&self, header: Option<&[u8]>, arguments: Option<&Value>) -> Result<(), Mismatch> {
        let wrong = |words: &'static str| Mismatch::new(&self.header, words);
        let (header, value) = match (header, self.body(arguments)) {
            (None, None) => return Ok(()),
            (Some(_), None) => return Err(wrong("is there and the body has no such value")),
            (None, Some(_)) => return Err(wrong("is missing")),
            (Some(header), Some(value)) => (header, value),
        };
        let text = decode(header).map_err(wrong)?;
        let same = match (self.kind, value) {
            (ParamKind::Integer, Value::Number(number)) => {
                let told = Exact::parse(&text);
                told.is_some() && told == Exact::parse(&number.to_string())
            }
            (ParamKind::Integer | ParamKind::Text | ParamKind::Boolean, _) => {
                text == self.text(value)?
            }
        };
        if same { Ok(()) } else { Err(wrong("is not what the body says")) }
    }

    /// The value at the exact path; a null counts as none.
    fn body<'v>(&self, arguments: Option<&'v Value>) -> Option<&'v Value> {
        let value = self.path.iter().try_fold(arguments?, |value, name| value.get(name))?;
        (!value.is_null()).then_some(value)
    }

    fn text<'v>(&self, value: &'v Value) -> Result<Cow<'v, str>, Mismatch> {
        let text = match (self.kind, value) {
            (ParamKind::Text, Value::String(text)) => Some(Cow::Borrowed(text.as_str())),
            (ParamKind::Boolean, Value::Bool(truth)) => Some(truth.to_string().into()),
            (ParamKind::Integer, Value::Number(number)) => {
                let number = Exact::parse(&number.to_string());
                number.and_then(|number| number.safe_integer()).map(|n| n.to_string().into())
            }
            (ParamKind::Text | ParamKind::Boolean | ParamKind::Integer, _) => None,
        };
        text.ok_or_else(|| Mismatch::new(&self.header, "mirrors a value that no header can carry"))
    }
}
