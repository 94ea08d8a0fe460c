//! What comes back: bounded in decoded bytes, told with status and text, cut where it was cut.

use std::io::Write as _;
use std::sync::Arc;

use super::support::*;
use crate::call::code::FailCode;
use crate::call::{Class, Delivery, Effect, ErrorClass, Failed, Verdict};
use crate::policy::snapshot::{Auth, Secret, SecretText};

const ORDER: &str = r#"{"order_id":"1"}"#;

async fn failure_of(effect: Effect, answer: impl Into<Vec<u8>>) -> Failed {
    let server = Server::saying_once(answer).await;
    let tool = tool(effect, upstream("127.0.0.1", server.address.port()));
    let failed = ask(&backend(tool), ORDER).await.expect_err("a failure");
    assert_eq!(server.heard().len(), 1, "sent once");
    failed
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

fn gzipped(body: &[u8]) -> Vec<u8> {
    let body = gzip(body);
    let mut answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    answer.extend_from_slice(&body);
    answer
}

#[tokio::test]
async fn bb_o03_the_limit_counts_decoded_bytes() {
    let mut huge = b"[\"".to_vec();
    huge.resize(16 << 20, b'a');
    huge.extend_from_slice(b"\"]");
    let bomb = gzipped(&huge);
    assert!(bomb.len() < RESPONSE_BYTES / 4, "small on the wire");
    for effect in [Effect::Read, Effect::Write] {
        let failed = failure_of(effect, bomb.clone()).await;
        assert_eq!(failed.code, FailCode::ResultTooLarge);
        assert_eq!((failed.class, failed.delivery), (Class::Permanent, Delivery::Done));
        assert!(failed.message.contains(&RESPONSE_BYTES.to_string()), "{}", failed.message);
    }
    // A small one is read, whatever was asked for.
    let server = Server::saying_once(gzipped(b"{\"a\":1}")).await;
    let result = ask(&backend(read_at(&server)), ORDER).await.expect("an answer");
    assert_eq!(text(&result), r#"{"a":1}"#);
}

#[tokio::test]
async fn an_answer_over_the_limit_is_told_as_executed_whether_its_length_was_told_or_not() {
    let body = format!("\"{}\"", "x".repeat(RESPONSE_BYTES));
    let told = ok_json(&body);
    let chunked = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n\
         {:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    let until_close = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{body}");
    for answer in [told, chunked, until_close] {
        let failed = failure_of(Effect::Write, answer).await;
        assert_eq!(failed.code, FailCode::ResultTooLarge);
        assert_eq!(failed.delivery, Delivery::Done);
        assert_eq!(failed.health, Verdict::Neutral);
    }
}

#[tokio::test]
async fn a_coding_that_was_not_asked_for_is_a_broken_contract() {
    let answer = "HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 3\r\n\r\nabc";
    let failed = failure_of(Effect::Read, answer).await;
    assert_eq!(failed.code, FailCode::UpstreamProtocolError);
    assert!(failed.message.contains("`br`"), "{}", failed.message);
}

#[tokio::test]
async fn bb_o08_an_error_holds_its_status_and_the_tools_own_text() {
    for (status, class) in [
        ("401 Unauthorized", ErrorClass::HttpAuth),
        ("406 Not Acceptable", ErrorClass::Http4xx),
        ("422 Unprocessable", ErrorClass::Http4xx),
        ("500 Oops", ErrorClass::Http5xx),
    ] {
        let failed =
            failure_of(Effect::Read, answer(status, "", "order_id\nis\u{7} unknown")).await;
        assert!(failed.message.contains(&status[..3]), "{}", failed.message);
        assert!(failed.message.contains("order_id is unknown"), "{}", failed.message);
        assert_eq!(failed.error_class, class);
        let long = failure_of(Effect::Read, answer(status, "", &"long ".repeat(4000))).await;
        assert!(long.message.chars().count() <= 500);
    }
}

#[tokio::test]
async fn bb_p09_a_failure_without_any_text_still_has_words() {
    let empty = failure_of(Effect::Read, answer("500 Oops", "", "")).await;
    let nothing = failure_of(Effect::Read, "").await;
    for failed in [empty, nothing] {
        assert!(!failed.message.trim().is_empty());
    }
}

#[tokio::test]
async fn bb_b09_ten_login_pages_are_ten_bad_verdicts() {
    let server = Server::saying(answer("200 OK", "text/html", "<html>log in</html>")).await;
    let backend = backend(read_at(&server));
    for _ in 0..10 {
        let failed = ask(&backend, ORDER).await.expect_err("no JSON");
        assert_eq!(failed.code, FailCode::UpstreamProtocolError);
        assert_eq!((failed.class, failed.health), (Class::Permanent, Verdict::Bad));
    }
}

#[tokio::test]
async fn bb_o12_a_head_over_the_limits_is_an_error_that_names_them() {
    let many: String = (0..150).map(|n| format!("X-Field-{n}: {n}\r\n")).collect();
    let large = format!("X-Large: {}\r\n", "x".repeat(1 << 20));
    for head in [many, large] {
        let answer = format!("HTTP/1.1 200 OK\r\n{head}Content-Length: 2\r\n\r\n{{}}");
        for effect in [Effect::Read, Effect::Write] {
            let failed = failure_of(effect, answer.clone()).await;
            assert_eq!(failed.code, FailCode::UpstreamProtocolError);
            assert_eq!(failed.delivery, Delivery::Unknown);
            assert!(failed.message.contains("100 fields"), "{}", failed.message);
            assert!(failed.message.contains("65536 bytes"), "{}", failed.message);
        }
    }
    let just: String = (0..90).map(|n| format!("X-Field-{n}: {n}\r\n")).collect();
    let answer = format!(
        "HTTP/1.1 200 OK\r\n{just}Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
    );
    let server = Server::saying_once(answer).await;
    ask(&backend(read_at(&server)), ORDER).await.expect("within the limits");
}

#[tokio::test]
async fn bytes_that_are_not_http_are_kept_as_evidence() {
    for effect in [Effect::Read, Effect::Write] {
        let failed = failure_of(effect, "SSH-2.0-OpenSSH\r\nhello\r\n\r\n").await;
        assert_eq!(failed.code, FailCode::UpstreamProtocolError);
        assert_eq!((failed.class, failed.delivery), (Class::Permanent, Delivery::Unknown));
        assert!(failed.message.contains("SSH-2.0-OpenSSH"), "{}", failed.message);
    }
}

#[tokio::test]
async fn a_cut_body_is_a_lost_result_for_a_success_and_the_status_for_a_failure() {
    let cut_ok = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{";
    let read = failure_of(Effect::Read, cut_ok).await;
    assert_eq!(read.code, FailCode::ResultLost);
    assert_eq!((read.class, read.delivery), (Class::Transient, Delivery::Done));
    let write = failure_of(Effect::Write, cut_ok).await;
    assert_eq!(write.code, FailCode::ResultLost);
    assert_eq!((write.class, write.delivery), (Class::Permanent, Delivery::Done));
    let malformed = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n";
    assert_eq!(failure_of(Effect::Write, malformed).await.code, FailCode::ResultLost);
    let cut_404 = "HTTP/1.1 404 Not Found\r\nContent-Length: 50\r\n\r\nno such";
    let failed = failure_of(Effect::Write, cut_404).await;
    assert_eq!((failed.code, failed.status), (FailCode::ToolError, Some(404)));
    assert_eq!(failed.delivery, Delivery::Refused);
}

/// Whoever owns the timer finds there what a body that stalls leaves: the same as one that is cut.
#[tokio::test]
async fn a_head_is_judged_before_its_body_has_come() {
    let judged = |effect, head: &'static str| async move {
        let server = Server::start(move |mut peer| async move {
            peer.request().await.expect("a request");
            peer.say(head).await;
            std::future::pending::<()>().await;
        })
        .await;
        let mut tool = tool(effect, upstream("127.0.0.1", server.address.port()));
        if let Some(write) = &mut tool.write {
            write.not_executed_on = vec![503];
        }
        let call = call(ORDER);
        let progress = call.progress.clone().expect("stamped");
        assert!(progress.if_cut().is_none());
        let backend = backend(tool);
        let asked = tokio::spawn(async move { send(&backend, call).await });
        let judged = async {
            while progress.if_cut().is_none() {
                tokio::task::yield_now().await;
            }
        };
        let soon = std::time::Duration::from_secs(10);
        assert!(tokio::time::timeout(soon, judged).await.is_ok(), "never judged: {head}");
        assert!(!asked.is_finished(), "the body is still to come");
        asked.abort();
        progress.if_cut().expect("judged")
    };
    let ok = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{";
    let done = judged(Effect::Write, ok).await;
    assert_eq!((done.code, done.delivery), (FailCode::ResultLost, Delivery::Done));
    for (head, delivery) in [
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 50\r\n\r\nno", Delivery::Refused),
        ("HTTP/1.1 500 Oops\r\nContent-Length: 50\r\n\r\nno", Delivery::Unknown),
        ("HTTP/1.1 503 Busy\r\nContent-Length: 50\r\n\r\nno", Delivery::Refused),
        ("HTTP/1.1 307 There\r\nLocation: /x\r\nContent-Length: 50\r\n\r\nno", Delivery::Refused),
        ("HTTP/1.1 302 There\r\nLocation: /x\r\nContent-Length: 50\r\n\r\nno", Delivery::Unknown),
        ("HTTP/1.1 303 See\r\nLocation: /x\r\nContent-Length: 50\r\n\r\nno", Delivery::Unknown),
    ] {
        let failed = judged(Effect::Write, head).await;
        assert_eq!(failed.delivery, delivery, "{head}");
        assert_eq!(failed.evidence.is_some(), delivery == Delivery::Refused, "{head}");
    }
}

#[tokio::test]
async fn a_gzip_body_that_ends_early_is_a_lost_result() {
    let mut packed = gzip(&b"{\"a\":1}".repeat(100));
    packed.truncate(packed.len() / 2);
    let mut answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
        packed.len()
    )
    .into_bytes();
    answer.extend_from_slice(&packed);
    let failed = failure_of(Effect::Read, answer).await;
    assert_eq!((failed.code, failed.class), (FailCode::ResultLost, Class::Transient));
}

#[tokio::test]
async fn an_interim_answer_is_passed_over() {
    let answer = format!("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n{}", ok_json("{}"));
    let server = Server::saying_once(answer).await;
    ask(&backend(read_at(&server)), ORDER).await.expect("the real answer");
}

#[tokio::test]
async fn the_tools_text_in_an_error_is_redacted() {
    let server =
        Server::saying(answer("400 Bad", "application/json", r#"{"token":"s3cret","why":"no"}"#))
            .await;
    let mut tool = read_at(&server);
    tool.result.redact = vec![crate::call::pointer::Path::parse("/token").expect("a path")];
    let failed = ask(&backend(tool), ORDER).await.expect_err("a refusal");
    assert!(failed.message.contains("[redacted]"), "{}", failed.message);
    assert!(!failed.message.contains("s3cret"), "{}", failed.message);
}

#[tokio::test]
async fn a_503_with_a_time_to_come_back_sets_a_cooldown() {
    let answer = "HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n";
    let failed = failure_of(Effect::Read, answer).await;
    assert_eq!(failed.retry_after, Some(std::time::Duration::from_secs(7)));
    assert!(failed.cooldown);
    assert_eq!(failed.health, Verdict::Bad);
}

#[tokio::test]
async fn the_policy_decides_what_a_status_proves() {
    let server = Server::saying(answer("503 Busy", "", "before acting")).await;
    let mut tool = write_at(&server);
    tool.write.as_mut().expect("a write").not_executed_on = vec![503];
    let tool = Arc::new(tool);
    let backend = crate::backends::Backend::http(&tool, &egress(&tool), RESPONSE_BYTES);
    let failed = ask(&backend, "{}").await.expect_err("busy");
    assert_eq!(failed.delivery, Delivery::Refused);
    assert_eq!(failed.evidence.map(|e| e.to_string()).as_deref(), Some("policy_status_503"));
}

#[tokio::test]
async fn a_tool_that_sends_our_credential_back_shows_it_to_nobody() {
    let echo = r#"{"headers":{"authorization":"Bearer s3cr3t-t0k3n"},"id":1}"#;
    let answers = [
        ok_json(echo),
        answer("400 Bad Request", "application/json", echo),
        answer(
            "500 Internal Server Error",
            "text/plain",
            "your Authorization: Bearer s3cr3t-t0k3n",
        ),
        answer("200 OK", "text/html", "<pre>Bearer s3cr3t-t0k3n</pre>"),
        ok_json(r#"{"s3cr3t-t0k3n":1,"s3cr3t-t0k3n":2}"#),
        "Bearer s3cr3t-t0k3n is no HTTP\r\n\r\n".to_owned(),
    ];
    for sent in answers {
        let server = Server::saying_once(sent.clone()).await;
        let mut there = upstream("127.0.0.1", server.address.port());
        there.auth = Some(Auth::Bearer(Secret {
            origin: "env SHOP_TOKEN".into(),
            value: Some(SecretText("s3cr3t-t0k3n".into())),
        }));
        let told = match ask(&backend(tool(Effect::Read, there)), ORDER).await {
            Ok(result) => text(&result),
            Err(failed) => failed.message,
        };
        assert!(server.heard()[0].contains("Bearer s3cr3t-t0k3n"), "it was sent");
        assert!(!told.contains("s3cr3t"), "{told}");
        assert!(told.contains("[redacted]"), "{sent}: {told}");
    }
}

#[tokio::test]
async fn interim_answers_are_passed_over_but_not_without_end() {
    let interim = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
    let some = format!("{}{}", interim.repeat(20), ok_json("{\"a\":1}"));
    let server = Server::saying_once(some).await;
    let result = ask(&backend(read_at(&server)), ORDER).await.expect("an answer");
    assert_eq!(text(&result), r#"{"a":1}"#);
    let flood = format!("{}{}", interim.repeat(20_000), ok_json("{\"a\":1}"));
    for effect in [Effect::Read, Effect::Write] {
        let failed = failure_of(effect, flood.clone()).await;
        assert_eq!(failed.code, FailCode::UpstreamProtocolError);
        assert_eq!(failed.delivery, Delivery::Unknown);
        assert!(failed.message.contains("head"), "{}", failed.message);
    }
}
