//! Writes: the gate between connect and first byte, one send, evidence only where there is proof.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::support::*;
use crate::backends::Backend;
use crate::call::code::FailCode;
use crate::call::{Class, Delivery, Effect, Evidence, Failed, Phase, SentKey, Verdict, send_gate};
use crate::policy::snapshot::{Idempotency, SentAs, Tool};

#[tokio::test]
async fn not_a_byte_goes_out_before_the_gate_opens() {
    let server = Server::saying(ok_json("{}")).await;
    let backend = backend(write_at(&server));
    let mut call = call("{}");
    let (gate, keeper) = send_gate();
    call.send_gate = Some(gate);
    let progress = call.progress.clone().expect("there");
    let task = tokio::spawn(async move { send(&backend, call).await });
    assert!(keeper.asked().await);
    assert_eq!(progress.phase(), Phase::Connected);
    while server.connections() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(server.heard().is_empty());
    assert!(keeper.open());
    task.await.expect("no panic").expect("an answer");
    assert_eq!(server.heard().len(), 1);
}

#[tokio::test]
async fn a_gate_that_stays_shut_closes_the_unused_connection() {
    let bytes = Arc::new(AtomicUsize::new(0));
    let closed = Arc::new(tokio::sync::Notify::new());
    let gone = closed.clone();
    let server = {
        let bytes = bytes.clone();
        Server::start(move |mut peer| {
            let (bytes, gone) = (bytes.clone(), gone.clone());
            async move {
                if peer.request().await.is_some() {
                    bytes.fetch_add(1, Ordering::SeqCst);
                }
                gone.notify_one();
            }
        })
        .await
    };
    let backend = backend(write_at(&server));
    let mut call = call("{}");
    let (gate, keeper) = send_gate();
    call.send_gate = Some(gate);
    let why = Failed::new(
        FailCode::Internal,
        Class::Permanent,
        Delivery::NotSent,
        Verdict::Neutral,
        "the record cannot be written",
    );
    keeper.shut(why);
    let failed = send(&backend, call).await.expect_err("shut");
    assert_eq!(failed.message, "the record cannot be written");
    assert_eq!(failed.delivery, Delivery::NotSent);
    // The server saw the end.
    closed.notified().await;
    assert_eq!(bytes.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_connection_that_dies_while_the_gate_is_shut_is_proof_that_nothing_was_sent() {
    let server = Server::start(|peer| async move { drop(peer) }).await;
    let tool = Arc::new(write_at(&server));
    let egress = egress(&tool);
    let backend = Backend::http(&tool, &egress, RESPONSE_BYTES);
    let mut call = call(r#"{"amount":1}"#);
    let (gate, keeper) = send_gate();
    call.send_gate = Some(gate);
    let task = tokio::spawn(async move { send(&backend, call).await });
    assert!(keeper.asked().await);
    while egress.open_connections() > 0 {
        tokio::task::yield_now().await;
    }
    assert!(keeper.open());
    let failed = task.await.expect("no panic").expect_err("dead");
    assert_eq!(failed.code, FailCode::UpstreamRefusedStream, "{failed:?}");
    assert_eq!(failed.evidence, Some(Evidence::ZeroBytes));
    assert_eq!(failed.delivery, Delivery::NotSent);
    assert!(failed.never_ran);
}

#[tokio::test]
async fn incomplete_message_is_unknown_a_cut_after_the_request_proves_nothing() {
    for hard in [false, true] {
        let server = Server::start(move |mut peer| async move {
            peer.request().await.expect("a request");
            if hard {
                peer.reset();
            }
        })
        .await;
        for effect in [Effect::Read, Effect::Write] {
            let tool = tool(effect, upstream("127.0.0.1", server.address.port()));
            let failed = ask(&backend(tool), r#"{"order_id":"1"}"#).await.expect_err("cut");
            assert_eq!(failed.code, FailCode::UpstreamReset);
            assert_eq!((failed.class, failed.delivery), (Class::Transient, Delivery::Unknown));
            assert_eq!(failed.evidence, None);
            assert!(!failed.never_ran);
        }
        assert_eq!(server.heard().len(), 2, "each sent once");
    }
}

#[tokio::test]
async fn bb_w04_write_hits_once_on_5xx_and_is_unknown() {
    for status in ["500 A", "502 B", "503 C", "504 D"] {
        let server = Server::saying(answer(status, "", "sorry")).await;
        let failed = ask(&backend(write_at(&server)), "{}").await.expect_err("a failure");
        assert_eq!(failed.delivery, Delivery::Unknown, "{status}");
        assert_eq!(failed.health, Verdict::Bad, "{status}");
        assert_eq!(server.heard().len(), 1, "{status}");
    }
}

#[tokio::test]
async fn bb_w06_closing_server_300_writes_and_none_in_doubt() {
    // One answer a connection, then an unannounced close.
    let server = Server::saying_once(ok_json("{}")).await;
    let write = backend(write_at(&server));
    for n in 0..300 {
        let outcome = ask(&write, &format!(r#"{{"ref":{n}}}"#)).await;
        assert!(outcome.is_ok(), "write {n}: {outcome:?}");
    }
    let heard = server.heard();
    assert_eq!(heard.len(), 300);
    for n in 0..300 {
        let body = format!(r#"{{"ref":{n}}}"#);
        assert_eq!(heard.iter().filter(|one| one.ends_with(&body)).count(), 1, "ref {n}");
    }
    let read = backend(read_at(&server));
    for n in 0..300 {
        let arguments = format!(r#"{{"order_id":"{n}"}}"#);
        let mut tries = 0;
        // As `retry` would: a read that failed in passing is asked again.
        while let Err(failed) = ask(&read, &arguments).await {
            assert_eq!(failed.class, Class::Transient, "read {n}: {failed:?}");
            tries += 1;
            assert!(tries < 4, "read {n}: {failed:?}");
        }
    }
}

#[tokio::test]
async fn write_hits_once_on_reset_and_on_whatever_else_the_server_does() {
    let answers: [&[u8]; 6] = [
        b"",
        b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 408 Slow\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 307 Go\r\nLocation: /orders\r\nContent-Length: 0\r\n\r\n",
        b"garbage\r\n\r\n",
    ];
    for answer in answers {
        let server = Server::saying_once(answer).await;
        assert!(ask(&backend(write_at(&server)), "{}").await.is_err());
        // A second one would have come before this: same server, same runtime.
        assert!(ask(&backend(write_at(&server)), "{}").await.is_err());
        assert_eq!(server.heard().len(), 2);
        assert_eq!(server.connections(), 2);
    }
}

fn keyed(server: &Server, sent_as: SentAs) -> Tool {
    let mut tool = write_at(server);
    let write = tool.write.as_mut().expect("a write");
    write.idempotency = Some(Idempotency { sent_as, window: None });
    tool
}

#[tokio::test]
async fn the_key_goes_where_the_policy_says_and_replaces_what_stood_there() {
    let name = http::HeaderName::from_static("x-request-key");
    let key = "AbC-_1".to_owned();
    for (sent_as, wanted) in [
        (SentAs::Header { name: name.clone(), quoted: false }, "AbC-_1"),
        (SentAs::Header { name: name.clone(), quoted: true }, "\"AbC-_1\""),
        (SentAs::Argument("key".into()), ""),
        (SentAs::Natural, ""),
    ] {
        let server = Server::saying(ok_json("{}")).await;
        let mut call = call(r#"{"a":1}"#);
        call.sent_key = Some(SentKey::new(key.clone()));
        send(&backend(keyed(&server, sent_as.clone())), call).await.expect("an answer");
        let heard = server.heard().remove(0);
        let line = heard.lines().find_map(|line| line.strip_prefix("x-request-key: "));
        assert_eq!(line.unwrap_or_default(), wanted);
        let in_body = matches!(sent_as, SentAs::Argument(_));
        let body = if in_body { r#"{"a":1,"key":"AbC-_1"}"# } else { r#"{"a":1}"# };
        assert!(heard.ends_with(&format!("\r\n\r\n{body}")), "{sent_as:?}: {heard}");
    }
}

#[tokio::test]
async fn a_write_that_must_carry_a_key_never_goes_without() {
    let server = Server::saying(ok_json("{}")).await;
    let failed = send(&backend(keyed(&server, SentAs::Argument("key".into()))), call("{}")).await;
    assert_eq!(failed.expect_err("no key").delivery, crate::call::Delivery::NotSent);
    assert!(server.heard().is_empty());
}
