//! A read tool with a queue, and an outage on demand.
//!
//!   fifotool --listen 127.0.0.1:0 --rate 100 [--mode hang|reset]
//!
//! Requests are served first in, first out, 1/rate seconds each, one at a time. The worker does not notice that a
//! caller has gone: it works on dead requests too, as a service with one thread and a listen backlog does.
//! POST /dead begins an outage, POST /alive ends it, GET /report gives the counts. `hang`: nothing is served and
//! requests pile up. `reset`: each request is reset at once. The port is printed on stdout.

use perf_rig::{flag, Reader, Timer};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, Notify};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n{\"value\":1}";
const DONE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";

struct Tool {
    each: Duration,
    reset: bool,
    queue: RefCell<VecDeque<oneshot::Sender<()>>>,
    more: Notify,
    dead: Cell<bool>,
    revived: Notify,
    /// Requests before, during and after the outage.
    calls: RefCell<[u64; 3]>,
    phase: Cell<usize>,
    served: Cell<u64>,
    served_dead: Cell<u64>,
    longest: Cell<usize>,
}

impl Tool {
    async fn work(&self) {
        let timer = Timer::new();
        let mut free = Instant::now();
        loop {
            while self.queue.borrow().is_empty() {
                self.more.notified().await;
                free = free.max(Instant::now());
            }
            while self.dead.get() {
                self.revived.notified().await;
                free = Instant::now();
            }
            // Paced by the clock: a late wake-up does not change the capacity.
            free += self.each;
            timer.until(free).await;
            let Some(waiting) = self.queue.borrow_mut().pop_front() else { continue };
            self.served.set(self.served.get() + 1);
            if waiting.send(()).is_err() {
                self.served_dead.set(self.served_dead.get() + 1);
            }
        }
    }

    fn report(&self) -> Vec<u8> {
        let calls = self.calls.borrow();
        let body = serde_json::json!({
            "before": calls[0], "outage": calls[1], "after": calls[2], "served": self.served.get(),
            "served_dead": self.served_dead.get(), "longest_queue": self.longest.get(),
        })
        .to_string();
        format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
    }

    async fn serve(&self, mut stream: TcpStream) {
        let mut reader = Reader::new(false);
        while let Ok(true) = reader.message(&mut stream).await {
            let path = reader.head.split(|&byte| byte == b' ').nth(1).unwrap_or(b"/").to_vec();
            let answer = match path.as_slice() {
                b"/dead" => {
                    self.phase.set(1);
                    self.dead.set(true);
                    DONE.to_vec()
                }
                b"/alive" => {
                    self.phase.set(2);
                    self.dead.set(false);
                    self.revived.notify_one();
                    DONE.to_vec()
                }
                b"/report" => self.report(),
                _ => match self.call(&stream).await {
                    true => ANSWER.to_vec(),
                    false => break,
                },
            };
            if stream.write_all(&answer).await.is_err() || reader.closing() {
                break;
            }
        }
    }

    /// False: no answer is owed, the caller has gone or is reset.
    async fn call(&self, stream: &TcpStream) -> bool {
        self.calls.borrow_mut()[self.phase.get()] += 1;
        if self.dead.get() && self.reset {
            let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
            return false;
        }
        let (over, done) = oneshot::channel();
        self.queue.borrow_mut().push_back(over);
        self.longest.set(self.longest.get().max(self.queue.borrow().len()));
        self.more.notify_one();
        tokio::select! {
            served = done => served.is_ok(),
            () = gone(stream) => false,
        }
    }
}

/// Until the other side closes.
async fn gone(stream: &TcpStream) {
    let mut byte = [0];
    if matches!(stream.peek(&mut byte).await, Ok(more) if more > 0) {
        std::future::pending::<()>().await;
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let rate: f64 = flag("--rate").map_or(100.0, |rate| rate.parse().expect("a number"));
    let listener = TcpListener::bind(flag("--listen").unwrap_or_else(|| "127.0.0.1:0".into())).await?;
    println!("{}", listener.local_addr()?.port());
    let tool = Rc::new(Tool {
        each: Duration::from_secs_f64(1.0 / rate),
        reset: flag("--mode").as_deref() == Some("reset"),
        queue: RefCell::default(),
        more: Notify::new(),
        dead: Cell::new(false),
        revived: Notify::new(),
        calls: RefCell::default(),
        phase: Cell::new(0),
        served: Cell::new(0),
        served_dead: Cell::new(0),
        longest: Cell::new(0),
    });
    let local = tokio::task::LocalSet::new();
    let worker = tool.clone();
    local.spawn_local(async move { worker.work().await });
    local
        .run_until(async move {
            loop {
                let (stream, _) = listener.accept().await?;
                let _ = stream.set_nodelay(true);
                let own = tool.clone();
                tokio::task::spawn_local(async move { own.serve(stream).await });
            }
        })
        .await
}
