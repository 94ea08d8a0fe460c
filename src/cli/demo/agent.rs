//! The scripted order agent: speaks the gateway's OpenAI Chat batches over HTTP, as any agent process would.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use super::DemoError;
use crate::strict_json::{self, Limits};

/// More than any answer of the demo.
const MAX_ANSWER: usize = 1 << 20;

/// One agent process and its run.
#[derive(Debug, Clone)]
pub(super) struct Agent {
    gateway: SocketAddr,
    run: String,
}

/// What came back for one assistant message.
#[derive(Debug)]
pub(super) struct Turned {
    pub(super) state: String,
    /// Call id and answer object, in order.
    pub(super) answers: Vec<(String, Value)>,
}

impl Turned {
    /// The answer's code, `ok` for a success, empty where there is no such answer.
    pub(super) fn code(&self, at: usize) -> &str {
        match self.answers.get(at) {
            Some((_, answer)) if answer.get("ok") == Some(&Value::Bool(true)) => "ok",
            Some((_, answer)) => answer.get("error").and_then(Value::as_str).unwrap_or_default(),
            None => "",
        }
    }
    pub(super) fn answer(&self, at: usize) -> &Value {
        self.answers.get(at).map_or(&Value::Null, |(_, answer)| answer)
    }
}

impl Agent {
    pub(super) fn new(gateway: SocketAddr, run: &str) -> Self {
        Self { gateway, run: run.to_owned() }
    }

    /// Posts an assistant message that asks for these calls: (id, tool, arguments as JSON text).
    pub(super) async fn ask(&self, calls: &[(&str, &str, &str)]) -> Result<Turned, DemoError> {
        let calls: Vec<Value> = calls
            .iter()
            .map(|(id, tool, arguments)| json!({"id": id, "type": "function", "function": {"name": tool, "arguments": arguments}}))
            .collect();
        self.post(&json!({"role": "assistant", "content": null, "tool_calls": calls})).await
    }

    /// Posts an assistant message that only speaks.
    pub(super) async fn say(&self, text: &str) -> Result<Turned, DemoError> {
        self.post(&json!({"role": "assistant", "content": text})).await
    }

    async fn post(&self, message: &Value) -> Result<Turned, DemoError> {
        let body = exchange(
            self.gateway,
            Method::POST,
            "/v1/batches/openai-chat",
            &self.run,
            message.to_string(),
        )
        .await?;
        let state = body.get("state").and_then(Value::as_str).unwrap_or_default().to_owned();
        let messages = body.get("messages").and_then(Value::as_array).cloned().unwrap_or_default();
        let mut answers = Vec::with_capacity(messages.len());
        for message in &messages {
            let text = message.get("content").and_then(Value::as_str).unwrap_or_default();
            let answer = strict_json::parse(text.as_bytes(), Limits::answer(MAX_ANSWER))
                .map_err(|fault| DemoError::Http(format!("an answer that is not JSON: {fault}")))?;
            answers.push((
                message.get("tool_call_id").and_then(Value::as_str).unwrap_or_default().to_owned(),
                answer,
            ));
        }
        Ok(Turned { state, answers })
    }
}

/// One request on a connection of its own; the answer as JSON.
async fn exchange(
    gateway: SocketAddr,
    method: Method,
    path: &str,
    run: &str,
    body: String,
) -> Result<Value, DemoError> {
    let fault =
        |what: &str, error: &dyn std::fmt::Display| DemoError::Http(format!("{what}: {error}"));
    #[expect(
        clippy::disallowed_methods,
        reason = "the demo's agent dials its own gateway, not a tool"
    )]
    let stream = tokio::net::TcpStream::connect(gateway)
        .await
        .map_err(|e| fault("cannot reach the gateway", &e))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|e| fault("no HTTP", &e))?;
    tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::HOST, "gateway")
        .header(http::header::CONTENT_TYPE, "application/json")
        .header("checkrein-run", run)
        .body(Full::new(Bytes::from(body)))
        .map_err(|e| fault("no request", &e))?;
    let response = sender.send_request(request).await.map_err(|e| fault("no answer", &e))?;
    #[expect(clippy::disallowed_methods, reason = "bounded by Limited")]
    let bytes = Limited::new(response.into_body(), MAX_ANSWER)
        .collect()
        .await
        .map_err(|e| fault("answer cut off", &e))?
        .to_bytes();
    strict_json::parse(&bytes, Limits::answer(MAX_ANSWER))
        .map_err(|e| fault("an answer that is not JSON", &e))
}
