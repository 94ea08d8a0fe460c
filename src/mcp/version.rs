//! The revisions of MCP, what each of them has, and the two eras they fall into.
//!
//! Which revision to prefer is the caller's choice.

use std::fmt;

/// A revision of the protocol, ordered by its date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Revision {
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    V2026_07_28,
}

/// How a revision says who speaks: by a handshake, or on every request (2026-07-28, versioning).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Era {
    /// `initialize`, and over HTTP a session.
    Legacy,
    /// Stateless: version and capabilities in the `_meta` of every request.
    Modern,
}

/// Every revision known, newest first.
pub const ALL: [Revision; 5] = [
    Revision::V2026_07_28,
    Revision::V2025_11_25,
    Revision::V2025_06_18,
    Revision::V2025_03_26,
    Revision::V2024_11_05,
];

/// The revisions Checkrein answers with as a server, newest first.
pub const SUPPORTED: [Revision; 3] =
    [Revision::V2026_07_28, Revision::V2025_11_25, Revision::V2025_06_18];

/// The revision an `initialize` is answered with when it asks for one not served: the newest with that handshake.
pub const NEWEST_LEGACY: Revision = Revision::V2025_11_25;

impl Revision {
    /// Reads a revision as written in headers and bodies; anything unknown is `None`.
    pub fn parse(text: &str) -> Option<Self> {
        ALL.into_iter().find(|revision| revision.as_str() == text)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    pub const fn era(self) -> Era {
        match self {
            Self::V2024_11_05 | Self::V2025_03_26 | Self::V2025_06_18 | Self::V2025_11_25 => {
                Era::Legacy
            }
            Self::V2026_07_28 => Era::Modern,
        }
    }

    pub const fn features(self) -> Features {
        match self {
            Self::V2024_11_05 => Features::FIRST,
            Self::V2025_03_26 => Features::STREAMABLE,
            Self::V2025_06_18 => Features {
                structured_content: true,
                elicitation: true,
                version_header: true,
                ..Features::STREAMABLE
            },
            Self::V2025_11_25 => Features {
                structured_content: true,
                elicitation: true,
                version_header: true,
                polled: true,
                url_elicitation: true,
                tasks_core: true,
                ..Features::STREAMABLE
            },
            Self::V2026_07_28 => Features {
                sessions: false,
                get_stream: false,
                resumable: false,
                polled: false,
                server_requests: false,
                result_type: true,
                cache_hints: true,
                version_header: true,
                std_headers: true,
                structured_content: true,
                any_structure: true,
                elicitation: true,
                url_elicitation: true,
                tasks_core: false,
                tasks_extension: true,
            },
        }
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether a version text names a modern revision, known or not: versions are dates and sort as texts.
pub fn is_modern(text: &str) -> bool {
    is_date(text) && text >= Revision::V2026_07_28.as_str()
}

fn is_date(text: &str) -> bool {
    text.len() == 10
        && text.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        })
}

/// What a revision has. Over stdio the members about HTTP mean nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about a revision")]
pub struct Features {
    /// `Mcp-Session-Id`, DELETE.
    pub sessions: bool,
    /// A stream by GET that belongs to no request.
    pub get_stream: bool,
    /// `Last-Event-ID`.
    pub resumable: bool,
    /// Streams begin with an event that only names itself, and a server may close a connection to be polled (SEP-1699).
    pub polled: bool,
    /// The server may send requests of its own.
    pub server_requests: bool,
    /// Results carry `resultType`, and may say `input_required`.
    pub result_type: bool,
    /// `ttlMs`, `cacheScope`.
    pub cache_hints: bool,
    /// `MCP-Protocol-Version` after the handshake, or always.
    pub version_header: bool,
    /// `Mcp-Method`, `Mcp-Name`, `Mcp-Param-*`.
    pub std_headers: bool,
    /// `structuredContent`, `outputSchema`.
    pub structured_content: bool,
    /// `structuredContent` may be any value, `outputSchema` have any root.
    pub any_structure: bool,
    /// `elicitation/create` by form.
    pub elicitation: bool,
    /// `elicitation/create` by URL.
    pub url_elicitation: bool,
    /// `tasks/*` in the core protocol (experimental).
    pub tasks_core: bool,
    /// `io.modelcontextprotocol/tasks`.
    pub tasks_extension: bool,
}

impl Features {
    const FIRST: Self = Self {
        sessions: false,
        get_stream: false,
        resumable: false,
        polled: false,
        server_requests: true,
        result_type: false,
        cache_hints: false,
        version_header: false,
        std_headers: false,
        structured_content: false,
        any_structure: false,
        elicitation: false,
        url_elicitation: false,
        tasks_core: false,
        tasks_extension: false,
    };
    /// Streamable HTTP as 2025-03-26 brought it.
    const STREAMABLE: Self =
        Self { sessions: true, get_stream: true, resumable: true, ..Self::FIRST };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_revision_reads_back_as_itself_and_nothing_else_is_one() {
        for revision in ALL {
            assert_eq!(Revision::parse(revision.as_str()), Some(revision));
        }
        for text in ["", "2026-07-29", "2025-06-18 ", "2025-6-18", "DRAFT-2026-v1", "latest"] {
            assert_eq!(Revision::parse(text), None, "{text}");
        }
    }

    #[test]
    fn revisions_are_ordered_by_their_dates() {
        assert!(ALL.windows(2).all(|pair| matches!(pair, [newer, older] if newer > older)));
        assert!(SUPPORTED.windows(2).all(|pair| matches!(pair, [newer, older] if newer > older)));
        assert_eq!(NEWEST_LEGACY.era(), Era::Legacy);
        assert!(
            ALL.iter().all(|revision| revision.era() == Era::Modern || *revision <= NEWEST_LEGACY)
        );
    }

    #[test]
    fn a_version_not_yet_known_is_modern_by_its_date_alone() {
        assert!(is_modern("2026-07-28") && is_modern("2031-01-01"));
        for text in ["2025-11-25", "1900-01-01", "9", "zzzz-zz-zz", "2026-07-2", "２026-07-28"] {
            assert!(!is_modern(text), "{text}");
        }
    }

    #[test]
    fn the_eras_differ_in_sessions_and_result_types() {
        for revision in ALL {
            let features = revision.features();
            let modern = revision.era() == Era::Modern;
            assert_eq!(features.result_type, modern, "{revision}");
            assert_eq!(features.std_headers, modern, "{revision}");
            assert_eq!(features.server_requests, !modern, "{revision}");
        }
        assert!(!Revision::V2025_06_18.features().url_elicitation);
        assert!(Revision::V2025_11_25.features().tasks_core);
        assert!(!Revision::V2025_03_26.features().structured_content);
    }
}
