//! Points at which a test lets the process die, to see what is left. Builds without debug assertions have none.
//!
//! `CHECKREIN_CRASH_AT=n` ends the process at the n-th point it passes, as abruptly as a signal would: nothing is
//! flushed, closed or told.

/// A point of the way of a write: between two steps of which a crash may see the first without the second.
macro_rules! crash_point {
    ($name:literal) => {
        #[cfg(debug_assertions)]
        $crate::telemetry::crash::pass($name);
    };
}

/// Passes the point of this name.
#[cfg(debug_assertions)]
pub fn pass(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static PASSED: AtomicU64 = AtomicU64::new(0);
    static AT: OnceLock<Option<u64>> = OnceLock::new();
    let at = AT.get_or_init(|| std::env::var("CHECKREIN_CRASH_AT").ok()?.parse().ok());
    let Some(at) = at else { return };
    if PASSED.fetch_add(1, Ordering::AcqRel) + 1 == *at {
        tracing::error!(name, "told to crash here");
        std::process::abort();
    }
}
