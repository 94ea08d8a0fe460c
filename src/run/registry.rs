//! Live runs: bounded per agent, never evicted; full means that a new one is refused. A finished run stays finished:
//! its id is remembered and opens nothing again.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use ahash::RandomState;
use tokio::time::Instant;

use super::answers::Answers;
use super::fuse::Fuse;
use super::summary::Failures;
use super::trajectory::Trajectory;
use super::usage::{Usage, exhausted};
use super::{Memory, Run, Stall, Wanted};
use crate::call::Named;
use crate::call::code::DenyCode;
use crate::call::turn::LoopState;
use crate::call::{AgentId, Denied, Dimension, Home, RunId, ToolCall};
use crate::policy::snapshot::{Agent, RunPolicy};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::record::wall_clock;

/// Maps the live runs are spread over, so that calls of different runs seldom meet at one lock.
const SHARDS: usize = 16;
/// How long the id of a finished run opens nothing again.
pub(crate) const ENDED_FOR: Duration = Duration::from_secs(24 * 3600);
/// Finished ids remembered for one agent; past it its own oldest is forgotten first.
pub(crate) const MAX_ENDED: usize = 4096;

/// Live runs: bounded per agent, never evicted.
#[derive(Debug)]
pub struct Runs {
    shards: [RwLock<Named<RunId, Arc<Run>>>; SHARDS],
    /// Which of them a run lies in.
    sharding: RandomState,
    ambient: RwLock<Named<AgentId, Arc<Run>>>,
    /// Taken to open and to end a run, never to find one.
    book: Mutex<Book>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct Book {
    owners: HashMap<AgentId, Owner>,
    ended: HashMap<RunId, (AgentId, &'static str)>,
}

#[derive(Debug, Default)]
struct Owner {
    live: usize,
    /// Finished runs, oldest first.
    ended: VecDeque<(Instant, RunId)>,
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}
fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Finished, another agent's and never opened are told alike.
fn unknown(id: &RunId) -> Denied {
    Denied::new(DenyCode::RunUnknown, format!("there is no run `{id}`; open a new one"))
}

impl Runs {
    pub fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            shards: Default::default(),
            sharding: RandomState::new(),
            ambient: RwLock::default(),
            book: Mutex::default(),
            metrics,
        })
    }

    /// Finds or opens. `run_unknown`: finished, another agent's, or never opened under `open: explicit`;
    /// `budget_exhausted {live_runs}`: past `max_live`. The run adopts the agent's run policy of this snapshot.
    pub fn enter(&self, agent: &Agent, wanted: &Wanted, now: Instant) -> Result<Arc<Run>, Denied> {
        match wanted {
            Wanted::Named(id) => self.enter_named(agent, id, now),
            Wanted::Ambient => self.enter_ambient(agent, now),
        }
    }

    fn enter_named(&self, agent: &Agent, id: &RunId, now: Instant) -> Result<Arc<Run>, Denied> {
        if let Some(run) = self.get(id) {
            if run.agent != agent.id {
                return Err(unknown(id));
            }
            adopt(&run, agent);
            return match self.over(&run, now) {
                Some(end) => {
                    self.finish(&run, end);
                    Err(self.ended(id, &agent.id))
                }
                None => {
                    run.touch(now);
                    Ok(run)
                }
            };
        }
        if agent.run.explicit || self.book().ended.contains_key(id) {
            return Err(self.ended(id, &agent.id));
        }
        let run = fresh(id.clone(), agent.id.clone(), agent.run.clone(), now);
        self.open(Arc::new(run), now)
    }

    fn enter_ambient(&self, agent: &Agent, now: Instant) -> Result<Arc<Run>, Denied> {
        let known = read(&self.ambient).get(&agent.id).cloned();
        if let Some(run) = known {
            adopt(&run, agent);
            match self.over(&run, now) {
                Some(end) => self.finish(&run, end),
                None => {
                    run.touch(now);
                    return Ok(run);
                }
            }
        }
        if agent.run.explicit {
            let message = "no run is named, and this agent's runs open by `POST /v1/runs` only";
            return Err(Denied::new(DenyCode::RunUnknown, message));
        }
        let mut run = fresh(RunId::mint(), agent.id.clone(), agent.run.clone(), now);
        run.ambient = true;
        self.open(Arc::new(run), now)
    }

    /// `POST /v1/runs`: a new run with a policy this agent may choose.
    pub fn create(
        &self,
        agent: &Agent,
        policy: &Arc<RunPolicy>,
        goal: Option<String>,
        now: Instant,
    ) -> Result<Arc<Run>, Denied> {
        let mut run = fresh(RunId::mint(), agent.id.clone(), policy.clone(), now);
        run.goal = goal;
        run.chosen = true;
        self.open(Arc::new(run), now)
    }

    /// Only the owner sees a run.
    pub fn owned(&self, id: &RunId, agent: &AgentId) -> Result<Arc<Run>, Denied> {
        self.get(id).filter(|run| run.agent == *agent).ok_or_else(|| self.ended(id, agent))
    }

    /// For gates: the run a call was made in, as long as that is open.
    pub fn of(&self, call: &ToolCall) -> Option<Arc<Run>> {
        match call.home.as_ref().and_then(Home::get::<Run>) {
            Some(run) => (!run.ended.load(Ordering::Acquire)).then_some(run),
            None => self.get(&call.run),
        }
    }

    /// A live run by its id.
    pub fn get(&self, id: &RunId) -> Option<Arc<Run>> {
        read(self.shard(id)).get(id).cloned()
    }

    /// Ends a run, once; later calls of it are `run_unknown`. `end`: completed, stopped, interrupted, budget,
    /// deadline, handoff, idle.
    pub fn finish(&self, run: &Run, end: &'static str) {
        let mut book = self.book();
        if run.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        write(self.shard(&run.id)).remove(&run.id);
        if run.ambient {
            let mut ambient = write(&self.ambient);
            if ambient.get(&run.agent).is_some_and(|known| known.id == run.id) {
                ambient.remove(&run.agent);
            }
        }
        let owner = book.owners.entry(run.agent.clone()).or_default();
        owner.live = owner.live.saturating_sub(1);
        owner.ended.push_back((Instant::now(), run.id.clone()));
        let forgotten = if owner.ended.len() > MAX_ENDED { owner.ended.pop_front() } else { None };
        if let Some((_, oldest)) = forgotten {
            book.ended.remove(&oldest);
        }
        book.ended.insert(run.id.clone(), (run.agent.clone(), end));
        drop(book);
        self.metrics.agent(run.agent.as_str()).run_ended(end);
    }

    /// Ends idle and timed-out runs, forgets finished ones; called on a timer.
    pub fn sweep(&self, now: Instant) {
        for shard in &self.shards {
            let over: Vec<(Arc<Run>, &'static str)> = read(shard)
                .values()
                .filter_map(|run| Some((run.clone(), self.over(run, now)?)))
                .collect();
            for (run, end) in over {
                self.finish(&run, end);
            }
        }
        let mut book = self.book();
        let Book { owners, ended } = &mut *book;
        for owner in owners.values_mut() {
            while let Some((at, _)) = owner.ended.front()
                && now.saturating_duration_since(*at) >= ENDED_FOR
            {
                if let Some((_, id)) = owner.ended.pop_front() {
                    ended.remove(&id);
                }
            }
        }
        owners.retain(|_, owner| owner.live > 0 || !owner.ended.is_empty());
    }

    /// Every live run, in no order.
    pub fn all(&self) -> Vec<Arc<Run>> {
        self.shards
            .iter()
            .flat_map(|shard| read(shard).values().cloned().collect::<Vec<_>>())
            .collect()
    }

    /// How a run that is remembered ended.
    pub fn how_ended(&self, id: &RunId) -> Option<&'static str> {
        self.book().ended.get(id).map(|(_, end)| *end)
    }

    /// (agent, live runs)
    pub fn live(&self) -> Vec<(AgentId, u64)> {
        let book = self.book();
        book.owners.iter().map(|(agent, owner)| (agent.clone(), owner.live as u64)).collect()
    }

    /// Why a live run is at its end, if it is. Requests in flight finish first.
    fn over(&self, run: &Run, now: Instant) -> Option<&'static str> {
        if run.busy.load(Ordering::Acquire) > 0 {
            None
        } else if run.ambient {
            // Else an agent would be rid of a person's stop by being silent for a while.
            (run.idle(now) && !run.interrupted()).then_some("idle")
        } else {
            let end = if run.interrupted() { "interrupted" } else { "deadline" };
            (now >= run.deadline()).then_some(end)
        }
    }

    fn open(&self, run: Arc<Run>, now: Instant) -> Result<Arc<Run>, Denied> {
        let mut book = self.book();
        let owner = book.owners.entry(run.agent.clone()).or_default();
        if run.ambient
            && let Some(first) = read(&self.ambient).get(&run.agent)
        {
            // Another request of this agent opened it meanwhile.
            return Ok(first.clone());
        }
        let limit = run.policy().max_live;
        let mut shard = write(self.shard(&run.id));
        match shard.entry(run.id.clone()) {
            Entry::Occupied(known) if known.get().agent == run.agent => {
                return Ok(known.get().clone());
            }
            Entry::Occupied(_) => return Err(unknown(&run.id)),
            Entry::Vacant(_) if owner.live >= limit => {
                let used = owner.live as u64;
                drop(shard);
                drop(book);
                let metrics = self.metrics.agent(run.agent.as_str());
                metrics.budget_exhausted(Dimension::LiveRuns);
                return Err(exhausted(Dimension::LiveRuns, used, limit as u64));
            }
            Entry::Vacant(place) => place.insert(run.clone()),
        };
        owner.live += 1;
        if run.ambient {
            write(&self.ambient).insert(run.agent.clone(), run.clone());
        }
        run.touch(now);
        Ok(run)
    }

    /// What the owner of a finished run is told differs in words alone; anybody else is told that there is none.
    fn ended(&self, id: &RunId, agent: &AgentId) -> Denied {
        match self.book().ended.get(id) {
            Some((owner, end)) if owner == agent => Denied::new(
                DenyCode::RunUnknown,
                format!("the run `{id}` has ended ({end}); open a new one"),
            ),
            Some(_) | None => unknown(id),
        }
    }

    fn shard(&self, id: &RunId) -> &RwLock<Named<RunId, Arc<Run>>> {
        let [first, ..] = &self.shards;
        let place = self.sharding.hash_one(id) % SHARDS as u64;
        self.shards.get(usize::try_from(place).unwrap_or(0)).unwrap_or(first)
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The run follows the policy in force. A chosen budget that is gone falls back to the agent's own.
fn adopt(run: &Run, agent: &Agent) {
    let now = run.policy();
    let wanted = match run.chosen {
        true => agent.choosable_runs.get(&now.name).unwrap_or(&agent.run),
        false => &agent.run,
    };
    if !Arc::ptr_eq(&now, wanted) {
        *write(&run.policy) = wanted.clone();
    }
}

fn fresh(id: RunId, agent: AgentId, policy: Arc<RunPolicy>, now: Instant) -> Run {
    Run {
        id,
        agent,
        goal: None,
        started: now,
        opened: wall_clock(),
        ambient: false,
        chosen: false,
        policy: RwLock::new(policy),
        usage: Usage::default(),
        active: AtomicU64::new(0),
        busy: AtomicU64::new(0),
        ended: AtomicBool::new(false),
        memory: Mutex::new(Memory {
            fuse: Fuse::default(),
            failures: Failures::default(),
            trajectory: Trajectory::default(),
            answers: Answers::default(),
            state: LoopState::Continue,
            stopped: None,
            stall: Stall::default(),
        }),
    }
}
