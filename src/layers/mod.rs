//! Governance: one concern a file, in the order of the stack.
pub mod stack;
pub mod state;
