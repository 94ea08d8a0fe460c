//! Several futures at once without a task of their own, and one whose panic is an answer. A batch that is dropped
//! drops them all.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

enum Slot<F: Future> {
    Running(Pin<Box<F>>),
    Ended(F::Output),
}

/// Drives all of them, at most `most` at a time, started in order; the outputs come in that order too.
/// One waker serves all: a batch is small, and polling one that is not ready costs less than a task.
pub(super) async fn together<F: Future>(futures: Vec<F>, most: usize) -> Vec<F::Output> {
    let mut slots: Vec<Slot<F>> =
        futures.into_iter().map(|future| Slot::Running(Box::pin(future))).collect();
    poll_fn(|cx| step(&mut slots, most.max(1), cx)).await;
    let ended = slots.into_iter().filter_map(|slot| match slot {
        Slot::Ended(output) => Some(output),
        Slot::Running(_) => None,
    });
    ended.collect()
}

fn step<F: Future>(slots: &mut [Slot<F>], most: usize, cx: &mut Context<'_>) -> Poll<()> {
    let mut running = 0;
    for slot in slots {
        if running == most {
            break;
        }
        let Slot::Running(future) = slot else { continue };
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => *slot = Slot::Ended(output),
            Poll::Pending => running += 1,
        }
    }
    if running == 0 { Poll::Ready(()) } else { Poll::Pending }
}

/// `None` when it panicked; what it held is dropped.
pub(super) async fn unless_it_panics<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        // After a panic the future is never polled again, so nothing sees it half-way.
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(poll) => poll.map(Some),
            Err(_) => Poll::Ready(None),
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn outputs_come_in_order_and_no_more_than_the_bound_run_at_once() {
        let (running, highest) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let one = |n: u64| {
            let (running, highest) = (&running, &highest);
            async move {
                highest.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let until = Instant::now() + Duration::from_secs(10 - n);
                drop(tokio::time::timeout_at(until, std::future::pending::<()>()).await);
                running.fetch_sub(1, Ordering::SeqCst);
                n
            }
        };
        let outputs = together((0..10).map(one).collect(), 3).await;
        assert_eq!(outputs, (0..10).collect::<Vec<_>>());
        assert_eq!(highest.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn a_panic_is_no_output() {
        assert_eq!(unless_it_panics(async { 7 }).await, Some(7));
        let broken: Option<u8> = unless_it_panics(async { panic!("on purpose") }).await;
        assert_eq!(broken, None);
    }
}
