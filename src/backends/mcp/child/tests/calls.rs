//! Calls: what goes in, what comes back, and what is known when the child is gone.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::pending::MAX_PENDING;
use super::support::{Call, Ear, call, lab, text_of, until};
use crate::backends::mcp::link::{Lost, Reply};
use crate::call::send_gate;

#[tokio::test]
async fn both_eras_answer_and_a_modern_request_says_who_speaks() {
    for era in ["era=legacy", "era=modern"] {
        let lab = lab(&[era]);
        let link = lab.link();
        assert_eq!(call(&link, "echo", "zwölf\n\"x\"").await.expect("an answer"), "zwölf\n\"x\"");
        let heard = lab.lines("heard");
        let session_begins = heard.iter().any(|method| method == "initialize");
        assert_eq!(session_begins, era == "era=legacy", "{heard:?}");
        link.close();
        lab.rest().await;
    }
}

#[tokio::test]
async fn the_environment_is_the_policys_and_no_shell_reads_the_arguments() {
    let lab = lab(&["$(touch pwned)", "a b;c", "*", "--", "-x"]);
    let link = lab.link();
    let told = call(&link, "environment", "").await.expect("an answer");
    let limits = crate::strict_json::Limits::answer(told.len());
    let told: Value = crate::strict_json::parse(told.as_bytes(), limits).expect("JSON");
    let names: Vec<&String> = told["env"].as_object().expect("a map").keys().collect();
    // The interpreter sets the second by itself where no locale is given.
    assert!(names.iter().all(|name| ["KID", "LC_CTYPE"].contains(&name.as_str())), "{names:?}");
    let argv = told["argv"].as_array().expect("a list");
    assert_eq!(
        argv[3..],
        [json!("$(touch pwned)"), json!("a b;c"), json!("*"), json!("--"), json!("-x")]
    );
    let folder = lab.folder.path().canonicalize().expect("a folder");
    assert_eq!(told["cwd"], json!(folder));
    link.close();
    lab.rest().await;
}

