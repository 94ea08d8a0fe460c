//! Bearer tokens (RFC 6750), found by a keyed hash of the whole and then compared in constant time.
//! How long it takes tells nothing about how much of a token was right.

use subtle::ConstantTimeEq;

use crate::call::AgentId;
use crate::policy::snapshot::Proofs;

/// The token of `Bearer b64token`: the scheme in any case, one or more spaces, RFC 6750's alphabet, nothing else.
pub(super) fn bearer(field: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = field.split_at_checked(b"Bearer".len())?;
    if !scheme.eq_ignore_ascii_case(b"Bearer") || rest.first() != Some(&b' ') {
        return None;
    }
    let token = rest.trim_ascii();
    is_token(token).then_some(token)
}

/// RFC 6750's alphabet, at least one character of it.
pub fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|b| b.is_ascii_alphanumeric() || b"-._~+/=".contains(b))
}

/// Compared to the end, whatever differs first. The length may show; the content may not.
pub fn same(secret: &[u8], shown: &[u8]) -> bool {
    bool::from(secret.ct_eq(shown))
}

/// True where a token is any agent's, also one that two agents share.
pub(super) fn is_any_agents(shown: &[u8], proofs: &Proofs) -> bool {
    proofs.like(shown).iter().any(|(token, _)| same(token.0.as_bytes(), shown))
}

/// The one agent a token proves. None, or two agents with the same token: nobody.
pub(super) fn owner(shown: &[u8], proofs: &Proofs) -> Option<AgentId> {
    let mut proved: Option<&AgentId> = None;
    for (token, agent) in proofs.like(shown) {
        if !same(token.0.as_bytes(), shown) {
            continue;
        }
        if proved.is_some_and(|before| before != agent) {
            return None;
        }
        proved = Some(agent);
    }
    proved.cloned()
}
