//! A tool server that does as it is told, and counts what really arrived.
//!
//! `hits` are requests read to their last byte; `effects` are counted per business key, at the moment the script
//! says that the work is done. Both are the oracle of every at-most-once test.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

/// What the tool does with one request.
#[derive(Debug, Clone)]
pub enum Reply {
    /// Works and answers 200 with the tool's own JSON.
    Ok,
    /// Works and answers this JSON text.
    Json(String),
    /// Answers a status with a JSON body, without working.
    Status(u16),
    /// Works, then answers a status.
    ApplyThenStatus(u16),
    /// Any head and body, as they stand; works when told so.
    Full {
        apply: bool,
        status: u16,
        headers: Vec<(&'static str, String)>,
        body: Vec<u8>,
    },
    /// Reads the request and never answers.
    Hang,
    ApplyThenHang,
    /// Works, waits, answers 201.
    ApplyAfter(Duration),
    /// Waits, then answers like `Ok`.
    After(Duration),
    ApplyThenReset,
    /// Resets without working.
    Reset,
    /// Closes without an answer.
    Close,
    ApplyThenClose,
    /// 200, a content length, half of the body, then closes.
    Cut {
        apply: bool,
    },
    /// 200 and one byte every so often, for ever.
    Drip {
        every: Duration,
        chunked: bool,
    },
    /// Bytes as they stand, then closes.
    Raw(Vec<u8>),
    /// Works, answers, and closes the connection without saying so.
    OkThenCloseSilently,
}

#[derive(Debug, Clone)]
pub struct Request {
    pub method: String,
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Work that was done: for which business key, by which request, when.
#[derive(Debug, Clone)]
pub struct Applied {
    pub key: String,
    pub request: Request,
    pub at: Instant,
}

/// Says for each request what becomes of it, in place of a script.
struct Draw(Box<dyn Fn(&Request) -> Reply + Send>);

impl std::fmt::Debug for Draw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Draw")
    }
}

#[derive(Debug, Default)]
struct Book {
    /// Path prefix → replies; the last one repeats.
    scripts: Vec<(String, Vec<Reply>)>,
    requests: Vec<Request>,
    effects: HashMap<String, usize>,
    applied: Vec<Applied>,
    draw: Option<Draw>,
}

/// A scripted HTTP/1.1 server on a free loopback port.
#[derive(Debug, Clone)]
pub struct ScriptedTool {
    address: SocketAddr,
    book: Arc<Mutex<Book>>,
    open: Arc<AtomicUsize>,
    down: watch::Sender<()>,
}

