//! `checkrein version`

use super::{Exit, say};

pub(super) fn run() -> Exit {
    say(&format!("checkrein {}", env!("CARGO_PKG_VERSION")));
    Exit::Ok
}
