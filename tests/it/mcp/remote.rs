//! An agent that speaks MCP to a whole gateway over a socket, and may stop reading whenever it likes.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::peer::{as_pairs, initialize, modern, parse};
use crate::support::http;

/// What every client sends.
const USUAL: [(&str, &str); 2] =
    [("content-type", "application/json"), ("accept", "application/json, text/event-stream")];

#[derive(Debug)]
pub(crate) struct Remote {
    address: SocketAddr,
    fields: Vec<(String, String)>,
    modern: bool,
    capabilities: Value,
    ids: AtomicU64,
}

impl Remote {
    pub(crate) async fn open(address: SocketAddr, revision: &str) -> Self {
        Self::open_with(address, revision, &json!({}), &[]).await
    }

    /// `fields`: of every request.
    pub(crate) async fn open_with(
        address: SocketAddr,
        revision: &str,
        capabilities: &Value,
        fields: &[(&str, &str)],
    ) -> Self {
        let mut fields: Vec<(String, String)> =
            fields.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let modern = revision == "2026-07-28";
        if !modern {
            let body = initialize(revision, capabilities);
            let all = all(&fields, &[], address);
            let got =
                http::request(address, "POST", "/mcp", &as_pairs(&all), body.as_bytes()).await;
            let session = got.header("mcp-session-id").expect("a session").to_owned();
            fields.push(("mcp-session-id".into(), session));
        }
        let capabilities = capabilities.clone();
        Self { address, fields, modern, capabilities, ids: AtomicU64::new(1) }
    }

    pub(crate) fn is_modern(&self) -> bool {
        self.modern
    }

    fn written(&self, method: &str, params: &Value) -> (Vec<(String, String)>, String) {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        if self.modern {
            let mut params = params.clone();
            params["_meta"]["io.modelcontextprotocol/clientCapabilities"] =
                self.capabilities.clone();
            return modern(&id.to_string(), method, &params);
        }
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        (Vec::new(), body.to_string())
    }

    /// The answer, also where it is the last event of a stream.
    pub(crate) async fn ask(&self, method: &str, params: &Value) -> Value {
        let (more, body) = self.written(method, params);
        let fields = all(&self.fields, &more, self.address);
        let fields = as_pairs(&fields);
        let got = http::request(self.address, "POST", "/mcp", &fields, body.as_bytes()).await;
        let said = got.text();
        let events = said.lines().filter_map(|line| line.strip_prefix("data: "));
        let message = events.rev().find(|data| data.contains(r#""id""#)).unwrap_or(&said);
        parse(message.as_bytes())
    }

    pub(crate) async fn call(&self, tool: &str, arguments: &Value) -> Value {
        let got = self.ask("tools/call", &json!({"name": tool, "arguments": arguments})).await;
        got.get("result").unwrap_or_else(|| panic!("no result: {got}")).clone()
    }

    pub(crate) async fn tools(&self) -> Vec<String> {
        let listed = self.ask("tools/list", &json!({})).await;
        let tools = listed["result"]["tools"].as_array().unwrap_or_else(|| panic!("{listed}"));
        tools.iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect()
    }

    /// Whatever this is, in its session or in a request that says its revision.
    pub(crate) async fn raw(&self, body: &str) -> http::Answer {
        let revision = [("mcp-protocol-version".to_owned(), "2026-07-28".to_owned())];
        let own: &[(String, String)] = if self.modern { &revision } else { &[] };
        let fields = all(&self.fields, own, self.address);
        http::request(self.address, "POST", "/mcp", &as_pairs(&fields), body.as_bytes()).await
    }

    /// The stream of its session, or one that listens to these; not yet read.
    pub(crate) async fn listen(&self, filter: &Value) -> TcpStream {
        if self.modern {
            let params = json!({ "notifications": filter });
            return self.send("subscriptions/listen", &params, &[]).await;
        }
        let mut fields = all(&self.fields, &[], self.address);
        fields.retain(|(name, _)| name != "accept");
        fields.push(("accept".into(), "text/event-stream".into()));
        let mut stream = TcpStream::connect(self.address).await.expect("it listens");
        let bytes = http::bytes_of("GET", "/mcp", &as_pairs(&fields), b"");
        stream.write_all(&bytes).await.expect("taken");
        stream
    }

    /// A request that is sent and not yet read.
    pub(crate) async fn send(
        &self,
        method: &str,
        params: &Value,
        more: &[(&str, &str)],
    ) -> TcpStream {
        let (own, body) = self.written(method, params);
        let mut fields = all(&self.fields, &own, self.address);
        fields.extend(more.iter().map(|(name, value)| ((*name).into(), (*value).into())));
        let mut stream = TcpStream::connect(self.address).await.expect("it listens");
        let bytes = http::bytes_of("POST", "/mcp", &as_pairs(&fields), body.as_bytes());
        stream.write_all(&bytes).await.expect("taken");
        stream
    }
}

fn all(
    own: &[(String, String)],
    more: &[(String, String)],
    address: SocketAddr,
) -> Vec<(String, String)> {
    let usual = USUAL.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let host = ("host".to_owned(), address.to_string());
    own.iter().cloned().chain(more.iter().cloned()).chain(usual).chain([host]).collect()
}

/// Reads until this text has come; what has been read. Fails where the stream ends before.
pub(crate) async fn until(stream: &mut TcpStream, text: &str) -> String {
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains(text) {
        let n = stream.read_buf(&mut read).await.expect("readable");
        assert!(n > 0, "it ended: {}", String::from_utf8_lossy(&read));
    }
    String::from_utf8_lossy(&read).into_owned()
}
