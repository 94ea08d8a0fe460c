//! A chaos run: the real binary on a real store, a tool that fails in every way, agents that hang up, SIGKILL after
//! SIGKILL. Then a checker that reads the tool's log and the ledger file alone says whether each write was executed at
//! most once and is on record as it was; what the agents were told is held against those two.
//!
//! The short form runs in CI; `CHECKREIN_CHAOS_WRITES` and `CHECKREIN_CHAOS_KILLS` make it longer, and
//! `CHECKREIN_CHAOS_SEED` draws the same faults again (how threads and signals interleave no seed can fix).

mod agents;
mod checker;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;

use crate::support::process::filled;
use crate::support::tool::Request;
use crate::support::{Process, Reply, ScriptedTool, wait_for};
use agents::Agents;
use checker::Evidence;

const SOON: Duration = Duration::from_secs(30);
/// A whole run may take this long for each kill, and for each hundred writes, before it counts as stuck.
const STUCK: Duration = Duration::from_secs(60);
const WORKERS: usize = 16;

/// Nothing in it hides writes: no circuit, no budget, no limit that this run could meet; short times. A 429 keeps
/// everybody from a tool for a second, so that only the lesser one of two answers it.
const POLICY: &str = r#"
apiVersion: checkrein/v1
kind: Policy
name: chaos
profiles:
  short:
    extends: internal_rpc
    timeout: { connect: 200ms, first_byte: 200ms, total: 400ms }
    breaker: { mode: disabled }
defaults: { profile: short }
limits: { bulkhead: 4096 }
runs:
  default:
    wall_clock: 1h
    max_live: 100000
    rounds: unlimited
    calls: unlimited
    failures: unlimited
    argument_bytes: unlimited
    result_bytes: unlimited
upstreams:
  shop: { base_url: "URL", addresses: [loopback], bulkhead: 4096, breaker: { mode: disabled } }
tools:
  create_order:
    description: Create an order.
    effect: write
    bulkhead: 4096
    http: { upstream: shop, method: POST, path: /create }
    volatile: [/note]
    schema:
      type: object
      required: [order_ref, note]
      properties:
        order_ref: { type: string, minLength: 1, maxLength: 80 }
        note: { type: string, maxLength: 80 }
    write: { fingerprint: [/order_ref], drain: 500ms }
  place_order:
    description: Place an order; busy at times.
    effect: write
    bulkhead: 4096
    http: { upstream: shop, method: POST, path: /place }
    volatile: [/note]
    schema:
      type: object
      required: [order_ref, note]
      properties:
        order_ref: { type: string, minLength: 1, maxLength: 80 }
        note: { type: string, maxLength: 80 }
    write: { fingerprint: [/order_ref], drain: 500ms }
agents:
  default: { allow: [create_order, place_order] }
"#;

/// How much of it.
#[derive(Debug, Clone, Copy)]
struct Plan {
    seed: u64,
    writes: usize,
    kills: usize,
}