#[tokio::test]
async fn bb_m18_noise_is_skipped_and_an_endless_line_is_bounded() {
    let lab = lab(&["banner"]);
    let link = lab.link();
    assert_eq!(call(&link, "echo", "a").await.expect("an answer"), "a");
    assert_eq!(call(&link, "long", "10485760").await.expect("an answer"), "10485760");
    let scrape = lab.metrics.encode();
    // Server listening, INFO ready, half JSON, a control byte's line, [1]; and ten million letters.
    let noise = scrape.lines().find(|line| line.contains(r#"{reason="noise"}"#));
    assert!(noise.is_some_and(|line| line.ends_with(" 6")), "{noise:?}");
    let ended = call(&link, "endless", "").await;
    assert!(matches!(ended, Err(Lost::ChildGone { written: true })), "{ended:?}");
    assert_eq!(call(&link, "echo", "b").await.expect("started again"), "b");
    link.close();
    lab.rest().await;
}

#[tokio::test]
async fn bb_m19_a_megabyte_of_stderr_stops_nothing_and_its_end_is_kept() {
    let lab = lab(&["stderr=1048576"]);
    let link = lab.link();
    assert_eq!(call(&link, "echo", "a").await.expect("an answer"), "a");
    let Ok(open) = link.0.current() else { panic!("it runs") };
    until("its last words", || open.process.tail().last_line().as_deref() == Some("last words"))
        .await;
    assert!(open.process.tail().text().len() <= super::super::tail::KEPT);
    link.close();
    drop(open);
    lab.rest().await;
}

#[tokio::test]
async fn in_flight_calls_hear_at_once_when_the_child_ends() {
    let lab = lab(&[]);
    let link = lab.link();
    call(&link, "echo", "").await.expect("it runs");
    let (slow, began) = (call(&link, "slow", "waits"), Instant::now());
    let both = tokio::join!(slow, call(&link, "die_after", "x"));
    assert!(matches!(both.0, Err(Lost::ChildGone { written: true })), "{both:?}");
    assert!(matches!(both.1, Err(Lost::ChildGone { written: true })), "{both:?}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(lab.lines("effects"), ["slow waits", "die_after x"]);
    let before = call(&link, "die_before", "y").await;
    assert!(matches!(before, Err(Lost::ChildGone { written: true })), "{before:?}");
    let half = call(&link, "half", "z").await;
    assert!(matches!(half, Err(Lost::ChildGone { written: true })), "{half:?}");
    assert_eq!(lab.lines("effects").len(), 3, "nothing is sent a second time");
    link.close();
    lab.rest().await;
}

#[tokio::test]
async fn a_child_that_ends_before_the_gate_opens_got_no_byte() {
    let lab = lab(&[]);
    let link = lab.link();
    call(&link, "echo", "").await.expect("it runs");
    let (gate, keeper) = send_gate();
    let write = Call { gate: Some(gate), ..Call::default() };
    let keeping = async {
        assert!(keeper.asked().await);
        let ended = call(&link, "die_before", "").await;
        assert!(matches!(ended, Err(Lost::ChildGone { written: true })), "{ended:?}");
        assert!(keeper.open());
    };
    let (write, ()) = tokio::join!(write.of(&link, "effect", "never"), keeping);
    assert!(matches!(write, Err(Lost::ChildGone { written: false })), "{write:?}");
    assert_eq!(lab.lines("effects"), Vec::<String>::new());
    link.close();
    lab.rest().await;
}

#[tokio::test]
async fn cancellation_names_our_id_and_the_answer_is_still_heard() {
    let lab = lab(&[]);
    let link = lab.link();
    call(&link, "echo", "").await.expect("it runs");
    let slow = Call::default();
    let cancelled = slow.cancelled.clone();
    let taking_back = async {
        until("the call", || lab.lines("effects").contains(&"slow a".to_owned())).await;
        cancelled.cancel();
    };
    let (answer, ()) = tokio::join!(slow.of(&link, "slow", "a"), taking_back);
    assert_eq!(text_of(&answer.expect("an answer")), "taken back");
    // A read that nobody waits for is taken back too; its late answer meets nobody.
    let dropped = tokio::time::timeout(Duration::from_millis(300), call(&link, "slow", "b")).await;
    assert!(dropped.is_err());
    let told = || lab.lines("heard").iter().filter(|m| *m == "notifications/cancelled").count();
    until("the second cancellation", || told() == 2).await;
    assert_eq!(call(&link, "echo", "c").await.expect("it lives"), "c");
    link.close();
    lab.rest().await;
}

#[tokio::test]
async fn a_write_that_is_left_is_not_taken_back() {
    let lab = lab(&[]);
    let link = lab.link();
    call(&link, "echo", "").await.expect("it runs");
    let (gate, keeper) = send_gate();
    let write = Call { gate: Some(gate), ..Call::default() };
    let left = tokio::time::timeout(Duration::from_millis(500), async {
        tokio::join!(write.of(&link, "slow", "w"), async {
            assert!(keeper.asked().await && keeper.open());
        })
    });
    assert!(left.await.is_err());
    assert_eq!(call(&link, "echo", "c").await.expect("it lives"), "c");
    assert!(!lab.lines("heard").contains(&"notifications/cancelled".to_owned()));
    link.close();
    lab.rest().await;
}

#[tokio::test]
async fn a_child_that_reads_no_more_is_ended_when_a_call_gives_up_and_the_queue_refuses() {
    let lab = lab(&[]);
    let link = lab.link();
    call(&link, "stop_reading", "").await.expect("its last answer");
    let large = "x".repeat(300_000);
    let mut calls: Vec<_> =
        (0..MAX_PENDING + 1).map(|_| Box::pin(call(&link, "echo", &large))).collect();
    let refused = tokio::time::timeout(super::support::SOON, async {
        for one in &mut calls {
            tokio::select! {
                biased;
                ended = one => return ended,
                () = tokio::task::yield_now() => {}
            }
        }
        panic!("nothing was refused");
    });
    assert!(matches!(refused.await, Ok(Err(Lost::Busy))));
    drop(calls);
    until("its end", || lab.alive().is_empty()).await;
    assert_eq!(call(&link, "echo", "again").await.expect("started again"), "again");
    link.close();
    lab.rest().await;
}

#[tokio::test]
async fn an_answer_over_its_limit_costs_that_call_alone() {
    let lab = lab(&[]);
    lab.nursery.renew(1000);
    let link = lab.link();
    let long = call(&link, "echo", &"x".repeat(2000)).await;
    assert!(matches!(long, Err(Lost::TooLarge(1000))), "{long:?}");
    assert_eq!(call(&link, "echo", "short").await.expect("it lives"), "short");
    link.close();
    lab.rest().await;
}

#[tokio::test]
async fn progress_goes_to_the_call_that_asked_and_a_question_to_the_only_one() {
    let lab = lab(&[]);
    let fallback = Arc::new(Ear::default());
    let link = lab.link_heard_by(fallback.clone());
    call(&link, "echo", "").await.expect("it runs");
    let (one, other) = (Arc::new(Ear::default()), Arc::new(Ear::default()));
    let first = Call { ear: one.clone(), token: Some(11), ..Call::default() };
    let second = Call { ear: other.clone(), token: Some(12), ..Call::default() };
    let (a, b) = tokio::join!(first.of(&link, "progress", "a"), second.of(&link, "echo", "b"));
    assert_eq!((text_of(&a.expect("a")), text_of(&b.expect("b"))), ("a".into(), "b".into()));
    assert_eq!(one.told(), ["notifications/progress"]);
    assert_eq!((other.told(), fallback.told()), (vec![], vec![]));

    let asked = Arc::new(Ear { answer: Some(json!({"action": "accept"})), ..Ear::default() });
    let asking = Call { ear: asked.clone(), ..Call::default() };
    let told = asking.of(&link, "ask", "elicitation/create").await.expect("an answer");
    assert_eq!(text_of(&told), r#"["q\u00e9", {"action": "accept"}]"#);
    let ping = call(&link, "ask", "ping").await.expect("an answer");
    assert_eq!(ping, r#"["q\u00e9", {}]"#);
    // With two calls open it could be the other's: nobody is asked.
    let waiting = call(&link, "slow", "w");
    let asking = Call { ear: asked, ..Call::default() };
    tokio::select! {
        _ = waiting => panic!("it waits"),
        told = async {
            until("the call", || lab.lines("effects").contains(&"slow w".to_owned())).await;
            asking.of(&link, "ask", "elicitation/create").await
        } => assert!(text_of(&told.expect("an answer")).contains("-32601")),
    }
    link.close();
    lab.rest().await;
}

#[tokio::test]
async fn an_error_without_an_id_is_no_answer_to_a_call() {
    let lab = lab(&["discover=null"]);
    let link = lab.link();
    let answer = Call::default().of(&link, "echo", "a").await;
    assert!(matches!(answer, Ok(Reply::Result(_))), "{answer:?}");
    link.close();
    lab.rest().await;
}
