//! Keeps one inner session hearing of what is subscribed to in it, in either era: asked again where the session was
//! lost, opened again where the stream broke off, told to look again where something may have been missed.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::link::{Inbound, Link, Lost, Reply};
use super::server::Server;
use super::sessions::Listening;
use super::silent;
use super::subscriptions::{Feed, Taken};
use crate::mcp::jsonrpc::{ErrorReply, Notification, Request};
use crate::mcp::version::Era;

/// Between two tries, doubled up to the second.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// A listen that lasted so long was one.
const LASTED: Duration = Duration::from_secs(5);
/// How long wishes are gathered before a listen takes the place of another.
const GATHER: Duration = Duration::from_millis(20);
/// For a word to the server that no call waits for.
const ASIDE: Duration = Duration::from_secs(10);

/// A listen that is open, and how it ended.
type OneListen = Pin<Box<dyn Future<Output = Result<Reply, Lost>> + Send>>;

impl Feed {
    /// Until nobody wants anything of it, or the server is left. `anew`: another session was asked before.
    pub(super) async fn keep(self: Arc<Self>, server: Arc<Server>, anew: bool) {
        tokio::select! {
            () = self.over.cancelled() => {}
            () = self.hear(&server, anew) => {}
        }
    }

    async fn hear(self: &Arc<Self>, server: &Arc<Server>, mut anew: bool) {
        let mut wait = AGAIN.0;
        loop {
            let era = self.link().open().await.map(|met| met.revision.era());
            let life = self.link().life();
            match (era, life) {
                (Ok(Era::Modern), _) => {
                    if self.modern(server, anew).await >= LASTED {
                        wait = AGAIN.0;
                    }
                }
                (Ok(Era::Legacy), Some(life)) => {
                    if anew {
                        self.ask_anew(server).await;
                    }
                    self.listening(server, &life).await;
                    anew = life.is_cancelled();
                    wait = AGAIN.0;
                    pause(wait).await;
                    continue;
                }
                // Lost at this very moment.
                (Ok(Era::Legacy), None) => {}
                (Err(lost), _) => self.refused(&lost.to_string()),
            }
            anew = true;
            pause(wait).await;
            wait = (wait * 2).min(AGAIN.1);
        }
    }

    /// Hears a session of a legacy server, until it is over or its stream has to be opened again.
    async fn listening(&self, server: &Arc<Server>, life: &CancellationToken) {
        match server.listen_for(&self.key, self.held(), &self.side) {
            Some(Listening { over, .. }) => tokio::select! {
                () = life.cancelled() => {}
                () = over.cancelled() => {}
            },
            // One stream carries all of it.
            None => life.cancelled().await,
        }
    }

    /// A server with sessions that has forgotten ours is asked for all of it.
    async fn ask_anew(&self, server: &Arc<Server>) {
        for uri in self.uris() {
            let Some(asked) = self.asked_anew(&uri) else { continue };
            let asking = async {
                let _turn = self.turn().await;
                self.word("resources/subscribe", &uri).await
            };
            if let Err(why) = asked.get_or_try_init(|| asking).await {
                tracing::warn!(server = %server.name(), uri, why, "a subscription could not be renewed");
            }
        }
        self.look_again(server);
    }

    /// One word about a URI that no agent waits for.
    async fn word(&self, method: &str, uri: &str) -> Result<(), String> {
        let inbound: Arc<dyn Inbound> = Arc::new(super::silent::Silent);
        let said = self.link().ask(method, json!({ "uri": uri }), &inbound, None);
        match tokio::time::timeout(ASIDE, said).await {
            Ok(Ok(Reply::Result(_))) => Ok(()),
            Ok(Ok(Reply::Error(error))) => Err(error.message),
            Ok(Err(lost)) => Err(lost.to_string()),
            Err(_) => Err(format!("no answer within {ASIDE:?}")),
        }
    }

    /// The last who wanted a URI has left: a server with sessions is told so, if that still holds when its turn comes.
    pub(super) fn said_over(self: &Arc<Self>, server: &Arc<Server>, uri: String) {
        let (feed, server, beside) = (self.clone(), server.clone(), server.clone());
        beside.beside(async move {
            let turn = feed.turn().await;
            if !feed.is_wanted(&uri)
                && feed.has_legacy_session().await
                && let Err(why) = feed.word("resources/unsubscribe", &uri).await
            {
                tracing::debug!(uri, why, "a server was not told that a subscription is over");
            }
            drop(turn);
            server.subscriptions.close_if_empty(&feed);
        });
    }

