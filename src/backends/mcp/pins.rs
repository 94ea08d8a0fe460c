//! What a server's tools looked like when they were first seen, or reviewed: a definition that has changed since is not
//! taken for the one that was trusted.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value};

use crate::call::UpstreamName;
use crate::strict_json::{self, Limits};

/// The file in the state folder.
const FILE: &str = "mcp-pins.json";
/// Longest such file, bytes: 10,000 tools of a name of 100 characters, several times over.
const MAX_FILE: usize = 16 * 1024 * 1024;

/// Pins ([`crate::policy::pins::pin_of`]) by the server's own names of tools.
pub type Pinned = BTreeMap<String, String>;

/// Where digests of what was seen first are kept. Called from a thread that may block.
pub trait Pins: Debug + Send + Sync {
    fn load(&self, server: &UpstreamName) -> Pinned;
    /// Replaces all of a server's.
    fn keep(&self, server: &UpstreamName, pinned: &Pinned) -> io::Result<()>;
}

/// For `--store memory`: forgotten with the process.
#[derive(Debug, Default)]
pub struct MemoryPins(Mutex<BTreeMap<String, Pinned>>);

impl Pins for MemoryPins {
    fn load(&self, server: &UpstreamName) -> Pinned {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(server.as_str()).cloned().unwrap_or_default()
    }

    fn keep(&self, server: &UpstreamName, pinned: &Pinned) -> io::Result<()> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(server.as_str().to_owned(), pinned.clone());
        Ok(())
    }
}

/// One JSON file, replaced as a whole: `{"server": {"tool": "digest"}}`.
#[derive(Debug)]
pub struct FilePins {
    path: PathBuf,
    /// One writer at a time.
    all: Mutex<BTreeMap<String, Pinned>>,
}

impl FilePins {
    /// Reads what is there. A file that cannot be read is an error: taking it for an empty one would trust anew
    /// whatever the servers say today.
    pub fn open(state: &Path) -> io::Result<Self> {
        let path = state.join(FILE);
        let all = match std::fs::read(&path) {
            Ok(text) => read(&text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        Ok(Self { path, all: Mutex::new(all) })
    }
}

impl Pins for FilePins {
    fn load(&self, server: &UpstreamName) -> Pinned {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(server.as_str()).cloned().unwrap_or_default()
    }

    fn keep(&self, server: &UpstreamName, pinned: &Pinned) -> io::Result<()> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let before = all.insert(server.as_str().to_owned(), pinned.clone());
        let written = replace(&self.path, &all);
        if written.is_err() {
            match before {
                Some(before) => all.insert(server.as_str().to_owned(), before),
                None => all.remove(server.as_str()),
            };
        }
        written
    }
}

fn read(text: &[u8]) -> io::Result<BTreeMap<String, Pinned>> {
    let bad = || io::Error::new(io::ErrorKind::InvalidData, format!("{FILE} is not what we wrote"));
    let tree = strict_json::parse(text, Limits::answer(MAX_FILE)).map_err(|_| bad())?;
    let servers = tree.as_object().ok_or_else(bad)?;
    let mut all = BTreeMap::new();
    for (server, tools) in servers {
        let tools = tools.as_object().ok_or_else(bad)?;
        let mut pinned = Pinned::new();
        for (tool, digest) in tools {
            pinned.insert(tool.clone(), digest.as_str().ok_or_else(bad)?.to_owned());
        }
        all.insert(server.clone(), pinned);
    }
    Ok(all)
}

/// Written beside it, synced, put in its place: whoever reads finds the old or the new one.
fn replace(path: &Path, all: &BTreeMap<String, Pinned>) -> io::Result<()> {
    use std::io::Write as _;

    let beside = path.with_extension("json.new");
    let servers: Map<String, Value> = all
        .iter()
        .map(|(server, pinned)| {
            let tools = pinned.iter().map(|(tool, digest)| (tool.clone(), digest.clone().into()));
            (server.clone(), Value::Object(tools.collect()))
        })
        .collect();
    let mut file = std::fs::File::create(&beside)?;
    file.write_all(format!("{:#}\n", Value::Object(servers)).as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    if let Some(folder) = path.parent() {
        std::fs::File::open(folder)?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_outlive_the_process_and_a_damaged_file_is_not_taken_for_an_empty_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let server = UpstreamName::new("files").expect("a name");
        let pins = FilePins::open(folder.path()).expect("new");
        assert!(pins.load(&server).is_empty());
        let pinned = Pinned::from([("a".to_owned(), "0".repeat(64))]);
        pins.keep(&server, &pinned).expect("kept");
        let again = FilePins::open(folder.path()).expect("there");
        assert_eq!(again.load(&server), pinned);
        std::fs::write(folder.path().join(FILE), b"{\"files\":[]}").expect("written");
        assert!(FilePins::open(folder.path()).is_err());
    }
}
