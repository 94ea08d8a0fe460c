//! What people see of a server, and what they say to it: that a definition which has changed is to be trusted.

use std::sync::{MutexGuard, PoisonError};

use super::Server;
use crate::backends::mcp::catalog::Drift;
use crate::backends::mcp::pins::{NotApproved, Seen};
use crate::call::UpstreamName;
use crate::policy::snapshot::{OnDrift, Pin};

/// One server, for people and metrics.
#[derive(Debug, Clone)]
pub struct ServerView {
    pub server: UpstreamName,
    pub up: bool,
    /// The catalog is of an earlier hour: the last crawl failed.
    pub stale: bool,
    pub why: Option<String>,
    pub revision: Option<&'static str>,
    pub tools: usize,
    /// Definitions that were left out: name, and why.
    pub left_out: Vec<(String, String)>,
    /// Definitions that are not the trusted ones.
    pub drifts: Vec<Drift>,
    /// Their tools wait for a person; else they are only told of.
    pub quarantines: bool,
    /// They are pinned by a file that people keep, and approved there.
    pub by_file: bool,
    pub sessions: usize,
}

impl Server {
    pub(in crate::backends::mcp) fn view(&self) -> ServerView {
        let rules = self.rules();
        let heard = self.heard();
        ServerView {
            server: self.name.clone(),
            up: heard.up,
            stale: !heard.up && heard.catalog.is_some(),
            why: heard.why.clone(),
            revision: heard.met.as_ref().map(|met| met.revision.as_str()),
            tools: heard.catalog.as_ref().map_or(0, |catalog| catalog.tools.len()),
            left_out: heard
                .dropped
                .iter()
                .map(|dropped| (dropped.name.clone(), dropped.reason.clone()))
                .collect(),
            drifts: heard.drifts.clone(),
            quarantines: rules.on_drift != OnDrift::Warn,
            by_file: rules.pin != Pin::FirstSeen,
            sessions: self.sessions.len(),
        }
    }

    /// A person has looked at the definition that has the hash `pin`, and takes it. Blocks for a write to the disk.
    pub(in crate::backends::mcp) fn approve(
        &self,
        tool: &str,
        pin: &str,
    ) -> Result<(), NotApproved> {
        let drift = self.heard().drifts.iter().find(|drift| drift.tool == tool).cloned();
        let drift = drift.ok_or(NotApproved::NoDrift)?;
        if self.rules().pin != Pin::FirstSeen {
            return Err(NotApproved::ByFile);
        }
        if drift.pin != pin {
            return Err(NotApproved::Changed);
        }
        let kept = {
            let _one = self.pinning();
            let mut pinned = self.shared.pins.load(&self.name);
            pinned.insert(drift.tool, Seen::of(&drift.definition));
            self.shared.pins.keep(&self.name, &pinned)
        };
        self.nudge();
        kept.map_err(|error| {
            tracing::error!(server = %self.name, %error, "a definition that was approved is not kept");
            NotApproved::NotKept
        })
    }

    /// What is pinned is read and written by one at a time.
    pub(super) fn pinning(&self) -> MutexGuard<'_, ()> {
        self.pinning.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
