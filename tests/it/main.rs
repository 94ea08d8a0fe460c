//! The one integration binary: everything that needs no third-party program.

#![expect(
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a helper of a test may fail like the test itself; clippy sees only what stands in #[test]; \
              tests dial loopback, pace scripted tools, and read JSON that they asked for"
)]

mod admin;
mod architecture;
mod binary;
mod budgets;
mod cached;
mod caller_keys;
mod cases;
mod cases_listed;
mod chaos;
mod crash;
mod deploy;
mod descriptors;
mod durable;
mod failures;
mod front_ends;
mod golden;
mod helped;
mod http2;
mod layers;
mod lints;
mod mcp;
mod metrics_doc;
mod operating;
mod operations_doc;
mod policies;
mod promises;
mod proxy;
mod readme;
mod reference;
mod signals;
mod support;
mod swaps;
mod truth;
mod vectors;
