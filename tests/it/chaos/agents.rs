//! Many agents that want many writes, each several times: at once, again later, under old and new call ids and runs,
//! through every front end; some hang up. What they are told is kept, with the times of asking and hearing.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::{Form, http};

/// Every call ends long before; a gateway that is being started again may take a while to come.
const ANSWER: Duration = Duration::from_secs(20);
const GATEWAY: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Front {
    ToolsApi,
    Batch(Form),
}

impl Front {
    pub(super) const ALL: [Front; 4] = [
        Front::ToolsApi,
        Front::Batch(Form::OpenaiChat),
        Front::Batch(Form::OpenaiResponses),
        Front::Batch(Form::AnthropicMessages),
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Front::ToolsApi => "tools API",
            Front::Batch(Form::OpenaiChat) => "OpenAI chat",
            Front::Batch(Form::OpenaiResponses) => "OpenAI responses",
            Front::Batch(Form::AnthropicMessages) => "Anthropic messages",
        }
    }
}

/// One call as an agent saw it.
#[derive(Debug, Clone)]
pub(super) struct Told {
    pub(super) order: String,
    /// Names the call; the tool sees it too.
    pub(super) note: String,
    pub(super) front: Front,
    pub(super) hung_up: bool,
    pub(super) begun: Instant,
    pub(super) heard: Instant,
    /// `None`: the connection broke, or the agent hung up.
    pub(super) answer: Option<Value>,
    /// Asked for at the end, when nothing failed any more.
    pub(super) last: bool,
}

/// One request of an agent: a call, or a message with several.
#[derive(Debug, Clone)]
struct Ask {
    front: Front,
    run: String,
    /// (order, note); the note is the call id.
    calls: Vec<(String, String)>,
    hang_up: Option<Duration>,
    /// An identical message sent again gets the answers of its first time, which are true of that time.
    since: Option<Instant>,
    last: bool,
}

#[derive(Debug)]
pub(super) struct Agents {
    seed: u64,
    writes: usize,
    gateway: watch::Sender<Option<SocketAddr>>,
    next: AtomicUsize,
    done: AtomicUsize,
    names: AtomicUsize,
    asking: AtomicUsize,
    told: Mutex<Vec<Told>>,
}

/// A number that hangs on every byte (FNV-1a, then stirred).
pub(super) fn mixed(seed: u64, bytes: &[u8]) -> u64 {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64 ^ seed, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash ^ (hash >> 29)
}

impl Agents {
    pub(super) fn new(seed: u64, writes: usize, gateway: SocketAddr) -> Self {
        Self {
            seed,
            writes,
            gateway: watch::Sender::new(Some(gateway)),
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            names: AtomicUsize::new(0),
            asking: AtomicUsize::new(0),
            told: Mutex::default(),
        }
    }

    /// Where the gateway is now; `None` = it is being started.
    pub(super) fn gateway(&self, address: Option<SocketAddr>) {
        self.gateway.send_replace(address);
    }
    pub(super) fn done(&self) -> usize {
        self.done.load(Ordering::SeqCst)
    }
    /// Requests that have been sent and not answered.
    pub(super) fn in_flight(&self) -> usize {
        self.asking.load(Ordering::SeqCst)
    }
    pub(super) fn told(&self) -> Vec<Told> {
        self.told.lock().expect("no agent fails with it open").clone()
    }

