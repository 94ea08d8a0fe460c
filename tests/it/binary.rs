//! The whole program: start, reload, drain, exit codes.

use std::os::unix::fs::symlink;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::process::{filled, verb};
use crate::support::{Fixture, Form, Process, Reply, ScriptedTool, http, wait_for};

const SOON: Duration = Duration::from_secs(30);
const A17: &str = r#"{"order_id":"A17"}"#;

#[test]
fn bb_k02_without_a_valid_policy_the_gateway_does_not_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.yaml");
    let path = file.display().to_string();
    for (text, says) in [
        ("", "CR0004"),
        ("\tx: 1", "CR0001"),
        ("apiVersion: checkrein/v9\nkind: Policy\n", "CR1001"),
    ] {
        std::fs::write(&file, text).expect("written");
        let (code, out, err) = verb(&[
            "run",
            "--policy",
            &path,
            "--listen",
            "127.0.0.1:0",
            "--health",
            "127.0.0.1:0",
            "--store",
            "memory",
        ]);
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        assert!(err.contains(says) && err.contains("policy.yaml"), "{err}");
    }
    std::fs::remove_file(&file).expect("removed");
    let (code, _, err) = verb(&[
        "run",
        "--policy",
        &path,
        "--listen",
        "127.0.0.1:0",
        "--health",
        "127.0.0.1:0",
        "--store",
        "memory",
    ]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("policy.yaml"));
}

#[test]
fn exit_codes_are_those_of_the_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).expect("written");
        file.display().to_string()
    };
    let good =
        write("good.yaml", &filled(folder.path(), &Fixture::new().text("http://127.0.0.1:9")));
    let bad = write("bad.yaml", "apiVersion: checkrein/v1\nkind: Policy\nalow: [x]\n");
    for (words, code) in [
        (vec!["check", good.as_str()], 0),
        (vec!["check", bad.as_str()], 1),
        (vec!["check", "/nowhere/policy.yaml"], 2),
        (vec!["check"], 2),
        (vec!["no-such-verb"], 2),
        (vec!["version"], 0),
        (vec!["schema", "policy"], 0),
        (vec!["probe", "live", "--health", "127.0.0.1:1"], 1),
    ] {
        let (got, out, err) = verb(&words);
        assert_eq!(got, code, "{words:?}: {out} {err}");
    }
}

#[tokio::test]
async fn bb_k01_every_swap_of_a_config_map_is_seen() {
    let tool = ScriptedTool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let version = |n: usize| {
        let dir = folder.path().join(format!("..ts{n}"));
        std::fs::create_dir(&dir).expect("made");
        let text =
            Fixture::new().with("name: cases", &format!("name: version-{n}")).text(&tool.url());
        std::fs::write(dir.join("policy.yaml"), filled(folder.path(), &text)).expect("written");
        let link = folder.path().join("..data_tmp");
        symlink(format!("..ts{n}"), &link).expect("linked");
        std::fs::rename(&link, folder.path().join("..data")).expect("swapped");
    };
    version(1);
    symlink("..data/policy.yaml", folder.path().join("policy.yaml")).expect("linked");
    let root = folder.path().to_path_buf();
    let process = {
        let inner = tempfile::tempdir().expect("a folder");
        Process::start_at(inner, &root.join("policy.yaml"), &["--policy-poll", "100ms"], &[]).await
    };
    for n in 2..=4 {
        version(n);
        std::fs::remove_dir_all(root.join(format!("..ts{}", n - 1))).expect("removed");
        let live = async || process.metrics().await.0.contains(&format!("policy=\"version-{n}\""));
        wait_for("the new version", Duration::from_secs(5), live).await;
    }
}

