//! The words of the Model Context Protocol, for both sides of the gateway.
//!
//! Pure: bytes and trees in, bytes and trees out. No I/O, no clock, no policy; who may do what is not known here.

pub mod headers;
pub mod jsonrpc;
pub mod lines;
pub mod messages;
pub mod meta;
pub mod session;
pub mod sse;
pub mod translate;
pub mod version;
pub mod visible;
