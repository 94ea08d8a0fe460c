//! What a server says of its lists, in the gateway's own session. Where a stream of that broke off and is open again, the
//! agents are told to look again: what was said in between is lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::Server;
use crate::backends::mcp::catalog;
use crate::backends::mcp::link::{Ends, Inbound, Link};
use crate::backends::mcp::sessions::{Key, Listening};
use crate::backends::mcp::watcher::Watcher;
use crate::call::side::ServerEvent;
use crate::mcp::messages::ServerCapabilities;
use crate::mcp::version::Era;

/// A subscription that lasted so long was one.
const SUBSCRIBED: Duration = Duration::from_secs(5);

impl Server {
    /// A notification that is of no call's own stream.
    pub(in crate::backends::mcp) fn hear(&self, method: &str) {
        let server = || self.name.clone();
        match method {
            "notifications/tools/list_changed" => self.nudge(),
            "notifications/resources/list_changed" => {
                self.tell(ServerEvent::ResourcesChanged { server: server() });
            }
            "notifications/prompts/list_changed" => {
                self.tell(ServerEvent::PromptsChanged { server: server() });
            }
            // The stream of our own listen is open.
            "notifications/subscriptions/acknowledged" => self.hears_again(),
            _ => {
                tracing::trace!(method, "a server's word that nobody wants");
                self.shared.drops.count("not_wanted");
            }
        }
    }

    pub(in crate::backends::mcp) fn tell(&self, event: ServerEvent) {
        // Nobody listening is no fault.
        drop(self.shared.events.send(event));
    }

    /// Its list of tools is read anew; the other lists, which are never kept, are told of once it is heard again.
    fn lists_missed(&self) {
        self.missed.store(true, Ordering::Release);
        self.nudge();
    }

    fn broke(&self, ends: Ends) {
        match ends {
            Ends::Resumable => self.nudge(),
            Ends::Lost => self.lists_missed(),
        }
    }

    /// A stream of the gateway's own session is open. What the server would have said meanwhile may have been said.
    pub(in crate::backends::mcp) fn hears_again(&self) {
        if !self.missed.swap(false, Ordering::AcqRel) {
            return;
        }
        let Some(met) = self.met() else { return };
        let says = ServerCapabilities::of(&met.capabilities);
        if says.resources_list_changed {
            self.tell(ServerEvent::ResourcesChanged { server: self.name.clone() });
        }
        if says.prompts_list_changed {
            self.tell(ServerEvent::PromptsChanged { server: self.name.clone() });
        }
    }

    /// Hears of changes, once a session: by the stream that belongs to no request, or by a subscription.
    pub(super) fn listen(&self, link: &Link) {
        let (Some(met), Some(this)) = (self.met(), self.this.upgrade()) else { return };
        let inbound: Arc<dyn Inbound> = Arc::new(Watcher::of(this.clone(), Key::of_the_gateway()));
        let new = Listening::default();
        if self.sessions.begin_listening(&Key::of_the_gateway(), &new).is_err() {
            return;
        }
        let link = link.clone();
        self.beside(async move {
            let _over = new.over.drop_guard();
            if met.revision.era() == Era::Modern {
                let notifications = json!({
                    "toolsListChanged": true,
                    "resourcesListChanged": true,
                    "promptsListChanged": true,
                });
                let params = json!({"notifications": notifications});
                let began = Instant::now();
                drop(catalog::ask(&link, "subscriptions/listen", params, &inbound, None).await);
                // One that was refused at once is not to be had; one that ended may have kept a change back.
                if began.elapsed() > SUBSCRIBED {
                    this.lists_missed();
                }
            } else {
                let missed = this.clone();
                link.listen(inbound, move |ends| missed.broke(ends)).await;
            }
        });
    }
}
