//! Questions of a server that belong to no call, to the one agent whose session it asks in: on the stream by GET, or on
//! that of an open call; over standard streams there is one line for all.

use std::future::ready;
use std::sync::Arc;

use serde_json::Value;

use super::asks::Asks;
use super::channel::{Answering, Line, Out, answer_to, can_be_asked};
use super::sessions::Session;
use super::stdio::Writer;
use super::streams::Streams;
use crate::call::{Channel, NoAnswer};
use crate::mcp::jsonrpc;
use crate::mcp::version::Revision;

#[derive(Debug)]
pub(super) struct Aside {
    way: Way,
    asks: Arc<Asks>,
    capabilities: Arc<Value>,
    revision: Revision,
}

#[derive(Debug)]
enum Way {
    Streams(Arc<Streams>),
    Lines(Writer),
}

impl Aside {
    /// `line`: of any call of the session, which tells what carries it.
    pub(super) fn of(session: &Session, line: Option<&Line>) -> Arc<dyn Channel> {
        let way = match line.map(|line| &line.out) {
            Some(Out::Lines(lines)) => Way::Lines(lines.clone()),
            Some(Out::Events(_) | Out::Kept(_)) | None => Way::Streams(session.streams.clone()),
        };
        Arc::new(Self {
            way,
            asks: session.asks.clone(),
            capabilities: session.capabilities.clone(),
            revision: session.revision,
        })
    }
}

impl Channel for Aside {
    fn notify(&self, method: &str, params: Value) {
        let message = jsonrpc::write_notification(method, Some(&params));
        let told = match &self.way {
            Way::Streams(streams) => streams.say_aside(&message).is_some(),
            Way::Lines(lines) => lines.send(&message),
        };
        tracing::debug!(told, method, "a word that belongs to no call");
    }

    fn ask(&self, method: &str, params: Value) -> Answering {
        if !can_be_asked(&self.capabilities, self.revision, method, &params) {
            return Box::pin(ready(Err(NoAnswer::NotDeclared)));
        }
        let asked = self.asks.ask().and_then(|asked| {
            let request = jsonrpc::write_request(&asked.id(), method, Some(&params));
            let gone = match &self.way {
                Way::Streams(streams) => streams.say_aside(&request)?,
                Way::Lines(lines) => lines.send(&request).then(|| lines.gone().clone())?,
            };
            Some((asked, gone))
        });
        match asked {
            Some((asked, gone)) => answer_to(asked, gone),
            None => Box::pin(ready(Err(NoAnswer::Gone))),
        }
    }
}
