//! A write to an upstream spoils what was read from it: when it goes out, and again when its exchange has ended, however
//! it ended and whoever still waits for it. What is read between the two is kept for nobody who comes after.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tower::{Layer, Service};

use crate::call::{Failed, Polled, TaskWay, ToolCall, ToolResult};

/// Every value of every mark of the process, once: a mark that is made anew stands where none stood before.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Changes with everything that makes old answers wrong.
#[derive(Debug)]
pub struct Mark(AtomicU64);

impl Default for Mark {
    fn default() -> Self {
        Self(AtomicU64::new(next()))
    }
}

fn next() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Mark {
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    pub fn change(&self) {
        self.0.store(next(), Ordering::SeqCst);
    }
}

/// How the marks of one tool stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Marks {
    pub writes: u64,
    pub by_hand: u64,
}

/// Around the back end of a write: below `timeout`, so that an exchange that is only drained still counts.
#[derive(Debug, Clone)]
pub struct SpoilLayer {
    pub mark: Arc<Mark>,
}

impl<S> Layer<S> for SpoilLayer {
    type Service = Spoil<S>;
    fn layer(&self, inner: S) -> Spoil<S> {
        Spoil { mark: self.mark.clone(), inner }
    }
}

#[derive(Debug, Clone)]
pub struct Spoil<S> {
    mark: Arc<Mark>,
    inner: S,
}

/// Changes the mark when the exchange is over, also by being dropped.
struct Spoils(Arc<Mark>);

impl Drop for Spoils {
    fn drop(&mut self) {
        self.0.change();
    }
}

impl<S> Service<ToolCall> for Spoil<S>
where
    S: Service<ToolCall, Response = ToolResult, Error = Failed>,
    S::Future: Future<Output = Result<ToolResult, Failed>> + Send + 'static,
{
    type Response = ToolResult;
    type Error = Failed;
    type Future = Pin<Box<dyn Future<Output = Result<ToolResult, Failed>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        self.mark.change();
        let spoils = Spoils(self.mark.clone());
        let exchange = self.inner.call(call);
        Box::pin(async move {
            let ended = exchange.await;
            drop(spoils);
            ended
        })
    }
}

/// The way to ask for tasks of writes to the upstream: the end of one is the end of its write, also long after its call.
pub fn spoiling(way: TaskWay, mark: Arc<Mark>) -> TaskWay {
    TaskWay::new(move |task| {
        let (polling, mark) = (way.poll(task), mark.clone());
        Box::pin(async move {
            let polled = polling.await;
            match polled {
                Polled::Ended(_) | Polled::Over(_) => mark.change(),
                Polled::Working(_) | Polled::NoAnswer => {}
            }
            polled
        })
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::call::{AgentId, RunId, TaskOf};

    async fn changes(shows: fn() -> Polled) -> bool {
        let mark = Arc::new(Mark::default());
        let stood = mark.now();
        let way =
            spoiling(TaskWay::new(move |_| Box::pin(std::future::ready(shows()))), mark.clone());
        let of = TaskOf {
            agent: AgentId::new("a").expect("a name"),
            run: RunId::new("r").expect("an id"),
            task: "t".into(),
        };
        drop(way.poll(of).await);
        mark.now() != stood
    }

    #[tokio::test]
    async fn the_end_of_a_task_spoils_and_asking_for_one_does_not() {
        assert!(changes(|| Polled::Ended(Box::new(Err(Failed::internal("x"))))).await);
        assert!(changes(|| Polled::Over("gone".into())).await);
        assert!(!changes(|| Polled::Working(Duration::ZERO)).await);
        assert!(!changes(|| Polled::NoAnswer).await);
    }
}
