//! What a policy refers to outside itself: schema files beside it, and secrets. Read once per load, bounded, no network.

use std::collections::{BTreeMap, HashMap};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::diagnostic::{Level, Problem};
use super::document::kinds::{SchemaSource, SecretRef};
use super::document::mcp::{EnvValue, Pin};
use super::document::{At, Document, Maybe, tree};
use super::pins;
use super::snapshot::{Secret, SecretText};
use crate::strict_json::{self, Limits};

/// Longest included schema file.
const MAX_SCHEMA_BYTES: usize = tree::MAX_BYTES;
/// Longest secret: a PEM bundle of roots is the largest of them.
const MAX_SECRET_BYTES: usize = 1024 * 1024;

/// Everything read besides the policy itself.
#[derive(Debug, Default)]
pub struct Material {
    /// By path below the policy's directory: the schema, or why there is none.
    pub schemas: BTreeMap<PathBuf, Result<Value, String>>,
    /// The bytes behind `schemas`, for the revision.
    pub included: BTreeMap<PathBuf, Vec<u8>>,
    /// Files of pins by path below the policy's directory: what they pin, or why they do not.
    pub pins: BTreeMap<PathBuf, Result<BTreeMap<String, String>, String>>,
    pub secrets: HashMap<SecretRef, Secret>,
    /// Every file that was read or looked for; a reload watches them.
    pub files: Vec<PathBuf>,
}

impl Material {
    /// Reads what the document names. `directory` is the policy's.
    pub fn gather(
        document: &Document,
        directory: &Path,
        offline: bool,
    ) -> (Material, Vec<Problem>) {
        let mut material = Material::default();
        let mut problems = Vec::new();
        for source in schema_sources(document) {
            if let SchemaSource::File { path } = &source.value {
                material.include(path, directory);
            }
        }
        for pin in document.mcp_servers.values().filter_map(|at| at.value.pin.as_ref()) {
            if let Pin::File(path) = &pin.value
                && let Err(why) = material.pin(path, directory)
            {
                let message = format!("the file of pins ({}) {why}", path.display());
                let hint = "write it by a review of what the server offers; without it no tool of the server would be known";
                problems.push(Problem::new("CR1004", pin.place, message).hint(hint));
            }
        }
        let of_children = child_secrets(document);
        for reference in secret_refs(document).into_iter().chain(&of_children) {
            if !material.secrets.contains_key(&reference.value) {
                let secret = material.secret(reference, offline, &mut problems);
                material.secrets.insert(reference.value.clone(), secret);
            }
        }
        (material, problems)
    }

    /// The secret of a reference; one that was never gathered holds nothing.
    pub fn secret_of(&self, reference: &SecretRef) -> Secret {
        let nothing = || Secret { origin: reference.to_string().into(), value: None };
        self.secrets.get(reference).cloned().unwrap_or_else(nothing)
    }

    fn include(&mut self, path: &Path, directory: &Path) {
        if self.schemas.contains_key(path) {
            return;
        }
        let full = directory.join(path);
        self.files.push(full.clone());
        let read = read_bounded(&full, MAX_SCHEMA_BYTES);
        let schema = read.and_then(|bytes| {
            let schema = parse_schema(path, &bytes);
            self.included.insert(path.to_owned(), bytes);
            schema
        });
        self.schemas.insert(path.to_owned(), schema);
    }

    fn pin(&mut self, path: &Path, directory: &Path) -> Result<(), String> {
        if let Some(read) = self.pins.get(path) {
            return read.as_ref().map(drop).map_err(String::clone);
        }
        let full = directory.join(path);
        self.files.push(full.clone());
        let pins = read_bounded(&full, pins::MAX_BYTES).and_then(|bytes| {
            let pins = pins::parse(&bytes);
            self.included.insert(path.to_owned(), bytes);
            pins
        });
        let told = pins.as_ref().map(drop).map_err(String::clone);
        self.pins.insert(path.to_owned(), pins);
        told
    }

