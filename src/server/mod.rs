//! The way in: listeners, connections, heads. Knows hyper and who is at the other end; knows no tools.
//! Nothing queues here: past the bound a connection is refused at once.

mod accept;
mod drain;
mod http2;
mod io;
mod limits;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Body;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use accept::{Listener, bind_tcp, bind_unix, bind_unix_private};
/// A request's body as it arrives; front ends read it with a limit.
pub use hyper::body::Incoming;
pub use limits::{HEAD_BYTES, HEAD_FIELDS, Limits};

pub use http2::STREAMS;

use crate::identity::Peer;
use crate::telemetry::metrics::Metrics;
use http2::Held;
use io::{Watched, Watching};

/// A body that is sent: whole bytes, or frames as they come. One that ends with an error cuts its connection.
pub trait Outgoing:
    Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + From<Bytes> + Send + Unpin + 'static
{
}

impl<B> Outgoing for B where
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>>
        + From<Bytes>
        + Send
        + Unpin
        + 'static
{
}

/// Everything a connection of one listener shares. One `Server` may serve several listeners, on several runtimes:
/// its bound on connections is over all of them.
#[derive(Debug, Clone)]
pub struct Server {
    pub limits: Limits,
    /// HTTP/2 is spoken beside HTTP/1.1, with those who begin with its preface.
    pub http2: bool,
    pub metrics: Arc<Metrics>,
    /// Cancelled = accept no more, finish the exchange in hand, close.
    pub shutdown: CancellationToken,
    /// Every connection runs under it: drain waits for it.
    pub tasks: TaskTracker,
}

impl Server {
    /// Serves `listener` on the current runtime. The handle ends when `shutdown` has ended the accepting;
    /// connections go on under `tasks` until their exchange in hand is answered.
    pub fn serve<S, F, B>(&self, listener: Listener, service: S) -> JoinHandle<()>
    where
        S: Fn(Peer, Request<Incoming>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Outgoing,
    {
        tokio::spawn(accept::accept(self.clone(), listener, service))
    }

    /// One connection, from its first byte to its last.
    fn connection<I, S, F, B>(&self, stream: I, peer: Peer, place: OwnedSemaphorePermit, service: S)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        S: Fn(Peer, Request<Incoming>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Outgoing,
    {
        let metrics = self.metrics.clone();
        let shutdown = self.shutdown.clone();
        let (head_timeout, http2) = (self.limits.head_timeout, self.http2);
        self.tasks.spawn(async move {
            let watching = Watching::default();
            let io = TokioIo::new(Watched::new(stream, watching.clone()));
            let mut builder = auto::Builder::new(TokioExecutor::new());
            if http2 {
                http2::bound(&mut builder);
            } else {
                builder = builder.http1_only();
            }
            builder
                .http1()
                .timer(TokioTimer::new())
                .header_read_timeout(head_timeout)
                .max_buf_size(limits::PARSER_BYTES)
                .keep_alive(true);
            let seen = watching.clone();
            let counted = metrics.clone();
            let answer = service_fn(move |mut request: Request<Incoming>| {
                let exchange = http2::is_http2(&request).then(|| seen.begin());
                seen.head_is_read();
                let mut refused = limits::refuse_head(request.headers(), request.uri());
                if refused.is_some() {
                    counted.request_rejected("head");
                } else if exchange.is_some()
                    && let Err(response) = http2::as_http1(&mut request)
                {
                    counted.request_rejected("bad_request");
                    refused = Some(response);
                }
                let service = service.clone();
                async move {
                    let response = match refused {
                        Some(response) => response.map(B::from),
                        None => service(peer, request).await,
                    };
                    Ok::<_, Infallible>(response.map(|body| Held::new(body, exchange)))
                }
            });
            let connection = builder.serve_connection(io, answer);
            if let Err(error) =
                drain::until_closed(connection, &shutdown, &watching, head_timeout).await
            {
                limits::count(&metrics, error.as_ref(), &watching);
            }
            drop(place);
        });
    }
}
