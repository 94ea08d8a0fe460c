//! What a tool offers against not knowing, compiled: the key it recognises a write by.

use std::time::Duration;

use http::HeaderName;

/// `write.idempotency`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    pub sent_as: SentAs,
    /// How long the tool promises to recognise the key; `None` = nothing is ever sent again.
    pub window: Option<Duration>,
}

/// How the tool is told which write it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SentAs {
    Header {
        name: HeaderName,
        /// As a string of RFC 8941, in quotes.
        quoted: bool,
    },
    /// A member of the arguments that models neither see nor send.
    Argument(String),
    /// Not at all: repeating the same request changes nothing.
    Natural,
}
