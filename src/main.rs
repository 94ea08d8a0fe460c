//! The program: everything is in the library.

use std::process::ExitCode;

/// A call allocates some hundred small pieces and frees them on the same thread: what this one is made for.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    checkrein::cli::main()
}