    async fn has_legacy_session(&self) -> bool {
        if self.link().life().is_none() {
            return false;
        }
        let met = self.link().open().await;
        met.is_ok_and(|met| met.revision.era() == Era::Legacy)
    }

    fn refused(&self, why: &str) {
        let edition = *self.editions().borrow();
        self.taken.send_replace(Taken { edition, uris: Err(why.into()) });
    }

    /// One listen for all that is wanted; another takes its place when that changes, and only then is it let go. How
    /// long the last one lasted.
    async fn modern(self: &Arc<Self>, server: &Arc<Server>, mut anew: bool) -> Duration {
        let mut editions = self.editions();
        let mut before: Option<OneListen> = None;
        loop {
            if before.is_some() {
                pause(GATHER).await;
            }
            let began = Instant::now();
            let edition = *editions.borrow_and_update();
            if self.uris().is_empty() {
                // It is about to end, or to be joined again.
                drop(editions.changed().await);
                continue;
            }
            let acknowledged = CancellationToken::new();
            let mut now = self.listen_to(server, edition, &acknowledged);
            let ended = loop {
                let old = async {
                    match &mut before {
                        Some(before) => drop(before.await),
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    ended = &mut now => break Some(ended),
                    () = acknowledged.cancelled() => break None,
                    () = old => before = None,
                }
            };
            let ended = match ended {
                Some(ended) => ended,
                None => {
                    drop(before.take());
                    if std::mem::take(&mut anew) {
                        self.look_again(server);
                    }
                    tokio::select! {
                        biased;
                        ended = &mut now => ended,
                        _ = editions.changed() => {
                            before = Some(now);
                            continue;
                        }
                    }
                }
            };
            let why = match ended {
                Ok(Reply::Error(error)) => error.message,
                Ok(Reply::Result(_)) => "the server ended the subscription".to_owned(),
                Err(lost) => lost.to_string(),
            };
            tracing::debug!(server = %server.name(), why, "a subscription ended");
            self.refused(&why);
            return began.elapsed();
        }
    }

    fn listen_to(
        self: &Arc<Self>,
        server: &Arc<Server>,
        edition: u64,
        acknowledged: &CancellationToken,
    ) -> OneListen {
        let link: Link = self.link().clone();
        let params = json!({"notifications": {"resourceSubscriptions": self.uris()}});
        let inbound: Arc<dyn Inbound> = Arc::new(Ear {
            server: server.clone(),
            feed: self.clone(),
            edition,
            acknowledged: acknowledged.clone(),
        });
        Box::pin(async move { link.ask("subscriptions/listen", params, &inbound, None).await })
    }
}

/// Hears one listen.
#[derive(Debug)]
struct Ear {
    server: Arc<Server>,
    feed: Arc<Feed>,
    edition: u64,
    acknowledged: CancellationToken,
}

impl Ear {
    fn acknowledged(&self, params: &Value) {
        let uris = params.pointer("/notifications/resourceSubscriptions").and_then(Value::as_array);
        let uris: HashSet<String> =
            uris.into_iter().flatten().filter_map(|uri| uri.as_str().map(str::to_owned)).collect();
        self.feed.taken.send_replace(Taken { edition: self.edition, uris: Ok(Arc::new(uris)) });
        self.acknowledged.cancel();
    }
}

impl Inbound for Ear {
    fn notification(&self, notification: Notification) {
        let Notification { method, params } = notification;
        let params = params.unwrap_or_default();
        match method.as_str() {
            "notifications/subscriptions/acknowledged" => self.acknowledged(&params),
            "notifications/resources/updated" => {
                self.server.subscriptions.told(&self.server, &self.feed.key, params);
            }
            _ => self.server.hear(&method),
        }
    }

    fn request(
        &self,
        request: Request,
    ) -> Pin<Box<dyn Future<Output = Result<Value, ErrorReply>> + Send>> {
        Box::pin(std::future::ready(silent::answer(&request)))
    }
}

async fn pause(time: Duration) {
    let until = Instant::now() + time;
    drop(tokio::time::timeout_at(until, std::future::pending::<()>()).await);
}
