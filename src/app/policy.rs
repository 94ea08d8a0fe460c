//! The first policy, and every later one: what is sound is obeyed, what is not is told and changes nothing.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use tokio::sync::mpsc;

use super::{Gateway, StartError};
use crate::config::{Config, Listen};
use crate::policy::diagnostic::{Level, Place, Problem, Sources, pretty, worst};
use crate::policy::reload::{Loaded, ReloadEvent};
use crate::policy::snapshot::{Auth, EnvValue, Reach, Snapshot};
use crate::policy::watch::{WatchOptions, Watcher};
use crate::policy::{self, LoadOptions};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::record::wall_clock;
use crate::telemetry::redact::Secrets;

/// A policy that can be obeyed, and what else was found in it.
pub(super) struct Sound {
    snapshot: Arc<Snapshot>,
    warnings: Vec<Problem>,
}

impl fmt::Debug for Sound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sound").field("revision", &self.snapshot.revision).finish_non_exhaustive()
    }
}

/// What the last look at the policy came to, for people.
#[derive(Debug, Clone)]
pub(super) struct Heard {
    pub(super) result: &'static str,
    pub(super) failing: Vec<String>,
    /// When the policy in force came into force.
    pub(super) loaded_at: SystemTime,
}

impl Heard {
    /// The start has read a policy that is obeyed.
    pub(super) fn first() -> Self {
        Self { result: "applied", failing: Vec::new(), loaded_at: wall_clock() }
    }

    fn hear(&mut self, result: &'static str, failing: Vec<String>) {
        if result == "applied" {
            self.loaded_at = wall_clock();
        }
        (self.result, self.failing) = (result, failing);
    }
}

type PolicyWatcher = Watcher<Sound, Problem>;

/// The load at the start. A policy that cannot be obeyed starts nothing.
pub(super) async fn first(
    config: &Config,
    metrics: &Metrics,
    secrets: &Secrets,
) -> Result<(PolicyWatcher, Arc<Snapshot>), StartError> {
    let shown = Arc::new(Mutex::new(Sources::default()));
    let options = WatchOptions { poll: config.policy_poll, ..WatchOptions::default() };
    let listens = std::iter::once(&config.listen).chain(config.proxies.iter().map(|(_, at)| at));
    let (listens, sources) = (listens.cloned().collect::<Vec<_>>(), shown.clone());
    let mut watcher = Watcher::new(config.policy.clone(), options, move |path: &Path| {
        load(path, &listens, &sources)
    });
    let event = watcher.first().await;
    metrics.watch_degraded(watcher.status().borrow().watch_degraded);
    let show = |problems: &[Problem]| {
        pretty(problems, &shown.lock().unwrap_or_else(PoisonError::into_inner))
    };
    match event {
        ReloadEvent::Applied(sound) => {
            match worst(&sound.warnings) {
                Some(Level::Warning | Level::Error) => {
                    tracing::warn!("the policy has warnings\n{}", show(&sound.warnings));
                }
                Some(Level::Note) => tracing::info!("notes\n{}", show(&sound.warnings)),
                None => {}
            }
            hide_secrets(secrets, &sound.snapshot);
            Ok((watcher, sound.snapshot))
        }
        ReloadEvent::Rejected(problems) => Err(StartError::Policy(show(&problems))),
        ReloadEvent::Unreadable(why) => Err(StartError::Policy(format!("error: {why}\n"))),
        ReloadEvent::Unchanged => Err(StartError::Policy("error: nothing was read\n".to_owned())),
    }
}

/// Obeys every later policy that is sound, until the gateway stops.
pub(super) async fn follow(
    gateway: Gateway,
    mut watcher: PolicyWatcher,
    mut force: mpsc::Receiver<()>,
) {
    let status = watcher.status();
    gateway.show_status(&status.borrow().line());
    gateway.heard.send_modify(|heard| heard.failing.clone_from(&status.borrow().failing));
    loop {
        let event = tokio::select! {
            event = watcher.next(&mut force) => event,
            () = gateway.stop.cancelled() => return,
        };
        let result = event.result();
        gateway.hear(event);
        gateway.show_status(&status.borrow().line());
        let failing = status.borrow().failing.clone();
        gateway.heard.send_modify(|heard| heard.hear(result, failing));
    }
}

