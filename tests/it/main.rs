//! The one integration binary: everything that needs no third-party program.

mod architecture;
mod golden;
mod deploy;
mod metrics_doc;
