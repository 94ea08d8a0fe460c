//! MCP on both sides, through the real engine. As agents meet it: every revision, over HTTP and over standard streams.
//! As servers meet it: scripted ones, over real sockets.

mod asides;
mod asks;
mod calls;
mod catalogs;
mod children;
mod desk;
mod doors;
mod eras;
mod faults;
mod fidelity;
mod import;
mod leaks;
mod legacy;
mod listening;
mod modern;
mod parked;
mod passed;
mod peer;
mod probes;
mod results;
mod resumed;
mod rig;
mod rounds;
mod script;
mod sessions;
mod stdio;
mod subscriptions;
mod whole;
