//! What the platform team wrote → what the gateway obeys.
pub mod diagnostic;
pub mod document;
pub mod quantity;
pub mod reload;
pub mod schema;
pub mod snapshot;
pub mod template;
pub mod watch;
