//! What one agent task has done so far: its budgets, its repeats, its steps, its answers. Live runs are bounded and
//! never evicted, because an evicted run would get its budget back.

pub mod answers;
mod fuse;
mod registry;
mod summary;
pub mod trajectory;
mod usage;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use ahash::RandomState;
use tokio::time::Instant;

use crate::call::code::DenyCode;
use crate::call::ended::outcome_label;
use crate::call::turn::LoopState;
use crate::call::{
    AgentId, CallId, Denied, Digest, Dimension, Likeness, Outcome, RunId, ToolCall, ToolName, judge,
};
use crate::policy::snapshot::{FusePolicy, RunPolicy};
use crate::telemetry::record::wall_clock;

pub use registry::Runs;
pub(crate) use usage::exhausted;

/// Which run a request means.
#[derive(Debug, Clone)]
pub enum Wanted {
    /// Named by the agent (`Checkrein-Run`).
    Named(RunId),
    /// No name: the agent's ambient run.
    Ambient,
}

/// One agent task.
#[derive(Debug)]
pub struct Run {
    id: RunId,
    agent: AgentId,
    goal: Option<String>,
    started: Instant,
    /// `started` on the wall clock, for people and for the order of lists.
    opened: SystemTime,
    /// The agent's own, kept while it is silent; else a run with an id of its own.
    ambient: bool,
    /// Opened with a policy the agent chose: that name is looked up in later policies, not the agent's default.
    chosen: bool,
    policy: RwLock<Arc<RunPolicy>>,
    usage: usage::Usage,
    /// Milliseconds from `started` to the last sign of life.
    active: AtomicU64,
    /// Requests being worked on: a run with one is not idle.
    busy: AtomicU64,
    ended: AtomicBool,
    memory: Mutex<Memory>,
}

/// What is read and written together, under one short lock.
#[derive(Debug)]
struct Memory {
    fuse: fuse::Fuse,
    failures: summary::Failures,
    trajectory: trajectory::Trajectory,
    answers: answers::Answers,
    state: LoopState,
    stopped: Option<Stopped>,
    stall: Stall,
}

/// A person stopped the run.
#[derive(Debug, Clone)]
pub struct Stopped {
    pub at: SystemTime,
    pub who: String,
    pub why: String,
}

/// Turns without a call that bring nothing new.
#[derive(Debug, Default)]
struct Stall {
    last: Option<Digest>,
    turns: u32,
}

