//! The answer object, word for word, and the head that goes with it.

use bytes::Bytes;
use http::Method;
use tokio::time::Instant;

use super::*;
use crate::call::operation::{OperationKey, OperationScope, operation};
use crate::call::{
    AgentId, Arguments, Content, Dimension, Head, IdempotencyKey, Notes, Outcome, PolicyName,
    RunId, Truncated, Verdict,
};
use crate::strict_json::Limits;

fn key() -> IdempotencyKey {
    let arguments = Arguments::parse(b"{}", Limits::arguments(9, 9)).expect("sound");
    let agent = AgentId::new("a").expect("name");
    let tool = ToolName::new("pay").expect("name");
    operation(OperationScope::Agent(&agent), &tool, OperationKey::Arguments, &arguments, &[]).key
}

fn ended(outcome: Outcome) -> Answer {
    Answer {
        id: CallId::new("c1").expect("id"),
        tool: ToolName::new("check_order").expect("name"),
        outcome,
        attempts: 1,
        operation: None,
        alternatives: Vec::new(),
    }
}

fn result(bytes: &str, json: bool) -> ToolResult {
    ToolResult {
        head: None,
        content: Content {
            bytes: Bytes::copy_from_slice(bytes.as_bytes()),
            form: if json { crate::call::Form::Json } else { crate::call::Form::Text },
        },
        source: Source::Tool,
        notes: Notes::default(),
    }
}

fn text(answer: &Answer) -> String {
    String::from_utf8(super::answer(answer)).expect("utf-8")
}

fn denied(code: DenyCode, detail: Detail) -> Answer {
    ended(Err(Denied::new(code, "no").detail(detail).into()))
}

fn failed(code: FailCode, class: Class, delivery: Delivery) -> Failed {
    Failed::new(code, class, delivery, Verdict::Neutral, "broken")
}

fn headers(answer: &Answer) -> (StatusCode, HeaderMap) {
    let response = Reply::of_call(answer).into_response(None);
    (response.status(), response.headers().clone())
}

fn shown<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).map(|value| value.to_str().expect("visible"))
}

