use std::fs;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

/// A policy of these tests: `version N`, `file NAME` lines, `end`. Anything else is rejected.
fn load(path: &Path) -> Loaded<String, String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let dir = path.parent().expect("a directory");
    let files: Vec<PathBuf> = text
        .lines()
        .filter_map(|line| line.strip_prefix("file "))
        .map(|name| dir.join(name))
        .collect();
    let mut policy = match text.strip_suffix("end\n") {
        Some(policy) if policy.starts_with("version ") => policy.to_owned(),
        Some(_) | None => {
            return Loaded { outcome: Err(vec![format!("no end in {} bytes", text.len())]), files };
        }
    };
    for file in &files {
        match fs::read_to_string(file) {
            Ok(text) => policy.push_str(&text),
            Err(_) => return Loaded { outcome: Err(vec!["a file is missing".to_owned()]), files },
        }
    }
    Loaded { outcome: Ok(policy), files }
}

type Event = ReloadEvent<String, String>;

/// A watcher, and the other end of its `force`.
struct Watched {
    watcher: Watcher<String, String>,
    force: mpsc::Sender<()>,
    words: mpsc::Receiver<()>,
    dir: TempDir,
}

impl Watched {
    fn new(dir: TempDir) -> Self {
        let watcher = Watcher::new(dir.path().join("policy.yaml"), WatchOptions::default(), load);
        let (force, words) = mpsc::channel(8);
        Self { watcher, force, words, dir }
    }

    async fn with(text: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("policy.yaml"), text).expect("write");
        let mut watched = Self::new(dir);
        let first = watched.watcher.first().await;
        assert_eq!(applied(first), text.strip_suffix("end\n").unwrap_or_default());
        watched
    }

    fn write(&self, text: &str) {
        fs::write(self.dir.path().join("policy.yaml"), text).expect("write");
    }

    /// The next event, which comes within 5 s: the promise for a changed file.
    async fn next(&mut self) -> Event {
        let next = self.watcher.next(&mut self.words);
        tokio::time::timeout(Duration::from_secs(5), next).await.expect("an event within 5 s")
    }

    /// Nothing is told for a minute.
    async fn silence(&mut self) {
        let next = self.watcher.next(&mut self.words);
        let told = tokio::time::timeout(Duration::from_secs(60), next).await;
        assert!(told.is_err(), "told {told:?}");
    }
}

fn applied(event: Event) -> String {
    match event {
        ReloadEvent::Applied(policy) => policy,
        other
        @ (ReloadEvent::Unchanged | ReloadEvent::Rejected(_) | ReloadEvent::Unreadable(_)) => {
            panic!("{other:?}")
        }
    }
}

/// What kubelet does: a new directory, `..data` renamed over, the old directory deleted.
fn swap(dir: &Path, generation: usize, files: &[(&str, &str)]) {
    let old = fs::read_link(dir.join("..data")).ok();
    let new = format!("..gen_{generation}");
    fs::create_dir(dir.join(&new)).expect("a directory");
    for (name, text) in files {
        fs::write(dir.join(&new).join(name), text).expect("write");
        let link = dir.join(name);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new("..data").join(name), link).expect("a link");
        }
    }
    symlink(&new, dir.join("..data_tmp")).expect("a link");
    fs::rename(dir.join("..data_tmp"), dir.join("..data")).expect("a swap");
    if let Some(old) = old {
        fs::remove_dir_all(dir.join(old)).expect("old directory gone");
    }
}

#[tokio::test(start_paused = true)]
async fn bb_k01_every_configmap_swap_is_live_within_5_s_and_watching_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    swap(dir.path(), 0, &[("policy.yaml", "version 0\nend\n")]);
    let mut watched = Watched::new(dir);
    assert_eq!(applied(watched.watcher.first().await), "version 0\n");
    for generation in 1..=5 {
        let text = format!("version {generation}\nend\n");
        swap(watched.dir.path(), generation, &[("policy.yaml", &text)]);
        assert_eq!(applied(watched.next().await), format!("version {generation}\n"));
    }
    watched.silence().await;
}

