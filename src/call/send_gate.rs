//! May the first byte go out? The back end's last question between connect and send.
//!
//! `journal` holds the [`Keeper`]; the back end and `timeout` hold the [`SendGate`]. Exactly one of "opened" and
//! "never will" becomes true: what was withdrawn or shut is provably not sent.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::outcome::Failed;

#[derive(Debug)]
enum State {
    /// Nobody has asked yet.
    Idle,
    Asked,
    Opened,
    Shut(Box<Failed>),
    Withdrawn,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// Wakes the keeper.
    asked: Notify,
    /// Wakes the back end.
    decided: Notify,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Clone)]
pub struct SendGate(Arc<Inner>);

#[derive(Debug)]
pub struct Keeper(Arc<Inner>);

/// A gate and its keeper.
pub fn send_gate() -> (SendGate, Keeper) {
    let inner = Arc::new(Inner {
        state: Mutex::new(State::Idle),
        asked: Notify::new(),
        decided: Notify::new(),
    });
    (SendGate(inner.clone()), Keeper(inner))
}

impl SendGate {
    /// Asked by the back end after connect, before the first byte. `Err`: close the unused connection and
    /// answer that. A gate that was withdrawn never opens.
    pub async fn open(&self) -> Result<(), Failed> {
        {
            let mut state = self.0.lock();
            if let State::Idle = *state {
                *state = State::Asked;
                self.0.asked.notify_one();
            }
        }
        loop {
            let decided = self.0.decided.notified();
            match &*self.0.lock() {
                State::Opened => return Ok(()),
                State::Shut(why) => return Err((**why).clone()),
                State::Withdrawn => return Err(Failed::internal("the send gate was withdrawn")),
                State::Idle | State::Asked => {}
            }
            decided.await;
        }
    }

    /// True = it had not opened, and now never will: provably not sent.
    pub fn withdraw(&self) -> bool {
        let mut state = self.0.lock();
        match *state {
            State::Opened => false,
            State::Shut(_) | State::Withdrawn => true,
            State::Idle | State::Asked => {
                *state = State::Withdrawn;
                self.0.asked.notify_one();
                self.0.decided.notify_waiters();
                true
            }
        }
    }
}

impl Keeper {
    /// Waits until the back end asks. `false`: withdrawn, nothing was or will be asked.
    /// A back end that fails before asking never asks: race this against it.
    pub async fn asked(&self) -> bool {
        loop {
            let asked = self.0.asked.notified();
            match *self.0.lock() {
                State::Asked => return true,
                State::Withdrawn | State::Shut(_) | State::Opened => return false,
                State::Idle => {}
            }
            asked.await;
        }
    }

    /// Lets the first byte out. `false`: it was withdrawn meanwhile, nothing will be sent.
    #[must_use]
    pub fn open(&self) -> bool {
        let mut state = self.0.lock();
        match *state {
            State::Idle | State::Asked => {
                *state = State::Opened;
                self.0.decided.notify_waiters();
                true
            }
            State::Opened => true,
            State::Shut(_) | State::Withdrawn => false,
        }
    }

    /// Keeps it shut for good; the back end answers `why`.
    pub fn shut(&self, why: Failed) {
        let mut state = self.0.lock();
        if let State::Idle | State::Asked = *state {
            *state = State::Shut(Box::new(why));
            self.0.decided.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_withdrawn_gate_never_opens() {
        let (gate, keeper) = send_gate();
        let back_end = tokio::spawn({
            let gate = gate.clone();
            async move { gate.open().await }
        });
        assert!(keeper.asked().await);
        assert!(gate.withdraw());
        assert!(!keeper.open());
        assert!(back_end.await.expect("no panic").is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_gate_cannot_be_withdrawn() {
        let (gate, keeper) = send_gate();
        let asked = tokio::join!(gate.open(), async {
            assert!(keeper.asked().await);
            assert!(keeper.open());
        });
        assert!(asked.0.is_ok());
        assert!(!gate.withdraw());
    }
}
