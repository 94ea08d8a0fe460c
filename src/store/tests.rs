//! One suite for every engine, and what only a file can suffer.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::*;
use crate::call::code::FailCode;
use crate::call::operation::{OperationKey, OperationScope, operation};
use crate::call::{Class, Content, Delivery, Evidence, Head, Notes, Source, Verdict};
use crate::strict_json::Limits;
use crate::telemetry::record::wall_clock;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn arguments(text: &str) -> Arguments {
    Arguments::parse(text.as_bytes(), Limits::arguments(1 << 16, 32)).expect("sound")
}

fn caller(call: &str) -> Caller {
    (RunId::new("r1").expect("id"), CallId::new(call).expect("id"))
}

fn row(name: &str, claim: u64, standing: Standing) -> Row {
    let tool = ToolName::new("pay").expect("name");
    let agent = AgentId::new("a").expect("name");
    let arguments = arguments(&format!(r#"{{"to":"{name}","amount":9007199254740993}}"#));
    let operation =
        operation(OperationScope::Agent(&agent), &tool, OperationKey::Arguments, &arguments, &[]);
    Row {
        which: Which { key: operation.key, occurrence: 0, claim },
        tool,
        agent,
        digest: operation.arguments,
        arguments: Some(arguments),
        calls: vec![caller("c1"), caller("идент|\"2")],
        failures: Vec::new(),
        ttl: DAY,
        changed: wall_clock(),
        standing,
        resolved: None,
        task: None,
    }
}

fn failed() -> Failed {
    Failed {
        evidence: Some(Evidence::Status(422)),
        status: Some(422),
        retry_after: Some(Duration::from_millis(1500)),
        ..Failed::new(
            FailCode::ToolError,
            Class::Permanent,
            Delivery::Refused,
            Verdict::Good,
            "it said no",
        )
    }
}

fn result(text: &str) -> Option<Box<ToolResult>> {
    let mut headers = http::HeaderMap::new();
    headers.insert("x-id", http::HeaderValue::from_static("7"));
    Some(Box::new(ToolResult {
        head: Some(Head { status: 201, headers, arriving: None }),
        content: Content { bytes: text.to_owned().into(), form: crate::call::Form::Json },
        source: Source::Tool,
        notes: Notes { attempts: 1, accepted: true, ..Notes::default() },
    }))
}

fn put(row: Row) -> Change {
    Change::Put { row: Box::new(row), result: None }
}

fn end(row: Row, result: Option<Box<ToolResult>>) -> Change {
    Change::End { row: Box::new(row), result }
}

fn unknown(why: &str) -> Standing {
    Standing::Unknown { why: why.into() }
}

fn place(folder: &Path) -> Place {
    Place { folder: folder.join("state"), max_bytes: 16 << 20 }
}

fn open(folder: &Path) -> (Store, Vec<Row>) {
    Store::open(&place(folder), Metrics::new()).expect("it opens")
}

/// The rows, by closing and opening where the engine can.
async fn rows(store: Store, folder: &Path) -> (Store, Vec<Row>) {
    match store {
        Store::Memory(engine) => {
            let rows = engine.rows();
            (Store::Memory(engine), rows)
        }
        Store::Sqlite(_) | Store::Unreadable(_) => {
            store.close().await;
            open(folder)
        }
    }
}

/// Runs a case over every engine.
async fn over_both(case: impl AsyncFn(Store, &Path)) {
    let folder = tempfile::tempdir().expect("a folder");
    case(Store::Memory(Memory::whole()), folder.path()).await;
    case(open(folder.path()).0, folder.path()).await;
}

#[tokio::test]
async fn an_intent_is_put_once_and_ended_once() {
    over_both(async |store, folder| {
        let first = row("x", 7, Standing::Intent);
        store.commit(put(first.clone())).await.expect("put");
        let second = row("x", 8, Standing::Intent);
        assert_eq!(store.commit(put(second.clone())).await, Err(StoreError::Refused));
        let stranger = row("x", 8, Standing::Executed(Answer::Lost));
        assert_eq!(store.commit(end(stranger, None)).await, Err(StoreError::Refused));
        let done = row("x", 7, Standing::Executed(Answer::Result));
        store.commit(end(done.clone(), result("{\"id\":1}"))).await.expect("ended");
        assert_eq!(store.commit(end(done, None)).await, Err(StoreError::Refused), "it has ended");
        let (store, rows) = rows(store, folder).await;
        assert_eq!(rows.len(), 1);
        assert!(matches!(rows[0].standing, Standing::Executed(Answer::Result)));
        let found = store.result(first.which.key, 0).await.expect("read").expect("kept");
        assert_eq!(&found.content.bytes[..], b"{\"id\":1}");
        let head = found.head.expect("a head");
        assert_eq!((head.status, head.headers["x-id"].as_bytes()), (201, &b"7"[..]));
        assert!(found.content.form == crate::call::Form::Json && found.notes.accepted);
        store.close().await;
    })
    .await;
}

#[tokio::test]
async fn every_standing_comes_back_as_it_was() {
    over_both(async |store, folder| {
        let resolved = Resolved {
            by: "person".into(),
            who: "ops@example.org".into(),
            why: "seen in the ledger of the bank".into(),
            evidence: "T-1".into(),
        };
        let all = [
            ("a", Standing::Intent),
            ("b", Standing::Executed(Answer::Lost)),
            ("c", Standing::Executed(Answer::Error(failed()))),
            ("d", Standing::NotExecuted { evidence: "status_422".into() }),
            ("e", unknown("timeout")),
            ("f", Standing::Compensated),
        ];
        for (name, standing) in &all {
            let mut one = row(name, 1, standing.clone());
            one.failures = vec![(caller("c0"), one.digest, failed())];
            one.resolved = Some(resolved.clone());
            store.commit(put(one)).await.expect("put");
        }
        let (store, rows) = rows(store, folder).await;
        for (name, standing) in all {
            let wanted = row(name, 1, standing);
            let found = rows.iter().find(|row| row.which == wanted.which).expect(name);
            assert_eq!(format!("{:?}", found.standing), format!("{:?}", wanted.standing));
            assert_eq!(
                format!("{:?}", found.failures),
                format!("{:?}", [(caller("c0"), wanted.digest, failed())])
            );
            assert_eq!((&found.tool, &found.agent), (&wanted.tool, &wanted.agent));
            assert_eq!((found.digest, found.ttl), (wanted.digest, wanted.ttl));
            assert_eq!((&found.calls, &found.resolved), (&wanted.calls, &Some(resolved.clone())));
            let first = found.arguments.as_ref().map(|a| a.digest(&[]));
            assert_eq!(first, wanted.arguments.map(|a| a.digest(&[])), "digits are kept");
        }
        store.close().await;
    })
    .await;
}

#[tokio::test]
async fn unknown_is_never_overwritten_nor_forgotten_and_intents_become_unknown() {
    over_both(async |store, folder| {
        let open = row("x", 1, Standing::Intent);
        store.commit(put(open.clone())).await.expect("put");
        store.commit(Change::Forget(vec![open.which])).await.expect("taken");
        store.commit(Change::Recover).await.expect("recovered");
        store.commit(Change::Forget(vec![open.which])).await.expect("taken");
        let again = row("x", 2, Standing::Intent);
        assert_eq!(store.commit(put(again)).await, Err(StoreError::Refused));
        let (store, rows) = rows(store, folder).await;
        assert_eq!(rows.len(), 1);
        assert!(matches!(&rows[0].standing, Standing::Unknown { why } if why == "crash"));
        store.close().await;
    })
    .await;
}

#[tokio::test]
async fn what_did_not_happen_gives_way_and_only_the_same_claim_is_forgotten() {
    over_both(async |store, folder| {
        let first = row("x", 1, Standing::NotExecuted { evidence: "zero_bytes".into() });
        store.commit(put(first.clone())).await.expect("put");
        store.commit(put(row("x", 2, Standing::Intent))).await.expect("anew");
        let done = row("x", 2, Standing::Executed(Answer::Lost));
        store.commit(end(done.clone(), None)).await.expect("ended");
        let more = Change::Calls { which: done.which, calls: vec![caller("c9")] };
        store.commit(more).await.expect("noted");
        store.commit(Change::Forget(vec![first.which])).await.expect("taken");
        let (store, found) = rows(store, folder).await;
        assert_eq!((found.len(), &found[0].calls), (1, &vec![caller("c9")]));
        store.commit(Change::Forget(vec![done.which])).await.expect("taken");
        let (store, found) = rows(store, folder).await;
        assert!(found.is_empty());
        store.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_row_that_is_refused_does_not_undo_its_neighbours() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = open(folder.path());
    store.commit(put(row("x", 1, Standing::Intent))).await.expect("put");
    // Handed in at once, so that they share groups.
    let mut waiting = Vec::new();
    for n in 0..64 {
        let (tell, heard) = oneshot::channel();
        let name = if n % 2 == 0 { "x".to_owned() } else { format!("y{n}") };
        let then: Then = Box::new(move |done| drop(tell.send(done)));
        store.submit(put(row(&name, 2 + n, Standing::Intent)), then);
        waiting.push((n % 2 == 0, heard));
    }
    for (refused, heard) in waiting {
        let done = heard.await.expect("answered");
        assert_eq!(done, if refused { Err(StoreError::Refused) } else { Ok(()) });
    }
    store.close().await;
    assert_eq!(open(folder.path()).1.len(), 33);
}

#[tokio::test]
async fn a_full_store_refuses_rows_and_takes_ends_until_it_has_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let small = Place { max_bytes: 1 << 20, ..place(folder.path()) };
    let (store, _) = Store::open(&small, Metrics::new()).expect("it opens");
    store.commit(put(row("open", 1, Standing::Intent))).await.expect("put");
    let big = "x".repeat(200_000);
    let mut kept = Vec::new();
    for n in 2..20 {
        let one = row(&format!("n{n}"), n, Standing::Executed(Answer::Result));
        kept.push(one.which);
        match store.commit(Change::Put { row: Box::new(one), result: result(&big) }).await {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error, StoreError::Full);
                break;
            }
        }
    }
    assert!(!store.writable() && kept.len() < 18);
    let done = row("open", 1, Standing::Executed(Answer::Lost));
    store.commit(end(done, None)).await.expect("an end is taken");
    store.commit(Change::Forget(kept)).await.expect("room is made");
    let mut tries = 0;
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    while !store.writable() {
        tries += 1;
        assert!(tries < 500, "it does not recover");
        ticks.tick().await; // the log is emptied when idle
    }
    store.commit(put(row("z", 50, Standing::Intent))).await.expect("taken again");
    store.close().await;
}

#[tokio::test]
async fn a_second_owner_of_the_folder_is_refused_and_the_next_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = open(folder.path());
    let second = Store::open(&place(folder.path()), Metrics::new()).expect_err("one owner");
    assert!(matches!(&second, OpenError::Refused(why) if why.contains("another process")));
    store.close().await;
    open(folder.path()).0.close().await;
}

