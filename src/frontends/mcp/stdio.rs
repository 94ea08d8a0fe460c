//! The same server over standard streams: one message a line, several requests at once, answers in whatever order they
//! come. The identity is the process's. The end of the input ends what was asked, but for what is under way.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::channel::{Line, Out, cancelled_id};
use super::http::{FAULT, begun, error_line, line, progress_token};
use super::listening::{By, Listener};
use super::methods::{Method, unknown_method};
use super::modern::{names_version, sender, supported};
use super::sessions::{Begun, InFlight, Session};
use super::wire::RpcError;
use super::{Asking, MAX_DEPTH, Mcp};
use crate::call::{AgentId, FrontEnd};
use crate::mcp::jsonrpc::{
    self, INTERNAL_ERROR, INVALID_REQUEST, Message, Notification, Request, write_result,
};
use crate::mcp::version::{Era, Revision};
use crate::strict_json::Limits;

/// Lines that wait to be written; past it the reader is taken for stalled, and the connection ends.
pub(crate) const MAX_LINES: usize = 1024;

/// Writes lines for the one reader.
#[derive(Debug, Clone)]
pub struct Writer {
    lines: mpsc::Sender<Bytes>,
    gone: CancellationToken,
}

impl Writer {
    /// The writer and what is written, without line ends. `gone`: to be cancelled when nobody reads any more.
    pub fn new(gone: CancellationToken) -> (Self, mpsc::Receiver<Bytes>) {
        let (lines, written) = mpsc::channel(MAX_LINES);
        (Self { lines, gone }, written)
    }

    /// Queues one message. False: nobody reads.
    pub fn send(&self, message: &[u8]) -> bool {
        let sent = self.lines.try_send(Bytes::copy_from_slice(message)).is_ok();
        if !sent {
            self.gone.cancel();
        }
        sent
    }

    /// Cancelled once nobody reads.
    pub fn gone(&self) -> &CancellationToken {
        &self.gone
    }
}

/// A line of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    Line(Vec<u8>),
    /// Longer than the bound; it was skipped to its end.
    TooLong,
}

/// Cuts the input into lines; one over the bound costs itself alone.
#[derive(Debug)]
pub struct Cutter {
    limit: usize,
    open: Vec<u8>,
    skipping: bool,
}

impl Cutter {
    /// `limit`: longest line, bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, open: Vec::new(), skipping: false }
    }

    /// Takes the next piece and gives the lines it completes; empty ones are left out.
    pub fn push(&mut self, piece: &[u8]) -> Vec<Read> {
        let mut found = Vec::new();
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            let (part, ends) = match part.strip_suffix(b"\n") {
                Some(part) => (part, true),
                None => (part, false),
            };
            if self.skipping || self.open.len() + part.len() > self.limit {
                self.open = Vec::new();
                self.skipping = !ends;
                if ends {
                    found.push(Read::TooLong);
                }
                continue;
            }
            self.open.extend_from_slice(part);
            if ends {
                let line = std::mem::take(&mut self.open);
                if !line.iter().all(u8::is_ascii_whitespace) {
                    found.push(Read::Line(line));
                }
            }
        }
        found
    }

    /// The input has ended: what came after the last line end is a line, too. Whether it is whole is for its reader to
    /// say: a message that was cut off does not parse.
    pub fn end(self) -> Option<Read> {
        if self.skipping {
            return Some(Read::TooLong);
        }
        let blank = self.open.iter().all(u8::is_ascii_whitespace);
        (!blank).then_some(Read::Line(self.open))
    }
}

/// One connection over standard streams.
#[derive(Debug)]
struct Connection {
    mcp: Arc<Mcp>,
    agent: AgentId,
    writer: Writer,
    /// Requests without a session.
    in_flight: Arc<InFlight>,
    session: Option<Arc<Session>>,
    /// What is under way; waited for at the end of the input.
    open: TaskTracker,
    /// Ends what only listens.
    ended: CancellationToken,
}

impl Mcp {
    /// Serves one agent until its input ends and what it asked is answered, or nobody reads the answers.
    pub(in crate::frontends) async fn stdio(
        self: &Arc<Self>,
        agent: AgentId,
        mut lines: mpsc::Receiver<Read>,
        writer: Writer,
    ) {
        let mut connection = Connection {
            mcp: self.clone(),
            agent,
            writer: writer.clone(),
            in_flight: Arc::default(),
            session: None,
            open: TaskTracker::new(),
            ended: CancellationToken::new(),
        };
        loop {
            tokio::select! {
                () = writer.gone().cancelled() => break,
                read = lines.recv() => match read {
                    Some(Read::Line(line)) => connection.take(&line),
                    Some(Read::TooLong) => {
                        let words = "the line is longer than `limits.request_bytes`";
                        connection.say_error(None, &RpcError::new(INVALID_REQUEST, words));
                    }
                    None => break,
                },
            }
        }
        connection.ended.cancel();
        connection.open.close();
        tokio::select! {
            () = writer.gone().cancelled() => {}
            () = connection.open.wait() => {}
        }
        connection.end_session();
    }
}

