//! Sessions of agents that speak a revision with sessions: bound to an identity, bounded for each, never a credential.
//! Past the bound the longest idle one ends; a session with a call or a stream open is not idle.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::asks::Asks;
use super::streams::{Room, Streams, Told};
use crate::call::{AgentId, CallId, Digest, Likeness, RunId};
use crate::mcp::jsonrpc::Id;
use crate::mcp::session::{SESSION_ENTROPY, SessionId};
use crate::mcp::version::Revision;

/// Sessions of one agent.
pub(super) const MAX_SESSIONS: usize = 512;
/// A session that nobody used for so long is over. Half an hour breaks people who go to lunch.
pub(super) const IDLE: Duration = Duration::from_secs(8 * 3600);
/// Requests of one session, or of one connection over standard streams, in flight at once.
pub(super) const MAX_IN_FLIGHT: usize = 256;
/// Bytes of the digest of a session's id that its events are named after.
const MARK: usize = 6;
/// Ids of ended calls that a session remembers; the oldest are forgotten first.
const MAX_REMEMBERED: usize = 256;

/// One agent's session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: Arc<str>,
    pub(super) agent: AgentId,
    pub(super) revision: Revision,
    /// As the agent declared them.
    pub(super) capabilities: Arc<Value>,
    pub(super) in_flight: Arc<InFlight>,
    pub(super) asks: Arc<Asks>,
    pub(super) streams: Arc<Streams>,
    /// The session is over.
    pub(super) over: CancellationToken,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    used: Instant,
    /// The run of its calls that name none.
    run: RunId,
    /// It has been used, so somebody must end it.
    run_used: bool,
    /// A person stopped that run: it is not followed by another.
    stopped: bool,
    log_level: Option<Arc<str>>,
}

