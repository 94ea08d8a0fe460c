use std::sync::Arc;

use http::{HeaderName, Method};
use serde_json::json;

use super::{outline as written, *};
use crate::backends::http::tests::support;
use crate::call::{Arguments, Effect};
use crate::policy::snapshot::Target;
use crate::strict_json::Limits;

fn outline(tool: &Tool, tree: &Value) -> Result<Outline, Fault> {
    written(tool, tool.http().expect("an HTTP tool"), tree)
}

fn template_of(tool: &mut Tool) -> &mut HttpTemplate {
    match &mut tool.target {
        Target::Http(template) => template,
        Target::Proxy(_) | Target::Mcp(_) | Target::Passed => unreachable!("an HTTP tool"),
    }
}

fn tree(text: &str) -> Value {
    let limits = Limits::arguments(64 * 1024, 32);
    Arguments::parse(text.as_bytes(), limits).expect("sound").tree().clone()
}

fn read() -> Tool {
    support::tool(Effect::Read, support::upstream("shop.example", 80))
}

fn write() -> Tool {
    support::tool(Effect::Write, support::upstream("shop.example", 80))
}

fn target_of(text: &str) -> String {
    outline(&read(), &tree(text)).expect("fits").target
}

#[test]
fn a_path_argument_stays_one_segment_whatever_it_holds() {
    let table = [
        (r#"{"order_id":"A17"}"#, "/orders/A17"),
        (r#"{"order_id":"a/b?c#d"}"#, "/orders/a%2Fb%3Fc%23d"),
        (r#"{"order_id":"%2F%2e%2e"}"#, "/orders/%252F%252e%252e"),
        (r#"{"order_id":"a b+c;d"}"#, "/orders/a%20b%2Bc%3Bd"),
        (r#"{"order_id":"订"}"#, "/orders/%E8%AE%A2"),
        (r#"{"order_id":9007199254740993}"#, "/orders/9007199254740993"),
    ];
    for (arguments, target) in table {
        assert_eq!(target_of(arguments), target);
    }
    for bad in [r#"{"order_id":".."}"#, r#"{"order_id":""}"#, r#"{"order_id":"../x"}"#, "{}"] {
        assert_eq!(outline(&read(), &tree(bad)).expect_err("refused").at, "/order_id", "{bad}");
    }
}

#[test]
fn a_query_repeats_the_key_of_a_list_and_keeps_exact_digits() {
    assert_eq!(
        target_of(r#"{"q":"a&b=c","tag":["x","y"],"order_id":"1","n":1.10,"none":null,"b":true}"#),
        "/orders/1?q=a%26b%3Dc&tag=x&tag=y&n=1.10&b=true"
    );
    assert_eq!(target_of(r#"{"order_id":"1","a=b&c":"d"}"#), "/orders/1?a%3Db%26c=d");
}

#[test]
fn a_json_body_keeps_order_and_digits() {
    let text = r#"{"z":1.10,"account_id":9007199254740993,"a":[18446744073709551615,{"k":-0}]}"#;
    let outline = outline(&write(), &tree(text)).expect("fits");
    assert_eq!(outline.body, text);
    assert_eq!(outline.target, "/orders");
    assert_eq!(outline.headers[CONTENT_TYPE], "application/json");
}

#[test]
fn a_form_body_is_encoded_like_a_query() {
    let mut tool = write();
    template_of(&mut tool).encoding = BodyEncoding::Form;
    let outline = self::outline(&tool, &tree(r#"{"a":"x y&z","b":[1,2]}"#)).expect("fits");
    assert_eq!(outline.body, "a=x%20y%26z&b=1&b=2");
    assert_eq!(outline.headers[CONTENT_TYPE], "application/x-www-form-urlencoded");
    assert_eq!(self::outline(&tool, &tree(r#"{"a":{}}"#)).expect_err("no spelling").at, "/a");
}

#[test]
fn named_places_win_over_the_rest_and_a_get_has_no_body() {
    let mut tool = write();
    template_of(&mut tool).query = vec!["page".into()];
    template_of(&mut tool).headers = vec![(HeaderName::from_static("x-region"), "region".into())];
    let text = r#"{"page":2,"region":"eu","note":"n"}"#;
    let out = outline(&tool, &tree(text)).expect("fits");
    assert_eq!(out.target, "/orders?page=2");
    assert_eq!(out.headers["x-region"], "eu");
    assert_eq!(out.body, r#"{"note":"n"}"#);
    template_of(&mut tool).method = Method::DELETE;
    template_of(&mut tool).rest = Rest::Query;
    let out = outline(&tool, &tree(r#"{"id":1}"#)).expect("fits");
    assert_eq!((out.target.as_str(), out.body.len()), ("/orders?id=1", 0));
    assert!(!out.headers.contains_key(CONTENT_TYPE));
}

#[test]
fn the_upstream_sets_host_and_base_path_and_fixed_headers_before_arguments() {
    let mut tool = read();
    let upstream = Arc::get_mut(&mut tool.upstream).expect("alone");
    upstream.base_path = Arc::from("/api/v2");
    upstream.headers = vec![
        (HeaderName::from_static("x-tenant"), HeaderValue::from_static("t1")),
        (HOST, HeaderValue::from_static("other.example")),
    ];
    let out = outline(&tool, &tree(r#"{"order_id":"1"}"#)).expect("fits");
    assert_eq!(out.target, "/api/v2/orders/1");
    assert_eq!(out.headers["x-tenant"], "t1");
    assert_eq!(out.headers[HOST], "shop.example:80");
    assert_eq!(out.headers[USER_AGENT], concat!("checkrein/", env!("CARGO_PKG_VERSION")));
    assert_eq!(out.headers[ACCEPT_ENCODING], "identity");
}

#[test]
fn no_argument_can_set_a_field_that_frames_or_routes_the_request() {
    // The policy refuses such a template; the back end does not rely on it.
    let mut tool = read();
    template_of(&mut tool).headers =
        ["host", "authorization", "transfer-encoding", "content-length", "accept-encoding"]
            .map(|name| (HeaderName::from_static(name), "v".to_owned()))
            .into();
    let out = outline(&tool, &tree(r#"{"order_id":"1","v":"gzip"}"#)).expect("fits");
    assert_eq!(out.headers[HOST], "shop.example:80");
    assert_eq!(out.headers[ACCEPT_ENCODING], "identity");
    for name in ["authorization", "transfer-encoding", "content-length"] {
        assert!(!out.headers.contains_key(name), "{name}");
    }
}

#[test]
fn what_passes_the_gate_can_always_be_written() {
    // The gate and the writer share one set of rules: no faults = a request that `http` accepts.
    let values = [
        json!("plain"),
        json!("a/b"),
        json!("é\u{10348}"),
        json!("%00"),
        json!(1e300),
        json!(true),
        json!(null),
        json!(["a", 1]),
        json!({"x": 1}),
        json!("x".repeat(40_000)),
    ];
    for value in values {
        let tree = json!({"order_id": value, "other": value});
        let faults = template::faults(read().http().expect("HTTP"), &tree);
        match outline(&read(), &tree) {
            Ok(outline) => {
                assert!(faults.is_empty(), "{tree}");
                assert!(outline.clone().into_http().is_ok(), "{tree}");
            }
            Err(_) => assert!(!faults.is_empty(), "{tree}"),
        }
    }
}

proptest::proptest! {
    /// What a reader of URLs makes of the target is what the arguments said, whatever they hold: the value is one
    /// segment, nothing is normalised away, keys and values come apart where they were put together.
    #[test]
    fn a_reader_of_the_url_finds_the_arguments_again(id in "\\PC{1,20}|[./%\\\\?#&=;:@ -~]{1,12}", key in "[^\u{0}]{1,8}", text in ".{0,20}") {
        let tree = serde_json::json!({ "order_id": id, key.as_str(): text });
        proptest::prop_assume!(key != "order_id");
        let Ok(outline) = outline(&read(), &tree) else {
            proptest::prop_assert!(!template::faults(read().http().expect("HTTP"), &tree).is_empty());
            return Ok(());
        };
        let url = url::Url::parse(&format!("http://shop.example{}", outline.target)).expect("a URL");
        let path = outline.target.split('?').next().expect("a path");
        proptest::prop_assert_eq!(url.path(), path, "normalised");
        let segments: Vec<&str> = url.path_segments().expect("a path").collect();
        proptest::prop_assert_eq!(segments.len(), 2);
        let decoded = url::form_urlencoded::parse(format!("v={}", segments[1]).as_bytes())
            .next().expect("a pair").1.into_owned();
        proptest::prop_assert_eq!(decoded, id);
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        proptest::prop_assert_eq!(pairs, vec![(key, text)]);
        proptest::prop_assert!(url.fragment().is_none());
    }
}
