//! The admin listener of a whole gateway: what people may do, and that nobody else may.

mod approvals;
mod breakers;
mod cli;
mod kit;
mod mcp_tools;
mod process;
mod reach;
mod reviews;
mod runs;