#[tokio::test(start_paused = true)]
async fn bb_k02_a_broken_file_keeps_the_old_policy_says_so_and_a_mended_one_is_obeyed() {
    let mut watched = Watched::with("version 1\nend\n").await;
    let status = watched.watcher.status();
    for broken in ["version 2\nen", "", "\tversion 2\nend\n", "apiVersion: checkrein/v9\n"] {
        watched.write(broken);
        assert!(
            matches!(watched.next().await, ReloadEvent::Rejected(problems) if problems.len() == 1)
        );
        assert_eq!(status.borrow().failing, [format!("no end in {} bytes", broken.len())]);
        assert!(status.borrow().line().contains("the old policy is obeyed"));
        // Told once: the same broken content is not news.
        watched.silence().await;
    }
    watched.write("version 2\nend\n");
    assert_eq!(applied(watched.next().await), "version 2\n");
    assert_eq!(status.borrow().line(), "ok");
}

#[tokio::test(start_paused = true)]
async fn a_file_that_comes_back_as_it_was_ends_the_failure_without_a_new_policy() {
    let mut watched = Watched::with("version 1\nend\n").await;
    watched.write("broken");
    assert!(matches!(watched.next().await, ReloadEvent::Rejected(_)));
    watched.write("version 1\nend\n");
    assert!(matches!(watched.next().await, ReloadEvent::Unchanged));
    assert_eq!(watched.watcher.status().borrow().line(), "ok");
}

#[tokio::test(start_paused = true)]
async fn a_vanished_file_is_told_once_and_its_return_is_seen() {
    let mut watched = Watched::with("version 1\nend\n").await;
    let path = watched.dir.path().join("policy.yaml");
    fs::remove_file(&path).expect("removed");
    assert!(
        matches!(watched.next().await, ReloadEvent::Unreadable(why) if why.contains("policy.yaml"))
    );
    watched.silence().await;
    watched.write("version 1\nend\n");
    assert!(matches!(watched.next().await, ReloadEvent::Unchanged));
    fs::remove_file(&path).expect("removed");
    assert!(matches!(watched.next().await, ReloadEvent::Unreadable(_)));
    fs::create_dir(&path).expect("a directory in its place");
    watched.silence().await;
    fs::remove_dir(&path).expect("removed");
    watched.write("version 2\nend\n");
    assert_eq!(applied(watched.next().await), "version 2\n");
}

#[tokio::test(start_paused = true)]
async fn bb_q04_touching_the_file_or_writing_the_same_again_is_no_new_policy() {
    let mut watched = Watched::with("version 1\nend\n").await;
    watched.silence().await;
    watched.write("version 1\nend\n");
    assert!(matches!(watched.next().await, ReloadEvent::Unchanged));
    watched.silence().await;
}

#[tokio::test(start_paused = true)]
async fn a_rename_over_the_file_is_seen() {
    let mut watched = Watched::with("version 1\nend\n").await;
    let fresh = watched.dir.path().join(".policy.yaml.new");
    fs::write(&fresh, "version 2\nend\n").expect("write");
    fs::rename(&fresh, watched.dir.path().join("policy.yaml")).expect("renamed");
    assert_eq!(applied(watched.next().await), "version 2\n");
}

#[tokio::test(start_paused = true)]
async fn files_the_policy_refers_to_are_watched_with_it_also_while_they_are_missing() {
    let mut watched = Watched::with("version 1\nend\n").await;
    let schema = watched.dir.path().join("schema.json");
    watched.write("version 2\nfile schema.json\nend\n");
    assert!(matches!(watched.next().await, ReloadEvent::Rejected(_)));
    fs::write(&schema, "{}").expect("write");
    assert_eq!(applied(watched.next().await), "version 2\nfile schema.json\n{}");
    fs::write(&schema, "[]").expect("write");
    assert_eq!(applied(watched.next().await), "version 2\nfile schema.json\n[]");
    fs::remove_file(&schema).expect("removed");
    assert!(matches!(watched.next().await, ReloadEvent::Rejected(_)));
    watched.silence().await;
    fs::write(&schema, "[]").expect("write");
    assert!(matches!(watched.next().await, ReloadEvent::Unchanged));
}

