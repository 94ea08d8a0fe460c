//! What proves that a write did not happen, as its entry, its record and its answer name it. Whatever has none
//! is in doubt.

use std::fmt;

/// What proves that a write did not happen. Without one there is no `not_executed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Evidence {
    ConnectFailed,
    ZeroBytes,
    RefusedStream,
    GoAway,
    Status(u16),
    Redirect,
    /// A status the tool's policy promises to send only before acting.
    PolicyStatus(u16),
    /// The tool's own read said so, twice.
    Query,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Evidence::ConnectFailed => f.write_str("connect_failed"),
            Evidence::ZeroBytes => f.write_str("zero_bytes"),
            Evidence::RefusedStream => f.write_str("refused_stream"),
            Evidence::GoAway => f.write_str("goaway"),
            Evidence::Status(n) => write!(f, "status_{n}"),
            Evidence::Redirect => f.write_str("redirect"),
            Evidence::Query => f.write_str("query"),
            Evidence::PolicyStatus(n) => write!(f, "policy_status_{n}"),
        }
    }
}
