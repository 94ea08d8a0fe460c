//! Who is to hear of which resources of one server, counted by URI in each inner session: the first wish is asked of the
//! server, the end of the last one too, and what the server tells reaches those who wanted it and nobody else.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::{OnceCell, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::link::{Link, Lost};
use super::result;
use super::server::Server;
use super::sessions::{Held, Key};
use crate::call::side::ServerEvent;
use crate::call::{AgentId, Side};
use crate::policy::glob::uri_matches;

/// URIs that are subscribed to in one inner session.
const MAX_URIS: usize = 1024;
/// Longest of them, bytes.
pub(super) const MAX_URI: usize = 8 * 1024;

/// One stream of an agent that hears of a resource: of its session, or one that listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Subscriber {
    pub(super) agent: AgentId,
    /// The session, or the listening stream.
    pub(super) stream: Arc<str>,
}

/// Of one server, by inner session.
#[derive(Debug, Default)]
pub(super) struct Subscriptions(Mutex<HashMap<Key, Arc<Feed>>>);

/// What is wanted in one inner session; `feed.rs` sees to it that it is heard.
#[derive(Debug)]
pub(super) struct Feed {
    pub(super) key: Key,
    held: Held,
    /// Of whom it was begun for: whom the server may ask on its stream.
    pub(super) side: Side,
    wanted: Mutex<BTreeMap<String, Wanted>>,
    /// Rises with every URI that comes or goes.
    edition: watch::Sender<u64>,
    /// What the server said to its one listen (modern).
    pub(super) taken: watch::Sender<Taken>,
    /// One word to the server about a URI at a time: what came last holds.
    turn: Semaphore,
    /// Its stream broke off, and nobody was told to look again yet.
    missed: AtomicBool,
    /// Nobody wants anything of it any more.
    pub(super) over: CancellationToken,
}

#[derive(Debug, Default)]
struct Wanted {
    who: HashSet<Subscriber>,
    /// The server has been asked in the session that is open, and did not refuse (legacy).
    asked: Arc<OnceCell<()>>,
}

/// What a listen was acknowledged for.
#[derive(Debug, Clone)]
pub(super) struct Taken {
    pub(super) edition: u64,
    /// `Err`: it was refused, or ended.
    pub(super) uris: Result<Arc<HashSet<String>>, Arc<str>>,
}

impl Default for Taken {
    fn default() -> Self {
        Self { edition: 0, uris: Ok(Arc::default()) }
    }
}

/// A wish that is not granted yet: it ends with the request that it came by, unless it is kept.
#[derive(Debug)]
pub(super) struct Joined {
    server: Arc<Server>,
    pub(super) feed: Arc<Feed>,
    subscriber: Subscriber,
    uri: String,
    asked: Arc<OnceCell<()>>,
    edition: u64,
    left: Left,
}

/// What becomes of a wish that is let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// It was granted.
    Kept,
    /// The server may have heard of it: it hears that it is over.
    Told,
    /// The server has refused it.
    Untold,
}

impl Subscriptions {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Feed>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to the feed of an inner session, begun where there is none. `anew`: it was asked of another one before.
    fn add(
        server: &Arc<Server>,
        (key, side): (Key, &Side),
        anew: bool,
        add: impl FnOnce(&Arc<Feed>),
    ) -> Result<(), Lost> {
        let key = server.owned(key);
        let held = server.hold(key.clone())?;
        // Until it is added to, no feed may be closed for being empty.
        let mut feeds = server.subscriptions.lock();
        if let Some(feed) = feeds.get(&key) {
            add(feed);
            return Ok(());
        }
        let feed = Arc::new(Feed {
            key: key.clone(),
            held,
            side: Side { channel: None, ..side.clone() },
            wanted: Mutex::default(),
            edition: watch::Sender::new(0),
            taken: watch::Sender::default(),
            turn: Semaphore::new(1),
            missed: AtomicBool::new(false),
            over: CancellationToken::new(),
        });
        add(&feed);
        feeds.insert(key, feed.clone());
        drop(feeds);
        server.beside(feed.keep(server.clone(), anew));
        Ok(())
    }

    /// One more who wants to hear of a resource. `None`: there are too many already.
    pub(super) fn join(
        server: &Arc<Server>,
        of: (Key, &Side),
        subscriber: Subscriber,
        uri: &str,
    ) -> Result<Option<Joined>, Lost> {
        let mut joined = None;
        Self::add(server, of, false, |feed| {
            joined =
                feed.join(&subscriber, uri).map(|(asked, edition)| (feed.clone(), asked, edition));
        })?;
        Ok(joined.map(|(feed, asked, edition)| Joined {
            server: server.clone(),
            feed,
            subscriber,
            uri: uri.to_owned(),
            asked,
            edition,
            left: Left::Told,
        }))
    }

