//! Servers of tools that speak MCP: inner sessions, catalogs, calls. One dead server never touches another.

mod handshake;
mod link;
