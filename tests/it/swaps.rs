//! A thousand policy swaps under load: no call lost, no batch under two policies, memory settles.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{Fixture, Form, Process, ScriptedTool, wait_for};

const SWAPS: usize = 1000;
const SOON: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_swaps_under_load_lose_no_call_and_mix_no_policies() {
    let tool = ScriptedTool::start().await;
    // Two policies that send to different paths, so that the tool sees which one governed a call.
    let budgets = "calls: unlimited, rounds: unlimited, argument_bytes: unlimited, result_bytes: unlimited, fuse: { same_failures: 100000, same_results: 100000 }";
    let policy = |version: &str| {
        Fixture::new()
            .with("wall_clock: 10s", &format!("wall_clock: 10m, {budgets}"))
            .with("path: \"/orders/{order_id}\" }\n    schema:\n      type: object\n      required: [order_id]\n      properties: { order_id: { type: string, minLength: 1, maxLength: 80 } }\n  list_regions", &format!("path: \"/{version}/{{order_id}}\" }}\n    schema:\n      type: object\n      required: [order_id]\n      properties: {{ order_id: {{ type: string, minLength: 1, maxLength: 80 }} }}\n  list_regions"))
            .text(&tool.url())
    };
    let (one, two) = (policy("one"), policy("two"));
    let process = Process::start(&one, &["--policy-poll", "1h"]).await;
    let stop = Arc::new(AtomicBool::new(false));
    let batches = Arc::new(AtomicUsize::new(0));
    let load: Vec<_> = (0..4)
        .map(|worker| {
            let agent = process.agent(Form::ALL[worker % 3], &format!("load-{worker}"));
            let (stop, batches) = (stop.clone(), batches.clone());
            tokio::spawn(async move {
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    n += 1;
                    let orders: Vec<String> =
                        (0..4).map(|i| format!(r#"{{"order_id":"w{worker}-b{n}-{i}"}}"#)).collect();
                    let ids: Vec<String> = (0..4).map(|i| format!("c{n}-{i}")).collect();
                    let calls: Vec<(&str, &str, &str)> = ids
                        .iter()
                        .zip(&orders)
                        .map(|(id, o)| (id.as_str(), "lookup_order", o.as_str()))
                        .collect();
                    let turned = agent.ask(&calls).await;
                    assert_eq!(turned.ids(), ids, "no call is lost");
                    for (_, answer) in &turned.answers {
                        assert_eq!(answer["ok"], true, "{answer}");
                    }
                    batches.fetch_add(1, Ordering::Relaxed);
                    // An agent thinks between its turns; the load is bounded.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            })
        })
        .collect();
    let reloads = async || process.metrics().await.sum("checkrein_policy_reloads_total", &[]);
    let mut settled = 0;
    for n in 0..SWAPS {
        let before = reloads().await;
        match n % 3 {
            0 => process.swap(&two),
            1 => process.swap(&one[..one.len() / 2]),
            _ => process.swap(&one),
        }
        process.signal("HUP");
        wait_for("the reload", SOON, async || reloads().await > before).await;
        if n == SWAPS / 2 {
            settled = process.resident();
        }
    }
    stop.store(true, Ordering::Relaxed);
    for each in load {
        each.await.expect("no call lost");
    }
    let grown = process.resident().saturating_sub(settled);
    assert!(grown < 12 << 20, "{grown} bytes more after another {} swaps", SWAPS / 2);
    // Per batch, every call went to one and the same path.
    let mut governed: std::collections::HashMap<String, std::collections::HashSet<String>> =
        Default::default();
    for request in tool.requests() {
        let mut parts = request.target.trim_start_matches('/').split('/');
        if let (Some(version), Some(id)) = (parts.next(), parts.next()) {
            let batch = id.rsplit_once('-').expect("made above").0;
            governed.entry(batch.to_owned()).or_default().insert(version.to_owned());
        }
    }
    assert_eq!(governed.len(), batches.load(Ordering::Relaxed));
    assert!(governed.values().all(|versions| versions.len() == 1), "no batch under two policies");
    let versions: std::collections::HashSet<_> = governed.into_values().flatten().collect();
    assert_eq!(versions.len(), 2, "both policies governed some");
}
