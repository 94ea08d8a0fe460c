//! Load as a crowd of agents makes it: a call is due at its time whatever became of those before, waits so long
//! for its answer and no longer, and takes a connection of its own where none is idle. One thread, one JSON line.
//!
//!   openload --to 127.0.0.1:8080 --requests FILE --rate N --secs S [--patience 2] [--max-conns 4096] [--fresh]
//!   openload --to 127.0.0.1:8080 --requests FILE --conns N --secs S [--warm 0.3]        closed loop
//!
//! FILE: a request a line, `METHOD<TAB>TARGET<TAB>k: v;;k2: v2<TAB>BODY`, taken in turn. Ten `@` in a row in the target
//! or the body become a fresh number. `--fresh`: no connection is used twice. On stderr: `started` at the first due
//! moment, `measuring` after the warm-up, `measured` at the end.
//!
//! A call is `good` when a whole 2xx came within its patience; `refused` when another status did; `late` when its
//! patience ended; `broken` when the connection did; `unsent` when it was due and all `--max-conns` were busy.
//! Latencies run from the moment a call was due.

use hdrhistogram::Histogram;
use perf_rig::{find, flag, Reader, Timer};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const MARK: &[u8] = b"@@@@@@@@@@";

struct Connection {
    stream: TcpStream,
    reader: Reader,
}

enum End {
    Status(u16),
    Late,
    Broken,
}

struct Count {
    good: Histogram<u64>,
    refused: Histogram<u64>,
    statuses: BTreeMap<u16, u64>,
    due: u64,
    late: u64,
    broken: u64,
    unsent: u64,
    connects: u64,
    worst_start: Duration,
    /// (due, good) of each second.
    seconds: Vec<(u64, u64)>,
    first_refusal: Option<String>,
}

struct Load {
    to: String,
    requests: Vec<Vec<u8>>,
    patience: Duration,
    fresh: bool,
    most: usize,
    open: Cell<usize>,
    idle: RefCell<Vec<Connection>>,
    turn: Cell<usize>,
    serial: Cell<u64>,
    from: Instant,
    until: Instant,
    t0: Instant,
    count: RefCell<Count>,
}

impl Load {
    /// The next request, with its numbers filled in.
    fn next(&self) -> Vec<u8> {
        let turn = self.turn.get();
        self.turn.set((turn + 1) % self.requests.len());
        let mut request = self.requests[turn].clone();
        self.serial.set(self.serial.get() + 1);
        let number = self.serial.get().to_string();
        while let Some(at) = find(&request, MARK) {
            request[at..at + MARK.len()].copy_from_slice(number.as_bytes());
        }
        request
    }

    async fn connect(&self) -> std::io::Result<Connection> {
        let stream = TcpStream::connect(&self.to).await?;
        let _ = stream.set_nodelay(true);
        self.count.borrow_mut().connects += 1;
        Ok(Connection { stream, reader: Reader::new(false) })
    }

    /// One exchange. A kept connection that the other side closed meanwhile is replaced once: nobody took the request.
    async fn exchange(&self, kept: &mut Option<Connection>, request: &[u8]) -> std::io::Result<u16> {
        for last in [false, true] {
            let reused = kept.is_some();
            let mut connection = match kept.take() {
                Some(connection) => connection,
                None => self.connect().await?,
            };
            let sent = connection.stream.write_all(request).await;
            let got = match sent {
                Ok(()) => connection.reader.message(&mut connection.stream).await,
                Err(error) => Err(error),
            };
            match got {
                Ok(true) => {
                    let status = connection.reader.status();
                    if status / 100 != 2 && self.count.borrow().first_refusal.is_none() {
                        let head = String::from_utf8_lossy(&connection.reader.head).into_owned();
                        self.count.borrow_mut().first_refusal = Some(head);
                    }
                    if !connection.reader.closing() && !self.fresh {
                        *kept = Some(connection);
                    }
                    return Ok(status);
                }
                Ok(false) | Err(_) if reused && !last => {}
                Ok(false) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Err(error) => return Err(error),
            }
        }
        Err(std::io::ErrorKind::UnexpectedEof.into())
    }

    async fn call(&self, kept: &mut Option<Connection>, due: Instant) -> End {
        let request = self.next();
        let limit = tokio::time::Instant::from_std(due + self.patience);
        match tokio::time::timeout_at(limit, self.exchange(kept, &request)).await {
            Ok(Ok(status)) => End::Status(status),
            Ok(Err(_)) => End::Broken,
            Err(_) => End::Late,
        }
    }

