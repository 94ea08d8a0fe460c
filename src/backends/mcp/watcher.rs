//! Who listens on a stream that belongs to no call: changes of lists and resources, log messages, and questions where
//! the inner session is one agent's session alone. Of any other nobody can be asked.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::caller::{Asking, STILL, allows, answered, put};
use super::link::Inbound;
use super::server::Server;
use super::sessions::Key;
use crate::call::side::ServerEvent;
use crate::call::{Channel, NoAnswer, Phase, Progress};
use crate::mcp::jsonrpc::{ErrorReply, Notification, Request};
use crate::mcp::messages::AskKind;
use crate::mcp::visible;

/// How long an agent is asked on behalf of a stream that no call waits on.
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct Watcher {
    server: Arc<Server>,
    /// Whose session it is.
    key: Key,
    asks: Option<Asks>,
}

/// The one agent behind an inner session.
#[derive(Debug)]
pub(super) struct Asks {
    pub(super) to: Arc<dyn Channel>,
    /// As it declared them.
    pub(super) capabilities: Arc<Value>,
    /// Cancelled once the stream is open.
    pub(super) open: CancellationToken,
    pub(super) waiting: Waiting,
}

/// How many questions of one inner session wait for its agent. Meanwhile a server that is silent on a call is not idle.
#[derive(Debug, Clone, Default)]
pub(super) struct Waiting(watch::Sender<usize>);

/// One of them, while it is held.
struct Waits(Waiting);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

impl Waiting {
    fn one_more(&self) -> Waits {
        self.0.send_modify(|count| *count += 1);
        Waits(self.clone())
    }

    /// Does the work of a call, and says that it is alive while a question waits.
    pub(super) async fn beside<T>(
        &self,
        work: impl Future<Output = T>,
        progress: Option<&Progress>,
    ) -> T {
        let Some(progress) = progress else { return work.await };
        let mut count = self.0.subscribe();
        let mut work = std::pin::pin!(work);
        loop {
            let waits = *count.borrow_and_update() > 0;
            let still = tokio::time::timeout(STILL, std::future::pending::<()>());
            tokio::select! {
                biased;
                done = &mut work => return done,
                // The sender is held here, so it does not end.
                _ = count.changed() => {}
                _ = still, if waits => progress.mark(Phase::Progress),
            }
        }
    }
}

impl Watcher {
    pub(super) fn of(server: Arc<Server>, key: Key) -> Self {
        Self { server, key, asks: None }
    }

    /// Questions go to the agent, too.
    pub(super) fn that_asks(self, asks: Option<Asks>) -> Self {
        Self { asks, ..self }
    }

    fn ask(&self, request: &Request) -> Option<Asking> {
        let asks = self.asks.as_ref()?;
        let kind = AskKind::of(&request.method, request.params.as_ref())?;
        if !allows(self.server.rules().may_ask, &asks.capabilities, kind) {
            return None;
        }
        let params = request.params.clone().unwrap_or_else(|| Value::Object(Map::new()));
        let (asking, waits) = (put(&*asks.to, kind, params), asks.waiting.one_more());
        Some(Box::pin(async move {
            let answer = tokio::time::timeout(PATIENCE, asking).await;
            drop(waits);
            answer.unwrap_or(Err(NoAnswer::Gone))
        }))
    }
}

impl Inbound for Watcher {
    fn notification(&self, notification: Notification) {
        let Notification { method, params } = notification;
        match (method.as_str(), &self.key.agent, params) {
            ("notifications/resources/updated", _, Some(params)) => {
                self.server.subscriptions.told(&self.server, &self.key, params);
            }
            ("notifications/message", Some(agent), Some(mut params))
                if self.server.rules().pass.logging =>
            {
                visible::texts(&mut params);
                let (agent, session) = (agent.clone(), self.key.session.clone());
                self.server.tell(ServerEvent::Log { agent, session, params });
            }
            (_, _, _) => self.server.hear(&method),
        }
    }

    fn listening(&self) {
        match self.key == Key::of_the_gateway() {
            true => self.server.hears_again(),
            false => self.server.subscriptions.heard_again(&self.server, &self.key),
        }
        if let Some(asks) = &self.asks {
            asks.open.cancel();
        }
    }

    fn request(
        &self,
        request: Request,
    ) -> Pin<Box<dyn Future<Output = Result<Value, ErrorReply>> + Send>> {
        let asking = self.ask(&request);
        answered(request, asking)
    }
}
