//! koordlet as a daemon of its own.
//!
//! It keeps the system allocator, which holds less memory.

fn main() -> std::process::ExitCode {
    koordlet::program::run(std::env::args_os().collect())
}
