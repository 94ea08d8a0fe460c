//! Requests to an agent and the answers it gives: ids of ours, unique in a session, each answered once or never.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::oneshot;

use crate::call::NoAnswer;
use crate::mcp::jsonrpc::{ErrorReply, Id, Response};

/// Questions of one session that wait for an answer.
pub(super) const MAX_OPEN: usize = 64;

type Answered = Result<Value, NoAnswer>;

/// What was asked in one session, or over one connection.
#[derive(Debug, Default)]
pub(super) struct Asks(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// The last id given; ids are never used again.
    last: u64,
    open: HashMap<u64, oneshot::Sender<Answered>>,
    closed: bool,
}

/// A question that waits; forgotten when dropped.
#[derive(Debug)]
pub(super) struct Asked {
    of: Arc<Asks>,
    id: u64,
    answer: oneshot::Receiver<Answered>,
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.of.table().open.remove(&self.id);
    }
}

impl Asked {
    pub(super) fn id(&self) -> Id {
        Id::from(self.id)
    }

    pub(super) async fn answer(mut self) -> Answered {
        (&mut self.answer).await.unwrap_or(Err(NoAnswer::Gone))
    }
}

/// What an answer of the agent's was worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// It went to whoever asked, or whoever asked has gone: nothing is wrong with it.
    Yes,
    /// An id that was never given.
    NeverAsked,
}

impl Asks {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: too many wait, or the session is over.
    pub(super) fn ask(self: &Arc<Self>) -> Option<Asked> {
        let (sender, answer) = oneshot::channel();
        let mut table = self.table();
        if table.closed || table.open.len() >= MAX_OPEN {
            return None;
        }
        table.last += 1;
        let id = table.last;
        table.open.insert(id, sender);
        drop(table);
        Some(Asked { of: self.clone(), id, answer })
    }

    pub(super) fn answered(&self, response: Response) -> Taken {
        self.take(Some(&response.id), Ok(response.result))
    }

    pub(super) fn refused(&self, error: ErrorReply) -> Taken {
        self.take(error.id.as_ref(), Err(NoAnswer::Refused(error.code, error.message)))
    }

    fn take(&self, id: Option<&Id>, answer: Answered) -> Taken {
        let Some(id) = id.and_then(Id::as_u64) else { return Taken::NeverAsked };
        let mut table = self.table();
        if id == 0 || id > table.last {
            return Taken::NeverAsked;
        }
        let waiting = table.open.remove(&id);
        drop(table);
        // Whoever asked may have gone meanwhile; then the answer is late and dropped.
        let heard = waiting.is_some_and(|waiting| waiting.send(answer).is_ok());
        tracing::debug!(heard, "an agent answered a question");
        Taken::Yes
    }

    /// Nobody answers any more.
    pub(super) fn close(&self) {
        let mut table = self.table();
        table.closed = true;
        table.open.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(id: Id) -> Response {
        Response { id, result: Value::Bool(true) }
    }

    #[tokio::test]
    async fn each_answer_goes_to_its_asker_and_late_ones_are_dropped() {
        let asks = Arc::new(Asks::default());
        let (one, two) = (asks.ask().expect("room"), asks.ask().expect("room"));
        let (first, second) = (one.id(), two.id());
        assert_eq!(asks.answered(answer(second.clone())), Taken::Yes);
        assert_eq!(two.answer().await, Ok(Value::Bool(true)));
        drop(one);
        assert_eq!(asks.answered(answer(first)), Taken::Yes, "late, dropped");
        assert_eq!(asks.answered(answer(second)), Taken::Yes, "twice, dropped");
        for never in [Id::from(0), Id::from(3), Id::text("1")] {
            assert_eq!(asks.answered(answer(never)), Taken::NeverAsked);
        }
    }

    #[tokio::test]
    async fn questions_are_bounded_and_end_with_the_session() {
        let asks = Arc::new(Asks::default());
        let open: Vec<Asked> = (0..MAX_OPEN).map(|_| asks.ask().expect("room")).collect();
        assert!(asks.ask().is_none());
        asks.close();
        for asked in open {
            assert_eq!(asked.answer().await, Err(NoAnswer::Gone));
        }
        assert!(asks.ask().is_none());
    }
}
