//! Memory of repeats: the same tool with the same arguments, failing or changing nothing. Fed by every end, read
//! before anything is paid. Never blocks other arguments.

use std::collections::{HashMap, VecDeque};

use ahash::RandomState;

use crate::call::code::DenyCode;
use crate::call::{Denied, Detail, Likeness, ToolName};
use crate::policy::snapshot::FusePolicy;

/// Different calls a run's fuse remembers; past it the one asked for longest ago is forgotten (the budgets bound
/// an agent that tries so many).
pub(crate) const MAX_REMEMBERED: usize = 256;

#[derive(Debug, Default)]
struct Repeats {
    failures: u32,
    /// Code of the last counted failure.
    last: &'static str,
    results: u32,
    result: Option<u64>,
    /// Refusals so far: the text changes with each, so that a model which ignores one reads another.
    blocked: u32,
    /// Clock of the memory at the last touch.
    seen: u64,
}

type Key = (ToolName, Likeness);

#[derive(Debug, Default)]
pub(crate) struct Fuse {
    calls: HashMap<Key, Repeats, RandomState>,
    /// Every touch, the oldest first; one that a later touch of the same call has overtaken says nothing. At most
    /// twice as many as there are calls.
    touches: VecDeque<(u64, Key)>,
    clock: u64,
}

impl Fuse {
    fn touch(&mut self, tool: &ToolName, like: Likeness) -> &mut Repeats {
        self.clock += 1;
        let key = (tool.clone(), like);
        if self.calls.len() >= MAX_REMEMBERED && !self.calls.contains_key(&key) {
            self.forget_the_oldest();
        }
        if self.touches.len() >= 2 * MAX_REMEMBERED {
            self.touches.retain(|(at, key)| self.calls.get(key).is_some_and(|one| one.seen == *at));
        }
        self.touches.push_back((self.clock, key.clone()));
        let repeats = self.calls.entry(key).or_default();
        repeats.seen = self.clock;
        repeats
    }

    fn forget_the_oldest(&mut self) {
        while let Some((at, key)) = self.touches.pop_front() {
            if self.calls.get(&key).is_some_and(|one| one.seen == at) {
                self.calls.remove(&key);
                return;
            }
        }
    }

    pub(crate) fn failed(&mut self, tool: &ToolName, like: Likeness, code: &'static str) {
        let repeats = self.touch(tool, like);
        repeats.failures = repeats.failures.saturating_add(1);
        repeats.last = code;
    }

    pub(crate) fn succeeded(&mut self, tool: &ToolName, like: Likeness, result: u64) {
        let repeats = self.touch(tool, like);
        repeats.failures = 0;
        repeats.blocked = 0;
        repeats.results =
            if repeats.result == Some(result) { repeats.results.saturating_add(1) } else { 1 };
        repeats.result = Some(result);
    }

    /// May this call go on? The kind of repeat stands beside the refusal, for the metric.
    pub(crate) fn check(
        &mut self,
        tool: &ToolName,
        like: Likeness,
        policy: FusePolicy,
    ) -> Result<(), (&'static str, Denied)> {
        let Some(repeats) = self.calls.get_mut(&(tool.clone(), like)) else { return Ok(()) };
        let over = |times: u32, most: Option<u32>| most.is_some_and(|most| times >= most);
        let (kind, times) = if over(repeats.failures, policy.same_failures) {
            ("same_failures", repeats.failures)
        } else if over(repeats.results, policy.same_results) {
            ("same_results", repeats.results)
        } else {
            return Ok(());
        };
        self.clock += 1;
        repeats.seen = self.clock;
        self.touches.push_back((self.clock, (tool.clone(), like)));
        repeats.blocked = repeats.blocked.saturating_add(1);
        let message = told(kind, tool, times, repeats.last, repeats.blocked);
        Err((kind, Denied::new(DenyCode::RepeatBlocked, message).detail(Detail::Fuse { times })))
    }
}

fn told(kind: &str, tool: &ToolName, times: u32, last: &str, blocked: u32) -> String {
    let mut text = if kind == "same_failures" {
        format!(
            "`{tool}` failed {times} times with exactly these arguments (last: {last}); it was not \
             called again. Change an argument, use another tool, or say what is missing"
        )
    } else {
        format!(
            "`{tool}` gave the same result {times} times for exactly these arguments; it was not \
             called again. Work with that result, or change an argument"
        )
    };
    if blocked > 1 {
        text.push_str(&format!(". This is refusal {blocked} of the same call: stop repeating it"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: FusePolicy = FusePolicy { same_failures: Some(3), same_results: Some(2) };

    fn tool() -> ToolName {
        ToolName::new("lookup_order").expect("name")
    }

    #[test]
    fn bb_l01_the_fourth_same_failure_is_blocked_with_a_text_that_changes() {
        let (mut fuse, arguments) = (Fuse::default(), Likeness::of(b"a"));
        for _ in 0..3 {
            assert!(fuse.check(&tool(), arguments, THREE).is_ok());
            fuse.failed(&tool(), arguments, "upstream_timeout");
        }
        let (kind, first) = fuse.check(&tool(), arguments, THREE).expect_err("blocked");
        let (_, second) = fuse.check(&tool(), arguments, THREE).expect_err("blocked");
        assert_eq!((kind, first.code), ("same_failures", DenyCode::RepeatBlocked));
        assert!(first.message.contains("Change an argument"));
        assert_ne!(first.message, second.message);
        assert!(fuse.check(&tool(), Likeness::of(b"b"), THREE).is_ok());
    }

    #[test]
    fn a_success_clears_the_failures_and_a_changed_result_the_successes() {
        let (mut fuse, arguments) = (Fuse::default(), Likeness::of(b"a"));
        fuse.failed(&tool(), arguments, "x");
        fuse.failed(&tool(), arguments, "x");
        fuse.succeeded(&tool(), arguments, 1);
        fuse.failed(&tool(), arguments, "x");
        assert!(fuse.check(&tool(), arguments, THREE).is_ok());
        fuse.succeeded(&tool(), arguments, 2);
        assert!(fuse.check(&tool(), arguments, THREE).is_ok());
        fuse.succeeded(&tool(), arguments, 2);
        let (kind, _) = fuse.check(&tool(), arguments, THREE).expect_err("unchanged twice");
        assert_eq!(kind, "same_results");
    }

    #[test]
    fn a_fuse_that_is_off_blocks_nothing() {
        let off = FusePolicy { same_failures: None, same_results: None };
        let mut fuse = Fuse::default();
        for _ in 0..50 {
            fuse.failed(&tool(), Likeness::of(b"a"), "x");
        }
        assert!(fuse.check(&tool(), Likeness::of(b"a"), off).is_ok());
    }

    #[test]
    fn its_memory_is_bounded_and_forgets_the_oldest_first() {
        let mut fuse = Fuse::default();
        let digest = |n: usize| Likeness::of(&n.to_be_bytes());
        for n in 0..=MAX_REMEMBERED {
            for _ in 0..3 {
                fuse.failed(&tool(), digest(n), "x");
            }
        }
        assert_eq!(fuse.calls.len(), MAX_REMEMBERED);
        assert!(fuse.check(&tool(), digest(0), THREE).is_ok());
        assert!(fuse.check(&tool(), digest(MAX_REMEMBERED), THREE).is_err());
    }
}
