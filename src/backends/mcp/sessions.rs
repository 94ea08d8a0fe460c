//! Inner sessions of one server, by who they belong to: never shared between identities, bounded, closed when their
//! owner goes or nobody has used them for long.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::link::{Link, Lost};
use super::watcher::Waiting;
use crate::call::{AgentId, RunId, Side};
use crate::mcp::messages::ClientCapabilities;
use crate::mcp::version::Era;
use crate::policy::snapshot::{MayAsk, Share};

/// Inner sessions of one server; past it the one that lay idle longest is closed, and none in use.
pub(super) const MAX_SESSIONS: usize = 1024;
/// Without a call for so long, a session ends. As long as an agent's own session may lie idle: what a server keeps in
/// it is part of that one.
const IDLE: Duration = Duration::from_secs(8 * 3600);
/// The same for one that belongs to a run, whose end nobody tells.
const IDLE_OF_RUN: Duration = Duration::from_secs(1800);
/// The same for a child process.
const IDLE_OF_CHILD: Duration = Duration::from_secs(600);

/// Who an inner session belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// `None`: the gateway itself, for lists; or everybody, of a server that keeps no state.
    pub(super) agent: Option<AgentId>,
    /// The agent's own session, where it has one.
    pub(super) session: Option<Arc<str>>,
    pub(super) run: Option<RunId>,
    pub(super) declares: Declares,
}

/// What we declare to a server that we can be asked, on behalf of one agent. Never more than both the agent and the
/// policy say, so a server cannot ask what nobody can answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Declares {
    /// `capabilities` as JSON text; empty = nothing.
    text: Arc<str>,
    /// The gateway's own, for lists: said to a server that is told on every request and can ask on no list.
    of_lists: bool,
}

impl Declares {
    pub(super) fn of(side: Option<&Side>, may_ask: MayAsk) -> Self {
        let Some(side) = side else { return Self::default() };
        let can = ClientCapabilities::of(&side.capabilities);
        let asked = [
            ("elicitation", may_ask.elicitation && (can.elicitation_form || can.elicitation_url)),
            ("sampling", may_ask.sampling && can.sampling),
            ("roots", may_ask.roots && can.roots),
        ];
        let declared: Map<String, Value> = asked
            .into_iter()
            .filter(|(_, yes)| *yes)
            .filter_map(|(name, _)| Some((name.to_owned(), side.capabilities.get(name)?.clone())))
            .collect();
        if declared.is_empty() {
            return Self::default();
        }
        Self { text: Value::Object(declared).to_string().into(), of_lists: false }
    }

    /// Of the gateway's own requests. A list may depend on what is declared (a tool that asks is shown to who can be
    /// asked): what the policy lets the server ask is what calls may bring. Only a call, a read of a resource and a
    /// prompt can ask (2026-07-28, multi round-trip requests), so nothing is declared that nobody could answer; a server
    /// with sessions could ask in ours, and is told nothing.
    pub(super) fn of_lists(may_ask: MayAsk) -> Self {
        let MayAsk { elicitation, sampling, roots } = may_ask;
        let asked = [("elicitation", elicitation), ("sampling", sampling), ("roots", roots)];
        let asked = asked.into_iter().filter(|(_, yes)| *yes);
        let declared = asked.map(|(name, _)| (name.to_owned(), Value::Object(Map::new())));
        let declared: Map<String, Value> = declared.collect();
        Self { text: Value::Object(declared).to_string().into(), of_lists: true }
    }

    /// Whether the server may ask something in this session.
    pub(super) fn is_something(&self) -> bool {
        !self.text.is_empty() && !self.of_lists
    }

    /// `capabilities` to declare. An agent whose revision knows no requests of servers is asked by a parked call.
    pub(super) fn declared(&self, era: Era) -> Value {
        if self.text.is_empty() || (self.of_lists && era == Era::Legacy) {
            return Value::Object(Map::new());
        }
        let limits = crate::strict_json::Limits::answer(self.text.len());
        crate::strict_json::parse(self.text.as_bytes(), limits)
            .unwrap_or_else(|_| Value::Object(Map::new()))
    }
}

impl Key {
    /// The gateway's own session, which lists what a server offers.
    pub(super) fn of_the_gateway() -> Self {
        Self { agent: None, session: None, run: None, declares: Declares::default() }
    }

    /// The same owner's child: one serves all sessions of its agent.
    pub(super) fn of_a_child(self) -> Self {
        Self { session: None, ..self }
    }

    pub(super) fn of(
        agent: &AgentId,
        run: &RunId,
        side: Option<&Side>,
        share: Share,
        may_ask: MayAsk,
    ) -> Self {
        let declares = Declares::of(side, may_ask);
        let session = side.and_then(|side| side.session.clone());
        match share {
            Share::All => Self { agent: None, session: None, run: None, declares },
            Share::Agent => Self { agent: Some(agent.clone()), session, run: None, declares },
            Share::Run => {
                Self { agent: Some(agent.clone()), session, run: Some(run.clone()), declares }
            }
        }
    }
}

