//! The way back to an agent while one of its calls is open: progress under its own token, log messages of the level it
//! wants, questions it declared that it can be asked. Nothing here waits for the reader.

use std::collections::VecDeque;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::asks::{Asked, Asks};
use super::stdio::Writer;
use super::streams::Stream;
use crate::call::{Channel, NoAnswer};
use crate::frontends::body::EventSender;
use crate::mcp::jsonrpc::{self, Id};
use crate::mcp::messages::{AskKind, ClientCapabilities};
use crate::mcp::sse;
use crate::mcp::version::Revision;

/// At most so many progress notifications of a call in any second; of those beyond, the last one wins.
const PROGRESS_A_SECOND: usize = 10;
const SECOND: Duration = Duration::from_secs(1);

/// Log levels, the least first (RFC 5424).
pub(super) const LEVELS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// Whether a message of `level` reaches who wants `wanted` and above. Unknown levels do not.
pub(super) fn is_wanted(level: Option<&str>, wanted: Option<&str>) -> bool {
    let rank = |level: &str| LEVELS.iter().position(|known| *known == level);
    match (level.and_then(rank), wanted.and_then(rank)) {
        (Some(level), Some(wanted)) => level >= wanted,
        (None, _) | (_, None) => false,
    }
}

/// Where messages to an agent go.
#[derive(Debug, Clone)]
pub(super) enum Out {
    Events(EventSender),
    /// A stream of a session, which its agent may come back to.
    Kept(Stream),
    Lines(Writer),
}

impl Out {
    /// Sends one message. False: nobody takes it.
    pub(super) fn send(&self, message: &[u8]) -> bool {
        match self {
            Out::Events(events) => events.send(sse::event(message)),
            Out::Kept(stream) => stream.send(message),
            Out::Lines(lines) => lines.send(message),
        }
    }

    /// Cancelled once nobody takes it, and nobody will.
    pub(super) fn gone(&self) -> &CancellationToken {
        match self {
            Out::Events(events) => events.gone(),
            Out::Kept(stream) => stream.gone(),
            Out::Lines(lines) => lines.gone(),
        }
    }

    /// Holds no connection for a while, where its agent can come back.
    pub(super) fn let_go(&self, wait: Duration) {
        match self {
            Out::Kept(stream) => stream.let_go(wait),
            Out::Events(_) | Out::Lines(_) => {}
        }
    }
}

/// One call's way back.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) out: Out,
    /// The agent's own token.
    pub(super) token: Option<Value>,
    pub(super) log_level: Option<Arc<str>>,
    /// `None`: the revision knows no requests of servers.
    pub(super) asks: Option<Arc<Asks>>,
    pub(super) capabilities: Arc<Value>,
    pub(super) revision: Revision,
    pub(super) said: Mutex<Said>,
    /// The call is answered or taken back: nothing more of it is sent.
    pub(super) closed: AtomicBool,
}

/// What was said of a call's progress.
#[derive(Debug, Default)]
pub(super) struct Said {
    progress: Option<f64>,
    /// When the last notifications went out, at most `PROGRESS_A_SECOND` of them.
    at: VecDeque<Instant>,
    waiting: Option<Value>,
}

impl Line {
    /// Says what still waits, and closes: to be called before the answer is sent.
    pub(super) fn close(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            let waiting = self.said().waiting.take();
            if let Some(params) = waiting {
                self.say("notifications/progress", &params);
            }
        }
    }

    fn said(&self) -> std::sync::MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, method: &str, params: &Value) {
        if !self.out.send(&jsonrpc::write_notification(method, Some(params))) {
            tracing::debug!(method, "an agent no longer listens to its call");
        }
    }

    /// Only increasing, at most ten a second, under the agent's token; without a token nothing.
    fn progress(&self, mut params: Value) {
        let Some(token) = &self.token else { return };
        let Some(progress) = params.get("progress").and_then(Value::as_f64) else { return };
        let Value::Object(members) = &mut params else { return };
        members.insert("progressToken".to_owned(), token.clone());
        let now = Instant::now();
        let mut said = self.said();
        if said.progress.is_some_and(|last| progress <= last) {
            return;
        }
        said.progress = Some(progress);
        while said.at.front().is_some_and(|at| now.saturating_duration_since(*at) >= SECOND) {
            said.at.pop_front();
        }
        if said.at.len() >= PROGRESS_A_SECOND {
            said.waiting = Some(params);
            return;
        }
        said.at.push_back(now);
        said.waiting = None;
        drop(said);
        self.say("notifications/progress", &params);
    }
}

/// Whether an agent that declared `capabilities` can be asked this.
pub(super) fn can_be_asked(
    capabilities: &Value,
    revision: Revision,
    method: &str,
    params: &Value,
) -> bool {
    let declared = ClientCapabilities::of(capabilities);
    match AskKind::of(method, Some(params)) {
        Some(AskKind::ElicitForm) => declared.elicitation_form,
        Some(AskKind::ElicitUrl) => declared.elicitation_url && revision.features().url_elicitation,
        Some(AskKind::Sampling) => declared.sampling,
        Some(AskKind::Roots) => declared.roots,
        None => false,
    }
}

/// A question and its answer, from whoever it was put to; `gone`: nobody can hear it any more.
pub(super) fn answer_to(asked: Asked, gone: CancellationToken) -> Answering {
    Box::pin(async move {
        tokio::select! {
            answer = asked.answer() => answer,
            () = gone.cancelled() => Err(NoAnswer::Gone),
        }
    })
}

pub(super) type Answering = Pin<Box<dyn Future<Output = Result<Value, NoAnswer>> + Send>>;

