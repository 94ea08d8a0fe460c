//! Whose call is it? A credential proves exactly one agent; nothing in a body, argument or free header does.
//! No credential at all, on this machine: the agent `default`, where the policy has one.

#[cfg(test)]
mod tests;
mod token;

use http::header::AUTHORIZATION;

pub use token::{is_token, same};

use crate::call::code::DenyCode;
use crate::call::{AgentId, Denied};
use crate::policy::snapshot::Snapshot;

/// The agent of callers that show no credential.
const DEFAULT: &str = "default";

/// How a connection came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    Loopback,
    /// A TCP peer that is not on this machine.
    Remote,
    /// A Unix socket, with the peer's uid where the system tells it.
    Unix {
        uid: Option<u32>,
    },
}

impl Peer {
    /// The peer runs on this machine, as far as its address tells.
    fn is_local(self) -> bool {
        match self {
            Peer::Loopback | Peer::Unix { .. } => true,
            Peer::Remote => false,
        }
    }
}

/// `headers`: only `Authorization` is looked at. No credential, on loopback or a Unix socket: the agent `default`,
/// where the policy has one. A wrong, doubled or malformed credential is `unauthenticated`, never `default`.
pub fn identify(
    peer: Peer,
    headers: &http::HeaderMap,
    snapshot: &Snapshot,
) -> Result<AgentId, Denied> {
    let mut shown = headers.get_all(AUTHORIZATION).iter();
    match (shown.next(), shown.next()) {
        (None, _) => no_credential(peer, snapshot),
        (Some(_), Some(_)) => Err(unauthenticated("more than one Authorization field")),
        (Some(field), None) => {
            let token = token::bearer(field.as_bytes())
                .ok_or_else(|| unauthenticated("the Authorization field is no `Bearer TOKEN`"))?;
            token::owner(token, &snapshot.proofs)
                .ok_or_else(|| unauthenticated("the token belongs to no agent of the policy"))
        }
    }
}

/// What the one `Authorization` field of a request shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown<'a> {
    Nothing,
    Token(&'a [u8]),
    /// Doubled, or no `Bearer TOKEN`.
    Unsound,
}

pub fn shown(headers: &http::HeaderMap) -> Shown<'_> {
    let mut fields = headers.get_all(AUTHORIZATION).iter();
    match (fields.next(), fields.next()) {
        (None, _) => Shown::Nothing,
        (Some(_), Some(_)) => Shown::Unsound,
        (Some(field), None) => token::bearer(field.as_bytes()).map_or(Shown::Unsound, Shown::Token),
    }
}

/// True for a token with which agents of the policy prove themselves: it is nobody else's.
pub fn is_agents(token: &[u8], snapshot: &Snapshot) -> bool {
    token::is_any_agents(token, &snapshot.proofs)
}

fn no_credential(peer: Peer, snapshot: &Snapshot) -> Result<AgentId, Denied> {
    match snapshot.agents.get(DEFAULT) {
        Some(agent) if peer.is_local() => Ok(agent.id.clone()),
        Some(_) | None => Err(unauthenticated("no credential")),
    }
}

/// The words do not tell a wrong token from one that two agents share: neither helps who guesses.
fn unauthenticated(why: &'static str) -> Denied {
    Denied::new(DenyCode::Unauthenticated, format!("{why}; nothing was run"))
}