    /// A feed of which nobody wants anything is over.
    pub(super) fn close_if_empty(&self, feed: &Arc<Feed>) {
        let mut feeds = self.lock();
        let same = feeds.get(&feed.key).is_some_and(|known| Arc::ptr_eq(known, feed));
        if same && feed.wanted().is_empty() {
            feeds.remove(&feed.key);
            feed.over.cancel();
        }
    }

    /// A stream has ended: all it wanted is over.
    pub(super) fn over(server: &Arc<Server>, subscriber: &Subscriber) {
        let feeds: Vec<Arc<Feed>> = server.subscriptions.lock().values().cloned().collect();
        for feed in feeds {
            for uri in feed.of(subscriber) {
                if feed.leave(subscriber, &uri) {
                    feed.said_over(server, uri);
                }
            }
        }
    }

    /// One stream wants to hear of a resource no more. The feed where it was the last one: the server is to be told.
    /// `None`: others want it still.
    pub(super) fn end(
        &self,
        server: &Server,
        key: Key,
        subscriber: &Subscriber,
        uri: &str,
    ) -> Option<Option<Arc<Feed>>> {
        let feed = self.lock().get(&server.owned(key)).cloned();
        let Some(feed) = feed.filter(|feed| feed.wants(subscriber, uri)) else {
            // It never was: whatever the server says to that.
            return Some(None);
        };
        feed.leave(subscriber, uri).then_some(Some(feed))
    }

    /// What the server says of a resource in one inner session.
    pub(super) fn told(&self, server: &Server, key: &Key, params: Value) {
        let feed = self.lock().get(key).cloned();
        match feed {
            Some(feed) => feed.tell(server, params),
            None => server.drops().count("not_wanted"),
        }
    }

    /// The stream of an inner session broke off, and what is told until it is open again is lost.
    pub(super) fn broke(&self, key: &Key) {
        if let Some(feed) = self.lock().get(key) {
            feed.missed.store(true, Ordering::Release);
        }
    }

    /// It is open.
    pub(super) fn heard_again(&self, server: &Server, key: &Key) {
        let feed = self.lock().get(key).cloned();
        if let Some(feed) = feed.filter(|feed| feed.missed.load(Ordering::Acquire)) {
            feed.look_again(server);
        }
    }

    /// Takes over what was wanted of a server whose section of the policy has changed.
    pub(super) fn inherit(server: &Arc<Server>, before: &Server) {
        let feeds: Vec<Arc<Feed>> =
            before.subscriptions.lock().drain().map(|(_, feed)| feed).collect();
        let shared_alike = before.rules().share == server.rules().share;
        for old in feeds {
            old.over.cancel();
            let wanted = old.drain();
            if !shared_alike || wanted.is_empty() {
                continue;
            }
            let kept = Self::add(server, (old.key.clone(), &old.side), true, |new| {
                for (uri, who) in wanted.iter().filter(|(uri, _)| server.passes(uri)) {
                    for subscriber in who {
                        drop(new.join(subscriber, uri));
                    }
                }
            });
            if let Err(lost) = kept {
                tracing::warn!(server = %server.name(), %lost, "subscriptions are not taken over");
            }
        }
    }
}

