//! The stream of an agent's own inner session that belongs to no request: opened where the agent subscribes to something
//! (`feed.rs`), and where the server may ask it something, before the first request goes out.

use std::sync::Arc;
use std::time::Duration;

use super::link::{Ends, Inbound, Link, Lost, Met};
use super::server::Server;
use super::sessions::{Held, Key, Listening};
use super::watcher::{Asks, Watcher};
use crate::call::Side;
use crate::mcp::version::Era;

/// How long a first request waits for that stream, so that what the server asks on it is heard. One that has none says so
/// at once.
const FIRST: Duration = Duration::from_millis(500);

impl Server {
    /// Opens an agent's session. A server with sessions may ask on the stream of no request, so that is listened to where
    /// exactly one session of an agent is behind this one, and the agent and the policy let it be asked.
    pub(super) async fn attend(
        self: &Arc<Self>,
        key: &Key,
        held: &Held,
        side: &Side,
    ) -> Result<Arc<Met>, Lost> {
        let met = held.link.open().await?;
        let alone = key.agent.is_some() && key.session.is_some();
        if met.revision.era() == Era::Legacy && alone && key.declares.is_something() {
            let heard = self.listen_for(key, held, side);
            if let Some(Listening { over, open }) = heard {
                let heard = async {
                    tokio::select! {
                        () = open.cancelled() => {}
                        () = over.cancelled() => {}
                    }
                };
                if tokio::time::timeout(FIRST, heard).await.is_err() {
                    // One that does not even begin is waited for once.
                    open.cancel();
                }
            }
        }
        Ok(met)
    }

    /// Hears on an agent's session of a legacy server what changes and what is asked, once a session. `None`: its one stream carries all.
    pub(super) fn listen_for(
        self: &Arc<Self>,
        key: &Key,
        held: &Held,
        side: &Side,
    ) -> Option<Listening> {
        let new = Listening::default();
        if let Err(before) = self.sessions.begin_listening(key, &new) {
            return before;
        }
        let asks = side.aside.clone().map(|to| Asks {
            to,
            capabilities: side.capabilities.clone(),
            open: new.open.clone(),
            waiting: held.waiting.clone(),
        });
        let watcher = Watcher::of(self.clone(), key.clone());
        let (inbound, link): (Arc<dyn Inbound>, Link) =
            (Arc::new(watcher.that_asks(asks)), held.link.clone());
        let over = new.over.clone();
        let (server, key) = (self.clone(), key.clone());
        self.beside(async move {
            let _over = over.drop_guard();
            let broke = move |ends| match ends {
                Ends::Resumable => {}
                Ends::Lost => server.subscriptions.broke(&key),
            };
            link.listen(inbound, broke).await;
        });
        Some(new)
    }
}
