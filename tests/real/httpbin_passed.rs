//! httpbin through the gateway as a plain HTTP client asks it, and asked directly: the same, but for what docs/proxy.md
//! names. And the clients that programs really use.

use std::process::Command;

use serde_json::{Value, json};

use crate::gateway::Gateway;
use crate::http::{self, Answer};
use crate::{address_of, wait_for};

/// Fields of the client that go on, so that httpbin's surface can be asked at all.
const PASSED: [&str; 11] = [
    "Accept",
    "Accept-Encoding",
    "User-Agent",
    "Cookie",
    "Range",
    "If-None-Match",
    "If-Match",
    "If-Modified-Since",
    "X-Test",
    "Content-Disposition",
    "Referer",
];

/// Everything may be asked, as often as wanted; nothing is tried twice, and no circuit opens.
fn gateway(address: &str) -> Gateway {
    let tool = |methods: &[&str]| {
        json!({
            "description": "Anything of httpbin.", "bulkhead": 64, "breaker": { "mode": "disabled" },
            "proxy": { "upstream": "httpbin", "methods": methods, "path": "/{rest*}", "request_headers": PASSED },
        })
    };
    let mut read = tool(&["GET", "HEAD"]);
    read["retry"] = json!({ "max_retries": 0 });
    let policy = json!({
        "apiVersion": "checkrein/v1", "kind": "Policy", "name": "httpbin",
        "runs": { "program": {
            "calls": 100_000, "failures": 10_000, "result_bytes": "1GiB", "argument_bytes": "1GiB",
            "fuse": { "same_failures": 10_000, "same_results": 10_000 },
        } },
        "upstreams": { "httpbin": { "base_url": address, "addresses": ["loopback"] } },
        "tools": { "read": read, "write": tool(&["POST", "PUT", "PATCH", "DELETE"]) },
        "agents": { "default": { "allow": ["read", "write"], "run": "program" } },
    });
    Gateway::start(&policy.to_string())
}

struct Asked {
    method: &'static str,
    path: String,
    headers: Vec<(&'static str, &'static str)>,
    body: &'static [u8],
}

fn ask(method: &'static str, path: impl Into<String>) -> Asked {
    let headers = vec![("User-Agent", "client/1"), ("Accept-Encoding", "identity")];
    Asked { method, path: path.into(), headers, body: b"" }
}

impl Asked {
    fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.retain(|(other, _)| *other != name);
        self.headers.push((name, value));
        self
    }

    fn body(self, media: &'static str, body: &'static [u8]) -> Self {
        Self { body, ..self.with("Content-Type", media) }
    }

    fn at(&self, base: &str) -> Answer {
        let url = format!("{base}{}", self.path);
        http::exchange(self.method, &url, &self.headers, self.body)
            .unwrap_or_else(|error| panic!("{} {url}: {error}", self.method))
    }
}

/// Fields that say something of the hop, of the moment, or of the gateway.
const OF_HOP: [&str; 6] =
    ["connection", "transfer-encoding", "date", "server", "content-length", "set-cookie"];

#[expect(clippy::disallowed_methods, reason = "the test reads what it made happen itself")]
/// An answer without what may differ: status, fields, body.
fn seen(answer: &Answer, place: &str) -> (u16, Vec<(String, String)>, Value) {
    let mut fields: Vec<(String, String)> = answer
        .fields()
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .filter(|(name, _)| !OF_HOP.contains(&name.as_str()) && !name.starts_with("checkrein-"))
        .collect();
    for (name, value) in &mut fields {
        if name == "location" {
            // Told as the client reaches it; a place elsewhere stays.
            *value = value.strip_prefix(place).unwrap_or(value).to_owned();
        }
    }
    fields.sort();
    let mut body: Value = match serde_json::from_slice(&answer.body) {
        Ok(body) => body,
        // It shows its request, coded: the clients below read it.
        Err(_) if answer.header("content-encoding").is_some() => json!(!answer.body.is_empty()),
        Err(_) => json!(answer.body),
    };
    if let Some(headers) = body.get_mut("headers").and_then(Value::as_object_mut) {
        // The gateway is a hop, and frames bodies anew.
        for own in ["Via", "Connection", "Transfer-Encoding", "Content-Length"] {
            headers.remove(own);
        }
    }
    (answer.status, fields, body)
}

