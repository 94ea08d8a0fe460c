//! Who stands behind one call: what its server says beside the answer goes to the agent that made it, where the agent
//! wants it and the policy lets it; everything else is let go, and counted.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::drops::Drops;
use super::link::Inbound;
use super::server::Server;
use super::sessions::Key;
use super::silent;
use crate::call::{Channel, NoAnswer, Phase, Progress, Side};
use crate::mcp::jsonrpc::{
    ErrorReply, INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, Notification, Request,
};
use crate::mcp::messages::{AskKind, ClientCapabilities, InputRequired, check_answer};
use crate::mcp::visible;
use crate::policy::snapshot::{MayAsk, McpServer};

/// How often a call is said to be alive while its agent is asked.
pub(super) const STILL: Duration = Duration::from_millis(200);

/// Levels of log messages, least urgent first (RFC 5424, as MCP spells them).
const LEVELS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// Our own progress tokens: integers, never twice in a process.
static TOKENS: AtomicU64 = AtomicU64::new(1);

/// The answer of an agent, to come.
pub(super) type Asking = Pin<Box<dyn Future<Output = Result<Value, NoAnswer>> + Send>>;

#[derive(Debug)]
pub(super) struct Caller {
    side: Option<Arc<Side>>,
    /// Rules of the policy that the call began under.
    rules: Arc<McpServer>,
    server: Arc<Server>,
    /// Whose inner session the call is in.
    key: Key,
    /// Of the call. While its agent is asked, a silent server is not idle.
    attempt: Option<Progress>,
    token: u64,
    /// The server has said something of the call, or asked for something.
    heard: AtomicBool,
    progress: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    /// Highest so far; a note that is not above it is dropped.
    highest: Option<f64>,
    over: bool,
}

impl Caller {
    pub(super) fn new(
        side: Option<Arc<Side>>,
        rules: &Arc<McpServer>,
        (server, key): (&Arc<Server>, &Key),
        attempt: Option<&Progress>,
    ) -> Arc<Self> {
        Arc::new(Self {
            side,
            rules: rules.clone(),
            server: server.clone(),
            key: server.owned(key.clone()),
            attempt: attempt.cloned(),
            token: TOKENS.fetch_add(1, Ordering::Relaxed),
            heard: AtomicBool::new(false),
            progress: Mutex::default(),
        })
    }

    pub(super) fn has_heard(&self) -> bool {
        self.heard.load(Ordering::Acquire)
    }

    fn drops(&self) -> &Drops {
        self.server.drops()
    }

    /// Our token, where the agent wants to hear of progress.
    pub(super) fn progress_token(&self) -> Option<u64> {
        let side = self.side.as_ref()?;
        (side.progress && side.channel.is_some()).then_some(self.token)
    }

    /// From which level on the agent wants a server's log messages, where the policy passes them.
    pub(super) fn log_level(&self) -> Option<&str> {
        let side = self.side.as_ref().filter(|_| self.rules.pass.logging)?;
        side.log_level.as_deref().filter(|_| side.channel.is_some())
    }

    /// The answer is here: nothing of it is told any more.
    pub(super) fn over(&self) {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).over = true;
    }

    fn tell(&self, method: &str, mut params: Value) {
        visible::texts(&mut params);
        match self.side.as_ref().and_then(|side| side.channel.as_ref()) {
            Some(channel) => channel.notify(method, params),
            None => self.drops().count("not_wanted"),
        }
    }

    fn progress(&self, params: Option<Value>) {
        let Some(Value::Object(mut params)) = params else {
            return self.drops().count("malformed");
        };
        let token = params.shift_remove("progressToken").and_then(|token| token.as_u64());
        if token.is_none() || token != self.progress_token() {
            return self.drops().count("not_wanted");
        }
        let Some(at) = params.get("progress").and_then(Value::as_f64) else {
            return self.drops().count("malformed");
        };
        {
            let mut noted = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
            if noted.over || noted.highest.is_some_and(|highest| at <= highest) {
                drop(noted);
                return self.drops().count("stale_progress");
            }
            noted.highest = Some(at);
        }
        // How many an agent hears is the affair of whoever speaks to it.
        self.tell("notifications/progress", Value::Object(params));
    }

    fn log(&self, params: Option<Value>) {
        let wanted = self.side.as_ref().and_then(|side| side.log_level.as_deref());
        let told = params.as_ref().and_then(|params| params.get("level")).and_then(Value::as_str);
        if self.rules.pass.logging && reaches(told, wanted) {
            self.tell("notifications/message", params.unwrap_or_default());
        } else {
            self.drops().count("not_wanted");
        }
    }

    /// What the agent may be asked: the policy lets the server, the agent said that it can.
    fn allows(&self, kind: AskKind) -> bool {
        let may = self.rules.may_ask;
        self.side.as_ref().is_some_and(|side| allows(may, &side.capabilities, kind))
    }

    /// It may be asked that, and it listens while its call is open.
    fn may_ask(&self, kind: AskKind) -> bool {
        self.side.as_ref().is_some_and(|side| side.channel.is_some()) && self.allows(kind)
    }

    /// Whether the agent can give all that a result asks for: in a request of its own, or asked on its open call where
    /// its revision has no such requests.
    pub(super) fn can_answer(&self, result: &Value) -> bool {
        let Some(side) = &self.side else { return false };
        let asks = InputRequired::of(result);
        (side.modern || side.channel.is_some())
            && asks.is_ok_and(|asks| asks.requests.iter().all(|ask| self.allows(ask.kind)))
    }

    /// Asks the agent, as a question of the server. `Err`: it is not to be asked that.
    pub(super) fn ask(&self, method: &str, params: Option<Value>) -> Option<Asking> {
        let kind = AskKind::of(method, params.as_ref()).filter(|kind| self.may_ask(*kind))?;
        let channel = self.side.as_ref()?.channel.as_ref()?;
        let params = params.unwrap_or_else(|| Value::Object(Map::new()));
        let asking = put(&**channel, kind, params);
        Some(Box::pin(patient(asking, self.attempt.clone())))
    }
}

