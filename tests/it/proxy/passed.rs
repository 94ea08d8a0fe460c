//! What reaches the tool of a request, and what reaches the client of an answer.

use super::kit::{Manual, Peer, Shop};
use crate::support::Reply;

#[tokio::test]
async fn a_request_arrives_as_it_was_spelt_with_the_fields_that_the_policy_names() {
    let shop = Shop::start().await;
    let fields = [
        ("accept", "text/plain"),
        ("x-kept", "1"),
        ("x-other", "2"),
        ("user-agent", "client"),
        ("accept-encoding", "br"),
        ("forwarded", "for=10.0.0.1"),
    ];
    let answer = shop.ask("GET", "/any/a%2Fb//?q=%41&q=+&x", &fields, b"").await;
    assert_eq!(answer.status, 400, "an empty segment: {}", answer.text());
    let answer = shop.ask("GET", "/any/a%2Fb/?q=%41&q=+&x", &fields, b"").await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    assert_eq!(answer.header("checkrein-outcome"), None);
    assert!(
        answer.header("checkrein-run").is_some() && answer.header("checkrein-call-id").is_some()
    );
    let request = shop.tool.last();
    assert_eq!(request.target, "/any/a%2Fb/?q=%41&q=+&x");
    assert_eq!(request.header("host"), Some(shop.tool.address().to_string().as_str()));
    assert_eq!(request.header("accept"), Some("text/plain"));
    assert_eq!(request.header("x-kept"), Some("1"));
    assert_eq!(request.header("via"), Some("1.1 checkrein"));
    assert_eq!(request.header("accept-encoding"), Some("identity"));
    assert!(request.header("user-agent").is_some_and(|agent| agent.starts_with("checkrein/")));
    for gone in ["x-other", "forwarded", "checkrein-run"] {
        assert_eq!(request.header(gone), None, "{gone}");
    }
    assert_eq!(shop.tool.requests().len(), 1);
}

