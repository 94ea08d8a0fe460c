//! From the document as written to one that can be obeyed: schemas compiled, rules judged, every problem at once.
//!
//! A broken schema in a file beside the policy leaves out its tool alone; everything else that is an error refuses
//! the whole file.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::diagnostic::{self, Level, Place, Problem};
use super::document::kinds::SchemaSource;
use super::document::{At, Document, Tool};
use super::lint;
use super::material::Material;
use super::schema::Schema;
use super::snapshot::{BrokenTool, Revision};
use crate::call::pointer::Pointer;
use crate::call::{Digest, ToolName};

/// What the lints judge: the document, and every tool's closed, compiled schema (absent where it is broken).
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    pub document: &'a Document,
    pub schemas: &'a HashMap<String, Schema>,
    pub(super) entries: &'a HashMap<(String, String), EntryParts>,
}

/// A document without errors, with everything it needs. Only [`check`] makes one.
#[derive(Debug)]
pub struct Checked<'a> {
    pub(super) document: &'a Document,
    pub(super) material: &'a Material,
    /// By tool.
    pub(super) schemas: HashMap<String, Schema>,
    /// Of tools that take their key as an argument: the schema without it.
    pub(super) shown: HashMap<String, Schema>,
    /// `result.expect`, by tool.
    pub(super) expects: HashMap<String, Schema>,
    /// By agent and tool.
    pub(super) constraints: HashMap<(String, String), Schema>,
    /// Of entries of servers, by server and pattern.
    pub(super) entries: HashMap<(String, String), EntryParts>,
    pub(super) broken: Vec<BrokenTool>,
    pub(super) revision: Revision,
}

/// What an entry of a server holds of JSON Schema.
#[derive(Debug, Default)]
pub(super) struct EntryParts {
    /// In place of the server's; closed.
    pub(super) schema: Option<Schema>,
    pub(super) constraints: Option<Arc<Value>>,
    pub(super) expect: Option<Schema>,
}

/// Judges a document. `form` are the problems its reading and its material already gave; all of them come back,
/// sorted, with those found here. `None` when any is an error.
pub fn check<'a>(
    document: &'a Document,
    material: &'a Material,
    bytes: &[u8],
    form: Vec<Problem>,
) -> (Option<Checked<'a>>, Vec<Problem>) {
    let mut problems = form;
    let mut compiler = Compiler { material, problems: Vec::new(), broken: Vec::new() };
    let mut schemas = HashMap::new();
    let mut shown = HashMap::new();
    let mut expects = HashMap::new();
    for (name, tool) in &document.tools {
        let expect = tool.value.result.as_ref().and_then(|result| result.value.expect.as_ref());
        if let Some(source) = &tool.value.schema {
            let compiled = compiler.for_tool(name, "schema", source, true);
            if let Some(schema) = &compiled {
                shown.extend(compiler.shown(name, &tool.value, schema));
            }
            schemas.extend(compiled.map(|schema| (name.clone(), schema)));
        }
        if let Some(source) = expect {
            let compiled = compiler.for_tool(name, "result.expect", source, false);
            expects.extend(compiled.map(|schema| (name.clone(), schema)));
        }
    }
    let entries = entries(document, &mut compiler);
    let constraints = constraints(document, &mut compiler);
    let Compiler { problems: found, broken, .. } = compiler;
    problems.extend(found);
    let facts = Facts { document, schemas: &schemas, entries: &entries };
    let whole = lint::lint(facts);
    problems.extend(sound_only(document, &problems, whole));
    for problem in &mut problems {
        if problem.file.is_empty() {
            problem.file = Arc::clone(&document.file);
        }
    }
    diagnostic::sort(&mut problems);
    if diagnostic::worst(&problems) == Some(Level::Error) {
        return (None, problems);
    }
    let revision = revision(bytes, material);
    let checked = Checked {
        document,
        material,
        schemas,
        shown,
        expects,
        constraints,
        entries,
        broken,
        revision,
    };
    (Some(checked), problems)
}

