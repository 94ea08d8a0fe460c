//! Names that arrive from outside, checked once, cheap to clone.
//!
//! A name that exists is sound: bounded, without control characters, and of the alphabet its kind allows.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use ahash::RandomState;
use uuid::{Builder, NoContext, Timestamp};

/// Longest name the policy language knows.
pub const MAX_NAME: usize = 64;
/// Longest call id taken from a model's message; every model API stays far below it.
pub const MAX_CALL_ID: usize = 256;
/// Longest run id taken from a header.
pub const MAX_RUN_ID: usize = 128;
/// Longest caller-supplied `Idempotency-Key` (the common bound of public APIs).
pub const MAX_CALLER_KEY: usize = 255;

/// A map by names: its hash is keyed, so that callers who choose names cannot aim them at one bucket, and costs little.
pub type Named<K, V> = HashMap<K, V, RandomState>;

/// Why a text is no name of its kind; `Display` is one sentence for the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {fault}")]
pub struct BadName {
    pub kind: &'static str,
    pub fault: &'static str,
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);
        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &self.0)
            }
        }
        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

name! {
    /// An agent of the policy: who asks. Comes from the connection's identity, never from a body.
    AgentId
}
name! {
    /// One agent task: its budgets, deadline and trajectory hang on it.
    RunId
}
name! {
    /// The name one call has in its message; answers are paired by it, byte for byte.
    CallId
}
name! {
    /// The exposed name of a tool, or what a model asked for in its place (see [`ToolName::asked`]).
    ToolName
}
name! {
    /// A server (or origin) behind tools.
    UpstreamName
}
name! {
    /// A limiter's name as it stands in `RateLimit` fields.
    PolicyName
}
name! {
    /// The key the agent's code sent as `Idempotency-Key`. Never a model's word.
    CallerKey
}

/// `[A-Za-z0-9_-]{1,64}`: what every model API accepts as a function name.
pub fn is_plain_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= MAX_NAME
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

fn plain(kind: &'static str, text: &str) -> Result<Arc<str>, BadName> {
    if is_plain_name(text) {
        Ok(text.into())
    } else {
        Err(BadName { kind, fault: "must be 1 to 64 of the characters A-Z a-z 0-9 _ -" })
    }
}

/// A UUID of version 7: milliseconds, then 12 bits of the fraction (RFC 9562 §6.2, method 3), then a keyed hash of a count.
/// Its key is drawn from the system once, not for every id: an id names something, it proves nothing.
fn minted() -> Arc<str> {
    static KEYED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let (seconds, nanos) = Timestamp::now(NoContext).to_unix();
    let millis = seconds * 1000 + u64::from(nanos) / 1_000_000;
    let fraction = (u64::from(nanos) % 1_000_000) * 4096 / 1_000_000;
    let [.., high, low] = fraction.to_be_bytes();
    let [a, b, c, d, e, f, g, h] =
        KEYED.hash_one(COUNT.fetch_add(1, Ordering::Relaxed)).to_be_bytes();
    let id = Builder::from_unix_timestamp_millis(millis, &[high, low, a, b, c, d, e, f, g, h])
        .into_uuid();
    let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
    Arc::from(&*id.as_hyphenated().encode_lower(&mut text))
}

impl AgentId {
    pub fn new(text: &str) -> Result<Self, BadName> {
        plain("an agent's name", text).map(Self)
    }
}

impl UpstreamName {
    pub fn new(text: &str) -> Result<Self, BadName> {
        plain("an upstream's name", text).map(Self)
    }
    /// The unnamed upstream of tools with `url:`: its origin, `scheme://host:port`.
    pub fn origin(origin: &str) -> Self {
        Self(origin.into())
    }
}

impl PolicyName {
    /// Limiter names are made by us from names of the policy, so they need no check.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }
}

impl ToolName {
    pub fn new(text: &str) -> Result<Self, BadName> {
        plain("a tool's name", text).map(Self)
    }

    /// What stands for everything a server offers besides tools. No tool of a policy can have such a name.
    pub fn of_passed(server: &UpstreamName) -> Self {
        Self(format!("mcp:{server}").into())
    }

    /// The name a model asked for, whatever it is. What is no name of the language is cut and gets a
    /// mark that no real tool's name can contain, so it can never match one.
    pub fn asked(text: &str) -> Self {
        if is_plain_name(text) {
            return Self(text.into());
        }
        let mut shown: String =
            text.chars().take(MAX_NAME).map(|c| if c.is_control() { '?' } else { c }).collect();
        shown.push('…');
        Self(shown.into())
    }
}

impl RunId {
    pub fn new(text: &str) -> Result<Self, BadName> {
        let sound = !text.is_empty()
            && text.len() <= MAX_RUN_ID
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b));
        if sound {
            Ok(Self(text.into()))
        } else {
            Err(BadName {
                kind: "a run id",
                fault: "must be 1 to 128 of the characters A-Z a-z 0-9 . _ : -",
            })
        }
    }

    /// A fresh id, ordered by time (UUID version 7).
    pub fn mint() -> Self {
        Self(minted())
    }
}

impl CallId {
    pub fn new(text: &str) -> Result<Self, BadName> {
        if text.is_empty() {
            return Err(BadName { kind: "a call id", fault: "must not be empty" });
        }
        if text.len() > MAX_CALL_ID {
            return Err(BadName { kind: "a call id", fault: "must have at most 256 bytes" });
        }
        Ok(Self(text.into()))
    }

    pub fn mint() -> Self {
        Self(minted())
    }
}

impl CallerKey {
    pub fn new(text: &str) -> Result<Self, BadName> {
        let sound = !text.is_empty()
            && text.len() <= MAX_CALLER_KEY
            && text.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
        if sound {
            Ok(Self(text.into()))
        } else {
            Err(BadName {
                kind: "an idempotency key",
                fault: "must be 1 to 255 visible ASCII characters",
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_asked_name_that_is_no_name_can_never_match_a_real_tool() {
        let long = "a".repeat(65);
        assert_ne!(ToolName::asked(&long).as_str(), &long[..64]);
        assert!(ToolName::new(ToolName::asked("send notice").as_str()).is_err());
        assert_eq!(ToolName::asked("send_notice").as_str(), "send_notice");
    }

    #[test]
    fn minted_ids_are_of_version_seven_differ_and_are_ordered_by_time() {
        let ids: Vec<CallId> = (0..10_000).map(|_| CallId::mint()).collect();
        let different: std::collections::HashSet<&CallId> = ids.iter().collect();
        assert_eq!(different.len(), ids.len());
        let first = uuid::Uuid::parse_str(ids[0].as_str()).expect("a UUID");
        assert_eq!((first.get_version_num(), first.get_variant()), (7, uuid::Variant::RFC4122));
        // The first 60 bits that vary are the time: milliseconds and their fraction.
        let time = |id: &CallId| id.as_str()[..18].to_owned();
        assert!(ids.is_sorted_by_key(time));
    }

    #[test]
    fn ids_are_kept_byte_for_byte() {
        for id in ["call_A|fc_B", "toolu_1", "functions.eval:301", "идент-号", &"x".repeat(64)]
        {
            assert_eq!(CallId::new(id).expect("sound").as_str(), id);
        }
        assert!(CallId::new("").is_err());
    }
}