impl Session {
    /// `None`: the system gives no random bytes.
    pub(super) fn new(
        agent: AgentId,
        revision: Revision,
        capabilities: Value,
        told: Told,
        room: Arc<Room>,
    ) -> Option<Arc<Self>> {
        let mut random = [0; SESSION_ENTROPY];
        getrandom::fill(&mut random).ok()?;
        let id = SessionId::mint(random);
        let mark = Digest::of(id.as_str().as_bytes()).short_hex(MARK);
        Some(Arc::new(Self {
            id: id.as_str().into(),
            agent,
            revision,
            capabilities: Arc::new(capabilities),
            in_flight: Arc::default(),
            asks: Arc::default(),
            streams: Streams::new(mark, told, room),
            over: CancellationToken::new(),
            state: Mutex::new(State {
                used: Instant::now(),
                run: RunId::mint(),
                run_used: false,
                stopped: false,
                log_level: None,
            }),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self) {
        self.state().used = Instant::now();
    }

    /// The run of its calls that name none; from here on it counts as used.
    pub(super) fn run(&self) -> RunId {
        let mut state = self.state();
        state.run_used = true;
        state.run.clone()
    }

    /// `over` has run out of its time: the next run of this session, unless a person stopped it.
    pub(super) fn next_run(&self, over: &RunId) -> Option<RunId> {
        let mut state = self.state();
        if state.stopped {
            return None;
        }
        if state.run == *over {
            state.run = RunId::mint();
        }
        Some(state.run.clone())
    }

    /// A person stopped this session's run.
    pub(super) fn run_was_stopped(&self, run: &RunId) {
        let mut state = self.state();
        state.stopped |= state.run == *run;
    }

    pub(super) fn log_level(&self) -> Option<Arc<str>> {
        self.state().log_level.clone()
    }

    pub(super) fn set_log_level(&self, level: &str) {
        self.state().log_level = Some(level.into());
    }

    fn is_idle(&self) -> bool {
        !self.streams.are_read() && self.in_flight.is_empty()
    }

    fn end(&self) {
        self.over.cancel();
        self.asks.close();
        self.streams.close();
    }

    /// The run that ends with it.
    pub(super) fn run_to_end(&self) -> Option<RunId> {
        let state = self.state();
        state.run_used.then(|| state.run.clone())
    }
}

/// All sessions of the process.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    table: Mutex<Table>,
    /// What is kept of streams, by agent.
    rooms: Mutex<HashMap<AgentId, Weak<Room>>>,
}

/// By agent, then by id.
type Table = HashMap<AgentId, HashMap<Arc<str>, Arc<Session>>>;

/// Every session of the agent is in use.
#[derive(Debug)]
pub(super) struct Full;

impl Sessions {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rooms(&self) -> MutexGuard<'_, HashMap<AgentId, Weak<Room>>> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What all sessions of an agent share to keep their streams in.
    pub(super) fn room(&self, agent: &AgentId) -> Arc<Room> {
        let mut rooms = self.rooms();
        let room = rooms.entry(agent.clone()).or_default();
        room.upgrade().unwrap_or_else(|| {
            let new = Arc::default();
            *room = Arc::downgrade(&new);
            new
        })
    }

    /// Opens it. The session that had to go for it, if any, has ended.
    pub(super) fn open(&self, session: Arc<Session>) -> Result<Option<Arc<Session>>, Full> {
        let mut table = self.table();
        let own = table.entry(session.agent.clone()).or_default();
        let mut gone = None;
        if own.len() >= MAX_SESSIONS {
            let oldest =
                own.values().filter(|other| other.is_idle()).min_by_key(|s| s.state().used);
            let oldest = oldest.map(|oldest| oldest.id.clone()).ok_or(Full)?;
            gone = own.remove(&oldest);
        }
        own.insert(session.id.clone(), session);
        drop(table);
        if let Some(gone) = &gone {
            gone.end();
        }
        Ok(gone)
    }

    /// The agent's own session of this id. Another agent's, an ended one and one that never was are told alike.
    pub(super) fn find(&self, agent: &AgentId, id: &str) -> Option<Arc<Session>> {
        let found = self.table().get(agent)?.get(id).cloned()?;
        found.touch();
        Some(found)
    }

    /// Ends the agent's own session of this id.
    pub(super) fn end(&self, agent: &AgentId, id: &str) -> Option<Arc<Session>> {
        let ended = self.table().get_mut(agent)?.remove(id)?;
        ended.end();
        Some(ended)
    }

    /// Ends those that were idle too long, and forgets what was kept for long enough.
    pub(super) fn sweep(&self) -> Vec<Arc<Session>> {
        let (mut ended, now) = (Vec::new(), Instant::now());
        self.rooms().retain(|_, room| room.strong_count() > 0);
        self.table().retain(|_, own| {
            own.retain(|_, session| {
                let idle = now.saturating_duration_since(session.state().used) >= IDLE;
                let over = idle && session.is_idle();
                session.streams.sweep();
                if over {
                    ended.push(session.clone());
                }
                !over
            });
            !own.is_empty()
        });
        for session in &ended {
            session.end();
        }
        ended
    }
}

/// The requests of one session or connection that are not answered yet, and the last calls that were.
#[derive(Debug, Default)]
pub(super) struct InFlight(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    open: HashMap<Id, CancellationToken>,
    /// Id, content, call id: the oldest first.
    calls: VecDeque<(Likeness, Likeness, CallId)>,
}

/// Why a request cannot begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotBegun {
    /// A request of this id is not answered yet.
    Twice,
    /// A call of this id had other content.
    Reused,
    TooMany,
}

/// A request that has begun; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Begun {
    of: Arc<InFlight>,
    id: Id,
    /// The name of the call, where it is one: the same for the same call.
    pub(super) call: CallId,
    /// The agent took it back.
    pub(super) cancelled: CancellationToken,
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.of.open().open.remove(&self.id);
    }
}

impl InFlight {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_empty(&self) -> bool {
        self.open().open.is_empty()
    }

    /// `content`: of a call, what must be the same for it to be the same call.
    pub(super) fn begin(
        self: &Arc<Self>,
        id: &Id,
        content: Option<Likeness>,
    ) -> Result<Begun, NotBegun> {
        let mut table = self.open();
        if table.open.contains_key(id) {
            return Err(NotBegun::Twice);
        }
        if table.open.len() >= MAX_IN_FLIGHT {
            return Err(NotBegun::TooMany);
        }
        let mut call = CallId::mint();
        if let Some(content) = content {
            let name = Likeness::of(id.to_string().as_bytes());
            match table.calls.iter().find(|(known, ..)| *known == name) {
                Some((_, known, _)) if *known != content => return Err(NotBegun::Reused),
                Some((_, _, known)) => call = known.clone(),
                None => {
                    if table.calls.len() >= MAX_REMEMBERED {
                        table.calls.pop_front();
                    }
                    table.calls.push_back((name, content, call.clone()));
                }
            }
        }
        let cancelled = CancellationToken::new();
        table.open.insert(id.clone(), cancelled.clone());
        drop(table);
        Ok(Begun { of: self.clone(), id: id.clone(), call, cancelled })
    }

    /// The agent takes a request back; one that is unknown or answered is ignored.
    pub(super) fn cancel(&self, id: &Id) {
        let token = self.open().open.get(id).cloned();
        if let Some(token) = token {
            token.cancel();
        }
    }
}