impl Plan {
    fn from_environment() -> Self {
        let number = |name: &str| -> Option<u64> {
            let text = std::env::var(name).ok()?;
            Some(text.parse().unwrap_or_else(|_| panic!("{name}: {text:?} is no whole number")))
        };
        let count = |name: &str, default: usize| {
            number(name).map_or(default, |n| usize::try_from(n).expect("a count"))
        };
        Self {
            seed: number("CHECKREIN_CHAOS_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32)),
            writes: count("CHECKREIN_CHAOS_WRITES", 500),
            kills: count("CHECKREIN_CHAOS_KILLS", 10),
        }
    }

    fn limit(self) -> Duration {
        STUCK * u32::try_from(self.kills + self.writes / 100 + 1).expect("a count")
    }
}

/// Statuses that a write may have happened behind; 501 and 505 say that it was not understood.
const MAYBE: [u16; 4] = [500, 502, 503, 504];

/// What the tool does with a request: drawn from the seed and the note that names the call, so that it does not hang
/// on which call came first.
fn fault(seed: u64, request: &Request) -> (&'static str, Reply) {
    let mut draw = fastrand::Rng::with_seed(agents::mixed(seed, &request.body));
    match draw.u32(..100) {
        0..56 => ("ok", Reply::Ok),
        56..60 => ("reset before the effect", Reply::Reset),
        60..64 => ("reset after the effect", Reply::ApplyThenReset),
        64..68 => ("applied, then a stall", Reply::ApplyThenHang),
        68..72 => ("applied, the reply lost", Reply::ApplyThenClose),
        72..76 => ("applied, then 5xx", Reply::ApplyThenStatus(MAYBE[draw.usize(..MAYBE.len())])),
        // Few orders go there, and a short run is to meet it too.
        76..90 if request.target == "/place" => ("429", Reply::Status(429)),
        76..80 => ("503, not applied", Reply::Status(503)),
        80..84 => ("applied, the body cut", Reply::Cut { apply: true }),
        84..90 => ("425", Reply::Status(425)),
        90..92 => ("closed before the effect", Reply::Close),
        92..94 => ("a stall before the effect", Reply::Hang),
        94..97 => ("applied in time", Reply::ApplyAfter(Duration::from_millis(draw.u64(10..150)))),
        97.. => ("applied too late", Reply::ApplyAfter(Duration::from_millis(draw.u64(220..450)))),
    }
}

async fn start(tool: &ScriptedTool, state: &Path) -> Process {
    let folder = tempfile::tempdir().expect("a folder");
    let policy = folder.path().join("policy.yaml");
    let text = POLICY.trim_start().replace("URL", &tool.url());
    std::fs::write(&policy, filled(folder.path(), &text)).expect("written");
    let state = state.display().to_string();
    let more = ["--state", &state, "--policy-poll", "1h", "--drain-timeout", "5s"];
    Process::start_at(folder, &policy, &more, &[]).await
}

/// Waits until the agents have come so far; `at` of `of` equal parts.
async fn progress(agents: &Agents, plan: Plan, at: usize, of: usize) {
    let wanted = plan.writes * at / (of + 1);
    wait_for("the agents' progress", plan.limit(), async || agents.done() >= wanted).await;
}

/// What was done to the gateway and to the tool, counted as it was done.
#[derive(Debug, Default, Clone, Copy)]
struct Done {
    /// Ends by signal 9, as the system reports them.
    kills: usize,
    /// Of these, with calls in flight.
    kills_in_flight: usize,
    tool_restarts: usize,
}

/// SIGKILL at random moments, and a start on what is left, as often as planned.
async fn kill_and_restart(
    plan: Plan,
    tool: &ScriptedTool,
    state: &Path,
    agents: &Agents,
    mut process: Process,
) -> (Process, Done) {
    let mut done = Done::default();
    let mut draw = fastrand::Rng::with_seed(plan.seed ^ 0x4b49_4c4c);
    for at in 1..=plan.kills {
        progress(agents, plan, at, plan.kills).await;
        // A random moment is the point here; nothing is waited for.
        tokio::time::sleep(Duration::from_micros(draw.u64(..40_000))).await;
        let in_flight = agents.in_flight();
        process.signal("KILL");
        agents.gateway(None);
        let by_signal = process.exit().await.signal() == Some(9);
        done.kills += usize::from(by_signal);
        done.kills_in_flight += usize::from(by_signal && in_flight > 0);
        process = start(tool, state).await;
        agents.gateway(Some(process.data));
    }
    (process, done)
}

/// The tool goes away with all it has at hand, and comes back, half as often as the gateway is killed.
async fn restart_the_tool(plan: Plan, tool: &ScriptedTool, agents: &Agents) -> usize {
    let mut draw = fastrand::Rng::with_seed(plan.seed ^ 0x544f_4f4c);
    let times = plan.kills / 2;
    for at in 1..=times {
        progress(agents, plan, at, times).await;
        tool.stop();
        tokio::time::sleep(Duration::from_millis(draw.u64(5..60))).await; // an outage lasts
        tool.start_again().await;
    }
    times
}

/// The whole of it, and what is left to look at.
async fn run(plan: Plan) -> Evidence {
    let tool = ScriptedTool::start().await;
    let faults = Arc::new(Mutex::new(Vec::new()));
    let drawn = faults.clone();
    tool.draw(move |request| {
        let (name, reply) = fault(plan.seed, request);
        drawn.lock().expect("nobody fails with it open").push(name);
        reply
    });
    let state = tempfile::tempdir().expect("a folder");
    let process = start(&tool, state.path()).await;
    let agents = Arc::new(Agents::new(plan.seed, plan.writes, process.data));
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(agents.clone().work());
    }
    let killed = kill_and_restart(plan, &tool, state.path(), &agents, process);
    let ((process, mut done), restarts) =
        tokio::join!(killed, restart_the_tool(plan, &tool, &agents));
    done.tool_restarts = restarts;
    while let Some(ended) = workers.join_next().await {
        ended.expect("an agent's own checks hold");
    }
    // One last kill; what the tool still has at hand it does.
    process.signal("KILL");
    drop(process);
    wait_for("the tool's last work", SOON, async || tool.open_connections() == 0).await;
    tool.draw(|_| Reply::Ok);
    let mut process = start(&tool, state.path()).await;
    agents.gateway(Some(process.data));
    agents.clone().ask_for_all_again().await;
    wait_for("the last late answers", SOON, async || tool.open_connections() == 0).await;
    agents.clone().ask_for_the_unknown_again().await;
    process.signal("TERM");
    assert!(process.exit().await.success(), "{}", process.log());
    Evidence {
        writes: plan.writes,
        requests: tool.requests(),
        applied: tool.applied(),
        told: agents.told(),
        faults: faults.lock().expect("nobody fails with it open").clone(),
        done,
        rows: checker::rows(&state.path().join("store.db")),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_chaos_makes_a_write_happen_twice_or_be_told_wrongly() {
    let plan = Plan::from_environment();
    println!("{plan:?}");
    let begun = tokio::time::Instant::now();
    let evidence = run(plan).await;
    println!("{} s; {}", begun.elapsed().as_secs(), evidence.summary());
    let wrong = evidence.violations();
    assert!(wrong.is_empty(), "{plan:?}: {} faults:\n{}", wrong.len(), wrong.join("\n"));
    let missing = evidence.not_met();
    assert!(missing.is_empty(), "{plan:?}: never met, so nothing is shown of it: {missing:?}");
    assert!(evidence.done.kills >= plan.kills, "{plan:?}: {:?}", evidence.done);
}
