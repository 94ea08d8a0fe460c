//! What all inner sessions of one server over HTTP share: the way to it, what every request says, and which era it
//! speaks. One message goes out by one POST; nothing here sends it again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::link::{Lost, Met};
use crate::backends::classify;
use crate::backends::credentials::{self, Blots};
use crate::egress::{Answer, Ask, SendError, Way};
use crate::mcp::headers::{LAST_EVENT_ID, PROTOCOL_VERSION, SESSION_ID};
use crate::mcp::session::SessionId;
use crate::mcp::version::Revision;
use crate::policy::snapshot::McpServer;

const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("checkrein/", env!("CARGO_PKG_VERSION")));
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const EITHER: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");

/// What is known of the era of a server; it holds for all sessions until an answer contradicts it.
#[derive(Debug, Clone)]
pub(super) enum Known {
    Nothing,
    /// Proven by an answered `initialize`.
    Legacy,
    Modern(Arc<Met>),
}

/// The shared part. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Door(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    server: Arc<McpServer>,
    /// Of the policy in force: its rules about hosts may change while the server's section does not.
    way: Mutex<Arc<Way>>,
    known: Mutex<Known>,
    response_bytes: AtomicUsize,
    blots: Blots,
    /// Words to the server that no call waits for, and streams that are listened to.
    tasks: TaskTracker,
    runtime: tokio::runtime::Handle,
    /// The server has left the policy, or the gateway ends.
    stop: CancellationToken,
}

/// What a request says beside what all of them say.
#[derive(Debug, Default)]
pub(super) struct Says<'a> {
    pub(super) session: Option<&'a SessionId>,
    /// Set after the handshake, in the revisions that want it.
    pub(super) revision: Option<Revision>,
    pub(super) more: Vec<(String, String)>,
}

impl Door {
    pub(super) fn new(
        server: &Arc<McpServer>,
        way: Arc<Way>,
        response_bytes: usize,
        tasks: &TaskTracker,
        runtime: &tokio::runtime::Handle,
    ) -> Self {
        Self(Arc::new(Shared {
            server: server.clone(),
            way: Mutex::new(way),
            known: Mutex::new(Known::Nothing),
            response_bytes: AtomicUsize::new(response_bytes),
            blots: Blots::of(server.upstream.auth.as_ref()),
            tasks: tasks.clone(),
            runtime: runtime.clone(),
            stop: CancellationToken::new(),
        }))
    }

    /// Another policy, in which this server's own section is unchanged.
    pub(super) fn renew(&self, way: Arc<Way>, response_bytes: usize) {
        *self.0.way.lock().unwrap_or_else(PoisonError::into_inner) = way;
        self.0.response_bytes.store(response_bytes, Ordering::Relaxed);
    }

    pub(super) fn server(&self) -> &Arc<McpServer> {
        &self.0.server
    }

    pub(super) fn blots(&self) -> &Blots {
        &self.0.blots
    }

    /// Most decoded bytes of an answer.
    pub(super) fn response_bytes(&self) -> usize {
        self.0.response_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn known(&self) -> Known {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn learn(&self, known: Known) {
        *self.0.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
    }

    pub(super) fn stop(&self) -> &CancellationToken {
        &self.0.stop
    }

    /// Runs beside the calls, on the runtime that outlives them; cut when the server is left.
    pub(super) fn beside(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.0.stop.clone();
        let cut = async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = work => {}
            }
        };
        drop(self.0.tasks.spawn_on(cut, &self.0.runtime));
    }

    /// The same, but not cut: a farewell.
    pub(super) fn to_the_end(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.0.tasks.spawn_on(work, &self.0.runtime));
    }

    /// Sends one message.
    pub(super) async fn post(
        &self,
        message: Vec<u8>,
        says: &Says<'_>,
        ask: Ask<'_>,
    ) -> Result<Answer, Lost> {
        let mut headers = self.headers(says)?;
        headers.insert(ACCEPT, EITHER);
        headers.insert(CONTENT_TYPE, JSON);
        self.send(Method::POST, headers, message.into(), ask).await
    }

    /// Opens a stream that belongs to no request, or goes on with one that broke off.
    pub(super) async fn get(&self, after: &str, says: &Says<'_>) -> Result<Answer, Lost> {
        let mut headers = self.headers(says)?;
        headers.insert(ACCEPT, STREAM);
        if !after.is_empty() {
            let value = HeaderValue::from_str(after)
                .map_err(|_| Lost::NotMcp("an event id that no header can hold".into()))?;
            headers.insert(HeaderName::from_static(LAST_EVENT_ID), value);
        }
        self.send(Method::GET, headers, Bytes::new(), Ask::default()).await
    }

    /// Ends a session.
    pub(super) async fn delete(&self, says: &Says<'_>) -> Result<Answer, Lost> {
        let headers = self.headers(says)?;
        self.send(Method::DELETE, headers, Bytes::new(), Ask::default()).await
    }

    async fn send(
        &self,
        method: Method,
        headers: HeaderMap,
        body: Bytes,
        ask: Ask<'_>,
    ) -> Result<Answer, Lost> {
        let path: &str = &self.0.server.upstream.base_path;
        let request = Request::builder()
            .method(method)
            .uri(if path.is_empty() { "/" } else { path })
            .body(body);
        let mut request = request.map_err(|error| {
            let why = classify::not_sent(&format!("the request cannot be written: {error}"));
            Lost::Send(SendError::GateShut(Box::new(why)))
        })?;
        *request.headers_mut() = headers;
        let way = self.0.way.lock().unwrap_or_else(PoisonError::into_inner).clone();
        way.send(request, ask).await.map_err(Lost::Send)
    }

    /// Built anew for this hop, credential last: nothing of an agent's headers is among them but what `says` names.
    fn headers(&self, says: &Says<'_>) -> Result<HeaderMap, Lost> {
        let upstream = &self.0.server.upstream;
        let mut headers = HeaderMap::with_capacity(12);
        headers.insert(USER_AGENT, AGENT);
        for (name, value) in &upstream.headers {
            headers.insert(name, value.clone());
        }
        for (name, value) in &says.more {
            let named = HeaderName::from_bytes(name.as_bytes());
            if let (Ok(name), Ok(value)) = (named, HeaderValue::from_str(value)) {
                headers.insert(name, value);
            }
        }
        if let Some(revision) = says.revision {
            let value = HeaderValue::from_static(revision.as_str());
            headers.insert(HeaderName::from_static(PROTOCOL_VERSION), value);
        }
        if let Some(session) = says.session
            && let Ok(value) = HeaderValue::from_str(session.as_str())
        {
            headers.insert(HeaderName::from_static(SESSION_ID), value);
        }
        headers.insert(ACCEPT_ENCODING, IDENTITY);
        headers.insert(HOST, upstream.authority.clone());
        credentials::inject(&mut headers, upstream.auth.as_ref())
            .map_err(|failed| Lost::Send(SendError::GateShut(Box::new(failed))))?;
        Ok(headers)
    }
}