/// First 12 hexadecimal digits of SHA-256 over the policy and every file it includes; never over a secret.
fn revision(bytes: &[u8], material: &Material) -> Revision {
    let mut parts: Vec<Vec<u8>> = vec![bytes.to_vec()];
    for (path, bytes) in &material.included {
        parts.push(path.to_string_lossy().into_owned().into_bytes());
        parts.push(bytes.clone());
    }
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    Revision(Digest::of_parts(&parts).short_hex(6).into())
}

/// Findings about what is already known to be misshapen are left out: they would only follow from it.
fn sound_only(document: &Document, form: &[Problem], found: Vec<Problem>) -> Vec<Problem> {
    let mut spans: Vec<(u32, u32)> = Vec::new();
    spans.extend(document.tools.values().map(lines));
    spans.extend(document.agents.values().map(lines));
    spans.extend(document.upstreams.values().map(lines));
    spans.extend(document.mcp_servers.values().map(lines));
    spans.extend(document.runs.values().map(lines));
    spans.extend(document.profiles.values().map(lines));
    let errors = form.iter().filter(|p| p.level == Level::Error && p.code < "CR2000");
    let mut broken = Vec::new();
    for error in errors {
        let line = error.place.line;
        match spans.iter().find(|(first, last)| (*first..=*last).contains(&line)) {
            Some(span) => broken.push(*span),
            // A key that this build lacks says nothing about the others.
            None if error.code == "CR1009" => {}
            None => return Vec::new(),
        }
    }
    let sound =
        |p: &Problem| !broken.iter().any(|(first, last)| (*first..=*last).contains(&p.place.line));
    found.into_iter().filter(sound).collect()
}

fn lines<T>(entry: &At<T>) -> (u32, u32) {
    (entry.key.line, entry.last_line)
}

struct Compiler<'a> {
    material: &'a Material,
    problems: Vec<Problem>,
    broken: Vec<BrokenTool>,
}

impl Compiler<'_> {
    /// A schema of a tool. One that stands in a file of its own breaks that tool only.
    fn for_tool(
        &mut self,
        tool: &str,
        key: &str,
        source: &At<SchemaSource>,
        close: bool,
    ) -> Option<Schema> {
        match self.compile(&source.value, close) {
            Ok(schema) => return Some(schema),
            Err(fault) => {
                let message = format!("the `{key}` of `{tool}` {}", fault.message);
                let problem = Problem::new("CR1007", fault.place(source), message);
                match &source.value {
                    SchemaSource::Inline { .. } => self.problems.push(problem),
                    SchemaSource::File { .. } => {
                        if let Ok(name) = ToolName::new(tool) {
                            let why = problem.message.clone();
                            self.broken.push(BrokenTool { name, why });
                        }
                        let label = "this tool alone is left out";
                        self.problems.push(problem.level(Level::Warning).label(label));
                    }
                }
            }
        }
        None
    }

    /// What models are shown of a tool whose key is one of its arguments.
    fn shown(&mut self, name: &str, tool: &Tool, schema: &Schema) -> Option<(String, Schema)> {
        let idempotency = tool.write.as_ref()?.value.idempotency.as_ref()?;
        let member = idempotency.value.argument()?;
        match schema.without(&member) {
            Ok(shown) => Some((name.to_owned(), shown)),
            Err(fault) => {
                let message = format!("the `schema` of `{name}` needs its key `{member}`: {fault}");
                self.problems.push(Problem::new("CR1007", idempotency.key, message));
                None
            }
        }
    }

    fn compile(&self, source: &SchemaSource, close: bool) -> Result<Schema, Fault> {
        match source {
            SchemaSource::Inline { value, .. } => compile(value, close),
            SchemaSource::File { path } => match self.material.schemas.get(path.as_path()) {
                Some(Ok(value)) => compile(value, close).map_err(|fault| fault.in_file(path)),
                Some(Err(why)) => Err(Fault::whole(format!("({}) {why}", path.display()))),
                None => Err(Fault::whole(format!("({}) was not read", path.display()))),
            },
        }
    }
}

