//! What to do next about an unknown write: a pure rule over what has been tried, what helps, and the time.

use std::time::Duration;

use tokio::time::Instant;

/// Times the key is sent again for one call that asks. A tool of which half the answers are lost is settled by six
/// in 63 of 64 cases; together their waits fit into five seconds.
pub const RESENDS_AN_ASKING: u32 = 6;
/// Times one write is sent again in its life, as far as this process knows it: whatever asks how often.
pub const RESENDS_A_WRITE: u32 = 24;
/// Longest a call is held before a further try is begun for it; the try that is begun ends by the tool's own limits.
pub const MAX_HELD: Duration = Duration::from_secs(10);
/// Times one asking waits out the gateway's own limits: cooldowns, buckets, places, circuits.
const MAX_HELD_BACK: u32 = 20;
/// Wait before the key is sent again: doubled with each try, up to the most, and up to half as much on top by chance.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const MOST_WAIT: Duration = Duration::from_millis(800);

/// Between two questions whose answers count for nothing, however short `settle` is.
const LEAST_BETWEEN: Duration = Duration::from_millis(100);

/// What helps with a tool's unknown writes: plain values of its policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remedies {
    /// How long the tool recognises a key. `None` = nothing is sent again.
    pub window: Option<Duration>,
    pub query: Option<Query>,
    /// Arguments may differ where operations do not: only what was sent first is sent again.
    pub volatile: bool,
    /// Longest from a sending until it is called unknown: as much less of the window is left where only the latter
    /// is on record.
    pub lag: Duration,
    /// How long an exchange that nobody waits for goes on.
    pub drain: Duration,
}

/// When a tool's read is asked what became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query {
    /// After the last sending, and between two answers that it did not happen.
    pub settle: Duration,
    pub tries: u32,
}

/// What has been done about one unknown write.
#[derive(Debug, Clone)]
pub struct Progress {
    /// When it, or its key, was last sent.
    pub sent_at: Instant,
    /// When the key was first sent: the window counts from there.
    pub first_sent: Instant,
    /// Sendings in its life.
    pub resends: u32,
    /// Tries of this asking: sendings, and those that never reached the tool.
    pub tries: u32,
    /// Times this asking met a limit of the gateway's own.
    pub held_back: u32,
    /// That limit's word; nothing is tried before.
    pub not_before: Option<Instant>,
    /// No sending will tell more.
    pub no_more: bool,
    /// No sending for this asking.
    pub not_now: bool,
    pub queries: u32,
    /// Questions whose "no" came too early to count.
    pub early: u32,
    pub asked_at: Option<Instant>,
    /// Before then an earlier process's exchange may still have an effect: a "no" counts for nothing.
    pub no_counts_from: Option<Instant>,
    /// The read said that it did not happen; first when.
    pub absent_since: Option<Instant>,
    pub contradiction: bool,
    /// What ended it, and then the last answer that would be given for ever: the same again is one.
    pub(super) said: String,
    /// Of the next wait, in thousandths of its half.
    pub(super) chance: u32,
}

impl Progress {
    pub(super) fn new(first_sent: Instant, now: Instant) -> Self {
        Self {
            sent_at: now,
            first_sent,
            resends: 0,
            tries: 0,
            held_back: 0,
            not_before: None,
            no_more: false,
            not_now: false,
            queries: 0,
            early: 0,
            asked_at: None,
            no_counts_from: None,
            absent_since: None,
            contradiction: false,
            said: String::new(),
            chance: fastrand::u32(0..=1000),
        }
    }

    /// A further call asks; it has tries of its own.
    pub(super) fn asked_again(&mut self) {
        self.tries = 0;
        self.held_back = 0;
        self.not_before = None;
        self.not_now = false;
    }

    /// A try is over.
    pub(super) fn tried(&mut self) {
        self.tries += 1;
        self.not_before = None;
        self.chance = fastrand::u32(0..=1000);
    }

    /// A limit of the gateway's own refused it, for so long.
    pub(super) fn wait_out(&mut self, wait: Option<Duration>) {
        self.held_back += 1;
        self.chance = fastrand::u32(0..=1000);
        // Whoever waits for the same limit does not come back in step.
        let wait = wait.unwrap_or(MOST_WAIT).min(MAX_HELD * 2) + self.by_chance(FIRST_WAIT);
        self.not_before = Some(Instant::now() + wait);
    }

    fn by_chance(&self, wait: Duration) -> Duration {
        wait / 2 * self.chance / 1000
    }

    fn due(&self) -> Instant {
        let wait = (FIRST_WAIT * 2_u32.saturating_pow(self.tries.min(16))).min(MOST_WAIT);
        self.no_earlier_than(self.sent_at + wait + self.by_chance(wait))
    }

    fn no_earlier_than(&self, due: Instant) -> Instant {
        self.not_before.map_or(due, |limit| limit.max(due))
    }

    /// True while the tool still recognises the key.
    pub(super) fn in_window(&self, may: &Remedies, now: Instant) -> bool {
        // A tenth early: its clock and ours may differ, and the way there takes time.
        let usable = may.window.map(|window| window - window / 10);
        usable.is_some_and(|usable| now.saturating_duration_since(self.first_sent) < usable)
    }

    fn may_resend(&self, may: &Remedies, now: Instant) -> bool {
        self.in_window(may, now)
            && !self.no_more
            && !self.not_now
            && self.resends < RESENDS_A_WRITE
            && self.tries < RESENDS_AN_ASKING
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Wait(Instant),
    Resend,
    Query,
    /// Nobody but a person can settle it, as far as this asking goes.
    Person,
}

/// What to do next about an unknown write. Pure.
pub fn next_step(done: &Progress, may: &Remedies, now: Instant) -> Step {
    if done.held_back >= MAX_HELD_BACK {
        return Step::Person;
    }
    if done.may_resend(may, now) {
        let due = done.due();
        return if now < due { Step::Wait(due) } else { Step::Resend };
    }
    let Some(query) = may.query.filter(|_| !done.contradiction) else { return Step::Person };
    if done.queries >= query.tries {
        return Step::Person;
    }
    // After an answer of "neither" the tool is given more time each time.
    let due = match (done.asked_at, done.absent_since) {
        (None, _) => done.sent_at + query.settle,
        (Some(asked), Some(_)) => asked + query.settle,
        (Some(asked), None) => {
            let doubled =
                2_u32.saturating_pow((done.queries + done.early).min(4).saturating_sub(1));
            asked + (query.settle * doubled).max(LEAST_BETWEEN)
        }
    };
    let due = done.no_earlier_than(due);
    if now < due { Step::Wait(due) } else { Step::Query }
}
