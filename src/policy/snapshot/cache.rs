//! For how long answers of a read are told again, and to whom.

use std::time::Duration;

use super::Snapshot;
use crate::call::UpstreamName;

/// `cache` of one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachePolicy {
    /// From when an answer came.
    pub ttl: Duration,
    /// Past `ttl`, for a tool that is broken. `None` = never.
    pub stale_if_error: Option<Duration>,
    /// An agent may be told what another one was.
    pub global_scope: bool,
}

impl Snapshot {
    /// Whether answers of any tool of this upstream are kept, so that writes to it spoil them.
    pub fn caches_of(&self, upstream: &UpstreamName) -> bool {
        self.tools.values().any(|tool| tool.cache.is_some() && tool.upstream.name == *upstream)
    }
}
