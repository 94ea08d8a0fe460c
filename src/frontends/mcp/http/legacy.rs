//! Revisions with sessions over HTTP (2025-06-18, 2025-11-25). A broken connection is no wish: the call goes on, and
//! what is said on its stream is kept for an agent that comes back. Nothing but a session that is over is a 404.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use http::Response;
use serde_json::Value;

use super::reply::{self, empty, error_line, json, line, rpc_error, whole, with_session};
use super::{Came, Refused, session_id};
use crate::call::FrontEnd;
use crate::call::code::DenyCode;
use crate::call::{Denied, Likeness};
use crate::frontends::body::Body;
use crate::frontends::mcp::asks::Taken;
use crate::frontends::mcp::channel::{Line, Out, cancelled_id};
use crate::frontends::mcp::listening::{By, Listener};
use crate::frontends::mcp::methods::{Answered, Method, unknown_method};
use crate::frontends::mcp::modern::supported;
use crate::frontends::mcp::passing::error_data;
use crate::frontends::mcp::sessions::{Begun, Full, NotBegun, Session};
use crate::frontends::mcp::streams::{Resumed, Told};
use crate::frontends::mcp::wire::RpcError;
use crate::frontends::mcp::{Asking, Mcp};
use crate::mcp::headers::LAST_EVENT_ID;
use crate::mcp::jsonrpc::{
    INTERNAL_ERROR, INVALID_REQUEST, Message, Notification, Request, write_result,
};
use crate::mcp::messages::{ClientCapabilities, InitializeParams};
use crate::mcp::version::{Era, NEWEST_LEGACY, Revision, SUPPORTED};
use crate::strict_json::write;

impl Mcp {
    pub(super) async fn legacy(
        self: &Arc<Self>,
        came: &Came<'_>,
        message: Message,
    ) -> Result<Response<Body>, Refused> {
        if let Message::Request(request) = &message
            && request.method == "initialize"
        {
            self.engine.mcp_settled().await;
            return Ok(self.initialize(came, request));
        }
        let session = self.session(came)?;
        if came.version.is_some_and(|version| !is_known(version)) {
            return Err(no_such_revision());
        }
        match message {
            Message::Request(request) => Ok(self.request(came, session, request).await),
            Message::Notification(note) => {
                self.noted(&session, &note);
                Ok(empty(202))
            }
            Message::Response(response) => Ok(taken(session.asks.answered(response))),
            Message::Error(error) => Ok(taken(session.asks.refused(error))),
        }
    }

    fn session(&self, came: &Came<'_>) -> Result<Arc<Session>, Refused> {
        let id = session_id(came.headers)?.ok_or_else(no_session_named)?;
        self.sessions.find(&came.agent, id).ok_or_else(session_over)
    }

    fn initialize(&self, came: &Came<'_>, request: &Request) -> Response<Body> {
        match self.opened(&came.agent, request) {
            Ok((session, result)) => {
                with_session(json(200, write_result(&request.id, &result)), &session.id)
            }
            Err(error) => json(200, error_line(Some(&request.id), &error)),
        }
    }

    /// A new session and the result of `initialize`. The revision asked for, where it is one of ours with sessions;
    /// else the newest of those.
    pub(in crate::frontends::mcp) fn opened(
        &self,
        agent: &crate::call::AgentId,
        request: &Request,
    ) -> Result<(Arc<Session>, Value), RpcError> {
        let params = request.params.as_ref();
        let asked = InitializeParams::of(params)
            .map_err(|wrong| crate::frontends::mcp::calls::bad_params(&wrong))?;
        let revision = Revision::parse(asked.protocol_version)
            .filter(|revision| revision.era() == Era::Legacy && SUPPORTED.contains(revision))
            .unwrap_or(NEWEST_LEGACY);
        let declared = params.and_then(|params| params.get("capabilities")).cloned();
        let declared = declared.unwrap_or_else(|| serde_json::json!({}));
        let told = match revision.features() {
            // Who comes back does so by GET.
            _ if self.doors.no_get_stream => Told::Once,
            features if features.polled => Told::Primed,
            _ => Told::Named,
        };
        let room = self.sessions.room(agent);
        let session = Session::new(agent.clone(), revision, declared, told, room)
            .ok_or_else(|| RpcError::new(INTERNAL_ERROR, "no session id could be made"))?;
        match self.sessions.open(session.clone()) {
            Ok(Some(gone)) => {
                tracing::info!(%agent, "the longest idle session ended for a new one");
                self.ended(&gone);
            }
            Ok(None) => {}
            Err(Full) => {
                let words =
                    "every session of this agent is in use; end one, or try again in a moment";
                let denied = Denied::new(DenyCode::ConcurrencyLimited, words);
                return Err(RpcError::refused(INTERNAL_ERROR, &denied));
            }
        }
        let result = self.initialized(agent, revision);
        Ok((session, result))
    }

