//! Live state that outlives a policy reload: circuits, buckets, places, cooldowns, retry budgets.
//!
//! Found by name; each concern survives exactly when its own numbers did not change, so that a touched file never
//! refills a bucket nor closes a circuit. What the new policy no longer names is dropped.

mod by_hand;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::cache::Cached;
use super::circuit::{Circuit, Shown};
use super::rate_limit::{Bucket, Keyed};
use super::retry_budget::RetryBudget;
use crate::call::{AgentId, ToolName, UpstreamName, Verdict};
use crate::policy::snapshot::{BreakerMode, Per, RateLimit, RunPolicy, Snapshot, Tool, Upstream};
use crate::telemetry::metrics::{Metrics, StateView, ToolStateView, UpstreamStateView};
use crate::telemetry::record::wall_clock;

pub use by_hand::{CircuitView, Isolation, Moves, NotMoved};

/// Longest cooldown a tool can put itself under; the model is told the tool's own number all the same.
const MAX_COOLDOWN: Duration = Duration::from_secs(60);
/// Cooldown of a tool that names none.
const DEFAULT_COOLDOWN: Duration = Duration::from_secs(1);
/// Bounds of what a refused call is told to wait for a place.
const PLACE_WAIT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A circuit and the short lock around it.
#[derive(Debug, Clone)]
pub struct SharedCircuit(Arc<Mutex<Circuit>>);

impl SharedCircuit {
    pub fn new(circuit: Circuit) -> Self {
        Self(Arc::new(Mutex::new(circuit)))
    }

    /// For a moment; never across an await.
    pub fn lock(&self) -> MutexGuard<'_, Circuit> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A fixed number of places.
#[derive(Debug)]
pub struct Places {
    limit: u32,
    free: Arc<Semaphore>,
}

impl Places {
    pub fn new(limit: u32) -> Self {
        let most = usize::try_from(limit).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self { limit, free: Arc::new(Semaphore::new(most)) }
    }

    pub fn try_take(&self) -> Option<OwnedSemaphorePermit> {
        self.free.clone().try_acquire_owned().ok()
    }

    pub fn taken(&self) -> u64 {
        u64::from(self.limit).saturating_sub(self.free.available_permits() as u64)
    }

    pub fn limit(&self) -> u32 {
        self.limit
    }
}

/// Time a call of a tool takes, smoothed: each new one moves it by an eighth.
#[derive(Debug, Default)]
pub struct CallTime(AtomicU64);

impl CallTime {
    pub fn observe(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        // A lost race loses one sample of a smoothed value.
        let old = self.0.load(Ordering::Relaxed);
        let new = if old == 0 { took } else { old - old / 8 + took / 8 };
        self.0.store(new, Ordering::Relaxed);
    }

    /// Within the bounds of a useful advice.
    pub fn smoothed(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed)).clamp(PLACE_WAIT.0, PLACE_WAIT.1)
    }
}

/// How long a tool has asked to be left alone.
#[derive(Debug, Default)]
pub struct Cooldown(Mutex<Option<Cooling>>);

#[derive(Debug, Clone, Copy)]
struct Cooling {
    /// Refused until here, at most a minute away.
    until: Instant,
    /// What the tool said.
    told: Instant,
}

impl Cooldown {
    fn lock(&self) -> MutexGuard<'_, Option<Cooling>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Only ever later, never earlier.
    pub fn set(&self, retry_after: Option<Duration>) {
        let wait = retry_after.unwrap_or(DEFAULT_COOLDOWN);
        let now = Instant::now();
        // A wait past the clock's end is a minute all the same.
        let told = now.checked_add(wait).unwrap_or(now + MAX_COOLDOWN);
        let next = Cooling { until: now + wait.min(MAX_COOLDOWN), told };
        let mut cooling = self.lock();
        if cooling.is_none_or(|old| next.until > old.until) {
            *cooling = Some(next);
        }
    }

    /// The tool's own number, while calls are refused.
    pub fn left(&self) -> Option<Duration> {
        self.left_at(Instant::now())
    }

    /// The same, seen from `now`.
    pub fn left_at(&self, now: Instant) -> Option<Duration> {
        let cooling = (*self.lock())?;
        (now < cooling.until).then(|| cooling.told.saturating_duration_since(now))
    }
}

/// Live state of one tool.
#[derive(Debug)]
pub struct ToolState {
    pub circuit: SharedCircuit,
    pub places: Arc<Places>,
    pub cooldown: Arc<Cooldown>,
    pub call_time: Arc<CallTime>,
    pub bucket: Option<ToolBucket>,
    pub upstream: Arc<UpstreamState>,
    /// How a broken tool is tested, where its policy names a way; set once, before its stacks are made.
    pub probe: OnceLock<ProbeWay>,
}

