//! Answers reads without their tool: a fresh answer again, one answer for calls that ask the same at once, and, where the
//! policy says so, an old one for a tool that is broken, which says that it is old.
//!
//! Reads alone, and one agent's answers for that agent alone unless the policy shares them. Every gate above has let the
//! call through; whatever it needs below (a person's yes, a closed circuit, a place, a token) is needed to reach the tool.

mod flight;
mod key;
mod memory;
mod spoil;

use std::collections::HashSet;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt};

use self::flight::{Follow, Heard, Joined, Lead, Shared};
use self::key::Key;
pub use self::memory::{Cached, Memory};
pub use self::spoil::{Mark, Marks, SpoilLayer, spoiling};
use super::gate::{Answering, Below, take_ready};
use super::state::ToolState;
use crate::call::code::{DenyCode, FailCode};
use crate::call::{
    AgentId, CallError, Class, Denied, Detail, Failed, LimitedBy, Notes, Outcome, Source,
    TimedOutBy, ToolCall, ToolResult,
};
use crate::policy::snapshot::{CachePolicy, Tool};
use crate::telemetry::metrics::ToolMetrics;

/// Of tools whose policy lets answers be kept.
#[derive(Debug, Clone)]
pub struct CacheLayer(pub Arc<With>);

/// What the cache of one tool is made of.
#[derive(Debug)]
pub struct With {
    pub tool: Arc<Tool>,
    pub policy: CachePolicy,
    pub state: Arc<ToolState>,
    pub memory: Arc<Memory>,
    /// What a write to the tool's upstream changes.
    pub writes: Arc<Mark>,
    /// What a person changes who switches the tool off.
    pub by_hand: Arc<Mark>,
    pub metrics: Arc<ToolMetrics>,
    /// Agents that only rehearse: they hear what would have been sent, not an answer.
    pub rehearsing: Arc<HashSet<AgentId>>,
}

impl<S> Layer<S> for CacheLayer {
    type Service = Cache<S>;
    fn layer(&self, inner: S) -> Cache<S> {
        Cache { with: self.0.clone(), inner }
    }
}

#[derive(Debug, Clone)]
pub struct Cache<S> {
    with: Arc<With>,
    inner: S,
}

impl<S: Below> Service<ToolCall> for Cache<S> {
    type Response = ToolResult;
    type Error = CallError;
    type Future = Answering;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, call: ToolCall) -> Answering {
        let inner = take_ready(&mut self.inner);
        let with = self.with.clone();
        Box::pin(async move {
            match with.look(&call).await {
                Looked::Answered(outcome) => outcome,
                Looked::Ask(asking) => {
                    let ended = Ended::of(&call);
                    let outcome = inner.oneshot(call).await.map_err(Into::into);
                    match asking {
                        Some(asking) => with.asked(asking, &ended, outcome),
                        None => outcome,
                    }
                }
            }
        })
    }
}

/// What a look into the cache comes to.
enum Looked {
    Answered(Outcome),
    /// The tool is asked. `None`: and nothing of it is kept.
    Ask(Option<Asking>),
}

/// A question to the tool whose answer is kept.
struct Asking {
    key: Key,
    /// As they stood before it was asked: an answer from before a write is not kept past it.
    marks: Marks,
    /// `None`: nobody waits for this one.
    lead: Option<Lead>,
}

/// What is needed of a call after it has gone down.
struct Ended {
    trace: crate::call::Trace,
    cancelled: Option<tokio_util::sync::CancellationToken>,
}

impl Ended {
    fn of(call: &ToolCall) -> Self {
        let cancelled = call.side.as_ref().map(|side| side.cancelled.clone());
        Self { trace: call.trace.clone(), cancelled }
    }

    fn taken_back(&self) -> bool {
        self.cancelled.as_ref().is_some_and(|cancelled| cancelled.is_cancelled())
    }
}

