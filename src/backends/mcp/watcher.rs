//! Who listens on a stream that belongs to no call: changes of lists and resources, and log messages. Whatever the
//! server asks there, nobody can be asked.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use serde_json::Value;

use super::link::Inbound;
use super::server::Server;
use super::silent;
use crate::call::AgentId;
use crate::call::side::ServerEvent;
use crate::mcp::jsonrpc::{ErrorReply, Notification, Request};

#[derive(Debug)]
pub(super) struct Watcher {
    server: Arc<Server>,
    /// Whose session it is; `None` = the gateway's own.
    owner: Option<(AgentId, Option<Arc<str>>)>,
}

impl Watcher {
    pub(super) fn of_the_gateway(server: Arc<Server>) -> Self {
        Self { server, owner: None }
    }

    pub(super) fn of(server: Arc<Server>, agent: AgentId, session: Option<Arc<str>>) -> Self {
        Self { server, owner: Some((agent, session)) }
    }
}

impl Inbound for Watcher {
    fn notification(&self, notification: Notification) {
        let Notification { method, params } = notification;
        let owner = self.owner.clone();
        match (method.as_str(), owner, params) {
            ("notifications/resources/updated", Some((agent, session)), Some(params)) => {
                self.server.tell(ServerEvent::ResourceUpdated { agent, session, params });
            }
            ("notifications/message", Some((agent, session)), Some(params))
                if self.server.rules().pass.logging =>
            {
                self.server.tell(ServerEvent::Log { agent, session, params });
            }
            (_, _, _) => self.server.hear(&method),
        }
    }

    fn request(
        &self,
        request: Request,
    ) -> Pin<Box<dyn Future<Output = Result<Value, ErrorReply>> + Send>> {
        Box::pin(ready(silent::answer(&request)))
    }
}
