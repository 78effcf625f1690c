//! Records what is logged while a test runs.

use parking_lot::Mutex;
use std::io::{self, Write};
use std::sync::Arc;
use tracing::subscriber::DefaultGuard;

/// Recorded warnings and errors.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Records what this thread logs until the guard is dropped.
    pub(crate) fn listen(&self) -> DefaultGuard {
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_ansi(false)
            .with_writer(move || log.clone())
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

    /// Returns the lines that contain a text; quotes in it match plain and escaped ones.
    pub(crate) fn lines_with(&self, text: &str) -> Vec<String> {
        let all = String::from_utf8_lossy(&self.0.lock()).replace("\\\"", "\"");
        let lines = all.lines().filter(|line| line.contains(text));
        lines.map(str::to_owned).collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
