//! Tokens by a keyed hash of the whole token: however many agents there are, who shows one is compared with those that
//! could be it. The key is of this process, so a hash tells nothing about where a guess was right.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;

use super::Agent;
use crate::call::AgentId;

/// A secret's text; its `Debug` shows nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(pub Arc<str>);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

/// All tokens of a policy.
#[derive(Debug, Default)]
pub struct Proofs {
    key: RandomState,
    by_hash: HashMap<u64, Vec<(SecretText, AgentId)>>,
}

impl Proofs {
    pub fn of<'a>(agents: impl Iterator<Item = &'a Arc<Agent>>) -> Self {
        let mut proofs = Self::default();
        for agent in agents {
            for token in &agent.tokens {
                let hash = proofs.key.hash_one(token.0.as_bytes());
                let proof = (token.clone(), agent.id.clone());
                proofs.by_hash.entry(hash).or_default().push(proof);
            }
        }
        proofs
    }

    /// Tokens that may be the one shown, each with its agent; whoever asks compares them, in constant time.
    pub fn like(&self, shown: &[u8]) -> &[(SecretText, AgentId)] {
        self.by_hash.get(&self.key.hash_one(shown)).map_or(&[], Vec::as_slice)
    }
}
