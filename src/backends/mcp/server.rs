//! One MCP server of the policy: its inner sessions, what it offers as last heard, and the task that keeps that fresh.
//! It lives as long as the section of the policy that a connection hangs on stays the same.

mod hearing;
mod shown;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{Notify, broadcast, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::shown::ServerView;
use super::catalog::{self, CrawlError, Drift, Offer};
use super::child::{ChildLink, Nursery, Owner};
use super::door::Door;
use super::drops::Drops;
use super::http::HttpLink;
use super::link::{Inbound, Link, Lost, Met};
use super::pins::Pins;
use super::sessions::{Declares, Held, Key, Sessions};
use super::silent::Silent;
use super::subscriptions::Subscriptions;
use super::watcher::Watcher;
use crate::call::UpstreamName;
use crate::call::side::ServerEvent;
use crate::mcp::messages::{Dropped, List, ServerCapabilities};
use crate::mcp::version::Era;
use crate::policy::bind::{Catalog, repeated};
use crate::policy::snapshot::{McpServer, Reach};

/// One crawl, opening the session included.
const CRAWL: Duration = Duration::from_secs(60);
/// Between crawls of a server that names no time and says nothing.
const RECRAWL: Duration = Duration::from_secs(300);
/// Between crawls that something asked for.
const LEAST: Duration = Duration::from_millis(200);
/// After a crawl that failed: doubled each time, up to the second.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// How long a list waits for a server that has not been heard of since it came into the policy: by HTTP, and as a child
/// process, which takes its time to start. One that is refused or fails is not waited for any longer.
const FIRST_WORD: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(10));
/// How often sessions that nobody uses are looked for.
const SWEEP: Duration = Duration::from_secs(60);

/// What all servers of a process share.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub(super) pins: Arc<dyn Pins>,
    pub(super) program: PathBuf,
    pub(super) drops: Arc<Drops>,
    pub(super) events: broadcast::Sender<ServerEvent>,
    pub(super) changed: watch::Sender<u64>,
    pub(super) runtime: tokio::runtime::Handle,
    pub(super) tasks: tokio_util::task::TaskTracker,
}

/// What is known of what a server offers.
#[derive(Debug, Default)]
struct Heard {
    catalog: Option<Arc<Catalog>>,
    up: bool,
    /// Why the last crawl failed.
    why: Option<String>,
    dropped: Vec<Dropped>,
    drifts: Vec<Drift>,
    met: Option<Arc<Met>>,
}

/// The way to a server.
#[derive(Debug)]
pub(super) enum Reached {
    Http(Door),
    Child(Nursery),
}

#[derive(Debug)]
pub(super) struct Server {
    name: UpstreamName,
    /// Rules of the policy in force; what a connection hangs on is the same in all of them.
    rules: Mutex<Arc<McpServer>>,
    reached: Reached,
    pub(super) sessions: Sessions,
    pub(super) subscriptions: Subscriptions,
    heard: Mutex<Heard>,
    /// The first crawl has ended, well or badly.
    first: CancellationToken,
    began: Instant,
    pinning: Mutex<()>,
    nudged: Notify,
    /// A stream of the gateway's own session broke off, and none has been opened since.
    missed: AtomicBool,
    /// Crawls that have ended.
    crawls: watch::Sender<u64>,
    stop: CancellationToken,
    shared: Shared,
    this: Weak<Server>,
}

impl Server {
    pub(super) fn new(rules: &Arc<McpServer>, reached: Reached, shared: Shared) -> Arc<Self> {
        let server = Arc::new_cyclic(|this| Self {
            name: rules.name.clone(),
            rules: Mutex::new(rules.clone()),
            reached,
            sessions: Sessions::new(children(rules)),
            subscriptions: Subscriptions::default(),
            heard: Mutex::default(),
            first: CancellationToken::new(),
            began: Instant::now(),
            pinning: Mutex::default(),
            nudged: Notify::new(),
            missed: AtomicBool::new(false),
            crawls: watch::Sender::new(0),
            stop: CancellationToken::new(),
            shared,
            this: this.clone(),
        });
        let keeping = server.clone().keep();
        drop(server.shared.tasks.spawn_on(keeping, &server.shared.runtime));
        server
    }

