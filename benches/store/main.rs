//! What durability costs: rows a second and rows a sync of the ledger's store at 1, 16 and 64 writers, beside a plain
//! loop of append and fdatasync on the same disk in the same run.
//!
//! `cargo bench --bench store`; `-- --state DIR` names the folder to measure in (default: the system's temporary one).

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

const FOR: Duration = Duration::from_secs(2);
/// About what a row of the ledger takes.
const ROW: usize = 400;

fn main() {
    // `cargo bench` adds flags of its own, which mean nothing here.
    let mut words = std::env::args().skip_while(|word| word != "--state").skip(1);
    let base = words.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = base.join(format!("checkrein-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder to measure in");
    let plain = plain(&folder);
    println!(
        "{:<24}{:>10}{:>12}{:>10}{:>10}{:>12}",
        "", "rows/s", "rows/sync", "p50 ms", "p99 ms", "of plain"
    );
    println!(
        "{:<24}{:>10.0}{:>12.1}{:>10.2}{:>10.2}{:>12.2}",
        "append + fdatasync",
        plain.rate(),
        1.0,
        plain.at(50),
        plain.at(99),
        1.0
    );
    for writers in [1, 16, 64] {
        let (took, per_sync) = store(&folder.join(writers.to_string()), writers);
        println!(
            "{:<24}{:>10.0}{:>12.1}{:>10.2}{:>10.2}{:>12.2}",
            format!("store, {writers} writers"),
            took.rate(),
            per_sync,
            took.at(50),
            took.at(99),
            took.rate() / plain.rate()
        );
    }
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
}

/// Times of single rows, and of all of them.
struct Took {
    rows: Vec<Duration>,
    whole: Duration,
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

fn plain(folder: &Path) -> Took {
    let path = folder.join("plain");
    let mut file = OpenOptions::new().create(true).append(true).open(path).expect("a file");
    let began = Instant::now();
    let mut rows = Vec::new();
    while began.elapsed() < FOR {
        let one = Instant::now();
        file.write_all(&[b'x'; ROW]).expect("written");
        file.sync_data().expect("synced");
        rows.push(one.elapsed());
    }
    Took { rows, whole: began.elapsed() }
}

/// Each writer waits for its row before it hands in the next, as a call does.
fn store(folder: &Path, writers: u64) -> (Took, f64) {
    let metrics = Metrics::new();
    let place = Place { folder: folder.to_owned(), max_bytes: 4 << 30 };
    let (store, _) = Store::open(&place, metrics.clone()).expect("it opens");
    let store = Arc::new(store);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let began = Instant::now();
    let rows = runtime.block_on(async {
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
        store.close().await;
        rows
    });
    let took = Took { rows, whole: began.elapsed() };
    let text = metrics.encode();
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| value.trim().parse::<f64>().ok()).unwrap_or(f64::NAN)
    };
    let groups = value("checkrein_journal_group_size_count ");
    (took, value("checkrein_journal_group_size_sum ") / groups)
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
    }
}
