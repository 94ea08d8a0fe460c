//! What operators see: metrics, records of calls, diagnostics.

#[macro_use]
pub mod crash;
pub mod logs;
pub mod metrics;
pub mod record;
pub mod redact;
