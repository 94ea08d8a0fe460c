//! What the platform team wrote → what the gateway obeys.
pub mod schema;
pub mod snapshot;
pub mod template;
