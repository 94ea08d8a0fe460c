//! Secrets the gateway holds never stand in a diagnostic, whoever put them there.
//!
//! The last line of defence: nothing logs a secret on purpose. Texts too short to be told from ordinary words are
//! not replaced, because hiding every `no` would hide the log.

use std::borrow::Cow;
use std::sync::{Arc, PoisonError, RwLock};

/// Shortest text that is hidden.
pub const MIN_SECRET: usize = 6;
/// Most secrets kept in mind; a policy names far fewer.
pub const MAX_SECRETS: usize = 4096;
const HIDDEN: &str = "<secret>";

/// The secrets in force. Cheap to clone.
#[derive(Clone, Default)]
pub struct Secrets(Arc<RwLock<Vec<Arc<str>>>>);

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets(<secret>)")
    }
}

impl Secrets {
    /// From now on these are hidden, and no others. Longest first: one secret may begin with another.
    pub fn set(&self, secrets: impl IntoIterator<Item = Arc<str>>) {
        let mut kept: Vec<Arc<str>> = secrets
            .into_iter()
            .filter(|secret| secret.len() >= MIN_SECRET)
            .take(MAX_SECRETS)
            .collect();
        kept.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        kept.dedup();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = kept;
    }

    /// The text with every secret replaced; borrowed where there is none.
    pub fn hide<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let secrets = self.0.read().unwrap_or_else(PoisonError::into_inner);
        secrets.iter().fold(Cow::Borrowed(text), |text, secret| {
            if text.contains(secret.as_ref()) {
                Cow::Owned(text.replace(secret.as_ref(), HIDDEN))
            } else {
                text
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_force_are_hidden_and_old_ones_no_longer() {
        let secrets = Secrets::default();
        secrets.set(["sk-12345".into(), "sk-12345-long".into(), "abc".into()]);
        assert_eq!(secrets.hide("a sk-12345-long b sk-12345 abc"), "a <secret> b <secret> abc");
        assert!(matches!(secrets.hide("nothing"), Cow::Borrowed(_)));
        secrets.set([]);
        assert_eq!(secrets.hide("sk-12345"), "sk-12345");
        assert!(!format!("{secrets:?}").contains("sk-"));
    }
}
