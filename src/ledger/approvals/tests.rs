//! Questions over a restart, at their bounds, and two people at once.

use std::path::Path;

use super::*;
use crate::ledger::Ledger;
use crate::store::{Place, Store};
use crate::strict_json::Limits;
use crate::telemetry::metrics::Metrics;

const TTL: Duration = Duration::from_secs(600);

fn wish(run: &str, id: u32) -> Wish {
    let text = format!(r#"{{"id":{id}}}"#);
    Wish {
        agent: AgentId::new("a").expect("name"),
        tool: ToolName::new("pay").expect("name"),
        run: RunId::new(run).expect("id"),
        call: CallId::new("c1").expect("id"),
        arguments: Arguments::parse(text.as_bytes(), Limits::arguments(64, 4)).expect("sound"),
        section: Digest::of(b"section"),
        why: "a rule".into(),
        ttl: TTL,
    }
}

async fn asked(ledger: &Ledger, wish: Wish) -> ApprovalId {
    match ledger.approvals().ask(wish).await {
        Err(NotYet::Waits { id, .. }) => id,
        other => panic!("{other:?}"),
    }
}

async fn over(folder: &Path) -> Arc<Ledger> {
    let place = Place { folder: folder.to_owned(), max_bytes: 16 << 20 };
    let (store, rows) = Store::open(&place, Metrics::new()).expect("it opens");
    Ledger::over(store, rows).await
}

#[tokio::test]
async fn questions_answers_and_used_up_yeses_outlive_the_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = over(folder.path()).await;
    let mut ids = Vec::new();
    for id in 0..4 {
        ids.push(asked(&first, wish("r", id)).await);
    }
    let say = async |id: &ApprovalId, decision| {
        first.approvals().decide(id, decision, "ada", "because").await.expect("on record");
    };
    say(&ids[1], Decision::Approve).await;
    say(&ids[2], Decision::Reject).await;
    say(&ids[3], Decision::Approve).await;
    let Ok(yes) = first.approvals().ask(wish("r", 3)).await else { panic!("a yes") };
    yes.spend().await.expect("on record");
    yes.spend().await.expect("again it is nothing");
    drop(yes);
    first.close().await;
    let second = over(folder.path()).await;
    let standing = |id| second.approvals().find(id).expect("kept").standing;
    assert_eq!(
        ids.iter().map(standing).collect::<Vec<_>>(),
        [Standing::Pending, Standing::Approved, Standing::Rejected, Standing::Used]
    );
    assert_eq!(asked(&second, wish("other", 0)).await, ids[0], "the same question");
    let Ok(yes) = second.approvals().ask(wish("r", 1)).await else { panic!("a yes") };
    drop(yes);
    let told = second.approvals().ask(wish("r", 2)).await;
    assert!(
        matches!(&told, Err(NotYet::Rejected { comment, .. }) if comment == "because"),
        "{told:?}"
    );
    assert_ne!(asked(&second, wish("r", 3)).await, ids[3], "its yes is used up");
}

#[tokio::test(start_paused = true)]
async fn a_yes_that_was_cut_off_in_the_middle_is_not_used_again() {
    let ledger = Ledger::in_memory();
    let id = asked(&ledger, wish("r", 1)).await;
    ledger.approvals().decide(&id, Decision::Approve, "ada", "").await.expect("on record");
    let Ok(yes) = ledger.approvals().ask(wish("r", 1)).await else { panic!("a yes") };
    assert!(matches!(ledger.approvals().ask(wish("r", 1)).await, Err(NotYet::InUse)));
    assert!(!yes.begin(), "it begins to be used up, and nobody hears of the end");
    drop(yes);
    assert_ne!(asked(&ledger, wish("r", 1)).await, id);
}

#[tokio::test(start_paused = true)]
async fn of_two_who_decide_at_once_one_does() {
    let ledger = Ledger::in_memory();
    let id = asked(&ledger, wish("r", 1)).await;
    let say = |decision| ledger.approvals().decide(&id, decision, "x", "because");
    let (yes, no) = tokio::join!(say(Decision::Approve), say(Decision::Reject));
    assert!(yes.is_ok() && no == Err(DecideError::NotPending(Standing::Approved)), "{no:?}");
}

#[tokio::test(start_paused = true)]
async fn an_edit_to_what_another_question_is_about_is_refused() {
    let ledger = Ledger::in_memory();
    let (one, other) = (asked(&ledger, wish("r", 1)).await, asked(&ledger, wish("r", 2)).await);
    let edit = Decision::Edit(wish("r", 2).arguments);
    let told = ledger.approvals().decide(&one, edit, "ada", "because").await;
    assert_eq!(told, Err(DecideError::Elsewhere(other)));
}

#[tokio::test(start_paused = true)]
async fn all_agents_together_have_a_bound_and_what_is_over_makes_room() {
    let ledger = Ledger::in_memory();
    for n in 0..64 {
        asked(&ledger, wish(&format!("r{}", n / 16), n)).await;
    }
    let past = ledger.approvals().ask(wish("r9", 999)).await;
    assert!(matches!(past, Err(NotYet::TooMany { most: MAX_PENDING_OF_AGENT, .. })), "{past:?}");
    assert_eq!(ledger.approvals().pending(), [(ToolName::new("pay").expect("name"), 64)]);
    tokio::time::advance(TTL).await;
    assert!(ledger.approvals().pending().is_empty(), "time is over though nobody swept");
    assert_eq!(ledger.approvals().sweep().len(), 64, "each is told once");
    assert_eq!(ledger.approvals().sweep().len(), 0);
    asked(&ledger, wish("r9", 999)).await;
    assert_eq!(ledger.approvals().all().len(), 65, "what is over is shown for a while");
    tokio::time::advance(SHOWN).await;
    ledger.approvals().sweep();
    // The last one ended unanswered in the meantime, and is shown from there on.
    assert_eq!(ledger.approvals().all().len(), 1);
    tokio::time::advance(SHOWN).await;
    ledger.approvals().sweep();
    assert!(ledger.approvals().all().is_empty());
}
