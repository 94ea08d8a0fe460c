//! The durable ledger in the whole program: restarts, a disk that fails, a folder that is not its own.

mod clock;
mod disk;
mod folder;

use std::path::Path;
use std::time::Duration;

use crate::support::process::{PROGRAM, filled};
use crate::support::{Fixture, Form, Process, Reply, ScriptedTool, wait_for};

const SOON: Duration = Duration::from_secs(30);

fn create(order: &str) -> String {
    format!(r#"{{"order_ref":"{order}","sku":"A","qty":1}}"#)
}

/// A gateway over a state folder that outlives it.
async fn start(tool: &ScriptedTool, state: &Path, wrap: &[&str]) -> Process {
    let folder = tempfile::tempdir().expect("a folder");
    let policy = folder.path().join("policy.yaml");
    let text = Fixture::new().text(&tool.url());
    std::fs::write(&policy, filled(folder.path(), &text)).expect("written");
    let state = state.display().to_string();
    Process::start_at(folder, &policy, &["--state", &state], wrap).await
}

#[tokio::test]
async fn bb_w18_what_is_known_of_writes_outlives_kill_9() {
    let tool = ScriptedTool::start().await;
    let state = tempfile::tempdir().expect("a folder");
    tool.script("/create", [Reply::Ok, Reply::ApplyThenReset, Reply::Status(422), Reply::Ok]);
    let process = start(&tool, state.path(), &[]).await;
    let agent = process.agent(Form::OpenaiChat, "r");
    let mut before = Vec::new();
    for order in ["done", "lost", "refused"] {
        before.push(agent.call("create_order", order, &create(order)).await.json());
    }
    process.signal("KILL");
    drop(process);
    let process = start(&tool, state.path(), &[]).await;
    let agent = process.agent(Form::OpenaiChat, "r");
    let again = agent.call("create_order", "done", &create("done")).await.json();
    assert_eq!((&again["replayed"], &again["result"]), (&true.into(), &before[0]["result"]));
    for call in ["lost", "another"] {
        let again = agent.call("create_order", call, &create("lost")).await.json();
        assert_eq!(again["error"], "review_required", "{again}");
    }
    let again = agent.call("create_order", "refused", &create("refused")).await.json();
    assert_eq!((&again["error"], &again["executed"]), (&before[2]["error"], &"no".into()));
    assert_eq!(tool.hits("/create"), 3, "nothing was sent again");
    let metrics = process.metrics().await;
    assert_eq!(metrics.sum("checkrein_reviews_open", &[("tool", "create_order")]), 1.0);
    assert!(metrics.value("checkrein_store_bytes", &[]) > 0.0);
    let fresh = agent.call("create_order", "x", &create("fresh")).await.json();
    assert_eq!(fresh["ok"], true, "{fresh}");
    let metrics = process.metrics().await;
    assert!(metrics.value("checkrein_journal_fsync_seconds_count", &[]) >= 2.0);
}

#[tokio::test]
async fn a_write_under_way_at_kill_9_is_unknown_after_the_restart() {
    let tool = ScriptedTool::start().await;
    let state = tempfile::tempdir().expect("a folder");
    tool.script("/create", [Reply::ApplyThenHang]);
    let process = start(&tool, state.path(), &[]).await;
    let agent = process.agent(Form::OpenaiChat, "r");
    let asking = tokio::spawn(async move {
        // The connection breaks under it.
        drop(
            tokio::spawn(async move { agent.call("create_order", "c", &create("R")).await }).await,
        );
    });
    wait_for("the write at the tool", SOON, async || tool.effects("R") == 1).await;
    process.signal("KILL");
    drop(process);
    asking.await.expect("it ended");
    let process = start(&tool, state.path(), &[]).await;
    let metrics = process.metrics().await;
    let open = metrics.sum("checkrein_reviews_open", &[("tool", "create_order")]);
    assert_eq!(open, 1.0, "before anybody asked");
    let again = process.agent(Form::OpenaiChat, "r2").call("create_order", "d", &create("R")).await;
    assert_eq!((again.status, &again.json()["error"]), (409, &"review_required".into()));
    assert_eq!((tool.hits("/create"), tool.effects("R")), (1, 1));
}

const KEYED: &str = "write: { idempotency: { mode: header, window: 1h }, fingerprint: [/order_ref]";
const ASKED: &str = "write: { status_query: { tool: lookup_order, arguments: { order_id: { from: /order_ref } }, executed_when: { pointer: /value/status, equals: in_transit }, not_executed_when: { pointer: /value/status, equals: none }, settle: 100ms }, fingerprint: [/order_ref]";

/// As `start`, with a tool that helps.
async fn start_helped(tool: &ScriptedTool, state: &Path, help: &str) -> Process {
    let folder = tempfile::tempdir().expect("a folder");
    let policy = folder.path().join("policy.yaml");
    let text = Fixture::new().with("write: { fingerprint: [/order_ref]", help).text(&tool.url());
    std::fs::write(&policy, filled(folder.path(), &text)).expect("written");
    let state = state.display().to_string();
    Process::start_at(folder, &policy, &["--state", &state], &[]).await
}

/// Asks without waiting for an answer that will not come: the gateway is killed under it.
fn ask_in_vain(process: &Process, order: &str) -> tokio::task::JoinHandle<()> {
    let (agent, order) = (process.agent(Form::OpenaiChat, "r"), order.to_owned());
    tokio::spawn(async move {
        let asking = tokio::spawn(async move {
            agent.call("create_order", "c", &create(&order)).await;
        });
        drop(asking.await);
    })
}

/// The tool knows the key: whatever number of times it is sent, it works once.
#[tokio::test]
async fn a_keyed_write_lost_at_kill_9_is_settled_by_the_same_key_when_it_is_asked_for_again() {
    let tool = ScriptedTool::start().await;
    let state = tempfile::tempdir().expect("a folder");
    let known = Reply::Full {
        apply: false,
        status: 200,
        headers: vec![("content-type", "application/json".into())],
        body: br#"{"id":7}"#.to_vec(),
    };
    tool.script("/create", [Reply::ApplyThenHang, known]);
    let process = start_helped(&tool, state.path(), KEYED).await;
    let asking = ask_in_vain(&process, "K");
    wait_for("the write at the tool", SOON, async || tool.effects("K") == 1).await;
    process.signal("KILL");
    drop(process);
    asking.await.expect("it ended");
    let process = start_helped(&tool, state.path(), KEYED).await;
    assert_eq!(tool.hits("/create"), 1, "nothing is sent again on its own");
    let open = process.metrics().await.sum("checkrein_reviews_open", &[("tool", "create_order")]);
    assert_eq!(open, 1.0);
    let agent = process.agent(Form::OpenaiChat, "r2");
    let answer = agent.call("create_order", "d", &create("K")).await.json();
    assert_eq!((&answer["ok"], &answer["value"]["id"]), (&true.into(), &7.into()), "{answer}");
    let keys: Vec<String> = tool
        .requests()
        .iter()
        .map(|request| request.header("idempotency-key").expect("a key").to_owned())
        .collect();
    assert_eq!((keys.len(), &keys[0]), (2, &keys[1]), "one key for both");
    assert_eq!((tool.hits("/create"), tool.effects("K")), (2, 1));
    let again = agent.call("create_order", "e", &create("K")).await.json();
    assert_eq!((&again["replayed"], tool.hits("/create")), (&true.into(), 2), "{again}");
    let open = process.metrics().await.sum("checkrein_reviews_open", &[("tool", "create_order")]);
    assert_eq!(open, 0.0);
}

/// As above, and the answer of the second sending is cut: what is known is told.
#[tokio::test]
async fn a_keyed_write_whose_answers_are_all_lost_is_known_as_executed_after_kill_9() {
    let tool = ScriptedTool::start().await;
    let state = tempfile::tempdir().expect("a folder");
    tool.script("/create", [Reply::ApplyThenHang, Reply::Cut { apply: false }]);
    let process = start_helped(&tool, state.path(), KEYED).await;
    let asking = ask_in_vain(&process, "K");
    wait_for("the write at the tool", SOON, async || tool.effects("K") == 1).await;
    process.signal("KILL");
    drop(process);
    asking.await.expect("it ended");
    let process = start_helped(&tool, state.path(), KEYED).await;
    let agent = process.agent(Form::OpenaiChat, "r2");
    for id in ["d", "e"] {
        let answer = agent.call("create_order", id, &create("K")).await.json();
        let told = (&answer["error"], &answer["executed"]);
        assert_eq!(told, (&"result_lost".into(), &"yes".into()), "{answer}");
    }
    // Once to learn that it happened, once to fetch the answer.
    assert_eq!((tool.hits("/create"), tool.effects("K")), (3, 1));
}

#[tokio::test]
async fn after_a_start_the_read_is_asked_about_every_unknown_write_and_nothing_is_sent() {
    for (status, told) in [("in_transit", "result_lost"), ("none", "ok")] {
        let tool = ScriptedTool::start().await;
        let state = tempfile::tempdir().expect("a folder");
        tool.script("/create", [Reply::ApplyThenHang, Reply::ApplyThenHang, Reply::Ok]);
        tool.script("/orders", [Reply::Json(format!(r#"{{"status":"{status}"}}"#))]);
        let process = start_helped(&tool, state.path(), ASKED).await;
        let asking = [ask_in_vain(&process, "Q1"), ask_in_vain(&process, "Q2")];
        wait_for("the writes at the tool", SOON, async || tool.hits("/create") == 2).await;
        process.signal("KILL");
        drop(process);
        for one in asking {
            one.await.expect("it ended");
        }
        let process = start_helped(&tool, state.path(), ASKED).await;
        let settled = async || {
            let metrics = process.metrics().await;
            let by = [("tool", "create_order"), ("by", "status_query")];
            metrics.value("checkrein_write_upgrades_total", &by) == 2.0
        };
        wait_for("both to be settled", SOON, settled).await;
        assert_eq!(tool.hits("/create"), 2, "nobody asked");
        let metrics = process.metrics().await;
        assert_eq!(metrics.sum("checkrein_reviews_open", &[("tool", "create_order")]), 0.0);
        let agent = process.agent(Form::OpenaiChat, "r2");
        let answer = agent.call("create_order", "d", &create("Q1")).await.json();
        assert_eq!(answer["error"].as_str().unwrap_or("ok"), told, "{answer}");
    }
}

/// Runs `run` to its end: exit code and stderr.
fn refused(policy: &Path, state: &Path, wrap: &[&str]) -> (i32, String) {
    let mut words: Vec<String> = wrap.iter().map(|word| (*word).to_owned()).collect();
    words.push(PROGRAM.to_owned());
    let fixed = ["run", "--listen", "127.0.0.1:0", "--health", "127.0.0.1:0", "--policy"];
    words.extend(fixed.map(str::to_owned));
    words.extend([policy.display().to_string(), "--state".into(), state.display().to_string()]);
    let output = std::process::Command::new(&words[0]).args(&words[1..]).output().expect("it runs");
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[tokio::test]
async fn a_state_folder_that_is_not_its_own_ends_the_start() {
    let tool = ScriptedTool::start().await;
    let state = tempfile::tempdir().expect("a folder");
    let process = start(&tool, state.path(), &[]).await;
    let (code, said) = refused(&process.policy(), state.path(), &[]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("another process holds this state folder"), "{said}");
    let inside_a_file = process.policy().join("state");
    let (code, said) = refused(&process.policy(), &inside_a_file, &[]);
    assert!(code == 1 && said.contains("cannot be made"), "{code} {said}");
    let policy = process.folder.path().join("kept.yaml");
    std::fs::copy(process.policy(), &policy).expect("copied");
    process.signal("TERM");
    let mut process = process;
    process.exit().await;
    std::fs::write(state.path().join("secret"), [7; 32]).expect("written");
    let (code, said) = refused(&policy, state.path(), &[]);
    assert!(code == 1 && said.contains("another secret"), "{code} {said}");
}

#[tokio::test]
async fn a_damaged_store_refuses_writes_and_leaves_reads_alone() {
    let tool = ScriptedTool::start().await;
    let state = tempfile::tempdir().expect("a folder");
    drop(start(&tool, state.path(), &[]).await);
    std::fs::write(state.path().join("store.db"), b"this is no database").expect("written");
    for wal in ["store.db-wal", "store.db-shm"] {
        drop(std::fs::remove_file(state.path().join(wal))); // gone after a tidy end
    }
    let process = start(&tool, state.path(), &[]).await;
    let agent = process.agent(Form::OpenaiChat, "r");
    let write = agent.call("create_order", "c1", &create("R")).await;
    assert_eq!((write.status, &write.json()["error"]), (503, &"ledger_unavailable".into()));
    let read = agent.call("lookup_order", "c2", r#"{"order_id":"A17"}"#).await.json();
    assert_eq!(read["ok"], true, "{read}");
    assert_eq!(tool.hits("/create"), 0);
    assert_eq!(process.metrics().await.value("checkrein_store_writable", &[]), 0.0);
    let ready = crate::support::http::get(process.health, "/ready?verbose").await;
    assert!(ready.status == 200 && ready.text().contains("damaged"), "{}", ready.text());
    assert!(process.log().contains("THE STORE IS DAMAGED"), "{}", process.log());
    let kept = std::fs::read(state.path().join("store.db")).expect("read");
    assert_eq!(kept, b"this is no database", "it is left as it was found");
}

/// A file size limit stands for a full disk: `prlimit` lowers it while the process runs, and lifts it again.
#[tokio::test]
async fn a_full_disk_refuses_writes_before_sending_and_heals_by_itself() {
    let tool = ScriptedTool::start().await;
    let state = tempfile::tempdir().expect("a folder");
    // SIGXFSZ would kill it; ignored, a write past the limit fails with EFBIG.
    let wrap = ["sh", "-c", "trap '' XFSZ; exec \"$0\" \"$@\""];
    let process = start(&tool, state.path(), &wrap).await;
    let agent = process.agent(Form::OpenaiChat, "r");
    let write = async |order: &str| agent.call("create_order", order, &create(order)).await.json();
    assert_eq!(write("R0").await["ok"], true);
    let limit = |bytes: &str| disk::limit(process.id(), bytes);
    limit("0");
    let writable = async |wanted: f64| {
        process.metrics().await.value("checkrein_store_writable", &[]) == wanted
    };
    let hits = tool.hits("/create");
    let refused = write("R1").await;
    assert_eq!(
        (&refused["error"], &refused["executed"]),
        (&"ledger_unavailable".into(), &"no".into())
    );
    assert_eq!(tool.hits("/create"), hits, "nothing was sent");
    assert!(writable(0.0).await);
    let told = async || {
        let ready = crate::support::http::get(process.health, "/ready?verbose").await;
        ready.status == 200 && ready.text().contains("writes are refused")
    };
    wait_for("the word of it", SOON, told).await;
    // Replays and reads need no disk.
    assert_eq!(write("R0").await["replayed"], true);
    let read = agent.call("lookup_order", "c2", r#"{"order_id":"A17"}"#).await.json();
    assert_eq!(read["ok"], true, "{read}");
    limit("unlimited");
    wait_for("the store to heal", SOON, async || writable(1.0).await).await;
    assert_eq!(write("R2").await["ok"], true);
}

#[tokio::test]
async fn an_end_that_cannot_be_recorded_is_unknown_until_the_disk_is_back() {
    let tool = ScriptedTool::start().await;
    let state = tempfile::tempdir().expect("a folder");
    let wrap = ["sh", "-c", "trap '' XFSZ; exec \"$0\" \"$@\""];
    let process = start(&tool, state.path(), &wrap).await;
    tool.script("/create", [Reply::ApplyAfter(Duration::from_millis(300))]);
    let agent = process.agent(Form::OpenaiChat, "r");
    let asking = tokio::spawn(async move { agent.call("create_order", "c", &create("R")).await });
    wait_for("the write at the tool", SOON, async || tool.hits("/create") == 1).await;
    let limit = |bytes: &str| disk::limit(process.id(), bytes);
    limit("0");
    let answer = asking.await.expect("answered").json();
    assert_eq!(answer["error"], "outcome_unknown", "{answer}");
    let agent = process.agent(Form::OpenaiChat, "r");
    let again = agent.call("create_order", "c", &create("R")).await.json();
    assert_eq!(again["error"], "review_required", "{again}");
    limit("unlimited");
    // Not by asking again and again: that would cost the run its budget of calls.
    let settled = async || {
        let metrics = process.metrics().await;
        metrics.sum("checkrein_reviews_open", &[("tool", "create_order")]) == 0.0
    };
    wait_for("the end on record", SOON, settled).await;
    let again = agent.call("create_order", "c", &create("R")).await.json();
    assert_eq!((&again["ok"], &again["replayed"]), (&true.into(), &true.into()), "{again}");
    assert_eq!((tool.hits("/create"), tool.effects("R")), (1, 1));
}

/// As root, permissions bind nobody; another user they bind.
#[tokio::test]
async fn a_store_that_cannot_be_written_ends_the_start() {
    let tool = ScriptedTool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    drop(start(&tool, &state, &[]).await);
    let policy = folder.path().join("policy.yaml");
    std::fs::write(&policy, filled(folder.path(), &Fixture::new().text(&tool.url())))
        .expect("written");
    let open = |path: &Path, mode: u32| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(path, mode).expect("set");
    };
    open(folder.path(), 0o755);
    for file in ["token_a", "token_b", "policy.yaml"] {
        open(&folder.path().join(file), 0o644);
    }
    for file in ["lock", "secret", "store.db"] {
        open(&state.join(file), 0o444);
    }
    open(&state, 0o555);
    let is_root = std::process::Command::new("id").arg("-u").output().expect("id runs").stdout;
    let wrap: &[&str] = match is_root.starts_with(b"0\n") {
        true => &["setpriv", "--reuid=65534", "--clear-groups"],
        false => &[],
    };
    let (code, said) = refused(&policy, &state, wrap);
    open(&state, 0o755);
    assert!(code == 1 && said.contains("the store cannot be opened"), "{code} {said}");
}
