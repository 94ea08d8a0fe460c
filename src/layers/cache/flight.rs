//! Calls that ask the same at once: one of them leads, the others wait for what it comes to. Nobody waits for one that
//! has gone: its followers hear that it said nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::key::Key;
use super::spoil::Marks;
use crate::call::{Failed, ToolResult};

/// Calls that wait for one other; past it a call goes by itself, and meets the limits of its tool.
pub(super) const MAX_FOLLOWERS: usize = 256;
/// Questions that are being asked at once; past it calls go by themselves.
pub(super) const MAX_FLIGHTS: usize = 4096;

/// What a leader says.
#[derive(Debug, Clone)]
pub(super) enum Shared {
    Outcome(Result<ToolResult, Failed>),
    /// What came of it is for nobody else: ask by yourself.
    Alone,
}

/// What a follower hears.
#[derive(Debug)]
pub(super) enum Heard {
    Told(Shared),
    /// The leader has gone, or what ended it was its own affair.
    Nothing,
}

/// After a write the same question is another one: who asks then must not hear an answer from before.
type Question = (Key, Marks);
type Told = Option<Shared>;

#[derive(Debug)]
struct Flight {
    hears: watch::Receiver<Told>,
    /// One more than its followers.
    followers: Arc<()>,
}

#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<HashMap<Question, Flight>>);

pub(super) enum Joined {
    Lead(Lead),
    Follow(Follow),
    Full,
}

/// Dropped without a word: whoever follows hears `Nothing`.
#[derive(Debug)]
pub(super) struct Lead {
    flights: Arc<Flights>,
    question: Question,
    tell: watch::Sender<Told>,
}

#[derive(Debug)]
pub(super) struct Follow {
    hears: watch::Receiver<Told>,
    #[expect(dead_code, reason = "counted, not read")]
    counted: Arc<()>,
}

impl Flights {
    fn lock(&self) -> MutexGuard<'_, HashMap<Question, Flight>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn join(self: &Arc<Self>, key: Key, marks: Marks) -> Joined {
        let question = (key, marks);
        let mut flights = self.lock();
        if let Some(flight) = flights.get(&question) {
            if Arc::strong_count(&flight.followers) > MAX_FOLLOWERS {
                return Joined::Full;
            }
            let (hears, counted) = (flight.hears.clone(), flight.followers.clone());
            return Joined::Follow(Follow { hears, counted });
        }
        if flights.len() >= MAX_FLIGHTS {
            return Joined::Full;
        }
        let (tell, hears) = watch::channel(None);
        flights.insert(question, Flight { hears, followers: Arc::default() });
        Joined::Lead(Lead { flights: self.clone(), question, tell })
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock().len()
    }
}

impl Lead {
    /// Tells all that follow. What is kept was put away before: who comes after this finds it.
    pub(super) fn end(self, shared: Shared) {
        self.tell.send_replace(Some(shared));
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.flights.lock().remove(&self.question);
    }
}

impl Follow {
    pub(super) async fn heard(mut self) -> Heard {
        match self.hears.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(shared)) => Heard::Told(shared.clone()),
            Ok(None) | Err(_) => Heard::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Digest;

    fn join(flights: &Arc<Flights>, key: &str, writes: u64) -> Joined {
        flights.join(Key(Digest::of(key.as_bytes())), Marks { writes, by_hand: 0 })
    }

    fn lead(joined: Joined) -> Lead {
        match joined {
            Joined::Lead(lead) => lead,
            Joined::Follow(_) | Joined::Full => unreachable!("nobody leads yet"),
        }
    }

    fn follow(joined: Joined) -> Follow {
        match joined {
            Joined::Follow(follow) => follow,
            Joined::Lead(_) | Joined::Full => unreachable!("somebody leads"),
        }
    }

    #[tokio::test]
    async fn followers_hear_what_their_leader_says_or_that_it_has_gone() {
        let flights = Arc::new(Flights::default());
        let first = lead(join(&flights, "a", 0));
        let (one, two) = (follow(join(&flights, "a", 0)), follow(join(&flights, "a", 0)));
        first.end(Shared::Alone);
        assert!(matches!(one.heard().await, Heard::Told(Shared::Alone)));
        assert!(matches!(two.heard().await, Heard::Told(Shared::Alone)), "also one that was late");
        let second = lead(join(&flights, "a", 0));
        let follower = follow(join(&flights, "a", 0));
        drop(second);
        assert!(matches!(follower.heard().await, Heard::Nothing));
        assert_eq!(flights.len(), 0, "nothing is left of them");
    }

    #[tokio::test]
    async fn after_a_write_the_same_question_is_another_one() {
        let flights = Arc::new(Flights::default());
        let _before = lead(join(&flights, "a", 1));
        let _after = lead(join(&flights, "a", 2));
        let _other = lead(join(&flights, "b", 1));
        assert_eq!(flights.len(), 3);
    }

    #[tokio::test]
    async fn those_who_wait_and_those_who_ask_are_bounded() {
        let flights = Arc::new(Flights::default());
        let leads: Vec<Lead> =
            (0..MAX_FLIGHTS).map(|n| lead(join(&flights, &n.to_string(), 0))).collect();
        assert!(matches!(join(&flights, "one more", 0), Joined::Full));
        let mut followers: Vec<Follow> =
            (0..MAX_FOLLOWERS).map(|_| follow(join(&flights, "7", 0))).collect();
        assert!(matches!(join(&flights, "7", 0), Joined::Full));
        // Who goes away leaves its place.
        drop(followers.pop());
        followers.push(follow(join(&flights, "7", 0)));
        drop(leads);
        assert_eq!(flights.len(), 0);
    }
}
