//! What operators see: metrics, records of calls, diagnostics.

pub mod logs;
pub mod metrics;
pub mod record;
pub mod redact;
