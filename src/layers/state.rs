//! Live state that outlives a policy reload: circuits, buckets, places, cooldowns, retry budgets.
//! STUB of the contract; the layers part owns it.
use std::sync::Arc;

use crate::policy::snapshot::Snapshot;
use crate::telemetry::metrics::Metrics;

/// All live governance state of the process.
#[derive(Debug)]
pub struct State {}
impl State {
    pub fn new(_metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {})
    }
    /// Takes over what the new policy left unchanged, starts anew what it changed, drops what it no longer has.
    pub fn adopt(&self, _snapshot: &Snapshot) {}
    /// True while the tool's circuit lets calls pass (for alternatives).
    pub fn is_closed(&self, _tool: &crate::call::ToolName) -> bool {
        unimplemented!()
    }
    /// For the scrape.
    pub fn view(&self) -> crate::telemetry::metrics::StateView {
        unimplemented!()
    }
    /// Forgets buckets of runs and agents that are full again; called on a timer.
    pub fn sweep(&self) {}
}