fn same(asked: &Asked, direct: &str, through: &str) {
    let (own, passed) = (asked.at(direct), asked.at(through));
    let mut left = seen(&own, direct);
    let mut right = seen(&passed, "/proxy/httpbin");
    if asked.path.starts_with("/cache") {
        // New with every answer.
        for (_, fields, _) in [&mut left, &mut right] {
            fields.retain(|(name, _)| !matches!(name.as_str(), "etag" | "last-modified"));
        }
    }
    assert_eq!(left, right, "{} {}", asked.method, asked.path);
    let shows_its_request = ["/get", "/cache", "/headers", "/etag"];
    if asked.method == "HEAD" && !shows_its_request.iter().any(|at| asked.path.starts_with(at)) {
        assert_eq!(own.header("content-length"), passed.header("content-length"), "{}", asked.path);
    }
}

fn both(address: &str, gateway: &Gateway, all: impl IntoIterator<Item = Asked>) {
    let through = format!("{}/proxy/httpbin", gateway.data());
    for asked in all {
        same(&asked, address, &through);
    }
}

#[test]
fn httpbin_passed_methods_and_bodies_are_the_same() {
    let Some(address) = address_of("CHECKREIN_TEST_HTTPBIN") else { return };
    let mut all =
        vec![ask("GET", "/get?a=1&a=2&b=%C3%BC+x"), ask("HEAD", "/get"), ask("GET", "/headers")];
    for (method, path) in [
        ("POST", "/post"),
        ("PUT", "/put"),
        ("PATCH", "/patch"),
        ("DELETE", "/delete"),
        ("POST", "/anything/a%2Fb/%C3%BC?x=%2F"),
    ] {
        all.push(ask(method, path));
        all.push(ask(method, path).body("application/json", b"{ \"a\" : [1, 2.50] }"));
        all.push(ask(method, path).body("application/json", b"{ not json"));
        all.push(ask(method, path).body("application/x-www-form-urlencoded", b"a=1&b=%20&b=2"));
        all.push(ask(method, path).body("application/octet-stream", &[0, 255, 10, 13, 1]));
        all.push(
            ask(method, path)
                .body("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data; name=\"f\"; filename=\"n\"\r\n\r\nabc\r\n--x--\r\n"),
        );
    }
    all.push(ask("GET", "/anything/x?q").with("X-Test", "1").with("Referer", "http://a.example/"));
    all.push(ask("POST", "/get"));
    all.push(ask("GET", "/post"));
    both(&address, &gateway(&address), all);
}

#[test]
fn httpbin_passed_encodings_and_formats_are_the_same() {
    let Some(address) = address_of("CHECKREIN_TEST_HTTPBIN") else { return };
    let plain = [
        "/encoding/utf8",
        "/html",
        "/xml",
        "/json",
        "/robots.txt",
        "/deny",
        "/image/png",
        "/image/jpeg",
        "/image/svg",
        "/image/webp",
        "/bytes/2000?seed=1",
        "/range/500",
        "/links/3/1",
        "/base64/SGVsbG8%3D",
        "/response-headers?X-One=1&X-Two=a%20b",
        "/cache",
        "/cache/60",
        "/etag/abc",
        "/forms/post",
        "/user-agent",
    ];
    let mut all: Vec<Asked> = plain.iter().map(|path| ask("GET", *path)).collect();
    all.extend(plain.iter().map(|path| ask("HEAD", *path)));
    for path in ["/gzip", "/deflate", "/brotli"] {
        all.push(ask("GET", path).with("Accept-Encoding", "gzip, deflate, br"));
    }
    all.push(ask("GET", "/image").with("Accept", "image/webp"));
    all.push(ask("GET", "/cookies").with("Cookie", "a=b; c=d"));
    all.push(ask("GET", "/range/500").with("Range", "bytes=10-29"));
    all.push(ask("GET", "/range/500").with("Range", "bytes=900-"));
    all.push(ask("GET", "/etag/abc").with("If-None-Match", "\"abc\""));
    all.push(ask("GET", "/etag/abc").with("If-Match", "\"other\""));
    all.push(ask("GET", "/cache").with("If-Modified-Since", "Mon, 01 Jan 2024 00:00:00 GMT"));
    both(&address, &gateway(&address), all);
}

