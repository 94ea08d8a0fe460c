//! From a host's name to a socket: resolve once, vet every address, dial only vetted ones.
//!
//! Resolved anew for every connection, so that a name that has moved is followed at once.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::net::TcpStream;

use super::SendError;
use super::guard::{self, Blocked};
use crate::policy::snapshot::Upstream;

/// More addresses than this of one name are not tried.
const MAX_ADDRESSES: usize = 16;
/// An address that has not answered for this long gets company by the next one (RFC 8305 §5); neither is given up.
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);

/// Who turns names into addresses.
#[derive(Debug, Clone, Default)]
pub enum Resolver {
    /// The system's: `/etc/hosts`, `/etc/resolv.conf`, NSS.
    #[default]
    System,
    /// A table, for rehearsals and tests; what it does not hold does not resolve.
    Table(Names),
}

/// Names with their addresses; may change while in use.
#[derive(Debug, Clone, Default)]
pub struct Names(Arc<Mutex<HashMap<String, Vec<SocketAddr>>>>);

impl Names {
    /// From now on `host` resolves to these, whatever port is asked for.
    pub fn set(&self, host: &str, addresses: Vec<SocketAddr>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(host.to_owned(), addresses);
    }

    fn get(&self, host: &str) -> Vec<SocketAddr> {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(host).cloned().unwrap_or_default()
    }
}

impl Resolver {
    async fn addresses(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        match self {
            Resolver::System => {
                Ok(tokio::net::lookup_host((host, port)).await?.take(MAX_ADDRESSES).collect())
            }
            Resolver::Table(names) => Ok(names.get(host)),
        }
    }
}

/// A connected socket to a vetted address.
pub(super) async fn connect(resolver: &Resolver, to: &Upstream) -> Result<TcpStream, SendError> {
    let found = resolver
        .addresses(&to.host, to.port)
        .await
        .map_err(|error| SendError::Dns(reason(&error)))?;
    let vetted = vet(&found, to).map_err(SendError::Blocked)?;
    if vetted.is_empty() {
        return Err(SendError::Dns("the name has no address".into()));
    }
    let stream = dial(vetted).await.map_err(|error| SendError::Connect(reason(&error)))?;
    // Requests are written whole; waiting for more to fill a segment only delays them. Best effort.
    drop(stream.set_nodelay(true));
    Ok(stream)
}

/// The addresses that may be dialled. None of several allowed: the first one's refusal.
fn vet(found: &[SocketAddr], to: &Upstream) -> Result<Vec<SocketAddr>, Blocked> {
    let mut vetted = Vec::with_capacity(found.len());
    let mut refused = None;
    for address in found {
        match guard::vet(address.ip(), &to.addresses) {
            Ok(()) => vetted.push(*address),
            Err(blocked) => refused = refused.or(Some(blocked)),
        }
    }
    match refused {
        Some(blocked) if vetted.is_empty() => Err(blocked),
        Some(_) | None => Ok(vetted),
    }
}

type Dial = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>>;

/// The first of the addresses that answers. The next one starts when one fails, or is slow to answer.
async fn dial(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut waiting = addresses.into_iter();
    let mut dials: Vec<Dial> = Vec::new();
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        match waiting.next() {
            Some(address) => dials.push(Box::pin(connect_to(address))),
            None if dials.is_empty() => return Err(last),
            None => {}
        }
        let any = poll_fn(|cx| {
            for (at, dial) in dials.iter_mut().enumerate() {
                if let Poll::Ready(done) = dial.as_mut().poll(cx) {
                    return Poll::Ready((at, done));
                }
            }
            Poll::Pending
        });
        let (at, done) = if waiting.len() == 0 {
            any.await
        } else {
            match tokio::time::timeout(NEXT_ADDRESS_AFTER, any).await {
                Ok(ended) => ended,
                // None given up: the next joins.
                Err(_) => continue,
            }
        };
        match done {
            Ok(stream) => return Ok(stream),
            Err(error) => {
                last = error;
                drop(dials.swap_remove(at));
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place that dials: the address was vetted")]
fn connect_to(address: SocketAddr) -> impl Future<Output = io::Result<TcpStream>> {
    TcpStream::connect(address)
}

/// An operating system's words, without what a resolver adds around them.
fn reason(error: &io::Error) -> String {
    let plain = [
        (io::ErrorKind::ConnectionRefused, "connection refused"),
        (io::ErrorKind::NetworkUnreachable, "network unreachable"),
        (io::ErrorKind::HostUnreachable, "host unreachable"),
    ];
    plain
        .iter()
        .find(|(kind, _)| *kind == error.kind())
        .map_or_else(|| error.to_string(), |(_, words)| (*words).to_owned())
}
