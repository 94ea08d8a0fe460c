//! Which sockets are used: vetted addresses only, idle ones for reads, closed when an exchange is dropped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

use super::support::*;
use crate::backends::Backend;
use crate::call::code::FailCode;
use crate::call::{Delivery, Effect, ErrorClass, Evidence, Phase, Verdict};
use crate::egress::{Egress, MAX_IDLE, MAX_IDLE_TIME, Names, Resolver};
use crate::policy::snapshot::{Addresses, Tool};
use crate::telemetry::metrics::Metrics;

const ORDER: &str = r#"{"order_id":"1"}"#;

fn backend_of(tool: &Arc<Tool>, egress: &Arc<Egress>) -> Backend {
    Backend::http(tool, egress, RESPONSE_BYTES)
}

/// A port on which nobody listens.
async fn closed_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    listener.local_addr().expect("bound").port()
}

#[tokio::test]
async fn reads_share_one_connection_and_every_write_has_its_own() {
    let server = Server::saying(ok_json("{}")).await;
    let read = backend(read_at(&server));
    for _ in 0..20 {
        ask(&read, ORDER).await.expect("an answer");
        tokio::task::yield_now().await;
    }
    assert_eq!(server.connections(), 1);
    let write = backend(write_at(&server));
    for _ in 0..5 {
        ask(&write, "{}").await.expect("an answer");
    }
    assert_eq!(server.connections(), 6);
}