impl Feed {
    fn wanted(&self) -> MutexGuard<'_, BTreeMap<String, Wanted>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn held(&self) -> &Held {
        &self.held
    }

    pub(super) fn link(&self) -> &Link {
        &self.held.link
    }

    pub(super) fn uris(&self) -> Vec<String> {
        self.wanted().keys().cloned().collect()
    }

    pub(super) fn editions(&self) -> watch::Receiver<u64> {
        self.edition.subscribe()
    }

    fn join(&self, subscriber: &Subscriber, uri: &str) -> Option<(Arc<OnceCell<()>>, u64)> {
        let mut wanted = self.wanted();
        let is_new = !wanted.contains_key(uri);
        if is_new && wanted.len() >= MAX_URIS {
            return None;
        }
        let one = wanted.entry(uri.to_owned()).or_default();
        one.who.insert(subscriber.clone());
        let asked = one.asked.clone();
        if is_new {
            self.edition.send_modify(|edition| *edition += 1);
        }
        Some((asked, *self.edition.borrow()))
    }

    /// Whether it was the last who wanted the URI.
    fn leave(&self, subscriber: &Subscriber, uri: &str) -> bool {
        let mut wanted = self.wanted();
        let last = wanted.get_mut(uri).is_some_and(|one| {
            one.who.remove(subscriber);
            one.who.is_empty()
        });
        if last {
            wanted.remove(uri);
            self.edition.send_modify(|edition| *edition += 1);
        }
        last
    }

    fn wants(&self, subscriber: &Subscriber, uri: &str) -> bool {
        self.wanted().get(uri).is_some_and(|one| one.who.contains(subscriber))
    }

    fn of(&self, subscriber: &Subscriber) -> Vec<String> {
        let wanted = self.wanted();
        let own = wanted.iter().filter(|(_, one)| one.who.contains(subscriber));
        own.map(|(uri, _)| uri.clone()).collect()
    }

    fn drain(&self) -> Vec<(String, HashSet<Subscriber>)> {
        let wanted = std::mem::take(&mut *self.wanted());
        wanted.into_iter().map(|(uri, one)| (uri, one.who)).collect()
    }

    /// The session is another one: what is wanted has to be asked there.
    pub(super) fn asked_anew(&self, uri: &str) -> Option<Arc<OnceCell<()>>> {
        let mut wanted = self.wanted();
        let one = wanted.get_mut(uri)?;
        one.asked = Arc::default();
        Some(one.asked.clone())
    }

    /// The server's word, to all who want to hear of this resource or of what it is part of.
    fn tell(&self, server: &Server, mut params: Value) {
        result::strip_meta(&mut params);
        let uri = params.get("uri").and_then(Value::as_str).unwrap_or_default();
        let who: HashSet<Subscriber> = {
            let wanted = self.wanted();
            let concerned = wanted.iter().filter(|(one, _)| is_part_of(uri, one));
            concerned.flat_map(|(_, one)| one.who.iter().cloned()).collect()
        };
        if who.is_empty() || !server.passes(uri) {
            return server.drops().count("not_wanted");
        }
        for Subscriber { agent, stream } in who {
            let params = params.clone();
            server.tell(ServerEvent::ResourceUpdated { agent, stream, params });
        }
    }

    /// What was told while nobody listened is lost: whoever wants a resource looks at it again.
    pub(super) fn look_again(&self, server: &Server) {
        self.missed.store(false, Ordering::Release);
        for uri in self.uris() {
            self.tell(server, json!({ "uri": uri }));
        }
    }

    /// Waits for its turn to say something to the server about a URI. Never closed.
    pub(super) async fn turn(&self) -> Option<tokio::sync::SemaphorePermit<'_>> {
        self.turn.acquire().await.ok()
    }

    pub(super) fn is_wanted(&self, uri: &str) -> bool {
        self.wanted().contains_key(uri)
    }
}

impl Joined {
    /// Asks the server, if nobody has; of many at once one does, and the others wait for what comes of it.
    pub(super) async fn asked<T, E>(
        &self,
        ask: impl Future<Output = Result<T, E>>,
    ) -> Result<Option<T>, E> {
        let mut answer = None;
        let asking = async {
            let _turn = self.feed.turn().await;
            answer = Some(ask.await?);
            Ok(())
        };
        self.asked.get_or_try_init(|| asking).await?;
        Ok(answer)
    }

    /// Until the server's one listen has been acknowledged with this wish in it, or refused.
    pub(super) async fn taken(&self) -> Result<bool, Arc<str>> {
        let mut taken = self.feed.taken.subscribe();
        match taken.wait_for(|taken| taken.edition >= self.edition).await.as_deref() {
            Ok(Taken { uris: Ok(uris), .. }) => Ok(uris.contains(&self.uri)),
            Ok(Taken { uris: Err(why), .. }) => Err(why.clone()),
            Err(_) => Err("the subscription is over".into()),
        }
    }

    pub(super) fn kept(mut self) {
        self.left = Left::Kept;
    }

    pub(super) fn refused(mut self) {
        self.left = Left::Untold;
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if self.left == Left::Kept || !self.feed.leave(&self.subscriber, &self.uri) {
            return;
        }
        match self.left {
            Left::Told => self.feed.said_over(&self.server, self.uri.clone()),
            Left::Kept | Left::Untold => self.server.subscriptions.close_if_empty(&self.feed),
        }
    }
}

impl Server {
    /// Whether the policy passes a resource of this server.
    pub(super) fn passes(&self, uri: &str) -> bool {
        self.rules().pass.resources.iter().any(|glob| uri_matches(glob, uri))
    }
}

/// `uri` is `whole`, or a part of it.
fn is_part_of(uri: &str, whole: &str) -> bool {
    uri.strip_prefix(whole).is_some_and(|rest| {
        rest.is_empty() || whole.ends_with('/') || rest.starts_with(['/', '?', '#'])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_resource_is_told_with_it_and_a_neighbour_is_not() {
        assert!(is_part_of("file:///a", "file:///a"));
        assert!(is_part_of("file:///a/b", "file:///a"));
        assert!(is_part_of("file:///a#b", "file:///a"));
        assert!(is_part_of("file:///a", "file:///"));
        assert!(!is_part_of("file:///ab", "file:///a"));
        assert!(!is_part_of("file:///", "file:///a"));
    }
}
