use std::fs;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::config::Audit;

const POLICY: &str = r#"
apiVersion: checkrein/v1
kind: Policy
name: test
upstreams:
  shop: { base_url: "http://127.0.0.1:9", addresses: [loopback] }
tools:
  check_order:
    description: Look up one order.
    effect: read
    profile: internal_rpc
    http: { upstream: shop, method: GET, path: "/orders/{order_id}" }
    schema: { type: object, required: [order_id], properties: { order_id: { type: string } } }
agents:
  NAMED
"#;
const DEFAULT: &str = "default: { allow: [check_order] }";

fn policy(folder: &tempfile::TempDir, agents: &str) -> PathBuf {
    let token = folder.path().join("token");
    fs::write(&token, "0123456789abcdef0123456789abcdef").expect("written");
    let agents = agents.replace("TOKEN", &token.display().to_string());
    let file = folder.path().join("policy.yaml");
    fs::write(&file, POLICY.replace("NAMED", &agents)).expect("written");
    file
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

async fn get(address: SocketAddr, path: &str) -> String {
    #[expect(clippy::disallowed_methods, reason = "the test is the peer")]
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer
}

/// Waits on a level; the limit only ends a test that has failed.
async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let end = tokio::time::Instant::now() + Duration::from_secs(20);
    let mut looks = tokio::time::interval(Duration::from_millis(20));
    while !is().await {
        assert!(tokio::time::Instant::now() < end, "{what}: not within 20 s");
        looks.tick().await;
    }
}

#[tokio::test]
async fn a_gateway_is_ready_once_started_and_gone_once_drained() {
    let folder = folder();
    let running = start(Config::loopback(policy(&folder, DEFAULT))).await.expect("it starts");
    let health = running.health;
    assert!(get(health, "/ready").await.starts_with("HTTP/1.1 200"));
    let metrics = get(health, "/metrics").await;
    assert!(metrics.contains(r#"checkrein_breaker_state{state="closed",tool="check_order"} 1"#));
    assert!(metrics.contains(r#"checkrein_policy_info{policy="test",revision=""#), "{metrics}");
    let Listen::Tcp(data) = running.data else { unreachable!("told to listen on TCP") };
    assert!(get(data, "/v1/tools").await.contains("check_order"));
    assert!(running.shutdown().await, "nothing was in flight");
    until("the listeners are closed", async || std::net::TcpStream::connect(data).is_err()).await;
    until("the probes are closed", async || std::net::TcpStream::connect(health).is_err()).await;
}

#[tokio::test]
async fn the_agent_default_on_an_open_listener_is_refused_at_start() {
    let folder = folder();
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    let config = Config { listen: Listen::Tcp(any), ..Config::loopback(policy(&folder, DEFAULT)) };
    let told = start(config).await.expect_err("it must not start").to_string();
    assert!(told.contains("CR5003") && told.contains("policy.yaml:"), "{told}");
}

#[tokio::test]
async fn the_agent_default_on_an_open_listener_is_refused_at_a_reload_too() {
    let folder = folder();
    let named = r#"support: { identities: [{ token: { file: "TOKEN" } }], allow: [check_order] }"#;
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    let file = policy(&folder, named);
    let config = Config { listen: Listen::Tcp(any), ..Config::loopback(file) };
    let running = start(config).await.expect("it starts");
    let before = running.engine.snapshot().revision.clone();
    policy(&folder, DEFAULT);
    running.reload();
    let refused = async || get(running.health, "/ready?verbose").await.contains("CR5003");
    until("the refusal is shown", refused).await;
    assert_eq!(running.engine.snapshot().revision, before, "the old policy is obeyed");
    let metrics = get(running.health, "/metrics").await;
    assert!(metrics.contains("checkrein_policy_last_reload_successful 0"));
    assert!(get(running.health, "/ready").await.starts_with("HTTP/1.1 200"));
    policy(&folder, named);
    running.reload();
    let mended = async || !get(running.health, "/ready?verbose").await.contains("degraded");
    until("the mended policy is taken", mended).await;
}

#[tokio::test]
async fn what_cannot_be_bound_or_written_is_named() {
    let folder = folder();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().map(|address| (taken, address)).expect("bound");
    let base = || Config::loopback(policy(&folder, DEFAULT));
    let health = Config { health: taken.1, ..base() };
    let told = start(health).await.expect_err("taken").to_string();
    assert!(told.contains(&taken.1.to_string()) && told.contains("health"), "{told}");
    let data = Config { listen: Listen::Tcp(taken.1), ..base() };
    let told = start(data).await.expect_err("taken").to_string();
    assert!(told.contains("data"), "{told}");
    let records = Config { audit: Audit::File("/nowhere/records".into()), ..base() };
    let told = start(records).await.expect_err("no such folder").to_string();
    assert!(told.contains("/nowhere/records"), "{told}");
}
