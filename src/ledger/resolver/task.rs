//! A write whose tool answered with a task: the handle is a status query that is ready to be asked, by a call that means
//! the same operation and, when nobody waits, in the background. Nothing is ever sent again for it.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{Hands, Resolver, Settled, still};
use crate::call::{Sending, TaskOf};
use crate::ledger::{End, Ledger, OpenTask};

/// Counted and kept as one who settled it.
const BY: &str = "status_query";
/// After a question that got no answer.
const LATER: Duration = Duration::from_secs(10);
/// Longest that one question in the background takes.
const QUESTION: Duration = Duration::from_secs(60);

/// What one question showed.
#[derive(Debug)]
pub enum Shown {
    Known(End),
    /// Not yet; worth asking again after so long.
    Again(Duration),
    NoAnswer,
    /// The task will tell nothing more. Why.
    Over(String),
}

/// How far following a task came.
#[derive(Debug)]
pub enum Followed {
    /// It is known, and in the ledger.
    Known(End),
    /// Somebody else settled it meanwhile.
    Elsewhere,
    /// To be asked again after so long.
    Again(Duration),
    /// It stays unknown, as far as the task goes. Why.
    Over(String),
}

impl Resolver {
    /// Asks once for the task of an unknown write; what it tells is on record when this returns.
    pub async fn follow(&self, ledger: &Ledger, hands: &Hands, open: &OpenTask) -> Followed {
        ask(ledger, hands, (open.sending, &open.of), Instant::now() + QUESTION).await
    }
}

async fn ask(
    ledger: &Ledger,
    hands: &Hands,
    (about, of): (Sending, &TaskOf),
    by: Instant,
) -> Followed {
    if still(ledger, about).is_none() {
        return Followed::Elsewhere;
    }
    let Some(poll) = &hands.task else { return Followed::Again(LATER) };
    let shown = timeout_at(by, poll(about.key, of.clone())).await;
    let end = match shown.unwrap_or(Shown::NoAnswer) {
        Shown::Known(end) => end,
        Shown::Again(wait) => return Followed::Again(wait),
        Shown::NoAnswer => return Followed::Again(LATER),
        Shown::Over(why) => return Followed::Over(why),
    };
    if ledger.book.upgrade(about, &end, BY).await {
        (hands.upgraded)(BY);
        return Followed::Known(end);
    }
    // Known here and not on record is not known.
    match still(ledger, about) {
        Some(_) => Followed::Again(LATER),
        None => Followed::Elsewhere,
    }
}

/// For a call that means the same operation: asked once, at once, because what follows the task in the background goes on.
/// `None`: the task tells nothing; other ways may.
pub(super) async fn settle(
    ledger: &Ledger,
    hands: &Hands,
    about: (Sending, &TaskOf),
    by: Instant,
) -> Option<Settled> {
    match ask(ledger, hands, about, by).await {
        Followed::Known(end) => Some(Settled::Known(end)),
        Followed::Elsewhere => Some(Settled::Elsewhere),
        Followed::Again(_) => Some(Settled::Still),
        Followed::Over(_) => None,
    }
}
