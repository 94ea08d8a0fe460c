//! How a child ends: whole, whatever it started, whoever ended first.

use std::process::Stdio;
use std::time::Duration;

use tokio::time::Instant;

use super::super::ChildLink;
use super::support::{Lab, SOON, call, lab, until};
use crate::backends::mcp::link::Lost;

/// What the longest end takes: five seconds of each kind of patience, and a little.
const WHOLE: Duration = Duration::from_millis(11_500);

async fn ended(lab: &Lab, link: &ChildLink, within: Duration) {
    let began = Instant::now();
    link.close();
    lab.rest().await;
    assert!(began.elapsed() < within, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_child_that_ends_with_its_stdin_is_not_signalled() {
    let lab = lab(&[]);
    let link = lab.link();
    call(&link, "echo", "").await.expect("it runs");
    ended(&lab, &link, Duration::from_secs(4)).await;
    assert_eq!(lab.lines("started").last().map(String::as_str), Some("bye"));
}

/// The first half of `group_is_killed`: it ignores stdin and SIGTERM, and so do its grandchildren, one of which has
/// left the group.
#[tokio::test]
async fn group_is_killed() {
    for words in [["deaf", "grandchild"], ["deaf", "grandchild=away"]] {
        let lab = lab(&words);
        let link = lab.link();
        call(&link, "echo", "").await.expect("it runs");
        assert_eq!(lab.alive().len(), 2);
        ended(&lab, &link, WHOLE).await;
    }
}

#[tokio::test]
async fn what_a_child_leaves_behind_goes_with_it() {
    let lab = lab(&["grandchild"]);
    let link = lab.link();
    call(&link, "echo", "").await.expect("it runs");
    assert_eq!(lab.alive().len(), 2);
    let (gone, began) = (call(&link, "die_after", "").await, Instant::now());
    assert!(matches!(gone, Err(Lost::ChildGone { written: true })), "{gone:?}");
    until("the end of what it left", || lab.alive().is_empty()).await;
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    link.close();
    lab.rest().await;
}

/// The second half of `group_is_killed`: the kernel closes the gateway's ends of the pipes, however it died.
#[tokio::test]
async fn group_is_killed_when_the_gateway_is_gone() {
    let lab = lab(&["deaf", "grandchild"]);
    let mut command = lab.nursery.command().expect("a command");
    let mut between = command.stdin(Stdio::piped()).spawn().expect("it starts");
    until("both", || lab.alive().len() == 2).await;
    let began = Instant::now();
    drop((between.stdin.take(), between.stdout.take(), between.stderr.take()));
    let status = tokio::time::timeout(SOON, between.wait()).await.expect("it ends");
    assert!(status.is_ok() && began.elapsed() < WHOLE, "{status:?} {:?}", began.elapsed());
    assert_eq!(lab.alive(), Vec::<String>::new());
}

#[tokio::test]
async fn what_stands_between_may_itself_be_killed() {
    let lab = lab(&["deaf", "grandchild"]);
    let link = lab.link();
    call(&link, "echo", "").await.expect("it runs");
    let server = lab.lines("started").first().cloned().expect("its number");
    let stat = std::fs::read_to_string(format!("/proc/{server}/stat")).expect("it lives");
    let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(1));
    let parent = parent.and_then(|pid| pid.parse().ok()).and_then(rustix::process::Pid::from_raw);
    let killed =
        rustix::process::kill_process(parent.expect("a parent"), rustix::process::Signal::KILL);
    assert!(killed.is_ok());
    until("the end of its group", || lab.alive().is_empty()).await;
    assert_eq!(call(&link, "echo", "b").await.expect("started again"), "b");
    ended(&lab, &link, WHOLE).await;
}

#[tokio::test]
async fn a_child_that_closes_its_stdout_is_over() {
    let lab = lab(&[]);
    let link = lab.link();
    assert_eq!(call(&link, "close", "").await.expect("its last answer"), "bye");
    until(
        "its end is seen",
        || matches!(link.0.lock().now, super::super::Now::Open(ref open) if !open.process.serves()),
    )
    .await;
    assert_eq!(call(&link, "echo", "b").await.expect("started again"), "b");
    link.close();
    lab.rest().await;
}

#[tokio::test]
async fn calls_in_flight_end_before_a_child_that_is_no_longer_wanted() {
    let lab = lab(&[]);
    let link = lab.link();
    call(&link, "echo", "").await.expect("it runs");
    let slow = super::support::Call::default();
    let cancelled = slow.cancelled.clone();
    let closing = async {
        until("the call", || !lab.lines("effects").is_empty()).await;
        link.close();
        cancelled.cancel();
    };
    let waiting = tokio::join!(async { slow.of(&link, "slow", "a").await }, closing).0;
    assert_eq!(super::support::text_of(&waiting.expect("an answer")), "taken back");
    lab.rest().await;
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("our descriptors").count()
}

/// 1,000 sessions, used or not, dropped without care, a server that crashes meanwhile: nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_sessions_leave_nothing_behind() {
    let lab = lab(&[]);
    let before = open_files();
    let mut started = 0;
    for round in 0..250_u32 {
        let links: Vec<ChildLink> = (0..4).map(|_| lab.link()).collect();
        // Most are dropped before anything begins, some in the middle of it, some after a call or a crash.
        if round % 10 == 0 {
            started += 1;
            let tool = if round % 20 == 0 { "die_after" } else { "echo" };
            for link in &links {
                let call = call(link, tool, "x");
                drop(tokio::time::timeout(Duration::from_millis(u64::from(round)), call).await);
            }
        }
        links.iter().for_each(ChildLink::close);
    }
    assert_eq!(started, 25);
    lab.rest().await;
    assert!(open_files() <= before, "{} descriptors, {before} before", open_files());
    assert!(lab.tasks.is_empty());
    let ours = std::process::id().to_string();
    for entry in std::fs::read_dir("/proc").expect("processes").flatten() {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent =
            stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(1));
        assert_ne!(parent, Some(ours.as_str()), "a child is left: {stat}");
    }
}
