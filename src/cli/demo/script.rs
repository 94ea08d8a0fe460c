//! The steps of the demo, each told in a few lines and checked.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::DemoError;
use super::agent::{Agent, Turned};
use super::tools::Tools;

const A17: &str = r#"{"order_id":"A17"}"#;
const NOTICE: &str = r#"{"order_id":"A17","text":"Your order is on its way."}"#;
/// How long a mended tool may take to be used again: the open time of the demo's circuit, with its jitter, twice.
const RECOVERY: Duration = Duration::from_secs(6);

/// What a line under an answer begins with.
const BELOW: &str = "\n                  ";

type Out<'o> = &'o mut (dyn Write + Send);

/// The whole story. Ends with an error at the first answer that is not what it should be.
pub(super) async fn tell(
    gateway: SocketAddr,
    tools: &Tools,
    out: Out<'_>,
) -> Result<(), DemoError> {
    print(
        out,
        "A shop's tools, the gateway in front of them, and an agent whose model is a script; all in this process.",
    )?;
    print(out, "`model` is what the model asks for, `answer` what the gateway tells it.")?;
    the_order(gateway, out).await?;
    the_refusal(gateway, out).await?;
    the_retry(gateway, tools, out).await?;
    the_slow_tool(gateway, out).await?;
    the_breaker(gateway, tools, out).await?;
    the_unknown_write(gateway, tools, out).await
}

