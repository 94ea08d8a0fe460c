//! Plain HTTP clients through the gateway: what reaches the tool, what comes back, and that every layer holds.

mod governed;
mod kit;
mod passed;
mod process;
mod streams;
mod writes;