/// One probe: what it says of the tool.
#[derive(Clone)]
pub struct ProbeWay(pub Arc<dyn Fn() -> Probing + Send + Sync>);

pub type Probing = std::pin::Pin<Box<dyn Future<Output = Verdict> + Send>>;

impl std::fmt::Debug for ProbeWay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ProbeWay")
    }
}

#[derive(Debug, Clone)]
pub enum ToolBucket {
    Shared(Arc<Bucket>),
    Keyed(Arc<Keyed>),
}

/// Live state of one upstream, shared by its tools.
#[derive(Debug)]
pub struct UpstreamState {
    pub circuit: SharedCircuit,
    pub places: Arc<Places>,
    pub bucket: Option<Arc<Bucket>>,
    pub retry_budget: Arc<Mutex<RetryBudget>>,
    pub probe: OnceLock<ProbeWay>,
}

/// Live state of one agent.
#[derive(Debug)]
pub struct AgentState {
    pub places: Option<Arc<Places>>,
    pub bucket: Option<Arc<Bucket>>,
}

#[derive(Debug, Default)]
struct Live {
    tools: HashMap<ToolName, Arc<ToolState>>,
    upstreams: HashMap<UpstreamName, Arc<UpstreamState>>,
    agents: HashMap<AgentId, Arc<AgentState>>,
    /// By the name of the run's policy.
    runs: HashMap<Arc<str>, Arc<Keyed>>,
    places: Option<Arc<Places>>,
    bucket: Option<Arc<Bucket>>,
    /// By a person; outlives every policy.
    isolated: HashMap<ToolName, Isolation>,
}

impl Live {
    /// Tokens of the buckets that all tools share: of the emptiest one, where there are several.
    fn tokens(&self) -> Vec<(&'static str, u64)> {
        let run = self.runs.values().map(|keyed| keyed.tokens()).min();
        let agents = self.agents.values().filter_map(|agent| agent.bucket.as_ref());
        let agent = agents.map(|bucket| bucket.tokens()).min();
        let global = self.bucket.as_ref().map(|bucket| bucket.tokens());
        [("run", run), ("agent", agent), ("global", global)]
            .into_iter()
            .filter_map(|(scope, tokens)| Some((scope, u64::from(tokens?))))
            .collect()
    }
}

/// All live governance state of the process.
#[derive(Debug)]
pub struct State {
    live: Mutex<Live>,
    pub(super) cached: Cached,
}

