//! Out of file descriptors (BB-N10): the gateway waits instead of spinning, and serves again when some are free.
//! The server runs in a child of this very binary, which alone has the low limit.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use checkrein::server::{Limits, Listener, Server, bind_tcp};
use checkrein::telemetry::metrics::Metrics;
use http::Response;
use http_body_util::Full;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const CHILD: &str = "CHECKREIN_TEST_FEW_DESCRIPTORS";
const NAME: &str = "descriptors::bb_n10_out_of_descriptors_the_server_waits_and_recovers";
/// Descriptors of the child, and connections that ask for more.
const FEW: usize = 48;
const MANY: usize = 96;

/// Ends with its test, whatever the test comes to.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended by itself; there is nothing to do about it here.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn bb_n10_out_of_descriptors_the_server_waits_and_recovers() {
    if std::env::var_os(CHILD).is_some() {
        return serve();
    }
    let me = std::env::current_exe().expect("this binary");
    let script = format!("ulimit -n {FEW}; exec \"$0\" --exact {NAME} --nocapture");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).arg(me).env(CHILD, "1");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let mut served = Served(child);
    let mut said = BufReader::new(served.0.stdout.take().expect("piped")).lines();
    let port: u16 = said
        .find_map(|line| line.ok()?.split_once("listening on ")?.1.trim().parse().ok())
        .expect("the child says its port");
    exchange(port);
    let before = open(&served);

    let connections: Vec<TcpStream> = (0..MANY).map(|_| dial(port)).collect();
    let logged = BufReader::new(served.0.stderr.take().expect("piped")).lines();
    let mut warnings =
        logged.map_while(Result::ok).filter(|line| line.contains("cannot accept connections"));
    warnings.next().expect("it says what is the matter");
    let began = Instant::now();
    assert_eq!(warnings.by_ref().take(5).count(), 5);
    let waits = Duration::from_millis(10 + 20 + 40 + 80 + 160);
    assert!(began.elapsed() > waits / 2, "it spins: {:?}", began.elapsed());

    drop(connections);
    exchange(port);
    // Each exchange lets the server close what its peers have closed.
    let back = (0..500).any(|_| {
        exchange(port);
        open(&served) <= before
    });
    assert!(back, "{} descriptors are open, {before} were", open(&served));
}

fn open(served: &Served) -> usize {
    let folder = format!("/proc/{}/fd", served.0.id());
    std::fs::read_dir(folder).expect("the child lives").count()
}

fn dial(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("the system takes connections");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    stream
}

fn exchange(port: u16) {
    let mut stream = dial(port);
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// The child's part; the parent ends it.
fn serve() {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let server = Server {
            http2: true,
            limits: Limits::new(10_000),
            metrics: Metrics::new(),
            shutdown: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        let bound = bind_tcp("127.0.0.1:0".parse().expect("addr"), false).expect("bound");
        let listener = Listener::tcp(bound).expect("registered");
        let port = listener.local_addr().expect("tcp").port();
        writeln!(std::io::stdout(), "listening on {port}").expect("the parent reads");
        let accepting = server.serve(listener, |_, _| async {
            Response::new(Full::new(Bytes::from_static(b"here")))
        });
        // A bound for a parent that is gone.
        let _elapsed = tokio::time::timeout(Duration::from_secs(60), accepting).await;
    });
}