impl Gateway {
    fn hear(&self, event: ReloadEvent<Sound, Problem>) {
        let result = event.result();
        match event {
            ReloadEvent::Applied(sound) => {
                hide_secrets(&self.secrets, &sound.snapshot);
                let revision = sound.snapshot.revision.to_string();
                self.engine.install(sound.snapshot);
                tracing::info!(
                    revision,
                    warnings = sound.warnings.len(),
                    "a new policy is in force"
                );
            }
            ReloadEvent::Unchanged => tracing::info!("the policy is unchanged"),
            ReloadEvent::Rejected(problems) => {
                for problem in &problems {
                    tracing::error!("{problem}");
                }
                tracing::error!(
                    problems = problems.len(),
                    "the policy was rejected; the old one stays in force"
                );
            }
            ReloadEvent::Unreadable(why) => {
                tracing::error!(why, "the policy cannot be read; the old one stays in force");
            }
        }
        // After `install`, which notes a success of its own: a failure must not be painted over.
        self.metrics.reload(result);
    }

    fn show_status(&self, line: &str) {
        let why = (line != "ok").then(|| line.to_owned());
        self.health.degraded("policy", why);
    }
}

/// One reading of the policy, with the one rule that hangs on the process's settings.
fn load(path: &Path, listens: &[Listen], shown: &Mutex<Sources>) -> Loaded<Sound, Problem> {
    let mut read = policy::examine(path, LoadOptions::default());
    *shown.lock().unwrap_or_else(PoisonError::into_inner) = read.sources;
    read.files.retain(|file| file != path);
    let outcome = match read.snapshot {
        Some(snapshot) => match open_to_all(path, listens, &snapshot) {
            Some(problem) => Err(vec![problem]),
            None => Ok(Sound { snapshot, warnings: read.problems }),
        },
        None => Err(read.problems),
    };
    Loaded { outcome, files: read.files }
}

/// The agent `default` needs no credential: on an address that others can reach it would be anybody.
fn open_to_all(path: &Path, listens: &[Listen], snapshot: &Snapshot) -> Option<Problem> {
    let (_, agent) = snapshot.agents.iter().find(|(id, _)| id.as_str() == "default")?;
    let listen = listens.iter().find(|listen| listen.is_open())?;
    let place = Place { line: agent.rule.line, ..Place::START };
    let message = format!(
        "the agent `default` needs no credential, and {listen} can be reached from other machines"
    );
    let hint =
        "give every agent a token and remove `default`, or listen on 127.0.0.1 or a Unix socket";
    let file: Arc<str> = path.display().to_string().into();
    Some(Problem::new("CR5003", place, message).hint(hint).file(&file))
}

/// No diagnostic shows a secret of the policy in force.
fn hide_secrets(secrets: &Secrets, snapshot: &Snapshot) {
    let of_upstreams = snapshot.upstreams.values().filter_map(|upstream| {
        let secret = match upstream.auth.as_ref()? {
            Auth::Bearer(secret) => secret,
            Auth::Basic { password, .. } => password,
            Auth::Header { value, .. } => value,
        };
        secret.value.as_ref().map(|text| text.0.clone())
    });
    let of_agents =
        snapshot.agents.values().flat_map(|agent| agent.tokens.iter().map(|t| t.0.clone()));
    let children = snapshot.mcp_servers.values().filter_map(|server| match &server.reach {
        Reach::Child(child) => Some(child),
        Reach::Http => None,
    });
    let of_children =
        children.flat_map(|child| child.env.values()).filter_map(|value| match value {
            EnvValue::Secret(secret) => secret.value.as_ref().map(|text| text.0.clone()),
            EnvValue::Text(_) => None,
        });
    secrets.set(of_upstreams.chain(of_agents).chain(of_children));
}