impl Connection {
    fn say(&self, message: &[u8]) {
        if !self.writer.send(message) {
            tracing::warn!("nobody reads the answers any more");
        }
    }

    fn say_error(&self, id: Option<&jsonrpc::Id>, error: &RpcError) {
        self.say(&error_line(id, error));
    }

    fn end_session(&mut self) {
        if let Some(session) = self.session.take()
            && let Some(ended) = self.mcp.sessions.end(&self.agent, &session.id)
        {
            self.mcp.ended(&ended);
        }
    }

    fn take(&mut self, line: &[u8]) {
        let bytes = self.mcp.engine.body_limits().request_bytes;
        let limits = Limits { depth: MAX_DEPTH, ..Limits::request(bytes) };
        match jsonrpc::parse(line, limits) {
            Err(fault) => {
                self.say_error(fault.id.as_ref(), &RpcError::new(fault.code, fault.message));
            }
            Ok(Message::Request(request)) => self.request(request),
            Ok(Message::Notification(note)) => self.noted(&note),
            Ok(Message::Response(response)) => {
                let taken = self.session.as_ref().map(|own| own.asks.answered(response));
                tracing::debug!(?taken, "an answer came");
            }
            Ok(Message::Error(error)) => {
                let taken = self.session.as_ref().map(|own| own.asks.refused(error));
                tracing::debug!(?taken, "a refusal came");
            }
        }
    }

    fn noted(&self, note: &Notification) {
        if note.method == "notifications/cancelled"
            && let Some(id) = cancelled_id(note.params.as_ref())
        {
            self.in_flight.cancel(&id);
        }
        if let Some(session) = &self.session {
            self.mcp.noted(session, note);
        }
    }

    fn request(&mut self, request: Request) {
        if names_version(request.params.as_ref()) {
            self.modern(request);
        } else if request.method == "initialize" {
            self.initialize(&request);
        } else if let Some(session) = self.session.clone() {
            self.legacy(session, request);
        } else {
            let words = "begin by `initialize`, or name a revision in `_meta`";
            let data = serde_json::json!({"supported": supported()});
            let error = RpcError::new(INVALID_REQUEST, words).data(data);
            self.say_error(Some(&request.id), &error);
        }
    }

    fn initialize(&mut self, request: &Request) {
        match self.mcp.opened(&self.agent, request) {
            Ok((session, result)) => {
                self.end_session();
                self.say(&write_result(&request.id, &result));
                if let Some(place) = self.mcp.listening.take(&self.agent) {
                    let by = By::Session(session.clone());
                    let over = self.ended.child_token();
                    self.listens(Listener {
                        agent: self.agent.clone(),
                        by,
                        out: Out::Lines(self.writer.clone()),
                        over,
                        place,
                    });
                }
                self.session = Some(session);
            }
            Err(error) => self.say_error(Some(&request.id), &error),
        }
    }

    fn listens(&self, listener: Listener) {
        let (listening, open) = (self.mcp.clone().listen(listener), self.open.token());
        self.mcp.engine.tasks().spawn(async move {
            listening.await;
            drop(open);
        });
    }

    fn legacy(&self, session: Arc<Session>, request: Request) {
        let Some(method) = Method::of(&request.method, Era::Legacy) else {
            return self.say_error(Some(&request.id), &unknown_method(&request.method));
        };
        let begun = match begun(&session.in_flight, method, &request) {
            Ok(begun) => begun,
            Err(error) => return self.say_error(Some(&request.id), &error),
        };
        let log_level = session.log_level();
        let asking = Asking {
            agent: self.agent.clone(),
            front_end: FrontEnd::McpStdio,
            revision: session.revision,
            capabilities: session.capabilities.clone(),
            log_level: log_level.clone(),
            param_headers: Arc::from([]),
            run: None,
            timeout: None,
            caller_key: None,
            trace: (None, None),
            call: begun.call.clone(),
            cancelled: begun.cancelled.clone(),
            line: Some(self.line(&session.capabilities, session.revision, log_level, &request)),
            session: Some(session),
        };
        self.answer(asking, method, request, begun);
    }

