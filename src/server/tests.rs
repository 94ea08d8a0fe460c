//! The way in, over real bytes: what is taken, what is refused, how connections end.

use std::sync::Mutex;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;

use http_body_util::Full;

use super::*;

/// Paths that reached the service.
#[derive(Clone, Default)]
struct Reached(Arc<Mutex<Vec<String>>>);

impl Reached {
    fn paths(&self) -> Vec<String> {
        self.0.lock().expect("not poisoned").clone()
    }
    /// Answers `METHOD PATH BYTES` of each request, its body read whole.
    fn service(
        &self,
    ) -> impl Fn(Peer, Request<Incoming>) -> BoxFuture + Clone + Send + Sync + 'static {
        let reached = self.clone();
        move |_, request| {
            let reached = reached.clone();
            Box::pin(async move {
                let (parts, mut body) = request.into_parts();
                reached.0.lock().expect("not poisoned").push(parts.uri.path().to_owned());
                let mut bytes = 0;
                while let Some(Ok(frame)) = http_body_util::BodyExt::frame(&mut body).await {
                    bytes += frame.data_ref().map_or(0, Bytes::len);
                }
                let text = format!("{} {} {bytes}", parts.method, parts.uri.path());
                Response::new(Full::new(Bytes::from(text)))
            })
        }
    }
}

type BoxFuture = std::pin::Pin<Box<dyn Future<Output = Response<Full<Bytes>>> + Send>>;

fn server(connections: usize) -> Server {
    Server {
        limits: Limits::new(connections),
        http2: true,
        metrics: Metrics::new(),
        shutdown: CancellationToken::new(),
        tasks: TaskTracker::new(),
    }
}

/// A connection without a socket, so that a paused clock rules it.
fn connect(server: &Server, reached: &Reached) -> DuplexStream {
    let (near, far) = tokio::io::duplex(1 << 18);
    let place = server.limits.connections.clone().try_acquire_owned().expect("a free place");
    server.connection(far, Peer::Loopback, place, reached.service());
    near
}

