//! The stacks as the product builds them, in front of a scripted tool, on a paused clock.

mod breaker_cases;
mod limit_cases;
mod read_cases;
pub(crate) mod rig;
mod write_cases;
