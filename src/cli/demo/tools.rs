//! The demo's tools: an order query, a flaky search, a slow report, and a notice sender that does the work and
//! loses the reply. A real HTTP server, so that the gateway in front of it meets real faults.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;

/// Longer than any limit of the demo's policy.
const NEVER: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
struct Shop {
    search_down: AtomicBool,
    /// Searches that fail before one succeeds again.
    search_hiccups: AtomicU32,
    searches: AtomicU32,
    notices: AtomicU32,
}

/// The running tool server; it ends with the process.
#[derive(Debug, Clone)]
pub(super) struct Tools {
    address: SocketAddr,
    shop: Arc<Shop>,
}

impl Tools {
    pub(super) async fn start() -> std::io::Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let tools = Self { address: listener.local_addr()?, shop: Arc::default() };
        let shop = tools.shop.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shop = shop.clone();
                tokio::spawn(async move {
                    let service =
                        hyper::service::service_fn(move |request| answer(shop.clone(), request));
                    // A gateway that hangs up is part of the show.
                    drop(
                        hyper::server::conn::http1::Builder::new()
                            .serve_connection(TokioIo::new(stream), service)
                            .await,
                    );
                });
            }
        });
        Ok(tools)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
    /// The next `n` searches fail.
    pub(super) fn hiccup(&self, n: u32) {
        self.shop.search_hiccups.store(n, Ordering::SeqCst);
    }
    pub(super) fn break_search(&self) {
        self.shop.search_down.store(true, Ordering::SeqCst);
    }
    pub(super) fn mend_search(&self) {
        self.shop.search_down.store(false, Ordering::SeqCst);
    }
    /// Requests that reached the search.
    pub(super) fn searches(&self) -> u32 {
        self.shop.searches.load(Ordering::SeqCst)
    }
    /// Notices that really went out.
    pub(super) fn notices(&self) -> u32 {
        self.shop.notices.load(Ordering::SeqCst)
    }
}

impl Shop {
    /// Whether this search fails, by outage or hiccup.
    fn search_fails(&self) -> bool {
        self.searches.fetch_add(1, Ordering::SeqCst);
        let hiccup = self
            .search_hiccups
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
            .is_ok();
        hiccup || self.search_down.load(Ordering::SeqCst)
    }
}

async fn answer(
    shop: Arc<Shop>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    Ok(match (request.method(), parts.as_slice()) {
        (&Method::GET, ["orders", id]) => {
            json(200, format!(r#"{{"order_id":"{id}","status":"in_transit"}}"#))
        }
        (&Method::GET, ["search"]) if shop.search_fails() => {
            json(503, r#"{"error":"the index is being rebuilt"}"#)
        }
        (&Method::GET, ["search"]) => json(200, r#"{"hits":["order A17: one coat, blue"]}"#),
        (&Method::GET, ["report"]) => {
            pause().await;
            json(200, r#"{"rows":0}"#)
        }
        (&Method::POST, ["notices"]) => {
            // The work is done; the reply is lost.
            shop.notices.fetch_add(1, Ordering::SeqCst);
            pause().await;
            json(201, r#"{"sent":true}"#)
        }
        (&Method::POST, ["switch", "search", "down"]) => {
            shop.search_down.store(true, Ordering::SeqCst);
            json(200, r#"{"search":"down"}"#)
        }
        (&Method::POST, ["switch", "search", "up"]) => {
            shop.search_down.store(false, Ordering::SeqCst);
            json(200, r#"{"search":"up"}"#)
        }
        _ => json(404, r#"{"error":"no such thing here"}"#),
    })
}

#[expect(clippy::disallowed_methods, reason = "a tool that is slow is what the demo shows")]
async fn pause() {
    tokio::time::sleep(NEVER).await;
}

fn json(status: u16, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let body = Full::new(body.into());
    let built = Response::builder()
        .status(status)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(body);
    // The statuses and the header are the demo's own constants.
    built.unwrap_or_default()
}