#[tokio::test]
async fn another_secret_or_none_is_another_store() {
    let folder = tempfile::tempdir().expect("a folder");
    open(folder.path()).0.close().await;
    let secret = folder.path().join("state/secret");
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &fs::metadata(&secret).expect("there").permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    let kept = fs::read(&secret).expect("read");
    for wrong in [Some(vec![7; 32]), None, Some(b"short".to_vec())] {
        match wrong {
            Some(bytes) => fs::write(&secret, bytes).expect("written"),
            None => fs::remove_file(&secret).expect("removed"),
        }
        let error = Store::open(&place(folder.path()), Metrics::new()).expect_err("not its secret");
        assert!(matches!(&error, OpenError::Refused(why) if why.contains("secret")), "{error}");
    }
    fs::write(&secret, kept).expect("written");
    open(folder.path()).0.close().await;
}

#[tokio::test]
async fn a_damaged_file_is_never_taken_for_an_empty_store() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = open(folder.path());
    for n in 0..200 {
        store.commit(put(row(&format!("n{n}"), 1 + n, unknown("x")))).await.expect("put");
    }
    store.close().await;
    let file = folder.path().join("state/store.db");
    let sound = fs::read(&file).expect("read");
    let half = sound[..sound.len() / 2].to_vec();
    let mut torn = sound.clone();
    torn[8192..24576].fill(0xa5);
    for bytes in [Vec::new(), b"no database at all, but some text".repeat(40), half, torn] {
        fs::write(&file, &bytes).expect("written");
        let error = Store::open(&place(folder.path()), Metrics::new()).expect_err("damaged");
        assert!(matches!(error, OpenError::Damaged(_)), "{} bytes: {error}", bytes.len());
    }
    fs::write(&file, sound).expect("written");
    let (store, rows) = open(folder.path());
    assert_eq!(rows.len(), 200);
    store.close().await;
}