    /// Takes one order after another until all are asked for.
    pub(super) async fn work(self: Arc<Self>) {
        loop {
            let at = self.next.fetch_add(1, Ordering::SeqCst);
            if at >= self.writes {
                return;
            }
            let mut draw = fastrand::Rng::with_seed(mixed(self.seed, &at.to_le_bytes()));
            self.want(at, &mut draw).await;
            self.done.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// One order: from one to three sides at once, and in a third of all cases an older one again afterwards.
    async fn want(self: &Arc<Self>, at: usize, draw: &mut fastrand::Rng) {
        let mut sides = JoinSet::new();
        for _ in 0..draw.usize(1..=3) {
            let mut orders = vec![at];
            if draw.u8(..5) == 0 {
                let other = draw.usize(..=at);
                orders.extend((other != at).then_some(other));
            }
            let (again, ask) = (draw.bool(), self.asking(&orders, draw));
            let agents = self.clone();
            sides.spawn(async move {
                let now = Instant::now();
                if !agents.ask(&ask).await && again {
                    // The same call, as after a broken connection.
                    let since = (ask.front != Front::ToolsApi).then_some(now);
                    agents.ask(&Ask { hang_up: None, since, ..ask }).await;
                }
            });
        }
        while let Some(side) = sides.join_next().await {
            side.expect("an agent's own checks hold");
        }
        if draw.u8(..3) == 0 {
            let older = [draw.usize(..=at)];
            let ask = self.asking(&older, draw);
            self.ask(&ask).await;
        }
    }

    /// Under new ids, in a new run.
    fn asking(&self, orders: &[usize], draw: &mut fastrand::Rng) -> Ask {
        let name = self.names.fetch_add(1, Ordering::SeqCst);
        let front = match orders.len() {
            1 => Front::ALL[draw.usize(..4)],
            _ => Front::ALL[draw.usize(1..4)],
        };
        let calls =
            orders.iter().map(|order| (format!("order-{order}"), format!("c{name}-{order}")));
        let hang_up = (draw.u8(..12) == 0).then(|| Duration::from_micros(draw.u64(..120_000)));
        Ask {
            front,
            run: format!("run-{name}"),
            calls: calls.collect(),
            hang_up,
            since: None,
            last: false,
        }
    }

    /// Every order once more, under new ids, when nothing fails any more.
    pub(super) async fn ask_for_all_again(self: Arc<Self>) {
        let all = (0..self.writes).collect();
        self.ask_again_for(all).await;
    }

    /// Those that were told as not known, when the last late answers have come too: a busy machine makes some.
    pub(super) async fn ask_for_the_unknown_again(self: Arc<Self>) {
        let told = self.told();
        let open = told.iter().filter(|told| told.last && !told.ok());
        let open = open.map(|told| told.order.trim_start_matches("order-").parse());
        self.ask_again_for(open.map(|number| number.expect("orders have numbers")).collect()).await;
    }

    async fn ask_again_for(self: Arc<Self>, orders: Vec<usize>) {
        let orders = Arc::new(orders);
        let mut sides = JoinSet::new();
        for side in 0..super::WORKERS {
            let (agents, orders) = (self.clone(), orders.clone());
            sides.spawn(async move {
                for &at in orders.iter().skip(side).step_by(super::WORKERS) {
                    let mut draw = fastrand::Rng::with_seed(agents.seed ^ at as u64);
                    let ask = agents.asking(&[at], &mut draw);
                    let answered = agents.ask(&Ask { hang_up: None, last: true, ..ask }).await;
                    assert!(answered, "order-{at}: no answer at the end");
                }
            });
        }
        while let Some(side) = sides.join_next().await {
            side.expect("an agent's own checks hold");
        }
    }

    /// True when a whole answer came.
    async fn ask(&self, ask: &Ask) -> bool {
        let mut gateway = self.gateway.subscribe();
        let there = tokio::time::timeout(GATEWAY, gateway.wait_for(Option::is_some)).await;
        let address = there.expect("the gateway comes back").expect("we hold it").expect("some");
        let begun = ask.since.unwrap_or_else(Instant::now);
        self.asking.fetch_add(1, Ordering::SeqCst);
        let answered = tokio::time::timeout(ANSWER, exchange(address, ask)).await;
        self.asking.fetch_sub(1, Ordering::SeqCst);
        let body = answered.unwrap_or_else(|_| panic!("no end: {ask:?}"));
        let heard = Instant::now();
        let answers = body.as_ref().map(|body| answers(ask, body));
        let mut told = self.told.lock().expect("no agent fails with it open");
        for (at, (order, note)) in ask.calls.iter().cloned().enumerate() {
            let answer = answers.as_ref().map(|answers| answers[at].clone());
            let (front, hung_up) = (ask.front, ask.hang_up.is_some());
            told.push(Told { order, note, front, hung_up, begun, heard, answer, last: ask.last });
        }
        body.is_some()
    }
}

/// Every eighth order is placed with the tool that is busy at times.
fn tool(order: &str) -> &'static str {
    let number: usize = order.trim_start_matches("order-").parse().expect("orders have numbers");
    if number % 8 == 7 { "place_order" } else { "create_order" }
}

fn request(ask: &Ask) -> Vec<u8> {
    let arguments =
        |(order, note): &(String, String)| format!(r#"{{"order_ref":"{order}","note":"{note}"}}"#);
    match ask.front {
        Front::ToolsApi => {
            let headers = [("checkrein-run", &*ask.run), ("checkrein-call-id", &ask.calls[0].1)];
            let body = arguments(&ask.calls[0]);
            http::bytes_of(
                "POST",
                &format!("/v1/tools/{}", tool(&ask.calls[0].0)),
                &headers,
                body.as_bytes(),
            )
        }
        Front::Batch(form) => {
            let texts: Vec<String> = ask.calls.iter().map(arguments).collect();
            let calls: Vec<(&str, &str, &str)> = ask
                .calls
                .iter()
                .zip(&texts)
                .map(|((order, note), text)| (&**note, tool(order), &**text))
                .collect();
            let headers = [("checkrein-run", &*ask.run)];
            http::bytes_of("POST", form.path(), &headers, form.message("", &calls).as_bytes())
        }
    }
}

/// The answer objects, in the order of the calls.
fn answers(ask: &Ask, body: &Value) -> Vec<Value> {
    let Front::Batch(form) = ask.front else { return vec![body.clone()] };
    let found = form.answers(body);
    let ids: Vec<&String> = found.iter().map(|(id, _)| id).collect();
    let asked: Vec<&String> = ask.calls.iter().map(|(_, note)| note).collect();
    assert_eq!(ids, asked, "{body}");
    found.into_iter().map(|(_, answer)| answer).collect()
}

/// `None`: no connection, it broke before the answer was whole, or the agent hung up.
async fn exchange(address: SocketAddr, ask: &Ask) -> Option<Value> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(&request(ask)).await.ok()?;
    if let Some(after) = ask.hang_up {
        tokio::time::sleep(after).await; // a moment drawn by chance
        return None;
    }
    let mut bytes = Vec::new();
    // Reset or closed: what counts is whether a whole answer came.
    drop(stream.read_to_end(&mut bytes).await);
    bytes.windows(4).any(|four| four == b"\r\n\r\n").then_some(())?;
    serde_json::from_slice(&http::parse(&bytes).body).ok()
}
