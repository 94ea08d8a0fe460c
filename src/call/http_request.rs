//! A request of a plain HTTP client, as it is passed on: what was matched is what is sent, byte for byte.
//!
//! What rules look at (schema, fingerprint, identity of a write) is a document made of it, once, where it is asked for.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, Method};
use serde_json::{Map, Value};

use super::arguments::{Arguments, Digest, Likeness};
use super::names::CallId;
use super::pointer::Pointer;
use super::stream::ByteSource;

/// One request, on its way to the tool that its path names.
#[derive(Debug)]
pub struct HttpRequest {
    pub method: Method,
    /// Path as the client spelt it, from its first `/` below the upstream's name.
    pub path: Box<str>,
    pub query: Option<Box<str>>,
    /// As they came; the back end sends those that the policy names.
    pub headers: HeaderMap,
    pub body: RequestBody,
    /// `path` of the document: segments that the route captured, decoded.
    pub captures: Vec<(Arc<str>, String)>,
    /// `query` of the document, decoded; a name that stands several times has a list.
    pub pairs: Map<String, Value>,
    /// `body` of the document; `None` = no body, or none that is JSON.
    pub json: Option<Value>,
    /// The route takes several methods, so the method is part of what is asked.
    pub tells_method: bool,
    document: OnceLock<Arguments>,
    likeness: OnceLock<Likeness>,
}

/// What a document is made of.
struct Parts {
    captures: Vec<(Arc<str>, String)>,
    pairs: Map<String, Value>,
    json: Option<Value>,
}

/// What is sent after the head.
#[derive(Debug)]
pub enum RequestBody {
    None,
    Whole(Bytes),
    /// Passed on as it comes: it can be sent once.
    Streaming(Upload),
}

/// A body that arrives while it is sent.
pub struct Upload {
    source: Mutex<Option<Box<dyn ByteSource<Broken>>>>,
    /// Where its digest would stand: two such bodies are never the same.
    of: CallId,
    standing: Arc<Standing>,
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload").field("standing", &self.standing.get()).finish_non_exhaustive()
    }
}

/// Why the rest of an upload does not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// The client's connection, or its framing, broke.
    Client,
    /// More than the policy's bound.
    TooLong,
}

/// How an upload stands: whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// The tool is to take what there is.
    Tool,
    /// The client is to send more.
    Client,
    Over,
    Broken(Broken),
}

/// Written by whoever reads the client, read by whoever judges the tool.
#[derive(Debug, Default)]
pub struct Standing(AtomicU8);

impl Standing {
    pub fn set(&self, turn: Turn) {
        let raw = match turn {
            Turn::Tool => 0,
            Turn::Client => 1,
            Turn::Over => 2,
            Turn::Broken(Broken::Client) => 3,
            Turn::Broken(Broken::TooLong) => 4,
        };
        self.0.store(raw, Ordering::Release);
    }

    pub fn get(&self) -> Turn {
        match self.0.load(Ordering::Acquire) {
            0 => Turn::Tool,
            1 => Turn::Client,
            2 => Turn::Over,
            3 => Turn::Broken(Broken::Client),
            _ => Turn::Broken(Broken::TooLong),
        }
    }
}

impl Upload {
    pub fn new(source: Box<dyn ByteSource<Broken>>, standing: Arc<Standing>, of: CallId) -> Self {
        Self { source: Mutex::new(Some(source)), of, standing }
    }

    /// For the one attempt that sends it; `None` = it was sent before.
    pub fn take(&self) -> Option<Box<dyn ByteSource<Broken>>> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub fn turn(&self) -> Turn {
        self.standing.get()
    }
}

impl RequestBody {
    /// Bytes, as far as they are here.
    pub fn len(&self) -> u64 {
        match self {
            RequestBody::None | RequestBody::Streaming(_) => 0,
            RequestBody::Whole(bytes) => bytes.len() as u64,
        }
    }

    pub fn is_empty(&self) -> bool {
        matches!(self, RequestBody::None)
    }
}

impl HttpRequest {
    /// A request whose document has no members yet.
    pub fn new(method: Method, path: &str, query: Option<&str>, headers: HeaderMap) -> Self {
        Self {
            method,
            path: path.into(),
            query: query.map(Into::into),
            headers,
            body: RequestBody::None,
            captures: Vec::new(),
            pairs: Map::new(),
            json: None,
            tells_method: false,
            document: OnceLock::new(),
            likeness: OnceLock::new(),
        }
    }

    /// Makes the document now, of the parts that were read for it: they go into it.
    pub fn conclude(&mut self) {
        let parts = Parts {
            captures: std::mem::take(&mut self.captures),
            pairs: std::mem::take(&mut self.pairs),
            json: self.json.take(),
        };
        self.document = OnceLock::from(self.made(parts));
    }

