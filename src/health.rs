//! The listener of probes and scrapes: `GET /live`, `/ready`, `/metrics`, nothing else.
//!
//! Readiness answers "can I answer", never "are the tools well": an open breaker or a dead tool does not show here.
//! In a sidecar an unready gateway takes its whole pod out.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use crate::telemetry::metrics::Metrics;

/// Connections of probes and scrapers at once; past it new ones are closed.
pub const MAX_CONNECTIONS: usize = 64;
/// A worker that has not ticked for this long is stuck.
const STALE: Duration = Duration::from_secs(5);
/// Time for a request's head; a probe sends it at once.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest text shown for one degraded check.
const MAX_REASON: usize = 16 * 1024;
/// Prometheus 3 refuses a scrape whose type it cannot parse: exactly this, whatever `Accept` asks.
const METRICS_TYPE: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// What the probes ask about; set by the composition root.
#[derive(Debug)]
pub struct Health {
    metrics: Arc<Metrics>,
    policy_loaded: AtomicBool,
    listeners_bound: AtomicBool,
    draining: AtomicBool,
    /// What does not work and does not matter for readiness: the check's name → why.
    degraded: Mutex<BTreeMap<&'static str, String>>,
    since: Instant,
    /// Milliseconds after `since` of each worker's last tick.
    pulses: Vec<AtomicU64>,
}

impl Health {
    /// Not ready: nothing is loaded, nothing bound. Every worker counts as alive now.
    pub fn new(metrics: Arc<Metrics>, workers: usize) -> Arc<Self> {
        Arc::new(Self {
            metrics,
            policy_loaded: AtomicBool::new(false),
            listeners_bound: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            degraded: Mutex::default(),
            since: Instant::now(),
            pulses: (0..workers.max(1)).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    pub fn policy_loaded(&self) {
        self.policy_loaded.store(true, Ordering::Release);
    }

    pub fn listeners_bound(&self) {
        self.listeners_bound.store(true, Ordering::Release);
    }

    /// From here on never ready again.
    pub fn draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Shown by `/ready?verbose`; `None` = well again.
    pub fn degraded(&self, check: &'static str, why: Option<String>) {
        let mut degraded = self.degraded.lock().unwrap_or_else(PoisonError::into_inner);
        match why {
            Some(mut why) => {
                let end =
                    (0..=why.len().min(MAX_REASON)).rev().find(|at| why.is_char_boundary(*at));
                why.truncate(end.unwrap_or(0));
                degraded.insert(check, why);
            }
            None => {
                degraded.remove(check);
            }
        }
    }

    /// A worker's runtime turns.
    pub fn beat(&self, worker: usize) {
        if let Some(pulse) = self.pulses.get(worker) {
            let millis = self.since.elapsed().as_millis();
            pulse.store(u64::try_from(millis).unwrap_or(u64::MAX), Ordering::Release);
        }
    }

    pub fn is_ready(&self) -> bool {
        self.checks().iter().all(|(_, well)| *well)
    }

    fn checks(&self) -> [(&'static str, bool); 3] {
        [
            ("policy", self.policy_loaded.load(Ordering::Acquire)),
            ("listeners", self.listeners_bound.load(Ordering::Acquire)),
            ("not_draining", !self.draining.load(Ordering::Acquire)),
        ]
    }

    /// Workers that have not ticked in the last five seconds.
    fn stuck(&self) -> Vec<usize> {
        let now = self.since.elapsed();
        let stale = |pulse: &AtomicU64| {
            now.saturating_sub(Duration::from_millis(pulse.load(Ordering::Acquire))) > STALE
        };
        (0..).zip(&self.pulses).filter(|(_, pulse)| stale(pulse)).map(|(n, _)| n).collect()
    }

    /// The answer to one request. Pure but for what it reads.
    pub fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        if !matches!(path, "/live" | "/ready" | "/metrics") {
            return text(StatusCode::NOT_FOUND, "not found: /live, /ready and /metrics are here\n");
        }
        if request.method() != Method::GET {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
            return answer;
        }
        match path {
            "/live" => self.live(),
            "/ready" => self.ready(request.uri().query().unwrap_or_default()),
            _ => {
                let mut answer = text(StatusCode::OK, self.metrics.encode());
                answer.headers_mut().insert(CONTENT_TYPE, METRICS_TYPE);
                answer
            }
        }
    }

    fn live(&self) -> Response<Full<Bytes>> {
        let stuck = self.stuck();
        if stuck.is_empty() {
            return text(StatusCode::OK, "live\n");
        }
        let message = format!("workers {stuck:?} have not ticked for {} s\n", STALE.as_secs());
        text(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    fn ready(&self, query: &str) -> Response<Full<Bytes>> {
        let checks = self.checks();
        let ready = checks.iter().all(|(_, well)| *well);
        let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let verdict = if ready { "ready\n" } else { "not ready\n" };
        let verbose = |pair: &str| pair == "verbose" || pair.starts_with("verbose=");
        if !query.split('&').any(verbose) {
            return text(status, verdict);
        }
        let mut body = String::new();
        for (check, well) in checks {
            body.push_str(&format!("[{}] {check}\n", if well { "ok" } else { "no" }));
        }
        let degraded = self.degraded.lock().unwrap_or_else(PoisonError::into_inner);
        for (check, why) in degraded.iter() {
            body.push_str(&format!(
                "[degraded] {check}: {}\n",
                why.trim_end().replace('\n', "\n  ")
            ));
        }
        drop(degraded);
        body.push_str(verdict);
        text(status, body)
    }

    /// Serves one connection to its end; errors of a peer are its own.
    pub async fn serve(self: Arc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let service = service_fn(move |request| {
            let answer = self.answer(&request);
            async move { Ok::<_, Infallible>(answer) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service);
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to the health listener broke");
        }
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, TEXT);
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

#[cfg(test)]
mod tests;
