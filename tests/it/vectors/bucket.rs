//! Buckets, through the `rate_limit` layer: several tools of different weight on one shared bucket.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use checkrein::call::code::DenyCode;
use checkrein::call::{Detail, Effect, LimitedBy, Outcome};
use checkrein::policy::snapshot::Tool;
use checkrein::policy::{LoadOptions, examine_text};
use tokio::time::Instant;

use super::{Step, Vector};
use crate::layers::rig::{Rig, denied, rate, tool, upstream};

/// Tools `w1`, `w2`, … that take so many tokens of one bucket.
fn weighing(weights: &BTreeSet<u64>, interval: Duration, burst: u32) -> Rig {
    let mut server = upstream();
    server.rate_limit = Some(rate("upstream:shop", interval, burst));
    let server = Arc::new(server);
    let tools = weights.iter().map(|weight| Tool {
        upstream: server.clone(),
        weight: u32::try_from(*weight).expect("small"),
        ..tool(&format!("w{weight}"), Effect::Read)
    });
    Rig::of(tools.collect())
}

async fn until(start: Instant, at: Duration) {
    let now = start.elapsed();
    assert!(at >= now, "time goes forward");
    tokio::time::advance(at - now).await;
}

/// The policy's check says that such a weight can never pass.
fn refused_at_load(weight: u64, burst: u32) {
    let policy = format!(
        r#"
apiVersion: checkrein/v1
kind: Policy
tools:
  look:
    description: Looks.
    effect: read
    weight: {weight}
    rate_limit: {{ rate: 5/s, burst: {burst} }}
    http: {{ method: GET, url: "https://look.example/v1/now" }}
    schema: {{ type: object, properties: {{ id: {{ type: string }} }} }}
agents:
  default: {{ allow: [look] }}
"#
    );
    let examined = examine_text(
        policy.as_bytes(),
        "p.yaml",
        std::path::Path::new("."),
        LoadOptions::default(),
    );
    let codes: Vec<&str> = examined.problems.iter().map(|problem| problem.code).collect();
    let insufficient = weight > u64::from(burst);
    assert_eq!(codes.contains(&"CR2016"), insufficient, "weight {weight}: {codes:?}");
    assert_eq!(examined.snapshot.is_none(), insufficient, "{codes:?}");
}

fn check(step: &Step, outcome: &Outcome, wait_ms: f64) {
    let refused = denied(outcome);
    assert_eq!(refused.code, DenyCode::RateLimited);
    let told = refused.retry_after.expect("a time");
    assert_eq!(told.as_millis(), (wait_ms.ceil() as u128).max(1), "{}", step.0);
    let Detail::Limited { by: LimitedBy::Gateway, rate: Some(rate) } = &refused.detail else {
        panic!("{refused:?}")
    };
    assert!(told >= rate.reset, "Retry-After is never earlier than `t`");
}

pub(super) async fn gcra(vector: Vector) {
    let interval = Duration::from_millis(vector.number("replenish_1_per_ms"));
    let burst = u32::try_from(vector.number("burst")).expect("small");
    let steps = vector.steps(&["t_ms", "n", "decision", "remaining", "wait_ms", "capacity"]);
    let weights: BTreeSet<u64> =
        steps.iter().map(|step| step.number("n")).filter(|n| *n <= u64::from(burst)).collect();
    let rig = weighing(&weights, interval, burst);
    let start = Instant::now();
    for step in &steps {
        until(start, Duration::from_millis(step.number("t_ms"))).await;
        let weight = step.number("n");
        if step.text("decision") == "insufficient" {
            assert_eq!(step.number("capacity"), u64::from(burst));
            refused_at_load(weight, burst);
            continue;
        }
        refused_at_load(weight, burst);
        let outcome = rig.ask(&format!("w{weight}")).await;
        match step.text("decision") {
            "allow" => {
                let left = outcome.expect("allowed").notes.rate.expect("a bucket");
                assert_eq!(u64::from(left.remaining), step.number("remaining"), "{}", step.0);
            }
            "deny" => check(step, &outcome, step.float("wait_ms")),
            other => panic!("no driver for the decision {other}"),
        }
    }
}

pub(super) async fn rounding(vector: Vector) {
    let interval = Duration::from_nanos(vector.number("replenish_ns"));
    let burst = u32::try_from(vector.number("burst")).expect("small");
    let rig = weighing(&BTreeSet::from([1]), interval, burst);
    let start = Instant::now();
    for _ in 0..burst {
        assert!(rig.ask("w1").await.is_ok());
    }
    let known = ["t_ms", "decision", "wait_ms", "retry_after_ms", "retry_after_header"];
    for step in vector.steps(&known) {
        until(start, Duration::from_millis(step.number("t_ms"))).await;
        let outcome = rig.ask("w1").await;
        if step.text("decision") == "allow" {
            assert!(outcome.is_ok(), "{outcome:?}");
            continue;
        }
        check(&step, &outcome, step.float("wait_ms"));
        let told = denied(&outcome).retry_after.expect("a time");
        assert_eq!(told.as_millis(), u128::from(step.number("retry_after_ms")));
        let header = told.as_millis().div_ceil(1000).to_string();
        assert_eq!(header, step.text("retry_after_header"));
    }
}

/// The facts behind the fields: what `RateLimit-Policy`, `RateLimit` and `Retry-After` are written from. How they
/// are spelt is the front ends' part; a tool's own fields are not read at all.
pub(super) async fn headers(vector: Vector) {
    let known = ["policy", "ratelimit", "rule", "problem", "status", "member"];
    let steps = vector.steps(&known);
    let rig = weighing(&BTreeSet::from([1]), Duration::from_millis(600), 100);
    let mut seen = Vec::new();
    for step in &steps {
        if step.has("policy") {
            assert!(step.text("policy").starts_with(r#""burst";q=100;w=60"#));
            let rate = rig.ask("w1").await.expect("allowed").notes.rate.expect("a bucket");
            assert_eq!((rate.limit, rate.window.as_secs(), rate.remaining), (100, 60, 99));
            seen.push("policy");
        } else if step.has("ratelimit") {
            let mut last = None;
            for _ in 0..49 {
                last = rig.ask("w1").await.expect("allowed").notes.rate;
            }
            let rate = last.expect("a bucket");
            assert!(step.text("ratelimit").ends_with(";r=50;t=30"));
            assert_eq!((rate.remaining, rate.reset.as_secs()), (50, 30));
            seen.push("ratelimit");
        } else if step.has("rule") {
            while rig.ask("w1").await.is_ok() {}
            let outcome = rig.ask("w1").await;
            check(step, &outcome, 600.0);
            seen.push("rule");
        } else {
            assert_eq!(step.number("status"), u64::from(DenyCode::RateLimited.http()));
            seen.push("status");
        }
    }
    assert_eq!(seen, ["policy", "ratelimit", "rule", "rule", "status"]);
}