#[test]
fn httpbin_passed_statuses_and_redirects_are_the_same() {
    let Some(address) = address_of("CHECKREIN_TEST_HTTPBIN") else { return };
    let statuses = [
        200, 201, 202, 203, 204, 206, 300, 301, 302, 303, 304, 305, 307, 308, 400, 401, 402, 403,
        404, 405, 406, 409, 410, 411, 412, 413, 414, 415, 416, 417, 418, 422, 428, 431, 451, 500,
        501, 502, 503, 504, 505,
    ];
    let mut all: Vec<Asked> =
        statuses.iter().map(|status| ask("GET", format!("/status/{status}"))).collect();
    // A write is passed on where the status says what became of it.
    let settled = statuses.iter().filter(|s| !matches!(s, 300..=305 | 500 | 502..=504));
    all.extend(settled.map(|status| ask("PUT", format!("/status/{status}"))));
    for path in [
        "/redirect/3",
        "/relative-redirect/3",
        "/absolute-redirect/3",
        "/redirect-to?url=%2Fget&status_code=307",
        "/redirect-to?url=http%3A%2F%2Fexample.com%2Fx",
        "/cookies/set?a=b",
        "/basic-auth/u/p",
        "/bearer",
        "/hidden-basic-auth/u/p",
        "/nowhere",
    ] {
        all.push(ask("GET", path));
    }
    both(&address, &gateway(&address), all);
}

#[test]
fn httpbin_passed_streams_are_the_same() {
    let Some(address) = address_of("CHECKREIN_TEST_HTTPBIN") else { return };
    let all = [
        "/stream-bytes/50000?seed=1&chunk_size=100",
        "/drip?duration=0.5&numbytes=20&delay=0",
        "/delay/1",
        "/range/20000?duration=0&chunk_size=100",
        "/bytes/102400?seed=3",
    ];
    let gateway = gateway(&address);
    both(&address, &gateway, all.map(|path| ask("GET", path)));
    let through = format!("{}/proxy/httpbin", gateway.data());
    let lines = |base: &str| -> Vec<Value> {
        let text = ask("GET", "/stream/20").at(base).text();
        text.lines().map(line_id).collect()
    };
    assert_eq!(lines(&address), lines(&through));
    // An answer that ends before its length breaks off; nothing makes it whole.
    let short = http::get(&format!("{through}/drip?duration=0.2&numbytes=5&delay=0"));
    assert_eq!(short.expect("whole").body.len(), 5);
}

/// Which line of a stream it is; the rest of it says who asked.
#[expect(clippy::disallowed_methods, reason = "the test reads what it made happen itself")]
fn line_id(line: &str) -> Value {
    serde_json::from_str::<Value>(line).expect("a line")["id"].clone()
}

/// The one difference of writes: what may have happened is a conflict, which clients do not repeat by themselves.
#[test]
fn httpbin_passed_writes_in_doubt_are_a_conflict() {
    let Some(address) = address_of("CHECKREIN_TEST_HTTPBIN") else { return };
    let gateway = gateway(&address);
    let through = format!("{}/proxy/httpbin", gateway.data());
    for status in [302, 500, 503] {
        let told = ask("POST", format!("/status/{status}")).at(&through);
        assert_eq!((told.status, told.json()["error"].as_str()), (409, Some("outcome_unknown")));
    }
}

/// What a client's script prints of a base URL.
fn told(command: &mut Command, base: &str) -> String {
    let output = command.arg(base).output().expect("the client starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}: {}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn sees_the_same(address: &str, client: impl Fn() -> Command) {
    let gateway = gateway(address);
    let through = format!("{}/proxy/httpbin", gateway.data());
    let (direct, passed) = (told(&mut client(), address), told(&mut client(), &through));
    assert!(direct.len() > 500, "{direct}");
    assert_eq!(direct, passed);
    // Every request was a call.
    wait_for("the calls are counted", std::time::Duration::from_secs(5), || {
        let metrics = http::get(&format!("{}/metrics", gateway.health())).ok()?.text();
        metrics.contains("checkrein_tool_calls_total{outcome=\"ok\",tool=\"read\"}").then_some(())
    });
}

fn script(name: &str) -> String {
    format!("{}/tests/real/clients/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn httpbin_clients_curl_sees_no_difference() {
    let Some(address) = address_of("CHECKREIN_TEST_HTTPBIN") else { return };
    sees_the_same(&address, || Command::new(script("client.sh")));
}

#[test]
fn httpbin_clients_requests_and_httpx_see_no_difference() {
    let Some(address) = address_of("CHECKREIN_TEST_HTTPBIN") else { return };
    let Some(python) = address_of("CHECKREIN_TEST_CLIENTS_PYTHON") else { return };
    sees_the_same(&address, || {
        let mut command = Command::new(&python);
        command.arg(script("client.py"));
        command
    });
}

#[test]
fn httpbin_clients_fetch_of_node_sees_no_difference() {
    let Some(address) = address_of("CHECKREIN_TEST_HTTPBIN") else { return };
    let Some(node) = address_of("CHECKREIN_TEST_CLIENTS_NODE") else { return };
    sees_the_same(&address, || {
        let mut command = Command::new(&node);
        command.arg(script("client.mjs"));
        command
    });
}