    /// Open loop: what was due in the window counts, whenever it ends. Closed: what ended in it.
    fn note(&self, due: Instant, counted_at: Instant, end: &End) {
        if counted_at < self.from || counted_at >= self.until {
            return;
        }
        let took = u64::try_from(due.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let second = counted_at.duration_since(self.t0).as_secs() as usize;
        let mut count = self.count.borrow_mut();
        count.due += 1;
        if count.seconds.len() <= second {
            count.seconds.resize(second + 1, (0, 0));
        }
        count.seconds[second].0 += 1;
        match end {
            End::Status(status) => {
                *count.statuses.entry(*status).or_default() += 1;
                if status / 100 == 2 {
                    count.seconds[second].1 += 1;
                    let _ = count.good.record(took);
                } else {
                    let _ = count.refused.record(took);
                }
            }
            End::Late => count.late += 1,
            End::Broken => count.broken += 1,
        }
    }
}

async fn open_loop(load: Rc<Load>, rate: f64) {
    let timer = Timer::new();
    let mut number = 0u64;
    let mut tasks = Vec::new();
    loop {
        let due = load.t0 + Duration::from_secs_f64(number as f64 / rate);
        number += 1;
        if due >= load.until {
            break;
        }
        timer.until(due).await;
        // Let what has come in the meantime be read: a crowd does not wait for its own arrivals.
        tokio::task::yield_now().await;
        let behind = due.elapsed();
        let kept = load.idle.borrow_mut().pop();
        if kept.is_none() && load.open.get() >= load.most {
            let mut count = load.count.borrow_mut();
            if due >= load.from {
                count.due += 1;
                count.unsent += 1;
            }
            continue;
        }
        if kept.is_none() {
            load.open.set(load.open.get() + 1);
        }
        {
            let mut count = load.count.borrow_mut();
            count.worst_start = count.worst_start.max(behind);
        }
        let own = load.clone();
        tasks.push(tokio::task::spawn_local(async move {
            let mut kept = kept;
            let end = own.call(&mut kept, due).await;
            own.note(due, due, &end);
            match kept {
                Some(connection) => own.idle.borrow_mut().push(connection),
                None => own.open.set(own.open.get() - 1),
            }
        }));
        if tasks.len() > 65_536 {
            tasks.retain(|task| !task.is_finished());
        }
    }
    eprintln!("measured");
    for task in tasks {
        let _ = task.await;
    }
}

async fn closed_loop(load: Rc<Load>, conns: usize) {
    let mut tasks = Vec::new();
    for _ in 0..conns {
        let own = load.clone();
        tasks.push(tokio::task::spawn_local(async move {
            let mut kept = None;
            while Instant::now() < own.until {
                let due = Instant::now();
                let end = own.call(&mut kept, due).await;
                own.note(due, Instant::now(), &end);
                if matches!(end, End::Broken) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }));
    }
    tokio::time::sleep_until(load.until.into()).await;
    eprintln!("measured");
    for task in tasks {
        let _ = task.await;
    }
}

fn requests(file: &str, host: &str) -> Vec<Vec<u8>> {
    let text = std::fs::read_to_string(file).expect("--requests");
    let one = |line: &str| {
        let mut part = line.splitn(4, '\t');
        let (method, target) = (part.next().unwrap_or("GET"), part.next().unwrap_or("/"));
        let (fields, body) = (part.next().unwrap_or(""), part.next().unwrap_or(""));
        let mut request = format!("{method} {target} HTTP/1.1\r\nhost: {host}\r\n");
        for field in fields.split(";;").filter(|field| !field.trim().is_empty()) {
            request.push_str(field.trim());
            request.push_str("\r\n");
        }
        if !body.is_empty() {
            request.push_str(&format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()));
        }
        request.push_str("\r\n");
        request.push_str(body);
        request.into_bytes()
    };
    let found: Vec<_> = text.lines().filter(|line| !line.is_empty()).map(one).collect();
    assert!(!found.is_empty(), "--requests names no request");
    found
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(tokio::task::LocalSet::new().run_until(run()));
}

async fn run() {
    let number = |name: &str, default: f64| flag(name).map_or(default, |value| value.parse().expect("a number"));
    let to = flag("--to").expect("--to");
    let (warm, secs) = (number("--warm", 0.0), number("--secs", 5.0));
    let rate = flag("--rate").map(|rate| rate.parse::<f64>().expect("a number"));
    let t0 = Instant::now();
    let histogram = || Histogram::new_with_bounds(1, 120_000_000_000, 3).unwrap();
    let load = Rc::new(Load {
        requests: requests(&flag("--requests").expect("--requests"), &to),
        to,
        patience: Duration::from_secs_f64(number("--patience", 2.0)),
        fresh: std::env::args().any(|word| word == "--fresh"),
        most: number("--max-conns", 4096.0) as usize,
        open: Cell::new(0),
        idle: RefCell::default(),
        turn: Cell::new(0),
        serial: Cell::new(1_000_000_000),
        t0,
        from: t0 + Duration::from_secs_f64(warm),
        until: t0 + Duration::from_secs_f64(warm + secs),
        count: RefCell::new(Count {
            good: histogram(),
            refused: histogram(),
            statuses: BTreeMap::new(),
            due: 0,
            late: 0,
            broken: 0,
            unsent: 0,
            connects: 0,
            worst_start: Duration::ZERO,
            seconds: Vec::new(),
            first_refusal: None,
        }),
    });
    eprintln!("started");
    let from = load.from;
    tokio::task::spawn_local(async move {
        tokio::time::sleep_until(from.into()).await;
        eprintln!("measuring");
    });
    match rate {
        Some(rate) => open_loop(load.clone(), rate).await,
        None => closed_loop(load.clone(), number("--conns", 1.0) as usize).await,
    }
    let count = load.count.borrow();
    let ms = |from: &Histogram<u64>, quantile| from.value_at_quantile(quantile) as f64 / 1e6;
    let good = count.good.len();
    println!(
        "{}",
        serde_json::json!({
            "due": count.due, "good": good, "rate": good as f64 / secs, "secs": secs,
            "refused": count.refused.len(), "late": count.late, "broken": count.broken, "unsent": count.unsent,
            "statuses": count.statuses.iter().map(|(status, times)| (status.to_string(), times)).collect::<BTreeMap<_, _>>(),
            "connects": count.connects, "latest_start_ms": count.worst_start.as_secs_f64() * 1e3,
            "good_p50_ms": ms(&count.good, 0.5), "good_p99_ms": ms(&count.good, 0.99), "good_max_ms": count.good.max() as f64 / 1e6,
            "refused_p50_ms": ms(&count.refused, 0.5), "refused_p99_ms": ms(&count.refused, 0.99),
            "seconds": count.seconds, "first_refusal": count.first_refusal,
        })
    );
}
