//! Points at which a test kills the process, to see what is left. Builds without debug assertions have none.
//!
//! `CHECKREIN_CRASH_AT=list` says on stderr which points are passed. `CHECKREIN_CRASH_AT="2 store: begun"` stops the
//! process where it comes to that point for the second time: it says so and goes no further, and neither does any
//! other thread that comes to a point. Whoever reads the line sends SIGKILL. `CHECKREIN_CRASH_AT="panic journal: asked"`
//! panics there, each time.

/// A point of the way of a write: between two steps of which a crash may see the first without the second.
macro_rules! crash_point {
    ($name:literal) => {
        #[cfg(debug_assertions)]
        $crate::telemetry::crash::pass($name);
    };
}

/// What the environment asks for.
#[cfg(debug_assertions)]
enum Plan {
    Nothing,
    List,
    Stop { turn: u64, name: String },
    Panic(String),
}

#[cfg(debug_assertions)]
impl Plan {
    fn of(text: &str) -> Self {
        let stop = || {
            let (turn, name) = text.split_once(' ')?;
            Some(Plan::Stop { turn: turn.parse().ok()?, name: name.to_owned() })
        };
        match text.strip_prefix("panic ") {
            Some(name) => Plan::Panic(name.to_owned()),
            None if text == "list" => Plan::List,
            None => stop().unwrap_or(Plan::Nothing),
        }
    }
}

/// Passes the point of this name, or stays there for ever.
#[cfg(debug_assertions)]
pub fn pass(name: &str) {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    static PLAN: LazyLock<Plan> =
        LazyLock::new(|| Plan::of(&std::env::var("CHECKREIN_CRASH_AT").unwrap_or_default()));
    static PASSED: AtomicU64 = AtomicU64::new(0);
    static STOPPED: AtomicBool = AtomicBool::new(false);
    match &*PLAN {
        Plan::Nothing => return,
        Plan::List => return say("passed", name),
        Plan::Panic(wanted) => return panics(wanted, name),
        Plan::Stop { turn, name: wanted } => {
            if wanted == name && PASSED.fetch_add(1, Ordering::AcqRel) + 1 == *turn {
                STOPPED.store(true, Ordering::Release);
                say("stopped at", name);
            }
        }
    }
    while STOPPED.load(Ordering::Acquire) {
        std::thread::park();
    }
}

/// A fault of ours, as a test wants it.
#[cfg(debug_assertions)]
#[expect(clippy::panic, reason = "what is asked for")]
fn panics(wanted: &str, name: &str) {
    if wanted == name {
        panic!("on purpose");
    }
}

/// In one write, so that no other line comes between.
#[cfg(debug_assertions)]
fn say(what: &str, name: &str) {
    use std::io::Write;
    let line = format!("{what} crash point: {name}\n");
    drop(std::io::stderr().write_all(line.as_bytes())); // whoever wanted to know has gone
}
