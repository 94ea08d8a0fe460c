//! Tasks of writes that nobody waits for any more, found at the start or left by a call whose time was over: each is
//! asked for until it tells, or a day has gone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Engine;
use super::together::together;
use crate::call::Sending;
use crate::ledger::OpenTask;
use crate::ledger::resolver::{Followed, wait};
use crate::telemetry::record::wall_clock;

/// Tasks asked for at once.
const AT_ONCE: usize = 8;
/// How often is looked for tasks whose time has come: the least interval of a server's.
const LOOK: Duration = Duration::from_millis(200);
/// Where there is no way to ask: the policy in force has none, or its server has not been heard of yet.
const NO_WAY: Duration = Duration::from_secs(1);
/// So long after its write became unknown a task is followed.
const GIVE_UP: Duration = Duration::from_secs(24 * 3600);

impl Engine {
    /// Follows tasks until the gateway drains.
    pub async fn follow_tasks(self: Arc<Self>) {
        self.draining.run_until_cancelled(self.following()).await;
    }

    async fn following(&self) {
        let mut next: HashMap<Sending, Instant> = HashMap::new();
        loop {
            let (open, more) = self.ledger.open_tasks();
            let quiet = open.is_empty() && !more;
            let now = Instant::now();
            let due = |one: &OpenTask| next.get(&one.sending).is_none_or(|due| *due <= now);
            let (due, later): (Vec<_>, Vec<_>) = open.into_iter().partition(due);
            let asked = due.into_iter().map(|open| self.follow(open)).collect();
            let mut times: HashMap<Sending, Instant> = HashMap::new();
            for open in later {
                times.extend(next.get(&open.sending).map(|due| (open.sending, *due)));
            }
            for (sending, again) in together(asked, AT_ONCE).await {
                times.extend(again.map(|again| (sending, Instant::now() + again)));
            }
            next = times;
            match quiet {
                true => self.ledger.task_came().await,
                false => wait(Instant::now() + LOOK).await,
            }
        }
    }

    /// When it is to be asked for again; `None`: never.
    async fn follow(&self, open: OpenTask) -> (Sending, Option<Duration>) {
        let (sending, operation) = (open.sending, open.sending.key.id());
        let tool = &open.tool;
        if wall_clock().duration_since(open.since).unwrap_or_default() > GIVE_UP {
            tracing::warn!(%operation, %tool, "a task has told nothing for a day; a person must check");
            self.ledger.leave_task(&sending);
            return (sending, None);
        }
        // Of the policy in force.
        let hands = self.current.load().hands.get(tool).cloned();
        let Some(hands) = hands.filter(|hands| hands.task.is_some()) else {
            return (sending, Some(NO_WAY));
        };
        match self.ledger.resolver().follow(&self.ledger, &hands, &open).await {
            Followed::Again(wait) => (sending, Some(wait)),
            Followed::Elsewhere => (sending, None),
            Followed::Known(_) => {
                tracing::info!(%operation, %tool, "an unknown write became known: its task has ended");
                (sending, None)
            }
            Followed::Over(why) => {
                tracing::warn!(%operation, %tool, %why, "a task tells nothing of its write; a person must check");
                self.ledger.leave_task(&sending);
                (sending, None)
            }
        }
    }
}
