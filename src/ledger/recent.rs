//! Results of finished writes, by weight. What does not fit is forgotten here and stays `executed` in the ledger:
//! its answer is then that the result is lost, never that the write may run again.

use bytes::Bytes;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;

use crate::call::{Content, Head, IdempotencyKey, ToolResult};

/// Bytes of all kept results, with their headers.
pub(super) const MAX_RESULT_BYTES: u64 = 64 << 20;
/// What a kept result weighs beside its content and headers.
const RESULT_WEIGHT: usize = 256;

#[derive(Debug)]
pub(super) struct Recent(Cache<(IdempotencyKey, u32), ToolResult>);

impl Recent {
    pub(super) fn new(max_bytes: u64) -> Self {
        // Least recently used, not by frequency: a result that was just stored must not lose against a popular one.
        let cache = Cache::builder()
            .max_capacity(max_bytes)
            .eviction_policy(EvictionPolicy::lru())
            .weigher(|_, result: &ToolResult| weight(result))
            .build();
        Self(cache)
    }

    pub(super) fn put(&self, key: IdempotencyKey, occurrence: u32, result: &ToolResult) {
        let content = Content {
            // A copy of its own: a slice would hold on to the whole buffer it was cut from, unweighed.
            bytes: Bytes::copy_from_slice(&result.content.bytes),
            form: result.content.form,
        };
        let mut notes = result.notes.clone();
        // The state of a bucket is of its moment.
        notes.rate = None;
        let kept = ToolResult { head: result.head.clone(), content, source: result.source, notes };
        self.0.insert((key, occurrence), kept);
    }

    pub(super) fn get(&self, key: IdempotencyKey, occurrence: u32) -> Option<ToolResult> {
        self.0.get(&(key, occurrence))
    }

    pub(super) fn forget(&self, key: IdempotencyKey, occurrence: u32) {
        self.0.invalidate(&(key, occurrence));
    }

    #[cfg(test)]
    pub(super) fn settle(&self) {
        self.0.run_pending_tasks();
    }
}

fn weight(result: &ToolResult) -> u32 {
    let head = |head: &Head| -> usize {
        head.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 64).sum()
    };
    let bytes = RESULT_WEIGHT + result.content.bytes.len() + result.head.as_ref().map_or(0, head);
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
