//! A crash at every point of a call that a person approves: one yes, at most one effect, and no yes that is lost on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use super::run::{Run, passed};
use super::{LEAST, MOMENT, Stage, Way};
use crate::crash::Then;
use crate::support::Reply;

/// Without a fingerprint: nothing but the approval keeps it from being done twice.
const PAY: &str = r#"{"account_id":7}"#;
const READ: &str = r#"{"order_id":"7"}"#;

struct Case {
    tool: &'static str,
    arguments: &'static str,
    path: &'static str,
    replies: Vec<Reply>,
}

impl Case {
    fn way(&self) -> Way {
        let way = Way::new([Reply::Ok], None, Then::Nothing);
        let fixture = way.fixture.clone().tool(self.tool, "approval: { when: always }");
        Way { fixture, ..way }
    }

    async fn stage(&self) -> Stage {
        let stage = Stage::set(&self.way()).await;
        stage.tool.script(self.path, self.replies.clone());
        stage
    }
}

/// What a process told until its end or its death.
#[derive(Debug, Default)]
struct Told {
    /// The approval that was asked for, as far as that was told.
    asked: Option<String>,
    /// A person's yes was acknowledged.
    approved: bool,
    answer: Option<Value>,
}

async fn go(case: &Case, run: &Run) -> Told {
    let mut told = Told::default();
    let asked = run.call(case.tool, "c1", case.arguments).await;
    told.asked = asked.and_then(|asked| Some(asked["approval"].as_str()?.to_owned()));
    let Some(id) = &told.asked else { return told };
    let yes = json!({ "decision": "approve" }).to_string();
    let said = run.say(&format!("approvals/{id}/decide"), &yes).await;
    told.approved = said.is_some_and(|said| said["state"] == "approved");
    if told.approved {
        told.answer = run.call(case.tool, "c2", case.arguments).await;
    }
    told
}

/// Its state in the file.
fn state(folder: &Path, id: &str) -> Option<String> {
    let copy = tempfile::tempdir().expect("a folder");
    for name in ["store.db", "store.db-wal"] {
        drop(std::fs::copy(folder.join("state").join(name), copy.path().join(name))); // there may be none
    }
    let db = rusqlite::Connection::open(copy.path().join("store.db")).ok()?;
    db.query_row("SELECT state FROM approvals WHERE id = ?1", [id], |row| row.get(0)).ok()
}

async fn die_at(case: &Case, stop: &super::run::Stop, seen: &mut BTreeMap<String, u32>) -> bool {
    let Stage { tool, folder } = case.stage().await;
    let folder = folder.path();
    let first = Run::start(folder, Some(&stop.to_string())).await;
    let (told, died) = {
        let mut going = std::pin::pin!(go(case, &first));
        tokio::select! {
            biased;
            () = first.kill_where_it_stops() => (going.await, true),
            told = &mut going => {
                let died = tokio::time::timeout(MOMENT, first.kill_where_it_stops()).await;
                (told, died.is_ok())
            }
        }
    };
    drop(first);
    let at = format!("{stop} (died: {died}), {told:?}");
    let sent = tool.hits(case.path);
    let left = told.asked.as_ref().and_then(|id| state(folder, id));
    assert!(told.asked.is_none() || left.is_some(), "{at}: what was told is on record");
    if sent > 0 {
        assert_eq!(left.as_deref(), Some("spent"), "{at}: used up before it was sent");
    }
    if told.approved {
        assert!(matches!(left.as_deref(), Some("approved" | "spent")), "{at}: {left:?}");
    }
    let second = Run::start(folder, None).await;
    let mut told_last = Vec::new();
    for call in ["c2", "c3", "c4"] {
        told_last.push(second.call(case.tool, call, case.arguments).await.expect("it answers"));
    }
    let hits = tool.hits(case.path);
    let most = usize::from(told.approved || matches!(left.as_deref(), Some("approved" | "spent")));
    assert!(hits <= most, "{at}: {hits} sent on {most} yes, then {told_last:?}");
    if left.as_deref() == Some("approved") {
        assert_eq!(hits, 1, "{at}: a yes that was not used is not lost: {told_last:?}");
    }
    for answer in &told_last {
        let error = answer["error"].as_str().unwrap_or("ok");
        let fits = ["ok", "approval_required", "review_required", "result_lost", "outcome_unknown"];
        assert!(fits.contains(&error), "{at}: {answer}");
        assert!(error != "approval_required" || answer["executed"] == "no", "{at}: {answer}");
    }
    let names: Vec<&str> =
        told_last.iter().map(|answer| answer["error"].as_str().unwrap_or("ok")).collect();
    let name = format!("{} → {}", left.as_deref().unwrap_or("nothing"), names.join(", "));
    *seen.entry(name).or_default() += 1;
    died
}