/// Counts a connection for as long as it is served.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn one(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ScriptedTool {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        Self::on(listener)
    }

    /// On a port that was refused before: for "the tool is back".
    pub async fn start_at(address: SocketAddr) -> Self {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("reuse");
        socket.bind(address).expect("the port is ours");
        Self::on(socket.listen(64).expect("listening"))
    }

    fn on(listener: TcpListener) -> Self {
        let tool = Self {
            address: listener.local_addr().expect("bound"),
            book: Arc::default(),
            open: Arc::default(),
            down: watch::Sender::new(()),
        };
        tool.serve(listener);
        tool
    }

    fn serve(&self, listener: TcpListener) {
        let (served, mut down) = (self.clone(), self.down.subscribe());
        tokio::spawn(async move {
            loop {
                let accepted = tokio::select! {
                    _ = down.changed() => return,
                    accepted = listener.accept() => accepted,
                };
                let Ok((stream, _)) = accepted else { continue };
                let (each, mut down) = (served.clone(), down.clone());
                tokio::spawn(async move {
                    let _open = Open::one(&each.open);
                    tokio::select! {
                        _ = down.changed() => {}
                        () = each.connection(stream) => {}
                    }
                });
            }
        });
    }

    /// Ends it as it stands: connections break, new ones are refused. What it did stays counted.
    pub fn stop(&self) {
        self.down.send_replace(());
    }

    /// Listens again where it did before `stop`, on the same counts.
    pub async fn start_again(&self) {
        let mut listener = None;
        super::wait_for("the tool's port", Duration::from_secs(30), async || {
            let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
            socket.set_reuseaddr(true).expect("reuse");
            listener = socket.bind(self.address).and_then(|()| socket.listen(64)).ok();
            listener.is_some()
        })
        .await;
        self.serve(listener.expect("just bound"));
    }

    /// A port that nobody listens on.
    pub async fn refused_address() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        listener.local_addr().expect("bound")
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on requests whose target begins with `prefix` get these replies in turn, the last one for ever.
    pub fn script(&self, prefix: &str, replies: impl IntoIterator<Item = Reply>) -> &Self {
        let mut book = self.lock();
        book.scripts.retain(|(p, _)| p != prefix);
        book.scripts.push((prefix.to_owned(), replies.into_iter().collect()));
        drop(book);
        self
    }

    /// From now on each request gets the reply that `draw` names for it.
    pub fn draw(&self, draw: impl Fn(&Request) -> Reply + Send + 'static) {
        self.lock().draw = Some(Draw(Box::new(draw)));
    }

    /// Requests read to the end whose target begins with `prefix`.
    pub fn hits(&self, prefix: &str) -> usize {
        self.lock().requests.iter().filter(|r| r.target.starts_with(prefix)).count()
    }
    pub fn requests(&self) -> Vec<Request> {
        self.lock().requests.clone()
    }
    pub fn last(&self) -> Request {
        self.lock().requests.last().cloned().expect("a request has arrived")
    }
    /// How often the work for a business key was done.
    pub fn effects(&self, key: &str) -> usize {
        self.lock().effects.get(key).copied().unwrap_or(0)
    }
    /// All work that was done, in order.
    pub fn applied(&self) -> Vec<Applied> {
        self.lock().applied.clone()
    }
    pub fn open_connections(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
    fn lock(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().expect("no test panics with the book open")
    }

    fn next_reply(&self, request: &Request) -> Reply {
        let (mut book, target) = (self.lock(), &request.target);
        if let Some(Draw(draw)) = &book.draw {
            return draw(request);
        }
        let found = book
            .scripts
            .iter_mut()
            .filter(|(prefix, _)| target.starts_with(prefix.as_str()))
            .max_by_key(|(prefix, _)| prefix.len());
        match found {
            None => Reply::Ok,
            Some((_, replies)) if replies.len() > 1 => replies.remove(0),
            Some((_, replies)) => replies.first().cloned().unwrap_or(Reply::Ok),
        }
    }

    fn apply(&self, request: &Request) {
        let key = serde_json::from_slice::<Value>(&request.body).ok().and_then(|body| {
            let name = body
                .get("order_ref")
                .or_else(|| body.get("message_ref"))
                .or_else(|| body.get("order_id"))?;
            name.as_str().map(str::to_owned)
        });
        if let Some(key) = key {
            let mut book = self.lock();
            *book.effects.entry(key.clone()).or_default() += 1;
            book.applied.push(Applied { key, request: request.clone(), at: Instant::now() });
        }
    }

    /// The honest answer: what was asked about, named, so that two answers cannot be taken for each other.
    fn own_answer(request: &Request) -> String {
        let path = request.target.split('?').next().unwrap_or_default();
        let id = path.rsplit('/').next().unwrap_or_default();
        match request.method.as_str() {
            "GET" => format!(r#"{{"order_id":"{id}","status":"in_transit"}}"#),
            _ => format!(r#"{{"done":true,"bytes":{}}}"#, request.body.len()),
        }
    }

    async fn connection(&self, mut stream: TcpStream) {
        let mut buffer = Vec::new();
        while let Some(request) = read_request(&mut stream, &mut buffer).await {
            self.lock().requests.push(request.clone());
            let reply = self.next_reply(&request);
            if !self.answer(&mut stream, &request, reply).await {
                return;
            }
        }
    }

    /// True = the connection may go on.
    async fn answer(&self, stream: &mut TcpStream, request: &Request, reply: Reply) -> bool {
        match reply {
            Reply::Ok => {
                self.apply(request);
                json(stream, 200, &Self::own_answer(request)).await
            }
            Reply::Json(text) => {
                self.apply(request);
                json(stream, 200, &text).await
            }
            Reply::Status(status) => {
                json(stream, status, &format!(r#"{{"error":"status {status}"}}"#)).await
            }
            Reply::ApplyThenStatus(status) => {
                self.apply(request);
                json(stream, status, "{}").await
            }
            Reply::Full { apply, status, headers, body } => {
                if apply {
                    self.apply(request);
                }
                full(stream, status, &headers, &body).await
            }
            Reply::Hang => hang(stream).await,
            Reply::ApplyThenHang => {
                self.apply(request);
                hang(stream).await
            }
            Reply::ApplyAfter(wait) => {
                tokio::time::sleep(wait).await;
                self.apply(request);
                json(stream, 201, r#"{"done":true}"#).await
            }
            Reply::After(wait) => {
                tokio::time::sleep(wait).await;
                self.apply(request);
                json(stream, 200, &Self::own_answer(request)).await
            }
            Reply::ApplyThenReset => {
                self.apply(request);
                reset(stream)
            }
            Reply::Reset => reset(stream),
            Reply::Close => false,
            Reply::ApplyThenClose => {
                self.apply(request);
                false
            }
            Reply::Cut { apply } => {
                if apply {
                    self.apply(request);
                }
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n";
                write(stream, format!("{head}{{\"half\":").as_bytes()).await;
                false
            }
            Reply::Drip { every, chunked } => drip(stream, every, chunked).await,
            Reply::Raw(bytes) => {
                write(stream, &bytes).await;
                false
            }
            Reply::OkThenCloseSilently => {
                self.apply(request);
                json(stream, 200, &Self::own_answer(request)).await;
                false
            }
        }
    }
}

async fn write(stream: &mut TcpStream, bytes: &[u8]) -> bool {
    stream.write_all(bytes).await.is_ok()
}

async fn json(stream: &mut TcpStream, status: u16, text: &str) -> bool {
    full(stream, status, &[("content-type", "application/json".into())], text.as_bytes()).await
}

async fn full(
    stream: &mut TcpStream,
    status: u16,
    headers: &[(&str, String)],
    body: &[u8],
) -> bool {
    let mut head = format!("HTTP/1.1 {status} Reason\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if status != 204 && !headers.iter().any(|(n, _)| n.eq_ignore_ascii_case("content-length")) {
        head.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(body);
    write(stream, &bytes).await
}

/// Until the other side goes away.
async fn hang(stream: &mut TcpStream) -> bool {
    let mut byte = [0; 1];
    while matches!(stream.read(&mut byte).await, Ok(n) if n > 0) {}
    false
}

fn reset(stream: &mut TcpStream) -> bool {
    // Closing with linger 0 sends RST.
    socket2::SockRef::from(&*stream).set_linger(Some(Duration::ZERO)).expect("a socket option");
    false
}

async fn drip(stream: &mut TcpStream, every: Duration, chunked: bool) -> bool {
    let framing = if chunked { "transfer-encoding: chunked" } else { "content-length: 1000000" };
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{framing}\r\n\r\n");
    if !write(stream, head.as_bytes()).await {
        return false;
    }
    let byte: &[u8] = if chunked { b"1\r\n \r\n" } else { b" " };
    while write(stream, byte).await {
        tokio::time::sleep(every).await;
    }
    false
}

/// Reads one request to its last byte; `None` at the end of the connection.
async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Request> {
    let head_end = loop {
        if let Some(at) = buffer.windows(4).position(|w| w == b"\r\n\r\n") {
            break at;
        }
        fill(stream, buffer).await?;
    };
    let head = String::from_utf8_lossy(&buffer[..head_end]).into_owned();
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
        .collect();
    let length = headers
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.parse::<usize>().ok())
        .unwrap_or(0);
    let chunked = headers
        .iter()
        .any(|(n, v)| n.eq_ignore_ascii_case("transfer-encoding") && v.contains("chunked"));
    buffer.drain(..head_end + 4);
    let body = if chunked {
        loop {
            if let Some(at) = buffer.windows(5).position(|w| w == b"0\r\n\r\n") {
                break buffer.drain(..at + 5).collect();
            }
            fill(stream, buffer).await?;
        }
    } else {
        while buffer.len() < length {
            fill(stream, buffer).await?;
        }
        buffer.drain(..length).collect()
    };
    Some(Request { method, target, headers, body })
}

async fn fill(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<()> {
    let mut chunk = [0; 8192];
    match stream.read(&mut chunk).await {
        Ok(n) if n > 0 => {
            buffer.extend_from_slice(&chunk[..n]);
            Some(())
        }
        Ok(_) | Err(_) => None,
    }
}