async fn the_order(gateway: SocketAddr, out: Out<'_>) -> Result<(), DemoError> {
    let agent = Agent::new(gateway, "demo-order");
    title(
        out,
        "1. Where is order A17?",
        "the model gets its arguments wrong, is told what to mend, and mends them",
    )?;
    let wrong = agent.ask(&[("call_1", "check_order", r#"{"order":17}"#)]).await?;
    show(out, &wrong, &[("check_order", r#"{"order":17}"#)])?;
    expect("wrong arguments", &wrong, &["invalid_arguments"], "continue")?;
    let right = agent.ask(&[("call_2", "check_order", A17)]).await?;
    show(out, &right, &[("check_order", A17)])?;
    expect("mended arguments", &right, &["ok"], "continue")?;
    let status =
        right.answer(0).pointer("/value/status").and_then(Value::as_str).unwrap_or_default();
    let said = match status {
        "in_transit" => "订单 A17 正在运输中。",
        _ => "订单 A17 状态未知。",
    };
    let done = agent.say(said).await?;
    print(out, &format!("{} {said}", done.state))?;
    expect("the order's end", &done, &[], "done")
}

async fn the_refusal(gateway: SocketAddr, out: Out<'_>) -> Result<(), DemoError> {
    let agent = Agent::new(gateway, "demo-refusal");
    title(
        out,
        "2. A tool this agent may not call",
        "refused before anything is sent; the answer lists what it may use",
    )?;
    let arguments = A17;
    let turned = agent.ask(&[("call_1", "delete_order", arguments)]).await?;
    show(out, &turned, &[("delete_order", arguments)])?;
    expect("the refusal", &turned, &["unknown_tool"], "continue")
}

async fn the_retry(gateway: SocketAddr, tools: &Tools, out: Out<'_>) -> Result<(), DemoError> {
    let agent = Agent::new(gateway, "demo-retry");
    title(
        out,
        "3. A read that fails once",
        "retried by the gateway, with back-off and jitter; the model sees one answer",
    )?;
    tools.hiccup(1);
    let before = tools.searches();
    let arguments = r#"{"q":"blue coat"}"#;
    let turned = agent.ask(&[("call_1", "flaky_search", arguments)]).await?;
    show(out, &turned, &[("flaky_search", arguments)])?;
    print(out, &format!("   requests that reached the search: {}", tools.searches() - before))?;
    expect("the retry", &turned, &["ok"], "continue")?;
    equal(
        "attempts",
        "2".into(),
        turned.answer(0).get("attempts").map(Value::to_string).unwrap_or_default(),
    )
}

async fn the_slow_tool(gateway: SocketAddr, out: Out<'_>) -> Result<(), DemoError> {
    let agent = Agent::new(gateway, "demo-slow");
    title(out, "4. A tool that is too slow", "cut at its limit; nothing the tool does extends it")?;
    let turned = agent.ask(&[("call_1", "slow_report", "{}")]).await?;
    show(out, &turned, &[("slow_report", "{}")])?;
    expect("the slow tool", &turned, &["upstream_timeout"], "continue")
}

async fn the_breaker(gateway: SocketAddr, tools: &Tools, out: Out<'_>) -> Result<(), DemoError> {
    let agent = Agent::new(gateway, "demo-breaker");
    title(
        out,
        "5. A tool that is down",
        "its circuit opens; the next call costs no request; mended, it is used again by itself",
    )?;
    tools.break_search();
    let mut opened = None;
    for n in 1..=6 {
        let id = format!("call_{n}");
        let arguments = format!(r#"{{"q":"try {n}"}}"#);
        let before = tools.searches();
        let began = Instant::now();
        let turned = agent.ask(&[(&id, "flaky_search", &arguments)]).await?;
        show(out, &turned, &[("flaky_search", &arguments)])?;
        if turned.code(0) == "circuit_open" {
            opened = Some((tools.searches() - before, began.elapsed()));
            break;
        }
        expect("the tool that is down", &turned, &["tool_unavailable"], "continue")?;
    }
    let Some((requests, took)) = opened else {
        return Err(DemoError::Unexpected {
            step: "the breaker",
            expected: "circuit_open".into(),
            got: "six failures".into(),
        });
    };
    print(
        out,
        &format!(
            "   circuit open: {requests} requests reached the search, answered in {} ms",
            took.as_millis()
        ),
    )?;
    tools.mend_search();
    print(out, "   (the search is mended)")?;
    let began = Instant::now();
    for n in 1.. {
        let id = format!("again_{n}");
        let arguments = format!(r#"{{"q":"after {n}"}}"#);
        let turned = agent.ask(&[(&id, "flaky_search", &arguments)]).await?;
        show(out, &turned, &[("flaky_search", &arguments)])?;
        if turned.code(0) == "ok" {
            return print(
                out,
                &format!("   circuit closed again after {:.1} s", began.elapsed().as_secs_f32()),
            );
        }
        expect("the mended tool", &turned, &["circuit_open"], "continue")?;
        if began.elapsed() > RECOVERY {
            break;
        }
        wait(turned.answer(0).get("retry_after_ms").and_then(Value::as_u64).unwrap_or(100)).await;
    }
    Err(DemoError::Unexpected {
        step: "the mended tool",
        expected: "ok".into(),
        got: "circuit_open".into(),
    })
}

async fn the_unknown_write(
    gateway: SocketAddr,
    tools: &Tools,
    out: Out<'_>,
) -> Result<(), DemoError> {
    let agent = Agent::new(gateway, "demo-write");
    title(
        out,
        "6. A write whose reply is lost",
        "it may have happened: the batch stops, and nobody may repeat it under any call id",
    )?;
    let turned =
        agent.ask(&[("call_1", "send_notice", NOTICE), ("call_2", "check_order", A17)]).await?;
    show(out, &turned, &[("send_notice", NOTICE), ("check_order", A17)])?;
    print(out, &format!("   state: {}", turned.state))?;
    expect(
        "the unknown write",
        &turned,
        &["outcome_unknown", "skipped_pending_review"],
        "review_required",
    )?;
    let again = agent.ask(&[("call_9", "send_notice", NOTICE)]).await?;
    print(out, "   The model asks again under a new call id:")?;
    show(out, &again, &[("send_notice", NOTICE)])?;
    expect("the refused repeat", &again, &["review_required"], "review_required")?;
    print(out, &format!("   notices that really went out: {}", tools.notices()))?;
    equal("notices", "1".into(), tools.notices().to_string())
}

/// Lines that work while the demo stays up.
pub(super) fn invite(
    data: SocketAddr,
    health: SocketAddr,
    tools: SocketAddr,
    out: Out<'_>,
) -> io::Result<()> {
    let json = "-H 'Content-Type: application/json'";
    writeln!(out, "\nThe gateway stays up (Ctrl-C ends it). Try:\n")?;
    writeln!(out, "  curl -s 'http://{data}/v1/tools?form=openai-chat'")?;
    writeln!(out, "  curl -s http://{data}/v1/tools/check_order {json} -d '{A17}'")?;
    writeln!(out, "  curl -s http://{data}/v1/tools/check_order {json} -d '{{\"order_id\":17}}'")?;
    writeln!(
        out,
        "  curl -s http://{data}/v1/tools/flaky_search {json} -d '{{\"q\":\"blue coat\"}}'"
    )?;
    writeln!(
        out,
        "  curl -s -X POST http://{tools}/switch/search/down     # break the search; …/up mends it"
    )?;
    writeln!(out, "  curl -s http://{health}/metrics | grep checkrein_breaker_state")?;
    writeln!(out, "  curl -s 'http://{health}/ready?verbose'")?;
    out.flush()
}

fn title(out: Out<'_>, title: &str, what: &str) -> Result<(), DemoError> {
    print(out, &format!("\n{title}\n   {what}"))
}

/// A line for what was asked, and what came back.
fn show(out: Out<'_>, turned: &Turned, asked: &[(&str, &str)]) -> Result<(), DemoError> {
    for ((tool, arguments), (id, answer)) in asked.iter().zip(&turned.answers) {
        print(out, &format!("   model  {id}: {tool} {arguments}"))?;
        print(out, &format!("   answer {id}: {}", told(answer)))?;
    }
    Ok(())
}

/// What an agent process reads first, then on lines of their own the words its model reads.
fn told(answer: &Value) -> String {
    let text = |name: &str| answer.get(name).and_then(Value::as_str).unwrap_or_default();
    if answer.get("ok") == Some(&Value::Bool(true)) {
        let attempts = answer.get("attempts").and_then(Value::as_u64).unwrap_or(1);
        let value = answer.get("value").map(Value::to_string).unwrap_or_default();
        return format!("ok {value} ({attempts} attempt{})", if attempts == 1 { "" } else { "s" });
    }
    let wait = answer.get("retry_after_ms").and_then(Value::as_u64);
    let mut lines = format!(
        "{} (executed: {}, retry: {}{})",
        text("error"),
        text("executed"),
        text("retry"),
        wait.map(|wait| format!(" {wait} ms")).unwrap_or_default()
    );
    let mut line = |words: &str| lines.push_str(&format!("{BELOW}{words}"));
    line(text("message"));
    for fault in answer.get("faults").and_then(Value::as_array).into_iter().flatten() {
        let part = |name: &str| fault.get(name).and_then(Value::as_str).unwrap_or_default();
        line(&format!("{}: expected {}, got {}", part("at"), part("expected"), part("got")));
    }
    let names = answer.get("alternatives").and_then(Value::as_array);
    let names: Vec<_> = names.into_iter().flatten().filter_map(Value::as_str).collect();
    if !names.is_empty() {
        line(&format!("it may use: {}", names.join(", ")));
    }
    lines
}

fn expect(
    step: &'static str,
    turned: &Turned,
    codes: &[&str],
    state: &str,
) -> Result<(), DemoError> {
    let got: Vec<&str> = (0..turned.answers.len()).map(|at| turned.code(at)).collect();
    equal(step, format!("{codes:?}, state {state}"), format!("{got:?}, state {}", turned.state))
}

fn equal(step: &'static str, expected: String, got: String) -> Result<(), DemoError> {
    if expected == got { Ok(()) } else { Err(DemoError::Unexpected { step, expected, got }) }
}

fn print(out: Out<'_>, line: &str) -> Result<(), DemoError> {
    writeln!(out, "{line}").map_err(super::io("print"))
}

#[expect(clippy::disallowed_methods, reason = "an agent that comes back when it was told to")]
async fn wait(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