#[test]
fn a_json_result_keeps_its_digits_and_order() {
    let sent = r#"{"z":9007199254740993,"a":0.10000000000000001,"b":1e400}"#;
    assert_eq!(
        text(&ended(Ok(result(sent, true)))),
        format!(r#"{{"ok":true,"value":{sent},"call":"c1","attempts":1}}"#)
    );
    assert_eq!(
        text(&ended(Ok(result("line \"1\"\n{", false)))),
        r#"{"ok":true,"value":"line \"1\"\n{","call":"c1","attempts":1}"#
    );
    assert!(text(&ended(Ok(result("", true)))).contains(r#""value":null"#));
    assert!(text(&ended(Ok(result("", false)))).contains(r#""value":"""#));
}

#[test]
fn what_is_special_about_a_success_is_said() {
    let mut replayed = result("1", true);
    replayed.source = Source::Ledger;
    replayed.notes = Notes {
        truncated: Some(Truncated { total: 100, kept: 10 }),
        age: Some(Duration::from_micros(1)),
        identical_to: Some(key().id()),
        accepted: true,
        ..Notes::default()
    };
    assert_eq!(
        text(&ended(Ok(replayed))),
        format!(
            r#"{{"ok":true,"value":1,"call":"c1","attempts":1,"replayed":true,"age_ms":1,"truncated":{{"bytes":100,"kept":10}},"accepted":true,"identical_to":"{}"}}"#,
            key().id()
        )
    );
}

#[test]
fn a_refusal_names_every_fault() {
    let faults = vec![Fault {
        at: "/order_id".into(),
        expected: "string of 1 to 80 characters".into(),
        got: "number".into(),
    }];
    assert_eq!(
        text(&denied(DenyCode::InvalidArguments, Detail::Faults(faults))),
        r#"{"ok":false,"error":"invalid_arguments","message":"no","executed":"no","retry":"changed","hint":"mend the named arguments and call again","call":"c1","faults":[{"at":"/order_id","expected":"string of 1 to 80 characters","got":"number"}]}"#
    );
}

#[test]
fn details_show_as_their_members() {
    let has = |code, detail, member: &str| {
        let text = text(&denied(code, detail));
        assert!(text.contains(member), "{text}");
    };
    let names = |all: &[&str]| all.iter().map(|n| ToolName::new(n).expect("name")).collect();
    has(DenyCode::UnknownTool, Detail::Tools(names(&["a", "b"])), r#""alternatives":["a","b"]"#);
    has(DenyCode::UnknownTool, Detail::Tools(Vec::new()), r#""alternatives":[]"#);
    let budget = Detail::Budget { dimension: Dimension::Rounds, used: 2, limit: 2 };
    has(DenyCode::BudgetExhausted, budget, r#""dimension":"rounds""#);
    has(
        DenyCode::ReviewRequired,
        Detail::Operation(key().id()),
        &format!(r#""operation":"{}""#, key().id()),
    );
    let changed = |executed| Detail::Changed { pointers: vec!["/qty".into()], executed };
    has(DenyCode::IdempotencyConflict, changed(false), r#""executed":"no""#);
    has(DenyCode::IdempotencyConflict, changed(true), r#""executed":"yes""#);
    has(DenyCode::IdempotencyConflict, changed(true), r#""faults":[{"at":"/qty""#);
    has(DenyCode::ArgumentsTooLarge, Detail::Size { is: 9, limit: 5 }, "at most 5 bytes");
    let since = Instant::now;
    let isolated = |isolated| Detail::Circuit { since: since(), isolated };
    has(
        DenyCode::CircuitOpen,
        isolated(true),
        r#""retry":"person","hint":"use another tool; this one waits for a person""#,
    );
    has(DenyCode::CircuitOpen, isolated(false), r#""retry":"after","retry_after_ms":1000"#);
}

#[test]
fn a_refusal_of_a_known_operation_never_says_that_it_did_not_happen() {
    for code in DenyCode::ALL {
        for known in [Known::Unknown, Known::Running, Known::Executed, Known::Identical] {
            let mut answer = denied(*code, Detail::Operation(key().id()));
            let Err(CallError::Denied(denied)) = &mut answer.outcome else { panic!("a refusal") };
            denied.known = Some(known);
            let told = crate::strict_json::parse(text(&answer).as_bytes(), Limits::answer(1 << 16));
            let told = told.expect("JSON");
            let (executed, retry) = (told["executed"].as_str(), told["retry"].as_str());
            let id = serde_json::Value::from(key().id().to_string());
            assert_eq!(told["operation"], id, "{told}");
            match known {
                Known::Unknown => assert_eq!((executed, retry), (Some("unknown"), Some("person"))),
                Known::Running => assert_eq!(executed, Some("unknown"), "{told}"),
                Known::Executed => assert_eq!(executed, Some("yes"), "{told}"),
                Known::Identical => {
                    assert_eq!((executed, &told["identical_to"]), (Some("no"), &id))
                }
            }
            // Changed arguments would do it by another way.
            assert!(known == Known::Identical || retry != Some("changed"), "{told}");
        }
    }
}

#[test]
fn suggestions_follow_named_tools_without_repeating_them() {
    let name = |n: &str| ToolName::new(n).expect("name");
    let mut answer = denied(DenyCode::UnknownTool, Detail::Tools(vec![name("a"), name("b")]));
    answer.alternatives = vec![name("b"), name("c")];
    assert!(text(&answer).contains(r#""alternatives":["a","b","c"]"#));
}

#[test]
fn times_are_rounded_up() {
    for (wait, ms, s) in [
        (Duration::from_nanos(333_000), 1, "1"),
        (Duration::from_nanos(1_000_001), 2, "1"),
        (Duration::from_millis(1000), 1000, "1"),
        (Duration::from_millis(1001), 1001, "2"),
    ] {
        let refused = Denied::new(DenyCode::RateLimited, "no").retry_after(wait);
        let answer = ended(Err(refused.into()));
        assert!(text(&answer).contains(&format!(r#""retry_after_ms":{ms},"#)), "{wait:?}");
        assert_eq!(shown(&headers(&answer).1, "retry-after"), Some(s), "{wait:?}");
    }
}

#[test]
fn a_rate_limit_shows_its_bucket_in_the_head() {
    let rate = Rate {
        name: PolicyName::new("tool:check_order"),
        limit: 10,
        window: Duration::from_millis(20_001),
        remaining: 0,
        reset: Duration::from_millis(2_001),
    };
    let detail = Detail::Limited { by: LimitedBy::Gateway, rate: Some(rate.clone()) };
    let refused = Denied::new(DenyCode::RateLimited, "no").detail(detail);
    let answer = ended(Err(refused.retry_after(Duration::from_millis(1)).into()));
    let (status, head) = headers(&answer);
    assert_eq!(status, 429);
    assert_eq!(shown(&head, "ratelimit"), Some("\"tool:check_order\";r=0;t=3"));
    assert_eq!(shown(&head, "ratelimit-policy"), Some("\"tool:check_order\";q=10;w=21"));
    assert_eq!(shown(&head, "retry-after"), Some("3"), "never before the bucket's own time");
    assert!(text(&answer).contains(r#""limited_by":"gateway""#));

    let mut sound = result("1", true);
    sound.notes.rate = Some(Rate { remaining: 9, ..rate });
    let (_, head) = headers(&ended(Ok(sound)));
    assert_eq!(shown(&head, "ratelimit"), Some("\"tool:check_order\";r=9;t=3"));
    assert_eq!(shown(&head, "retry-after"), None);
}

#[test]
fn failures_answer_by_what_became_of_the_operation() {
    let facts = |failed: Failed, is_write: bool| {
        let mut answer = ended(Err(failed.into()));
        answer.operation = is_write.then(|| key().id());
        let text = text(&answer);
        let member = |name: &str| {
            let at = text.find(&format!("\"{name}\":\"")).expect(name) + name.len() + 4;
            text[at..].split('"').next().expect("a value").to_owned()
        };
        (headers(&answer).0.as_u16(), member("executed"), member("retry"))
    };
    let expect = |got: (u16, String, String), status, executed: &str, retry: &str| {
        assert_eq!(got, (status, executed.to_owned(), retry.to_owned()));
    };
    use {Class::*, Delivery::*, FailCode as F};
    expect(facts(failed(F::UpstreamUnreachable, Transient, NotSent), false), 502, "no", "after");
    expect(facts(failed(F::ToolError, Permanent, Refused), false), 200, "no", "changed");
    expect(facts(failed(F::ToolError, Permanent, Done), true), 200, "yes", "changed");
    expect(
        facts(failed(F::ToolUnavailable, Transient, Delivery::Unknown), false),
        502,
        "unknown",
        "after",
    );
    expect(facts(failed(F::ResultLost, Permanent, Done), true), 502, "yes", "never");
    expect(facts(failed(F::ResultLost, Transient, Done), false), 502, "yes", "after");
    expect(facts(failed(F::ResultTooLarge, Permanent, Done), false), 502, "yes", "changed");
    expect(facts(failed(F::ResultTooLarge, Permanent, Done), true), 502, "yes", "never");
    expect(facts(failed(F::RateLimited, Transient, Refused), false), 429, "no", "after");
}

#[test]
fn a_write_that_may_have_happened_is_a_409_with_its_operation() {
    let unknown = Unknown {
        key: key(),
        operation: key().id(),
        health: Verdict::Bad,
        message: "no answer within 60 s".into(),
    };
    let answer = ended(Err(unknown.into()));
    let (status, head) = headers(&answer);
    assert_eq!(status, 409);
    assert_eq!(shown(&head, "retry-after"), None, "client libraries would repeat it");
    let text = text(&answer);
    assert!(text.contains(r#""error":"outcome_unknown""#), "{text}");
    assert!(text.contains(r#""executed":"unknown","retry":"person""#), "{text}");
    assert!(text.contains(&format!(r#""operation":"{}""#, key().id())), "{text}");
}

#[test]
fn bb_p09_every_error_answer_has_a_class_a_sentence_and_a_next_step() {
    let mut errors: Vec<CallError> =
        DenyCode::ALL.iter().map(|code| Denied::new(*code, "").into()).collect();
    for code in FailCode::ALL {
        errors.push(
            Failed::new(*code, Class::Permanent, Delivery::Unknown, Verdict::Bad, " ").into(),
        );
    }
    let health = Verdict::Bad;
    errors
        .push(Unknown { key: key(), operation: key().id(), health, message: String::new() }.into());
    for error in errors {
        let body = super::answer(&ended(Err(error.clone())));
        let tree = crate::strict_json::parse(&body, Limits::answer(4096)).expect("json");
        for member in ["error", "message", "executed", "retry", "hint", "call"] {
            let text = tree[member].as_str().expect(member);
            assert!(!text.trim().is_empty(), "{} {member}", error.code());
        }
        if matches!(error, CallError::Denied(_)) {
            let waits = tree.get("retry_after_ms").is_some();
            assert_eq!(waits, tree["retry"] == "after", "{}", error.code());
        }
        assert!(status(&error).as_u16() >= 200);
    }
}

#[test]
fn the_head_names_run_and_call_and_nothing_of_the_tools_head() {
    let mut sound = result("1", true);
    let mut tools = HeaderMap::new();
    for name in ["connection", "keep-alive", "set-cookie", "server", "ratelimit", "x-secret"] {
        tools.insert(HeaderName::from_static(name), HeaderValue::from_static("x"));
    }
    sound.head = Some(Head { status: 201, headers: tools, arriving: None });
    let response =
        Reply::of_call(&ended(Ok(sound))).run(RunId::new("r9").expect("id")).into_response(None);
    assert_eq!(response.status(), 200);
    let mut names: Vec<&str> = response.headers().keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["cache-control", "checkrein-call-id", "checkrein-run", "content-type"]);
    assert_eq!(shown(response.headers(), "checkrein-run"), Some("r9"));
    assert_eq!(shown(response.headers(), "checkrein-call-id"), Some("c1"));
}

#[test]
fn a_refused_request_echoes_its_run_or_gets_one() {
    let asked = RunId::new("mine").expect("id");
    let problem = Problem::invalid("no");
    let response = Reply::problem(&problem).into_response(Some(asked));
    assert_eq!(shown(response.headers(), "checkrein-run"), Some("mine"));
    assert_eq!(shown(response.headers(), "content-type"), Some("application/problem+json"));
    let minted = Reply::problem(&problem).into_response(None);
    let run = shown(minted.headers(), "checkrein-run").expect("minted");
    assert_eq!(uuid::Uuid::parse_str(run).expect("a UUID").get_version_num(), 7);
}

#[test]
fn problems_are_refusals_with_a_status() {
    let body = |problem: &Problem| String::from_utf8(problem.body()).expect("utf-8");
    assert_eq!(
        body(&Problem::invalid("no")),
        r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"no","ok":false,"error":"invalid_request","message":"no","executed":"no","retry":"changed","hint":"mend the request and send it again"}"#
    );
    let unauthenticated = Denied::new(DenyCode::Unauthenticated, "no credential");
    let response = Reply::problem(&Problem::denied(unauthenticated)).into_response(None);
    assert_eq!(response.status(), 401);
    assert_eq!(shown(response.headers(), "www-authenticate"), Some("Bearer"));
    let method = Reply::problem(&Problem::method(&Method::PUT, "POST")).into_response(None);
    assert_eq!(method.status(), 405);
    assert_eq!(shown(method.headers(), "allow"), Some("POST"));
    let draining = Reply::problem(&Problem::denied(Denied::new(DenyCode::Draining, "")));
    let draining = draining.into_response(None);
    assert_eq!(
        (draining.status().as_u16(), shown(draining.headers(), "retry-after")),
        (503, Some("1"))
    );
}
