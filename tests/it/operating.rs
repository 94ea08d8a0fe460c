//! What machines do to a gateway: disks that are full, files that are no files, signals at a bad moment.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::process::{PROGRAM, filled, verb};
use crate::support::{Fixture, Form, Process, Reply, ScriptedTool, wait_for};

const SOON: Duration = Duration::from_secs(30);
const A17: &str = r#"{"order_id":"A17"}"#;

/// A gateway run by a shell that has prepared something first; the shell becomes the gateway.
async fn started_by(prepared: &str, policy: &str, more: &[&str]) -> Process {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, filled(folder.path(), policy)).expect("written");
    Process::start_at(folder, &file, more, &["sh", "-c", prepared, "sh"]).await
}

#[tokio::test]
async fn diagnostics_that_cannot_be_written_end_nothing() {
    let tool = ScriptedTool::start().await;
    let policy = Fixture::new().text(&tool.url());
    let mut process =
        started_by(r#"exec "$@" 2>/dev/full"#, &policy, &["--log-level", "trace"]).await;
    process.swap("no policy");
    let refused = async || {
        process.metrics().await.value("checkrein_policy_last_reload_successful", &[]) == 0.0
    };
    wait_for("the refusal", SOON, refused).await;
    let answer = process.agent(Form::OpenaiChat, "r").call("lookup_order", "c", A17).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    process.signal("TERM");
    assert_eq!(process.exit().await.code(), Some(0));
}

#[test]
fn a_pipe_is_no_policy_no_schema_and_no_secret_and_nobody_waits_for_its_writer() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let good = filled(folder.path(), &Fixture::new().text("http://127.0.0.1:9"));
    let token = folder.path().join("token_a").display().to_string();
    let secret = folder.path().join("secret.yaml");
    std::fs::write(&secret, good.replace(&token, &pipe.display().to_string())).expect("written");
    for (file, code) in [(&pipe, 2), (&secret, 1)] {
        let (got, out, err) = verb(&["check", &file.display().to_string()]);
        assert_eq!(got, code, "{out} {err}");
        assert!(format!("{out}{err}").contains("not a regular file"), "{out} {err}");
    }
}

#[test]
fn a_start_that_hangs_can_be_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.yaml");
    let text = filled(folder.path(), &Fixture::new().text("http://127.0.0.1:9"));
    std::fs::write(&file, text).expect("written");
    let pipe = folder.path().join("pipe"); // nobody reads it, so opening it for writing waits
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let any = "127.0.0.1:0";
    let mut child = Command::new(PROGRAM)
        .args(["run", "--store", "memory", "--listen", any, "--health", any, "--audit"])
        .arg(format!("file:{}", pipe.display()))
        .arg("--policy")
        .arg(&file)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let status = format!("/proc/{}/status", child.id());
    let handled = || {
        // A signal before the handler stands ends any program; SigCgt is a mask, SIGTERM its bit 14.
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
        u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask >> 14 & 1 == 1)
    };
    let end = tokio::time::Instant::now() + SOON;
    while !handled() {
        assert!(tokio::time::Instant::now() < end, "no handler within {SOON:?}");
        std::thread::yield_now();
    }
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs").success());
    let code = loop {
        if let Some(status) = child.try_wait().expect("our child") {
            break status.code();
        }
        assert!(tokio::time::Instant::now() < end || child.kill().is_err(), "it hangs");
        std::thread::yield_now();
    };
    assert_eq!(code, Some(0));
}

#[tokio::test]
async fn a_refusal_names_the_layer_that_refused_never_the_list_that_had_allowed_it() {
    let tool = ScriptedTool::start().await;
    tool.script("/create", [Reply::ApplyAfter(Duration::from_secs(2))]);
    let dry = "  default:\n    mode: dry_run\n    allow: [lookup_order";
    let order = r#"{"order_ref":"D1","sku":"A","qty":1}"#;
    for (policy, calls, code, rule) in [
        (Fixture::new(), [("lookup_order", "{}")].as_slice(), "invalid_arguments", "arguments"),
        (Fixture::new(), &[("lookup_order", "junk")], "invalid_arguments", "arguments"),
        (
            Fixture::new().with("  default:\n    allow: [lookup_order", dry),
            &[("lookup_order", A17)],
            "dry_run",
            "dry_run",
        ),
        (
            Fixture::new(),
            &[("create_order", order), ("create_order", order)],
            "review_required",
            "ledger",
        ),
    ] {
        let gateway = policy.start(&tool).await;
        for (n, (tool, arguments)) in calls.iter().enumerate() {
            let agent = gateway.agent(Form::OpenaiChat, &format!("r{n}"));
            agent.call(tool, "c", arguments).await;
        }
        let refused = || gateway.records().into_iter().find(|r| r["decision"] == "deny");
        wait_for("the record", SOON, async || refused().is_some()).await;
        let record = refused().expect("just seen");
        assert_eq!((&record["outcome"], &record["rule"]), (&code.into(), &rule.into()), "{record}");
    }
}