/// Held while a request of the run is worked on.
#[derive(Debug)]
#[must_use = "dropped at once, the run may end as idle while it works"]
pub struct Busy(Arc<Run>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.touch(Instant::now());
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Run {
    pub fn id(&self) -> &RunId {
        &self.id
    }

    pub fn agent(&self) -> &AgentId {
        &self.agent
    }

    /// What the agent said it is about, as it said it.
    pub fn goal(&self) -> Option<&str> {
        self.goal.as_deref()
    }

    pub fn policy(&self) -> Arc<RunPolicy> {
        self.policy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Start + wall clock.
    pub fn deadline(&self) -> Instant {
        let wall_clock = self.policy.read().unwrap_or_else(PoisonError::into_inner).wall_clock;
        self.started + wall_clock
    }

    /// Keeps the run from ending as idle until the guard is dropped.
    pub fn busy(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Ordering::AcqRel);
        Busy(self.clone())
    }

    /// One more call. Refuses with `budget_exhausted {dimension}`: calls and argument bytes exactly; failures,
    /// result bytes and cost by what is known; wall clock by the clock. A refusal takes nothing of what it names.
    pub fn take_call(&self, argument_bytes: u64, now: Instant) -> Result<(), Denied> {
        self.usage.take_call(&self.policy(), argument_bytes, self.age(now))
    }

    /// A call that was counted goes on: takes nothing, and refuses where the time is over or what is known only at the
    /// end is used up.
    pub fn go_on(&self, now: Instant) -> Result<(), Denied> {
        self.usage.go_on(&self.policy(), self.age(now))
    }

    /// One more message with calls; its number, from 1. Refuses with `budget_exhausted {rounds}`. A message that is
    /// sent again (the same digest) keeps the number it had.
    pub fn take_round(&self, digest: Digest, calls: u64) -> Result<u64, Denied> {
        let policy = self.policy();
        let mut memory = self.memory();
        memory.stall = Stall::default();
        if let Some(round) = memory.answers.round(digest) {
            return Ok(round);
        }
        let round = self.usage.take_round(&policy, calls)?;
        memory.answers.begin_round(digest, round);
        Ok(round)
    }

    /// Rounds taken so far.
    pub fn rounds(&self) -> u64 {
        self.usage.rounds()
    }

    /// Takes a message's call ids, all or none; `Err` names one that this run used for something else.
    pub fn claim_ids(&self, calls: &[(CallId, Digest)]) -> Result<(), CallId> {
        self.memory().answers.claim(calls)
    }

    /// The answer to a message that was answered before.
    pub fn answered(&self, digest: Digest) -> Option<Arc<answers::KeptTurn>> {
        self.memory().answers.turn(digest)
    }

    /// The result a call id of an earlier message had.
    pub fn answered_call(&self, id: &CallId) -> Option<answers::Kept> {
        self.memory().answers.call(id)
    }

    pub fn keep(&self, turn: answers::KeptTurn) {
        self.memory().answers.keep(turn);
    }

    /// A turn without calls that is not the last one: true once `stall_turns` of them in a row brought nothing new
    /// (no text, or the text of the turn before).
    pub fn stalls(&self, text: &str) -> bool {
        let most = self.policy().stall_turns;
        let text = text.trim();
        let digest = Digest::of(text.as_bytes());
        let mut memory = self.memory();
        let stall = &mut memory.stall;
        stall.turns = match text.is_empty() || stall.last == Some(digest) {
            true => stall.turns.saturating_add(1),
            false => 0,
        };
        stall.last = Some(digest);
        stall.turns >= most
    }

    /// State of the loop after the last turn; `interrupted` as long as a person stops it.
    pub fn state(&self) -> LoopState {
        let memory = self.memory();
        if memory.stopped.is_some() { LoopState::Interrupted } else { memory.state }
    }

    pub fn set_state(&self, state: LoopState) {
        self.memory().state = state;
    }

    /// When it was opened, by the wall clock.
    pub fn opened(&self) -> SystemTime {
        self.opened
    }

    /// A person stops this run: what has started ends, nothing more of it starts. False: it is stopped already, and
    /// the first word stands.
    pub fn interrupt(&self, who: &str, why: &str) -> bool {
        let mut memory = self.memory();
        if memory.stopped.is_some() {
            return false;
        }
        let (who, why) = (who.to_owned(), why.to_owned());
        memory.stopped = Some(Stopped { at: wall_clock(), who, why });
        true
    }

    /// A person lets it go on, with the budgets it had. False: nobody had stopped it.
    pub fn resume(&self) -> bool {
        let mut memory = self.memory();
        if memory.state == LoopState::Interrupted {
            memory.state = LoopState::Continue;
        }
        memory.stopped.take().is_some()
    }

    /// Who stopped it, while it is stopped.
    pub fn stopped(&self) -> Option<Stopped> {
        self.memory().stopped.clone()
    }

    pub fn interrupted(&self) -> bool {
        self.memory().stopped.is_some()
    }

    /// The refusal of every call of a stopped run. It takes nothing of any budget. The person's words are not shown
    /// to the model: they were said to other people.
    pub fn refusal(&self) -> Option<Denied> {
        self.interrupted().then(|| {
            let message = "a person stopped this run; this call was not sent";
            Denied::new(DenyCode::RunInterrupted, message)
        })
    }

    /// One attempt of a tool with a cost is about to be sent.
    pub fn spend(&self, cost: u64) {
        self.usage.spend(cost);
    }

    /// Fuse: same tool + same arguments failed or succeeded unchanged too often → `repeat_blocked`.
    /// Returns the kind (`same_failures`, `same_results`) with the refusal.
    pub fn fuse(
        &self,
        tool: &ToolName,
        like: Likeness,
        policy: FusePolicy,
    ) -> Result<(), (&'static str, Denied)> {
        self.memory().fuse.check(tool, like, policy)
    }

    /// Every end, once, from `observe`: budgets of failures and result bytes, fuse memory, failure summary,
    /// trajectory. `like`: of the arguments, as the fuse is asked with it; `None` feeds no fuse.
    pub fn note_end(
        &self,
        call: &ToolCall,
        like: Option<Likeness>,
        outcome: &Outcome,
        duration: Duration,
    ) {
        let now = Instant::now();
        self.touch(now);
        // Hashed before the lock is taken: results may be large.
        let streamed = call.trace.note().streamed;
        let result = match (outcome, like) {
            // Nothing of it was kept that another one could be compared with.
            (Ok(_), Some(_)) if streamed.is_some() => None,
            // A question is no result: being asked the same again is not the same result again.
            (Ok(result), Some(_)) if result.notes.asks.is_some() => None,
            (Ok(result), Some(_)) => Some(hash_of(&result.content.bytes)),
            (Ok(_), None) | (Err(_), Some(_) | None) => None,
        };
        match outcome {
            Ok(result) => {
                self.usage.result(streamed.unwrap_or(result.content.bytes.len() as u64));
            }
            Err(error) if judge::budget_counts(error) => self.usage.failed(),
            Err(_) => {}
        }
        let mut memory = self.memory();
        match (outcome, like, result) {
            (Ok(_), Some(like), Some(result)) => {
                memory.fuse.succeeded(&call.tool, like, result);
            }
            (Err(error), Some(like), _) if judge::fuse_counts(error) => {
                memory.fuse.failed(&call.tool, like, error.code());
            }
            (Ok(_) | Err(_), Some(_) | None, Some(_) | None) => {}
        }
        if let Err(error) = outcome
            && (judge::budget_counts(error) || judge::fuse_counts(error))
        {
            memory.failures.push(&call.tool, error);
        }
        memory.trajectory.push(trajectory::Step {
            call: call.id.clone(),
            tool: call.tool.clone(),
            outcome: outcome_label(outcome),
            duration,
            ended: now,
        });
    }

    /// (dimension, used, limit; `None` = unlimited). Wall clock in milliseconds, cost in millionths.
    pub fn budgets(&self, now: Instant) -> Vec<(Dimension, u64, Option<u64>)> {
        self.usage.view(&self.policy(), self.age(now))
    }

    /// Failures in one short line; `None` until they pile up.
    pub fn summary(&self) -> Option<String> {
        self.memory().failures.line()
    }

    /// (tool, code, count)
    pub fn failures(&self) -> Vec<(ToolName, &'static str, u64)> {
        self.memory().failures.table()
    }

    /// The first steps, how many were folded, the last steps.
    pub fn trajectory(&self) -> (Vec<trajectory::Step>, u64, Vec<trajectory::Step>) {
        self.memory().trajectory.view()
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }

    /// A sign of life. Not past the wall clock: an agent that goes on asking then would keep its used-up ambient
    /// run, and with it the refusal, for ever.
    fn touch(&self, now: Instant) {
        if now < self.deadline() {
            let millis = u64::try_from(self.age(now).as_millis()).unwrap_or(u64::MAX);
            self.active.fetch_max(millis, Ordering::AcqRel);
        }
    }

    fn idle(&self, now: Instant) -> bool {
        let silent = self
            .age(now)
            .saturating_sub(Duration::from_millis(self.active.load(Ordering::Acquire)));
        self.busy.load(Ordering::Acquire) == 0 && silent >= self.policy().idle
    }
}

/// Tells one result of a tool from the next: compared within a process only, so a short keyed hash is enough.
fn hash_of(bytes: &[u8]) -> u64 {
    static KEYED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    KEYED.hash_one(bytes)
}
