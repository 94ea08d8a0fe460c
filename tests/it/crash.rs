//! A crash at every point of one write: the real binary, the real store, started again on what is left.
//!
//! The program of a build with debug assertions tells the points it passes, and stops at the one it is told to
//! (`CHECKREIN_CRASH_AT`). The driver goes each way once to learn its points, then once for each of them, with SIGKILL
//! where the program stops, and prints how many there were.

mod approvals;
mod run;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::support::process::filled;
use crate::support::{Fixture, Reply, ScriptedTool, wait_for};
use run::{Run, SOON, Stop, TOKEN};

/// A way without points would prove nothing.
const LEAST: usize = 10;
const MOMENT: Duration = Duration::from_secs(1);
const WRITE: &str = r#"{"order_ref":"R1","sku":"A","qty":1}"#;

/// What follows the first answer.
#[derive(Debug, Clone, Copy)]
enum Then {
    Nothing,
    /// The idle store moves its log into its file.
    Checkpoint,
    /// The tool answers after all.
    LateAnswer,
    /// A person says so.
    Person(&'static str),
    /// SIGTERM.
    End,
}

/// One way of a write, to be died on at each of its points.
#[derive(Debug)]
struct Way {
    fixture: Fixture,
    replies: Vec<Reply>,
    /// Points are counted from here on; earlier ones are another way's.
    after: Option<&'static str>,
    then: Then,
    /// The tool says that it did nothing: another call then asks it anew.
    refuses: bool,
}

impl Way {
    fn new(replies: impl Into<Vec<Reply>>, after: Option<&'static str>, then: Then) -> Self {
        let refuses = false;
        // A busy machine is not what is tested here.
        let fixture = Fixture::new()
            .with(
                "connect: 200ms, first_byte: 500ms, total: 1s",
                "connect: 5s, first_byte: 8s, total: 9s",
            )
            .with("wall_clock: 10s", "wall_clock: 5m");
        Self { fixture, replies: replies.into(), after, then, refuses }
    }

