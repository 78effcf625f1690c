//! What the command prints for people, and nothing else prints.

use std::io::{IsTerminal, Write};

/// Prints one line on standard output. A closed pipe is not an error worth a panic.
pub fn say(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Prints one line on standard error.
pub fn warn(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Whether a person watches standard error (progress goes there).
#[must_use]
pub fn interactive() -> bool {
    std::io::stderr().is_terminal()
}
