//! HTTP/2 on both sides of the gateway: what a tool did not process, what a connection shares, what an agent may do.

mod agents;
mod tools;