#[tokio::test]
async fn a_damaged_row_blocks_its_operation() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = open(folder.path());
    store.commit(put(row("x", 1, Standing::Executed(Answer::Lost)))).await.expect("put");
    store.close().await;
    let file = folder.path().join("state/store.db");
    sqlite3(&file, "UPDATE entries SET answer = 'what'");
    let (store, rows) = open(folder.path());
    assert!(matches!(&rows[0].standing, Standing::Unknown { why } if why == "damaged"));
    store.close().await;
    sqlite3(&file, "PRAGMA user_version = 999");
    let error = Store::open(&place(folder.path()), Metrics::new()).expect_err("of another day");
    assert!(matches!(&error, OpenError::Refused(why) if why.contains("newer program")), "{error}");
}

/// A statement by hand, as an operator would.
fn sqlite3(file: &Path, statement: &str) -> String {
    let connection = rusqlite::Connection::open(file).expect("it opens");
    let mut prepared = connection.prepare(statement).expect("sound");
    let mut rows = prepared.query([]).expect("it runs");
    let mut text = String::new();
    while let Some(row) = rows.next().expect("a row") {
        text.push_str(&row.get::<_, String>(0).unwrap_or_default());
    }
    text
}

#[tokio::test]
async fn the_ordinary_sqlite3_reads_the_file_while_it_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = open(folder.path());
    store.commit(put(row("x", 1, unknown("timeout")))).await.expect("put");
    let file = folder.path().join("state/store.db");
    let statement = "SELECT operation || ' ' || state || ' ' || tool FROM entries";
    let wanted = format!("{} unknown pay", row("x", 1, Standing::Intent).which.key.id());
    assert_eq!(sqlite3(&file, statement), wanted);
    // The system's own, older, program where there is one.
    if let Ok(output) = Command::new("sqlite3").arg(&file).arg(statement).output() {
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), wanted, "{output:?}");
    }
    store.commit(put(row("y", 2, Standing::Intent))).await.expect("it goes on");
    store.close().await;
}

