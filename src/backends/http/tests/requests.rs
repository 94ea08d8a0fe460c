//! What goes out: written from the tree, framed by us, nothing of the agent's connection in it.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use tokio::time::Instant;

use super::support::*;
use crate::call::Delivery;
use crate::call::code::FailCode;
use crate::policy::snapshot::{Auth, Secret, SecretText};

fn body_of(request: &str) -> &str {
    request.split_once("\r\n\r\n").expect("a head").1
}

/// Names of the header fields of a request, in lower case.
fn fields_of(request: &str) -> Vec<String> {
    let head = request.split_once("\r\n\r\n").expect("a head").0;
    let name = |line: &str| line.split(':').next().unwrap_or_default().to_ascii_lowercase();
    let mut names: Vec<String> = head.lines().skip(1).map(name).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn one_real_call_goes_out_and_its_result_comes_back() {
    let server = Server::saying(ok_json(r#"{"status":"in_transit"}"#)).await;
    let backend = backend(read_at(&server));
    let result = ask(&backend, r#"{"order_id":"A17"}"#).await.expect("an answer");
    assert_eq!(text(&result), r#"{"status":"in_transit"}"#);
    assert_eq!(result.content.form, crate::call::Form::Json);
    assert_eq!(result.head.expect("a head").status, 200);
    let heard = server.heard();
    assert_eq!(heard.len(), 1);
    assert!(heard[0].starts_with("GET /orders/A17 HTTP/1.1\r\n"), "{}", heard[0]);
}

#[tokio::test]
async fn bb_j09_exact_digits_go_out_and_come_back() {
    let server = Server::saying(ok_json(r#"{"id":1915883588174806058}"#)).await;
    let backend = backend(write_at(&server));
    let sent = r#"{"account_id":9007199254740993,"to":18446744073709551615}"#;
    let result = ask(&backend, sent).await.expect("an answer");
    assert_eq!(text(&result), r#"{"id":1915883588174806058}"#);
    assert_eq!(body_of(&server.heard()[0]), sent);
}

#[tokio::test]
async fn bb_j12_string_content_arrives_as_it_was_written() {
    let server = Server::saying(ok_json("{}")).await;
    let backend = backend(write_at(&server));
    let sent = r#"{"q":"what's \"AI\"? \\n {x:'y'}"}"#;
    ask(&backend, sent).await.expect("an answer");
    let heard = server.heard();
    let arrived: serde_json::Value = body_of(&heard[0]).parse().expect("JSON");
    let meant: serde_json::Value = sent.parse().expect("JSON");
    assert_eq!(arrived, meant);
}

#[tokio::test]
async fn bb_n03_a_request_has_no_field_but_ours() {
    let server = Server::saying(ok_json("{}")).await;
    let write = backend(write_at(&server));
    ask(&write, r#"{"Connection":"close","note":"Upgrade: h2c"}"#).await.expect("an answer");
    assert_eq!(
        fields_of(&server.heard()[0]),
        ["accept", "accept-encoding", "content-length", "content-type", "host", "user-agent"]
    );
    let read = backend(read_at(&server));
    ask(&read, r#"{"order_id":"1"}"#).await.expect("an answer");
    assert_eq!(fields_of(&server.heard()[1]), ["accept", "accept-encoding", "host", "user-agent"]);
}

#[tokio::test]
async fn the_credential_goes_in_last_and_the_time_left_where_the_policy_names_a_field() {
    let server = Server::saying(ok_json("{}")).await;
    let mut tool = read_at(&server);
    let upstream = Arc::get_mut(&mut tool.upstream).expect("alone");
    upstream.headers =
        vec![(HeaderName::from_static("authorization"), HeaderValue::from_static("fixed"))];
    upstream.timeout_header = Some(HeaderName::from_static("x-time-left"));
    upstream.auth = Some(Auth::Bearer(Secret {
        origin: Arc::from("env TOKEN"),
        value: Some(SecretText(Arc::from("s3cret"))),
    }));
    let mut call = call(r#"{"order_id":"1"}"#);
    call.deadline = Instant::now() + Duration::from_millis(1500);
    send(&backend(tool), call).await.expect("an answer");
    let heard = server.heard()[0].to_ascii_lowercase();
    assert!(heard.contains("authorization: bearer s3cret\r\n"), "{heard}");
    let left = heard.split("x-time-left: ").nth(1).expect("there").split('\r').next();
    let left: u64 = left.expect("a line").parse().expect("milliseconds");
    assert!((1..=1500).contains(&left), "{left}");
}

#[tokio::test]
async fn without_its_credential_nothing_is_dialled() {
    let server = Server::saying(ok_json("{}")).await;
    let mut tool = write_at(&server);
    Arc::get_mut(&mut tool.upstream).expect("alone").auth =
        Some(Auth::Bearer(Secret { origin: Arc::from("file /run/token"), value: None }));
    let failed = ask(&backend(tool), "{}").await.expect_err("no credential");
    assert_eq!(failed.code, FailCode::CredentialUnavailable);
    assert_eq!(failed.delivery, Delivery::NotSent);
    assert!(failed.message.contains("file /run/token"), "{}", failed.message);
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn a_read_follows_a_redirect_to_its_own_origin_and_no_further_than_three_hops() {
    let server = Server::start(|mut peer| async move {
        while let Some(request) = peer.request().await {
            let path = request.split(' ').nth(1).expect("a target").to_owned();
            let hop: u32 = path.rsplit('/').next().and_then(|n| n.parse().ok()).unwrap_or(0);
            if path.starts_with("/end") || hop == 0 {
                peer.say(ok_json(r#"{"ok":true}"#)).await;
            } else {
                let next = format!("/orders/{}", hop - 1);
                let answer = format!(
                    "HTTP/1.1 302 Found\r\nLocation: {next}\r\nContent-Length: 4\r\n\r\nmove"
                );
                peer.say(answer).await;
            }
        }
    })
    .await;
    let mut tool = read_at(&server);
    Arc::get_mut(&mut tool.upstream).expect("alone").follow_same_origin = true;
    let backend = backend(tool);
    ask(&backend, r#"{"order_id":"3"}"#).await.expect("three hops");
    assert_eq!(server.heard().len(), 4);
    let failed = ask(&backend, r#"{"order_id":"4"}"#).await.expect_err("four hops");
    assert_eq!(failed.code, FailCode::UpstreamRedirect);
    assert_eq!(server.heard().len(), 8);
}

#[tokio::test]
async fn a_redirect_elsewhere_is_not_followed_nor_any_of_a_write() {
    let elsewhere = Server::saying(ok_json("{}")).await;
    let location = format!("http://127.0.0.1:{}/x", elsewhere.address.port());
    for location in [location.as_str(), "//127.0.0.1:1/x", "http://u:p@127.0.0.1/", "/same"] {
        let server = Server::saying(format!(
            "HTTP/1.1 307 Temporary Redirect\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
        ))
        .await;
        let mut write = write_at(&server);
        Arc::get_mut(&mut write.upstream).expect("alone").follow_same_origin = true;
        let failed = ask(&backend(write), "{}").await.expect_err("a redirect");
        assert_eq!(failed.code, FailCode::UpstreamRedirect, "{location}");
        assert_eq!(failed.delivery, Delivery::Refused, "{location}");
        assert_eq!(server.heard().len(), 1, "{location}");
        if location != "/same" {
            let mut read = read_at(&server);
            Arc::get_mut(&mut read.upstream).expect("alone").follow_same_origin = true;
            let failed = ask(&backend(read), r#"{"order_id":"1"}"#).await.expect_err("elsewhere");
            assert_eq!(failed.code, FailCode::UpstreamRedirect, "{location}");
            assert_eq!(server.heard().len(), 2, "{location}");
        }
        // Without `redirects: same_origin` a read does not follow either.
        let plain = backend(read_at(&server));
        assert!(ask(&plain, r#"{"order_id":"1"}"#).await.is_err(), "{location}");
    }
    assert_eq!(elsewhere.connections(), 0);
}
