//! How a child begins, and when it may begin again.

use std::sync::Arc;
use std::time::Duration;

use super::super::Fault;
use super::support::{SOON, call, lab, lab_of, until};
use crate::backends::classify::{self, Promises};
use crate::backends::mcp::link::Lost;
use crate::call::Effect;
use crate::policy::snapshot::{Child, EnvValue, Secret};

/// The stdio half of `probe_falls_back_only_on_proof`.
#[tokio::test]
async fn probe_falls_back_only_on_proof_over_stdio() {
    for (how, modern) in [
        ("discover=-32601", false),
        ("discover=-32602", false),
        ("discover=null", false),
        ("discover=exit", false),
        ("discover=silent", false),
        ("discover=-32022", true),
    ] {
        let lab = lab(&[how]);
        let link = lab.link();
        let met = link.open().await;
        let heard = lab.lines("heard");
        if modern {
            // It speaks another modern revision alone: there is nothing to fall back to.
            assert!(met.is_err(), "{how}: {met:?}");
            assert_eq!(heard, ["server/discover"], "{how}");
        } else {
            assert_eq!(met.expect("legacy").revision.as_str(), "2025-11-25", "{how}");
            let first: Vec<&str> = heard.iter().map(String::as_str).take(2).collect();
            assert_eq!(first, ["server/discover", "initialize"], "{how}");
        }
        assert!(!heard.contains(&"tools/call".to_owned()), "no tool is run by probing");
        link.close();
        lab.rest().await;
    }
}

#[tokio::test]
async fn a_slow_child_is_met_by_whichever_question_it_answers_first() {
    let lab = lab(&["discover=late"]);
    let link = lab.link();
    let met = link.open().await.expect("its late answer");
    assert_eq!(met.revision.as_str(), "2026-07-28");
    assert_eq!(lab.lines("heard"), ["server/discover", "initialize"]);
    assert_eq!(lab.lines("started").len(), 1, "it was not started again");
    link.close();
    lab.rest().await;
}

#[tokio::test]
async fn the_era_is_asked_once_and_used_again_after_a_restart() {
    let lab = lab(&[]);
    let link = lab.link();
    call(&link, "echo", "").await.expect("it runs");
    drop(call(&link, "die_before", "").await);
    call(&link, "echo", "").await.expect("it runs again");
    let probes = lab.lines("heard").iter().filter(|m| *m == "server/discover").count();
    assert_eq!((probes, lab.lines("started").len()), (1, 2));
    link.close();
    lab.rest().await;
}

#[tokio::test]
async fn a_child_that_keeps_ending_is_down_after_five_restarts() {
    let lab = lab(&[]);
    let link = lab.link();
    let down = async {
        loop {
            match call(&link, "die_after", "x").await {
                Err(Lost::ChildGone { written: true }) => {}
                Err(Lost::Unusable(why)) if why.contains("too often") => return,
                // Not before its time: refused at once.
                Err(Lost::Unusable(why)) => {
                    assert!(why.contains("may be started again in"), "{why}");
                    super::support::pause(Duration::from_millis(100)).await;
                }
                other => panic!("{other:?}"),
            }
        }
    };
    tokio::time::timeout(SOON, down).await.expect("it is down");
    assert_eq!(lab.lines("effects").len(), 6, "one start and five restarts");
    link.close();
    lab.rest().await;
}

#[tokio::test]
async fn a_missing_secret_keeps_the_child_from_starting() {
    let folder = tempfile::tempdir().expect("a folder");
    let secret = EnvValue::Secret(Secret { origin: "env: KID_TOKEN".into(), value: None });
    let child = Child {
        argv: vec!["/usr/bin/env".into(), "touch".into(), "started".into()],
        env: [("TOKEN".to_owned(), secret)].into(),
        cwd: folder.path().to_owned(),
        children: 1,
    };
    let lab = lab_of(&child, folder);
    let link = lab.link();
    let lost = call(&link, "echo", "").await.expect_err("it does not start");
    let promises = Promises { effect: Effect::Write, not_executed_on: &[], unknown_on: &[] };
    let failed = classify::mcp::lost(lost, promises);
    assert_eq!(failed.code.as_str(), "credential_unavailable");
    assert!(failed.evidence.is_some(), "{failed:?}");
    assert!(!lab.folder.path().join("started").exists());
    link.close();
    lab.rest().await;
}

#[tokio::test]
async fn a_program_that_is_not_there_is_told_by_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let argv = vec!["no-such-program-here".to_owned()];
    let child = Child { argv, env: [].into(), cwd: folder.path().to_owned(), children: 1 };
    let lab = lab_of(&child, folder);
    let link = lab.link();
    let lost = call(&link, "echo", "").await.expect_err("it does not start");
    assert!(lost.to_string().contains("no-such-program-here"), "{lost}");
    link.close();
    lab.rest().await;
}

#[tokio::test]
async fn no_more_children_than_the_policy_allows_and_a_place_is_waited_for_where_one_leaves() {
    let lab = lab(&[]);
    let links: Vec<_> = (0..5).map(|_| lab.link()).collect();
    let (last, first) = links.split_last().expect("five");
    for link in first {
        call(link, "echo", "").await.expect("a place");
    }
    assert!(matches!(call(last, "echo", "").await, Err(Lost::Busy)));
    assert_eq!(lab.alive().len(), 4);
    first.iter().for_each(|link| drop(link.0.lock()));
    links.iter().take(1).for_each(super::super::ChildLink::close);
    call(last, "echo", "").await.expect("a place that became free");
    assert!(lab.alive().len() <= 4);
    links.iter().for_each(super::super::ChildLink::close);
    lab.rest().await;
}

#[tokio::test]
async fn many_callers_start_one_child() {
    let lab = lab(&[]);
    let link = lab.link();
    let calls = (0..16).map(|_| {
        let link = link.clone();
        tokio::spawn(async move { call(&link, "count", "").await })
    });
    let mut counts: Vec<String> = Vec::new();
    for one in calls.collect::<Vec<_>>() {
        counts.push(one.await.expect("no panic").expect("an answer"));
    }
    counts.sort_by_key(|count| count.parse::<u32>().expect("a number"));
    assert_eq!(counts, (1..=16).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(lab.lines("started").len(), 1);
    link.close();
    lab.rest().await;
}

#[tokio::test]
async fn a_caller_that_gives_up_does_not_stop_the_start() {
    let lab = lab(&["discover=silent"]);
    let link = lab.link();
    let given_up = tokio::time::timeout(Duration::from_millis(50), link.open()).await;
    assert!(given_up.is_err());
    until("the session", || lab.lines("heard").contains(&"notifications/initialized".to_owned()))
        .await;
    assert_eq!(lab.lines("started").len(), 1);
    link.close();
    lab.rest().await;
}

#[test]
fn what_keeps_a_child_from_starting_sent_nothing() {
    let faults = [Fault::Busy, Fault::NoCredential(Arc::from("x")), Fault::Unusable("y".into())];
    for fault in faults {
        let promises = Promises { effect: Effect::Write, not_executed_on: &[], unknown_on: &[] };
        let failed = classify::mcp::lost(fault.clone().into(), promises);
        assert_eq!(failed.delivery, crate::call::Delivery::NotSent, "{fault:?}");
        assert!(failed.evidence.is_some(), "{fault:?}");
    }
}
