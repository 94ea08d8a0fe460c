//! References out of the file: to secrets, which are never quoted, and to JSON Schemas.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::read::{Kind, Report};
use super::tree::{Node, NodeKind};
use crate::policy::diagnostic::Problem;

/// Where a secret is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SecretRef {
    File(PathBuf),
    Env(String),
}

impl std::fmt::Display for SecretRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SecretRef::File(path) => write!(f, "file {}", path.display()),
            SecretRef::Env(name) => write!(f, "env {name}"),
        }
    }
}

pub(crate) fn is_env_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_uppercase() || c == '_')
        && text.len() <= 128
        && text.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

/// `{ file: /abs/path }` or `{ env: NAME }`. Whatever else stands there is never quoted.
pub(crate) struct SecretKind;

impl Kind for SecretKind {
    type Out = SecretRef;

    fn read(&self, node: &Node, report: &mut Report) -> Option<SecretRef> {
        let literal = |place, report: &mut Report| {
            let message = format!(
                "`{}` holds a literal where a reference to a secret belongs",
                report.path()
            );
            report.push(Problem::new("CR1006", place, message).hint(
                "write `{ file: /absolute/path }` or `{ env: NAME }`, and change a secret that stood here",
            ));
            None
        };
        let NodeKind::Map(entries) = &node.kind else { return literal(node.place, report) };
        match entries.as_slice() {
            [(key, value)] if key.text == "file" || key.text == "env" => {
                let NodeKind::Scalar { text, .. } = &value.kind else {
                    return literal(value.place, report);
                };
                match key.text.as_str() {
                    "file" if text.starts_with('/') => Some(SecretRef::File(text.into())),
                    "env" if is_env_name(text) => Some(SecretRef::Env(text.clone())),
                    kind => {
                        let expected = match kind {
                            "file" => "an absolute path",
                            _env => "an environment variable's name (A-Z, 0-9 and _)",
                        };
                        let message = format!("`{}.{kind}` is not {expected}", report.path());
                        report.push(Problem::new("CR1006", value.place, message));
                        None
                    }
                }
            }
            entries => {
                let message = format!("`{}` is no reference to a secret", report.path());
                let place = entries.first().map_or(node.place, |(key, _)| key.place);
                report.push(
                    Problem::new("CR1006", place, message)
                        .hint("write either `{ file: /absolute/path }` or `{ env: NAME }`"),
                );
                None
            }
        }
    }

    fn schema(&self, defs: &mut Map<String, Value>) -> Value {
        defs.entry("secret").or_insert_with(|| {
            json!({
                "type": "object",
                "description": "A reference; a literal is refused. Files are read again when they change.",
                "properties": {
                    "file": { "type": "string", "pattern": "^/" },
                    "env": { "type": "string", "pattern": "^[A-Z_][A-Z0-9_]*$" },
                },
                "additionalProperties": false,
                "minProperties": 1,
                "maxProperties": 1,
            })
        });
        json!({ "$ref": "#/$defs/secret" })
    }
}

/// A JSON Schema, inline or beside the policy.
#[derive(Debug, Clone, PartialEq)]
pub enum SchemaSource {
    /// The schema, and the tree it was read from: `node.at(tokens)` finds a place inside it.
    Inline { value: Value, node: Node },
    /// A path below the policy's directory.
    File { path: PathBuf },
}

pub(crate) struct SchemaKind;

impl Kind for SchemaKind {
    type Out = SchemaSource;

    fn read(&self, node: &Node, report: &mut Report) -> Option<SchemaSource> {
        let NodeKind::Map(entries) = &node.kind else {
            report.wrong("CR1004", node, "a JSON Schema or `{ file: path }`");
            return None;
        };
        match entries.as_slice() {
            [] => {
                report.push(
                    Problem::new("CR1004", node.place, format!("`{}` is empty", report.path()))
                        .label("say at least `type: object`"),
                );
                None
            }
            [(key, value)] if key.text == "file" => {
                let NodeKind::Scalar { text, .. } = &value.kind else {
                    report.wrong("CR1004", value, "a relative path");
                    return None;
                };
                let path = PathBuf::from(text);
                let inside = !text.is_empty()
                    && path.components().all(|c| matches!(c, std::path::Component::Normal(_)));
                if !inside {
                    report.wrong("CR1004", value, "a path below the policy's directory");
                    return None;
                }
                Some(SchemaSource::File { path })
            }
            _inline => match node.to_json() {
                Ok(value) => Some(SchemaSource::Inline { value, node: node.clone() }),
                Err(problem) => {
                    report.push(problem);
                    None
                }
            },
        }
    }

    fn schema(&self, defs: &mut Map<String, Value>) -> Value {
        defs.entry("json_schema").or_insert_with(|| {
            json!({
                "description": "JSON Schema 2020-12, inline or `{ file: path }` beside the policy. Local $ref only.",
                "type": "object",
                "minProperties": 1,
            })
        });
        json!({ "$ref": "#/$defs/json_schema" })
    }
}
