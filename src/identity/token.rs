//! Bearer tokens (RFC 6750), compared in constant time with every token of every agent.
//! No early exit: how long it takes tells nothing about how much of a token was right.

use std::sync::Arc;

use subtle::ConstantTimeEq;

use crate::call::AgentId;
use crate::policy::snapshot::Agent;

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
pub(super) fn is_any_agents<'a>(
    shown: &[u8],
    mut agents: impl Iterator<Item = &'a Arc<Agent>>,
) -> bool {
    agents.any(|agent| agent.tokens.iter().any(|token| same(token.0.as_bytes(), shown)))
}

/// The one agent a token proves. None, or two agents with the same token: nobody.
pub(super) fn owner<'a>(
    shown: &[u8],
    agents: impl Iterator<Item = &'a Arc<Agent>>,
) -> Option<AgentId> {
    let mut proved = None;
    let mut count = 0u32;
    for agent in agents {
        let mut right = subtle::Choice::from(0);
        for token in &agent.tokens {
            // The length may show; the content may not.
            right |= token.0.as_bytes().ct_eq(shown);
        }
        if bool::from(right) {
            count = count.saturating_add(1);
            proved = Some(&agent.id);
        }
    }
    if count == 1 { proved.cloned() } else { None }
}
