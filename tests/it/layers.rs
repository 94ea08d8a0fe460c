//! The stacks as the product builds them, in front of a scripted tool, on a paused clock.

#![expect(
    clippy::panic,
    reason = "a helper of a test may fail like the test itself; clippy sees only what stands in #[test]"
)]

mod approval_cases;
mod breaker_cases;
mod cache_cases;
mod cache_model;
mod fault_cases;
mod limit_cases;
mod read_cases;
pub(crate) mod rig;
mod settle_cases;
mod write_cases;
