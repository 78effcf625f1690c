//! Output of the command for users, which no other part prints.

use std::io::{IsTerminal, Write};

/// Prints one line on standard output. A closed pipe is not an error worth a panic.
pub fn print_line(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Prints one line on standard error.
pub fn warn(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Returns whether standard error, which shows the progress, is a terminal.
#[must_use]
pub fn interactive() -> bool {
    std::io::stderr().is_terminal()
}

/// Returns a number with its noun, as `1 pod` or `2 pods`.
#[must_use]
pub fn counted(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

/// Formats an error with its causes, each once: many errors already quote their cause.
#[must_use]
pub fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_cause_is_not_repeated() {
        let error = anyhow::anyhow!("port taken")
            .context("listen: port taken")
            .context("start");
        assert_eq!(chain(&error), "start: listen: port taken");
    }
}