    /// `{path, query, body}`, without what is not there; a body that is no JSON stands as its SHA-256.
    pub fn document(&self) -> &Arguments {
        self.document.get_or_init(|| {
            let (captures, pairs) = (self.captures.clone(), self.pairs.clone());
            self.made(Parts { captures, pairs, json: self.json.clone() })
        })
    }

    fn made(&self, parts: Parts) -> Arguments {
        let mut document = Map::with_capacity(3);
        if self.tells_method {
            document.insert("method".into(), self.method.as_str().into());
        }
        if !parts.captures.is_empty() {
            let captures = parts.captures.into_iter();
            let captures = captures.map(|(name, text)| (name.to_string(), text.into()));
            document.insert("path".into(), Value::Object(captures.collect()));
        }
        if !parts.pairs.is_empty() {
            document.insert("query".into(), Value::Object(parts.pairs));
        }
        match (parts.json, &self.body) {
            (Some(json), _) => drop(document.insert("body".into(), json)),
            (None, RequestBody::Whole(bytes)) => {
                let digest = Digest::of(bytes).short_hex(32);
                document.insert("body_sha256".into(), digest.into());
            }
            (None, RequestBody::None | RequestBody::Streaming(_)) => {}
        }
        Arguments::of_members(document, self.bytes())
    }

    /// What tells this request from others, for what outlives the process.
    pub fn digest(&self, volatile: &[Pointer]) -> Digest {
        self.document().digest(volatile)
    }

    /// What tells this request from others: its own spelling, or, where parts are left out, the document.
    pub fn likeness(&self, volatile: &[Pointer]) -> Likeness {
        if !volatile.is_empty() {
            return self.document().likeness(volatile);
        }
        *self.likeness.get_or_init(|| {
            let body = match &self.body {
                RequestBody::None => &[][..],
                RequestBody::Whole(bytes) => bytes,
                RequestBody::Streaming(upload) => upload.of.as_str().as_bytes(),
            };
            let query = self.query.as_deref().unwrap_or_default();
            let [method, path, query] =
                [self.method.as_str(), &self.path, query].map(str::as_bytes);
            Likeness::of_parts(&[method, path, query, body])
        })
    }

    /// Size of what was asked: target and body, as far as they are here.
    pub fn bytes(&self) -> u64 {
        let query = self.query.as_ref().map_or(0, |query| query.len());
        (self.path.len() + query) as u64 + self.body.len()
    }

    /// Whether it can be sent a second time.
    pub fn replayable(&self) -> bool {
        match &self.body {
            RequestBody::None | RequestBody::Whole(_) => true,
            RequestBody::Streaming(_) => false,
        }
    }

    /// How its upload stands, where it has one.
    pub fn turn(&self) -> Option<Turn> {
        match &self.body {
            RequestBody::None | RequestBody::Whole(_) => None,
            RequestBody::Streaming(upload) => Some(upload.turn()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(body: RequestBody) -> HttpRequest {
        let mut request =
            HttpRequest::new(Method::PUT, "/orders/a%2Fb", Some("x=1&x=2"), HeaderMap::new());
        request.captures = vec![("id".into(), "a/b".into())];
        request.pairs.insert("x".into(), json!(["1", "2"]));
        request.body = body;
        request
    }

    #[test]
    fn the_document_holds_what_is_there_and_nothing_else() {
        let mut json = request(RequestBody::Whole(Bytes::from_static(b"{\"n\":1.50}")));
        json.json = Some(json!({"n": 1}));
        json.tells_method = true;
        let expected = json!({"method": "PUT", "path": {"id": "a/b"}, "query": {"x": ["1", "2"]}, "body": {"n": 1}});
        assert_eq!(*json.document().tree(), expected);
        let plain = request(RequestBody::Whole(Bytes::from_static(b"abc")));
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(plain.document().tree()["body_sha256"], digest);
        let bare = HttpRequest::new(Method::GET, "/", None, HeaderMap::new());
        assert_eq!(*bare.document().tree(), json!({}));
    }

    #[test]
    fn another_body_is_another_request_and_a_stream_is_never_the_same_as_another() {
        let of = |bytes: &'static [u8]| request(RequestBody::Whole(bytes.into())).likeness(&[]);
        assert_eq!(of(b"a"), of(b"a"));
        assert_ne!(of(b"a"), of(b"b"));
        struct Nothing;
        impl ByteSource<Broken> for Nothing {
            fn poll_next(
                &mut self,
                _: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Option<Result<Bytes, Broken>>> {
                std::task::Poll::Ready(None)
            }
            fn left(&self) -> Option<u64> {
                Some(0)
            }
        }
        let stream = || {
            let upload = Upload::new(Box::new(Nothing), Arc::default(), CallId::mint());
            assert!(upload.take().is_some() && upload.take().is_none());
            request(RequestBody::Streaming(upload))
        };
        assert_ne!(stream().likeness(&[]), stream().likeness(&[]));
        assert!(!stream().replayable());
    }
}
