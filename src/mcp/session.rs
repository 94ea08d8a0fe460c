//! Session ids of Streamable HTTP (2025-03-26 to 2025-11-25): their syntax, and the minting of ours; names of events.
//!
//! Who owns a session is not known here. An id is never a credential.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Longest session id taken, bytes; ids live in tables.
pub const MAX_SESSION_ID: usize = 1024;
/// Random bytes in an id of ours: 192 bits, where the specification wants a secure id and 128 are enough.
pub const SESSION_ENTROPY: usize = 24;

/// The value of `Mcp-Session-Id`: visible ASCII alone (0x21 to 0x7E), so it can stand in a header as it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SessionId(Box<str>);

impl SessionId {
    /// Reads a header's value; `None` where it is no session id.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let sound = (1..=MAX_SESSION_ID).contains(&value.len())
            && value.iter().all(|byte| (0x21..=0x7e).contains(byte));
        if !sound {
            return None;
        }
        std::str::from_utf8(value).ok().map(|text| Self(text.into()))
    }

    /// A new id from random bytes, which the caller takes from a source fit for secrets.
    pub fn mint(random: [u8; SESSION_ENTROPY]) -> Self {
        Self(URL_SAFE_NO_PAD.encode(random).into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of an event: which session, which of its streams, which place there ("Resumability and Redelivery": unique
/// in a session, and enough to find the stream).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventId<'a> {
    /// Of the session, without `-`; so that one session's name is none in another.
    pub mark: &'a str,
    pub stream: u64,
    pub event: u64,
}

impl<'a> EventId<'a> {
    /// Reads a name as it was given; anything else is `None`.
    pub fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.splitn(3, '-');
        let mark = parts.next()?;
        let (stream, event) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let read = Self { mark, stream, event };
        (read.to_string() == text).then_some(read)
    }
}

impl fmt::Display for EventId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.mark, self.stream, self.event)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_visible_ascii_of_a_bounded_length_is_a_session_id() {
        assert!(SessionId::parse(b"!a~").is_some());
        assert!(SessionId::parse(&[b'x'; MAX_SESSION_ID]).is_some());
        for bad in [&b""[..], b"a b", b"a\n", b"\x7f", "é".as_bytes(), &[b'x'; MAX_SESSION_ID + 1]]
        {
            assert!(SessionId::parse(bad).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn a_name_of_an_event_is_read_only_as_it_was_given() {
        let id = EventId { mark: "a1", stream: 3, event: 17 };
        assert_eq!(id.to_string(), "a1-3-17");
        assert_eq!(EventId::parse("a1-3-17"), Some(id));
        for bad in ["", "a1", "a1-3", "a1-03-17", "a1-+3-17", "a1-3-17-0", "a1-3--1", "a1-3-x"] {
            assert_eq!(EventId::parse(bad), None, "{bad}");
        }
        assert_eq!(EventId::parse("a1-3-18446744073709551616"), None);
    }

    proptest! {
        #[test]
        fn every_minted_id_is_one_and_no_two_randoms_share_it(
            one in any::<[u8; SESSION_ENTROPY]>(), other in any::<[u8; SESSION_ENTROPY]>(),
        ) {
            let id = SessionId::mint(one);
            prop_assert_eq!(SessionId::parse(id.as_str().as_bytes()), Some(id.clone()));
            prop_assert_eq!(id == SessionId::mint(other), one == other);
        }
    }
}
