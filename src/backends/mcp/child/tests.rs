//! Real child processes: a scripted server in Python, the real program in between.

mod calls;
mod ends;
mod starts;
mod support;
