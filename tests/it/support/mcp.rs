//! An MCP server over HTTP that does as it is told, of either era, and counts what it really ran.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use checkrein::strict_json::{self, Limits};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, watch};

/// What the server does with one request.
#[derive(Debug, Clone)]
pub enum Does {
    /// One JSON body with this result.
    Result(Value),
    /// The same, written just so.
    ResultText(String),
    Error(i64, &'static str),
    /// An HTTP status with this body, without running anything.
    Status(u16, &'static str),
    StatusWith(u16, Vec<(&'static str, String)>, &'static str),
    /// An event stream.
    Stream(Vec<Piece>),
    /// 200 with this type and body, as they stand.
    Body(&'static str, Vec<u8>),
    /// Runs the tool, and says how often this session had run any before: `structuredContent.before`.
    Count,
    /// Reads the request and never answers.
    Hang,
    /// Runs the tool and closes the connection.
    RunThenClose,
}

/// A piece of an event stream.
#[derive(Debug, Clone)]
pub enum Piece {
    /// The tool has run from here on.
    Run,
    /// The answer to the request.
    Answer(Value),
    Message(Value),
    /// The request's progress token put in.
    Progress(Value),
    /// An event without data: an id, and a time to come again.
    Prime(&'static str, u64),
    Comment,
    Raw(&'static str),
    Wait(Duration),
    /// The end of an event that began with [`Piece::Raw`]: the request's id, as the last member.
    Id,
    /// Until the test says so.
    Held,
    /// What a listen asked for is promised to it.
    Acknowledged,
    /// For ever what the test tells ([`ScriptedServer::tell`]), tagged where the request is a subscription.
    Told,
    /// For ever, a comment each.
    Drip(Duration),
}

/// A request that was read to its end.
#[derive(Debug, Clone)]
pub struct Seen {
    pub http: String,
    pub path: String,
    /// Which connection it came by.
    pub connection: u64,
    pub headers: Vec<(String, String)>,
    pub body: Value,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }
    pub fn method(&self) -> &str {
        self.body["method"].as_str().unwrap_or_default()
    }
    pub fn tool(&self) -> &str {
        self.body["params"]["name"].as_str().unwrap_or_default()
    }
    pub fn session(&self) -> &str {
        self.header("mcp-session-id").unwrap_or_default()
    }
}

#[derive(Debug)]
struct Book {
    era: Era,
    /// Pages of tools.
    pages: Vec<Vec<Value>>,
    /// Cursor of page n+1; "" is one.
    cursors: Vec<String>,
    capabilities: Value,
    scripts: BTreeMap<String, VecDeque<Does>>,
    seen: Vec<Seen>,
    /// (tool, session) of each run.
    runs: Vec<(String, String)>,
    sessions: Vec<String>,
    opened: u64,
    connections: u64,
    /// Sessions are known and refused with this instead of 404.
    lost: Option<u16>,
    get: Option<Vec<Piece>>,
    /// What requests to other paths than `/mcp` get.
    elsewhere: Option<Does>,
}

#[derive(Debug, Clone)]
pub enum Era {
    /// Answers `initialize` with this revision.
    Legacy(&'static str),
    /// Without sessions, strict about headers.
    Modern,
}

#[derive(Debug, Clone)]
pub struct ScriptedServer {
    address: SocketAddr,
    book: Arc<Mutex<Book>>,
    down: watch::Sender<()>,
    go: watch::Sender<bool>,
    telling: broadcast::Sender<Value>,
}

/// A tool's definition with a closed enough schema.
#[expect(clippy::needless_pass_by_value, reason = "reads well with json!")]
pub fn tool(name: &str, properties: Value) -> Value {
    json!({
        "name": name,
        "description": format!("Does {name}."),
        "inputSchema": {"type": "object", "properties": properties},
    })
}

impl ScriptedServer {
    pub async fn legacy(revision: &'static str, tools: Vec<Value>) -> Self {
        Self::start(Era::Legacy(revision), tools).await
    }
    pub async fn modern(tools: Vec<Value>) -> Self {
        Self::start(Era::Modern, tools).await
    }

    async fn start(era: Era, tools: Vec<Value>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let book = Book {
            era,
            pages: vec![tools],
            cursors: Vec::new(),
            capabilities: json!({"tools": {"listChanged": true}}),
            scripts: BTreeMap::new(),
            seen: Vec::new(),
            runs: Vec::new(),
            sessions: Vec::new(),
            opened: 0,
            connections: 0,
            lost: None,
            get: None,
            elsewhere: None,
        };
        let server = Self {
            address: listener.local_addr().expect("bound"),
            book: Arc::new(Mutex::new(book)),
            down: watch::Sender::new(()),
            go: watch::Sender::new(false),
            telling: broadcast::Sender::new(64),
        };
        server.serve(listener);
        server
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
                    tokio::select! {
                        _ = down.changed() => {}
                        () = each.connection(stream) => {}
                    }
                });
            }
        });
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("no test panics with the book open")
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }
    /// Connections break, new ones are refused.
    pub fn stop(&self) {
        self.down.send_replace(());
    }
    /// As after a crash: the same address, no session of before.
    pub async fn restart(&self) {
        self.stop();
        let listener = loop {
            match TcpListener::bind(self.address).await {
                Ok(listener) => break listener,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        self.book().sessions.clear();
        self.serve(listener);
    }
    /// Forgets what was seen: a long test keeps no book of it.
    pub fn forget_seen(&self) {
        let mut book = self.book();
        book.seen.clear();
        book.runs.clear();
    }
    /// Lets streams go on that wait at [`Piece::Held`].
    pub fn go(&self) {
        self.go.send_replace(true);
    }
    /// What a method, or a tool's call, gets in turn; the last one for ever.
    pub fn script(&self, what: &str, does: impl IntoIterator<Item = Does>) {
        self.book().scripts.insert(what.to_owned(), does.into_iter().collect());
    }
    /// On every stream that is at [`Piece::Told`].
    #[expect(clippy::needless_pass_by_value, reason = "reads well with json!")]
    pub fn tell(&self, method: &str, params: Value) {
        drop(self.telling.send(json!({"jsonrpc": "2.0", "method": method, "params": params})));
    }
    /// Streams that are told.
    pub fn hearers(&self) -> usize {
        self.telling.receiver_count()
    }
    pub fn set_pages(&self, pages: Vec<Vec<Value>>, cursors: &[&str]) {
        let mut book = self.book();
        book.pages = pages;
        book.cursors = cursors.iter().map(|c| (*c).to_owned()).collect();
    }
    pub fn set_capabilities(&self, capabilities: Value) {
        self.book().capabilities = capabilities;
    }
    /// What a GET gets; without it 405.
    pub fn set_get(&self, pieces: Vec<Piece>) {
        self.book().get = Some(pieces);
    }
    /// What a request that is no message of MCP gets.
    pub fn elsewhere(&self, does: Does) {
        self.book().elsewhere = Some(does);
    }
    /// Every session so far is forgotten, and told so by this status.
    pub fn forget_sessions(&self, status: u16) {
        let mut book = self.book();
        book.sessions.clear();
        book.lost = Some(status);
    }
    pub fn seen(&self) -> Vec<Seen> {
        self.book().seen.clone()
    }
    /// Requests of a method.
    pub fn of(&self, method: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.method() == method).collect()
    }
    /// How often a tool was really run.
    pub fn runs(&self, tool: &str) -> usize {
        self.book().runs.iter().filter(|(name, _)| name == tool).count()
    }

    fn run(&self, seen: &Seen) {
        let run = (seen.tool().to_owned(), seen.session().to_owned());
        self.book().runs.push(run);
    }

    async fn connection(&self, mut stream: TcpStream) {
        let mut buffer = Vec::new();
        let connection = {
            let mut book = self.book();
            book.connections += 1;
            book.connections
        };
        while let Some(mut seen) = read_request(&mut stream, &mut buffer).await {
            seen.connection = connection;
            self.book().seen.push(seen.clone());
            if self.answer(&mut stream, &seen).await.is_none() {
                return;
            }
        }
    }

    /// `None` = the connection is over.
    async fn answer(&self, stream: &mut TcpStream, seen: &Seen) -> Option<()> {
        let elsewhere = self.book().elsewhere.clone().filter(|_| seen.path != "/mcp");
        if let Some(does) = elsewhere {
            return self.perform(stream, seen, does, &[]).await;
        }
        if let Some((status, body)) = self.refusal(seen) {
            return write(stream, status, &[], "application/json", body.as_bytes()).await;
        }
        if seen.http == "GET" {
            let pieces = self.book().get.clone();
            return match pieces {
                Some(pieces) => self.stream(stream, seen, pieces, &[]).await,
                None => write(stream, 405, &[], "text/plain", b"").await,
            };
        }
        if seen.http == "DELETE" {
            self.book().sessions.retain(|session| session != seen.session());
            return write(stream, 200, &[], "text/plain", b"").await;
        }
        if seen.body.get("id").is_none() || seen.body.get("method").is_none() {
            return write(stream, 202, &[], "text/plain", b"").await;
        }
        let does = self.scripted(seen).unwrap_or_else(|| self.usual(seen));
        let session = self.session_of(seen, &does);
        let more: Vec<(&str, String)> =
            session.into_iter().map(|session| ("mcp-session-id", session)).collect();
        self.perform(stream, seen, does, &more).await
    }

    /// What a sound server refuses before it looks at the method.
    fn refusal(&self, seen: &Seen) -> Option<(u16, String)> {
        let book = self.book();
        match &book.era {
            Era::Legacy(_) => {
                let id = seen.session();
                let named = !id.is_empty();
                if named && !book.sessions.iter().any(|one| one == id) {
                    let status = book.lost.unwrap_or(404);
                    // Some servers say so in an answer to the very request.
                    let body = match seen.body.get("id") {
                        Some(id) if status == 404 => error_body(id, -32001, "no session"),
                        Some(_) | None => r#"{"error":"no session"}"#.into(),
                    };
                    return Some((status, body));
                }
                (!named && seen.method() != "initialize" && !seen.method().is_empty()).then(|| {
                    let words = "Bad Request: Server not initialized";
                    (400, error_body(&Value::Null, -32000, words))
                })
            }
            Era::Modern => {
                let params = &seen.body["params"];
                let meta = &params["_meta"];
                let version = meta["io.modelcontextprotocol/protocolVersion"].as_str();
                let name = params["name"].as_str().or(params["uri"].as_str());
                let name = name.or(params["taskId"].as_str());
                let wants_name = matches!(
                    seen.method(),
                    "tools/call" | "resources/read" | "prompts/get" | "tasks/get" | "tasks/cancel"
                );
                let sound = version == seen.header("mcp-protocol-version")
                    && seen.header("mcp-method") == Some(seen.method())
                    && (!wants_name || seen.header("mcp-name") == name)
                    && seen.session().is_empty()
                    && meta["io.modelcontextprotocol/clientCapabilities"].is_object();
                (!sound && seen.http == "POST")
                    .then(|| (400, error_body(&seen.body["id"], -32020, "header mismatch")))
            }
        }
    }

    fn scripted(&self, seen: &Seen) -> Option<Does> {
        let mut book = self.book();
        let name = if seen.method() == "tools/call" { seen.tool() } else { seen.method() };
        let script = book.scripts.get_mut(name)?;
        if script.len() > 1 { script.pop_front() } else { script.front().cloned() }
    }

    fn usual(&self, seen: &Seen) -> Does {
        let (era, capabilities, pages, cursors) = {
            let book = self.book();
            (book.era.clone(), book.capabilities.clone(), book.pages.clone(), book.cursors.clone())
        };
        let params = &seen.body["params"];
        let modern = matches!(era, Era::Modern);
        match (seen.method(), era) {
            ("initialize", Era::Legacy(revision)) => Does::Result(json!({
                "protocolVersion": revision,
                "capabilities": capabilities,
                "serverInfo": {"name": "scripted", "version": "1"},
            })),
            ("server/discover", Era::Modern) => Does::Result(json!({
                "resultType": "complete",
                "supportedVersions": ["2026-07-28"],
                "capabilities": capabilities,
                "ttlMs": 60_000,
                "cacheScope": "private",
            })),
            ("tools/list", _) => {
                let at = match params["cursor"].as_str() {
                    None => 0,
                    Some(cursor) => {
                        cursors.iter().position(|one| one == cursor).map_or(usize::MAX, |n| n + 1)
                    }
                };
                let Some(page) = pages.get(at) else { return Does::Error(-32602, "bad cursor") };
                let mut result = json!({"tools": page});
                if let Some(next) = cursors.get(at) {
                    result["nextCursor"] = json!(next);
                }
                Does::Result(complete(result, modern))
            }
            ("tools/call", _) => {
                self.run(seen);
                let text = json!({"tool": seen.tool(), "arguments": params["arguments"]});
                let content = json!([{"type": "text", "text": text.to_string()}]);
                Does::Result(complete(json!({"content": content}), modern))
            }
            ("subscriptions/listen", Era::Modern) => {
                Does::Stream(vec![Piece::Acknowledged, Piece::Told])
            }
            _ if modern => Does::StatusWith(
                404,
                Vec::new(),
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"no such method"}}"#,
            ),
            _ => Does::Error(-32601, "Method not found"),
        }
    }

