//! Tests a broken tool by what its policy names, while its circuit is open: no real call is spent for that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::state::{ProbeWay, SharedCircuit};
use crate::call::Verdict;
use crate::telemetry::metrics::ToolMetrics;

/// One circuit's probes. Its task lives while the circuit is open and somebody holds the prober: a policy that has
/// gone takes its probes with it.
#[derive(Debug)]
pub struct Prober {
    circuit: SharedCircuit,
    way: ProbeWay,
    /// Only a tool's own circuit has series.
    metrics: Option<Arc<ToolMetrics>>,
    tasks: TaskTracker,
    draining: CancellationToken,
    running: AtomicBool,
}

impl Prober {
    /// Takes up an outage that another policy's prober has left.
    pub fn new(
        circuit: SharedCircuit,
        way: ProbeWay,
        metrics: Option<Arc<ToolMetrics>>,
        tasks: TaskTracker,
        draining: CancellationToken,
    ) -> Arc<Self> {
        let running = AtomicBool::new(false);
        let prober = Arc::new(Self { circuit, way, metrics, tasks, draining, running });
        prober.wake();
        prober
    }

    /// The circuit has moved: while it is open, one task looks after it.
    pub fn wake(self: &Arc<Self>) {
        let open = self.circuit.lock().next_probe().is_some();
        if !open || self.draining.is_cancelled() || self.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let (weak, draining) = (Arc::downgrade(self), self.draining.clone());
        let mut due = self.next();
        self.tasks.spawn(async move {
            while let Some(at) = due {
                tokio::select! {
                    () = draining.cancelled() => return,
                    () = wait(at) => {}
                }
                let Some(prober) = weak.upgrade() else { return };
                prober.probe().await;
                due = prober.next();
            }
        });
    }

    /// When to look again. `None`: the circuit is closed, and the next opening starts another task.
    fn next(&self) -> Option<Instant> {
        let circuit = self.circuit.lock();
        let due = circuit.next_probe();
        if due.is_none() {
            // Under the circuit's lock: an opening after this finds no task running.
            self.running.store(false, Ordering::Release);
        }
        due
    }

    async fn probe(&self) {
        let admitted = self.with(|circuit| circuit.admit_probe(Instant::now()));
        let Some(admission) = admitted else { return };
        let verdict = (self.way.0)().await;
        self.with(|c| c.record(admission, verdict, Duration::ZERO, Instant::now()));
        if let Some(metrics) = &self.metrics {
            metrics.probe(match verdict {
                Verdict::Good => "good",
                Verdict::Bad => "bad",
                Verdict::Neutral => "neutral",
            });
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut super::circuit::Circuit) -> T) -> T {
        let mut circuit = self.circuit.lock();
        let answer = act(&mut circuit);
        let moves = circuit.take_moves();
        drop(circuit);
        if let Some(metrics) = &self.metrics {
            for (from, to) in moves {
                metrics.transition(from.as_str(), to.as_str());
            }
        }
        answer
    }
}

#[expect(clippy::disallowed_methods, reason = "the time between two probes")]
async fn wait(until: Instant) {
    tokio::time::sleep_until(until).await;
}
