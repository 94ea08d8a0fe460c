//! Fields of a head and bodies, sound and not.

use http::HeaderValue;
use http_body_util::Full;
use hyper::body::Frame;

use super::*;

fn head(fields: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(*name, HeaderValue::from_str(value).expect("value"));
    }
    headers
}

fn read(fields: &[(&'static str, &str)]) -> Result<Head, Problem> {
    Head::read(&head(fields))
}

#[test]
fn sound_fields_are_read() {
    let read = read(&[
        ("checkrein-run", "run-1"),
        ("checkrein-call-id", "call 1|x"),
        ("checkrein-timeout-ms", "1500"),
        ("checkrein-unfinished", "true"),
        ("idempotency-key", "k-1"),
    ])
    .expect("sound");
    assert_eq!(read.run.expect("run").as_str(), "run-1");
    assert_eq!(read.call_id.expect("id").as_str(), "call 1|x");
    assert_eq!(read.timeout, Some(Duration::from_millis(1500)));
    assert!(read.unfinished);
    assert_eq!(read.caller_key.expect("key").as_str(), "k-1");
    let nothing = Head::read(&HeaderMap::new()).expect("nothing is sound");
    assert!(nothing.run.is_none() && nothing.timeout.is_none() && !nothing.unfinished);
}

#[test]
fn malformed_and_doubled_fields_are_refused() {
    for (name, value) in [
        ("checkrein-run", ""),
        ("checkrein-run", "a b"),
        ("checkrein-run", "a/b"),
        ("checkrein-call-id", ""),
        ("checkrein-timeout-ms", ""),
        ("checkrein-timeout-ms", "0"),
        ("checkrein-timeout-ms", "-1"),
        ("checkrein-timeout-ms", "+1"),
        ("checkrein-timeout-ms", "1.5"),
        ("checkrein-timeout-ms", "1s"),
        ("checkrein-timeout-ms", "99999999999999999999999"),
        ("checkrein-unfinished", "yes"),
        ("idempotency-key", ""),
        ("idempotency-key", "\"open"),
        ("idempotency-key", "\"a\"b"),
        ("idempotency-key", "\"a\\b\""),
        ("idempotency-key", "\"\""),
    ] {
        assert!(read(&[(name, value)]).is_err(), "{name}: {value}");
    }
    for name in ["checkrein-run", "checkrein-timeout-ms", "idempotency-key"] {
        assert!(read(&[(name, "1"), (name, "1")]).is_err(), "{name} twice");
    }
}

#[test]
fn a_key_in_quotes_is_the_same_key() {
    for (spelt, key) in [("k 1", "k 1"), ("\"k 1\"", "k 1"), (r#""a\"b\\c""#, r#"a"b\c"#)] {
        let read = read(&[("idempotency-key", spelt)]).expect("sound");
        assert_eq!(read.caller_key.expect("key").as_str(), key);
    }
}

#[test]
fn an_unsound_run_is_not_echoed() {
    let shown = |fields: &[(&'static str, &str)]| Head::run_shown(&head(fields));
    assert_eq!(shown(&[("checkrein-run", "r1")]).expect("sound").as_str(), "r1");
    assert!(shown(&[("checkrein-run", "r 1")]).is_none());
    assert!(shown(&[("checkrein-run", "a"), ("checkrein-run", "b")]).is_none());
}

const JSON: (&str, &str) = ("content-type", "application/json");

async fn body(fields: &[(&'static str, &str)], body: &str, limit: usize) -> Result<Sent, Problem> {
    let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
    read_json(&head(fields), body, limit, &Room::default()).await
}

#[tokio::test(start_paused = true)]
async fn only_json_in_utf8_is_read() {
    for sound in [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        "application/json;charset=\"UTF-8\"",
        "application/json;",
    ] {
        assert!(body(&[("content-type", sound)], "{}", 9).await.is_ok(), "{sound}");
    }
    for other in [
        "text/plain",
        "application/jsonp",
        "application/json; charset=latin1",
        "application/json; q=1",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "",
    ] {
        let refused = body(&[("content-type", other)], "{}", 9).await.expect_err(other);
        assert_eq!(refused.counted, Some("media_type"), "{other}");
    }
    assert!(body(&[], "{}", 9).await.is_err(), "no media type");
    assert!(body(&[JSON, JSON], "{}", 9).await.is_err(), "two of them");
    assert!(body(&[JSON, ("content-encoding", "gzip")], "{}", 9).await.is_err());
    assert!(body(&[JSON, ("content-encoding", "identity")], "{}", 9).await.is_ok());
    assert!(body(&[], "", 9).await.expect("no body needs no media type").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_long_body_is_refused_by_its_announced_length_before_a_byte_is_read() {
    let headers = head(&[JSON, ("content-length", "10")]);
    let refused = read_json(&headers, Never, 9, &Room::default()).await.expect_err("announced");
    assert_eq!(refused.counted, Some("body"));
    assert!(body(&[JSON], "123456789", 9).await.is_ok());
    assert!(body(&[JSON], "1234567890", 9).await.expect_err("one too many").is_too_large());
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stalls_is_refused_at_its_time() {
    let began = tokio::time::Instant::now();
    let refused = read_json(&head(&[JSON]), Never, 9, &Room::default()).await;
    assert!(refused.is_err());
    assert_eq!(began.elapsed(), BODY_TIME);
}

#[tokio::test(start_paused = true)]
async fn all_bodies_together_have_a_bound_and_each_gives_its_part_back() {
    let room = Room::default();
    let held = || room.0.load(Ordering::Acquire);
    let send = async |bytes: usize, limit: usize| {
        let body = Full::new(Bytes::from(vec![b' '; bytes]));
        read_json(&head(&[JSON]), body, limit, &room).await
    };
    let half = BODIES / 2;
    let first = send(half, half).await.expect("room");
    let second = send(half, half).await.expect("just fits");
    assert_eq!((first.len(), held()), (half, BODIES));
    let refused = send(1, half).await.expect_err("full");
    assert_eq!((refused.is_too_large(), refused.counted), (false, Some("body")));
    drop(second);
    assert!(send(half + 1, BODIES).await.is_err(), "one byte too many");
    assert_eq!(held(), half, "a refused body gives back what it had");
    drop(first);
    assert_eq!(held(), 0);
    assert!(send(BODIES + 1, BODIES + 1).await.is_ok(), "a lone one fits, as the policy lets it");
}

/// A body that sends nothing and does not end.
struct Never;

impl Body for Never {
    type Data = Bytes;
    type Error = std::convert::Infallible;
    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        std::task::Poll::Pending
    }
}
