//! The version of HTTP towards an upstream.

/// Which HTTP is spoken to an upstream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HttpVersion {
    /// Reads take what ALPN offers; writes HTTP/1.1: only there does a connection of their own prove that nothing was
    /// sent. Without TLS: HTTP/1.1.
    #[default]
    Auto,
    Http1,
    /// Both kinds; without TLS by prior knowledge (RFC 9113 §3.3).
    Http2,
}
