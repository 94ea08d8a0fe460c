//! The approvals themselves and the clock's part in them. Pure: time is an argument, nothing here waits.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::{
    ApprovalView, MAX_BYTES, MAX_KEPT, MAX_PENDING, MAX_PENDING_OF_AGENT, MAX_PENDING_OF_RUN,
    SHOWN, Standing, Wish,
};
use crate::call::{ApprovalId, Digest, ToolName};
use crate::store::{Approval, Said};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Pending,
    Approved,
    /// A call holds the yes and has not used it up.
    InUse,
    Rejected,
    Expired,
    Spent,
}

#[derive(Debug)]
pub(super) struct Kept {
    pub(super) row: Approval,
    pub(super) state: State,
    /// Until then it stands as it does; of one that is over: it is shown.
    pub(super) until: Instant,
    /// Nobody answered, and that is not told to the metrics yet.
    unanswered: bool,
}

impl Kept {
    /// The clock's word.
    pub(super) fn pass(&mut self, now: Instant) {
        let open = matches!(self.state, State::Pending | State::Approved);
        if open && now >= self.until {
            self.unanswered = self.state == State::Pending;
            self.state = State::Expired;
            self.until = now + SHOWN;
        }
    }

    /// It says neither yes nor no any more. A question that nobody answered, and a no, are told as long as they are kept.
    fn is_over(&self, now: Instant) -> bool {
        match self.state {
            State::Pending | State::Approved | State::InUse => false,
            State::Rejected => now >= self.until,
            State::Expired | State::Spent => true,
        }
    }

    fn bytes(&self) -> u64 {
        let edited = self.row.edited.as_ref().map_or(0, |edited| edited.bytes());
        self.row.arguments.bytes().saturating_add(edited)
    }

