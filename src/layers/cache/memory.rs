//! Answers that are kept, by weight, with our own times on them: what is too old is decided here, by tokio's clock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::CACHE_CONTROL;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use tokio::time::Instant;

use super::flight::Flights;
use super::key::Key;
use super::spoil::{Mark, Marks};
use crate::call::{Content, Head, Notes, Source, ToolName, ToolResult, UpstreamName};
use crate::policy::snapshot::Snapshot;

/// Bytes of all kept answers; past it the least recently used go.
pub(super) const MAX_BYTES: u64 = 64 << 20;
/// What one answer weighs at least, so that there are never more than 65,536.
const MIN_WEIGHT: u32 = 1 << 10;
/// What an answer weighs beside its bytes.
const OVERHEAD: usize = 512;
/// A longer answer is not kept.
pub(super) const MAX_ANSWER: usize = 1 << 20;

#[derive(Debug, Clone)]
struct Kept {
    content: Content,
    came: Instant,
    marks: Marks,
}

#[derive(Debug)]
pub(super) struct Results(Cache<Key, Kept>);

impl Results {
    fn new(max_bytes: u64) -> Self {
        let cache = Cache::builder()
            .max_capacity(max_bytes)
            .eviction_policy(EvictionPolicy::lru())
            .weigher(|_, kept: &Kept| weight(kept))
            .build();
        Self(cache)
    }

    /// What came less than `within` ago, and after everything that spoils it.
    pub(super) fn get(
        &self,
        key: &Key,
        marks: Marks,
        within: Duration,
        source: Source,
    ) -> Option<ToolResult> {
        let kept = self.0.get(key).filter(|kept| kept.marks == marks)?;
        let age = kept.came.elapsed();
        (age < within).then(|| {
            let notes = Notes { age: Some(age), ..Notes::default() };
            ToolResult { head: None, content: kept.content, source, notes }
        })
    }

    pub(super) fn put(&self, key: Key, marks: Marks, result: &ToolResult) {
        // A copy: a slice would hold on to the whole buffer it was cut from, unweighed.
        let bytes = Bytes::copy_from_slice(&result.content.bytes);
        let content = Content { bytes, form: result.content.form };
        self.0.insert(key, Kept { content, came: Instant::now(), marks });
    }
}

fn weight(kept: &Kept) -> u32 {
    u32::try_from(OVERHEAD + kept.content.bytes.len()).unwrap_or(u32::MAX).max(MIN_WEIGHT)
}

/// Whether an answer may be told again: a whole one, from the tool, whose origin does not forbid it. `global`: to others
/// than who asked.
pub(super) fn keepable(result: &ToolResult, global: bool) -> bool {
    let Notes { truncated, asks, accepted, .. } = &result.notes;
    let whole = truncated.is_none() && asks.is_none() && !accepted && result.arriving().is_none();
    let from_tool = result.source == Source::Tool;
    let fits = result.content.bytes.len() <= MAX_ANSWER;
    whole && from_tool && fits && result.head.as_ref().is_none_or(|head| lets(head, global))
}

/// 202 is no answer yet, 206 a part of one; `no-store` and `private` are the origin's own word (RFC 9111, 5.2.2).
fn lets(head: &Head, global: bool) -> bool {
    let fields = head.headers.get_all(CACHE_CONTROL).iter();
    // What is no text is no word that could be obeyed: better not kept.
    let forbidden = |value: &http::HeaderValue| {
        value.to_str().map_or(true, |text| {
            text.split(',').any(|directive| {
                let name = directive.split('=').next().unwrap_or_default().trim();
                name.eq_ignore_ascii_case("no-store")
                    || (global && name.eq_ignore_ascii_case("private"))
            })
        })
    };
    !matches!(head.status, 202 | 206) && !fields.into_iter().any(forbidden)
}

/// An answer for others who asked the same at once: without what is of one call alone.
pub(super) fn bare(result: &ToolResult) -> ToolResult {
    let notes = Notes { truncated: result.notes.truncated, ..Notes::default() };
    ToolResult { head: None, content: result.content.clone(), source: Source::Cache, notes }
}

/// What the caches of all tools share.
#[derive(Debug)]
pub struct Memory {
    pub(super) results: Results,
    pub(super) flights: Arc<Flights>,
}

#[derive(Debug, Default)]
struct Names {
    upstreams: HashMap<UpstreamName, Arc<Mark>>,
    tools: HashMap<ToolName, Arc<Mark>>,
}

/// Outlives policies. An answer is found again where the whole section of its tool is what it was.
#[derive(Debug, Default)]
pub struct Cached {
    /// Made for the first tool that keeps answers.
    memory: OnceLock<Arc<Memory>>,
    names: Mutex<Names>,
}

impl Cached {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn memory(&self) -> Arc<Memory> {
        let new = || {
            let (results, flights) = (Results::new(MAX_BYTES), Arc::default());
            Arc::new(Memory { results, flights })
        };
        self.memory.get_or_init(new).clone()
    }

    /// Forgets whatever no cached tool hangs on any more: meanwhile nobody marks its writes, so what was kept of it is
    /// not found again either.
    pub fn adopt(&self, snapshot: &Snapshot) {
        let cached =
            |tool: &ToolName| snapshot.tools.get(tool).is_some_and(|tool| tool.cache.is_some());
        let mut names = self.names();
        names.tools.retain(|tool, _| cached(tool));
        names.upstreams.retain(|upstream, _| snapshot.caches_of(upstream));
    }

    /// What a write to an upstream changes.
    pub fn of_upstream(&self, upstream: &UpstreamName) -> Arc<Mark> {
        self.names().upstreams.entry(upstream.clone()).or_default().clone()
    }

    /// What a person changes who switches a tool off.
    pub fn of_tool(&self, tool: &ToolName) -> Arc<Mark> {
        self.names().tools.entry(tool.clone()).or_default().clone()
    }

    /// Nothing that was kept of this tool is told again.
    pub fn drop_of(&self, tool: &ToolName) {
        if let Some(mark) = self.names().tools.get(tool) {
            mark.change();
        }
    }
}

#[cfg(test)]
mod tests;
