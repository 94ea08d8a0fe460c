//! What operators see: metrics, records, logs.
pub mod metrics;
pub mod record;