#[tokio::test]
async fn bb_d01_within_the_delay_calls_are_served_and_after_it_those_in_flight_are_still_answered()
{
    let tool = ScriptedTool::start().await;
    let policy = Fixture::new()
        .with("first_byte: 500ms, total: 1s", "first_byte: 7s, total: 8s")
        .with("deadline: 2s", "deadline: 9s");
    let mut process = Process::start(
        &policy.text(&tool.url()),
        &["--drain-delay", "2s", "--drain-timeout", "20s"],
    )
    .await;
    tool.script("/create", [Reply::ApplyAfter(Duration::from_secs(5))]);
    let calls: Vec<_> = (0..8)
        .map(|n| {
            let agent = process.agent(Form::OpenaiChat, "r");
            let write = format!(r#"{{"order_ref":"D{n}","sku":"A","qty":1}}"#);
            tokio::spawn(async move { agent.call("create_order", &format!("c{n}"), &write).await })
        })
        .collect();
    wait_for("all calls at the tool", SOON, async || tool.hits("/create") == 8).await;
    process.signal("TERM");
    wait_for("readiness red", SOON, async || {
        http::get(process.health, "/ready").await.status == 503
    })
    .await;
    assert_eq!(process.metrics().await.value("checkrein_draining", &[]), 1.0);
    // The agent's own last calls come after SIGTERM. Each in a run of its own: no budget and no fuse ends them.
    let ask = async |n: usize| {
        process.agent(Form::OpenaiChat, &format!("last-{n}")).call("list_regions", "c", "{}").await
    };
    let last = ask(0).await;
    assert_eq!(last.status, 200, "{}", last.text());
    let (mut n, mut refused) = (0, None);
    wait_for("the end of the delay", SOON, async || {
        n += 1;
        refused = Some(ask(n).await).filter(|answer| answer.status != 200);
        refused.is_some()
    })
    .await;
    let refused = refused.expect("just seen");
    assert_eq!((refused.status, refused.json()["error"].as_str()), (503, Some("draining")));
    assert!(refused.header("retry-after").is_some());
    for call in calls {
        let answer = call.await.expect("no panic");
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!(process.exit().await.code(), Some(0), "{}", process.log());
}

#[tokio::test]
async fn bb_n10_sockets_come_back_and_running_out_of_them_is_survived() {
    let tool = ScriptedTool::start().await;
    tool.script("/", [Reply::OkThenCloseSilently]);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.yaml");
    let budgets =
        "calls: 100000, failures: 100000, argument_bytes: unlimited, result_bytes: unlimited";
    let policy = Fixture::new()
        .with("wall_clock: 10s", "wall_clock: 10m")
        .with("wall_clock: 10m", &format!("wall_clock: 10m, {budgets}"));
    std::fs::write(&file, filled(folder.path(), &policy.text(&tool.url()))).expect("written");
    let process =
        Process::start_at(folder, &file, &["--workers", "1"], &["prlimit", "--nofile=256"]).await;
    let base = process.open_files();
    let agent = process.agent(Form::OpenaiChat, "r");
    for n in 0..500 {
        let answer =
            agent.call("lookup_order", &format!("c{n}"), &format!(r#"{{"order_id":"{n}"}}"#)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    wait_for("open files back to where they were", SOON, async || process.open_files() <= base + 8)
        .await;
    // 300 idle agents are more than 256 files hold.
    let mut idle = Vec::new();
    for _ in 0..300 {
        let opened = tokio::time::timeout(
            Duration::from_secs(2),
            tokio::net::TcpStream::connect(process.data),
        )
        .await;
        if let Ok(Ok(stream)) = opened {
            idle.push(stream);
        }
    }
    assert!(idle.len() > 200);
    drop(idle);
    wait_for("service again", SOON, async || {
        http::get(process.health, "/live").await.status == 200
    })
    .await;
    let answer = agent.call("lookup_order", "after", A17).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    wait_for("open files back to where they were", SOON, async || process.open_files() <= base + 8)
        .await;
}

#[tokio::test]
async fn a_unix_socket_serves_and_a_stale_one_is_replaced() {
    let tool = ScriptedTool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("gate.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("a stale socket"));
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, filled(folder.path(), &Fixture::new().text(&tool.url())))
        .expect("written");
    let listen = format!("unix:{}", socket.display());
    let health = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|l| l.local_addr())
        .expect("a free port")
        .to_string();
    let mut child = std::process::Command::new(crate::support::process::PROGRAM)
        .args([
            "run",
            "--policy",
            &file.display().to_string(),
            "--listen",
            &listen,
            "--health",
            &health,
            "--audit",
            "none",
            "--store",
            "memory",
        ])
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("starts");
    let ask = async || {
        let mut stream = tokio::net::UnixStream::connect(&socket).await.ok()?;
        stream
            .write_all(&http::bytes_of("POST", "/v1/tools/lookup_order", &[], A17.as_bytes()))
            .await
            .ok()?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.ok()?;
        (!bytes.is_empty()).then(|| http::parse(&bytes))
    };
    wait_for("an answer over the socket", SOON, async || {
        ask().await.is_some_and(|a| a.status == 200)
    })
    .await;
    child.kill().expect("our own child");
    child.wait().expect("ended");
}

#[test]
fn the_demo_shows_everything_and_exits_0() {
    let (code, out, err) = verb(&["demo", "--once"]);
    assert_eq!(code, 0, "{out}\n{err}");
    assert!(out.lines().any(|line| line == "done 订单 A17 正在运输中。"), "{out}");
    for shown in [
        "invalid_arguments",
        "unknown_tool",
        "2 attempts",
        "circuit_open",
        "circuit closed again",
        "outcome_unknown",
        "skipped_pending_review",
        "review_required",
        "notices that really went out: 1",
    ] {
        assert!(out.contains(shown), "{shown} is not in: {out}");
    }
    let chapter = out.find("6. A write").map(|at| out[at..].trim_end()).expect("a last chapter");
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"));
    assert!(readme.expect("README.md").contains(chapter), "README.md shows another: {chapter}");
}