#[tokio::test]
async fn a_body_arrives_byte_for_byte_with_what_says_what_it_is() {
    let shop = Shop::start().await;
    let body = b"{ \"a\" : 1.50 }\n";
    let fields = [("content-type", "application/json; charset=utf-8"), ("content-language", "de")];
    let answer = shop.ask("PUT", "/any/x", &fields, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let request = shop.tool.last();
    assert_eq!((request.method.as_str(), request.body.as_slice()), ("PUT", &body[..]));
    assert_eq!(request.header("content-type"), Some("application/json; charset=utf-8"));
    assert_eq!(request.header("content-language"), Some("de"));
    assert_eq!(request.header("content-length"), Some("15"));
}

#[tokio::test]
async fn an_answer_comes_back_as_the_tool_gave_it_whatever_its_status() {
    let shop = Shop::start().await;
    for status in [201, 206, 301, 302, 400, 401, 403, 404, 410, 418, 501] {
        let headers = vec![("x-own", "kept".into()), ("content-type", "text/html".into())];
        let body = format!("<p>{status}</p>").into_bytes();
        shop.tool.script("/any", [Reply::Full { apply: false, status, headers, body }]);
        let answer = shop.get("/any/x").await;
        assert_eq!((answer.status, answer.text()), (status, format!("<p>{status}</p>")));
        assert_eq!(answer.header("x-own"), Some("kept"));
        let outcome = (status >= 400).then_some("tool_error");
        assert_eq!(answer.header("checkrein-outcome"), outcome, "{status}");
    }
    let not_modified = Reply::Full {
        apply: false,
        status: 304,
        headers: vec![("etag", "\"a\"".into())],
        body: Vec::new(),
    };
    shop.tool.script("/any", [not_modified]);
    let answer = shop.get("/any/x").await;
    assert_eq!((answer.status, answer.header("etag")), (304, Some("\"a\"")));
}

#[tokio::test]
async fn a_head_and_an_answer_without_content_have_no_body_and_keep_their_fields() {
    let (tool, gateway) = Manual::start().await;
    let asked = tokio::spawn(async move {
        let mut client = Peer::dial(gateway.data).await;
        client.send("HEAD /proxy/shop/any/x HTTP/1.1\r\nhost: g\r\n\r\n").await;
        client.until("\r\n\r\n").await;
        client.send("GET /proxy/shop/any/x HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n").await;
        client.rest().await
    });
    let mut peer = tool.next().await;
    assert!(peer.text().starts_with("HEAD /any/x HTTP/1.1\r\n"));
    peer.send("HTTP/1.1 200 OK\r\ncontent-length: 1234\r\n\r\n").await;
    peer.seen.clear();
    assert!(peer.until("\r\n\r\n").await.starts_with("GET /any/x"), "the connection is used again");
    peer.send("HTTP/1.1 204 No Content\r\nx-own: 1\r\n\r\n").await;
    let told = asked.await.expect("answered");
    assert!(told.contains("content-length: 1234\r\n"), "{told}");
    let second = told.split("\r\n\r\n").nth(1).expect("a second head");
    assert!(second.starts_with("HTTP/1.1 204") && second.contains("x-own: 1"), "{told}");
    assert!(told.ends_with("\r\n\r\n"), "{told}");
}

/// What belongs to one hop never reaches the next, either way.
#[tokio::test]
async fn bb_n03_fields_of_a_hop_reach_neither_the_tool_nor_the_client() {
    let shop = Shop::start().await;
    let headers = vec![
        ("connection", "x-secret, keep-alive".to_owned()),
        ("x-secret", "1".into()),
        ("keep-alive", "timeout=5".into()),
        ("proxy-authenticate", "Basic".into()),
        ("upgrade", "h2c".into()),
        ("alt-svc", "h3=\":443\"".into()),
        ("set-cookie", "a=b".into()),
        ("checkrein-outcome", "ok".into()),
        ("x-own", "kept".into()),
    ];
    shop.tool
        .script("/any", [Reply::Full { apply: false, status: 200, headers, body: b"x".into() }]);
    let request = "POST /proxy/shop/any/x HTTP/1.1\r\nhost: g\r\nConnection: close, x-kept, content-language\r\n\
        X-Kept: 1\r\ncontent-language: de\r\nKeep-Alive: 5\r\nTE: trailers\r\nProxy-Authorization: Basic eA==\r\n\
        Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nCookie: a=b\r\ncontent-length: 1\r\n\r\nx";
    let mut client = Peer::dial(shop.gateway.data).await;
    client.send(request).await;
    let told = client.rest().await;
    assert!(told.starts_with("HTTP/1.1 200 ") && told.contains("x-own: kept"), "{told}");
    for gone in [
        "x-secret",
        "keep-alive",
        "proxy-authenticate",
        "upgrade",
        "alt-svc",
        "set-cookie",
        "outcome",
    ] {
        assert!(!told.contains(gone), "{gone}: {told}");
    }
    let arrived = shop.tool.last();
    for gone in [
        "connection",
        "x-kept",
        "content-language",
        "keep-alive",
        "te",
        "proxy-authorization",
        "upgrade",
        "http2-settings",
        "cookie",
        "authorization",
    ] {
        assert_eq!(arrived.header(gone), None, "{gone}");
    }
    // A read whose route names cookies takes them, both ways.
    let own = vec![("set-cookie", "c=d".to_owned())];
    shop.tool.script(
        "/any",
        [Reply::Full { apply: false, status: 200, headers: own, body: b"x".into() }],
    );
    let answer = shop.ask("GET", "/any/x", &[("cookie", "a=b")], b"").await;
    assert_eq!(answer.header("set-cookie"), Some("c=d"));
    assert_eq!(shop.tool.last().header("cookie"), Some("a=b"));
}

/// Two lengths: one request at most, told by its chunks, and the connection ends with it.
#[tokio::test]
async fn bb_n01_two_lengths_smuggle_nothing_through_a_route() {
    let shop = Shop::start().await;
    let (length, chunked) = ("content-length: 4\r\n", "transfer-encoding: chunked\r\n");
    for (count, pair) in (1..).zip([format!("{length}{chunked}"), format!("{chunked}{length}")]) {
        let mut client = Peer::dial(shop.gateway.data).await;
        client
            .send(&format!(
                "POST /proxy/shop/any/x HTTP/1.1\r\nhost: g\r\n{pair}\r\n3\r\nabc\r\n0\r\n\r\n\
                 GET /proxy/shop/any/smug HTTP/1.1\r\nhost: g\r\n\r\n"
            ))
            .await;
        let told = client.rest().await;
        assert_eq!(told.matches("HTTP/1.1 ").count(), 1, "{told}");
        let arrived = shop.tool.requests();
        assert!(arrived.iter().all(|request| !request.target.contains("smug")), "{arrived:?}");
        assert_eq!(arrived.len(), count);
        let request = shop.tool.last();
        assert_eq!(
            (request.body.as_slice(), request.header("content-length")),
            (&b"abc"[..], Some("3"))
        );
        assert_eq!(request.header("transfer-encoding"), None);
    }
}

/// The same from the tool: the client gets one length, and what follows on that connection is nobody's answer.
#[tokio::test]
async fn bb_n01_an_answer_with_two_lengths_is_framed_once_and_its_connection_closed() {
    let (tool, gateway) = Manual::start().await;
    let get = "GET /proxy/shop/any/x HTTP/1.1\r\nhost: g\r\n\r\n";
    let mut client = Peer::dial(gateway.data).await;
    client.send(get).await;
    let mut peer = tool.next().await;
    peer.send(
        "HTTP/1.1 200 OK\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n\
         HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
    )
    .await;
    let told = client.until("abc").await;
    let lengths =
        told.matches("content-length").count() + told.matches("transfer-encoding").count();
    assert_eq!(lengths, 1, "{told}");
    assert!(!told.contains("content-length: 4"), "{told}");
    assert_eq!(peer.rest().await.matches("HTTP/1.1").count(), 1);
    client.seen.clear();
    client.send(get).await;
    let mut second = tool.next().await;
    second.send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood").await;
    assert!(!client.until("good").await.contains("evil"));
}

#[tokio::test]
async fn a_place_within_the_upstream_is_told_as_the_client_can_reach_it() {
    let shop = Shop::start().await;
    let origin = shop.tool.url();
    for (told, expected) in [
        ("/any/y?z=1".to_owned(), "/proxy/shop/any/y?z=1"),
        (format!("{origin}/any/y"), "/proxy/shop/any/y"),
        (origin.clone(), "/proxy/shop/"),
        ("y".to_owned(), "y"),
        ("../y".to_owned(), "../y"),
        ("https://elsewhere.example/any/y".to_owned(), "https://elsewhere.example/any/y"),
        ("//elsewhere.example/any/y".to_owned(), "//elsewhere.example/any/y"),
    ] {
        let headers = vec![("location", told.clone())];
        shop.tool
            .script("/any", [Reply::Full { apply: false, status: 302, headers, body: Vec::new() }]);
        let answer = shop.get("/any/x").await;
        assert_eq!((answer.status, answer.header("location")), (302, Some(expected)), "{told}");
    }
    assert_eq!(shop.tool.requests().len(), 7, "nothing was followed");
}

#[tokio::test]
async fn a_path_below_the_upstreams_own_is_put_behind_it_and_taken_off_again() {
    let tool = crate::support::ScriptedTool::start().await;
    let route = "\n  read: { description: R., proxy: { upstream: shop, methods: [GET], path: \"/{rest*}\" } }";
    let policy = super::kit::policy(&format!("{}/api/v1", tool.url()), route);
    let gateway = super::kit::start(&policy).await;
    let get = async |path: &str| crate::support::http::get(gateway.data, path).await;
    assert_eq!(get("/proxy/shop/x").await.status, 200);
    assert_eq!(tool.last().target, "/api/v1/x");
    for (told, expected) in [
        ("/api/v1/y".to_owned(), "/proxy/shop/y".to_owned()),
        ("/api/v1".to_owned(), "/proxy/shop/".to_owned()),
        ("/login".to_owned(), format!("{}/login", tool.url())),
        ("/api/v10/y".to_owned(), format!("{}/api/v10/y", tool.url())),
    ] {
        let headers = vec![("location", told.clone())];
        tool.script("/", [Reply::Full { apply: false, status: 307, headers, body: Vec::new() }]);
        assert_eq!(
            get("/proxy/shop/x").await.header("location"),
            Some(expected.as_str()),
            "{told}"
        );
    }
}

#[tokio::test]
async fn the_gateways_credential_is_sent_and_never_shown() {
    let secret = "s3cret-of-the-gateway";
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), secret).expect("written");
    let auth =
        format!("addresses: [loopback], auth: {{ bearer: {{ file: {} }} }}", file.path().display());
    let routes = "\n  read: { description: R., proxy: { upstream: shop, methods: [GET], path: \"/{rest*}\" } }";
    let shop = Shop::with(routes, |text| text.replace("addresses: [loopback]", &auth)).await;
    let body = format!("you sent Bearer {secret}!").into_bytes();
    let headers = vec![("x-echo", format!("Bearer {secret}"))];
    for status in [200, 404] {
        let (body, headers) = (body.clone(), headers.clone());
        shop.tool.script("/", [Reply::Full { apply: false, status, headers, body }]);
        let answer = shop.ask("GET", "/x", &[("x-y", "1")], b"").await;
        assert_eq!(answer.text(), format!("you sent Bearer {}!", "*".repeat(secret.len())));
        assert_eq!(answer.header("x-echo"), None);
    }
    let sent = shop.tool.last();
    assert_eq!(sent.header("authorization"), Some(format!("Bearer {secret}").as_str()));
}