#[tokio::test(start_paused = true)]
async fn a_word_on_force_is_answered_at_once_whatever_lies_there() {
    let mut watched = Watched::with("version 1\nend\n").await;
    let begun = Instant::now();
    for _ in 0..3 {
        watched.force.send(()).await.expect("room");
    }
    assert!(matches!(watched.next().await, ReloadEvent::Unchanged));
    watched.write("version 2\nend\n");
    watched.force.send(()).await.expect("room");
    assert_eq!(applied(watched.next().await), "version 2\n");
    watched.write("broken");
    for _ in 0..2 {
        watched.force.send(()).await.expect("room");
        assert!(matches!(watched.next().await, ReloadEvent::Rejected(_)));
    }
    fs::remove_file(watched.dir.path().join("policy.yaml")).expect("removed");
    for _ in 0..2 {
        watched.force.send(()).await.expect("room");
        assert!(matches!(watched.next().await, ReloadEvent::Unreadable(_)));
    }
    assert!(begun.elapsed() < Duration::from_millis(100), "waited {:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn polling_goes_on_when_nobody_can_force_any_more() {
    let mut watched = Watched::with("version 1\nend\n").await;
    drop(std::mem::replace(&mut watched.force, mpsc::channel(1).0));
    watched.silence().await;
    watched.write("version 2\nend\n");
    assert_eq!(applied(watched.next().await), "version 2\n");
}

#[tokio::test(start_paused = true)]
async fn a_file_is_not_read_before_it_has_been_quiet_nor_waited_for_without_end() {
    let mut watched = Watched::with("version 1\nend\n").await;
    let path = watched.dir.path().join("policy.yaml");
    watched.write("version 2\n");
    // Seen by the look at 1 s; another writer's word every 150 ms keeps it moving for 30 s.
    let begun = Instant::now();
    let writer = tokio::spawn(async move {
        let mut pace = tokio::time::interval(Duration::from_millis(150));
        for n in 0..200 {
            pace.tick().await;
            fs::write(&path, format!("version 2\n{}", "#".repeat(n))).expect("write");
        }
        fs::write(&path, "version 3\nend\n").expect("write");
    });
    assert!(matches!(watched.next().await, ReloadEvent::Rejected(_)));
    let patience = begun.elapsed();
    assert!(
        patience >= Duration::from_secs(3) && patience < Duration::from_millis(3_400),
        "{patience:?}"
    );
    let last = loop {
        // A look may meet the file while it is being written and tell nothing: two looks, each with its patience.
        let next = watched.watcher.next(&mut watched.words);
        match tokio::time::timeout(Duration::from_secs(10), next).await.expect("two looks") {
            ReloadEvent::Applied(policy) => break policy,
            ReloadEvent::Rejected(_) => {}
            other @ (ReloadEvent::Unchanged | ReloadEvent::Unreadable(_)) => panic!("{other:?}"),
        }
    };
    assert_eq!(last, "version 3\n");
    writer.await.expect("the writer ended well");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_wait_loses_no_change() {
    let mut watched = Watched::with("version 1\nend\n").await;
    watched.write("version 2\nend\n");
    // The waits end before a look, between look and reading, and again: the change is told all the same.
    for wait in [10, 950, 100, 100, 50] {
        let next = watched.watcher.next(&mut watched.words);
        if let Ok(event) = tokio::time::timeout(Duration::from_millis(wait), next).await {
            assert_eq!(applied(event), "version 2\n");
            return;
        }
    }
    assert_eq!(applied(watched.next().await), "version 2\n");
}

#[tokio::test(start_paused = true)]
async fn the_first_load_tells_what_is_wrong_and_a_missing_file_is_unreadable() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut watched = Watched::new(dir);
    assert!(matches!(watched.watcher.first().await, ReloadEvent::Unreadable(_)));
    watched.write("");
    assert!(matches!(watched.watcher.first().await, ReloadEvent::Rejected(_)));
    assert!(!watched.watcher.status().borrow().watch_degraded);
}

/// Real time and a thread that swaps as fast as it can: none of the readings may be a mixture, and the last stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bb_k01_a_thousand_swaps_and_the_last_one_is_obeyed() {
    const SWAPS: usize = 1_000;
    let dir = tempfile::tempdir().expect("a directory");
    let files = |n: usize| (format!("version {n}\nfile schema.json\nend\n"), format!("{n}"));
    let (policy, schema) = files(0);
    swap(dir.path(), 0, &[("policy.yaml", &policy), ("schema.json", &schema)]);
    let options = WatchOptions {
        poll: Duration::from_millis(2),
        quiet: Duration::from_millis(1),
        patience: Duration::from_millis(5),
    };
    let mut watcher = Watcher::new(dir.path().join("policy.yaml"), options, load);
    let (_force, mut words) = mpsc::channel(1);
    assert_eq!(applied(watcher.first().await), "version 0\nfile schema.json\n0");
    let place = dir.path().to_owned();
    let swapper = std::thread::spawn(move || {
        for n in 1..=SWAPS {
            let (policy, schema) = files(n);
            swap(&place, n, &[("policy.yaml", &policy), ("schema.json", &schema)]);
        }
    });
    let last = format!("version {SWAPS}\nfile schema.json\n{SWAPS}");
    let watch = async {
        loop {
            let ReloadEvent::Applied(policy) = watcher.next(&mut words).await else { continue };
            let mut lines = policy.lines();
            let version = lines.next().and_then(|line| line.strip_prefix("version "));
            assert_eq!(version, lines.nth(1), "two generations in one reading");
            if policy == last {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), watch).await.expect("the last swap is obeyed");
    swapper.join().expect("the swapper ended well");
}

mod real {
    //! The same with real policies.

    use super::*;
    use crate::policy::diagnostic::Problem;
    use crate::policy::snapshot::Snapshot;
    use crate::policy::{LoadOptions, examine};

    type PolicyWatcher = Watcher<Arc<Snapshot>, Problem>;
    type PolicyEvent = ReloadEvent<Arc<Snapshot>, Problem>;

    fn watcher(path: &Path) -> PolicyWatcher {
        Watcher::new(path, WatchOptions::default(), |path| {
            let examined = examine(path, LoadOptions::default());
            let files = examined.files.into_iter().filter(|file| file != path).collect();
            Loaded { outcome: examined.snapshot.ok_or(examined.problems), files }
        })
    }

    fn policy(allow: &str, more: &str) -> String {
        format!(
            "apiVersion: checkrein/v1\nkind: Policy\n{more}tools:\n  look:\n    description: Look.\n    effect: read\n    \
             http: {{ method: GET, url: \"https://api.example/v1\" }}\n    schema: {{ file: look.json }}\nagents:\n  \
             default: {{ allow: [{allow}] }}\n"
        )
    }

    const SCHEMA: &str = r#"{"type":"object","properties":{"id":{"type":"integer"}}}"#;

    async fn next(watcher: &mut PolicyWatcher, words: &mut mpsc::Receiver<()>) -> PolicyEvent {
        let next = watcher.next(words);
        tokio::time::timeout(Duration::from_secs(5), next).await.expect("an event within 5 s")
    }

    #[tokio::test(start_paused = true)]
    async fn bb_k02_half_files_empty_files_tabs_and_unknown_versions_are_rejected_with_their_line()
    {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("policy.yaml");
        fs::write(dir.path().join("look.json"), SCHEMA).expect("write");
        let good = policy("look", "");
        fs::write(&path, &good).expect("write");
        let mut watcher = watcher(&path);
        let (_force, mut words) = mpsc::channel(1);
        let ReloadEvent::Applied(first) = watcher.first().await else { panic!("a good policy") };
        let half = &good[..good.len() / 2];
        let version = good.replace("checkrein/v1", "checkrein/v9");
        let tab = good.replace("  look:", "\tlook:");
        for (broken, code) in [(half, "CR"), ("", "CR0004"), (&tab, "CR0001"), (&version, "CR1001")]
        {
            fs::write(&path, broken).expect("write");
            let ReloadEvent::Rejected(problems) = next(&mut watcher, &mut words).await else {
                panic!("{broken:?} was not rejected")
            };
            assert!(problems.iter().any(|problem| problem.code.starts_with(code)), "{problems:?}");
            let line = watcher.status().borrow().line();
            assert!(
                line.contains("the old policy is obeyed") && line.contains("policy.yaml:"),
                "{line}"
            );
        }
        fs::write(&path, policy("look", "name: mended\n")).expect("write");
        let ReloadEvent::Applied(mended) = next(&mut watcher, &mut words).await else {
            panic!("mended")
        };
        assert_ne!(first.revision, mended.revision);
        assert_eq!(mended.name.as_ref(), "mended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_schema_beside_the_policy_is_part_of_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("policy.yaml");
        fs::write(dir.path().join("look.json"), SCHEMA).expect("write");
        fs::write(&path, policy("look", "")).expect("write");
        let mut watcher = watcher(&path);
        let (_force, mut words) = mpsc::channel(1);
        let ReloadEvent::Applied(first) = watcher.first().await else { panic!("a good policy") };
        fs::write(dir.path().join("look.json"), SCHEMA.replace("id", "key")).expect("write");
        let ReloadEvent::Applied(second) = next(&mut watcher, &mut words).await else {
            panic!("seen")
        };
        assert_ne!(first.revision, second.revision);
        fs::write(dir.path().join("look.json"), SCHEMA.replace("id", "key")).expect("write");
        assert!(matches!(next(&mut watcher, &mut words).await, ReloadEvent::Unchanged));
    }
}