    pub(in crate::frontends::mcp) fn noted(&self, session: &Session, note: &Notification) {
        match note.method.as_str() {
            "notifications/cancelled" => {
                if let Some(id) = cancelled_id(note.params.as_ref()) {
                    session.in_flight.cancel(&id);
                }
            }
            // Also a `tools/call` without an id: nobody could hear its answer, so it is not run.
            method => tracing::debug!(method, "a notification says nothing here"),
        }
    }

    async fn request(
        self: &Arc<Self>,
        came: &Came<'_>,
        session: Arc<Session>,
        request: Request,
    ) -> Response<Body> {
        let Some(method) = Method::of(&request.method, Era::Legacy) else {
            return whole(&request.id, &Err(unknown_method(&request.method)), false);
        };
        let begun = match begun(&session.in_flight, method, &request) {
            Ok(begun) => begun,
            Err(error) => return json(200, error_line(Some(&request.id), &error)),
        };
        let streamed = streams(&session, method, request.params.as_ref());
        let (stream, body) = streamed.then(|| session.streams.open()).unzip();
        let out = stream.map(Out::Kept);
        let asking = asking(came, session, &begun, out.as_ref(), request.params.as_ref());
        let (mcp, id) = (self.clone(), request.id.clone());
        // In a task of its own: the connection may break, the call goes on.
        let work = self.engine.tasks().spawn(async move {
            let answered = mcp.unless_cancelled(&asking, method, request.params.as_ref()).await;
            drop(begun);
            if let (Some(out), Some(answered)) = (&out, &answered) {
                let told = out.send(&line(&request.id, answered));
                tracing::debug!(told, "a call was answered on its stream");
            }
            if let Some(Out::Kept(stream)) = &out {
                stream.end();
            }
            answered
        });
        match body {
            Some(body) => reply::stream(body),
            None => match work.await {
                Ok(Some(answered)) => whole(&id, &answered, false),
                // Taken back: no answer is sent for it.
                Ok(None) => empty(202),
                Err(_) => whole(&id, &Err(RpcError::new(INTERNAL_ERROR, FAULT)), false),
            },
        }
    }

    /// `None`: the agent took it back. A read is cut by that; a write goes on by itself, and the ledger keeps its end.
    pub(in crate::frontends::mcp) async fn unless_cancelled(
        &self,
        asking: &Asking,
        method: Method,
        params: Option<&Value>,
    ) -> Option<Result<Answered, RpcError>> {
        let answered = tokio::select! {
            biased;
            () = asking.cancelled.cancelled() => None,
            answered = self.answer(asking, method, params) => Some(answered),
        };
        if let Some(line) = &asking.line {
            line.close();
        }
        answered
    }

    /// The stream of a session: what belongs to no call.
    pub(super) fn get(self: &Arc<Self>, came: &Came<'_>) -> Result<Response<Body>, Refused> {
        let session = self.session(came)?;
        if came.version.is_some_and(|version| !is_known(version)) {
            return Err(no_such_revision());
        }
        if !super::accepts(came.headers, "text/event-stream") {
            let words = "`Accept` must name text/event-stream";
            return Err(rpc_error(406, None, &RpcError::new(INVALID_REQUEST, words)));
        }
        let last =
            super::one(came.headers, LAST_EVENT_ID).map_err(|()| super::twice(LAST_EVENT_ID))?;
        if let Some(last) = last.filter(|last| !last.is_empty()) {
            return match session.streams.resume(last) {
                Resumed::Goes(body) => Ok(reply::stream(body)),
                // Which tells a reader of events not to come again (WHATWG HTML, 9.2).
                Resumed::Over => Ok(empty(204)),
                Resumed::NotKept => Err(not_kept()),
            };
        }
        let Some(place) = self.listening.take(&came.agent) else {
            let words = "this agent has too many streams open";
            let denied = Denied::new(DenyCode::ConcurrencyLimited, words);
            return Err(rpc_error(400, None, &RpcError::refused(INVALID_REQUEST, &denied)));
        };
        let (stream, body) = session.streams.listen();
        let over = session.over.clone();
        let (agent, out) = (came.agent.clone(), Out::Kept(stream));
        let listener = Listener { agent, by: By::Session(session), out, over, place };
        self.engine.tasks().spawn(self.clone().listen(listener));
        Ok(reply::stream(body))
    }

    pub(super) fn delete(&self, came: &Came<'_>) -> Result<Response<Body>, Refused> {
        let id = session_id(came.headers)?.ok_or_else(no_session_named)?;
        let ended = self.sessions.end(&came.agent, id).ok_or_else(session_over)?;
        self.ended(&ended);
        Ok(empty(204))
    }
}

