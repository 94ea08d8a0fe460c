//! One verdict per call: refuses while the tool's circuit, or its upstream's, is open; hears the end of the whole call.
//!
//! The upstream's circuit hears connect-class failures only, so that one slow tool never shuts its server's others.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::circuit::{Admission, Circuit, Heard, Refused, Shown};
use super::gate::{Gate, Permit, come_back};
use super::probe::Prober;
use super::state::{ProbeWay, SharedCircuit, ToolState};
use crate::call::code::DenyCode;
use crate::call::judge::verdict;
use crate::call::{
    AttemptNote, CallError, Delivery, Denied, Detail, Ended, ErrorClass, Failed, ToolCall,
    ToolName, Trace, Verdict,
};
use crate::policy::snapshot::{BreakerMode, Tool};
use crate::telemetry::metrics::ToolMetrics;

/// A cheap handle on a tool's circuit and its upstream's: the gate itself, and what `retry` peeks through.
#[derive(Debug, Clone)]
pub struct Breaker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    tool: ToolName,
    own: Side,
    upstream: Option<Side>,
    count_by_attempt: bool,
    metrics: Arc<ToolMetrics>,
}

/// One of the two circuits, as this tool's calls see it.
#[derive(Debug, Clone)]
struct Side {
    circuit: SharedCircuit,
    /// It refuses nothing by itself; an isolation by hand holds all the same.
    shadow: bool,
    /// It counts nothing either.
    off: bool,
    /// Only the tool's own circuit has series of its own.
    metrics: Option<Arc<ToolMetrics>>,
    prober: Option<Arc<Prober>>,
}

impl Breaker {
    /// `tasks`, `draining`: where probes run, and until when.
    pub fn new(
        tool: &Tool,
        state: &ToolState,
        metrics: Arc<ToolMetrics>,
        tasks: &TaskTracker,
        draining: &CancellationToken,
    ) -> Self {
        let prober = |circuit: &SharedCircuit, way: &OnceLock<ProbeWay>, metrics| {
            let way = way.get()?.clone();
            let (tasks, draining) = (tasks.clone(), draining.clone());
            Some(Prober::new(circuit.clone(), way, metrics, tasks, draining))
        };
        let side = |circuit: &SharedCircuit, mode, way, metrics: Option<Arc<_>>| {
            let off = mode == BreakerMode::Disabled;
            Side {
                circuit: circuit.clone(),
                shadow: mode == BreakerMode::Shadow,
                off,
                prober: if off { None } else { prober(circuit, way, metrics.clone()) },
                metrics,
            }
        };
        let (wide, mode) = (&state.upstream, tool.upstream.breaker.mode);
        let upstream = side(&wide.circuit, mode, &wide.probe, None);
        Self(Arc::new(Inner {
            tool: tool.name.clone(),
            own: side(&state.circuit, tool.breaker.mode, &state.probe, Some(metrics.clone())),
            upstream: (!upstream.off).then_some(upstream),
            count_by_attempt: tool.breaker.count_by_attempt,
            metrics,
        }))
    }

    /// May this call make one more attempt? Only while its circuit is closed and in the generation that let it in:
    /// a reset by hand does not revive an old loop.
    pub fn peek(&self, call: &ToolCall) -> bool {
        let side = &self.0.own;
        let own = match call.admitted {
            Some(generation) if !side.shadow => side.with(|c| c.peek(generation)),
            Some(_) | None => !side.is_isolated(),
        };
        let upstream = self.0.upstream.as_ref().is_none_or(|side| {
            side.shadow || side.with(|circuit| circuit.peek(circuit.generation()))
        });
        own && upstream
    }

    /// An attempt failed and another may follow: its own verdict, where attempts are counted. Should none follow
    /// after all, the call has no verdict left to give.
    pub fn attempt_failed(&self, call: &ToolCall, failed: &Failed, took: Duration) {
        if let (true, Some(generation)) =
            (self.0.count_by_attempt && !call.single_attempt, call.admitted)
        {
            let now = Instant::now();
            self.0.own.with(|c| c.record(Admission::closed(generation), failed.health, took, now));
            let mut noted = call.trace.note();
            noted.told_circuit = noted.attempts.len();
        }
    }