    fn secret(
        &mut self,
        reference: &At<SecretRef>,
        offline: bool,
        problems: &mut Vec<Problem>,
    ) -> Secret {
        let origin: Arc<str> = reference.value.to_string().into();
        let found = match &reference.value {
            SecretRef::Env(name) => {
                std::env::var(name).map_err(|_| "is not set, or is not UTF-8".to_owned())
            }
            SecretRef::File(path) => {
                self.files.push(path.clone());
                if readable_by_others(path) {
                    let message = format!("the secret ({origin}) is readable by others");
                    problems.push(
                        Problem::new("CR3010", reference.place, message)
                            .hint("take the read permission from others: `chmod o-r`"),
                    );
                }
                read_bounded(path, MAX_SECRET_BYTES).and_then(|bytes| {
                    String::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())
                })
            }
        };
        let value = match found {
            Err(why) => {
                let level = if offline { Level::Warning } else { Level::Error };
                let message = format!("the secret ({origin}) {why}");
                let problem = Problem::new("CR3010", reference.place, message).level(level);
                problems.push(problem.hint("check without secrets by `checkrein check --offline`"));
                None
            }
            Ok(text) => {
                // Editors and `echo` end a file by a line break; no credential does.
                let text = text.trim_end_matches(['\n', '\r']);
                if text.is_empty() {
                    let message = format!("the secret ({origin}) is empty");
                    problems.push(Problem::new("CR3010", reference.place, message));
                }
                (!text.is_empty()).then(|| SecretText(text.into()))
            }
        };
        Secret { origin, value }
    }
}

fn read_bounded(path: &Path, most: usize) -> Result<Vec<u8>, String> {
    let bytes =
        read_at_most(path, most as u64 + 1).map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() > most {
        return Err(format!("is longer than {most} bytes"));
    }
    Ok(bytes)
}

/// The first bytes of a regular file. Opening a pipe would wait for its writer, so nothing else is opened.
pub(super) fn read_at_most(path: &Path, most: u64) -> std::io::Result<Vec<u8>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(unix)]
fn readable_by_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path).is_ok_and(|meta| meta.permissions().mode() & 0o004 != 0)
}

#[cfg(not(unix))]
fn readable_by_others(_path: &Path) -> bool {
    false
}

fn parse_schema(path: &Path, bytes: &[u8]) -> Result<Value, String> {
    let yaml = path.extension().is_some_and(|ext| ext == "yaml" || ext == "yml");
    if !yaml {
        return strict_json::parse(bytes, Limits::answer(MAX_SCHEMA_BYTES))
            .map_err(|fault| format!("is not JSON: {fault}"));
    }
    let parsed = tree::parse(bytes);
    let wrong = |problem: &Problem| format!("line {}: {}", problem.place.line, problem.message);
    match (parsed.problems.first(), parsed.root) {
        (Some(problem), _) => Err(wrong(problem)),
        (None, None) => Err("is empty".to_owned()),
        (None, Some(root)) => root.to_json().map_err(|problem| wrong(&problem)),
    }
}

/// Every schema of the document.
fn schema_sources(document: &Document) -> Vec<&At<SchemaSource>> {
    let tools = document.tools.values().flat_map(|tool| {
        let expect = tool.value.result.as_ref().and_then(|result| result.value.expect.as_ref());
        tool.value.schema.iter().chain(expect)
    });
    let entries = document.mcp_servers.values().flat_map(|at| at.value.tools.values());
    let entries = entries.flat_map(|at| {
        let entry = &at.value;
        let expect = entry.tool.result.as_ref().and_then(|result| result.value.expect.as_ref());
        entry.tool.schema.iter().chain(expect).chain(&entry.constraints)
    });
    let agents = document.agents.values();
    let constraints = agents.filter_map(|agent| agent.value.constraints.as_ref());
    tools.chain(entries).chain(constraints.flat_map(|map| map.value.values())).collect()
}

/// Every reference to a secret in the document.
fn secret_refs(document: &Document) -> Vec<&At<SecretRef>> {
    let mut refs: Vec<&At<SecretRef>> = Vec::new();
    for agent in document.agents.values() {
        for identity in agent.value.identities.iter().flat_map(|list| &list.value) {
            refs.extend(&identity.value.token);
        }
    }
    for (_, upstream) in document.all_upstreams() {
        refs.extend(&upstream.ca);
        let Some(auth) = upstream.auth.as_ref().map(|at| &at.value) else { continue };
        refs.extend(&auth.bearer);
        if let Some(basic) = &auth.basic {
            refs.extend(&basic.value.username);
            refs.extend(&basic.value.password);
        }
        refs.extend(auth.header.iter().filter_map(|header| header.value.value.as_ref()));
    }
    refs
}

/// Secrets of the environments of children.
fn child_secrets(document: &Document) -> Vec<At<SecretRef>> {
    let servers = document.mcp_servers.values();
    let values = servers.flat_map(|at| at.value.env.iter()).flat_map(|env| env.value.values());
    values
        .filter_map(|at| match &at.value {
            EnvValue::Secret(secret) => Some(At {
                value: secret.clone(),
                key: at.key,
                place: at.place,
                last_line: at.last_line,
            }),
            EnvValue::Text(_) => None,
        })
        .collect()
}

/// A reference that may be absent, resolved.
pub(crate) fn resolve(material: &Material, reference: &Maybe<SecretRef>) -> Option<Secret> {
    reference.as_ref().map(|at| material.secret_of(&at.value))
}
