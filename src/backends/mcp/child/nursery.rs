//! What all children of one server share: how they are started, how many there may be, and which era the server speaks.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use super::fault::Fault;
use crate::backends::credentials::Blots;
use crate::backends::mcp::door::Known;
use crate::backends::mcp::drops::Drops;
use crate::backends::mcp::handshake;
use crate::call::UpstreamName;
use crate::mcp::version::Revision;
use crate::policy::snapshot::{Child, EnvValue};

/// How long a new child waits for the place of one that is on its way out: a little more than the longest end takes.
const LEAVING: Duration = Duration::from_secs(12);

/// Our own program, whatever has become of its file since it was started.
pub fn own_program() -> PathBuf {
    match cfg!(target_os = "linux") {
        true => PathBuf::from("/proc/self/exe"),
        false => std::env::current_exe().unwrap_or_else(|_| PathBuf::from("checkrein")),
    }
}

/// Shared by the children of one server. Cheap to clone.
#[derive(Debug, Clone)]
pub(in crate::backends::mcp) struct Nursery(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: UpstreamName,
    child: Child,
    protocol: Vec<Arc<str>>,
    /// The gateway's own program, which stands between.
    program: PathBuf,
    places: Arc<Semaphore>,
    /// Children that have been told to end, or have, and still hold a place.
    leaving: AtomicUsize,
    known: Mutex<Known>,
    response_bytes: AtomicUsize,
    blots: Blots,
    drops: Arc<Drops>,
    tasks: TaskTracker,
    runtime: tokio::runtime::Handle,
}

/// A child's place among those that may be there at once; given back when it has been reaped.
#[derive(Debug)]
pub(super) struct Place {
    nursery: Nursery,
    leaving: std::sync::atomic::AtomicBool,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    /// Somebody may wait for it from now on.
    pub(super) fn leaves(&self) {
        if !self.leaving.swap(true, Ordering::AcqRel) {
            self.nursery.0.leaving.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if *self.leaving.get_mut() {
            self.nursery.0.leaving.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// What a nursery is made of, beside its server's rules.
#[derive(Debug)]
pub(in crate::backends::mcp) struct Grounds {
    pub(in crate::backends::mcp) program: PathBuf,
    pub(in crate::backends::mcp) response_bytes: usize,
    pub(in crate::backends::mcp) drops: Arc<Drops>,
    pub(in crate::backends::mcp) tasks: TaskTracker,
    pub(in crate::backends::mcp) runtime: tokio::runtime::Handle,
}

impl Nursery {
    pub(in crate::backends::mcp) fn new(
        name: &UpstreamName,
        protocol: &[Arc<str>],
        child: &Child,
        grounds: Grounds,
    ) -> Self {
        let Grounds { program, response_bytes, drops, tasks, runtime } = grounds;
        Self(Arc::new(Inner {
            name: name.clone(),
            child: child.clone(),
            protocol: protocol.to_vec(),
            program,
            places: Arc::new(Semaphore::new(child.children.max(1) as usize)),
            leaving: AtomicUsize::new(0),
            known: Mutex::new(Known::Nothing),
            response_bytes: AtomicUsize::new(response_bytes),
            blots: Blots::of_texts(secrets(child)),
            drops,
            tasks,
            runtime,
        }))
    }

    pub(super) fn name(&self) -> &UpstreamName {
        &self.0.name
    }

    pub(super) fn offered(&self) -> Vec<Revision> {
        handshake::offered(&self.0.protocol)
    }

    /// Most bytes of a tool's answer.
    pub(super) fn response_bytes(&self) -> usize {
        self.0.response_bytes.load(Ordering::Relaxed)
    }

    /// Another policy, in which this server's own section is unchanged.
    pub(in crate::backends::mcp) fn renew(&self, response_bytes: usize) {
        self.0.response_bytes.store(response_bytes, Ordering::Relaxed);
    }

    pub(super) fn known(&self) -> Known {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn learn(&self, known: Known) {
        *self.0.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
    }

    pub(super) fn count(&self, why: &'static str) {
        self.0.drops.count(why);
    }

    pub(in crate::backends::mcp) fn blot(&self, text: &mut String) {
        self.0.blots.over_text(text);
    }

    /// Runs on the main runtime, to its end.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.0.tasks.spawn_on(work, &self.0.runtime)
    }

    /// A place for one more child. Where none is free but one is about to be, that one is waited for.
    pub(super) async fn place(&self) -> Result<Place, Fault> {
        let places = self.0.places.clone();
        let permit = match places.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) if self.0.leaving.load(Ordering::Acquire) > 0 => {
                let waited = tokio::time::timeout(LEAVING, places.acquire_owned()).await;
                waited.ok().and_then(Result::ok).ok_or(Fault::Busy)?
            }
            Err(_) => return Err(Fault::Busy),
        };
        Ok(Place { nursery: self.clone(), leaving: false.into(), _permit: permit })
    }

    /// The command as it is started: no shell, a process group of its own, the policy's environment and nothing else.
    /// A program without a slash is looked for in that environment's `PATH`.
    pub(super) fn command(&self) -> Result<Command, Fault> {
        let Child { argv, env, cwd, .. } = &self.0.child;
        let mut command = Command::new(&self.0.program);
        command.arg("__child").arg("--").args(argv.iter().map(OsString::from)).env_clear();
        for (name, value) in env {
            match value {
                EnvValue::Text(text) => command.env(name, text),
                EnvValue::Secret(secret) => match &secret.value {
                    Some(text) if !text.0.is_empty() => command.env(name, &*text.0),
                    Some(_) | None => return Err(Fault::NoCredential(secret.origin.clone())),
                },
            };
        }
        let piped = Stdio::piped;
        command.current_dir(cwd).stdin(piped()).stdout(piped()).stderr(piped()).process_group(0);
        Ok(command)
    }
}

fn secrets(child: &Child) -> Vec<String> {
    let of = |value: &EnvValue| match value {
        EnvValue::Text(_) => None,
        EnvValue::Secret(secret) => secret.value.as_ref().map(|text| text.0.to_string()),
    };
    child.env.values().filter_map(of).collect()
}