#[derive(Debug)]
struct Kept {
    link: Link,
    used: Instant,
    /// One more than the calls that hold it.
    held: Arc<()>,
    listening: Option<Listening>,
    waiting: Waiting,
}

/// Somebody listens on a session: until `over` is cancelled, and certainly from when `open` is.
#[derive(Debug, Clone, Default)]
pub(super) struct Listening {
    pub(super) over: CancellationToken,
    pub(super) open: CancellationToken,
}

impl Kept {
    fn in_use(&self) -> bool {
        Arc::strong_count(&self.held) > 1
    }

    fn lend(&self) -> Held {
        let (link, waiting) = (self.link.clone(), self.waiting.clone());
        Held { link, waiting, _held: self.held.clone() }
    }
}

/// A link for as long as a call needs it.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) link: Link,
    pub(super) waiting: Waiting,
    _held: Arc<()>,
}

#[derive(Debug)]
pub(super) struct Sessions {
    kept: Mutex<HashMap<Key, Kept>>,
    /// Each is a child process, and this is how many there may be.
    children: Option<usize>,
}

impl Sessions {
    pub(super) fn new(children: Option<usize>) -> Self {
        Self { kept: Mutex::default(), children }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who makes room for one more. What a child keeps for its agent is not thrown away for another agent's sake: only
    /// the gateway's own child goes, which keeps nothing.
    fn spared(&self, kept: &HashMap<Key, Kept>) -> Option<Key> {
        let own = Key::of_the_gateway();
        let of_a_child = self.children.is_some();
        kept.iter()
            .filter(|(key, one)| !one.in_use() && (**key == own) == of_a_child)
            .min_by_key(|(_, one)| one.used)
            .map(|(key, _)| key.clone())
    }

    /// The link of `key`, made where there is none. Nothing is opened by this.
    pub(super) fn hold(&self, key: Key, make: impl FnOnce(&Key) -> Link) -> Result<Held, Lost> {
        let mut kept = self.lock();
        let most = self.children.unwrap_or(MAX_SESSIONS);
        if !kept.contains_key(&key) && kept.len() >= most {
            if self.children.is_some() && key == Key::of_the_gateway() {
                // A list is the same whoever asks.
                let lent = kept.values().max_by_key(|one| one.used).ok_or(Lost::Busy)?;
                return Ok(lent.lend());
            }
            let spared = self.spared(&kept).ok_or(Lost::Busy)?;
            if let Some(spared) = kept.remove(&spared) {
                spared.link.close();
            }
        }
        let one = kept.entry(key).or_insert_with_key(|key| Kept {
            link: make(key),
            used: Instant::now(),
            held: Arc::default(),
            listening: None,
            waiting: Waiting::default(),
        });
        one.used = Instant::now();
        Ok(one.lend())
    }

    /// Closes what hung on an agent's session.
    pub(super) fn over(&self, agent: &AgentId, session: &str) {
        self.close_where(|key, _| {
            key.agent.as_ref() == Some(agent) && key.session.as_deref() == Some(session)
        });
    }

    /// Closes what nobody has used for long.
    pub(super) fn sweep(&self) {
        let now = Instant::now();
        self.close_where(|key, one| {
            let idle = match (self.children, &key.run) {
                (Some(_), _) => IDLE_OF_CHILD,
                (None, Some(_)) => IDLE_OF_RUN,
                (None, None) => IDLE,
            };
            let gateways_own = *key == Key::of_the_gateway();
            !gateways_own && !one.in_use() && now.saturating_duration_since(one.used) >= idle
        });
    }

    pub(super) fn close_all(&self) {
        self.close_where(|_, _| true);
    }

    /// Begins to listen on a session. `Err`: somebody does, or there is no such session.
    pub(super) fn begin_listening(
        &self,
        key: &Key,
        new: &Listening,
    ) -> Result<(), Option<Listening>> {
        let mut kept = self.lock();
        let one = kept.get_mut(key).ok_or(None)?;
        if let Some(before) = one.listening.as_ref().filter(|one| !one.over.is_cancelled()) {
            return Err(Some(before.clone()));
        }
        one.listening = Some(new.clone());
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    fn close_where(&self, mut ends: impl FnMut(&Key, &Kept) -> bool) {
        let ended: Vec<Link> = {
            let mut kept = self.lock();
            let keys: Vec<Key> = kept
                .iter()
                .filter(|(key, one)| ends(key, one))
                .map(|(key, _)| key.clone())
                .collect();
            keys.iter().filter_map(|key| kept.remove(key)).map(|one| one.link).collect()
        };
        for link in ended {
            link.close();
        }
    }
}
