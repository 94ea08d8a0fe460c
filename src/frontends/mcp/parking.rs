//! Calls that wait inside the gateway: a server of a legacy revision asks in the middle of a call, and an agent of
//! 2026-07-28 answers in a request of its own. The call keeps all it holds; only its agent's request ends and comes again.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::channel::Line;
use crate::call::{AgentId, CallId, Channel, Denied, NoAnswer, RunId};
use crate::engine::Answer;
use crate::mcp::messages::{AskKind, MAX_ASKS};
use crate::mcp::translate::ask_to_modern;

/// Parked calls of one agent; past it a server is told that nobody can be asked.
pub(super) const MAX_PARKED: usize = 64;
/// How long the end of a parked call is kept for an agent that asks again.
const KEPT: Duration = Duration::from_secs(600);

/// How a call ended that could be parked.
pub(super) type Ended = Result<(RunId, Answer), Denied>;

/// All parked calls, by agent.
#[derive(Debug, Default)]
pub(super) struct Lot(Mutex<HashMap<AgentId, Vec<Arc<Parked>>>>);

impl Lot {
    fn lock(&self) -> MutexGuard<'_, HashMap<AgentId, Vec<Arc<Parked>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A parked call of this agent; `None`: it has gone.
    pub(super) fn find(&self, agent: &AgentId, id: &str) -> Option<Arc<Parked>> {
        let lot = self.lock();
        lot.get(agent)?.iter().find(|one| one.id.as_str() == id).cloned()
    }

    /// Takes a call in; of those that have ended the oldest goes for it.
    fn admit(&self, parked: Arc<Parked>) -> bool {
        let mut lot = self.lock();
        let own = lot.entry(parked.agent.clone()).or_default();
        own.retain(|one| !one.is_stale());
        if own.len() >= MAX_PARKED {
            let Some(at) = own.iter().position(|one| one.has_ended()) else { return false };
            own.remove(at);
        }
        own.push(parked);
        true
    }

    /// Forgets ends that nobody came for; called on a timer.
    pub(super) fn sweep(&self) {
        self.lock().retain(|_, own| {
            own.retain(|one| !one.is_stale());
            !own.is_empty()
        });
    }
}

/// One call that may be parked. It is the call's channel, too.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) agent: AgentId,
    /// The call's own id: by it the ledger knows the operation.
    pub(super) id: CallId,
    lot: Weak<Lot>,
    this: Weak<Parked>,
    cancelled: CancellationToken,
    task: OnceLock<AbortHandle>,
    inner: Mutex<Inner>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Inner {
    /// It is in the lot.
    waits: bool,
    /// To whoever waits for it now.
    line: Option<Arc<Line>>,
    run: Option<RunId>,
    asked: usize,
    open: Vec<Question>,
    ended: Option<Ended>,
    /// No word is to come any more, and when that was.
    over: Option<Instant>,
}

#[derive(Debug)]
struct Question {
    key: String,
    request: Value,
    answer: oneshot::Sender<Result<Value, NoAnswer>>,
}

/// What an agent that waits for a call hears next.
#[derive(Debug)]
pub(super) enum Word {
    Ended(Ended),
    /// `inputRequests`, and the run the call is in.
    Asks(Map<String, Value>, Option<RunId>),
    /// It was cut without an end.
    Lost,
}

impl Parked {
    pub(super) fn new(
        lot: &Arc<Lot>,
        agent: &AgentId,
        id: &CallId,
        cancelled: &CancellationToken,
        line: Option<Arc<Line>>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            agent: agent.clone(),
            id: id.clone(),
            lot: Arc::downgrade(lot),
            this: this.clone(),
            cancelled: cancelled.clone(),
            task: OnceLock::new(),
            inner: Mutex::new(Inner { line, ..Inner::default() }),
            changed: watch::Sender::new(()),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_ended(&self) -> bool {
        self.lock().over.is_some()
    }

    fn is_stale(&self) -> bool {
        self.lock().over.is_some_and(|over| over.elapsed() >= KEPT)
    }

    pub(super) fn runs_as(&self, task: AbortHandle) {
        // Set once, by whoever began the call.
        drop(self.task.set(task));
    }

    pub(super) fn entered(&self, run: &RunId) {
        self.lock().run = Some(run.clone());
    }

    /// The call's task is over; `None`: without an end.
    fn end(&self, ended: Option<Ended>) {
        let mut inner = self.lock();
        if inner.over.is_none() {
            inner.over = Some(Instant::now());
            inner.ended = ended;
            inner.open.clear();
        }
        drop(inner);
        self.changed.send_replace(());
    }

    /// Carries the call to its end, whoever waits for it.
    pub(super) async fn carry(self: Arc<Self>, call: impl Future<Output = Ended>) {
        let cut = Cut(self.clone());
        let ended = call.await;
        self.end(Some(ended));
        drop(cut);
    }

    /// Answers questions; those that are not answered stay open. From here on messages go along `line`.
    pub(super) fn go_on(&self, responses: &Value, line: Option<Arc<Line>>) {
        let mut inner = self.lock();
        inner.line = line;
        let open = std::mem::take(&mut inner.open);
        for question in open {
            match responses.get(&question.key) {
                Some(answer) => drop(question.answer.send(Ok(answer.clone()))),
                None => inner.open.push(question),
            }
        }
    }

    /// Waits for what comes next. Who drops this before has gone, and takes the call back: a read is cut, a write that
    /// has begun goes on. `taken_back`: in so many words.
    pub(super) async fn word(&self, taken_back: &CancellationToken) -> Word {
        let waiting = Waiting(Some(self));
        let mut changed = self.changed.subscribe();
        let mut told = false;
        let word = loop {
            if let Some(word) = self.next() {
                break word;
            }
            tokio::select! {
                heard = changed.changed() => if heard.is_err() { break Word::Lost },
                () = taken_back.cancelled(), if !told => {
                    told = true;
                    self.cancelled.cancel();
                }
            }
        };
        waiting.over();
        word
    }

    fn next(&self) -> Option<Word> {
        let mut inner = self.lock();
        if inner.over.is_some() {
            return Some(inner.ended.clone().map_or(Word::Lost, Word::Ended));
        }
        inner.open.retain(|question| !question.answer.is_closed());
        if inner.open.is_empty() {
            return None;
        }
        let open = inner.open.iter();
        let asks = open.map(|question| (question.key.clone(), question.request.clone())).collect();
        Some(Word::Asks(asks, inner.run.clone()))
    }

    fn question(
        &self,
        kind: AskKind,
        params: &Value,
    ) -> Result<oneshot::Receiver<Result<Value, NoAnswer>>, NoAnswer> {
        let (answer, answered) = oneshot::channel();
        let mut inner = self.lock();
        if inner.over.is_some() || inner.open.len() >= MAX_ASKS {
            return Err(NoAnswer::Gone);
        }
        if !inner.waits {
            let (lot, this) = (self.lot.upgrade(), self.this.upgrade());
            let (Some(lot), Some(this)) = (lot, this) else { return Err(NoAnswer::Gone) };
            inner.waits = true;
            // The lot looks at its calls under its own lock.
            drop(inner);
            let admitted = lot.admit(this);
            inner = self.lock();
            if !admitted {
                inner.waits = false;
                return Err(NoAnswer::NotDeclared);
            }
        }
        inner.asked += 1;
        let key = format!("q{}", inner.asked);
        inner.open.push(Question { key, request: ask_to_modern(kind, Some(params)), answer });
        drop(inner);
        self.changed.send_replace(());
        Ok(answered)
    }
}

impl Channel for Parked {
    fn notify(&self, method: &str, params: Value) {
        let line = self.lock().line.clone();
        if let Some(line) = line {
            line.notify(method, params);
        }
    }

