//! MCP as agents meet it, through the real engine: every revision, over HTTP and over standard streams.

mod legacy;
mod peer;