    fn refused(&self, refused: Refused, trace: &Trace, whose: &'static str) -> Denied {
        self.0.metrics.breaker_rejected("enforce");
        let (since, wait, isolated) = match refused {
            Refused::Open { since, retry_after } => (since, Some(retry_after), false),
            Refused::Isolated { since } => (since, None, true),
        };
        trace.note().rule = Some(whose.into());
        let message = match refused {
            Refused::Open { .. } => format!("tool {} is temporarily unavailable", self.0.tool),
            Refused::Isolated { .. } => {
                format!("tool {} was switched off by a person", self.0.tool)
            }
        };
        let denied =
            Denied::new(DenyCode::CircuitOpen, message).detail(Detail::Circuit { since, isolated });
        match wait {
            Some(wait) => denied.retry_after(come_back(wait)),
            None => denied,
        }
    }
}

impl Side {
    /// The circuit for a moment, its transitions reported after the lock is gone.
    fn with<T>(&self, act: impl FnOnce(&mut Circuit) -> T) -> T {
        let mut circuit = self.circuit.lock();
        let answer = act(&mut circuit);
        let moves = circuit.take_moves();
        drop(circuit);
        if let Some(prober) = self.prober.as_ref().filter(|_| !moves.is_empty()) {
            prober.wake();
        }
        if let Some(metrics) = &self.metrics {
            for (from, to) in moves {
                metrics.transition(from.as_str(), to.as_str());
            }
        }
        answer
    }

    /// By a person, where the breaker only watches or is off.
    fn is_isolated(&self) -> bool {
        self.circuit.lock().shown(Instant::now()) == Shown::Isolated
    }

    /// `None` = would have been refused, but only watches; or counts nothing.
    fn admit(&self, now: Instant) -> Result<Option<Held>, Refused> {
        if self.off && !self.is_isolated() {
            return Ok(None);
        }
        match self.with(|circuit| circuit.admit(now).map(|held| (held, circuit.shown(now)))) {
            Ok((admission, shown)) => {
                Ok(Some(Held { side: self.clone(), admission: Some(admission), shown }))
            }
            Err(Refused::Open { .. }) if self.shadow => {
                if let Some(metrics) = &self.metrics {
                    metrics.breaker_rejected("shadow");
                }
                Ok(None)
            }
            Err(refused) => Err(refused),
        }
    }
}

/// An admission that gives itself back.
#[derive(Debug)]
struct Held {
    side: Side,
    admission: Option<Admission>,
    /// What the circuit was when it let the call in.
    shown: Shown,
}

impl Held {
    /// Gives the admission back; its verdict has been told.
    fn release(mut self) {
        if let Some(admission) = self.admission.take() {
            self.side.with(|circuit| circuit.give_back(admission, Instant::now()));
        }
    }

    fn settle(mut self, verdict: Verdict, took: Duration, now: Instant) {
        let Some(admission) = self.admission.take() else { return };
        let heard = self.side.with(|c| c.record(admission, verdict, took, now));
        let Some(metrics) = &self.side.metrics else { return };
        if heard == Heard::Late {
            metrics.late_result();
        }
        if admission.is_probe() {
            metrics.probe(match verdict {
                Verdict::Good => "good",
                Verdict::Bad => "bad",
                Verdict::Neutral => "neutral",
            });
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(admission) = self.admission.take() else { return };
        self.side.with(|circuit| circuit.give_back(admission, Instant::now()));
        if let (true, Some(metrics)) = (admission.is_probe(), &self.side.metrics) {
            metrics.probe("abandoned");
        }
    }
}

impl Gate for Breaker {
    type Permit = BreakerPermit;