#[expect(clippy::print_stdout, reason = "how many points there were is what one wants to read")]
async fn exhaust(case: Case) {
    if !cfg!(debug_assertions) {
        return; // a release build has no points to die at
    }
    let Stage { tool: _tool, folder } = case.stage().await;
    let run = Run::start(folder.path(), Some("list")).await;
    let whole = go(&case, &run).await;
    assert!(whole.answer.is_some(), "{whole:?}");
    drop(run);
    let mut all = passed(folder.path());
    let first = all.iter().position(|stop| stop.name == "approvals: before the question");
    let all = all.split_off(first.expect("the way begins there"));
    let names: BTreeSet<&str> = all.iter().map(|stop| &*stop.name).collect();
    let (mut seen, mut missed) = (BTreeMap::new(), Vec::new());
    for stop in &all {
        if !die_at(&case, stop, &mut seen).await {
            missed.push(stop);
        }
    }
    println!(
        "{}: SIGKILL at {} points, {} of them distinct: {names:?}; on disk → told after the restart: {seen:?}",
        case.tool,
        all.len() - missed.len(),
        names.len()
    );
    assert!(names.len() >= LEAST, "{} points only", names.len());
    missed.retain(|stop| stop.turn == 1);
    assert!(missed.is_empty(), "never come to: {missed:?}");
}

#[tokio::test]
async fn a_crash_at_any_point_of_an_approved_write_uses_its_yes_at_most_once() {
    exhaust(Case { tool: "pay", arguments: PAY, path: "/pay", replies: vec![Reply::Ok] }).await;
}

#[tokio::test]
async fn a_crash_at_any_point_of_an_approved_write_that_is_lost_uses_its_yes_at_most_once() {
    let replies = vec![Reply::ApplyThenReset, Reply::Ok];
    exhaust(Case { tool: "pay", arguments: PAY, path: "/pay", replies }).await;
}

#[tokio::test]
async fn a_crash_at_any_point_of_an_approved_read_uses_its_yes_at_most_once() {
    let case =
        Case { tool: "lookup_order", arguments: READ, path: "/orders/", replies: vec![Reply::Ok] };
    exhaust(case).await;
}

/// The case as it was reported: right after the send.
#[tokio::test]
async fn bb_h03_a_yes_is_used_up_before_the_call_is_sent_also_where_a_crash_follows() {
    let case =
        Case { tool: "pay", arguments: PAY, path: "/pay", replies: vec![Reply::ApplyThenHang] };
    let Stage { tool, folder } = case.stage().await;
    let folder = folder.path();
    let first = Run::start(folder, None).await;
    let told = first.call("pay", "c1", PAY).await.expect("it answers");
    let id = told["approval"].as_str().expect("it waits").to_owned();
    let yes = json!({ "decision": "approve" }).to_string();
    assert_eq!(
        first.say(&format!("approvals/{id}/decide"), &yes).await.expect("said")["state"],
        "approved"
    );
    {
        let mut going = std::pin::pin!(first.call("pay", "c2", PAY));
        let arrived =
            crate::support::wait_for("the write at the tool", super::run::SOON, async || {
                tool.hits("/pay") == 1
            });
        tokio::select! {
            _ = &mut going => {}
            () = arrived => {}
        }
    }
    drop(first); // kill -9
    assert_eq!(state(folder, &id).as_deref(), Some("spent"));
    let second = Run::start(folder, None).await;
    for call in ["c2", "c3"] {
        let told = second.call("pay", call, PAY).await.expect("it answers");
        assert_eq!(
            (&told["error"], &told["executed"]),
            (&json!("review_required"), &json!("unknown")),
            "{told}"
        );
    }
    assert_eq!(tool.hits("/pay"), 1);
}
