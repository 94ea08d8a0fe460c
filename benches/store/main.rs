//! What durability costs: rows a second and rows a sync of the ledger's store at 1, 16 and 64 writers, beside a plain
//! loop that appends as many rows of the same bytes and calls fdatasync, on the same disk in the same run.
//!
//! `cargo bench --bench store`; `-- --state DIR` names the folder to measure in (default: the system's temporary one).
//! Rounds alternate, so that a disk that others use too is as slow for both; the ratio is the median of the rounds'.

#![expect(clippy::print_stdout, reason = "a table is what it is for")]

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use checkrein::call::operation::{OperationKey, OperationScope, operation};
use checkrein::call::{AgentId, Arguments, CallId, RunId, ToolName};
use checkrein::store::{Change, Place, Row, Standing, Store, Which};
use checkrein::strict_json::Limits;
use checkrein::telemetry::metrics::Metrics;
use checkrein::telemetry::record::wall_clock;
use tokio::time::Instant;

/// One round of one side.
const FOR: Duration = Duration::from_millis(500);
const ROUNDS: usize = 7;
/// What a row of the ledger takes in the file, as printed beside the table.
const ROW: usize = 512;

fn main() {
    // `cargo bench` adds flags of its own, which mean nothing here.
    let mut words = std::env::args().skip_while(|word| word != "--state").skip(1);
    let base = words.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = base.join(format!("checkrein-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder to measure in");
    println!(
        "{:>7} {:>14} {:>14} {:>7} {:>15} {:>10} {:>8} {:>8} {:>13}",
        "writers",
        "plain rows/s",
        "store rows/s",
        "ratio",
        "(least, most)",
        "rows/sync",
        "p50 ms",
        "p99 ms",
        "bytes a row"
    );
    for writers in [1, 16, 64] {
        let mut rounds = Vec::new();
        for round in 0..ROUNDS {
            let plain = plain(&folder, writers);
            rounds.push((plain, store(&folder.join(format!("{writers}-{round}")), writers)));
        }
        print(writers, &rounds);
    }
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
}

fn print(writers: u64, rounds: &[(f64, Took)]) {
    let of = |value: &dyn Fn(&(f64, Took)) -> f64| {
        let mut all: Vec<f64> = rounds.iter().map(value).collect();
        all.sort_unstable_by(f64::total_cmp);
        (
            all.get(all.len() / 2).copied().unwrap_or(f64::NAN),
            all.first().copied().unwrap_or(f64::NAN),
            all.last().copied().unwrap_or(f64::NAN),
        )
    };
    let ratio = of(&|(plain, store)| store.rate() / plain);
    println!(
        "{writers:>7} {:>14.0} {:>14.0} {:>7.2} {:>15} {:>10.1} {:>8.2} {:>8.2} {:>13.0}",
        of(&|(plain, _)| *plain).0,
        of(&|(_, store)| store.rate()).0,
        ratio.0,
        format!("({:.2}, {:.2})", ratio.1, ratio.2),
        of(&|(_, store)| store.per_sync).0,
        of(&|(_, store)| store.at(50)).0,
        of(&|(_, store)| store.at(99)).0,
        of(&|(_, store)| store.bytes_a_row).0,
    );
}

/// Times of single rows, and of all of them.
struct Took {
    rows: Vec<Duration>,
    whole: Duration,
    per_sync: f64,
    /// Of the whole file, once its log is moved into it.
    bytes_a_row: f64,
}

impl Took {
    fn rate(&self) -> f64 {
        self.rows.len() as f64 / self.whole.as_secs_f64()
    }

    /// Milliseconds at a percentile.
    fn at(&self, percent: usize) -> f64 {
        let mut sorted = self.rows.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() * percent / 100).map_or(0.0, |time| time.as_secs_f64() * 1e3)
    }
}

/// Rows a second of the least that could be done: `group` rows in one write, then one sync.
fn plain(folder: &Path, group: u64) -> f64 {
    let path = folder.join("plain");
    let mut file = OpenOptions::new().create(true).append(true).open(&path).expect("a file");
    let bytes = vec![b'x'; ROW * usize::try_from(group).expect("a count")];
    let began = Instant::now();
    let mut rows = 0;
    while began.elapsed() < FOR {
        file.write_all(&bytes).expect("written");
        file.sync_data().expect("synced");
        rows += group;
    }
    let rate = rows as f64 / began.elapsed().as_secs_f64();
    std::fs::remove_file(path).expect("ours");
    rate
}

/// Each writer waits for its row before it hands in the next, as a call does.
fn store(folder: &Path, writers: u64) -> Took {
    let metrics = Metrics::new();
    let place = Place { folder: folder.to_owned(), max_bytes: 4 << 30 };
    let (store, _) = Store::open(&place, metrics.clone()).expect("it opens");
    let store = Arc::new(store);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (rows, whole) = runtime.block_on(async {
        let began = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for writer in 0..writers {
            let store = store.clone();
            tasks.spawn(async move {
                let mut took = Vec::new();
                let mut n = 0;
                while began.elapsed() < FOR {
                    n += 1;
                    let change = Change::Put { row: Box::new(row(writer, n)), result: None };
                    let one = Instant::now();
                    store.commit(change).await.expect("committed");
                    took.push(one.elapsed());
                }
                took
            });
        }
        let rows = tasks.join_all().await.concat();
        let whole = began.elapsed();
        store.close().await;
        (rows, whole)
    });
    let text = metrics.encode();
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| value.trim().parse::<f64>().ok()).unwrap_or(f64::NAN)
    };
    let groups = value("checkrein_journal_group_size_count ");
    let per_sync = value("checkrein_journal_group_size_sum ") / groups;
    let bytes = std::fs::metadata(folder.join("store.db")).expect("closed").len();
    let bytes_a_row = bytes as f64 / rows.len().max(1) as f64;
    std::fs::remove_dir_all(folder).expect("ours");
    Took { rows, whole, per_sync, bytes_a_row }
}

fn row(writer: u64, n: u64) -> Row {
    let name = "the names are sound";
    let tool = ToolName::new("create_order").expect(name);
    let agent = AgentId::new("agent").expect(name);
    let text =
        format!(r#"{{"order_ref":"{writer}-{n}","sku":"A-1000","qty":1,"note":"as agreed"}}"#);
    let limits = Limits::arguments(1 << 16, 32);
    let arguments = Arguments::parse(text.as_bytes(), limits).expect("sound");
    let all = OperationKey::Arguments;
    let operation = operation(OperationScope::Agent(&agent), &tool, all, &arguments, &[]);
    Row {
        which: Which { key: operation.key, occurrence: 0, claim: (writer << 32) | n },
        tool,
        agent,
        digest: operation.arguments,
        arguments: Some(arguments),
        calls: vec![(RunId::new("run-1").expect(name), CallId::new("call-1").expect(name))],
        failures: Vec::new(),
        ttl: Duration::from_secs(24 * 3600),
        changed: wall_clock(),
        standing: Standing::Intent,
        resolved: None,
        task: None,
    }
}