impl Channel for Line {
    fn notify(&self, method: &str, params: Value) {
        if self.closed.load(Ordering::Acquire) {
            tracing::debug!(method, "a message about a call that is over was dropped");
            return;
        }
        match method {
            "notifications/progress" => self.progress(params),
            "notifications/message" => {
                let level = params.get("level").and_then(Value::as_str);
                if is_wanted(level, self.log_level.as_deref()) {
                    self.say(method, &params);
                }
            }
            _ => self.say(method, &params),
        }
    }

    fn ask(&self, method: &str, params: Value) -> Answering {
        let asked = match &self.asks {
            Some(asks) if can_be_asked(&self.capabilities, self.revision, method, &params) => {
                asks.ask().filter(|_| !self.closed.load(Ordering::Acquire)).ok_or(NoAnswer::Gone)
            }
            Some(_) | None => Err(NoAnswer::NotDeclared),
        };
        let asked = asked.and_then(|asked| {
            let request = jsonrpc::write_request(&asked.id(), method, Some(&params));
            if self.out.send(&request) { Ok(asked) } else { Err(NoAnswer::Gone) }
        });
        match asked {
            Ok(asked) => answer_to(asked, self.out.gone().clone()),
            Err(why) => Box::pin(ready(Err(why))),
        }
    }

    fn let_go(&self, wait: Duration) {
        self.out.let_go(wait);
    }
}

/// The id that a `notifications/cancelled` names.
pub(super) fn cancelled_id(params: Option<&Value>) -> Option<Id> {
    Id::of(params?.get("requestId")?)
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use serde_json::json;

    use super::*;
    use crate::frontends::body::{Body, events};

    fn line(token: Option<Value>, level: Option<&str>) -> (Line, Body) {
        let (sender, body) = events();
        let line = Line {
            out: Out::Events(sender),
            token,
            log_level: level.map(Arc::from),
            asks: Some(Arc::default()),
            capabilities: Arc::new(json!({"elicitation": {}})),
            revision: Revision::V2025_06_18,
            said: Mutex::default(),
            closed: AtomicBool::new(false),
        };
        (line, body)
    }

    async fn said(line: Line, mut body: Body) -> Vec<String> {
        line.close();
        drop(line);
        let mut all = Vec::new();
        while let Some(frame) = body.frame().await {
            let data = frame.expect("whole").into_data().expect("data");
            all.push(String::from_utf8(data.to_vec()).expect("UTF-8"));
        }
        all
    }

    fn progress_of(said: &[String]) -> Vec<i64> {
        let of = |one: &String| {
            let (_, after) = one.split_once(r#""progress":"#).expect("progress");
            after.split(['}', ',']).next().expect("a number").parse().expect("a whole number")
        };
        said.iter().map(of).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn progress_increases_under_the_agents_token() {
        for token in [json!("x"), json!(7)] {
            let (line, body) = line(Some(token.clone()), None);
            for progress in [1, 1, 3, 2, 4] {
                let params = json!({"progressToken": 99, "progress": progress});
                line.notify("notifications/progress", params);
            }
            let all = said(line, body).await;
            assert_eq!(progress_of(&all), [1, 3, 4], "{all:?}");
            let token = format!(r#""progressToken":{token},"#);
            assert!(all.iter().all(|one| one.contains(&token)), "{all:?}");
        }
        let (line, body) = line(None, None);
        line.notify("notifications/progress", json!({"progress": 1}));
        assert_eq!(said(line, body).await, Vec::<String>::new(), "no token, no notification");
    }

    #[tokio::test(start_paused = true)]
    async fn of_progress_beyond_ten_a_second_the_last_one_wins() {
        let (line, body) = line(Some(json!(1)), None);
        for progress in 1..=30 {
            line.notify("notifications/progress", json!({"progress": progress}));
            if progress == 20 {
                tokio::time::advance(SECOND).await;
            }
        }
        line.notify("notifications/progress", json!({"progress": 31}));
        let all = said(line, body).await;
        let told: Vec<i64> = (1..=10).chain(21..=31).collect();
        assert_eq!(
            progress_of(&all),
            told,
            "the rest came too fast; the last is said with the answer"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_said_of_a_call_that_is_over() {
        let (line, body) = line(Some(json!(1)), Some("debug"));
        line.close();
        line.notify("notifications/progress", json!({"progress": 1}));
        line.notify("notifications/message", json!({"level": "error"}));
        assert_eq!(line.ask("elicitation/create", json!({})).await, Err(NoAnswer::Gone));
        assert_eq!(said(line, body).await, Vec::<String>::new());
    }

    #[tokio::test(start_paused = true)]
    async fn log_messages_below_the_wanted_level_are_dropped() {
        let (line, body) = line(None, Some("warning"));
        for level in ["debug", "notice", "warning", "emergency", "loud"] {
            line.notify("notifications/message", json!({"level": level}));
        }
        assert_eq!(said(line, body).await.len(), 2);
        assert!(!is_wanted(Some("error"), None), "unasked, none");
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_was_declared_is_asked() {
        let (line, body) = line(None, None);
        for (method, params) in [
            ("sampling/createMessage", json!({})),
            ("roots/list", json!({})),
            ("elicitation/create", json!({"mode": "url"})),
            ("tools/call", json!({})),
        ] {
            assert_eq!(line.ask(method, params).await, Err(NoAnswer::NotDeclared), "{method}");
        }
        let waits = line.ask("elicitation/create", json!({"message": "Really?"}));
        let asks = line.asks.clone().expect("asks");
        let response = jsonrpc::Response { id: Id::from(1), result: json!({"action": "accept"}) };
        asks.answered(response);
        assert_eq!(waits.await, Ok(json!({"action": "accept"})));
        assert_eq!(said(line, body).await.len(), 1);
    }
}