impl With {
    async fn look(&self, call: &ToolCall) -> Looked {
        let key = match self.rehearsing.contains(&call.agent) {
            true => None,
            false => key::key(&self.tool, self.policy.global_scope, call),
        };
        let Some(key) = key else { return Looked::Ask(None) };
        let until = self.until(call);
        loop {
            // Switched off by a person, or by the policy: it says nothing, and the circuit below says why.
            if self.state.is_isolated() {
                return Looked::Ask(None);
            }
            let marks = self.marks();
            if let Some(result) = self.fresh(&key, marks) {
                return Looked::Answered(Ok(self.counted(call, "hit", "hit", result)));
            }
            let lead = match self.memory.flights.join(key, marks) {
                Joined::Lead(lead) => {
                    // Whoever led before has perhaps left its answer between the two looks.
                    if let Some(result) = self.fresh(&key, marks) {
                        return Looked::Answered(Ok(self.counted(call, "hit", "hit", result)));
                    }
                    Some(lead)
                }
                Joined::Full => None,
                Joined::Follow(follow) => match self.follow(call, follow, until).await {
                    // It was given up, and said nothing: somebody else asks, perhaps this one.
                    Some(Heard::Nothing) => continue,
                    Some(Heard::Told(Shared::Outcome(outcome))) => {
                        return Looked::Answered(self.heard(&key, call, outcome));
                    }
                    Some(Heard::Told(Shared::Alone)) => None,
                    None if Ended::of(call).taken_back() => None,
                    None => return Looked::Answered(self.time_over(&key, call)),
                },
            };
            return Looked::Ask(Some(Asking { key, marks, lead }));
        }
    }

    /// No longer than the call itself may wait, and no longer than it might have waited for the tool.
    fn until(&self, call: &ToolCall) -> Instant {
        let looped = self.tool.retry.as_ref().map(|retry| retry.deadline);
        let looped = looped.and_then(|longest| Instant::now().checked_add(longest));
        looped.map_or(call.deadline, |at| at.min(call.deadline))
    }

    fn marks(&self) -> Marks {
        Marks { writes: self.writes.now(), by_hand: self.by_hand.now() }
    }

    fn fresh(&self, key: &Key, marks: Marks) -> Option<ToolResult> {
        self.memory.results.get(key, marks, self.policy.ttl, Source::Cache)
    }

    /// Waits for the call that asks the same. `None`: its time is over, or its agent took it back.
    async fn follow(&self, call: &ToolCall, follow: Follow, until: Instant) -> Option<Heard> {
        let began = Instant::now();
        let heard = tokio::time::timeout_at(until, follow.heard());
        let heard = match call.side.as_ref().map(|side| &side.cancelled) {
            None => heard.await.ok(),
            Some(cancelled) => tokio::select! {
                biased;
                heard = heard => heard.ok(),
                () = cancelled.cancelled() => None,
            },
        };
        // Waiting for the tool by way of another call.
        call.trace.note().at_tool += began.elapsed();
        heard
    }

    /// What another call of the same question came to is what this one comes to.
    fn heard(&self, key: &Key, call: &ToolCall, outcome: Result<ToolResult, Failed>) -> Outcome {
        match outcome {
            Ok(result) => Ok(self.counted(call, "hit", "joined", aged(result, Duration::ZERO))),
            Err(failed) => self.or_stale(key, &Ended::of(call), failed.into()),
        }
    }

    fn time_over(&self, key: &Key, call: &ToolCall) -> Outcome {
        if let Some(result) = self.stale(key) {
            return Ok(self.counted(call, "stale", "stale", result));
        }
        self.counted_miss(&call.trace);
        call.trace.note().rule = Some("cache: another call asks the same".into());
        let message = format!("the same call of tool {} is still running", call.tool);
        Err(Denied::new(DenyCode::DeadlineExceeded, message).into())
    }

