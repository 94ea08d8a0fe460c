//! A tool that does as it is told, and the product's own stacks in front of it, on a paused clock.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use checkrein::call::code::FailCode;
use checkrein::call::ended::ended;
use checkrein::call::{
    AgentId, Arguments, CallError, CallId, Class, Content, Delivery, Denied, Digest, Effect,
    ErrorClass, Evidence, Failed, FrontEnd, Notes, Outcome, Payload, Phase, PolicyName, RunId,
    Source, ToolCall, ToolName, ToolResult, Trace, UpstreamName, Verdict, judge,
};
use checkrein::layers::stack::{
    CallService, Gates, attempt_stack, query_stack, read_stack, refusal_stack, write_stack_asking,
};
use checkrein::layers::state::{ProbeWay, State};
use checkrein::ledger::Ledger;
use checkrein::policy::schema::Schema;
use checkrein::policy::snapshot::*;
use checkrein::run::{Runs, Wanted};
use checkrein::strict_json::Limits;
use checkrein::telemetry::metrics::{Labels, Metrics, ToolLabel};
use checkrein::telemetry::record::Recorder;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::{Service, ServiceExt};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const S: Duration = Duration::from_secs(1);

// ── the scripted tool ────────────────────────────────────────────────────────────────────────────────────────────

