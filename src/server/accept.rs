//! Listeners and the accept loop. Out of file descriptors it waits a moment instead of spinning;
//! past the bound on connections it says so and closes.

use std::fs::Permissions;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::io::UNREAD_ANSWER;
use super::{Outgoing, Server, limits};
use crate::identity::Peer;

/// Connections the system holds before we accept them. It bounds a burst, not our work: each is refused or served.
const BACKLOG: i32 = 1024;
/// First wait after a failed accept; doubles up to the second.
const BACK_OFF: Duration = Duration::from_millis(10);
const BACK_OFF_MOST: Duration = Duration::from_secs(1);
/// A quiet peer is probed after this long.
const PROBE_AFTER: Duration = Duration::from_secs(60);

/// A bound listener of the current runtime.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Registers with the current runtime; `Err` outside one.
    pub fn tcp(listener: std::net::TcpListener) -> io::Result<Self> {
        TcpListener::from_std(listener).map(Self::Tcp)
    }
    /// Registers with the current runtime; to serve one socket from several runtimes, `try_clone` it.
    pub fn unix(listener: std::os::unix::net::UnixListener) -> io::Result<Self> {
        UnixListener::from_std(listener).map(Self::Unix)
    }
    /// The address bound, where it is TCP.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(_) => None,
        }
    }
}

/// A TCP listener. `reuse_port`: several listeners share the port and the system spreads connections over them,
/// so every runtime can have one of its own.
pub fn bind_tcp(addr: SocketAddr, reuse_port: bool) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    // A restart must not wait for old connections' TIME_WAIT.
    socket.set_reuse_address(true)?;
    if reuse_port {
        socket.set_reuse_port(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// A Unix socket for the group too, mode 0660. A file left by a dead gateway is replaced; a live one's socket, and a file that is no
/// socket, is an error. A stale socket is told by asking: nobody answers there.
pub fn bind_unix(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    bind_socket(path, 0o660)
}

/// A Unix socket for the gateway's own user, mode 0600; else as [`bind_unix`]. Between its making and its mode it is
/// open as the umask says, so whoever serves it looks at the peer's uid too.
pub fn bind_unix_private(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    bind_socket(path, 0o600)
}

fn bind_socket(path: &Path, mode: u32) -> io::Result<std::os::unix::net::UnixListener> {
    let listener = match std::os::unix::net::UnixListener::bind(path) {
        Ok(listener) => listener,
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
                return Err(io::Error::new(error.kind(), "a file that is no socket is in the way"));
            }
            match std::os::unix::net::UnixStream::connect(path) {
                Ok(_) => {
                    return Err(io::Error::new(
                        error.kind(),
                        "another process listens on this socket",
                    ));
                }
                Err(refused) if refused.kind() == ErrorKind::ConnectionRefused => {}
                Err(other) => return Err(other),
            }
            std::fs::remove_file(path)?;
            std::os::unix::net::UnixListener::bind(path)?
        }
        Err(other) => return Err(other),
    };
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Accepts until the server shuts down.
pub(super) async fn accept<S, F, B>(server: Server, listener: Listener, service: S)
where
    S: Fn(Peer, Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Outgoing,
{
    let shutdown = server.shutdown.clone();
    let mut back_off = BACK_OFF;
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            accepted = next(&listener) => accepted,
        };
        match accepted {
            Ok(Accepted::Tcp(stream, addr)) => {
                back_off = BACK_OFF;
                prepare(&stream);
                match server.limits.connections.clone().try_acquire_owned() {
                    Ok(place) => server.connection(stream, peer_of(addr), place, service.clone()),
                    Err(_) => refuse(&server, |told| stream.try_write(told)),
                }
            }
            Ok(Accepted::Unix(stream)) => {
                back_off = BACK_OFF;
                let peer = Peer::Unix { uid: stream.peer_cred().ok().map(|cred| cred.uid()) };
                match server.limits.connections.clone().try_acquire_owned() {
                    Ok(place) => server.connection(stream, peer, place, service.clone()),
                    Err(_) => refuse(&server, |told| stream.try_write(told)),
                }
            }
            Err(error) if of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, wait_ms = back_off.as_millis(), "cannot accept connections");
                pause(back_off, &shutdown).await;
                back_off = (back_off * 2).min(BACK_OFF_MOST);
            }
        }
    }
}