    fn with(mut self, old: &str, new: &str) -> Self {
        self.fixture = self.fixture.with(old, new);
        self
    }
}

/// What became of one way until its end or its death.
#[derive(Debug, Default)]
struct Seen {
    answer: Option<Value>,
    /// What the person was told.
    settled: Option<Value>,
}

/// The state of the one entry, as the file has it: a copy is read, so that what a crash left is left alone.
fn entry(folder: &Path) -> Option<String> {
    let copy = tempfile::tempdir().expect("a folder");
    for name in ["store.db", "store.db-wal"] {
        // There may be none yet.
        drop(std::fs::copy(folder.join("state").join(name), copy.path().join(name)));
    }
    let db = rusqlite::Connection::open(copy.path().join("store.db")).ok()?;
    db.query_row("SELECT state FROM entries", [], |row| row.get(0)).ok()
}

/// What the agent was told of the effect.
fn told(answer: &Value) -> &str {
    if answer["ok"] == true { "yes" } else { answer["executed"].as_str().unwrap_or("?") }
}

/// A truthful entry: what it says fits what the tool did.
#[track_caller]
fn check_entry(state: Option<&str>, effects: usize, at: &str) {
    match state {
        None => assert_eq!(effects, 0, "{at}: nothing on record"),
        Some("executed") => assert_eq!(effects, 1, "{at}: executed"),
        Some("not_executed") => assert_eq!(effects, 0, "{at}: not executed"),
        Some("intent" | "unknown") => {}
        Some(other) => panic!("{at}: {other}"),
    }
}

/// Goes the whole way, or as far as the process lives.
async fn go(way: &Way, run: &Run, folder: &Path) -> Seen {
    let mut seen = Seen { answer: run.ask("c1", WRITE).await, settled: None };
    let Some(answer) = &seen.answer else { return seen };
    match way.then {
        Then::Nothing => {}
        Then::Checkpoint => {
            let log = folder.join("state/store.db-wal");
            let emptied = || std::fs::metadata(&log).is_ok_and(|found| found.len() == 0);
            wait_for("an empty log", SOON, async || run.has_stopped() || emptied()).await;
        }
        Then::LateAnswer => {
            let known = async || run.has_stopped() || entry(folder).as_deref() == Some("executed");
            wait_for("the late answer on record", SOON, known).await;
        }
        Then::Person(word) => {
            let operation = answer["operation"].as_str().expect("it is unknown").to_owned();
            let word = serde_json::json!({ "resolution": word, "evidence": "looked it up" });
            seen.settled = run.resolve(&operation, &word.to_string()).await;
        }
        Then::End => {
            run.terminate();
            wait_for("its end", SOON, async || run.has_stopped() || run.has_ended()).await;
        }
    }
    seen
}

/// What one way needs.
struct Stage {
    tool: ScriptedTool,
    folder: tempfile::TempDir,
}

impl Stage {
    async fn set(way: &Way) -> Self {
        let tool = ScriptedTool::start().await;
        tool.script("/create", way.replies.clone());
        let folder = tempfile::tempdir().expect("a folder");
        let policy = filled(folder.path(), &way.fixture.text(&tool.url()));
        std::fs::write(folder.path().join("policy.yaml"), policy).expect("written");
        std::fs::write(folder.path().join("people"), format!("ada {TOKEN}\n")).expect("written");
        Self { tool, folder }
    }
}

/// The points of the whole way, from its first one on.
async fn points(way: &Way) -> Vec<Stop> {
    let stage = Stage::set(way).await;
    let run = Run::start(stage.folder.path(), Some("list")).await;
    go(way, &run, stage.folder.path()).await;
    drop(run);
    let all = run::passed(stage.folder.path());
    let first = way.after.map_or(0, |after| {
        all.iter().position(|stop| stop.name == after).expect("the way begins at a point of it")
    });
    all.into_iter().skip(first).collect()
}

/// Dies at this point of this way; true where the way came to it.
async fn die_at(stop: &Stop, way: &Way, seen_of_all: &mut BTreeMap<String, u32>) -> bool {
    let Stage { tool, folder } = Stage::set(way).await;
    let folder = folder.path();
    let first = Run::start(folder, Some(&stop.to_string())).await;
    let (seen, died) = {
        let mut going = std::pin::pin!(go(way, &first, folder));
        tokio::select! {
            biased;
            () = first.kill_where_it_stops() => (going.await, true),
            // The last points may come a moment after what was waited for.
            seen = &mut going => {
                let died = tokio::time::timeout(MOMENT, first.kill_where_it_stops()).await;
                (seen, died.is_ok())
            }
        }
    };
    drop(first);
    let context = format!("{stop} (died: {died}), {:?}, {:?}", way.replies, way.then);
    let left = entry(folder);
    check_entry(left.as_deref(), tool.effects("R1"), &context);

    let second = Run::start(folder, None).await;
    let again = second.ask("c1", WRITE).await.expect("it answers");
    let other = second.ask("c2", WRITE).await.expect("it answers");
    let effects = tool.effects("R1");
    assert!(effects <= 1, "{context}: {again} {other}");
    check_answers(way, left.as_deref(), [&again, &other], effects, &context);
    check_kept(&seen, &again, &context);
    check_entry(entry(folder).as_deref(), effects, &context);
    let keys: BTreeSet<_> = tool.requests().iter().filter_map(sent_key).collect();
    assert!(keys.len() <= 1, "{context}: one operation, one key: {keys:?}");
    let name = format!("{} → {}", left.as_deref().unwrap_or("nothing"), told(&again));
    *seen_of_all.entry(name).or_default() += 1;
    died
}

fn sent_key(request: &crate::support::tool::Request) -> Option<String> {
    request.header("idempotency-key").map(str::to_owned)
}

/// What is said after the restart fits what the tool did and what was on record.
#[track_caller]
fn check_answers(way: &Way, left: Option<&str>, told_last: [&Value; 2], effects: usize, at: &str) {
    if matches!(left, Some("intent" | "unknown" | "executed")) {
        assert_ne!(told(told_last[0]), "no", "{at}: {}", told_last[0]);
    }
    for (turn, answer) in told_last.into_iter().enumerate() {
        match told(answer) {
            "yes" => assert_eq!(effects, 1, "{at}: {answer}"),
            "no" => assert!(way.refuses && effects <= 1, "{at}: {answer}"),
            "unknown" => {
                let error = answer["error"].as_str();
                // Sent by this very call, as nobody is bound by what was on record.
                let fresh = matches!(left, None | Some("not_executed")) && turn == 0;
                let wanted = if fresh { "outcome_unknown" } else { "review_required" };
                assert_eq!(error, Some(wanted), "{at}");
            }
            other => panic!("{at}: {other} {answer}"),
        }
    }
}

/// What was told once stays so under the same id; unknown may become known, and a person's word stands.
#[track_caller]
fn check_kept(seen: &Seen, again: &Value, at: &str) {
    let Some(answer) = &seen.answer else { return };
    if told(answer) != "unknown" {
        assert_eq!(told(answer), told(again), "{at}: {answer}, then {again}");
    }
    if answer["ok"] == true {
        assert_eq!((&again["replayed"], &again["value"]), (&true.into(), &answer["value"]), "{at}");
    }
    if seen.settled.is_some() {
        // Either word makes it known: it happened, or it was free and has been sent now.
        assert_eq!(told(again), "yes", "{at}: {seen:?}, then {again}");
    }
}

#[expect(clippy::print_stdout, reason = "how many points there were is what one wants to read")]
async fn exhaust(way: Way) {
    if !cfg!(debug_assertions) {
        return; // a release build has no points to die at
    }
    let all = points(&way).await;
    let names: BTreeSet<&str> = all.iter().map(|stop| &*stop.name).collect();
    let mut seen = BTreeMap::new();
    let mut missed = Vec::new();
    for stop in &all {
        if !die_at(stop, &way, &mut seen).await {
            missed.push(stop);
        }
    }
    println!(
        "{:?}, then {:?}: SIGKILL at {} points, {} of them distinct: {names:?}; \
         on disk → told after the restart: {seen:?}",
        way.replies,
        way.then,
        all.len() - missed.len(),
        names.len()
    );
    assert!(names.len() >= LEAST, "{} points only", names.len());
    // How many pieces bytes come in is not the same each time; that they come is.
    missed.retain(|stop| stop.turn == 1);
    assert!(missed.is_empty(), "never come to: {missed:?}");
}

/// From the first step of the first start to the checkpoint after the write.
#[tokio::test]
async fn a_crash_at_any_point_of_a_write_that_succeeds_is_survived() {
    exhaust(Way::new([Reply::Ok], None, Then::Checkpoint)).await;
}

#[tokio::test]
async fn a_crash_at_any_point_of_a_write_whose_answer_is_lost_is_survived() {
    let after = Some("replay: claimed");
    exhaust(Way::new([Reply::ApplyThenReset], after, Then::Nothing)).await;
}

#[tokio::test]
async fn a_crash_at_any_point_of_a_write_that_is_refused_is_survived() {
    let way = Way::new([Reply::Status(422)], Some("replay: claimed"), Then::Nothing);
    exhaust(Way { refuses: true, ..way }).await;
}

#[tokio::test]
async fn a_crash_at_any_point_of_a_late_answer_is_survived() {
    let late = Reply::ApplyAfter(Duration::from_millis(600));
    let way = Way::new([late], Some("journal: the gate is open"), Then::LateAnswer);
    exhaust(way.with("first_byte: 8s", "first_byte: 250ms")).await;
}

/// The tool recognises the key and does nothing the second time.
#[tokio::test]
async fn a_crash_at_any_point_of_a_second_sending_is_survived() {
    let headers = vec![("content-type", "application/json".to_owned())];
    let body = br#"{"id":7}"#.to_vec();
    let recognised = Reply::Full { apply: false, status: 200, headers, body };
    let replies = [Reply::ApplyThenReset, recognised];
    let way = Way::new(replies, Some("journal: the attempt has ended"), Then::Nothing);
    let keyed = "write: { idempotency: { mode: header, window: 1h }, fingerprint: [/order_ref]";
    exhaust(way.with("write: { fingerprint: [/order_ref]", keyed)).await;
}

#[tokio::test]
async fn a_crash_at_any_point_of_the_question_what_became_of_a_write_is_survived() {
    let way =
        Way::new([Reply::ApplyThenReset], Some("journal: the attempt has ended"), Then::Nothing);
    let asked = "write: { status_query: { tool: lookup_order, arguments: { order_id: { from: /order_ref } }, \
                 executed_when: { pointer: /value/status, equals: in_transit }, \
                 not_executed_when: { pointer: /value/status, equals: none }, settle: 100ms }, \
                 fingerprint: [/order_ref]";
    exhaust(way.with("write: { fingerprint: [/order_ref]", asked)).await;
}

#[tokio::test]
async fn a_crash_at_any_point_of_a_persons_word_that_it_happened_is_survived() {
    let after = Some("app: the answer is made");
    exhaust(Way::new([Reply::ApplyThenReset], after, Then::Person("happened"))).await;
}

#[tokio::test]
async fn a_crash_at_any_point_of_a_persons_word_that_it_did_not_happen_is_survived() {
    let after = Some("app: the answer is made");
    let replies = [Reply::Reset, Reply::Ok];
    exhaust(Way::new(replies, after, Then::Person("did_not_happen"))).await;
}

#[tokio::test]
async fn a_crash_at_any_point_of_a_graceful_end_is_survived() {
    exhaust(Way::new([Reply::Ok], Some("ledger: before the end"), Then::End)).await;
}
