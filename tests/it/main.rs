//! The one integration binary: everything that needs no third-party program.

mod architecture;
mod metrics_doc;
