//! Circuits that a person opened or closed. An isolation holds until a person ends it, whatever policy comes: it is
//! kept by the tool's name beside the circuits, for as long as the process lives.

use std::time::SystemTime;

use tokio::time::Instant;

use super::{SharedCircuit, State, ToolState, on_wall, shown};
use crate::call::ToolName;
use crate::layers::circuit::{Circuit, Shown};
use crate::policy::snapshot::BreakerMode;
use crate::telemetry::record::wall_clock;

/// Tools isolated by hand that are remembered, also past a policy without them.
const MAX_ISOLATED: usize = 4096;

/// Who isolated a tool.
#[derive(Debug, Clone)]
pub struct Isolation {
    pub at: SystemTime,
    pub who: String,
    pub why: String,
}

/// A tool's circuit, as a person sees it.
#[derive(Debug, Clone)]
pub struct CircuitView {
    pub tool: ToolName,
    /// closed, open, half_open, isolated, shadow
    pub state: &'static str,
    pub consecutive_failures: u32,
    pub failure_threshold: u32,
    pub last_transition: Option<SystemTime>,
    /// `None`: not isolated, or isolated by the policy.
    pub isolated: Option<Isolation>,
}

/// Why a circuit was not moved by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotMoved {
    #[error("the policy in force has no such tool")]
    NoSuchTool,
    #[error("the tool is isolated already")]
    AlreadyIsolated,
    #[error("the circuit is closed already")]
    AlreadyClosed,
    #[error("the policy isolates this tool; change it there")]
    ByPolicy,
    #[error("too many tools are isolated by hand")]
    TooMany,
}

/// Transitions that a hand made, for the metrics.
pub type Moves = Vec<(Shown, Shown)>;

fn is_isolated(circuit: &Circuit, now: Instant) -> bool {
    circuit.shown(now) == Shown::Isolated
}

/// Carries an isolation over to a circuit that a new policy made.
pub(super) fn hold(circuit: &SharedCircuit, isolation: Option<&Isolation>) {
    let now = Instant::now();
    let mut circuit = circuit.lock();
    if isolation.is_some() && !is_isolated(&circuit, now) {
        circuit.isolate(now);
    }
}

impl ToolState {
    /// By a person or by the policy, also where the breaker only watches.
    pub fn is_isolated(&self) -> bool {
        is_isolated(&self.circuit.lock(), Instant::now())
    }
}

impl State {
    /// Every tool's circuit, by name.
    pub fn circuits(&self) -> Vec<CircuitView> {
        let (now, wall) = (Instant::now(), wall_clock());
        let live = self.lock();
        let mut circuits: Vec<CircuitView> = live
            .tools
            .iter()
            .map(|(tool, state)| {
                let circuit = state.circuit.lock();
                CircuitView {
                    tool: tool.clone(),
                    state: shown(&circuit, now),
                    consecutive_failures: circuit.consecutive_failures(),
                    failure_threshold: circuit.policy().consecutive_failures,
                    last_transition: circuit
                        .last_transition()
                        .and_then(|at| on_wall(wall, now, at)),
                    isolated: live.isolated.get(tool).cloned(),
                }
            })
            .collect();
        circuits.sort_by(|a, b| a.tool.cmp(&b.tool));
        circuits
    }

    /// Refuses every call of the tool, also where its breaker only watches, until [`State::reset`].
    pub fn isolate(&self, tool: &ToolName, who: &str, why: &str) -> Result<Moves, NotMoved> {
        let mut live = self.lock();
        let state = live.tools.get(tool).cloned().ok_or(NotMoved::NoSuchTool)?;
        let mut circuit = state.circuit.lock();
        if is_isolated(&circuit, Instant::now()) {
            return Err(NotMoved::AlreadyIsolated);
        }
        if live.isolated.len() >= MAX_ISOLATED {
            return Err(NotMoved::TooMany);
        }
        let (who, why) = (who.to_owned(), why.to_owned());
        live.isolated.insert(tool.clone(), Isolation { at: wall_clock(), who, why });
        circuit.isolate(Instant::now());
        // Whoever switches a tool off may distrust what it said.
        self.cached.drop_of(tool);
        Ok(circuit.take_moves())
    }

    /// Closes the circuit on trial: the first bad verdict opens it again, until one good.
    pub fn reset(&self, tool: &ToolName) -> Result<Moves, NotMoved> {
        let mut live = self.lock();
        let state = live.tools.get(tool).cloned().ok_or(NotMoved::NoSuchTool)?;
        let mut circuit = state.circuit.lock();
        if circuit.policy().mode == BreakerMode::Isolated {
            return Err(NotMoved::ByPolicy);
        }
        if circuit.shown(Instant::now()) == Shown::Closed {
            return Err(NotMoved::AlreadyClosed);
        }
        live.isolated.remove(tool);
        circuit.close_by_hand(Instant::now());
        Ok(circuit.take_moves())
    }
}