    pub(super) fn view(&self, now: Instant) -> ApprovalView {
        let row = &self.row;
        let (standing, counts) = match self.state {
            State::Pending => (Standing::Pending, true),
            State::Approved | State::InUse => (Standing::Approved, true),
            State::Rejected => (Standing::Rejected, now < self.until),
            State::Expired => (Standing::Expired, false),
            State::Spent => (Standing::Used, false),
        };
        let (run, call) = row.caller.clone();
        ApprovalView {
            id: row.id.clone(),
            standing,
            tool: row.tool.clone(),
            agent: row.agent.clone(),
            run,
            call,
            arguments: row.arguments.clone(),
            edited: row.edited.clone(),
            why: row.why.clone(),
            section: row.section,
            asked: row.asked,
            left: counts.then(|| self.until.saturating_duration_since(now)),
            decided: row.decided.clone(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Table {
    all: HashMap<ApprovalId, Kept>,
    /// The newest approval of an operation. One whose arguments were changed is known by both.
    by: HashMap<Digest, ApprovalId>,
}

impl Table {
    /// Rows of an earlier process, the oldest first. A clock that was set back makes them young, for one `ttl` at most.
    pub(super) fn restored(rows: Vec<Approval>, now: Instant, today: SystemTime) -> Self {
        let mut table = Self::default();
        for row in rows {
            let age = today.duration_since(row.changed).unwrap_or(Duration::ZERO);
            let (state, until) = match row.said {
                Said::Pending => (State::Pending, now + row.ttl.saturating_sub(age)),
                Said::Approved => (State::Approved, now + row.ttl.saturating_sub(age)),
                Said::Rejected => (State::Rejected, now + row.ttl.saturating_sub(age)),
                Said::Spent => (State::Spent, now + SHOWN.saturating_sub(age)),
            };
            table.by.insert(row.asked_for, row.id.clone());
            table.by.insert(row.binding, row.id.clone());
            table.all.insert(row.id.clone(), Kept { row, state, until, unanswered: false });
        }
        table
    }

    pub(super) fn by_binding(&mut self, key: Digest) -> Option<&mut Kept> {
        let id = self.by.get(&key)?;
        self.all.get_mut(id)
    }

    pub(super) fn by_id(&mut self, id: &ApprovalId) -> Option<&mut Kept> {
        self.all.get_mut(id)
    }

    pub(super) fn bind(&mut self, key: Digest, id: &ApprovalId) {
        self.by.insert(key, id.clone());
    }

    pub(super) fn unbind(&mut self, key: Digest) {
        self.by.remove(&key);
    }

    pub(super) fn open(&mut self, row: Approval, now: Instant) {
        let until = now + row.ttl;
        self.by.insert(row.binding, row.id.clone());
        let kept = Kept { row: row.clone(), state: State::Pending, until, unanswered: false };
        self.all.insert(row.id, kept);
    }

    pub(super) fn forget(&mut self, id: &ApprovalId) {
        let Some(kept) = self.all.remove(id) else { return };
        for key in [kept.row.asked_for, kept.row.binding] {
            if self.by.get(&key) == Some(id) {
                self.by.remove(&key);
            }
        }
    }

    /// Whether one more question may wait; else whose are too many.
    pub(super) fn room(&mut self, wish: &Wish) -> Result<(), (&'static str, usize)> {
        let now = Instant::now();
        let (mut all, mut agent, mut run, mut live) = (0_usize, 0_usize, 0_usize, 0_usize);
        let mut bytes = wish.arguments.bytes();
        for kept in self.all.values_mut() {
            kept.pass(now);
            if !kept.is_over(now) {
                live += 1;
                bytes = bytes.saturating_add(kept.bytes());
            }
            if kept.state == State::Pending {
                let own = kept.row.agent == wish.agent;
                all += 1;
                agent += usize::from(own);
                run += usize::from(own && kept.row.caller.0 == wish.run);
            }
        }
        for (count, most, whose) in [
            (run, MAX_PENDING_OF_RUN, "of this run"),
            (agent, MAX_PENDING_OF_AGENT, "of this agent"),
            (all, MAX_PENDING, "of all agents"),
            (live, MAX_KEPT, "of all agents, answered ones too,"),
        ] {
            if count >= most {
                return Err((whose, most));
            }
        }
        match bytes > MAX_BYTES {
            true => Err(("of all agents, by the size of their arguments,", live)),
            false => Ok(()),
        }
    }

    pub(super) fn each<T>(&mut self, now: Instant, look: impl Fn(&Kept) -> T) -> Vec<T> {
        let all = self.all.values_mut();
        all.map(|kept| {
            kept.pass(now);
            look(kept)
        })
        .collect()
    }

    pub(super) fn pending(&mut self, now: Instant) -> Vec<(ToolName, u64)> {
        let mut open: HashMap<ToolName, u64> = HashMap::new();
        for kept in self.all.values_mut() {
            kept.pass(now);
            if kept.state == State::Pending {
                *open.entry(kept.row.tool.clone()).or_default() += 1;
            }
        }
        open.into_iter().collect()
    }

    /// Tools of questions that nobody answered, and what is not shown any more.
    pub(super) fn sweep(&mut self, now: Instant) -> (Vec<ToolName>, Vec<ApprovalId>) {
        let (mut expired, mut over) = (Vec::new(), Vec::new());
        let (mut bytes, mut gone) = (0_u64, Vec::new());
        for kept in self.all.values_mut() {
            kept.pass(now);
            if std::mem::take(&mut kept.unanswered) {
                expired.push(kept.row.tool.clone());
            }
            bytes = bytes.saturating_add(kept.bytes());
            // A no that is told no more is shown for as long as all that is over.
            let shown = match kept.state {
                State::Rejected => kept.until + SHOWN,
                State::Pending | State::Approved | State::InUse | State::Expired | State::Spent => {
                    kept.until
                }
            };
            match kept.is_over(now) {
                true if now >= shown => gone.push(kept.row.id.clone()),
                true => over.push((kept.row.changed, kept.row.id.clone(), kept.bytes())),
                false => {}
            }
        }
        over.sort();
        let mut kept = self.all.len() - gone.len();
        for (_, id, size) in over {
            if kept <= MAX_KEPT && bytes <= MAX_BYTES {
                break;
            }
            kept -= 1;
            bytes = bytes.saturating_sub(size);
            gone.push(id);
        }
        gone.iter().for_each(|id| self.forget(id));
        (expired, gone)
    }
}
