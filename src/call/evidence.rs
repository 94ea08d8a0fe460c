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
    /// The server answered with this JSON-RPC error, which it gives before it acts.
    JsonRpc(i64),
    /// The server did not know the session that the request named (HTTP 404, or 400).
    Session(u16),
    /// The child had ended before a byte of the request's line went out.
    ChildGoneBeforeLine,
    /// The server asked for input and left nothing in flight.
    InputRequired,
    /// The tool's policy promises that its own errors mean so (`write.is_error: not_executed`).
    PolicyIsError,
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
            Evidence::JsonRpc(n) => write!(f, "jsonrpc_{n}"),
            Evidence::Session(n) => write!(f, "session_{n}"),
            Evidence::ChildGoneBeforeLine => f.write_str("child_gone_before_line"),
            Evidence::InputRequired => f.write_str("input_required"),
            Evidence::PolicyIsError => f.write_str("policy_is_error"),
        }
    }
}
