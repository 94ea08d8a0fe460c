//! `/version`, `/policy`, `/policy/reload`, `/drain`: the process around the engine, as the composition root gives it.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::SystemTime;

use serde_json::json;

use super::answer::{Problem, accepted, response};
use super::ask::Ask;
use super::{Admin, Answered};
use crate::people::Person;
use crate::telemetry::record::{PersonFacts, rfc3339};

/// How the policy file stands.
#[derive(Debug, Clone)]
pub struct PolicyView {
    pub file: PathBuf,
    /// When the policy in force came into force.
    pub loaded_at: SystemTime,
    /// Why the last reading was refused, a line a finding; empty = what lies there is in force.
    pub failing: Vec<String>,
}

/// What a reading came to.
#[derive(Debug, Clone)]
pub struct Reloaded {
    /// applied, unchanged, rejected, unreadable
    pub result: &'static str,
    pub failing: Vec<String>,
}

/// What only the composition root can do.
pub trait Process: Send + Sync {
    fn policy(&self) -> PolicyView;
    /// Reads the policy now. `None`: nothing came of it in time.
    fn reload(&self) -> Pin<Box<dyn Future<Output = Option<Reloaded>> + Send + '_>>;
    /// Begins the drain, as SIGTERM does, and returns.
    fn drain(&self);
}

pub(super) fn version() -> Answered {
    let source = option_env!("CHECKREIN_SOURCE_REVISION").unwrap_or("unknown");
    let version = env!("CARGO_PKG_VERSION");
    Ok(response(&json!({ "name": "checkrein", "version": version, "revision": source })))
}

impl Admin {
    pub(super) fn policy(&self) -> Answered {
        let view = self.process.policy();
        let snapshot = self.engine.snapshot();
        Ok(response(&json!({
            "name": &*snapshot.name,
            "revision": &*snapshot.revision.0,
            "file": view.file.display().to_string(),
            "loaded_at": rfc3339(view.loaded_at),
            "failing": view.failing,
            "draining": self.engine.draining(),
        })))
    }

    pub(super) async fn reload(&self, ask: &Ask, person: Person) -> Answered {
        let (person, why) = Self::said(ask, person)?;
        self.did("reload", &person, &why);
        let late = || Problem::unavailable("the policy was not read in time; look at `GET policy`");
        let reloaded = self.process.reload().await.ok_or_else(late)?;
        let revision = self.engine.snapshot().revision.to_string();
        let body = json!({
            "result": reloaded.result,
            "revision": revision,
            "failing": reloaded.failing,
        });
        match reloaded.failing.is_empty() {
            true => Ok(response(&body)),
            false => {
                let said = "the policy cannot be obeyed; the old one stays in force";
                Err(Problem::conflict(said).with("reload", body))
            }
        }
    }

    pub(super) fn drain(&self, ask: &Ask, person: Person) -> Answered {
        let (person, why) = Self::said(ask, person)?;
        self.did("drain", &person, &why);
        self.process.drain();
        Ok(accepted(&json!({ "draining": true })))
    }

    fn did(&self, action: &'static str, person: &Person, why: &str) {
        let who = person.to_string();
        let facts = PersonFacts { kind: "admin", action, who: &who, why, ..PersonFacts::default() };
        self.record(&facts);
    }
}