    fn admit(&self, call: &ToolCall) -> Result<BreakerPermit, Denied> {
        let now = Instant::now();
        // The wider circuit first: when the tool's own then refuses, the upstream's permit drops and is given back.
        let upstream = self.0.upstream.as_ref().map_or(Ok(None), |side| side.admit(now));
        let upstream = upstream
            .map_err(|refused| self.refused(refused, &call.trace, "breaker of the upstream"))?;
        let side = &self.0.own;
        let own = side.admit(now).map_err(|r| self.refused(r, &call.trace, "breaker"))?;
        if !side.off {
            let shown = own.as_ref().map(|held| held.shown);
            let shown = shown.unwrap_or_else(|| side.circuit.lock().shown(now));
            call.trace.note().circuit = Some(shown.as_str());
        }
        Ok(BreakerPermit { own, upstream, trace: call.trace.clone() })
    }
}

#[derive(Debug)]
pub struct BreakerPermit {
    own: Option<Held>,
    upstream: Option<Held>,
    trace: Trace,
}

impl Permit for BreakerPermit {
    fn stamp(&self, call: &mut ToolCall) {
        // A circuit that only watches bends nothing, a probe's number of attempts neither.
        let probes = |held: &Held| {
            !held.side.shadow && held.admission.as_ref().is_some_and(Admission::is_probe)
        };
        let own = self.own.as_ref();
        call.admitted = own.and_then(|held| held.admission).map(|admission| admission.generation);
        call.single_attempt = own.is_some_and(probes) || self.upstream.as_ref().is_some_and(probes);
    }

    fn settle(self, ended: &Ended) {
        let (took, told, reached) = {
            let noted = self.trace.note();
            let took = noted.attempts.last().map_or(Duration::ZERO, |note| note.total);
            let told = noted.told_circuit > 0 && noted.told_circuit == noted.attempts.len();
            (took, told, noted.attempts.iter().any(reached))
        };
        let now = Instant::now();
        match self.own {
            // The last attempt was counted when it ended, and has perhaps opened the circuit: said once.
            Some(own) if told => own.release(),
            Some(own) => own.settle(verdict(ended), took, now),
            None => {}
        }
        if let Some(upstream) = self.upstream {
            // One attempt that got through is enough: the server is there.
            let verdict = if reached { Verdict::Good } else { connects(ended) };
            upstream.settle(verdict, took, now);
        }
    }
}

/// An attempt that got through to the server. A kept connection that turned out dead did not.
fn reached(attempt: &AttemptNote) -> bool {
    attempt.connect.is_some() && attempt.error_class != ErrorClass::ResetBeforeSend
}

/// What an end says of the way to the server: bad when it could not be reached, good when any answer or any byte
/// got through, nothing when we did not try.
fn connects(ended: &Ended) -> Verdict {
    match ended {
        Ok(_) | Err(CallError::Unknown(_)) => Verdict::Good,
        Err(CallError::Denied(_)) => Verdict::Neutral,
        Err(CallError::Failed(failed)) => match failed.error_class {
            ErrorClass::Connect | ErrorClass::Tls | ErrorClass::TimeoutConnect => failed.health,
            ErrorClass::Blocked => Verdict::Neutral,
            ErrorClass::None
            | ErrorClass::ResetBeforeSend
            | ErrorClass::ResetAfterSend
            | ErrorClass::TimeoutFirstByte
            | ErrorClass::TimeoutTotal
            | ErrorClass::HttpAuth
            | ErrorClass::Http4xx
            | ErrorClass::Http429
            | ErrorClass::Http5xx
            | ErrorClass::Protocol => match failed.delivery {
                Delivery::Refused | Delivery::Done => Verdict::Good,
                Delivery::NotSent => Verdict::Neutral,
                Delivery::Unknown if failed.health == Verdict::Bad => Verdict::Good,
                Delivery::Unknown => Verdict::Neutral,
            },
        },
    }
}