    pub(super) fn name(&self) -> &UpstreamName {
        &self.name
    }

    pub(super) fn rules(&self) -> Arc<McpServer> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn reached(&self) -> &Reached {
        &self.reached
    }

    /// Another policy in which the section is the same. Pins may be judged by other rules now.
    pub(super) fn adopt(&self, rules: &Arc<McpServer>) {
        let before = {
            let mut current = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *current, rules.clone())
        };
        if before.pin != rules.pin || before.on_drift != rules.on_drift {
            self.nudge();
        }
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn catalog(&self) -> Option<Arc<Catalog>> {
        self.heard().catalog.clone()
    }

    pub(super) fn met(&self) -> Option<Arc<Met>> {
        self.heard().met.clone()
    }

    /// Whether there is nothing to wait for: it was listed once, could not be, or takes too long.
    pub(super) fn is_settled(&self) -> bool {
        self.first.is_cancelled() || Instant::now() >= self.patience()
    }

    fn patience(&self) -> Instant {
        let (http, child) = FIRST_WORD;
        self.began + if matches!(self.rules().reach, Reach::Http) { http } else { child }
    }

    pub(super) async fn settled(&self) {
        drop(tokio::time::timeout_at(self.patience(), self.first.cancelled()).await);
    }

    pub(super) fn drops(&self) -> &Drops {
        &self.shared.drops
    }

    pub(super) fn blot(&self, text: &mut String) {
        match &self.reached {
            Reached::Http(door) => door.blots().over_text(text),
            Reached::Child(nursery) => nursery.blot(text),
        }
    }

    /// What we know of its tools may be out of date.
    pub(super) fn nudge(&self) {
        self.nudged.notify_one();
    }

    /// What a tool's definition wants in fields of a request, as the server lists it now. `None`: it is not listed, or
    /// not to be called as it is. Bounded by the attempt that waits.
    pub(super) async fn fields_of(&self, own_name: &str) -> Option<Arc<[(String, String)]>> {
        let mut crawls = self.crawls.subscribe();
        crawls.mark_unchanged();
        self.nudge();
        crawls.changed().await.ok()?;
        let catalog = self.catalog()?;
        let tool = catalog.tools.iter().find(|tool| &*tool.own_name == own_name)?;
        let wanted = tool.quarantined.is_none().then(|| tool.definition.get("inputSchema"))?;
        repeated(wanted?).ok()
    }

    /// The link of an inner session; nothing is opened yet.
    pub(super) fn hold(&self, key: Key) -> Result<Held, Lost> {
        match &self.reached {
            Reached::Http(door) => self.sessions.hold(key, |key| {
                let drops = self.shared.drops.clone();
                Link::Http(HttpLink::new(door.clone(), self.declares(key), drops))
            }),
            Reached::Child(nursery) => {
                let this = self.this.upgrade();
                let this = this.ok_or_else(|| Lost::Unusable("the server is left".into()))?;
                let held = self.sessions.hold(key.of_a_child(), |key| {
                    let fallback: Arc<dyn Inbound> = Arc::new(Watcher::of(this, key.clone()));
                    let (declares, of_one) = (self.declares(key), key.agent.is_some());
                    Link::Child(ChildLink::new(nursery, Owner { declares, fallback, of_one }))
                });
                if self.stop.is_cancelled() {
                    // Whoever came between the end of the others and this would start a child that nobody ends.
                    self.sessions.close_all();
                    return Err(Lost::Unusable("the server has left the policy".into()));
                }
                held
            }
        }
    }