#[tokio::test]
async fn a_lost_result_is_found_once_and_only_where_it_was_lost() {
    over_both(async |store, folder| {
        let found = |row: &Row| Change::Found {
            which: row.which,
            result: result("late").expect("a result"),
        };
        for standing in [
            Standing::Intent,
            unknown("reset"),
            Standing::NotExecuted { evidence: "zero_bytes".into() },
            Standing::Executed(Answer::Result),
            Standing::Compensated,
        ] {
            let other = row("other", 1, standing);
            store.commit(put(other.clone())).await.expect("put");
            assert_eq!(store.commit(found(&other)).await, Err(StoreError::Refused));
            let over = row("other", 1, Standing::Executed(Answer::Lost));
            drop(store.commit(end(over.clone(), None)).await); // only an open one needs an end
            store.commit(Change::Forget(vec![over.which])).await.expect("taken");
        }
        let lost = row("x", 2, Standing::Executed(Answer::Lost));
        store.commit(put(lost.clone())).await.expect("put");
        let earlier = Row { which: Which { claim: 1, ..lost.which }, ..lost.clone() };
        assert_eq!(store.commit(found(&earlier)).await, Err(StoreError::Refused), "another claim");
        store.commit(found(&lost)).await.expect("found");
        assert_eq!(store.commit(found(&lost)).await, Err(StoreError::Refused), "once");
        let (store, rows) = rows(store, folder).await;
        assert!(matches!(rows[..], [Row { standing: Standing::Executed(Answer::Result), .. }]));
        let kept = store.result(lost.which.key, 0).await.expect("read").expect("there");
        assert_eq!(&kept.content.bytes[..], b"late");
        store.close().await;
    })
    .await;
}