    /// The tool has been asked: its answer is kept and shared, or an old one stands in.
    fn asked(&self, asking: Asking, call: &Ended, outcome: Outcome) -> Outcome {
        let Asking { key, marks, lead } = asking;
        match outcome {
            Ok(result) => {
                let keep = memory::keepable(&result, self.policy.global_scope);
                if keep && self.marks() == marks {
                    self.memory.results.put(key, marks, &result);
                }
                if let Some(lead) = lead {
                    lead.end(match keep || result.notes.truncated.is_some() {
                        true => Shared::Outcome(Ok(memory::bare(&result))),
                        false => Shared::Alone,
                    });
                }
                self.counted_miss(&call.trace);
                Ok(result)
            }
            Err(error) => {
                match (lead, &error) {
                    // Its own time, or its own agent, ended it: that says nothing to others. They ask anew.
                    (Some(lead), CallError::Failed(failed)) if of_the_call(call, failed) => {
                        drop(lead);
                    }
                    (Some(lead), CallError::Failed(failed)) => {
                        lead.end(Shared::Outcome(Err(failed.clone())));
                    }
                    // What it was refused for is its own affair.
                    (Some(lead), CallError::Denied(_) | CallError::Unknown(_)) => {
                        lead.end(Shared::Alone);
                    }
                    (None, _) => {}
                }
                self.or_stale(&key, call, error)
            }
        }
    }

    fn or_stale(&self, key: &Key, call: &Ended, error: CallError) -> Outcome {
        let stale = match !call.taken_back() && stands_in_for(&error) {
            true => self.stale(key),
            false => None,
        };
        match stale {
            Some(result) => {
                self.metrics.cache_lookup("stale");
                call.trace.note().cache = Some("stale");
                Ok(result)
            }
            None => {
                self.counted_miss(&call.trace);
                Err(error)
            }
        }
    }

    /// An answer that may still stand in for a broken tool. Of one that was isolated meanwhile nothing is found.
    fn stale(&self, key: &Key) -> Option<ToolResult> {
        let longer = self.policy.stale_if_error?;
        let most = self.policy.ttl.saturating_add(longer);
        let found = self.memory.results.get(key, self.marks(), most, Source::StaleCache)?;
        // One that came meanwhile, by way of another call, is not stale.
        let fresh = found.notes.age.is_some_and(|age| age < self.policy.ttl);
        Some(if fresh { ToolResult { source: Source::Cache, ..found } } else { found })
    }

    fn counted(
        &self,
        call: &ToolCall,
        label: &'static str,
        how: &'static str,
        result: ToolResult,
    ) -> ToolResult {
        self.metrics.cache_lookup(label);
        call.trace.note().cache = Some(how);
        result
    }

    fn counted_miss(&self, trace: &crate::call::Trace) {
        self.metrics.cache_lookup("miss");
        trace.note().cache = Some("miss");
    }
}

fn aged(result: ToolResult, age: Duration) -> ToolResult {
    let notes = Notes { age: Some(age), ..result.notes };
    ToolResult { source: Source::Cache, notes, ..result }
}

/// Whether a failure is of the call that met it, not of the tool.
fn of_the_call(call: &Ended, failed: &Failed) -> bool {
    let own_time = matches!(failed.timed_out_by, Some(TimedOutBy::Call | TimedOutBy::Run));
    own_time || call.taken_back() || failed.code == FailCode::Internal
}

/// Ends that an old answer may stand in for: the tool could not be asked, or did not answer, and may do better later.
fn stands_in_for(error: &CallError) -> bool {
    match error {
        CallError::Failed(failed) => failed.class == Class::Transient,
        CallError::Denied(denied) => match (&denied.code, &denied.detail) {
            (DenyCode::CircuitOpen, Detail::Circuit { isolated, .. }) => !isolated,
            // The tool's own wish to be left alone; a limit of ours is no fault of the tool.
            (DenyCode::RateLimited, Detail::Limited { by, .. }) => *by == LimitedBy::Tool,
            (_, _) => false,
        },
        CallError::Unknown(_) => false,
    }
}