    /// A session that an answer to `initialize` begins.
    fn session_of(&self, seen: &Seen, does: &Does) -> Option<String> {
        let mut book = self.book();
        let begins = seen.method() == "initialize"
            && matches!(book.era, Era::Legacy(_))
            && matches!(does, Does::Result(_));
        begins.then(|| {
            book.opened += 1;
            let session = format!("session-{}", book.opened);
            book.sessions.push(session.clone());
            session
        })
    }

    async fn perform(
        &self,
        stream: &mut TcpStream,
        seen: &Seen,
        does: Does,
        more: &[(&str, String)],
    ) -> Option<()> {
        let id = &seen.body["id"];
        match does {
            Does::Result(result) => {
                let body = json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
                write(stream, 200, more, "application/json", body.as_bytes()).await
            }
            Does::ResultText(result) => {
                let body = format!(r#"{{"jsonrpc": "2.0", "result": {result}, "id": {id}}}"#);
                write(stream, 200, more, "application/json", body.as_bytes()).await
            }
            Does::Error(code, words) => {
                let body = error_body(id, code, words);
                write(stream, 200, more, "application/json", body.as_bytes()).await
            }
            Does::Status(status, body) => {
                write(stream, status, more, "application/json", body.as_bytes()).await
            }
            Does::StatusWith(status, headers, body) => {
                write(stream, status, &headers, "application/json", body.as_bytes()).await
            }
            Does::Body(media, body) => write(stream, 200, more, media, &body).await,
            Does::Stream(pieces) => self.stream(stream, seen, pieces, more).await,
            Does::Count => {
                let runs = |(_, session): &&(String, String)| session == seen.session();
                let before = self.book().runs.iter().filter(runs).count();
                self.run(seen);
                let result = json!({"content": [], "structuredContent": {"before": before}});
                let body = json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
                write(stream, 200, more, "application/json", body.as_bytes()).await
            }
            Does::Hang => std::future::pending().await,
            Does::RunThenClose => {
                self.run(seen);
                None
            }
        }
    }

    async fn told(&self, stream: &mut TcpStream, seen: &Seen) -> Option<()> {
        let mut telling = self.telling.subscribe();
        loop {
            let mut byte = [0];
            let mut message = tokio::select! {
                message = telling.recv() => message.ok()?,
                // The other side says nothing more: it is gone.
                _ = stream.read(&mut byte) => return None,
            };
            if seen.method() == "subscriptions/listen" {
                message["params"]["_meta"] = subscription(&seen.body["id"]);
            }
            let text = format!("event: message\ndata: {message}\n\n");
            stream.write_all(text.as_bytes()).await.ok()?;
        }
    }

    async fn stream(
        &self,
        stream: &mut TcpStream,
        seen: &Seen,
        pieces: Vec<Piece>,
        more: &[(&str, String)],
    ) -> Option<()> {
        let mut head =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
                .to_owned();
        for (name, value) in more {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).await.ok()?;
        let id = &seen.body["id"];
        let event = |data: &Value| format!("event: message\ndata: {data}\n\n");
        let answer = |result: &Value| json!({"jsonrpc": "2.0", "id": id, "result": result});
        for piece in pieces {
            let text = match piece {
                Piece::Run => {
                    self.run(seen);
                    continue;
                }
                Piece::Answer(result) => event(&answer(&result)),
                Piece::Message(message) => event(&message),
                Piece::Progress(mut params) => {
                    params["progressToken"] = seen.body["params"]["_meta"]["progressToken"].clone();
                    let method = "notifications/progress";
                    event(&json!({"jsonrpc": "2.0", "method": method, "params": params}))
                }
                Piece::Prime(name, retry) => format!("id: {name}\nretry: {retry}\ndata:\n\n"),
                Piece::Comment => ": still here\n\n".into(),
                Piece::Raw(text) => text.into(),
                Piece::Id => format!("data: \"id\":{id}}}\n\n"),
                Piece::Wait(time) => {
                    tokio::time::sleep(time).await;
                    continue;
                }
                Piece::Held => {
                    self.go.subscribe().wait_for(|go| *go).await.ok()?;
                    continue;
                }
                Piece::Acknowledged => {
                    let wanted = &seen.body["params"]["notifications"];
                    let params = json!({"notifications": wanted, "_meta": subscription(id)});
                    let method = "notifications/subscriptions/acknowledged";
                    event(&json!({"jsonrpc": "2.0", "method": method, "params": params}))
                }
                Piece::Told => return self.told(stream, seen).await,
                Piece::Drip(every) => loop {
                    stream.write_all(b": drip\n\n").await.ok()?;
                    tokio::time::sleep(every).await;
                },
            };
            stream.write_all(text.as_bytes()).await.ok()?;
        }
        None
    }
}

fn subscription(id: &Value) -> Value {
    json!({"io.modelcontextprotocol/subscriptionId": id})
}

fn complete(mut result: Value, modern: bool) -> Value {
    if modern {
        result["resultType"] = json!("complete");
    }
    result
}

fn error_body(id: &Value, code: i64, words: &str) -> String {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": words}}).to_string()
}

async fn write(
    stream: &mut TcpStream,
    status: u16,
    more: &[(&str, String)],
    media: &str,
    body: &[u8],
) -> Option<()> {
    let mut head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: {media}\r\ncontent-length: {}\r\n",
        body.len()
    );
    for (name, value) in more {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).await.ok()?;
    stream.write_all(body).await.ok()
}

async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Seen> {
    let end = loop {
        if let Some(at) = buffer.windows(4).position(|w| w == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ').map(str::to_owned);
    let (http, path) = (first.next()?, first.next()?);
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect();
    let length = headers
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or(0);
    while buffer.len() < end + 4 + length {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    let body = &buffer[end + 4..end + 4 + length];
    let body = match body.is_empty() {
        true => Value::Null,
        false => strict_json::parse(body, Limits::answer(1 << 24)).expect("we send JSON"),
    };
    buffer.drain(..end + 4 + length);
    Some(Seen { http, path, connection: 0, headers, body })
}
