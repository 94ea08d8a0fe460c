//! The only door outwards. STUB of the contract; the egress part owns it.
use std::sync::Arc;

use crate::policy::snapshot::Snapshot;
use crate::telemetry::metrics::Metrics;

/// Guard, connector and idle connections of one policy snapshot; idle connections survive a reload where the
/// upstream is unchanged.
#[derive(Debug)]
pub struct Egress {}
impl Egress {
    pub fn new(
        _snapshot: &Snapshot,
        _previous: Option<&Egress>,
        _metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        Arc::new(Self {})
    }
}
