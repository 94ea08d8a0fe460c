//! A small blocking HTTP client of the tests' own: one request a connection, whole answers, loopback only.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// Longer than any limit under test: a test that waits this long has found a fault.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines.map(|(name, value)| (name.trim(), value.trim()))
    }

    #[expect(clippy::disallowed_methods, reason = "the test reads what it made happen itself")]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// `url` is `http://127.0.0.1:PORT/path`; a body is sent as JSON.
pub(crate) fn request(
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
    body: Option<&Value>,
) -> io::Result<Answer> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let mut headers = headers.to_vec();
    if !body.is_empty() {
        headers.push(("Content-Type", "application/json"));
    }
    exchange(method, url, &headers, body.as_bytes())
}

/// The same with a body of any kind, whose media type is among the headers.
pub(crate) fn exchange(
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<Answer> {
    let (host, path) = parts(url);
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    stream.write_all(body)?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    read(&bytes).ok_or_else(|| {
        io::Error::other(format!("no HTTP in {:?}", String::from_utf8_lossy(&bytes)))
    })
}

pub(crate) fn get(url: &str) -> io::Result<Answer> {
    request("GET", url, &[], None)
}

pub(crate) fn post(url: &str, body: &Value) -> io::Result<Answer> {
    request("POST", url, &[], Some(body))
}

fn parts(url: &str) -> (&str, &str) {
    let rest = url.strip_prefix("http://").expect("plain HTTP on loopback");
    rest.find('/').map_or((rest, "/"), |at| rest.split_at(at))
}

fn read(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let raw = &bytes[end + 4..];
    let mut answer = Answer { status, head, body: raw.to_vec() };
    if answer.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked"))
    {
        answer.body = unchunked(raw)?;
    }
    Some(answer)
}

fn unchunked(mut raw: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = raw.windows(2).position(|two| two == b"\r\n")?;
        let size = usize::from_str_radix(
            std::str::from_utf8(&raw[..line]).ok()?.split(';').next()?.trim(),
            16,
        )
        .ok()?;
        raw = &raw[line + 2..];
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(raw.get(..size)?);
        raw = raw.get(size + 2..)?;
    }
}