/// The one lawful sleep here: out of descriptors (EMFILE, ENFILE) or memory, the connection stays in the system's
/// queue, so accepting again at once would spin.
#[expect(clippy::disallowed_methods, reason = "waits for file descriptors, not for work")]
async fn pause(wait: Duration, shutdown: &tokio_util::sync::CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(wait) => {}
        () = shutdown.cancelled() => {}
    }
}

enum Accepted {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

async fn next(listener: &Listener) -> io::Result<Accepted> {
    match listener {
        Listener::Tcp(listener) => {
            listener.accept().await.map(|(stream, addr)| Accepted::Tcp(stream, addr))
        }
        Listener::Unix(listener) => {
            listener.accept().await.map(|(stream, _)| Accepted::Unix(stream))
        }
    }
}

/// The connection broke before we took it; the listener is well.
fn of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionRefused
            | ErrorKind::Interrupted
    )
}

fn peer_of(addr: SocketAddr) -> Peer {
    if addr.ip().to_canonical().is_loopback() { Peer::Loopback } else { Peer::Remote }
}

/// Best effort: a connection without these options is served all the same.
fn prepare(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let options = [
        socket.set_tcp_nodelay(true),
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(PROBE_AFTER)),
        user_timeout(&socket),
    ];
    for error in options.into_iter().filter_map(Result::err) {
        tracing::debug!(%error, "a socket option was refused");
    }
}

#[cfg(target_os = "linux")]
fn user_timeout(socket: &Socket) -> io::Result<()> {
    socket.set_tcp_user_timeout(Some(UNREAD_ANSWER))
}
#[cfg(not(target_os = "linux"))]
fn user_timeout(_: &Socket) -> io::Result<()> {
    Ok(())
}

/// Says why in as many bytes as the socket takes at once, and hangs up.
fn refuse(server: &Server, write: impl FnOnce(&[u8]) -> io::Result<usize>) {
    server.metrics.request_rejected("connections");
    if let Err(error) = write(limits::TOO_MANY) {
        tracing::debug!(%error, "a refused connection was not told why");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bb_n10_running_out_of_descriptors_waits_and_one_broken_connection_does_not() {
        // EMFILE, ENFILE, ENOMEM.
        for number in [24, 23, 12] {
            assert!(!of_one_connection(&io::Error::from_raw_os_error(number)), "{number}");
        }
        // ECONNABORTED, EINTR.
        for number in [103, 4] {
            assert!(of_one_connection(&io::Error::from_raw_os_error(number)), "{number}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bb_n10_the_wait_ends_early_when_the_server_shuts_down() {
        let shutdown = tokio_util::sync::CancellationToken::new();
        let began = tokio::time::Instant::now();
        pause(BACK_OFF, &shutdown).await;
        assert_eq!(began.elapsed(), BACK_OFF);
        shutdown.cancel();
        pause(BACK_OFF_MOST, &shutdown).await;
        assert_eq!(began.elapsed(), BACK_OFF);
    }

    #[test]
    fn a_mapped_loopback_address_is_loopback() {
        for (addr, peer) in [
            ("127.0.0.1:1", Peer::Loopback),
            ("[::1]:1", Peer::Loopback),
            ("[::ffff:127.0.0.1]:1", Peer::Loopback),
            ("10.0.0.1:1", Peer::Remote),
            ("[::ffff:10.0.0.1]:1", Peer::Remote),
        ] {
            assert_eq!(peer_of(addr.parse().expect("addr")), peer, "{addr}");
        }
    }
}
