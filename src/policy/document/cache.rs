//! `cache`: for how long answers of a read are told again.

use std::time::Duration;

use super::Maybe;
use super::kinds::DURATION;
use super::read::{Fields, Record, Words};

/// `tools.X.cache`.
#[derive(Debug, Clone)]
pub struct Cache {
    pub ttl: Maybe<Duration>,
    /// Past `ttl`.
    pub stale_if_error: Maybe<Duration>,
    /// True = `global`: one agent's answer is told to all that may ask.
    pub global_scope: Maybe<bool>,
}

pub(super) const CACHE: Record<Cache> = Record { name: "cache", fields: Cache::fields };

impl Cache {
    fn fields(f: &mut Fields<'_>) -> Self {
        Self {
            ttl: f.required("ttl", DURATION),
            stale_if_error: f.optional("stale_if_error", DURATION),
            global_scope: f
                .optional("scope", Words(&[("agent", Some(false)), ("global", Some(true))])),
        }
    }
}