/// Words of an answer that a panic left empty.
pub(in crate::frontends::mcp) const FAULT: &str =
    "a fault of the gateway ended this request; it has been reported";

/// Enters a request among those in flight; a call is the same call only with the same content.
pub(in crate::frontends::mcp) fn begun(
    in_flight: &Arc<crate::frontends::mcp::sessions::InFlight>,
    method: Method,
    request: &Request,
) -> Result<Begun, RpcError> {
    let content = (method == Method::CallTool).then(|| {
        let params = request.params.as_ref().map(write::text).unwrap_or_default();
        Likeness::of(&params)
    });
    in_flight.begin(&request.id, content).map_err(|why| {
        let (code, words) = match why {
            NotBegun::Twice => {
                (DenyCode::DuplicateCallId, "a request with this id is not answered yet")
            }
            NotBegun::Reused => {
                (DenyCode::CallIdReused, "this id was used before for a call with other content")
            }
            NotBegun::TooMany => {
                (DenyCode::ConcurrencyLimited, "too many requests of this session are in flight")
            }
        };
        let denied = Denied::new(code, words);
        let rpc = if why == NotBegun::TooMany { INTERNAL_ERROR } else { INVALID_REQUEST };
        RpcError::new(rpc, words).data(error_data(&denied)).status(400)
    })
}

/// Whether a request is answered on a stream: where something may be said before its answer.
fn streams(session: &Session, method: Method, params: Option<&Value>) -> bool {
    if !method.may_stream() {
        return false;
    }
    let declared = ClientCapabilities::of(&session.capabilities);
    let can_be_asked = declared.elicitation_form
        || declared.elicitation_url
        || declared.sampling
        || declared.roots;
    progress_token(params).is_some() || session.log_level().is_some() || can_be_asked
}

pub(in crate::frontends::mcp) fn progress_token(params: Option<&Value>) -> Option<&Value> {
    let token = params?.get("_meta")?.get("progressToken")?;
    (token.is_string() || token.is_number()).then_some(token)
}

fn asking(
    came: &Came<'_>,
    session: Arc<Session>,
    begun: &Begun,
    out: Option<&Out>,
    params: Option<&Value>,
) -> Asking {
    let log_level = session.log_level();
    let line = out.map(|out| {
        Arc::new(Line {
            out: out.clone(),
            token: progress_token(params).cloned(),
            log_level: log_level.clone(),
            asks: Some(session.asks.clone()),
            capabilities: session.capabilities.clone(),
            revision: session.revision,
            said: Mutex::default(),
            closed: AtomicBool::new(false),
        })
    });
    Asking {
        agent: came.agent.clone(),
        front_end: FrontEnd::McpHttp,
        revision: session.revision,
        capabilities: session.capabilities.clone(),
        log_level,
        session: Some(session),
        param_headers: Arc::from([]),
        run: came.head.run.clone(),
        timeout: came.head.timeout,
        caller_key: came.head.caller_key.clone(),
        trace: came.trace(),
        call: begun.call.clone(),
        cancelled: begun.cancelled.clone(),
        line,
    }
}

/// Whether a session's request may name it. It changes nothing: a session speaks the revision that `initialize` agreed
/// on, and clients name 2025-03-26 too, the one that is assumed where the field is missing (Streamable HTTP, "Protocol
/// Version Header").
fn is_known(version: &str) -> bool {
    Revision::parse(version)
        .is_some_and(|revision| revision == Revision::V2025_03_26 || SUPPORTED.contains(&revision))
}

fn taken(taken: Taken) -> Response<Body> {
    match taken {
        Taken::Yes => empty(202),
        Taken::NeverAsked => {
            let words = "nothing of this id was asked";
            rpc_error(400, None, &RpcError::new(INVALID_REQUEST, words))
        }
    }
}

fn no_session_named() -> Refused {
    let words = "name a session by Mcp-Session-Id, begin one by `initialize`, or name a revision in `_meta`";
    let data = serde_json::json!({"supported": supported()});
    rpc_error(400, None, &RpcError::new(INVALID_REQUEST, words).data(data))
}

fn session_over() -> Refused {
    let words = "there is no such session; begin a new one by `initialize`";
    rpc_error(404, None, &RpcError::new(INVALID_REQUEST, words))
}

/// Not 404: the session lives. What a client missed it cannot be given in part.
fn not_kept() -> Refused {
    let words = "`Last-Event-ID` names no event of this session after which all is kept; open a stream without it, and \
                 ask for what may have been missed";
    rpc_error(400, None, &RpcError::new(INVALID_REQUEST, words))
}

fn no_such_revision() -> Refused {
    let data = serde_json::json!({"supported": supported()});
    let error = RpcError::new(INVALID_REQUEST, "MCP-Protocol-Version is none that is spoken here");
    rpc_error(400, None, &error.data(data))
}