fn compile(value: &Value, close: bool) -> Result<Schema, Fault> {
    Schema::compile(value, close)
        .map_err(|fault| Fault { message: format!("is unusable: {fault}"), at: fault.at })
}

/// Why a schema is none, and where in it.
struct Fault {
    message: String,
    at: String,
}

impl Fault {
    fn whole(message: String) -> Self {
        Self { message, at: String::new() }
    }

    fn in_file(self, path: &Path) -> Self {
        Self { message: format!("({}) {}", path.display(), self.message), at: String::new() }
    }

    /// Inside an inline schema, where the pointer leads.
    fn place(&self, source: &At<SchemaSource>) -> Place {
        let inside = match &source.value {
            SchemaSource::Inline { node, .. } => Pointer::parse(&self.at)
                .filter(|pointer| !pointer.tokens().is_empty())
                .and_then(|pointer| node.at(pointer.tokens()).map(|(_, node)| node.place)),
            SchemaSource::File { .. } => None,
        };
        inside.unwrap_or(source.key)
    }
}

/// Schemas of entries. One that cannot be judged refuses the file, wherever it stands: the rule is for tools that are
/// not there yet, and without it they could do more.
fn entries(
    document: &Document,
    compiler: &mut Compiler<'_>,
) -> HashMap<(String, String), EntryParts> {
    let mut out = HashMap::new();
    for (server, section) in &document.mcp_servers {
        for (pattern, at) in &section.value.tools {
            let entry = &at.value;
            let mut whole = |key: &str, source: &Option<At<SchemaSource>>, close| {
                let source = source.as_ref()?;
                let compiled = compiler.compile(&source.value, close).and_then(|schema| {
                    let alone = key != "constraints" || stands_alone(schema.source());
                    let why = "uses `$ref`, `$id` or `$anchor`, which mean another place once it is joined to the server's schema: write it out";
                    if alone { Ok(schema) } else { Err(Fault::whole(why.to_owned())) }
                });
                compiled
                    .map_err(|fault| {
                        let message = format!(
                            "the `{key}` of `mcp_servers.{server}.tools.{pattern}` {}",
                            fault.message
                        );
                        let place = fault.place(source);
                        compiler.problems.push(Problem::new("CR1007", place, message));
                    })
                    .ok()
            };
            let result = entry.tool.result.as_ref().map(|result| &result.value);
            let parts = EntryParts {
                schema: whole("schema", &entry.tool.schema, true),
                constraints: whole("constraints", &entry.constraints, false)
                    .map(|schema| Arc::clone(schema.source())),
                expect: result.and_then(|result| whole("result.expect", &result.expect, false)),
            };
            out.insert((server.clone(), pattern.clone()), parts);
        }
    }
    out
}

fn stands_alone(schema: &Value) -> bool {
    let words = ["$ref", "$dynamicRef", "$id", "$anchor", "$dynamicAnchor"];
    super::schema::every_subschema(schema)
        .iter()
        .all(|(_, schema)| words.iter().all(|word| schema.get(*word).is_none()))
}

/// A constraint that cannot be judged refuses the file, wherever it stands: without it the agent could do more.
fn constraints(
    document: &Document,
    compiler: &mut Compiler<'_>,
) -> HashMap<(String, String), Schema> {
    let mut out = HashMap::new();
    for (agent, section) in &document.agents {
        for (tool, source) in section.value.constraints.iter().flat_map(|map| &map.value) {
            match compiler.compile(&source.value, false) {
                Ok(schema) => {
                    out.insert((agent.clone(), tool.clone()), schema);
                }
                Err(fault) => {
                    let message =
                        format!("the constraint of `{agent}` on `{tool}` {}", fault.message);
                    let place = fault.place(source);
                    compiler.problems.push(Problem::new("CR1007", place, message));
                }
            }
        }
    }
    out
}
