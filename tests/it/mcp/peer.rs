//! An agent that speaks MCP over HTTP, by hand: it sees every byte of an answer.

use checkrein::frontends::Body;
use checkrein::identity::Peer;
use checkrein::mcp::sse::Decoder;
use checkrein::strict_json::{self, Limits};
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use crate::front_ends::kit::{House, request};

pub(crate) const ACCEPT: (&str, &str) = ("accept", "application/json, text/event-stream");
const JSON: (&str, &str) = ("content-type", "application/json");
pub(crate) const HOST: (&str, &str) = ("host", "localhost:7411");

/// What one HTTP request got.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// Every message, in order: one of a JSON answer, all of a stream.
    pub(crate) messages: Vec<Value>,
    pub(crate) bytes: usize,
}

impl Got {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("visible"))
    }

    /// The one answer.
    pub(crate) fn answer(&self) -> &Value {
        self.messages.last().expect("an answer")
    }

    pub(crate) fn result(&self) -> &Value {
        self.answer().get("result").unwrap_or_else(|| panic!("no result: {self:?}"))
    }

    pub(crate) fn code(&self) -> i64 {
        let code = self.answer().pointer("/error/code").and_then(Value::as_i64);
        code.unwrap_or_else(|| panic!("no error: {self:?}"))
    }

    /// The object a refusal says itself in, as the text block spells it.
    pub(crate) fn refusal(&self) -> Value {
        assert_eq!(self.result()["isError"], true, "{self:?}");
        let text = self.result()["content"][0]["text"].as_str().expect("a text block");
        strict_json::parse(text.as_bytes(), Limits::answer(1 << 20)).expect("JSON")
    }
}

pub(crate) fn parse(bytes: &[u8]) -> Value {
    strict_json::parse(bytes, Limits::answer(1 << 22)).expect("every message is JSON")
}

/// A stream, read event by event.
#[derive(Debug)]
pub(crate) struct Stream {
    body: Body,
    decoder: Decoder,
    ready: std::collections::VecDeque<(String, Value)>,
}

impl Stream {
    pub(crate) fn new(body: Body) -> Self {
        Self { body, decoder: Decoder::new(1 << 22), ready: std::collections::VecDeque::new() }
    }

    /// The next message; `None`: the stream is over.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        self.named().await.map(|(_, message)| message)
    }

    /// The next message, and the name of its event.
    pub(crate) async fn named(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some(named) = self.ready.pop_front() {
                return Some(named);
            }
            let data = self.body.frame().await?.expect("not cut").into_data().expect("data");
            let events = self.decoder.push(&data).expect("short events");
            let messages = events.into_iter().filter(|event| !event.data.is_empty());
            self.ready.extend(messages.map(|event| (event.id, parse(&event.data))));
        }
    }

    /// Goes away.
    pub(crate) fn end(&mut self) {
        self.body = Body::from(bytes::Bytes::new());
    }

    /// Reads one frame, which holds no message.
    pub(crate) async fn first(&mut self) {
        let data = self.body.frame().await.expect("a frame").expect("not cut");
        let data = data.into_data().expect("data");
        let events = self.decoder.push(&data).expect("short events");
        assert!(events.iter().all(|event| event.data.is_empty()), "{events:?}");
    }

    /// The name of the last event, one without a message too.
    pub(crate) fn last(&self) -> String {
        self.decoder.last_event_id().to_owned()
    }

    pub(crate) fn retry_ms(&self) -> Option<u64> {
        self.decoder.retry_ms()
    }
}

pub(crate) async fn got(response: http::Response<Body>) -> Got {
    let (parts, body) = response.into_parts();
    let kind = parts.headers.get("content-type").map_or("", |v| v.to_str().expect("visible"));
    let (mut messages, mut bytes) = (Vec::new(), 0);
    if kind == "text/event-stream" {
        let mut stream = Stream::new(body);
        while let Some(message) = stream.next().await {
            messages.push(message);
        }
    } else {
        let mut body = body;
        let mut all = Vec::new();
        while let Some(frame) = body.frame().await {
            all.extend_from_slice(frame.expect("whole").data_ref().expect("data"));
        }
        bytes = all.len();
        if !all.is_empty() {
            messages.push(parse(&all));
        }
    }
    Got { status: parts.status.as_u16(), headers: parts.headers, messages, bytes }
}

