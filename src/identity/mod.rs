//! Whose call is it? A credential proves exactly one agent; nothing in a body, argument or free header does.
//! STUB of the contract.
use crate::call::{AgentId, Denied};
use crate::policy::snapshot::Snapshot;

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

/// `headers`: only `Authorization` is looked at. No credential, on loopback or a Unix socket: the agent `default`,
/// where the policy has one. A wrong, doubled or malformed credential is `unauthenticated`, never `default`.
pub fn identify(
    _peer: Peer,
    _headers: &http::HeaderMap,
    _snapshot: &Snapshot,
) -> Result<AgentId, Denied> {
    unimplemented!()
}
