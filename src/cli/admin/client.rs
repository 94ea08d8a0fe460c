//! One request to the admin listener, over TCP or its Unix socket: written, answered, closed.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::Failure;
use crate::admin::{Token, tokens};
use crate::config::Listen;
use crate::strict_json::{self, Limits};

/// A gateway that does not answer by then is not there.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest answer that is read.
const MAX_ANSWER: usize = 16 << 20;

pub(super) struct Client {
    to: Listen,
    token: Option<Token>,
    who: Option<String>,
}

pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) etag: Option<String>,
    pub(super) body: Value,
}

impl Client {
    pub(super) fn new(
        to: &Listen,
        file: Option<&Path>,
        name: Option<&str>,
    ) -> Result<Self, String> {
        let (to, who) = (to.clone(), name.map(str::to_owned));
        let Some(file) = file else { return Ok(Self { to, token: None, who }) };
        let shown = file.display();
        let text = fs::read_to_string(file).map_err(|error| format!("{shown}: {error}"))?;
        let mut known = tokens(&text).map_err(|error| format!("{shown}: {error}"))?;
        let named = known.iter().position(|token| Some(token.name.as_str()) == name);
        if let Some(at) = named {
            return Ok(Self { to, token: Some(known.swap_remove(at)), who: None });
        }
        match (known.pop(), known.is_empty()) {
            (token, true) => Ok(Self { to, token, who }),
            (_, false) => Err(format!("{shown} holds several tokens: say whose by --as NAME")),
        }
    }

    /// The name that the token does not say.
    pub(super) fn who(&self) -> Option<&str> {
        self.who.as_deref()
    }

    pub(super) fn get(&self, path: &str) -> Result<Answer, Failure> {
        self.ask("GET", path, None, b"")
    }

    /// `version`: what was decided on, as an earlier answer's `etag`.
    pub(super) fn post(
        &self,
        path: &str,
        version: Option<&str>,
        body: &Value,
    ) -> Result<Answer, Failure> {
        self.ask("POST", path, version, body.to_string().as_bytes())
    }

    fn ask(
        &self,
        method: &str,
        path: &str,
        version: Option<&str>,
        body: &[u8],
    ) -> Result<Answer, Failure> {
        let host = match &self.to {
            Listen::Tcp(address) => address.to_string(),
            Listen::Unix(_) => "localhost".to_owned(),
        };
        let mut head =
            format!("{method} /admin/v1/{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n");
        if let Some(token) = &self.token {
            head.push_str(&format!("authorization: Bearer {}\r\n", token.secret()));
        }
        if let Some(version) = version {
            head.push_str(&format!("if-match: {version}\r\n"));
        }
        if method == "POST" {
            head.push_str("content-type: application/json\r\n");
        }
        head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
        let mut request = head.into_bytes();
        request.extend_from_slice(body);
        let unreachable = |error: io::Error| Failure::Unreachable(error.to_string());
        let bytes = self.exchange(&request).map_err(unreachable)?;
        parse(&bytes).ok_or_else(|| Failure::Unreachable("that is no answer of a gateway".into()))
    }

    fn exchange(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        match &self.to {
            Listen::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, PATIENCE)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                whole(stream, request)
            }
            Listen::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                whole(stream, request)
            }
        }
    }
}

fn whole(mut stream: impl Read + Write, request: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(request)?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER as u64).read_to_end(&mut answer)?;
    Ok(answer)
}

fn parse(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let (head, body) = bytes.split_at_checked(end)?;
    let head = std::str::from_utf8(head).ok()?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let etag = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("etag").then(|| value.trim().to_owned())
    });
    let body = strict_json::parse(body.get(4..)?, Limits::answer(MAX_ANSWER)).ok()?;
    Some(Answer { status, etag, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_status_and_json() {
        let answer =
            parse(b"HTTP/1.1 412 X\r\nETag: \"0-1-open\"\r\n\r\n{\"a\":1}").expect("sound");
        assert_eq!((answer.status, answer.etag.as_deref()), (412, Some("\"0-1-open\"")));
        for other in ["", "HTTP/1.1 200 OK\r\n\r\n", "SSH-2.0\r\n\r\n{}", "HTTP/1.1 2\r\n\r\n{}"] {
            assert!(parse(other.as_bytes()).is_none(), "{other}");
        }
    }

    #[test]
    fn of_several_tokens_a_name_picks_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("tokens");
        fs::write(&file, "ada 0123456789abcdef\ngrace fedcba9876543210\n").expect("written");
        let to = "127.0.0.1:1".parse().expect("an address");
        let client = Client::new(&to, Some(&file), Some("grace")).expect("named");
        assert_eq!(client.token.expect("hers").name, "grace");
        assert!(Client::new(&to, Some(&file), None).is_err());
        fs::write(&file, "0123456789abcdef").expect("written");
        let client = Client::new(&to, Some(&file), Some("grace")).expect("the one token");
        assert_eq!((client.who.as_deref(), client.token.is_some()), (Some("grace"), true));
    }
}