    fn ask(
        &self,
        method: &str,
        params: Value,
    ) -> Pin<Box<dyn Future<Output = Result<Value, NoAnswer>> + Send>> {
        let kind = AskKind::of(method, Some(&params)).ok_or(NoAnswer::NotDeclared);
        let asked = kind.and_then(|kind| self.question(kind, &params));
        Box::pin(async move { asked?.await.unwrap_or(Err(NoAnswer::Gone)) })
    }
}

/// Says that there is no end to come, should the call's task be cut.
struct Cut(Arc<Parked>);

impl Drop for Cut {
    fn drop(&mut self) {
        self.0.end(None);
    }
}

/// Somebody waits; who goes away takes the call along.
struct Waiting<'p>(Option<&'p Parked>);

impl Waiting<'_> {
    fn over(mut self) {
        self.0 = None;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(task) = self.0.and_then(|parked| parked.task.get()) {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parked(lot: &Arc<Lot>, agent: &str) -> Arc<Parked> {
        let agent = AgentId::new(agent).expect("a name");
        Parked::new(lot, &agent, &CallId::mint(), &CancellationToken::new(), None)
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_parks_no_more_than_so_many_calls_and_ends_make_room() {
        let lot = Arc::new(Lot::default());
        let ask = |parked: &Arc<Parked>| parked.ask("elicitation/create", json!({"message": "?"}));
        let all: Vec<_> = (0..MAX_PARKED).map(|_| parked(&lot, "a")).collect();
        let _open: Vec<_> = all.iter().map(ask).collect();
        assert!(matches!(all[0].word(&CancellationToken::new()).await, Word::Asks(..)));
        assert_eq!(ask(&parked(&lot, "a")).await, Err(NoAnswer::NotDeclared), "no place");
        let other = parked(&lot, "b");
        let _asked = ask(&other);
        assert!(lot.find(&other.agent, other.id.as_str()).is_some(), "another agent's places");
        assert!(lot.find(&all[0].agent, other.id.as_str()).is_none(), "and nobody else's calls");
        all[3].end(None);
        let late = parked(&lot, "a");
        let _asked = ask(&late);
        assert!(lot.find(&late.agent, late.id.as_str()).is_some());
        assert!(lot.find(&late.agent, all[3].id.as_str()).is_none(), "its place was taken");
        all[4].end(None);
        tokio::time::advance(KEPT).await;
        lot.sweep();
        assert!(lot.find(&late.agent, all[4].id.as_str()).is_none(), "kept long enough");
    }

    #[tokio::test]
    async fn what_is_not_answered_is_asked_again_and_an_end_is_heard_twice() {
        let lot = Arc::new(Lot::default());
        let (call, never) = (parked(&lot, "a"), CancellationToken::new());
        let first = call.ask("elicitation/create", json!({"message": "1", "elicitationId": "x"}));
        let second = call.ask("roots/list", json!({}));
        let Word::Asks(asks, _) = call.word(&never).await else { panic!("no question") };
        assert_eq!(
            Value::Object(asks),
            json!({
                "q1": {"method": "elicitation/create", "params": {"message": "1"}},
                "q2": {"method": "roots/list"},
            })
        );
        call.go_on(&json!({"q1": {"action": "accept"}, "q9": 1}), None);
        assert_eq!(first.await, Ok(json!({"action": "accept"})));
        let Word::Asks(asks, _) = call.word(&never).await else { panic!("no question") };
        assert_eq!(asks.keys().collect::<Vec<_>>(), ["q2"]);
        call.end(None);
        assert_eq!(second.await, Err(NoAnswer::Gone));
        assert!(matches!(call.word(&never).await, Word::Lost));
        assert!(matches!(call.word(&never).await, Word::Lost));
    }
}
