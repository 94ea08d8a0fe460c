//! The wall clock jumps, while the program runs and over a restart. The program is the real one; a library laid under
//! it answers for the machine's clock.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{create, start};
use crate::support::{Form, Process, Reply, ScriptedTool};

const YEAR: i64 = 365 * 24 * 3600;

struct Clock {
    folder: tempfile::TempDir,
    library: PathBuf,
}

impl Clock {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("clock.c");
        let library = folder.path().join("clock.so");
        std::fs::write(&source, include_str!("clock.c")).expect("written");
        // The compiler that built SQLite into the program.
        let words = ["-shared", "-fPIC", "-o"];
        let status = Command::new("cc").args(words).arg(&library).arg(&source).status();
        assert!(status.expect("a C compiler runs").success());
        let clock = Self { folder, library };
        clock.set(0);
        clock
    }

    /// Seconds ahead of the right time. Swapped in whole: a clock that is half read would be a third one.
    fn set(&self, seconds: i64) {
        let next = self.folder.path().join("next");
        std::fs::write(&next, seconds.to_string()).expect("written");
        std::fs::rename(next, self.folder.path().join("offset")).expect("renamed");
    }

    async fn start(&self, tool: &ScriptedTool, state: &Path) -> Process {
        let library = format!("LD_PRELOAD={}", self.library.display());
        let offset = format!("CLOCK_OFFSET={}", self.folder.path().join("offset").display());
        start(tool, state, &["env", &library, &offset]).await
    }
}

/// When the entry of this order reached its state, seconds since 1970.
fn changed(state: &Path, order: &str) -> i64 {
    let db = rusqlite::Connection::open(state.join("store.db")).expect("it opens");
    let sql =
        "SELECT changed_ms / 1000 FROM entries WHERE json_extract(arguments, '$.order_ref') = ?1";
    db.query_row(sql, [order], |row| row.get(0)).expect("it is there")
}

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(since.expect("after 1970").as_secs()).expect("before the end")
}

#[tokio::test]
async fn a_clock_that_jumps_sends_nothing_twice_and_forgets_no_unknown_write() {
    let tool = ScriptedTool::start().await;
    let state = tempfile::tempdir().expect("a folder");
    let clock = Clock::new();
    let process = clock.start(&tool, state.path()).await;
    let write = async |process: &Process, run: &str, order: &str| {
        let agent = process.agent(Form::OpenaiChat, run);
        agent.call("create_order", order, &create(order)).await.json()
    };
    assert_eq!(write(&process, "r", "done").await["ok"], true);
    tool.script("/create", [Reply::ApplyThenReset, Reply::Ok]);
    assert_eq!(write(&process, "r", "lost").await["error"], "outcome_unknown");
    // While it runs: the clock of waiting is another one.
    for (n, years) in [10, -20].into_iter().enumerate() {
        clock.set(years * YEAR);
        let run = format!("running-{n}");
        assert_eq!(write(&process, &run, "done").await["replayed"], true, "{years}");
        assert_eq!(write(&process, &run, "lost").await["error"], "review_required", "{years}");
        let fresh = format!("fresh-{n}");
        assert_eq!(write(&process, &run, &fresh).await["ok"], true, "{years}");
        let off = changed(state.path(), &fresh) - now();
        assert!((off - years * YEAR).abs() < 3600, "the program's clock did jump: {off}");
    }
    process.signal("KILL");
    drop(process);
    // Over a restart, set back: kept longer.
    let process = clock.start(&tool, state.path()).await;
    assert_eq!(write(&process, "back", "done").await["replayed"], true);
    assert_eq!(write(&process, "back", "lost").await["error"], "review_required");
    process.signal("KILL");
    drop(process);
    // Set forward past their time: finished ones are forgotten, as documented; unknown ones never.
    clock.set(YEAR);
    let process = clock.start(&tool, state.path()).await;
    assert_eq!(write(&process, "ahead", "lost").await["error"], "review_required");
    let anew = write(&process, "ahead", "done").await;
    assert_eq!(
        (&anew["ok"], &anew["replayed"]),
        (&true.into(), &serde_json::Value::Null),
        "{anew}"
    );
    assert_eq!(tool.effects("lost"), 1);
}
