//! Agents that speak HTTP/2 in clear text, with prior knowledge.

use std::net::SocketAddr;
use std::time::Duration;

use ::http::{Method, Request, Response};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::http2::{
    CANCEL, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, SETTINGS, field, frame,
    read_frame,
};
use crate::support::{Fixture, Gateway, Reply, ScriptedTool, http, wait_for};

const SOON: Duration = Duration::from_secs(10);

type Client = SendRequest<Full<Bytes>>;

async fn client(to: SocketAddr) -> Client {
    let stream = TcpStream::connect(to).await.expect("the gateway listens");
    let (client, connection) =
        handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
    tokio::spawn(connection);
    client
}

async fn ask(
    client: &Client,
    (method, path): (Method, &str),
    fields: &[(&str, &str)],
    body: &str,
) -> Response<Incoming> {
    let whole = format!("http://localhost{path}");
    let uri = if path.starts_with('/') { &*whole } else { path };
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::from(body.to_owned())).expect("a request");
    client.clone().send_request(request).await.expect("an answer")
}

async fn json_of(response: Response<Incoming>) -> Value {
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    serde_json::from_slice(&bytes).unwrap_or_else(|_| panic!("{bytes:?}"))
}

const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn one_connection_carries_the_tools_api_batches_and_mcp_at_once() {
    let tool = ScriptedTool::start().await;
    tool.script("/docs/slow", [Reply::Hang]);
    let gateway = Fixture::new().start(&tool).await;
    let client = client(gateway.data).await;
    // One that waits does not hold the others back.
    let waiting = {
        let client = client.clone();
        tokio::spawn(async move {
            ask(&client, (Method::POST, "/v1/tools/get_doc"), &[JSON], r#"{"id":"slow"}"#).await
        })
    };
    wait_for("the slow call", SOON, async || tool.hits("/docs/slow") > 0).await;
    tool.script("/docs/a", [Reply::Json(r#"{"a":1}"#.into())]);
    let got = ask(&client, (Method::POST, "/v1/tools/get_doc"), &[JSON], r#"{"id":"a"}"#).await;
    assert_eq!(got.status(), 200);
    assert_eq!(json_of(got).await["value"]["a"], 1);
    let listed = ask(&client, (Method::GET, "/v1/tools"), &[], "").await;
    assert!(json_of(listed).await.to_string().contains("get_doc"));
    let accept = ("accept", "application/json, text/event-stream");
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
    let mcp = format!("http://{}/mcp", gateway.data);
    let met = ask(&client, (Method::POST, &*mcp), &[JSON, accept], &hello.to_string()).await;
    assert_eq!(met.status(), 200);
    assert!(met.headers().contains_key("mcp-session-id"));
    assert_eq!(json_of(met).await["result"]["protocolVersion"], "2025-11-25");
    assert!(!waiting.is_finished());
    waiting.abort();
}

#[tokio::test]
async fn a_head_or_a_body_over_its_bound_is_told_so_and_its_connection_goes_on() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    let client = client(gateway.data).await;
    let long = "v".repeat(40 * 1024);
    let got = ask(&client, (Method::GET, "/v1/tools"), &[("x-long", &long)], "").await;
    assert_eq!(got.status(), 431);
    assert!(json_of(got).await["detail"].as_str().expect("text").contains("32768 bytes"));
    let body = format!(r#"{{"id":"{}"}}"#, "x".repeat(2 << 20));
    let got = ask(&client, (Method::POST, "/v1/tools/get_doc"), &[JSON], &body).await;
    assert_eq!(got.status(), 413);
    let got = ask(&client, (Method::GET, "/v1/tools"), &[("host", "elsewhere")], "").await;
    assert_eq!(got.status(), 400, "two hosts");
    let got = ask(&client, (Method::GET, "/v1/tools"), &[], "").await;
    assert_eq!(got.status(), 200);
}

/// A client whose every frame is the test's own.
struct Raw(TcpStream);

impl Raw {
    async fn open(to: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(to).await.expect("the gateway listens");
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("taken");
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.expect("taken");
        Self(stream)
    }

    /// `GET path` as the static table spells it (RFC 7541, appendix A), whole.
    fn get(stream: u32, path: &str) -> Vec<u8> {
        let mut block = vec![0x82, 0x86, 0x04, u8::try_from(path.len()).expect("short")];
        block.extend_from_slice(path.as_bytes());
        block.extend_from_slice(&[0x01, 9]);
        block.extend_from_slice(b"localhost");
        block.extend(field("x-n", &stream.to_string()));
        frame(HEADERS, END_HEADERS | END_STREAM, stream, &block)
    }

    /// The next frame of this kind.
    async fn next(&mut self, wanted: u8) -> Option<(u32, Vec<u8>)> {
        loop {
            let (kind, _, id, payload) = read_frame(&mut self.0).await?;
            if kind == wanted {
                return Some((id, payload));
            }
        }
    }
}

async fn lives(gateway: &Gateway) {
    assert_eq!(http::get(gateway.data, "/v1/tools").await.status, 200);
}

#[tokio::test]
async fn streams_that_are_opened_and_reset_at_once_end_their_connection_alone() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    let mut raw = Raw::open(gateway.data).await;
    let mut flood = Vec::new();
    for n in 0..5_000_u32 {
        let stream = 2 * n + 1;
        flood.extend(Raw::get(stream, "/v1/tools"));
        flood.extend(frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes()));
    }
    // It may be cut before all of it is taken.
    drop(raw.0.write_all(&flood).await);
    let (_, why) = raw.next(GOAWAY).await.expect("it is told");
    assert_eq!(why[4..8], 11_u32.to_be_bytes(), "ENHANCE_YOUR_CALM");
    let mut rest = Vec::new();
    drop(raw.0.read_to_end(&mut rest).await);
    lives(&gateway).await;
}

#[tokio::test]
async fn one_stream_more_than_there_may_be_is_refused_and_was_not_processed() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    let mut raw = Raw::open(gateway.data).await;
    // Heads of uploads that never end.
    let most = checkrein::server::STREAMS;
    for n in 0..=most {
        let path = "/v1/tools/get_doc";
        let mut block = vec![0x83, 0x86, 0x04, u8::try_from(path.len()).expect("short")];
        block.extend_from_slice(path.as_bytes());
        block.extend_from_slice(&[0x01, 9]);
        block.extend_from_slice(b"localhost");
        block.extend(field("content-type", "application/json"));
        raw.0.write_all(&frame(HEADERS, END_HEADERS, 2 * n + 1, &block)).await.expect("taken");
    }
    let (stream, why) = raw.next(RST_STREAM).await.expect("it is told");
    assert_eq!((stream, &*why), (2 * most + 1, &7_u32.to_be_bytes()[..]), "REFUSED_STREAM");
    // The others go on.
    raw.0.write_all(&frame(DATA, END_STREAM, 1, br#"{"id":"a"}"#)).await.expect("taken");
    let (stream, _) = raw.next(HEADERS).await.expect("an answer");
    assert_eq!(stream, 1);
    lives(&gateway).await;
}

#[tokio::test]
async fn what_is_no_http2_after_its_preface_ends_its_connection_alone() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    for junk in [
        b"\xff\xff\xff\x00\x00\x00\x00\x00\x01".to_vec(),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0xff; 50]),
        frame(HEADERS, END_HEADERS | END_STREAM, 2, &[0x82]),
        frame(DATA, 0, 7, b"nobody asked"),
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".repeat(10),
    ] {
        let mut raw = Raw::open(gateway.data).await;
        drop(raw.0.write_all(&junk).await);
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(SOON, raw.0.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "{junk:?}");
    }
    lives(&gateway).await;
}
