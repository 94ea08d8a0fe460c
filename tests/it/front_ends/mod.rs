//! What an agent meets at the data listener, through the real engine.

mod batches;
mod calls;
pub(crate) mod kit;
mod runs;
