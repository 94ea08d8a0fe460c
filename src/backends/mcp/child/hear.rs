//! What a child says, line by line: answers to who waits, words to whose they are, noise to nobody.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Map, Value};

use super::line::Line;
use super::pipes::MAX_LINE;
use super::process::Process;
use crate::backends::mcp::link::{Inbound, Lost, Reply};
use crate::mcp::jsonrpc::{self, ErrorReply, INTERNAL_ERROR, Id, Message, Notification, Request};
use crate::mcp::lines;
use crate::strict_json::{Limits, MAX_DEPTH, MAX_VALUES, shallow};

/// Lines of noise that are logged for all to see; the rest is for who looks closer.
const LOGGED_NOISE: u64 = 8;
/// For an answer to the server's question to get into the queue.
const ASIDE: Duration = Duration::from_secs(10);

impl Process {
    /// One line of its stdout. Never waits.
    pub(super) fn hear(self: &Arc<Self>, line: &[u8]) {
        let limit = MAX_LINE.max(self.nursery.response_bytes());
        // Only a long line can hold more values than an answer may.
        let limits = match line.len() > 2 * MAX_VALUES && self.pending.has_list() {
            true => Limits::list(limit),
            false => Limits::answer(limit),
        };
        match lines::read(line, limits) {
            lines::Line::Noise => self.unread(line, limit),
            lines::Line::Broken(fault) => {
                let id = fault.id.as_ref().and_then(Id::as_u64);
                self.settle(id, line.len(), Err(Lost::NotMcp(fault.message)));
            }
            lines::Line::Message(Message::Response(response)) => {
                self.settle(response.id.as_u64(), line.len(), Ok(Reply::Result(response.result)));
            }
            lines::Line::Message(Message::Error(error)) => {
                let id = error.id.as_ref().map(|id| id.as_u64().unwrap_or(u64::MAX));
                if !self.pending.settle(id, line.len(), Ok(Reply::Error(error))) {
                    self.nursery.count("unknown_id");
                }
            }
            lines::Line::Message(Message::Notification(notification)) => self.told(notification),
            lines::Line::Message(Message::Request(request)) => self.asked(request),
        }
    }

    fn settle(&self, id: Option<u64>, size: usize, answered: super::pending::Answered) {
        let waited_for = id.is_some_and(|id| self.pending.settle(Some(id), size, answered));
        if !waited_for {
            self.nursery.count("unknown_id");
        }
    }

    /// A line that is nothing as it stands: noise, or an answer nested too deep to be read. A list is read without what
    /// is too deep in it; any other answer is none, and who waits for it hears so now.
    fn unread(&self, line: &[u8], limit: usize) {
        let Cow::Owned(shallow) = shallow(line, MAX_DEPTH) else { return self.noise(line) };
        match lines::read(&shallow, Limits::list(limit)) {
            lines::Line::Message(Message::Response(response)) => {
                let id = response.id.as_u64();
                let answered = match self.pending.is_list(id) {
                    true => Ok(Reply::Result(response.result)),
                    false => Err(too_deep()),
                };
                self.settle(id, line.len(), answered);
            }
            lines::Line::Message(Message::Error(error)) => {
                let id = error.id.as_ref().map(|id| id.as_u64().unwrap_or(u64::MAX));
                self.settle(id, line.len(), Err(too_deep()));
            }
            lines::Line::Message(Message::Notification(_) | Message::Request(_))
            | lines::Line::Broken(_)
            | lines::Line::Noise => self.noise(line),
        }
    }

    fn noise(&self, line: &[u8]) {
        self.nursery.count("noise");
        let mut line = String::from_utf8_lossy(line.get(..200).unwrap_or(line)).into_owned();
        self.nursery.blot(&mut line);
        let server = self.nursery.name();
        if self.noise.fetch_add(1, Ordering::Relaxed) < LOGGED_NOISE {
            tracing::info!(%server, line, "an MCP server wrote a line to stdout that is no message; it is skipped");
        } else {
            tracing::trace!(%server, line, "noise on stdout");
        }
    }

    fn told(&self, notification: Notification) {
        let names_one = matches!(notification.method.as_str(), "notifications/progress");
        if let Some(owner) = self.pending.named_by(&notification) {
            return owner.notification(notification);
        }
        if notification.method == "notifications/resources/updated" {
            // Of a subscription, which is no call's.
            return self.fallback.notification(notification);
        }
        if names_one {
            // Progress of a call that is over.
            return self.nursery.count("stale_progress");
        }
        self.owner().notification(notification);
    }

    /// Whose a word is that names nobody: the one call's that is open, where all calls are of one agent.
    fn owner(&self) -> Arc<dyn Inbound> {
        let only = if self.of_one { self.pending.only() } else { None };
        only.unwrap_or_else(|| self.fallback.clone())
    }

    fn asked(self: &Arc<Self>, request: Request) {
        let id = request.id.clone();
        if request.method == "ping" {
            return self.say(jsonrpc::write_result(&id, &Value::Object(Map::new())));
        }
        let Ok(place) = self.asks.clone().try_acquire_owned() else {
            self.nursery.count("too_many_requests");
            return self.say(answer(&id, Err(too_many(&id))));
        };
        let owner = self.owner();
        let (process, answering) = (self.clone(), owner.request(request));
        drop(self.nursery.run(async move {
            let _place = place;
            let answered = tokio::select! {
                answered = answering => answered,
                () = process.gone.cancelled() => return,
            };
            let line = Line::new(answer(&id, answered), None);
            if process.lines.send_timeout(line, ASIDE).await.is_err() {
                tracing::debug!("an answer did not reach the server that asked");
            }
        }));
    }

    /// A line that no call waits for; let go where the queue is full.
    pub(super) fn say(&self, message: Vec<u8>) {
        if self.lines.try_send(Line::new(message, None)).is_err() {
            self.nursery.count("queue_full");
        }
    }
}

fn answer(id: &Id, answered: Result<Value, ErrorReply>) -> Vec<u8> {
    match answered {
        Ok(result) => jsonrpc::write_result(id, &result),
        Err(error) => {
            jsonrpc::write_error(Some(id), error.code, &error.message, error.data.as_ref())
        }
    }
}

fn too_deep() -> Lost {
    Lost::NotMcp(format!("the answer is nested deeper than {MAX_DEPTH} levels"))
}

fn too_many(id: &Id) -> ErrorReply {
    let message = "too many requests of the server are open".into();
    ErrorReply { id: Some(id.clone()), code: INTERNAL_ERROR, message, data: None }
}
