//! A disk that is full, read-only or damaged, under the whole program.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{SOON, create, refused, start};
use crate::support::process::filled;
use crate::support::{Fixture, Form, Process, Reply, ScriptedTool, wait_for};

/// A state folder on a disk that can be filled.
enum Disk {
    /// A tmpfs of 1 MiB, as the program alone sees it.
    Small { seen: PathBuf },
    /// A limit on the size of files, where the machine forbids the other.
    Limit { pid: u32 },
}

impl Disk {
    async fn under(tool: &ScriptedTool, state: &Path) -> (Process, Self) {
        let mount = format!("mount -t tmpfs -o size=1m none '{}'", state.display());
        let small = ["-U", "-r", "-m", "sh", "-c", &mount];
        if Command::new("unshare").args(small).status().is_ok_and(|status| status.success()) {
            let script = format!("{mount} && exec \"$0\" \"$@\"");
            let wrap = ["unshare", "-U", "-r", "-m", "sh", "-c", &script];
            let process = start(tool, state, &wrap).await;
            let inside = state.strip_prefix("/").expect("an absolute path");
            let seen = Path::new("/proc").join(process.id().to_string()).join("root").join(inside);
            return (process, Self::Small { seen });
        }
        eprintln!(
            "THIS MACHINE FORBIDS USER NAMESPACES (unshare -Urm): no disk was filled, a limit on file sizes stands for it"
        );
        // SIGXFSZ would kill it; ignored, a write past the limit fails with EFBIG.
        let process = start(tool, state, &["sh", "-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).await;
        let pid = process.id();
        (process, Self::Limit { pid })
    }

    fn fill(&self) {
        match self {
            Self::Small { seen } => {
                let mut file = std::fs::File::create(seen.join("other")).expect("made");
                while file.write_all(&[0; 4096]).is_ok() {}
            }
            Self::Limit { pid } => limit(*pid, "0"),
        }
    }

    fn make_room(&self) {
        match self {
            Self::Small { seen } => std::fs::remove_file(seen.join("other")).expect("removed"),
            Self::Limit { pid } => limit(*pid, "unlimited"),
        }
    }

    fn log_bytes(&self, state: &Path) -> u64 {
        let folder = match self {
            Self::Small { seen } => seen,
            Self::Limit { .. } => state,
        };
        std::fs::metadata(folder.join("store.db-wal")).map_or(0, |found| found.len())
    }
}

pub(super) fn limit(pid: u32, bytes: &str) {
    let limit = format!("--fsize={bytes}:");
    let status = Command::new("prlimit").args(["--pid", &pid.to_string(), &limit]).status();
    assert!(status.expect("prlimit runs").success());
}

#[tokio::test]
async fn a_small_disk_that_fills_up_refuses_writes_keeps_what_it_knows_and_heals() {
    let tool = ScriptedTool::start().await;
    let state = tempfile::tempdir().expect("a folder");
    let (process, disk) = Disk::under(&tool, state.path()).await;
    let agent = process.agent(Form::OpenaiChat, "r");
    let write = async |order: &str| agent.call("create_order", order, &create(order)).await.json();
    assert_eq!(write("R0").await["ok"], true);
    tool.script("/create", [Reply::ApplyThenReset, Reply::Ok]);
    assert_eq!(write("lost").await["error"], "outcome_unknown");
    // The log goes into the file first: its room is not to be found again later.
    wait_for("an empty log", SOON, async || disk.log_bytes(state.path()) == 0).await;
    disk.fill();
    let hits = tool.hits("/create");
    let refused = write("R1").await;
    assert_eq!(
        (&refused["error"], &refused["executed"]),
        (&"ledger_unavailable".into(), &"no".into()),
        "{refused}"
    );
    assert_eq!(tool.hits("/create"), hits, "nothing was sent");
    let writable = async |wanted: f64| {
        process.metrics().await.value("checkrein_store_writable", &[]) == wanted
    };
    assert!(writable(0.0).await);
    assert_eq!(write("R0").await["replayed"], true);
    assert_eq!(write("lost").await["error"], "review_required");
    let read = agent.call("lookup_order", "c2", r#"{"order_id":"A17"}"#).await.json();
    assert_eq!(read["ok"], true, "{read}");
    disk.make_room();
    wait_for("the store to heal", SOON, async || writable(1.0).await).await;
    assert_eq!(write("R2").await["ok"], true);
    assert_eq!(write("lost").await["error"], "review_required");
}

/// The disk fills up while the tool works: the end is known and cannot be recorded, nor the log be emptied.
#[tokio::test]
async fn a_disk_that_fills_up_under_a_write_loses_no_end() {
    let tool = ScriptedTool::start().await;
    let state = tempfile::tempdir().expect("a folder");
    let (process, disk) = Disk::under(&tool, state.path()).await;
    tool.script("/create", [Reply::ApplyAfter(std::time::Duration::from_millis(300))]);
    let agent = process.agent(Form::OpenaiChat, "r");
    let asking = tokio::spawn(async move { agent.call("create_order", "c", &create("R")).await });
    wait_for("the write at the tool", SOON, async || tool.hits("/create") == 1).await;
    disk.fill();
    let answer = asking.await.expect("answered").json();
    // The log may have had room for the end; if not, nobody is told what is not on record.
    assert!(answer["ok"] == true || answer["error"] == "outcome_unknown", "{answer}");
    disk.make_room();
    let settled = async || {
        let metrics = process.metrics().await;
        metrics.sum("checkrein_reviews_open", &[("tool", "create_order")]) == 0.0
            && metrics.value("checkrein_store_writable", &[]) == 1.0
    };
    wait_for("the end on record", SOON, settled).await;
    let agent = process.agent(Form::OpenaiChat, "r");
    let again = agent.call("create_order", "c", &create("R")).await.json();
    assert_eq!((&again["ok"], &again["replayed"]), (&true.into(), &true.into()), "{again}");
    assert_eq!((tool.hits("/create"), tool.effects("R")), (1, 1));
}

/// For root too, whom no permission binds.
#[tokio::test]
async fn a_read_only_file_system_ends_the_start() {
    let tool = ScriptedTool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    drop(start(&tool, &state, &[]).await);
    let policy = folder.path().join("policy.yaml");
    std::fs::write(&policy, filled(folder.path(), &Fixture::new().text(&tool.url())))
        .expect("written");
    let mount =
        format!("mount --bind '{0}' '{0}' && mount -o remount,bind,ro '{0}'", state.display());
    let may = Command::new("unshare").args(["-U", "-r", "-m", "sh", "-c", &mount]).status();
    if !may.is_ok_and(|status| status.success()) {
        eprintln!(
            "THIS MACHINE FORBIDS USER NAMESPACES (unshare -Urm): no folder was made read-only"
        );
        return;
    }
    let script = format!("{mount} && exec \"$0\" \"$@\"");
    let (code, said) =
        refused(&policy, &state, &["unshare", "-U", "-r", "-m", "sh", "-c", &script]);
    assert!(code == 1 && said.contains("the store cannot be opened"), "{code} {said}");
    assert!(said.to_lowercase().contains("read-only"), "{said}");
}

/// A store of twenty finished writes that was killed with a log beside it.
async fn killed(tool: &ScriptedTool, state: &Path) {
    for round in 0..20 {
        let process = start(tool, state, &[]).await;
        let agent = process.agent(Form::OpenaiChat, &format!("r{round}"));
        for n in 0..20 {
            let (call, arguments) = (format!("c{n}"), create(&format!("R{n}")));
            let answer = agent.call("create_order", &call, &arguments).await.json();
            assert_eq!(answer["ok"], true, "{answer}");
        }
        process.signal("KILL");
        drop(process);
        // A busy machine gives the idle store time to empty it.
        let log = std::fs::metadata(state.join("store.db-wal"));
        if log.is_ok_and(|log| log.len() > 20_000) {
            return;
        }
        std::fs::remove_dir_all(state).expect("removed");
    }
    panic!("the log was always empty");
}

#[tokio::test]
async fn damage_anywhere_in_the_store_refuses_writes_and_a_torn_end_of_the_log_does_not() {
    let tool = ScriptedTool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let whole = folder.path().join("whole");
    killed(&tool, &whole).await;
    // Where, and whether it is damage: (file, what is done to its bytes).
    type Harm = fn(&mut Vec<u8>);
    let harms: [(&str, &str, Harm, bool); 5] = [
        ("the head of the file", "store.db", |bytes| bytes[..100].fill(0xa5), true),
        ("a page of the file", "store.db", |bytes| bytes[8192..12288].fill(0xa5), true),
        ("the head of the log", "store.db-wal", |bytes| bytes[9] ^= 0xff, true),
        ("a frame of the log", "store.db-wal", |bytes| bytes[5000] ^= 1, true),
        ("a torn frame at its end", "store.db-wal", |bytes| bytes.extend([7; 3000]), false),
    ];
    let hits = tool.hits("/create");
    for (n, (name, file, harm, is_damage)) in harms.into_iter().enumerate() {
        let state = folder.path().join(format!("harmed-{n}"));
        std::fs::create_dir(&state).expect("made");
        for file in ["store.db", "store.db-wal", "secret"] {
            std::fs::copy(whole.join(file), state.join(file)).expect("copied");
        }
        let mut bytes = std::fs::read(state.join(file)).expect("read");
        harm(&mut bytes);
        std::fs::write(state.join(file), &bytes).expect("written");
        let process = start(&tool, &state, &[]).await;
        let agent = process.agent(Form::OpenaiChat, &format!("s{n}"));
        let read = agent.call("lookup_order", "c", r#"{"order_id":"A17"}"#).await.json();
        assert_eq!(read["ok"], true, "{name}: {read}");
        for order in 0..20 {
            let agent = process.agent(Form::OpenaiChat, &format!("s{n}-{order}"));
            let answer =
                agent.call("create_order", "d", &create(&format!("R{order}"))).await.json();
            match is_damage {
                true => assert_eq!(answer["error"], "ledger_unavailable", "{name}: {answer}"),
                false => assert_eq!(answer["replayed"], true, "{name}: {answer}"),
            }
        }
        assert_eq!(process.log().contains("THE STORE IS DAMAGED"), is_damage, "{name}");
        if is_damage {
            drop(process);
            let left = std::fs::read(state.join(file)).expect("read");
            assert!(left == bytes, "{name}: it is left as it was found");
        }
    }
    assert_eq!(tool.hits("/create"), hits, "nothing was sent again");
}
