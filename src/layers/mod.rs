//! Governance: one concern a file, in the order of the stack. The order itself is one page: `stack.rs`.

pub mod stack;

pub mod gate;
pub mod meaning;
pub mod optional;
pub mod state;

pub mod detach;
pub mod observe;

pub mod known;

pub mod budget;

pub mod fuse;

pub mod allowlist;

pub mod arguments;

pub mod probe;
pub mod replay;

pub mod cache;

pub mod approval;

pub mod deadline;

pub mod breaker;
pub mod circuit;

pub mod bulkhead;

pub mod backoff;
pub mod retry;
pub mod retry_budget;

pub mod rate_limit;

pub mod dry_run;

pub mod journal;

pub mod timeout;