/// What the tool does with one attempt.
#[derive(Debug, Clone)]
pub(crate) enum Does {
    /// Answers after a while.
    Answer(Duration, &'static str),
    /// Takes the request, fails after a while.
    Fail(Duration, Failed),
    /// Cannot be reached.
    Unreachable,
    /// Never lets the connection be made.
    ConnectStalls,
    /// Takes the request and never answers.
    Silent,
    /// One byte every 100 ms, for ever.
    Drip,
    /// The head comes, and tells what the attempt is without its body; the body comes after a while.
    Stall(Failed, Duration, Box<Result<&'static str, Failed>>),
    /// Our own code fails after the request is out.
    Panic,
    /// Our own code fails before it is.
    PanicBeforeSend,
}

/// The innermost service: marks phases and asks the send gate as a back end must.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scripted {
    script: Arc<Mutex<VecDeque<Does>>>,
    always: Arc<Mutex<Option<Does>>>,
    /// Requests that reached the tool.
    hits: Arc<AtomicU32>,
    keys: Arc<Mutex<Vec<String>>>,
    running: Arc<AtomicU32>,
}

impl Scripted {
    pub(crate) fn then(&self, does: Does) -> &Self {
        self.script.lock().expect("no holder panics").push_back(does);
        self
    }
    pub(crate) fn always(&self, does: Does) {
        *self.always.lock().expect("no holder panics") = Some(does);
    }
    /// Forgets what was to come.
    pub(crate) fn forget(&self) {
        self.script.lock().expect("no holder panics").clear();
    }
    pub(crate) fn hits(&self) -> u32 {
        self.hits.load(Ordering::SeqCst)
    }
    /// The keys that came with them, "" for none.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.keys.lock().expect("no holder panics").clone()
    }
    pub(crate) fn running(&self) -> u32 {
        self.running.load(Ordering::SeqCst)
    }
    fn next(&self) -> Does {
        let next = self.script.lock().expect("no holder panics").pop_front();
        next.or_else(|| self.always.lock().expect("no holder panics").clone())
            .unwrap_or(Does::Answer(Duration::ZERO, r#"{"ok":1}"#))
    }

    async fn exchange(self, call: ToolCall) -> Result<ToolResult, Failed> {
        let does = self.next();
        let progress = call.progress.clone().expect("timeout stamps it");
        match does {
            Does::Unreachable => return Err(unreachable_tool()),
            Does::ConnectStalls => std::future::pending().await,
            Does::PanicBeforeSend => panic!("planted, before the send gate"),
            Does::Answer(..)
            | Does::Fail(..)
            | Does::Silent
            | Does::Drip
            | Does::Stall(..)
            | Does::Panic => {}
        }
        progress.mark(Phase::Connected);
        if let Some(gate) = &call.send_gate {
            gate.open().await?;
        }
        progress.mark(Phase::Sending);
        self.hits.fetch_add(1, Ordering::SeqCst);
        let key = call.sent_key.as_ref().map_or("", |key| key.as_str()).to_owned();
        self.keys.lock().expect("no holder panics").push(key);
        self.running.fetch_add(1, Ordering::SeqCst);
        let _running = Running(self.running.clone());
        progress.mark(Phase::Written);
        match does {
            Does::Answer(after, body) => {
                pass(after).await;
                progress.mark(Phase::FirstByte);
                Ok(answer(body))
            }
            Does::Fail(after, failed) => {
                pass(after).await;
                Err(failed)
            }
            Does::Drip => {
                progress.mark(Phase::FirstByte);
                loop {
                    pass(100 * MS).await;
                    progress.mark(Phase::Progress);
                }
            }
            Does::Stall(if_cut, after, end) => {
                progress.mark(Phase::FirstByte);
                progress.head_came(move || if_cut.clone());
                pass(after).await;
                end.map(answer)
            }
            Does::Panic => panic!("planted, after the send gate"),
            Does::Silent | Does::ConnectStalls | Does::Unreachable | Does::PanicBeforeSend => {
                std::future::pending().await
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the scripted tool takes its time")]
async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

struct Running(Arc<AtomicU32>);
impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Service<ToolCall> for Scripted {
    type Response = ToolResult;
    type Error = Failed;
    type Future = Pin<Box<dyn Future<Output = Result<ToolResult, Failed>> + Send>>;
    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        Poll::Ready(Ok(()))
    }
    fn call(&mut self, call: ToolCall) -> Self::Future {
        Box::pin(self.clone().exchange(call))
    }
}

pub(crate) fn answer(body: &'static str) -> ToolResult {
    ToolResult {
        head: None,
        content: Content {
            bytes: Bytes::from_static(body.as_bytes()),
            form: checkrein::call::Form::Json,
        },
        source: Source::Tool,
        notes: Notes::default(),
    }
}

/// A failure as the classifier makes it of a status.
pub(crate) fn status(status: u16) -> Failed {
    let (code, class, delivery, health, error_class) = match status {
        429 => (
            FailCode::RateLimited,
            Class::Transient,
            Delivery::Refused,
            Verdict::Neutral,
            ErrorClass::Http429,
        ),
        400..=499 => (
            FailCode::ToolError,
            Class::Permanent,
            Delivery::Refused,
            Verdict::Neutral,
            ErrorClass::Http4xx,
        ),
        _ => (
            FailCode::ToolUnavailable,
            Class::Transient,
            Delivery::Unknown,
            Verdict::Bad,
            ErrorClass::Http5xx,
        ),
    };
    let mut failed = Failed::new(code, class, delivery, health, format!("the tool said {status}"));
    failed.error_class = error_class;
    failed.status = Some(status);
    failed.cooldown = status == 429;
    failed.evidence = (delivery == Delivery::Refused).then_some(Evidence::Status(status));
    failed
}

pub(crate) fn unreachable_tool() -> Failed {
    let mut failed = Failed::new(
        FailCode::UpstreamUnreachable,
        Class::Transient,
        Delivery::NotSent,
        Verdict::Bad,
        "connection refused",
    );
    failed.error_class = ErrorClass::Connect;
    failed.evidence = Some(Evidence::ConnectFailed);
    failed
}

/// A dead idle connection: provably never ran.
pub(crate) fn never_ran() -> Failed {
    let mut failed = Failed::new(
        FailCode::UpstreamRefusedStream,
        Class::Transient,
        Delivery::NotSent,
        Verdict::Neutral,
        "the connection was dead",
    );
    failed.error_class = ErrorClass::ResetBeforeSend;
    failed.evidence = Some(Evidence::ZeroBytes);
    failed.never_ran = true;
    failed
}

// ── the policy ───────────────────────────────────────────────────────────────────────────────────────────────────

pub(crate) fn tool_name(name: &str) -> ToolName {
    ToolName::new(name).expect("a sound name")
}

pub(crate) fn rate(name: &str, interval: Duration, burst: u32) -> RateLimit {
    RateLimit { name: PolicyName::new(name), interval, burst, shadow: false, per: Per::Tool }
}

pub(crate) fn breaker(consecutive_failures: u32, open_for: Duration) -> BreakerPolicy {
    BreakerPolicy {
        mode: BreakerMode::Enforce,
        count_by_attempt: false,
        consecutive_failures,
        failure_ratio: None,
        slow_ratio: None,
        open_for,
        open_max: open_for,
        open_jitter_permille: 0,
        probe_deadline: 11 * S,
        probe: None,
        probe_every: None,
        is_error_bad: false,
    }
}

/// Retries with the waits 100, 200, 400 … ms, no chance in them.
pub(crate) fn retries(max_retries: u32) -> RetryPolicy {
    RetryPolicy {
        max_retries,
        backoff: BackoffPolicy {
            base: 100 * MS,
            max: 10 * S,
            mode: BackoffMode::None,
            jitter: Duration::ZERO,
        },
        deadline: 60 * S,
    }
}

pub(crate) fn upstream() -> Upstream {
    Upstream {
        name: UpstreamName::new("shop").expect("a sound name"),
        rule: rule(),
        tls: false,
        host: "shop.test".into(),
        port: 80,
        authority: "shop.test".parse().expect("an authority"),
        base_path: "".into(),
        auth: None,
        headers: Vec::new(),
        ca: None,
        addresses: Addresses::default(),
        http_version: checkrein::policy::snapshot::HttpVersion::Auto,
        timeout_header: None,
        follow_same_origin: false,
        bulkhead: 1000,
        rate_limit: None,
        breaker: breaker(1000, 30 * S),
        retry_budget: RetryBudgetPolicy {
            max_milli: 10_000,
            ratio_milli: 100,
            floor_milli_per_s: 200,
        },
        section: Digest::of(b"upstream"),
    }
}

fn rule() -> Rule {
    Rule { path: "tools.x".into(), line: 1 }
}

/// A tool without limits that would show in a test that is not about them.
pub(crate) fn tool(name: &str, effect: Effect) -> Tool {
    let schema = serde_json::json!({
        "type": "object",
        "properties": { "id": { "type": "string" }, "note": { "type": "string" } },
    });
    Tool {
        name: tool_name(name),
        rule: rule(),
        description: "".into(),
        effect,
        upstream: Arc::new(upstream()),
        target: Target::Http(HttpTemplate {
            method: http::Method::POST,
            path: vec![PathPiece::Literal("/x".into())],
            query: Vec::new(),
            body: Vec::new(),
            rest: Rest::Body,
            headers: Vec::new(),
            encoding: BodyEncoding::Json,
        }),
        schema: Schema::compile(&schema, true).expect("a sound schema"),
        timeout: Timeouts { connect: 3 * S, first_byte: 5 * S, idle: 5 * S, total: 10 * S },
        retry: None,
        breaker: breaker(1000, 30 * S),
        rate_limit: None,
        bulkhead: 1000,
        weight: 1,
        fuse: Some(FusePolicy { same_failures: None, same_results: None }),
        volatile: Vec::new(),
        alternatives: Vec::new(),
        cost: None,
        approval: None,
        cache: None,
        result: ResultPolicy {
            json: true,
            expect: None,
            select: Vec::new(),
            redact: Vec::new(),
            max: 1 << 20,
            fail_on_oversize: false,
        },
        write: (effect == Effect::Write).then(|| WritePolicy {
            fingerprint: Vec::new(),
            global_scope: false,
            ttl: Duration::from_secs(86_400),
            identical: Identical::Allow,
            not_executed_on: Vec::new(),
            unknown_on: Vec::new(),
            caller_key_required: false,
            pooled: false,
            drain: 30 * S,
            idempotency: None,
            status_query: None,
        }),
        listed: Arc::default(),
        section: Digest::of(name.as_bytes()),
    }
}

pub(crate) fn agent(tools: &[Tool]) -> Agent {
    let run = Arc::new(RunPolicy {
        name: "default".into(),
        explicit: false,
        max_live: 100,
        wall_clock: Duration::from_secs(1_000_000),
        rounds: None,
        calls: None,
        calls_per_round: None,
        failures: None,
        argument_bytes: None,
        result_bytes: None,
        cost: None,
        idle: Duration::from_secs(1_000_000),
        stall_turns: 3,
        rate_limit: None,
        fuse: FusePolicy { same_failures: Some(3), same_results: Some(5) },
    });
    Agent {
        id: AgentId::new("support").expect("a sound name"),
        rule: rule(),
        tokens: Vec::new(),
        allowed: tools.iter().map(|tool| (tool.name.clone(), rule())).collect(),
        denied: HashMap::new(),
        grants: Default::default(),
        choosable_runs: HashMap::new(),
        run,
        dry_run: false,
        constraints: Default::default(),
        rate_limit: None,
        bulkhead: None,
    }
}

pub(crate) fn snapshot(tools: Vec<Tool>, agent: Agent) -> Snapshot {
    let tools: HashMap<_, _> =
        tools.into_iter().map(|tool| (tool.name.clone(), Arc::new(tool))).collect();
    let upstreams =
        tools.values().map(|tool| (tool.upstream.name.clone(), tool.upstream.clone())).collect();
    Snapshot {
        routes: Arc::default(),
        name: "test".into(),
        revision: Revision("0123456789ab".into()),
        upstreams,
        tools: tools.into_iter().collect(),
        agents: [(agent.id.clone(), Arc::new(agent))].into_iter().collect(),
        proofs: Arc::default(),
        limits: ProcessLimits {
            rate_limit: None,
            bulkhead: 10_000,
            batch_calls: 32,
            batch_parallel: 8,
            request_bytes: 1 << 20,
            argument_bytes: 1 << 16,
            argument_depth: 32,
            response_bytes: 1 << 20,
        },
        on_unlisted: OnUnlisted::Silent,
        egress: Egress { allow_hosts: Vec::new(), min_tls13: false },
        agent_label: true,
        broken_tools: Vec::new(),
        mcp_servers: Default::default(),
        quarantined: Default::default(),
        remarks: Vec::new(),
    }
}

// ── the rig ──────────────────────────────────────────────────────────────────────────────────────────────────────

/// Stacks of one policy, their state, and the tool behind them all.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) gates: Gates,
    pub(crate) backend: Scripted,
    stacks: HashMap<ToolName, CallService>,
    refusals: CallService,
    run: RunId,
    ids: AtomicU32,
}

impl Rig {
    pub(crate) fn of(tools: Vec<Tool>) -> Self {
        let agent = agent(&tools);
        Self::with(snapshot(tools, agent))
    }

    pub(crate) fn one(tool: Tool) -> Self {
        Self::of(vec![tool])
    }

    pub(crate) fn with(snapshot: Snapshot) -> Self {
        let metrics = Metrics::new();
        let gates = Gates {
            snapshot: Arc::new(snapshot),
            state: State::new(metrics.clone()),
            runs: Runs::new(metrics.clone()),
            ledger: Ledger::in_memory(),
            metrics,
            recorder: Recorder::none(),
            tasks: TaskTracker::new(),
            draining: CancellationToken::new(),
        };
        Self::build(gates, Scripted::default())
    }

    fn build(gates: Gates, backend: Scripted) -> Self {
        let snapshot = gates.snapshot.clone();
        let write = |tool: &Arc<Tool>| tool.effect == Effect::Write;
        gates.metrics.load(&Labels {
            policy: "test".into(),
            revision: "0123456789ab".into(),
            tools: snapshot
                .tools
                .values()
                .map(|tool| ToolLabel { name: tool.name.to_string(), write: write(tool) })
                .collect(),
            agents: snapshot.agents.keys().map(ToString::to_string).collect(),
            upstreams: snapshot.upstreams.keys().map(ToString::to_string).collect(),
            agent_label: true,
        });
        gates.state.adopt(&snapshot);
        for tool in snapshot.tools.values() {
            let Some(Probe::Call { tool: read, .. }) = &tool.breaker.probe else { continue };
            let stack = attempt_stack(&snapshot.tools[read], &gates, backend.clone());
            let (read, total) = (read.clone(), 10 * S);
            let way = ProbeWay(Arc::new(move || {
                let call = ToolCall::of_the_gateway(&read, serde_json::Map::new(), total);
                let answer = stack.clone().oneshot(call.expect("sound names"));
                Box::pin(async move { judge::verdict(&ended(&answer.await)) })
            }));
            gates.state.tool(tool).probe.set(way).expect("set once");
        }
        let stacks = snapshot
            .tools
            .iter()
            .map(|(name, tool)| {
                let stack = match tool.effect {
                    Effect::Read => read_stack(tool, &gates, backend.clone()),
                    Effect::Write => {
                        let query =
                            tool.write.as_ref().and_then(|write| write.status_query.as_ref());
                        let query = query.map(|query| {
                            query_stack(&snapshot.tools[&query.tool], &gates, backend.clone())
                        });
                        write_stack_asking(tool, &gates, backend.clone(), query)
                    }
                };
                (name.clone(), stack)
            })
            .collect();
        let agent = snapshot.agents.values().next().expect("one agent");
        let run = RunId::new("run-1").expect("a sound id");
        let entered = gates.runs.enter(agent, &Wanted::Named(run.clone()), Instant::now());
        assert!(entered.is_ok(), "the run opens");
        let refusals = refusal_stack(&gates);
        Self { gates, backend, stacks, refusals, run, ids: AtomicU32::new(0) }
    }

    /// The same process under another policy.
    pub(crate) fn reload(self, snapshot: Snapshot) -> Self {
        let gates = Gates { snapshot: Arc::new(snapshot), ..self.gates };
        Self::build(gates, self.backend)
    }

    pub(crate) fn call(&self, tool: &str, arguments: &str) -> ToolCall {
        let id = self.ids.fetch_add(1, Ordering::SeqCst);
        let arguments = Arguments::parse(arguments.as_bytes(), Limits::arguments(1 << 16, 32));
        ToolCall {
            id: CallId::new(&format!("call-{id}")).expect("a sound id"),
            agent: self.gates.snapshot.agents.keys().next().expect("one agent").clone(),
            run: self.run.clone(),
            home: None,
            tool: ToolName::asked(tool),
            front_end: FrontEnd::ToolsApi,
            payload: match arguments {
                Ok(arguments) => Payload::Arguments(arguments),
                Err(malformed) => Payload::Malformed(malformed),
            },
            caller_key: None,
            side: None,
            began: Instant::now(),
            deadline: Instant::now() + Duration::from_secs(900_000),
            admitted: None,
            single_attempt: false,
            place: None,
            handoff: None,
            identical: false,
            consent: None,
            entry: None,
            send_gate: None,
            sent_key: None,
            progress: None,
            trace: Trace::default(),
        }
    }

    /// Sends a call the way the engine does.
    pub(crate) fn send(&self, call: ToolCall) -> impl Future<Output = Outcome> + Send + use<> {
        let malformed = !matches!(call.payload, Payload::Arguments(_));
        let stack = self.stacks.get(&call.tool).filter(|_| !malformed);
        stack.unwrap_or(&self.refusals).clone().oneshot(call)
    }

    /// A fresh call of a tool, with an argument of its own.
    pub(crate) fn ask(&self, tool: &str) -> impl Future<Output = Outcome> + Send + use<> {
        let id = self.ids.load(Ordering::SeqCst);
        self.send(self.call(tool, &format!(r#"{{"id":"{id}"}}"#)))
    }

    /// The same call, again and again.
    pub(crate) fn ask_same(&self, tool: &str) -> impl Future<Output = Outcome> + Send + use<> {
        self.send(self.call(tool, r#"{"id":"A17"}"#))
    }

    /// Sum over the series of a metric whose labels contain all of `labels`.
    pub(crate) fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let text = self.gates.metrics.encode();
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' '))
            .filter(|(series, _)| {
                let own = series.split('{').next().unwrap_or(series);
                own == name && labels.iter().all(|label| series.contains(label))
            })
            .map(|(_, value)| value.parse::<f64>().expect("a number"))
            .sum()
    }
}

/// The refusal of a call that sent nothing.
pub(crate) fn denied(outcome: &Outcome) -> &Denied {
    match outcome {
        Err(CallError::Denied(denied)) => denied,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

pub(crate) fn failed(outcome: &Outcome) -> &Failed {
    match outcome {
        Err(CallError::Failed(failed)) => failed,
        other => panic!("expected a failure, got {other:?}"),
    }
}

/// The code of an outcome; `ok` for a result.
pub(crate) fn code(outcome: &Outcome) -> &'static str {
    outcome.as_ref().map_or_else(CallError::code, |_| "ok")
}

/// Starts a call and lets it run until it waits.
pub(crate) async fn start(
    ask: impl Future<Output = Outcome> + Send + 'static,
) -> tokio::task::JoinHandle<Outcome> {
    let task = tokio::spawn(ask);
    settle().await;
    task
}

/// Lets every task run that can.
pub(crate) async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

pub(crate) async fn advance(time: Duration) {
    tokio::time::advance(time).await;
    settle().await;
}