/// Sends as it is, with the fields every client sends unless others of the name are given.
pub(crate) fn build(
    method: &str,
    fields: &[(&str, &str)],
    body: &str,
) -> Request<Full<bytes::Bytes>> {
    let mut all: Vec<(&str, &str)> = fields.to_vec();
    for usual in [ACCEPT, JSON, HOST] {
        let given = fields.iter().any(|(name, _)| *name == usual.0);
        if !given && (method == "POST" || usual == HOST) {
            all.push(usual);
        }
    }
    all.retain(|(_, value)| *value != ABSENT);
    request(method, "/mcp", &all, body)
}

/// The value of a usual field that is to be left out.
pub(crate) const ABSENT: &str = "(absent)";

pub(crate) async fn raw(house: &House, method: &str, fields: &[(&str, &str)], body: &str) -> Got {
    raw_as(house, Peer::Loopback, method, fields, body).await
}

pub(crate) async fn raw_as(
    house: &House,
    peer: Peer,
    method: &str,
    fields: &[(&str, &str)],
    body: &str,
) -> Got {
    got(house.front_ends.clone().answer(peer, build(method, fields, body)).await).await
}

/// A session of a revision that has them.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) id: String,
    token: Option<String>,
}

pub(crate) fn initialize(version: &str, capabilities: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": version,
        "capabilities": capabilities,
        "clientInfo": {"name": "it", "version": "1"},
    }})
    .to_string()
}

impl Session {
    pub(crate) async fn open(house: &House) -> Self {
        Self::open_with(house, None, "2025-11-25", &json!({})).await
    }

    pub(crate) async fn open_as(house: &House, agent: &str) -> Self {
        Self::open_with(house, Some(agent), "2025-11-25", &json!({})).await
    }

    pub(crate) async fn open_with(
        house: &House,
        agent: Option<&str>,
        version: &str,
        capabilities: &Value,
    ) -> Self {
        let token = agent.map(|agent| format!("Bearer token-{agent}"));
        let mut session = Self { id: String::new(), token };
        let fields = session.fields();
        let fields: Vec<(&str, &str)> =
            fields.iter().filter(|(name, _)| *name != "mcp-session-id").copied().collect();
        let got = raw(house, "POST", &fields, &initialize(version, capabilities)).await;
        assert_eq!(got.status, 200, "{got:?}");
        assert_eq!(got.result()["protocolVersion"], version);
        session.id = got.header("mcp-session-id").to_owned();
        let noted = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        assert_eq!(session.post(house, noted).await.status, 202);
        session
    }

    pub(crate) fn fields(&self) -> Vec<(&str, &str)> {
        let mut fields = vec![("mcp-session-id", &*self.id)];
        if let Some(token) = &self.token {
            fields.push(("authorization", token));
        }
        fields
    }

    pub(crate) async fn post(&self, house: &House, body: &str) -> Got {
        raw(house, "POST", &self.fields(), body).await
    }

    pub(crate) async fn ask(&self, house: &House, id: &str, method: &str, params: &Value) -> Got {
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        self.post(house, &body).await
    }

    pub(crate) async fn call(&self, house: &House, id: &str, tool: &str, arguments: &Value) -> Got {
        self.ask(house, id, "tools/call", &json!({"name": tool, "arguments": arguments})).await
    }
}

/// `_meta` of a request without a session.
pub(crate) fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "it", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

pub(crate) fn with_meta(mut params: Value) -> Value {
    let mut meta = meta();
    if let Some(own) = params.get("_meta").and_then(Value::as_object) {
        for (key, value) in own {
            meta[key] = value.clone();
        }
    }
    params["_meta"] = meta;
    params
}

/// A request of revision 2026-07-28, sound in every header.
pub(crate) fn modern(id: &str, method: &str, params: &Value) -> (Vec<(String, String)>, String) {
    let params = with_meta(params.clone());
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
    let mut fields = vec![
        ("mcp-protocol-version".to_owned(), "2026-07-28".to_owned()),
        ("mcp-method".to_owned(), method.to_owned()),
    ];
    let member = checkrein::mcp::headers::name_member(method);
    if let Some(name) = member.and_then(|member| params[member].as_str()) {
        let name = checkrein::mcp::headers::encode(name).into_owned();
        fields.push(("mcp-name".to_owned(), name));
    }
    (fields, body)
}

pub(crate) fn as_pairs(fields: &[(String, String)]) -> Vec<(&str, &str)> {
    fields.iter().map(|(name, value)| (&**name, &**value)).collect()
}

pub(crate) async fn ask_modern(
    house: &House,
    agent: Option<&str>,
    id: &str,
    method: &str,
    params: &Value,
) -> Got {
    let (mut fields, body) = modern(id, method, params);
    if let Some(agent) = agent {
        fields.push(("authorization".to_owned(), format!("Bearer token-{agent}")));
    }
    raw(house, "POST", &as_pairs(&fields), &body).await
}
