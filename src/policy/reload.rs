//! What a look at the policy file came to, and what people are told of it.
//!
//! A bad policy never replaces a good one: only [`ReloadEvent::Applied`] carries something new to obey.

use std::fmt::Display;
use std::path::PathBuf;

/// What a loader made of the policy file. `files` are those the policy refers to (schemas, secrets), also the ones
/// that could not be read: each is watched. The policy file itself is left out.
#[derive(Debug)]
pub struct Loaded<T, P> {
    pub outcome: Result<T, Vec<P>>,
    pub files: Vec<PathBuf>,
}

/// One look at the files. `T` is what a sound policy becomes, `P` a finding.
#[derive(Debug)]
pub enum ReloadEvent<T, P> {
    /// New content, and sound: obey it from now on.
    Applied(T),
    /// What lies there is what is obeyed. After a failure this means that the old content came back.
    Unchanged,
    /// New content that cannot be obeyed; the old policy stays.
    Rejected(Vec<P>),
    /// The policy file cannot be read (gone, no permission, no regular file); the old policy stays.
    Unreadable(String),
}

impl<T, P> ReloadEvent<T, P> {
    /// The value of the metric's label `result`.
    pub fn result(&self) -> &'static str {
        match self {
            ReloadEvent::Applied(_) => "applied",
            ReloadEvent::Unchanged => "unchanged",
            ReloadEvent::Rejected(_) => "rejected",
            ReloadEvent::Unreadable(_) => "unreadable",
        }
    }

    /// Whether what lies there is now what is obeyed.
    pub fn is_success(&self) -> bool {
        match self {
            ReloadEvent::Applied(_) | ReloadEvent::Unchanged => true,
            ReloadEvent::Rejected(_) | ReloadEvent::Unreadable(_) => false,
        }
    }
}

/// Findings that a status keeps; the log has them all.
const MAX_KEPT: usize = 20;
/// Longest line a status keeps, in characters.
const MAX_LINE: usize = 300;

/// How the policy file stands, for `/ready?verbose`. A failed reload makes nobody unready: the old policy is obeyed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReloadStatus {
    /// Why the last look failed, a line each, the first first; empty = what lies there is obeyed.
    pub failing: Vec<String>,
    /// The policy file is itself a mount point (`subPath`): the orchestrator will never change it.
    pub watch_degraded: bool,
    /// Looks that ended in an event, since the start.
    pub looks: u64,
}

impl ReloadStatus {
    pub(crate) fn hear<T, P: Display>(&mut self, event: &ReloadEvent<T, P>) {
        self.looks = self.looks.saturating_add(1);
        self.failing = match event {
            ReloadEvent::Applied(_) | ReloadEvent::Unchanged => Vec::new(),
            ReloadEvent::Rejected(problems) => {
                problems.iter().take(MAX_KEPT).map(|problem| line(&problem.to_string())).collect()
            }
            ReloadEvent::Unreadable(why) => vec![line(why)],
        };
        if self.failing.is_empty() && !event.is_success() {
            self.failing.push("the policy was rejected".to_owned());
        }
    }

    /// One line for a list of checks: `ok`, or what is wrong.
    pub fn line(&self) -> String {
        match self.failing.first() {
            Some(first) => format!("policy reload failed, the old policy is obeyed: {first}"),
            None if self.watch_degraded => {
                "the policy file is itself a mount point and will never change; mount its directory instead of using subPath".to_owned()
            }
            None => "ok".to_owned(),
        }
    }
}

fn line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_LINE).collect()
}