/// Puts a server's question to an agent, nothing in it hidden. An answer that is none to this question is the agent's
/// refusal, in words for the server.
pub(super) fn put(channel: &dyn Channel, kind: AskKind, params: Value) -> Asking {
    let mut shown = params.clone();
    visible::texts(&mut shown);
    let asking = channel.ask(kind.method(), shown);
    Box::pin(async move {
        let answer = asking.await?;
        check_answer(kind, &params, &answer).map_err(|wrong| {
            let words = format!("the agent's answer does not fit the question: {wrong}");
            NoAnswer::Refused(INVALID_PARAMS, words)
        })?;
        Ok(answer)
    })
}

/// Whether both the policy and the agent's own `capabilities` let a server ask that.
pub(super) fn allows(may: MayAsk, capabilities: &Value, kind: AskKind) -> bool {
    let can = ClientCapabilities::of(capabilities);
    match kind {
        AskKind::ElicitForm => may.elicitation && can.elicitation_form,
        AskKind::ElicitUrl => may.elicitation && can.elicitation_url,
        AskKind::Sampling => may.sampling && can.sampling,
        AskKind::Roots => may.roots && can.roots,
    }
}

/// Waits for an answer; only the attempt's total and the call's deadline bound that, not the limit on silence.
async fn patient(mut asking: Asking, attempt: Option<Progress>) -> Result<Value, NoAnswer> {
    loop {
        match tokio::time::timeout(STILL, &mut asking).await {
            Ok(answer) => return answer,
            Err(_) => {
                if let Some(attempt) = &attempt {
                    attempt.mark(Phase::Progress);
                }
            }
        }
    }
}

/// Whether a message of level `told` is for one who wants `wanted` and above.
pub(super) fn reaches(told: Option<&str>, wanted: Option<&str>) -> bool {
    let place = |level: &str| LEVELS.iter().position(|one| *one == level);
    match (told.and_then(place), wanted.and_then(place)) {
        (Some(told), Some(wanted)) => told >= wanted,
        (None, _) | (_, None) => false,
    }
}

/// What a server is told whose question got no answer. An elicitation has a word for it.
fn unanswered(kind: AskKind, why: &NoAnswer) -> Result<Value, (i64, String)> {
    let elicits = matches!(kind, AskKind::ElicitForm | AskKind::ElicitUrl);
    match why {
        NoAnswer::NotDeclared => Err((METHOD_NOT_FOUND, "the agent cannot be asked for it".into())),
        NoAnswer::Refused(code, message) => Err((*code, message.clone())),
        NoAnswer::Gone if elicits => Ok(json!({"action": "cancel"})),
        NoAnswer::Gone => Err((INTERNAL_ERROR, "the agent has gone".into())),
    }
}

/// What a server is told that asked; `None`: nobody is to be asked that.
pub(super) fn answered(
    request: Request,
    asking: Option<Asking>,
) -> Pin<Box<dyn Future<Output = Result<Value, ErrorReply>> + Send>> {
    match (AskKind::of(&request.method, request.params.as_ref()), asking) {
        (Some(kind), Some(asking)) => Box::pin(async move {
            asking.await.or_else(|why| unanswered(kind, &why)).map_err(|(code, message)| {
                ErrorReply { id: Some(request.id), code, message, data: None }
            })
        }),
        (Some(_) | None, _) => Box::pin(ready(silent::answer(&request))),
    }
}

impl Inbound for Caller {
    fn notification(&self, notification: Notification) {
        let Notification { method, params } = notification;
        self.heard.store(true, Ordering::Release);
        match method.as_str() {
            "notifications/progress" => self.progress(params),
            "notifications/message" => self.log(params),
            "notifications/elicitation/complete" if self.rules.may_ask.elicitation => {
                self.tell(&method, params.unwrap_or_default());
            }
            "notifications/resources/updated" => {
                let params = params.unwrap_or_default();
                self.server.subscriptions.told(&self.server, &self.key, params);
            }
            _ => self.server.hear(&method),
        }
    }

    fn let_go(&self, wait: Duration) {
        if let Some(channel) = self.side.as_ref().and_then(|side| side.channel.as_ref()) {
            channel.let_go(wait);
        }
    }

    fn request(
        &self,
        request: Request,
    ) -> Pin<Box<dyn Future<Output = Result<Value, ErrorReply>> + Send>> {
        self.heard.store(true, Ordering::Release);
        let asking = self.ask(&request.method, request.params.clone());
        answered(request, asking)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_message_reaches_who_wants_its_level_or_a_lower_one() {
        assert!(reaches(Some("error"), Some("warning")));
        assert!(reaches(Some("warning"), Some("warning")));
        assert!(!reaches(Some("info"), Some("warning")));
        assert!(!reaches(Some("info"), None) && !reaches(None, Some("info")));
        assert!(!reaches(Some("shouting"), Some("debug")));
    }
}
