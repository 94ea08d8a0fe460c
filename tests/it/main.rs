//! The one integration binary: everything that needs no third-party program.

mod architecture;
mod deploy;
mod golden;
mod layers;
mod lints;
mod metrics_doc;
mod readme;
