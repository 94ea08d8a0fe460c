use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::telemetry::metrics::{StateSource, StateView, ToolLabel, ToolStateView};

async fn ask(health: &Health, method: Method, path: &str) -> (StatusCode, String) {
    let request = Request::builder().method(method).uri(path).body(()).unwrap();
    let answer = health.answer(&request);
    let status = answer.status();
    #[expect(clippy::disallowed_methods, reason = "a body of our own making")]
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn status(health: &Health, path: &str) -> StatusCode {
    ask(health, Method::GET, path).await.0
}

fn ready() -> Arc<Health> {
    let health = Health::new(Metrics::new(), 1);
    health.policy_loaded();
    health.listeners_bound();
    health
}

#[tokio::test(start_paused = true)]
async fn ready_needs_policy_and_listeners_and_ends_with_the_drain() {
    let health = Health::new(Metrics::new(), 1);
    assert_eq!(status(&health, "/ready").await, 503);
    health.policy_loaded();
    assert_eq!(status(&health, "/ready").await, 503);
    health.listeners_bound();
    assert_eq!(status(&health, "/ready").await, 200);
    health.draining();
    assert_eq!(status(&health, "/ready").await, 503);
    assert_eq!(status(&health, "/live").await, 200);
}

#[tokio::test(start_paused = true)]
async fn live_needs_a_tick_of_every_worker_in_the_last_five_seconds() {
    let health = Health::new(Metrics::new(), 2);
    tokio::time::advance(Duration::from_millis(4900)).await;
    assert_eq!(status(&health, "/live").await, 200);
    health.beat(0);
    tokio::time::advance(Duration::from_millis(200)).await;
    let (code, body) = ask(&health, Method::GET, "/live").await;
    assert_eq!(code, 503);
    assert!(body.contains("[1]"), "{body}");
    health.beat(1);
    assert_eq!(status(&health, "/live").await, 200);
}

#[derive(Debug)]
struct AllOpen;
impl StateSource for AllOpen {
    fn read(&self) -> StateView {
        let tool = ToolStateView {
            tool: "check_order".into(),
            breaker: "open",
            consecutive_failures: 9,
            failure_threshold: 3,
            last_transition: None,
            inflight: 0,
            tokens: Vec::new(),
            cooldown_until: None,
        };
        StateView { tools: vec![tool], ..StateView::default() }
    }
}

#[tokio::test(start_paused = true)]
async fn bb_d04_open_breakers_fail_neither_live_nor_ready() {
    let metrics = Metrics::new();
    metrics.load(&crate::telemetry::metrics::Labels {
        tools: vec![ToolLabel { name: "check_order".into(), write: false }],
        ..Default::default()
    });
    metrics.set_state_source(Arc::new(AllOpen));
    let health = Health::new(metrics, 1);
    health.policy_loaded();
    health.listeners_bound();
    let (_, scrape) = ask(&health, Method::GET, "/metrics").await;
    assert!(scrape.contains(r#"checkrein_breaker_state{state="open",tool="check_order"} 1"#));
    assert_eq!(status(&health, "/live").await, 200);
    assert_eq!(status(&health, "/ready").await, 200);
}

#[tokio::test(start_paused = true)]
async fn verbose_lists_each_check_and_what_is_degraded() {
    let health = ready();
    health.degraded("policy_reload", Some("error[CR0001]: bad\n --> policy.yaml:3:1\n".into()));
    let (code, body) = ask(&health, Method::GET, "/ready?verbose").await;
    assert_eq!(code, 200);
    assert_eq!(
        body,
        "[ok] policy\n[ok] listeners\n[ok] not_draining\n\
         [degraded] policy_reload: error[CR0001]: bad\n   --> policy.yaml:3:1\nready\n"
    );
    health.degraded("policy_reload", None);
    assert!(!ask(&health, Method::GET, "/ready?verbose=1").await.1.contains("degraded"));
}

#[tokio::test(start_paused = true)]
async fn other_methods_are_405_and_other_paths_404() {
    let health = ready();
    for method in [Method::POST, Method::HEAD, Method::PUT, Method::DELETE] {
        for path in ["/live", "/ready", "/metrics"] {
            assert_eq!(ask(&health, method.clone(), path).await.0, 405, "{method} {path}");
        }
    }
    for path in ["/", "/live/", "/v1/tools", "/metricsx"] {
        assert_eq!(status(&health, path).await, 404, "{path}");
    }
}

/// One exchange over a real connection: what stands on the wire is what a scraper sees.
#[tokio::test(start_paused = true)]
async fn the_content_type_is_exact_whatever_accept_asks() {
    let (mut near, far) = tokio::io::duplex(1 << 20);
    let server = tokio::spawn(ready().serve(far));
    let head = "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
                accept: application/openmetrics-text;version=1.0.0\r\n\r\n";
    near.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    near.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("\r\ncontent-type: text/plain; version=0.0.4\r\n"), "{answer}");
    assert!(answer.contains("# TYPE checkrein_draining gauge"));
    server.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_sends_no_head_is_let_go() {
    let (near, far) = tokio::io::duplex(1024);
    let server = tokio::spawn(ready().serve(far));
    tokio::time::timeout(Duration::from_secs(6), server).await.expect("closed").unwrap();
    drop(near);
}
