//! One exchange with a running gateway over HTTP: a connection of its own, headers, then the body as it comes.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderName, HeaderValue, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::config::BadSetting;

/// Where a gateway listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// `HOST:PORT`
    Tcp(String),
    Unix(PathBuf),
}

impl FromStr for Place {
    type Err = BadSetting;

    /// `http://HOST:PORT`, with `/mcp` or without; `HOST:PORT`; `unix:PATH`.
    fn from_str(text: &str) -> Result<Self, BadSetting> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Place::Unix(PathBuf::from(path)));
        }
        if text.starts_with("https://") {
            return Err(BadSetting(format!("`{text}`: a gateway is reached by http:// or unix:")));
        }
        let rest = text.strip_prefix("http://").unwrap_or(text);
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let port = authority.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        let clean = !authority.contains(['@', '?', '#', ' ']) && matches!(path, "" | "mcp");
        if port.is_none() || !clean {
            let words = format!("`{text}` is none of http://HOST:PORT/mcp, HOST:PORT, unix:PATH");
            return Err(BadSetting(words));
        }
        Ok(Place::Tcp(authority.to_owned()))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Tcp(authority) => write!(f, "http://{authority}/mcp"),
            Place::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Why an exchange came to nothing, in one sentence.
pub(super) type Broken = String;

/// Asks the gateway.
#[derive(Debug, Clone)]
pub(super) struct Client {
    pub(super) place: Place,
    pub(super) token: Option<String>,
}

impl Client {
    /// Sends one request; the answer's body is read by the caller.
    pub(super) async fn send(
        &self,
        method: &str,
        fields: &[(&'static str, String)],
        body: Bytes,
    ) -> Result<Response<Incoming>, Broken> {
        let request = self.request(method, fields, body)?;
        let broken = |error: &dyn fmt::Display| format!("{} does not answer: {error}", self.place);
        match &self.place {
            Place::Tcp(authority) => {
                let stream = dial(authority).await.map_err(|error| broken(&error))?;
                exchange(stream, request).await.map_err(|error| broken(&error))
            }
            Place::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(|error| broken(&error))?;
                exchange(stream, request).await.map_err(|error| broken(&error))
            }
        }
    }

    fn request(
        &self,
        method: &str,
        fields: &[(&'static str, String)],
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, Broken> {
        let host = match &self.place {
            Place::Tcp(authority) => authority,
            Place::Unix(_) => "localhost",
        };
        let mut builder = Request::builder().method(method).uri("/mcp").header(HOST, host);
        builder = builder.header(ACCEPT, "application/json, text/event-stream");
        if !body.is_empty() {
            builder = builder.header(CONTENT_TYPE, "application/json");
        }
        if let Some(token) = &self.token {
            builder = builder.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        for (name, value) in fields {
            let value = HeaderValue::from_str(value).map_err(|error| error.to_string())?;
            builder = builder.header(HeaderName::from_static(name), value);
        }
        builder.body(Full::new(body)).map_err(|error| error.to_string())
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a verb's way to its own gateway, told by who runs it"
)]
async fn dial(authority: &str) -> std::io::Result<TcpStream> {
    TcpStream::connect(authority).await
}

async fn exchange<S>(
    stream: S,
    request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to the gateway ended");
        }
    });
    sender.send_request(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_an_address_or_a_socket_and_nothing_else() {
        for (text, shown) in [
            ("http://127.0.0.1:7411/mcp", "http://127.0.0.1:7411/mcp"),
            ("http://localhost:7411", "http://localhost:7411/mcp"),
            ("[::1]:7411", "http://[::1]:7411/mcp"),
            ("unix:/run/checkrein/data.sock", "unix:/run/checkrein/data.sock"),
        ] {
            assert_eq!(text.parse::<Place>().expect(text).to_string(), shown);
        }
        for text in ["https://x:1/mcp", "http://x/mcp", "x", "http://u@x:1", "http://x:1/other", ""]
        {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }
}
