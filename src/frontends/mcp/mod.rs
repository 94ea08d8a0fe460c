//! The side of MCP that faces agents: one server for every revision, over Streamable HTTP and over standard streams.
//!
//! A message is read by its transport (`http`, `stdio`), answered by its method (`methods`, `calls`, `passing`,
//! `lists`), and written by `wire`. What outlives a request hangs on a session or on a listening stream.

mod approvals;
mod aside;
mod asks;
mod calls;
mod channel;
mod doors;
mod empty_handed;
mod http;
mod listening;
mod lists;
mod meta;
mod methods;
mod modern;
mod parkable;
mod parking;
mod passing;
mod seal;
mod sessions;
mod state;
mod stdio;
mod streams;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

pub use doors::Doors;
pub use stdio::{Cutter, Read, Writer};

use crate::call::{AgentId, CallId, CallerKey, FrontEnd, RunId};
use crate::engine::Engine;
use crate::mcp::version::{Era, Revision};
use crate::telemetry::metrics::Metrics;
use channel::Line;
use empty_handed::EmptyHanded;
use listening::Places;
use parking::Lot;
use seal::Seal;
use sessions::{Session, Sessions};
use state::States;

/// Deepest nesting of a message.
const MAX_DEPTH: usize = 64;

/// The server.
#[derive(Debug)]
pub(super) struct Mcp {
    engine: Arc<Engine>,
    metrics: Arc<Metrics>,
    doors: Doors,
    sessions: Sessions,
    seal: Seal,
    states: States,
    listening: Arc<Places>,
    /// Calls that wait for their agents' answers.
    lot: Arc<Lot>,
    empty_handed: EmptyHanded,
}

/// Who asks, and what is known of it beside the message.
#[derive(Debug)]
struct Asking {
    agent: AgentId,
    front_end: FrontEnd,
    revision: Revision,
    session: Option<Arc<Session>>,
    capabilities: Arc<Value>,
    log_level: Option<Arc<str>>,
    /// `Mcp-Param-*` fields that no schema of ours knows.
    param_headers: Arc<[(String, String)]>,
    /// Of the head, where there is one.
    run: Option<RunId>,
    timeout: Option<Duration>,
    caller_key: Option<CallerKey>,
    /// `traceparent` and `tracestate` of the head, as they came; what `_meta` says goes before them.
    trace: (Option<String>, Option<String>),
    /// Minted here; within one session the same for the same call.
    call: CallId,
    cancelled: CancellationToken,
    line: Option<Arc<Line>>,
}

impl Asking {
    fn modern(&self) -> bool {
        self.revision.era() == Era::Modern
    }
}

impl Mcp {
    pub(super) fn new(engine: Arc<Engine>, metrics: Arc<Metrics>, doors: Doors) -> Self {
        Self {
            engine,
            metrics,
            doors,
            sessions: Sessions::default(),
            seal: Seal::new(),
            states: States::new(),
            listening: Arc::default(),
            lot: Arc::default(),
            empty_handed: EmptyHanded::default(),
        }
    }

    /// Ends sessions that were idle too long, and forgets what nobody came for; called on a timer.
    pub(super) fn sweep(&self) {
        self.lot.sweep();
        for session in self.sessions.sweep() {
            self.ended(&session);
        }
    }

    /// A session is over: what hung on it ends too, the run it opened among it.
    fn ended(&self, session: &Session) {
        self.engine.mcp_session_over(&session.agent, &session.id);
        if let Some(run) = session.run_to_end()
            && let Err(denied) = self.engine.finish_run(&session.agent, &run)
        {
            tracing::debug!(why = %denied.message, "a session's run had ended before it");
        }
    }
}
