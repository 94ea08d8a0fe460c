//! What the platform team wrote → what the gateway obeys.
//!
//! Three stages: [`document::read()`] takes the text apart and knows where everything stands; [`check::check`] judges
//! it, every problem at once; [`compile::compile`] makes the [`snapshot::Snapshot`] and cannot fail. [`load`] does
//! all three for a file. Without a sound policy there is no snapshot, and without a snapshot no call.

pub mod bind;
pub mod check;
pub mod compile;
pub mod diagnostic;
pub mod document;
pub mod glob;
pub mod import;
pub mod json_schema;
pub mod lint;
pub mod material;
pub mod merge;
pub mod pins;
pub mod predicate;
pub mod profiles;
pub mod quantity;
pub mod reload;
pub mod schema;
pub mod snapshot;
pub mod template;
pub mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::diagnostic::{Place, Problem, Sources};
use self::document::Document;
use self::material::Material;
use self::snapshot::Snapshot;

/// How to load.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadOptions {
    /// Secrets may be missing: a warning instead of an error. For checking where they are not mounted.
    pub offline: bool,
}

/// A sound policy.
#[derive(Debug, Clone)]
pub struct Loaded {
    pub snapshot: Arc<Snapshot>,
    /// Warnings and notes, sorted.
    pub warnings: Vec<Problem>,
    /// The policy and every file it refers to, secrets among them: what a reload watches.
    pub files: Vec<PathBuf>,
}

/// All that a look at a policy gave: what [`load`] answers, and what is needed to print it.
#[derive(Debug)]
pub struct Examined {
    /// `None` when any problem is an error.
    pub snapshot: Option<Arc<Snapshot>>,
    /// Every problem of any level, sorted.
    pub problems: Vec<Problem>,
    pub files: Vec<PathBuf>,
    pub sources: Sources,
}

/// Loads the policy at `path`. The error holds every problem of the file, warnings among them.
pub fn load(path: &Path, options: LoadOptions) -> Result<Loaded, Vec<Problem>> {
    let Examined { snapshot, problems, files, .. } = examine(path, options);
    match snapshot {
        Some(snapshot) => Ok(Loaded { snapshot, warnings: problems, files }),
        None => Err(problems),
    }
}

/// As [`load`], keeping everything.
pub fn examine(path: &Path, options: LoadOptions) -> Examined {
    let name = path.display().to_string();
    match read_file(path) {
        Ok(bytes) => {
            let directory = path.parent().unwrap_or(Path::new("."));
            let mut examined = examine_text(&bytes, &name, directory, options);
            examined.files.insert(0, path.to_owned());
            if watch::is_mount_point(path) {
                examined.problems.push(never_reloads(&name));
                diagnostic::sort(&mut examined.problems);
            }
            examined
        }
        Err(error) => {
            let message = format!("the policy cannot be read: {error}");
            let problem = Problem::new("CR0001", Place::START, message).file(&name.into());
            Examined {
                snapshot: None,
                problems: vec![problem],
                files: vec![path.to_owned()],
                sources: Sources::default(),
            }
        }
    }
}

/// A file that is mounted by itself is never changed from outside.
fn never_reloads(name: &str) -> Problem {
    let message = "the policy file is itself a mount point: it will never reload";
    Problem::new("CR5002", Place::START, message)
        .hint("mount its directory instead of the file (`subPath`)")
        .file(&name.into())
}

/// Examines a policy's text. `name` is what findings call it; files it refers to are looked for below `directory`.
pub fn examine_text(bytes: &[u8], name: &str, directory: &Path, options: LoadOptions) -> Examined {
    let document::Reading { document, mut problems, masks } = document::read(bytes, name);
    let mut sources = Sources::default();
    sources.add(&name.into(), &String::from_utf8_lossy(bytes), &masks);
    let Some(document) = document else {
        diagnostic::sort(&mut problems);
        return Examined { snapshot: None, problems, files: Vec::new(), sources };
    };
    let (material, found) = Material::gather(&document, directory, options.offline);
    problems.extend(found);
    let (checked, problems) = check::check(&document, &material, bytes, problems);
    let snapshot = checked.map(|checked| compile::compile(&checked));
    Examined { snapshot, problems, files: material.files, sources }
}

/// Parses a policy's text; the error holds every problem of its form.
pub fn parse(text: &[u8], file: &str) -> Result<Document, Vec<Problem>> {
    let mut reading = document::read(text, file);
    match reading.document {
        Some(document) if reading.problems.is_empty() => Ok(document),
        _refused => {
            diagnostic::sort(&mut reading.problems);
            Err(reading.problems)
        }
    }
}

/// At most one byte more than a policy may have: the reader says what is wrong with it.
fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    material::read_at_most(path, document::tree::MAX_BYTES as u64 + 1)
}

#[cfg(test)]
mod tests;