impl State {
    pub fn new(_metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { live: Mutex::default(), cached: Cached::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over what the new policy left unchanged, starts anew what it changed, drops what it no longer has.
    pub fn adopt(&self, snapshot: &Snapshot) {
        self.cached.adopt(snapshot);
        let mut live = self.lock();
        let mut old = std::mem::take(&mut *live);
        live.isolated = std::mem::take(&mut old.isolated);
        live.places = Some(keep_places(old.places.as_ref(), snapshot.limits.bulkhead));
        live.bucket = keep_bucket(old.bucket.as_ref(), snapshot.limits.rate_limit.as_ref());
        for (name, upstream) in &snapshot.upstreams {
            let kept = upstream_state(old.upstreams.get(name), upstream);
            live.upstreams.insert(name.clone(), Arc::new(kept));
        }
        let passed = snapshot.mcp_servers.values().filter_map(|server| server.passed.as_ref());
        for tool in snapshot.tools.values().chain(passed) {
            let name = &tool.name;
            let kept = old.upstreams.get(&tool.upstream.name);
            let upstream = live
                .upstreams
                .entry(tool.upstream.name.clone())
                .or_insert_with(|| Arc::new(upstream_state(kept, &tool.upstream)))
                .clone();
            let state = tool_state(old.tools.get(name), tool, upstream);
            by_hand::hold(&state.circuit, live.isolated.get(name));
            live.tools.insert(name.clone(), Arc::new(state));
        }
        for (id, agent) in &snapshot.agents {
            let before = old.agents.get(id);
            let places = agent
                .bulkhead
                .map(|limit| keep_places(before.and_then(|state| state.places.as_ref()), limit));
            let bucket = keep_bucket(
                before.and_then(|state| state.bucket.as_ref()),
                agent.rate_limit.as_ref(),
            );
            live.agents.insert(id.clone(), Arc::new(AgentState { places, bucket }));
            for run in std::iter::once(&agent.run).chain(agent.choosable_runs.values()) {
                keep_run(&mut live.runs, &old.runs, run);
            }
        }
    }

    /// Live state of a tool of the adopted policy; one it does not have gets state of its own that nobody shares.
    pub fn tool(&self, tool: &Tool) -> Arc<ToolState> {
        let live = self.lock();
        match live.tools.get(&tool.name) {
            Some(state) => state.clone(),
            None => {
                let upstream = Arc::new(upstream_state(None, &tool.upstream));
                Arc::new(tool_state(None, tool, upstream))
            }
        }
    }

    pub fn agent(&self, agent: &AgentId) -> Option<Arc<AgentState>> {
        self.lock().agents.get(agent).cloned()
    }

    /// Buckets of the runs under a run policy.
    pub fn runs(&self, policy: &str) -> Option<Arc<Keyed>> {
        self.lock().runs.get(policy).cloned()
    }

    /// Places of the whole process.
    pub fn process_places(&self, limit: u32) -> Arc<Places> {
        let places = self.lock().places.clone();
        places.unwrap_or_else(|| Arc::new(Places::new(limit)))
    }

    pub fn global_bucket(&self) -> Option<Arc<Bucket>> {
        self.lock().bucket.clone()
    }

    /// True while the tool's circuit lets calls pass (for alternatives).
    pub fn is_closed(&self, tool: &ToolName) -> bool {
        let Some(state) = self.lock().tools.get(tool).cloned() else { return false };
        let circuit = state.circuit.lock();
        let shown = circuit.shown(Instant::now());
        match circuit.policy().mode {
            BreakerMode::Shadow | BreakerMode::Disabled => shown != Shown::Isolated,
            BreakerMode::Enforce | BreakerMode::Isolated => shown == Shown::Closed,
        }
    }

    /// For the scrape. What is not governance (runs, reviews, the store) is left to whoever knows it.
    pub fn view(&self) -> StateView {
        let now = Instant::now();
        let live = self.lock();
        let wider = live.tokens();
        StateView {
            tools: live.tools.iter().map(|(name, tool)| tool.view(name, now, &wider)).collect(),
            upstreams: live
                .upstreams
                .iter()
                .map(|(name, upstream)| upstream.view(name, now))
                .collect(),
            concurrency_limit: live.places.as_ref().map_or(0, |places| u64::from(places.limit())),
            store_writable: true,
            ..StateView::default()
        }
    }

    /// Forgets buckets of runs and agents that are full again; called on a timer.
    pub fn sweep(&self) {
        let live = self.lock();
        for keyed in live.runs.values() {
            keyed.sweep();
        }
        for tool in live.tools.values() {
            if let Some(ToolBucket::Keyed(keyed)) = &tool.bucket {
                keyed.sweep();
            }
        }
    }
}

impl ToolState {
    /// What the next call would meet; a shadow circuit shows `shadow`, a disabled one is closed.
    pub fn breaker(&self, now: Instant) -> &'static str {
        shown(&self.circuit.lock(), now)
    }

    fn view(&self, name: &ToolName, now: Instant, wider: &[(&'static str, u64)]) -> ToolStateView {
        let circuit = self.circuit.lock();
        let tool = self.bucket.as_ref().map(|bucket| match bucket {
            ToolBucket::Shared(bucket) => bucket.tokens(),
            ToolBucket::Keyed(keyed) => keyed.tokens(),
        });
        let upstream = self.upstream.bucket.as_ref().map(|bucket| bucket.tokens());
        let tokens = [("tool", tool), ("upstream", upstream)];
        let wall = wall_clock();
        ToolStateView {
            tool: name.to_string(),
            breaker: shown(&circuit, now),
            consecutive_failures: u64::from(circuit.consecutive_failures()),
            failure_threshold: u64::from(circuit.policy().consecutive_failures),
            last_transition: circuit.last_transition().and_then(|at| on_wall(wall, now, at)),
            inflight: self.places.taken(),
            tokens: tokens
                .into_iter()
                .filter_map(|(scope, tokens)| Some((scope, u64::from(tokens?))))
                .chain(wider.iter().copied())
                .collect(),
            cooldown_until: self.cooldown.left().and_then(|left| wall.checked_add(left)),
        }
    }
}

impl UpstreamState {
    fn view(&self, name: &UpstreamName, now: Instant) -> UpstreamStateView {
        let budget = self.retry_budget.lock().unwrap_or_else(PoisonError::into_inner);
        UpstreamStateView {
            upstream: name.to_string(),
            breaker: shown(&self.circuit.lock(), now),
            retry_budget_milli: budget.balance(now),
        }
    }
}

fn shown(circuit: &Circuit, now: Instant) -> &'static str {
    if circuit.shown(now) == Shown::Isolated {
        return Shown::Isolated.as_str(); // by hand, also where the breaker only watches
    }
    match circuit.policy().mode {
        BreakerMode::Shadow => "shadow",
        BreakerMode::Disabled => Shown::Closed.as_str(),
        BreakerMode::Enforce | BreakerMode::Isolated => circuit.shown(now).as_str(),
    }
}

/// An instant of the past on the wall clock.
fn on_wall(wall: SystemTime, now: Instant, at: Instant) -> Option<SystemTime> {
    wall.checked_sub(now.saturating_duration_since(at))
}

fn keep_places(old: Option<&Arc<Places>>, limit: u32) -> Arc<Places> {
    match old {
        Some(places) if places.limit == limit => places.clone(),
        Some(_) | None => Arc::new(Places::new(limit)),
    }
}

fn keep_bucket(old: Option<&Arc<Bucket>>, policy: Option<&RateLimit>) -> Option<Arc<Bucket>> {
    let policy = policy?;
    Some(match old {
        Some(bucket) if bucket.serves(policy) => bucket.clone(),
        Some(_) | None => Arc::new(Bucket::new(policy)),
    })
}

fn keep_keyed(old: Option<&Arc<Keyed>>, policy: &RateLimit) -> Arc<Keyed> {
    match old {
        Some(keyed) if keyed.serves(policy) => keyed.clone(),
        Some(_) | None => Arc::new(Keyed::new(policy)),
    }
}

fn keep_circuit(
    old: Option<&SharedCircuit>,
    policy: &crate::policy::snapshot::BreakerPolicy,
) -> SharedCircuit {
    match old {
        Some(circuit) if circuit.lock().policy() == policy => circuit.clone(),
        Some(_) | None => SharedCircuit::new(Circuit::new(policy.clone(), Instant::now())),
    }
}

fn keep_run(
    runs: &mut HashMap<Arc<str>, Arc<Keyed>>,
    old: &HashMap<Arc<str>, Arc<Keyed>>,
    policy: &RunPolicy,
) {
    if let Some(limit) = &policy.rate_limit {
        runs.entry(policy.name.clone()).or_insert_with(|| keep_keyed(old.get(&policy.name), limit));
    }
}

fn upstream_state(old: Option<&Arc<UpstreamState>>, upstream: &Upstream) -> UpstreamState {
    let old_budget = old.map(|state| &state.retry_budget).filter(|budget| {
        let budget = budget.lock().unwrap_or_else(PoisonError::into_inner);
        *budget.policy() == upstream.retry_budget
    });
    let fresh = || Arc::new(Mutex::new(RetryBudget::new(upstream.retry_budget, Instant::now())));
    UpstreamState {
        circuit: keep_circuit(old.map(|state| &state.circuit), &upstream.breaker),
        places: keep_places(old.map(|state| &state.places), upstream.bulkhead),
        bucket: keep_bucket(
            old.and_then(|state| state.bucket.as_ref()),
            upstream.rate_limit.as_ref(),
        ),
        retry_budget: old_budget.cloned().unwrap_or_else(fresh),
        probe: OnceLock::new(),
    }
}

fn tool_state(
    old: Option<&Arc<ToolState>>,
    tool: &Tool,
    upstream: Arc<UpstreamState>,
) -> ToolState {
    let old_bucket = old.and_then(|state| state.bucket.as_ref());
    let bucket = tool.rate_limit.as_ref().map(|policy| match (policy.per, old_bucket) {
        (Per::Tool, Some(ToolBucket::Shared(old))) if old.serves(policy) => {
            ToolBucket::Shared(old.clone())
        }
        (Per::Tool, Some(_) | None) => ToolBucket::Shared(Arc::new(Bucket::new(policy))),
        (Per::Agent | Per::Run, Some(ToolBucket::Keyed(old))) => {
            ToolBucket::Keyed(keep_keyed(Some(old), policy))
        }
        (Per::Agent | Per::Run, Some(ToolBucket::Shared(_)) | None) => {
            ToolBucket::Keyed(keep_keyed(None, policy))
        }
    });
    ToolState {
        circuit: keep_circuit(old.map(|state| &state.circuit), &tool.breaker),
        places: keep_places(old.map(|state| &state.places), tool.bulkhead),
        cooldown: old.map(|state| state.cooldown.clone()).unwrap_or_default(),
        call_time: old.map(|state| state.call_time.clone()).unwrap_or_default(),
        bucket,
        upstream,
        probe: OnceLock::new(),
    }
}

#[cfg(test)]
mod tests;