/// The client library that the gateway itself stands on is a client like any other; and hops add up without getting into
/// each other's way.
#[tokio::test]
async fn a_gateway_is_a_client_of_another_one() {
    let inner = Shop::start().await;
    let url = format!("http://{}/proxy/shop", inner.gateway.data);
    let outer = super::kit::start(&super::kit::policy(&url, super::kit::ROUTES)).await;
    let ask = async |method: &str, body: &[u8]| {
        crate::support::http::request(outer.data, method, "/proxy/shop/any/x?y=%2F", &[], body)
            .await
    };
    let read = ask("GET", b"").await;
    assert_eq!((read.status, inner.tool.last().target.as_str()), (200, "/any/x?y=%2F"));
    let ids = read.headers.iter().filter(|(name, _)| name == "checkrein-call-id");
    assert_eq!(ids.count(), 1, "the nearer one speaks: {:?}", read.headers);
    let write = ask("PUT", b"{\"a\":1}").await;
    assert_eq!((write.status, inner.tool.last().text().as_str()), (200, "{\"a\":1}"));
    let headers = vec![("location", "/any/y".to_owned())];
    inner
        .tool
        .script("/any", [Reply::Full { apply: false, status: 302, headers, body: b"z".into() }]);
    let moved = ask("GET", b"").await;
    assert_eq!((moved.status, moved.header("location")), (302, Some("/proxy/shop/any/y")));
    inner.tool.script("/any", [Reply::Status(503)]);
    let down = ask("DELETE", b"").await;
    assert_eq!((down.status, down.header("checkrein-outcome")), (409, Some("tool_error")));
    assert_eq!(down.json()["error"], "outcome_unknown");
}