    fn modern(&self, request: Request) {
        let judged = sender(None, &request.method, request.params.as_ref()).and_then(|who| {
            let method = Method::of(&request.method, Era::Modern);
            Ok((who, method.ok_or_else(|| unknown_method(&request.method))?))
        });
        let (who, method) = match judged {
            Ok(judged) => judged,
            Err(error) => return self.say_error(Some(&request.id), &error),
        };
        // Without a session no id is remembered: it must only not be in flight.
        let begun = match begun(&self.in_flight, Method::Ping, &request) {
            Ok(begun) => begun,
            Err(error) => return self.say_error(Some(&request.id), &error),
        };
        let line = self.line(&who.capabilities, who.revision, who.log_level.clone(), &request);
        let asking = Asking {
            agent: self.agent.clone(),
            front_end: FrontEnd::McpStdio,
            revision: who.revision,
            session: None,
            capabilities: who.capabilities,
            log_level: who.log_level,
            param_headers: Arc::from([]),
            run: None,
            timeout: None,
            caller_key: None,
            trace: (None, None),
            call: begun.call.clone(),
            cancelled: begun.cancelled.clone(),
            line: Some(line),
        };
        match method {
            Method::Listen => self.subscribe(&asking, request, begun),
            Method::Ping
            | Method::SetLevel
            | Method::Discover
            | Method::ListTools
            | Method::CallTool
            | Method::List(_)
            | Method::Pass(_) => self.answer(asking, method, request, begun),
        }
    }

    fn subscribe(&self, asking: &Asking, request: Request, begun: Begun) {
        let id = request.id.clone();
        let by = match self.mcp.by_listen(asking, request) {
            Ok(by) => by,
            Err(error) => return self.say_error(Some(&id), &error),
        };
        let Some(place) = self.mcp.listening.take(&self.agent) else {
            let error = RpcError::new(INTERNAL_ERROR, "this agent has too many streams open");
            return self.say_error(Some(&id), &error);
        };
        let over = begun.cancelled.clone();
        let (ended, open) = (self.ended.clone(), self.open.token());
        let listening = self.mcp.clone().listen(Listener {
            agent: self.agent.clone(),
            by,
            out: Out::Lines(self.writer.clone()),
            over,
            place,
        });
        self.mcp.engine.tasks().spawn(async move {
            tokio::select! {
                () = listening => {}
                () = ended.cancelled() => {}
            }
            drop((begun, open));
        });
    }

    fn line(
        &self,
        capabilities: &Arc<serde_json::Value>,
        revision: Revision,
        log_level: Option<Arc<str>>,
        request: &Request,
    ) -> Arc<Line> {
        let legacy = revision.era() == Era::Legacy;
        let asks = self.session.as_ref().filter(|_| legacy).map(|session| session.asks.clone());
        Arc::new(Line {
            out: Out::Lines(self.writer.clone()),
            token: progress_token(request.params.as_ref()).cloned(),
            log_level,
            asks,
            capabilities: capabilities.clone(),
            revision,
            said: Mutex::default(),
            closed: AtomicBool::new(false),
        })
    }

    fn answer(&self, asking: Asking, method: Method, request: Request, begun: Begun) {
        let (mcp, writer) = (self.mcp.clone(), self.writer.clone());
        let answered = async move {
            let answered = mcp.unless_cancelled(&asking, method, request.params.as_ref()).await;
            drop(begun);
            // Taken back: no answer is sent for it.
            answered.map(|answered| line(&request.id, &answered))
        };
        let open = self.open.token();
        let id_line = error_line(None, &RpcError::new(INTERNAL_ERROR, FAULT));
        let work = self.mcp.engine.tasks().spawn(answered);
        self.mcp.engine.tasks().spawn(async move {
            let told = match work.await {
                Ok(Some(line)) => writer.send(&line),
                Ok(None) => true,
                Err(_) => writer.send(&id_line),
            };
            tracing::debug!(told, "a request was answered");
            drop(open);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_over_the_bound_costs_itself_alone() {
        let mut cutter = Cutter::new(4);
        let mut read = cutter.push(b"ab\n\n \r\nabc");
        read.extend(cutter.push(b"def"));
        read.extend(cutter.push(b"ghi\nxy"));
        read.extend(cutter.push(b"zz\n12345\nq"));
        let line = |text: &str| Read::Line(text.as_bytes().to_vec());
        assert_eq!(read, [line("ab"), Read::TooLong, line("xyzz"), Read::TooLong]);
        assert_eq!(cutter.end(), Some(line("q")));
    }

    #[test]
    fn what_comes_after_the_last_line_end_is_a_line() {
        let last = |pieces: &[&[u8]]| {
            let mut cutter = Cutter::new(4);
            for piece in pieces {
                cutter.push(piece);
            }
            cutter.end()
        };
        for pieces in [&[b"".as_slice()] as &[&[u8]], &[b"ab\n"], &[b"ab\n", b" \r"], &[b"12345\n"]]
        {
            assert_eq!(last(pieces), None, "{pieces:?}");
        }
        assert_eq!(last(&[b"ab\nc", b"d"]), Some(Read::Line(b"cd".to_vec())));
        assert_eq!(last(&[b"ab\n12345"]), Some(Read::TooLong));
    }
}