fn question(name: &str) -> Approval {
    let bytes = |text: &str| Digest::of(text.as_bytes());
    Approval {
        id: ApprovalId::parse(&format!("apr_{:016x}", name.len())).expect("a name"),
        asked_for: bytes(name),
        binding: bytes(name),
        tool: ToolName::new("pay").expect("name"),
        agent: AgentId::new("a").expect("name"),
        caller: caller("идент|\"2"),
        section: bytes("section"),
        arguments: arguments(r#"{"to":"x","amount":9007199254740993}"#),
        edited: None,
        why: "tools.pay.approval.when: always :7".into(),
        ttl: DAY,
        asked: wall_clock(),
        changed: wall_clock(),
        said: Said::Pending,
        decided: None,
    }
}

fn decided(mut approval: Approval, said: Said) -> Approval {
    let (who, comment) = ("ada".into(), "be\u{202e}cause".into());
    approval.decided = Some(Decided { who, comment, at: wall_clock() });
    Approval { said, ..approval }
}

#[tokio::test]
async fn a_question_is_answered_once_and_its_yes_used_up_once() {
    over_both(async |store, folder| {
        let asked = question("x");
        store.commit(Change::Ask(Box::new(asked.clone()))).await.expect("asked");
        let again = Change::Ask(Box::new(asked.clone()));
        assert_eq!(store.commit(again).await, Err(StoreError::Refused), "one of a name");
        let spend = || Change::Spend(asked.id.clone());
        assert_eq!(store.commit(spend()).await, Err(StoreError::Refused), "no yes yet");
        let mut yes = decided(asked.clone(), Said::Approved);
        yes.edited = Some(arguments(r#"{"to":"y"}"#));
        yes.binding = Digest::of(b"y");
        store.commit(Change::Decide(Box::new(yes.clone()))).await.expect("decided");
        let no = Change::Decide(Box::new(decided(asked.clone(), Said::Rejected)));
        assert_eq!(store.commit(no).await, Err(StoreError::Refused), "somebody was first");
        // The intent of a write and the end of its yes are one.
        let under_way = row("x", 7, Standing::Intent);
        store.commit(put(under_way.clone())).await.expect("put");
        let with = |claim| Change::PutSpending {
            row: Box::new(row("x", claim, Standing::Intent)),
            yes: asked.id.clone(),
        };
        assert_eq!(store.commit(with(8)).await, Err(StoreError::Refused), "under way");
        let refused = Standing::NotExecuted { evidence: "status_422".into() };
        store.commit(end(row("x", 7, refused), None)).await.expect("ended");
        store.commit(with(8)).await.expect("the yes was still there");
        assert_eq!(store.commit(spend()).await, Err(StoreError::Refused), "it is used up");
        let free = Standing::NotExecuted { evidence: "status_422".into() };
        store.commit(end(row("x", 8, free), None)).await.expect("ended");
        assert_eq!(store.commit(with(9)).await, Err(StoreError::Refused), "no yes, no intent");
        let (store, rows) = rows(store, folder).await;
        assert!(
            matches!(rows[0].standing, Standing::NotExecuted { .. }) && rows[0].which.claim == 8
        );
        let [kept] = store.approvals().try_into().expect("one");
        let kept: Approval = kept;
        assert_eq!((kept.said, kept.id, kept.why), (Said::Spent, asked.id.clone(), asked.why));
        assert_eq!(
            (kept.asked_for, kept.binding, kept.section),
            (asked.asked_for, yes.binding, yes.section)
        );
        assert_eq!(
            (kept.tool, kept.agent, kept.caller, kept.ttl),
            (yes.tool, yes.agent, yes.caller, DAY)
        );
        assert_eq!(kept.arguments.tree(), asked.arguments.tree());
        assert_eq!(kept.edited.expect("edited").tree(), &serde_json::json!({ "to": "y" }));
        let by = kept.decided.expect("by whom");
        assert_eq!((by.who.as_str(), by.comment.as_str()), ("ada", "be\u{202e}cause"));
        store.commit(Change::ForgetApprovals(vec![asked.id.clone()])).await.expect("forgotten");
        assert_eq!(store.commit(spend()).await, Err(StoreError::Refused), "gone");
    })
    .await;
}

#[tokio::test]
async fn a_store_of_the_version_before_is_led_on_with_all_that_is_in_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = open(folder.path());
    store.commit(put(row("x", 7, unknown("a timeout")))).await.expect("put");
    store.close().await;
    let file = folder.path().join("state/store.db");
    sqlite::undo_approvals(&file);
    let (store, rows) = open(folder.path());
    assert_eq!(rows.len(), 1, "nothing is lost");
    assert!(matches!(rows[0].standing, Standing::Unknown { .. }));
    assert_eq!(rows[0].task, None);
    store.commit(Change::Ask(Box::new(question("x")))).await.expect("asked");
    let task = Change::Task { which: rows[0].which, task: "t-1".into() };
    store.commit(task).await.expect("kept");
    store.close().await;
    let (store, rows) = open(folder.path());
    assert_eq!(rows[0].task.as_deref(), Some("t-1"));
    assert_eq!(store.approvals().len(), 1);
    assert!(store.approvals().is_empty(), "told once");
}

#[tokio::test]
async fn an_approval_that_makes_no_sense_is_no_yes_and_hinders_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = open(folder.path());
    store.commit(Change::Ask(Box::new(question("x")))).await.expect("asked");
    store.commit(Change::Ask(Box::new(question("xy")))).await.expect("asked");
    store.close().await;
    let file = folder.path().join("state/store.db");
    sqlite::execute(&file, "UPDATE approvals SET arguments = '[' WHERE id LIKE '%1'");
    let (store, _) = open(folder.path());
    let left: Vec<String> = store.approvals().iter().map(|one| one.id.to_string()).collect();
    assert_eq!(left, ["apr_0000000000000002"]);
}

/// Of the very sending, and only as long as nobody knows its end.
#[tokio::test]
async fn a_task_is_noted_of_a_sending_whose_end_is_open_and_of_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let (sqlite, _) = open(folder.path());
    for store in [sqlite, Store::Memory(Memory::whole())] {
        let row = row("x", 7, Standing::Intent);
        let task = |which| Change::Task { which, task: "t-1".into() };
        assert_eq!(store.commit(task(row.which)).await, Err(StoreError::Refused), "no row");
        store.commit(put(row.clone())).await.expect("put");
        let earlier = Which { claim: 6, ..row.which };
        assert_eq!(store.commit(task(earlier)).await, Err(StoreError::Refused), "another claim");
        store.commit(task(row.which)).await.expect("kept");
        let done = Row { standing: Standing::Executed(Answer::Lost), ..row.clone() };
        store.commit(Change::End { row: Box::new(done), result: None }).await.expect("ended");
        assert_eq!(store.commit(task(row.which)).await, Err(StoreError::Refused), "it is over");
        store.close().await;
    }
}
