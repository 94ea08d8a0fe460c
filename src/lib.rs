//! Checkrein: a tool gateway for AI agents.
//!
//! **The way of a call.** A front end parses bytes into a [`call::ToolCall`] (or a batch of them). The engine opens
//! the run, picks the tool's stack from the current policy snapshot and sends the call through it. Gates say yes or
//! no; wrappers hold the clock and the journal; the back end talks to the tool. One outcome comes back; the run
//! writes it into its trajectory; the front end renders it. Nothing else happens to a call.
//!
//! The modules, in reading order (who may import whom: `tests/it/architecture.rs`):

pub mod strict_json;

pub mod call;

pub mod mcp;

pub mod policy;

#[macro_use]
pub mod telemetry;

pub mod egress;

pub mod store;

pub mod ledger;

pub mod run;

pub mod people;

pub mod identity;

pub mod backends;

pub mod layers;

pub mod engine;

pub mod server;

pub mod frontends;

pub mod health;

pub mod admin;

pub mod config;

pub mod app;

pub mod cli;