#[tokio::test]
async fn a_write_under_connection_pooled_takes_an_idle_connection() {
    let server = Server::saying(ok_json("{}")).await;
    let mut tool = write_at(&server);
    tool.write.as_mut().expect("a write").pooled = true;
    let write = backend(tool);
    for _ in 0..5 {
        ask(&write, "{}").await.expect("an answer");
        tokio::task::yield_now().await;
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_connection_whose_answer_was_not_read_to_its_end_is_not_used_again() {
    let server = Server::saying(ok_json(&"x".repeat(RESPONSE_BYTES + 1))).await;
    let tool = Arc::new(read_at(&server));
    let egress = egress(&tool);
    let backend = backend_of(&tool, &egress);
    for _ in 0..3 {
        assert!(ask(&backend, ORDER).await.is_err());
    }
    assert_eq!(server.connections(), 3);
    assert_eq!(egress.way(&tool.upstream).idle_connections(), 0);
}

#[tokio::test]
async fn idle_connections_are_few() {
    let together = Arc::new(tokio::sync::Barrier::new(MAX_IDLE + 8));
    let server = Server::start(move |mut peer| {
        let together = together.clone();
        async move {
            while peer.request().await.is_some() {
                together.wait().await;
                peer.say(ok_json("{}")).await;
            }
        }
    })
    .await;
    let tool = Arc::new(read_at(&server));
    let egress = egress(&tool);
    let backend = backend_of(&tool, &egress);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..MAX_IDLE + 8 {
        let backend = backend.clone();
        calls.spawn(async move { ask(&backend, ORDER).await.map(|_| ()) });
    }
    while let Some(done) = calls.join_next().await {
        done.expect("no panic").expect("an answer");
    }
    let idle = egress.way(&tool.upstream).idle_connections();
    assert!(idle <= MAX_IDLE, "{idle}");
    assert!(idle > 0);
}

#[tokio::test]
async fn idle_connections_survive_a_reload_that_leaves_their_upstream_alone() {
    let server = Server::saying(ok_json("{}")).await;
    let tool = Arc::new(read_at(&server));
    let first = egress(&tool);
    ask(&backend_of(&tool, &first), ORDER).await.expect("an answer");
    tokio::task::yield_now().await;
    let second = Egress::new(&snapshot(&tool), Some(&first), Metrics::new());
    ask(&backend_of(&tool, &second), ORDER).await.expect("an answer");
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn an_idle_connection_that_is_too_old_is_closed_by_the_sweep_and_never_used() {
    let server = Server::saying(ok_json("{}")).await;
    let tool = Arc::new(read_at(&server));
    let egress = egress(&tool);
    let backend = backend_of(&tool, &egress);
    ask(&backend, ORDER).await.expect("an answer");
    assert_eq!(egress.way(&tool.upstream).idle_connections(), 1);
    tokio::time::pause();
    tokio::time::advance(MAX_IDLE_TIME).await;
    tokio::time::resume();
    egress.sweep();
    assert_eq!(egress.way(&tool.upstream).idle_connections(), 0);
    ask(&backend, ORDER).await.expect("an answer");
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn a_dropped_read_closes_its_socket() {
    let closed = Arc::new(tokio::sync::Notify::new());
    let gone = closed.clone();
    let server = Server::start(move |mut peer| {
        let gone = gone.clone();
        async move {
            peer.request().await.expect("a request");
            // Never answers: ends when the other side closes.
            assert!(peer.request().await.is_none());
            gone.notify_one();
        }
    })
    .await;
    let backend = backend(read_at(&server));
    let call = call(ORDER);
    let progress = call.progress.clone().expect("there");
    let task = tokio::spawn(async move { send(&backend, call).await });
    while progress.phase() < Phase::Written {
        progress.marked().await;
    }
    task.abort();
    // The server saw the end.
    closed.notified().await;
}

#[tokio::test]
async fn phases_are_marked_in_their_order() {
    let server = Server::saying(ok_json("{}")).await;
    let call = call(ORDER);
    let progress = call.progress.clone().expect("there");
    send(&backend(read_at(&server)), call).await.expect("an answer");
    assert_eq!(progress.phase(), Phase::Ended);
    let phases = [Phase::Connected, Phase::Sending, Phase::Written, Phase::FirstByte, Phase::Ended];
    let at: Vec<_> = phases.iter().map(|phase| progress.reached(*phase).expect("marked")).collect();
    assert!(at.is_sorted(), "{at:?}");
}

#[tokio::test]
async fn bb_w03_a_refused_connection_is_provably_not_sent() {
    let tool = tool(Effect::Write, upstream("127.0.0.1", closed_port().await));
    let failed = ask(&backend(tool), "{}").await.expect_err("nobody listens");
    assert_eq!(failed.code, FailCode::UpstreamUnreachable);
    assert_eq!(failed.delivery, Delivery::NotSent);
    assert_eq!(failed.evidence, Some(Evidence::ConnectFailed));
    assert_eq!((failed.health, failed.error_class), (Verdict::Bad, ErrorClass::Connect));
    assert!(failed.message.contains("connection refused"), "{}", failed.message);
}

#[tokio::test]
async fn bb_n14_localhost_that_is_first_an_ipv6_address_falls_to_the_next() {
    let server = Server::saying(ok_json("{}")).await;
    let port = server.address.port();
    let names = Names::default();
    let v6: SocketAddr = format!("[::1]:{port}").parse().expect("an address");
    names.set("localhost", vec![v6, server.address]);
    let tool = Arc::new(tool(Effect::Read, upstream("localhost", port)));
    let egress = egress_with(&tool, Resolver::Table(names));
    ask(&backend_of(&tool, &egress), ORDER).await.expect("the second address");
    // And by the system's own resolver.
    let egress = super::support::egress(&tool);
    ask(&backend_of(&tool, &egress), ORDER).await.expect("localhost");
}

#[tokio::test]
async fn bb_n08_a_name_that_has_moved_is_followed_at_the_next_connection() {
    let old = closed_port().await;
    let new = Server::saying(ok_json("{}")).await;
    let names = Names::default();
    names.set("orders.internal", vec![SocketAddr::from(([127, 0, 0, 1], old))]);
    let tool = Arc::new(tool(Effect::Read, upstream("orders.internal", old)));
    let egress = egress_with(&tool, Resolver::Table(names.clone()));
    let backend = backend_of(&tool, &egress);
    assert!(ask(&backend, ORDER).await.is_err());
    names.set("orders.internal", vec![new.address]);
    ask(&backend, ORDER).await.expect("the new address, at once");
    names.set("orders.internal", Vec::new());
    let fresh = egress_with(&tool, Resolver::Table(names));
    let failed = ask(&backend_of(&tool, &fresh), ORDER).await.expect_err("no address");
    assert_eq!(failed.code, FailCode::UpstreamUnreachable);
    assert_eq!(failed.evidence, Some(Evidence::ConnectFailed));
}

#[tokio::test]
async fn an_address_that_does_not_answer_does_not_keep_the_next_waiting() {
    // A listener whose queue is full answers no more handshakes.
    let full =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    full.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into()).expect("a port");
    full.listen(0).expect("a listener");
    let silent = full.local_addr().expect("bound").as_socket().expect("an address");
    let mut fillers = Vec::new();
    for _ in 0..4 {
        let filler = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
            .expect("a socket");
        filler.set_nonblocking(true).expect("an option");
        drop(filler.connect(&silent.into()));
        fillers.push(filler);
    }
    let server = Server::saying(ok_json("{}")).await;
    let names = Names::default();
    names.set("two.internal", vec![silent, server.address]);
    let tool = Arc::new(tool(Effect::Read, upstream("two.internal", 1)));
    let egress = egress_with(&tool, Resolver::Table(names));
    let asked = tokio::time::timeout(Duration::from_secs(5), async {
        ask(&backend_of(&tool, &egress), ORDER).await.expect("the second address")
    });
    asked.await.expect("long before the first gives up");
}

#[tokio::test]
async fn what_is_not_allowed_is_not_dialled_in_any_spelling() {
    let server = Server::saying(ok_json("{}")).await;
    let port = server.address.port();
    for host in [
        "127.0.0.1",
        "::1",
        "::ffff:127.0.0.1",
        "localhost",
        "localhost.",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "127.1",
        "0.0.0.0",
        "0",
        "169.254.169.254",
        "::ffff:a9fe:a9fe",
        "10.0.0.1",
    ] {
        let mut upstream = upstream(host.trim_matches(['[', ']']), port);
        upstream.addresses = Addresses::default();
        let tool = tool(Effect::Write, upstream);
        let failed = ask(&backend(tool), "{}").await.expect_err(host);
        assert_eq!(failed.delivery, Delivery::NotSent, "{host}");
        // A spelling that this system's resolver does not know is as good.
        let ok = matches!(failed.code, FailCode::EgressBlocked)
            || (failed.code == FailCode::UpstreamUnreachable
                && failed.message.contains("resolved")
                && host.parse::<std::net::IpAddr>().is_err());
        assert!(ok, "{host}: {failed:?}");
    }
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn a_public_name_that_points_inside_is_blocked_and_a_mixed_one_goes_outside_only() {
    let server = Server::saying(ok_json("{}")).await;
    let names = Names::default();
    let inside: SocketAddr = "10.0.0.1:80".parse().expect("an address");
    names.set("rebind.example", vec![inside]);
    let mut to = upstream("rebind.example", server.address.port());
    to.addresses = Addresses { loopback: true, ..Addresses::default() };
    let tool = Arc::new(tool(Effect::Read, to));
    let egress = egress_with(&tool, Resolver::Table(names.clone()));
    let backend = backend_of(&tool, &egress);
    let failed = ask(&backend, ORDER).await.expect_err("blocked");
    assert_eq!(failed.code, FailCode::EgressBlocked);
    assert_eq!(failed.health, Verdict::Neutral);
    names.set("rebind.example", vec![inside, server.address]);
    ask(&backend, ORDER).await.expect("the vetted one");
}

#[tokio::test]
async fn a_host_that_the_policy_does_not_allow_is_not_even_resolved() {
    let server = Server::saying(ok_json("{}")).await;
    let tool = Arc::new(read_at(&server));
    let mut snapshot = snapshot(&tool);
    snapshot.egress.allow_hosts.clear();
    let egress = Egress::new(&snapshot, None, Metrics::new());
    let failed = ask(&backend_of(&tool, &egress), ORDER).await.expect_err("blocked");
    assert_eq!(failed.code, FailCode::EgressBlocked);
    assert_eq!(failed.evidence, Some(Evidence::ConnectFailed));
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn bytes_after_an_answer_never_become_the_answer_of_another_call() {
    // A server that says one thing too many: for the reader of one connection, a second whole answer.
    let both = format!("{}{}", ok_json(r#"{"for":"first"}"#), ok_json(r#"{"for":"nobody"}"#));
    for pause in [false, true] {
        let both = both.clone();
        let server = Server::start(move |mut peer| {
            let both = both.clone();
            async move {
                if peer.request().await.is_some() {
                    peer.say(&both).await;
                }
                while peer.request().await.is_some() {}
            }
        })
        .await;
        let backend = backend(read_at(&server));
        for _ in 0..20 {
            let result = ask(&backend, ORDER).await.expect("an answer");
            assert_eq!(text(&result), r#"{"for":"first"}"#);
            if pause {
                tokio::task::yield_now().await;
            }
        }
    }
}

#[tokio::test]
async fn an_answer_that_switches_protocols_is_no_answer() {
    let server = Server::saying(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    )
    .await;
    let tool = Arc::new(read_at(&server));
    let egress = egress(&tool);
    let backend = backend_of(&tool, &egress);
    for connections in 1..=3 {
        let failed = ask(&backend, ORDER).await.expect_err("no answer");
        assert_eq!(failed.code, FailCode::UpstreamProtocolError);
        assert_eq!(server.connections(), connections);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_equal_hits_whatever_the_server_does() {
    // No call is heard twice: nothing between the back end and the wire sends again by itself.
    let server = Server::start(|mut peer| async move {
        for turn in 0_u32.. {
            let Some(request) = peer.request().await else { return };
            match (request.len() as u32).wrapping_mul(31).wrapping_add(turn) % 6 {
                0 => return,
                1 => return peer.reset(),
                2 => peer.say("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n").await,
                3 => return peer.say("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{").await,
                _ => peer.say(ok_json("{}")).await,
            }
            if request.len() % 5 == 0 {
                return;
            }
        }
    })
    .await;
    let tool = Arc::new(read_at(&server));
    let egress = egress(&tool);
    let mut calls = tokio::task::JoinSet::new();
    for worker in 0..8 {
        let backend = backend_of(&tool, &egress);
        calls.spawn(async move {
            let mut ok = 0;
            for n in 0..60 {
                let pad = "x".repeat((worker + n) % 17);
                let arguments = format!(r#"{{"order_id":"id-{worker}-{n}-{pad}"}}"#);
                ok += usize::from(ask(&backend, &arguments).await.is_ok());
            }
            ok
        });
    }
    let mut ok = 0;
    while let Some(done) = calls.join_next().await {
        ok += done.expect("no panic");
    }
    assert!(ok > 0);
    let mut heard: Vec<String> =
        server.heard().iter().filter_map(|one| one.lines().next().map(str::to_owned)).collect();
    let all = heard.len();
    heard.sort_unstable();
    heard.dedup();
    assert_eq!(heard.len(), all, "a call was heard twice");
    assert!(all <= 8 * 60);
}

#[test]
fn the_back_end_fits_into_a_stack() {
    fn fits<S: crate::layers::stack::Inner>() {}
    fits::<Backend>();
}
