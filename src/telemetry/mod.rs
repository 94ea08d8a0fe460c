//! What operators see: metrics, records of calls, diagnostics.

pub mod metrics;
pub mod record;
