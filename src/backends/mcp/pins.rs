//! What a server's tools looked like when they were first seen, or reviewed: a definition that has changed since is not
//! taken for the one that was trusted.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value, json};

use crate::call::UpstreamName;
use crate::policy::pins::pin_of;
use crate::strict_json::{self, Limits};

/// The file in the state folder.
const FILE: &str = "mcp-pins.json";
/// Longest such file, bytes; past it definitions are left out of it, pins never.
const MAX_FILE: usize = 64 * 1024 * 1024;

/// What was seen, by the server's own names of tools.
pub type Pinned = BTreeMap<String, Seen>;

/// One definition that is trusted.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// [`pin_of`] it.
    pub pin: String,
    /// As it was, for people who look at what came after it. `None`: only its pin was kept.
    pub definition: Option<Arc<Value>>,
}

impl Seen {
    pub fn of(definition: &Arc<Value>) -> Self {
        Self { pin: pin_of(definition), definition: Some(definition.clone()) }
    }
}

/// Why a definition was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotApproved {
    #[error("no such server, or no such tool of it has changed")]
    NoDrift,
    #[error("the definition has changed again since it was looked at")]
    Changed,
    #[error("the policy pins this server by a file: change that, and reload")]
    ByFile,
    #[error("it could not be written to the state folder")]
    NotKept,
}

/// Where what was seen first is kept. Called from a thread that may block.
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

/// One JSON file, replaced as a whole: `{"server": {"tool": {"pin": "sha256:…", "definition": {…}}}}`; a pin alone may
/// stand for the object.
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
    let tree = strict_json::parse(text, Limits::list(MAX_FILE)).map_err(|_| bad())?;
    let servers = tree.as_object().ok_or_else(bad)?;
    let mut all = BTreeMap::new();
    for (server, tools) in servers {
        let tools = tools.as_object().ok_or_else(bad)?;
        let mut pinned = Pinned::new();
        for (tool, seen) in tools {
            let pin = seen.as_str().or_else(|| seen.get("pin")?.as_str()).ok_or_else(bad)?;
            let definition = seen.get("definition").cloned().map(Arc::new);
            pinned.insert(tool.clone(), Seen { pin: pin.to_owned(), definition });
        }
        all.insert(server.clone(), pinned);
    }
    Ok(all)
}

/// Written beside it, synced, put in its place: whoever reads finds the old or the new one.
fn replace(path: &Path, all: &BTreeMap<String, Pinned>) -> io::Result<()> {
    use std::io::Write as _;

    let beside = path.with_extension("json.new");
    let mut text = written(all, true);
    if text.len() > MAX_FILE {
        text = written(all, false);
    }
    let mut file = std::fs::File::create(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    if let Some(folder) = path.parent() {
        std::fs::File::open(folder)?.sync_all()?;
    }
    Ok(())
}

fn written(all: &BTreeMap<String, Pinned>, definitions: bool) -> String {
    let entry = |seen: &Seen| match &seen.definition {
        Some(definition) if definitions => {
            json!({"pin": seen.pin, "definition": definition.as_ref()})
        }
        Some(_) | None => seen.pin.clone().into(),
    };
    let servers: Map<String, Value> = all
        .iter()
        .map(|(server, pinned)| {
            let tools = pinned.iter().map(|(tool, seen)| (tool.clone(), entry(seen)));
            (server.clone(), Value::Object(tools.collect()))
        })
        .collect();
    format!("{:#}\n", Value::Object(servers))
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
        let whole = Seen::of(&Arc::new(json!({"name": "a", "odd": 1.50})));
        let bare = Seen { pin: "0".repeat(64), definition: None };
        let pinned = Pinned::from([("a".to_owned(), whole), ("b".to_owned(), bare)]);
        pins.keep(&server, &pinned).expect("kept");
        let again = FilePins::open(folder.path()).expect("there");
        assert_eq!(again.load(&server), pinned);
        std::fs::write(folder.path().join(FILE), b"{\"files\":[]}").expect("written");
        assert!(FilePins::open(folder.path()).is_err());
    }
}
