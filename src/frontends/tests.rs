//! Which path is which, and which is nothing.

use super::*;

fn found<'a>(method: &str, path: &'a str) -> Found<'a> {
    find(&Method::from_bytes(method.as_bytes()).expect("method"), path)
}

#[test]
fn every_path_of_the_api_is_routed() {
    use Route::{Batch, FinishRun, OpenRun, Run, RunSummary, Tool, Tools};
    for (method, path, route) in [
        ("GET", "/v1/tools", Tools),
        ("POST", "/v1/tools/check_order", Tool("check_order")),
        ("POST", "/v1/batches/openai-chat", Batch(FrontEnd::OpenaiChat)),
        ("POST", "/v1/batches/openai-responses", Batch(FrontEnd::OpenaiResponses)),
        ("POST", "/v1/batches/anthropic-messages", Batch(FrontEnd::AnthropicMessages)),
        ("POST", "/v1/runs", OpenRun),
        ("GET", "/v1/runs/r1", Run("r1")),
        ("GET", "/v1/runs/r1/summary", RunSummary("r1")),
        ("POST", "/v1/runs/r1/finish", FinishRun("r1")),
    ] {
        assert_eq!(found(method, path), Found::Route(route), "{method} {path}");
    }
}

#[test]
fn another_method_is_told_the_right_one() {
    assert_eq!(found("POST", "/v1/tools"), Found::Methods("GET"));
    assert_eq!(found("GET", "/v1/tools/x"), Found::Methods("POST"));
    assert_eq!(found("OPTIONS", "/v1/tools/x"), Found::Methods("POST"));
    assert_eq!(found("GET", "/v1/batches/openai-chat"), Found::Methods("POST"));
    assert_eq!(found("DELETE", "/v1/runs/r1"), Found::Methods("GET"));
    assert_eq!(found("HEAD", "/v1/tools"), Found::Methods("GET"));
}

#[test]
fn no_other_path_is_anything() {
    for path in [
        "",
        "/",
        "/v1",
        "/v1/",
        "/v1/tools/",
        "/v1/tools/x/",
        "/v1/tools/x/y",
        "//v1/tools",
        "/v1//tools",
        "/v1/./tools",
        "/V1/tools",
        "/v1/batches/openai",
        "/v1/batches/openai-chat/x",
        "/v1/runs/",
        "/v1/runs//summary",
        "/v1/runs/r1/events",
        "/v1/runs/r1/summary/x/y",
        "/metrics",
        "/admin/v1/reviews",
        "*",
    ] {
        assert_eq!(found("GET", path), Found::Nothing, "{path:?}");
        assert_eq!(found("POST", path), Found::Nothing, "{path:?}");
    }
}