async fn until_closed(mut stream: impl AsyncReadExt + Unpin) -> String {
    let mut all = Vec::new();
    // A reset after the last byte is an end too.
    if let Err(error) = stream.read_to_end(&mut all).await {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
    String::from_utf8(all).expect("utf-8")
}

async fn exchange(request: &str) -> (String, Reached) {
    exchange_with(&server(1), request).await
}

async fn exchange_with(server: &Server, request: &str) -> (String, Reached) {
    let reached = Reached::default();
    let mut stream = connect(server, &reached);
    stream.write_all(request.as_bytes()).await.expect("written");
    let answer = until_closed(stream).await;
    // The connection's task counts after its last byte.
    server.tasks.close();
    server.tasks.wait().await;
    server.tasks.reopen();
    (answer, reached)
}

/// How many requests were refused for this reason.
fn rejected(server: &Server, reason: &str) -> u64 {
    let line = format!("checkrein_requests_rejected_total{{reason=\"{reason}\"}} ");
    let text = server.metrics.encode();
    text.lines().find_map(|l| l.strip_prefix(&line)).map_or(0, |n| n.parse().expect("a count"))
}

fn fields(count: usize) -> String {
    // With Host and Connection.
    (0..count - 2).map(|n| format!("x-{n}: 1\r\n")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_connection_serves_one_request_after_another() {
    let request = "GET /a HTTP/1.1\r\nhost: x\r\n\r\nPOST /b HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\nconnection: close\r\n\r\nabc";
    let (answers, reached) = exchange(request).await;
    assert_eq!(reached.paths(), ["/a", "/b"]);
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 2, "{answers}");
    assert!(answers.ends_with("POST /b 3"), "{answers}");
}

#[tokio::test(start_paused = true)]
async fn bb_n07_a_head_over_our_bounds_is_told_both_of_them() {
    let sixty_four =
        format!("GET /ok HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{}\r\n", fields(64));
    let (answer, reached) = exchange(&sixty_four).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(reached.paths(), ["/ok"]);

    let sixty_five =
        format!("GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{}\r\n", fields(65));
    let long = format!("GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "a".repeat(100_000));
    let far = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(40_000));
    let server = server(1);
    for (count, request) in (1..).zip([sixty_five, long, far]) {
        let (answer, reached) = exchange_with(&server, &request).await;
        assert_eq!(rejected(&server, "head"), count);
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        assert!(answer.contains("application/problem+json"), "{answer}");
        assert!(answer.contains("64 fields") && answer.contains("32768 bytes"), "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
        assert!(reached.paths().is_empty());
        let body = answer.split("\r\n\r\n").nth(1).expect("a body");
        crate::strict_json::parse(body.as_bytes(), crate::strict_json::Limits::answer(4096))
            .expect("json");
    }
}

#[tokio::test(start_paused = true)]
async fn bb_n07_past_the_parsers_own_bounds_it_is_431_too() {
    let many = format!("GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{}\r\n", fields(101));
    let huge = format!("GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "a".repeat(200_000));
    let server = server(1);
    for (count, request) in (1..).zip([many, huge]) {
        let (answer, reached) = exchange_with(&server, &request).await;
        assert_eq!(rejected(&server, "head"), count);
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        assert!(reached.paths().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn bb_n01_two_lengths_smuggle_no_second_request() {
    let (length, chunked) = ("content-length: 4\r\n", "transfer-encoding: chunked\r\n");
    for pair in [format!("{length}{chunked}"), format!("{chunked}{length}")] {
        let request = format!(
            "POST /a HTTP/1.1\r\nhost: x\r\n{pair}\r\n3\r\nabc\r\n0\r\n\r\nGET /smug HTTP/1.1\r\nhost: x\r\n\r\n"
        );
        let began = tokio::time::Instant::now();
        let (answer, reached) = exchange(&request).await;
        assert_eq!(began.elapsed(), Duration::ZERO, "closed at once, not by the head's time");
        assert!(!reached.paths().contains(&"/smug".to_owned()), "{answer}");
        assert!(answer.matches("HTTP/1.1 ").count() <= 1, "{answer}");
    }
    for malformed in [
        "POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        "POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked, gzip\r\n\r\n",
        "POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: +3\r\n\r\nabc",
    ] {
        let server = server(1);
        let (answer, reached) = exchange_with(&server, malformed).await;
        assert_eq!(rejected(&server, "bad_request"), 1);
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert!(reached.paths().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_head_is_closed_at_its_time() {
    let (server, reached) = (server(1), Reached::default());
    let mut stream = connect(&server, &reached);
    stream.write_all(b"GET / HTTP/1.1\r\nhost:").await.expect("written");
    let began = tokio::time::Instant::now();
    until_closed(stream).await;
    assert_eq!(began.elapsed().as_secs(), server.limits.head_timeout.as_secs());
    assert!(reached.paths().is_empty());
    server.tasks.close();
    server.tasks.wait().await;
    assert_eq!(server.limits.connections.available_permits(), 1);
    assert_eq!(rejected(&server, "header_timeout"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_quiet_connection_is_closed_at_the_same_time_and_counted_as_nothing() {
    let (server, reached) = (server(2), Reached::default());
    let fresh = connect(&server, &reached);
    let mut served = connect(&server, &reached);
    served.write_all(b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("written");
    until_closed(fresh).await;
    assert!(until_closed(served).await.ends_with("GET /a 0"));
    server.tasks.close();
    server.tasks.wait().await;
    assert_eq!(rejected(&server, "header_timeout"), 0);
}

/// A service that says it has begun, and answers when it is let.
#[derive(Clone, Default)]
struct Held {
    begun: Arc<Notify>,
    go_on: Arc<Notify>,
}

#[tokio::test(start_paused = true)]
async fn draining_answers_the_exchange_in_hand_and_closes_the_others() {
    let (server, reached, held) = (server(3), Reached::default(), Held::default());
    let fresh = connect(&server, &reached);
    let mut idle = connect(&server, &reached);
    idle.write_all(b"GET /idle HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("written");
    let mut byte = [0];
    idle.read_exact(&mut byte).await.expect("answered");

    let (mut busy, far) = tokio::io::duplex(1 << 16);
    let place = server.limits.connections.clone().try_acquire_owned().expect("a free place");
    let service = held.clone();
    server.connection(far, Peer::Loopback, place, move |_, _| {
        let held = service.clone();
        async move {
            held.begun.notify_one();
            held.go_on.notified().await;
            Response::new(Full::new(Bytes::from_static(b"whole")))
        }
    });
    busy.write_all(b"GET /busy HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("written");
    held.begun.notified().await;

    let began = tokio::time::Instant::now();
    server.shutdown.cancel();
    until_closed(fresh).await;
    until_closed(idle).await;
    assert_eq!(began.elapsed(), Duration::ZERO, "nothing was waited for");
    held.go_on.notify_one();
    let answer = until_closed(busy).await;
    assert!(answer.contains("connection: close") && answer.ends_with("whole"), "{answer}");
    server.tasks.close();
    server.tasks.wait().await;
}

#[tokio::test]
async fn past_the_bound_a_connection_is_told_and_closed() {
    let (server, reached) = (server(1), Reached::default());
    let bound = bind_tcp("127.0.0.1:0".parse().expect("addr"), false).expect("bound");
    let listener = Listener::tcp(bound).expect("registered");
    let addr = listener.local_addr().expect("tcp");
    let accepting = server.serve(listener, reached.service());

    let mut first = dial(addr).await;
    first.write_all(b"GET /first HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("written");
    first.read_exact(&mut [0]).await.expect("answered");
    let second = until_closed(dial(addr).await).await;
    assert!(second.starts_with("HTTP/1.1 503 "), "{second}");
    assert_eq!(rejected(&server, "connections"), 1);
    let (head, body) = second.split_once("\r\n\r\n").expect("a body");
    assert!(head.contains(&format!("content-length: {}", body.len())), "{second}");
    crate::strict_json::parse(body.as_bytes(), crate::strict_json::Limits::answer(4096))
        .expect("json");

    server.shutdown.cancel();
    accepting.await.expect("ended");
}

#[expect(clippy::disallowed_methods, reason = "a test dials itself")]
async fn dial(addr: std::net::SocketAddr) -> TcpStream {
    TcpStream::connect(addr).await.expect("connected")
}

#[tokio::test]
async fn several_listeners_share_a_port() {
    let first = bind_tcp("127.0.0.1:0".parse().expect("addr"), true).expect("bound");
    let addr = first.local_addr().expect("addr");
    bind_tcp(addr, true).expect("shared");
    assert!(bind_tcp(addr, false).is_err(), "not without asking");
}

#[tokio::test]
async fn a_unix_socket_is_its_groups_and_tells_who_asks() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("data.sock");
    let listener = bind_unix(&path).expect("bound");
    let meta = std::fs::metadata(&path).expect("there");
    assert_eq!(meta.permissions().mode() & 0o777, 0o660);
    let server = server(4);
    let listener = Listener::unix(listener).expect("registered");
    let accepting = server.serve(listener, |peer, _| async move {
        Response::new(Full::new(Bytes::from(format!("{peer:?}"))))
    });
    let mut stream = UnixStream::connect(&path).await.expect("connected");
    let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.expect("written");
    let answer = until_closed(stream).await;
    assert!(answer.ends_with(&format!("Unix {{ uid: Some({}) }}", meta.uid())), "{answer}");
    server.shutdown.cancel();
    accepting.await.expect("ended");
}

#[test]
fn a_stale_socket_is_replaced_and_nothing_else_is() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("data.sock");
    let live = bind_unix(&path).expect("bound");
    let refused = bind_unix(&path).expect_err("a live one");
    assert!(refused.to_string().contains("another process"), "{refused}");
    drop(live);
    bind_unix(&path).expect("the stale one is replaced");
    let file = folder.path().join("file");
    std::fs::write(&file, "precious").expect("written");
    assert!(bind_unix(&file).is_err());
    assert_eq!(std::fs::read_to_string(&file).expect("still there"), "precious");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_takes_nothing_of_its_answer_is_cut_after_a_minute() {
    let server = server(1);
    let (mut near, far) = tokio::io::duplex(1 << 10);
    let place = server.limits.connections.clone().try_acquire_owned().expect("a free place");
    server.connection(far, Peer::Loopback, place, |_, _| async {
        Response::new(Full::new(Bytes::from(vec![b'x'; 1 << 20])))
    });
    near.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("written");
    near.read_exact(&mut [0; 10]).await.expect("it began");
    let began = tokio::time::Instant::now();
    // Slow is not gone: a byte now and then begins the minute anew.
    tokio::time::advance(Duration::from_secs(50)).await;
    near.read_exact(&mut [0; 600]).await.expect("a part");
    server.tasks.close();
    server.tasks.wait().await;
    assert_eq!(began.elapsed().as_secs(), 110);
    assert_eq!(server.limits.connections.available_permits(), 1);
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// An empty SETTINGS frame (RFC 9113 §6.5).
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

#[tokio::test(start_paused = true)]
async fn a_preface_that_does_not_come_whole_is_closed_like_a_slow_head() {
    let most = server(1).limits.head_timeout;
    for begun in [&b""[..], b"P", b"PRI * HTT", PREFACE, &[PREFACE, SETTINGS].concat()] {
        let (server, reached) = (server(1), Reached::default());
        let mut stream = connect(&server, &reached);
        let began = tokio::time::Instant::now();
        stream.write_all(begun).await.expect("taken");
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.expect("an end");
        let took = began.elapsed();
        assert!(took >= most && took <= most + Duration::from_secs(3), "{begun:?}: {took:?}");
        assert!(reached.paths().is_empty());
    }
}

type Http2 = hyper::client::conn::http2::SendRequest<Full<Bytes>>;

/// A connection of HTTP/2 whose service answers when it is told to; its end.
async fn http2_that_waits(server: &Server) -> (Http2, JoinHandle<hyper::Result<()>>, Arc<Notify>) {
    let (near, far) = tokio::io::duplex(1 << 18);
    let place = server.limits.connections.clone().try_acquire_owned().expect("a free place");
    let go = Arc::new(Notify::new());
    let gone = go.clone();
    server.connection(far, Peer::Loopback, place, move |_, _| {
        let gone = gone.clone();
        async move {
            gone.notified().await;
            Response::new(Full::new(Bytes::from("done")))
        }
    });
    let (client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(near))
            .await
            .expect("HTTP/2");
    (client, tokio::spawn(connection), go)
}

#[tokio::test(start_paused = true)]
async fn http2_without_an_exchange_is_closed_at_the_same_time_and_with_one_it_is_not() {
    let server = server(1);
    let most = server.limits.head_timeout;
    let (client, ended, go) = http2_that_waits(&server).await;
    let request = Request::builder().uri("http://g/x").body(Full::<Bytes>::default());
    let asked = client.clone().send_request(request.expect("a request"));
    let asked = tokio::spawn(asked);
    // Far longer than a quiet connection may stay.
    drop(tokio::time::timeout(5 * most, std::future::pending::<()>()).await);
    assert!(!ended.is_finished() && !asked.is_finished());
    go.notify_one();
    assert_eq!(asked.await.expect("no panic").expect("an answer").status(), 200);
    let quiet_since = tokio::time::Instant::now();
    assert!(ended.await.is_ok());
    let took = quiet_since.elapsed();
    assert!(took >= most && took <= 2 * most + Duration::from_secs(3), "{took:?}");
    drop(client);
}

#[tokio::test(start_paused = true)]
async fn draining_answers_the_streams_in_hand_and_closes() {
    let server = server(1);
    let (client, ended, go) = http2_that_waits(&server).await;
    let ask = |client: &Http2| {
        let request = Request::builder().uri("http://g/x").body(Full::<Bytes>::default());
        tokio::spawn(client.clone().send_request(request.expect("a request")))
    };
    let (one, two) = (ask(&client), ask(&client));
    // Both have reached the service before the gateway drains.
    drop(tokio::time::timeout(Duration::from_millis(10), std::future::pending::<()>()).await);
    server.shutdown.cancel();
    drop(tokio::time::timeout(Duration::from_millis(10), std::future::pending::<()>()).await);
    go.notify_one();
    go.notify_waiters();
    for asked in [one, two] {
        assert_eq!(asked.await.expect("no panic").expect("an answer").status(), 200);
    }
    assert!(ended.await.is_ok(), "and the connection is over");
    drop(client);
}
