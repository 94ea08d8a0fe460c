//! The state an agent gives back when it answers what a server asked: ours, sealed, bound to who asked what until when.
//! The server's own state travels within. It is not single use: a write that is continued twice meets the ledger.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::seal::{Seal, Use};
use crate::call::{AgentId, CallerKey, Continuation, Digest, RunId};
use crate::strict_json::{self, Limits};

/// How long a person may take to answer.
pub(super) const VALID: Duration = Duration::from_secs(3600);
/// The form of what is sealed.
const VERSION: u64 = 1;

/// What a continuation must have in common with the request that asked for it.
#[derive(Debug)]
pub(super) struct Bound<'a> {
    pub(super) agent: &'a AgentId,
    pub(super) method: &'a str,
    /// The name of the tool or prompt, or the URI.
    pub(super) target: &'a str,
    /// Of everything else that is asked.
    pub(super) digest: Digest,
}

/// A state that opened.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) run: Option<RunId>,
    /// Of the request that it continues; 0 is the first one.
    pub(super) round: u32,
    /// Of the write that goes on.
    occurrence: u32,
    /// The key of the agent's code, which names its operation.
    pub(super) caller_key: Option<CallerKey>,
    /// A call that waits inside the gateway.
    pub(super) parked: Option<Arc<str>>,
    /// No server asked: a person was, so often. The request is no continuation, but the same call made again.
    pub(super) shown: u32,
    state: Option<Arc<str>>,
}

impl Opened {
    pub(super) fn continuation(self, responses: Value) -> Continuation {
        Continuation {
            responses,
            state: self.state,
            round: self.round.saturating_add(1),
            occurrence: self.occurrence,
            parked: self.parked,
        }
    }
}

/// Makes and reads states.
#[derive(Debug)]
pub(super) struct States {
    /// Expiry counts from here: the key lives no longer than the process.
    began: Instant,
}

/// What goes into a state.
#[derive(Debug, Default)]
pub(super) struct Kept<'a> {
    pub(super) run: Option<&'a RunId>,
    /// Of the request that is answered with it.
    pub(super) round: u32,
    pub(super) occurrence: u32,
    pub(super) caller_key: Option<&'a CallerKey>,
    pub(super) server: Option<&'a str>,
    pub(super) parked: Option<&'a str>,
    pub(super) shown: u32,
}

impl States {
    pub(super) fn new() -> Self {
        Self { began: Instant::now() }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn seal(&self, seal: &Seal, bound: &Bound<'_>, kept: &Kept<'_>) -> Option<String> {
        let valid = u64::try_from(VALID.as_millis()).unwrap_or(u64::MAX);
        let text = json!({
            "v": VERSION,
            "agent": bound.agent.as_str(),
            "method": bound.method,
            "target": bound.target,
            "digest": bound.digest.short_hex(32),
            "run": kept.run.map(RunId::as_str),
            "round": kept.round,
            "occurrence": kept.occurrence,
            "key": kept.caller_key.map(CallerKey::as_str),
            "until": self.now().saturating_add(valid),
            "state": kept.server,
            "parked": kept.parked,
            "shown": kept.shown,
        });
        seal.seal(Use::State, &text.to_string())
    }

    /// `None`, whatever the reason: forged, expired, another agent's, of another request.
    pub(super) fn open(&self, seal: &Seal, bound: &Bound<'_>, sealed: &str) -> Option<Opened> {
        let text = seal.open(Use::State, sealed)?;
        let state = strict_json::parse(text.as_bytes(), Limits::answer(text.len())).ok()?;
        let text = |name: &str| state.get(name).and_then(Value::as_str);
        let number = |name: &str| state.get(name).and_then(Value::as_u64);
        let same = number("v") == Some(VERSION)
            && text("agent") == Some(bound.agent.as_str())
            && text("method") == Some(bound.method)
            && text("target") == Some(bound.target)
            && text("digest") == Some(&bound.digest.short_hex(32))
            && number("until").is_some_and(|until| self.now() < until);
        if !same {
            return None;
        }
        Some(Opened {
            run: text("run").and_then(|run| RunId::new(run).ok()),
            round: number("round").and_then(|round| u32::try_from(round).ok())?,
            occurrence: number("occurrence").and_then(|number| u32::try_from(number).ok())?,
            caller_key: text("key").and_then(|key| CallerKey::new(key).ok()),
            parked: text("parked").map(Arc::from),
            shown: number("shown").and_then(|shown| u32::try_from(shown).ok())?,
            state: text("state").map(Arc::from),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_state_opens_for_the_request_it_was_made_for_until_its_time() {
        let (seal, states) = (Seal::new(), States::new());
        let (one, two) = (AgentId::new("a").expect("name"), AgentId::new("b").expect("name"));
        let bound = |agent, method, target, digest: &str| Bound {
            agent,
            method,
            target,
            digest: Digest::of(digest.as_bytes()),
        };
        let run = RunId::new("r1").expect("id");
        let key = CallerKey::new("k1").expect("key");
        let kept = Kept {
            run: Some(&run),
            round: 2,
            occurrence: 4,
            caller_key: Some(&key),
            server: Some("s\u{e9}\"1"),
            parked: None,
            shown: 0,
        };
        let sound = bound(&one, "tools/call", "pay", "{}");
        let sealed = states.seal(&seal, &sound, &kept).expect("sealed");
        let opened = states.open(&seal, &sound, &sealed).expect("opens");
        assert_eq!((opened.run.clone(), opened.round), (Some(run), 2));
        assert_eq!(opened.caller_key, Some(key));
        let goes_on = opened.continuation(json!({"k": 1}));
        assert_eq!((goes_on.round, goes_on.occurrence), (3, 4));
        assert_eq!(goes_on.state.as_deref(), Some("s\u{e9}\"1"));
        for other in [
            bound(&two, "tools/call", "pay", "{}"),
            bound(&one, "prompts/get", "pay", "{}"),
            bound(&one, "tools/call", "order", "{}"),
            bound(&one, "tools/call", "pay", "{\"n\":1}"),
        ] {
            assert!(states.open(&seal, &other, &sealed).is_none(), "{other:?}");
        }
        tokio::time::advance(VALID - Duration::from_millis(1)).await;
        assert!(states.open(&seal, &sound, &sealed).is_some());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(states.open(&seal, &sound, &sealed).is_none(), "expired");
    }
}
