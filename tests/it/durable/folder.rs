//! A state folder that has lost a part, or whose parts are somewhere else.

use std::path::{Path, PathBuf};

use super::{create, refused, start};
use crate::support::process::filled;
use crate::support::{Fixture, Form, ScriptedTool};

/// A folder with one finished write that was killed, and a policy to start on it again.
async fn used(tool: &ScriptedTool, folder: &Path) -> (PathBuf, PathBuf) {
    let state = folder.join("state");
    let process = start(tool, &state, &[]).await;
    let answer = process.agent(Form::OpenaiChat, "r").call("create_order", "c", &create("R")).await;
    assert_eq!(answer.json()["ok"], true);
    process.signal("KILL");
    drop(process);
    let policy = folder.join("policy.yaml");
    std::fs::write(&policy, filled(folder, &Fixture::new().text(&tool.url()))).expect("written");
    (state, policy)
}

#[tokio::test]
async fn a_store_that_is_gone_is_not_an_empty_store() {
    let tool = ScriptedTool::start().await;
    for (lost, said_of_it) in [
        (&["store.db"][..], "its `secret` is there"),
        (&["store.db", "store.db-wal"], "its `secret` is there"),
        (&["store.db", "secret"], "its log is there"),
        (&["secret"], "the store is there"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let (state, policy) = used(&tool, folder.path()).await;
        let kept = folder.path().join("kept");
        std::fs::create_dir(&kept).expect("made");
        for file in lost {
            std::fs::rename(state.join(file), kept.join(file)).expect("it was there");
        }
        let (code, said) = refused(&policy, &state, &[]);
        let wanted = [said_of_it, "put it back", "move the whole folder away"];
        let place = state.join(lost[0]).display().to_string();
        let place =
            if lost == ["secret"] { state.join("secret").display().to_string() } else { place };
        assert!(code == 1 && said.contains(&place), "{lost:?}: {code} {said}");
        assert!(wanted.iter().all(|part| said.contains(part)), "{lost:?}: {said}");
        // Put back it knows what it knew; moved away it begins anew.
        for file in lost {
            std::fs::rename(kept.join(file), state.join(file)).expect("put back");
        }
        let process = start(&tool, &state, &[]).await;
        let agent = process.agent(Form::OpenaiChat, "r");
        let again = agent.call("create_order", "c", &create("R")).await.json();
        assert_eq!(again["replayed"], true, "{lost:?}: {again}");
        drop(process);
        std::fs::rename(&state, folder.path().join("away")).expect("moved");
        drop(start(&tool, &state, &[]).await);
    }
}

#[tokio::test]
async fn one_store_under_two_names_has_one_owner() {
    let tool = ScriptedTool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let (state, policy) = used(&tool, folder.path()).await;
    let process = start(&tool, &state, &[]).await;
    let other = folder.path().join("other");
    std::fs::create_dir(&other).expect("made");
    std::fs::copy(state.join("secret"), other.join("secret")).expect("copied");
    std::fs::hard_link(state.join("store.db"), other.join("store.db")).expect("linked");
    let (code, said) = refused(&policy, &other, &[]);
    assert!(code == 1 && said.contains("holds this store under another name"), "{code} {said}");
    for file in ["store.db", "secret"] {
        std::fs::remove_file(other.join(file)).expect("removed");
        std::os::unix::fs::symlink(state.join(file), other.join(file)).expect("linked");
        let (code, said) = refused(&policy, &other, &[]);
        assert!(code == 1 && said.contains("it is a link"), "{file}: {code} {said}");
        std::fs::remove_file(other.join(file)).expect("removed");
        std::fs::write(other.join(file), [7; 64]).expect("written");
    }
    // The folder itself may be a link: its lock is found through it.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&state, &link).expect("linked");
    let (code, said) = refused(&policy, &link, &[]);
    assert!(code == 1 && said.contains("another process holds this state folder"), "{code} {said}");
    let agent = process.agent(Form::OpenaiChat, "r");
    assert_eq!(agent.call("create_order", "c", &create("R")).await.json()["replayed"], true);
    let answer = agent.call("create_order", "c2", &create("R2")).await.json();
    assert_eq!(answer["ok"], true, "its locks are still its own: {answer}");
}

#[tokio::test]
async fn what_others_may_read_or_replace_is_warned_about() {
    use std::os::unix::fs::PermissionsExt;
    let tool = ScriptedTool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let (state, _) = used(&tool, folder.path()).await;
    for file in ["store.db", "secret", "lock"] {
        let mode = std::fs::metadata(state.join(file)).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    let process = start(&tool, &state, &[]).await;
    assert!(!process.log().contains("give it mode"), "{}", process.log());
    drop(process);
    for (path, mode) in [(state.clone(), 0o777), (state.join("secret"), 0o644)] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("set");
    }
    let log = start(&tool, &state, &[]).await.log();
    assert!(log.contains("give it mode 0700") && log.contains("give it mode 0600"), "{log}");
}