    fn declares(&self, key: &Key) -> Declares {
        match *key == Key::of_the_gateway() {
            true => Declares::of_lists(self.rules().may_ask),
            false => key.declares.clone(),
        }
    }

    /// Whose session a key stands for here.
    pub(super) fn owned(&self, key: Key) -> Key {
        match &self.reached {
            Reached::Http(_) => key,
            Reached::Child(_) => key.of_a_child(),
        }
    }

    /// Leaves the policy, or the process ends.
    pub(super) fn leave(&self) {
        self.stop.cancel();
        self.first.cancel();
        self.sessions.close_all();
        if let Reached::Http(door) = &self.reached {
            door.stop().cancel();
        }
    }

    /// Runs beside the calls until the server is left.
    pub(super) fn beside(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        let cut = async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = work => {}
            }
        };
        drop(self.shared.tasks.spawn_on(cut, &self.shared.runtime));
    }

    /// Keeps the catalog fresh until the server is left.
    async fn keep(self: Arc<Self>) {
        let mut back_off = BACK_OFF.0;
        loop {
            let began = Instant::now();
            let crawled = tokio::select! {
                () = self.stop.cancelled() => break,
                crawled = tokio::time::timeout(CRAWL, self.crawl()) => crawled,
            };
            let wait = match crawled {
                Ok(Ok((ttl, link))) => {
                    back_off = BACK_OFF.0;
                    self.listen(&link);
                    ttl.unwrap_or(RECRAWL)
                }
                // What is cut short by its end is no fault of the server.
                _ if self.stop.is_cancelled() => break,
                failed => {
                    let why = match failed {
                        Ok(Err(why)) => why,
                        Ok(Ok(_)) | Err(_) => format!("no whole list within {CRAWL:?}"),
                    };
                    self.failed(why);
                    let wait = back_off;
                    back_off = (back_off * 2).min(BACK_OFF.1);
                    wait
                }
            };
            self.first.cancel();
            self.crawls.send_modify(|crawls| *crawls += 1);
            self.pause(began, wait).await;
        }
    }

    /// Until it is time, or something asks for a crawl.
    async fn pause(&self, began: Instant, wait: Duration) {
        let until = Instant::now() + wait;
        loop {
            let sweep = (Instant::now() + SWEEP).min(until);
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.nudged.notified() => break,
                over = tokio::time::timeout_at(sweep, std::future::pending::<()>()) => drop(over),
            }
            self.sessions.sweep();
            if Instant::now() >= until {
                return;
            }
        }
        // Words that come in a row are one.
        let least = began + LEAST;
        drop(tokio::time::timeout_at(least, self.stop.cancelled()).await);
    }

    async fn crawl(&self) -> Result<(Option<Duration>, Link), String> {
        let link = self.hold(Key::of_the_gateway()).map_err(|lost| lost.to_string())?.link;
        let met = link.open().await.map_err(|lost| lost.to_string())?;
        let offers_tools = ServerCapabilities::of(&met.capabilities).tools;
        let listed = match offers_tools || met.revision.era() == Era::Modern {
            true => {
                Some(catalog::crawl(&link, List::Tools, None).await.map_err(|e| e.to_string())?)
            }
            false => None,
        };
        let ttl = listed.as_ref().and_then(|listed| listed.ttl);
        let listed = listed.map(|listed| (listed.items, listed.dropped)).unwrap_or_default();
        self.take(listed, met).await;
        Ok((ttl, link))
    }

    /// Whether it answers: its description is asked for, or its list, in the gateway's own session.
    pub(super) async fn answers(&self) -> Result<(), CrawlError> {
        let link = self.hold(Key::of_the_gateway()).map_err(CrawlError::Lost)?.link;
        let met = link.open().await.map_err(CrawlError::Lost)?;
        let method = match met.revision.era() {
            Era::Modern => "server/discover",
            Era::Legacy if ServerCapabilities::of(&met.capabilities).tools => List::Tools.method(),
            Era::Legacy => "ping",
        };
        let inbound: Arc<dyn Inbound> = Arc::new(Silent);
        catalog::ask(&link, method, json!({}), &inbound, None).await.map(drop)
    }

    /// What was listed becomes what is offered.
    async fn take(&self, listed: (Vec<Value>, Vec<Dropped>), met: Arc<Met>) {
        let rules = self.rules();
        let (pins, name) = (self.shared.pins.clone(), self.name.clone());
        let Some(this) = self.this.upgrade() else { return };
        let judged = self.shared.runtime.spawn_blocking(move || {
            let _one = this.pinning();
            let seen = pins.load(&name);
            let offer = catalog::offer(listed, &rules.reach, &rules.pin, rules.on_drift, &seen);
            if let Some(pinned) = &offer.to_pin
                && let Err(error) = pins.keep(&name, pinned)
            {
                tracing::error!(server = %name, %error, "definitions seen first are not kept");
            }
            offer
        });
        let Ok(offer) = judged.await else {
            return self.failed("its list could not be judged".into());
        };
        self.publish(offer, met);
    }

    fn publish(&self, offer: Offer, met: Arc<Met>) {
        let Offer { catalog, dropped, drifts, .. } = offer;
        let changed = {
            let mut heard = self.heard();
            let same = heard.catalog.as_ref().is_some_and(|before| same(before, &catalog));
            for drift in drifts.iter().filter(|drift| !heard.drifts.contains(drift)) {
                tracing::warn!(server = %self.name, tool = drift.tool, why = &*drift.why, "a tool has changed");
            }
            for one in dropped.iter().filter(|one| !heard.dropped.contains(one)) {
                tracing::warn!(server = %self.name, tool = one.name, reason = one.reason, "a tool was left out");
            }
            if !heard.up {
                tracing::info!(server = %self.name, revision = %met.revision, tools = catalog.tools.len(), "an MCP server is here");
            }
            heard.up = true;
            heard.why = None;
            heard.met = Some(met);
            heard.dropped = dropped;
            heard.drifts = drifts;
            if !same {
                let known = heard.catalog.take();
                heard.catalog = Some(Arc::new(with_known(catalog, known.as_deref())));
            }
            !same
        };
        if changed {
            self.shared.changed.send_modify(|count| *count += 1);
        }
    }

    fn failed(&self, why: String) {
        let mut heard = self.heard();
        if heard.up || heard.why.is_none() {
            tracing::warn!(server = %self.name, why, "an MCP server cannot be listed; what it offered last stands");
        }
        heard.up = false;
        heard.why = Some(why);
    }
}

fn same(before: &Catalog, after: &Catalog) -> bool {
    before.tools.len() == after.tools.len()
        && before.tools.iter().zip(&after.tools).all(|(a, b)| {
            a.own_name == b.own_name
                && a.quarantined == b.quarantined
                && (Arc::ptr_eq(&a.definition, &b.definition)
                    || a.definition.to_string() == b.definition.to_string())
        })
}

/// Definitions that did not change stay the very same, so that the tools made of them do.
fn with_known(mut catalog: Catalog, known: Option<&Catalog>) -> Catalog {
    let known: HashMap<&str, &Arc<Value>> = known
        .into_iter()
        .flat_map(|known| &known.tools)
        .map(|tool| (&*tool.own_name, &tool.definition))
        .collect();
    for tool in &mut catalog.tools {
        if let Some(before) = known.get(&*tool.own_name)
            && before.to_string() == tool.definition.to_string()
        {
            tool.definition = Arc::clone(before);
        }
    }
    catalog
}

/// How many sessions there may be, where each is a child process.
fn children(rules: &McpServer) -> Option<usize> {
    match &rules.reach {
        Reach::Http => None,
        Reach::Child(child) => Some(child.children.max(1) as usize),
    }
}
